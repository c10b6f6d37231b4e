"""Key names as people write them, into the typed parts that a runner encodes.

A token that names no key is an error with the nearest names. It is never typed as text: who means text says so.
"""

from __future__ import annotations

import re

from ..errors import BadKey
from ..runner import wire
from ..runner.keycodes import ALT, CTRL, MODIFIERS, NAMES, SHIFT, SUPER, is_character, spell
from ..runner.tty import COLS_MAX, ROWS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Part = dict[str, Any]

ALIASES = {
    "return": "Enter",
    "cr": "Enter",
    "lf": "Linefeed",
    "btab": "BackTab",
    "esc": "Escape",
    "bs": "Backspace",
    "bspace": "Backspace",
    "ins": "Insert",
    "ic": "Insert",
    "del": "Delete",
    "dc": "Delete",
    "pgup": "PageUp",
    "ppage": "PageUp",
    "pgdn": "PageDown",
    "npage": "PageDown",
}
_FOCUS = {"focusin": "in", "focusout": "out"}
_MOUSE = {"click": "click", "wheelup": "wheel_up", "wheeldown": "wheel_down"}
_BUTTONS = {"left": 1, "middle": 2, "right": 3, "1": 1, "2": 2, "3": 3}
# What a name stands for, by its lower-case spelling.
_KNOWN = {**{name.lower(): name for name in NAMES}, **ALIASES}
_OFFERED = {**_KNOWN, "focusin": "FocusIn", "focusout": "FocusOut"}

# Prefixes end in - or +, so a name that merely begins like one (Ctrl, Space) is none.
_PREFIX = re.compile(
    r"(?:(c-|ctrl[+-]|control[+-]|\^)|(m-|alt[+-]|meta[+-]|opt[+-])|(s-|shift[+-])|super[+-])", re.IGNORECASE
)
_PREFIX_BITS = (SUPER, CTRL, ALT, SHIFT)
_MOUSE_TOKEN = re.compile(r"(click|wheelup|wheeldown)@([0-9]{1,4}),([0-9]{1,4})(?:,([a-z0-9]{1,6}))?", re.IGNORECASE)
# Somebody else's way to write a modifier: ctl-c, A-x, cmd_k.
_NEAR_PREFIX = re.compile(r"([a-z]{1,8})[-+_ ](.{1,12})", re.IGNORECASE | re.DOTALL)
_NEAR_BITS = {"c": CTRL, "a": ALT, "m": ALT, "o": ALT, "s": SHIFT}

_CONTROL_NAMES = {"\r": "Enter", "\n": "Linefeed", "\t": "Tab", "\x1b": "Escape", "\x7f": "Backspace", "\x08": "C-h"}
_SUGGESTIONS_MAX = 3


def parse(tokens: Iterable[str]) -> list[Part]:
    """One part for each token, in order. Raises `BadKey` for the first that names nothing."""
    return [_parse(token) for token in tokens]


def _parse(token: str) -> Part:
    if not isinstance(token, str):
        raise BadKey(repr(token), why="a key is named by text")
    head, colon, rest = token.partition(":")
    prefix = head.lower() if colon else ""
    if prefix == "text":
        return _text(token, rest)
    if prefix == "hex":
        return _hex(token, rest)
    if prefix == "key":
        return _key(token, rest)
    if token[:2].lower() == "0x" and len(token) > 2:
        return _hex(token, token[2:])
    return _key(token, token)


def _text(token: str, text: str) -> Part:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise BadKey(token, why="it holds what cannot be made bytes") from None
    return {"text": text}


def _hex(token: str, digits: str) -> Part:
    if not re.fullmatch(r"(?:[0-9a-fA-F]{2})+", digits):
        raise BadKey(token, why="bytes are written as pairs of hexadecimal digits, such as hex:1b5b41")
    return {"bytes": wire.as_text(bytes.fromhex(digits))}


def _key(token: str, name: str) -> Part:
    mods, rest = _modifiers(token, name)
    key = rest if is_character(rest) else _KNOWN.get(rest.lower())
    if key is not None:
        return {"key": key, "mods": [word for word, bit in MODIFIERS.items() if mods & bit]}
    special = _special(token, rest)
    if special is None:
        raise _unknown(token, mods, rest)
    if mods:
        raise BadKey(token, [rest], why="it takes no modifier")
    return special


def _modifiers(token: str, name: str) -> tuple[int, str]:
    """The modifiers in front, and what they are on."""
    mods = 0
    # The last character is never part of a prefix: in `C--` and `^` it is the key.
    while (found := _PREFIX.match(name, 0, len(name) - 1)) is not None:
        bit = _PREFIX_BITS[found.lastindex or 0]
        name = name[found.end() :]
        if mods & bit:
            raise BadKey(token, _valid(mods, name), why="it has one modifier twice")
        mods |= bit
    return mods, name


def _special(token: str, name: str) -> Part | None:
    if name.lower() in _FOCUS:
        return {"focus": _FOCUS[name.lower()]}
    found = _MOUSE_TOKEN.fullmatch(name)
    if found is None:
        return None
    what, row, col, button = found.groups()
    part: Part = {"mouse": _MOUSE[what.lower()], "row": int(row), "col": int(col)}
    if not (1 <= part["row"] <= ROWS_MAX and 1 <= part["col"] <= COLS_MAX):
        raise BadKey(token, why=f"rows count from 1 to {ROWS_MAX}, columns from 1 to {COLS_MAX}")
    if button is not None:
        if part["mouse"] != "click" or button.lower() not in _BUTTONS:
            raise BadKey(token, why="a click has a button: left, middle or right")
        part["button"] = _BUTTONS[button.lower()]
    return part


def _unknown(token: str, mods: int, name: str) -> BadKey:
    if not name:
        return BadKey(token, why="it is empty")
    if name in _CONTROL_NAMES:
        return BadKey(token, _valid(mods, _CONTROL_NAMES[name]), why="a control character is named, not typed")
    if name.lower().partition("@")[0] in _MOUSE:
        return BadKey(token, ["Click@1,1", "WheelUp@1,1"], why="it needs a row and a column")
    return BadKey(token, _near(mods, name))


def _near(mods: int, name: str) -> list[str]:
    """The names most like it, with the same modifiers."""
    # Slow to import, and only mistakes need it.
    import difflib

    found: list[str] = []
    other = _NEAR_PREFIX.fullmatch(name)
    if other is not None:
        bit = _NEAR_BITS.get(other[1][0].lower(), 0)
        found += _valid(mods | bit, other[2]) if bit and not mods & bit else []
    if len(name) <= 20:
        for each in difflib.get_close_matches(name.lower(), _OFFERED, n=2 * _SUGGESTIONS_MAX, cutoff=0.6):
            spelled = spell(_OFFERED[each], mods)
            if spelled not in found:
                found.append(spelled)
    return found[:_SUGGESTIONS_MAX]


def _valid(mods: int, name: str) -> list[str]:
    """As a suggestion, if it is a key at all."""
    key = name if is_character(name) else _KNOWN.get(name.lower())
    return [] if key is None else [spell(key, mods)]
