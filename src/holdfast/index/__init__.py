"""The index: find sessions fast. A cache of the session directories, written by hosts alone.

Directories are the truth. Every method answers whatever became of `index.db`, from the directories where it
must; `trouble` then says why.
"""

from __future__ import annotations

import os
import time

from .. import home as homes
from ..runner import clock, jsontext
from .database import Database, get, new_generation, put

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from ..home import Home

# What changed a moment ago may change again without a new time stamp: the kernel's clock is coarse.
_RACY_NS = 50_000_000
_REMOVED_KEPT = 10_000
# Few enough for one transaction to stay well below the time that others wait.
_ROWS_AT_ONCE = 500
_PID_LIMIT = 1 << 32

_COLUMNS = (
    "id",
    "name",
    "owner",
    "kind",
    "command",
    "cwd",
    "labels",
    "created_at",
    "ended_at",
    "status",
    "pid",
    "final",
    "record",
)
_SELECT = """SELECT id, name, owner, kind, command, cwd, labels, created_at, ended_at, status, pid, final, record
FROM sessions"""
_UPSERT = "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ALL = "SELECT id FROM sessions"
_UNFINISHED = "SELECT id FROM sessions WHERE final = 0"
_FINAL = "SELECT id FROM sessions WHERE final = 1"
_FINAL_TIMES = "SELECT id, created_at FROM sessions WHERE final = 1"


class Row:
    """What the index knows of one session. `record` is its snapshot; only a `final` row has one."""

    __slots__ = _COLUMNS

    def __init__(
        self,
        id: str,
        *,
        name: str | None = None,
        owner: str | None = None,
        kind: str | None = None,
        command: str | None = None,
        cwd: str | None = None,
        labels: Mapping[str, str] | None = None,
        created_at: str | None = None,
        ended_at: str | None = None,
        status: str | None = None,
        pid: int | None = None,
        final: bool = False,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        self.id, self.name, self.owner, self.kind = id, name, owner, kind
        self.command, self.cwd, self.labels = command, cwd, dict(labels or {})
        self.created_at, self.ended_at, self.status, self.pid = created_at, ended_at, status, pid
        self.final = final and record is not None
        self.record = dict(record) if final and record is not None else None

    def __repr__(self) -> str:
        return f"<Row {self.id} {self.status}{' final' if self.final else ''}>"

    def values(self) -> tuple[object, ...]:
        texts = (self.name, self.owner, self.kind, self.command, self.cwd)
        times = (self.created_at, self.ended_at, self.status)
        pid = self.pid if self.pid is not None and 0 < self.pid < _PID_LIMIT else None
        record = None if self.record is None else jsontext.write(self.record)
        plain = (*map(_plain, texts), jsontext.write(self.labels), *map(_plain, times))
        return (self.id, *plain, pid, int(self.final), record)


class Look:
    """Which sessions there are: those that may still change, and, from a query, the records of others."""

    __slots__ = ("records", "unfinished")

    def __init__(self, unfinished: list[str], records: dict[str, dict[str, Any]]) -> None:
        self.unfinished = unfinished
        self.records = records


class Index:
    """`reader` reads one session directory into a Row; None when there is nothing readable."""

    def __init__(self, home: Home, reader: Callable[[str], Row | None]) -> None:
        self._sessions = home.sessions
        self._database = Database(home)
        self._reader = reader

    @property
    def trouble(self) -> str | None:
        """What is wrong with the index, in a sentence for people; None when nothing is."""
        return self._database.trouble

    def close(self) -> None:
        self._database.close()

    def look(self) -> Look:
        """Which sessions there are. Lists the directory only if it changed since anybody last looked."""
        return self._database.ask(lambda db: Look(sorted(self._unfinished(db)[0]), {})) or self._without()

    def ids(self) -> set[str]:
        """Every session, straight from the directory."""
        try:
            return {name for name in os.listdir(self._sessions) if homes.is_id(name)}
        except FileNotFoundError:
            return set()

    def unfinished(self) -> list[str]:
        return self.look().unfinished

    def finals(self) -> set[str]:
        """Ids of those that can no longer change and whose record is here."""
        return set(self.query().records)

    def note(self, rows: Iterable[Row]) -> None:
        """Remember what was read from directories. Nothing is written where nothing is new."""
        values = [row.values() for row in rows]
        for start in range(0, len(values), _ROWS_AT_ONCE):
            self._upsert(values[start : start + _ROWS_AT_ONCE])

    def prefix(self, text: str) -> list[str]:
        """Every id that begins with `text`."""
        if text.strip(homes.ID_ALPHABET):
            return []
        # "{" comes right after "z", the last character an id can have.
        unfinished, finals = self._known("id >= ? AND id < ?", text, text + "{")
        return sorted(id for id in (*unfinished, *finals) if id.startswith(text))

    def by_name(self, name: str) -> list[str]:
        """Ids of the sessions with that name, newest first."""
        return self._newest("name = ?", _plain(name), fits=lambda row: row.name == name)

    def by_pid(self, pid: int) -> list[str]:
        """Ids of the sessions whose command has or had that pid, newest first."""
        if not 0 < pid < _PID_LIMIT:
            return []
        return self._newest("pid = ?", pid, fits=lambda row: row.pid == pid)

    def last(self) -> str | None:
        """The id of the session that was made last."""
        latest = "created_at = (SELECT max(created_at) FROM sessions WHERE final = 1)"
        return next(iter(self._newest(latest, fits=lambda row: True)), None)

    def query(
        self,
        *,
        owner: str | None = None,
        name: str | None = None,
        kind: str | None = None,
        status: str | None = None,
        labels: Mapping[str, str] | None = None,
        search: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int | None = None,
    ) -> Look:
        """A look with the records of finished sessions, newest first. `since` and `until` bound `created_at`.

        What is in `unfinished` fits no filter yet: it has to be read.
        """
        wanted = {"owner": owner, "name": name, "kind": kind, "status": status}
        exact = {column: _plain(text) for column, text in wanted.items() if text is not None}
        needle = (search or "").casefold()

        def fits(row: Row) -> bool:
            created_at = row.created_at or ""
            return (
                all(row.labels.get(key) == value for key, value in (labels or {}).items())
                and (since is None or created_at >= since)
                and (until is None or created_at <= until)
                and (not needle or needle in _searched(row))
            )

        def ask(db: sqlite3.Connection) -> Look:
            unfinished, listed = self._unfinished(db)
            where = " AND ".join(("final = 1", *(f"{column} = ?" for column in exact)))
            sql = f"{_SELECT} WHERE {where} ORDER BY created_at DESC, id DESC"
            found: dict[str, dict[str, Any]] = {}
            for columns in db.execute(sql, tuple(exact.values())):
                if limit is not None and len(found) >= limit:
                    break
                row = _row(columns)
                if listed is not None and row.id not in listed:
                    continue
                if row.record is None:
                    unfinished.add(row.id)
                elif fits(row):
                    found[row.id] = row.record
            return Look(sorted(unfinished), found)

        return self._database.ask(ask) or self._without()

    def removed(self, id: str) -> bool:
        """Whether a session of that id was removed, as far as anybody remembers."""
        if not homes.is_id(id) or self._exists(id):
            return False
        sql = "SELECT 1 FROM removed WHERE id = ?"
        return self._database.ask(lambda db: db.execute(sql, (id,)).fetchone()) is not None

    def mark_removed(self, ids: Sequence[str]) -> None:
        """Remember that these directories were removed on purpose. Called after they are gone."""
        at = clock.now_text()

        def change(db: sqlite3.Connection) -> None:
            gone = [(id,) for id in ids if not self._exists(id)]
            db.executemany("DELETE FROM sessions WHERE id = ?", gone)
            db.executemany("INSERT OR REPLACE INTO removed (id, at) VALUES (?, ?)", [(id, at) for id in ids])
            oldest = "DELETE FROM removed WHERE rowid <= (SELECT max(rowid) FROM removed) - ?"
            db.execute(oldest, (_REMOVED_KEPT,))

        if ids:
            self._database.ask(lambda db: self._database.write(db, change))

    def forget_removed(self) -> int:
        """Forget removals of what is there after all (it came out of a backup); how many there were."""
        forgotten: list[str] = []

        def change(db: sqlite3.Connection) -> None:
            forgotten[:] = [id for (id,) in db.execute("SELECT id FROM removed") if self._exists(id)]
            db.executemany("DELETE FROM removed WHERE id = ?", [(id,) for id in forgotten])

        return len(forgotten) if self._database.ask(lambda db: self._database.write(db, change)) else 0

    def rebuild(self) -> int:
        """Read every directory again; how many sessions were readable."""

        def change(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM sessions")
            put(db, "generation", new_generation())
            put(db, "seen", "")

        self._database.ask(lambda db: self._database.write(db, change))
        return len(self._read(self.ids()))

    def generation(self) -> str | None:
        """Another one after every rebuild: what was remembered under the old one means nothing now."""
        return self._database.ask(lambda db: get(db, "generation"))

    def _newest(self, where: str, *values: object, fits: Callable[[Row], bool]) -> list[str]:
        """Unfinished sessions are read, for their name may have changed; finished ones are looked up."""
        unfinished, found = self._known(where, *values)
        found.update((row.id, row.created_at or "") for row in self._read(unfinished) if fits(row))
        return [id for _, id in sorted(((at, id) for id, at in found.items()), reverse=True)]

    def _known(self, where: str, *values: object) -> tuple[set[str], dict[str, str]]:
        """Unfinished ids, and the final ones that fit, each with the time it was made."""

        def ask(db: sqlite3.Connection) -> tuple[set[str], dict[str, str]]:
            unfinished, listed = self._unfinished(db)
            rows = db.execute(f"{_FINAL_TIMES} AND {where}", values)
            return unfinished, {id: at or "" for id, at in rows if listed is None or id in listed}

        return self._database.ask(ask) or (self.ids(), {})

    def _without(self) -> Look:
        """Without an index nothing is known to be final."""
        return Look(sorted(self.ids()), {})

    def _read(self, ids: Iterable[str]) -> list[Row]:
        rows = [row for row in map(self._reader, sorted(ids)) if row is not None]
        self.note(rows)
        return rows

    def _exists(self, id: str) -> bool:
        return homes.is_id(id) and os.path.isdir(os.path.join(self._sessions, id))

    def _unfinished(self, db: sqlite3.Connection) -> tuple[set[str], set[str] | None]:
        """Ids that are not final, and what the directory lists where it had to be listed.

        Leaves a read transaction open: rows that another host moves meanwhile are seen in one place, not in none.
        """
        stamp, settled = self._stamp()
        db.execute("BEGIN")
        if stamp and get(db, "seen") == stamp:
            return _ids(db, _UNFINISHED), None
        listed = self.ids()
        behind = settled or _ids(db, _ALL) != listed
        db.execute("ROLLBACK")
        if behind:
            self._reconcile(db, listed, stamp if settled else "")
        db.execute("BEGIN")
        return listed - _ids(db, _FINAL), listed

    def _stamp(self) -> tuple[str, bool]:
        """What changes whenever the directory does, and whether that change is long enough ago to be the last."""
        try:
            status = os.stat(self._sessions)
        except FileNotFoundError:
            return "", False
        stamp = f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}"
        return stamp, time.time_ns() - status.st_mtime_ns > _RACY_NS

    def _reconcile(self, db: sqlite3.Connection, listed: set[str], stamp: str) -> None:
        """Bring the rows in line with a listing that was made after the stamp."""

        def change(db: sqlite3.Connection) -> None:
            # The rows are read after the listing, inside the transaction, so that what another host noted
            # meanwhile about a directory that is gone goes too. A directory that came meanwhile moved the
            # stamp: the next look lists again.
            known = _ids(db, _ALL)
            db.executemany("DELETE FROM sessions WHERE id = ?", [(id,) for id in known - listed])
            db.executemany("INSERT INTO sessions (id) VALUES (?)", [(id,) for id in listed - known])
            put(db, "seen", stamp)

        self._database.write(db, change)

    def _upsert(self, rows: list[tuple[object, ...]]) -> None:
        def ask(db: sqlite3.Connection) -> bool:
            by_id = _SELECT + " WHERE id = ?"
            new = [values for values in rows if db.execute(by_id, values[:1]).fetchone() != values]

            def change(db: sqlite3.Connection) -> None:
                # A row for a directory that was removed meanwhile would bring the session back.
                db.executemany(_UPSERT, [values for values in new if self._exists(str(values[0]))])

            return not new or self._database.write(db, change)

        self._database.ask(ask)


def _ids(db: sqlite3.Connection, sql: str) -> set[str]:
    return {id for (id,) in db.execute(sql)}


def _row(columns: tuple[Any, ...]) -> Row:
    known = dict(zip(_COLUMNS, columns, strict=True))
    known.update(labels=_object(known["labels"]), final=bool(known["final"]), record=_object(known["record"]))
    return Row(**known)


def _object(text: object) -> dict[str, Any] | None:
    try:
        value = jsontext.read(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _searched(row: Row) -> str:
    labels = (f"{key}={value}" for key, value in row.labels.items())
    return "\n".join(filter(None, (row.id, row.name, row.command, row.cwd, *labels))).casefold()


def _plain(text: str | None) -> str | None:
    """SQLite has no room for the surrogates that stand for undecodable bytes; the record keeps them."""
    if text is None or text.isascii():
        return text
    return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
