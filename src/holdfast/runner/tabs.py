"""Tab stops: one every eight columns until a program sets its own."""

from __future__ import annotations

EVERY = 8
# The widest terminal there is: stops of columns that do not exist yet are known too.
COLS_MAX = 1000


class TabStops:
    __slots__ = ("_stops",)

    def __init__(self) -> None:
        # In order; None is one every eight columns.
        self._stops: list[int] | None = None

    def reset(self) -> None:
        self._stops = None

    def clear_all(self) -> None:
        self._stops = []

    def set(self, col: int) -> None:
        stops = self._own()
        if col not in stops:
            stops.append(col)
            stops.sort()

    def clear(self, col: int) -> None:
        stops = self._own()
        if col in stops:
            stops.remove(col)

    def _own(self) -> list[int]:
        if self._stops is None:
            self._stops = list(range(EVERY, COLS_MAX, EVERY))
        return self._stops

    def behind(self, col: int, count: int) -> int:
        """The stop so many further on, or a column behind all."""
        if self._stops is None:
            return (col // EVERY + count) * EVERY
        stops = [stop for stop in self._stops if stop > col]
        return stops[count - 1] if count <= len(stops) else COLS_MAX

    def before(self, col: int, count: int) -> int:
        """The stop so many back, or the first column."""
        if self._stops is None:
            return max(((col - 1) // EVERY - count + 1) * EVERY, 0)
        stops = [stop for stop in self._stops if stop < col]
        return stops[-count] if count <= len(stops) else 0

    def snapshot(self) -> list[int] | None:
        return None if self._stops is None else list(self._stops)

    def continue_from(self, stops: list[int] | None) -> None:
        self._stops = None if stops is None else list(stops)
