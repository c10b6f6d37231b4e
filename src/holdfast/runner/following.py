"""Reading the log line by line behind a running command, as a cursor that never slows it.

What was printed is read from the log when there is time for it. A reader that may leave lines out jumps to the newest
ones and learns from the log's own count how many it missed; one that may not reads in short slices with long pauses,
and what retention takes away before it comes by is counted in bytes.
"""

from __future__ import annotations

import time

from .lines import Lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from .fence import Fence
    from .lines import Line
    from .log import Log
    from .loop import Loop, Timer
    from .sieve import Sieve

    Take = Callable[[str, Line], None]

SLICE_S = 0.005
# While output comes in, a slice is followed by so many times its length without one.
_PAUSE = 19
_PIECE_BYTES = 16 << 10
# A reader that jumps has this much before it then: more lines than anybody is shown.
_TAIL_BYTES = 32 << 10
# Who printed after whom is remembered for so many changes between the streams.
_RUNS_MAX = 1024


class Following:
    """Calls `take(stream, line)` for every line in the order of printing. Segments that were overwritten before their
    line was whole are left out; so is, with a `sieve`, what it says that nobody wants. `take` is called within `fence`,
    where there is one."""

    def __init__(self, log: Log, take: Take, *, fence: Fence | None = None, sieve: Sieve | None = None) -> None:
        self._log = log
        self._take = take
        self._fence = fence
        self._sieve = sieve
        self._lines = {stream: Lines(end, overlap=0, repeats=True) for stream, end in log.ends().items()}
        # How many line ends of each stream we know of, as the log counts them.
        self._ends: dict[str, int] = log.facts()["lines"]
        # (stream, up to which offset), in the order of printing.
        self._runs: list[tuple[str, int]] = []
        # Streams of which the beginning of the line we are in was not read.
        self._torn: set[str] = set()
        # Bytes that were gone, or never on the disk, when we came by.
        self.unread = 0

    @property
    def behind(self) -> bool:
        return bool(self._runs)

    def heard(self, stream: str, _size: int) -> None:
        end = self._log.end(stream)
        runs = self._runs
        if runs and runs[-1][0] == stream:
            runs[-1] = stream, end
        elif len(runs) < _RUNS_MAX:
            runs.append((stream, end))
        else:
            runs[:] = [(name, end) for name, end in self._log.ends().items() if end > self._lines[name].offset]

    def read(self, for_s: float) -> None:
        """What is unread, but not longer than this."""
        until = time.monotonic() + for_s
        while self._runs:
            stream, end = self._runs[0]
            if self._lines[stream].offset >= end:
                del self._runs[0]
                continue
            if self._fence is None:
                self._read_piece(stream, end)
            else:
                with self._fence:
                    self._read_piece(stream, end)
            if time.monotonic() >= until:
                break

    def jump(self) -> dict[str, int]:
        """Leave out what is unread but the end of each stream. From where on, by stream."""
        left_out: dict[str, int] = {}
        ends = {stream: end for stream, end in self._log.ends().items() if end > self._lines[stream].offset}
        for stream, end in ends.items():
            lines = self._lines[stream]
            if end - lines.offset > _TAIL_BYTES:
                left_out[stream] = lines.offset
                lines.skip_to(end - _TAIL_BYTES)
                self._torn.add(stream)
        self._runs[:] = ends.items()
        return left_out

    def missed(self) -> dict[str, int]:
        """How many lines of each stream ended up to here and were not given. Asked where nothing is unread."""
        counts: dict[str, int] = self._log.facts()["lines"]
        missed = {stream: count - self._ends[stream] for stream, count in counts.items()}
        self._ends = counts
        return {stream: count for stream, count in missed.items() if count > 0}

    def partials(self) -> list[tuple[str, Line]]:
        """The unfinished lines as they stand."""
        found = ((stream, lines.partial()) for stream, lines in self._lines.items() if stream not in self._torn)
        return [(stream, line) for stream, line in found if line is not None]

    def give_up(self) -> None:
        """What is unread stays so."""
        for stream, end in self._log.ends().items():
            lines = self._lines[stream]
            if end > lines.offset:
                self.unread += end - lines.offset
                lines.skip_to(end)
                self._torn.add(stream)
        self._runs.clear()

    def end(self) -> int:
        """What the unfinished lines say is given as it stands. How many cannot be: their beginning was not read."""
        for stream, lines in self._lines.items():
            if stream not in self._torn:
                for line in lines.end():
                    self._take(stream, line)
        torn = len(self._torn)
        self._torn.clear()
        return torn

    def _read_piece(self, stream: str, end: int) -> None:
        lines = self._lines[stream]
        try:
            at, piece = self._log.read(stream, lines.offset, min(_PIECE_BYTES, end - lines.offset))
        except OSError:
            at, piece = lines.offset, b""  # no descriptor: it counts as unread, and nobody is kept waiting
        if not piece:
            at = end
        if at > lines.offset:
            self.unread += min(at, end) - lines.offset
            lines.skip_to(at)
            self._torn.add(stream)
        if stream in self._torn:
            begin = piece.find(b"\n") + 1
            if not begin:
                lines.skip_to(at + len(piece))
                return
            self._torn.discard(stream)
            lines.skip_to(at + begin)
            piece = piece[begin:]
        for line in lines.feed(piece) if self._sieve is None else self._sifted(lines, piece, self._sieve):
            if not line.segment:
                self._ends[stream] += not line.cut
                self._take(stream, line)

    @staticmethod
    def _sifted(lines: Lines, piece: bytes, sieve: Sieve) -> list[Line]:
        """What the sieve passes of the whole lines in it, and the ends of others."""
        begin = 0 if lines.at_start else piece.find(b"\n") + 1
        end = piece.rfind(b"\n") + 1
        if end <= begin or not sieve.misses(piece[begin:end]):
            return lines.feed(piece)
        found = lines.feed(piece[:begin])
        lines.pass_over(end - begin)
        return found + lines.feed(piece[end:])


class Slices:
    """Drives a `Following` whose reader wants every line: in slices between reads of the output, at once where the
    command is silent."""

    def __init__(self, loop: Loop, following: Following) -> None:
        self._loop = loop
        self._following = following
        self._timer: Timer | None = None
        # Was anything printed since the last slice?
        self._fresh = False
        self._closed = False

    def heard(self, stream: str, size: int) -> None:
        self._following.heard(stream, size)
        self._fresh = True
        if self._timer is None and not self._closed:
            self._timer = self._loop.after(0.0, self._slice)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _slice(self) -> None:
        self._timer = None
        busy, self._fresh = self._fresh, False
        began = time.monotonic()
        self._following.read(SLICE_S)
        if self._closed:
            return  # by what it found
        if busy:
            self._timer = self._loop.after(_PAUSE * (time.monotonic() - began), self._slice)
        elif self._following.behind:
            self._timer = self._loop.after(0.0, self._slice)
