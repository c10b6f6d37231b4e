"""The state that output left a client's terminal in, and the bytes that undo exactly that.

Fed with everything written to the terminal: the painting of a restore, and what the filter passes. A setting that a
program reset itself is not undone. The state before the attach cannot be queried and is taken to be the default.
`everything` is for a terminal in an unknown state.
"""

from __future__ import annotations

from ..core.vt import parser
from ..core.vt.parser import CONTROL, CSI, ESC, OSC

# Private modes that are on in a fresh terminal; all others are off.
_ON_BY_DEFAULT = frozenset((7, 25))
# Alternate screens. They are left first: all other modes belong to the main screen.
_ALTERNATE = (1049, 1047, 47)
_SAVES_CURSOR = 1048
_CURSOR_BLINK = 12
_MARGINS = 69
_ORIGIN = 6

# Its default differs between terminals: it is saved before anything else is written, and restored.
_ALTERNATE_SCROLL = 1007
KEEP = b"\x1b[?%ds" % _ALTERNATE_SCROLL

_MOUSE = (1000, 1002, 1003, 9, 1001, 1005, 1006, 1015, 1016, 1004)
_KEYS = (2004, 1, 66, 67, 2026, 5, _ORIGIN, 45, _MARGINS)
_KITTY_FLAGS_MAX = 16

_COLORS = range(10, 20)

# Settings that are on or off, with the bytes that turn each off. Setting margins moves the cursor.
_UNDONE = {
    "keypad": b"\x1b>",
    "locator": b"\x1b[0'z",
    "key_format": b"\x1b[>f",
    "memory_lock": b"\x1bm",
    "scroll_region": b"\x1b7\x1b[r\x1b8",
    "sides": b"\x1b7\x1b[r\x1b8",
    "shifted": b"\x0f",
    "protected": b'\x1b[0"q',
    "link": b"\x1b]8;;\x1b\\",
    "pen": b"\x1b[m",
    "shape": b"\x1b[0 q",
    "pointer": b"\x1b]22;default\x1b\\",
    "progress": b"\x1b]9;4;0\x1b\\",
}


class _Keyboard:
    """The kitty keyboard of one screen: how many settings were pushed, and whether the lowest one was changed."""

    __slots__ = ("changed", "pushed")

    def __init__(self) -> None:
        self.pushed = 0
        self.changed = False

    def undo(self, flags: int) -> bytes:
        pops = b"\x1b[<%du" % self.pushed if self.pushed else b""
        return pops + (b"\x1b[=%d;1u" % flags if self.changed else b"")


class Undo:
    """For one terminal, to which `KEEP` was written first. `flags` is its kitty keyboard before that, if reported."""

    def __init__(self, flags: int = 0) -> None:
        self._flags = flags
        self._scanner = parser.Scanner()
        self._clear()

    def _clear(self) -> None:
        self._modes: dict[int, bool] = {}
        self._plain_modes: dict[int, bool] = {}
        self._keyboards = (_Keyboard(), _Keyboard())
        self._key_options: set[int] = set()
        # Names in _UNDONE.
        self._on: set[str] = set()
        self._tabs = False
        self._charsets: set[bytes] = set()
        self._palette: set[int] = set()
        self._special: set[int] = set()
        self._colors: set[int] = set()
        self._kitty_colors: set[bytes] = set()

    def _note(self, name: str, on: bool) -> None:
        (self._on.add if on else self._on.discard)(name)

    @property
    def alternate(self) -> bool:
        return any(self._modes.get(mode) for mode in _ALTERNATE)

    @property
    def exact_keys(self) -> bool:
        """Whether a program asked for keys in other forms than the ordinary ones."""
        keyboard = self._keyboards[self.alternate]
        return bool(keyboard.pushed or keyboard.changed or self._key_options)

    def feed(self, data: bytes) -> bytes:
        """Note what is written to the terminal without the filter, and return it."""
        for kind, _, raw in self._scanner.steps(data):
            if kind in (CONTROL, CSI, ESC, OSC):
                self.saw(kind, raw)
        return data

    def note_pen(self) -> None:
        """The terminal got an SGR."""
        self._on.add("pen")

    def saw(self, kind: int, raw: bytes) -> None:
        """The terminal got this token."""
        if kind == CSI:
            self._csi(*parser.split_csi(raw))
        elif kind == OSC:
            self._osc(parser.split_string(raw)[0])
        elif kind == ESC:
            self._esc(*parser.split_esc(raw))
        elif raw in (b"\x0e", b"\x0f"):
            self._note("shifted", raw == b"\x0e")

    def _csi(self, prefix: bytes, body: bytes, intermediates: bytes, final: bytes) -> None:
        numbers = parser.numbers(body)
        first = numbers[0] if numbers else 0
        if final in (b"h", b"l") and not intermediates:
            modes = self._modes if prefix == b"?" else self._plain_modes
            for number in numbers:
                modes[number] = final == b"h"
        elif prefix == b"?" and final == b"r":
            for number in numbers:
                # The saved value may come from any program: put the default back in any case.
                self._modes[number] = number not in _ON_BY_DEFAULT
        elif final == b"m":
            if prefix != b">":
                self.note_pen()
            elif any(numbers[1:]):
                self._key_options.add(first)
            else:
                self._key_options.discard(first)
        elif final == b"u" and prefix:
            self._kitty(prefix, numbers)
        elif (intermediates, final) == (b" ", b"q"):
            self._note("shape", first != 0)
        elif (intermediates, final) == (b'"', b"q"):
            self._note("protected", first == 1)
        elif (intermediates, final) == (b"'", b"z"):
            self._note("locator", first != 0)
        elif final == b"r" and not prefix and not intermediates:
            self._note("scroll_region", bool(body))
        elif final == b"s" and not prefix and body:
            self._note("sides", True)
        elif (final == b"g" and not prefix) or (final == b"W" and prefix in (b"", b"?")):
            self._tabs = True
        elif final == b"n" and prefix == b">":
            self._key_options.add(first)
        elif final == b"f" and prefix == b">":
            self._note("key_format", bool(body))

    def _kitty(self, prefix: bytes, numbers: tuple[int, ...]) -> None:
        keyboard = self._keyboards[self.alternate]
        if prefix == b">":
            keyboard.pushed = min(keyboard.pushed + 1, _KITTY_FLAGS_MAX)
        elif prefix == b"<":
            count = (numbers[0] if numbers else 0) or 1
            # Popping more than was pushed removed what was set before the attach.
            keyboard.changed = keyboard.changed or count > keyboard.pushed
            keyboard.pushed = max(0, keyboard.pushed - count)
        elif prefix == b"=" and not keyboard.pushed:
            keyboard.changed = True

    def _esc(self, intermediates: bytes, final: bytes) -> None:
        if intermediates in (b"(", b")", b"*", b"+", b"-", b".", b"/"):
            if final == b"B":
                self._charsets.discard(intermediates)
            else:
                self._charsets.add(intermediates)
        elif intermediates:
            return
        elif final in (b"=", b">"):
            self._note("keypad", final == b"=")
        elif final == b"H":
            self._tabs = True
        elif final in (b"l", b"m"):
            self._note("memory_lock", final == b"l")
        elif final in (b"n", b"o", b"|", b"}", b"~"):
            self._note("shifted", True)
        elif final == b"c":
            self._clear()

    def _osc(self, payload: bytes) -> None:
        head, _, content = payload.partition(b";")
        number = int(head) if head.isdigit() else -1
        items = content.split(b";")
        if number in (4, 5):
            indexes = self._palette if number == 4 else self._special
            indexes.update(int(item) for item in items[::2] if item.isdigit() and len(item) < 6)
        elif number == 104:
            self._palette.difference_update([int(item) for item in items if item.isdigit()] or list(self._palette))
        elif number in _COLORS:
            self._colors.update(range(number, min(number + len(items), _COLORS.stop)))
        elif 110 <= number <= 119:
            self._colors.discard(number - 100)
        elif number == 21:
            for name, equals, value in (item.partition(b"=") for item in items):
                if equals and not value:
                    self._kitty_colors.discard(name)
                elif name:
                    self._kitty_colors.add(name)
        elif number == 8:
            self._note("link", len(items) > 1 and items[1] != b"")
        elif number == 9 and items[0] == b"4":
            self._note("progress", items[1:2] != [b"0"])
        elif number == 22:
            self._note("pointer", content not in (b"", b"default"))

    def undo_all(self, cols: int) -> bytes:
        """The bytes that undo all of it. Afterwards nothing is left to undo."""
        out = [self._screens()]
        if _ALTERNATE_SCROLL in self._modes:
            del self._modes[_ALTERNATE_SCROLL]
            out.append(b"\x1b[?%dr" % _ALTERNATE_SCROLL)
        for number in self._ordered():
            on = self._modes[number]
            if on != (number in _ON_BY_DEFAULT):
                out.append(b"\x1b[?%d%b" % (number, b"l" if on else b"h"))
                if number == _ORIGIN:
                    # That moved the cursor to the top, where the next line would overwrite what is shown.
                    out.append(b"\x1b[999;1H")
        out += [b"\x1b[%dl" % number for number, on in sorted(self._plain_modes.items()) if on]
        out += [b"\x1b[>%dm" % number for number in sorted(self._key_options)]
        out += [b"\x1b%bB" % _ascii(each) for each in sorted(self._charsets)]
        out += dict.fromkeys(undone for name, undone in _UNDONE.items() if name in self._on)
        if self._tabs:
            out.append(_default_tabs(cols))
        if self._palette:
            out.append(b"\x1b]104;%b\x1b\\" % _listed(self._palette))
        if self._special:
            out.append(b"\x1b]105;%b\x1b\\" % _listed(self._special))
        if self._kitty_colors:
            out.append(b"\x1b]21;%b\x1b\\" % b";".join(b"%b=" % key for key in self._kitty_colors))
        out += [b"\x1b]%d\x1b\\" % (number + 100) for number in sorted(self._colors)]
        self._clear()
        return b"".join(out)

    def _screens(self) -> bytes:
        """Each screen has a keyboard of its own."""
        main, other = self._keyboards
        left = b"".join(b"\x1b[?%dl" % mode for mode in _ALTERNATE if self._modes.pop(mode, False))
        return (other.undo(0) + left if left else b"") + main.undo(self._flags)

    def _ordered(self) -> list[int]:
        """Modes in the order in which they are undone: first those that make the terminal send bytes."""
        first = [number for number in (*_MOUSE, *_KEYS) if number in self._modes]
        ignored = {*first, *_ALTERNATE, _SAVES_CURSOR}
        return [*first, *sorted(self._modes.keys() - ignored)]


def everything(cols: int) -> bytes:
    """For a terminal in an unknown state: what `hold reset` prints."""
    undo = Undo()
    for number in (*_MOUSE, *_KEYS, _CURSOR_BLINK):
        undo._modes[number] = True
    undo._modes.update(dict.fromkeys(_ON_BY_DEFAULT, False))
    undo._plain_modes.update({4: True, 20: True})
    undo._key_options.add(4)
    undo._charsets.update((b"(", b")", b"*", b"+"))
    undo._on = _UNDONE.keys() - {"locator"}
    undo._tabs = True
    undo._colors.update(_COLORS)
    keyboard = b"\x1b[<%du\x1b[=0;1u" % _KITTY_FLAGS_MAX
    # First of all an unfinished string is ended. 1049 would move the cursor of a main screen to where it was saved.
    # OSC 104 without an entry resets the whole palette.
    main = b"\x1b[?1047l\x1b7\x1b[?1049l"
    return b"\x18" + keyboard + main + keyboard + undo.undo_all(cols) + b"\x1b]104\x1b\\"


def _ascii(intermediate: bytes) -> bytes:
    """The intermediate that designates the same slot with a set of 94 characters, as ASCII is."""
    return {b"-": b")", b".": b"*", b"/": b"+"}.get(intermediate, intermediate)


def _listed(numbers: set[int]) -> bytes:
    return b";".join(b"%d" % number for number in sorted(numbers))


def _default_tabs(cols: int) -> bytes:
    """Every eight columns, as a terminal starts."""
    return b"\x1b7\x1b[3g\r" + b"\x1b[8C\x1bH" * ((cols - 1) // 8) + b"\x1b8"
