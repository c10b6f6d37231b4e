"""Key names as people write them, and the detach key in typed input.

A token that names no key is an error that offers the nearest names. It is never typed as text: `text:` is for that.
"""

from __future__ import annotations

import re

from ..core import wire
from ..core.vt.cursor import COLS_MAX, ROWS_MAX
from ..core.wire import UNIT_MAX_BYTES
from ..errors import BadArgument, BadKey
from ..runner.terminal.keycodes import ALT, CTRL, MODIFIERS, NAMES, SHIFT, SUPER, is_character, spell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Part = dict[str, Any]
    Outcome = list[bytes | str]


# Key names, to the typed parts that a runner encodes.


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
# The key of each name, in lower case.
_KNOWN = {**{name.lower(): name for name in NAMES}, **ALIASES}
_OFFERED = {**_KNOWN, "focusin": "FocusIn", "focusout": "FocusOut"}

# Prefixes end in - or +, so a name that merely begins like one (Ctrl, Space) has no prefix.
_PREFIX = re.compile(
    r"(?:(c-|ctrl[+-]|control[+-]|\^)|(m-|alt[+-]|meta[+-]|opt[+-])|(s-|shift[+-])|super[+-])", re.IGNORECASE
)
_PREFIX_BITS = (SUPER, CTRL, ALT, SHIFT)
_MOUSE_TOKEN = re.compile(r"(click|wheelup|wheeldown)@([0-9]{1,4}),([0-9]{1,4})(?:,([a-z0-9]{1,6}))?", re.IGNORECASE)
# Misspelled modifiers: ctl-c, A-x, cmd_k.
_NEAR_PREFIX = re.compile(r"([a-z]{1,8})[-+_ ](.{1,12})", re.IGNORECASE | re.DOTALL)
_NEAR_BITS = {"c": CTRL, "a": ALT, "m": ALT, "o": ALT, "s": SHIFT}

_CONTROL_NAMES = {"\r": "Enter", "\n": "Linefeed", "\t": "Tab", "\x1b": "Escape", "\x7f": "Backspace", "\x08": "C-h"}
_SUGGESTIONS_MAX = 3


def parse(tokens: Iterable[str]) -> list[Part]:
    """One part for each token, in order. Raises `BadKey` for the first one that names no key."""
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
        raise BadKey(token, why="it has characters that cannot be encoded") from None
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
    """The modifiers at the beginning, and the rest."""
    mods = 0
    # The last character is always the key, also in `C--` and `^`.
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
    """The most similar names, with the same modifiers."""
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
    """A suggestion, if it is a key."""
    key = name if is_character(name) else _KNOWN.get(name.lower())
    return [] if key is None else [spell(key, mods)]


# Typed input of an attached terminal: bytes to pass on as they are, and the detach key with the key after it.
#
# Bytes in, units to send and commands out. The detach key is found as its control byte and in the two forms in which
# terminals send it when a program asked for exact keys (`CSI 93;5u`, `CSI 27;5;93~`). A focus report and a whole
# bracketed paste are units of their own, because the runner expects nothing else in them.


# The commands of the key after the detach key.
DETACH, OBSERVE, REPAINT, HELP, BELL = "detach", "observe", "repaint", "help", "bell"
_COMMANDS = {ord("d"): DETACH, ord("o"): OBSERVE, ord("r"): REPAINT, ord("?"): HELP}

# The rest of a sequence that a read cut arrives within this time, or it was no sequence but keys.
HOLD_S = 0.02
# A paste without new bytes for this long is passed on without its end; so is one that is too large for a frame.
PASTE_S = 0.5
# After this time the end of a paste is taken as lost, so that the keys do not stay locked.
PASTE_LOST_S = 5.0

_PASTE_BEGIN, _PASTE_END = b"\x1b[200~", b"\x1b[201~"
_DETACH_FOCUS = (b"\x1b[I", b"\x1b[O")
_SEQUENCE_BYTES = 64

_NUMERIC = re.compile(rb"\x1b\[[0-9:;]*[A-Za-z~]")
_NUMERIC_BEGUN = re.compile(rb"\x1b(?:\[[0-9:;]*)?\Z")
_KEY = re.compile(
    rb"\x1b\[M(?s:...)"
    rb"|\x1b\[[<=>?]?[0-9:;]*[ -/]*[@-~]"
    rb"|\x1bO[0-9;]*[@-~]"
    rb"|\x1b?(?:[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3})"
    rb"|\x1b[^\[O\xc2-\xf4]|[^\x1b\xc2-\xf4]",
    re.DOTALL,
)
_KEY_BEGUN = re.compile(
    rb"\x1b(?:\[(?:M(?s:.{0,2})|[<=>?]?[0-9:;]*[ -/]*)|O[0-9;]*)?\Z"
    rb"|\x1b?(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z"
)

_CONTROL_KEYS = tuple("abcdefghijklmnopqrstuvwxyz@\\]^_")
_SHIFT, _CTRL = 1, 4
_LOCKS = 64 | 128
# Shift, Control and other modifiers as keys of their own: kitty reports them if a program asked for all keys.
_MODIFIER_KEYS = range(57441, 57455)
_RELEASED = 3


class DetachKey:
    """`byte` is what a terminal sends for it normally, `code` the character of the key in the longer forms."""

    __slots__ = ("byte", "code", "name")

    def __init__(self, name: str) -> None:
        part = parse([name])[0]
        character = part.get("key", "").lower()
        # Ctrl-[ is ESC, with which other keys begin.
        if part.get("mods") != ["ctrl"] or character not in _CONTROL_KEYS:
            raise BadArgument(
                "detach key", f"{name[:80]!a} is not a control key", "such as ctrl-], ctrl-a, C-\\ or none"
            )
        self.name = f"ctrl-{character}"
        self.code = ord(character)
        self.byte = bytes((ord(character.upper()) & 0x1F,))


def detach_key(name: str) -> DetachKey | None:
    """The key with this name; None for `none`."""
    return None if name.lower() == "none" else DetachKey(name)


class _Press:
    """One key as `CSI code;modifiers u` or `CSI 27;modifiers;code ~` report it."""

    __slots__ = ("characters", "code", "modifiers", "released")

    def __init__(self, code: int, modifiers: int, event: int, others: tuple[int, ...]) -> None:
        self.code = code
        self.modifiers = (modifiers - 1) & ~_LOCKS
        self.released = event == _RELEASED
        # The characters it may write: with Shift another one than the key's own.
        self.characters = (*others, code)

    def is_key(self, key: DetachKey) -> bool:
        return self.modifiers == _CTRL and self.code in (key.code, ord(key.byte))

    @property
    def command(self) -> str | None:
        if self.modifiers & ~_SHIFT:
            return None
        if self.modifiers and (ord("?") in self.characters or self.code == ord("/")):
            return HELP
        return None if self.modifiers else _COMMANDS.get(self.code)


def _press(sequence: bytes) -> _Press | None:
    if sequence[-1:] not in (b"u", b"~") or not sequence[2:3].isdigit():
        return None
    fields = [[int(number or 0) for number in field.split(b":")] for field in sequence[2:-1].split(b";")]
    if sequence[-1:] == b"~":
        return _Press(fields[2][0], fields[1][0], 0, ()) if len(fields) == 3 and fields[0] == [27] else None
    how = fields[1] if len(fields) > 1 else [1]
    text = tuple(fields[2]) if len(fields) > 2 else ()
    return _Press(fields[0][0], how[0] or 1, how[1] if len(how) > 1 else 1, (*fields[0][1:2], *text))


def is_no_key(raw: bytes) -> bool:
    """The mouse, the focus, a paste, a modifier alone: the next input may still be the key that is waited for."""
    if not raw.startswith(b"\x1b["):
        return False
    if raw[2:3] in (b"M", b"<", b"=", b">", b"?") or raw[-1:] == b"M" or raw in (*_DETACH_FOCUS, _PASTE_BEGIN):
        return True
    press = _press(raw)
    return press is not None and press.code in _MODIFIER_KEYS


def pressed(data: bytes) -> tuple[bytes, bytes]:
    """The keys in the data, without reports that are no keys; and an unfinished sequence at its end, which belongs
    before the next data."""
    keys, at = b"", 0
    while (stop := data.find(b"\x1b", at)) >= 0:
        keys += data[at:stop]
        if _KEY_BEGUN.match(data, stop) and len(data) - stop < _SEQUENCE_BYTES:
            return keys, data[stop:]
        key = _KEY.match(data, stop)
        raw = key[0] if key else data[stop : stop + 1]
        keys += b"" if is_no_key(raw) else raw
        at = stop + len(raw)
    return keys + data[at:], b""


class DetachScanner:
    """Fed with what was read from the terminal. While it holds something, `release` must be called if nothing arrives
    for `wait_s`.

    `holds_escape`: an ESC at the end of a read can only be the beginning of a sequence, because a program asked for
    exact keys. Otherwise it is most likely the Escape key, which goes out at once."""

    def __init__(self, key: DetachKey | None) -> None:
        self._key = key
        self.holds_escape = False
        self._held = b""
        self._sent = 0  # how much of what is held went out already
        self._armed = False  # the detach key was pressed, the next key is the command
        self._paste: bytearray | None = None
        self._out: Outcome = []
        self._joins = False  # whether the last unit may grow

    @property
    def wait_s(self) -> float | None:
        if self._paste is not None:
            return PASTE_S if self._paste or self._held else PASTE_LOST_S
        return HOLD_S if self._held else None

    def feed(self, data: bytes) -> Outcome:
        """Units to send (bytes) and commands (text), in order. Input after a `detach` is dropped."""
        buffer, sent = self._held + data, self._sent
        self._held, self._sent = b"", 0
        at = 0
        while at < len(buffer):
            if self._paste is not None:
                at = self._pasted(buffer, at)
            elif self._armed:
                at = self._command(buffer, at)
            else:
                at = self._plain(buffer, at, sent)
            sent = 0
            if self._out and self._out[-1] == DETACH:
                self._held = b""
                break
        return self._taken()

    def release(self) -> Outcome:
        """Nothing followed what is held: it is not the detach key."""
        held, sent = self._held, self._sent
        self._held, self._sent = b"", 0
        if self._paste is not None:
            if self._paste or held:
                self._send_unit(bytes(self._paste) + held)
                self._paste.clear()
            else:
                self._paste = None
        elif self._armed and held:
            self._armed = False
            self._out.append(BELL)
        else:
            self._send(held[sent:])
        return self._taken()

    def _plain(self, buffer: bytes, at: int, sent: int) -> int:
        """Handle the input from `at` up to the next ESC or detach key, or that itself. Its first `sent` bytes went out
        before. Returns the index after it."""
        marks = [buffer.find(b"\x1b", at), buffer.find(self._key.byte, at) if self._key else -1]
        stop = min((mark for mark in marks if mark >= 0), default=len(buffer))
        if stop > at:
            self._send(buffer[at:stop])
            return stop
        if self._key and buffer.startswith(self._key.byte, at):
            self._armed = True
            return at + 1
        sequence = _NUMERIC.match(buffer, at)
        if sequence is None:
            if _NUMERIC_BEGUN.match(buffer, at) and len(buffer) - at < _SEQUENCE_BYTES:
                self._hold(buffer[at:], sent)
                return len(buffer)
            self._send(buffer[at + sent : at + 1])
            return at + 1
        self._sequence(sequence[0], sent)
        return sequence.end()

    def _sequence(self, sequence: bytes, sent: int) -> None:
        if sequence == _PASTE_BEGIN:
            self._paste = bytearray(sequence[sent:])
        elif sequence in _DETACH_FOCUS:
            self._send_unit(sequence[sent:])
        elif self._key and (press := _press(sequence)) and press.is_key(self._key) and not press.released:
            self._armed = True
        else:
            self._send(sequence[sent:])

    def _command(self, buffer: bytes, at: int) -> int:
        """The key after the detach key."""
        assert self._key is not None
        key = _KEY.match(buffer, at)
        if key is None and _KEY_BEGUN.match(buffer, at) and len(buffer) - at < _SEQUENCE_BYTES:
            self._hold(buffer[at:], 0)
            return len(buffer)
        raw = key[0] if key else buffer[at : at + 1]
        end = at + len(raw)
        if is_no_key(raw):
            self._sequence(raw, 0)
            return end
        press = _press(raw) if raw.startswith(b"\x1b[") else None
        if press is not None and press.released:
            # The release of the detach key itself is dropped: the program did not get the press.
            if not press.is_key(self._key):
                self._send(raw)
            return end
        self._armed = False
        if raw == self._key.byte or (press is not None and press.is_key(self._key)):
            self._send(raw)
        else:
            command = press.command if press else _COMMANDS.get(raw[0]) if len(raw) == 1 else None
            self._out.append(command or BELL)
        return end

    def _pasted(self, buffer: bytes, at: int) -> int:
        assert self._paste is not None
        if len(self._paste) + len(buffer) - at > UNIT_MAX_BYTES:
            self._send_unit(bytes(self._paste))
            self._paste.clear()
        end = buffer.find(_PASTE_END, at)
        if end >= 0:
            end += len(_PASTE_END)
            self._send_unit(bytes(self._paste) + buffer[at:end])
            self._paste = None
            return end
        begun = max(n for n in range(len(_PASTE_END)) if buffer.endswith(_PASTE_END[:n], at))
        stop = len(buffer) - begun
        self._paste += buffer[at:stop]
        self._held = buffer[stop:]
        return len(buffer)

    def _hold(self, begun: bytes, sent: int) -> None:
        self._held, self._sent = begun, sent
        if begun == b"\x1b" and not sent and not self._armed and not self.holds_escape:
            self._send(begun)
            self._sent = 1

    def _send(self, data: bytes) -> None:
        """Add to the current unit: what was read together is sent together."""
        if not data:
            return
        if self._out and isinstance(self._out[-1], bytes) and self._joins:
            self._out[-1] += data
        else:
            self._out.append(data)
        self._joins = True

    def _send_unit(self, data: bytes) -> None:
        if data:
            self._out.append(data)
            self._joins = False

    def _taken(self) -> Outcome:
        out, self._out = self._out, []
        return out
