"""Which lines of raw output can match at all, found at C speed: output that nobody watches for costs almost nothing."""

from __future__ import annotations

import re

from .lines import CSI

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Callable

    from .patterns import Needle, Pattern

    Find = Callable[[int], int]

_CONTROLS_BUT_CR = bytes(byte for byte in range(32) if byte not in b"\t\n\r") + b"\x7f"
_EACH_CONTROL = [bytes((control,)) for control in _CONTROLS_BUT_CR]
_C1 = re.compile(rb"\xc2[\x80-\x9f]")
_LONE_CR = re.compile(rb"\r[^\r\n]")
# All that is not ASCII and the same as an ASCII letter when case is ignored: dotted and dotless i, long s, Kelvin.
_OTHER_CASE = re.compile("\u0130|\u0131|\u017f|\u212a".encode())
_OTHER_CASE_LEADS = (b"\xc4", b"\xc5", b"\xe2")
# What is not among them is found first to be absent, mostly.
_COMMON = b"zqxjkvbywgpfmucdlhrsnioate "
# From here on a search for each control at memory speed is faster than one pass over every byte.
_SMALL_BYTES = 8192


class Sieve:
    def __init__(self, patterns: Iterable[Pattern]) -> None:
        # And of each its bytes, those first that are seldom in what programs print.
        self._needles: list[tuple[Needle, list[bytes]]] = []
        # A pattern that needs no certain bytes wants every line.
        self.wants_all = False
        for pattern in patterns:
            if pattern.needles is None:
                self.wants_all = True
                continue
            for needle in pattern.needles:
                each = {needle.raw[at : at + 1] for at in range(len(needle.raw))}
                self._needles.append((needle, sorted(each, key=_COMMON.find)))
        self._has_folded = any(needle.folded for needle, _ in self._needles)

    def look(self, block: bytes) -> Look | None:
        """None when nothing in this block can match, whatever stands between its letters: each needle lacks one of its
        bytes there. That is seen many times faster than that its bytes are nowhere in a row."""
        alive = []
        there: dict[bytes, bool] = {}
        there_in_any_case: dict[bytes, bool] = {}
        for needle, needed in self._needles:
            known = there_in_any_case if needle.folded else there
            for byte in needed:
                if byte not in known:
                    known[byte] = byte in block or (needle.folded and byte.upper() in block)
                if not known[byte]:
                    break
            else:
                alive.append(needle)
        other_cases = self._has_folded and not block.isascii() and any(lead in block for lead in _OTHER_CASE_LEADS)
        return Look(alive, other_cases) if alive or other_cases else None

    def misses(self, block: bytes) -> bool:
        """True when certainly no line of this block of whole lines can match, colours or not."""
        if self.wants_all:
            return False
        look = self.look(block)
        if look is None:
            return True
        if not readable(block):
            block = CSI.sub(b"", block)
            if not readable(block):
                return False
        return all(find(0) < 0 for find in look.finders(block))


class Look:
    """What of the sieve a certain block may hold."""

    def __init__(self, needles: list[Needle], other_cases: bool) -> None:
        self._needles = needles
        self._other_cases = other_cases

    def spans(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Begin and end of each line that may match, in a readable block of whole lines."""
        finders = self.finders(block)
        places = [find(0) for find in finders]
        while True:
            at = min((place for place in places if place >= 0), default=-1)
            if at < 0:
                return
            end = block.find(b"\n", at) + 1
            yield block.rfind(b"\n", 0, at) + 1, end
            places = [find(end) if 0 <= place < end else place for find, place in zip(finders, places)]

    def finders(self, block: bytes) -> list[Find]:
        lower = block.lower() if any(needle.folded for needle in self._needles) else b""
        finders = [_finder(lower if needle.folded else block, needle.raw) for needle in self._needles]
        if self._other_cases:
            finders.append(lambda at: _place(_OTHER_CASE.search(block, at)))
        return finders


def readable(block: bytes) -> bool:
    """True when what a line says stands in its bytes as it is: no sequences, no controls but TAB, LF and CR LF."""
    if len(block) < _SMALL_BYTES:
        if len(block.translate(None, _CONTROLS_BUT_CR)) != len(block):
            return False
    else:
        for control in _EACH_CONTROL:
            if control in block:
                return False
    if b"\r" in block and _LONE_CR.search(block) is not None:
        return False
    return block.isascii() or b"\xc2" not in block or _C1.search(block) is None


def _finder(block: bytes, raw: bytes) -> Find:
    return lambda at: block.find(raw, at)


def _place(found: re.Match[bytes] | None) -> int:
    return -1 if found is None else found.start()
