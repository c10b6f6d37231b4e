"""From ranges of the log back to a screen: the state a range begins in, then its bytes at their sizes."""

from __future__ import annotations

import time

from ..runner.modes import ALLOW_COLUMNS
from . import settings
from .grid import Grid, GridFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    State = dict[str, Any]
    Range = dict[str, Any]
    Resize = tuple[int, int, int]

# A hostile stream costs the asker no more than this.
RENDER_MAX_CPU_S = 2.0
# A page that grows takes rows back from the history, so some is kept even where none is asked for.
_HISTORY_MIN_ROWS = 500
# Between two looks at the clock: a sequence of 4 bytes can touch every cell.
_PIECE_MAX_BYTES = 64 << 10
_PIECE_MIN_BYTES = 1 << 10
_CELLS_OF_A_USUAL_PAGE = 4096


def prelude(state: State) -> bytes:
    """Puts a blank terminal of the state's size into this state. What scrolled off, titles on the stack and what a
    program saved by `CSI ? s` are not in it, nor is the colour-scheme report, which only the runner gives."""
    return (_of_main_screen(state) + _of_active_screen(state)).encode()


def render(
    plan: dict[str, Any],
    read: Callable[[int, int], Iterable[bytes]],
    resizes: list[Resize],
    history_rows: int,
    *,
    keyframe: tuple[int, str] | None = None,
    max_cpu_s: float = RENDER_MAX_CPU_S,
) -> Grid:
    """The grid at the end of a plan's ranges (`runner/marks.py`). `read` gives the bytes between two offsets,
    `resizes` are (offset, rows, cols) in order. A keyframe is the dump of a grid at an offset; one that lies behind
    the beginning saves the way to it. GridFailed if the emulator gives up or takes too long."""
    over = time.thread_time() + max_cpu_s
    grid: Grid | None = None
    kept_at, dump = keyframe if keyframe is not None else (-1, "")
    for part in plan["ranges"]:
        begin = part["from"]
        if begin <= kept_at <= part["to"]:
            grid, begin = _load(dump), kept_at
        if grid is None or begin == part["from"]:
            grid = _begin(grid, part, _size(part, resizes), history_rows)
            begin = part["from"]
        for data in _between(grid, begin, part["to"], read, resizes):
            if time.thread_time() > over:
                raise GridFailed(f"drawing took more than {max_cpu_s:g} s of CPU time")
            grid.feed(data)
    assert grid is not None, "a plan without ranges"
    return grid


def _load(dump: str) -> Grid | None:
    """A cache that cannot be read is none."""
    try:
        return Grid.load(dump)
    except (ValueError, GridFailed):
        return None


def _size(part: Range, resizes: list[Resize]) -> tuple[int, int]:
    if part["size"] is not None:
        rows, cols = part["size"]
        return rows, cols
    before = [(rows, cols) for offset, rows, cols in resizes if offset <= part["from"]]
    return before[-1] if before else (30, 120)


def _begin(grid: Grid | None, part: Range, size: tuple[int, int], history_rows: int) -> Grid:
    state = part["state"]
    if grid is None:
        grid = Grid(*size, history=max(history_rows, _HISTORY_MIN_ROWS))
        if state is not None:
            grid.feed(prelude(state))
        return grid
    # The main screen stands. From here on it is about the other one, which this range clears.
    if state is not None and not grid.alt:
        grid.feed(_of_main_screen(state).encode())
    # Not before: it is under the alternate screen that the main one got another size.
    grid.resize(*size)
    if state is not None:
        grid.feed(_of_active_screen(state).encode())
    return grid


def _between(
    grid: Grid, begin: int, end: int, read: Callable[[int, int], Iterable[bytes]], resizes: list[Resize]
) -> Iterator[bytes]:
    """The bytes of a range in pieces, and between them the resizes applied."""
    stops = [resize for resize in resizes if begin < resize[0] <= end]
    # Of several at the beginning the last one counts, and the state has seen it already but for a rare turn of events.
    stops[:0] = [resize for resize in resizes if resize[0] == begin][-1:]
    for offset, rows, cols in [*stops, (end, 0, 0)]:
        if begin < offset:
            for block in read(begin, offset):
                room = _piece_bytes(grid)
                for at in range(0, len(block), room):
                    yield block[at : at + room]
            begin = offset
        if rows:
            grid.resize(rows, cols)


def _piece_bytes(grid: Grid) -> int:
    rows, cols = grid.size
    return max(_PIECE_MIN_BYTES, _PIECE_MAX_BYTES * _CELLS_OF_A_USUAL_PAGE // max(rows * cols, _CELLS_OF_A_USUAL_PAGE))


def _of_main_screen(state: State) -> str:
    """What belongs to the main screen alone, and over to the alternate one if that is active."""
    out = ""
    main, alternate = state["saved"]
    main_keys, alternate_keys = state["keys"]["kitty"]
    if not state["alt"] and (alternate is not None or alternate_keys != [0]):
        out += "\x1b[?1047h" + settings.keyboard(alternate_keys) + settings.saved_cursor(alternate) + "\x1b[?1047l"
    out += settings.keyboard(main_keys) + settings.saved_cursor(main)
    return out + ("\x1b[?1047h" if state["alt"] else "")


def _of_active_screen(state: State) -> str:
    out = ""
    if state["alt"]:
        out += settings.keyboard(state["keys"]["kitty"][1]) + settings.saved_cursor(state["saved"][1])
    # Margins and tab stops move the cursor, so it comes behind them; where a character has to be printed for it, that
    # is done in ASCII and with the plain pen.
    out += settings.tabs(state) + settings.margins(state) + settings.place(state, state["row"], state["col"])
    if state["pending_wrap"]:
        out += " "
    out += settings.pen(state["pen"]) + settings.link(state["labels"]["link"]) + settings.protection(state["protected"])
    out += settings.charsets(state["charsets"], state["shift"])
    if state["single_shift"]:
        out += {2: "\x1bN", 3: "\x1bO"}[state["single_shift"]]
    out += settings.flags(state) + settings.shape(state) + settings.modified_keys(state)
    if ALLOW_COLUMNS in state["modes"]["dec"]:
        out += f"\x1b[?{ALLOW_COLUMNS}h"
    return out + settings.colors(state) + settings.labels(state)
