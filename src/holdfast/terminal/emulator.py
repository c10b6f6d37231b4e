"""avt itself, and what has to be done around it: panics, tab stops, wide characters at other widths, and taking a
screen apart so that it can be built again with its history.

Here everything is as avt has it: one character a cell, its own pens. What they mean is for `grid.py` to say.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ..runner.characters import COLUMNS
from .rows import Color, Style, sgr

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import ParamSpec, TypeVar

    from avt._avt import Cell as AvtCell
    from avt._avt import Color as AvtColor
    from avt._avt import Line, Pen
    from avt._avt.terminal import Cursor

    P = ParamSpec("P")
    T = TypeVar("T")
    Size = tuple[int, int]

# Every eight columns, up to the widest page there is.
_DEFAULT_STOPS = list(range(8, 1000, 8))

# avt's dump prints the cells of the main screen first; behind them it goes on with an encoded CSI or with this.
_BEHIND_CELLS = re.compile("\x9b|\x1b\\[m")
_ENTER, _LEAVE = "\x9b?1047h", "\x1b[?1047l"
_REPEATED = re.compile("(.)\x1b\\[([0-9]+)b", re.DOTALL)
_POSITION = re.compile("\x9b([0-9]+);([0-9]+)H")
# How it says tab stops that are not where they are at first.
_TAB_STOPS = re.compile("\x9b5W((?:\x9b[0-9]+`\x1b\\[W)*)")
_COLUMN = re.compile("\x9b([0-9]+)`")


class GridFailed(Exception):
    """The emulator gave up; this grid is of no more use."""


class Parts(NamedTuple):
    """What makes a new emulator the same as another one. `main` is to be fed at the size the main screen has, which
    is another where that changed under the alternate one; then the size changes, and the rest is fed."""

    main_size: Size
    main: str
    size: Size
    screen: str
    # Tab stops of columns that are not there now.
    stops_beyond: list[int]


class Emulator:
    def __init__(self, rows: int, cols: int, history: int) -> None:
        from avt._avt import Vt
        from avt._avt.util import TextUnwrapper

        self._new = Vt
        self._unwrapper = TextUnwrapper
        self._limit = history
        self._vt = Vt(cols, rows, history)
        self._stops_beyond = _DEFAULT_STOPS
        # Rows that went off the top of the history.
        self.dropped = 0
        # Whoever feeds it knows, and says so.
        self.alt = False
        self.main_size = (rows, cols)

    def feed(self, text: str) -> None:
        self.dropped += len(_guarded(self._vt.feed_str, text)[1])

    @property
    def size(self) -> Size:
        cols, rows = self._vt.size
        return rows, cols

    @property
    def cursor(self) -> Cursor:
        return self._vt.cursor

    def column(self) -> tuple[int, int]:
        """Column of the cursor and number of columns; as large as that, it waits for the next character."""
        return self._vt.cursor.col, self._vt.size[0]

    def row(self) -> int:
        """Row of the cursor."""
        return self._vt.cursor.row

    def page(self) -> list[Line]:
        return _guarded(self._vt.view)

    def lines(self) -> list[Line]:
        """History and page, of the active screen."""
        return _guarded(self._vt.lines)

    def wrapped(self, lines: Sequence[Line]) -> list[bool]:
        """Of each line, whether it goes on in the next."""
        unwrapper = self._unwrapper()
        return [unwrapper.push(line) is None for line in lines]

    # Another size.

    def resize(self, rows: int, cols: int) -> None:
        if cols == self.size[1]:
            _guarded(self._vt.resize, cols, rows)
        else:
            stops = self._tab_stops()
            stepped = self._step_off_wide_line()
            _guarded(self._vt.resize, cols, rows)
            self._set_tab_stops(stops)
            if stepped:
                self._step_back()
        if not self.alt:
            self.main_size = rows, cols

    def _step_off_wide_line(self) -> bool:
        """avt wraps wide characters anew, but miscounts where that leaves the cursor, and may then drop the end of the
        line as something below it. So at the end of a line with such characters it is put behind that line."""
        cursor = self.cursor
        page = self.page()
        if self.alt or any(line.text.strip() for line in page[cursor.row + 1 :]):
            return False
        # On the last column it may be for want of room.
        if any(cell.char != " " for cell in page[cursor.row].cells[cursor.col : -1]):
            return False
        above = page[: cursor.row + 1]
        first = cursor.row
        wrapped = self.wrapped(above)
        while first and wrapped[first - 1]:
            first -= 1
        if all(COLUMNS[char] < 2 for line in above[first:] for char in set(line.text)):
            return False
        self.feed("\r\n")
        return self.cursor.col == 0

    def _step_back(self) -> None:
        row = self.cursor.row
        if row:
            used = [cell for cell in self._vt[row - 1].cells if cell.width]
            while used and used[-1].char == " ":
                used.pop()
            self.feed(f"\x1b[A\x1b[{sum(cell.width for cell in used) + 1}G")

    def _tab_stops(self) -> list[int]:
        """Those of all columns, from 0: avt loses some when it gets wider."""
        changed = _TAB_STOPS.search(_guarded(self._vt.dump))
        if changed is None:
            return _DEFAULT_STOPS
        stops = [int(column) - 1 for column in _COLUMN.findall(changed[1])]
        # To clear them all is to clear those too.
        return stops + self._beyond() if stops else []

    def _beyond(self) -> list[int]:
        return [stop for stop in self._stops_beyond if stop >= self.size[1]]

    def _set_tab_stops(self, stops: list[int]) -> None:
        col, cols = self.column()
        self._stops_beyond = [stop for stop in stops if stop >= cols]
        if self._tab_stops() != stops:
            self.feed(_said_tab_stops([stop for stop in stops if stop < cols]) + f"\x1b[{col + 1}G")

    # Taken apart and built again.

    def parts(self) -> Parts:
        return self.take_apart()[0]

    def take_apart(self) -> tuple[Parts, list[Line]]:
        """All there is to know, and the lines of the main screen with its history. These can only be read where that
        screen is active: if it is not, the emulator is built anew on the way."""
        stops = self._tab_stops()
        state = _guarded(self._vt.dump)
        cells = _BEHIND_CELLS.search(state)
        # avt repeats characters by REP, which takes half of a wide one.
        state = _REPEATED.sub(lambda match: match[1] * (int(match[2]) + 1), state[cells.start() :] if cells else "")
        beyond = self._beyond()
        if not self.alt:
            lines = self.lines()
            screen = self._written(lines) + _clamped(state, self.size)
            return Parts(self.size, "", self.size, screen, beyond), lines
        of_main, _, of_other = state.partition(_ENTER)
        if self.main_size == self.size:
            self.feed(_LEAVE)
            lines = self.lines()
            screen = self._written(lines) + _clamped(of_main + _ENTER + of_other, self.size)
            parts = Parts(self.size, "", self.size, screen, beyond)
        else:
            size = self.size
            _guarded(self._vt.resize, *reversed(self.main_size))
            self.feed(_LEAVE)
            main = self._written(self.lines()) + _clamped(_TAB_STOPS.sub("", of_main), self.main_size) + _ENTER
            # As it will be on return.
            _guarded(self._vt.resize, *reversed(size))
            lines = self.lines()
            screen = _said_tab_stops([stop for stop in stops if stop < size[1]]) + _clamped(of_other, size)
            parts = Parts(self.main_size, main, size, screen, beyond)
        self.build(parts)
        return parts, lines

    def build(self, parts: Parts) -> None:
        self.main_size = parts.main_size
        self._stops_beyond = parts.stops_beyond
        self._vt = self._new(parts.main_size[1], parts.main_size[0], self._limit)
        if parts.main:
            self.feed(parts.main)
            _guarded(self._vt.resize, parts.size[1], parts.size[0])
        self.feed(parts.screen)

    def _written(self, lines: Sequence[Line]) -> str:
        """The lines as they are to be printed again."""
        out: list[str] = []
        pen: Pen | None = None
        for line, wrapped in zip(lines, self.wrapped(lines), strict=True):
            for chunk in line.chunks(other_pen):
                if pen is None or chunk[0].pen != pen:
                    pen = chunk[0].pen
                    out.append(_pen(pen))
                out.append("".join([cell.char for cell in chunk if cell.width]))
            if not wrapped:
                out.append("\r\n")
        # The last row is no line that ended, or the page would scroll.
        if out and out[-1] == "\r\n":
            out.pop()
        return "".join(out)


def other_pen(one: AvtCell, other: AvtCell) -> bool:
    return one.pen != other.pen


def style(pen: Pen) -> Style:
    return Style(
        fg=_color(pen.foreground),
        bg=_color(pen.background),
        bold=pen.bold,
        faint=pen.faint,
        italic=pen.italic,
        blink=pen.blink,
        inverse=pen.inverse,
        strike=pen.strikethrough,
        underline=int(pen.underline),
    )


def _color(color: AvtColor | None) -> Color:
    if color is None:
        return None
    # The classes of its two kinds are known to the stubs alone by name.
    parts: Sequence[int] = color  # type: ignore[assignment]
    if type(color).__name__ == "Indexed":
        return parts[0]
    return f"#{parts[0]:02x}{parts[1]:02x}{parts[2]:02x}"


def _pen(pen: Pen) -> str:
    # The bare form is what ends the cells in avt's dump.
    text = sgr(style(pen))
    return text if text != "\x1b[m" else "\x1b[0m"


def _clamped(state: str, size: Size) -> str:
    """Positions that were saved before the screen became smaller are said as they will count."""
    rows, cols = size
    return _POSITION.sub(lambda at: f"\x9b{min(int(at[1]), rows)};{min(int(at[2]), cols)}H", state)


def _said_tab_stops(stops: list[int]) -> str:
    return "\x1b[5W" + "".join(f"\x1b[{stop + 1}G\x1b[W" for stop in stops)


def _guarded(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return call(*args, **kwargs)
    except BaseException as error:
        # Of no module that could be imported, and no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise GridFailed(f"the emulator panicked: {error}") from None
