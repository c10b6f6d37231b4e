"""A regular expression over clean text: lines that match, where, and what is shown of a very long one."""

from __future__ import annotations

import itertools
import re

from ..errors import BadArgument
from .text import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol

    class _Found(Protocol):
        def span(self) -> tuple[int, int]: ...

    class _Regexp(Protocol):
        def search(self, text: bytes, pos: int = ..., endpos: int = ...) -> _Found | None: ...
        def finditer(self, text: bytes, pos: int = ..., endpos: int = ...) -> Iterator[_Found]: ...


# What is shown of a very long line: a window around the first match.
SHOWN_MAX_BYTES = 64 << 10
_SHOWN_LEAD_BYTES = 1 << 10
_SPANS_MAX = 256

# Anchors that mean the whole text, not a line: these patterns are tried on each line alone.
_WHOLE_TEXT = re.compile(r"\\[Az]|\(\?[A-Za-z]*-[A-Za-z]*m")


class Pattern:
    __slots__ = ("_by_line", "_regexp")

    def __init__(self, pattern: str, ignore_case: bool) -> None:
        import re2  # type: ignore[import-untyped]

        options = re2.Options()
        options.log_errors = False
        options.case_sensitive = not ignore_case
        # A match lies within a line and has no groups: the fastest engine can do it in one pass.
        options.never_nl = True
        options.never_capture = True
        try:
            self._regexp: _Regexp = re2.compile(f"(?m){pattern}".encode(), options)
        except (re2.error, UnicodeEncodeError) as problem:
            raise _refusal(pattern, problem) from None
        self._by_line = _WHOLE_TEXT.search(pattern) is not None

    def lines(self, body: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Every line with a match, begin and end, and the range of its first match. `stop` is a line's end."""
        if self._by_line:
            yield from self._each_line(body, start, stop)
            return
        search = self._regexp.search
        while start <= stop and (found := search(body, start, stop)) is not None:
            low, high = found.span()
            begin = body.rfind(b"\n", start, low) + 1 or start
            end = body.find(b"\n", high, stop)
            end = stop if end < 0 else end
            yield begin, end, low, high
            start = end + 1

    def _each_line(self, body: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        while start <= stop:
            end = body.find(b"\n", start, stop)
            end = stop if end < 0 else end
            found = self._regexp.search(body[start:end])
            if found is not None:
                low, high = found.span()
                yield start, end, start + low, start + high
            start = end + 1

    def spans(self, line: bytes) -> list[tuple[int, int]]:
        found = (each.span() for each in self._regexp.finditer(line))
        spans = list(itertools.islice(found, _SPANS_MAX))
        if line.isascii():
            return spans
        return [(len(decode(line[:low])), len(decode(line[:high]))) for low, high in spans]

    def shown(self, body: bytes, begin: int, end: int, low: int, high: int) -> tuple[str, list[tuple[int, int]]]:
        """The line between `begin` and `end`, or a window into it, and where in that it matches; `low` and `high` are
        its first match."""
        left = max(begin, low - _SHOWN_LEAD_BYTES) if end - begin > SHOWN_MAX_BYTES else begin
        line = body[left : min(end, max(high, left + SHOWN_MAX_BYTES))]
        spans = self.spans(line) or [(len(decode(line[: low - left])), len(decode(line[: high - left])))]
        return decode(line), spans


def _refusal(pattern: str, problem: Exception) -> BadArgument:
    reason = problem.args[0] if problem.args else problem
    why = decode(reason) if isinstance(reason, bytes) else str(reason)
    rule, _, part = why.rpartition(": ")
    part = part.removeprefix("(?m)")
    place = pattern.find(part) if part else -1
    at = f" at position {place}" if place >= 0 else ""
    return BadArgument(
        "pattern",
        f"{pattern[:80]!a} is no regular expression{at}: {rule or why} {part[:80]!a}",
        "use RE2 syntax; look-around and back-references are not supported",
    )
