"""What a terminal was put into by what was written to it, and the bytes that undo exactly that.

Fed with all that reaches the terminal: the painting of a restore, and what the filter lets pass. What a program set
and reset again needs no undoing; what nobody can ask for (a mode that was on before) is taken to have been at its
default. `everything` is for a terminal of which nothing is known.
"""

from __future__ import annotations

from ..runner import escapes
from ..runner.escapes import CONTROL, CSI, ESC, OSC

# Private modes that are on in a fresh terminal; all others are off.
_ON_BY_DEFAULT = frozenset((7, 25))
# Alternate screens, with what leaves each; they come first, the others belong to the screen that is left.
_ALTERNATE = (1049, 1047, 47)
_SAVES_CURSOR = 1048
_CURSOR_BLINK = 12
_MARGINS = 69
_ORIGIN = 6

# Some terminals have it on, some off: it is saved before anything else and brought back.
_ALTERNATE_SCROLL = 1007
KEEP = b"\x1b[?%ds" % _ALTERNATE_SCROLL

_MOUSE = (1000, 1002, 1003, 9, 1001, 1005, 1006, 1015, 1016, 1004)
_KEYS = (2004, 1, 66, 67, 2026, 5, _ORIGIN, 45, _MARGINS)
_KITTY_FLAGS_MAX = 16

_COLORS = range(10, 20)


class _Keyboard:
    """The kitty keyboard of one screen: how many settings were pushed, and whether the lowest was changed."""

    __slots__ = ("changed", "pushed")

    def __init__(self) -> None:
        self.pushed = 0
        self.changed = False

    def undo(self, flags: int) -> bytes:
        pops = b"\x1b[<%du" % self.pushed if self.pushed else b""
        return pops + (b"\x1b[=%d;1u" % flags if self.changed else b"")


class Undo:
    """Of one terminal, to which `KEEP` was written first. `flags` is its kitty keyboard before us, if it told."""

    def __init__(self, flags: int = 0) -> None:
        self._flags = flags
        self._scanner = escapes.Scanner()
        self._clear()

    def _clear(self) -> None:
        self.pen = False
        self._modes: dict[int, bool] = {}
        self._plain_modes: dict[int, bool] = {}
        self._keyboards = (_Keyboard(), _Keyboard())
        self._key_options: set[int] = set()
        self._keypad = False
        self._shape = False
        self._scroll_region = False
        self._sides = False
        self._charsets: set[bytes] = set()
        self._shifted = False
        self._tabs = False
        self._protected = False
        self._palette: set[int] = set()
        self._special: set[int] = set()
        self._colors: set[int] = set()
        self._kitty_colors: set[bytes] = set()
        self._link = False
        self._progress = False
        self._pointer = False
        self._locator = False
        self._memory_lock = False
        self._key_format = False

    @property
    def alternate(self) -> bool:
        return any(self._modes.get(mode) for mode in _ALTERNATE)

    @property
    def exact_keys(self) -> bool:
        """Whether a program asked for keys in other forms than the ordinary ones."""
        keyboard = self._keyboards[self.alternate]
        return bool(keyboard.pushed or keyboard.changed or self._key_options)

    def feed(self, data: bytes) -> bytes:
        """For what reaches the terminal past the filter; gives it back."""
        for kind, _, raw in self._scanner.steps(data):
            if kind in (CONTROL, CSI, ESC, OSC):
                self.saw(kind, raw)
        return data

    def saw(self, kind: int, raw: bytes) -> None:
        """One thing that the terminal got."""
        if kind == CSI:
            self._csi(*escapes.split_csi(raw))
        elif kind == OSC:
            self._osc(escapes.split_string(raw)[0])
        elif kind == ESC:
            self._esc(*escapes.split_esc(raw))
        elif raw in (b"\x0e", b"\x0f"):
            self._shifted = raw == b"\x0e"

    def _csi(self, prefix: bytes, body: bytes, intermediates: bytes, final: bytes) -> None:
        numbers = escapes.numbers(body)
        first = numbers[0] if numbers else 0
        if final in (b"h", b"l") and not intermediates:
            modes = self._modes if prefix == b"?" else self._plain_modes
            for number in numbers:
                modes[number] = final == b"h"
        elif prefix == b"?" and final == b"r":
            for number in numbers:
                # Restored to what was saved, by whomever: put it back in any case.
                self._modes[number] = number not in _ON_BY_DEFAULT
        elif final == b"m":
            if prefix != b">":
                self.pen = True
            elif any(numbers[1:]):
                self._key_options.add(first)
            else:
                self._key_options.discard(first)
        elif final == b"u" and prefix:
            self._kitty(prefix, numbers)
        elif (intermediates, final) == (b" ", b"q"):
            self._shape = first != 0
        elif (intermediates, final) == (b'"', b"q"):
            self._protected = first == 1
        elif (intermediates, final) == (b"'", b"z"):
            self._locator = first != 0
        elif final == b"r" and not prefix and not intermediates:
            self._scroll_region = bool(body)
        elif final == b"s" and not prefix and body:
            self._sides = True
        elif (final == b"g" and not prefix) or (final == b"W" and prefix in (b"", b"?")):
            self._tabs = True
        elif final == b"n" and prefix == b">":
            self._key_options.add(first)
        elif final == b"f" and prefix == b">":
            self._key_format = bool(body)

    def _kitty(self, prefix: bytes, numbers: tuple[int, ...]) -> None:
        keyboard = self._keyboards[self.alternate]
        if prefix == b">":
            keyboard.pushed = min(keyboard.pushed + 1, _KITTY_FLAGS_MAX)
        elif prefix == b"<":
            count = (numbers[0] if numbers else 0) or 1
            # More than was pushed took away what had been set before us.
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
            self._keypad = final == b"="
        elif final == b"H":
            self._tabs = True
        elif final in (b"l", b"m"):
            self._memory_lock = final == b"l"
        elif final in (b"n", b"o", b"|", b"}", b"~"):
            self._shifted = True
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
            self._kitty_colors.update(item.partition(b"=")[0] for item in items)
        elif number == 8:
            self._link = len(items) > 1 and items[1] != b""
        elif number == 9 and items[0] == b"4":
            self._progress = items[1:2] != [b"0"]
        elif number == 22:
            self._pointer = content not in (b"", b"default")

    def take(self, cols: int) -> bytes:
        """The bytes that undo it all; from then on nothing is to be undone."""
        out = [self._screens()]
        if _ALTERNATE_SCROLL in self._modes:
            del self._modes[_ALTERNATE_SCROLL]
            out.append(b"\x1b[?%dr" % _ALTERNATE_SCROLL)
        for number in self._ordered():
            on = self._modes[number]
            if on != (number in _ON_BY_DEFAULT):
                out.append(b"\x1b[?%d%b" % (number, b"l" if on else b"h"))
                if number == _ORIGIN:
                    # That moved the cursor to the top, where the next line would be written over what is shown.
                    out.append(b"\x1b[999;1H")
        out += [b"\x1b[%dl" % number for number, on in sorted(self._plain_modes.items()) if on]
        out += [b"\x1b[>%dm" % number for number in sorted(self._key_options)]
        for is_set, undone in (
            (self._keypad, b"\x1b>"),
            (self._locator, b"\x1b[0'z"),
            (self._key_format, b"\x1b[>f"),
            (self._memory_lock, b"\x1bm"),
            # Setting margins moves the cursor.
            (self._scroll_region or self._sides, b"\x1b7\x1b[r\x1b8"),
            (bool(self._charsets), b"".join(b"\x1b%bB" % _ascii(each) for each in sorted(self._charsets))),
            (self._shifted, b"\x0f"),
            (self._protected, b'\x1b[0"q'),
            (self._link, b"\x1b]8;;\x1b\\"),
            (self.pen, b"\x1b[m"),
            (self._tabs, _default_tabs(cols)),
            (self._shape, b"\x1b[0 q"),
            (bool(self._palette), b"\x1b]104;%b\x1b\\" % _listed(self._palette)),
            (bool(self._special), b"\x1b]105;%b\x1b\\" % _listed(self._special)),
            (bool(self._kitty_colors), b"\x1b]21;%b\x1b\\" % b";".join(b"%b=" % key for key in self._kitty_colors)),
            (self._pointer, b"\x1b]22;default\x1b\\"),
            (self._progress, b"\x1b]9;4;0\x1b\\"),
        ):
            if is_set:
                out.append(undone)
        out += [b"\x1b]%d\x1b\\" % (number + 100) for number in sorted(self._colors)]
        self._clear()
        return b"".join(out)

    def _screens(self) -> bytes:
        """Each screen has a keyboard of its own."""
        main, other = self._keyboards
        left = b"".join(b"\x1b[?%dl" % mode for mode in _ALTERNATE if self._modes.pop(mode, False))
        return (other.undo(0) + left if left else b"") + main.undo(self._flags)

    def _ordered(self) -> list[int]:
        """Modes in the order in which they are undone: what could send bytes first."""
        first = [number for number in (*_MOUSE, *_KEYS) if number in self._modes]
        ignored = {*first, *_ALTERNATE, _SAVES_CURSOR}
        return [*first, *sorted(self._modes.keys() - ignored)]


def everything(cols: int) -> bytes:
    """For a terminal that was left behind in an unknown state: as `hold reset` prints it."""
    undo = Undo()
    for number in (*_MOUSE, *_KEYS, _CURSOR_BLINK):
        undo._modes[number] = True
    undo._modes.update(dict.fromkeys(_ON_BY_DEFAULT, False))
    undo._plain_modes.update({4: True, 20: True})
    undo._key_options.add(4)
    undo._charsets.update((b"(", b")", b"*", b"+"))
    undo.pen = undo._keypad = undo._shape = undo._scroll_region = undo._shifted = undo._protected = True
    undo._link = undo._progress = undo._tabs = undo._pointer = undo._memory_lock = undo._key_format = True
    undo._colors.update(_COLORS)
    keyboard = b"\x1b[<%du\x1b[=0;1u" % _KITTY_FLAGS_MAX
    # A string that was cut is ended before anything else. 1049 would move the cursor of a main screen, to where it
    # was saved. The whole palette goes by naming no entry of it.
    main = b"\x1b[?1047l\x1b7\x1b[?1049l"
    return b"\x18" + keyboard + main + keyboard + undo.take(cols) + b"\x1b]104\x1b\\"


def _ascii(intermediate: bytes) -> bytes:
    """How the same set is designated with 94 characters, those of ASCII."""
    return {b"-": b")", b".": b"*", b"/": b"+"}.get(intermediate, intermediate)


def _listed(numbers: set[int]) -> bytes:
    return b";".join(b"%d" % number for number in sorted(numbers))


def _default_tabs(cols: int) -> bytes:
    """Every eight columns, as a terminal starts."""
    return b"\x1b7\x1b[3g\r" + b"\x1b[8C\x1bH" * ((cols - 1) // 8) + b"\x1b8"
