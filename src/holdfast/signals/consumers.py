"""The consumers of a home: opened by name, listed, counted, dropped when unused."""

from __future__ import annotations

import re

from ..core import clock, jsontext
from ..errors import BadArgument
from ..home import check_owner
from ..index import queues
from ..index.database import get, put
from ..index.queues import ALL, ConsumerRow, Filter, Pointer
from .catchup import Catchup
from .consumer import AsyncConsumer
from .lines import load
from .queue import NOW, RETAINED, Queue

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    from ..config import Config
    from ..index import Index, Row
    from ..sessions.driver import Driver
    from .catchup import OnWritten
    from .lines import Signal
    from .missing import RunnerGoneFacts
    from .waker import Waker

    T = TypeVar("T")


# Names of consumers.


_NAME = re.compile(r"[a-z0-9][a-z0-9._:-]{0,63}")
RULE = "lower-case letters, digits and ._:- , at most 64, beginning with a letter or digit"
# The consumer of a person at a terminal, for the signals of all owners. Made by the first `hold ack`.
PERSON = "cli"


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def default_name(owner: str, family: str = "owner") -> str:
    """The consumer of one owner (`family`: a toolset that has its own); a hash of the owner where the name would be
    invalid."""
    name = f"{family}:{owner}"
    if is_name(name):
        return name
    from hashlib import sha256

    return f"{family}:{sha256(owner.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


# What waits for a consumer, for a viewer that is not the consumer: looking makes, takes and settles nothing.
#
# Of a consumer that does not exist yet, it is what it would get first: everything that is retained and fits.


DUE, HELD, LATER, PARKED = "due", "held", "later", "parked"
# As long as a consumer's own calls wait for an index that is locked.
_LOOK_S = 2.0
_SINCE = """SELECT pos, session, seq, variant, kind, owner, at, file, offset, length, replayed FROM signals
WHERE pos > ? ORDER BY pos"""
_RETAINED_BY_SESSION = "SELECT session, count(*) FROM signals WHERE owner IS ? GROUP BY session"
_WAITING_BY_SESSION = """SELECT session, count(*) FROM signals WHERE owner IS ?
AND pos IN (SELECT pos FROM pending WHERE consumer = ?) GROUP BY session"""
_STATE = "SELECT pos, parked, holder, not_before FROM pending WHERE consumer = ?"


class Waiting:
    """A signal in a consumer's queue: due, held, given back and due later, or parked, and then `why`."""

    __slots__ = ("consumer", "deliveries", "pos", "signal", "state", "why")

    def __init__(self, consumer: str, pointer: Pointer, signal: Signal, state: str) -> None:
        self.consumer = consumer
        self.pos = pointer.pos
        self.signal = signal
        self.state = state
        self.deliveries = pointer.deliveries
        self.why = pointer.why


class Listing:
    """The queue of one name. The filter of `consumer` is for one that does not exist."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        # Never opened: it only waits.
        self._consumer = consumer
        self._name = consumer.name
        self._filter = consumer.queue.filter
        # Everything after this position is new to the viewer.
        self.last = 0

    @property
    def again_s(self) -> float | None:
        """When to look again without a wake: another host is about to write what a dead runner could not."""
        again_ns = self._consumer.catchup.again_ns
        return None if again_ns is None else max(0.0, (again_ns - clock.mono_ns()) / 1e9)

    def waker(self) -> Waker:
        return self._consumer.waker()

    async def waiting(self, newest: int | None = None, *, parked: bool = False) -> list[Waiting]:
        """In the order in which they happened: all, or the newest ones, or of those only what is parked."""
        found = await self._ask(self._waiting)
        if parked:
            found = [each for each in found if each[1] == PARKED]
        found = sorted(found, key=lambda each: _when(each[0]))
        return self._loaded(found if newest is None else found[max(0, len(found) - newest) :])

    async def new(self) -> list[Waiting]:
        """All that came since the last look, settled by now or not."""
        found = await self._ask(self._new)
        return self._loaded([(each, DUE) for each in sorted(found, key=_when)])

    async def after(self, pos: int, limit: int) -> tuple[list[Waiting], int | None]:
        """What came after a position, in the order of the home, at most so many; and where to continue, if there is
        more. `look` before it."""
        found, following = await self._read(lambda db: self._after(db, pos, limit))
        return self._loaded([(each, DUE) for each in found]), following

    async def newest(self) -> int:
        """The position of the newest signal."""
        return await self._read(_last)

    async def oldest(self) -> int | None:
        """The position of the oldest signal that is retained."""
        (found,) = await self._read(lambda db: db.execute("SELECT min(pos) FROM signals").fetchone())
        return None if found is None else int(found)

    async def time_of(self, pos: int) -> str | None:
        """When the signal at a position happened, or the last one before it."""
        sql = "SELECT at FROM signals WHERE pos <= ? ORDER BY pos DESC LIMIT 1"
        row = await self._read(lambda db: db.execute(sql, (pos,)).fetchone())
        return None if row is None else row[0]

    async def look(self) -> None:
        """Bring the index up to date."""
        await self._consumer.catch_up()

    async def counts(self, owners: Iterable[str | None]) -> dict[str, int]:
        """How many signals of which session wait for the default consumers of these owners; those of sessions without
        an owner, for this one."""
        return await self._ask(lambda db: self._counts(db, set(owners)))

    async def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """The answer of an index that is up to date."""
        await self.look()
        return await self._read(question)

    async def _read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        return await self._consumer.retry(lambda: self._consumer.queue.index.database.read(question), _LOOK_S)

    def _counts(self, db: sqlite3.Connection, owners: set[str | None]) -> dict[str, int]:
        found: dict[str, int] = {}
        for owner in owners:
            known = queues.find_consumer(db, self._name if owner is None else default_name(owner))
            if known is None:
                found.update(db.execute(_RETAINED_BY_SESSION, (owner,)))
            else:
                found.update(db.execute(_WAITING_BY_SESSION, (owner, known.id)))
        return found

    def _waiting(self, db: sqlite3.Connection) -> list[tuple[Pointer, str]]:
        known = queues.find_consumer(db, self._name)
        if known is None:
            self.last = 0
            return [(each, DUE) for each in self._new(db)]
        self.last = _last(db)
        now = clock.mono_ns()
        states = {
            pos: PARKED if parked else HELD if holder is not None else LATER if not_before > now else DUE
            for pos, parked, holder, not_before in db.execute(_STATE, (known.id,))
        }
        return [(each, states[each.pos]) for each in queues.queued_rows(db, known.id)]

    def _new(self, db: sqlite3.Connection) -> list[Pointer]:
        found = [Pointer(*row) for row in db.execute(_SINCE, (self.last,))]
        self.last = _last(db)
        return [each for each in found if self._filter.fits(each.owner, each.variant, each.kind)]

    def _after(self, db: sqlite3.Connection, pos: int, limit: int) -> tuple[list[Pointer], int | None]:
        found: list[Pointer] = []
        for row in db.execute(_SINCE, (pos,)):
            if len(found) == limit:
                return found, pos
            each = Pointer(*row)
            pos = each.pos
            if self._filter.fits(each.owner, each.variant, each.kind):
                found.append(each)
        return found, None

    def _loaded(self, found: list[tuple[Pointer, str]]) -> list[Waiting]:
        loaded = {signal.id: signal for signal in load(self._consumer.home, [pointer for pointer, _ in found])[0]}
        return [
            Waiting(self._name, pointer, loaded[pointer.id], state) for pointer, state in found if pointer.id in loaded
        ]


def _when(pointer: Pointer) -> tuple[str, int]:
    """The index orders them by when the sessions were looked at."""
    return pointer.at or "", pointer.pos


def _last(db: sqlite3.Connection) -> int:
    found: int | None = db.execute("SELECT max(pos) FROM signals").fetchone()[0]
    return found or 0


# The consumers of a home.


# So many dropped consumers are remembered, for `hold doctor`.
_DROPPED_KEPT = 50
_DROPPED = "dropped_consumers"
# A session that is not final is read from its directory again.
_OWNER_OF_FINAL = "UPDATE sessions SET owner = ?, record = ? WHERE id = ? AND final = 1"


class Consumers:
    """`facts_of` says what became of a session whose runner is gone, `written` is called with what was written then."""

    def __init__(
        self,
        driver: Driver,
        index: Index,
        config: Config,
        runtime: str,
        facts_of: Callable[[str], RunnerGoneFacts | None] | None = None,
        written: OnWritten = lambda _variant, _record, _notify: None,
    ) -> None:
        self._driver = driver
        self._index = index
        self._config = config
        self.catchup = Catchup(index, runtime, facts_of, written)

    def of_owner(self, owner: str) -> AsyncConsumer:
        """The default consumer of one owner."""
        return self.open(default_name(check_owner(owner)), [owner])

    def open(
        self,
        name: str,
        owners: str | Iterable[str] = ALL,
        *,
        variants: Iterable[str] | None = None,
        kinds: Iterable[str] | None = None,
        start: str | None = None,
        replace: bool = False,
    ) -> AsyncConsumer:
        """Make it, or open it again. ConsumerMismatch where it exists with another filter, unless `replace`."""
        if not is_name(name):
            raise BadArgument("consumer", f"{ascii(name)[:80]} is not a valid name", f"use {RULE}")
        filter = Filter(_owners(owners), variants, kinds)
        if start is None:
            # A late consumer still gets the signals of its owner; a consumer of all owners starts now.
            start = NOW if filter.owners is None else RETAINED
        consumer = self._consumer(name, filter, start)
        consumer.open(replace=replace)
        return consumer

    def _consumer(self, name: str, filter: Filter, start: str = RETAINED) -> AsyncConsumer:
        queue = Queue(self._index, self._config, name, filter, start=start)
        return AsyncConsumer(self._driver, self._config, queue, self.catchup)

    def listing(self, name: str = PERSON, filter: Filter | None = None) -> Listing:
        """What waits for a consumer, for a viewer that is not the consumer."""
        return Listing(self._consumer(name, Filter(None) if filter is None else filter))

    def known(self) -> list[dict[str, Any]]:
        """Every consumer: its name, filter, when it was made and last used, how many signals wait and are parked."""
        return self._index.database.read(lambda db: [_described(db, each) for each in queues.consumers(db)])

    def hand_over(self, session: str, former: str | None, owner: str | None, record: Callable[[], Row]) -> None:
        """Move what waits of this session to another owner. `record` writes the owner to disk, and returns the row of
        the session as it is then."""

        def change(db: sqlite3.Connection) -> None:
            queues.hand_over(db, session, former, owner)
            _, _, known_owner, *_, known = record().values()
            db.execute(_OWNER_OF_FINAL, (known_owner, known, session))

        self._index.database.change(change)

    def drop_unused(self) -> list[str]:
        """Drop consumers that were not used for too long."""
        kept_ns = round(self._config.signals_keep_unused * 1e9)
        stale = self._index.database.read(
            lambda db: [each for each in queues.consumers(db) if each.unused_ns() > kept_ns]
        )
        return self._drop(stale) if stale else []

    def drop(self, name: str) -> bool:
        """Drop one, and what waits for it. False if it does not exist."""
        found = self._index.database.read(lambda db: queues.find_consumer(db, name))
        return found is not None and bool(self._drop([found]))

    def dropped(self) -> list[dict[str, Any]]:
        """Consumers that were dropped lately, and how many signals were waiting for each."""
        return self._index.database.read(_dropped)

    def _drop(self, gone: list[ConsumerRow]) -> list[str]:
        def change(db: sqlite3.Connection) -> list[str]:
            queues.prepare_consumers(db, self._index.home)
            dropped = [{**_described(db, each), "dropped_at": clock.now_text()} for each in gone]
            put(db, _DROPPED, jsontext.write([*_dropped(db), *dropped][-_DROPPED_KEPT:]))
            queues.drop_consumer(db, self._index.home, gone)
            return [each.name for each in gone]

        return self._index.database.change(change)


def _owners(owners: str | Iterable[str]) -> list[str] | None:
    if owners == ALL:
        return None
    given = [owners] if isinstance(owners, str) else list(owners)
    if not given:
        raise BadArgument("owners", "the list is empty", f"give owners, or {ALL!r} for all")
    return [check_owner(owner) for owner in given]


def _described(db: sqlite3.Connection, each: ConsumerRow) -> dict[str, Any]:
    sql = "SELECT count(*), coalesce(sum(parked), 0) FROM pending WHERE consumer = ?"
    waiting, parked = db.execute(sql, (each.id,)).fetchone()
    times = {"created_at": each.created_at, "used_at": clock.rfc3339(each.used_ns)}
    return {"name": each.name, **each.filter.to_json(), **times, "waiting": waiting, "parked": parked}


def _dropped(db: sqlite3.Connection) -> list[dict[str, Any]]:
    try:
        return list(jsontext.read(get(db, _DROPPED) or "[]"))
    except ValueError:
        return []
