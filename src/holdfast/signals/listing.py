"""What waits for a consumer, seen by somebody who is not it: nothing is made, taken or settled by looking.

Of a consumer that nobody has made yet, it is what it would be given first: all that is retained and fits.
"""

from __future__ import annotations

from ..index import audience, pointers
from ..index.pointers import Pointer
from ..runner import clock
from .bodies import load
from .claiming import Rules
from .inbox import Inbox
from .names import default_name
from .queue import Queue

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from ..config import Config
    from ..home import Home
    from ..host.driver import Driver
    from ..index.audience import Filter
    from .catchup import Catchup
    from .records import Signal
    from .store import Store
    from .waker import Waker

DUE, HELD, LATER, PARKED = "due", "held", "later", "parked"
# As long as a consumer's own calls wait for an index that is locked.
_LOOK_S = 2.0
_SINCE = """SELECT pos, session, seq, variant, kind, owner, at, file, offset, length, replayed FROM signals
WHERE pos > ? ORDER BY pos"""
_RETAINED_BY_SESSION = "SELECT session, count(*) FROM signals WHERE owner IS ? GROUP BY session"
_WAITING_BY_SESSION = """SELECT session, count(*) FROM signals WHERE owner IS ?
AND pos IN (SELECT pos FROM pending WHERE consumer = ?) GROUP BY session"""
_STATE = "SELECT pos, deliveries, parked, why, holder, not_before FROM pending WHERE consumer = ? ORDER BY pos"


class Waiting:
    """A signal in a consumer's queue: due, held by somebody, given back and due later, or parked, and then `why`."""

    __slots__ = ("consumer", "deliveries", "pos", "signal", "state", "why")

    def __init__(self, consumer: str, pos: int, signal: Signal, state: str, deliveries: int, why: str | None) -> None:
        self.consumer = consumer
        self.pos = pos
        self.signal = signal
        self.state = state
        self.deliveries = deliveries
        self.why = why


class Listing:
    """The queue of one name. `filter` is what it would want, if there is no such consumer."""

    def __init__(
        self, driver: Driver, home: Home, config: Config, store: Store, catchup: Catchup, name: str, filter: Filter
    ) -> None:
        self._home = home
        self._store = store
        self._name = name
        # Never opened and never asked for anything but to wait: it is nobody's.
        self._inbox = Inbox(driver, home, config, Queue(store, name, filter, rules=Rules.of(config)), catchup)
        self._filter = filter
        # The position behind which everything is new to who has just looked.
        self.last = 0

    @property
    def again_s(self) -> float | None:
        """When to look again although nothing called: another host is about to write what a runner could not."""
        again_ns = self._inbox.catchup.again_ns
        return None if again_ns is None else max(0.0, (again_ns - clock.mono_ns()) / 1e9)

    def waker(self) -> Waker:
        return self._inbox.waker()

    async def waiting(self, newest: int | None = None, *, parked: bool = False) -> list[Waiting]:
        """In the order in which they happened: all, or the newest ones, or of those only what is parked."""
        await self.look()
        found = await self._inbox.insist(lambda: self._store.ask(self._waiting), _LOOK_S)
        if parked:
            found = [each for each in found if each[1] == PARKED]
        found = sorted(found, key=lambda each: _when(each[0]))
        return self._loaded(found if newest is None else found[max(0, len(found) - newest) :])

    async def new(self) -> list[Waiting]:
        """All that came since the last look, whoever has settled it by now."""
        await self.look()
        found = await self._inbox.insist(lambda: self._store.ask(self._new), _LOOK_S)
        return self._loaded([(each, DUE, 0, None) for each in sorted(found, key=_when)])

    async def counts(self, owners: Iterable[str | None]) -> dict[str, int]:
        """How many signals of which session wait for the default consumers of these owners; those of sessions without
        an owner, for this one."""
        await self.look()
        return await self._inbox.insist(lambda: self._store.ask(lambda db: self._counts(db, set(owners))), _LOOK_S)

    def _counts(self, db: sqlite3.Connection, owners: set[str | None]) -> dict[str, int]:
        found: dict[str, int] = {}
        for owner in owners:
            known = audience.find(db, self._name if owner is None else default_name(owner))
            if known is None:
                found.update(db.execute(_RETAINED_BY_SESSION, (owner,)))
            else:
                found.update(db.execute(_WAITING_BY_SESSION, (owner, known.id)))
        return found

    async def look(self) -> None:
        """Bring the index up to date."""
        inbox = self._inbox
        hints, inbox.hints = inbox.hints, set()
        await inbox.insist(lambda: inbox.catchup.run(hints), _LOOK_S, away=inbox.catchup.takes_long)
        for waker in inbox.wakers():
            waker.refresh()

    def _waiting(self, db: sqlite3.Connection) -> list[tuple[Pointer, str, int, str | None]]:
        known = audience.find(db, self._name)
        if known is None:
            self.last = 0
            return [(each, DUE, 0, None) for each in self._new(db)]
        self.last = _last(db)
        pointed = {each.pos: each for each in pointers.waiting(db, known.id)}
        now = clock.mono_ns()
        found = []
        for pos, deliveries, parked, why, holder, not_before in db.execute(_STATE, (known.id,)):
            state = PARKED if parked else HELD if holder is not None else LATER if not_before > now else DUE
            if pos in pointed:
                found.append((pointed[pos], state, deliveries, why))
        return found

    def _new(self, db: sqlite3.Connection) -> list[Pointer]:
        found = [Pointer(*row) for row in db.execute(_SINCE, (self.last,))]
        self.last = _last(db)
        return [each for each in found if self._filter.fits(each.owner, each.variant, each.kind)]

    def _loaded(self, found: list[tuple[Pointer, str, int, str | None]]) -> list[Waiting]:
        signals = {signal.id: signal for signal in load(self._home, [(each[0], each[2]) for each in found])[0]}
        return [
            Waiting(self._name, pointer.pos, signals[pointer.id], state, deliveries, why)
            for pointer, state, deliveries, why in found
            if pointer.id in signals
        ]


def _when(pointer: Pointer) -> tuple[str, int]:
    """The index has them in the order in which sessions were looked at, which is another one."""
    return pointer.at or "", pointer.pos


def _last(db: sqlite3.Connection) -> int:
    found: int | None = db.execute("SELECT max(pos) FROM signals").fetchone()[0]
    return found or 0
