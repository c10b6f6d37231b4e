"""The screen of a session to which a client is attached, kept up with its output: cells, and the state of the terminal.

Output is taken in lumps: while a client shows it as it comes, nobody looks here, and one lump costs less than many
pieces. Whoever looks finds it taken.
"""

from __future__ import annotations

from ..runner.tracker import Tracker
from .grid import Grid, GridFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..model.attach import Init

    State = dict[str, Any]
    Size = tuple[int, int]

_WAITING_MAX_BYTES = 256 << 10


class Followed:
    """From an `Init` on, with the grid that was restored of it; a blank one where none was."""

    def __init__(self, init: Init, grid: Grid | None, history_rows: int) -> None:
        self._history_rows = history_rows
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        known = [resize for resize in init.resizes if resize[0] <= init.at]
        size = grid.size if grid is not None else known[-1][1:] if known else init.size
        self._grid = Grid(*size, history=history_rows) if grid is None else grid
        state = init.state
        # Where the output begins earlier than that state, nothing is known of the terminal then.
        fits = state is not None and state["offset"] == init.at and tuple(state["size"]) == size
        self._tracker = Tracker.from_snapshot(state) if state is not None and fits else _blank(size, init.at)
        self._at = init.at
        # Those that are known beforehand: of a session that is over, or that is replayed.
        self._resizes = [resize for resize in init.resizes if resize[0] > init.at]
        if grid is not None and not self._resizes and size != init.size:
            self.resize(*init.size)

    # What happens to it.

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """Output up to the next change of size that is known beforehand: what was taken, and the rest."""
        rest = b""
        resize = self._resizes[0] if self._resizes and self._resizes[0][0] <= self._at + len(data) else None
        if resize is not None:
            data, rest = data[: resize[0] - self._at], data[resize[0] - self._at :]
        self._at += len(data)
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= _WAITING_MAX_BYTES:
            self.settle()
        if resize is not None:
            self._resizes.pop(0)
            self.resize(*resize[1:])
        return data, rest

    def resize(self, rows: int, cols: int) -> None:
        self.settle()
        self._tracker.resize(rows, cols)
        try:
            self._grid.resize(rows, cols)
        except GridFailed:
            self._grid = Grid(rows, cols, history=self._history_rows)

    def settle(self) -> None:
        if not self._waiting:
            return
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        self._tracker.feed(data)
        # Only a runner answers and keeps marks.
        self._tracker.take_replies()
        self._tracker.take_marks()
        try:
            self._grid.feed(data)
        except GridFailed:
            # Hostile output can do that. The program shows itself when it next draws.
            self._grid = Grid(*self._grid.size, history=self._history_rows)

    # What it shows.

    @property
    def size(self) -> Size:
        """That of the session, where the output that came so far ends."""
        return self._grid.size

    @property
    def grid(self) -> Grid:
        self.settle()
        return self._grid

    @property
    def state(self) -> State:
        self.settle()
        return self._tracker.snapshot()

    @property
    def at_ground(self) -> bool:
        """Whether no sequence and no character has begun and not ended."""
        self.settle()
        return self._tracker.ground == self._tracker.offset

    @property
    def updating(self) -> bool:
        """Whether the program has said that it is not done with the screen."""
        self.settle()
        return self._tracker.sync_open


def _blank(size: Size, at: int) -> Tracker:
    return Tracker.from_snapshot({**Tracker(*size).snapshot(), "offset": at})
