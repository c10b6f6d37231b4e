"""How far an agent has seen each of its sessions, and which ends it was told. It survives hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import BadCursor
from ...host.log import parse_cursor
from ...host.segments import STREAMS
from ...model import format_cursor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ...index.kept import Kept
    from ...model import Snapshot

_TOPIC = "seen"


class Seen:
    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def cursor(self, id: str) -> str | None:
        """None: nothing was shown yet."""
        offsets = _offsets(self._kept.get(id, _TOPIC))
        return format_cursor(offsets) if offsets else None

    def is_told(self, id: str) -> bool:
        return (self._kept.get(id, _TOPIC) or {}).get("told") is True

    def told_upto(self, id: str) -> int:
        """The number of the last signal of a running session that was told in an answer."""
        return int((self._kept.get(id, _TOPIC) or {}).get("upto") or 0)

    def move(self, id: str, cursor: str | None, *, told: bool = False, upto: int = 0) -> None:
        """Forward only: two calls at once may end in any order. `told`: its end was told."""
        known = self._kept.get(id, _TOPIC) or {}
        before, after = _offsets(known), _offsets({"at": cursor})
        furthest = {name: max(before.get(name, 0), after.get(name, 0)) for name in STREAMS if name in {*before, *after}}
        changed = {
            "at": format_cursor(furthest),
            "told": told or known.get("told") is True,
            "upto": max(upto, known.get("upto") or 0),
        }
        if changed != known:
            self._kept.put(id, _TOPIC, changed)

    def unread(self, session: Snapshot, known: Mapping[str, Any] | None = None) -> int:
        """Bytes that it printed and the agent was not shown. `known`: what is kept of all, asked for once."""
        at = _offsets((self.all() if known is None else known).get(session.id))
        return sum(max(0, end - at.get(stream, 0)) for stream, end in session.ends.items())

    def all(self) -> dict[str, Any]:
        return self._kept.all(_TOPIC)


def _offsets(known: Mapping[str, Any] | None) -> dict[str, int]:
    try:
        return parse_cursor((known or {}).get("at"), STREAMS)
    except BadCursor:
        return {}
