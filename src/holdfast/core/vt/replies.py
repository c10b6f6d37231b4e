"""The replies to a program's queries: each a function of the query and the state at its place in the output.

Replies are 7-bit. The title, the clipboard and the cells are never reported: output could become input that way.
"""

from __future__ import annotations

from . import colors
from .colors import text as color_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from .sequences import State

    Parameters = tuple[int, ...]
    Answer = Callable[[State, Parameters], str]

# Pixels of a cell, height and width, until a client reports them.
CELL = (16, 8)

_ST = "\x1b\\"


def _status(state: State, parameters: Parameters) -> str:
    asked = _first(parameters)
    if asked == 5:
        return "\x1b[0n"
    if asked == 6:
        return "\x1b[{};{}R".format(*state.cursor.reported)
    return ""


def _private_status(state: State, parameters: Parameters) -> str:
    asked = _first(parameters)
    if asked == 6:
        return "\x1b[?{};{}R".format(*state.cursor.reported)
    return color_scheme(state) if asked == 996 else ""


def color_scheme(state: State) -> str:
    return f"\x1b[?997;{1 if state.colors.are_dark else 2}n"


def attributes(state: State, parameters: Parameters = ()) -> str:
    """DA1, and DECID."""
    if _first(parameters):
        return ""
    return f"\x1b[?62;22{';52' if state.clipboard else ''}c"


def _secondary_attributes(_state: State, parameters: Parameters) -> str:
    # The same as xterm.js: a version for which vim uses no workarounds.
    return "" if _first(parameters) else "\x1b[>0;276;0c"


def _tertiary_attributes(_state: State, parameters: Parameters) -> str:
    return "" if _first(parameters) else f"\x1bP!|00000000{_ST}"


def _version(state: State, parameters: Parameters) -> str:
    return "" if _first(parameters) else f"\x1bP>|Holdfast({state.version}){_ST}"


def _mode(state: State, parameters: Parameters) -> str:
    number = _first(parameters)
    return f"\x1b[?{number};{state.modes.report(number)}$y"


def _ansi_mode(state: State, parameters: Parameters) -> str:
    number = _first(parameters)
    return f"\x1b[{number};{state.modes.report_ansi(number)}$y"


def _kitty(state: State, _parameters: Parameters) -> str:
    return f"\x1b[?{state.keys.kitty[state.modes.alternate][-1]}u"


def _modify_keys(state: State, parameters: Parameters) -> str:
    return f"\x1b[>4;{state.keys.modify_other}m" if _first(parameters) == 4 else ""


def _window(state: State, parameters: Parameters) -> str:
    asked = _first(parameters)
    rows, cols = state.cursor.rows, state.cursor.cols
    height, width = state.cell or CELL
    if asked in (14, 15):
        return f"\x1b[{asked - 10};{rows * height};{cols * width}t"
    if asked == 16:
        return f"\x1b[6;{height};{width}t"
    if asked in (18, 19):
        return f"\x1b[{asked - 10};{rows};{cols}t"
    return {11: "\x1b[1t", 13: "\x1b[3;0;0t", 20: f"\x1b]L{_ST}", 21: f"\x1b]l{_ST}"}.get(asked, "")


def _terminal_parameters(_state: State, parameters: Parameters) -> str:
    asked = _first(parameters)
    return f"\x1b[{asked + 2};1;1;128;128;1;0x" if asked <= 1 else ""


def _graphics(_state: State, parameters: Parameters) -> str:
    return f"\x1b[?{_first(parameters)};3;0S"


# By prefix, intermediates and final.
CSI: dict[bytes, Answer] = {
    b"n": _status,
    b"?n": _private_status,
    b"c": attributes,
    b">c": _secondary_attributes,
    b"=c": _tertiary_attributes,
    b">q": _version,
    b"?$p": _mode,
    b"$p": _ansi_mode,
    b"?u": _kitty,
    b"?m": _modify_keys,
    b"t": _window,
    b"x": _terminal_parameters,
    b"?S": _graphics,
}


def color(state: State, asked: tuple[int, int | None], terminator: bytes) -> bytes:
    """OSC 10, 11, 12 and 4 with `?`."""
    number, index = asked
    if index is None:
        reply = f"\x1b]{number};{color_text(state.colors.in_force(number))}"
    else:
        reply = f"\x1b]4;{index};{color_text(state.colors.entry(index))}"
    # The terminator of the query, in 7 bits.
    return reply.encode() + (b"\x07" if terminator == b"\x07" else b"\x1b\\")


def setting(state: State, asked: bytes) -> bytes:
    """DECRQSS."""
    cursor = state.cursor
    value = {
        b"m": colors.reported_pen(cursor.pen) + "m",
        b" q": f"{state.cursor_shape} q",
        b"r": f"{cursor.top + 1};{cursor.bottom + 1}r",
        b"s": f"{cursor.left + 1};{cursor.right + 1}s",
        b'"p': '62;1"p',
        b'"q': f'{cursor.protected}"q',
    }.get(asked)
    return (f"\x1bP0$r{_ST}" if value is None else f"\x1bP1$r{value}{_ST}").encode()


def capabilities(state: State, asked: bytes) -> list[bytes]:
    """XTGETTCAP: names in hexadecimal, each with its own reply."""
    known = {b"TN": state.term, b"Co": "256", b"colors": "256", b"RGB": "8/8/8"}
    replies = []
    for name in asked.split(b";"):
        value = known.get(_of_hex(name))
        if value is None:
            # An invalid name is not sent back: only hexadecimal digits are harmless to repeat.
            replies.append(b"\x1bP0+r" + (name if _of_hex(name) else b"") + b"\x1b\\")
        else:
            replies.append(b"\x1bP1+r" + name + b"=" + value.encode().hex().upper().encode() + b"\x1b\\")
    return replies


def _of_hex(name: bytes) -> bytes:
    if not name.isalnum():
        return b""
    try:
        return bytes.fromhex(str(name, "ascii"))
    except ValueError:
        return b""


def _first(parameters: Parameters) -> int:
    return parameters[0] if parameters else 0
