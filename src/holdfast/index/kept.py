"""What a reader keeps about sessions from one call to the next: how far it was shown, what it wants to see no more.

A courtesy: it survives hosts, and is lost with the index. Where that cannot be written it lasts as long as this host.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from typing import Any

    from . import Index

_PUT = "INSERT OR REPLACE INTO kept (reader, session, topic, value) VALUES (?, ?, ?, ?)"
_GET = "SELECT value FROM kept WHERE reader = ? AND session = ? AND topic = ?"
_ALL = "SELECT session, value FROM kept WHERE reader = ? AND topic = ?"
_DROP = "DELETE FROM kept WHERE reader = ? AND session = ? AND topic = ?"


class Kept:
    def __init__(self, index: Index, reader: str) -> None:
        self._index = index
        self.reader = reader
        # What the index did not take, or has not been asked for since: newer than what it says.
        self._here: dict[tuple[str, str], Any] = {}

    def __repr__(self) -> str:
        return f"<Kept by {self.reader}>"

    def get(self, session: str, topic: str) -> Any:
        """None where nothing is kept."""
        if (session, topic) in self._here:
            return self._here[session, topic]
        row = self._index.database.ask(lambda db: db.execute(_GET, (self.reader, session, topic)).fetchone())
        return None if row is None else json.loads(row[0])

    def all(self, topic: str) -> dict[str, Any]:
        """By session."""
        rows = self._index.database.ask(lambda db: db.execute(_ALL, (self.reader, topic)).fetchall()) or []
        found = {session: json.loads(value) for session, value in rows}
        found.update((session, value) for (session, each), value in self._here.items() if each == topic)
        return {session: value for session, value in found.items() if value is not None}

    def put(self, session: str, topic: str, value: Any) -> None:
        """None forgets."""

        def change(db: sqlite3.Connection) -> None:
            if value is None:
                db.execute(_DROP, (self.reader, session, topic))
            else:
                db.execute(_PUT, (self.reader, session, topic, json.dumps(value)))

        if self._index.database.ask(lambda db: self._index.database.write(db, change)):
            self._here.pop((session, topic), None)
        else:
            self._here[session, topic] = value


def forget(db: sqlite3.Connection, sessions: list[str]) -> None:
    db.executemany("DELETE FROM kept WHERE session = ?", [(session,) for session in sessions])
