"""Everything that was appended since anybody last looked, into the index; and the ends of those who could not tell.

One of it per host and home, shared by all its consumers. It looks at sessions that are unfinished in the index and at
those that a wake named: what is final was read to its end before it became so.
"""

from __future__ import annotations

import os
from _thread import allocate_lock

from ..errors import HoldfastError, IndexBusy
from ..home import is_id
from ..index import pointers
from ..index.database import get
from ..runner import clock, points, records, tree
from ..runner.breakers import Breakers
from ..runner.signalfile import FILE, HOME
from .indexing import directory_of, enter, read_on, runner_lives
from .succession import succeed, tell_home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ..index import Row
    from ..index.pointers import Progress
    from .indexing import Reading
    from .store import Store
    from .succession import Outcome

    Told = Callable[[str, dict[str, Any], bool | None], None]

# So many sessions enter in one transaction: others wait for less than they are ready to.
_AT_ONCE = 200
# Where another host is about to write what is missing, it is looked at again after this.
_AGAIN_NS = 500_000_000
_SESSIONS_NAMED = 20
_MANY = 64


class Live:
    """An unfinished session as it was last seen: whose it is, and the processes whose death would change that."""

    __slots__ = ("ended", "owner", "stamp", "watch")

    def __init__(self) -> None:
        self.owner: str | None = None
        self.ended = False
        # What of its file was read to the end, and whether its writer lived then.
        self.stamp: tuple[int, int, bool] | None = None
        self.watch: list[tuple[int, int]] = []


class Catchup:
    """`outcome` tells what became of a session whose runner is gone; without it nothing is written here. `told` is
    called with what was: its variant, its record, and whether its session has people told."""

    def __init__(
        self,
        store: Store,
        runtime: str,
        outcome: Callable[[str], Outcome | None] | None = None,
        told: Told = lambda _variant, _record, _notify: None,
    ) -> None:
        self.live: dict[str, Live] = {}
        # When somebody has to look again although nothing happened, on the monotonic clock.
        self.again_ns: int | None = None
        self.trouble: str | None = None
        self._store = store
        self.runtime = runtime
        self._outcome = outcome
        self._told = told
        self._breakers = Breakers(
            store.home.path, runtime, tree.boot_id(), told=lambda variant, record: told(variant, record, None)
        )
        self._lock = allocate_lock()
        self._mark: str | None = None
        self._looked = False

    @property
    def takes_long(self) -> bool:
        """Whether a look is long work on the disk, for there is much that may have changed."""
        if self._looked:
            return len(self.live) > _MANY
        try:
            names = len(os.listdir(self._store.home.sessions))
            (final,) = self._store.ask(lambda db: db.execute("SELECT coalesce(sum(final), 0) FROM sessions").fetchone())
        except (HoldfastError, OSError):
            return False
        return bool(names - final > _MANY)

    def run(self, hints: Iterable[str] = ()) -> None:
        """IndexBusy when there is no index to write to."""
        with self._lock:
            self._run(set(hints))
            self._looked = True

    def bury(self, sessions: Iterable[str]) -> None:
        """Tell the ends of these, where their runners are gone; and say nothing where that is not possible now."""
        with self._lock:
            living = {session: runner_lives(self._store.home, session) for session in sessions}
            try:
                self._enter_all(living)
                self._bury([session for session, lives in living.items() if not lives])
            except IndexBusy as problem:
                self.trouble = problem.message

    def _run(self, hints: set[str]) -> None:
        mark = self._store.ask(lambda db: get(db, "queue"))
        if mark != self._mark:
            self.live.clear()  # another index: nothing of what was entered is known there
            self._mark = mark
        self.again_ns = None
        self._release_breakers()
        unfinished = {*self._store.index.look().unfinished, *self._unfinished_of(hints)}
        for session in self.live.keys() - unfinished - {HOME}:
            del self.live[session]
        living = {session: runner_lives(self._store.home, session) for session in sorted(unfinished)}
        self._enter_all({HOME: True, **living})
        gone = [session for session, lives in living.items() if not lives]
        self._bury(gone)
        self._tell_unread()
        for session, lives in living.items():
            if lives:
                self._find_runner(session)
        if mark is None:
            self._mark = self._store.ask(lambda db: get(db, "queue"))

    def _release_breakers(self) -> None:
        """The end of an overflow is told by a runner that was refused, or by whoever looks next."""
        wait_s = self._breakers.release_all()
        if wait_s is not None:
            self.again_ns = clock.mono_ns() + round(wait_s * 1e9)

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
            found = os.stat(os.path.join(directory_of(self._store.home, session), FILE))
        except OSError:
            return None
        stamp = (found.st_ino, found.st_size, lives)
        known = self.live.get(session)
        return None if known is not None and known.stamp == stamp else stamp

    def _read(self, sessions: Iterable[str], living: dict[str, bool]) -> list[Reading]:
        reached = self._store.ask(lambda db: [pointers.progress(db, session) for session in sessions])
        readings = [self._read_one(before, living[before.session]) for before in reached]
        return [reading for reading in readings if reading is not None]

    def _read_one(self, before: Progress, writer_lives: bool) -> Reading | None:
        """One that cannot be read now keeps nobody from the others."""
        try:
            return read_on(self._store.home, before, writer_lives=writer_lives)
        except OSError as problem:
            self.trouble = f"the signals of {before.session} cannot be read: {problem}"
            return None

    def _enter(self, readings: Sequence[Reading]) -> list[Reading]:
        """Those that are in. Where the index has nothing to learn, nothing is written."""
        matter = [reading for reading in readings if reading.matters]
        entered: list[Reading] = [reading for reading in readings if not reading.matters]
        if not matter:
            return entered

        entered += self._store.write(lambda db: enter(db, self._store.home, matter))
        if points.ACTIVE:
            points.hit("signals.indexed")
        return entered

    def _bury(self, gone: list[str]) -> None:
        """Their runners are gone: what they did not tell is told, and what is over is noted as such."""
        rows: list[Row] = []
        written: dict[str, bool] = {}
        told: list[tuple[dict[str, Any], bool | None]] = []
        for session in () if self._outcome is None else gone:
            live = self.live.setdefault(session, Live())
            if any(tree.same(*process) for process in live.watch):
                continue
            try:
                outcome = self._outcome(session) if self._outcome is not None else None
                if outcome is None:
                    continue
                live.owner, live.watch = outcome.owner, outcome.watch
                record = None if live.ended else succeed(self._store.home, self.runtime, session, outcome)
                if record is not None:
                    written[session] = False
                    told.append((record, outcome.notify_people))
            except BlockingIOError:
                self.again_ns = clock.mono_ns() + _AGAIN_NS
                continue
            except (HoldfastError, OSError) as problem:
                self.trouble = f"the end of session {session} cannot be told: {problem}"
                continue
            if outcome.row is not None:
                rows.append(outcome.row)
        self._enter_all(written)
        for row in rows:
            if row.final:
                self.live.pop(row.id, None)
        if rows:
            self._store.index.note(rows)
        for record, notify in told:
            if record["routed"]:
                self._told("health" if "health" in record else "lifecycle", record, notify)

    def _find_runner(self, session: str) -> None:
        live = self.live.setdefault(session, Live())
        if live.watch:
            return
        try:
            state = records.read(os.path.join(self._store.home.session(session), "state.json"))
            here = tree.here()
            # A daemon inside a host has the host in the place of a runner, a session in another place its deputy.
            owner = state["host"] if state["runner"] == "host" else state["runner"]
            owner = {"boot": state["boot"], "pidns": state["pidns"], **(state.get("deputy") or owner)}
            if (owner["boot"], owner["pidns"]) == (here["boot"], here["pidns"]):
                live.watch = [(int(owner["pid"]), int(owner["start"]))]
        except (OSError, ValueError, KeyError, TypeError):
            return  # just starting

    def _tell_unread(self) -> None:
        """What was removed before anybody read it is told by the home, once for each owner."""
        rows = self._store.ask(lambda db: db.execute("SELECT rowid, session, owner, signals FROM unread").fetchall())
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
                tell_home(self._store.home, self.runtime, "gap", fields, owner)
            except BlockingIOError:
                self.again_ns = clock.mono_ns() + _AGAIN_NS
                return
            except OSError as problem:
                self.trouble = f"the home's signals cannot be written: {problem}"
                return
            told = [(rowid,) for rowid, _, _ in lost]
            self._store.write(lambda db, told=told: db.executemany("DELETE FROM unread WHERE rowid = ?", told))  # type: ignore[misc]
        if by_owner:
            self._enter_all({HOME: True})

    def _unfinished_of(self, hints: set[str]) -> list[str]:
        """Those that exist. Of what is final nothing can have come."""
        there = [id for id in hints if is_id(id) and os.path.isdir(self._store.home.session(id))]
        final = "SELECT 1 FROM sessions WHERE id = ? AND final = 1"
        return self._store.ask(lambda db: [id for id in there if db.execute(final, (id,)).fetchone() is None])
