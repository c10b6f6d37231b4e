"""What `hold top` shows of each session, as cells of a table."""

from __future__ import annotations

import os
import time

from ..core import processes
from ..core.vt.text import tail
from ..model.session import FINAL_STATES
from ..sessions.log import Log
from .output import DIM, YELLOW, age, cut, megabytes, printable, state_words, width

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..home import Home
    from ..model import Snapshot
    from ..sessions.api import Holdfast

    Cell = tuple[str, str]

# How many ended sessions are listed: each look reads them again.
_ENDED_MOST = 100
# How often to look for changes that no signal announces: output, CPU time, new sessions.
LOOK_S = 1.0


# The CPU time and memory of a session's processes, as the kernel counts them.


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Usage:
    """`cpu` in percent of one processor; `memory` is resident bytes, shared pages counted for each process."""

    __slots__ = ("cpu", "memory", "processes")

    def __init__(self, cpu: float | None, memory: int, processes: int) -> None:
        self.cpu = cpu
        self.memory = memory
        self.processes = processes


class Meter:
    """Measures CPU use since the last reading; the first reading covers the whole life of the processes."""

    def __init__(self) -> None:
        self._at = 0.0
        self._ticks: dict[tuple[int, int], int] = {}

    def read(self, shot: Snapshot) -> Usage | None:
        """None if it has no processes on this machine."""
        if shot.runner_pid is None or shot.state != "running" or shot.place != "local":
            return None
        now = time.monotonic()
        memory = 0
        ticks: dict[tuple[int, int], int] = {}
        oldest = None
        for process in processes.descendants(shot.runner_pid):
            found = _counted(process.pid)
            if found is not None:
                ticks[process.pid, process.start] = found[0]
                memory += found[1]
                oldest = process.start if oldest is None else min(oldest, process.start)
        used = sum(count - self._ticks.get(key, 0) for key, count in ticks.items())
        if self._at:
            elapsed = now - self._at
        else:
            elapsed = 0.0 if oldest is None else time.clock_gettime(time.CLOCK_BOOTTIME) - oldest / _TICKS_PER_S
        self._at, self._ticks = now, ticks
        cpu = 100 * used / _TICKS_PER_S / elapsed if elapsed > 0 else None
        return Usage(cpu, memory, len(ticks))


def _counted(pid: int) -> tuple[int, int] | None:
    """Ticks of processor time and resident bytes."""
    try:
        fields = processes.stat_fields(f"/proc/{pid}/stat")
    except OSError:
        return None
    return processes.cpu_ticks(fields), int(fields[21]) * _PAGE_BYTES


# The rows of the list.


# The longest last line, and how many bytes back it is searched.
_LINE_CHARACTERS = 500
_LINE_BYTES = 4096


class Row:
    """A session in the list. None means unknown."""

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
    def has_ended(self) -> bool:
        return self.shot.state in FINAL_STATES

    @property
    def status(self) -> tuple[str, str]:
        return state_words(self.shot)

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
    """Fills in what snapshots lack. Keeps the last line of a session until it prints again."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._meters: dict[str, Meter] = {}
        self._lines: dict[str, tuple[object, str]] = {}

    def fill(self, rows: Sequence[Row]) -> None:
        """All sessions that are listed now; the others are forgotten."""
        listed = {row.id for row in rows}
        self._meters = {id: meter for id, meter in self._meters.items() if id in listed}
        self._lines = {id: line for id, line in self._lines.items() if id in listed}
        for row in rows:
            row.usage = self._meters.setdefault(row.id, Meter()).read(row.shot)
            row.last = self._last_line(row.shot)

    def _last_line(self, shot: Snapshot) -> str:
        if shot.metadata.get("alt_screen"):
            return f"(full screen) {shot.metadata.get('title') or ''}".rstrip()
        printed = (shot.cursor, shot.last_output_at)
        known = self._lines.get(shot.id)
        if known is None or known[0] != printed:
            known = self._lines[shot.id] = printed, last_line(Log(self._home.session(shot.id)), shot.ends)
        return known[1] or str(shot.metadata.get("phase") or "")


def look(hf: Holdfast, details: Details, *, ended: bool = False) -> list[Row]:
    """Everything that runs now, and with `ended` what ended last, the newest first."""
    from ..errors import IndexBusy
    from ..sessions.driver import drive

    found = hf.daemons.list(include_terminal=ended)
    shots = [shot for shot in found if shot.state not in FINAL_STATES]
    over = [shot for shot in found if shot.state in FINAL_STATES]
    shots += sorted(over, key=lambda shot: shot.ended_at or "", reverse=True)[:_ENDED_MOST]
    try:
        waiting = drive(hf._core.consumers.listing().counts(shot.owner for shot in shots))
    except IndexBusy:
        waiting = {}
    rows = [Row(shot, signals=waiting.get(shot.id, 0)) for shot in shots]
    details.fill(rows)
    return rows


def last_line(log: Log, ends: dict[str, int]) -> str:
    """The last line that is not empty, finished or not, without control sequences."""
    try:
        if "tty" in ends:
            # The bytes printed last, as lines: drawing the screen would take too long.
            at = max(0, ends["tty"] - _LINE_BYTES)
            text = tail(b"".join(log.raw("tty", at)), at, lines=5, chars=_LINE_CHARACTERS)["text"]
        else:
            text = log.tail(5, limit=_LINE_BYTES).text
    except OSError:
        return ""  # the session was just removed
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "")[:_LINE_CHARACTERS]


# The rows as cells of a table.


HEADS = ("ID", "NAME", "KIND", "STATUS", "AGE", "CPU", "MEMORY", "SIGNALS", "LAST OUTPUT")
_LAST = len(HEADS) - 1
# Columns that go first where there is not room for all, until the last output has this many characters.
_DISPENSABLE = ("KIND", "MEMORY", "CPU", "AGE", "SIGNALS", "NAME", "STATUS")
_LAST_COLUMNS = 16
# A name takes at most a fifth of the line, within these bounds.
_NAME_LEAST, _NAME_MOST = 10, 28


def cells(row: Row, cols: int | None = None) -> list[Cell]:
    """One cell for each of HEADS: its text and its colour."""
    name_columns = _NAME_MOST if cols is None else min(max(_NAME_LEAST, cols // 5), _NAME_MOST)
    shot, usage = row.shot, row.usage
    return [
        (shot.id, ""),
        (cut(printable(row.name), name_columns), ""),
        (shot.kind, DIM),
        row.status,
        (age(shot.started_at or shot.created_at), DIM),
        ("" if usage is None or usage.cpu is None else f"{usage.cpu:.0f}%", ""),
        ("" if usage is None else megabytes(usage.memory), ""),
        (str(row.signals) if row.signals else "", YELLOW),
        (printable(row.last), DIM),
    ]


def fitting(lines: Sequence[Sequence[Cell]], cols: int) -> dict[int, int]:
    """The columns that fit on a line, two spaces apart, and the width of each; the last one has the rest."""
    widths = [max([width(head), *(width(line[n][0]) for line in lines)]) for n, head in enumerate(HEADS)]
    kept = [n for n in range(_LAST) if any(line[n][0] for line in lines)]
    for head in _DISPENSABLE:
        if sum(widths[n] + 2 for n in kept) + _LAST_COLUMNS <= cols:
            break
        kept = [n for n in kept if HEADS[n] != head]
    room = cols - sum(widths[n] + 2 for n in kept)
    return {**{n: widths[n] for n in kept}, _LAST: max(1, room)}


def title(rows: Sequence[Row], more: str = "") -> str:
    if not rows:
        return "hold top: nothing is running; `hold start -- CMD...` starts a command"
    waiting = sum(1 for row in rows if row.shot.needs_input)
    ended = sum(1 for row in rows if row.has_ended)
    parts = [f"{len(rows) - ended} running"] + [f"{ended} ended"] * bool(ended)
    if waiting:
        parts.append("1 needs input" if waiting == 1 else f"{waiting} need input")
    for word in ("unhealthy", "restarting"):
        count = sum(1 for row in rows if row.shot.condition == word)
        parts += [f"{count} {word}"] * bool(count)
    return "hold top: " + ", ".join(parts + [more] * bool(more))
