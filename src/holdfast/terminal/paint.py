"""A screen written to the terminal of a client: what was on it before goes into its scrollback, then history, screen,
modes and cursor. Nothing is asked, rung, copied or cleared away.

Rows are written at the bottom, one after the other, so the old page moves up and out by itself and no frame in between
is blank. Lines that were wrapped are written as one, for the terminal to wrap anew when its width changes. The two
sizes need not be equal: a larger terminal shows blank space at the right and below, a smaller one the part with the
cursor (and keeps what is above that in its scrollback).
"""

from __future__ import annotations

from . import settings
from .rows import plainly, trimmed, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .grid import Grid
    from .rows import Cell, Row

    State = dict[str, Any]
    Size = tuple[int, int]

# A terminal that knows it shows nothing until the end; others skip it.
_UPDATE, _UPDATED = "\x1b[?2026h", "\x1b[?2026l"
# Only what printing depends on. The terminal is taken to be as it was before us but for that.
_READY = "\x1b[?6l\x1b[r\x1b[?7h\x1b[4l\x1b(B\x0f\x1b[m"


def _emptied(size: Size) -> str:
    """Row by row: a screen that is erased at once goes into the scrollback of some terminals."""
    return "".join(settings.to(row, 0) + "\x1b[2K" for row in range(size[0])) + "\x1b[H"


def paint(grid: Grid, state: State, size: Size, history_rows: int, *, in_place: bool = False) -> bytes:
    """What a terminal of this size (rows, cols) is written to show the grid and be in the tracker's state. `in_place`:
    what it shows now is thrown away."""
    main = _Window(grid.size, size, _main_cursor(grid, state))
    out = [_UPDATE, _READY]
    flow = _flow(grid.history(history_rows), grid.main_rows(), main, size, joined=grid.size[1] == size[1])
    out.append(_emptied(size) + flow.removeprefix("\r\n") if in_place else settings.to(size[0] - 1, 0) + flow)
    out.append(settings.keyboard(state["keys"]["kitty"][0]))
    window = main
    if grid.alt:
        window = _Window(grid.size, size, grid.cursor[:2])
        out.append(_enter(state, main))
        out.append(_page(grid.rows(), window))
        out.append(settings.keyboard(state["keys"]["kitty"][1]))
        out.append(_saved(state["saved"][1], window))
    else:
        out.append(_saved(state["saved"][0], window))
    out.append(_cursor(grid, state, window))
    out.append(_settings(state))
    out.append(_UPDATED)
    return "".join(out).encode()


def flow(grid: Grid, size: Size, history_rows: int, until: int) -> bytes:
    """History and main screen up to this row, counted as `Grid.scrolled` counts, into the scrollback. What the terminal
    showed before moves up and out, and its page is blank."""
    history = grid.history(history_rows)
    rows = [*history, *grid.main_rows()][: max(0, until - grid.scrolled + len(history))]
    out = [_READY, settings.to(size[0] - 1, 0)]
    goes_on = False
    for i, row in enumerate(rows):
        following = rows[i + 1] if i + 1 < len(rows) else None
        goes_on = _add(out, row.cells, row.used(), goes_on, row.wrapped, following)
    return "".join([*out, "\r\n" * size[0]]).encode()


class _Window:
    """The part of a grid's page that a terminal shows: all of it, or as much as goes around the cursor."""

    def __init__(self, page: Size, terminal: Size, cursor: Size) -> None:
        self.page = page
        self.rows = min(page[0], terminal[0])
        self.cols = min(page[1], terminal[1])
        # The first row and column of it. Above the cursor there is more to see than below.
        self.top = min(max(cursor[0] - self.rows + 1, 0), page[0] - self.rows)
        self.left = min(max(cursor[1] - self.cols + 1, 0), page[1] - self.cols)

    def inside(self, row: int, col: int) -> Size:
        """A place of the page on the terminal."""
        return min(max(row - self.top, 0), self.rows - 1), min(max(col - self.left, 0), self.cols - 1)

    def cells(self, row: Row) -> list[Cell]:
        return row.used() if self.cols == self.page[1] else trimmed(row.columns(self.left, self.left + self.cols))


def _main_cursor(grid: Grid, state: State) -> Size:
    if not grid.alt:
        return grid.cursor[:2]
    saved = state["saved"][0]
    return (saved["row"], saved["col"]) if saved is not None else (0, 0)


def _flow(history: Sequence[Row], page: Sequence[Row], window: _Window, size: Size, *, joined: bool) -> str:
    """History and main screen, each line pushing up what is above it."""
    above = [*history, *page[: window.top]]
    shown = page[window.top : window.top + window.rows]
    out: list[str] = []
    goes_on = False
    for i, row in enumerate(above):
        following = above[i + 1] if i + 1 < len(above) else shown[0] if joined else None
        goes_on = _add(out, row.cells, row.used(), goes_on, row.wrapped, following)
    for i, row in enumerate(shown):
        following = shown[i + 1] if joined and i + 1 < len(shown) else None
        goes_on = _add(out, row.cells, window.cells(row), goes_on and joined, row.wrapped, following)
    # Below the page: the bottom row of the terminal is its own.
    out.append("\r\n" * (size[0] - window.rows))
    return "".join(out)


def _add(
    out: list[str], cells: list[Cell], used: list[Cell], goes_on: bool, wrapped: bool, following: Row | None
) -> bool:
    """One row, behind the one before if that goes on. Whether the next one does the same to this."""
    goes_on_next = wrapped and following is not None and bool(following.used())
    if goes_on_next and following is not None:
        used = cells
        if following.cells[0].width == 2 and used[-1].blank:
            # Left free because the wide character did not fit: at another width it is not to be there.
            used = used[:-1]
    text, pen = write(used)
    # New rows are filled with the background of the pen.
    out.append(("" if goes_on else "\r\n") + text + plainly(pen))
    return goes_on_next


def _page(rows: Sequence[Row], window: _Window) -> str:
    """The alternate screen, row by row, onto a blank page."""
    out: list[str] = []
    for i, row in enumerate(rows[window.top : window.top + window.rows]):
        cells = window.cells(row)
        if cells:
            text, pen = write(cells)
            out.append(settings.to(i, 0) + text + plainly(pen))
    return "".join(out)


def _enter(state: State, window: _Window) -> str:
    """To the alternate screen, with the cursor saved that the program expects to return to. Blank, whatever the
    background that was saved with it."""
    saved = state["saved"][0]
    names, shift, pen, where = ["B"] * 4, 0, "", settings.to(0, 0)
    if saved is not None:
        names, shift = saved.get("charsets", names), saved["shift"]
        pen = settings.pen(saved["pen"])
        where = settings.to(*window.inside(saved["row"], saved["col"]))
    back = settings.ascii_again(names, shift)
    return f"{where}{pen}{settings.charsets(names, shift)}\x1b[?1049h{back}\x1b[m\x1b[2J"


def _saved(saved: dict[str, Any] | None, window: _Window) -> str:
    if saved is None:
        return ""
    row, col = window.inside(saved["row"], saved["col"])
    return settings.saved_cursor({**saved, "row": row, "col": col})


def _layout(state: State, window: _Window) -> str:
    """Tab stops and margins, as far as they fit."""
    rows, cols = state["size"]
    top, bottom, left, right = state["margins"]
    if (top, bottom) == (0, rows - 1):
        top, bottom = 0, window.rows - 1
    else:
        top, bottom = (window.inside(row, 0)[0] for row in (top, bottom))
    if (left, right) == (0, cols - 1):
        left, right = 0, window.cols - 1
    else:
        left, right = (window.inside(0, col)[1] for col in (left, right))
    fitting = {**state, "size": [window.rows, window.cols], "margins": [top, bottom, left, right]}
    return settings.tabs(fitting) + (settings.margins(fitting) if top < bottom and left < right else "")


def _cursor(grid: Grid, state: State, window: _Window) -> str:
    """The cursor comes last of all that moves it. It waits at the right edge again once the last column is printed."""
    out = _layout(state, window)
    row, col, _ = grid.cursor
    place = {**state, "margins": [*(window.inside(edge, 0)[0] for edge in state["margins"][:2]), 0, 0]}
    if not grid.pending_wrap or window.cols < window.page[1]:
        return out + settings.place(place, *window.inside(row, col))
    cells = grid.rows()[row].cells
    text, pen = write(cells[-1:])
    where = settings.place(place, *window.inside(row, col + 1 - cells[-1].width))
    return out + where + text + plainly(pen)


def _settings(state: State) -> str:
    """What a character that comes next looks like, keys and modes, colours and labels."""
    out = settings.pen(state["pen"]) if state["pen"] else ""
    out += settings.link(state["labels"]["link"]) + settings.charsets(state["charsets"], state["shift"])
    out += settings.protection(state["protected"])
    out += settings.flags(state) + settings.shape(state) + settings.modified_keys(state)
    return out + settings.colors(state) + settings.labels(state)
