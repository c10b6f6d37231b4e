"""What runs, for `hold top`: the sessions as they are, with what each costs, said last and has to tell."""

from __future__ import annotations

from ..host.log import Log
from ..runner.lines import tail
from .tables import GREEN, RED, YELLOW, state_words
from .usage import Meter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..home import Home
    from ..model import Snapshot
    from .usage import Usage

# The last line of a session, and how far back it is looked for.
_LINE_CHARACTERS = 500
_LINE_BYTES = 4096


class Row:
    """A session in the list. What is None is not known, or was not looked for."""

    __slots__ = ("last", "shot", "signals", "usage")

    def __init__(
        self, shot: Snapshot, *, usage: Usage | None = None, last: str = "", signals: int | None = None
    ) -> None:
        self.shot = shot
        self.usage = usage
        self.last = last
        self.signals = signals

    @property
    def id(self) -> str:
        return self.shot.id

    @property
    def name(self) -> str:
        return self.shot.name or self.shot.description

    @property
    def status(self) -> tuple[str, str]:
        """In one or two words, with their colour: what somebody has to look after comes first."""
        shot = self.shot
        if shot.exit is None and not shot.stopping and shot.state == "running":
            if shot.needs_input:
                return "needs input", YELLOW
            if shot.health == "unhealthy":
                return "unhealthy", RED
            if shot.attempt > 1:
                return f"running, try {shot.attempt}", GREEN
        return state_words(shot)

    def to_json(self) -> dict[str, Any]:
        usage = self.usage
        return {
            **self.shot.to_json(),
            "cpu_percent": None if usage is None or usage.cpu is None else round(usage.cpu, 1),
            "memory_bytes": None if usage is None else usage.memory,
            "processes": None if usage is None else usage.processes,
            "last_line": self.last,
            "pending_signals": self.signals,
        }


class Details:
    """What the snapshots do not have. Remembers, so that a look costs only what changed since the last."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._meters: dict[str, Meter] = {}
        self._lines: dict[str, tuple[object, str]] = {}

    def fill(self, rows: Iterable[Row]) -> None:
        for row in rows:
            row.usage = self._meters.setdefault(row.id, Meter()).read(row.shot)
            row.last = self._last_line(row.shot)

    def forget_others(self, rows: Iterable[Row]) -> None:
        listed = {row.id for row in rows}
        self._meters = {id: meter for id, meter in self._meters.items() if id in listed}
        self._lines = {id: line for id, line in self._lines.items() if id in listed}

    def _last_line(self, shot: Snapshot) -> str:
        if shot.metadata.get("alt_screen"):
            return f"(full screen) {shot.metadata.get('title') or ''}".rstrip()
        printed = (shot.cursor, shot.last_output_at)
        known = self._lines.get(shot.id)
        if known is None or known[0] != printed:
            known = self._lines[shot.id] = printed, last_line(Log(self._home.session(shot.id)), shot.ends)
        return known[1] or str(shot.metadata.get("phase") or "")


def last_line(log: Log, ends: dict[str, int]) -> str:
    """The last line with anything in it, an unfinished one included, without what a terminal would obey."""
    try:
        if "tty" in ends:
            # Not as the terminal shows it, which would cost a drawing: what was printed last, as lines.
            at = max(0, ends["tty"] - _LINE_BYTES)
            text = tail(b"".join(log.raw("tty", at)), at, lines=5, chars=_LINE_CHARACTERS)["text"]
        else:
            text = log.tail(5, limit=_LINE_BYTES).text
    except OSError:
        return ""  # removed while we looked
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "")[:_LINE_CHARACTERS]
