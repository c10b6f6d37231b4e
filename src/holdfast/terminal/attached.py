"""The screen of the session to which a client is attached: as it begins, and kept up with the output.

A client that passes output on needs no screen, so none is drawn. When one is needed it is drawn from the log once and
then kept up with the output. Where the log has not all of the output, as with a session in another place, the screen
is kept up all the time.
"""

from __future__ import annotations

from ..core.vt.tracker import Tracker
from . import restore
from .filter import Filter
from .grid import Grid, GridFailed
from .paint import paint
from .scrollback import Scrollback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..model.events import Data, Gap, Init

    State = dict[str, Any]
    Size = tuple[int, int]
    # The grid and the terminal's state at the last ground offset up to this one, and the output between the two. None
    # where the log cannot be read or drawn.
    Draw = Callable[[int], tuple[Grid, State, bytes] | None]


# Output is collected up to this size, because many small pieces cost more.
_WAITING_MAX_BYTES = 256 << 10


class Restored:
    """Collects the ranges of an `Init`. Missing bytes are left out of the drawing."""

    def __init__(self, init: Init) -> None:
        self.init = init
        self._owed: int = sum(part["to"] - part["from"] for part in init.restore)
        self._pieces: list[tuple[int, bytes]] = []

    @property
    def is_whole(self) -> bool:
        return self._owed == 0

    def take(self, data: Data) -> None:
        self._pieces.append((data.offset, data.data))
        self._came(len(data.data))

    def miss(self, gap: Gap) -> bool:
        """Whether the gap is in these ranges."""
        if self.is_whole or gap.end > self.init.at:
            return False
        self._came(gap.end - gap.begin)
        return True

    def draw(self, history_rows: int) -> Grid | None:
        """The screen; can be called once. None if the client begins without one."""
        init = self.init
        if init.state is None or not init.restore:
            return None
        self._pieces.sort(key=lambda piece: piece[0])
        plan = {"ranges": init.restore, "exact": init.exact}
        try:
            grid = restore.render(plan, self._read, init.resizes, history_rows)
        except GridFailed:
            # Hostile output can cause that. The screen is right again when the program next draws it.
            grid = Grid(*init.size)
        self._pieces = []
        return grid

    def paint(self, size: tuple[int, int], history_rows: int, max_bytes: int | None = None) -> bytes:
        """The bytes that make a terminal of this size show it; can be called once. Empty if the client begins without a
        screen. With `max_bytes`, only as much history as fits."""
        grid, state = self.draw(history_rows), self.init.state
        if grid is None or state is None:
            return b""
        painted = paint(grid, state, size, history_rows)
        while max_bytes is not None and len(painted) > max_bytes and history_rows:
            history_rows //= 2
            painted = paint(grid, state, size, history_rows)
        # Through the same filter as output: a forged state cannot query the terminal and has no side effect.
        return Filter().replay(painted)

    def _came(self, size: int) -> None:
        self._owed = max(0, self._owed - size)

    def _read(self, begin: int, end: int) -> Iterator[bytes]:
        for offset, piece in self._pieces:
            if offset < end and offset + len(piece) > begin:
                yield piece[max(0, begin - offset) : end - offset]


class SessionScreen:
    """From an `Init` on, with the grid that was restored from it, if there is one. `draw` draws one from the log."""

    def __init__(self, init: Init, grid: Grid | None, history_rows: int, draw: Draw | None) -> None:
        self._history_rows = history_rows
        self._draw = draw
        # What is in the scrollback of the client's terminal.
        self.scrollback = Scrollback()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        # Of what was drawn, the sequence or character at the end that is unfinished.
        self._tail = b""
        known = [resize for resize in init.resizes if resize[0] <= init.at]
        # The size of the session at the end of the output so far.
        self.size: Size = grid.size if grid is not None else known[-1][1:] if known else init.size
        self._at = init.at
        # Resizes that are known in advance: of a session that has ended or is replayed.
        self._resizes = [resize for resize in init.resizes if resize[0] > init.at]
        state = init.state
        self._drawn: tuple[Grid, Tracker] | None = None
        if grid is not None and state is not None and state["offset"] == init.at and tuple(state["size"]) == self.size:
            self._drawn = grid, Tracker.from_snapshot(state)
        elif draw is None:
            blank, tracker = self._blank()
            self._drawn = grid or blank, tracker
        if grid is not None and not self._resizes and self.size != init.size:
            self.resize(*init.size)

    # Events.

    def take(self, offset: int, data: bytes) -> tuple[bytes, bytes]:
        """Take output up to the next resize that is known in advance. Returns what was taken, and the rest."""
        rest = b""
        resize = self._resizes[0] if self._resizes and self._resizes[0][0] <= offset + len(data) else None
        if resize is not None:
            cut = max(0, resize[0] - offset)
            data, rest = data[:cut], data[cut:]
        self._at = offset + len(data)
        if self._drawn is not None:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            if self._waiting_bytes >= _WAITING_MAX_BYTES:
                self._up_to_date()
        if resize is not None:
            self._resizes.pop(0)
            self.resize(*resize[1:])
        return data, rest

    def resize(self, rows: int, cols: int) -> None:
        self.size = rows, cols
        if self._drawn is not None:
            grid, tracker = self._up_to_date()
            self._drawn = self._at_size(grid), tracker
            tracker.resize(rows, cols)
        else:
            self.scrollback.forget()

    def forget(self) -> None:
        """Drop the screen until it is needed again."""
        self.scrollback.forget()
        if self._draw is None:
            return
        self._drawn = None
        self._waiting.clear()
        self._waiting_bytes = 0

    # The screen.

    @property
    def grid(self) -> Grid:
        return self._up_to_date()[0]

    @property
    def state(self) -> State:
        return self._up_to_date()[1].snapshot()

    @property
    def at_ground(self) -> bool:
        """Whether no sequence and no character is unfinished."""
        tracker = self._up_to_date()[1]
        return tracker.ground == tracker.offset

    @property
    def updating(self) -> bool:
        """Whether a synchronized update is open."""
        return self._up_to_date()[1].sync_open

    def _up_to_date(self) -> tuple[Grid, Tracker]:
        if self._drawn is None:
            drawn = None if self._draw is None else self._draw(self._at)
            if drawn is None:
                self._drawn = self._blank()
                return self._drawn
            grid, state, data = drawn
            tracker = Tracker.from_snapshot(state)
            self._drawn = self._fed(grid, tracker, data), tracker
            if grid.size != self.size or tuple(state["size"]) != self.size:
                # Another resize at the same offset, which this client has not received yet.
                self.resize(*self.size)
        elif self._waiting:
            data = b"".join(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
            grid, tracker = self._drawn
            self._drawn = self._fed(grid, tracker, data), tracker
        return self._drawn

    def _blank(self) -> tuple[Grid, Tracker]:
        tracker = Tracker.from_snapshot({**Tracker(*self.size).snapshot(), "offset": self._at})
        return Grid(*self.size, history=self._history_rows), tracker

    def _fed(self, grid: Grid, tracker: Tracker, data: bytes) -> Grid:
        known, begin = tracker.last_clear, tracker.offset - len(self._tail)
        pending = self._tail + data
        tracker.feed(data)
        # Only a runner answers queries and keeps marks.
        tracker.take_replies()
        tracker.take_marks()
        self._tail = pending[tracker.ground - begin :]
        clear = tracker.last_clear
        try:
            if clear is not None and clear is not known and not clear["alt"]:
                # Like a screen that is drawn from the log.
                at = clear["offset"] - begin
                grid.feed(data[: max(0, at - (len(pending) - len(data)))])
                grid = restore.blank_in(clear["state"], grid.size, self._history_rows, grid)
                data = pending[at:]
            grid.feed(data)
        except GridFailed:
            # Hostile output can cause that. The screen is right again when the program next draws it.
            self.scrollback.forget()
            return Grid(*grid.size, history=self._history_rows)
        return grid

    def _at_size(self, grid: Grid) -> Grid:
        try:
            lines = self.scrollback.lines(grid)
            grid.resize(*self.size)
            self.scrollback.resized(grid, lines)
        except GridFailed:
            self.scrollback.forget()
            return Grid(*self.size, history=self._history_rows)
        return grid
