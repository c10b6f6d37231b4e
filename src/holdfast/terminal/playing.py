"""A recording shown again: at its own pace, at its own sizes, and without side effects on whoever watches.

On a terminal it is painted from a grid of the recorded size, whatever size the terminal has: what does not fit is cut,
around the cursor. Where the output is no terminal it is the recorded bytes, filtered as every replay is.
"""

from __future__ import annotations

from . import rows
from .asciicast import size_of
from .filter import Filter
from .grid import Grid, GridFailed
from .settings import to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .asciicast import Event, Header
    from .rows import Row

    Size = tuple[int, int]

# More often nobody could see it, and painting costs milliseconds.
FRAME_S = 1 / 30
# The size of a terminal on which nothing was painted yet.
_UNSEEN = (0, 0)


def play(
    header: Header,
    events: Iterable[Event],
    write: Callable[[bytes], None],
    *,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    speed: float = 1.0,
    idle_limit: float | None = None,
    size: Callable[[], Size] | None = None,
) -> None:
    """`size` tells rows and columns of the terminal that `write` writes to; None: it is none."""
    limit = header.idle_limit if idle_limit is None else idle_limit
    show: _Bytes | _Painting = _Bytes(write) if size is None else _Painting(header, write, size)
    begun = clock()
    due = before = 0.0
    settled = -FRAME_S
    try:
        for at, code, data in events:
            pause = at / 1e6 - before
            before = at / 1e6
            due += (pause if limit is None else min(pause, limit)) / speed
            if due >= settled + FRAME_S:
                # Before a pause, and now and then where there is none.
                show.settle()
                settled = clock() - begun
            wait = begun + due - clock()
            if wait > 0:
                sleep(wait)
            if code == "o":
                show.output(data.encode("utf-8", "replace"))
            elif code == "r":
                show.resize(*size_of(data))
        show.settle()
    finally:
        show.end()


class _Bytes:
    """As they were recorded, but for what only disturbs."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._filter = Filter()

    def output(self, data: bytes) -> None:
        kept = self._filter.replay(data)
        if kept:
            self._write(kept)

    def resize(self, rows: int, cols: int) -> None:
        """Whoever reads the bytes has no size that we could change."""

    def settle(self) -> None:
        """They went out at once."""

    def end(self) -> None:
        rest = self._filter.abandon()
        if rest:
            self._write(rest)


class _Painting:
    """Only rows that changed are painted again."""

    def __init__(self, header: Header, write: Callable[[bytes], None], size: Callable[[], Size]) -> None:
        self._write = write
        self._size = size
        self._grid = Grid(header.rows, header.cols, history=0)
        self._terminal: Size = _UNSEEN
        self._shown: list[str] = []
        self._changed = False

    def output(self, data: bytes) -> None:
        self._changed = True
        try:
            self._grid.feed(data)
        except GridFailed:
            # A recording made to break it: what follows is drawn on a blank screen.
            self._grid = Grid(*self._grid.size, history=0)

    def resize(self, rows: int, cols: int) -> None:
        self._changed = True
        try:
            self._grid.resize(rows, cols)
        except GridFailed:
            self._grid = Grid(rows, cols, history=0)

    def settle(self) -> None:
        terminal = self._size()
        if not self._changed and self._terminal in (terminal, _UNSEEN):
            return
        self._changed = False
        out = [] if self._terminal != _UNSEEN else [_make_room(terminal)]
        if terminal != self._terminal:
            self._terminal, self._shown = terminal, []
        height, width = terminal
        row, col, visible = self._grid.cursor
        # What is too large is shown around the cursor.
        top, left = max(0, row - height + 1), max(0, col - width + 1)
        page = [_painted(each, left, left + width) for each in self._grid.rows()[top : top + height]]
        page += [""] * (height - len(page))
        for number, line in enumerate(page):
            if number >= len(self._shown) or self._shown[number] != line:
                out.append(f"{to(number, 0)}\x1b[2K{line}")
        self._shown = page
        out.append(to(row - top, col - left) + ("\x1b[?25h" if visible else "\x1b[?25l"))
        self._write("".join(out).encode())

    def end(self) -> None:
        """The last picture stays, the cursor goes below it."""
        if self._terminal == _UNSEEN:
            return
        last = max((number for number, line in enumerate(self._shown) if line), default=0)
        self._write(f"{to(last, 0)}\x1b[?25h\r\n".encode())


def _make_room(terminal: Size) -> str:
    """What stands on the terminal moves up out of sight, where it can be scrolled back to."""
    height, _ = terminal
    return to(height - 1, 0) + "\n" * height


def _painted(row: Row, start: int, stop: int) -> str:
    cells = row.columns(start, stop)
    while cells and cells[-1].text == " " and cells[-1].style == rows.PLAIN:
        cells.pop()
    text, pen = rows.write(cells)
    return text + rows.plainly(pen)
