"""Input of a terminal: typed parts, the bytes for them, and the terminal's own replies.

A part is one JSON object. `check_part` refuses a malformed one, `encode` makes the bytes. A combination that the modes
cannot express is refused, never typed without one of its modifiers.

A call (one request, one `input` frame) is typed part by part, each encoded by the modes in force at its turn. Calls
never mix, except for keys with pauses between them. A reply of the terminal goes before any part that has not begun,
never into one.
"""

from __future__ import annotations

import os
from collections import deque

from ...core import wire
from ...core.loop import WRITE, Alarm
from ...core.shapes import SWITCH, Kind, one_of, whole
from ...core.vt.cursor import COLS_MAX, ROWS_MAX
from ...core.wire import Problem
from ..streams import InputQueue
from .keycodes import MODIFIERS, NAMES, bytes_for, csi, is_character, nearest, spell
from .pty import CANONICAL_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ...core.loop import Loop
    from ...core.vt.tracker import Tracker
    from .keycodes import Modes
    from .pty import Tty

    Part = dict[str, Any]


_XOFF = 0x13

_PASTE_BEGIN, _PASTE_END = b"\x1b[200~", b"\x1b[201~"
BRACKETED = ("auto", "always", "never")
# Of a paste that comes in several requests: the first opens the brackets, the last closes them.
PIECES = ("first", "middle", "last")
# C0 except TAB and CR, DEL, and C1 in both its forms: as a character, and as a lone byte, which text carries as a
# surrogate. Without ESC and CSI no end-of-paste sequence survives, and none can form from what is left around them.
_UNSAFE = dict.fromkeys(
    [*range(0x09), *range(0x0A, 0x0D), *range(0x0E, 0x20), *range(0x7F, 0xA0), *range(0xDC80, 0xDCA0)]
)

_BUTTONS = {"click": 0, "wheel_up": 64, "wheel_down": 65}
_RELEASE = 3
# Where no client has sent the size of its cells: height, width.
_CELL = (16, 8)

_PAUSE_MAX_MS = 5000


class BadPart(Exception):
    """A part that is malformed in any mode: which member, and the rule it breaks."""

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


def check_part(part: object) -> None:
    """Raises `BadPart` unless it is a valid part. Whether it can be expressed is known only when it is encoded."""
    if not isinstance(part, dict):
        raise BadPart("parts", "a part is an object")
    kinds = [name for name in part if name in _PARTS]
    if len(kinds) != 1:
        raise BadPart("parts", f"a part has exactly one of {', '.join(_PARTS)}")
    members = _PARTS[kinds[0]]
    for name in part:
        if name not in members:
            raise BadPart(str(name)[:80], f"a `{kinds[0]}` part has no member {str(name)[:80]!a}")
    for name, member in members.items():
        wrong = member.problem(part.get(name)) if name in part or name in _REQUIRED else None
        if wrong is not None:
            raise BadPart(name, f"`{name}`{wrong}")
    if "button" in part and part["mouse"] != "click":
        raise BadPart("button", "only a click has a `button`")


def encode(part: Part, modes: Modes) -> tuple[bytes, list[str]]:
    """The bytes of a part, and warnings of the form `name: explanation`. The part must have passed `check`."""
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


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and _bytes_of(value) is not None
    except UnicodeEncodeError:
        return False


def _is_key(value: object) -> bool:
    return isinstance(value, str) and (value in NAMES or is_character(value))


def _are_modifiers(value: object) -> bool:
    if not isinstance(value, list) or any(not isinstance(each, str) or each not in MODIFIERS for each in value):
        return False
    return len(set(value)) == len(value)


# The members of each kind of part.
_TEXT = Kind("text that has bytes", _is_text)
_PARTS: dict[str, dict[str, Kind]] = {
    "bytes": {"bytes": Kind("base64", lambda value: wire.from_text(value) is not None)},
    "text": {"text": _TEXT},
    "key": {
        "key": Kind("the name of a key or a character", _is_key),
        "mods": Kind(f"a list of {', '.join(MODIFIERS)}, each once", _are_modifiers),
    },
    "paste": {"paste": _TEXT, "bracketed": one_of(*BRACKETED), "raw": SWITCH, "piece": one_of(*PIECES)},
    "mouse": {
        "mouse": one_of(*_BUTTONS),
        "row": whole(1, ROWS_MAX + 1),
        "col": whole(1, COLS_MAX + 1),
        "button": Kind("1 (left), 2 (middle) or 3 (right)", lambda value: type(value) is int and 1 <= value <= 3),
    },
    "focus": {"focus": one_of("in", "out")},
    "enter": {"enter": Kind("true", lambda value: value is True)},
    "pause": {"pause": whole(0, _PAUSE_MAX_MS + 1)},
}
_REQUIRED = ("row", "col")


REPLIES_MAX_BYTES = 64 << 10
# A tty that is canonical and echoes would show the reply; the program that asked is about to change that.
_REPLY_WAIT_S = 0.02
# The end-of-file key, as the terminal defines it when it is typed.
EOF: Part = {"eof": True}


def size_of(parts: list[Part]) -> int:
    """The size of a call in the queue: that of its text, whatever its keys become."""
    return sum(len(text) if isinstance(text, (str, bytes)) else 1 for part in parts for text in part.values())


def _is_raw(part: object) -> bool:
    """Input that came as bytes. JSON has no bytes, so no client can send one as a part."""
    return isinstance(part, dict) and isinstance(part.get("raw"), bytes)


class _Call:
    """`taken` counts what the kernel accepted, not what was begun."""

    __slots__ = ("done", "parts", "size", "taken")

    def __init__(self, parts: list[Part], size: int, done: Callable[[bool, int], None]) -> None:
        self.parts = deque(parts)
        self.size = size
        self.taken = 0
        self.done = done


class Keyboard(InputQueue):
    """`done(whole, bytes)` of a call is called when the kernel accepted its last byte, or never will."""

    def __init__(
        self, loop: Loop, tty: Tty, tracker: Tracker, typed: Callable[[bytes], None] = lambda _data: None
    ) -> None:
        super().__init__(None)
        # Called with what is written, before its echo can be read.
        self._typed = typed
        self._loop = loop
        self._tty = tty
        self._tracker = tracker
        # A descriptor of its own: the loop watches the other one for output.
        self._fd = os.dup(tty.master)
        self._calls: deque[_Call] = deque()
        self._replies: deque[bytes] = deque()
        self._replies_size = 0
        self._under_way = memoryview(b"")
        self._writing: _Call | None = None
        # Calls that pause between two of their keys: other clients may type meanwhile. Only the Enter of a `submit` is
        # waited for.
        self._sleeping: list[_Call] = []
        self._pause = Alarm(loop, lambda: self._drain(0))
        self._reply_wait = Alarm(loop, self._stop_waiting)
        self._waited = False
        self._last_byte = b""
        self.replies_dropped = 0

    def check(self, parts: list[Part]) -> tuple[int, list[str]]:
        """The number of bytes in the current modes, and warnings. What cannot be typed is refused before anything is
        written: a call is typed as a whole or not at all."""
        warnings: list[str] = []
        count = line = 0
        for part in parts:
            try:
                if not _is_raw(part):
                    check_part(part)
                if "pause" in part:
                    continue
                typed, said = self._encode(part)
            except BadPart as problem:
                raise Problem(problem.code, str(problem), argument=problem.argument) from None
            except Inexpressible as problem:
                suggestions = list(problem.suggestions)
                raise Problem(problem.code, str(problem), key=problem.key, suggestions=suggestions) from None
            count += len(typed)
            warnings += [each for each in said if each not in warnings]
            if len(typed) > CANONICAL_BYTES:
                line = max(line, *map(len, typed.replace(b"\r", b"\n").split(b"\n")))
        settings = self._tty.settings()
        if line > CANONICAL_BYTES and settings is not None and settings.canonical:
            warnings.append("canonical_limit")
        return count, warnings

    def type(self, parts: list[Part], done: Callable[[bool, int], None] = lambda _whole, _bytes: None) -> None:
        size = size_of(parts)
        self.queued_bytes += size
        self._calls.append(_Call(parts, size, done))
        self._drain(0)

    def write(self, unit: bytes, done: Callable[[bool], None] = lambda _taken: None) -> None:
        self.type([{"raw": unit}], lambda whole, _bytes: done(whole))

    def answer(self, replies: list[bytes]) -> None:
        for reply in replies:
            if self._replies_size + len(reply) > REPLIES_MAX_BYTES:
                self.replies_dropped += 1
                continue
            self._replies.append(reply)
            self._replies_size += len(reply)
        self._drain(0)

    def interrupt(self) -> bool:
        """Type the interrupt key, ahead of all that waits. False when it cannot be written now."""
        settings = self._tty.settings()
        if self.closed_because is not None or settings is None or self._under_way:
            return False
        try:
            return os.write(self._fd, settings.interrupt) == 1
        except OSError:
            return False

    def type_eof(self) -> list[str]:
        """A terminal stays writable: its end of file is a key. Warnings."""
        settings = self._tty.settings()
        self.type([EOF])
        return [] if settings is None or settings.canonical else ["tty_raw"]

    def abandon(self, because: str) -> None:
        if self.closed_because is None:
            self.closed_because = because
        self._pause.cancel()
        self._reply_wait.cancel()
        self._replies.clear()
        self._replies_size = 0
        self._under_way = memoryview(b"")
        calls = [*self._calls, *self._sleeping]
        self._calls.clear()
        self._sleeping.clear()
        for call in calls:
            self.queued_bytes -= call.size
            call.done(False, call.taken)
        if self._fd >= 0:
            self._loop.watch(self._fd, 0, self._drain)
            os.close(self._fd)
            self._fd = -1

    def _encode(self, part: Part) -> tuple[bytes, list[str]]:
        if _is_raw(part):
            return part["raw"], []
        if part is not EOF:
            return encode(part, self._tracker)
        settings = self._tty.settings()
        if settings is None:
            return b"", []
        # The first end-of-file key only ends the line that was begun.
        twice = settings.canonical and self._last_byte not in (b"", *settings.line_ends)
        return settings.eof * (2 if twice else 1), []

    def _drain(self, _events: int) -> None:
        if self.closed_because is not None:
            return
        try:
            while self._under_way or self._next():
                written = os.write(self._fd, self._under_way)
                self._under_way = self._under_way[written:]
                if self._writing is not None:
                    self._writing.taken += written
        except BlockingIOError:
            self._loop.watch(self._fd, WRITE, self._drain)
            return
        except OSError:
            self.abandon("the terminal was hung up")
            return
        if self._fd >= 0:
            self._loop.watch(self._fd, 0, self._drain)

    def _next(self) -> bool:
        """Take the next call to be written, if one may be."""
        if self._replies:
            if not self._may_answer():
                return False
            reply = self._replies.popleft()
            self._replies_size -= len(reply)
            self._under_way, self._writing = memoryview(reply), None
            return True
        self._waited = False
        while self._calls and not self._pause.is_set:
            call = self._calls[0]
            if not call.parts:
                self._calls.popleft()
                self.queued_bytes -= call.size
                call.done(True, call.taken)
                if self._under_way:
                    return True  # `done` closed a client, and the loss of its focus is being typed
                continue
            part = call.parts.popleft()
            if "pause" in part:
                if call.parts and "enter" in call.parts[0]:
                    self._pause.set(part["pause"] / 1000)
                    return False
                self._calls.popleft()
                self._sleeping.append(call)
                self._loop.after(part["pause"] / 1000, lambda call=call: self._wake(call))  # type: ignore[misc]
                continue
            try:
                typed, _ = self._encode(part)
            except Inexpressible:
                continue  # the mode that allows it was left while it waited
            if typed:
                self._last_byte = b"" if part is EOF else typed[-1:]
                self._under_way, self._writing = memoryview(typed), call
                self._typed(typed)
                return True
        return False

    def _may_answer(self) -> bool:
        if self._waited:
            return True
        settings = self._tty.settings()
        if settings is None or not (settings.canonical and settings.echo):
            return True
        if not self._reply_wait.is_set:
            self._reply_wait.set(_REPLY_WAIT_S)
        return False

    def _stop_waiting(self) -> None:
        self._waited = True
        self._drain(0)

    def _wake(self, call: _Call) -> None:
        if call in self._sleeping:
            self._sleeping.remove(call)
            self._calls.append(call)  # after the current call: only the keys of one call have pauses between them
            self._drain(0)
