"""What the index knows of one session, and how that stands in its table."""

from __future__ import annotations

from ..runner import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

PID_LIMIT = 1 << 32

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
SELECT = """SELECT id, name, owner, kind, command, cwd, labels, created_at, ended_at, status, pid, final, record
FROM sessions"""


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
        pid = self.pid if self.pid is not None and 0 < self.pid < PID_LIMIT else None
        record = None if self.record is None else jsontext.write(self.record)
        known = (*map(plain, texts), jsontext.write(self.labels), *map(plain, times))
        return (self.id, *known, pid, int(self.final), record)


def from_columns(columns: tuple[Any, ...]) -> Row:
    known = dict(zip(_COLUMNS, columns, strict=True))
    known.update(labels=_object(known["labels"]), final=bool(known["final"]), record=_object(known["record"]))
    return Row(**known)


def _object(text: object) -> dict[str, Any] | None:
    try:
        value = jsontext.read(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def searched(row: Row) -> str:
    labels = (f"{key}={value}" for key, value in row.labels.items())
    return "\n".join(filter(None, (row.id, row.name, row.command, row.cwd, *labels))).casefold()


def plain(text: str | None) -> str | None:
    """SQLite has no room for the surrogates that stand for undecodable bytes; the record keeps them."""
    if text is None or text.isascii():
        return text
    return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
