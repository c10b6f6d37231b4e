"""The reader of a watch: a cursor into one stream of the log, moved in short slices, whatever the command prints."""

from __future__ import annotations

from .lines import Line, Lines, clean
from .sieve import Sieve, readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from .echo import Echo
    from .fence import Fence
    from .log import Log
    from .patterns import Pattern
    from .sieve import Look

    Found = Callable[[str, Pattern, Line, list[str]], None]

# What need not be cleaned is looked at in large blocks, but not so large that memory for each comes fresh from the
# kernel; what must be, with every line searched, in blocks that take a few milliseconds.
_BLOCK_BYTES = 120 << 10
_ODD_BLOCK_BYTES = 16 << 10
# So many lines of a block are taken out to be judged before the clock is asked again.
_TAKEN_AT_ONCE = 256
# It is also asked after so many that were judged.
_LINES_AT_ONCE = 16


class Scan:
    """`found(stream, pattern, line, lines before it)` for each line that matches; the first pattern wins a line."""

    def __init__(
        self, log: Log, stream: str, fence: Fence, found: Found, now: Callable[[], float], echo: Echo | None
    ) -> None:
        self._log = log
        self._stream = stream
        self._fence = fence
        self._found = found
        self._now = now
        self._echo = echo
        self._lines = Lines(log.end(stream))
        self._patterns: list[Pattern] = []
        self._sieve = Sieve([])
        # Lines to be judged, the next one last, and of lines that need not be what may be shown before others.
        self._waiting: list[Line | bytes] = []
        self._before: list[str] = []
        self._before_max = 0
        # Where the line begins that matched before it was finished; and whether the part before this one matched.
        self._matched_at = -1
        self._matched_part = False
        self._block_bytes = _BLOCK_BYTES
        # The line whose judgement was ended by the fence, and by which pattern.
        self._slow: tuple[Line, Pattern] | None = None
        self.unscanned = 0
        self.heard_at = 0.0

    @property
    def offset(self) -> int:
        return self._lines.offset

    def set_patterns(self, patterns: list[Pattern]) -> None:
        self._patterns = [pattern for pattern in patterns if pattern.hears(self._stream)]
        self._sieve = Sieve(self._patterns)
        self._before_max = max((pattern.before for pattern in self._patterns), default=0)

    def step(self, until: float) -> bool:
        """Look on until then. True when all that was printed has been looked at."""
        with self._fence:
            while True:
                if not self._judge_waiting(until):
                    return False
                if not self._take_block():
                    return True
                if self._now() >= until:
                    return False

    def has_partial(self) -> bool:
        """Is there an unfinished line that nobody judged as it stands?"""
        line = self._lines.partial()
        return line is not None and line.offset != self._matched_at

    def judge_partial(self) -> None:
        line = self._lines.partial()
        if line is not None and line.offset != self._matched_at:
            with self._fence:
                if self._judge(line, whole=False):
                    self._matched_at = line.offset

    def finish(self) -> None:
        """Nothing more comes: the unfinished line is all of it. What was not looked at will not be."""
        end = self._log.end(self._stream)
        unjudged = next((each.offset for each in reversed(self._waiting) if isinstance(each, Line)), self.offset)
        if not self._waiting and self.offset == end:
            self._waiting += reversed(self._lines.end())
            with self._fence:
                self._judge_waiting(None)
        self.unscanned += self.offset - unjudged
        self.skip(end)

    def skip(self, to: int) -> None:
        """Go on from there; what was passed over counts as not looked at."""
        self.unscanned += max(0, to - self.offset)
        self.go_to(to)

    def go_to(self, offset: int) -> None:
        self._waiting = []
        self._before = []
        self._matched_part = False
        self._lines.skip_to(offset)

    def _take_block(self) -> bool:
        at, end = self.offset, self._log.end(self._stream)
        if at >= end:
            return False
        if not self._patterns:
            self.go_to(end)
            return False
        try:
            since, data = self._log.read(self._stream, at, self._block_bytes)
        except OSError:
            return False  # no descriptor at the moment; output to come brings us here again
        if not data:
            return False
        if since > at:
            self.skip(since)
        if not self._lines.at_start:
            cut = data.find(b"\n", 0, _ODD_BLOCK_BYTES) + 1 or _ODD_BLOCK_BYTES
            self._wait(self._lines.feed(data[:cut]))
            data = data[cut:]
        if data and self._lines.at_start:
            self._sift(data)
        self._waiting.reverse()
        return True

    def _sift(self, data: bytes) -> None:
        """As much of it, from the start of a line, as is quickly done. What is left is read again."""
        end = data.rfind(b"\n") + 1
        block = data[:end]
        self._block_bytes = _BLOCK_BYTES
        if end and not self._sieve.wants_all:
            look = self._sieve.look(block)
            if look is None or readable(block):
                if self._take_out(block, look):
                    self._wait(self._lines.feed(data[end:]))
                return
        if end:
            self._block_bytes = _ODD_BLOCK_BYTES
        end = data.rfind(b"\n", 0, _ODD_BLOCK_BYTES) + 1
        block = data[: end or _ODD_BLOCK_BYTES]
        if end and self._sieve.misses(block):
            self._pass(block)
        else:
            self._wait(self._lines.feed(block))

    def _take_out(self, block: bytes, look: Look | None) -> bool:
        """The lines that may match, from a block that needs no cleaning. False when there were too many for now."""
        at = 0
        for count, (begin, end) in enumerate(look.spans(block) if look is not None else ()):
            if count == _TAKEN_AT_ONCE:
                return False
            self._pass(block[at:begin])
            self._wait(self._lines.feed(block[begin:end]))
            at = end
        self._pass(block[at:])
        return True

    def _pass(self, block: bytes) -> None:
        self._lines.pass_over(len(block))
        if self._before_max and block:
            at = len(block)
            for _ in range(self._before_max):
                at = block.rfind(b"\n", 0, max(0, at - 1)) + 1
            self._waiting.append(block[at:])

    def _wait(self, lines: list[Line]) -> None:
        self._waiting += lines

    def _judge_waiting(self, until: float | None) -> bool:
        """False when the time was over before all were judged."""
        count = 0
        while self._waiting:
            waiting = self._waiting.pop()
            if isinstance(waiting, bytes):
                self._remember(clean(waiting).split("\n"))
                continue
            overruns = self._fence.overruns
            if waiting.offset == self._matched_at or self._judge(waiting, whole=not waiting.segment):
                self._matched_part = waiting.cut
            elif self._fence.overruns > overruns and until is not None:
                # The slice is over; the patterns behind the slow one have the next.
                self._waiting.append(waiting)
                return False
            else:
                self._matched_part = False
                if not waiting.segment:
                    self._remember([waiting.text])
            count += 1
            if until is not None and not count % _LINES_AT_ONCE and self._now() >= until:
                return False
        return True

    def _judge(self, line: Line, *, whole: bool) -> bool:
        overruns = self._fence.overruns
        for pattern in self._judges_of(line):
            if self._matches(pattern, line) and not self._is_echo(pattern, line, whole):
                before: list[str] = []
                if pattern.before:
                    # What was shown before one match is not shown again before the next.
                    before, self._before = self._before[-pattern.before :], []
                self._found(self._stream, pattern, line, before)
                return True
            if self._fence.overruns > overruns:
                self._slow = (line, pattern)
                return False
        return False

    def _judges_of(self, line: Line) -> list[Pattern]:
        """All of them, or those that are left of a line that one took too long for."""
        slow, self._slow = self._slow, None
        if slow is None or slow[0] is not line or slow[1] not in self._patterns:
            return self._patterns
        return self._patterns[self._patterns.index(slow[1]) + 1 :]

    def _matches(self, pattern: Pattern, line: Line) -> bool:
        if pattern.regex is None:
            return pattern.matches(line, again=self._matched_part)
        return self._fence.matches(pattern, line, again=self._matched_part)

    def _is_echo(self, pattern: Pattern, line: Line, whole: bool) -> bool:
        if self._echo is None:
            return False

        def matches(text: str) -> bool:
            return self._matches(pattern, Line(text, line.offset, line.end))

        return self._echo.explains(line.text, self._now(), matches, whole=whole)

    def _remember(self, texts: list[str]) -> None:
        if self._before_max:
            self._before = (self._before + texts)[-self._before_max :]
