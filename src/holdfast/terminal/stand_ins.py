"""Code points that stand for what does not fit into one character of a grid, and which characters do not fit."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from ..runner.characters import COLUMNS, column_count
from .looks import NO_EXTRAS, Extras

if TYPE_CHECKING:
    from collections.abc import Iterable

# Unassigned, and of the width that avt gives them: the private plane 16 and the end of the ideographic plane 3.
_NARROW = range(0x100000, 0x10FFFE)
_WIDE = range(0x32400, 0x3FFFE)
# Characters that avt's tables and the runner's give different widths. A stand-in has the runner's.
_DISPUTED = (
    *((0x17A4, 0x17A4), (0x2FFC, 0x2FFF), (0x302E, 0x302F), (0x3164, 0x3164), (0x31EF, 0x31EF), (0xFA6E, 0xFA6F)),
    *((0xFADA, 0xFAFF), (0x1B132, 0x1B132), (0x1B155, 0x1B155), (0x1F6DC, 0x1F6DC), (0x1FA70, 0x1FAFF)),
    (0x2FFFE, 0x2FFFF),
)
# Where plane 0 has characters without a width: looked through once, when the first beyond ASCII comes. A pattern is
# quick about plane 0, and slow about every range beyond it.
_SCRIPTS_WITH_MARKS = ((0x300, 0x33FF), (0xA000, 0xABFF), (0xD7B0, 0xD7FF), (0xF900, 0xFFFF))
_BEYOND = "\U00010000-\U0010ffff"
_BEYOND_PLANE_0 = re.compile(f"[{_BEYOND}]")
# A hostile stream opens ever new links; a screen shows few.
_LINKS_MAX_CHARS = 8 << 20

RESERVED = re.compile(f"[{chr(_NARROW[0])}-{chr(_NARROW[-1])}{chr(_WIDE[0])}-{chr(_WIDE[-1])}]")


class StandIns:
    def __init__(self) -> None:
        # No code point is left, or too much text in links: what is new loses its extras.
        self.full = False
        self._chars: dict[tuple[str, Extras], str] = {}
        self._meanings: dict[str, tuple[str, Extras]] = {}
        self._links_chars = 0
        # A space that was printed, where a bare one would count as erased.
        self.space = self.char(" ", NO_EXTRAS)

    def char(self, text: str, extras: Extras) -> str:
        """One character of the width of the text's first; for want of a free one, that first itself."""
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

    def meanings(self) -> list[tuple[str, Extras]]:
        """In the order in which the code points were given."""
        return list(self._meanings.values())


def first_odd(text: str) -> int:
    """Where the first character stands that a grid cannot be fed as it is, or the end."""
    match = _odd_in_plane_0().search(text)
    end = match.start() if match is not None else len(text)
    odd = {char for char in set(_BEYOND_PLANE_0.findall(text, 0, end)) if is_odd(char)}
    return min([end, *(text.index(char) for char in odd)])


def is_odd(char: str) -> bool:
    """Of no width, of a disputed one, or reserved for stand-ins."""
    return COLUMNS[char] == 0 or _replaced().match(char) is not None


@cache
def clusters() -> re.Pattern[str]:
    """Either ordinary characters, which nothing joins, or a single one to be looked at."""
    zero = _zero_width_in_plane_0()
    odd = f"{zero}{_ranges(_DISPUTED, 0xFFFF)}"
    return re.compile(f"([^{odd}{_BEYOND}]+(?![{zero}{_BEYOND}]))|(.)", re.DOTALL)


@cache
def _odd_in_plane_0() -> re.Pattern[str]:
    return re.compile(f"[{_zero_width_in_plane_0()}{_ranges(_DISPUTED, 0xFFFF)}]")


@cache
def _replaced() -> re.Pattern[str]:
    reserved = ((_NARROW[0], _NARROW[-1]), (_WIDE[0], _WIDE[-1]))
    return re.compile(f"[{_ranges((*reserved, *_DISPUTED), 0x10FFFF)}]")


@cache
def _zero_width_in_plane_0() -> str:
    """As the inside of a character class."""
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
