"""Output behind a cursor as clean lines, read from its two ends: the size of a log costs no memory, and little time.

Between the ends lines are counted, not read. Which bytes a line stands for is kept, so that the cursor of the first
line that is not shown can be told.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...host.agent_text import Decoder
from ...host.log import Log, Page
from ...host.segments import TERMINAL
from ...host.terminal_log import Reading, pieces
from ...host.text import Cleaner
from ...model import format_cursor
from .budget import cost
from .lines import Line, fold, tighten

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# So much is read of the beginning and of the end; what is shorter than both is read whole. A budget is 100,000
# characters at most, but runs of lines that are told as one need more behind them.
HEAD_BYTES = 256 << 10
TAIL_BYTES = 1 << 20

_REWRITTEN = re.compile(r"\[rewritten \d+ times\]\n?").fullmatch
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Excerpt:
    """Lines to be shown, in the order in which they were finished. `gap` is the index before which lines were passed
    over, None where none were; `passed` has how many, and how many bytes, by stream, and `behind` from where on.
    `cursor` is behind all of it."""

    __slots__ = ("begin", "behind", "cursor", "gap", "lines", "lost", "passed")

    def __init__(
        self,
        lines: list[Line],
        *,
        begin: Mapping[str, int],
        cursor: str,
        lost: int = 0,
        gap: int | None = None,
        passed: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        self.lines = lines
        self.begin = dict(begin)
        self.behind = dict(begin)
        self.cursor = cursor
        # Bytes that the log does not have any more, or never had.
        self.lost = lost
        self.gap = gap
        self.passed = dict(passed or {})

    def fit(self, budget: int) -> None:
        """Fold more where it does not fit otherwise."""
        if cost(self.lines) > budget:
            at = len(self.lines) if self.gap is None else self.gap
            first, last = tighten(self.lines[:at]), tighten(self.lines[at:])
            self.lines = first + last
            self.gap = None if self.gap is None else len(first)

    def pass_over(self, log: Log, upto: Mapping[str, int]) -> None:
        self.passed = {
            name: (_lines_between(log, name, self.behind[name], stop), stop - self.behind[name])
            for name, stop in upto.items()
            if stop > self.behind.get(name, stop)
        }

    @property
    def streams(self) -> list[str]:
        """Those that said something, what went wrong first."""
        return sorted({line.stream for line in self.lines} | {*self.passed})

    def only(self, stream: str) -> Excerpt:
        lines = [line for line in self.lines if line.stream == stream]
        gap = None
        if stream in self.passed:
            gap = sum(line.stream == stream for line in self.lines[: self.gap])
        passed = {name: left for name, left in self.passed.items() if name == stream}
        begin = {name: at for name, at in self.begin.items() if name == stream}
        return Excerpt(lines, begin=begin, cursor=self.cursor, gap=gap, passed=passed)


def read(log: Log, since: str | int | None, stream: str | None = None, *, raw: bool = False) -> Excerpt:
    """Both ends of what lies behind a cursor. `raw`: as it was printed, with what would act on a reader spelled out."""
    page = log.read(since, stream=stream, limit=HEAD_BYTES + TAIL_BYTES)
    if not page.more:
        lines = _lines(log, page, raw)
        at = _retained(log.parse(since, stream=stream), page)
        return Excerpt(list(lines) if raw else fold(lines), begin=at, cursor=page.cursor, lost=_lost(page))
    # What is overwritten again and again is seen at its end.
    head = begin(log, since, stream, raw=raw, overwritten=False)
    behind = head.behind
    ends = {name: log.ends().get(name, 0) for name in behind}
    start = {name: max(behind[name], end - TAIL_BYTES) for name, end in ends.items()}
    tail = log.read(format_cursor(start), stream=stream, limit=max(1, sum(ends.values()) - sum(start.values())))
    lines = _lines(log, tail, raw, cut=[name for name in start if start[name] > behind[name]])
    upto = {**log.parse(tail.cursor, stream=stream), **{line.stream: line.begin for line in reversed(lines)}}
    head.pass_over(log, upto)
    head.lines += list(lines) if raw else fold(lines)
    head.cursor = tail.cursor
    return head


def begin(
    log: Log, since: str | int | None, stream: str | None = None, *, raw: bool = False, overwritten: bool = True
) -> Excerpt:
    """The beginning of what lies behind a cursor; the rest is counted. A line that is too long for it is shown in part,
    unless it is `overwritten` and such are not wanted."""
    page = log.read(since, stream=stream, limit=HEAD_BYTES)
    lines = _lines(log, page, raw)
    found = Excerpt([], begin=_retained(log.parse(since, stream=stream), page), cursor=page.cursor, lost=_lost(page))
    if page.more:
        partly = lines if overwritten or not _overwritten(page.data) else []
        lines = _whole(lines, page) or partly
        found.behind.update((line.stream, line.end) for line in lines)
        found.pass_over(log, {name: log.ends().get(name, 0) for name in found.begin})
    found.lines = list(lines) if raw else fold(lines)
    found.gap = len(found.lines) if page.more else None
    return found


def last(log: Log, count: int, stream: str | None = None, *, raw: bool = False) -> Excerpt:
    """The last lines, so many of the log's own, an unfinished one included. Those that are too many to be read are
    counted."""
    page = log.tail(count, stream=stream, limit=TAIL_BYTES)
    first = _first_offsets(log, page, stream)
    found = Excerpt([], begin=first, cursor=page.cursor)
    if page.more:
        found.begin = found.behind = _first_offsets(log, log.tail(count, stream=stream), stream)
    lines = _lines(log, page, raw, cut=[name for name in first if first[name] > found.begin[name]])
    if page.more:
        found.gap = 0
        found.pass_over(log, {**first, **{line.stream: line.begin for line in reversed(lines)}})
    found.lines = list(lines) if raw else fold(lines)
    return found


def _first_offsets(log: Log, page: Page, stream: str | None) -> dict[str, int]:
    """Where a page begins; a stream that it has nothing of is at its end."""
    offsets = log.parse(page.cursor, stream=stream)
    offsets.update((name, offset) for name, offset, _ in reversed(page.chunks))
    return offsets


def _lines_between(log: Log, stream: str, begin: int, end: int) -> int:
    before, behind = log.lines_at(stream, [begin, end])
    # None is of a place that the log dropped while we looked.
    dropped = log.lines_dropped().get(stream, 0)
    return (dropped if behind is None else behind) - (dropped if before is None else before)


def _retained(offsets: Mapping[str, int], page: Page) -> dict[str, int]:
    """Behind what was dropped."""
    return {name: max(at, page.dropped_before.get(name, 0)) for name, at in offsets.items()}


def _lost(page: Page) -> int:
    return sum(gap.stop - gap.start for gap in page.gaps)


def _whole(lines: Sequence[Line], page: Page) -> list[Line]:
    """Without those that the end of the page cut."""
    cut = {name: offset + len(data) for name, offset, data in page.chunks if not data.endswith(b"\n")}
    return [line for line in lines if cut.get(line.stream) != line.end]


def _lines(log: Log, page: Page, raw: bool, cut: Iterable[str] = ()) -> list[Line]:
    """Lines where they were finished; those without an end last. `cut` names streams that begin within a line: it is
    left out, unless it was overwritten again and again and what is seen of it is its last state."""
    skip = set(cut)
    if page.chunks and page.chunks[0][0] == TERMINAL and not raw:
        return _terminal_lines(log, page, bool(skip))
    reading: dict[str, _Stream] = {}
    lines: list[Line] = []
    for stream, offset, data in page.chunks:
        at = reading.get(stream)
        if at is None or at.next != offset:
            if at is not None:
                lines += at.rest()
            at = reading[stream] = _Stream(stream, offset, raw)
        found = at.feed(data)
        if stream in skip and found:
            skip.discard(stream)
            found = found if _overwritten(data) else found[1:]
        lines += found
    for at in reading.values():
        lines += at.rest()
    return lines


def _terminal_lines(log: Log, page: Page, cut: bool) -> list[Line]:
    with log.look() as look:
        begin = page.chunks[0][1]
        end = page.chunks[-1][1] + len(page.chunks[-1][2])
        if cut and not _overwritten(page.chunks[0][2]):
            begin += page.chunks[0][2].find(b"\n") + 1
        reading = Reading(look, begin)
        found = []
        for offset, data in pieces(look, begin, end):
            found += reading.feed(offset, data)
        found += reading.finish(cut=False)
    while found and not found[-1][1]:
        found.pop()
    # That a line was rewritten is told beside it. To an agent its last state is enough.
    found = [each for n, each in enumerate(found) if not (n and each[0] == found[n - 1][0] and _REWRITTEN(each[1]))]
    lines: list[Line] = []
    for offset, text in reversed(found):
        # A remark about a line stands where that line does.
        stop = lines[-1].begin if lines and lines[-1].begin > offset else lines[-1].end if lines else end
        lines.append(Line(TERMINAL, offset, stop, text.removesuffix("\n")))
    return lines[::-1]


def _overwritten(data: bytes) -> bool:
    """Is its first line written again and again, so that its end is all that is seen of it?"""
    return b"\r" in data.partition(b"\n")[0][:-1]


class _Stream:
    """One stream's bytes, cut into lines that know where they stand."""

    __slots__ = ("_begin", "_cleaner", "_name", "_parts", "next")

    def __init__(self, name: str, offset: int, raw: bool) -> None:
        self._name = name
        self._cleaner = Decoder() if raw else Cleaner()
        self._begin = offset
        # What was handed out of a line that has no end yet.
        self._parts = ""
        self.next = offset

    def feed(self, data: bytes) -> list[Line]:
        *texts, self._parts = (self._parts + self._cleaner.feed(data)).split("\n")
        found = []
        at = 0
        for text in texts:
            at = data.index(b"\n", at) + 1
            found.append(Line(self._name, self._begin, self.next + at, _spelled(text)))
            self._begin = self.next + at
        self.next += len(data)
        return found

    def rest(self) -> list[Line]:
        text = self._parts + self._cleaner.flush()
        return [Line(self._name, self._begin, self.next, _spelled(text))] if self.next > self._begin else []


def _spelled(text: str) -> str:
    return text if text.isprintable() else _ACTING.sub(lambda found: f"\\x{ord(found.group()):02x}", text)
