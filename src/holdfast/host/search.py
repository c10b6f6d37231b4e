"""Regular expressions over the clean text of a log, line by line, in linear time and bounded memory."""

from __future__ import annotations

import itertools
from bisect import bisect_right

from ..errors import BadArgument
from .patterns import SHOWN_MAX_BYTES, Pattern
from .segments import STREAMS, TERMINAL
from .text import Cleaner, clean, decode, is_utf8, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .log import Log
    from .segments import Look
    from .terminal_log import Reading

_BLOCK_BYTES = 1 << 20
# A longer line is searched in parts of this size.
_LINE_MAX_BYTES = 8 << 20
_CONTEXT_BYTES = 4 << 10
# An unfinished line that grows is looked through again as far back as this.
_UNFINISHED_BYTES = 64 << 10


class Hit:
    """A line that matches. `offset` is where its bytes begin in the raw stream, `spans` are positions in `text`.

    `line` counts from the first line ever printed. It is counted when first asked for, for all hits at once; None
    if the log dropped the line in the meantime.
    """

    __slots__ = ("_numbers", "after", "before", "offset", "spans", "stream", "text")

    def __init__(
        self,
        stream: str,
        offset: int,
        text: str,
        spans: list[tuple[int, int]],
        before: list[str],
        after: list[str],
        numbers: _Numbers,
    ) -> None:
        self.stream = stream
        self.offset = offset
        self.text = text
        self.spans = spans
        self.before = before
        self.after = after
        self._numbers = numbers

    @property
    def line(self) -> int | None:
        return self._numbers.line(self.offset)

    def __repr__(self) -> str:
        return f"Hit({self.stream}:{self.offset} {self.text!r} {self.spans})"


class Match:
    """What a wait was waiting for: the line, where in it, and the range of its bytes in the raw stream."""

    __slots__ = ("end", "offset", "span", "stream", "text")

    def __init__(self, stream: str, offset: int, end: int, text: str, span: tuple[int, int]) -> None:
        self.stream = stream
        self.offset = offset
        self.end = end
        self.text = text
        self.span = span

    def __repr__(self) -> str:
        return f"Match({self.stream}:{self.offset}-{self.end} {self.text!r} {self.span})"


class _Numbers:
    """Line numbers of the hits in one stream: one pass over the log, and only if anybody asks."""

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

    __slots__ = ("_passed", "_raw", "begin", "clean", "stop")

    def __init__(self, begin: int, raw: bytes, size: int, cleaner: Cleaner) -> None:
        self.begin = begin
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
        # The end of the last line is no line of its own.
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
        """The raw offset behind the line that begins at `offset` and ends at a position."""
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
        raise BadArgument("stream", f"{stream!r} is none", f"give one of {', '.join(STREAMS)}")
    for name, number in (("context", context), ("limit", 0 if limit is None else limit)):
        if number < 0:
            raise BadArgument(name, f"{number} is negative", "give 0 or more")
    compiled = Pattern(pattern, ignore_case)
    found: list[list[Hit]] = []
    for name in (stream,) if stream else log.streams():
        with log.look() as look:
            if name == TERMINAL:
                hits = _terminal_hits(log, look, compiled, context, newest)
            else:
                hits = _hits(log, look, name, compiled, context, newest)
            found.append(list(itertools.islice(hits, limit)))
    found = [hits for hits in found if hits]
    merged = list(itertools.chain.from_iterable(found))
    if len(found) > 1:
        rank = log.order()
        merged.sort(key=lambda hit: rank(hit.stream, hit.offset), reverse=newest)
    return merged[:limit]


def _hits(log: Log, look: Look, stream: str, pattern: Pattern, context: int, newest: bool) -> Iterator[Hit]:
    numbers = _Numbers(log, stream)
    for body in _bodies_back(look, stream) if newest else _bodies(look, stream):
        found = [(*line, body.offset(line[0])) for line in pattern.lines(body.clean, 0, body.stop)]
        for begin, end, low, high, offset in reversed(found) if newest else found:
            line, spans = pattern.shown(body.clean, begin, end, low, high)
            before = _lines_before(look, stream, body, begin, offset, context)
            after = _lines_after(look, stream, body, end, offset, context)
            numbers.offsets.add(offset)
            yield Hit(stream, offset, line, spans, before, after, numbers)


def _terminal_hits(log: Log, look: Look, pattern: Pattern, context: int, newest: bool) -> Iterator[Hit]:
    """From the beginning on in any case: what a line says depends on what came before it."""
    numbers = _Numbers(log, TERMINAL)
    forward = _terminal_hits_in_order(look, pattern, context, numbers)
    yield from reversed(list(forward)) if newest else forward


def _terminal_hits_in_order(look: Look, pattern: Pattern, context: int, numbers: _Numbers) -> Iterator[Hit]:
    from .terminal_log import all_lines

    before: list[str] = []
    # Hits that wait for the lines behind them.
    waiting: list[Hit] = []
    for lines in all_lines(look):
        texts = [text.removesuffix("\n") for _, text in lines]
        if lines and not lines[-1][1]:
            # Nothing of the next line is there yet.
            texts.pop()
        for hit in waiting:
            hit.after += texts[: context - len(hit.after)]
        while waiting and len(waiting[0].after) >= context:
            yield waiting.pop(0)
        encoded = [text.encode() for text in texts]
        starts = list(itertools.accumulate((len(text) + 1 for text in encoded), initial=0))
        body = b"\n".join(encoded)
        for begin, end, low, high in pattern.lines(body, 0, len(body)) if texts else ():
            at = bisect_right(starts, begin) - 1
            text, spans = pattern.shown(body, begin, end, low, high)
            above = [*before, *texts[max(0, at - context) : at]][-context:] if context else []
            numbers.offsets.add(lines[at][0])
            waiting.append(Hit(TERMINAL, lines[at][0], text, spans, above, texts[at + 1 : at + 1 + context], numbers))
        while waiting and len(waiting[0].after) >= context:
            yield waiting.pop(0)
        before = [*before, *texts][-context:] if context else []
    yield from waiting


def _bodies(look: Look, stream: str) -> Iterator[_Body]:
    """Blocks of whole lines from the beginning on. A hole ends a line."""
    at, end = look.begin(stream), look.ends.get(stream, 0)
    cleaner = Cleaner()
    size = _BLOCK_BYTES
    while at < end:
        begin, data = look.piece(stream, at, end, size)
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


def _bodies_back(look: Look, stream: str) -> Iterator[_Body]:
    at = look.ends.get(stream, 0)
    parts: list[bytes] = []
    while at > look.begin(stream):
        begin, data = look.piece_before(stream, at, _BLOCK_BYTES)
        if parts and begin + len(data) < at:
            yield _whole(at, parts)
            parts = []
        held = sum(map(len, parts))
        cut = data.find(b"\n") + 1
        if begin > look.begin(stream) and cut and held + len(data) - cut:
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


def _lines_before(look: Look, stream: str, body: _Body, begin: int, offset: int, count: int) -> list[str]:
    lines: list[str] = []
    while len(lines) < count and begin > 0:
        end = begin - 1
        begin = body.clean.rfind(b"\n", 0, end) + 1
        lines.append(decode(body.clean[max(begin, end - SHOWN_MAX_BYTES) : end]))
    if len(lines) == count or body.begin <= look.begin(stream):
        return lines[::-1]
    data, at, more = b"", offset, b""
    while data.count(b"\n") <= count and len(data) < SHOWN_MAX_BYTES:
        begin, more = look.piece_before(stream, at, max(_CONTEXT_BYTES, len(data)))
        if begin + len(more) < at or begin == at:
            break
        data, at = more + data, begin
    texts = clean(data).split("\n")[:-1]
    if data.count(b"\n") > count or len(data) >= SHOWN_MAX_BYTES:
        # The first may be cut: it is not what the loop ended for.
        texts = texts[1:]
    return texts[-count:]


def _lines_after(look: Look, stream: str, body: _Body, end: int, offset: int, count: int) -> list[str]:
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
        begin, data = look.piece(stream, start, look.ends[stream], size)
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
    wherever the chunks were cut; a line is held up to `text.LINE_MAX_CHARS` characters. Of a terminal, all that
    stands on its screen is unfinished."""

    __slots__ = ("_log", "_pattern", "_streams", "_terminal")

    def __init__(self, pattern: str, *, ignore_case: bool = False, log: Log | None = None) -> None:
        self._pattern = Pattern(pattern, ignore_case)
        self._streams: dict[str, _Unfinished] = {}
        # Where a terminal's size is told, and what it had on its full screen.
        self._log = log
        self._terminal: Reading | None = None

    def feed(self, stream: str, offset: int, data: bytes) -> Match | None:
        if stream == TERMINAL and self._log is not None:
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
            behind = offset + close + 1 if close >= 0 else state.next
            shown = text[begin:end]
            span = (len(decode(shown[: low - begin])), len(decode(shown[: high - begin])))
            return Match(stream, line, behind, decode(shown), span)
        return None

    def _feed_terminal(self, log: Log, offset: int, data: bytes) -> Match | None:
        from .terminal_log import Reading

        if self._terminal is None:
            with log.look() as look:
                self._terminal = Reading(look, offset, live=True)
        lines = self._terminal.feed(offset, data) + self._terminal.standing()
        end = offset + len(data)
        for number, (begin, text) in enumerate(lines):
            body = text.removesuffix("\n").encode()
            for _, _, low, high in self._pattern.lines(body, 0, len(body)) if text else ():
                behind = min((at for at, _ in lines[number + 1 :] if at > max(begin, offset)), default=end)
                span = (len(decode(body[:low])), len(decode(body[:high])))
                return Match(TERMINAL, begin, behind, decode(body), span)
        return None
