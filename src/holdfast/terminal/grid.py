"""The only module that uses the emulator: a screen with cells, fed with the output for a terminal.

The emulator is asciinema's avt (`pyavt`). `avt_input.py` rewrites for it what terminals understand, and keeps what its
cells cannot hold. Not shown: left and right margins, double-height lines, protected cells, reverse wrap-around,
pictures, the erasing of history (`CSI 3 J`), and colours changed by OSC 4, 10 or 11 (an index of the palette stays an
index). While the next character wraps, erasing leaves the last column alone. A change of width rewraps lines on the
alternate screen too; programs redraw then. A panic inside avt, which hostile input can cause, is `GridFailed`: the
caller builds another grid from the log, or reports the failure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ..core.vt.cursor import COLS_MAX, ROWS_MAX
from ..core.vt.widths import COLUMNS
from ..errors import BadSize
from .avt_input import AvtInput
from .cells import Cell, Color, Row, Style, sgr
from .stand_ins import Extras

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


# avt and the work around its defects: panics, tab stops, wide characters at other widths, and taking a screen apart so
# that it can be built again with its history. Here a cell is a character with a pen of avt; `Grid` knows what stand-ins
# mean.


# Every eight columns, up to the widest page there is.
_DEFAULT_STOPS = list(range(8, 1000, 8))

# The dump of avt prints the cells of the main screen first; then an encoded CSI or this follows.
_BEHIND_CELLS = re.compile("\x9b|\x1b\\[m")
_ENTER, _LEAVE = "\x9b?1047h", "\x1b[?1047l"
_REPEATED = re.compile("(.)\x1b\\[([0-9]+)b", re.DOTALL)
_POSITION = re.compile("\x9b([0-9]+);([0-9]+)H")
# The dump of changed tab stops.
_TAB_STOPS = re.compile("\x9b5W((?:\x9b[0-9]+`\x1b\\[W)*)")
_COLUMN = re.compile("\x9b([0-9]+)`")


class GridFailed(Exception):
    """The emulator failed; this grid cannot be used any more."""


class Parts(NamedTuple):
    """What makes a new emulator equal to another one. `main` is fed at the size of the main screen, which differs if
    the size changed while the alternate one was shown; then the size changes, and `screen` is fed."""

    main_size: Size
    main: str
    size: Size
    screen: str
    # Tab stops beyond the current width.
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
        # How many rows were dropped from the history.
        self.dropped = 0
        # Set by the caller, which knows the screen from the output.
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

    def place(self) -> tuple[int, int, int]:
        """Row and column of the cursor, and the number of columns. A column as large as that: the next character
        wraps."""
        cursor = self._vt.cursor
        return cursor.row, cursor.col, self._vt.size[0]

    def page(self) -> list[Line]:
        return _guarded(self._vt.view)

    def lines(self) -> list[Line]:
        """History and page of the active screen."""
        return _guarded(self._vt.lines)

    def wrapped(self, lines: Sequence[Line]) -> list[bool]:
        """Of each line, whether it continues in the next."""
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
        """When avt rewraps a line with wide characters it miscounts where the cursor is, and may drop the end of the
        line. So at the end of such a line the cursor is moved below the line first."""
        cursor = self.cursor
        page = self.page()
        if self.alt or any(line.text.strip() for line in page[cursor.row + 1 :]):
            return False
        # On the last column the cursor may be because of a pending wrap.
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
        """The tab stops of all columns, from 0: avt loses some when it gets wider."""
        changed = _TAB_STOPS.search(_guarded(self._vt.dump))
        if changed is None:
            return _DEFAULT_STOPS
        stops = [int(column) - 1 for column in _COLUMN.findall(changed[1])]
        # Clearing all of them cleared those beyond the width too.
        return stops + self._beyond() if stops else []

    def _beyond(self) -> list[int]:
        return [stop for stop in self._stops_beyond if stop >= self.size[1]]

    def _set_tab_stops(self, stops: list[int]) -> None:
        _, col, cols = self.place()
        self._stops_beyond = [stop for stop in stops if stop >= cols]
        if self._tab_stops() != stops:
            self.feed(_set_tabs([stop for stop in stops if stop < cols]) + f"\x1b[{col + 1}G")

    # Saved and rebuilt.

    def take_apart(self) -> tuple[Parts, list[Line]]:
        """The whole state, and the lines of the main screen with its history. Those can only be read while that screen
        is active: if it is not, the emulator is left on the main screen and rebuilt."""
        stops = self._tab_stops()
        state = _guarded(self._vt.dump)
        cells = _BEHIND_CELLS.search(state)
        # avt repeats characters by REP, which repeats half of a wide one.
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
            # The lines as they will be when the program leaves the alternate screen.
            _guarded(self._vt.resize, *reversed(size))
            lines = self.lines()
            screen = _set_tabs([stop for stop in stops if stop < size[1]]) + _clamped(of_other, size)
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

    def print(self, lines: Sequence[Line]) -> None:
        """Print lines of another emulator, and go to the next row."""
        if lines:
            self.feed(self._written(lines) + "\x1b[0m\r\n")

    def reprint(self, change: Callable[[str], str]) -> None:
        """Print all lines but the last again, with their text changed."""
        text = self._written(self.lines()[:-1])
        rows, cols = self.size
        self._vt = self._new(cols, rows, self._limit)
        self.feed(change(text) + "\x1b[0m\r\n")

    def _written(self, lines: Sequence[Line]) -> str:
        """The text that prints the lines again."""
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
        # No line end after the last row, or the page would scroll.
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
    # Only the stubs name the classes of its two kinds.
    parts: Sequence[int] = color  # type: ignore[assignment]
    if type(color).__name__ == "Indexed":
        return parts[0]
    return f"#{parts[0]:02x}{parts[1]:02x}{parts[2]:02x}"


def _pen(pen: Pen) -> str:
    # The bare form ends the cells in a dump of avt.
    text = sgr(style(pen))
    return text if text != "\x1b[m" else "\x1b[0m"


def _clamped(state: str, size: Size) -> str:
    """Limit saved positions to the size, which may have become smaller since."""
    rows, cols = size
    return _POSITION.sub(lambda at: f"\x9b{min(int(at[1]), rows)};{min(int(at[2]), cols)}H", state)


def _set_tabs(stops: list[int]) -> str:
    return "\x1b[5W" + "".join(f"\x1b[{stop + 1}G\x1b[W" for stop in stops)


def _guarded(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return call(*args, **kwargs)
    except BaseException as error:
        # Its class is in no module that could be imported, and is not an Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise GridFailed(f"the emulator panicked: {error}") from None


# How much is translated at once.
_PIECE_BYTES = 16 << 10
# Stand-ins that are no longer shown are dropped at most once in this many bytes: that takes long.
_RENEW_BYTES = 1 << 20


class Grid:
    """With `above`, the blank page below the history of that grid, whose main screen was cleared: `above` is not used
    any more. A page that grows takes back only rows that scrolled off since then, so the page does not depend on how
    much history is kept."""

    def __init__(self, rows: int, cols: int, history: int = 1000, *, above: Grid | None = None) -> None:
        _check_size(rows, cols)
        self._emulator = Emulator(rows, cols, history)
        self._avt_input = AvtInput(rows, self._emulator.place)
        # The history before that, on a blank row of its own.
        self._above: Emulator | None = None
        if above is not None and above.scrolled:
            self._above = above.put_aside(history)
            self._above.resize(1, cols)
            self._avt_input.stand_ins = above._avt_input.stand_ins
        self._fed_since_renewal = 0
        # The main screen while the other one is active: read once, because that rebuilds the emulator.
        self._main: list[Row] | None = None

    # Input.

    def feed(self, data: bytes) -> None:
        self._main = None
        emulator, avt_input = self._emulator, self._avt_input
        entries = avt_input.entries
        for start in range(0, len(data), _PIECE_BYTES):
            for text in avt_input.translate(data[start : start + _PIECE_BYTES]):
                if text:
                    emulator.feed(text)
        emulator.alt = avt_input.alt
        if avt_input.was_reset:
            avt_input.was_reset, self._above = False, None
        if avt_input.entries != entries or not avt_input.alt:
            emulator.main_size = emulator.size
        self._fed_since_renewal += len(data)
        if avt_input.stand_ins.full and self._fed_since_renewal > _RENEW_BYTES:
            self._renew()

    def resize(self, rows: int, cols: int) -> None:
        """Lines that were wrapped on the main screen are wrapped at the new width."""
        _check_size(rows, cols)
        if (rows, cols) != self.size:
            self._main = None
            self._avt_input.resized(rows)
            self._emulator.resize(rows, cols)
            if self._above is not None:
                self._above.resize(1, cols)

    # The screen.

    @property
    def size(self) -> tuple[int, int]:
        return self._emulator.size

    @property
    def alt(self) -> bool:
        return self._avt_input.alt

    @property
    def cursor(self) -> tuple[int, int, bool]:
        """Row and column from 0, and whether it is visible."""
        cursor = self._emulator.cursor
        return cursor.row, min(cursor.col, self.size[1] - 1), cursor.visible

    @property
    def pending_wrap(self) -> bool:
        """The last column is filled, and the next character goes to the next row."""
        _, column, cols = self._emulator.place()
        return column >= cols

    @property
    def scrolled(self) -> int:
        """How many rows scrolled off the main screen, whichever is active. It changes with the size."""
        rows = len(self._all_main() if self.alt else self._emulator.lines())
        above = self._above.dropped + len(self._above.lines()) - 1 if self._above is not None else 0
        return above + self._emulator.dropped + rows - self.size[0]

    def rows(self) -> list[Row]:
        """The visible page of the active screen."""
        return self._read(self._emulator.page())

    def main_rows(self) -> list[Row]:
        """The visible page of the main screen, whichever is active."""
        return self._all_main()[-self.size[0] :] if self.alt else self.rows()

    def history(self, count: int) -> list[Row]:
        """The last rows that scrolled off the main screen, whichever is active."""
        if count <= 0:
            return []
        if self.alt:
            rows = self._all_main()[: -self.size[0]][-count:]
        else:
            rows = self._read(self._emulator.lines()[: -self.size[0]][-count:])
        missing = count - len(rows)
        if self._above is None or not missing or self._emulator.dropped:
            return rows
        return self._read(self._above.lines()[:-1][-missing:]) + rows

    def put_aside(self, limit: int) -> Emulator:
        """The history alone, above one blank row. The grid is not used any more."""
        if self.alt:
            self._emulator.take_apart()
            self._emulator.feed(_LEAVE)
        of_page = self._emulator.lines()[: -self.size[0]]
        kept, above = Emulator(1, self.size[1], limit), self._above
        if above is not None:
            kept.print(above.lines()[:-1])
            kept.dropped += above.dropped
        kept.print(of_page)
        kept.dropped += self._emulator.dropped
        return kept

    def _renew(self) -> None:
        """Drop the stand-ins that are no longer shown."""
        parts, _ = self._emulator.take_apart()
        avt_input = self._avt_input.fresh()
        if self._above is not None:
            self._above.reprint(lambda text: self._avt_input.renumbered(text, avt_input))
        main, screen = (self._avt_input.renumbered(text, avt_input) for text in (parts.main, parts.screen))
        self._avt_input = avt_input
        self._emulator.build(parts._replace(main=main, screen=screen))
        self._fed_since_renewal = 0

    # Reading cells.

    def _all_main(self) -> list[Row]:
        if not self.alt:
            return self._read(self._emulator.lines())
        if self._main is None:
            self._main = self._read(self._emulator.take_apart()[1])
        return self._main

    def _read(self, lines: Sequence[Line]) -> list[Row]:
        meaning = self._avt_input.stand_ins.meaning
        rows: list[Row] = []
        for line, wrapped in zip(lines, self._emulator.wrapped(lines), strict=True):
            cells: list[Cell] = []
            for chunk in line.chunks(other_pen):
                pen = style(chunk[0].pen)
                # A bare space was erased: it has only the background of the pen.
                blank = Cell(" ", 1, pen._replace(inverse=False, strike=False, underline=0))
                for cell in chunk:
                    char, width = cell.char, cell.width
                    if char == " ":
                        if width:
                            cells.append(blank)
                        continue
                    text, extras = meaning(char)
                    cells.append(Cell(text, width, _with(pen, extras) if any(extras) else pen))
            rows.append(Row(cells, wrapped))
        return rows


def _check_size(rows: int, cols: int) -> None:
    if not (1 <= rows <= ROWS_MAX and 1 <= cols <= COLS_MAX):
        raise BadSize(f"{cols}x{rows}")


def _with(pen: Style, extras: Extras) -> Style:
    return pen._replace(
        link=extras.link,
        underline=extras.underline or pen.underline,
        underline_color=extras.underline_color,
        conceal=extras.conceal,
        overline=extras.overline,
    )
