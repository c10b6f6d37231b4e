"""Signals in the index: where each is recorded, and which consumers want it.

Everything here runs inside a transaction of the caller. A signal is known by session and number: what comes a second
time, from a second reader or a rotated file, changes nothing.
"""

from __future__ import annotations

import os
import time

from ..core import clock, jsontext, processes, records
from ..core.signalfile import FILE, HOME, signal_id
from .database import get, new_generation, put

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable
    from typing import Any

    from ..home import Home


# The consumers of a home and their filters.
#
# Names and filters are also in `consumers.json`, so that only acknowledgements are lost with the index: every consumer
# is restored, and gets the retained signals again, marked as a replay.


_FILE = "consumers.json"
_SELECT = "SELECT id, name, filter, created_at, used_ns, used_boot, used_up_ns FROM consumers"
ALL = "*"


class Filter:
    """Which signals a consumer gets. `owners` None: with any owner or without one; another part None: any."""

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
        if not isinstance(other, Filter):
            return False
        return (self.owners, self.variants, self.kinds) == (other.owners, other.variants, other.kinds)

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


class ConsumerRow:
    """One consumer. The time of its last use is kept by the wall clock, for people and for after a reboot, and by the
    clock of this boot, which cannot be set."""

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
        return f"<ConsumerRow {self.name}>"

    def unused_ns(self) -> int:
        """For how long it was not used."""
        wall_ns, boot, up_ns = _now()
        return up_ns - self.used_up_ns if boot == self.used_boot else wall_ns - self.used_ns


def prepare_consumers(db: sqlite3.Connection, home: Home) -> str:
    """The generation of the queues, another one in every new index. The first writer after a loss restores the
    consumers, and notes the size of each signal file: what is in it by then is a replay."""
    generation = get(db, "queue")
    if generation is not None:
        return generation
    generation = new_generation()
    known = _read(home)
    for name, entry in known.items():
        _insert(db, name, entry["filter"], entry["created_at"])
    if known:
        put(db, "replayed_at", clock.now_text())
        db.executemany("INSERT OR REPLACE INTO signal_files (session, replay) VALUES (?, ?)", _sizes(home))
    put(db, "queue", generation)
    return generation


def consumers(db: sqlite3.Connection) -> list[ConsumerRow]:
    return [_consumer(row) for row in db.execute(_SELECT + " ORDER BY id")]


def find_consumer(db: sqlite3.Connection, name: str) -> ConsumerRow | None:
    row = db.execute(_SELECT + " WHERE name = ?", (name,)).fetchone()
    return None if row is None else _consumer(row)


def add_consumer(db: sqlite3.Connection, home: Home, name: str, filter: Filter) -> ConsumerRow:
    """Make it, or give it another filter. The caller fills its queue."""
    known = find_consumer(db, name)
    if known is None:
        _insert(db, name, filter, clock.now_text())
        known = find_consumer(db, name)
        assert known is not None
    else:
        db.execute("UPDATE consumers SET filter = ? WHERE id = ?", (jsontext.write(filter.to_json()), known.id))
        known.filter = filter
    _write(db, home)
    return known


def use_consumer(db: sqlite3.Connection, consumer: ConsumerRow) -> None:
    sql = "UPDATE consumers SET used_ns = ?, used_boot = ?, used_up_ns = ? WHERE id = ?"
    db.execute(sql, (*_now(), consumer.id))


def drop_consumer(db: sqlite3.Connection, home: Home, gone: Iterable[ConsumerRow]) -> None:
    ids = [(consumer.id,) for consumer in gone]
    db.executemany("DELETE FROM pending WHERE consumer = ?", ids)
    db.executemany("DELETE FROM holders WHERE consumer = ?", ids)
    db.executemany("DELETE FROM consumers WHERE id = ?", ids)
    _write(db, home)


def _now() -> tuple[int, str, int]:
    return clock.wall_ns(), processes.own_identity()["boot"], time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _consumer(row: tuple[Any, ...]) -> ConsumerRow:
    id, name, filter, *times = row
    return ConsumerRow(id, name, Filter.from_json(jsontext.read(filter)), *times)


def _insert(db: sqlite3.Connection, name: str, filter: Filter, created_at: str) -> None:
    sql = """INSERT INTO consumers (name, filter, created_at, used_ns, used_boot, used_up_ns)
    VALUES (?, ?, ?, ?, ?, ?)"""
    db.execute(sql, (name, jsontext.write(filter.to_json()), created_at, *_now()))


def listening(home: Home, owner: str | None, kind: str) -> int:
    """How many consumers want the end of such a session; read from `consumers.json`, without the index."""
    return sum(entry["filter"].fits(owner, "lifecycle", kind) for entry in _read(home).values())


def _read(home: Home) -> dict[str, dict[str, Any]]:
    """The consumers in `consumers.json`; empty if it cannot be read."""
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
    records.write(None, os.path.join(home.path, _FILE), {"v": 1, "consumers": entries})


def _sizes(home: Home) -> list[tuple[str, int]]:
    found = []
    names = os.listdir(home.sessions)
    for session, path in (*((name, os.path.join(home.sessions, name)) for name in names), (HOME, home.path)):
        try:
            found.append((session, os.stat(os.path.join(path, FILE)).st_size))
        except OSError:
            continue
    return found


# Signals in the index: where each is in which file, not its content.


_SELECT_SIGNALS = "SELECT pos, session, seq, variant, kind, owner, at, file, offset, length, replayed FROM signals"
_WAITING = """SELECT signals.pos, session, seq, variant, kind, owner, at, file, offset, length, replayed,
deliveries, why FROM pending JOIN signals ON signals.pos = pending.pos"""
_INSERT = """INSERT OR IGNORE INTO signals (session, seq, variant, kind, owner, at, file, offset, length, replayed)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_QUEUE = "INSERT OR IGNORE INTO pending (consumer, pos) VALUES (?, ?)"


class Pointer:
    """One signal: `file` is the inode that has it at `offset`; `pos` is its place in the order of the home. In the
    queue of a consumer, `deliveries` counts how often it was handed out, and `why` it was last given back."""

    __slots__ = (
        *("at", "deliveries", "file", "id", "kind", "length", "offset", "owner", "pos", "replayed", "seq", "session"),
        *("variant", "why"),
    )

    def __init__(
        self,
        pos: int,
        session: str,
        seq: int,
        variant: str,
        kind: str | None,
        owner: str | None,
        at: str | None,
        file: int,
        offset: int,
        length: int,
        replayed: int = 0,
        deliveries: int = 0,
        why: str | None = None,
    ) -> None:
        self.id = signal_id(session, seq)
        self.pos = pos
        self.session = session
        self.seq = seq
        self.variant = variant
        self.kind = kind
        self.owner = owner
        self.at = at
        self.file = file
        self.offset = offset
        self.length = length
        self.replayed = bool(replayed)
        self.deliveries = deliveries
        self.why = why

    def __repr__(self) -> str:
        return f"<Pointer {self.id} {self.variant}>"


class Progress:
    """How far the file of one session is read, the owner and the end found in it, and how much of it is a replay."""

    __slots__ = ("bytes", "ended", "file", "owner", "replay", "seq", "session")

    def __init__(
        self,
        session: str,
        file: int = 0,
        bytes: int = 0,
        seq: int = 0,
        owner: str | None = None,
        ended: int = 0,
        replay: int = 0,
    ) -> None:
        self.session = session
        self.file = file
        self.bytes = bytes
        self.seq = seq
        self.owner = owner
        self.ended = bool(ended)
        self.replay = replay

    def values(self) -> tuple[Any, ...]:
        return self.session, self.file, self.bytes, self.seq, self.owner, int(self.ended), self.replay


def progress(db: sqlite3.Connection, session: str) -> Progress:
    sql = "SELECT session, file, bytes, seq, owner, ended, replay FROM signal_files WHERE session = ?"
    row = db.execute(sql, (session,)).fetchone()
    return Progress(session) if row is None else Progress(*row)


def note_progress(db: sqlite3.Connection, reached: Progress) -> None:
    db.execute("INSERT OR REPLACE INTO signal_files VALUES (?, ?, ?, ?, ?, ?, ?)", reached.values())


def forget_progress(db: sqlite3.Connection, session: str) -> None:
    """No signal can follow in that file."""
    db.execute("DELETE FROM signal_files WHERE session = ?", (session,))


def insert(db: sqlite3.Connection, found: Iterable[Pointer]) -> int:
    """Append signals to the order of the home, and queue each for every consumer that wants it. Returns how many were
    new."""
    audience: list[ConsumerRow] | None = None
    new = 0
    for each in found:
        at = (each.file, each.offset, each.length, int(each.replayed))
        done = db.execute(_INSERT, (each.session, each.seq, each.variant, each.kind, each.owner, each.at, *at))
        if done.rowcount != 1:
            continue
        new += 1
        each.pos = int(done.lastrowid or 0)
        audience = consumers(db) if audience is None else audience
        wanted = [(one.id, each.pos) for one in audience if one.filter.fits(each.owner, each.variant, each.kind)]
        db.executemany(_QUEUE, wanted)
    return new


def hand_over(db: sqlite3.Connection, session: str, former: str | None, owner: str | None) -> None:
    """Give the new owner each signal that some consumer of the former owner has not settled, or every signal if the
    former owner had no consumer."""
    if former == owner:
        return
    audience = consumers(db)
    sql = _SELECT_SIGNALS + " WHERE session = ? AND owner IS ?"
    for each in [Pointer(*row) for row in db.execute(sql, (session, former))]:
        before = {one.id for one in audience if one.filter.fits(former, each.variant, each.kind)}
        after = {one.id for one in audience if one.filter.fits(owner, each.variant, each.kind)}
        waiting = {row[0] for row in db.execute("SELECT consumer FROM pending WHERE pos = ?", (each.pos,))}
        losing = before - after
        if losing and not losing & waiting:
            continue
        db.execute("UPDATE signals SET owner = ? WHERE pos = ?", (owner, each.pos))
        gone = [(id, each.pos) for id in losing]
        db.executemany("DELETE FROM pending WHERE consumer = ? AND pos = ?", gone)
        db.executemany(_QUEUE, [(id, each.pos) for id in after - before])


def fill(db: sqlite3.Connection, consumer: ConsumerRow, *, after: int = 0, unless: Filter | None = None) -> None:
    """Queue the retained signals past `after` that it wants and that its former filter, `unless`, did not let in."""
    wanted = consumer.filter
    sql, values = _SELECT_SIGNALS + " WHERE pos > ?", [after]
    rows: Iterable[tuple[Any, ...]]
    if wanted.owners is None:
        rows = db.execute(sql, values)
    else:
        rows = (row for owner in wanted.owners for row in db.execute(sql + " AND owner = ?", [*values, owner]))
    for row in list(rows):
        each = Pointer(*row)
        facts = (each.owner, each.variant, each.kind)
        if wanted.fits(*facts) and not (unless is not None and unless.fits(*facts)):
            db.execute(_QUEUE, (consumer.id, each.pos))


def unfill(db: sqlite3.Connection, consumer: ConsumerRow) -> None:
    """Remove from its queue what its filter does not want any more."""
    for each in queued_rows(db, consumer.id):
        if not consumer.filter.fits(each.owner, each.variant, each.kind):
            db.execute("DELETE FROM pending WHERE consumer = ? AND pos = ?", (consumer.id, each.pos))


def queued_rows(
    db: sqlite3.Connection, consumer: int, where: str = "1", *values: object, limit: int = -1
) -> list[Pointer]:
    """What is in its queue, in the order of the home."""
    sql = f"{_WAITING} WHERE pending.consumer = ? AND {where} ORDER BY pending.pos LIMIT ?"
    return [Pointer(*row) for row in db.execute(sql, (consumer, *values, limit))]


def position(db: sqlite3.Connection, session: str, seq: int) -> int | None:
    row = db.execute("SELECT pos FROM signals WHERE session = ? AND seq = ?", (session, seq)).fetchone()
    return None if row is None else int(row[0])


def forget(db: sqlite3.Connection, sessions: Iterable[str]) -> None:
    """Remove all signals of sessions whose directories are gone. Those that were not settled are counted as unread."""
    for session in sessions:
        unread = """SELECT owner, count(*) FROM signals WHERE session = ?
        AND EXISTS (SELECT 1 FROM pending WHERE pending.pos = signals.pos) GROUP BY owner"""
        for owner, count in db.execute(unread, (session,)).fetchall():
            count_unread(db, session, owner, count)
        db.execute("DELETE FROM pending WHERE pos IN (SELECT pos FROM signals WHERE session = ?)", (session,))
        db.execute("DELETE FROM signals WHERE session = ?", (session,))
        forget_progress(db, session)


def count_unread(db: sqlite3.Connection, session: str, owner: str | None, count: int) -> None:
    db.execute("INSERT INTO unread (session, owner, signals) VALUES (?, ?, ?)", (session, owner, count))


def forget_unread(db: sqlite3.Connection, rows: Iterable[int]) -> None:
    """These counts are in a signal of the home now."""
    db.executemany("DELETE FROM unread WHERE rowid = ?", [(row,) for row in rows])


def sessions_without_directory(db: sqlite3.Connection, listed: set[str]) -> set[str]:
    """Sessions that have signals here and no directory."""
    known = {row[0] for row in db.execute("SELECT DISTINCT session FROM signals")}
    return known - listed - {HOME}
