"""What a cell of avt cannot hold: the look of characters beyond its pen, and the stand-ins for them.

The pen of avt has colours, bold, faint, italic, blink, inverse, strike and one kind of underline. avt takes the
arguments of `58;...` for attributes of their own, `21` for the end of bold, and does not know `4:3`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ..core.vt.colors import parse_pen
from ..core.vt.page import CHARSETS
from ..core.vt.parser import CSI_PARAMETERS_MAX, numbers
from ..core.vt.widths import COLUMNS, column_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .cells import Color


class Extras(NamedTuple):
    """What a cell of avt cannot hold. The underline of style 1 is not among it: avt has that."""

    link: str = ""
    underline: int = 0
    underline_color: Color = None
    conceal: bool = False
    overline: bool = False


NO_EXTRAS = Extras()


class Look(NamedTuple):
    """How the next character looks: its extras, what of avt's own pen is visible on a space, the character sets G0 to
    G3 and which of them is active."""

    extras: Extras = NO_EXTRAS
    shows: int = 0
    charsets: str = "BBBB"
    active: int = 0

    @property
    def charset(self) -> str:
        return self.charsets[self.active]

    @property
    def link(self) -> str:
        return self.extras.link

    def with_link(self, link: str) -> Look:
        return self._replace(extras=self.extras._replace(link=link))


ORDINARY = Look()

DESIGNATES = "()*+"

# The sequences that `turned` takes: SGR, character sets, margins, inserted and deleted lines.
TURN = re.compile("(\x1b(?:\\[[0-9;:]*[mrLM]|[(-+][0-~]))")

# What of avt's own pen is visible on a space.
_SHOWN = {"underline": 1, "inverse": 2, "strike": 4}
# The SGR that unsets each part in avt.
_UNSET = {
    "bold": "22",
    "faint": "22",
    "italic": "23",
    "underline": "24",
    "blink": "25",
    "inverse": "27",
    "strike": "29",
    "fg": "39",
    "bg": "49",
}
_BYTE = r"0*(?:1?\d?\d|2[0-4]\d|25[0-5])"
_CODE = rf"0*(?:[0-57-9]|2[2-579]|3[0-79]|4[0-79]|9[0-7]|10[0-7])|[34]8;(?:5;{_BYTE}|2;{_BYTE};{_BYTE};{_BYTE})"
# An SGR that avt understands: passed on unchanged.
_NATIVE = re.compile(rf"\x1b\[(?:(?:{_CODE})(?:;(?:{_CODE})){{0,{CSI_PARAMETERS_MAX // 4 - 1}}})?m")


def turned(look: Look, token: str, rows: int) -> tuple[Look, str]:
    """The look after a sequence, and what to feed to avt for it on a page of this many rows."""
    final = token[-1]
    if token[1] != "[":
        slot = DESIGNATES.index(token[1])
        name = final if final in CHARSETS else "B"
        charsets = look.charsets[:slot] + name + look.charsets[slot + 1 :]
        # The sets of avt itself are always ASCII, so ASCII may be passed on.
        return look._replace(charsets=charsets), token if name == "B" else ""
    if final == "m":
        return _with_pen(look, token)
    if final == "r":
        # xterm clamps margins and ignores invalid ones; avt moves the cursor in any case.
        top, bottom = (*numbers(token[2:-1].encode()), 0, 0)[:2]
        if bottom > rows:
            token = f"\x1b[{top}r"
        return look, token if (top or 1) < (min(bottom, rows) or rows) else ""
    # IL and DL, which in xterm move the cursor to the first column.
    return look, token + "\r"


def _with_pen(look: Look, raw: str) -> tuple[Look, str]:
    """The look after an SGR, and what to feed to avt for it."""
    extras, shows = look.extras, look.shows
    reset, strokes = parse_pen(raw[2:-1].encode())
    kept: list[str] = []
    if reset:
        # Only OSC 8 opens and closes a link.
        extras, shows = Extras(link=extras.link), 0
        kept.append("0")
    for part, value in strokes:
        if part in _SHOWN:
            shows = shows & ~_SHOWN[part] if value is None else shows | _SHOWN[part]
        if part == "underline":
            style = 2 if value == "21" else int((value or "").partition(":")[2] or 0)
            extras = extras._replace(underline=style)
            kept.append(_UNSET[part] if value is None else "4")
        elif part == "underline_color":
            extras = extras._replace(underline_color=None if value is None else _color_of(value))
        elif part == "hidden":
            extras = extras._replace(conceal=value is not None)
        elif part == "overline":
            extras = extras._replace(overline=value is not None)
        elif part == "blink":
            kept.append(_UNSET[part] if value is None else "5")
        elif part in _UNSET:
            kept.append(value or _UNSET[part])
    if not _NATIVE.fullmatch(raw):
        raw = f"\x1b[{';'.join(kept)}m" if kept else ""
    return look._replace(extras=extras, shows=shows), raw


def _color_of(value: str) -> int | str:
    """The colour of `58;5;n` or `58;2;r;g;b`."""
    _, kind, *numbers = value.split(";")
    return int(numbers[0]) if kind == "5" else "#{:02x}{:02x}{:02x}".format(*map(int, numbers))


# Stand-ins: code points for what does not fit into one character of avt, and which characters do not fit.


# Unassigned code points, narrow and wide in avt: the private plane 16 and the end of the ideographic plane 3.
_NARROW = range(0x100000, 0x10FFFE)
_WIDE = range(0x32400, 0x3FFFE)
# Characters with different widths in avt's tables and in the runner's. A stand-in has the runner's width.
_DISPUTED = (
    *((0x17A4, 0x17A4), (0x2FFC, 0x2FFF), (0x302E, 0x302F), (0x3164, 0x3164), (0x31EF, 0x31EF), (0xFA6E, 0xFA6F)),
    *((0xFADA, 0xFAFF), (0x1B132, 0x1B132), (0x1B155, 0x1B155), (0x1F6DC, 0x1F6DC), (0x1FA70, 0x1FAFF)),
    (0x2FFFE, 0x2FFFF),
)
# Where plane 0 has characters without a width: searched once, when the first character beyond ASCII arrives. A regular
# expression is fast for plane 0, and slow for every range beyond it.
_SCRIPTS_WITH_MARKS = ((0x300, 0x33FF), (0xA000, 0xABFF), (0xD7B0, 0xD7FF), (0xF900, 0xFFFF))
_BEYOND = "\U00010000-\U0010ffff"
_BEYOND_PLANE_0 = re.compile(f"[{_BEYOND}]")
# A hostile stream opens new links without end; a screen shows few.
_LINKS_MAX_CHARS = 8 << 20

RESERVED = re.compile(f"[{chr(_NARROW[0])}-{chr(_NARROW[-1])}{chr(_WIDE[0])}-{chr(_WIDE[-1])}]")


class StandIns:
    def __init__(self) -> None:
        # No code point is left, or links have too much text: new characters lose their extras.
        self.full = False
        self._chars: dict[tuple[str, Extras], str] = {}
        self._meanings: dict[str, tuple[str, Extras]] = {}
        self._links_chars = 0
        # A space that was printed, where a bare one would count as erased.
        self.space = self.char(" ", NO_EXTRAS)

    def char(self, text: str, extras: Extras) -> str:
        """A stand-in with the width of the text's first character, or that character itself if none is free."""
        known = self._chars.get((text, extras))
        if known is not None:
            return known
        codes = _WIDE if COLUMNS[text[0]] == 2 else _NARROW
        used = len(self._meanings)
        if used >= len(codes) or self._links_chars > _LINKS_MAX_CHARS:
            self.full = True
            return "\ufffd" if RESERVED.match(text) else text[0]
        char = chr(codes[used])
        self._chars[text, extras] = char
        self._meanings[char] = text, extras
        self._links_chars += len(extras.link)
        return char

    def meaning(self, char: str) -> tuple[str, Extras]:
        return self._meanings.get(char) or (char, NO_EXTRAS)


def first_unfit(text: str) -> int:
    """The index of the first character that avt cannot be fed as it is, or the end."""
    match = _unfit_in_plane_0().search(text)
    end = match.start() if match is not None else len(text)
    unfit = {char for char in set(_BEYOND_PLANE_0.findall(text, 0, end)) if is_unfit(char)}
    return min([end, *(text.index(char) for char in unfit)])


def is_unfit(char: str) -> bool:
    """It has no width, a disputed one, or is reserved for stand-ins."""
    return COLUMNS[char] == 0 or _replaced().match(char) is not None


@cache
def clusters() -> re.Pattern[str]:
    """Matches either ordinary characters, which nothing joins, or a single other one."""
    zero = _zero_width_in_plane_0()
    unfit = f"{zero}{_ranges(_DISPUTED, 0xFFFF)}"
    return re.compile(f"([^{unfit}{_BEYOND}]+(?![{zero}{_BEYOND}]))|(.)", re.DOTALL)


@cache
def _unfit_in_plane_0() -> re.Pattern[str]:
    return re.compile(f"[{_zero_width_in_plane_0()}{_ranges(_DISPUTED, 0xFFFF)}]")


@cache
def _replaced() -> re.Pattern[str]:
    reserved = ((_NARROW[0], _NARROW[-1]), (_WIDE[0], _WIDE[-1]))
    return re.compile(f"[{_ranges((*reserved, *_DISPUTED), 0x10FFFF)}]")


@cache
def _zero_width_in_plane_0() -> str:
    """The inside of a character class."""
    ranges: list[tuple[int, int]] = []
    for first, last in _SCRIPTS_WITH_MARKS:
        for code in range(first, last + 1):
            if column_count(chr(code)):
                continue
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1] = ranges[-1][0], code
            else:
                ranges.append((code, code))
    return _ranges(ranges, 0xFFFF)


def _ranges(ranges: Iterable[tuple[int, int]], last: int) -> str:
    return "".join(f"{chr(begin)}-{chr(end)}" for begin, end in ranges if end <= last)
