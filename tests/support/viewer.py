"""A client of a terminal that shows what it is told, as a program would that draws it on its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.model.events import Data, Exit, Gap, Init, Refused, Size
from holdfast.terminal.grid import Grid
from holdfast.terminal.restore import render
from support.waiting import BOUND_S, TooLate

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.sessions.attach import Attachment

_TICK_S = 0.05


class Viewer:
    """`told` has every event. `live` is what came from the last restore on; an offset that is missing there, or that
    comes twice, fails at once. One that does not draw only listens."""

    def __init__(self, attachment: Attachment, *, draws: bool = True) -> None:
        self.attachment = attachment
        self._draws = draws
        self.told: list[Any] = []
        self.live = b""
        self.live_from = 0
        # Which rows and columns it has from which offset on.
        self.sizes: list[tuple[int, int, int]] = []
        self._grid: Grid | None = None
        self._init: Init | None = None
        self._owed = 0
        self._at = 0
        self._pieces: list[tuple[int, bytes]] = []

    @property
    def text(self) -> str:
        return "" if self._grid is None else "\n".join(row.text.rstrip() for row in self._grid.rows()).rstrip()

    @property
    def gaps(self) -> list[Gap]:
        return self.of(Gap)

    @property
    def exit(self) -> Exit | None:
        found = self.of(Exit)
        assert len(found) <= 1
        assert not found or self.told[-1] is found[0], "something came behind the exit"
        return found[0] if found else None

    @property
    def refusals(self) -> list[Refused]:
        return self.of(Refused)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]

    def take(self, timeout: float | None = 0) -> bool:
        """What has come; waits for it where there is nothing. Whether anything came."""
        events = self.attachment.wait(timeout)
        for event in events:
            self._show(event)
        return bool(events)

    def until(self, predicate: Callable[[], object], what: str, bound: float = BOUND_S) -> None:
        deadline = time.monotonic() + bound
        while not predicate():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TooLate(f"{what} (it shows {self.text[-500:]!r}, was told {self.told[-3:]})", bound)
            # The predicate may be about more than this viewer: ask it again even when no event comes.
            self.take(min(left, _TICK_S))

    def to_the_end(self, bound: float = BOUND_S) -> Exit:
        self.until(lambda: self.exit, "the exit", bound)
        assert self.exit is not None
        return self.exit

    def _show(self, event: Any) -> None:
        self.told.append(event)
        if isinstance(event, Init):
            self._begin(event)
        elif isinstance(event, Data):
            self._data(event)
        elif isinstance(event, Size):
            self.sizes.append((self._at, event.rows, event.cols))
            if self._grid is not None:
                self._grid.resize(event.rows, event.cols)
        elif isinstance(event, Gap):
            self._at = event.end

    def _begin(self, init: Init) -> None:
        self._init = init
        self._at = self.live_from = init.at
        self.live = b""
        self._pieces = []
        self._owed = sum(part["to"] - part["from"] for part in init.restore)
        self._grid = None
        if not self._owed:
            self._draw()

    def _data(self, data: Data) -> None:
        if self._owed:
            self._pieces.append((data.offset, data.data))
            self._owed -= len(data.data)
            assert self._owed >= 0
            if not self._owed:
                self._draw()
            return
        assert data.offset == self._at, f"byte {data.offset} came where {self._at} was due"
        self._at += len(data.data)
        self.live += data.data
        if self._draws:
            assert self._grid is not None
            self._grid.feed(data.data)

    def _draw(self) -> None:
        assert self._init is not None
        if not self._draws:
            return
        if self._init.restore:
            plan = {"ranges": self._init.restore, "exact": self._init.exact}
            self._grid = render(plan, self._read, self._init.resizes, 0)
        else:
            self._grid = Grid(*self._init.size)

    def _read(self, begin: int, end: int) -> Iterator[bytes]:
        for offset, piece in sorted(self._pieces):
            if offset < end and offset + len(piece) > begin:
                yield piece[max(0, begin - offset) : end - offset]
