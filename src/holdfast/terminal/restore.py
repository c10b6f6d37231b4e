"""From ranges of the log to a screen, and to a terminal's state as sequences; a screen kept up with the output."""

from __future__ import annotations

import time

from ..core.vt import colors as pens
from ..core.vt.modes import ALLOW_COLUMNS, ALTERNATE, DEFAULT, SYNCHRONIZED
from .filter import REFUSED_MODES
from .grid import Grid, GridFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    State = dict[str, Any]
    Range = dict[str, Any]
    Resize = tuple[int, int, int]
    Size = tuple[int, int]
    # The grid and the terminal's state at the last ground offset up to this one, and the output between the two. None
    # where the log cannot be read or drawn.
    Draw = Callable[[int], tuple[Grid, State, bytes] | None]


# The sequences that put a terminal into the state of a tracker's snapshot, part by part. No cells, no side effects.


_ORIGIN, _CURSOR_BLINK, _KEYPAD, _SIDES = 6, 12, 66, 69
# Not set as flags: modes set with the cursor and the margins, the alternate screens, and synchronized updates, which
# are over by the time of a restore.
_NOT_FLAGS = frozenset((_ORIGIN, _SIDES, _CURSOR_BLINK, 1048, SYNCHRONIZED, *ALTERNATE))
_NUMBERS = {"foreground": 10, "background": 11, "cursor": 12}
_DEFAULT_CHARSETS = ["B"] * 4
_SLOTS = "()*+"
_SLOTS_OF_96 = " -./"
_SHIFTS = ("\x0f", "\x0e", "\x1bn", "\x1bo")


def to(row: int, col: int) -> str:
    """Move the cursor to a row and column, both from 0."""
    return f"\x1b[{row + 1};{col + 1}H"


def pen(parts: dict[str, str]) -> str:
    return f"\x1b[{pens.pen_sgr(parts)}m"


def link(opened: list[str] | None) -> str:
    return "\x1b]8;{};{}\x1b\\".format(*opened) if opened else ""


def charsets(names: list[str], shift: int) -> str:
    """Set these character sets, where all are ASCII before."""
    named = [_designated(slot, name) for slot, name in enumerate(names) if name != "B"]
    return "".join(named) + (_SHIFTS[shift] if shift else "")


def ascii_again(names: list[str], shift: int) -> str:
    """Set all character sets to ASCII again."""
    return "".join(_designated(slot, "B") for slot, name in enumerate(names) if name != "B") + ("\x0f" if shift else "")


def _designated(slot: int, name: str) -> str:
    """The name of a set of 96 characters begins with `-`."""
    return f"\x1b{_SLOTS_OF_96[slot]}{name[1:]}" if name.startswith("-") else f"\x1b{_SLOTS[slot]}{name}"


def protection(value: int) -> str:
    return f'\x1b[{value}"q' if value else ""


def saved_cursor(saved: dict[str, Any] | None) -> str:
    """Save this cursor on the screen it belongs to. Nothing else is set before or afterwards, and no cell changes."""
    if saved is None:
        return ""
    names, shift = saved.get("charsets", _DEFAULT_CHARSETS), saved["shift"]
    return "".join(
        (
            "\x1b[?6h" if saved["origin"] else "",
            to(saved["row"], saved["col"]),
            pen(saved["pen"]),
            protection(saved["protected"]),
            charsets(names, shift),
            "\x1b7",
            ascii_again(names, shift),
            protection(2 if saved["protected"] else 0),
            "\x1b[m",
            "\x1b[?6l" if saved["origin"] else "",
        )
    )


def tabs(state: State) -> str:
    stops = state["tabs"]
    if stops is None:
        return ""
    cols = state["size"][1]
    return "\x1b[3g" + "".join(f"\x1b[{stop + 1}G\x1bH" for stop in stops if stop < cols)


def margins(state: State) -> str:
    """Margins and origin mode, both of which move the cursor."""
    rows, cols = state["size"]
    top, bottom, left, right = state["margins"]
    out = ""
    if (top, bottom) != (0, rows - 1):
        out += f"\x1b[{top + 1};{bottom + 1}r"
    if _SIDES in state["modes"]["dec"]:
        out += "\x1b[?69h"
        if (left, right) != (0, cols - 1):
            out += f"\x1b[{left + 1};{right + 1}s"
    return out + ("\x1b[?6h" if _ORIGIN in state["modes"]["dec"] else "")


def place(state: State, row: int, col: int) -> str:
    """The same as `to`, with the current margins."""
    if _ORIGIN in state["modes"]["dec"]:
        top, _, left, _ = state["margins"]
        return to(max(row - top, 0), max(col - left, 0))
    return to(row, col)


def flags(state: State) -> str:
    """Modes that are only on or off, without those that the terminal of a client must not get."""
    modes = state["modes"]
    dec = set(modes["dec"])
    # Not every terminal knows DECNKM; all know the older sequence.
    out = ["\x1b=" if mode == _KEYPAD else f"\x1b[?{mode}h" for mode in sorted(dec - DEFAULT) if _is_flag(mode)]
    out += [f"\x1b[?{mode}l" for mode in sorted(DEFAULT - dec)]
    out += [f"\x1b[{mode}h" for mode in modes["ansi"]]
    for name, on in modes["unknown"].items():
        if not (name.startswith("?") and not _is_flag(int(name[1:]))):
            out.append(f"\x1b[{name}{'h' if on else 'l'}")
    return "".join(out)


def _is_flag(mode: int) -> bool:
    return mode not in _NOT_FLAGS and mode not in REFUSED_MODES


def shape(state: State) -> str:
    if state["shape"]:
        return f"\x1b[{state['shape']} q"
    return "\x1b[?12h" if _CURSOR_BLINK in state["modes"]["dec"] else ""


def keyboard(stack: list[int]) -> str:
    """The kitty keyboard of one screen, from the lowest setting on."""
    lowest, *pushed = stack
    return (f"\x1b[={lowest};1u" if lowest else "") + "".join(f"\x1b[>{flags}u" for flags in pushed)


def modified_keys(state: State) -> str:
    level = state["keys"]["modify_other"]
    return f"\x1b[>4;{level}m" if level else ""


def colors(state: State) -> str:
    chosen = state["colors"]
    out = [f"\x1b]4;{index};{color}\x1b\\" for index, color in chosen["palette"].items()]
    out += [f"\x1b]{number};{chosen[name]}\x1b\\" for name, number in _NUMBERS.items() if chosen[name] is not None]
    return "".join(out)


def restored_labels(state: State) -> str:
    """Title, icon, directory, progress and pointer."""
    labels = state["labels"]
    out = ""
    if labels["title"]:
        out += f"\x1b]2;{labels['title']}\x1b\\"
    if labels["icon"]:
        out += f"\x1b]1;{labels['icon']}\x1b\\"
    if labels["cwd"]:
        out += f"\x1b]7;{labels['cwd']}\x1b\\"
    if labels["progress"]:
        out += "\x1b]9;4;{};{}\x1b\\".format(*labels["progress"])
    if labels["pointer"]:
        out += f"\x1b]22;{labels['pointer']}\x1b\\"
    return out


# From ranges of the log to a screen: the state at the beginning of a range, then its bytes at their sizes.


# The most that drawing a hostile stream may cost.
RENDER_MAX_CPU_S = 2.0
# A page that grows takes rows back from the history, so some history is always kept.
_HISTORY_MIN_ROWS = 500
# How much is drawn between two looks at the clock: a sequence of 4 bytes can change every cell.
_PIECE_MAX_BYTES = 64 << 10
_PIECE_MIN_BYTES = 1 << 10
_CELLS_OF_A_USUAL_PAGE = 4096


def prelude(state: State) -> bytes:
    """Put a blank terminal of the state's size into this state. Without history, the stack of titles and the modes
    saved by `CSI ? s`, and without colour-scheme reports, which only the runner gives."""
    return (_of_main_screen(state) + _of_active_screen(state)).encode()


def render(
    plan: dict[str, Any],
    read: Callable[[int, int], Iterable[bytes]],
    resizes: list[Resize],
    history_rows: int,
    *,
    keyframe: tuple[int, Grid] | None = None,
    max_cpu_s: float = RENDER_MAX_CPU_S,
) -> Grid:
    """The grid at the end of a plan's ranges (`runner/terminal/marks.py`). `read` gives the bytes between two offsets,
    `resizes` are (offset, rows, cols) in order. A keyframe is the grid at an offset: the range it lies in is drawn from
    there. GridFailed if the emulator fails or takes too long."""
    deadline = time.thread_time() + max_cpu_s
    grid: Grid | None = None
    for part in plan["ranges"]:
        if keyframe is not None and part["from"] <= keyframe[0] <= part["to"]:
            begin, grid = keyframe
        else:
            begin, grid = part["from"], _begin(grid, part, _size(part, resizes), history_rows)
        for data in _between(grid, begin, part["to"], read, resizes):
            if time.thread_time() > deadline:
                raise GridFailed(f"drawing took more than {max_cpu_s:g} s of CPU time")
            grid.feed(data)
    assert grid is not None, "a plan without ranges"
    return grid


def _size(part: Range, resizes: list[Resize]) -> tuple[int, int]:
    if part["size"] is not None:
        rows, cols = part["size"]
        return rows, cols
    before = [(rows, cols) for offset, rows, cols in resizes if offset <= part["from"]]
    return before[-1] if before else (30, 120)


def _begin(grid: Grid | None, part: Range, size: tuple[int, int], history_rows: int) -> Grid:
    state = part["state"]
    if grid is None or part.get("cleared"):
        return blank_in(state, size, history_rows, grid)
    # The main screen is drawn. This range clears and draws the alternate one.
    if state is not None and not grid.alt:
        grid.feed(_of_main_screen(state).encode())
    # Only now: the size changed while the alternate screen was shown.
    grid.resize(*size)
    if state is not None:
        grid.feed(_of_active_screen(state).encode())
    return grid


def blank_in(state: State | None, size: Size, history_rows: int, above: Grid | None) -> Grid:
    """A blank grid in this state, below the history of the grid so far."""
    grid = Grid(*size, history=max(history_rows, _HISTORY_MIN_ROWS), above=above)
    if state is not None:
        grid.feed(prelude(state))
    return grid


def _between(
    grid: Grid, begin: int, end: int, read: Callable[[int, int], Iterable[bytes]], resizes: list[Resize]
) -> Iterator[bytes]:
    """The bytes of a range in pieces. Resizes are applied between them."""
    stops = [resize for resize in resizes if begin < resize[0] <= end]
    # Of several at the beginning only the last one counts. The state usually has that size already.
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
    """The state of the main screen alone, and the switch to the alternate one if that is active."""
    out = ""
    main, alternate = state["saved"]
    main_keys, alternate_keys = state["keys"]["kitty"]
    if not state["alt"] and (alternate is not None or alternate_keys != [0]):
        out += "\x1b[?1047h" + keyboard(alternate_keys) + saved_cursor(alternate) + "\x1b[?1047l"
    out += keyboard(main_keys) + saved_cursor(main)
    return out + ("\x1b[?1047h" if state["alt"] else "")


def _of_active_screen(state: State) -> str:
    out = ""
    if state["alt"]:
        out += keyboard(state["keys"]["kitty"][1]) + saved_cursor(state["saved"][1])
    # Margins and tab stops move the cursor, so it is set after them. The character that has to be printed for a pending
    # wrap is ASCII with the plain pen.
    out += tabs(state) + margins(state) + place(state, state["row"], state["col"])
    if state["pending_wrap"]:
        out += " "
    out += pen(state["pen"]) + link(state["labels"]["link"]) + protection(state["protected"])
    out += charsets(state["charsets"], state["shift"])
    if state["single_shift"]:
        out += {2: "\x1bN", 3: "\x1bO"}[state["single_shift"]]
    out += flags(state) + shape(state) + modified_keys(state)
    if ALLOW_COLUMNS in state["modes"]["dec"]:
        out += f"\x1b[?{ALLOW_COLUMNS}h"
    return out + colors(state) + restored_labels(state)
