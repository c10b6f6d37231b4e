"""Which rows of a session are in the scrollback of a client's terminal: each line once, and none is left out.

One number is enough: the first row that the terminal has not got, as `Grid.scrolled` counts. Another size rewraps lines
and moves rows off the page or back onto it, so the number is found again by counting the lines after it. A row that is
in the scrollback and back on the page is not given again when it leaves the page, unless the program changed it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .cells import Row
    from .grid import Grid


class Scrollback:
    def __init__(self) -> None:
        # The first row that was not given; None: unknown.
        self.first: int | None = None
        # Rows that were given and are on the page again, and the number of the first of them.
        self._back: list[Row] = []
        self._back_at = 0

    @property
    def known(self) -> bool:
        return self.first is not None

    def begin(self, grid: Grid, first: int | None = None) -> None:
        """All rows before `first` were given; by default those above the page."""
        scrolled = grid.scrolled
        self.first = scrolled if first is None else first
        self._back_at = scrolled
        self._back = grid.main_rows()[: max(0, self.first - scrolled)]

    def forget(self) -> None:
        self.first = None
        self._back = []

    def lines(self, grid: Grid) -> int | None:
        """How many lines follow the given ones, to find the place again at another size."""
        if self.first is None:
            return None
        self._check(grid)
        rows, at = _rows(grid, grid.scrolled - self.first)
        rows = rows[max(0, self.first - at) : _end(grid, rows)]
        return sum(i == 0 or not rows[i - 1].wrapped for i in range(len(rows)))

    def resized(self, grid: Grid, lines: int | None) -> None:
        if lines is None:
            self.forget()
        else:
            self.begin(grid, first_of(grid, lines))

    def take(self, grid: Grid, until: int | None = None) -> list[Row]:
        """The rows above the page, up to this one, that were not given yet. They count as given now."""
        scrolled = grid.scrolled
        if self.first is None:
            self.begin(grid)
            return []
        self._check(grid)
        until = scrolled if until is None else min(until, scrolled)
        if until <= self.first:
            return []
        rows = grid.history(scrolled - self.first)
        self.first = until
        return rows[: max(0, len(rows) - (scrolled - until))]

    def _check(self, grid: Grid) -> None:
        if not self._back or grid.alt:
            return
        rows, at = _rows(grid, grid.scrolled - self._back_at)
        rows = rows[self._back_at - at :] if at <= self._back_at else []
        same = 0
        while same < min(len(rows), len(self._back)) and rows[same] == self._back[same]:
            same += 1
        self.first = self._back_at + same
        self._back = self._back[:same] if self.first > grid.scrolled else []


def first_of(grid: Grid, lines: int) -> int:
    """The row with which the last `lines` lines begin."""
    count = lines
    while True:
        rows, at = _rows(grid, count)
        first = end = _end(grid, rows)
        if not lines:
            return max(at + end, grid.scrolled)
        missing = lines
        while first and missing:
            first -= 1
            missing -= first == 0 or not rows[first - 1].wrapped
        if first or len(rows) < count + grid.size[0]:
            return at + first
        count *= 2


def _rows(grid: Grid, above: int) -> tuple[list[Row], int]:
    """The main screen with this many rows above it, and the number of the first row."""
    history = grid.history(above)
    return [*history, *grid.main_rows()], grid.scrolled - len(history)


def _end(grid: Grid, rows: list[Row]) -> int:
    """The index after the row of the cursor and after the last row that is not blank."""
    end = len(rows)
    least = 0 if grid.alt else end - grid.size[0] + grid.cursor[0] + 1
    while end > least and not rows[end - 1].used():
        end -= 1
    return end
