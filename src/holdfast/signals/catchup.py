"""From signal files to rows of the index, and the endings that a dead runner did not record.

Runners never touch the index. A host compares the size of a file with how far it was read, reads the rest, and enters
what is routed, all missing numbers in one transaction; when two hosts do so at once, it is entered once. There is one
`Catchup` per host and home, shared by all consumers. It looks at sessions that are unfinished in the index and at those
that a wake named: a session becomes final only after its file was read to the end.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from functools import partial
from heapq import merge

from ..core import clock, failpoints, processes, signalfile
from ..core import records as files
from ..core.signalfile import FILE, HOME, SignalFile
from ..errors import HoldfastError, IndexBusy
from ..home import is_id
from ..index import signals
from ..index.database import get
from .records import Signal, directory_of, entries, generations, read_on, runner_lives, split_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ..home import Home
    from ..index import Index, Row
    from ..index.signals import Pointer, Progress
    from .records import Reading


# Entering what was read.


def enter(db: sqlite3.Connection, home: Home, readings: Iterable[Reading]) -> list[Reading]:
    """Into the index, inside a transaction. Returns those that were entered; of the others another host read more.

    What comes at once enters in the order in which it happened by the wall clock; the numbers of a session ascend
    whatever that says."""
    signals.prepare_consumers(db, home)
    entered = [reading for reading in readings if _accept(db, reading)]
    signals.insert(db, merge(*(reading.found for reading in entered), key=_when))
    return entered


def _when(pointer: Pointer) -> str:
    return pointer.at or ""


def _accept(db: sqlite3.Connection, reading: Reading) -> bool:
    before, reached = reading.before, reading.reached
    now = signals.progress(db, before.session)
    if (now.file, now.bytes, now.seq) != (before.file, before.bytes, before.seq):
        return False
    # After a loss of the index: what was there when the consumers were restored is a replay.
    reached.replay = now.replay if now.file in (0, reached.file) else 0
    for each in reading.found:
        each.replayed = now.replay > 0 and (each.file != reached.file or each.offset < reached.replay)
    if now.seq and before.session != HOME:
        signals.hand_over(db, before.session, now.owner, reached.owner)
    signals.note_progress(db, reached)
    return True


def finish(db: sqlite3.Connection, home: Home, session: str, *, writer_lives: bool) -> bool:
    """Enter the rest of the signals of an ended session, inside a transaction. True when its ending is recorded, and no
    signal can follow."""
    before = signals.progress(db, session)
    try:
        reading = read_on(home, before, writer_lives=writer_lives)
    except OSError:
        return False
    if reading is None:
        return not _ending_is_missing(home, session)
    if reading.matters and not enter(db, home, [reading]):
        return False
    if not reading.whole or not reading.reached.ended:
        return False
    if before.file or before.replay or reading.matters:
        signals.forget_progress(db, session)
    return True


def _ending_is_missing(home: Home, session: str) -> bool:
    """Of a session without a signal file: did its release have signals? If something else has the name of the file,
    nothing can be recorded."""
    if os.path.lexists(os.path.join(home.session(session), FILE)):
        return False
    try:
        return "signals" in files.read(os.path.join(home.session(session), "spec.json"))
    except (OSError, ValueError):
        return False


# Recording, in the place of a dead runner, what it did not.
#
# The writer of a signal file holds its lock. A host that gets the lock is the successor: it reads the file again and
# appends only what is missing, so that any number of hosts write one `stale` and one ending.


# The states of a session in which something may be missing.
EXITED, STALE, LOST = "exited", "stale", "lost"


class Outcome:
    """What a host knows of a session whose runner is gone. `ended` are the fields of the ending, if it ended, and
    `ended_id` its id where the runner named one; `evidence` says why it is stale; `watch` are processes whose death
    changes the outcome; `row` is for the index."""

    __slots__ = (
        *("attempt", "ended", "ended_id", "evidence", "kind", "notify", "owner"),
        *("notify_people", "row", "snapshot", "state", "watch"),
    )

    def __init__(
        self,
        state: str,
        *,
        kind: str | None,
        owner: str | None,
        attempt: int | None,
        notify: str | None,
        notify_people: bool | None = None,
        snapshot: dict[str, Any] | None,
        ended: dict[str, Any] | None = None,
        ended_id: str | None = None,
        evidence: str = "",
        watch: list[tuple[int, int]] | None = None,
        row: Row | None = None,
    ) -> None:
        self.state = state
        self.kind = kind
        self.owner = owner
        self.attempt = attempt
        self.notify = notify
        self.notify_people = notify_people
        self.snapshot = snapshot
        self.ended = ended
        self.ended_id = ended_id
        self.evidence = evidence
        self.watch = watch or []
        self.row = row

    @property
    def ending_is_routed(self) -> bool:
        """A dead runner answered no waiter, so `auto` means yes."""
        failed = (self.ended or {}).get("status") != "completed"
        return self.notify != "never" and (self.notify != "failure" or failed)


def write_missing(home: Home, runtime: str, session: str, outcome: Outcome) -> dict[str, Any] | None:
    """Append what is missing, if anything. BlockingIOError while another host does, or the runner lives after all."""
    if outcome.state not in (EXITED, STALE, LOST):
        return None
    directory = os.open(directory_of(home, session), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        file = SignalFile(directory, session, processes.boot_id(), take_over=True)
        failpoints.hit("signals.taken_over")
        try:
            written = _append_missing(file, _written(home, session), outcome)
        finally:
            file.close()
    finally:
        os.close(directory)
    if written is not None:
        signalfile.wake(runtime, outcome.owner, session, written["seq"])
    return written


def write_home_signal(home: Home, runtime: str, variant: str, fields: dict[str, Any], owner: str | None) -> None:
    """A signal of the home itself. BlockingIOError while another process writes one."""
    directory = os.open(home.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        file = SignalFile(directory, None, processes.boot_id(), take_over=True)
        try:
            file.write(variant, fields, kind=None, owner=owner, attempt=None, routed=True, snapshot=None)
            seq = file.seq
        finally:
            file.close()
    finally:
        os.close(directory)
    signalfile.wake(runtime, owner, None, seq)


def _append_missing(file: SignalFile, written: list[Signal], outcome: Outcome) -> dict[str, Any] | None:
    if any(signal.ends_session for signal in written):
        return None
    common: dict[str, Any] = {
        "kind": outcome.kind,
        "owner": outcome.owner,
        "attempt": outcome.attempt,
        "snapshot": outcome.snapshot,
    }
    if outcome.state == STALE:
        if any(signal.variant == "health" and signal.fields.get("state") == STALE for signal in written):
            return None
        fields = {"state": STALE, "evidence": outcome.evidence, "since": clock.now_text()}
        return file.write("health", fields, routed=True, **common)
    fields = {"phase": "ended", **(outcome.ended or {})}
    named = split_id(outcome.ended_id)
    if named is not None:
        file.skip_to(named[1])
    return file.write("lifecycle", fields, routed=outcome.ending_is_routed, durable=True, **common)


def _written(home: Home, session: str) -> list[Signal]:
    """The signals that say whether anything is missing: a session ends once, and changes its health now and then."""
    with generations(directory_of(home, session)) as found:
        signals = (each for fd, _ in found for _, _, each in entries(fd, session) if isinstance(each, Signal))
        return [each for each in signals if each.ends_session or each.variant == "health"]


def _is_over(home: Home, session: str) -> bool:
    """Of a session whose end is recorded: no process of it is left either, so that no signal can follow."""
    try:
        return not files.read(os.path.join(home.session(session), "exit.json"))["exit"]["survivors"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


# Catching up.


if TYPE_CHECKING:
    Written = Callable[[str, dict[str, Any], bool | None], None]

# So many sessions enter in one transaction, so that other hosts do not wait long.
_AT_ONCE = 200
# Sessions that are over are noted in the index so many at a time.
_OVER_AT_ONCE = 32
# When another host is about to write what is missing, the session is looked at again after this time.
_AGAIN_NS = 500_000_000
_SESSIONS_NAMED = 20
_MANY = 64
_FINAL = "SELECT 1 FROM sessions WHERE id = ? AND final = 1"
_UNREAD = "SELECT rowid, session, owner, signals FROM unread"


class Live:
    """An unfinished session as it was last seen: its owner, and the processes whose death would change its state."""

    __slots__ = ("ended", "owner", "over", "stamp", "watch")

    def __init__(self) -> None:
        self.owner: str | None = None
        # Its end is in the index; then, that nothing else can come.
        self.ended = False
        self.over = False
        # What of its file was read to the end, and whether its writer lived then.
        self.stamp: tuple[int, int, bool] | None = None
        self.watch: list[tuple[int, int]] = []


class Catchup:
    """`outcome` says what became of a session whose runner is gone; without it nothing is written here. `written` is
    called with what was written: its variant, its record, and whether its session notifies people."""

    def __init__(
        self,
        index: Index,
        runtime: str,
        outcome: Callable[[str], Outcome | None] | None = None,
        written: Written = lambda _variant, _record, _notify: None,
    ) -> None:
        self.live: dict[str, Live] = {}
        # Watched processes that are known to have died.
        self.dead: set[tuple[int, int]] = set()
        # When to look again although nothing happened, on the monotonic clock.
        self.again_ns: int | None = None
        self.trouble: str | None = None
        self.runtime = runtime
        self._index = index
        self._home = index.home
        self._outcome = outcome
        self._written = written
        self._lock = allocate_lock()
        self._mark: str | None = None
        self._looked = False

    @property
    def takes_long(self) -> bool:
        """Whether a look is long work on the disk, because much may have changed."""
        if self._looked:
            return len(self.live) > _MANY
        try:
            names = len(os.listdir(self._home.sessions))
            sql = "SELECT coalesce(sum(final), 0) FROM sessions"
            (final,) = self._index.database.read(lambda db: db.execute(sql).fetchone())
        except (HoldfastError, OSError):
            return False
        return bool(names - final > _MANY)

    def run(self, hints: Iterable[str] = ()) -> None:
        """IndexBusy when there is no index to write to."""
        with self._lock:
            self._run(set(hints))
            self._looked = True

    def record_lost(self, sessions: Iterable[str]) -> None:
        """Record the ends of these sessions, where their runners are gone; do nothing where that fails now."""
        with self._lock:
            living = {session: runner_lives(self._home, session) for session in sessions}
            try:
                self._enter_all(living)
                self._record_gone([session for session, lives in living.items() if not lives])
            except IndexBusy as problem:
                self.trouble = problem.message

    def _run(self, hints: set[str]) -> None:
        unfinished = set(self._index.look().unfinished)
        named = [id for id in hints - unfinished if is_id(id) and os.path.isdir(self._home.session(id))]

        def state(db: sqlite3.Connection) -> tuple[str | None, list[str], list[Any]]:
            changing = [id for id in named if db.execute(_FINAL, (id,)).fetchone() is None]
            return get(db, "queue"), changing, db.execute(_UNREAD).fetchall()

        mark, changing, unread = self._index.database.read(state)
        unfinished.update(changing)
        if mark != self._mark:
            self.live.clear()  # another index: nothing of what was entered is known there
            self._mark = mark
        self.again_ns = None
        self.dead.intersection_update(process for live in self.live.values() for process in live.watch)
        for session in self.live.keys() - unfinished - {HOME}:
            del self.live[session]
        living = {session: runner_lives(self._home, session) for session in sorted(unfinished)}
        self._enter_all({HOME: True, **living})
        self._record_gone([session for session, lives in living.items() if not lives])
        if unread:
            self._record_unread(unread)
        for session, lives in living.items():
            if lives:
                self._find_runner(session)
        if mark is None:
            self._mark = self._index.database.read(lambda db: get(db, "queue"))

    def _enter_all(self, living: dict[str, bool]) -> None:
        """Read what is new, then enter it; where another host was quicker, once more from where it came to."""
        changed = {session: stamp for session, lives in living.items() if (stamp := self._changed(session, lives))}
        tries = 3
        while changed and tries:
            tries -= 1
            readings = self._read(changed, living)
            for start in range(0, len(readings), _AT_ONCE):
                entered = self._enter(readings[start : start + _AT_ONCE])
                for reading in entered:
                    session = reading.before.session
                    if reading.is_cut:
                        tries = 3  # there is more of it, which is read next
                        continue
                    stamp = changed.pop(session)
                    live = self.live.setdefault(session, Live())
                    live.owner, live.ended = reading.reached.owner, reading.reached.ended
                    # Undecided or unfinished lines are looked at again, though the file did not grow.
                    live.stamp = stamp if reading.whole else None

    def _changed(self, session: str, lives: bool) -> tuple[int, int, bool] | None:
        try:
            found = os.stat(os.path.join(directory_of(self._home, session), FILE))
        except OSError:
            return None
        stamp = (found.st_ino, found.st_size, lives)
        known = self.live.get(session)
        return None if known is not None and known.stamp == stamp else stamp

    def _read(self, sessions: Iterable[str], living: dict[str, bool]) -> list[Reading]:
        reached = self._index.database.read(lambda db: [signals.progress(db, session) for session in sessions])
        readings = [self._read_one(before, living[before.session]) for before in reached]
        return [reading for reading in readings if reading is not None]

    def _read_one(self, before: Progress, writer_lives: bool) -> Reading | None:
        """A session that cannot be read now does not keep the others back."""
        try:
            return read_on(self._home, before, writer_lives=writer_lives)
        except OSError as problem:
            self.trouble = f"the signals of {before.session} cannot be read: {problem}"
            return None

    def _enter(self, readings: Sequence[Reading]) -> list[Reading]:
        """Those that are in. Where the index has nothing to learn, nothing is written."""
        matter = [reading for reading in readings if reading.matters]
        entered: list[Reading] = [reading for reading in readings if not reading.matters]
        if not matter:
            return entered

        entered += self._index.database.change(lambda db: enter(db, self._home, matter))
        failpoints.hit("signals.indexed")
        return entered

    def _record_gone(self, gone: list[str]) -> None:
        """Their runners are gone: record what they did not, and note in the index which sessions are over."""
        if self._outcome is None:
            return
        rows: list[Row] = []
        over: list[str] = []
        written: list[tuple[dict[str, Any], bool | None]] = []
        for session in gone:
            live = self.live.setdefault(session, Live())
            if any(processes.same(*process) for process in live.watch):
                continue
            live.over = live.over or (live.ended and _is_over(self._home, session))
            if live.over:
                live.watch = []
                over.append(session)
                continue
            try:
                outcome = self._outcome(session)
                if outcome is None:
                    continue
                live.owner, live.watch = outcome.owner, outcome.watch
                record = None if live.ended else write_missing(self._home, self.runtime, session, outcome)
                if record is not None:
                    written.append((record, outcome.notify_people))
            except BlockingIOError:
                self.again_ns = clock.mono_ns() + _AGAIN_NS
                continue
            except (HoldfastError, OSError) as problem:
                self.trouble = f"the end of session {session} cannot be recorded: {problem}"
                continue
            if outcome.row is not None:
                rows.append(outcome.row)
        self._enter_all({record["session"]: False for record, _ in written})
        if len(over) >= _OVER_AT_ONCE:
            rows += [row for row in map(self._index.row, over) if row is not None]
        for row in rows:
            if row.final:
                self.live.pop(row.id, None)
        if rows:
            self._index.note(rows)
        for record, notify in written:
            if record["routed"]:
                self._written("health" if "health" in record else "lifecycle", record, notify)

    def _find_runner(self, session: str) -> None:
        live = self.live.setdefault(session, Live())
        if live.watch and self.dead.isdisjoint(live.watch):
            return
        try:
            state = files.read(os.path.join(self._home.session(session), "state.json"))
            here = processes.here()
            # A daemon inside a host has the host in the place of a runner, a session in another place its deputy.
            owner = state["host"] if state["runner"] == "host" else state["runner"]
            owner = {"boot": state["boot"], "pidns": state["pidns"], **(state.get("deputy") or owner)}
            if (owner["boot"], owner["pidns"]) == (here["boot"], here["pidns"]):
                live.watch = [(int(owner["pid"]), int(owner["start"]))]
        except (OSError, ValueError, KeyError, TypeError):
            return  # just starting
        if not self.dead.isdisjoint(live.watch):
            # A child that it forked holds its lock until it executes its program, and no event follows that.
            self.again_ns = clock.mono_ns() + _AGAIN_NS

    def _record_unread(self, rows: list[tuple[int, str, str | None, int]]) -> None:
        """Signals that were removed unread are counted in a signal of the home, one for each owner."""
        by_owner: dict[str | None, list[tuple[int, str, int]]] = {}
        for rowid, session, owner, count in rows:
            by_owner.setdefault(owner, []).append((rowid, session, count))
        for owner, lost in by_owner.items():
            counts: dict[str, int] = {}
            for _, session, count in lost:
                counts[session] = counts.get(session, 0) + count
            named = [{"id": id, "signals": count} for id, count in list(counts.items())[:_SESSIONS_NAMED]]
            fields = {
                "stream": "signals",
                "from": None,
                "reason": "removed unread",
                "signals": sum(counts.values()),
                "sessions": named,
                "more_sessions": len(counts) - len(named),
            }
            try:
                write_home_signal(self._home, self.runtime, "gap", fields, owner)
            except BlockingIOError:
                self.again_ns = clock.mono_ns() + _AGAIN_NS
                return
            except OSError as problem:
                self.trouble = f"the home's signals cannot be written: {problem}"
                return
            self._index.database.change(partial(_forget_unread, [(rowid,) for rowid, _, _ in lost]))
        self._enter_all({HOME: True})


def _forget_unread(rows: list[tuple[int]], db: sqlite3.Connection) -> None:
    db.executemany("DELETE FROM unread WHERE rowid = ?", rows)
