"""The cursor of a terminal, the layout it moves in, what DECSC saves, and tab stops. No cells: `page.py` adds text.

Where terminals differ it does what xterm does. Rows and columns count from 0. Parameters are those of the sequence:
they count from 1, and 0 is an absent one.
"""

from __future__ import annotations

from .widths import COLUMNS, decode, last_shown, runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .colors import Pen
    from .modes import Modes

    Parameters = tuple[int, ...]


# Tab stops are every eight columns until a program sets its own.
EVERY = 8
# The largest terminal. Columns that do not exist yet have tab stops too.
ROWS_MAX = 500
COLS_MAX = 1000


class TabStops:
    __slots__ = ("_stops",)

    def __init__(self) -> None:
        # In order; None: the default, every eight columns.
        self._stops: list[int] | None = None

    @property
    def are_default(self) -> bool:
        return self._stops is None

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

    def after(self, col: int, count: int) -> int:
        """The `count`-th stop to the right, or a column after all of them."""
        if self._stops is None:
            return (col // EVERY + count) * EVERY
        stops = [stop for stop in self._stops if stop > col]
        return stops[count - 1] if count <= len(stops) else COLS_MAX

    def before(self, col: int, count: int) -> int:
        """The `count`-th stop to the left, or the first column."""
        if self._stops is None:
            return max(((col - 1) // EVERY - count + 1) * EVERY, 0)
        stops = [stop for stop in self._stops if stop < col]
        return stops[-count] if count <= len(stops) else 0

    def snapshot(self) -> list[int] | None:
        return None if self._stops is None else list(self._stops)

    def continue_from(self, stops: list[int] | None) -> None:
        self._stops = None if stops is None else list(stops)


_DEFAULT_CHARSETS = ("B", "B", "B", "B")
# By the intermediate that designates it; the last three designate sets of 96 characters.
_CHARSET_SLOTS = {b"(": 0, b")": 1, b"*": 2, b"+": 3, b"-": 1, b".": 2, b"/": 3}


class Cursor:
    __slots__ = (
        *("rows", "cols", "row", "col", "pending_wrap", "pen", "protected"),
        # The margins, which are the edges if none are set. Scrolling and wrapping happen inside them.
        *("top", "bottom", "left", "right"),
        # The modes that movement and printing depend on: ?7 ?6 4 20 ?45.
        *("autowrap", "origin", "insert", "newline", "reverse_wrap"),
        "tabs",
        # The sets G0 to G3, which of them is in use, and which one for the next character alone.
        *("charsets", "shift", "single_shift"),
        # The last character that took a column, for REP.
        "last",
        # The saved cursors of the main and of the alternate screen.
        "saved",
    )

    def __init__(self, rows: int, cols: int) -> None:
        self.rows = rows
        self.cols = cols
        self.tabs = TabStops()
        self.reset()

    def reset(self) -> None:
        """RIS."""
        self.row = self.col = 0
        self.saved: list[dict[str, Any] | None] = [None, None]
        self.tabs.reset()
        self.newline = False
        self.last = b""
        self.soft_reset()
        self.pending_wrap = False

    def soft_reset(self) -> None:
        """DECSTR. The cursor stays where it is."""
        self.autowrap = True
        self.origin = self.insert = self.reverse_wrap = False
        self.pen: Pen = {}
        self.protected = 0
        self.charsets: tuple[str, ...] = _DEFAULT_CHARSETS
        self.shift = 0
        self.single_shift = 0
        self.no_margins()

    def no_margins(self) -> None:
        self.top = self.left = 0
        self.bottom = self.rows - 1
        self.right = self.cols - 1

    def resize(self, rows: int, cols: int) -> None:
        if cols != self.cols and self.pending_wrap:
            self.pending_wrap = False
            self.col += 1
        self.rows = rows
        self.cols = cols
        self.row = min(self.row, rows - 1)
        self.col = min(self.col, cols - 1)
        self.no_margins()

    # Printing.

    def write(self, raw: bytes) -> None:
        """Print whole characters without controls."""
        if self.single_shift:
            self.single_shift = 0
        if raw.isascii():
            col = self.col + len(raw)
            if col <= self.right and not self.pending_wrap:
                self.col = col
            else:
                self._write_run(len(raw), 1)
            self.last = raw[-1:]
            return
        text = decode(raw)
        for count, columns in runs(text):
            self._write_run(count, columns)
        character = last_shown(text)
        if character:
            self.last = character.encode()

    def _write_run(self, count: int, columns: int) -> None:
        """Print `count` characters of this width."""
        col = self.col
        edge = self.right if col <= self.right else self.cols - 1
        fitting = 0 if self.pending_wrap else (edge - col + 1) // columns
        if count <= fitting:
            col += count * columns
        elif not self.autowrap:
            # The last column is overwritten each time; a wide character does not fit into it.
            col = edge + 1 if columns == 1 or self.pending_wrap else col + fitting * columns
        else:
            count -= fitting
            a_line = (self.right - self.left + 1) // columns or 1
            lines = (count - 1) // a_line + 1
            self._down(lines)
            col = self.left + (count - (lines - 1) * a_line) * columns
            edge = self.right
        self.pending_wrap = col > edge
        self.col = min(col, edge)

    def repeat(self, parameters: Parameters) -> None:
        """REP."""
        if self.last:
            self._write_run(first(parameters), COLUMNS[decode(self.last)])

    # Controls.

    def _down(self, rows: int) -> None:
        """Move down to the bottom margin at most; below it, to the last row. There the screen scrolls instead."""
        row = self.row + rows
        limit = self.bottom if self.row <= self.bottom else self.rows - 1
        self.row = min(limit, row)

    def carriage_return(self) -> None:
        self.pending_wrap = False
        self.col = self.left if self.col >= self.left or self.origin else 0

    def linefeed(self) -> None:
        self.pending_wrap = False
        self.next_row()
        if self.newline:
            self.carriage_return()

    def index(self) -> None:
        self.pending_wrap = False
        self.next_row()

    def next_line(self) -> None:
        self.carriage_return()
        self.next_row()

    def next_row(self) -> None:
        """One row down. At the bottom margin the screen scrolls instead."""
        if self.row < (self.bottom if self.row <= self.bottom else self.rows - 1):
            self.row += 1

    def reverse_index(self) -> None:
        self.pending_wrap = False
        if self.row != self.top and self.row:
            self.row -= 1

    def designate(self, intermediates: bytes, final: bytes) -> None:
        """SCS; any other sequence has no effect."""
        slot = _CHARSET_SLOTS.get(intermediates[:1])
        if slot is not None and len(intermediates) <= 2:
            sets = list(self.charsets)
            large = intermediates[:1] in b"-./"
            sets[slot] = ("-" if large else "") + decode(intermediates[1:] + final)
            self.charsets = tuple(sets)

    # Tab stops.

    def set_tab(self) -> None:
        self.tabs.set(self.col)

    def clear_tabs(self, parameters: Parameters) -> None:
        """TBC."""
        kind = parameters[0] if parameters else 0
        if kind == 0:
            self.tabs.clear(self.col)
        elif kind == 3:
            self.tabs.clear_all()

    def control_tabs(self, parameters: Parameters) -> None:
        """CTC."""
        kind = parameters[0] if parameters else 0
        if kind == 0:
            self.tabs.set(self.col)
        elif kind == 2:
            self.tabs.clear(self.col)
        elif kind == 5:
            self.tabs.clear_all()

    def reset_tabs(self, parameters: Parameters) -> None:
        """DECST8C."""
        if parameters[:1] == (5,):
            self.tabs.reset()

    def tab_forward(self, parameters: Parameters) -> None:
        edge = self.right if self.col <= self.right else self.cols - 1
        # At the edge a pending wrap stays pending.
        if self.col < edge:
            self.col = min(self.tabs.after(self.col, first(parameters)), edge)
            self.pending_wrap = False

    def tab_back(self, parameters: Parameters) -> None:
        self.pending_wrap = False
        self.col = max(self.tabs.before(self.col, first(parameters)), self.left if self.origin else 0)

    # Movement.

    def up(self, parameters: Parameters) -> None:
        self.pending_wrap = False
        limit = self.top if self.row >= self.top else 0
        row = self.row - first(parameters)
        self.row = max(limit, row)

    def down(self, parameters: Parameters) -> None:
        self.pending_wrap = False
        self._down(first(parameters))

    def forward(self, parameters: Parameters) -> None:
        self.pending_wrap = False
        limit = self.right if self.col <= self.right else self.cols - 1
        col = self.col + first(parameters)
        self.col = min(limit, col)

    def back(self, parameters: Parameters) -> None:
        count = first(parameters)
        if self.reverse_wrap and self.autowrap:
            self._back_over_lines(count)
            return
        self.pending_wrap = False
        limit = self.left if self.col >= self.left else 0
        col = self.col - count
        self.col = max(limit, col)

    def _back_over_lines(self, count: int) -> None:
        if self.pending_wrap:
            self.pending_wrap = False
            count -= 1
        left = self.left if self.col >= self.left else 0
        top = self.top if self.row >= self.top else 0
        steps = min(count, (self.row - top) * (self.right - left + 1) + self.col - left)
        rows, over = divmod(self.col - left - steps, self.right - left + 1)
        self.row += rows
        self.col = left + over

    def next_lines(self, parameters: Parameters) -> None:
        self.down(parameters)
        self.carriage_return()

    def previous_lines(self, parameters: Parameters) -> None:
        self.up(parameters)
        self.carriage_return()

    def to(self, parameters: Parameters) -> None:
        """CUP, HVP."""
        self.pending_wrap = False
        count = len(parameters)
        row = parameters[0] - 1 if count and parameters[0] else 0
        col = parameters[1] - 1 if count > 1 and parameters[1] else 0
        if self.origin:
            self.row = min(self.top + row, self.bottom)
            self.col = min(self.left + col, self.right)
        else:
            self.row = row if row < self.rows else self.rows - 1
            self.col = col if col < self.cols else self.cols - 1

    def to_col(self, parameters: Parameters) -> None:
        self.to((self.row - (self.top if self.origin else 0) + 1, first(parameters)))

    def to_row(self, parameters: Parameters) -> None:
        self.to((first(parameters), self.col - (self.left if self.origin else 0) + 1))

    def right_by(self, parameters: Parameters) -> None:
        """HPR, which unlike CUF ignores margins, except in origin mode."""
        self.to_col((self.col - (self.left if self.origin else 0) + 1 + first(parameters),))

    def down_by(self, parameters: Parameters) -> None:
        """VPR."""
        self.to_row((self.row - (self.top if self.origin else 0) + 1 + first(parameters),))

    def home(self) -> None:
        self.to(())

    # Sequences that change cells. Without cells they only end a pending wrap.

    def erase_display(self, parameters: Parameters) -> None:
        """ED: to the end, to the beginning, all."""
        if not parameters or parameters[0] <= 2:
            self.pending_wrap = False

    def erase_line(self, parameters: Parameters) -> None:
        """EL."""
        Cursor.erase_display(self, parameters)

    def erase_cells(self, _parameters: Parameters) -> None:
        """ECH."""
        self.pending_wrap = False

    def insert_cells(self, _parameters: Parameters) -> None:
        """ICH."""
        self.pending_wrap = False

    def delete_cells(self, _parameters: Parameters) -> None:
        """DCH."""
        self.pending_wrap = False

    def insert_lines(self, _parameters: Parameters) -> None:
        """IL."""
        if self.top <= self.row <= self.bottom and self.left <= self.col <= self.right:
            self.pending_wrap = False
            self.col = self.left

    def delete_lines(self, parameters: Parameters) -> None:
        """DL."""
        Cursor.insert_lines(self, parameters)

    def scroll_up(self, parameters: Parameters) -> None:
        """SU."""

    def scroll_down(self, parameters: Parameters) -> None:
        """SD."""

    # Margins.

    def set_rows(self, parameters: Parameters) -> None:
        """DECSTBM."""
        count = len(parameters)
        top = parameters[0] if count and parameters[0] else 1
        bottom = parameters[1] if count > 1 and parameters[1] else self.rows
        bottom = min(bottom, self.rows)
        if top < bottom:
            self.top, self.bottom = top - 1, bottom - 1
            self.home()

    def set_cols(self, parameters: Parameters) -> None:
        """DECSLRM."""
        count = len(parameters)
        left = parameters[0] if count and parameters[0] else 1
        right = parameters[1] if count > 1 and parameters[1] else self.cols
        right = min(right, self.cols)
        if left < right:
            self.left, self.right = left - 1, right - 1
            self.home()

    # DECSC and DECRC.

    def save(self, alternate: bool) -> None:
        self.saved[alternate] = {
            "row": self.row,
            "col": self.col,
            "pending_wrap": self.pending_wrap,
            "origin": self.origin,
            "pen": dict(self.pen),
            "protected": self.protected,
            "charsets": list(self.charsets),
            "shift": self.shift,
        }

    def restore(self, alternate: bool) -> None:
        """If nothing was saved: home, with nothing set."""
        saved = self.saved[alternate]
        if saved is None:
            saved = {"row": 0, "col": 0, "pending_wrap": False, "origin": False, "pen": {}, "protected": 0, "shift": 0}
        self.origin = saved["origin"]
        self.row = min(saved["row"], self.rows - 1)
        self.col = min(saved["col"], self.cols - 1)
        self.pending_wrap = saved["pending_wrap"] and self.col == saved["col"]
        if self.origin:
            self.row = min(max(self.row, self.top), self.bottom)
            self.col = min(max(self.col, self.left), self.right)
        self.pen = dict(saved["pen"])
        self.protected = saved["protected"]
        self.charsets = tuple(saved.get("charsets", _DEFAULT_CHARSETS))
        self.shift = saved["shift"]
        self.single_shift = 0

    # Reports and snapshots.

    @property
    def reported(self) -> tuple[int, int]:
        """Row and column for CPR: from 1, and from the margins in origin mode."""
        if self.origin:
            return self.row - self.top + 1, self.col - self.left + 1
        return self.row + 1, self.col + 1

    def snapshot(self) -> dict[str, Any]:
        """Without the modes, which `Modes` has."""
        return {
            "row": self.row,
            "col": self.col,
            "pending_wrap": self.pending_wrap,
            "pen": dict(self.pen),
            "protected": self.protected,
            "margins": [self.top, self.bottom, self.left, self.right],
            "tabs": self.tabs.snapshot(),
            "charsets": list(self.charsets),
            "shift": self.shift,
            "single_shift": self.single_shift,
            "last": decode(self.last),
            "saved": list(self.saved),
        }

    def continue_from(self, snapshot: dict[str, Any], modes: Modes) -> None:
        for name in ("row", "col", "pending_wrap", "protected", "shift", "single_shift"):
            setattr(self, name, snapshot[name])
        self.pen = dict(snapshot["pen"])
        self.top, self.bottom, self.left, self.right = snapshot["margins"]
        self.tabs.continue_from(snapshot["tabs"])
        self.charsets = tuple(snapshot["charsets"])
        self.last = snapshot["last"].encode()
        self.saved = list(snapshot["saved"])
        self.autowrap = modes.has(7)
        self.origin = modes.has(6)
        self.insert = 4 in modes.ansi
        self.newline = 20 in modes.ansi
        self.reverse_wrap = modes.has(45)


def first(parameters: Parameters) -> int:
    """The first parameter; 0 and absent both mean 1."""
    return parameters[0] or 1 if parameters else 1
