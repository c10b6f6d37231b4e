"""Text for agents and people, without characters that act on the reader or are invisible."""

from __future__ import annotations

import codecs
import re

from ..core.vt.parser import CONTROL, TEXT, Scanner, unfinished

# Bidi controls, characters without width, variation selectors and tags that can carry hidden text, blank fillers. The
# selector that makes an emoji of a symbol (U+FE0F) is not among them: it has one meaning, and is common.
_HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_JOINERS = "\u200c\u200d\u2060"
_JOINER = re.compile(f"[{_JOINERS}]")


def visible(text: str, *, joiners: bool = False) -> str:
    """Bidi controls, zero-width and tag characters become `\\u{...}`. With `joiners`, those that join letters stay."""

    def shown(found: re.Match[str]) -> str:
        character = found.group()
        return character if joiners and character in _JOINERS else f"\\u{{{ord(character):x}}}"

    return text if text.isascii() else _HIDDEN.sub(shown, text)


def all_visible(text: str) -> str:
    """For a whole text: joiners stay only between two characters that can be joined, emoji or letters of scripts that
    need them. Everywhere else they are hidden characters."""

    def shown(found: re.Match[str]) -> str:
        at = found.start()
        before, after = text[at - 1 : at] if at else "", text[at + 1 : at + 2]
        joins = not any(not each or each.isascii() or each in _JOINERS for each in (before, after))
        return found.group() if joins else f"\\u{{{ord(found.group()):x}}}"

    if text.isascii():
        return text
    text = visible(text, joiners=True)
    return _JOINER.sub(shown, text)


# In ground state, bytes without these only need decoding.
_NOT_PLAIN_FOR_AGENTS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2(?:[\x80-\x9f]|\Z)")
_KEPT = b"\t\n\r"


class AgentText:
    """Bytes to text for an agent, incrementally. Escape sequences are removed; TAB, LF and CR stay; other control
    characters become `\\xHH`, hidden characters but joiners `\\u{...}`. A `Cleaner` gives what a person would have
    seen, this gives what was printed.

    `feed` returns the text that is complete: all text before `ground`."""

    __slots__ = ("_scanner",)

    def __init__(self, offset: int = 0) -> None:
        self._scanner = Scanner(offset)

    @property
    def ground(self) -> int:
        """The offset after the last whole character or sequence: reading can continue here without loss."""
        return self._scanner.ground

    def feed(self, data: bytes) -> str:
        if self._scanner.idle and _NOT_PLAIN_FOR_AGENTS.search(data) is None:
            whole = len(data) - unfinished(data)
            self._scanner.pass_over(whole)
            self._scanner.hold(data[whole:])
            return visible(data[:whole].decode("utf-8", "replace"), joiners=True)
        out = []
        for kind, _, raw in self._scanner.steps(data):
            if kind == TEXT:
                out.append(raw.decode("utf-8", "replace"))
            elif kind == CONTROL:
                out.append(raw.decode() if raw in _KEPT else f"\\x{raw[0]:02x}")
        return visible("".join(out), joiners=True)

    def flush(self) -> str:
        """The rest: an unfinished character becomes U+FFFD, an unfinished sequence is dropped."""
        half = self._scanner.half_character
        self._scanner = Scanner(self._scanner.offset)
        return half.decode("utf-8", "replace")


class Decoder:
    """Decodes UTF-8 incrementally and changes nothing else: for programs, which need what was printed."""

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(data)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)
