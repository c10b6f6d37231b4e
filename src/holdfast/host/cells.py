"""One row of a terminal as text: cells without colours, and what the plain text of a terminal needs beside them.

Namely where in the raw stream the row began and how often it was rewritten, which no emulator tells.
"""

from __future__ import annotations

from ..runner.characters import COLUMNS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    # Where the bytes of a line begin in the raw stream, and what it says, with its LF unless it goes on.
    Line = tuple[int, str]

# Behind a wide character, and behind a TAB that is kept as such: the column belongs to the cell before.
COVERED = ""
# The last column of a row whose line goes on with a wide character: there was no room for it. No part of the line.
FREE = "\0"
# Nobody reads a character with more accents; some programs send thousands.
_COMBINED_MAX_CHARS = 32


def narrow(text: str) -> bool:
    """One column a character."""
    return text.isascii() or all(COLUMNS[each] == 1 for each in set(text))


class Row:
    """`wrapped`: its line goes on in the next row. `notes`: lines of text that stand before it. `given`: it was handed
    out before it left the screen; `changed`: it was written to since."""

    __slots__ = ("cells", "changed", "given", "notes", "offset", "rewrites", "wrapped")

    def __init__(self, offset: int) -> None:
        self.cells: list[str] = []
        self.offset = offset
        self.rewrites = 0
        self.wrapped = False
        self.notes: list[Line] | None = None
        self.given = self.changed = False

    def __repr__(self) -> str:
        return f"Row({self.text()!r} at {self.offset}, {self.rewrites} rewrites)"

    def text(self) -> str:
        text = "".join(self.cells).replace(FREE, "")
        # A bar that was written over with spaces ends in them; what was printed once is kept as it is.
        return text.rstrip() if self.rewrites and not self.wrapped else text

    @property
    def blank(self) -> bool:
        """Nothing would be missed without it."""
        return not self.notes and not "".join(self.cells).strip()

    def shows(self, begin: int, end: int) -> bool:
        """Whether something can be seen in these columns."""
        return bool("".join(self.cells[begin:end]).strip())

    def covered(self, x: int, piece: Sequence[str], *, blank: bool) -> bool:
        """Whether the piece would hide something that can be seen; not `blank`: put something in its place."""
        under = self.cells[x : x + len(piece)]
        if blank:
            return bool("".join(under).strip())
        # Somebody who steps back and writes blanks deletes what was typed.
        return any(old.strip() and new.strip() for old, new in zip(under, piece, strict=False))

    def put(self, x: int, piece: Sequence[str]) -> None:
        cells = self.cells
        if x >= len(cells):
            cells += " " * (x - len(cells))
            cells += piece
        else:
            self._split(x)
            self._split(x + len(piece))
            cells[x : x + len(piece)] = piece
        self.changed = True

    def combine(self, x: int, character: str) -> None:
        at = self.before(x)
        if at >= 0 and len(self.cells[at]) < _COMBINED_MAX_CHARS:
            self.cells[at] += character
            self.changed = True

    def before(self, x: int) -> int:
        """The column of the character left of `x`; -1 where none stands."""
        at = min(x, len(self.cells)) - 1
        while at >= 0 and self.cells[at] == COVERED:
            at -= 1
        return at if at >= 0 and self.cells[at] not in (FREE, "\t") else -1

    def erase(self, begin: int, end: int) -> None:
        cells = self.cells
        if begin >= len(cells):
            return
        self._split(begin)
        self._split(end)
        if end >= len(cells):
            del cells[begin:]
        else:
            cells[begin:end] = " " * (end - begin)
        self.changed = True

    def insert(self, x: int, count: int, cols: int) -> None:
        if x < len(self.cells):
            self._split(x)
            self.cells[x:x] = " " * min(count, cols - x)
            self._split(cols)
            del self.cells[cols:]
            self.changed = True

    def delete(self, x: int, count: int) -> None:
        self._split(x)
        self._split(x + count)
        del self.cells[x : x + count]
        self.wrapped = False
        self.changed = True

    def _split(self, at: int) -> None:
        """Of a wide character or TAB that reaches over the left border of this column only blanks stay."""
        cells = self.cells
        if at >= len(cells) or cells[at] != COVERED:
            return
        begin = end = at
        while begin > 0 and cells[begin] == COVERED:
            begin -= 1
        while end < len(cells) and cells[end] == COVERED:
            end += 1
        cells[begin:end] = " " * (end - begin)


def wrapped_anew(page: list[Row], y: int, x: int, cols: int) -> tuple[list[Row], int, int]:
    """The rows of the same lines in another width, and where the cursor is then."""
    rows: list[Row] = []
    cursor: tuple[int, int] | None = None
    line: list[str] = []
    first: Row | None = None
    at = -1
    for number, row in enumerate(page):
        if number == y:
            at = len(line) + x
        if first is None:
            first = row
        else:
            first.rewrites = max(first.rewrites, row.rewrites)
            first.changed = first.changed or row.changed
            if row.notes:
                first.notes = [*(first.notes or ()), *row.notes]
        line += [cell for cell in row.cells if cell != FREE]
        if row.wrapped and number + 1 < len(page):
            continue
        begin = len(rows)
        rows += _pieces(first, line, cols)
        if at >= 0 and cursor is None:
            down = min(at // cols, len(rows) - begin - 1)
            cursor = begin + down, min(at - down * cols, cols)
        line, first = [], None
    y, x = cursor or (y + len(rows) - len(page), x)
    return rows, y, x


def _pieces(first: Row, cells: list[str], cols: int) -> list[Row]:
    """A wide character is not cut: the column before it stays free."""
    rows: list[Row] = []
    at = 0
    while at < len(cells) or not rows:
        row = first
        if rows:
            row = Row(first.offset)
            row.rewrites, row.given, row.changed = first.rewrites, first.given, first.changed
        end = at + cols
        row.wrapped = end < len(cells)
        if row.wrapped:
            while end > at + 1 and cells[end] == COVERED:
                end -= 1
        row.cells = cells[at:end]
        if row.wrapped:
            row.cells += [FREE] * (at + cols - end)
        rows.append(row)
        at = end
    return rows
