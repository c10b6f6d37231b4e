"""Catching up: from signal files to rows of the index.

Runners never touch the index. A host compares the size of each signal file with how far it was read, reads the rest,
and enters it in one transaction; when two hosts do so at once, it is entered once. There is one `Catchup` for each home
that a host uses, shared by all consumers. It looks at the sessions that are unfinished in the index and at those that a
wake named: a session becomes final only after its file was read to the end.

It also writes what a dead runner did not: the signal of its end. Signals that were removed unread it counts in a signal
of the home. To learn how a session in another place ended it may start a deputy, and for a signal that it wrote the
process that notifies people.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from functools import partial
from heapq import merge

from ..core import clock, failpoints, processes, records
from ..core.signalfile import FILE, HOME
from ..errors import HoldfastError, IndexBusy
from ..home import is_id
from ..index import queues
from ..index.database import get
from .lines import directory_of, read_on
from .missing import write_home_signal, write_missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ..home import Home
    from ..index import Index, Row
    from ..index.queues import Progress
    from .lines import Reading
    from .missing import RunnerGoneFacts


# Entering what was read.


def enter(db: sqlite3.Connection, home: Home, readings: Iterable[Reading]) -> list[Reading]:
    """Enter them into the index, inside a transaction, and return those that were entered: of the others another host
    has read more.

    Signals of several sessions enter in the order of the wall clock, those of one session in that of their numbers."""
    queues.prepare_consumers(db, home)
    entered = [reading for reading in readings if _accept(db, reading)]
    queues.insert(db, merge(*(reading.found for reading in entered), key=lambda pointer: pointer.at or ""))
    return entered


def _accept(db: sqlite3.Connection, reading: Reading) -> bool:
    before, reached = reading.before, reading.reached
    now = queues.progress(db, before.session)
    if (now.file, now.bytes, now.seq) != (before.file, before.bytes, before.seq):
        return False
    # After a loss of the index: what was there when the consumers were restored is a replay.
    reached.replay = now.replay if now.file in (0, reached.file) else 0
    for each in reading.found:
        each.replayed = now.replay > 0 and (each.file != reached.file or each.offset < reached.replay)
    if now.seq and before.session != HOME:
        queues.hand_over(db, before.session, now.owner, reached.owner)
    queues.note_progress(db, reached)
    return True


def finish(db: sqlite3.Connection, home: Home, session: str, *, writer_lives: bool) -> bool:
    """Enter the remaining signals of an ended session, inside a transaction. True if its end is among them, and no
    signal can follow."""
    before = queues.progress(db, session)
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
        queues.forget_progress(db, session)
    return True


def _ending_is_missing(home: Home, session: str) -> bool:
    """Whether a session without a signal file should have one: its runner was of a release that writes signals, and
    nothing else has the name of the file."""
    if os.path.lexists(os.path.join(home.session(session), FILE)):
        return False
    try:
        return "signals" in records.read(os.path.join(home.session(session), "spec.json"))
    except (OSError, ValueError):
        return False


# All sessions of a home.


if TYPE_CHECKING:
    OnWritten = Callable[[str, dict[str, Any], bool | None], None]

# Sessions that enter in one transaction: a longer one makes other hosts wait.
_AT_ONCE = 200
# Sessions that are over are noted in the index together, once they are so many.
_OVER_AT_ONCE = 32
# When another host is about to write what is missing, the session is looked at again after this time.
_AGAIN_NS = 500_000_000
_SESSIONS_NAMED = 20
_MANY = 64
_FINAL = "SELECT 1 FROM sessions WHERE id = ? AND final = 1"
_UNREAD = "SELECT rowid, session, owner, signals FROM unread"


class Known:
    """An unfinished session as it was last seen: its owner, and the processes whose death would change its state."""

    __slots__ = ("ended", "owner", "over", "stamp", "watch")

    def __init__(self) -> None:
        self.owner: str | None = None
        # `ended`: its end is in the index. `over`: nothing else can come.
        self.ended = False
        self.over = False
        # What of its file was read to the end, and whether its writer lived then.
        self.stamp: tuple[int, int, bool] | None = None
        self.watch: list[tuple[int, int]] = []


class Catchup:
    """`facts_of` says what became of a session whose runner is gone; without it no signal is written. `written` is
    called with each signal that was: its variant, its record, and whether its session notifies people."""

    def __init__(
        self,
        index: Index,
        runtime: str,
        facts_of: Callable[[str], RunnerGoneFacts | None] | None = None,
        written: OnWritten = lambda _variant, _record, _notify: None,
    ) -> None:
        self.known: dict[str, Known] = {}
        # Watched processes that are known to have died.
        self.dead: set[tuple[int, int]] = set()
        # When to look again although nothing happened, on the monotonic clock.
        self.again_ns: int | None = None
        self.trouble: str | None = None
        self.runtime = runtime
        self._index = index
        self._home = index.home
        self._facts_of = facts_of
        self._written = written
        self._lock = allocate_lock()
        self._generation: str | None = None
        self._has_run = False

    @property
    def takes_long(self) -> bool:
        """Whether `run` may take long, because the files of many sessions may have changed."""
        if self._has_run:
            return len(self.known) > _MANY
        try:
            names = len(os.listdir(self._home.sessions))
            sql = "SELECT coalesce(sum(final), 0) FROM sessions"
            (final,) = self._index.database.read(lambda db: db.execute(sql).fetchone())
        except (HoldfastError, OSError):
            return False
        return bool(names - final > _MANY)

    def run(self, hints: Iterable[str] = ()) -> None:
        """Catch up with all unfinished sessions, and those that `hints` names. IndexBusy where the index is locked."""
        with self._lock:
            self._run(set(hints))
            self._has_run = True

    def record_lost(self, sessions: Iterable[str]) -> None:
        """Record the ends of those sessions whose runners are gone. A failure is left for the next run."""
        with self._lock:
            living = {session: records.runner_lives(self._home.session(session)) for session in sessions}
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

        generation, changing, unread = self._index.database.read(state)
        unfinished.update(changing)
        if generation != self._generation:
            self.known.clear()  # another index: nothing of what was entered is known there
            self._generation = generation
        self.again_ns = None
        self.dead.intersection_update(process for known in self.known.values() for process in known.watch)
        for session in self.known.keys() - unfinished - {HOME}:
            del self.known[session]
        living = {session: records.runner_lives(self._home.session(session)) for session in sorted(unfinished)}
        self._enter_all({HOME: True, **living})
        self._record_gone([session for session, lives in living.items() if not lives])
        if unread:
            self._record_unread(unread)
        for session, lives in living.items():
            if lives:
                self._watch_runner(session)
        if generation is None:
            self._generation = self._index.database.read(lambda db: get(db, "queue"))

    def _enter_all(self, living: dict[str, bool]) -> None:
        """Read what is new, then enter it. Where another host was quicker, read again from where it stopped."""
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
                    known = self.known.setdefault(session, Known())
                    known.owner, known.ended = reading.reached.owner, reading.reached.ended
                    # Undecided or unfinished lines are looked at again, though the file did not grow.
                    known.stamp = stamp if reading.whole else None

    def _changed(self, session: str, lives: bool) -> tuple[int, int, bool] | None:
        try:
            found = os.stat(os.path.join(directory_of(self._home, session), FILE))
        except OSError:
            return None
        stamp = (found.st_ino, found.st_size, lives)
        known = self.known.get(session)
        return None if known is not None and known.stamp == stamp else stamp

    def _read(self, sessions: Iterable[str], living: dict[str, bool]) -> list[Reading]:
        reached = self._index.database.read(lambda db: [queues.progress(db, session) for session in sessions])
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
        """Enter what the index does not know yet. Returns the readings that it knows then."""
        matter = [reading for reading in readings if reading.matters]
        entered: list[Reading] = [reading for reading in readings if not reading.matters]
        if not matter:
            return entered

        entered += self._index.database.change(lambda db: enter(db, self._home, matter))
        failpoints.hit("signals.indexed")
        return entered

    def _record_gone(self, gone: list[str]) -> None:
        """Write what these dead runners did not, and note in the index which sessions are over."""
        if self._facts_of is None:
            return
        rows: list[Row] = []
        over: list[str] = []
        written: list[tuple[dict[str, Any], bool | None]] = []
        for session in gone:
            known = self.known.setdefault(session, Known())
            if any(processes.same(*process) for process in known.watch):
                continue
            known.over = known.over or (known.ended and _is_over(self._home, session))
            if known.over:
                known.watch = []
                over.append(session)
                continue
            try:
                facts = self._facts_of(session)
                if facts is None:
                    continue
                known.owner, known.watch = facts.owner, facts.watch
                record = None if known.ended else write_missing(self._home, self.runtime, session, facts)
                if record is not None:
                    written.append((record, facts.notify_people))
            except BlockingIOError:
                self.again_ns = clock.mono_ns() + _AGAIN_NS
                continue
            except (HoldfastError, OSError) as problem:
                self.trouble = f"the end of session {session} cannot be recorded: {problem}"
                continue
            if facts.row is not None:
                rows.append(facts.row)
        self._enter_all({record["session"]: False for record, _ in written})
        if len(over) >= _OVER_AT_ONCE:
            rows += [row for row in map(self._index.row, over) if row is not None]
        for row in rows:
            if row.final:
                self.known.pop(row.id, None)
        if rows:
            self._index.note(rows)
        for record, notify in written:
            if record["routed"]:
                self._written("health" if "health" in record else "lifecycle", record, notify)

    def _watch_runner(self, session: str) -> None:
        known = self.known.setdefault(session, Known())
        if known.watch and self.dead.isdisjoint(known.watch):
            return
        try:
            state = records.read(os.path.join(self._home.session(session), "state.json"))
            here = processes.own_identity()
            # A daemon inside a host has the host in the place of a runner, a session in another place its deputy.
            owner = state["host"] if state["runner"] == "host" else state["runner"]
            owner = {"boot": state["boot"], "pidns": state["pidns"], **(state.get("deputy") or owner)}
            if (owner["boot"], owner["pidns"]) == (here["boot"], here["pidns"]):
                known.watch = [(int(owner["pid"]), int(owner["start"]))]
        except (OSError, ValueError, KeyError, TypeError):
            return  # just starting
        if not self.dead.isdisjoint(known.watch):
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
            self._index.database.change(partial(queues.forget_unread, rows=[rowid for rowid, _, _ in lost]))
        self._enter_all({HOME: True})


def _is_over(home: Home, session: str) -> bool:
    """Whether no process of a session is left whose end is recorded, so that no signal can follow."""
    try:
        return not records.read(os.path.join(home.session(session), "exit.json"))["exit"]["survivors"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
