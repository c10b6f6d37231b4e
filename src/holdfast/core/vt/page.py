"""The text on a terminal's screen: rows of characters under the tracker's cursor, without colours.

Rows that scroll out are kept until they are taken: they are the text of a log. Each row knows where in the output it
began and how often it was rewritten, which no emulator knows.
"""

from __future__ import annotations

from .cursor import Cursor, first
from .parser import CONTROL, CSI, ESC, TEXT, split_esc
from .sequences import State
from .widths import COLUMNS, decode, last_shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Parameters = tuple[int, ...]
    # Where the bytes of a line begin in the raw stream, and its text, with its LF unless it continues.
    Line = tuple[int, str]
    # The rows of a screen, row and column of its cursor, and whether the next character wraps.
    Place = tuple[list["Row"], int, int, bool]


# Special graphics and British; all other character sets count as ASCII.
CHARSETS = {
    "0": dict(zip(range(0x5F, 0x7F), " ◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·")),
    "A": {0x23: "£"},
}
# A column that belongs to the cell before it: after a wide character, and after a TAB that is kept as such.
COVERED = ""
# The last column of a row that had no room for the wide character that continues the line. Not part of the line.
FREE = "\0"
# Hostile output stacks thousands of accents on one character.
_COMBINED_MAX_CHARS = 32
# How the cursor got to its place: a step back within the line is editing, a jump begins a rewrite.
_STEPPED, _JUMPED = 1, 2
_BACKSPACE, _RETURN = b"\x08", b"\x0d"
_LINE_FEEDS = (b"\x0a", b"\x0b", b"\x0c")
_DOWN = (b"D", b"E")


def narrow(text: str) -> bool:
    """Whether every character takes one column."""
    return text.isascii() or all(COLUMNS[each] == 1 for each in set(text))


class Row:
    """`wrapped`: its line continues in the next row. `inverse`: the columns in reverse video. For the text of a log:
    `notes` are lines to be given before it; `given`: it was handed out before it left the screen; `changed`: it was
    written to since."""

    __slots__ = ("cells", "changed", "given", "inverse", "notes", "offset", "rewrites", "wrapped")

    def __init__(self, offset: int) -> None:
        self.cells: list[str] = []
        self.offset = offset
        self.rewrites = 0
        self.wrapped = False
        self.inverse: set[int] | None = None
        self.notes: list[Line] | None = None
        self.given = self.changed = False

    def __repr__(self) -> str:
        return f"Row({self.text()!r} at {self.offset}, {self.rewrites} rewrites)"

    def text(self) -> str:
        text = "".join(self.cells).replace(FREE, "")
        # A progress bar may have been overwritten with spaces; a row that was printed once is kept as it is.
        return text.rstrip() if self.rewrites and not self.wrapped else text

    @property
    def blank(self) -> bool:
        return not self.notes and not "".join(self.cells).strip()

    def shows(self, begin: int, end: int) -> bool:
        """Whether these columns have visible text."""
        return bool("".join(self.cells[begin:end]).strip())

    def covered(self, x: int, piece: Sequence[str], *, blank: bool) -> bool:
        """Whether the piece would overwrite visible text; without `blank`, only if with visible text."""
        under = self.cells[x : x + len(piece)]
        if blank:
            return bool("".join(under).strip())
        # After a step back, blanks delete what was typed.
        return any(old.strip() and new.strip() for old, new in zip(under, piece))

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
        """Join a character without a width to the one left of a column."""
        at = min(x, len(self.cells)) - 1
        while at >= 0 and self.cells[at] == COVERED:
            at -= 1
        if at >= 0 and self.cells[at] not in (FREE, "\t") and len(self.cells[at]) < _COMBINED_MAX_CHARS:
            self.cells[at] += character
            self.changed = True

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
        if self.inverse:
            self.inverse.difference_update(range(begin, end))
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
        """Replace a wide character or TAB that extends across the left border of this column with blanks."""
        cells = self.cells
        if at >= len(cells) or cells[at] != COVERED:
            return
        begin = end = at
        while begin > 0 and cells[begin] == COVERED:
            begin -= 1
        while end < len(cells) and cells[end] == COVERED:
            end += 1
        cells[begin:end] = " " * (end - begin)


class Page(Cursor):
    """The cursor with the text under it. `screen` has the rows from the top of the screen to the last one used, `gone`
    those that scrolled out, in order, until they are taken. `at` is the offset of the next output.

    While the next character wraps, erasing leaves the last column alone, so that no text is lost."""

    def __init__(self, rows: int, cols: int, offset: int = 0, *, keeps_tabs: bool = True) -> None:
        self.at = offset
        self.gone: list[Row] = []
        # Whether a TAB after the end of a row is kept as it was printed.
        self.keeps_tabs = keeps_tabs
        super().__init__(rows, cols)

    def reset(self) -> None:
        super().reset()
        self.screen = [Row(self.at)]
        self.jumped = 0

    def here(self) -> Row:
        """The row of the cursor."""
        while len(self.screen) <= self.row:
            self.screen.append(Row(self.at))
        return self.screen[self.row]

    @property
    def place(self) -> Place:
        return self.screen, self.row, self.col, self.pending_wrap

    @place.setter
    def place(self, place: Place) -> None:
        self.screen, self.row, self.col, self.pending_wrap = place

    def clear(self) -> list[Row]:
        """Empty the screen and return the rows that were used. The cursor stays."""
        screen, self.screen = self.screen, []
        while screen and screen[-1].blank:
            screen.pop()
        return screen

    # Printing.

    def write(self, raw: bytes) -> None:
        text = decode(raw)
        charset = CHARSETS.get(self.charsets[self.shift], {})
        once, self.single_shift = self.single_shift, 0
        if once:
            text = text[0].translate(CHARSETS.get(self.charsets[once], {})) + text[1:].translate(charset)
        elif charset:
            text = text.translate(charset)
        self._print(text)

    def repeat(self, parameters: Parameters) -> None:
        if self.last:
            self._print(decode(self.last) * min(first(parameters), self.cols * self.rows))

    def _print(self, text: str) -> None:
        if self.insert or not self.autowrap or not narrow(text):
            for character in text:
                self._print_one(character)
        else:
            at = 0
            while at < len(text):
                if self.pending_wrap:
                    self._wrap()
                piece = text[at : at + self._edge() - self.col + 1]
                self._put(piece)
                at += len(piece)
        character = last_shown(text)
        if character:
            self.last = character.encode()

    def _print_one(self, character: str) -> None:
        columns = COLUMNS[character]
        if not columns:
            self.here().combine(self.col + self.pending_wrap, character)
            return
        if columns > self.right - self.left + 1:
            return
        if self.pending_wrap and self.autowrap:
            self._wrap()
        self.pending_wrap = False
        if self.col + columns > self._edge() + 1:
            if self.autowrap:
                self._put([FREE])
                self._wrap()
            else:
                self.col = self._edge() + 1 - columns
        if self.insert:
            self.here().insert(self.col, columns, self.cols)
        self._put([character] + [COVERED] * (columns - 1))

    def _put(self, piece: Sequence[str]) -> None:
        row, begin, edge = self.here(), self.col, self._edge()
        end = begin + len(piece)
        if self.jumped and row.covered(begin, piece, blank=self.jumped == _JUMPED):
            row.rewrites += 1
            self.jumped = 0
        if end > len(row.cells):
            self.jumped = 0
        row.put(begin, piece)
        if "inverse" in self.pen:
            row.inverse = {*(row.inverse or ()), *range(begin, end)}
        elif row.inverse:
            row.inverse.difference_update(range(begin, end))
        self.col = min(end, edge)
        self.pending_wrap = self.autowrap and end > edge

    def _edge(self) -> int:
        return self.right if self.col <= self.right else self.cols - 1

    def _wrap(self) -> None:
        row = self.here()
        row.wrapped = True
        self.pending_wrap = False
        self.col = self.left
        # The same line continues: its offset stays.
        at, self.at = self.at, row.offset
        self.next_row()
        self.at = at
        if self.screen[self.row].cells:
            self.jumped = _JUMPED

    def tab_forward(self, parameters: Parameters) -> None:
        """A TAB only moves the cursor over existing text."""
        for _ in range(min(first(parameters), self.cols)):
            begin = self.col
            super().tab_forward(())
            row = self.here()
            if self.col > begin >= len(row.cells) and self.keeps_tabs and self.tabs.are_default:
                row.put(begin, ["\t"] + [COVERED] * (self.col - begin - 1))

    # Scrolling.

    def next_row(self) -> None:
        if self.row == self.bottom:
            self._scroll_up(1, self.top)
        else:
            super().next_row()
        row = self.here()
        if not row.cells:
            # What is printed on it begins here, even if the cursor was on it before.
            row.offset = self.at

    def reverse_index(self) -> None:
        if self.row == self.top:
            self._scroll_down(1, self.top)
        super().reverse_index()

    def scroll_up(self, parameters: Parameters) -> None:
        self._scroll_up(first(parameters), self.top)

    def scroll_down(self, parameters: Parameters) -> None:
        # With five parameters it is a command about the mouse.
        if len(parameters) < 5:
            self._scroll_down(first(parameters), self.top)

    def insert_lines(self, parameters: Parameters) -> None:
        if self.top <= self.row <= self.bottom:
            self._scroll_down(first(parameters), self.row)
        super().insert_lines(parameters)

    def delete_lines(self, parameters: Parameters) -> None:
        if self.top <= self.row <= self.bottom:
            self._scroll_up(first(parameters), self.row, deleting=True)
        super().delete_lines(parameters)

    def _scroll_up(self, count: int, top: int, *, deleting: bool = False) -> None:
        """Rows leave at the top of the region. They are text unless lines are being deleted."""
        screen = self.screen
        for _ in range(min(count, self.bottom - top + 1)):
            if len(screen) <= top:
                return
            if top:
                screen[top - 1].wrapped = False
            row = screen.pop(top)
            if len(screen) >= self.bottom:
                screen.insert(self.bottom, Row(self.at))
            if not deleting:
                self.gone.append(row)
            elif row.notes:
                self._keep_notes(row, top)

    def _scroll_down(self, count: int, top: int) -> None:
        screen = self.screen
        for _ in range(min(count, self.bottom - top + 1)):
            if len(screen) <= top:
                return
            if len(screen) > self.bottom:
                row = screen.pop(self.bottom)
                if row.notes:
                    self._keep_notes(row, self.bottom - 1)
            if top:
                screen[top - 1].wrapped = False
            screen.insert(top, Row(self.at))
            if len(screen) > self.bottom:
                screen[self.bottom].wrapped = False

    def _keep_notes(self, row: Row, index: int) -> None:
        while len(self.screen) <= max(index, 0):
            self.screen.append(Row(self.at))
        there = self.screen[max(index, 0)]
        there.notes = [*(row.notes or ()), *(there.notes or ())]

    # Erasing.

    def erase_display(self, parameters: Parameters) -> None:
        part = parameters[0] if parameters else 0
        if part <= 2:
            for row in (self.screen[self.row + 1 :], self.screen[: self.row], self.screen)[part]:
                self._erase(row, 0, self.cols)
            self.erase_line(parameters)

    def erase_line(self, parameters: Parameters) -> None:
        part = parameters[0] if parameters else 0
        x = self.col + self.pending_wrap
        if self.row < len(self.screen) and part <= 2:
            begin, end = ((x, self.cols), (0, x + 1), (0, self.cols))[part]
            self._erase(self.screen[self.row], begin, min(end, self.cols))
        self.jumped = min(self.jumped, _STEPPED)

    def erase_cells(self, parameters: Parameters) -> None:
        self._erase(self.here(), self.col, min(self.col + first(parameters), self.cols))
        self.jumped = min(self.jumped, _STEPPED)

    def insert_cells(self, parameters: Parameters) -> None:
        self.here().insert(self.col, first(parameters), self.cols)

    def delete_cells(self, parameters: Parameters) -> None:
        self.here().delete(self.col, first(parameters))

    def _erase(self, row: Row, begin: int, end: int) -> None:
        if self.jumped == _JUMPED and row.shows(begin, end):
            row.rewrites += 1
        if begin < self.cols == end:
            row.wrapped = False
        row.erase(begin, end)

    # Another size.

    def resize(self, rows: int, cols: int) -> None:
        """Wrap the lines at the new width. No line is lost: rows that do not fit leave at the top."""
        saved = self.saved[0]
        places = [(self.row, self.col + self.pending_wrap)]
        if saved is not None:
            places.append((saved["row"], saved["col"] + saved["pending_wrap"]))
        if cols != self.cols:
            self.screen, places = _rewrapped(self.screen, places, cols)
        (row, col), *_ = places
        excess = max(row - rows + 1, len(used(self.screen, row)) - rows, 0)
        self.gone += self.screen[:excess]
        self.screen = self.screen[excess:][:rows]
        self.rows, self.cols = rows, cols
        self.row = max(0, row - excess)
        self.col, self.pending_wrap = min(col, cols - 1), col >= cols
        self.no_margins()
        if saved is not None:
            row, col = places[1]
            place = {"row": max(0, row - excess), "col": min(col, cols - 1), "pending_wrap": col >= cols}
            self.saved[0] = {**saved, **place}


def used(screen: list[Row], row: int) -> list[Row]:
    """The rows down to that of the cursor, or to the last one with text."""
    last = len(screen)
    while last > row + 1 and screen[last - 1].blank:
        last -= 1
    return screen[:last]


def _rewrapped(screen: list[Row], places: list[tuple[int, int]], cols: int) -> tuple[list[Row], list[tuple[int, int]]]:
    """The rows of the same lines at another width, and where these places (row, column) are then."""
    rows: list[Row] = []
    moved: dict[tuple[int, int], tuple[int, int]] = {}
    # Of the places in the line that is being put together: how far from its beginning.
    along: dict[tuple[int, int], int] = {}
    line: list[str] = []
    head: Row | None = None
    for number, row in enumerate(screen):
        along.update({place: len(line) + place[1] for place in places if place[0] == number})
        if head is None:
            head = row
        else:
            head.rewrites = max(head.rewrites, row.rewrites)
            head.changed = head.changed or row.changed
            if row.notes:
                head.notes = [*(head.notes or ()), *row.notes]
        line += [cell for cell in row.cells if cell != FREE]
        if row.wrapped and number + 1 < len(screen):
            continue
        begin = len(rows)
        rows += _pieces(head, line, cols)
        for place, at in along.items():
            down = min(at // cols, len(rows) - begin - 1)
            moved[place] = begin + down, min(at - down * cols, cols)
        along.clear()
        line, head = [], None
    # A place below the last row.
    added = len(rows) - len(screen)
    return rows, [moved.get((row, col), (row + added, col)) for row, col in places]


def _pieces(head: Row, cells: list[str], cols: int) -> list[Row]:
    """The rows of one line. A wide character is not cut: the column before it stays free."""
    rows: list[Row] = []
    at = 0
    while at < len(cells) or not rows:
        row = head
        if rows:
            row = Row(head.offset)
            row.rewrites, row.given, row.changed = head.rewrites, head.given, head.changed
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


class PageState(State):
    """The state of a terminal with the text of its screen. It answers no questions."""

    def __init__(self, rows: int, cols: int, offset: int = 0, *, keeps_tabs: bool = True) -> None:
        self.page = Page(rows, cols, offset, keeps_tabs=keeps_tabs)
        super().__init__(self.page)
        # The rows and the cursor of the main screen, while the alternate one is shown.
        self._main: Place | None = None

    def take(self, kind: int, at: int, raw: bytes) -> None:
        """Carry out one step of the parser."""
        page = self.page
        page.at = self.at = at
        if kind == TEXT:
            page.write(raw)
        elif kind == CONTROL:
            if raw in _LINE_FEEDS:
                page.at = at + 1
            elif raw == _BACKSPACE:
                page.jumped = page.jumped or _STEPPED
            elif raw == _RETURN and page.col:
                page.jumped = _JUMPED
            control = self.controls.get(raw)
            if control is not None:
                control()
        elif kind in (CSI, ESC):
            row, col = page.row, page.col
            if kind == CSI:
                action, argument = self.known.get(raw) or self.csi(raw)
                action(argument)
            else:
                intermediates, final = split_esc(raw)
                self.escape(intermediates, final)
                if final in _DOWN:
                    row = page.row
            if (page.row, page.col) != (row, col):
                page.jumped = _JUMPED

    def main_rows(self) -> tuple[list[Row], int]:
        """The rows of the main screen, whichever is shown, and in which of them its cursor is."""
        return (self.page.screen, self.page.row) if self._main is None else self._main[:2]

    def resize(self, rows: int, cols: int) -> None:
        """Both screens get this size; the alternate one is cropped."""
        page = self.page
        shown = page.place if self._main is not None else None
        if self._main is not None:
            page.place = self._main
        page.resize(rows, cols)
        if shown is not None:
            self._main = page.place
            screen, row, col, _ = shown
            for each in screen:
                each.erase(cols, len(each.cells))
            page.place = screen[:rows], min(row, rows - 1), min(col, cols - 1), False

    def cleared(self, alternate: bool) -> None:
        pass

    def _answer(self, reply: str) -> None:
        pass

    def _switch_screen(self, number: int, on: bool) -> None:
        was_alternate = self.modes.alternate
        if on and not was_alternate:
            self._main = self.page.place
        if on and (number == 1049 or not was_alternate):
            self.page.screen = []
        super()._switch_screen(number, on)
        if was_alternate and not on:
            self._show_main()

    def _reset(self) -> None:
        if self.modes.alternate:
            self._show_main()
        super()._reset()

    def _show_main(self) -> None:
        self.page.screen = [] if self._main is None else self._main[0]
        self._main = None
