"""The file behind the index: made complete, opened when needed, replaced when damaged, never blocking for long.

Whatever is wrong with it (locked, damaged, read-only, swapped, of a later release), asking is answered or
declined within a bounded wait. `trouble` says what happened, for people.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from _thread import allocate_lock

from ..core import clock
from ..errors import IndexBusy

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from typing import TypeVar

    from ..home import Home


if TYPE_CHECKING:
    T = TypeVar("T")

# The nth step leads from schema n to n + 1. Steps only add, so that an older host still finds what it knows.
_STEPS = (
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY, name TEXT, owner TEXT, kind TEXT, command TEXT, cwd TEXT, labels TEXT,
        created_at TEXT, ended_at TEXT, status TEXT, pid INTEGER, final INTEGER NOT NULL DEFAULT 0,
        record TEXT
    );
    CREATE INDEX sessions_unfinished ON sessions (id) WHERE final = 0;
    CREATE INDEX sessions_name ON sessions (name);
    CREATE INDEX sessions_owner ON sessions (owner);
    CREATE INDEX sessions_pid ON sessions (pid);
    CREATE INDEX sessions_created ON sessions (created_at);
    CREATE TABLE removed (id TEXT PRIMARY KEY, at TEXT);
    """,
    # Signals: where each is in its session's file, how far files were read, which consumers have not settled it.
    """
    CREATE TABLE signals (
        pos INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, seq INTEGER NOT NULL, variant TEXT NOT NULL,
        kind TEXT, owner TEXT, at TEXT, file INTEGER NOT NULL, offset INTEGER NOT NULL, length INTEGER NOT NULL,
        replayed INTEGER NOT NULL DEFAULT 0, UNIQUE (session, seq)
    );
    CREATE INDEX signals_owner ON signals (owner);
    CREATE TABLE signal_files (
        session TEXT PRIMARY KEY, file INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,
        seq INTEGER NOT NULL DEFAULT 0, owner TEXT, ended INTEGER NOT NULL DEFAULT 0,
        replay INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID;
    CREATE TABLE consumers (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, filter TEXT NOT NULL, created_at TEXT,
        used_ns INTEGER NOT NULL, used_boot TEXT NOT NULL, used_up_ns INTEGER NOT NULL
    );
    CREATE TABLE pending (
        consumer INTEGER NOT NULL, pos INTEGER NOT NULL, deliveries INTEGER NOT NULL DEFAULT 0,
        releases INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0, clock TEXT,
        not_before INTEGER NOT NULL DEFAULT 0, parked INTEGER NOT NULL DEFAULT 0, why TEXT,
        holder INTEGER, claim INTEGER, PRIMARY KEY (consumer, pos)
    ) WITHOUT ROWID;
    CREATE INDEX pending_pos ON pending (pos);
    CREATE INDEX pending_holder ON pending (holder) WHERE holder IS NOT NULL;
    CREATE TABLE holders (
        id INTEGER PRIMARY KEY, consumer INTEGER NOT NULL, boot TEXT NOT NULL, pidns INTEGER NOT NULL,
        timens INTEGER NOT NULL, pid INTEGER NOT NULL, start INTEGER NOT NULL, until INTEGER NOT NULL,
        until_wall INTEGER NOT NULL, UNIQUE (consumer, boot, pidns, timens, pid, start)
    );
    CREATE TABLE unread (
        session TEXT NOT NULL, owner TEXT, signals INTEGER NOT NULL
    );
    """,
    # What a reader keeps about a session, such as how far it has read.
    """
    CREATE TABLE kept (
        reader TEXT NOT NULL, session TEXT NOT NULL, topic TEXT NOT NULL, value TEXT NOT NULL,
        PRIMARY KEY (reader, session, topic)
    ) WITHOUT ROWID;
    CREATE INDEX kept_session ON kept (session);
    """,
)
SCHEMA = len(_STEPS)

WAIT_S = 0.25
# After trouble the file is left alone for so long: many calls in a row do not add up their waits.
_RETRY_S = 1.0

# SQLite's primary codes that speak of the moment or of permissions, not of what the file contains:
# PERM, BUSY, LOCKED, NOMEM, READONLY, IOERR, FULL, CANTOPEN, PROTOCOL, AUTH.
_PASSING = frozenset({3, 5, 6, 7, 8, 10, 13, 14, 15, 23})
# The one IOERR that is about the content: the file was cut while it was open.
_IOERR_SHORT_READ = 522
_IOERR, _FULL = 10, 13
# What SQLite needs for the two files of its journal before it writes anything.
_JOURNAL_BYTES = 1 << 16

# SQLite forbids even closing a connection that came through a fork.
_inherited: list[sqlite3.Connection] = []


class Database:
    """One connection, opened at first use, shared by threads, left behind in a forked child."""

    def __init__(self, home: Home) -> None:
        self.trouble: str | None = None
        # Whether the trouble is a full disk.
        self.full = False
        self._home = home.path
        self._path = home.index
        self._lock = allocate_lock()
        self._pid = os.getpid()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._open_from = self._write_from = 0.0
        self._passing = False

    def close(self) -> None:
        if os.getpid() == self._pid:
            with self._lock:
                self._drop()

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    @property
    def idle(self) -> bool:
        """Whether no question is under way, not even further up the stack of this thread."""
        if not self._lock.acquire(blocking=False):
            return False
        self._lock.release()
        return True

    def ask(self, question: Callable[[sqlite3.Connection], T]) -> T | None:
        """The answer; None when there is no index to ask. A damaged file is replaced and asked once more.

        A transaction that the question leaves open was for reading one state of things, and is ended here.
        """
        import _sqlite3 as sqlite3

        if os.getpid() != self._pid:
            self._leave_to_parent()
        with self._lock:
            for last in (False, True):
                try:
                    db = self._connected()
                    if db is None:
                        return None
                    refused = self._write_from
                    try:
                        answer = question(db)
                    finally:
                        if db.in_transaction:
                            db.execute("ROLLBACK")
                except sqlite3.Error as error:
                    if not self._overcome(error) or last:
                        return None
                except OSError as error:
                    self._give_up(f"{self._path} cannot be used ({error})", full=error.errno == errno.ENOSPC)
                    return None
                else:
                    if self._passing and self._write_from == refused <= time.monotonic():
                        self._say(None)
                    return answer
        return None

    def read(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """The answer, of one state of the index whatever others write meanwhile. IndexBusy without an index."""

        def of_one_state(db: sqlite3.Connection) -> tuple[T]:
            db.execute("BEGIN")
            return (question(db),)

        answer = self.ask(of_one_state)
        if answer is None:
            raise IndexBusy(self._path, WAIT_S, full=self.full)
        return answer[0]

    def change(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """All of `change` or nothing. IndexBusy when it cannot be written now."""
        done: list[T] = []
        if not self.try_change(lambda db: done.append(change(db))):
            raise IndexBusy(self._path, WAIT_S, full=self.full)
        return done[-1]

    def try_change(self, change: Callable[[sqlite3.Connection], None]) -> bool:
        """All of `change` or nothing. False when it cannot be written now: the next look makes up for it."""
        return self.ask(lambda db: self.write(db, change)) is True

    def write(self, db: sqlite3.Connection, change: Callable[[sqlite3.Connection], None]) -> bool:
        """As `try_change`, inside a question."""
        if time.monotonic() < self._write_from:
            return False
        import _sqlite3 as sqlite3

        try:
            db.execute("BEGIN IMMEDIATE")
            try:
                change(db)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            if not _is_passing(error):
                raise
            self._write_from = time.monotonic() + _RETRY_S
            full = self._is_full(error)
            why = "the disk is full" if full else error
            text = f"{self._path} cannot be written now ({why}); the sessions are unharmed"
            self._say(text, passing=True, full=full)
            return False
        return True

    def _connected(self) -> sqlite3.Connection | None:
        file = _file_at(self._path)
        if self._connection is not None:
            if file == self._file:
                return self._connection
            self._drop()
        if time.monotonic() < self._open_from:
            return None
        if file is None:
            if not self._make():
                self._say(f"{self._path} is being made by another process", passing=True)
                return None
            file = _file_at(self._path)
        import _sqlite3 as sqlite3

        self._file = file
        self._connection = db = sqlite3.connect(
            _uri(self._path), uri=True, timeout=WAIT_S, isolation_level=None, check_same_thread=False
        )
        schema = _schema(db)
        if schema > SCHEMA:
            why = f"{self._path} was written by a later release (schema {schema}, known here: {SCHEMA})"
            self._give_up(f"{why} and is left as it is")
            return None
        db.execute("PRAGMA synchronous = NORMAL")
        if schema < SCHEMA and not self.write(db, _migrate):
            self._give_up(f"{self._path} could not be brought to schema {SCHEMA}")
            return None
        return db

    def _make(self) -> bool:
        """Put a complete, empty file in place, 0600 from birth. False while another host does."""
        import _sqlite3 as sqlite3

        guard = self._guard()
        if guard is None:
            return False
        try:
            if os.path.lexists(self._path):
                return True
            fresh = self._path + ".new"
            # Left by a crash, or when only the file was deleted: SQLite would replay an old journal.
            for path in (fresh, fresh + "-wal", fresh + "-shm", self._path + "-wal", self._path + "-shm"):
                if os.path.lexists(path):
                    os.unlink(path)
            os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            db = sqlite3.connect(_uri(fresh), uri=True, timeout=WAIT_S, isolation_level=None)
            try:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("BEGIN IMMEDIATE")
                _migrate(db)
                put(db, "generation", new_generation())
                db.execute("COMMIT")
            finally:
                db.close()
            os.rename(fresh, self._path)
        finally:
            os.close(guard)
        return True

    def _overcome(self, error: sqlite3.Error) -> bool:
        """True when a damaged file is out of the way, so that asking again makes sense."""
        file = self._file
        if _is_passing(error):
            full = self._is_full(error)
            self._give_up(f"{self._path} cannot be used now ({'the disk is full' if full else error})", full=full)
            return False
        self._drop()
        try:
            guard = self._guard()
            if guard is None:
                self._say(f"{self._path} is being repaired by another process", passing=True)
                return False
            try:
                # Another process may have replaced it already: then this is another file.
                if _file_at(self._path) == file:
                    self._set_aside(error)
            finally:
                os.close(guard)
        except OSError as refused:
            self._give_up(f"{self._path} is damaged ({error}) and cannot be replaced ({refused})")
            return False
        return True

    def _set_aside(self, error: sqlite3.Error) -> None:
        aside = f"{self._path}.broken-{clock.now_text().replace(':', '')}"
        os.rename(self._path, aside)
        for end in ("-wal", "-shm"):
            if os.path.lexists(self._path + end):
                os.rename(self._path + end, aside + end)
        self._say(f"{self._path} was damaged ({error}); it is now {aside}, and rebuilt from the sessions")

    def _guard(self) -> int | None:
        """The right to make or replace the file: a lock on the home directory, had at once or not at all."""
        fd = os.open(self._home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def _is_full(self, error: sqlite3.Error) -> bool:
        """SQLite says so of the file itself. Where it cannot extend its journal, it reports an I/O error."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code != _IOERR:
            return code == _FULL
        try:
            disk = os.statvfs(self._home)
        except OSError:
            return False  # the home is gone, or its disk
        return disk.f_bavail * disk.f_frsize < _JOURNAL_BYTES

    def _give_up(self, why: str, *, full: bool = False) -> None:
        self._drop()
        self._open_from = time.monotonic() + _RETRY_S
        self._say(f"{why}; sessions are read from their directories", passing=True, full=full)

    def _say(self, trouble: str | None, *, passing: bool = False, full: bool = False) -> None:
        self.trouble = trouble
        self.full = full
        self._passing = passing

    def _drop(self) -> None:
        db, self._connection = self._connection, None
        if db is not None:
            db.close()

    def _leave_to_parent(self) -> None:
        if self._connection is not None:
            _inherited.append(self._connection)
        self._connection = None
        # Another thread of the parent may have held it at the fork.
        self._lock = allocate_lock()
        self._pid = os.getpid()


def get(db: sqlite3.Connection, key: str) -> str | None:
    found = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if found is None or found[0] is None else str(found[0])


def put(db: sqlite3.Connection, key: str, value: str) -> None:
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))


def new_generation() -> str:
    return os.urandom(8).hex()


def _schema(db: sqlite3.Connection) -> int:
    import _sqlite3 as sqlite3

    text = get(db, "schema") or ""
    if not (text.isascii() and text.isdigit()):
        raise sqlite3.DatabaseError("it has no schema number")
    return int(text)


def _migrate(db: sqlite3.Connection) -> None:
    have = 0
    # Inside the transaction: another host may have been quicker.
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        have = _schema(db)
    for step in _STEPS[have:]:
        # Not executescript, which commits first.
        for statement in filter(str.strip, step.split(";")):
            db.execute(statement)
    put(db, "schema", str(max(have, SCHEMA)))


def _is_passing(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _PASSING and code != _IOERR_SHORT_READ


def _file_at(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _uri(path: str) -> str:
    # "rw" and not "rwc": the file is created in one place, with the right mode.
    for character in "%?#":
        path = path.replace(character, f"%{ord(character):02x}")
    return f"file:{path}?mode=rw"
