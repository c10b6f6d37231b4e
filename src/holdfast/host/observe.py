"""From the files of a session, and its runner's word where there is one, to what can be said about it.

Reading never acts: the only thing touched is a shared lock on `spec.json`, held for the moment of asking. Its
exclusive owner is the runner, for life, so a free lock proves that the runner is gone, whoever looks and from
whichever namespace.
"""

from __future__ import annotations

import errno
import fcntl
import os

from ..errors import DamagedRecord, NotFound
from ..model import (
    EXITED,
    FINAL_STATES,
    LOST,
    RUNNING,
    STALE,
    STARTING,
    UNREACHABLE,
    Snapshot,
    snapshot,
)
from ..runner import clock, records, tree
from .log import Log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..home import Home

    Record = dict[str, Any]


class Files:
    """The records of one session directory, as they were read."""

    __slots__ = ("directory", "exit", "id", "spec", "state")

    def __init__(self, id: str, directory: str, spec: Record, state: Record | None, exit: Record | None) -> None:
        self.id = id
        self.directory = directory
        self.spec = spec
        self.state = state
        self.exit = exit

    @property
    def endpoint(self) -> str:
        recorded: str = (self.state or self.spec)["endpoint"]
        return recorded

    @property
    def pgid(self) -> int | None:
        return None if self.state is None else self.state.get("pgid")

    @property
    def command(self) -> Record | None:
        return None if self.state is None else self.state["command"]


class Observed:
    """What one look at a session found: its state, why we say so, and the runner's own status if it answered."""

    __slots__ = ("evidence", "files", "live", "orphans", "state")

    def __init__(
        self,
        files: Files,
        state: str,
        evidence: str,
        *,
        live: Record | None = None,
        orphans: list[tree.Process] | None = None,
    ) -> None:
        self.files = files
        self.state = state
        self.evidence = evidence
        self.live = live
        self.orphans = orphans or []

    @property
    def final(self) -> bool:
        """Can nothing about it change any more?"""
        exit = self.files.exit
        if self.state == LOST:
            return True
        return self.state == EXITED and exit is not None and not exit["exit"]["survivors"] and _runner_gone(self.files)

    def snapshot(self) -> Snapshot:
        live = self.live
        if live is None:
            log = Log(self.files.directory)
            live = {"ends": self._ends(log), "dropped_before": log.dropped_before(), "log_bytes": log.size()}
        shot = snapshot(
            self.files.spec,
            self.files.state,
            self.files.exit,
            live,
            observed_state=self.state,
            observed_at=clock.now_text(),
        )
        shot.metadata["evidence"] = self.evidence
        return shot

    def _ends(self, log: Log) -> dict[str, int]:
        streams = ["stdout"] if self.files.spec.get("merge_stderr") else ["stdout", "stderr"]
        return {**dict.fromkeys(streams, 0), **log.ends()}


def read_files(home: Home, id: str) -> Files:
    """NotFound when there is no such session, DamagedRecord when its records cannot be read."""
    directory = home.session(id)
    try:
        spec = _read(os.path.join(directory, "spec.json"))
    except FileNotFoundError:
        raise NotFound(id) from None
    for part in ("id", "command", "endpoint", "stdin", "created_at"):
        if part not in spec:
            raise DamagedRecord(os.path.join(directory, "spec.json"), f"it lacks `{part}`")
    if spec["id"] != id:
        raise DamagedRecord(os.path.join(directory, "spec.json"), f"it speaks of session {spec['id']!r}")
    return Files(id, directory, spec, _state(directory), _exit(directory))


def from_files(files: Files) -> Observed:
    """What the files and the process table say, without asking the runner. A runner that lives is taken at its
    word later; until then its session is `running` or `starting`."""
    if files.exit is not None:
        return Observed(files, EXITED, "exit record")
    if not _runner_gone(files):
        if files.state is None:
            return Observed(files, STARTING, "the runner lives and has not yet recorded the command")
        return Observed(files, RUNNING, "the runner lives")
    # It may have written its last record between our two looks.
    files = Files(files.id, files.directory, files.spec, _state(files.directory), _exit(files.directory))
    if files.exit is not None:
        return Observed(files, EXITED, "exit record")
    return _without_runner(files)


def _without_runner(files: Files) -> Observed:
    state = files.state
    if state is not None:
        if state["boot"] != tree.boot_id():
            return Observed(files, LOST, "the machine was rebooted while it ran")
        if state["pidns"] != tree.pid_namespace():
            return Observed(
                files,
                UNREACHABLE,
                "its runner is gone, and its processes cannot be verified from this pid namespace",
            )
    orphans = tree.orphans(files.id, files.command, files.pgid)
    if orphans:
        return Observed(files, STALE, "its runner is gone, its processes live", orphans=orphans)
    command = files.command
    if command is not None:
        other = tree.look(command["pid"])
        if other is not None:
            return Observed(files, LOST, f"its runner is gone, and pid {command['pid']} is another process by now")
    return Observed(files, LOST, "its runner and its processes are gone, and no exit was recorded")


def _runner_gone(files: Files) -> bool:
    try:
        fd = os.open(os.path.join(files.directory, "spec.json"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    finally:
        os.close(fd)
    return True


def _state(directory: str) -> Record | None:
    path = os.path.join(directory, "state.json")
    record = _optional(path)
    if record is None:
        return None
    command, runner = record.get("command"), record.get("runner")
    for who, process in (("command", command), ("runner", runner)):
        if not isinstance(process, dict) or not all(isinstance(process.get(f), int) for f in ("pid", "start")):
            raise DamagedRecord(path, f"it lacks the {who}'s identity")
    for part, kind in (("boot", str), ("pidns", int), ("nonce", str), ("endpoint", str)):
        if not isinstance(record.get(part), kind):
            raise DamagedRecord(path, f"it lacks `{part}`")
    return record


def _exit(directory: str) -> Record | None:
    path = os.path.join(directory, "exit.json")
    record = _optional(path)
    if record is None:
        return None
    exit = record.get("exit")
    if not isinstance(exit, dict) or not isinstance(exit.get("survivors"), list) or "cause" not in exit:
        raise DamagedRecord(path, "it lacks `exit`")
    return record


def _optional(path: str) -> Record | None:
    try:
        return _read(path)
    except FileNotFoundError:
        return None


def _read(path: str) -> Record:
    try:
        return records.read(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as problem:
        raise DamagedRecord(path, str(problem)) from None


__all__ = ["FINAL_STATES", "Files", "Observed", "from_files", "read_files"]
