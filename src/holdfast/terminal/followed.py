"""The session to which a client is attached: the size it has where the output ended, and its screen when asked for.

A client that shows output as it comes needs no screen, so none is drawn here. For a client that draws the screen itself
it is drawn from the log once, and then kept up with the output. Without a log that has all of the output, as with a
session in another place, of which only a copy is here, the screen is kept up all the time.
"""

from __future__ import annotations

from ..runner.tracker import Tracker
from .grid import Grid, GridFailed
from .scrollback import Scrollback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..model.attach import Init

    State = dict[str, Any]
    Size = tuple[int, int]
    # The grid and the terminal's state at the last ground offset up to this one, and the output between the two. None
    # where the log cannot be read or drawn.
    Draw = Callable[[int], tuple[Grid, State, bytes] | None]

# Output is taken in lumps, which costs less than many pieces.
_WAITING_MAX_BYTES = 256 << 10


class Followed:
    """From an `Init` on, with the grid that was restored of it, if one was. `draw` makes one from the log."""

    def __init__(self, init: Init, grid: Grid | None, history_rows: int, draw: Draw | None) -> None:
        self._history_rows = history_rows
        self._draw = draw
        # What of it is in the scrollback of the client's terminal.
        self.scrollback = Scrollback()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        known = [resize for resize in init.resizes if resize[0] <= init.at]
        # That of the session, where the output that came so far ends.
        self.size: Size = grid.size if grid is not None else known[-1][1:] if known else init.size
        self._at = init.at
        # Those that are known beforehand: of a session that is over, or that is replayed.
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

    # What happens to it.

    def take(self, offset: int, data: bytes) -> tuple[bytes, bytes]:
        """Output up to the next change of size that is known beforehand: what was taken, and the rest."""
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
                self._settled()
        if resize is not None:
            self._resizes.pop(0)
            self.resize(*resize[1:])
        return data, rest

    def resize(self, rows: int, cols: int) -> None:
        self.size = rows, cols
        if self._drawn is not None:
            grid, tracker = self._settled()
            self._drawn = self._at_size(grid), tracker
            tracker.resize(rows, cols)
        else:
            self.scrollback.forget()

    def forget(self) -> None:
        """The screen is not needed until somebody asks for it again."""
        self.scrollback.forget()
        if self._draw is None:
            return
        self._drawn = None
        self._waiting.clear()
        self._waiting_bytes = 0

    # What it shows.

    @property
    def grid(self) -> Grid:
        return self._settled()[0]

    @property
    def state(self) -> State:
        return self._settled()[1].snapshot()

    @property
    def at_ground(self) -> bool:
        """Whether no sequence and no character has begun and not ended."""
        tracker = self._settled()[1]
        return tracker.ground == tracker.offset

    @property
    def updating(self) -> bool:
        """Whether the program has said that it is not done with the screen."""
        return self._settled()[1].sync_open

    def _settled(self) -> tuple[Grid, Tracker]:
        if self._drawn is None:
            drawn = None if self._draw is None else self._draw(self._at)
            if drawn is None:
                self._drawn = self._blank()
                return self._drawn
            grid, state, data = drawn
            tracker = Tracker.from_snapshot(state)
            self._drawn = self._fed(grid, tracker, data), tracker
            if grid.size != self.size or tuple(state["size"]) != self.size:
                # Another change of size followed at the same place, of which this client has not heard yet.
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
        tracker.feed(data)
        # Only a runner answers and keeps marks.
        tracker.take_replies()
        tracker.take_marks()
        try:
            grid.feed(data)
        except GridFailed:
            # Hostile output can do that. The program shows itself when it next draws.
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
