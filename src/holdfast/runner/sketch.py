"""What stands on the row of the cursor and the few above it, drawn from the end of the log: the runner keeps no cells.

Less than an emulator: one screen of text and reverse video, enough to read a question or a menu where programs put
them. What lies before the piece of the log is not known, and is left blank.
"""

from __future__ import annotations

import re

from . import pen
from .characters import COLUMNS, decode
from .escapes import CONTROL, CSI, ESC, TEXT, Scanner, numbers, split_csi, split_esc
from .modes import ALTERNATE
from .prompts import ROWS_ABOVE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Parameters = tuple[int, ...]
    Action = Callable[["_Paper", Parameters], None]
    Line = list[str]
    Place = tuple[int, int, bool]

TAIL_BYTES = 16 << 10

# A cell in reverse video begins with this, which no text holds; the second cell of a wide character has no text.
_REVERSE = "\0"
_SECOND = ("", _REVERSE)
# Marks on one character: a hostile stream may stack thousands.
_CELL_CHARACTERS = 8
# Shared by all rows that hold nothing, and never written to.
_BLANK: Line = []

# What moves no cursor but along its line, and takes nothing away above it. Behind the last thing that is not of this
# kind, only the last few lines matter.
_PLAIN = rb"\[[0-9:;]*[mKnc]|\[\?(?!47[hl]|104[79][hl])[0-9]+[hlu]|\[[<=>][0-9;]*[a-z]|\]|\([B0]|[=>\\]"
_ODD = re.compile(rb"\x1b(?!" + _PLAIN + rb")|\xc2[\x80-\x9f]|[\x0b\x0c\x18\x1a]")
_LINE_END = b"\r\n"


class Sketch:
    """`rows` ends with the cursor's row. `column` counts cells, and is behind the last one where the next character
    would wrap. `inverse`: all left of the cursor is in reverse video."""

    __slots__ = ("column", "inverse", "rows")

    def __init__(self, rows: list[str], column: int, inverse: bool) -> None:
        self.rows = rows
        self.column = column
        self.inverse = inverse


def sketch(
    tail: bytes, at: int, rows: int, cols: int, *, clear: dict[str, Any] | None = None, alternate: bool = False
) -> Sketch:
    """From the end of the log, whose first byte here is that at offset `at`. `clear` is the newest mark of a screen
    that was cleared, `alternate` which screen is shown now."""
    paper = _Paper(rows, cols)
    if clear is not None and clear["alt"] == alternate and at <= clear["offset"] <= at + len(tail):
        paper.go_on(clear["state"])
        tail = tail[clear["offset"] - at :]
    elif at == 0:
        paper.row = 0
    else:
        # It may begin in the middle of a sequence: behind the end of a line, or else before an ESC, is outside of any.
        end = tail.find(b"\n") + 1
        tail = tail[end or max(0, tail.find(b"\x1b")) :]
    paper.draw(_last_lines(tail))
    return paper.near_cursor()


def _last_lines(tail: bytes) -> bytes:
    """All that matters of it, as far as that can be seen at once."""
    begin = len(tail)
    for _ in range(ROWS_ABOVE + 2):
        begin = tail.rfind(_LINE_END, 0, begin)
        if begin < 0:
            return tail
    return tail if _ODD.search(tail, begin) else tail[begin + len(_LINE_END) :]


class _Paper:
    def __init__(self, rows: int, cols: int) -> None:
        self.rows = rows
        self.cols = cols
        self.reset()
        self.row = rows - 1
        self._last = ""

    def reset(self) -> None:
        self.row = self.col = 0
        self.wrap_due = False
        self.wraps = True
        self.inverse = False
        self.top, self.bottom = 0, self.rows - 1
        self.lines: list[Line] = [_BLANK] * self.rows
        self._main: tuple[list[Line], Place] | None = None
        self._saved: Place = (0, 0, False)

    def go_on(self, state: dict[str, Any]) -> None:
        """From a state of the tracker."""
        self._place((state["row"], state["col"], "inverse" in state["pen"]))
        self.wraps = 7 in state["modes"]["dec"]
        if state["size"][0] == self.rows:
            self.top, self.bottom = state["margins"][:2]

    def draw(self, data: bytes) -> None:
        # Sequences repeat, and to take one apart is most of the cost.
        known: dict[bytes, tuple[Action, Parameters]] = {}
        for kind, _, raw in Scanner().steps(data):
            if kind == TEXT:
                self.write(decode(raw))
            elif kind == CSI:
                action = known.get(raw)
                if action is None:
                    action = known[raw] = _action(raw)
                action[0](self, action[1])
            elif kind == CONTROL:
                control = _CONTROLS.get(raw)
                if control is not None:
                    control(self)
            elif kind == ESC:
                escape = _ESCAPES.get(b"".join(split_esc(raw)))
                if escape is not None:
                    escape(self)

    def near_cursor(self) -> Sketch:
        column = self.col + self.wrap_due
        left = self.lines[self.row][:column]
        inverse = len(left) == column > 0 and all(cell[:1] == _REVERSE for cell in left)
        near = self.lines[max(0, self.row - ROWS_ABOVE) : self.row + 1]
        return Sketch([_text(line) for line in near], column, inverse)

    # Text.

    def write(self, text: str) -> None:
        if text.isascii():
            cells = [_REVERSE + character for character in text] if self.inverse else list(text)
        else:
            cells = self._cells(text)
        self._last = text[-1]
        if not self.wraps and len(cells) > self.cols - self.col:
            del cells[self.cols - self.col - 1 : -1]
        while cells:
            if self.wrap_due and self.wraps:
                self.col = 0
                self.linefeed()
            fitting = self.cols - self.col
            # Both halves of a wide character stand on one row.
            if len(cells) > fitting and cells[fitting] in _SECOND:
                fitting -= 1
            if not fitting and not self.col:
                return  # a screen of one column
            self._put(cells[:fitting])
            self.col += min(fitting, len(cells))
            cells = cells[fitting:]
            if self.col >= self.cols or cells:
                self.col = self.cols - 1
                self.wrap_due = self.wraps

    def _cells(self, text: str) -> list[str]:
        mark = _REVERSE if self.inverse else ""
        cells: list[str] = []
        for character in text:
            columns = COLUMNS[character]
            if columns:
                cells.append(mark + character)
                if columns == 2:
                    cells.append(mark)
            elif cells:
                _add_mark(cells, len(cells) - 1, character)
            elif self.col or self.wrap_due:
                _add_mark(self._line(), self.col - (not self.wrap_due), character)
        return cells

    def _line(self) -> Line:
        """The cursor's, to write on, as long as up to the cursor."""
        line = self.lines[self.row]
        if line is _BLANK:
            line = self.lines[self.row] = []
        if len(line) < self.col:
            line += [" "] * (self.col - len(line))
        return line

    def _put(self, cells: list[str]) -> None:
        self._line()[self.col : self.col + len(cells)] = cells

    # Movement.

    def move(self, row: int, col: int) -> None:
        self.wrap_due = False
        self.row = max(0, min(row, self.rows - 1))
        self.col = max(0, min(col, self.cols - 1))

    def up(self, count: int, *, first: bool = False) -> None:
        limit = self.top if self.row >= self.top else 0
        self.move(max(self.row - count, limit), 0 if first else self.col)

    def down(self, count: int, *, first: bool = False) -> None:
        limit = self.bottom if self.row <= self.bottom else self.rows
        self.move(min(self.row + count, limit), 0 if first else self.col)

    def linefeed(self) -> None:
        self.wrap_due = False
        if self.row == self.bottom:
            del self.lines[self.top]
            self.lines.insert(self.bottom, _BLANK)
        elif self.row < self.rows - 1:
            self.row += 1

    def reverse_index(self) -> None:
        self.wrap_due = False
        if self.row == self.top:
            del self.lines[self.bottom]
            self.lines.insert(self.top, _BLANK)
        elif self.row:
            self.row -= 1

    def next_line(self) -> None:
        self.linefeed()
        self.col = 0

    def tab(self) -> None:
        if self.col < self.cols - 1:
            self.move(self.row, (self.col | 7) + 1)

    def save(self) -> None:
        self._saved = (self.row, self.col, self.inverse)

    def restore(self) -> None:
        self._place(self._saved)

    def _place(self, place: Place) -> None:
        self.move(place[0], place[1])
        self.inverse = place[2]

    # What takes away.

    def erase_display(self, what: int = 0) -> None:
        if what == 0:
            self.erase_line()
            self.lines[self.row + 1 :] = [_BLANK] * (self.rows - self.row - 1)
        elif what == 1:
            self.erase_line(1)
            self.lines[: self.row] = [_BLANK] * self.row
        elif what == 2:
            self.lines = [_BLANK] * self.rows

    def erase_line(self, what: int = 0) -> None:
        self.wrap_due = False
        if what == 0:
            del self._line()[self.col :]
        elif what == 1:
            self._line()[: self.col + 1] = [" "] * (self.col + 1)
        elif what == 2:
            self.lines[self.row] = _BLANK

    def erase(self, count: int) -> None:
        self.wrap_due = False
        self._put([" "] * min(count, self.cols - self.col))

    def delete(self, count: int) -> None:
        self.wrap_due = False
        del self._line()[self.col : self.col + count]

    def insert(self, count: int) -> None:
        self.wrap_due = False
        line = self._line()
        line[self.col : self.col] = [" "] * min(count, self.cols - self.col)
        del line[self.cols :]

    def shift_here(self, count: int, *, up: bool) -> None:
        if self.top <= self.row <= self.bottom:
            self.shift(self.row, count, up=up)
            self.move(self.row, 0)

    def shift(self, top: int, count: int, *, up: bool) -> None:
        """The rows from `top` to the bottom margin, by so many."""
        end = self.bottom + 1
        count = min(count, end - top)
        kept = self.lines[top + count : end] if up else self.lines[top : end - count]
        blank = [_BLANK] * count
        self.lines[top:end] = kept + blank if up else blank + kept

    # Modes.

    def margins(self, parameters: Parameters) -> None:
        top = _one(parameters)
        bottom = min(parameters[1] if parameters[1:] and parameters[1] else self.rows, self.rows)
        if top < bottom:
            self.top, self.bottom = top - 1, bottom - 1
            self.move(0, 0)

    def set_modes(self, parameters: Parameters, on: bool) -> None:
        for number in parameters:
            if number == 7:
                self.wraps = on
            elif number in ALTERNATE:
                self._switch(on)

    def _switch(self, on: bool) -> None:
        if on:
            if self._main is None:
                self._main = (self.lines, (self.row, self.col, self.inverse))
            self.lines = [_BLANK] * self.rows
            return
        self.lines, place = self._main or ([_BLANK] * self.rows, (self.row, self.col, self.inverse))
        self._place(place)
        self._main = None

    def reverse(self, how: Parameters) -> None:
        """On, off, or as it was."""
        if how:
            self.inverse = bool(how[0])

    def repeat(self, count: int) -> None:
        if self._last and COLUMNS[self._last]:
            self.write(self._last * min(count, self.cols))


def _add_mark(cells: list[str], at: int, mark: str) -> None:
    if cells[at] in _SECOND:
        at -= 1
    if len(cells[at]) < _CELL_CHARACTERS:
        cells[at] += mark


def _text(line: Line) -> str:
    """As it is read, each half of a wide character whose other half was overwritten being blank."""
    text: list[str] = []
    for at, cell in enumerate(line):
        shown = cell[1:] if cell[:1] == _REVERSE else cell
        if not shown:
            shown = "" if at and text[-1] and COLUMNS[text[-1][0]] == 2 else " "
        elif COLUMNS[shown[0]] == 2 and (at + 1 == len(line) or line[at + 1] not in _SECOND):
            shown = " "
        text.append(shown)
    return "".join(text).rstrip()


def _action(raw: bytes) -> tuple[Action, Parameters]:
    prefix, body, intermediates, final = split_csi(raw)
    name = prefix + intermediates + final
    if name != b"m":
        return _SEQUENCES.get(name, _nothing), numbers(body)
    resets, strokes = pen.parse(body)
    inverse = [value is not None for part, value in strokes if part == "inverse"]
    return _Paper.reverse, tuple(map(int, inverse[-1:] or [False] * resets))


def _nothing(_paper: _Paper, _parameters: Parameters) -> None:
    pass


def _one(parameters: Parameters) -> int:
    return parameters[0] or 1 if parameters else 1


_CONTROLS: dict[bytes, Callable[[_Paper], None]] = {
    b"\x08": lambda paper: paper.move(paper.row, paper.col - 1),
    b"\x09": _Paper.tab,
    **dict.fromkeys((b"\x0a", b"\x0b", b"\x0c"), _Paper.linefeed),
    b"\x0d": lambda paper: paper.move(paper.row, 0),
}
_ESCAPES: dict[bytes, Callable[[_Paper], None]] = {
    b"7": _Paper.save,
    b"8": _Paper.restore,
    b"D": _Paper.linefeed,
    b"E": _Paper.next_line,
    b"M": _Paper.reverse_index,
    b"c": _Paper.reset,
}
_SEQUENCES: dict[bytes, Callable[[_Paper, Parameters], None]] = {
    b"A": lambda paper, given: paper.up(_one(given)),
    b"B": lambda paper, given: paper.down(_one(given)),
    b"C": lambda paper, given: paper.move(paper.row, paper.col + _one(given)),
    b"D": lambda paper, given: paper.move(paper.row, paper.col - _one(given)),
    b"E": lambda paper, given: paper.down(_one(given), first=True),
    b"F": lambda paper, given: paper.up(_one(given), first=True),
    b"G": lambda paper, given: paper.move(paper.row, _one(given) - 1),
    b"d": lambda paper, given: paper.move(_one(given) - 1, paper.col),
    **dict.fromkeys((b"H", b"f"), lambda paper, given: paper.move(_one(given) - 1, _one(given[1:]) - 1)),
    b"J": lambda paper, given: paper.erase_display(*given[:1]),
    b"K": lambda paper, given: paper.erase_line(*given[:1]),
    b"X": lambda paper, given: paper.erase(_one(given)),
    b"P": lambda paper, given: paper.delete(_one(given)),
    b"@": lambda paper, given: paper.insert(_one(given)),
    b"b": lambda paper, given: paper.repeat(_one(given)),
    b"L": lambda paper, given: paper.shift_here(_one(given), up=False),
    b"M": lambda paper, given: paper.shift_here(_one(given), up=True),
    b"S": lambda paper, given: paper.shift(paper.top, _one(given), up=True),
    b"T": lambda paper, given: paper.shift(paper.top, _one(given), up=False),
    b"r": _Paper.margins,
    b"s": lambda paper, _: paper.save(),
    b"u": lambda paper, _: paper.restore(),
    b"?h": lambda paper, given: paper.set_modes(given, True),
    b"?l": lambda paper, given: paper.set_modes(given, False),
}
