"""One consumer's queue: what it has not settled, who holds what, and until when.

Each call is one short transaction in the index, or IndexBusy. The rules are those of claiming.py; here they meet the
rows. Reading never acknowledges: only `settle` takes anything out.
"""

from __future__ import annotations

from ..errors import BadArgument, ConsumerMismatch
from ..index import audience, pointers
from ..runner import clock as real_clock
from ..runner import points
from .claiming import DEAD, HOLDS, Delivery, Rules, choose
from .holders import Holders
from .pending import Claimed, Pending
from .records import split_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..index.audience import Consumer, Filter
    from ..index.pointers import Pointer
    from .claiming import Holder
    from .holders import Clock
    from .store import Store

RETAINED = "retained"
NOW = "now"

_SELECT = "SELECT pos, deliveries, releases, failures, clock, not_before, holder, parked FROM pending"
_IN_CLAIM = """ WHERE consumer = ? AND claim = ?
AND pos = (SELECT pos FROM signals WHERE session = ? AND seq = ?)"""
_COUNT = "SELECT count(*), min(pos) FROM pending"
_NEXT = "SELECT min(not_before) FROM pending"
_FREE = "consumer = ? AND parked = 0 AND holder IS NULL"
_DUE = f"{_FREE} AND (clock IS NULL OR clock != ? OR not_before <= ?)"
# A consumer's last use is told to the hour: finer would be a write in every call.
_USED_GRAIN_NS = 3600 * 10**9


class Queue:
    def __init__(
        self,
        store: Store,
        name: str,
        filter: Filter,
        *,
        start: str = RETAINED,
        rules: Rules,
        clock: Clock = real_clock,
        here: Holder | None = None,
    ) -> None:
        self.name = name
        self.filter = filter
        self.store = store
        self._start = start
        self._rules = rules
        self._clock = clock
        self._holders = Holders(rules, clock, here)

    @property
    def starts_now(self) -> bool:
        return self._start == NOW

    # Being a consumer.

    def open(self, *, replace: bool = False) -> None:
        """Make the consumer, or see that it is the one that is meant."""
        if not self.store.ask(lambda db: self._is_open(db, replace)):
            self.store.write(lambda db: self._open(db, replace))

    def _is_open(self, db: sqlite3.Connection, replace: bool) -> bool:
        known = audience.find(db, self.name)
        if known is None:
            return False
        if known.filter != self.filter:
            if not replace:
                raise ConsumerMismatch(self.name)
            return False
        return known.unused_ns() < _USED_GRAIN_NS

    def _open(self, db: sqlite3.Connection, replace: bool) -> Consumer:
        known = audience.find(db, self.name)
        if known is not None and known.filter == self.filter:
            audience.use(db, known)
            return known
        if known is not None and not replace:
            raise ConsumerMismatch(self.name)
        after = self._first_after(db)
        # Made anew in mid-life, it has to miss nothing that came since.
        self._start = RETAINED
        former = None if known is None else known.filter
        made = audience.add(db, self.store.home, self.name, self.filter)
        pointers.unfill(db, made)
        if after is not None:
            pointers.fill(db, made, after=after, unless=former)
        return made

    def _first_after(self, db: sqlite3.Connection) -> int | None:
        if self._start == NOW:
            return None
        if self._start == RETAINED:
            return 0
        wanted = split_id(self._start)
        after = None if wanted is None else pointers.position(db, *wanted)
        if after is None:
            fix = f"give `{RETAINED}`, `{NOW}`, or the id of a signal that is retained"
            raise BadArgument("start", f"no signal {self._start!r} is known", fix)
        return after

    def _known(self, db: sqlite3.Connection) -> Consumer | None:
        known = audience.find(db, self.name)
        if known is not None and known.filter != self.filter:
            raise ConsumerMismatch(self.name)
        return known

    def _consumer(self, db: sqlite3.Connection) -> Consumer:
        """As it is now: somebody may have dropped it, or the whole index, since the last call."""
        return self._known(db) or self._open(db, False)

    # Looking: without effect but for the lease, which any call of a holder prolongs.

    def pending(self) -> Pending:
        return self.store.ask(self._pending)

    def _pending(self, db: sqlite3.Connection) -> Pending:
        known = self._known(db)
        if known is None:
            return Pending.of(0, None, None)
        here, now = self._holders.here(), self._clock.mono_ns()
        count, first = self._due(db, known.id)
        backed_off = f"{_NEXT} WHERE {_FREE} AND clock = ? AND not_before > ?"
        times = [db.execute(backed_off, (known.id, here.clock, now)).fetchone()[0]]
        for id, holder in self._holders.all(db, known.id):
            held, oldest = db.execute(_COUNT + " WHERE holder = ?", (id,)).fetchone()
            if self._holders.standing(holder) != HOLDS:
                count += held
                first = min(filter(None, (first, oldest)), default=None)
            elif holder.identity != here.identity and held:
                times.append(self._holders.due_ns(holder))
        due = [time for time in times if time is not None]
        oldest = pointers.waiting(db, known.id, "pending.pos = ?", first)[0] if first is not None else None
        return Pending.of(count, oldest, min(due, default=None))

    def peek(self, limit: int) -> list[tuple[Pointer, int]]:
        """The oldest that are due, and how often each was delivered so far."""

        def question(db: sqlite3.Connection) -> list[tuple[Pointer, int]]:
            known = self._known(db)
            if known is None:
                return []
            now = (known.id, self._holders.here().clock, self._clock.mono_ns())
            # What the dead and the silent hold is free with the next claim, and counts as due.
            gone = [id for id, each in self._holders.all(db, known.id) if self._holders.standing(each) != HOLDS]
            left = f"(parked = 0 AND holder IN ({', '.join('?' * len(gone))}))"
            found = pointers.waiting(db, known.id, f"(({_DUE}) OR {left})", *now, *gone, limit=limit)
            sql = "SELECT deliveries FROM pending WHERE consumer = ? AND pos = ?"
            return [(each, db.execute(sql, (known.id, each.pos)).fetchone()[0]) for each in found]

        return self.store.ask(question)

    def is_open(self, id: str) -> bool:
        """Is it still to be settled, in whoever's hands it is?"""
        sql = "SELECT 1 FROM pending WHERE consumer = ? AND pos = ?"

        def question(db: sqlite3.Connection) -> bool:
            known, pos = self._known(db), self._position(db, id)
            return known is not None and db.execute(sql, (known.id, pos)).fetchone() is not None

        return self.store.ask(question)

    def was_settled(self, id: str) -> bool:
        """Was it this consumer's, and is it done with? False for what was never meant for its queue."""
        entered = "SELECT pos, owner, variant, kind FROM signals WHERE session = ? AND seq = ?"
        open_still = "SELECT 1 FROM pending WHERE consumer = ? AND pos = ?"

        def question(db: sqlite3.Connection) -> bool:
            known, row = self._known(db), db.execute(entered, self._split(id)).fetchone()
            if known is None or row is None or not self.filter.fits(*row[1:]):
                return False
            return db.execute(open_still, (known.id, row[0])).fetchone() is None

        return self.store.ask(question)

    def parked(self) -> list[tuple[Pointer, int, str | None]]:
        """Those that come no more by themselves, how often each was delivered, and why it was last given back."""

        def question(db: sqlite3.Connection) -> list[tuple[Pointer, int, str | None]]:
            known = self._known(db)
            found = [] if known is None else pointers.waiting(db, known.id, "parked = 1")
            sql = "SELECT deliveries, why FROM pending WHERE consumer = ? AND pos = ?"
            return [(each, *db.execute(sql, (known.id, each.pos)).fetchone()) for each in found if known]

        return self.store.ask(question)

    def untold(self) -> set[str]:
        """Sessions of which something is not settled: due, in somebody's hands, or to come again later."""

        def question(db: sqlite3.Connection) -> set[str]:
            known = self._known(db)
            return set() if known is None else {each.session for each in pointers.waiting(db, known.id, "parked = 0")}

        return self.store.ask(question)

    def visible_others(self) -> list[Holder]:
        """Whose death would set something free and can be seen from here."""

        def question(db: sqlite3.Connection) -> list[Holder]:
            known = self._known(db)
            others = [] if known is None else self._holders.others(db, known.id)
            return [other for other in others if self._holders.here().can_see(other)]

        return self.store.ask(question)

    # Acting.

    def claim(self, limit: int, token: int) -> Claimed:
        """The next that are due, in the order of the home; none is in two live claims."""
        if not self.store.ask(self._pending) and self.store.ask(self._known) is not None:
            self.prolong()
            return Claimed()
        claimed = self.store.write(lambda db: self._claim(db, limit, token))
        if points.ACTIVE:
            points.hit("signals.claimed")
        return claimed

    def _claim(self, db: sqlite3.Connection, limit: int, token: int) -> Claimed:
        known = self._consumer(db)
        claimed = Claimed()
        claimed.parked = self._free(db, known.id)
        sql = f"{_SELECT} WHERE {_DUE} ORDER BY pos LIMIT ?"
        rows = db.execute(sql, (known.id, self._holders.here().clock, self._clock.mono_ns(), limit)).fetchall()
        chosen = choose(map(self._delivery, rows), limit, self._rules)
        if chosen:
            holder = self._holders.hold(db, known.id)
            for delivery in chosen:
                delivery.take()
                self._save(db, known.id, delivery, holder, token)
            taken = {delivery.pos: delivery.deliveries for delivery in chosen}
            found = pointers.waiting(db, known.id, "holder = ? AND claim = ?", holder, token)
            claimed.taken = [(each, taken[each.pos]) for each in found if each.pos in taken]
        claimed.remaining = self._due(db, known.id)[0]
        return claimed

    def join(self, id: str, token: int) -> bool:
        """Take this one signal into the claim. False: it is settled, another's, or in somebody's hands."""

        def change(db: sqlite3.Connection) -> bool:
            known = self._consumer(db)
            self._free(db, known.id)
            pos = self._position(db, id)
            sql = f"{_SELECT} WHERE consumer = ? AND pos = ? AND holder IS NULL"
            row = db.execute(sql, (known.id, pos)).fetchone()
            if row is None:
                return False
            delivery = self._delivery(row)
            delivery.take()
            self._save(db, known.id, delivery, self._holders.hold(db, known.id), token)
            return True

        return self.store.write(change)

    def move(self, token: int, to: int) -> None:
        """All of one of our claims into another."""
        sql = "UPDATE pending SET claim = ? WHERE consumer = ? AND claim = ?"
        self.store.write(lambda db: db.execute(sql, (to, self._consumer(db).id, token)))

    def settle(self, ids: Iterable[str]) -> int:
        """Done, whoever holds them by now: the work was done. How many were still open."""
        wanted = [self._split(id) for id in ids]
        sql = "DELETE FROM pending WHERE consumer = ? AND pos = (SELECT pos FROM signals WHERE session = ? AND seq = ?)"

        def change(db: sqlite3.Connection) -> int:
            known = self._consumer(db)
            settled = sum(db.execute(sql, (known.id, *each)).rowcount for each in wanted)
            self._holders.tidy(db, known.id)
            return settled

        if points.ACTIVE:
            points.hit("signals.settling")
        settled = self.store.write(change)
        if points.ACTIVE:
            points.hit("signals.settled")
        return settled

    def settle_up_to(self, id: str) -> int:
        """Everything of this consumer up to the place of that signal in the order of the home."""

        def change(db: sqlite3.Connection) -> int:
            known = self._consumer(db)
            upto = self._position(db, id)
            if upto is None:
                raise BadArgument("upto", f"no signal {id!r} is known", "give the id of a signal that is retained")
            settled = db.execute("DELETE FROM pending WHERE consumer = ? AND pos <= ?", (known.id, upto)).rowcount
            self._holders.tidy(db, known.id)
            return settled

        return self.store.write(change)

    def release(self, ids: Iterable[str], token: int, why: str, *, poison: bool = False) -> list[str]:
        """Back to the queue, after a while. Which of them that parked."""
        now = self._clock.mono_ns()
        return self._give_back(ids, token, lambda delivery: delivery.release(self._rules, now, poison=poison), why)

    def untake(self, ids: Iterable[str], token: int) -> None:
        self._give_back(ids, token, Delivery.untake)

    def defer(self, ids: Iterable[str], token: int) -> None:
        now = self._clock.mono_ns()
        self._give_back(ids, token, lambda delivery: delivery.defer(self._rules, now))

    def _give_back(
        self, ids: Iterable[str], token: int, how: Callable[[Delivery], bool | None], why: str | None = None
    ) -> list[str]:
        """What is not in this claim any more (settled, or free since our lease ended) is left as it is."""
        wanted = [(id, self._split(id)) for id in ids]

        def change(db: sqlite3.Connection) -> list[str]:
            known = self._consumer(db)
            parked = []
            for id, each in wanted:
                row = db.execute(_SELECT + _IN_CLAIM, (known.id, token, *each)).fetchone()
                if row is not None:
                    delivery = self._delivery(row)
                    if how(delivery):
                        parked.append(id)
                    self._save(db, known.id, delivery, None, None, why)
            self._holders.tidy(db, known.id)
            return parked

        return self.store.write(change)

    def prolong(self) -> None:
        """Another word from this holder."""

        def question(db: sqlite3.Connection) -> Holder | None:
            known = self._known(db)
            return None if known is None else self._holders.mine(db, known.id)

        mine = self.store.ask(question)
        if mine is not None and self._holders.is_worn(mine):
            self.store.write(lambda db: self._holders.hold(db, self._consumer(db).id))

    def count_unread(self, gone: Iterable[Pointer]) -> None:
        """What these said is gone. They are settled, and counted."""
        lost = list(gone)

        def change(db: sqlite3.Connection) -> None:
            for each in lost:
                pointers.count_unread(db, each.session, each.owner, 1)
                db.execute("DELETE FROM pending WHERE pos = ?", (each.pos,))
                db.execute("DELETE FROM signals WHERE pos = ?", (each.pos,))

        if lost:
            self.store.write(change)

    # Rows.

    def _due(self, db: sqlite3.Connection, consumer: int) -> tuple[int, int | None]:
        values = (consumer, self._holders.here().clock, self._clock.mono_ns())
        count, first = db.execute(f"{_COUNT} WHERE {_DUE}", values).fetchone()
        return count, first

    def _free(self, db: sqlite3.Connection, consumer: int) -> list[str]:
        """Take from the dead and the silent what they hold. Which that parked."""
        parked: list[str] = []
        for id, holder in self._holders.all(db, consumer):
            standing = self._holders.standing(holder)
            if standing == HOLDS:
                continue
            sql = _SELECT + " WHERE holder = ?"
            for delivery in [self._delivery(row) for row in db.execute(sql, (id,))]:
                if standing != DEAD:
                    delivery.expire()
                elif delivery.orphan(self._rules):
                    parked += [each.id for each in pointers.waiting(db, consumer, "pending.pos = ?", delivery.pos)]
                self._save(db, consumer, delivery, None, None, f"process {holder.pid}, which had it, {standing}")
            db.execute("DELETE FROM holders WHERE id = ?", (id,))
        return parked

    def _delivery(self, row: tuple[Any, ...]) -> Delivery:
        pos, deliveries, releases, failures, clock, not_before, holder, parked = row
        # A wait on the clock of another boot is over.
        not_before = not_before if clock == self._holders.here().clock else 0
        held, parked = holder is not None, bool(parked)
        return Delivery(pos, deliveries, releases, failures, not_before, held=held, parked=parked)

    def _save(
        self,
        db: sqlite3.Connection,
        consumer: int,
        delivery: Delivery,
        holder: int | None,
        token: int | None,
        why: str | None = None,
    ) -> None:
        clock = self._holders.here().clock if delivery.not_before_ns else None
        state = (delivery.deliveries, delivery.releases, delivery.failures, clock, delivery.not_before_ns)
        sql = """UPDATE pending SET deliveries = ?, releases = ?, failures = ?, clock = ?, not_before = ?, parked = ?,
        why = coalesce(?, why), holder = ?, claim = ? WHERE consumer = ? AND pos = ?"""
        db.execute(sql, (*state, int(delivery.parked), why, holder, token, consumer, delivery.pos))

    def _position(self, db: sqlite3.Connection, id: str) -> int | None:
        return pointers.position(db, *self._split(id))

    def _split(self, id: str) -> tuple[str, int]:
        found = split_id(id)
        if found is None:
            raise BadArgument("id", f"{ascii(id)[:80]} is no signal", "give the id of a signal, such as b7k2m9qa1.3")
        return found
