"""From the files of a session, and its runner's word where there is one, to what can be said about it.

Reading never acts: the only thing touched is a shared lock on `spec.json`, held for the moment of asking. Its
exclusive owner is the runner, for life, so a free lock proves that the runner is gone, whoever looks and from
whichever namespace.
"""

from __future__ import annotations

import errno
import os
import time

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
from ..places import LOCAL
from ..runner import clock, records, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..home import Home

    Record = dict[str, Any]
    Kinds = type | tuple[type, ...]

# A session in another place whose runner is gone is asked after again when this has passed: it costs a link.
_STALE_FOR_S = 30.0
# What hosts rely on. The rest is looked at where it is used, or shown as it is.
_SPEC_REQUIRED: dict[str, Kinds] = {
    "id": str,
    "command": (str, list),
    "endpoint": str,
    "stdin": str,
    "created_at": str,
}
_SPEC_OPTIONAL: dict[str, Kinds] = {
    "kind": str,
    "name": str,
    "owner": str,
    "description": str,
    "cwd": str,
    "place": str,
    "labels": dict,
    "metadata": dict,
    "grace": (int, float),
    "stop_ladder": list,
}
_STATE_REQUIRED: dict[str, Kinds] = {
    "boot": str,
    "pidns": int,
    "nonce": str,
    "endpoint": str,
    "command": dict,
    "runner": (dict, str),
}
# In the place of a runner's identity: this daemon runs inside a host, whose identity stands under the same word.
HOST = "host"
_STATE_OPTIONAL: dict[str, Kinds] = {"changed": dict, "started_at": str, "pgid": int}
_EXIT_OPTIONAL: dict[str, Kinds] = {
    "started_at": str,
    "ended_at": str,
    "last_output_at": str,
    "ends": dict,
    "lines": dict,
    "dropped_before": dict,
    "gaps": list,
    "error": dict,
}


class Files:
    """The records of one session directory, as they were read."""

    __slots__ = ("directory", "exit", "id", "intent", "spec", "state")

    def __init__(
        self,
        id: str,
        directory: str,
        spec: Record,
        state: Record | None,
        exit: Record | None,
        intent: Record | None = None,
    ) -> None:
        self.id = id
        self.directory = directory
        self.spec = spec
        self.state = state
        self.exit = exit
        # Looked for only where no runner is left that would tell it.
        self.intent = intent

    def now(self) -> Record:
        """The spec as `update` left it."""
        return {**self.spec, **((self.state or {}).get("changed") or {})}

    @property
    def away(self) -> bool:
        """Does its runner live in another place? Here it has a deputy, and these files are a copy."""
        return self.spec.get("place") not in (None, LOCAL)

    @property
    def endpoint(self) -> str:
        recorded: str = (self.state or self.spec)["endpoint"]
        return recorded

    @property
    def pgid(self) -> int | None:
        return None if self.state is None else self.state.get("pgid")

    @property
    def in_process(self) -> bool:
        """Does a host play its runner? Then there is no command either."""
        return self.state is not None and self.state["runner"] == HOST

    @property
    def runner(self) -> Record | None:
        return None if self.state is None else self.state[HOST if self.in_process else "runner"]

    @property
    def command(self) -> Record | None:
        return None if self.state is None or self.in_process else self.state["command"]


class Observed:
    """What one look at a session found: its state, why we say so, and the runner's own status if it answered."""

    __slots__ = ("consumers", "evidence", "files", "live", "mismatch", "orphans", "signal_id", "state")

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
        # The part of its identity that another has who answers in its place.
        self.mismatch: str | None = None
        # The record of its end, where a host wrote it.
        self.signal_id: str | None = None
        # Right after the start: how many would be told of its end.
        self.consumers: int | None = None

    @property
    def final(self) -> bool:
        """Can nothing about it change any more?"""
        exit = self.files.exit
        return self.state == LOST or (exit is not None and not exit["exit"]["survivors"])

    def snapshot(self) -> Snapshot:
        live = self.live
        if live is None:
            from .log import Log  # not for `hold ls`, whose runners answer

            with Log(self.files.directory).look() as look:
                dropped = {stream: look.begin(stream) for stream in look.streams}
                live = {"ends": dict(look.ends), "dropped_before": dropped, "log_bytes": look.size()}
                times = [at for at in map(look.newest, look.streams) if at is not None]
                if self.files.exit is None and times:
                    live["last_output_at"] = clock.rfc3339(int(max(times) * 1e9))
        shot = snapshot(
            self.files.spec,
            self.files.state,
            self.files.exit,
            live,
            self.files.intent,
            observed_state=self.state,
            observed_at=clock.now_text(),
        )
        if self.state == LOST and shot.ended_at is None:
            # Nobody saw it end: at the latest when something was written of it last, which is that it was found lost.
            shot.ended_at = clock.rfc3339(_last_change_ns(self.files.directory))
        shot.metadata["evidence"] = self.evidence
        if self.mismatch is not None:
            shot.metadata["mismatch"] = self.mismatch
        if self.signal_id is not None:
            shot.metadata["signal_id"] = self.signal_id
        if self.consumers is not None:
            shot.metadata["consumers"] = self.consumers
        return shot


def _last_change_ns(directory: str) -> int:
    newest = 0
    try:
        with os.scandir(directory) as entries:
            newest = max((entry.stat(follow_symlinks=False).st_mtime_ns for entry in entries), default=0)
    except OSError:
        pass  # removed meanwhile
    return newest


def read_files(home: Home, id: str) -> Files:
    """NotFound when there is no such session, DamagedRecord when its records cannot be read."""
    directory = home.session(id)
    try:
        spec = _read(os.path.join(directory, "spec.json"))
    except FileNotFoundError:
        raise NotFound(id) from None
    path = os.path.join(directory, "spec.json")
    _expect(path, spec, _SPEC_REQUIRED, required=True)
    _expect(path, spec, _SPEC_OPTIONAL)
    if spec["id"] != id:
        raise DamagedRecord(path, f"it speaks of session {spec['id']!r}")
    return Files(id, directory, spec, _state_or_repaired(id, directory, spec), _exit(directory))


def from_files(files: Files) -> Observed:
    """What the files and the process table say, without asking the runner. A runner that lives is taken at its
    word later; until then its session is `running` or `starting`."""
    if files.exit is not None:
        return _ended(files)
    if not runner_gone(files):
        if files.state is None:
            return Observed(files, STARTING, "the runner lives and has not yet recorded the command")
        return Observed(files, RUNNING, "the runner lives")
    # It may have written its last record between our two looks.
    files = read_again(files)
    if files.exit is not None:
        return _ended(files)
    return _without_deputy(files) if files.away else _without_runner(files)


def read_again(files: Files) -> Files:
    """The same session, with the records that may have changed since it was read."""
    return Files(files.id, files.directory, files.spec, _state(files.directory), _exit(files.directory))


def _ended(files: Files) -> Observed:
    """A runner strikes the last survivors off the record. Where it died before them, whoever looks says who lives."""
    assert files.exit is not None
    exit = files.exit["exit"]
    if files.away:
        heard = _heard(files) if exit["survivors"] else None
        if heard is not None and heard["state"] == LOST:
            files.exit = {**files.exit, "exit": {**exit, "survivors": [], "survivors_more": 0}}
    elif exit["survivors"] and runner_gone(files):
        away = elsewhere(files)
        if files.in_process:
            left, more = [], 0  # a task or thread is gone with its host
        elif away is None:
            living = {each.pid: each for each in tree.orphans(files.id, files.command, files.pgid, files.runner)}
            left = [each for each in exit["survivors"] if tree.same(each["pid"], each["start"])]
            left += tree.described(living[pid] for pid in living.keys() - {each["pid"] for each in left})
            more = 0
        else:
            left, more = ([], 0) if away[0] == "boot" else (exit["survivors"], exit.get("survivors_more", 0))
        # Whoever stopped them is gone too.
        files.exit = {**files.exit, "exit": {**exit, "survivors": left, "survivors_more": more}, "stopping": None}
    return Observed(files, EXITED, "exit record")


def elsewhere(files: Files) -> tuple[str, Any, Any] | None:
    """The part of where it ran that differs from where we are, recorded and found. Its pids and start times mean
    nothing here then."""
    recorded = files.state or files.spec
    here = (("boot", tree.boot_id()), ("pidns", tree.pid_namespace()), ("timens", tree.time_namespace()))
    for part, found in here:
        if recorded.get(part, found) != found:
            return part, recorded[part], found
    return None


def stranger(files: Files) -> tree.Process | None:
    """The process that has the command's pid by now and is not the command."""
    command = files.command
    process = None if command is None else tree.look(command["pid"])
    return None if process is None or command is None or process.start == command["start"] else process


def _without_runner(files: Files) -> Observed:
    if files.in_process:
        return Observed(files, LOST, "its host is gone, and it was a task or thread of it")
    away = elsewhere(files)
    if away is not None:
        if away[0] == "boot":
            return Observed(files, LOST, "the machine was rebooted while it ran")
        space = "pid" if away[0] == "pidns" else "time"
        if away[0] == "pidns" and tree.pid_namespace_is_over(away[1]):
            return Observed(files, LOST, "the pid namespace it ran in is gone, and everybody in it")
        return Observed(
            files,
            UNREACHABLE,
            f"its runner is gone, and its processes cannot be verified from this {space} namespace",
        )
    orphans = tree.orphans(files.id, files.command, files.pgid, files.runner)
    if orphans:
        return Observed(files, STALE, "its runner is gone, its processes live", orphans=orphans)
    asked = _read_intent(files)
    other = stranger(files)
    if other is not None:
        return Observed(files, LOST, f"its runner is gone, and pid {other.pid} is another process by now{asked}")
    return Observed(files, LOST, f"its runner and its processes are gone, and no exit was recorded{asked}")


def _without_deputy(files: Files) -> Observed:
    """Of what runs in another place we know what its deputy heard last; another can be started to ask anew."""
    heard = _heard(files)
    if heard is None:
        return Observed(files, UNREACHABLE, "nobody holds a link to its place")
    asked = _read_intent(files) if heard["state"] == LOST else ""
    return Observed(files, heard["state"], heard["evidence"] + asked)


def stopped_away(files: Files) -> Record | None:
    """What a deputy that was sent to end it found there, and what survived."""
    return (_heard(files) or {}).get("stopped")


def _heard(files: Files) -> Record | None:
    """What a deputy wrote when its session had no runner any more."""
    path = os.path.join(files.directory, records.AWAY)
    heard = _optional(path)
    if heard is not None:
        _expect(path, heard, {"state": str, "evidence": str, "at": str}, required=True)
    return heard if heard is not None and heard["state"] in (STALE, LOST) else None


def needs_deputy(files: Files) -> bool:
    """Could another deputy tell more of this session than is known? Of one that is stale, now and then."""
    if not files.away or not runner_gone(files):
        return False
    files = read_again(files)
    if files.exit is not None and not files.exit["exit"]["survivors"]:
        # One that died before it had all removed there has left its door.
        return os.path.exists(files.endpoint)
    heard = _heard(files)
    if heard is None:
        return True
    age_s = time.time() - os.stat(os.path.join(files.directory, records.AWAY)).st_mtime
    return heard["state"] == STALE and not 0 <= age_s < _STALE_FOR_S


def runner_gone(files: Files) -> bool:
    return records.lock_is_free(os.path.join(files.directory, "spec.json"))


def _state_or_repaired(id: str, directory: str, spec: Record) -> Record | None:
    """Where the runner lives, a damaged record is written anew. In another place the copy comes again by itself."""
    try:
        return _state(directory)
    except DamagedRecord:
        if spec.get("place") not in (None, LOCAL) or records.lock_is_free(os.path.join(directory, "spec.json")):
            raise
        from .repair import rewrite_state

        if not rewrite_state(id, spec):
            raise
        return _state(directory)


def _state(directory: str) -> Record | None:
    path = os.path.join(directory, "state.json")
    record = _optional(path)
    if record is None:
        return None
    _expect(path, record, _STATE_REQUIRED, required=True)
    _expect(path, record, _STATE_OPTIONAL)
    if record["runner"] == HOST:
        _expect(path, record, {HOST: dict}, required=True)
    elif isinstance(record["runner"], str):
        raise DamagedRecord(path, "`runner` is neither an identity nor a host")
    for who in (HOST,) if record["runner"] == HOST else ("command", "runner"):
        _expect(path, record[who], {"pid": int, "start": int}, required=True)
    return record


def _exit(directory: str) -> Record | None:
    path = os.path.join(directory, "exit.json")
    record = _optional(path)
    if record is None:
        return None
    _expect(path, record, {"exit": dict}, required=True)
    _expect(path, record["exit"], {"cause": str, "survivors": list}, required=True)
    _expect(path, record["exit"], {"code": int, "signal": str, "by": str})
    _expect(path, record, _EXIT_OPTIONAL)
    for survivor in record["exit"]["survivors"]:
        if not isinstance(survivor, dict):
            raise DamagedRecord(path, "a survivor is no process there")
        _expect(path, survivor, {"pid": int, "start": int}, required=True)
    for part in ("ends", "lines", "dropped_before"):
        if not all(isinstance(offset, int) for offset in (record.get(part) or {}).values()):
            raise DamagedRecord(path, f"`{part}` has what is no offset")
    return record


def _read_intent(files: Files) -> str:
    """What was asked past the runner becomes part of the files; in words for the evidence. One that cannot be read
    takes the reason away, and nothing else."""
    path = os.path.join(files.directory, records.INTENT)
    try:
        record = _optional(path)
        if record is None:
            return ""
        _expect(path, record, {"cause": str, "by": str, "at": str}, required=True)
    except DamagedRecord as problem:
        return f"; {problem.message}"
    files.intent = record
    return f"; {record['by']} asked for its end at {record['at']}"


def _expect(path: str, record: Record, kinds: Mapping[str, Kinds], *, required: bool = False) -> None:
    for part, kind in kinds.items():
        value = record.get(part)
        if value is None and required:
            raise DamagedRecord(path, f"it lacks `{part}`")
        if value is not None and not isinstance(value, kind):
            raise DamagedRecord(path, f"`{part}` is {type(value).__name__} there")


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
        if getattr(problem, "errno", None) in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise  # our own want, which says nothing about the record
        raise DamagedRecord(path, str(problem)) from None


__all__ = ["FINAL_STATES", "Files", "Observed", "from_files", "read_files"]
