"""Acting without a runner: stop, change owner or `notify`, gather what a missing signal says, notify people.

Each process is verified by pid and start time right before each signal; what cannot be verified is not signalled.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import closing, contextmanager, suppress

from ..config import people_spec
from ..core import clock, failpoints, processes, records, wake
from ..core.ending import IN_GRACE, TAIL_CHARACTERS, TAIL_LINES, bounded, end_fields
from ..core.signalfile import FILE, SignalFile
from ..core.vt.text import tail
from ..errors import IdentityMismatch, IndexBusy, Removed
from ..model import CAUSE_STOP, EXITED, LOST, STALE, Stopped
from ..runner.people_notifier import PeopleNotifier
from ..signals.missing import RunnerGoneFacts
from .driver import first_death
from .log import Log
from .observe import from_files, orphans, process_with_reused_pid, record_local_changes, unverifiable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from ..config import Config
    from ..home import Home
    from ..index import Row
    from ..model import Snapshot
    from ..signals.consumers import Consumers
    from .driver import Driver
    from .observe import Files, Observed


# Ending a session whose runner is gone or does not answer: the same ladder, climbed by the host.


# Each costs a descriptor while it is waited for, and the first death is enough for a look at all of them.
_WATCHED_MAX = 64
# Without pidfds: how often to look for deaths.
_LOOK_S = 0.05


async def stop_from_records(
    driver: Driver, files: Files, *, grace: float, by: str, ladder: Sequence[Mapping[str, Any]] | None = None
) -> Stopped:
    """Climb the ladder over the processes that the records prove to be this session's. The author of the stop is on
    disk before the first rung: a runner that wakes later must not take the end for the command's own."""
    _refuse_unverifiable(files)
    _refuse_poison(files)
    began = time.monotonic()
    found = orphans(files)
    command = None if files.command is None else files.command["pid"]
    if found and files.exit is None:
        alive = any(process.pid == command for process in found)
        record_intent(files, by, IN_GRACE if alive else None)
    ladder = ladder or (files.spec.get("stop_ladder") if grace > 0 else None)
    steps = processes.rungs(grace, None if ladder is None else [dict(each) for each in ladder])
    last: list[str | None] = [None]

    def acting(rung: processes.Rung, how: str | None) -> None:
        failpoints.hit("host.rung")
        last[0] = str(rung)
        if how is not None:
            _record_kill(files, how)

    climbing = processes.climb(processes.Ladder(steps), lambda: orphans(files), command, acting=acting)
    while True:
        try:
            living, until = next(climbing)
        except StopIteration as done:
            survivors = done.value
            break
        await first_death(driver, living[:_WATCHED_MAX], until - time.monotonic(), look_s=_LOOK_S)
    return Stopped(
        files.id,
        found=processes.described(found),
        survivors=survivors,
        rung=last[0],
        took_s=round(time.monotonic() - began, 3),
        already=not found,
    )


def record_intent(files: Files, by: str, stopped: str | None = None) -> None:
    """A disk that takes nothing must not keep the command alive: the end is then recorded without its reason.
    `stopped` is how the command will have ended unless a kill is recorded later."""
    intent = {"v": 1, "cause": CAUSE_STOP, "by": by, "at": clock.now_text(), "stopped": stopped}
    with suppress(OSError), _directory(files) as directory:
        records.write_once(directory, records.INTENT, intent)
    failpoints.hit("host.intent_written")


def _record_kill(files: Files, stopped: str) -> None:
    """Before the signal is sent: another host may record the end as soon as the command is gone."""
    if files.exit is not None:
        return
    with suppress(OSError), _directory(files) as directory:
        if records.found(directory, records.INTENT).get("cause") == CAUSE_STOP:
            records.update(directory, records.INTENT, {"stopped": stopped})


@contextmanager
def _directory(files: Files) -> Iterator[int]:
    directory = os.open(files.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield directory
    finally:
        os.close(directory)


def refuse_unproven(files: Files) -> None:
    """IdentityMismatch when the process with the command's pid is not the command, or cannot be verified from here."""
    _refuse_unverifiable(files)
    other = process_with_reused_pid(files)
    if other is None or files.command is None:
        return
    # If the process with that pid carries the session's mark, the record is wrong. Otherwise the pid was reused, and
    # other processes of the session may still run.
    marked = processes.environment(other.pid).get(processes.SESSION_VARIABLE) == files.id
    if marked or not orphans(files):
        raise IdentityMismatch(files.id, "command start", files.command["start"], other.start)


def _refuse_unverifiable(files: Files) -> None:
    foreign = unverifiable(files)
    if foreign is not None:
        raise IdentityMismatch(files.id, *foreign)


def _refuse_poison(files: Files) -> None:
    """A record whose group is not the command's own was tampered with: nothing in it can be trusted."""
    if files.state is None:
        return
    pgid, pid = files.state.get("pgid"), files.state["command"]["pid"]
    if pgid != pid or pid <= 1:
        raise IdentityMismatch(files.id, "process group", pid, pgid)


# Changes to a session without a runner: its name, its owner, and whether its end is signalled.


def hand_over(consumers: Consumers, files: Files, owner: str | None, row: Callable[[], Row]) -> None:
    """Change the owner as a runner would: a note among its signals, then its record, and the unsettled signals in the
    index. BlockingIOError while a runner lives, or another host writes."""
    former = files.current().get("owner")
    with _directory(files) as directory, closing(_signal_file(directory, files)) as file:

        def record() -> Row:
            file.note({"owner": owner, "at": clock.now_text()})
            if file.blocked:
                raise OSError(errno.ENOSPC, "the disk refused the record of the new owner")
            _write_changes(files, directory, {"owner": owner})
            return row()

        consumers.hand_over(files.id, former, owner, record)
        seq = file.seq
    wake.hosts(consumers.catchup.runtime, owner, files.id, seq)


def record_changes(files: Files, changes: dict[str, Any]) -> None:
    """BlockingIOError while a runner lives, or another host writes about this session."""
    with _directory(files) as directory, closing(_signal_file(directory, files)):
        _write_changes(files, directory, changes)


def _write_changes(files: Files, directory: int, changes: dict[str, Any]) -> None:
    if files.away:
        record_local_changes(files, changes)
    else:
        changed = records.found(directory, "state.json").get("changed") or {}
        records.write(directory, "state.json", {"changed": {**changed, **changes}})


def _signal_file(directory: int, files: Files) -> SignalFile:
    return SignalFile(directory, files.id, processes.boot_id(), take_over=True)


# The end of a session whose runner was killed, as the signal that the runner did not write.


_TAIL_BYTES = 16 << 10
# At most this many processes are watched: the death of any of them may change the state.
_WATCHED = 16
# What a runner adds to the signal of an end from its exit record.
_COUNTED = ("watch", "events", "start_limit", "error")
# Snapshot keys that a signal leaves out.
_NOT_IN_SIGNALS = (
    "cursor",
    "observed_at",
    "endpoint",
    "runner_pid",
    "runner_version",
    "needs_input",
    "attached",
    "size",
)


def facts_without_runner(files: Files, row_of: Callable[[Observed], Row]) -> RunnerGoneFacts | None:
    """None when the session was removed meanwhile."""
    seen = from_files(files)
    try:
        shot = seen.snapshot()
        row = row_of(seen)
    except Removed:
        return None
    now = files.current()
    # Sessions of a release without signals get none. A start that failed was reported to its caller, unless the machine
    # went down under both.
    rebooted = files.spec.get("boot") not in (None, processes.boot_id())
    reported = files.state is None and files.exit is None and not rebooted
    silent = ("signals" not in files.spec or reported) and not os.path.exists(os.path.join(files.directory, FILE))
    survivors = [] if shot.exit is None else shot.exit.survivors
    watched = [(each.pid, each.start) for each in seen.orphans] or [(each["pid"], each["start"]) for each in survivors]
    if files.away:
        # Processes there cannot be watched from here, their deputy can.
        deputy = (files.state or {}).get("deputy")
        watched = [] if deputy is None else [(deputy["pid"], deputy["start"])]
    return RunnerGoneFacts(
        "" if silent or seen.state not in (EXITED, STALE, LOST) else seen.state,
        kind=shot.kind,
        owner=shot.owner,
        attempt=shot.attempt,
        notify=now.get("notify") or "exit",
        notify_people=now.get("notify_people"),
        snapshot=_bounded_snapshot(shot),
        ended=_ended(seen, shot) if seen.state in (EXITED, LOST) else None,
        ended_id=(seen.files.exit or {}).get("signal_id"),
        evidence=seen.evidence,
        watch=watched[:_WATCHED],
        row=row,
    )


def _ended(seen: Observed, shot: Snapshot) -> dict[str, Any]:
    assert shot.exit is not None
    recorded, current = seen.files.exit or {}, seen.files.current()
    fields = end_fields(
        {**shot.exit.to_json(), "status": shot.status},
        _duration_s(shot.started_at, shot.ended_at),
        current.get,
        kind=shot.kind,
        ends=shot.ends,
        tail=lambda stream: _tail(seen.files.directory, stream, shot.ends[stream]),
    )
    counted = {name: recorded[name] for name in _COUNTED if recorded.get(name) is not None}
    return {**fields, **counted, "evidence": seen.evidence}


def _tail(directory: str, stream: str, end: int) -> dict[str, Any]:
    with Log(directory).snapshot() as snapshot:
        since = max(end - _TAIL_BYTES, snapshot.begin(stream))
    raw = b"".join(Log(directory).raw(stream, since))
    return tail(raw[:_TAIL_BYTES], since, lines=TAIL_LINES, chars=TAIL_CHARACTERS)


def _duration_s(started_at: str | None, ended_at: str | None) -> float | None:
    began, ended = clock.epoch(started_at), clock.epoch(ended_at)
    if began is None or ended is None:
        return None  # no process saw the end
    return round(max(0.0, ended - began), 3)


def _bounded_snapshot(shot: Snapshot) -> dict[str, Any]:
    record = {key: value for key, value in shot.to_json().items() if key not in _NOT_IN_SIGNALS}
    if shot.exit is not None:
        record["exit"]["survivors"] = len(shot.exit.survivors) + shot.exit.survivors_more
    return bounded(record)


# Messages to people that wait without a deliverer: it was killed, or could not be started.
#
# Hosts look for them when they collect. A runner calls the deliverer at each new signal, and so does a host that writes
# what a runner could not.


PREFIX = "people:"


def start_deliverer_if_needed(home: Home, config: Config, consumers: Consumers) -> bool:
    """Start a deliverer where one is wanted. Whether one was."""
    spec = people_spec(config)
    if not spec["events"]:
        return False
    try:
        known = [each for each in consumers.known() if each["name"].startswith(PREFIX)]
    except IndexBusy:
        return False
    if not any(each["waiting"] > each["parked"] for each in known):
        return False
    CalledByHost(home.path, spec, dict(os.environ), lambda _problem: None).start_deliverer()
    return True


def start_deliverer_for(home: Home, config: Config, variant: str, record: dict[str, Any], notify: bool | None) -> None:
    """A host wrote this record: start a deliverer if people are to be notified of it."""
    spec = people_spec(config)
    if spec["events"]:
        CalledByHost(home.path, spec, dict(os.environ), lambda _problem: None).consider(variant, record, notify)


class CalledByHost(PeopleNotifier):
    """The host has children of its own: wait for ours by its pid alone."""

    def _start(self, lock: int) -> int:
        pid = super()._start(lock)
        threading.Thread(target=os.waitpid, args=(pid, 0), name="holdfast-people", daemon=True).start()
        return pid
