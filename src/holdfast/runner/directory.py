"""The session's directory: created with the spec before the command exists, or the start is refused; and what the
runner itself keeps there: its log and the record of inputs."""

from __future__ import annotations

import errno
import os

from ..core import clock, failpoints, jsontext, records, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Callable


DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# What a command reports to its caller beside its output, through a descriptor that it gets.
REPORT_FILE = "report"


class Refused(Exception):
    """The start request cannot be carried out; nothing was spawned. Carries the error frame."""

    def __init__(self, code: str, message: str, /, **facts: object) -> None:
        super().__init__(message)
        self.frame = wire.error({}, code, message, **facts)


def persist(home: str, spec: dict[str, Any]) -> tuple[int, int]:
    """Write the spec, reserve room for the exit record, take the lock that the runner holds for life. Returns the
    descriptors of the directory and of the lock."""
    id = spec["id"]
    path = os.path.join(home, "sessions", id)
    try:
        failpoints.hit("runner.before_directory")
        os.mkdir(path, 0o700)
    except FileExistsError:
        raise Refused("superseded", f"session {id} was given up by its host before its runner started") from None
    except OSError as problem:
        raise refused_by_disk(problem, path) from None
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        records.reserve_exit(directory)
        if spec.get("report_fd") is not None:
            os.close(records.create(directory, REPORT_FILE))
        lock = records.write_locked(directory, "spec.json", spec)
    except OSError as problem:
        forget_session(directory)
        os.close(directory)
        raise refused_by_disk(problem, path) from None
    failpoints.hit("runner.spec_written")
    return directory, lock


def refused_by_disk(problem: OSError, path: str) -> Refused:
    refusal = Refused(
        "disk-full",
        f"{path} cannot be written: {problem.strerror}; no process was started",
        path=path,
        free=_free_bytes(path),
        errno=problem.errno,
        reason=problem.strerror,
    )
    if problem.errno not in DISK_FULL:
        refusal.frame["fix"] = "make sure that the home is writable and its disk sound, or set HOLDFAST_HOME to another"
    return refusal


def forget_session(directory: int) -> None:
    """Remove the directory of a session whose command was never spawned: no host has its id."""
    try:
        for name in os.listdir(directory):
            os.unlink(name, dir_fd=directory)
        os.rmdir(os.readlink(f"/proc/self/fd/{directory}"))
    except OSError:
        pass  # the disk refuses this too: a collection removes it later


def _free_bytes(path: str) -> int | None:
    try:
        disk = os.statvfs(os.path.dirname(path))
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


_LOG_MAX_BYTES = 64 << 10
_WARNINGS_MAX = 32


class RunnerLog:
    def __init__(self, directory: int, warnings: Iterable[str], name: str = "runner.log") -> None:
        self._directory = directory
        self._name = name
        self.warnings = list(warnings)

    def warn(self, text: str) -> None:
        """Report it once: in the status, in the exit record and in the log."""
        if text not in self.warnings and len(self.warnings) < _WARNINGS_MAX:
            self.warnings.append(text)
            self.write(text)

    def exception(self, problem: Exception) -> None:
        """Log where a bug of ours came from. Does not use the `traceback` module, which imports a dozen other
        modules."""
        lines = [f"Traceback of {type(problem).__name__}: {problem}"]
        at = problem.__traceback__
        while at is not None:
            lines.append(f"  {at.tb_frame.f_code.co_filename}:{at.tb_lineno} {at.tb_frame.f_code.co_name}")
            at = at.tb_next
        self.write("\n".join(lines))

    def write(self, text: str) -> None:
        """Append it to the log, which is bounded."""
        try:
            fd = records.open_own(self._directory, self._name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                if os.fstat(fd).st_size < _LOG_MAX_BYTES:
                    os.write(fd, f"{clock.now_text()} {text}\n".encode("utf-8", "replace"))
            finally:
                os.close(fd)
        except OSError:
            pass


# Some ten thousand entries; then the file becomes `inputs.1.jsonl` and a new one begins.
_INPUTS_MAX_BYTES = 1 << 20


class Inputs:
    """`inputs.jsonl`: the author, time and size of each input, and the offset of the output at that moment."""

    def __init__(self, directory: int, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._say = say
        self._fd: int | None = None
        self._size = 0
        self._refused = False

    def note(self, author: str | None, size: int, offset: int) -> None:
        entry = {"at": clock.now_text(), "by": author, "bytes": size, "offset": offset}
        line = jsontext.write(entry).encode() + b"\n"
        try:
            if self._fd is None:
                self._fd = records.open_own(self._directory, "inputs.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._size += os.write(self._fd, line)
            if self._size > _INPUTS_MAX_BYTES:
                self._turn_over()
        except OSError as problem:
            if not self._refused:
                self._refused = True
                self._say(f"inputs.jsonl could not be written: {problem.strerror}")

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _turn_over(self) -> None:
        os.rename("inputs.jsonl", "inputs.1.jsonl", src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self.close()
        self._size = 0
