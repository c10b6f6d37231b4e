"""Text that is longer than the screen, and grows: which rows of it are seen, and what a key does to that. Pure."""

from __future__ import annotations

from collections import deque

from .tables import printable, width

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# So many lines are kept; what was before them is in the log.
LINES_MAX = 10_000
_TAB_COLUMNS = 8


class Scroll:
    """Lines are wrapped, not cut. At the end, what comes is followed, until somebody goes up."""

    def __init__(self, cols: int, height: int) -> None:
        self.cols = max(1, cols)
        self.height = max(1, height)
        self.following = True
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._begun = ""
        self._rows: list[str] = []
        self._at = 0

    def add(self, text: str) -> None:
        """Finished lines, each with its end."""
        for line in text.splitlines():
            if len(self._lines) == LINES_MAX:
                gone = len(wrapped(self._lines[0], self.cols))
                del self._rows[:gone]
                self._at = max(0, self._at - gone)
            self._lines.append(line)
            self._rows += wrapped(line, self.cols)

    def begin(self, text: str) -> None:
        """The line that is not finished; in the place of what was begun before."""
        self._begun = text

    def resize(self, cols: int, height: int) -> None:
        self.height = max(1, height)
        if cols != self.cols:
            # The line at the top stays there.
            self.cols = max(1, cols)
            share = self._at / len(self._rows) if self._rows else 0.0
            self._rows = [row for line in self._lines for row in wrapped(line, self.cols)]
            self._at = int(share * len(self._rows))

    def press(self, key: str) -> None:
        page = max(1, self.height - 1)
        last = self._last_top()
        top = last if self.following else min(self._at, last)
        steps = {
            "up": -1,
            "k": -1,
            "down": 1,
            "j": 1,
            "enter": 1,
            "page-up": -page,
            "b": -page,
            "page-down": page,
            " ": page,
            "home": -top,
            "g": -top,
            "end": last,
            "G": last,
        }
        if key in steps:
            self._at = min(max(top + steps[key], 0), last)
            self.following = self._at == last and (steps[key] > 0 or key in ("end", "G"))

    def rows(self) -> list[str]:
        """As many as are seen."""
        every = self._all_rows()
        top = max(0, len(every) - self.height) if self.following else min(self._at, self._last_top())
        return every[top : top + self.height]

    @property
    def above(self) -> int:
        """How many rows are above those that are seen."""
        return self._last_top() if self.following else min(self._at, self._last_top())

    def _all_rows(self) -> list[str]:
        return [*self._rows, *wrapped(self._begun, self.cols)] if self._begun else self._rows

    def _last_top(self) -> int:
        return max(0, len(self._all_rows()) - self.height)


def wrapped(line: str, cols: int) -> list[str]:
    """A line as rows of at most so many columns; an empty one is a row too."""
    return list(_wrapped(printable(line.expandtabs(_TAB_COLUMNS)), cols)) or [""]


def _wrapped(text: str, cols: int) -> Iterator[str]:
    if text.isascii():
        for at in range(0, len(text), cols):
            yield text[at : at + cols]
        return
    row, used = "", 0
    for character in text:
        wide = width(character)
        if used + wide > cols and row:
            yield row
            row, used = "", 0
        row += character
        used += wide
    if row:
        yield row
