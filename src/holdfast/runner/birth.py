"""Before there is a command: its spec on disk, its directory, and what is said when that cannot be."""

from __future__ import annotations

import errno
import os

from . import points, records, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT)


class Refused(Exception):
    """The start request cannot be carried out; nothing was spawned. Carries the error frame."""

    def __init__(self, code: str, message: str, /, **facts: object) -> None:
        super().__init__(message)
        self.frame = wire.error({}, code, message, **facts)


def persist(home: str, spec: dict[str, Any]) -> tuple[int, int]:
    """Spec on disk, room for the exit record taken, and the lock that says we live: the directory, and the lock."""
    id = spec["id"]
    path = os.path.join(home, "sessions", id)
    try:
        if points.ACTIVE:
            points.hit("runner.before_directory")
        os.mkdir(path, 0o700)
    except FileExistsError:
        raise Refused("superseded", f"session {id} was given up by its host before we came") from None
    except OSError as problem:
        raise refused_by_disk(problem, path) from None
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        records.reserve_exit(directory)
        lock = records.write_locked(directory, "spec.json", spec)
    except OSError as problem:
        forget(directory)
        os.close(directory)
        raise refused_by_disk(problem, path) from None
    if points.ACTIVE:
        points.hit("runner.spec_written")
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
    if problem.errno not in FULL:
        refusal.frame["fix"] = "see that the home is writable and its disk sound, or set HOLDFAST_HOME to another"
    return refusal


def forget(directory: int) -> None:
    """Nothing was spawned and nobody was told of this session: leave no trace."""
    try:
        for name in os.listdir(directory):
            os.unlink(name, dir_fd=directory)
        os.rmdir(os.readlink(f"/proc/self/fd/{directory}"))
    except OSError:
        pass  # a disk that takes nothing may also let nothing go; a collection sweeps it later


def _free_bytes(path: str) -> int | None:
    try:
        disk = os.statvfs(os.path.dirname(path))
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize
