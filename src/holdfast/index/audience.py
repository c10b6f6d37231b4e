"""Who wants which signals: the consumers of a home and their filters.

Names and filters also stand in `consumers.json`, so that a lost index costs acknowledgements and nothing else: every
consumer is there again, and gets what is retained once more, marked as a replay.
"""

from __future__ import annotations

import os
import time

from ..runner import clock, jsontext, records, tree
from .database import get, new_generation, put

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable
    from typing import Any

    from ..home import Home

_FILE = "consumers.json"
_SIGNALS = "signals.jsonl"
_SELECT = "SELECT id, name, filter, created_at, used_ns, used_boot, used_up_ns FROM consumers"
ALL = "*"


class Filter:
    """Which signals a consumer gets. `owners` None is everybody's and nobody's; other parts None are not asked for."""

    __slots__ = ("kinds", "owners", "variants")

    def __init__(
        self,
        owners: Iterable[str] | None,
        variants: Iterable[str] | None = None,
        kinds: Iterable[str] | None = None,
    ) -> None:
        self.owners = None if owners is None else tuple(sorted(set(owners)))
        self.variants = None if variants is None else tuple(sorted(set(variants)))
        self.kinds = None if kinds is None else tuple(sorted(set(kinds)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.owners)

    def __repr__(self) -> str:
        return f"<Filter {self.to_json()}>"

    def fits(self, owner: str | None, variant: str, kind: str | None) -> bool:
        return (
            (self.owners is None or (owner is not None and owner in self.owners))
            and (self.variants is None or variant in self.variants)
            and (self.kinds is None or (kind is not None and kind in self.kinds))
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "owners": ALL if self.owners is None else list(self.owners),
            "variants": None if self.variants is None else list(self.variants),
            "kinds": None if self.kinds is None else list(self.kinds),
        }

    @staticmethod
    def from_json(given: Any) -> Filter:
        owners = given["owners"]
        return Filter(None if owners == ALL else owners, given.get("variants"), given.get("kinds"))


class Consumer:
    """One consumer. When it was last used stands there by the wall clock, for people and for after a reboot, and by
    the one that nobody can set."""

    __slots__ = ("created_at", "filter", "id", "name", "used_boot", "used_ns", "used_up_ns")

    def __init__(
        self, id: int, name: str, filter: Filter, created_at: str, used_ns: int, used_boot: str, used_up_ns: int
    ) -> None:
        self.id = id
        self.name = name
        self.filter = filter
        self.created_at = created_at
        self.used_ns = used_ns
        self.used_boot = used_boot
        self.used_up_ns = used_up_ns

    def __repr__(self) -> str:
        return f"<Consumer {self.name}>"

    def unused_ns(self) -> int:
        """For how long nobody has used it."""
        wall_ns, boot, up_ns = _now()
        return up_ns - self.used_up_ns if boot == self.used_boot else wall_ns - self.used_ns


def prepare(db: sqlite3.Connection, home: Home) -> str:
    """The mark of this queue, another one in every new index. The first who comes after a loss brings the consumers
    back and notes how much was there already: that is told again, not told."""
    mark = get(db, "queue")
    if mark is not None:
        return mark
    mark = new_generation()
    known = _read(home)
    for name, entry in known.items():
        _insert(db, name, entry["filter"], entry["created_at"])
    if known:
        put(db, "replayed_at", clock.now_text())
        db.executemany("INSERT OR REPLACE INTO signal_files (session, replay) VALUES (?, ?)", _sizes(home))
    put(db, "queue", mark)
    return mark


def consumers(db: sqlite3.Connection) -> list[Consumer]:
    return [_consumer(row) for row in db.execute(_SELECT + " ORDER BY id")]


def find(db: sqlite3.Connection, name: str) -> Consumer | None:
    row = db.execute(_SELECT + " WHERE name = ?", (name,)).fetchone()
    return None if row is None else _consumer(row)


def add(db: sqlite3.Connection, home: Home, name: str, filter: Filter) -> Consumer:
    """Make it, or give it another filter. Its queue is the caller's to fill."""
    known = find(db, name)
    if known is None:
        _insert(db, name, filter, clock.now_text())
        known = find(db, name)
        assert known is not None
    else:
        db.execute("UPDATE consumers SET filter = ? WHERE id = ?", (jsontext.write(filter.to_json()), known.id))
        known.filter = filter
    _write(db, home)
    return known


def use(db: sqlite3.Connection, consumer: Consumer) -> None:
    sql = "UPDATE consumers SET used_ns = ?, used_boot = ?, used_up_ns = ? WHERE id = ?"
    db.execute(sql, (*_now(), consumer.id))


def drop(db: sqlite3.Connection, home: Home, gone: Iterable[Consumer]) -> None:
    ids = [(consumer.id,) for consumer in gone]
    db.executemany("DELETE FROM pending WHERE consumer = ?", ids)
    db.executemany("DELETE FROM holders WHERE consumer = ?", ids)
    db.executemany("DELETE FROM consumers WHERE id = ?", ids)
    _write(db, home)


def _now() -> tuple[int, str, int]:
    return clock.wall_ns(), tree.here()["boot"], time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _consumer(row: tuple[Any, ...]) -> Consumer:
    id, name, filter, *times = row
    return Consumer(id, name, Filter.from_json(jsontext.read(filter)), *times)


def _insert(db: sqlite3.Connection, name: str, filter: Filter, created_at: str) -> None:
    sql = """INSERT INTO consumers (name, filter, created_at, used_ns, used_boot, used_up_ns)
    VALUES (?, ?, ?, ?, ?, ?)"""
    db.execute(sql, (name, jsontext.write(filter.to_json()), created_at, *_now()))


def listening(home: Home, owner: str | None, kind: str) -> int:
    """How many consumers would be told of the end of such a session; from the file, without the index."""
    return sum(entry["filter"].fits(owner, "lifecycle", kind) for entry in _read(home).values())


def _read(home: Home) -> dict[str, dict[str, Any]]:
    """The consumers that there were. What cannot be read is as if it had never been: its consumers start anew."""
    try:
        entries = records.read(os.path.join(home.path, _FILE))["consumers"]
        return {
            str(name): {"filter": Filter.from_json(entry), "created_at": str(entry["created_at"])}
            for name, entry in entries.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write(db: sqlite3.Connection, home: Home) -> None:
    """Inside the transaction, whose lock keeps others from writing an older list over a newer one."""
    entries = {each.name: {**each.filter.to_json(), "created_at": each.created_at} for each in consumers(db)}
    directory = os.open(home.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        records.write(directory, _FILE, {"v": 1, "consumers": entries})
    finally:
        os.close(directory)


def _sizes(home: Home) -> list[tuple[str, int]]:
    found = []
    names = os.listdir(home.sessions)
    for session, path in (*((name, os.path.join(home.sessions, name)) for name in names), ("home", home.path)):
        try:
            found.append((session, os.stat(os.path.join(path, _SIGNALS)).st_size))
        except OSError:
            continue
    return found
