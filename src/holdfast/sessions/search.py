"""Regular expressions over the clean text of a log, line by line, in linear time and bounded memory."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right

from ..core.records import TTY
from ..core.vt.text import Cleaner, clean, plain
from ..core.vt.widths import decode, is_utf8
from ..errors import BadArgument
from ..model.session import Declared
from .segments import STREAMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol

    from ..core.vt.page import Line
    from .log import Log
    from .segments import LogSnapshot
    from .terminal_log import Reading


# A regular expression over clean text: lines that match, where, and what is shown of a very long one.


if TYPE_CHECKING:

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

    def __init__(self, pattern: str, ignore_case: bool, argument: str = "pattern") -> None:
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
            raise _refusal(argument, pattern, problem) from None
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


def _refusal(argument: str, pattern: str, problem: Exception) -> BadArgument:
    reason = problem.args[0] if problem.args else problem
    why = decode(reason) if isinstance(reason, bytes) else str(reason)
    rule, _, part = why.rpartition(": ")
    part = part.removeprefix("(?m)")
    place = pattern.find(part) if part else -1
    at = f" at position {place}" if place >= 0 else ""
    return BadArgument(
        argument,
        f"{pattern[:80]!a} is not a regular expression{at}: {rule or why} {part[:80]!a}",
        "use RE2 syntax; look-around and back-references are not supported",
    )


_BLOCK_BYTES = 1 << 20
# A longer line is searched in parts of this size.
_LINE_MAX_BYTES = 8 << 20
_CONTEXT_BYTES = 4 << 10
# An unfinished line that grows is looked through again as far back as this.
_UNFINISHED_BYTES = 64 << 10


class Hit(Declared):
    """A line that matches. `offset` is where its bytes begin in the raw stream, `spans` are positions in `text`.

    `line` counts from the first line ever printed. It is counted when first asked for, for all hits at once; None
    if the log dropped the line in the meantime.
    """

    stream: str
    offset: int
    text: str
    spans: list[tuple[int, int]]
    before: list[str]
    after: list[str]
    _numbers: _Numbers

    @property
    def line(self) -> int | None:
        return self._numbers.line(self.offset)


class Match(Declared):
    """What a wait was waiting for: the line, where in it, and the range of its bytes in the raw stream."""

    stream: str
    offset: int
    end: int
    text: str
    span: tuple[int, int]


class _Numbers:
    """Line numbers of the hits in one stream: one pass over the log, and only on demand."""

    __slots__ = ("_found", "_log", "_stream", "offsets")

    def __init__(self, log: Log, stream: str) -> None:
        self._log = log
        self._stream = stream
        self.offsets: set[int] = set()
        self._found: dict[int, int | None] = {}

    def line(self, offset: int) -> int | None:
        if self.offsets:
            offsets = sorted(self.offsets)
            ends = self._log.lines_at(self._stream, offsets)
            self._found = {at: None if n is None else n + 1 for at, n in zip(offsets, ends, strict=True)}
            self.offsets.clear()
        return self._found[offset]


class _Body:
    """Whole lines, clean, with the way back to their raw offsets."""

    __slots__ = ("_passed", "_raw", "begin", "clean", "end", "stop")

    def __init__(self, begin: int, raw: bytes, size: int, cleaner: Cleaner) -> None:
        self.begin, self.end = begin, begin + size
        self._raw: bytes | None = None
        self._passed = (0, 0)
        if cleaner.idle and plain(raw) and is_utf8(raw):
            self.clean, self.stop = raw, size
        else:
            self._raw = raw[:size]
            text = cleaner.feed(self._raw)
            if not self._raw.endswith(b"\n"):
                text += cleaner.flush()
            self.clean = text.encode()
            self.stop = len(self.clean)
        # The newline of the last line does not begin another line.
        if self.clean.endswith(b"\n", 0, self.stop):
            self.stop -= 1

    def offset(self, position: int) -> int:
        """The raw offset of the line that begins at a position; to be asked in ascending order."""
        if self._raw is None:
            return self.begin + position
        seen, at = self._passed
        for _ in range(self.clean.count(b"\n", seen, position)):
            at = self._raw.index(b"\n", at) + 1
        self._passed = (position, at)
        return self.begin + at

    def raw_end(self, offset: int, position: int) -> int:
        """The raw offset after the line that begins at `offset` and ends at a position."""
        if self._raw is None:
            return self.begin + position + 1
        return self.begin + (self._raw.find(b"\n", offset - self.begin) + 1 or len(self._raw))


def search(
    log: Log,
    pattern: str,
    *,
    context: int = 0,
    stream: str | None = None,
    newest: bool = False,
    limit: int | None = None,
    ignore_case: bool = False,
) -> list[Hit]:
    """Lines that match, in order of arrival, or from the newest back; the first `limit` of them.

    Reading backwards, each block is taken to begin outside of any escape sequence.
    """
    if stream is not None and stream not in STREAMS:
        raise BadArgument("stream", f"not a stream: {stream!r}", f"give one of {', '.join(STREAMS)}")
    for name, number in (("context", context), ("limit", 0 if limit is None else limit)):
        if number < 0:
            raise BadArgument(name, f"{number} is negative", "give 0 or more")
    compiled = Pattern(pattern, ignore_case)
    found: list[list[Hit]] = []
    for name in (stream,) if stream else log.streams():
        with log.snapshot() as snapshot:
            hits = _hits(log, snapshot, name, compiled, context, newest)
            found.append(list(itertools.islice((hit for hit in hits if isinstance(hit, Hit)), limit)))
    found = [hits for hits in found if hits]
    merged = list(itertools.chain.from_iterable(found))
    if len(found) > 1:
        rank = log.order()
        merged.sort(key=lambda hit: rank(hit.stream, hit.offset), reverse=newest)
    return merged[:limit]


def hits(
    log: Log,
    pattern: str,
    *,
    stream: str,
    context: int,
    newest: bool,
    ignore_case: bool,
    before: int | None,
    after: int | None,
) -> Iterator[Hit | int]:
    """Lines of one stream that match and begin before or after these offsets, as they are found; between them
    offsets that the search has come to."""
    with log.snapshot() as snapshot:
        compiled = Pattern(pattern, ignore_case)
        for hit in _hits(log, snapshot, stream, compiled, context, newest, before, after):
            at = hit if isinstance(hit, int) else hit.offset
            if (before is None or at < before) and (after is None or at > after):
                yield hit


def _hits(
    log: Log,
    snapshot: LogSnapshot,
    stream: str,
    pattern: Pattern,
    context: int,
    newest: bool,
    before: int | None = None,
    after: int | None = None,
) -> Iterator[Hit | int]:
    if stream == TTY:
        numbers = _Numbers(log, TTY)
        if newest:
            return _terminal_hits_back(snapshot, pattern, context, numbers, before)
        return _terminal_hits_in_order(snapshot, pattern, context, numbers)
    bodies = _bodies_back(snapshot, stream, before) if newest else _bodies(snapshot, stream, after)
    return _hits_in(log, snapshot, stream, pattern, context, newest, bodies)


def _hits_in(
    log: Log, snapshot: LogSnapshot, stream: str, pattern: Pattern, context: int, newest: bool, bodies: Iterator[_Body]
) -> Iterator[Hit | int]:
    """Behind the hits of each block, where a search that goes on from there has `before` or `after`."""
    numbers = _Numbers(log, stream)
    for body in bodies:
        found = [(*line, body.offset(line[0])) for line in pattern.lines(body.clean, 0, body.stop)]
        for begin, end, low, high, offset in reversed(found) if newest else found:
            line, spans = pattern.shown(body.clean, begin, end, low, high)
            before = _lines_before(snapshot, stream, body, begin, offset, context)
            after = _lines_after(snapshot, stream, body, end, offset, context)
            numbers.offsets.add(offset)
            yield Hit(stream, offset, line, spans, before, after, numbers)
        yield body.begin if newest else body.end - 1


def _terminal_hits_in_order(snapshot: LogSnapshot, pattern: Pattern, context: int, numbers: _Numbers) -> Iterator[Hit]:
    from .terminal_log import all_lines

    before: list[str] = []
    # Hits that wait for the lines after them.
    waiting: list[Hit] = []
    for lines in all_lines(snapshot):
        texts = _texts(lines)
        for hit in waiting:
            hit.after += texts[: context - len(hit.after)]
        while waiting and len(waiting[0].after) >= context:
            yield waiting.pop(0)
        for at, text, spans in _matches(pattern, texts):
            above = [*before, *texts[max(0, at - context) : at]][-context:] if context else []
            numbers.offsets.add(lines[at][0])
            waiting.append(Hit(TTY, lines[at][0], text, spans, above, texts[at + 1 : at + 1 + context], numbers))
        while waiting and len(waiting[0].after) >= context:
            yield waiting.pop(0)
        before = [*before, *texts][-context:] if context else []
    yield from waiting


def _terminal_hits_back(
    snapshot: LogSnapshot, pattern: Pattern, context: int, numbers: _Numbers, before: int | None
) -> Iterator[Hit | int]:
    from .terminal_log import lines_back

    for begin, end, lines in lines_back(snapshot, before):
        texts = _texts(lines)
        for at, text, spans in reversed(list(_matches(pattern, texts))):
            offset = lines[at][0]
            if begin <= offset < end:
                numbers.offsets.add(offset)
                above, below = texts[max(0, at - context) : at], texts[at + 1 : at + 1 + context]
                yield Hit(TTY, offset, text, spans, above, below, numbers)
        yield begin


def _texts(lines: list[Line]) -> list[str]:
    texts = [text.removesuffix("\n") for _, text in lines]
    # The last line may be one of which nothing was printed yet.
    return texts[:-1] if lines and not lines[-1][1] else texts


def _matches(pattern: Pattern, texts: list[str]) -> Iterator[tuple[int, str, list[tuple[int, int]]]]:
    """For each line that matches: its index, the text that is shown of it, and the spans of the matches in it."""
    encoded = [text.encode() for text in texts]
    starts = list(itertools.accumulate((len(text) + 1 for text in encoded), initial=0))
    body = b"\n".join(encoded)
    for begin, end, low, high in pattern.lines(body, 0, len(body)) if texts else ():
        yield bisect_right(starts, begin) - 1, *pattern.shown(body, begin, end, low, high)


def _line_from(snapshot: LogSnapshot, stream: str, at: int) -> int:
    """Where the first line at or after an offset begins; the offset itself in a line that is too long."""
    end, size = snapshot.ends.get(stream, 0), _CONTEXT_BYTES
    while snapshot.begin(stream) < at < end and size <= _LINE_MAX_BYTES:
        begin, data = snapshot.piece(stream, at - 1, end, size)
        if begin != at - 1:
            break
        if (cut := data.find(b"\n") + 1) or len(data) < size:
            return begin + (cut or len(data))
        size *= 4
    return at


def _bodies(snapshot: LogSnapshot, stream: str, after: int | None = None) -> Iterator[_Body]:
    """Blocks of whole lines from the beginning on, or those after an offset. A hole ends a line."""
    at, end = snapshot.begin(stream), snapshot.ends.get(stream, 0)
    if after is not None:
        at = max(at, _line_from(snapshot, stream, after + 1))
    cleaner = Cleaner()
    size = _BLOCK_BYTES
    while at < end:
        begin, data = snapshot.piece(stream, at, end, size)
        if begin != at:
            cleaner.flush()
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) == size < _LINE_MAX_BYTES:
            size *= 2
            continue
        # No line end: a line that is too long, or what a hole or the end of the log left of it.
        cut = cut or len(data)
        if data:
            yield _Body(begin, data, cut, cleaner)
        at = begin + cut
        size = _BLOCK_BYTES


def _bodies_back(snapshot: LogSnapshot, stream: str, before: int | None = None) -> Iterator[_Body]:
    at = snapshot.ends.get(stream, 0)
    if before is not None:
        at = min(at, _line_from(snapshot, stream, before))
    parts: list[bytes] = []
    while at > snapshot.begin(stream):
        begin, data = snapshot.piece_before(stream, at, _BLOCK_BYTES)
        if parts and begin + len(data) < at:
            yield _whole(at, parts)
            parts = []
        held = sum(map(len, parts))
        cut = data.find(b"\n") + 1
        if begin > snapshot.begin(stream) and cut and held + len(data) - cut:
            yield _whole(begin + cut, [data[cut:], *parts])
            parts = [data[:cut]]
        elif held > _LINE_MAX_BYTES:
            yield _whole(begin + len(data), parts)
            parts = [data]
        else:
            parts = [data, *parts]
        at = begin
    if any(parts):
        yield _whole(at, parts)


def _whole(begin: int, parts: list[bytes]) -> _Body:
    raw = b"".join(parts)
    return _Body(begin, raw, len(raw), Cleaner())


def _lines_before(snapshot: LogSnapshot, stream: str, body: _Body, begin: int, offset: int, count: int) -> list[str]:
    lines: list[str] = []
    while len(lines) < count and begin > 0:
        end = begin - 1
        begin = body.clean.rfind(b"\n", 0, end) + 1
        lines.append(decode(body.clean[max(begin, end - SHOWN_MAX_BYTES) : end]))
    if len(lines) == count or body.begin <= snapshot.begin(stream):
        return lines[::-1]
    data, at, more = b"", offset, b""
    while data.count(b"\n") <= count and len(data) < SHOWN_MAX_BYTES:
        begin, more = snapshot.piece_before(stream, at, max(_CONTEXT_BYTES, len(data)))
        if begin + len(more) < at or begin == at:
            break
        data, at = more + data, begin
    texts = clean(data).split("\n")[:-1]
    if data.count(b"\n") > count or len(data) >= SHOWN_MAX_BYTES:
        # The first may be cut: it is not what the loop ended for.
        texts = texts[1:]
    return texts[-count:]


def _lines_after(snapshot: LogSnapshot, stream: str, body: _Body, end: int, offset: int, count: int) -> list[str]:
    lines: list[str] = []
    position = end
    while len(lines) < count and position < body.stop:
        begin = position + 1
        position = body.clean.find(b"\n", begin, body.stop)
        position = body.stop if position < 0 else position
        lines.append(decode(body.clean[begin : min(position, begin + SHOWN_MAX_BYTES)]))
    if len(lines) == count:
        return lines
    size = _CONTEXT_BYTES
    start = body.raw_end(offset, end)
    while True:
        begin, data = snapshot.piece(stream, start, snapshot.ends[stream], size)
        if begin != start:
            return lines
        if data.count(b"\n") >= count or len(data) < size or size >= SHOWN_MAX_BYTES:
            break
        size *= 4
    texts = clean(data).split("\n")
    return (texts if texts[-1] else texts[:-1])[:count]


class _Unfinished:
    __slots__ = ("cleaner", "line", "next")

    def __init__(self, offset: int) -> None:
        self.cleaner = Cleaner()
        self.line = offset
        self.next = offset


class Matcher:
    """The first match in what is fed, on clean text, line by line, an unfinished line included. A match is found
    wherever the chunks were cut; a line is held up to `text.LINE_MAX_CHARS` characters. Everything on the screen of a
    terminal counts as unfinished."""

    __slots__ = ("_log", "_pattern", "_streams", "_terminal")

    def __init__(self, pattern: str, *, ignore_case: bool = False, log: Log | None = None) -> None:
        self._pattern = Pattern(pattern, ignore_case, "match")
        self._streams: dict[str, _Unfinished] = {}
        # Has the sizes of a terminal, and what it had on its full screen.
        self._log = log
        self._terminal: Reading | None = None

    def feed(self, stream: str, offset: int, data: bytes) -> Match | None:
        if stream == TTY and self._log is not None:
            return self._feed_terminal(self._log, offset, data)
        state = self._streams.get(stream)
        if state is None or state.next != offset:
            state = self._streams[stream] = _Unfinished(offset)
        finished = state.cleaner.feed(data)
        text = (finished + state.cleaner.peek()).encode()
        line, state.next = state.line, offset + len(data)
        last = data.rfind(b"\n") + 1
        if last:
            state.line = offset + last
        # What stood there before was looked at before, but a match may begin in it.
        start = 0 if finished else max(0, len(text) - len(data) - _UNFINISHED_BYTES)
        for begin, end, low, high in self._pattern.lines(text, start, len(text)):
            if begin == len(text):
                # Nothing of the next line is there yet.
                return None
            at = -1
            for _ in range(text.count(b"\n", 0, begin)):
                at = data.index(b"\n", at + 1)
                line = offset + at + 1
            close = data.find(b"\n", at + 1) if end < len(text) else -1
            after = offset + close + 1 if close >= 0 else state.next
            shown = text[begin:end]
            span = (len(decode(shown[: low - begin])), len(decode(shown[: high - begin])))
            return Match(stream, line, after, decode(shown), span)
        return None

    def _feed_terminal(self, log: Log, offset: int, data: bytes) -> Match | None:
        from .terminal_log import Reading

        if self._terminal is None:
            with log.snapshot() as snapshot:
                self._terminal = Reading(snapshot, offset, live=True)
        lines = self._terminal.feed(offset, data) + self._terminal.on_screen()
        end = offset + len(data)
        for number, (begin, text) in enumerate(lines):
            body = text.removesuffix("\n").encode()
            for _, _, low, high in self._pattern.lines(body, 0, len(body)) if text else ():
                after = min((at for at, _ in lines[number + 1 :] if at > max(begin, offset)), default=end)
                span = (len(decode(body[:low])), len(decode(body[:high])))
                return Match(TTY, begin, after, decode(body), span)
        return None
