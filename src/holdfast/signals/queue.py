"""The queue of one consumer in the index: one row for each signal that it has not settled.

due     -> held     `claim`: this process alone has it, while it lives and its lease runs. `join` takes one named signal
held    -> due      `unclaim`; or its holder died, which counts as a failure, or made no call during its lease
held    -> later    `release`, for a wait that grows each time; `defer`, for the longest wait. Then it is due again
held    -> parked   after so many failures: deaths of its holder, and releases as poison. It is not delivered any more
any     -> settled  `settle`, `settle_up_to`: the row is deleted. Reading a signal never settles it
"""

from __future__ import annotations

from ..core import clock as real_clock
from ..core import failpoints, processes
from ..errors import BadArgument, ConsumerMismatch
from ..index import queues
from .lines import split_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable
    from typing import Protocol, TypeVar

    from ..config import Config
    from ..index import Index
    from ..index.queues import ConsumerRow, Filter, Pointer

    T = TypeVar("T")

    class Clock(Protocol):
        def mono_ns(self) -> int: ...

        def wall_ns(self) -> int: ...


_NS = 1_000_000_000


class Holder:
    """The process that holds a claim, with its namespaces, and when its lease ends."""

    __slots__ = ("boot", "pid", "pidns", "start", "timens", "until_ns", "until_wall_ns")

    def __init__(
        self, boot: str, pidns: int, timens: int, pid: int, start: int, until_ns: int = 0, until_wall_ns: int = 0
    ) -> None:
        self.boot = boot
        self.pidns = pidns
        self.timens = timens
        self.pid = pid
        self.start = start
        self.until_ns = until_ns
        self.until_wall_ns = until_wall_ns

    def __repr__(self) -> str:
        return f"<holder {self.pid} of boot {self.boot[:8]}>"

    @property
    def identity(self) -> tuple[str, int, int, int, int]:
        return self.boot, self.pidns, self.timens, self.pid, self.start

    @property
    def clock(self) -> str:
        """Which monotonic clock its times are on: those of another boot or time namespace cannot be compared."""
        return f"{self.boot}:{self.timens}"

    def can_see(self, other: Holder) -> bool:
        """Whether a pid and a start time name the same process to both."""
        return self.identity[:3] == other.identity[:3]

    def remaining_ns(self, other: Holder, now_ns: int, wall_ns: int) -> int:
        """How long the lease of `other` still runs, by the wall clock only where the monotonic clocks differ."""
        return other.until_ns - now_ns if other.clock == self.clock else other.until_wall_ns - wall_ns


HOLDS = "holds"
SILENT = "was silent"
DEAD = "died"


def state_of(other: Holder, here: Holder, now_ns: int, wall_ns: int, lives: Callable[[int, int], bool]) -> str:
    """Whether another holder still holds its signals, as far as this process can see. `lives` looks for a process by
    pid and start time."""
    if other.boot != here.boot:
        return DEAD
    if here.can_see(other) and not lives(other.pid, other.start):
        return DEAD
    return HOLDS if here.remaining_ns(other, now_ns, wall_ns) > 0 else SILENT


class Pending(int):
    """How many signals are due now. `oldest` is the id of the first and `oldest_at` its time. `next_due` is when the
    next of the others, due later or held by another process, may become due: monotonic clock, in seconds."""

    oldest: str | None
    oldest_at: str | None
    next_due: float | None

    @staticmethod
    def of(count: int, oldest: Pointer | None, next_due_ns: int | None) -> Pending:
        made = Pending(count)
        made.oldest = None if oldest is None else oldest.id
        made.oldest_at = None if oldest is None else oldest.at
        made.next_due = None if next_due_ns is None else next_due_ns / 1e9
        return made


class Claimed:
    """What one claim took, how many more are due, and the ids of signals that it parked because their holder died."""

    __slots__ = ("parked", "remaining", "taken")

    def __init__(self) -> None:
        self.taken: list[Pointer] = []
        self.remaining = 0
        self.parked: list[str] = []


RETAINED = "retained"
NOW = "now"

_FIND = "SELECT pos FROM pending"
_NEXT = "SELECT min(not_before) FROM pending"
_OLDEST = "SELECT pos, failures FROM pending"
_REMOVE = "DELETE FROM pending"
_THIS = "consumer = ? AND pos = (SELECT pos FROM signals WHERE session = ? AND seq = ?)"
_COUNT = "SELECT count(*), min(pos) FROM pending"
_FREE = "consumer = ? AND parked = 0 AND holder IS NULL"
# A wait on the clock of another boot has ended.
_DUE = f"{_FREE} AND (clock IS NULL OR clock != ? OR not_before <= ?)"
_FREE_IT = "UPDATE pending SET holder = NULL, claim = NULL"
_HOLDERS_OF_NOTHING = """DELETE FROM holders WHERE consumer = ?
AND NOT EXISTS (SELECT 1 FROM pending WHERE pending.holder = holders.id)"""
# The last use of a consumer is recorded once an hour, and a lease is renewed when this part of it has passed: otherwise
# every call would write.
_USED_GRAIN_NS = 3600 * _NS
_RENEW_AFTER = 0.1


class Queue:
    """`start` says what a new consumer gets: all that is retained, only what comes now, or what follows a signal. Tests
    give a `clock` of their own, and another process to act as (`here`)."""

    def __init__(
        self,
        index: Index,
        config: Config,
        name: str,
        filter: Filter,
        *,
        start: str = RETAINED,
        clock: Clock = real_clock,
        here: Holder | None = None,
    ) -> None:
        self.name = name
        self.filter = filter
        self.index = index
        self._start = start
        self._lease_ns = round(config.signals_lease * _NS)
        self._waits_ns = [round(wait * _NS) for wait in config.signals_release_waits] or [0]
        self._alone_after = config.signals_alone_after
        self._park_after = config.signals_park_after
        self._clock = clock
        self._acting_as = here

    @property
    def starts_now(self) -> bool:
        return self._start == NOW

    # The consumer in the index.

    def ensure(self, *, replace: bool = False) -> None:
        """Make the consumer, or check that its filter is this one."""
        if not self.index.database.read(lambda db: self._is_up_to_date(db, replace)):
            self.index.database.change(lambda db: self._open(db, replace))

    def _is_up_to_date(self, db: sqlite3.Connection, replace: bool) -> bool:
        known = queues.find_consumer(db, self.name) if replace else self._known(db)
        return known is not None and known.filter == self.filter and known.unused_ns() < _USED_GRAIN_NS

    def _open(self, db: sqlite3.Connection, replace: bool) -> ConsumerRow:
        queues.prepare_consumers(db, self.index.home)
        known = queues.find_consumer(db, self.name)
        if known is not None and known.filter == self.filter:
            queues.use_consumer(db, known)
            return known
        if known is not None and not replace:
            raise ConsumerMismatch(self.name)
        after = self._first_after(db)
        # If it is dropped and made again, it must not miss what came since.
        self._start = RETAINED
        made = queues.add_consumer(db, self.index.home, self.name, self.filter)
        queues.unfill(db, made)
        if after is not None:
            queues.fill(db, made, after=after, unless=None if known is None else known.filter)
        return made

    def _first_after(self, db: sqlite3.Connection) -> int | None:
        if self._start == NOW:
            return None
        if self._start == RETAINED:
            return 0
        wanted = split_id(self._start)
        after = None if wanted is None else queues.position(db, *wanted)
        if after is None:
            fix = f"give `{RETAINED}`, `{NOW}`, or the id of a signal that is retained"
            raise BadArgument("start", f"no signal {self._start!r} is known", fix)
        return after

    def _known(self, db: sqlite3.Connection) -> ConsumerRow | None:
        known = queues.find_consumer(db, self.name)
        if known is not None and known.filter != self.filter:
            raise ConsumerMismatch(self.name)
        return known

    # Reading, which changes no state of a signal. Every call, also those below, renews the lease of this process.

    def _read(self, question: Callable[[sqlite3.Connection, int], T], otherwise: T) -> T:
        """The answer, from the id of the consumer; `otherwise` where the consumer does not exist."""

        def ask(db: sqlite3.Connection) -> tuple[T] | None:
            known = self._known(db)
            if known is None:
                return (otherwise,)
            return None if self._needs_renewal(db, known.id) else (question(db, known.id),)

        while (answer := self.index.database.read(ask)) is None:
            self._change(lambda db, consumer: None)
        return answer[0]

    def pending(self) -> Pending:
        return self._read(self._pending, Pending.of(0, None, None))

    def _pending(self, db: sqlite3.Connection, consumer: int) -> Pending:
        here, now = self._here(), self._clock.mono_ns()
        count, first = self._due(db, consumer, here, now)
        backed_off = f"{_NEXT} WHERE {_FREE} AND clock = ? AND not_before > ?"
        times = [db.execute(backed_off, (consumer, here.clock, now)).fetchone()[0]]
        for id, holder in self._holders(db, consumer):
            held, oldest = db.execute(f"{_COUNT} WHERE holder = ?", (id,)).fetchone()
            if self._state_of(holder) != HOLDS:
                count += held
                first = min(filter(None, (first, oldest)), default=None)
            elif holder.identity != here.identity and held:
                times.append(now + here.remaining_ns(holder, now, self._clock.wall_ns()))
        oldest = queues.queued_rows(db, consumer, "pending.pos = ?", first)[0] if first is not None else None
        return Pending.of(count, oldest, min(filter(None, times), default=None))

    def peek(self, limit: int) -> list[Pointer]:
        """The oldest that are due. What dead and silent holders hold counts as due: the next claim frees it."""

        def question(db: sqlite3.Connection, consumer: int) -> list[Pointer]:
            gone = [id for id, each in self._holders(db, consumer) if self._state_of(each) != HOLDS]
            left = f"(parked = 0 AND holder IN ({', '.join('?' * len(gone))}))"
            now = (consumer, self._here().clock, self._clock.mono_ns())
            return queues.queued_rows(db, consumer, f"(({_DUE}) OR {left})", *now, *gone, limit=limit)

        return self._read(question, [])

    def is_open(self, id: str) -> bool:
        """Whether it is not settled yet, whichever process holds it."""
        this = checked_id(id)
        return self._read(lambda db, consumer: self._is_waiting(db, consumer, this), False)

    def was_settled(self, id: str) -> bool:
        """Whether it was in this queue and is settled. False for a signal that the filter does not want."""
        this = checked_id(id)

        def question(db: sqlite3.Connection, consumer: int) -> bool:
            row = db.execute("SELECT owner, variant, kind FROM signals WHERE session = ? AND seq = ?", this).fetchone()
            return row is not None and self.filter.fits(*row) and not self._is_waiting(db, consumer, this)

        return self._read(question, False)

    def _is_waiting(self, db: sqlite3.Connection, consumer: int, this: tuple[str, int]) -> bool:
        return db.execute(f"{_FIND} WHERE {_THIS}", (consumer, *this)).fetchone() is not None

    def parked(self) -> list[Pointer]:
        """Those that are not delivered any more; `why` is the reason of the last release."""
        return self._read(lambda db, consumer: queues.queued_rows(db, consumer, "parked = 1"), [])

    def unsettled(self) -> set[str]:
        """Sessions with a signal that is due, held, or due later."""
        none: list[Pointer] = []
        return {each.session for each in self._read(lambda db, own: queues.queued_rows(db, own, "parked = 0"), none)}

    def visible_others(self) -> list[Holder]:
        """Other processes that hold signals of this consumer, and whose death this process can see."""
        here = self._here()
        found: list[tuple[int, Holder]] = self._read(self._holders, [])
        return [each for _, each in found if each.identity != here.identity and here.can_see(each)]

    # Changing.

    def _change(self, change: Callable[[sqlite3.Connection, int], T]) -> T:
        """Call `change` in a transaction, with the id of the consumer. If another host has dropped the consumer, or the
        index was lost, it is made again first."""

        def transaction(db: sqlite3.Connection) -> T:
            queues.prepare_consumers(db, self.index.home)
            consumer = (self._known(db) or self._open(db, False)).id
            if self._needs_renewal(db, consumer):
                self._renew_lease(db, consumer)
            done = change(db, consumer)
            db.execute(_HOLDERS_OF_NOTHING, (consumer,))
            return done

        return self.index.database.change(transaction)

    def claim(self, limit: int, token: int) -> Claimed:
        """The next that are due, in the order of the home. No signal is in two live claims. `token` names the claim."""
        if self._read(lambda db, consumer: self._pending(db, consumer) == 0, False):
            return Claimed()
        claimed = self._change(lambda db, consumer: self._claim(db, consumer, limit, token))
        failpoints.hit("signals.claimed")
        return claimed

    def _claim(self, db: sqlite3.Connection, consumer: int, limit: int, token: int) -> Claimed:
        here, now = self._here(), self._clock.mono_ns()
        claimed = Claimed()
        claimed.parked = self._take_from_gone(db, consumer)
        due = db.execute(f"{_OLDEST} WHERE {_DUE} ORDER BY pos LIMIT ?", (consumer, here.clock, now, limit))
        positions: list[int] = []
        for pos, failures in due.fetchall():
            # One that may kill its reader comes alone, so that no other fails with it.
            alone = failures + 1 >= self._alone_after
            if not (alone and positions):
                positions.append(pos)
            if alone:
                break
        if positions:
            self._hold(db, consumer, positions, token)
            claimed.taken = queues.queued_rows(db, consumer, "claim = ?", token)
        claimed.remaining = self._due(db, consumer, here, now)[0]
        return claimed

    def join(self, id: str, token: int) -> bool:
        """Add this one signal to a claim. False: it is settled, held, or not in this queue."""
        this = checked_id(id)

        def change(db: sqlite3.Connection, consumer: int) -> bool:
            self._take_from_gone(db, consumer)
            sql = f"{_FIND} WHERE {_THIS} AND holder IS NULL"
            row = db.execute(sql, (consumer, *this)).fetchone()
            if row is not None:
                self._hold(db, consumer, [row[0]], token)
            return row is not None

        return self._change(change)

    def _hold(self, db: sqlite3.Connection, consumer: int, positions: list[int], token: int) -> None:
        holder = self._renew_lease(db, consumer)
        sql = """UPDATE pending SET holder = ?, claim = ?, deliveries = deliveries + 1, clock = NULL, not_before = 0
        WHERE consumer = ? AND pos = ?"""
        db.executemany(sql, [(holder, token, consumer, pos) for pos in positions])

    def move(self, token: int, to: int) -> None:
        """Move everything from one of this consumer's claims into another."""
        sql = "UPDATE pending SET claim = ? WHERE consumer = ? AND claim = ?"
        self._change(lambda db, consumer: db.execute(sql, (to, consumer, token)))

    def settle(self, ids: Iterable[str]) -> int:
        """Settle these, even if another process holds them by now: the work was done. Returns how many were open."""
        wanted = [checked_id(id) for id in ids]

        def change(db: sqlite3.Connection, consumer: int) -> int:
            return sum(db.execute(f"{_REMOVE} WHERE {_THIS}", (consumer, *each)).rowcount for each in wanted)

        failpoints.hit("signals.settling")
        settled = self._change(change)
        failpoints.hit("signals.settled")
        return settled

    def settle_up_to(self, id: str) -> int:
        """Settle everything up to that signal, in the order of the home."""
        this = checked_id(id)

        def change(db: sqlite3.Connection, consumer: int) -> int:
            upto = queues.position(db, *this)
            if upto is None:
                raise BadArgument("upto", f"no signal {id!r} is known", "give the id of a signal that is retained")
            return db.execute(f"{_REMOVE} WHERE consumer = ? AND pos <= ?", (consumer, upto)).rowcount

        return self._change(change)

    def release(self, ids: Iterable[str], token: int, why: str, *, poison: bool = False) -> list[str]:
        """Due again after a wait that grows. Returns the ids of those that this parks."""
        *waits, last = self._waits_ns
        cases = " ".join(f"WHEN {releases} THEN {wait}" for releases, wait in enumerate(waits))
        wait = f"CASE releases {cases} ELSE {last} END" if cases else str(last)
        change = f"""releases = releases + 1, clock = ?, not_before = ? + {wait}, why = ?,
        failures = failures + ?, parked = ? AND failures + 1 >= ?"""
        now, failed = (self._here().clock, self._clock.mono_ns()), int(poison)
        return self._give_back(ids, token, change, *now, why, failed, failed, self._park_after)

    def unclaim(self, ids: Iterable[str], token: int) -> None:
        """Due again at once, and the delivery is not counted: the host could not even look at it."""
        self._give_back(ids, token, "deliveries = deliveries - 1")

    def defer(self, ids: Iterable[str], token: int) -> None:
        """Due again after the longest wait, and the delivery is not counted: another host owns its session."""
        until = self._clock.mono_ns() + self._waits_ns[-1]
        self._give_back(ids, token, "deliveries = deliveries - 1, clock = ?, not_before = ?", self._here().clock, until)

    def _give_back(self, ids: Iterable[str], token: int, how: str, *values: object) -> list[str]:
        """Change only what is still in this claim: others may have settled it, or have it since our lease ended."""
        wanted = [(id, checked_id(id)) for id in ids]

        def change(db: sqlite3.Connection, consumer: int) -> list[str]:
            sql = f"{_FREE_IT}, {how} WHERE {_THIS} AND claim = ? RETURNING parked"
            rows = [(id, db.execute(sql, (*values, consumer, *this, token)).fetchone()) for id, this in wanted]
            return [id for id, row in rows if row is not None and row[0]]

        return self._change(change)

    def remove_lost(self, gone: list[Pointer]) -> None:
        """The records of these are gone: remove them from every queue, and count them as unread."""

        def change(db: sqlite3.Connection) -> None:
            for each in gone:
                queues.count_unread(db, each.session, each.owner, 1)
                db.execute("DELETE FROM pending WHERE pos = ?", (each.pos,))
                db.execute("DELETE FROM signals WHERE pos = ?", (each.pos,))

        self.index.database.change(change)

    def _due(self, db: sqlite3.Connection, consumer: int, here: Holder, now: int) -> tuple[int, int | None]:
        count, first = db.execute(f"{_COUNT} WHERE {_DUE}", (consumer, here.clock, now)).fetchone()
        return count, first

    # Holders.

    def _here(self) -> Holder:
        if self._acting_as is not None:
            return self._acting_as
        found = processes.own_identity()
        return Holder(found["boot"], found["pidns"], found["timens"], found["runner"]["pid"], found["runner"]["start"])

    def _holders(self, db: sqlite3.Connection, consumer: int) -> list[tuple[int, Holder]]:
        sql = "SELECT id, boot, pidns, timens, pid, start, until, until_wall FROM holders WHERE consumer = ?"
        return [(row[0], Holder(*row[1:])) for row in db.execute(sql, (consumer,))]

    def _state_of(self, other: Holder) -> str:
        return state_of(other, self._here(), self._clock.mono_ns(), self._clock.wall_ns(), processes.same)

    def _renew_lease(self, db: sqlite3.Connection, consumer: int) -> int:
        """Enter this process as a holder, or renew its lease. Returns the id of the holder."""
        until = (self._clock.mono_ns() + self._lease_ns, self._clock.wall_ns() + self._lease_ns)
        sql = """INSERT INTO holders (consumer, boot, pidns, timens, pid, start, until, until_wall)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (consumer, boot, pidns, timens, pid, start)
        DO UPDATE SET until = excluded.until, until_wall = excluded.until_wall RETURNING id"""
        return int(db.execute(sql, (consumer, *self._here().identity, *until)).fetchone()[0])

    def _needs_renewal(self, db: sqlite3.Connection, consumer: int) -> bool:
        """Whether this process holds signals, and a part of its lease has passed."""
        sql = """SELECT until FROM holders WHERE consumer = ?
        AND boot = ? AND pidns = ? AND timens = ? AND pid = ? AND start = ?"""
        row = db.execute(sql, (consumer, *self._here().identity)).fetchone()
        return row is not None and row[0] - self._clock.mono_ns() < (1 - _RENEW_AFTER) * self._lease_ns

    def _take_from_gone(self, db: sqlite3.Connection, consumer: int) -> list[str]:
        """Free what dead and silent holders hold. A death is a failure of the signal, silence is not. Returns the ids
        of those that this parks."""
        parked: list[str] = []
        for id, holder in self._holders(db, consumer):
            how = self._state_of(holder)
            if how == HOLDS:
                continue
            failed, most = int(how == DEAD), self._park_after
            if failed:
                parked += [
                    each.id for each in queues.queued_rows(db, consumer, "holder = ? AND failures + 1 >= ?", id, most)
                ]
            why = f"process {holder.pid}, which had it, {how}"
            sql = f"""{_FREE_IT}, clock = NULL, not_before = 0, why = ?, failures = failures + ?,
            parked = ? AND failures + 1 >= ? WHERE holder = ?"""
            db.execute(sql, (why, failed, failed, most, id))
            db.execute("DELETE FROM holders WHERE id = ?", (id,))
        return parked


def checked_id(id: str) -> tuple[str, int]:
    """The session and number in the id of a signal; BadArgument for anything else."""
    found = split_id(id)
    if found is None:
        raise BadArgument("id", f"{ascii(id)[:80]} is not a signal", "give the id of a signal, such as b7k2m9qa1.3")
    return found
