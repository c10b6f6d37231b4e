"""The consumers of a home, as one host sees them: opened by name, counted, dropped when nobody uses them."""

from __future__ import annotations

from ..errors import BadArgument
from ..home import check_owner
from ..index import audience, pointers
from ..index.audience import ALL, Consumer, Filter
from ..index.database import get, put
from ..runner import clock, jsontext
from .catchup import Catchup
from .claiming import Rules
from .inbox import Inbox
from .listing import Listing
from .names import PERSON, RULE, default_name, is_name
from .queue import NOW, RETAINED, Queue
from .store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..config import Config
    from ..home import Home
    from ..host.driver import Driver
    from ..index import Index, Row
    from .catchup import Told
    from .succession import Outcome

# So many of those that were dropped are remembered, for `hold doctor`.
_DROPPED_KEPT = 50
_DROPPED = "dropped_consumers"
# What is final is not read from its directory again. The others are.
_OWNER_OF_FINAL = "UPDATE sessions SET owner = ?, record = ? WHERE id = ? AND final = 1"


class Consumers:
    """`outcome` tells what became of a session whose runner is gone, `told` is called with what was written then."""

    def __init__(
        self,
        driver: Driver,
        index: Index,
        home: Home,
        config: Config,
        runtime: str,
        outcome: Callable[[str], Outcome | None] | None = None,
        told: Told = lambda _variant, _record, _notify: None,
    ) -> None:
        self._driver = driver
        self._home = home
        self._config = config
        self._store = Store(index, home)
        self.catchup = Catchup(self._store, runtime, outcome, told)

    def of_owner(self, owner: str) -> Inbox:
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
    ) -> Inbox:
        """Make it, or open it again. ConsumerMismatch where it exists with another filter, unless `replace`."""
        if not is_name(name):
            raise BadArgument("consumer", f"{ascii(name)[:80]} is no name for one", f"use {RULE}")
        filter = Filter(_owners(owners), variants, kinds)
        if start is None:
            # A late consumer still gets what was promised to its owner; one of everybody's begins with today.
            start = NOW if filter.owners is None else RETAINED
        queue = Queue(self._store, name, filter, start=start, rules=Rules.of(self._config))
        inbox = Inbox(self._driver, self._home, self._config, queue, self.catchup)
        inbox.open(replace=replace)
        return inbox

    def listing(self, name: str = PERSON, filter: Filter | None = None) -> Listing:
        """What waits for a consumer, seen by somebody who is not it."""
        wanted = Filter(None) if filter is None else filter
        return Listing(self._driver, self._home, self._config, self._store, self.catchup, name, wanted)

    def known(self) -> list[dict[str, Any]]:
        """Every consumer: its name, filter, when it was made and last used, how many signals wait and are parked."""
        return self._store.ask(lambda db: [_described(db, each) for each in audience.consumers(db)])

    def hand_over(self, session: str, former: str | None, owner: str | None, record: Callable[[], Row]) -> None:
        """What waits of this session is another owner's from now on. `record` puts that on disk, and returns the row
        of the session as it is then."""

        def change(db: sqlite3.Connection) -> None:
            pointers.hand_over(db, session, former, owner)
            _, _, known_owner, *_, known = record().values()
            db.execute(_OWNER_OF_FINAL, (known_owner, known, session))

        self._store.write(change)

    def drop_unused(self) -> list[str]:
        """Forget those that nobody used for so long."""
        kept_ns = round(self._config.signals_keep_unused * 1e9)
        stale = self._store.ask(lambda db: [each for each in audience.consumers(db) if each.unused_ns() > kept_ns])
        return self._drop(stale) if stale else []

    def drop(self, name: str) -> bool:
        """Forget one, and what waits for it. False where there is none."""
        found = self._store.ask(lambda db: audience.find(db, name))
        return found is not None and bool(self._drop([found]))

    def dropped(self) -> list[dict[str, Any]]:
        """Who was dropped lately, and how many signals were waiting."""
        return self._store.ask(_dropped)

    def _drop(self, gone: list[Consumer]) -> list[str]:
        def change(db: sqlite3.Connection) -> list[str]:
            told = [{**_described(db, each), "dropped_at": clock.now_text()} for each in gone]
            put(db, _DROPPED, jsontext.write([*_dropped(db), *told][-_DROPPED_KEPT:]))
            audience.drop(db, self._home, gone)
            return [each.name for each in gone]

        return self._store.write(change)


def _owners(owners: str | Iterable[str]) -> list[str] | None:
    if owners == ALL:
        return None
    given = [owners] if isinstance(owners, str) else list(owners)
    if not given:
        raise BadArgument("owners", "there is none", f"give owners, or {ALL!r} for everybody")
    return [check_owner(owner) for owner in given]


def _described(db: sqlite3.Connection, each: Consumer) -> dict[str, Any]:
    sql = "SELECT count(*), coalesce(sum(parked), 0) FROM pending WHERE consumer = ?"
    waiting, parked = db.execute(sql, (each.id,)).fetchone()
    times = {"created_at": each.created_at, "used_at": clock.rfc3339(each.used_ns)}
    return {"name": each.name, **each.filter.to_json(), **times, "waiting": waiting, "parked": parked}


def _dropped(db: sqlite3.Connection) -> list[dict[str, Any]]:
    try:
        return list(jsontext.read(get(db, _DROPPED) or "[]"))
    except ValueError:
        return []
