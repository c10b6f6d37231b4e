"""How far an agent has seen each of its sessions, and which ends were reported to it. It survives hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import BadCursor
from ...model import format_cursor
from ...sessions.log import parse_cursor
from ...sessions.segments import STREAMS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ...index import Kept
    from ...model import Snapshot


_TOPIC = "seen"


class Seen:
    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def cursor(self, id: str) -> str | None:
        """None: nothing was shown yet."""
        offsets = _offsets(self._kept.get(id, _TOPIC))
        return format_cursor(offsets) if offsets else None

    def is_reported(self, id: str) -> bool:
        return (self._kept.get(id, _TOPIC) or {}).get("told") is True

    def reported_upto(self, id: str) -> int:
        """The number of the last signal of a running session that an answer reported."""
        return int((self._kept.get(id, _TOPIC) or {}).get("upto") or 0)

    def move(self, id: str, cursor: str | None, *, reported: bool = False, upto: int = 0) -> None:
        """Forward only: two calls at once may end in any order. `reported`: an answer reported its end."""
        known = self._kept.get(id, _TOPIC) or {}
        before, after = _offsets(known), _offsets({"at": cursor})
        furthest = {name: max(before.get(name, 0), after.get(name, 0)) for name in STREAMS if name in {*before, *after}}
        changed = {
            "at": format_cursor(furthest),
            "told": reported or known.get("told") is True,
            "upto": max(upto, known.get("upto") or 0),
        }
        if changed != known:
            self._kept.put(id, _TOPIC, changed)

    def all_shown(self, id: str, cursor: str) -> None:
        """The answer of the call that started it shows its end and all of its output."""
        self._kept.put(id, _TOPIC, {"at": cursor, "told": True, "upto": 0})

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
