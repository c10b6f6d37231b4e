"""Bytes to text for an agent, incrementally: nothing acts on whoever reads it, and nothing is hidden.

Escape sequences are removed; TAB, LF and CR stay, other control characters are spelled `\\xHH`; bidi controls and tag
characters are spelled too, joiners stay. Where host/text.py draws what a person would have seen, this tells what came.
"""

from __future__ import annotations

import codecs
import re

from ..runner.escapes import CONTROL, TEXT, Scanner, unfinished
from .text import visible

# In ground state, bytes without these are text as they stand.
_NOT_PLAIN = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2(?:[\x80-\x9f]|\Z)")
_KEPT = b"\t\n\r"


class AgentText:
    """`feed` gives the text that is complete; what is before `ground` has been told, or tells nothing."""

    __slots__ = ("_scanner",)

    def __init__(self, offset: int = 0) -> None:
        self._scanner = Scanner(offset)

    @property
    def ground(self) -> int:
        """The offset behind the last whole character or sequence: who goes on reading here loses nothing."""
        return self._scanner.ground

    def feed(self, data: bytes) -> str:
        if self._scanner.idle and _NOT_PLAIN.search(data) is None:
            whole = len(data) - unfinished(data)
            self._scanner.pass_over(whole)
            self._scanner.feed(data[whole:])
            return visible(data[:whole].decode("utf-8", "replace"), joiners=True)
        out = []
        for kind, _, raw in self._scanner.steps(data):
            if kind == TEXT:
                out.append(raw.decode("utf-8", "replace"))
            elif kind == CONTROL:
                out.append(raw.decode() if raw in _KEPT else f"\\x{raw[0]:02x}")
        return visible("".join(out), joiners=True)

    def flush(self) -> str:
        """What is left at the end: a character cut in half is U+FFFD, a sequence cut in half is nothing."""
        pending = self._scanner.pending
        self._scanner = Scanner(self._scanner.offset)
        return pending.decode("utf-8", "replace") if pending and pending[0] >= 0x80 and unfinished(pending) else ""


class Decoder:
    """UTF-8 and nothing else, whole characters at a time: for programs, which want what was printed."""

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(data)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)
