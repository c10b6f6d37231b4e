"""Reads the lines that follow a cursor in the log, for watches, monitors and line probes.

A `Sieve` finds the lines that can match in raw output. A `Reader` is a cursor into one stream, which cleans only those
lines. A `LineFollower` gives the lines of all streams in the order of printing. `Slices` drives a follower that has to
see every line.
"""

from __future__ import annotations

import re
import time

from ...core.loop import Alarm
from ...core.vt.text import CSI_SEQUENCE, Line, Lines, readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Callable, Optional

    from ...core.loop import Loop
    from ..log import LogWriter
    from .patterns import Needle, Pattern, RegexTimeout

    Find = Callable[[int], int]
    # Gets a line, and may return False to get it again in the next slice.
    Take = Callable[[str, Line], Optional[bool]]


# Which lines of raw output can match at all, found at C speed: output that is not watched for costs almost nothing.


# All characters outside ASCII that equal an ASCII letter when case is ignored: dotted and dotless i, long s, Kelvin.
_OTHER_CASE = re.compile("\u0130|\u0131|\u017f|\u212a".encode())
_OTHER_CASE_LEADS = (b"\xc4", b"\xc5", b"\xe2")
# A byte that is not here sorts first (`find` gives -1): it is the most likely to be absent.
_COMMON = b"zqxjkvbywgpfmucdlhrsnioate "


class Sieve:
    """The bytes without which no line matches. Without patterns (None) every line is wanted."""

    def __init__(self, patterns: Iterable[Pattern] | None) -> None:
        # Each needle with its bytes, the rarest ones in program output first.
        self._needles: list[tuple[Needle, list[bytes]]] = []
        # A pattern that needs no certain bytes wants every line.
        self.wants_all = patterns is None
        for pattern in patterns or ():
            if pattern.needles is None:
                self.wants_all = True
                continue
            for needle in pattern.needles:
                each = {needle.raw[at : at + 1] for at in range(len(needle.raw))}
                self._needles.append((needle, sorted(each, key=_COMMON.find)))
        self._has_folded = any(needle.folded for needle, _ in self._needles)

    def candidates(self, block: bytes) -> Candidates | None:
        """None when each needle lacks at least one of its bytes in this block; that is cheaper than searching for the
        needle."""
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
        return Candidates(alive, other_cases) if alive or other_cases else None

    @property
    def wants_none(self) -> bool:
        return not self.wants_all and not self._needles

    def misses(self, block: bytes) -> bool:
        """True if certainly no line of this block of whole lines can match, with or without colours."""
        if self.wants_all:
            return False
        candidates = self.candidates(block)
        if candidates is None:
            return True
        if not readable(block):
            block = CSI_SEQUENCE.sub(b"", block)
            if not readable(block):
                return False
        return all(find(0) < 0 for find in candidates.finders(block))


class Candidates:
    """The needles that a block may hold."""

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


def _finder(block: bytes, raw: bytes) -> Find:
    return lambda at: block.find(raw, at)


def _place(found: re.Match[bytes] | None) -> int:
    return -1 if found is None else found.start()


# What need not be cleaned is looked at in large blocks, but not so large that memory for each comes fresh from the
# kernel; what must be, with every line searched, in blocks that take a few milliseconds.
_BLOCK_BYTES = 120 << 10
_ODD_BLOCK_BYTES = 16 << 10
# This many lines of a block are taken out before the clock is checked again.
_TAKEN_AT_ONCE = 256


class Reader:
    """A cursor into one stream of the log.

    `finished_lines_only` (all but watches) changes five things, here and in `LineFollower`. A line is given as it ends
    up, also if it repeats; else what is overwritten is given too, and parts of long lines overlap. A line whose
    beginning was not read is left out. So are the parts of a long line before its last (segments). What cannot be read
    now counts as unread; else it is read after the next output. A block is given whole; else a slice can end in it."""

    def __init__(self, log: LogWriter, stream: str, sieve: Sieve, *, finished_lines_only: bool = False) -> None:
        self._log = log
        self._stream = stream
        self._finished_lines_only = finished_lines_only
        end = log.end(stream)
        self._lines = Lines(end, overlap=0, keep_repeats=True) if finished_lines_only else Lines(end)
        self._block_bytes = _BLOCK_BYTES
        self.sieve = sieve
        # How many preceding lines are kept as context for a line that may match.
        self.context = 0
        # Bytes that were gone, or never on the disk, or passed over when they were to be read.
        self.unread = 0
        # True if the beginning of the line at the cursor was not read.
        self.torn = False

    @property
    def offset(self) -> int:
        return self._lines.offset

    def partial(self) -> Line | None:
        """The unfinished line, as it is now."""
        return None if self.torn else self._lines.partial()

    def end(self) -> list[Line]:
        """Nothing more comes: the unfinished line is all of it."""
        return [] if self.torn else self._lines.end()

    def skip(self, to: int) -> None:
        """Continue at this offset; what was skipped counts as unread."""
        self.unread += max(0, to - self.offset)
        self.go_to(to)

    def go_to(self, offset: int) -> None:
        self._lines.skip_to(offset)
        self.torn = self._finished_lines_only

    def read(self, end: int) -> list[Line | bytes]:
        """Read what comes next before `end`: the lines that can match, and as bytes the lines before them that
        cannot."""
        at, data = self._log.read(self._stream, self.offset, min(self._block_bytes, end - self.offset))
        if at > self.offset or not data:
            self.skip(at if data else end)
        if self.torn:
            begin = data.find(b"\n") + 1
            self._lines.skip_to(at + (begin or len(data)) if data else end)
            self.torn = not begin
            data = data[begin:] if begin else b""
        found: list[Line | bytes] = []
        if data and not self._lines.at_start:
            cut = data.find(b"\n", 0, _ODD_BLOCK_BYTES) + 1 or _ODD_BLOCK_BYTES
            found += self._lines.feed(data[:cut])
            data = data[cut:]
        if data and self._lines.at_start:
            self._sift(data, found)
        return found

    def _sift(self, data: bytes, found: list[Line | bytes]) -> None:
        """Sift as much of it, from the start of a line, as can be done quickly. What is left is read again."""
        end = data.rfind(b"\n") + 1
        block = data[:end]
        self._block_bytes = _BLOCK_BYTES
        if end and not self.sieve.wants_all:
            candidates = self.sieve.candidates(block)
            if candidates is None or readable(block):
                if self._take_out(block, candidates, found):
                    found += self._lines.feed(data[end:])
                return
        if end:
            self._block_bytes = _ODD_BLOCK_BYTES
        end = data.rfind(b"\n", 0, _ODD_BLOCK_BYTES) + 1
        block = data[: end or _ODD_BLOCK_BYTES]
        if end and self.sieve.misses(block):
            self._pass(block, found)
        else:
            found += self._lines.feed(block)

    def _take_out(self, block: bytes, candidates: Candidates | None, found: list[Line | bytes]) -> bool:
        """The lines that may match, from a block that needs no cleaning. False when there were too many for now."""
        at = 0
        for count, (begin, end) in enumerate(candidates.spans(block) if candidates is not None else ()):
            if count == _TAKEN_AT_ONCE:
                return False
            self._pass(block[at:begin], found)
            found += self._lines.feed(block[begin:end])
            at = end
        self._pass(block[at:], found)
        return True

    def _pass(self, block: bytes, found: list[Line | bytes]) -> None:
        self._lines.pass_over(len(block))
        if self.context and block:
            at = len(block)
            for _ in range(self.context):
                at = block.rfind(b"\n", 0, max(0, at - 1)) + 1
            found.append(block[at:])


# What was printed is read from the log when there is time for it. A reader that may leave lines out jumps to the
# newest ones and learns from the log's own count how many it missed; one that may not reads in short slices with
# pauses, and what retention takes away before it is read is counted in bytes.

SLICE_S = 0.005
# Of monitors and line probes, which take a twentieth of the time at most.
PAUSE = 19.0
# The clock is checked after this many lines.
_LINES_AT_ONCE = 16
# After a jump, a reader has this much before the end: more lines than a notice shows.
_TAIL_BYTES = 32 << 10
# The order between the streams is kept for this many changes.
_RUNS_MAX = 1024


class LineFollower:
    """Calls `take(stream, line)` for every line in the order of printing, within `timeout` where there is one; with
    `patterns`, only for lines that can match. `finished_lines_only` is explained at `Reader`; without it
    `skipped(stream, bytes)` gets the lines that cannot match and are wanted before others, and None where bytes are
    missing."""

    def __init__(
        self,
        log: LogWriter,
        take: Take,
        *,
        timeout: RegexTimeout | None = None,
        patterns: Iterable[Pattern] | None = None,
        finished_lines_only: bool = True,
        skipped: Callable[[str, bytes | None], None] = lambda _stream, _block: None,
    ) -> None:
        self._log = log
        self._take = take
        self._timeout = timeout
        self._finished_lines_only = finished_lines_only
        self._skipped = skipped
        self._readers = {
            stream: Reader(log, stream, Sieve(None), finished_lines_only=finished_lines_only) for stream in log.ends()
        }
        # Read and not given yet; the next line is the last item.
        self._waiting: list[Line | bytes] = []
        # How many line ends of each stream were seen, as the log counts them.
        self._ends: dict[str, int] = log.facts()["lines"]
        # (stream, up to which offset), in the order of printing.
        self._runs: list[tuple[str, int]] = []
        if patterns is not None:
            self.set_patterns(list(patterns))

    def set_patterns(self, patterns: list[Pattern]) -> None:
        for stream, reader in self._readers.items():
            relevant = [pattern for pattern in patterns if pattern.applies_to(stream)]
            reader.sieve = Sieve(relevant)
            reader.context = max((pattern.before for pattern in relevant), default=0)

    @property
    def behind(self) -> bool:
        return bool(self._runs or self._waiting)

    @property
    def unread(self) -> int:
        """The number of bytes that could not be read because they were dropped or never stored, or were given up."""
        return sum(reader.unread for reader in self._readers.values())

    def on_output(self, stream: str) -> None:
        end = self._log.end(stream)
        runs = self._runs
        if runs and runs[-1][0] == stream:
            runs[-1] = stream, end
        elif len(runs) < _RUNS_MAX:
            runs.append((stream, end))
        else:
            # Only the order is forgotten. The first stays: what waits is of its stream.
            rest = [(name, end) for name, end in self._log.ends().items() if end > self._readers[name].offset]
            runs[1:] = rest

    def read(self, for_s: float) -> bool:
        """Give what is unread, for at most this long. True when that was all, or no more can be read now."""
        until = time.monotonic() + for_s
        while self._runs:
            if self._timeout is None:
                going = self._read_block(until)
            else:
                with self._timeout:
                    going = self._read_block(until)
            if not going:
                return not self._waiting
            if time.monotonic() >= until:
                break
        return not self._runs

    def jump(self) -> dict[str, int]:
        """Skip all that is unread except the end of each stream. Returns where each stream continues."""
        left_out: dict[str, int] = {}
        ends = {stream: end for stream, end in self._log.ends().items() if end > self._readers[stream].offset}
        for stream, end in ends.items():
            reader = self._readers[stream]
            if end - reader.offset > _TAIL_BYTES:
                left_out[stream] = reader.offset
                reader.go_to(end - _TAIL_BYTES)
        self._runs[:] = ends.items()
        return left_out

    def missed(self) -> dict[str, int]:
        """How many lines of each stream ended up to here and were not given. Called when nothing is unread."""
        counts: dict[str, int] = self._log.facts()["lines"]
        missed = {stream: count - self._ends[stream] for stream, count in counts.items()}
        self._ends = counts
        return {stream: count for stream, count in missed.items() if count > 0}

    def partial(self, stream: str) -> Line | None:
        """The unfinished line as it is now."""
        return self._readers[stream].partial()

    def give_up(self) -> None:
        """Give up reading what is unread, and count it."""
        first = next((each.offset for each in reversed(self._waiting) if isinstance(each, Line)), None)
        if first is not None:
            reader = self._readers[self._runs[0][0]]
            reader.unread += reader.offset - first
        for stream, end in self._log.ends().items():
            if end > self._readers[stream].offset:
                self._readers[stream].skip(end)
        self._waiting = []
        self._runs.clear()

    def go_to_end(self) -> None:
        """Continue with what is printed from now on. What was not read does not count as missed."""
        for stream, end in self._log.ends().items():
            self._readers[stream].go_to(end)
        self._waiting = []
        self._runs.clear()

    def end(self) -> int:
        """Give the unfinished lines. Returns how many cannot be given because their beginning was not read."""
        torn = 0
        for stream, reader in self._readers.items():
            for line in reader.end():
                self.give(self._take, stream, line)
            torn += reader.torn
            reader.torn = False
        return torn

    def give(self, take: Take, stream: str, line: Line) -> None:
        if self._timeout is None:
            take(stream, line)
        else:
            with self._timeout:
                take(stream, line)

    def _read_block(self, until: float) -> bool:
        """Give what waits, or else the next block. False when this slice is over, or nothing can be read now."""
        stream, end = self._runs[0]
        reader = self._readers[stream]
        if not self._waiting:
            if reader.sieve.wants_none:
                reader.go_to(end)
            if reader.offset >= end:
                del self._runs[0]
                return True
            unread = reader.unread
            try:
                self._waiting = reader.read(end)[::-1]
            except OSError:
                # No descriptor at the moment.
                if not self._finished_lines_only:
                    return False  # the next output brings us here again
                reader.skip(end)
            if reader.unread != unread:
                self._skipped(stream, None)
        return self._give_waiting(stream, until)

    def _give_waiting(self, stream: str, until: float) -> bool:
        count = 0
        while self._waiting:
            each = self._waiting.pop()
            if isinstance(each, bytes):
                self._skipped(stream, each)
                continue
            if each.segment and self._finished_lines_only:
                continue
            if self._take(stream, each) is False:
                self._waiting.append(each)
                return False
            self._ends[stream] += not each.cut
            count += 1
            # A block of whole lines is never left half given: `jump` counts on that.
            if not self._finished_lines_only and not count % _LINES_AT_ONCE and time.monotonic() >= until:
                return True
        return True


class Slices:
    """Drives a `LineFollower` that has to see every line: in slices between reads of the output, at once where the
    command is silent. `pause`: while output comes in, a slice is followed by this many times its length without one.
    With `quiet_s`, `partial(stream, line)` gets an unfinished line after this much silence."""

    def __init__(
        self,
        loop: Loop,
        follower: LineFollower,
        *,
        pause: float,
        quiet_s: float = 0.0,
        partial: Take | None = None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self._follower = follower
        self._pause = pause
        self._quiet_s = quiet_s
        self._partial = partial
        # Called after each slice.
        self._after = after
        self._alarm = Alarm(loop, self._slice)
        self._quiet = Alarm(loop, self._give_partials)
        self._output_at: dict[str, float] = {}
        self._printed_since_slice = False
        self._closed = False

    def on_output(self, stream: str) -> None:
        if self._closed:
            return
        self._follower.on_output(stream)
        self._output_at[stream] = time.monotonic()
        self._printed_since_slice = True
        if not self._alarm.is_set:
            self._alarm.set(0.0)

    def open(self) -> None:
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._alarm.cancel()
        self._quiet.cancel()

    def _slice(self) -> None:
        busy, self._printed_since_slice = self._printed_since_slice, False
        began = time.monotonic()
        done = self._follower.read(SLICE_S)
        self._after()
        if self._closed:
            return  # closed because of what was found
        if busy:
            self._alarm.set(self._pause * (time.monotonic() - began))
        elif not done:
            self._alarm.set(0.0)
        if done and not self._quiet.is_set:
            self._wait_for_quiet()

    def _wait_for_quiet(self) -> None:
        """An unfinished line may be a question."""
        waiting = [at for stream, at in self._output_at.items() if self._follower.partial(stream) is not None]
        if waiting and self._partial is not None:
            self._quiet.set(min(waiting) + self._quiet_s - time.monotonic())

    def _give_partials(self) -> None:
        now = time.monotonic()
        for stream, output_at in list(self._output_at.items()):
            line = self._follower.partial(stream)
            if line is None or self._partial is None or self._closed:
                continue
            if output_at + self._quiet_s <= now:
                del self._output_at[stream]
                self._follower.give(self._partial, stream, line)
        self._after()
        if not self._closed and not self._alarm.is_set:
            self._wait_for_quiet()
