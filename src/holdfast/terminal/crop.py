"""The screen of a session on a terminal of another size: all of it, with a border where it ends, or the part around
the cursor, with a dotted border that says which part it is. Drawn from the screen, as bytes that were printed for one
width come out wrong at another.

Only rows that changed are sent. What scrolled off the top of the main screen goes into the terminal's own scrollback.
Keys, paste and title are as the program has them; the mouse is off where only a part is shown, because its places would
be others.
"""

from __future__ import annotations

from ..runner.modes import ALTERNATE, DEFAULT, ENCODINGS, MOUSE, TOLD
from . import settings
from .filter import Filter
from .rows import plainly, trimmed, write
from .scrollback import first_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .followed import Followed
    from .grid import Grid
    from .rows import Cell, Row
    from .undo import Undo

    State = dict[str, Any]
    Size = tuple[int, int]

_UPDATE, _UPDATED = b"\x1b[?2026h", b"\x1b[?2026l"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_FAINT, _PLAIN = "\x1b[2m", "\x1b[m"
_POINTING = frozenset((*MOUSE, *ENCODINGS))
_KEPT_MODES = TOLD - {2031, *ALTERNATE}
_CURSOR = 25
# A smaller terminal has no row or column to spare for a border.
_BORDERED_ROWS, _BORDERED_COLS = 5, 20


class Crop:
    """One terminal of this size (rows, cols); `undo` is told what it is written."""

    def __init__(self, size: Size, undo: Undo) -> None:
        self.size = size
        self._undo = undo
        self._filter = Filter()
        self._top = self._left = 0
        # How much of the terminal shows the session where it shows a part: all of it, less the border.
        self._room = size
        self._page: Size | None = None
        self._alt = False
        self._shown: list[str | None] = [None] * size[0]
        # What the terminal was told beside its rows; None: nothing yet.
        self._modes: str | None = None
        self._cursor: tuple[bool, int] | None = None
        self._labels: dict[str, Any] = {}

    def frame(self, followed: Followed, *, bordered: bool = False, before: bytes = b"", holds: bool = False) -> bytes:
        """What makes the terminal show the screen as it is now, behind something that is written first. It `holds`
        lines back that would be on its own page if the session had its size: they are on it when it has."""
        grid, state = followed.grid, followed.state
        out: list[str] = []
        page = grid.size
        is_part = page[0] > self.size[0] or page[1] > self.size[1]
        modes = _modes(state, pointing=not is_part)
        if modes != self._modes or state["alt"] != self._alt or page != self._page:
            if self._modes is not None:
                before += self._undo.take(self.size[1])
            out.append(("\x1b[?1049h" if state["alt"] else "") + _NO_WRAP + modes)
            self._modes, self._alt, self._page, self._cursor = modes, state["alt"], page, None
            self._labels = {}
            self._shown = [None] * self.size[0]
        self._room = self._room_for(page, bordered=bordered)
        self._look_at_cursor(grid)
        rows = self._rows(grid, bordered=bordered)
        above = []
        if not self._alt:
            above = followed.scrollback.take(grid, first_of(grid, self.size[0]) if holds else None)
        if above:
            out.append(_push(above, rows))
        else:
            out += [settings.to(i, 0) + row for i, row in enumerate(rows) if row != self._shown[i]]
        changed = bool(out)
        self._shown = list(rows)
        said = "".join(out) + self._said(state)
        row, col, visible = grid.cursor
        place = settings.to(row - self._top, min(col - self._left, self._room[1] - 1))
        look = visible, state["shape"]
        if look != self._cursor:
            place += f"\x1b[?{_CURSOR}{'h' if visible else 'l'}"
            place += f"\x1b[{state['shape']} q" if self._cursor is not None or state["shape"] else ""
            self._cursor = look
        text = self._undo.feed(self._filter.replay((said + place).encode()))
        return b"".join((_UPDATE, before, text, _UPDATED)) if changed or before else text

    def _look_at_cursor(self, grid: Grid) -> None:
        """Move the part that is shown no further than the cursor needs."""
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
        """All rows of the terminal as they are to be written, each from its first column on."""
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
        text = _written(cells)
        if room < cols:
            return f"{text}\x1b[K\x1b[{cols}G{_FAINT}┆{_PLAIN}"
        if page_cols < cols and bordered:
            return f"{text}\x1b[K\x1b[{page_cols + 1}G{_FAINT}│{_PLAIN}"
        # Where the last column is printed, erasing to the end of the row would erase it.
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

    def _said(self, state: State) -> str:
        """Title, icon, directory, progress and pointer, where they are others than before."""
        labels = {name: state["labels"][name] for name in ("title", "icon", "cwd", "progress", "pointer")}
        known, self._labels = self._labels, labels
        said = {name: value for name, value in labels.items() if (value or None) != (known.get(name) or None)}
        out = settings.labels({"labels": {**dict.fromkeys(labels), **said}})
        for name, gone in (("title", "2;"), ("icon", "1;"), ("progress", "9;4;0"), ("pointer", "22;default")):
            if name in said and not said[name]:
                out += f"\x1b]{gone}\x1b\\"
        return out


def _push(above: list[Row], rows: list[str]) -> str:
    """Some rows into the scrollback of the terminal, then the page, which moves them up and out."""
    written = [f"{_written(row.used())}\x1b[K\r\n" for row in above]
    return f"{_WRAP}\x1b[H{''.join(written)}{_NO_WRAP}" + "\r\n".join(rows)


def _moved(first: int, needed: int, page: int, room: int) -> int:
    first = min(max(first, needed - room + 1), needed)
    return max(0, min(first, page - room))


def _written(cells: list[Cell]) -> str:
    text, pen = write(cells)
    return text + plainly(pen)


def _modes(state: State, *, pointing: bool) -> str:
    """Keys, paste, focus, mouse and colours, from a terminal in which none of it is set."""
    kept = _KEPT_MODES if pointing else _KEPT_MODES - _POINTING
    dec = [mode for mode in state["modes"]["dec"] if mode in kept]
    plain = {"modes": {"dec": [*dec, *DEFAULT], "ansi": [], "unknown": {}}}
    return (
        settings.keyboard(state["keys"]["kitty"][1 if state["alt"] else 0])
        + settings.flags(plain)
        + settings.modified_keys(state)
        + settings.colors(state)
    )
