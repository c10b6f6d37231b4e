"""From the files of a session, and its runner's answer if there is one, to its state and snapshot.

Reading changes nothing of a session: it takes a shared lock on `spec.json` for the moment of asking. Its exclusive
owner is the runner, for life, so a free lock proves, from any namespace, that the runner is gone. One record is
repaired: a runner that lives is asked to write a damaged `state.json` again.
"""

from __future__ import annotations

import errno
import os
import time

from ..core import clock, processes, records, shapes, wire
from ..core.shapes import HOST
from ..errors import (
    DamagedRecord,
    HoldfastError,
    IdentityMismatch,
    NotFound,
    RunnerGone,
    SessionEnded,
    Unreachable,
)
from ..model import EXITED, LOST, RUNNING, STALE, STARTING, UNREACHABLE, Snapshot, snapshot
from ..places.kinds import is_away
from .connection import check_answer, greeting, open_socket, prove, send_greeting

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket as socket
    from collections.abc import Callable
    from typing import Any

    from ..home import Home
    from .driver import Driver


if TYPE_CHECKING:
    Record = dict[str, Any]
    Shape = shapes.Kind | Callable[[object], shapes.Kind]

# A session in another place whose runner is gone is asked after again when this has passed: it costs a link.
_STALE_FOR_S = 30.0
# Stands in for a line that is too long to be a signal; it is not a signal itself.
_TOO_LONG = b'"longer than a signal"\n'
# Files that only a session whose command was started has, beside the segments of its log.
_OF_A_COMMAND = ("state.json", "exit.json", "frames", "signals.jsonl")
# Instead of a state, in what a deputy recorded: its place sent what cannot be used.
DAMAGED = "damaged"
# The same: the place sent more than the limits of the session allow, and the copy has stopped.
REFUSED = "refused"
# The reason given for a session directory that lacks only `spec.json`.
NO_SPEC = "it is missing"


class Files:
    """The records of one session directory, as they were read."""

    __slots__ = ("away", "directory", "exit", "id", "intent", "spec", "state")

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
        self.away = is_away(spec)
        self.state = state
        self.exit = exit
        # Read only when the runner is gone.
        self.intent = intent

    def current(self) -> Record:
        """The spec as `update` left it."""
        return {**self.spec, **((self.state or {}).get("changed") or {})}

    @property
    def endpoint(self) -> str:
        recorded: str = (self.state or self.spec)["endpoint"]
        return recorded

    @property
    def pgid(self) -> int | None:
        return None if self.state is None else self.state.get("pgid")

    @property
    def in_process(self) -> bool:
        """Whether a host runs it as a task or thread: then it has neither a runner nor a command."""
        return self.state is not None and self.state["runner"] == HOST

    @property
    def runner(self) -> Record | None:
        return None if self.state is None else self.state[HOST if self.in_process else "runner"]

    @property
    def command(self) -> Record | None:
        return None if self.state is None or self.in_process else self.state["command"]


class Observed:
    """What one look at a session found: its state, the evidence for it, and the runner's own status if it answered."""

    __slots__ = (
        "consumers",
        "damage",
        "evidence",
        "existed",
        "files",
        "gaps",
        "live",
        "mismatch",
        "nothing_queued",
        "orphans",
        "shot",
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
        orphans: list[processes.Process] | None = None,
    ) -> None:
        self.files = files
        self.state = state
        self.evidence = evidence
        self.live = live
        self.orphans = orphans or []
        # Output that the place could not transfer to this machine.
        self.gaps: list[Record] = []
        # Why the answer at its endpoint cannot be used.
        self.damage: DamagedRecord | None = None
        # The part of its identity that the process at its endpoint does not have.
        self.mismatch: str | None = None
        # The record of its end, where a host wrote it.
        self.signal_id: str | None = None
        # Right after the start: how many consumers get its signals.
        self.consumers: int | None = None
        # Of a start: whether the key was taken. Then this is the session that has it, and nothing was started.
        self.existed = False
        # Of a run: whether no queue has a signal of it, because its runner knows that this call has the end.
        self.nothing_queued = False
        self.shot: Snapshot | None = None

    @property
    def final(self) -> bool:
        """Whether nothing about it can change any more."""
        exit = self.files.exit
        return self.state == LOST or (exit is not None and not exit["exit"]["survivors"])

    @property
    def has_survivors(self) -> bool:
        """Whether the command has ended, but not all its processes."""
        return self.files.exit is not None and bool(self.files.exit["exit"]["survivors"])

    def error_without_runner(self, waited: float = 0.0) -> HoldfastError:
        """The error for a request that no runner can answer now."""
        if self.state == EXITED:
            assert self.files.exit is not None
            exit = self.files.exit["exit"]
            return SessionEnded(self.files.id, exit["code"], exit["signal"], self.files.exit["ended_at"])
        if self.state in (STALE, LOST):
            return RunnerGone(self.files.id, self.state, (self.files.command or {}).get("pid"))
        return Unreachable(self.files.id, (self.files.runner or {}).get("pid"), round(waited, 3))

    def snapshot(self) -> Snapshot:
        """What this look found, made once."""
        if self.shot is None:
            self.shot = self._snapshot()
        return self.shot

    def _snapshot(self) -> Snapshot:
        live = self.live
        if live is not None and self.files.away:
            live = {name: value for name, value in live.items() if name not in records.LOCALLY_CHANGED}
        if live is None:
            from .log import Log  # not for `hold ls`, whose runners answer

            with Log(self.files.directory).snapshot() as log:
                dropped = {stream: log.begin(stream) for stream in log.streams}
                live = {"ends": dict(log.ends), "dropped_before": dropped, "log_bytes": log.size()}
                times = [at for at in map(log.newest, log.streams) if at is not None]
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
            # No process saw the end: the last change of its files is the latest possible time.
            shot.ended_at = clock.rfc3339(last_change_ns(self.files.directory) or 0)
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


def last_change_ns(directory: str) -> int | None:
    """When a file of the directory changed last; None when there is none."""
    try:
        with os.scandir(directory) as entries:
            return max((entry.stat(follow_symlinks=False).st_mtime_ns for entry in entries), default=None)
    except OSError:
        return None  # removed meanwhile


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
        raise DamagedRecord(path, f"it is the record of session {spec['id']!r}")
    files = Files(id, directory, spec, _state_or_repaired(id, directory, spec), _exit(directory))
    if files.away:
        _recorded_away(files)
        _apply_local_changes(files)
    return files


def read_end(home: Home, files: Files) -> Files:
    """The records after a wait by the host that started the session. It has the spec and what the runner answered: of
    a session here, only the exit record is new."""
    if files.away:
        return read_files(home, files.id)
    files.exit = _exit(files.directory)
    return files


def _apply_local_changes(files: Files) -> None:
    """Owner, name and labels are decided here: a place cannot change them."""
    if files.state is None:
        return
    changed = files.state.get("changed") or {}
    theirs = {name: value for name, value in changed.items() if name not in records.LOCALLY_CHANGED}
    here = _optional(os.path.join(files.directory, records.LOCAL_CHANGES), shapes.LOCAL_CHANGES) or {}
    files.state = {**files.state, "changed": {**theirs, **(here.get("changed") or {})}}


def record_local_changes(files: Files, changes: Record) -> None:
    """Keep what hosts here change of a session in another place."""
    decided = {name: value for name, value in changes.items() if name in records.LOCALLY_CHANGED}
    if not decided or not files.away:
        return
    directory = os.open(files.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        before = records.found(directory, records.LOCAL_CHANGES).get("changed") or {}
        records.write(directory, records.LOCAL_CHANGES, {"v": 1, "changed": {**before, **decided}})
    finally:
        os.close(directory)


def check_contents(home: Home, id: str) -> None:
    """DamagedRecord if the directory contains something other than regular files, a record that is rarely read has the
    wrong shape, or a line of its signals is not a signal. This takes too long for every look, and a session can be read
    and stopped in spite of it."""
    from ..core.signalfile import FILE, LINE_MAX_BYTES
    from ..signals.lines import Bad, parse

    directory = home.session(id)
    try:
        with os.scandir(directory) as entries:
            strange = sorted(entry.path for entry in entries if not entry.is_file(follow_symlinks=False))
    except FileNotFoundError:
        raise NotFound(id) from None
    if strange:
        raise DamagedRecord(strange[0], "it is not a regular file")
    for name, shape in (
        (records.INTENT, shapes.INTENT),
        (records.AWAY, shapes.AWAY),
        (records.LOCAL_CHANGES, shapes.LOCAL_CHANGES),
    ):
        _optional(os.path.join(directory, name), shape)
    path = os.path.join(directory, FILE)
    for number, line in enumerate(records.lines(path, LINE_MAX_BYTES, too_long=_TOO_LONG), 1):
        found = parse(line, id)
        # One that its writer did not finish is ended by the next writer, and no damage.
        if isinstance(found, Bad) and line.endswith(b"\n") and not found.is_torn:
            raise DamagedRecord(path, f"line {number}: {found.why}")


def has_lived(directory: str) -> bool:
    """Whether the directory has a file of a command that was started, not only a spec."""
    try:
        return any(name in _OF_A_COMMAND or _is_segment(name) for name in os.listdir(directory))
    except FileNotFoundError:
        return False
    except OSError:
        return True  # it cannot be excluded


def _is_segment(name: str) -> bool:
    stream, _, offset = name.partition(".")
    return stream in records.STREAM_NUMBERS and len(offset) == 20 and offset.isdecimal()


def runner_holds(home: Home, id: str, runtime: str) -> bool | None:
    """Whether the runner or deputy lives of a session whose records cannot be used. None if that is unknown: its spec
    is not a regular file, so there is no lock to look at, and no process listens at its endpoint."""
    import stat

    spec = os.path.join(home.session(id), "spec.json")
    try:
        if stat.S_ISREG(os.lstat(spec).st_mode):
            return records.runner_lives(os.path.dirname(spec))
        missing = False
    except FileNotFoundError:
        missing = True
    except OSError:
        return None

    try:
        open_socket(os.path.join(runtime, id + ".sock")).close()
    except BlockingIOError:
        return True
    except OSError:
        return False if missing else None
    return True


def from_files(files: Files) -> Observed:
    """What the files and the process table say, without asking the runner. A runner that lives is asked
    later; until then its session is `running` or `starting`."""
    if files.exit is not None:
        return _ended(files)
    if records.runner_lives(files.directory):
        if files.state is None:
            return Observed(files, STARTING, "the runner lives and has not yet recorded the command")
        return Observed(files, RUNNING, "the runner lives")
    # It may have written its last record between our two looks.
    files = read_again(files)
    if files.exit is not None:
        return _ended(files)
    return _without_deputy(files) if files.away else _stale_or_lost(files)


def read_again(files: Files) -> Files:
    """The same session, with the records that may have changed since it was read."""
    again = Files(files.id, files.directory, files.spec, _state(files.directory), _exit(files.directory))
    if again.away:
        _apply_local_changes(again)
    return again


def _ended(files: Files) -> Observed:
    """A runner removes the last survivors from the record. If it died before them, the observer checks which live."""
    assert files.exit is not None
    exit = files.exit["exit"]
    if files.away:
        recorded = _recorded_away(files) if exit["survivors"] else None
        if recorded is not None and recorded["state"] == LOST:
            files.exit = {**files.exit, "exit": {**exit, "survivors": [], "survivors_more": 0}}
    elif exit["survivors"] and not records.runner_lives(files.directory):
        foreign = unverifiable(files)
        if files.in_process:
            left, more = [], 0  # a task or thread is gone with its host
        elif foreign is None:
            living = {each.pid: each for each in orphans(files)}
            left = [each for each in exit["survivors"] if processes.same(each["pid"], each["start"])]
            left += processes.described(living[pid] for pid in living.keys() - {each["pid"] for each in left})
            more = 0
        else:
            left, more = ([], 0) if foreign[0] == "boot" else (exit["survivors"], exit.get("survivors_more", 0))
        # The runner that was stopping them is gone too.
        files.exit = {**files.exit, "exit": {**exit, "survivors": left, "survivors_more": more}, "stopping": None}
    return Observed(files, EXITED, "exit record")


def orphans(files: Files) -> list[processes.Process]:
    """Processes of a session whose runner is gone that still run on this machine, recorded survivors included,
    because a stop ends those."""
    survivors = () if files.exit is None else files.exit["exit"]["survivors"]
    return processes.orphans(files.id, files.command, files.pgid, files.runner, survivors)


def unverifiable(files: Files) -> tuple[str, Any, Any] | None:
    """The part of where it ran that differs from where we are, recorded and found. Its pids and start times mean
    nothing here then."""
    recorded = files.state or files.spec
    here = (("boot", processes.boot_id()), ("pidns", processes.pid_namespace()), ("timens", processes.time_namespace()))
    for part, found in here:
        if recorded.get(part, found) != found:
            return part, recorded[part], found
    return None


def process_with_reused_pid(files: Files) -> processes.Process | None:
    """The process that has the command's pid by now and is not the command."""
    command = files.command
    process = None if command is None else processes.look(command["pid"])
    return None if process is None or command is None or process.start == command["start"] else process


def _stale_or_lost(files: Files) -> Observed:
    if files.in_process:
        return Observed(files, LOST, "its host is gone, and it was a task or thread of it")
    foreign = unverifiable(files)
    if foreign is not None:
        if foreign[0] == "boot":
            return Observed(files, LOST, "the machine was rebooted while it ran")
        space = "pid" if foreign[0] == "pidns" else "time"
        if foreign[0] == "pidns" and processes.pid_namespace_is_over(foreign[1]):
            return Observed(files, LOST, "the pid namespace it ran in is gone, with every process in it")
        return Observed(
            files,
            UNREACHABLE,
            f"its runner is gone, and its processes cannot be verified from this {space} namespace",
        )
    left = orphans(files)
    if left:
        return Observed(files, STALE, "its runner is gone, its processes live", orphans=left)
    asked = _read_intent(files)
    other = process_with_reused_pid(files)
    if other is not None:
        return Observed(files, LOST, f"its runner is gone, and pid {other.pid} is another process by now{asked}")
    return Observed(files, LOST, f"its runner and its processes are gone, and no exit was recorded{asked}")


def _without_deputy(files: Files) -> Observed:
    """For a session in another place: what its deputy recorded last. A new deputy can be started to ask again."""
    recorded = _recorded_away(files)
    if recorded is None:
        return Observed(files, UNREACHABLE, "no process is connected to its place")
    if recorded["state"] == REFUSED:
        refused = Observed(files, UNREACHABLE, recorded["evidence"])
        refused.gaps = recorded.get("gaps") or []
        return refused
    asked = _read_intent(files) if recorded["state"] == LOST else ""
    if files.intent is not None:
        files.intent["stopped"] = recorded.get("how")
    return Observed(files, recorded["state"], recorded["evidence"] + asked)


def stopped_away(files: Files) -> Record | None:
    """What a deputy that was sent to end it found there, and what survived."""
    return (_recorded_away(files) or {}).get("stopped")


def _recorded_away(files: Files) -> Record | None:
    """What a deputy wrote when its session had no runner any more."""
    path = os.path.join(files.directory, records.AWAY)
    recorded = _optional(path, shapes.AWAY)
    if recorded is not None and recorded["state"] == DAMAGED:
        raise DamagedRecord(path, recorded["evidence"])
    return recorded if recorded is not None and recorded["state"] in (STALE, LOST, REFUSED) else None


def refused_place(home: Home, id: str) -> bool:
    """Whether its place sent more than the session may have here."""
    files = read_files(home, id)
    recorded = _recorded_away(files) if files.away else None
    return recorded is not None and recorded["state"] == REFUSED


def needs_deputy(files: Files) -> bool:
    """Whether a new deputy could find out more about this session; for a stale one, every _STALE_FOR_S."""
    if not files.away or records.runner_lives(files.directory):
        return False
    files = read_again(files)
    if files.exit is not None and not files.exit["exit"]["survivors"]:
        # A deputy that died before everything was removed there has left its socket.
        return os.path.exists(files.endpoint)
    recorded = _recorded_away(files)
    if recorded is None:
        return True
    age_s = time.time() - os.stat(os.path.join(files.directory, records.AWAY)).st_mtime
    return recorded["state"] == STALE and not 0 <= age_s < _STALE_FOR_S


def halted(files: Files) -> bool:
    """Whether its runner was stopped by a signal: then it cannot answer, and waiting for it is useless."""
    runner = files.runner
    if runner is None or files.away or unverifiable(files) is not None:
        return False
    process = processes.look(runner["pid"])
    return process is not None and process.start == runner["start"] and process.state == "T"


def _state_or_repaired(id: str, directory: str, spec: Record) -> Record | None:
    """Where the runner lives, a damaged record is written again. In another place the copy comes again by itself."""
    try:
        return _state(directory)
    except DamagedRecord:
        if is_away(spec) or not records.runner_lives(directory):
            raise
        from .connection import rewrite_state

        if not rewrite_state(id, spec):
            raise
        return _state(directory)


def _state(directory: str) -> Record | None:
    return _optional(os.path.join(directory, "state.json"), shapes.state)


def _exit(directory: str) -> Record | None:
    return _optional(os.path.join(directory, "exit.json"), shapes.EXIT_RECORD)


def _read_intent(files: Files) -> str:
    """Read the stop that a host recorded without the runner; returns it in words for the evidence. If it cannot be
    read, only the reason is missing."""
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
    """Reads a record of a session and checks its shape; DamagedRecord if it is wrong."""
    try:
        record = records.read(path)
        shapes.check(shape if isinstance(shape, shapes.Kind) else shape(record), record)
        return record
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as problem:
        if getattr(problem, "errno", None) in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise  # this process lacks descriptors or memory; the record may be fine
        raise DamagedRecord(path, str(problem)) from None


# Greet many runners at once, under one bound for all of them.


# Connections open at a time: far below the usual descriptor limit of a process.
_AT_ONCE = 256


class _Called:
    """A runner that was called and has not answered yet."""

    __slots__ = ("decoder", "place", "sock", "until")

    def __init__(self, place: int, sock: socket.socket, until: float) -> None:
        self.place = place
        self.sock = sock
        self.decoder = wire.Decoder()
        self.until = until


async def sweep(driver: Driver, sessions: list[Files], *, author: str, timeout: float) -> list[Observed]:
    """Look at each, identity proven. What does not answer within `timeout`, counted for all together, is
    `unreachable`; no wedged runner delays the answer of another. Where more are to be asked than can be at once, one
    that is silent makes room for others after its share of the time, and is asked again when all had their turn."""
    deadline = time.monotonic() + timeout
    observed = [_unless_halted(from_files(files)) for files in sessions]
    asked = [place for place, seen in enumerate(observed) if seen.state in (RUNNING, STARTING)]
    share = timeout * min(1.0, _AT_ONCE / (len(asked) or 1))
    waiting: dict[int, _Called] = {}
    silent: set[int] = set()
    hello = greeting(author)
    try:
        while asked or waiting:
            while asked and len(waiting) < _AT_ONCE:
                place = asked.pop()
                sock = _call(observed[place].files, hello)
                if sock is None:
                    observed[place] = _silent(observed[place].files)
                else:
                    waiting[sock.fileno()] = _Called(place, sock, time.monotonic() + share)
            if not waiting:
                continue
            until = min(deadline, next(iter(waiting.values())).until) if asked else deadline
            ready = await driver.ready(waiting, (), until - time.monotonic())
            for fd in ready:
                called = waiting[fd]
                seen = _hear(called.sock, called.decoder, observed[called.place].files)
                if seen is not None:
                    observed[called.place] = seen
                    del waiting[fd]
                    called.sock.close()
            now = time.monotonic()
            if not ready and now >= deadline:
                break
            for fd, called in list(waiting.items()) if asked else ():
                if called.until <= now:
                    del waiting[fd]
                    called.sock.close()
                    asked.insert(0, called.place)
                    silent.add(called.place)
    finally:
        for called in waiting.values():
            called.sock.close()
    silent.update(called.place for called in waiting.values())
    for place in {*asked, *silent}:
        if observed[place].state in (RUNNING, STARTING) and observed[place].live is None:
            why = f"its runner lives and did not answer within {timeout:g} s"
            if place not in silent:
                why = "there was no time left to ask its runner"
            observed[place] = Observed(observed[place].files, UNREACHABLE, why)
    return observed


def _unless_halted(seen: Observed) -> Observed:
    if seen.state not in (RUNNING, STARTING) or not halted(seen.files):
        return seen
    return Observed(seen.files, UNREACHABLE, "its runner is stopped (SIGSTOP); send it SIGCONT to resume")


def _call(files: Files, hello: bytes) -> socket.socket | None:
    try:
        sock = open_socket(files.endpoint)
    except OSError:
        return None
    send_greeting(sock, hello)
    return sock


def _silent(files: Files) -> Observed:
    """There is no listener at the endpoint. Either the runner left just now, or its socket was removed; or it is
    about to listen, and has not even started the command."""
    seen = from_files(read_again(files))
    if seen.state == RUNNING:
        return Observed(seen.files, UNREACHABLE, f"its runner lives, but no process listens at {files.endpoint}")
    return seen


def _hear(sock: socket.socket, decoder: wire.Decoder, files: Files) -> Observed | None:
    """What this runner answered; None while its answer is incomplete."""
    try:
        received = sock.recv(1 << 16)
    except BlockingIOError:
        return None
    except OSError:
        received = b""
    if not received:
        return _silent(files)
    try:
        frames = decoder.feed(received)
    except wire.BadFrame:
        return Observed(files, UNREACHABLE, "something else answers at its endpoint")
    if not frames:
        return None
    hello = frames[0] if isinstance(frames[0], dict) else {}
    try:
        if hello.get("type") == "error":
            raise HoldfastError.from_wire(hello)
        prove(files.id, hello, files.spec, files.state)
        check_answer(files.id, files.endpoint, hello, shapes.HELLO)
    except DamagedRecord as problem:
        damaged = Observed(files, UNREACHABLE, problem.message)
        damaged.damage = problem
        return damaged
    except IdentityMismatch as problem:
        other = Observed(files, UNREACHABLE, f"something else answers at its endpoint: {problem.message}")
        other.mismatch = problem.part
        return other
    except HoldfastError as problem:
        return Observed(files, UNREACHABLE, problem.message)
    return Observed(files, hello["status"]["state"], "its runner answered", live=hello["status"])
