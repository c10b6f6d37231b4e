"""The bytes that a terminal sends for one key, by the modes in force: plain, modifyOtherKeys or the kitty protocol.

A combination that the modes cannot express has no bytes; it is never sent without one of its modifiers.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Modes(Protocol):
        """What the application asked for; a tracker is one."""

        @property
        def app_cursor(self) -> bool: ...
        @property
        def app_keypad(self) -> bool: ...
        @property
        def backarrow(self) -> bool: ...
        @property
        def modify_other_keys(self) -> int: ...
        @property
        def kitty_flags(self) -> int: ...
        @property
        def bracketed_paste(self) -> bool: ...
        @property
        def focus_events(self) -> bool: ...
        @property
        def mouse(self) -> int: ...
        @property
        def mouse_encoding(self) -> str: ...
        @property
        def cell(self) -> tuple[int, int] | None: ...


SHIFT, ALT, CTRL, SUPER = 1, 2, 4, 8
MODIFIERS = {"shift": SHIFT, "alt": ALT, "ctrl": CTRL, "super": SUPER}
_SPELLED = ((SUPER, "super+"), (CTRL, "C-"), (ALT, "M-"), (SHIFT, "S-"))

_CURSOR = {"Up": "A", "Down": "B", "Right": "C", "Left": "D", "Home": "H", "End": "F"}
_PF = {"F1": "P", "F2": "Q", "F3": "R", "F4": "S"}
_NUMBERED = {"Insert": 2, "Delete": 3, "PageUp": 5, "PageDown": 6}
_NUMBERED.update(zip((f"F{number}" for number in range(5, 13)), (15, 17, 18, 19, 20, 21, 23, 24)))
# Keys whose code is a control character.
_CODES = {"Enter": 13, "Linefeed": 10, "Tab": 9, "Escape": 27, "Backspace": 127}
# As the terminfo of xterm-256color has them: keys that are another key with shift.
_SHIFTED = {"BackTab": "Tab", **{f"F{number + 12}": f"F{number}" for number in range(1, 13)}}
# The character, and the final byte after ESC O under the application keypad.
_KEYPAD = {
    **{f"KP{digit}": (str(digit), "pqrstuvwxy"[digit]) for digit in range(10)},
    "KP.": (".", "n"),
    "KP/": ("/", "o"),
    "KP*": ("*", "j"),
    "KP-": ("-", "m"),
    "KP+": ("+", "k"),
    "KPEnter": ("\r", "M"),
    "KP=": ("=", "X"),
}
# The kitty protocol numbers the keypad in this very order.
_KITTY_KEYPAD = {name: 57399 + place for place, name in enumerate(_KEYPAD)}
NAMES = frozenset((*_CURSOR, *_PF, *_NUMBERED, *_CODES, *_SHIFTED, *_KEYPAD, "Space"))

_CONTROL = {chr(code): code & 0x1F for code in (*range(ord("@"), ord("`")), *range(ord("a"), ord("{")))}
_CONTROL.update(zip(" /?2345678", (0x00, 0x1F, 0x7F, 0x00, 0x1B, 0x1C, 0x1D, 0x1E, 0x1F, 0x7F)))

_DISAMBIGUATE, _ALL_KEYS, _WITH_TEXT = 1, 8, 16


def spell(key: str, mods: int) -> str:
    """The name of the key, as a person would write it."""
    return "".join(prefix for bit, prefix in _SPELLED if mods & bit) + ("Space" if key == " " else key)


def is_character(text: str) -> bool:
    """True if it is one character that a key can type: not a control character and not a surrogate."""
    if len(text) != 1:
        return False
    code = ord(text)
    return code >= 0x20 and not 0x7F <= code < 0xA0 and not 0xD800 <= code < 0xE000


def nearest(key: str, mods: int, modes: Modes) -> tuple[str, ...]:
    """The same key with as many of its modifiers as can be expressed."""
    fewer = [mask for mask in range(mods) if mask & mods == mask]
    fewer.sort(key=lambda mask: -bin(mask).count("1"))
    return tuple(spell(key, mask) for mask in fewer if bytes_for(key, mask, modes) is not None)[:3]


def bytes_for(key: str, mods: int, modes: Modes) -> bytes | None:
    """None where the modes have no bytes for it."""
    if key in _SHIFTED:
        if mods & SHIFT:
            return None  # its own shift is used already: a second one would be lost
        key, mods = _SHIFTED[key], mods | SHIFT
    kitty = modes.kitty_flags & (_DISAMBIGUATE | _ALL_KEYS)
    if key in _KEYPAD:
        return None if mods else _keypad(key, modes)
    if mods & SUPER and not kitty:
        return None
    if key in _CURSOR:
        final = _CURSOR[key]
        if mods:
            return csi(f"1;{1 + mods}{final}")
        return b"\x1bO" + final.encode() if modes.app_cursor and not kitty else csi(final)
    if key in _PF:
        final = _PF[key]
        if kitty and key == "F3":
            # Its old form, CSI R, is also how a cursor position is reported.
            return csi(f"13;{1 + mods}~" if mods else "13~")
        if mods:
            return csi(f"1;{1 + mods}{final}")
        return csi(final) if kitty else b"\x1bO" + final.encode()
    if key in _NUMBERED:
        return csi(f"{_NUMBERED[key]};{1 + mods}~" if mods else f"{_NUMBERED[key]}~")
    if key == "Space":
        key = " "
    if kitty:
        return _kitty(key, mods, modes)
    plain = _plain(key, mods, modes)
    if modes.modify_other_keys and mods:
        return _other_key(key, mods, modes, plain)
    return plain


def csi(rest: str) -> bytes:
    return b"\x1b[" + rest.encode()


def _keypad(key: str, modes: Modes) -> bytes:
    character, final = _KEYPAD[key]
    if modes.kitty_flags & _ALL_KEYS or (modes.kitty_flags & _DISAMBIGUATE and key == "KPEnter"):
        text = f";;{ord(character)}" if modes.kitty_flags & _WITH_TEXT and key != "KPEnter" else ""
        return csi(f"{_KITTY_KEYPAD[key]}{text}u")
    if modes.app_keypad and not modes.kitty_flags & _DISAMBIGUATE:
        return b"\x1bO" + final.encode()
    return character.encode()


def _plain(key: str, mods: int, modes: Modes) -> bytes | None:
    """What terminals sent before any protocol for keys."""
    escape = b"\x1b" if mods & ALT else b""
    if key == "Backspace":
        if mods & SHIFT:
            return None
        return escape + (b"\x08" if modes.backarrow != bool(mods & CTRL) else b"\x7f")
    if key == "Tab" and mods & ~ALT == SHIFT:
        return escape + b"\x1b[Z"
    if key in _CODES:
        return None if mods & (SHIFT | CTRL) else escape + bytes([_CODES[key]])
    if mods & CTRL:
        code = None if mods & SHIFT else _CONTROL.get(_unshifted(key))
        return None if code is None else escape + bytes([code])
    text = _text(key, mods)
    return None if text is None else escape + text.encode()


def _other_key(key: str, mods: int, modes: Modes, plain: bytes | None) -> bytes | None:
    """modifyOtherKeys as xterm does it: 1 for what has no bytes of its own, 2 for every modified key."""
    shift_alone = mods == SHIFT
    if modes.modify_other_keys == 1:
        if plain is not None or key == "Backspace" or (shift_alone and key not in _CODES):
            return plain
    elif (key, mods) in (("Tab", SHIFT), ("Backspace", CTRL)) or (shift_alone and key not in _CODES and key != " "):
        return plain
    if key == "Backspace":
        code = 8 if modes.backarrow else 127
    elif key in _CODES:
        code = _CODES[key]
    else:
        base = _unshifted(key)
        if base != key and not mods & CTRL:
            mods |= SHIFT
        code = ord(_text(base, mods & SHIFT) or key)
    return csi(f"27;{1 + mods};{code}~")


def _kitty(key: str, mods: int, modes: Modes) -> bytes | None:
    all_keys = modes.kitty_flags & _ALL_KEYS
    if key in _CODES:
        if not mods and not all_keys and key != "Escape":
            return _plain(key, 0, modes)  # so that `reset` can be typed after a program that crashed
        return csi(f"{_CODES[key]};{1 + mods}u" if mods else f"{_CODES[key]}u")
    base = _unshifted(key)
    if base != key and not mods & CTRL:
        mods |= SHIFT
    text = None if mods & ~SHIFT else _text(base, mods) or (key if base != key else None)
    if not all_keys and not mods & ~SHIFT:
        return None if text is None else text.encode()
    code = ord(base)
    if modes.kitty_flags & _WITH_TEXT and all_keys and text is not None:
        return csi(f"{code};{1 + mods if mods else ''};{ord(text)}u")
    return csi(f"{code};{1 + mods}u" if mods else f"{code}u")


def _unshifted(character: str) -> str:
    """The key that has this capital letter. For other characters, shift differs from keyboard to keyboard."""
    lower = character.lower()
    return lower if len(lower) == 1 and lower.upper() == character else character


def _text(character: str, mods: int) -> str | None:
    """The text that the key types with or without shift; None if that depends on the keyboard."""
    if not mods & SHIFT:
        return character
    return character.upper() if character.isascii() and character.isalpha() else None
