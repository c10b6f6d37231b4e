"""The screen that an attached client begins with, from the bytes that it is sent of it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..model.attach import Data, Gap, Init
    from .grid import Grid


class Restored:
    """Takes what comes of the ranges of an `Init`; what is missing of them is drawn without."""

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
        """Whether the gap is one in these ranges."""
        if self.is_whole or gap.end > self.init.at:
            return False
        self._came(gap.end - gap.begin)
        return True

    def draw(self, history_rows: int) -> Grid | None:
        """The screen, once; none where the client begins without one."""
        init = self.init
        if init.state is None or not init.restore:
            return None
        from .grid import Grid, GridFailed
        from .restore import render

        self._pieces.sort(key=lambda piece: piece[0])
        plan = {"ranges": init.restore, "exact": init.exact}
        try:
            grid = render(plan, self._read, init.resizes, history_rows)
        except GridFailed:
            # Hostile output can do that. The program shows itself when it next draws.
            grid = Grid(*init.size)
        self._pieces = []
        return grid

    def paint(self, size: tuple[int, int], history_rows: int, max_bytes: int | None = None) -> bytes:
        """What a terminal of this size is written to show it, once; nothing where the client begins without a screen.
        Of the history only as much as goes into `max_bytes`."""
        grid, state = self.draw(history_rows), self.init.state
        if grid is None or state is None:
            return b""
        from .filter import Filter
        from .paint import paint

        painted = paint(grid, state, size, history_rows)
        while max_bytes is not None and len(painted) > max_bytes and history_rows:
            history_rows //= 2
            painted = paint(grid, state, size, history_rows)
        # Through the same filter as output: whoever made this state, it asks nothing and has no side effect.
        return Filter().replay(painted)

    def _came(self, size: int) -> None:
        self._owed = max(0, self._owed - size)

    def _read(self, begin: int, end: int) -> Iterator[bytes]:
        for offset, piece in self._pieces:
            if offset < end and offset + len(piece) > begin:
                yield piece[max(0, begin - offset) : end - offset]
