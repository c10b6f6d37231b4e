"""Output behind a cursor as clean lines: read from both ends, folded, cut to a budget, and put into an answer.

Lines between the two ends are counted, not read. Each line knows its bytes in the log, so that the cursor of the first
line that is not shown is known.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from ...core.records import TTY
from ...core.vt.text import Cleaner
from ...model import COMPLETED, FINAL_STATES, format_cursor
from ...sessions.log import Log, Page, parse_cursor
from ...sessions.segments import STREAMS
from ...sessions.terminal_log import Reading
from ...terminal.text import Decoder, visible
from .answer_text import AnswerText
from .words import BUDGET, BUDGET_MAX, call, cursor, lines_and_bytes, ref, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from ...model import Snapshot
    from ...sessions.search import Hit


# Output as an agent sees it: clean lines, with runs of similar lines folded into one. Pure.
#
# A line knows its bytes in the log, so that what is left out can be counted and read.


# A run of at least this many lines is folded into one. A few numbers in a column are data, equal lines are not.
EQUAL_RUN = 3
PROGRESS_RUN = 3
DIGITS_RUN = 12

_DIFFER = ", digits differ"
_DIGITS = re.compile(r"\d+")
# Not just a column of numbers.
_WORD = re.compile(r"[^\W\d_]{2}|%")
_PERCENT = re.compile(r"\d ?%")
# The characters of progress bars.
_BAR = re.compile("[#=>*.\\-_ \u2500-\u259f\u25a0-\u25ff\u2800-\u28ff]+")


class Line(NamedTuple):
    """`begin` and `end` are offsets in its stream; `times` is how many lines of the log are folded into it."""

    stream: str
    begin: int
    end: int
    text: str
    times: int = 1


def fold(lines: Iterable[Line]) -> list[Line]:
    """The lines as they are shown. Blank lines at both ends are dropped; the counts of the others add up."""
    cleaned = [line._replace(text=shown(line.text)) for line in lines]
    return _trimmed(_alike(_alike(_blanks(cleaned), _same, EQUAL_RUN, ""), _shape, DIGITS_RUN, _DIFFER))


def tighten(lines: Sequence[Line]) -> list[Line]:
    """Folded lines, folded more to fit: columns of numbers too, which are shown whole where they fit."""
    return _alike(lines, _numbers, DIGITS_RUN, _DIFFER)


def shown(text: str) -> str:
    """Without blanks at its end, and with hidden characters spelled out."""
    return visible(text.rstrip(), joiners=True)


def _blanks(lines: Sequence[Line]) -> list[Line]:
    """A run of blank lines is one."""
    found: list[Line] = []
    for (_, blank), group in groupby(lines, lambda line: (line.stream, not line.text)):
        run = list(group)
        found += [_joined(run, "")] if blank else run
    return found


def _trimmed(lines: list[Line]) -> list[Line]:
    begin, end = 0, len(lines)
    while begin < end and not lines[begin].text:
        begin += 1
    while end > begin and not lines[end - 1].text:
        end -= 1
    return lines[begin:end]


def _alike(lines: Sequence[Line], key: Callable[[Line], object], most: int, how: str) -> list[Line]:
    found: list[Line] = []
    for _, group in groupby(lines, key):
        run = list(group)
        if len(run) < most and (len(run) < PROGRESS_RUN or not _PERCENT.search(run[0].text)):
            found += run
            continue
        last = run[-1]
        count = sum(line.times for line in run)
        folded = _joined(run, f"{last.text} (x{count:,}{how})")
        shorter = len(folded.text) < sum(len(line.text) + 1 for line in run)
        found += [folded] if shorter else run
    return found


def _joined(run: Sequence[Line], text: str) -> Line:
    return Line(run[0].stream, run[0].begin, run[-1].end, text, sum(line.times for line in run))


def _same(line: Line) -> tuple[str, str]:
    return line.stream, line.text


def _numbers(line: Line) -> tuple[object, ...]:
    """Equal except for digits."""
    return (line.stream, line.begin) if line.times > 1 else (line.stream, _DIGITS.sub("0", line.text))


def _shape(line: Line) -> tuple[object, ...]:
    """Equal except for digits and bars; only for lines with words."""
    if line.times > 1 or not _WORD.search(line.text):
        return line.stream, line.begin
    shape = _DIGITS.sub("0", line.text)
    return line.stream, _BAR.sub("~", shape) if _PERCENT.search(shape) else shape


# The beginning and the end of lines that are too many for a budget, and what lies between them. Pure.


# Of several lines, one is cut where it would take more than a quarter of the room, but not to less than this.
_LINE_LEAST = 80


class Cut(NamedTuple):
    """Both ends as they are shown, and the lines between them that are not. `clipped`: of those shown, the whole lines
    whose middle is not, with the number of characters before it."""

    head: list[Line]
    tail: list[Line]
    left: list[Line]
    clipped: list[tuple[Line, int]]


def clip(text: str, limit: int) -> str:
    """A line that is too long: its two ends, and how much lies between them."""
    if len(text) <= limit:
        return text
    ahead, behind = _ends(text, limit)
    mark = f" ...[{len(text) - ahead - behind:,} characters left out]... "
    return text[:ahead] + mark + (text[-behind:] if behind else "")


def _ends(text: str, limit: int) -> tuple[int, int]:
    # Room for the longest mark; the number in it is smaller.
    room = max(0, limit - len(f" ...[{len(text):,} characters left out]... "))
    ahead = room * 3 // 4
    return ahead, room - ahead


def cut(lines: Sequence[Line], budget: int, *, ahead: float = 0.25, gap: int | None = None) -> Cut:
    """At most `budget` characters, line ends included: the share `ahead` from the beginning, the rest from the end.
    `gap`: before the line with this index there are lines that were not read; they are left out in any case."""
    limit = budget - 1 if len(lines) == 1 and gap is None else max(_LINE_LEAST, budget // 4 - 1)
    shown = [line._replace(text=clip(line.text, limit)) for line in lines]
    if gap is None and cost(shown) <= budget:
        first = last = len(shown)
    else:
        first = _fitting(shown, int(budget * ahead))
        if gap is not None:
            first = min(first, gap)
        room = budget - cost(shown[:first])
        ending = shown[max(first, gap or 0) :]
        last = len(shown) - _fitting(ending[::-1], room if ahead < 1 else 0)
    seen = (*lines[:first], *lines[last:])
    clipped = [(line, _ends(line.text, limit)[0]) for line in seen if len(line.text) > limit]
    return Cut(shown[:first], shown[last:], list(lines[first:last]), clipped)


def cost(lines: Sequence[Line]) -> int:
    return sum(len(line.text) + 1 for line in lines)


def _fitting(lines: Sequence[Line], room: int) -> int:
    """How many of them fit, from the first on."""
    for number, line in enumerate(lines):
        room -= len(line.text) + 1
        if room < 0:
            return number
    return len(lines)


# Output behind a cursor as clean lines, read from its two ends: the size of a log costs no memory, and little time.


# This much is read from each end; shorter output is read whole. A budget is 100,000 characters at most, but runs of
# lines that are folded into one need more bytes.
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
        # Bytes that the log has dropped or never had.
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
        """The streams with output, stderr first."""
        return sorted({line.stream for line in self.lines} | {*self.passed})

    def only(self, stream: str) -> Excerpt:
        lines = [line for line in self.lines if line.stream == stream]
        gap = None
        if stream in self.passed:
            gap = sum(line.stream == stream for line in self.lines[: self.gap])
        passed = {name: left for name, left in self.passed.items() if name == stream}
        begin = {name: at for name, at in self.begin.items() if name == stream}
        return Excerpt(lines, begin=begin, cursor=self.cursor, gap=gap, passed=passed)


def read_excerpt(log: Log, since: str | int | None, stream: str | None = None, *, raw: bool = False) -> Excerpt:
    """Both ends of the output after a cursor. `raw`: as it was printed, with control characters spelled out."""
    page = log.read(since, stream=stream, limit=HEAD_BYTES + TAIL_BYTES)
    if not page.more:
        lines = _lines(log, page, raw)
        begin = _begin(since, stream, page)
        return Excerpt(list(lines) if raw else fold(lines), begin=begin, cursor=page.cursor, lost=_lost(page))
    # What is overwritten again and again is seen at its end.
    head = begin_excerpt(log, since, stream, raw=raw, overwritten=False)
    behind = head.behind
    ends = {name: log.ends().get(name, 0) for name in behind}
    start = {name: max(behind[name], end - TAIL_BYTES) for name, end in ends.items()}
    tail = log.read(format_cursor(start), stream=stream, limit=max(1, sum(ends.values()) - sum(start.values())))
    lines = _lines(log, tail, raw, cut=[name for name in start if start[name] > behind[name]])
    upto = {**parse_cursor(tail.cursor, STREAMS), **{line.stream: line.begin for line in reversed(lines)}}
    head.pass_over(log, upto)
    head.lines += list(lines) if raw else fold(lines)
    head.cursor = tail.cursor
    return head


def begin_excerpt(
    log: Log, since: str | int | None, stream: str | None = None, *, raw: bool = False, overwritten: bool = True
) -> Excerpt:
    """The beginning of the output after a cursor; the rest is counted. A line that is too long is shown in part,
    unless it is `overwritten` and such are not wanted."""
    page = log.read(since, stream=stream, limit=HEAD_BYTES)
    lines = _lines(log, page, raw)
    found = Excerpt([], begin=_begin(since, stream, page), cursor=page.cursor, lost=_lost(page))
    if page.more:
        partly = lines if overwritten or not _overwritten(page.data) else []
        lines = _whole(lines, page) or partly
        found.behind.update((line.stream, line.end) for line in lines)
        found.pass_over(log, {name: log.ends().get(name, 0) for name in found.begin})
    found.lines = list(lines) if raw else fold(lines)
    found.gap = len(found.lines) if page.more else None
    return found


def last_excerpt(log: Log, count: int, stream: str | None = None, *, raw: bool = False) -> Excerpt:
    """The last `count` lines of the log, an unfinished one included. Lines that are too many to be read are counted."""
    page = log.tail(count, stream=stream, limit=TAIL_BYTES)
    first = _first_offsets(page, stream)
    found = Excerpt([], begin=first, cursor=format_cursor(offsets_of(page.cursor, stream)))
    if page.more:
        found.begin = found.behind = _first_offsets(log.tail(count, stream=stream), stream)
    lines = _lines(log, page, raw, cut=[name for name in first if first[name] > found.begin[name]])
    if page.more:
        found.gap = 0
        found.pass_over(log, {**first, **{line.stream: line.begin for line in reversed(lines)}})
    found.lines = list(lines) if raw else fold(lines)
    return found


def offsets_of(cursor: str, stream: str | None) -> dict[str, int]:
    """The offsets of all streams, or of one."""
    return {name: at for name, at in parse_cursor(cursor, STREAMS).items() if stream in (None, name)}


def _first_offsets(page: Page, stream: str | None) -> dict[str, int]:
    """Where a page begins; a stream that it has nothing of is at its end."""
    return {**offsets_of(page.cursor, stream), **{name: offset for name, offset, _ in reversed(page.chunks)}}


def _lines_between(log: Log, stream: str, begin: int, end: int) -> int:
    before, behind = log.lines_at(stream, [begin, end])
    # None: the log dropped that place while we looked.
    dropped = log.lines_dropped().get(stream, 0)
    return (dropped if behind is None else behind) - (dropped if before is None else before)


def _begin(since: str | int | None, stream: str | None, page: Page) -> dict[str, int]:
    """Where a page after a cursor begins: behind what was dropped."""
    streams = [stream] if stream else list(page.dropped_before)
    at = {} if since is None else parse_cursor(since, streams)
    return {name: max(at.get(name, 0), page.dropped_before.get(name, 0)) for name in streams}


def _lost(page: Page) -> int:
    return sum(gap.stop - gap.start for gap in page.gaps)


def _whole(lines: Sequence[Line], page: Page) -> list[Line]:
    """The lines that the end of the page did not cut."""
    cut = {name: offset + len(data) for name, offset, data in page.chunks if not data.endswith(b"\n")}
    return [line for line in lines if cut.get(line.stream) != line.end]


def _lines(log: Log, page: Page, raw: bool, cut: Iterable[str] = ()) -> list[Line]:
    """Lines where they were finished; those without an end last. `cut` names streams that begin within a line: it is
    left out, unless it was overwritten again and again and what is seen of it is its last state."""
    skip = set(cut)
    if page.chunks and page.chunks[0][0] == TTY and not raw:
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
    with log.snapshot() as snapshot:
        begin = page.chunks[0][1]
        end = page.chunks[-1][1] + len(page.chunks[-1][2])
        if cut and not _overwritten(page.chunks[0][2]):
            begin += page.chunks[0][2].find(b"\n") + 1
        reading = Reading(snapshot, begin)
        found = []
        for offset, data in snapshot.pieces(TTY, begin, end):
            found += reading.feed(offset, data)
        found += reading.finish(cut=False)
    while found and not found[-1][1]:
        found.pop()
    # A remark says that a line was rewritten. For an agent its last state is enough.
    found = [each for n, each in enumerate(found) if not (n and each[0] == found[n - 1][0] and _REWRITTEN(each[1]))]
    lines: list[Line] = []
    for offset, text in reversed(found):
        # A remark about a line has the offset of that line.
        stop = lines[-1].begin if lines and lines[-1].begin > offset else lines[-1].end if lines else end
        lines.append(Line(TTY, offset, stop, text.removesuffix("\n")))
    return lines[::-1]


def _overwritten(data: bytes) -> bool:
    """Whether its first line overwrites itself, so that only its last state is visible."""
    return b"\r" in data.partition(b"\n")[0][:-1]


class _Stream:
    """One stream's bytes, cut into lines with their offsets."""

    __slots__ = ("_begin", "_cleaner", "_name", "_parts", "next")

    def __init__(self, name: str, offset: int, raw: bool) -> None:
        self._name = name
        self._cleaner = Decoder() if raw else Cleaner()
        self._begin = offset
        # The beginning of a line that has no end yet.
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
        if self.next == self._begin:
            return []
        text = self._parts + self._cleaner.flush()
        return [Line(self._name, self._begin, self.next, _spelled(text))]


def _spelled(text: str) -> str:
    return text if text.isprintable() else _ACTING.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


# As much of an excerpt as fits into an answer. Pure.


# The output of a success needs little room.
SUCCESS_BUDGET = 2000
# The share of the beginning where both ends are shown.
_BOTH_ENDS = 0.25
# Text that is longer than its bytes in the log: escaped characters, and replacements of invalid bytes.
_SPELLED = re.compile(r"\\x[0-9a-f]{2}|\\u\{|\ufffd|\t")

# The beginning of a line in which test runners, compilers and interpreters name an error.
TROUBLE = (
    r"^(?:E  |\s*(?:FAIL|FAILED|ERROR|not ok|--- FAIL|Traceback|panic|fatal|[Ee]rror|[A-Za-z.]+Error)\b"
    r"|.{0,120}\b(?:error|fatal|panicked)(?:\[\w+\])?: |.*\bFAILED$|\s*(?:\x{2717}|\x{2715}|\x{d7}|\x{25cf}) )"
)


def failed(session: Snapshot) -> bool:
    return session.state in FINAL_STATES and session.status != COMPLETED


def budget_for(session: Snapshot) -> int:
    return SUCCESS_BUDGET if session.status == COMPLETED else BUDGET


class Output:
    """Puts an excerpt into the text of an answer, and says what it left out."""

    def __init__(self, answer_text: AnswerText, session: Snapshot) -> None:
        self._text = answer_text
        self._session = session
        self._both = sum(end > 0 for end in session.ends.values()) > 1
        self.left: list[dict[str, Any]] = []

    def show(
        self,
        found: Excerpt,
        budget: int,
        stream: str | None = None,
        *,
        ahead: float = _BOTH_ENDS,
        trouble: Sequence[Hit] = (),
        raw: bool = False,
    ) -> None:
        """As much as fits: both ends, or only the beginning (`ahead` is 1) or the end (0). In the order of arrival; if
        both ends of a failure are shown, stderr first. Streams are marked if both printed. `trouble`: lines that look
        like the reason of a failure; the first that would be left out is shown."""
        if found.lost:
            self._text.add(f"... {size(found.lost)} before this were dropped: the log keeps only the newest output")
        if not raw:
            found.fit(budget)
        if ahead == _BOTH_ENDS and len(found.streams) > 1 and failed(self._session):
            for each, share in _shares(found, budget):
                self._text.add(f"{each}:")
                self._cut(found.only(each), share, each, ahead, [hit for hit in trouble if hit.stream == each])
            return
        if self._both and stream is None:
            found.lines = [_marked(line) for line in found.lines]
        self._cut(found, budget, stream, ahead, trouble)

    def _cut(self, found: Excerpt, budget: int, stream: str | None, ahead: float, trouble: Sequence[Hit]) -> None:
        parts = cut(found.lines, budget, ahead=ahead, gap=found.gap)
        reason: list[str] = []
        if trouble and (hit := _first_left(found, parts, trouble)) is not None:
            reason = [clip(shown(line), budget // 16) for line in (*hit.before, hit.text, *hit.after)]
            while sum(len(line) + 1 for line in reason) > budget // 4:
                reason.pop()
            parts = cut(found.lines, budget - sum(len(line) + 1 for line in reason), ahead=ahead, gap=found.gap)
        left = self._left(found, parts)
        if left is None:
            self._text.output([line.text for line in (*parts.head, *parts.tail)])
        else:
            self._text.output([line.text for line in parts.head])
            self._add_left(left, stream, ahead, reason)
            self._text.output([line.text for line in parts.tail])
        if parts.clipped:
            self._add_clipped(parts)

    def _add_left(self, left: dict[str, Any], stream: str | None, ahead: float, reason: Sequence[str]) -> None:
        """What is left out, how to read it, and the lines of it that may be the reason of a failure."""
        said = f"... {lines_and_bytes(left['lines'], left['bytes'])} {'more' if ahead == 1 else 'left out'}"
        again = {"since": left["since"], **({"stream": stream} if stream else {})}
        said += f"; {call('read', id=ref(self._session), **again)}"
        if ahead == _BOTH_ENDS:
            said += f" or {call('read', id=ref(self._session), search='...')}"
        self._text.add(said)
        if reason:
            self._text.add("... including a possible cause:")
            self._text.output(reason)
            self._text.add("... and more lines")

    def _left(self, found: Excerpt, parts: Cut) -> dict[str, Any] | None:
        lines = sum(line.times for line in parts.left) + sum(count for count, _ in found.passed.values())
        if not lines:
            return None  # less than one line: text that a later text on the same line overwrote
        count = sum(line.end - line.begin for line in parts.left) + sum(each for _, each in found.passed.values())
        left = {"lines": lines, "bytes": count, "since": cursor(_behind(found, parts.head))}
        self.left.append(left)
        return left

    def _add_clipped(self, parts: Cut) -> None:
        """The way into the middle of the first line that was cut."""
        line, ahead = parts.clipped[0]
        marked = len(AnswerText.STDERR) if line.text.startswith(AnswerText.STDERR) else 0
        before = line.text[marked:ahead]
        spelled = line.times > 1 or _SPELLED.search(before) is not None
        # What was cleaned away takes bytes too: it may begin before what is missing, never behind it.
        begin = line.begin if spelled else line.begin + len(before.encode())
        since = f"{line.stream}:{begin}"
        self.left.append({"lines": 0, "bytes": line.end - begin, "since": since})
        more: dict[str, Any] = {"stream": line.stream} if self._both else {}
        if spelled:
            more["budget"] = min(BUDGET_MAX, len(line.text) + 1000)
        count = len(parts.clipped)
        said = "1 line is cut" if count == 1 else f"{count} lines are cut, the first"
        self._text.add(f"... {said} here: {call('read', id=ref(self._session), since=since, **more)}")


def _behind(found: Excerpt, head: Sequence[Line]) -> dict[str, int]:
    """Where the first line that is left out begins."""
    return {**found.begin, **{line.stream: line.end for line in head}}


def _first_left(found: Excerpt, parts: Cut, hits: Sequence[Hit]) -> Hit | None:
    """The first of them that would be left out."""
    begin = _behind(found, parts.head)
    end = {line.stream: line.begin for line in reversed(parts.tail)}
    if not parts.left and not found.passed:
        return None
    left = (hit for hit in hits if begin.get(hit.stream, 0) <= hit.offset < end.get(hit.stream, hit.offset + 1))
    return next(left, None)


def _marked(line: Line) -> Line:
    return line._replace(text=AnswerText.STDERR + line.text) if line.stream == "stderr" else line


def _shares(found: Excerpt, budget: int) -> list[tuple[str, int]]:
    """Half each; what one does not need goes to the other."""
    first, second = found.streams[:2]
    needs = [cost(found.only(stream).lines) if stream not in found.passed else budget for stream in (first, second)]
    half = budget // 2
    mine = max(half, budget - needs[1]) if needs[0] > half else needs[0]
    return [(first, max(1, mine)), (second, max(1, budget - mine))]
