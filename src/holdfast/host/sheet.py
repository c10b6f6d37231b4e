"""The main screen of a terminal as rows of text: what a program can still rewrite, and what has left for good.

Moving, printing, scrolling and erasing as terminals do it, without colours. Full-screen stretches are drawn on a grid
instead.
"""

from __future__ import annotations

from ..runner.characters import COLUMNS
from .cells import COVERED, FREE, Row, narrow, wrapped_anew
from .text import LINE_MAX_CHARS

_TAB_COLUMNS = 8
# How the cursor came to where it is: a step back within the line is editing, a jump begins a rewrite.
_STEPPED, _JUMPED = 1, 2
# What boxes are drawn with once ESC ( 0 chose the line-drawing set.
_DRAWING = dict(zip(map(ord, "`abcdefghijklmnopqrstuvwxyz{|}~"), "◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·", strict=True))


class Sheet:
    """`page` are the rows from the top of the screen to the last one used; those that scrolled away are in `gone`, in
    order, and whoever takes them empties it. `x` is `cols` when the next character wraps."""

    def __init__(self, rows: int, cols: int, offset: int = 0) -> None:
        self.rows = rows
        self.cols = cols
        self.gone: list[Row] = []
        self.reset(offset)

    def reset(self, offset: int) -> None:
        self.page = [Row(offset)]
        self.x = self.y = 0
        self.newline = False
        self._drawing = [False, False]
        self._shift = 0
        self._jumped = 0
        self.soft_reset()
        self.save()

    def soft_reset(self) -> None:
        self.autowrap, self.insert, self.origin = True, False, False
        self.top, self.bottom = 0, self.rows - 1

    def row(self, offset: int) -> Row:
        """The row of the cursor, made if there is none yet."""
        while len(self.page) <= self.y:
            self.page.append(Row(offset))
        return self.page[self.y]

    @property
    def appending(self) -> bool:
        """At the beginning of an empty last row, with nothing set that makes printing more than that."""
        page = self.page
        return (
            self.x == 0
            and self.y == len(page) - 1
            and not (page[-1].cells or page[-1].notes or page[-1].rewrites or page[-1].given)
            and (len(page) == 1 or not page[-2].wrapped)
            and (self.top, self.bottom) == (0, self.rows - 1)
            and self.autowrap
            and not (self.insert or self.newline or self._drawing[self._shift])
        )

    def takes_whole(self, text: str) -> bool:
        """Whether lines come back as they were printed: none so long that it is handed out in parts, no TAB that the
        right margin stops, nothing that combines with a character that is not there."""
        if not text.isascii() and any(COLUMNS[each] == 0 for each in set(text) - {"\n", "\t"}):
            return False
        lines = text.split("\n")
        if "\t" in text and any(len(line.expandtabs(_TAB_COLUMNS)) * 2 >= self.cols for line in lines if "\t" in line):
            return False
        return max(map(len, lines)) < LINE_MAX_CHARS // 2

    def roll(self, offset: int) -> list[Row]:
        """A fresh sheet; the rows of this one."""
        page, self.page = self.page, [Row(offset)]
        self.y = 0
        return page

    def used(self) -> list[Row]:
        """Down to the cursor, or to the last row with anything on it."""
        last = len(self.page)
        while last > self.y + 1 and self.page[last - 1].blank:
            last -= 1
        return self.page[:last]

    def write(self, text: str, offset: int) -> None:
        if self._drawing[self._shift]:
            text = text.translate(_DRAWING)
        if self.insert or not self.autowrap or not narrow(text):
            for character in text:
                self._write_one(character, offset)
            return
        at, size = 0, len(text)
        while at < size:
            if self.x >= self.cols:
                self._wrap(offset)
            piece = text[at : at + self.cols - self.x]
            self._put(self.row(offset), piece)
            at += len(piece)

    def repeat(self, count: int, offset: int) -> None:
        """REP: the character before the cursor once more, at most as often as the screen has cells."""
        row = self.row(offset)
        at = row.before(self.x)
        if at >= 0:
            drawing, self._drawing[self._shift] = self._drawing[self._shift], False
            self.write(row.cells[at][0] * min(count, self.cols * self.rows), offset)
            self._drawing[self._shift] = drawing

    def _write_one(self, character: str, offset: int) -> None:
        columns = COLUMNS[character]
        if not columns:
            self.row(offset).combine(self.x, character)
            return
        if self.x + columns > self.cols:
            if columns > self.cols:
                return
            if self.autowrap:
                if self.x < self.cols:
                    self._put(self.row(offset), [FREE])
                self._wrap(offset)
            else:
                self.x = self.cols - columns
        row = self.row(offset)
        if self.insert:
            row.insert(self.x, columns, self.cols)
        self._put(row, [character] + [COVERED] * (columns - 1))

    def _put(self, row: Row, piece: str | list[str]) -> None:
        end = self.x + len(piece)
        if self._jumped and row.covered(self.x, piece, blank=self._jumped == _JUMPED):
            row.rewrites += 1
            self._jumped = 0
        if end > len(row.cells):
            self._jumped = 0
        row.put(self.x, piece)
        self.x = end if self.autowrap else min(end, self.cols - 1)

    def _wrap(self, offset: int) -> None:
        row = self.row(offset)
        row.wrapped = True
        self.x = 0
        # The same line goes on, and that began where it began.
        self._down(row.offset)
        if self.page[self.y].cells:
            self._jumped = _JUMPED

    def line_feed(self, offset: int) -> None:
        if self.newline:
            self.x = 0
        self.x = min(self.x, self.cols - 1)
        self._down(offset)

    def carriage_return(self) -> None:
        if self.x:
            self.x = 0
            self._jumped = _JUMPED

    def backspace(self) -> None:
        self.x = max(0, min(self.x, self.cols - 1) - 1)
        self._jumped = self._jumped or _STEPPED

    def tab(self, offset: int, count: int = 1) -> None:
        """Over what is there a TAB only moves; on fresh ground it is kept, as it was printed."""
        for _ in range(min(count, self.cols)):
            stop = min((self.x // _TAB_COLUMNS + 1) * _TAB_COLUMNS, self.cols - 1)
            if stop <= self.x:
                return
            row = self.row(offset)
            if self.x >= len(row.cells):
                row.put(self.x, ["\t"] + [COVERED] * (stop - self.x - 1))
            self.x = stop

    def tab_back(self, count: int) -> None:
        for _ in range(min(count, self.cols)):
            self.x = max(0, (min(self.x, self.cols - 1) - 1) // _TAB_COLUMNS * _TAB_COLUMNS)
        self._jumped = _JUMPED

    def move(self, down: int = 0, right: int = 0) -> None:
        if down:
            # A margin stops the cursor only when it comes from within.
            low = self.top if self.y >= self.top else 0
            high = self.bottom if self.y <= self.bottom else self.rows - 1
            self.y = max(low, min(high, self.y + down))
        self.x = max(0, min(self.cols - 1, min(self.x, self.cols - 1) + right))
        self._jumped = _JUMPED

    def go(self, y: int | None = None, x: int | None = None) -> None:
        """To a row and a column from 0; in origin mode rows count from the margin."""
        if y is not None:
            low, high = (self.top, self.bottom) if self.origin else (0, self.rows - 1)
            self.y = max(low, min(high, y + low))
        self.x = max(0, min(self.cols - 1, self.x if x is None else x))
        self._jumped = _JUMPED

    def save(self) -> None:
        self._saved = (self.y, self.x, self.origin, list(self._drawing), self._shift)

    def restore(self) -> None:
        y, x, self.origin, drawing, self._shift = self._saved
        self._drawing = list(drawing)
        self.y, self.x = min(y, self.rows - 1), min(x, self.cols)
        self._jumped = _JUMPED

    def margins(self, top: int, bottom: int) -> None:
        bottom = min(self.rows - 1, bottom)
        if 0 <= top < bottom:
            self.top, self.bottom = top, bottom
            self.go(0, 0)

    def charset(self, slot: int, *, drawing: bool) -> None:
        self._drawing[slot] = drawing

    def shift(self, slot: int) -> None:
        self._shift = slot

    def _down(self, offset: int) -> None:
        if self.y == self.bottom:
            self.scroll_up(1, offset)
        elif self.y < self.rows - 1:
            self.y += 1
        row = self.row(offset)
        if not row.cells:
            # Whatever is printed on it begins here, also if it was passed before.
            row.offset = offset

    def reverse(self, offset: int) -> None:
        """RI: up, or everything down by one."""
        if self.y == self.top:
            self.scroll_down(1, offset)
        else:
            self.y = max(0, self.y - 1)
        self._jumped = _JUMPED

    def scroll_up(self, count: int, offset: int, top: int | None = None) -> None:
        """Rows leave at the top of the region: text that was printed, but where lines are deleted (`top` given)."""
        deleting = top is not None
        top = self.top if top is None else top
        page = self.page
        for _ in range(min(count, self.bottom - top + 1)):
            if len(page) <= top:
                return
            if top:
                page[top - 1].wrapped = False
            row = page.pop(top)
            if len(page) >= self.bottom:
                page.insert(self.bottom, Row(offset))
            if not deleting:
                self.gone.append(row)
            elif row.notes:
                self._keep_notes(row, top, offset)

    def scroll_down(self, count: int, offset: int, top: int | None = None) -> None:
        top = self.top if top is None else top
        page = self.page
        for _ in range(min(count, self.bottom - top + 1)):
            if len(page) <= top:
                return
            if len(page) > self.bottom:
                row = page.pop(self.bottom)
                if row.notes:
                    self._keep_notes(row, self.bottom - 1, offset)
            if top:
                page[top - 1].wrapped = False
            page.insert(top, Row(offset))
            if len(page) > self.bottom:
                page[self.bottom].wrapped = False

    def _keep_notes(self, row: Row, index: int, offset: int) -> None:
        while len(self.page) <= max(index, 0):
            self.page.append(Row(offset))
        there = self.page[max(index, 0)]
        there.notes = [*(row.notes or ()), *(there.notes or ())]

    def insert_lines(self, count: int, offset: int) -> None:
        if self.top <= self.y <= self.bottom:
            self.scroll_down(count, offset, self.y)
            self.go(x=0)

    def delete_lines(self, count: int, offset: int) -> None:
        if self.top <= self.y <= self.bottom:
            self.scroll_up(count, offset, self.y)
            self.go(x=0)

    def insert_cells(self, count: int, offset: int) -> None:
        self.row(offset).insert(min(self.x, self.cols - 1), count, self.cols)

    def delete_cells(self, count: int, offset: int) -> None:
        self.row(offset).delete(min(self.x, self.cols - 1), count)

    def erase_cells(self, count: int, offset: int) -> None:
        x = min(self.x, self.cols - 1)
        self._erase(self.row(offset), x, min(x + count, self.cols))
        self._jumped = min(self._jumped, _STEPPED)

    def erase_line(self, part: int) -> None:
        if self.y < len(self.page) and part in (0, 1, 2):
            begin, end = ((self.x, self.cols), (0, self.x + 1), (0, self.cols))[part]
            self._erase(self.page[self.y], begin, min(end, self.cols))
        self._jumped = min(self._jumped, _STEPPED)

    def erase_below(self) -> None:
        for row in self.page[self.y + 1 :]:
            self._erase(row, 0, self.cols)
        self.erase_line(0)

    def erase_above(self) -> None:
        for row in self.page[: self.y]:
            self._erase(row, 0, self.cols)
        self.erase_line(1)

    def _erase(self, row: Row, begin: int, end: int) -> None:
        if self._jumped == _JUMPED and row.shows(begin, end):
            row.rewrites += 1
        if begin < self.cols == end:
            row.wrapped = False
        row.erase(begin, end)

    def clear(self) -> list[Row]:
        """Every row that was in use; the cursor stays."""
        page, self.page = self.page, []
        while page and page[-1].blank:
            page.pop()
        return page

    def resize(self, rows: int, cols: int) -> None:
        """Lines are wrapped anew, none is lost: what no longer fits leaves at the top."""
        if cols != self.cols:
            self.page, self.y, self.x = wrapped_anew(self.page, self.y, self.x, cols)
        self.cols = cols
        excess = max(self.y - rows + 1, len(self.used()) - rows, 0)
        self.gone += self.page[:excess]
        self.page = self.page[excess:][:rows]
        self.y = max(0, self.y - excess)
        self.x = min(self.x, cols)
        self.rows = rows
        self.top, self.bottom = 0, rows - 1
        self._saved = (max(0, self._saved[0] - excess), *self._saved[1:])
