"""A full-screen stretch of a terminal: drawn on a grid, told as a marker and the last frame with anything on it."""

from __future__ import annotations

from ..runner.characters import label
from ..runner.escapes import split_string
from .text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..terminal.grid import Grid
    from .cells import Line

_PROGRAM_MAX_BYTES = 80
# What is drawn at once: enough to make calls rare, little enough to keep memory flat.
_DRAWN_BYTES = 64 << 10


class Stretch:
    """One stay on the alternate screen."""

    __slots__ = ("_buffer", "_cols", "_frame", "_grid", "_program", "_rows", "_start")

    def __init__(self, rows: int, cols: int, start: int, program: str) -> None:
        self._rows, self._cols = rows, cols
        self._start = start
        self._program = program
        self._buffer = bytearray()
        self._grid: Grid | None = None
        self._frame: list[str] = []

    def title(self, raw: bytes) -> None:
        number, _, title = split_string(raw)[0].partition(b";")
        if number in (b"0", b"2") and title:
            self._program = visible(label(title, _PROGRAM_MAX_BYTES)) or self._program

    def draw(self, raw: bytes) -> None:
        self._buffer += raw
        if len(self._buffer) > _DRAWN_BYTES:
            self._drawn()

    def clearing(self) -> None:
        """What stands there now may be the last that anybody saw."""
        self._frame = self._now() or self._frame

    def resize(self, rows: int, cols: int) -> None:
        from ..terminal.grid import GridFailed

        self._frame = self._now() or self._frame
        self._rows, self._cols = rows, cols
        if self._grid is not None:
            try:
                self._grid.resize(rows, cols)
            except GridFailed:
                self._grid = None

    @property
    def cursor(self) -> tuple[int, int] | None:
        grid = self._drawn()
        return None if grid is None else (grid.cursor[0], grid.cursor[1])

    def lines(self, end: int, when: Callable[[int], float | None] | None) -> list[Line]:
        """The marker and the last frame that was not empty."""
        begun, ended = (when(self._start), when(end)) if when is not None else (None, None)
        facts = [self._program] if self._program else []
        if begun is not None and ended is not None:
            facts.append(duration(max(0.0, ended - begun)))
        marker = f"[full screen: {', '.join(facts)}]" if facts else "[full screen]"
        return [(self._start, f"{text}\n") for text in (marker, *(self._now() or self._frame))]

    def _drawn(self) -> Grid | None:
        from ..terminal.grid import Grid, GridFailed

        data, self._buffer = bytes(self._buffer), bytearray()
        if self._grid is None:
            if not data:
                return None
            self._grid = Grid(self._rows, self._cols, history=0)
        try:
            self._grid.feed(data)
        except GridFailed:
            # Its drawing is lost up to here; what comes is drawn on a fresh one.
            self._grid = None
        return self._grid

    def _now(self) -> list[str]:
        grid = self._drawn()
        if grid is None:
            return []
        frame = [text.rstrip() for text in grid.texts()]
        while frame and not frame[-1]:
            frame.pop()
        return frame


def duration(seconds: float) -> str:
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
