"""What a person types at an attached terminal: bytes to pass on as they are, and the detach key with what follows it.

Pure: bytes in, units to send and commands out. The key is known as its control byte and in the two forms in which
terminals send it when a program asked for exact keys (`CSI 93;5u`, `CSI 27;5;93~`). A focus report and a whole
bracketed paste are units of their own, because the runner must not find anything else in them.
"""

from __future__ import annotations

import re

from ..errors import BadArgument
from ..wire import UNIT_MAX_BYTES
from . import keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    Outcome = list[bytes | str]

DEFAULT_KEY = "ctrl-]"

# What the key behind the detach key asks for.
DETACH, OBSERVE, REPAINT, HELP, BELL = "detach", "observe", "repaint", "help", "bell"
_COMMANDS = {ord("d"): DETACH, ord("o"): OBSERVE, ord("r"): REPAINT, ord("?"): HELP}

# A sequence that a read cut is over within this time, or it was no sequence but keys.
HOLD_S = 0.02
# A paste that stays away for so long is passed on without its end; so is one that no frame can carry.
PASTE_S = 0.5
# Behind that, the end of a paste is taken as lost: nobody must be locked in.
PASTE_LOST_S = 5.0

_PASTE_BEGIN, _PASTE_END = b"\x1b[200~", b"\x1b[201~"
_FOCUS = (b"\x1b[I", b"\x1b[O")
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
# Shift, Control and their kin as keys of their own: kitty reports them where a program asked for all keys.
_MODIFIER_KEYS = range(57441, 57455)
_RELEASED = 3


class DetachKey:
    """`byte` is what an ordinary terminal sends for it, `code` the character of the key in the longer forms."""

    __slots__ = ("byte", "code", "name")

    def __init__(self, name: str) -> None:
        part = keys.parse([name])[0]
        character = part.get("key", "").lower()
        # Ctrl-[ is ESC, with which every other key may begin.
        if part.get("mods") != ["ctrl"] or character not in _CONTROL_KEYS:
            raise BadArgument("detach key", f"{name[:80]!a} is no control key", "such as ctrl-], ctrl-a, C-\\ or none")
        self.name = f"ctrl-{character}"
        self.code = ord(character)
        self.byte = bytes((ord(character.upper()) & 0x1F,))


def detach_key(name: str) -> DetachKey | None:
    """The key with this name; None for `none`."""
    return None if name.lower() == "none" else DetachKey(name)


class _Press:
    """One key as `CSI code;modifiers u` or `CSI 27;modifiers;code ~` tells it."""

    __slots__ = ("characters", "code", "modifiers", "released")

    def __init__(self, code: int, modifiers: int, event: int, others: tuple[int, ...]) -> None:
        self.code = code
        self.modifiers = (modifiers - 1) & ~_LOCKS
        self.released = event == _RELEASED
        # What it writes: with Shift another character than the one the key is named by.
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
    """The mouse, the focus, a paste, a Shift on its own: whoever waits for a key goes on waiting."""
    if not raw.startswith(b"\x1b["):
        return False
    if raw[2:3] in (b"M", b"<", b"=", b">", b"?") or raw[-1:] == b"M" or raw in (*_FOCUS, _PASTE_BEGIN):
        return True
    press = _press(raw)
    return press is not None and press.code in _MODIFIER_KEYS


def pressed(data: bytes) -> tuple[bytes, bytes]:
    """The keys in it, without what a terminal tells unasked by any key; and the sequence that a read cut, to be put
    before the next."""
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
    """Fed with what was read from the terminal. While it holds something, `wait_s` says for how long nothing may come
    before `release` is to be called.

    `holds_escape`: whether an ESC at the end of a read can only be the beginning of a sequence (so it is where a
    program asked for exact keys). Else it is most likely the Escape key, which goes out at once."""

    def __init__(self, key: DetachKey | None) -> None:
        self._key = key
        self.holds_escape = False
        self._held = b""
        self._told = 0  # how much of what is held went out already
        self._armed = False  # the detach key was pressed, the next key tells what for
        self._paste: bytearray | None = None
        self._out: Outcome = []
        self._joins = False  # whether the last unit may grow

    @property
    def wait_s(self) -> float | None:
        if self._paste is not None:
            return PASTE_S if self._paste or self._held else PASTE_LOST_S
        return HOLD_S if self._held else None

    def feed(self, data: bytes) -> Outcome:
        """Units to be sent (bytes) and commands (text), in order. What stands behind a `detach` is dropped."""
        buffer, told = self._held + data, self._told
        self._held, self._told = b"", 0
        at = 0
        while at < len(buffer):
            if self._paste is not None:
                at = self._pasted(buffer, at)
            elif self._armed:
                at = self._command(buffer, at)
            else:
                at = self._plain(buffer, at, told)
            told = 0
            if self._out and self._out[-1] == DETACH:
                self._held = b""
                break
        return self._taken()

    def release(self) -> Outcome:
        """Nothing followed what is held: it was no sequence that concerns us."""
        held, told = self._held, self._told
        self._held, self._told = b"", 0
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
            self._send(held[told:])
        return self._taken()

    def _plain(self, buffer: bytes, at: int, told: int) -> int:
        """From `at` to behind the next thing that is not simply passed on; `told` bytes of it went out before."""
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
                self._hold(buffer[at:], told)
                return len(buffer)
            self._send(buffer[at + told : at + 1])
            return at + 1
        self._sequence(sequence[0], told)
        return sequence.end()

    def _sequence(self, sequence: bytes, told: int) -> None:
        if sequence == _PASTE_BEGIN:
            self._paste = bytearray(sequence[told:])
        elif sequence in _FOCUS:
            self._send_unit(sequence[told:])
        elif self._key and (press := _press(sequence)) and press.is_key(self._key) and not press.released:
            self._armed = True
        else:
            self._send(sequence[told:])

    def _command(self, buffer: bytes, at: int) -> int:
        """The key behind the detach key."""
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
            # Of the detach key itself: the program was not told that it was pressed.
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

    def _hold(self, begun: bytes, told: int) -> None:
        self._held, self._told = begun, told
        if begun == b"\x1b" and not told and not self._armed and not self.holds_escape:
            self._send(begun)
            self._told = 1

    def _send(self, data: bytes) -> None:
        """More of the unit under way: what was read together is sent together."""
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
