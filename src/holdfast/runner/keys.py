"""Typed parts of input, and the bytes a terminal sends for them under the modes in force.

A part is one JSON object. `check` refuses a malformed one, `encode` makes the bytes. Nothing here does I/O and nothing
is guessed: a combination that the modes cannot express is refused, never typed without one of its modifiers.
"""

from __future__ import annotations

from . import wire
from .keycodes import MODIFIERS, NAMES, bytes_for, csi, is_character, nearest, spell
from .tty import COLS_MAX, ROWS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .keycodes import Modes

    Part = dict[str, Any]

_XOFF = 0x13

_PASTE_BEGIN, _PASTE_END = b"\x1b[200~", b"\x1b[201~"
BRACKETED = ("auto", "always", "never")
# Of a paste that comes in several requests: the first opens the brackets, the last closes them.
PIECES = ("first", "middle", "last")
# C0 but TAB and CR, DEL, and C1 in both its forms: as a character, and as a lone byte, which text carries as a
# surrogate. Without an ESC and a CSI no end of a paste survives, and none can form from what is left around them.
_UNSAFE = dict.fromkeys(
    [*range(0x09), *range(0x0A, 0x0D), *range(0x0E, 0x20), *range(0x7F, 0xA0), *range(0xDC80, 0xDCA0)]
)

_BUTTONS = {"click": 0, "wheel_up": 64, "wheel_down": 65}
_RELEASE = 3
# Where no client has told the size of its cells: height, width.
_CELL = (16, 8)

_PAUSE_MAX_MS = 5000

_MEMBERS = {
    "bytes": (),
    "text": (),
    "key": ("mods",),
    "paste": ("bracketed", "raw", "piece"),
    "mouse": ("row", "col", "button"),
    "focus": (),
    "enter": (),
    "pause": (),
}


class BadPart(Exception):
    """A part that is malformed whatever the modes: which member, and the rule it breaks."""

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(message)
        self.argument = argument
        self.code = "bad-key" if argument == "key" else "bad-argument"


class Inexpressible(Exception):
    """A key that has no bytes in these modes. `suggestions` are the nearest that have."""

    code = "bad-key"

    def __init__(self, message: str, key: str = "", suggestions: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.key = key
        self.suggestions = suggestions


def check(part: object) -> None:
    """Raises `BadPart` unless it is a part. Whether it can be expressed is known only when it is encoded."""
    if not isinstance(part, dict):
        raise BadPart("parts", "a part is an object")
    kinds = [name for name in part if name in _MEMBERS]
    if len(kinds) != 1:
        raise BadPart("parts", f"a part has exactly one of {', '.join(_MEMBERS)}")
    kind = kinds[0]
    for name in part:
        if name != kind and name not in _MEMBERS[kind]:
            raise BadPart(str(name)[:80], f"a `{kind}` part has no member {str(name)[:80]!a}")
    _CHECKS[kind](part)


def encode(part: Part, modes: Modes) -> tuple[bytes, list[str]]:
    """Its bytes, and warnings of the form `name: explanation`. The part must have passed `check`."""
    if "key" in part:
        return _key(part["key"], sum(MODIFIERS[name] for name in part.get("mods", ())), modes)
    if "text" in part:
        return _bytes_of(part["text"]), []
    if "paste" in part:
        return _paste(part, modes)
    if "bytes" in part:
        return wire.from_text(part["bytes"]) or b"", []
    if "enter" in part:
        return _key("Enter", 0, modes)
    if "mouse" in part:
        return _mouse(part, modes), []
    if "focus" in part:
        return _focus(part["focus"], modes), []
    return b"", []  # a pause


def _bytes_of(text: str) -> bytes:
    # Bytes that are no UTF-8 travel in text as surrogates, and become themselves again here.
    return text.encode("utf-8", "surrogateescape")


def _key(key: str, mods: int, modes: Modes) -> tuple[bytes, list[str]]:
    typed = bytes_for(key, mods, modes)
    if typed is None:
        name = spell(key, mods)
        raise Inexpressible(f"{name} has no bytes in the terminal's present mode", name, nearest(key, mods, modes))
    if typed[-1] == _XOFF:
        return typed, ["xoff: it may freeze the output until C-q is typed"]
    return typed, []


def _paste(part: Part, modes: Modes) -> tuple[bytes, list[str]]:
    text = part["paste"].replace("\r\n", "\r").replace("\n", "\r")
    warnings = []
    if not part.get("raw", False):
        clean = text.translate(_UNSAFE)
        removed = len(text) - len(clean)
        if removed:
            warnings.append(f"paste_cleaned: {removed} control characters were removed")
        text = clean
    wanted = part.get("bracketed", "auto")
    if wanted == "always" or (wanted == "auto" and modes.bracketed_paste):
        piece = part.get("piece")
        begin = _PASTE_BEGIN if piece in (None, "first") else b""
        end = _PASTE_END if piece in (None, "last") else b""
        return begin + _bytes_of(text) + end, warnings
    if "\r" in text:
        warnings.append("paste_newlines: without brackets each newline is an Enter")
    return _bytes_of(text), warnings


def _focus(direction: str, modes: Modes) -> bytes:
    if not modes.focus_events:
        name = "FocusIn" if direction == "in" else "FocusOut"
        raise Inexpressible(f"{name}: the application did not ask for focus reports", name)
    return b"\x1b[I" if direction == "in" else b"\x1b[O"


def _mouse(part: Part, modes: Modes) -> bytes:
    what, row, col = part["mouse"], part["row"], part["col"]
    name = f"{what.title().replace('_', '')}@{row},{col}"
    if not modes.mouse:
        raise Inexpressible(f"{name}: the application did not ask for the mouse", name)
    button = _BUTTONS[what] + (part.get("button", 1) - 1 if what == "click" else 0)
    if modes.mouse == 9 and what != "click":
        raise Inexpressible(f"{name}: the application asked for clicks alone", name)
    press = _report(button, row, col, modes, released=False)
    if what != "click" or modes.mouse == 9:
        typed = press
    else:
        release = _report(button, row, col, modes, released=True)
        typed = None if press is None or release is None else press + release
    if typed is None:
        raise Inexpressible(f"{name}: the application's mouse reports do not reach that far", name)
    return typed


def _report(button: int, row: int, col: int, modes: Modes, *, released: bool) -> bytes | None:
    encoding = modes.mouse_encoding
    if encoding in ("sgr", "pixels"):
        if encoding == "pixels":
            height, width = modes.cell or _CELL
            row, col = (row - 1) * height + height // 2 + 1, (col - 1) * width + width // 2 + 1
        return csi(f"<{button};{col};{row}{'m' if released else 'M'}")
    code = 32 + (_RELEASE if released else button)
    if encoding == "urxvt":
        return csi(f"{code};{col};{row}M")
    # One byte each, or one character of at most two bytes.
    if max(row, col) + 32 > (0x7FF if encoding == "utf8" else 0xFF):
        return None
    return b"\x1b[M" + (chr(code) + chr(32 + col) + chr(32 + row)).encode("utf-8" if encoding == "utf8" else "latin-1")


def _check_text(part: Part, name: str) -> None:
    value = part[name]
    if not isinstance(value, str):
        raise BadPart(name, f"`{name}` is text")
    try:
        _bytes_of(value)
    except UnicodeEncodeError:
        raise BadPart(name, f"`{name}` holds what cannot be made bytes") from None


def _check_bytes(part: Part) -> None:
    if wire.from_text(part["bytes"]) is None:
        raise BadPart("bytes", "`bytes` is base64")


def _check_key(part: Part) -> None:
    key, mods = part["key"], part.get("mods", [])
    if not isinstance(key, str) or not (key in NAMES or is_character(key)):
        raise BadPart("key", f"no such key: {str(key)[:80]!a}")
    if not isinstance(mods, list) or any(not isinstance(each, str) or each not in MODIFIERS for each in mods):
        raise BadPart("mods", f"`mods` is a list of {', '.join(MODIFIERS)}")
    if len(set(mods)) != len(mods):
        raise BadPart("mods", "`mods` names one twice")


def _check_paste(part: Part) -> None:
    _check_text(part, "paste")
    if part.get("bracketed", "auto") not in BRACKETED:
        raise BadPart("bracketed", f"`bracketed` is one of {', '.join(BRACKETED)}")
    if not isinstance(part.get("raw", False), bool):
        raise BadPart("raw", "`raw` is true or false")
    if part.get("piece") not in (None, *PIECES):
        raise BadPart("piece", f"`piece` is one of {', '.join(PIECES)}")


def _check_mouse(part: Part) -> None:
    if not isinstance(part["mouse"], str) or part["mouse"] not in _BUTTONS:
        raise BadPart("mouse", f"`mouse` is one of {', '.join(_BUTTONS)}")
    for name, most in (("row", ROWS_MAX), ("col", COLS_MAX)):
        if not _is_within(part.get(name), 1, most):
            raise BadPart(name, f"`{name}` is a number from 1 to {most}")
    if "button" in part and (part["mouse"] != "click" or not _is_within(part["button"], 1, 3)):
        raise BadPart("button", "`button` of a click is 1 (left), 2 (middle) or 3 (right)")


def _check_focus(part: Part) -> None:
    if part["focus"] not in ("in", "out"):
        raise BadPart("focus", "`focus` is in or out")


def _check_enter(part: Part) -> None:
    if part["enter"] is not True:
        raise BadPart("enter", "`enter` is true")


def _check_pause(part: Part) -> None:
    if not _is_within(part["pause"], 0, _PAUSE_MAX_MS):
        raise BadPart("pause", f"`pause` is a number of milliseconds from 0 to {_PAUSE_MAX_MS}")


def _is_within(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


_CHECKS = {
    "bytes": _check_bytes,
    "text": lambda part: _check_text(part, "text"),
    "key": _check_key,
    "paste": _check_paste,
    "mouse": _check_mouse,
    "focus": _check_focus,
    "enter": _check_enter,
    "pause": _check_pause,
}
