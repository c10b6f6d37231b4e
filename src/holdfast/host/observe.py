"""From the files of a session, and its runner's word where there is one, to what can be said about it.

Reading never acts: the only thing touched is a shared lock on `spec.json`, held for the moment of asking. Its
exclusive owner is the runner, for life, so a free lock proves that the runner is gone, whoever looks and from
whichever namespace.
"""

from __future__ import annotations

import errno
import os
import re
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
from ..runner import clock, records, shapes, tree
from ..runner.shapes import HOST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..home import Home

    Record = dict[str, Any]
    Shape = shapes.Kind | Callable[[object], shapes.Kind]

# A session in another place whose runner is gone is asked after again when this has passed: it costs a link.
_STALE_FOR_S = 30.0
# In the place of a line that is longer than any signal: what is no signal either.
_TOO_LONG = b'"longer than a signal"\n'
_LIVED = re.compile(r"(state|exit)\.json|frames|signals\.jsonl|(stdout|stderr|tty)\.\d{20}")
# Instead of a state, in what a deputy recorded: its place sent what cannot be used.
DAMAGED = "damaged"
# The same: it sent more than the session may have here, and nothing more is taken from it.
REFUSED = "refused"
# Why a session cannot be read whose directory has everything else.
NO_SPEC = "it is missing"


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

    __slots__ = (
        "consumers",
        "damage",
        "evidence",
        "files",
        "gaps",
        "live",
        "mismatch",
        "orphans",
        "signal_id",
        "state",
    )

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
        # What of its output its place could not bring here.
        self.gaps: list[Record] = []
        # Why the answer at its endpoint cannot be used.
        self.damage: DamagedRecord | None = None
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
        if live is not None and self.files.away:
            live = {name: value for name, value in live.items() if name not in records.DECIDED_HERE}
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
        if self.gaps:
            shot.metadata["gaps"] = self.gaps
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
    path = os.path.join(directory, "spec.json")
    try:
        spec = _read(path, shapes.SPEC)
    except FileNotFoundError:
        if has_lived(directory):
            raise DamagedRecord(path, NO_SPEC) from None
        raise NotFound(id) from None
    if spec["id"] != id:
        raise DamagedRecord(path, f"it speaks of session {spec['id']!r}")
    files = Files(id, directory, spec, _state_or_repaired(id, directory, spec), _exit(directory))
    if files.away:
        _heard(files)
        _decide_here(files)
    return files


def _decide_here(files: Files) -> None:
    """Whose a session is, and what it is called, was decided here: a place has no say in it."""
    if files.state is None:
        return
    said = files.state.get("changed") or {}
    theirs = {name: value for name, value in said.items() if name not in records.DECIDED_HERE}
    here = _optional(os.path.join(files.directory, records.HERE), shapes.HERE) or {}
    files.state = {**files.state, "changed": {**theirs, **(here.get("changed") or {})}}


def record_here(files: Files, changes: Record) -> None:
    """Keep what hosts here change of a session in another place."""
    decided = {name: value for name, value in changes.items() if name in records.DECIDED_HERE}
    if not decided or not files.away:
        return
    directory = os.open(files.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        before = records.found(directory, records.HERE).get("changed") or {}
        records.write(directory, records.HERE, {"v": 1, "changed": {**before, **decided}})
    finally:
        os.close(directory)


def check_contents(home: Home, id: str) -> None:
    """DamagedRecord where something in the directory is no file, a record that is rarely read has the wrong shape, or a
    line of its signals is no signal. Too long for every look, and none of it keeps a session from being read or
    stopped."""
    from ..runner.signalfile import FILE, LINE_MAX_BYTES
    from ..signals.records import Bad, parse

    directory = home.session(id)
    try:
        with os.scandir(directory) as entries:
            strange = sorted(entry.path for entry in entries if not entry.is_file(follow_symlinks=False))
    except FileNotFoundError:
        raise NotFound(id) from None
    if strange:
        raise DamagedRecord(strange[0], "it is not a regular file")
    for name, shape in ((records.INTENT, shapes.INTENT), (records.AWAY, shapes.AWAY), (records.HERE, shapes.HERE)):
        _optional(os.path.join(directory, name), shape)
    path = os.path.join(directory, FILE)
    for number, line in enumerate(records.lines(path, LINE_MAX_BYTES, too_long=_TOO_LONG), 1):
        found = parse(line, id)
        # One that its writer did not finish is ended by the next writer, and no damage.
        if isinstance(found, Bad) and line.endswith(b"\n") and not found.is_torn:
            raise DamagedRecord(path, f"line {number}: {found.why}")


def has_lived(directory: str) -> bool:
    """Whether anything in the directory speaks of a command; else it is empty, or there is but a spec."""
    try:
        return any(map(_LIVED.fullmatch, os.listdir(directory)))
    except FileNotFoundError:
        return False
    except OSError:
        return True  # nobody can say that it did not


def runner_holds(home: Home, id: str, runtime: str) -> bool | None:
    """Of a session whose records cannot be used: whether its runner, or its deputy, is there. None where something
    stands in the place of its spec, so that the lock tells nothing, and nobody listens at its endpoint."""
    import stat

    spec = os.path.join(home.session(id), "spec.json")
    try:
        if stat.S_ISREG(os.lstat(spec).st_mode):
            return not records.lock_is_free(spec)
        missing = False
    except FileNotFoundError:
        missing = True
    except OSError:
        return None
    from .connection import call

    try:
        call(os.path.join(runtime, id + ".sock")).close()
    except BlockingIOError:
        return True
    except OSError:
        return False if missing else None
    return True


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
    again = Files(files.id, files.directory, files.spec, _state(files.directory), _exit(files.directory))
    if again.away:
        _decide_here(again)
    return again


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
            living = {each.pid: each for each in orphans(files)}
            left = [each for each in exit["survivors"] if tree.same(each["pid"], each["start"])]
            left += tree.described(living[pid] for pid in living.keys() - {each["pid"] for each in left})
            more = 0
        else:
            left, more = ([], 0) if away[0] == "boot" else (exit["survivors"], exit.get("survivors_more", 0))
        # Whoever stopped them is gone too.
        files.exit = {**files.exit, "exit": {**exit, "survivors": left, "survivors_more": more}, "stopping": None}
    return Observed(files, EXITED, "exit record")


def orphans(files: Files) -> list[tree.Process]:
    """What lives here of a session whose runner is gone. What is listed as a survivor is what a stop ends."""
    survivors = () if files.exit is None else files.exit["exit"]["survivors"]
    return tree.orphans(files.id, files.command, files.pgid, files.runner, survivors)


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
    left = orphans(files)
    if left:
        return Observed(files, STALE, "its runner is gone, its processes live", orphans=left)
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
    if heard["state"] == REFUSED:
        refused = Observed(files, UNREACHABLE, heard["evidence"])
        refused.gaps = heard.get("gaps") or []
        return refused
    asked = _read_intent(files) if heard["state"] == LOST else ""
    if files.intent is not None:
        files.intent["stopped"] = heard.get("how")
    return Observed(files, heard["state"], heard["evidence"] + asked)


def stopped_away(files: Files) -> Record | None:
    """What a deputy that was sent to end it found there, and what survived."""
    return (_heard(files) or {}).get("stopped")


def _heard(files: Files) -> Record | None:
    """What a deputy wrote when its session had no runner any more."""
    path = os.path.join(files.directory, records.AWAY)
    heard = _optional(path, shapes.AWAY)
    if heard is not None and heard["state"] == DAMAGED:
        raise DamagedRecord(path, heard["evidence"])
    return heard if heard is not None and heard["state"] in (STALE, LOST, REFUSED) else None


def refused_place(home: Home, id: str) -> bool:
    """Did its place send more than the session may have here?"""
    files = read_files(home, id)
    heard = _heard(files) if files.away else None
    return heard is not None and heard["state"] == REFUSED


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


def halted(files: Files) -> bool:
    """Was its runner stopped by a signal? Then it answers nobody, and there is no need to wait until that is clear."""
    runner = files.runner
    if runner is None or files.away or elsewhere(files) is not None:
        return False
    process = tree.look(runner["pid"])
    return process is not None and process.start == runner["start"] and process.state == "T"


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
    return _optional(os.path.join(directory, "state.json"), shapes.state)


def _exit(directory: str) -> Record | None:
    return _optional(os.path.join(directory, "exit.json"), shapes.EXIT_RECORD)


def _read_intent(files: Files) -> str:
    """What was asked past the runner becomes part of the files; in words for the evidence. One that cannot be read
    takes the reason away, and nothing else."""
    try:
        record = _optional(os.path.join(files.directory, records.INTENT), shapes.INTENT)
    except DamagedRecord as problem:
        return f"; {problem.message}"
    if record is None:
        return ""
    files.intent = record
    return f"; {record['by']} asked for its end at {record['at']}"


def _optional(path: str, shape: Shape) -> Record | None:
    try:
        return _read(path, shape)
    except FileNotFoundError:
        return None


def _read(path: str, shape: Shape) -> Record:
    """The one way in for records of a session: of this shape, or DamagedRecord."""
    try:
        record = records.read(path)
        shapes.check(shape if isinstance(shape, shapes.Kind) else shape(record), record)
        return record
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as problem:
        if getattr(problem, "errno", None) in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise  # our own want, which says nothing about the record
        raise DamagedRecord(path, str(problem)) from None


__all__ = ["FINAL_STATES", "Files", "Observed", "from_files", "read_files"]
