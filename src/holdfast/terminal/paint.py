"""A screen written to the terminal of a client: once, where it has the session's size, or kept up to date.

`paint` writes rows at the bottom, one after the other, so the old page moves up and out by itself and no frame in
between is blank. Lines that were wrapped are written as one, so that the terminal wraps them when its width changes.
Nothing is asked, rung, copied or cleared away. `Crop` draws on a terminal of another size than the session's.
"""

from __future__ import annotations

from ..core.vt.modes import ALTERNATE, DEFAULT, ENCODINGS, MOUSE, REPORTED
from ..core.vt.tracker import Tracker
from . import restore
from .cells import ansi, trimmed
from .filter import Filter
from .grid import Grid
from .scrollback import first_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .attached import SessionScreen
    from .cells import Row
    from .undo import Undo

    State = dict[str, Any]
    Size = tuple[int, int]

# A terminal that knows synchronized updates shows nothing until the end; others ignore them.
_UPDATE, _UPDATED = "\x1b[?2026h", "\x1b[?2026l"
# Resets what printing depends on. All else is taken to be as it was before the attach.
_READY = "\x1b[?6l\x1b[r\x1b[?7h\x1b[4l\x1b(B\x0f\x1b[m"


def paint(grid: Grid, state: State, size: Size, history_rows: int, *, in_place: bool = False) -> bytes:
    """The bytes that make a terminal of the session's size (rows, cols) show the grid and put it into the tracker's
    state. What it shows now moves into its scrollback, or is erased if `in_place`."""
    if grid.size != size or tuple(state["size"]) != size:
        # The session got this size at the end of its output.
        grid.resize(*size)
        tracker = Tracker.from_snapshot(state)
        tracker.resize(*size)
        state = tracker.snapshot()
    flow = _flow([*grid.history(history_rows), *grid.main_rows()])
    main_keys, other_keys = state["keys"]["kitty"]
    out = [
        *(_UPDATE, _READY),
        _emptied(size) + flow.removeprefix("\r\n") if in_place else restore.to(size[0] - 1, 0) + flow,
        restore.keyboard(main_keys),
    ]
    if grid.alt:
        out += [
            _enter(state),
            _page(grid.rows()),
            restore.keyboard(other_keys),
            restore.saved_cursor(state["saved"][1]),
        ]
    else:
        out.append(restore.saved_cursor(state["saved"][0]))
    out += [restore.tabs(state), restore.margins(state), _cursor(grid, state), _settings(state), _UPDATED]
    return "".join(out).encode()


def flow(grid: Grid, size: Size, history_rows: int, until: int) -> bytes:
    """The bytes that put history and main screen, up to this row as `Grid.scrolled` counts, into the scrollback. What
    the terminal showed moves up and out, and its page is blank."""
    history = grid.history(history_rows)
    rows = [*history, *grid.main_rows()][: max(0, until - grid.scrolled + len(history))]
    return "".join([_READY, restore.to(size[0] - 1, 0), _flow(rows), "\r\n" * size[0]]).encode()


def _emptied(size: Size) -> str:
    """Erase row by row: some terminals move a screen that is erased at once into the scrollback."""
    return "".join(restore.to(row, 0) + "\x1b[2K" for row in range(size[0])) + "\x1b[H"


def _flow(rows: Sequence[Row]) -> str:
    """Rows below each other. Each line pushes up what is above it."""
    out: list[str] = []
    continues = False
    for i, row in enumerate(rows):
        following = rows[i + 1] if i + 1 < len(rows) else None
        begin = "" if continues else "\r\n"
        continues = row.wrapped and following is not None and bool(following.used())
        cells = row.used()
        if continues and following is not None:
            cells = row.cells
            if following.cells[0].width == 2 and cells[-1].blank:
                # Free because the wide character did not fit: at another width this column would not be there.
                cells = cells[:-1]
        out += (begin, ansi(cells))
    return "".join(out)


def _page(rows: Sequence[Row]) -> str:
    """The alternate screen, row by row, on a blank page."""
    return "".join([restore.to(i, 0) + ansi(cells) for i, row in enumerate(rows) if (cells := row.used())])


def _enter(state: State) -> str:
    """Switch to the alternate screen and save the cursor that the program returns to. The screen is blank, whatever
    background was saved with the cursor."""
    saved = state["saved"][0]
    names, shift, pen, where = ["B"] * 4, 0, "", restore.to(0, 0)
    if saved is not None:
        names, shift = saved.get("charsets", names), saved["shift"]
        pen = restore.pen(saved["pen"])
        where = restore.to(saved["row"], saved["col"])
    back = restore.ascii_again(names, shift)
    return f"{where}{pen}{restore.charsets(names, shift)}\x1b[?1049h{back}\x1b[m\x1b[2J"


def _cursor(grid: Grid, state: State) -> str:
    """Set the cursor after everything that moves it. For a pending wrap the last column is printed again."""
    row, col, _ = grid.cursor
    if not grid.pending_wrap:
        return restore.place(state, row, col)
    last = grid.rows()[row].cells[-1]
    return restore.place(state, row, col + 1 - last.width) + ansi([last])


def _settings(state: State) -> str:
    """The look of the next character, keys and modes, colours and labels."""
    out = restore.pen(state["pen"]) if state["pen"] else ""
    out += restore.link(state["labels"]["link"]) + restore.charsets(state["charsets"], state["shift"])
    out += restore.protection(state["protected"])
    out += restore.flags(state) + restore.shape(state) + restore.modified_keys(state)
    return out + restore.colors(state) + restore.restored_labels(state)


# The screen of a session on a terminal of another size: all of it, with a border where it ends, or the part around the
# cursor, with a dotted border that says which part it is. It is drawn from the screen, because bytes that were printed
# for one width are wrong at another.
#
# Only rows that changed are sent. Rows that scrolled off the main screen go into the terminal's own scrollback. Keys,
# paste and title are those of the program. The mouse is off where only a part is shown, because its positions would be
# wrong.


_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_FAINT, _PLAIN = "\x1b[2m", "\x1b[m"
_POINTING = frozenset((*MOUSE, *ENCODINGS))
_KEPT_MODES = REPORTED - {2031, *ALTERNATE}
_CURSOR = 25
# A smaller terminal has no row or column to spare for a border.
_BORDERED_ROWS, _BORDERED_COLS = 5, 20


class Crop:
    """One terminal of this size (rows, cols); `undo` gets what is written to it."""

    def __init__(self, size: Size, undo: Undo) -> None:
        self.size = size
        self._undo = undo
        self._filter = Filter()
        self._top = self._left = 0
        # How much of the terminal shows the session where it shows a part of it: all but the border.
        self._room = size
        self._page: Size | None = None
        self._alt = False
        self._shown: list[str | None] = [None] * size[0]
        # What was written to the terminal besides its rows; None: nothing yet.
        self._modes: str | None = None
        self._cursor: tuple[bool, int] | None = None
        self._labels: dict[str, Any] = {}

    def frame(
        self, screen: SessionScreen, *, bordered: bool = False, before: bytes = b"", keep_visible_rows: bool = False
    ) -> bytes:
        """The bytes that make the terminal show the screen as it is now; `before` is written first. With
        `keep_visible_rows`, rows that would be on the terminal's page if the session had its size do not go into the
        scrollback yet."""
        grid, state = screen.grid, screen.state
        out: list[str] = []
        page = grid.size
        is_part = page[0] > self.size[0] or page[1] > self.size[1]
        modes = _modes(state, pointing=not is_part)
        if modes != self._modes or state["alt"] != self._alt or page != self._page:
            if self._modes is not None:
                before += self._undo.undo_all(self.size[1])
            out.append(("\x1b[?1049h" if state["alt"] else "") + _NO_WRAP + modes)
            self._modes, self._alt, self._page, self._cursor = modes, state["alt"], page, None
            self._labels = {}
            self._shown = [None] * self.size[0]
        self._room = self._room_for(page, bordered=bordered)
        self._look_at_cursor(grid)
        rows = self._rows(grid, bordered=bordered)
        above = []
        if not self._alt:
            above = screen.scrollback.take(grid, first_of(grid, self.size[0]) if keep_visible_rows else None)
        if above:
            out.append(_push(above, rows))
        else:
            out += [restore.to(i, 0) + row for i, row in enumerate(rows) if row != self._shown[i]]
        changed = bool(out)
        self._shown = list(rows)
        text = "".join(out) + self._changed_labels(state)
        row, col, visible = grid.cursor
        place = restore.to(row - self._top, min(col - self._left, self._room[1] - 1))
        look = visible, state["shape"]
        if look != self._cursor:
            place += f"\x1b[?{_CURSOR}{'h' if visible else 'l'}"
            place += f"\x1b[{state['shape']} q" if self._cursor is not None or state["shape"] else ""
            self._cursor = look
        data = self._undo.feed(self._filter.replay((text + place).encode()))
        return b"".join((_UPDATE.encode(), before, data, _UPDATED.encode())) if changed or before else data

    def _look_at_cursor(self, grid: Grid) -> None:
        """Move the shown part so that the cursor is in it, and no further."""
        row, col, _ = grid.cursor
        self._top = _moved(self._top, row, grid.size[0], self._room[0])
        self._left = _moved(self._left, col, grid.size[1], self._room[1])

    def _room_for(self, page: Size, *, bordered: bool) -> Size:
        rows, cols = self.size
        if not bordered:
            return rows, cols
        return (
            rows - (page[0] > rows >= _BORDERED_ROWS),
            cols - (page[1] > cols >= _BORDERED_COLS),
        )

    def _rows(self, grid: Grid, *, bordered: bool) -> list[str]:
        """All rows of the terminal as they are written, each from its first column on."""
        rows, cols = self.size
        page_cols = grid.size[1]
        shown = [self._row(row, page_cols, bordered) for row in grid.rows()[self._top : self._top + self._room[0]]]
        below = rows - len(shown)
        if self._room[0] < rows:
            return [*shown, f"{_FAINT}{self._which_part(grid.size).ljust(cols, '┄')[:cols]}{_PLAIN}"]
        if below and bordered:
            corner = "┘" if cols > page_cols else ""
            shown.append(f"{_FAINT}{'─' * min(cols, page_cols)}{corner}{_PLAIN}\x1b[K")
            below -= 1
        return shown + ["\x1b[K"] * below

    def _row(self, row: Row, page_cols: int, bordered: bool) -> str:
        cols, room = self.size[1], self._room[1]
        cells = row.used() if page_cols <= cols else trimmed(row.columns(self._left, self._left + room))
        text = ansi(cells)
        if room < cols:
            return f"{text}\x1b[K\x1b[{cols}G{_FAINT}┆{_PLAIN}"
        if page_cols < cols and bordered:
            return f"{text}\x1b[K\x1b[{page_cols + 1}G{_FAINT}│{_PLAIN}"
        # If the last column is printed, erasing to the end of the row would erase it.
        return text if sum(cell.width for cell in cells) >= cols else text + "\x1b[K"

    def _which_part(self, page: Size) -> str:
        parts = [
            f"{name} {first + 1}-{first + room} of {whole}"
            for name, first, room, whole in (
                ("rows", self._top, self._room[0], page[0]),
                ("columns", self._left, self._room[1], page[1]),
            )
            if whole > room
        ]
        return f"┄ {', '.join(parts)} "

    def _changed_labels(self, state: State) -> str:
        """Title, icon, directory, progress and pointer, where they changed."""
        labels = {name: state["labels"][name] for name in ("title", "icon", "cwd", "progress", "pointer")}
        known, self._labels = self._labels, labels
        changed = {name: value for name, value in labels.items() if (value or None) != (known.get(name) or None)}
        out = restore.restored_labels({"labels": {**dict.fromkeys(labels), **changed}})
        for name, gone in (("title", "2;"), ("icon", "1;"), ("progress", "9;4;0"), ("pointer", "22;default")):
            if name in changed and not changed[name]:
                out += f"\x1b]{gone}\x1b\\"
        return out


def _push(above: list[Row], rows: list[str]) -> str:
    """Put rows into the scrollback of the terminal: the page that is written after them moves them up and out."""
    written = [f"{ansi(row.used())}\x1b[K\r\n" for row in above]
    return f"{_WRAP}\x1b[H{''.join(written)}{_NO_WRAP}" + "\r\n".join(rows)


def _moved(first: int, needed: int, page: int, room: int) -> int:
    first = min(max(first, needed - room + 1), needed)
    return max(0, min(first, page - room))


def _modes(state: State, *, pointing: bool) -> str:
    """Set keys, paste, focus, mouse and colours on a terminal in which none of them is set."""
    kept = _KEPT_MODES if pointing else _KEPT_MODES - _POINTING
    dec = [mode for mode in state["modes"]["dec"] if mode in kept]
    plain = {"modes": {"dec": [*dec, *DEFAULT], "ansi": [], "unknown": {}}}
    return (
        restore.keyboard(state["keys"]["kitty"][1 if state["alt"] else 0])
        + restore.flags(plain)
        + restore.modified_keys(state)
        + restore.colors(state)
    )
