"""Signals as the index knows them: where each stands in which file, never what it says.

Everything here runs inside a transaction of the caller. A signal is known by session and number: what comes a second
time, from a second reader or a rotated file, changes nothing.
"""

from __future__ import annotations

from .audience import Consumer, consumers

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable
    from typing import Any

    from .audience import Filter

_SELECT = "SELECT pos, session, seq, variant, kind, owner, at, file, offset, length, replayed FROM signals"
_WAITING = """SELECT signals.pos, session, seq, variant, kind, owner, at, file, offset, length, replayed
FROM pending JOIN signals ON signals.pos = pending.pos"""
_INSERT = """INSERT OR IGNORE INTO signals (session, seq, variant, kind, owner, at, file, offset, length, replayed)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_QUEUE = "INSERT OR IGNORE INTO pending (consumer, pos) VALUES (?, ?)"


class Pointer:
    """One signal: `file` is the inode it stands in at `offset`; `pos` is its place in the order of the home."""

    __slots__ = (*("at", "file", "kind", "length", "offset", "owner", "pos", "replayed", "seq", "session", "variant"),)

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
    ) -> None:
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

    def __repr__(self) -> str:
        return f"<Pointer {self.id} {self.variant}>"

    @property
    def id(self) -> str:
        return f"{self.session}.{self.seq}"


class Progress:
    """How far the file of one session is read, what was folded on the way, and how much of it is a replay."""

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
    """Nothing will come from that file any more."""
    db.execute("DELETE FROM signal_files WHERE session = ?", (session,))


def insert(db: sqlite3.Connection, found: Iterable[Pointer]) -> int:
    """Into the order of the home, and into the queue of everybody who wants it. How many were new."""
    audience: list[Consumer] | None = None
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
    """What the former owner's consumers have not all settled becomes the new owner's. Where nobody listened for the
    former one, that is everything."""
    if former == owner:
        return
    audience = consumers(db)
    sql = _SELECT + " WHERE session = ? AND owner IS ?"
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


def fill(db: sqlite3.Connection, consumer: Consumer, *, after: int = 0, unless: Filter | None = None) -> None:
    """Queue what is retained behind `after`; not what its former filter gave it already."""
    wanted = consumer.filter
    sql, values = _SELECT + " WHERE pos > ?", [after]
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


def unfill(db: sqlite3.Connection, consumer: Consumer) -> None:
    """Take out of its queue what it does not want any more."""
    for each in waiting(db, consumer.id):
        if not consumer.filter.fits(each.owner, each.variant, each.kind):
            db.execute("DELETE FROM pending WHERE consumer = ? AND pos = ?", (consumer.id, each.pos))


def waiting(db: sqlite3.Connection, consumer: int, where: str = "1", *values: object, limit: int = -1) -> list[Pointer]:
    """What is in its queue, in the order of the home."""
    sql = f"{_WAITING} WHERE pending.consumer = ? AND {where} ORDER BY pending.pos LIMIT ?"
    return [Pointer(*row) for row in db.execute(sql, (consumer, *values, limit))]


def position(db: sqlite3.Connection, session: str, seq: int) -> int | None:
    row = db.execute("SELECT pos FROM signals WHERE session = ? AND seq = ?", (session, seq)).fetchone()
    return None if row is None else int(row[0])


def forget(db: sqlite3.Connection, sessions: Iterable[str]) -> None:
    """Those directories are gone, and with them what their signals said. What nobody had settled is counted."""
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


def strangers(db: sqlite3.Connection, listed: set[str]) -> set[str]:
    """Sessions that have signals here and no directory."""
    known = {row[0] for row in db.execute("SELECT DISTINCT session FROM signals")}
    return known - listed - {"home"}
