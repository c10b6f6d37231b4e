"""The index: find sessions fast. A cache of the session directories, written by hosts alone.

Directories are the truth. Every method answers whatever became of `index.db`, from the directories where it
must; `trouble` then says why.
"""

from __future__ import annotations

import os
import time

from .. import home as homes
from ..core import clock, failpoints, jsontext
from .database import Database, get, new_generation, put

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
    from typing import Any, TypeVar

    from ..home import Home


# What the index knows of one session, and its row in the table.


PID_LIMIT = 1 << 32

# Columns that were only filtered by (kind, command, status...) are in the record; hosts up to 0.2 still write them.
_COLUMNS = ("id", "name", "owner", "created_at", "pid", "final", "record")
_SELECT = "SELECT id, name, owner, created_at, pid, final, record FROM sessions"


class Row:
    """What the index knows of one session. `record` is its snapshot; only a `final` row has one."""

    __slots__ = _COLUMNS

    def __init__(
        self,
        id: str,
        *,
        name: str | None = None,
        owner: str | None = None,
        created_at: str | None = None,
        pid: int | None = None,
        final: bool = False,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        self.id, self.name, self.owner, self.created_at, self.pid = id, name, owner, created_at, pid
        self.final = final and record is not None
        self.record = dict(record) if final and record is not None else None

    def __repr__(self) -> str:
        return f"<Row {self.id}{' final' if self.final else ''}>"

    def values(self) -> tuple[object, ...]:
        pid = self.pid if self.pid is not None and 0 < self.pid < PID_LIMIT else None
        record = None if self.record is None else jsontext.write(self.record)
        return (self.id, *map(plain, (self.name, self.owner, self.created_at)), pid, int(self.final), record)


def _object(text: object) -> dict[str, Any] | None:
    try:
        value = jsontext.read(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def plain(text: str | None) -> str | None:
    """Replace the surrogates of undecodable bytes, which SQLite cannot store; the record keeps them."""
    if text is None or text.isascii():
        return text
    return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)


if TYPE_CHECKING:
    T = TypeVar("T")

__all__ = ["Index", "Look", "Row"]

# What changed a moment ago may change again without a new time stamp: the kernel's clock is coarse.
_RACY_NS = 50_000_000
_REMOVED_KEPT = 10_000
# Few enough for one transaction to stay well below the time that others wait.
_ROWS_AT_ONCE = 100
# So many directories that no host has read yet mean a lost index: one host reads them, the others wait for it.
_MANY = 50
# Short enough that a stopped host costs the others less than three seconds.
_WAIT_FOR_REBUILD_S = 2.5
_WAIT_STEP_S = 0.02

_UPSERT = """INSERT OR REPLACE INTO sessions (id, name, owner, created_at, pid, final, record)
VALUES (?, ?, ?, ?, ?, ?, ?)"""
# As one text: thousands of rows take five times as long.
_ALL = "SELECT group_concat(id) FROM sessions"
_UNFINISHED = "SELECT id FROM sessions WHERE final = 0"
_UNREAD = "SELECT id FROM sessions WHERE final = 0 AND created_at IS NULL"
_FINAL = "SELECT id FROM sessions WHERE final = 1"
_RECORDS = """SELECT id, record FROM sessions WHERE final = 1 AND (? IS NULL OR owner = ?)
ORDER BY created_at DESC, id DESC"""
_FINAL_TIMES = "SELECT id, created_at FROM sessions WHERE final = 1"


class Look:
    """Which sessions there are: those that may still change, and, from a query, the records of others."""

    __slots__ = ("records", "unfinished")

    def __init__(self, unfinished: list[str], records: dict[str, dict[str, Any]]) -> None:
        self.unfinished = unfinished
        self.records = records


class Index:
    """`reader` reads one session directory into a Row; None when there is nothing readable. `finish` takes the rest of
    a session's signals in, inside a transaction, and says whether that was all: before, it is not final."""

    def __init__(
        self,
        home: Home,
        reader: Callable[[str], Row | None],
        finish: Callable[[sqlite3.Connection, str], bool] | None = None,
    ) -> None:
        self.home = home
        self.database = Database(home)
        self._sessions = home.sessions
        self._reader = reader
        self._finish = finish

    @property
    def trouble(self) -> str | None:
        """What is wrong with the index, in a sentence for people; None when nothing is."""
        return self.database.trouble

    def close(self) -> None:
        self.database.close()

    def look(self) -> Look:
        """Which sessions there are. Lists the directory only if it changed since the last look of any host."""
        return self._ask(lambda db: Look(sorted(self._unfinished(db)[0]), {}), _unfinished_of) or self._without()

    def ids(self) -> set[str]:
        """Every session, straight from the directory."""
        return {name for name in self._names() if homes.is_id(name)}

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._sessions)
        except FileNotFoundError:
            return []

    def unfinished(self) -> list[str]:
        return self.look().unfinished

    def row(self, id: str) -> Row | None:
        """A session as its directory says, not noted yet."""
        return self._reader(id)

    def note(self, rows: Iterable[Row]) -> list[str]:
        """Remember what was read from directories. Nothing is written where nothing is new. Sessions whose signals
        have not all been entered stay unfinished; returns their ids."""
        values = [row.values() for row in rows]
        held_up: list[str] = []
        for start in range(0, len(values), _ROWS_AT_ONCE):
            held_up += self._upsert(values[start : start + _ROWS_AT_ONCE])
        return held_up

    def prefix(self, text: str) -> list[str]:
        """Every id that begins with `text`."""
        if text.strip(homes.ID_ALPHABET):
            return []
        # "{" comes right after "z", the last character an id can have.
        unfinished, finals = self._known("id >= ? AND id < ?", text, text + "{")
        return sorted(id for id in (*unfinished, *finals) if id.startswith(text))

    def by_name(self, name: str) -> list[str]:
        """Ids of the sessions with that name, newest first."""
        return self._newest("name = ?", plain(name), fits=lambda row: row.name == name)

    def by_pid(self, pid: int) -> list[str]:
        """Ids of the sessions whose command has or had that pid, newest first."""
        if not 0 < pid < PID_LIMIT:
            return []
        return self._newest("pid = ?", pid, fits=lambda row: row.pid == pid)

    def last(self) -> str | None:
        """The id of the session that was made last."""
        latest = "created_at = (SELECT max(created_at) FROM sessions WHERE final = 1)"
        return next(iter(self._newest(latest, fits=lambda row: True)), None)

    def owned(self, owner: str) -> list[str]:
        """Ids of the sessions of one owner, newest first."""
        owner = plain(owner) or ""
        return self._newest("owner = ?", owner, fits=lambda row: row.owner == owner)

    def query(self, *, owner: str | None = None, limit: int | None = None) -> Look:
        """A look with the records of finished sessions, newest first; what is in `unfinished` has to be read."""

        def ask(db: sqlite3.Connection) -> Look:
            unfinished, names = self._unfinished(db)
            listed = None if names is None else set(names)
            found: dict[str, dict[str, Any]] = {}
            for id, text in db.execute(_RECORDS, (plain(owner),) * 2):
                if limit is not None and len(found) >= limit:
                    break
                if listed is not None and id not in listed:
                    continue
                record = _object(text)
                if record is None:
                    unfinished.add(id)
                else:
                    found[id] = record
            return Look(sorted(unfinished), found)

        return self._ask(ask, _unfinished_of) or self._without()

    def removed(self, id: str) -> bool:
        """Whether a session of that id was removed, as far as the index remembers."""
        if not homes.is_id(id) or self._exists(id):
            return False
        sql = "SELECT 1 FROM removed WHERE id = ?"
        return self.database.ask(lambda db: db.execute(sql, (id,)).fetchone()) is not None

    def removed_since(self, at: str) -> list[str]:
        """Sessions that were removed at that time or later, as far as the index remembers."""
        sql = "SELECT id FROM removed WHERE at >= ?"
        return self.database.ask(lambda db: [id for (id,) in db.execute(sql, (at,))]) or []

    def mark_removed(self, ids: Sequence[str]) -> None:
        """Remember that these directories were removed on purpose. Called after they are gone."""
        at = clock.now_text()

        def change(db: sqlite3.Connection) -> None:
            gone = [(id,) for id in ids if not self._exists(id)]
            db.executemany("DELETE FROM sessions WHERE id = ?", gone)
            _forget(db, [id for (id,) in gone])
            db.executemany("INSERT OR REPLACE INTO removed (id, at) VALUES (?, ?)", [(id, at) for id in ids])
            oldest = "DELETE FROM removed WHERE rowid <= (SELECT max(rowid) FROM removed) - ?"
            db.execute(oldest, (_REMOVED_KEPT,))

        if ids:
            self.database.try_change(change)

    def rebuild(self) -> int:
        """Read every directory again; how many sessions were readable."""

        def change(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM sessions")
            # Signals are read again too. Which were settled is known here alone, and stays.
            db.execute("DELETE FROM signal_files")
            from .queues import sessions_without_directory

            _forget(db, sessions_without_directory(db, self.ids()))
            put(db, "generation", new_generation())
            put(db, "seen", "")

        self.database.try_change(change)
        return len(self._read(self.ids()))

    def generation(self) -> str | None:
        """Another one after every rebuild: what was remembered under the old one means nothing now."""
        return self.database.ask(lambda db: get(db, "generation"))

    def _newest(self, where: str, *values: object, fits: Callable[[Row], bool]) -> list[str]:
        """Unfinished sessions are read, for their name may have changed; finished ones are looked up."""
        unfinished, found = self._known(where, *values)
        found.update((row.id, row.created_at or "") for row in self._read(unfinished) if fits(row))
        return [id for _, id in sorted(((at, id) for id, at in found.items()), reverse=True)]

    def _known(self, where: str, *values: object) -> tuple[set[str], dict[str, str]]:
        """Unfinished ids, and the final ones that fit, each with the time it was made."""

        def ask(db: sqlite3.Connection) -> tuple[set[str], dict[str, str]]:
            unfinished, names = self._unfinished(db)
            listed = None if names is None else set(names)
            rows = db.execute(f"{_FINAL_TIMES} AND {where}", values)
            return unfinished, {id: at or "" for id, at in rows if listed is None or id in listed}

        return self._ask(ask, lambda answer: answer[0]) or (self.ids(), {})

    def _ask(self, question: Callable[[sqlite3.Connection], T], unfinished: Callable[[T], Sized]) -> T | None:
        """The answer. If many sessions are unfinished because the index was lost, the directories are read first."""
        answer = self.database.ask(question)
        if answer is not None and len(unfinished(answer)) > _MANY and self._read_unread():
            answer = self.database.ask(question)
        return answer

    def _read_unread(self) -> bool:
        """Read the directories that no host has read yet, or wait a while for the host that does. False: few are left,
        and each host reads them by itself."""
        if len(self._unread()) <= _MANY:
            return False
        lock = self._lock_rebuild()
        try:
            unread = self._unread()
            if len(unread) <= _MANY:
                return True
            if lock is not None:
                failpoints.hit("index.rebuild")
            for start in range(0, len(unread), _ROWS_AT_ONCE):
                self._read(unread[start : start + _ROWS_AT_ONCE])
        finally:
            if lock is not None:
                os.close(lock)
        return True

    def _unread(self) -> list[str]:
        return self.database.ask(lambda db: sorted(_ids(db, _UNREAD))) or []

    def _lock_rebuild(self) -> int | None:
        """The right to rebuild a lost index, within a bounded wait. None: each host reads the directories itself."""
        import fcntl

        try:
            fd = os.open(
                os.path.join(self.home.locks, "index"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        except OSError:
            return None
        until = time.monotonic() + _WAIT_FOR_REBUILD_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > until:
                    os.close(fd)
                    return None
                # Like SQLite's own wait for a lock: there is no descriptor to wait on.
                time.sleep(_WAIT_STEP_S)
            else:
                return fd

    def _without(self) -> Look:
        """Without an index nothing is known to be final."""
        return Look(sorted(self.ids()), {})

    def _read(self, ids: Iterable[str]) -> list[Row]:
        rows = [row for row in map(self._reader, sorted(ids)) if row is not None]
        self.note(rows)
        return rows

    def _exists(self, id: str) -> bool:
        return homes.is_id(id) and os.path.isdir(os.path.join(self._sessions, id))

    def _unfinished(self, db: sqlite3.Connection) -> tuple[set[str], list[str] | None]:
        """Ids that are not final, and what the directory lists where it had to be listed.

        Leaves a read transaction open: rows that another host moves meanwhile are seen in one place.
        """
        stamp, settled = self._stamp()
        db.execute("BEGIN")
        if stamp and get(db, "seen") == stamp:
            return _ids(db, _UNFINISHED), None
        names = self._names()
        known, version = _all(db), _version(db)
        # Of thousands few are new: only those are looked at closely.
        others = [name for name in names if name not in known]
        came = set(filter(homes.is_id, others))
        gone = known.difference(names) if len(names) - len(others) != len(known) else set[str]()
        db.execute("ROLLBACK")
        noted = True
        if settled or came or gone:
            noted = self._reconcile(db, names, came, gone, stamp if settled else "", version)
        db.execute("BEGIN")
        if noted and _version(db) == version:
            return _ids(db, _UNFINISHED), names
        # A host with an older listing may just have removed rows: only final sessions need one.
        return set(filter(homes.is_id, names)) - _ids(db, _FINAL), names

    def _stamp(self) -> tuple[str, bool]:
        """What changes whenever the directory does, and whether that change is long enough ago to be the last."""
        try:
            status = os.stat(self._sessions)
        except FileNotFoundError:
            return "", False
        stamp = f"{status.st_dev}:{status.st_ino}:{status.st_mtime_ns}"
        return stamp, time.time_ns() - status.st_mtime_ns > _RACY_NS

    def _reconcile(
        self, db: sqlite3.Connection, names: list[str], came: set[str], gone: set[str], stamp: str, version: int
    ) -> bool:
        """Bring the rows in line with a listing that was made after the stamp. False: not now."""

        def change(db: sqlite3.Connection) -> None:
            new, old = came, gone
            if _version(db) != version:
                # What another host noted meanwhile about a directory that is gone goes too. A directory that came
                # meanwhile moved the stamp: the next look lists again.
                known, listed = _all(db), set(filter(homes.is_id, names))
                new, old = listed - known, known - listed
            db.executemany("DELETE FROM sessions WHERE id = ?", [(id,) for id in old])
            _forget(db, old)
            db.executemany("INSERT INTO sessions (id) VALUES (?)", [(id,) for id in new])
            put(db, "seen", stamp)

        return self.database.write(db, change)

    def _upsert(self, rows: list[tuple[object, ...]]) -> list[str]:
        held_up: list[str] = []

        def ask(db: sqlite3.Connection) -> bool:
            by_id = _SELECT + " WHERE id = ?"
            new = [values for values in rows if db.execute(by_id, values[:1]).fetchone() != values]

            def change(db: sqlite3.Connection) -> None:
                # A row for a directory that was removed meanwhile would bring the session back.
                held_up.clear()
                there = [values for values in new if self._exists(str(values[0]))]
                db.executemany(_UPSERT, [self._finished(db, values, held_up) for values in there])

            return not new or self.database.write(db, change)

        self.database.ask(ask)
        return held_up

    def _finished(self, db: sqlite3.Connection, values: tuple[object, ...], held_up: list[str]) -> tuple[object, ...]:
        """The row as it may be noted: what is final is never looked at again, so nothing may be left to look for."""
        id, *known, final, _record = values
        if not final or self._finish is None or self._finish(db, str(id)):
            return values
        held_up.append(str(id))
        return (id, *known, 0, None)


def _unfinished_of(look: Look) -> list[str]:
    return look.unfinished


def _ids(db: sqlite3.Connection, sql: str) -> set[str]:
    return {id for (id,) in db.execute(sql)}


def _forget(db: sqlite3.Connection, sessions: Iterable[str]) -> None:
    gone = list(sessions)
    if gone:
        from . import queues

        queues.forget(db, gone)
        forget_kept(db, gone)


def _all(db: sqlite3.Connection) -> set[str]:
    (text,) = db.execute(_ALL).fetchone()
    return set(text.split(",")) if text else set()


def _version(db: sqlite3.Connection) -> int:
    """Another number whenever another connection has written since."""
    (version,) = db.execute("PRAGMA data_version").fetchone()
    return int(version)


# What a reader keeps about sessions from one call to the next, such as how far it has read.
#
# It survives hosts, and is lost with the index. If the index cannot be written, it lasts as long as this host.


_PUT = "INSERT OR REPLACE INTO kept (reader, session, topic, value) VALUES (?, ?, ?, ?)"
_GET = "SELECT value FROM kept WHERE reader = ? AND session = ? AND topic = ?"
_ALL_KEPT = "SELECT session, value FROM kept WHERE reader = ? AND topic = ?"
_DROP = "DELETE FROM kept WHERE reader = ? AND session = ? AND topic = ?"


class Kept:
    def __init__(self, index: Index, reader: str) -> None:
        self._index = index
        self.reader = reader
        # What could not be written to the index: newer than what is there.
        self._here: dict[tuple[str, str], Any] = {}

    def __repr__(self) -> str:
        return f"<Kept by {self.reader}>"

    def get(self, session: str, topic: str) -> Any:
        """None where nothing is kept."""
        if (session, topic) in self._here:
            return self._here[session, topic]
        row = self._index.database.ask(lambda db: db.execute(_GET, (self.reader, session, topic)).fetchone())
        return None if row is None else jsontext.read(row[0])

    def all(self, topic: str) -> dict[str, Any]:
        """By session."""
        rows = self._index.database.ask(lambda db: db.execute(_ALL_KEPT, (self.reader, topic)).fetchall()) or []
        found = {session: jsontext.read(value) for session, value in rows}
        found.update((session, value) for (session, each), value in self._here.items() if each == topic)
        return {session: value for session, value in found.items() if value is not None}

    def put(self, session: str, topic: str, value: Any) -> None:
        """None forgets."""

        def change(db: sqlite3.Connection) -> None:
            if value is None:
                db.execute(_DROP, (self.reader, session, topic))
            else:
                db.execute(_PUT, (self.reader, session, topic, jsontext.write(value)))

        if self._index.database.try_change(change):
            self._here.pop((session, topic), None)
        else:
            self._here[session, topic] = value


def forget_kept(db: sqlite3.Connection, sessions: list[str]) -> None:
    db.executemany("DELETE FROM kept WHERE session = ?", [(session,) for session in sessions])
