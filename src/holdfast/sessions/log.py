"""Reading a log by cursor: straight from the files, without the runner, never consuming.

A page lists everything that was skipped: what the cap dropped, what the disk refused, what
was deleted. A cursor only ever moves over bytes that were given out or reported.
"""

from __future__ import annotations

import os
from bisect import bisect_right

from .. import errors
from ..core.records import TTY
from ..model import format_cursor
from .segments import OFFSET_MAX, PIECE_BYTES, STREAMS, Gap, LogSnapshot, streams_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


if TYPE_CHECKING:
    Since = str | int | None
    Chunk = tuple[str, int, bytes]

READ_MAX_BYTES = 1 << 20
# Enough for two hundred very long lines.
TAIL_MAX_BYTES = 16 << 20
_TAIL_BLOCK_BYTES = 32 << 10
# A turn of one stream is read in steps of this size: a page is full long before all frames have been read.
_TURN_BYTES = 64 << 10


def parse_cursor(since: Since, streams: Sequence[str]) -> dict[str, int]:
    """Offsets by stream. A stream that the cursor does not name is read from its beginning. A bare offset
    other than 0 is for a session with one stream only."""
    if since is None:
        return {}
    if isinstance(since, bool) or not isinstance(since, int | str):
        raise errors.BadCursor(repr(since))
    text = str(since)
    offset = _offset(text)
    if offset is not None:
        if offset and len(streams) != 1:
            raise errors.BadCursor(text)
        return {streams[0]: offset} if offset else {}
    found: dict[str, int] = {}
    for part in text.split(","):
        stream, colon, digits = part.partition(":")
        offset = _offset(digits)
        if not colon or stream not in STREAMS or stream in found or offset is None:
            raise errors.BadCursor(text)
        found[stream] = offset
    return found


def _offset(digits: str) -> int | None:
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        return None
    offset = int(digits)
    return offset if offset < OFFSET_MAX else None


class Page:
    """Bytes in order of arrival, and the cursor after them. `more`: the limit ended it, not the log."""

    __slots__ = ("_directory", "_text", "chunks", "cursor", "dropped_before", "gaps", "more", "signal_id")

    def __init__(
        self,
        chunks: list[Chunk],
        cursor: str,
        dropped_before: dict[str, int],
        gaps: list[Gap],
        more: bool,
        *,
        directory: str = "",
        text: str | None = None,
    ) -> None:
        self.chunks = chunks
        self.cursor = cursor
        self.dropped_before = dropped_before
        self.gaps = gaps
        self.more = more
        self._directory = directory
        self._text = text
        # Of a session that has ended, where nothing follows: the record of its ending.
        self.signal_id: str | None = None

    @property
    def data(self) -> bytes:
        return b"".join(data for _, _, data in self.chunks)

    @property
    def told(self) -> bool:
        """Set if its text is already known; the bytes of this page alone would give a different text."""
        return self._text is not None

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = _text(self._directory, self.chunks)
        return self._text

    def whole(self) -> Page:
        """The bytes without an incomplete character or sequence at their end, which comes with the next page: for
        joining the texts of pages. The text of a terminal is always complete."""
        from ..core.vt.text import unfinished

        at = parse_cursor(self.cursor, STREAMS)
        last = {stream: number for number, (stream, _, _) in enumerate(self.chunks) if stream != TTY}
        chunks = list(self.chunks)
        for stream, number in last.items():
            _, offset, data = chunks[number]
            held = unfinished(data) if at.get(stream) == offset + len(data) else 0
            if held:
                chunks[number] = (stream, offset, data[:-held])
                at[stream] -= held
        if chunks == self.chunks:
            return self
        cursor = format_cursor(at)
        return Page(chunks, cursor, self.dropped_before, self.gaps, self.more, directory=self._directory)

    def __repr__(self) -> str:
        size = sum(len(data) for _, _, data in self.chunks)
        notes = [f"{size} bytes", f"cursor {self.cursor}", *map(repr, self.gaps)]
        return f"Page({', '.join(notes + ['more'] * self.more)})"


def _text(directory: str, chunks: list[Chunk]) -> str:
    """A line comes where it was finished: output of two streams never mixes within a line."""
    if chunks and chunks[0][0] == TTY:
        from .terminal_log import page_text

        return page_text(directory, chunks)
    from ..core.vt.text import Cleaner

    cleaners: dict[str, Cleaner] = {}
    out = [cleaners.setdefault(stream, Cleaner()).feed(data) for stream, _, data in chunks]
    rest = [cleaners[stream].flush() for stream in STREAMS if stream in cleaners]
    return "".join(out) + "\n".join(line for line in rest if line)


class Log:
    """The log in a session directory, live, finished or copied. Nothing stays open between calls. A caller that knows
    the streams of the session passes them."""

    __slots__ = ("_started_with", "directory")

    def __init__(self, directory: str, streams: Iterable[str] = ()) -> None:
        self.directory = directory
        self._started_with: tuple[str, ...] | None = tuple(streams) or None

    def __repr__(self) -> str:
        return f"Log({self.directory!r})"

    def snapshot(self) -> LogSnapshot:
        return LogSnapshot(self.directory, self._known())

    def _known(self) -> tuple[str, ...]:
        if self._started_with is None:
            self._started_with = streams_of(self.directory)
        return self._started_with

    def streams(self) -> tuple[str, ...]:
        if self._known():
            return self._known()
        with self.snapshot() as snapshot:
            return snapshot.streams

    def ends(self) -> dict[str, int]:
        with self.snapshot() as snapshot:
            return dict(snapshot.ends)

    def cursor(self) -> str:
        """The cursor at the end of everything."""
        return format_cursor(self.ends())

    def parse(self, since: Since, *, stream: str | None = None) -> dict[str, int]:
        """The offsets of a cursor for every stream of the session, or for the requested one."""
        streams = _chosen(self.streams(), stream)
        offsets = parse_cursor(since, streams)
        return {name: offsets.get(name, 0) for name in streams}

    def end_after(self, since: Since, *, stream: str | None = None) -> str | None:
        """The cursor at the end of everything, if there is output after this one."""
        with self.snapshot() as snapshot:
            streams = _chosen(snapshot.streams, stream)
            at = parse_cursor(since, streams)
            more = any(at.get(name, 0) < snapshot.ends.get(name, 0) for name in streams)
            return format_cursor(snapshot.ends) if more else None

    def dropped_before(self) -> dict[str, int]:
        with self.snapshot() as snapshot:
            return {stream: snapshot.begin(stream) for stream in snapshot.streams}

    def lines_dropped(self) -> dict[str, int]:
        with self.snapshot() as snapshot:
            return {stream: snapshot.dropped.get(stream, (0, 0))[1] for stream in snapshot.streams}

    def files(self, stream: str | None = None) -> list[str]:
        """The files with the retained bytes, oldest first in each stream."""
        names = sorted(name for name in os.listdir(self.directory) if name.partition(".")[2].isdecimal())
        wanted = STREAMS if stream is None else (stream,)
        return [os.path.join(self.directory, name) for each in wanted for name in names if name.startswith(f"{each}.")]

    def size(self) -> int:
        """Bytes that the segments occupy."""
        with self.snapshot() as snapshot:
            return snapshot.size()

    def read(
        self,
        since: Since = None,
        stream: str | None = None,
        limit: int | None = None,
        *,
        strict: bool = False,
    ) -> Page:
        """What came after a cursor, at most `limit` bytes. A cursor into dropped output continues where the
        retained bytes begin, with the gap on the page; `strict` makes it an error."""
        room = READ_MAX_BYTES if limit is None else limit
        if room < 1:
            raise errors.BadArgument("limit", f"{limit} is not a number of bytes", "give at least 1")
        with self.snapshot() as snapshot:
            streams = _chosen(snapshot.streams, stream)
            at = parse_cursor(since, streams)
            for name in {*at, *streams}:
                _check(snapshot, name, at.setdefault(name, 0), strict)
            chunks: list[Chunk] = []
            for name, stop in _plan(snapshot, streams, at):
                while at[name] < stop and room:
                    begin, data = snapshot.piece(name, at[name], stop, room)
                    if data:
                        _add(chunks, name, begin, data)
                    room -= len(data)
                    at[name] = begin + len(data)
                if not room:
                    break
            more = any(at[name] < snapshot.ends.get(name, 0) for name in streams)
            if more and chunks:
                _end_with_a_line(chunks, at)
            return _page(snapshot, chunks, at, more)

    def tail(
        self,
        lines: int,
        stream: str | None = None,
        *,
        limit: int = TAIL_MAX_BYTES,
        until: Mapping[str, int] | None = None,
    ) -> Page:
        """The last lines, including an unfinished one, found from the end: the size of the log does not matter.
        `until`: where the streams ended at an earlier read. `more`: they are longer than `limit` bytes a stream, and
        the first line is cut."""
        if lines < 0:
            raise errors.BadArgument("lines", f"{lines} is not a number of lines", "give 0 or more")
        # The name of a silent stream in a cursor matters less than the time to look it up.
        with LogSnapshot(self.directory, self._started_with or ()) as snapshot:
            if until is not None:
                snapshot.ends = {name: min(end, until.get(name, 0)) for name, end in snapshot.ends.items()}
            streams = _chosen(snapshot.streams, stream)
            if streams == (TTY,):
                return _terminal_tail(snapshot, lines, limit)
            found = {name: _back(snapshot, name, lines, limit) for name in streams}
            more = any(cut for _, cut in found.values())
            chunks = [chunk for pieces, _ in found.values() for chunk in pieces]
            printed = [name for name, (pieces, _) in found.items() if pieces]
            if len(printed) > 1:
                chunks = _by_arrival(snapshot, {name: found[name][0][0][1] for name in printed}, lines)
            return _page(snapshot, chunks, snapshot.ends, more)

    def blocks(self, stream: str, since: int = 0, until: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Bytes of one stream with their offsets, in large pieces; a jump between two is a gap."""
        with self.snapshot() as snapshot:
            stop = snapshot.ends.get(stream, 0) if until is None else min(until, snapshot.ends.get(stream, 0))
            yield from snapshot.pieces(stream, since, stop)

    def raw(self, stream: str, since: int = 0, until: int | None = None) -> Iterator[bytes]:
        for _, data in self.blocks(stream, since, until):
            yield data

    def resizes(self, stream: str = "tty") -> list[tuple[int, int, int]]:
        """Offset, rows and columns of every change of a terminal's size that is still on record."""
        with self.snapshot() as snapshot:
            return snapshot.whole_frames().resizes(stream)

    def lines_before(self, stream: str, offset: int) -> int:
        """Line ends of a stream before an offset, including dropped ones: `lines_scrolled_out`."""
        found = self.lines_at(stream, [offset])[0]
        return self.lines_dropped().get(stream, 0) if found is None else found

    def lines_at(
        self, stream: str, offsets: Sequence[int], known: list[tuple[int, int]] | None = None
    ) -> list[int | None]:
        """The same for many ascending offsets in one pass; None for a dropped one. `known` are counts at earlier
        offsets, from which it continues and to which it adds."""
        found: list[int | None] = []
        known = [] if known is None else known
        with self.snapshot() as snapshot:
            begin = at = snapshot.begin(stream)
            count = snapshot.dropped.get(stream, (0, 0))[1]
            nearest = bisect_right(known, offsets[0], key=lambda each: each[0]) if offsets else 0
            if nearest and known[nearest - 1][0] > begin:
                at, count = known[nearest - 1]
            base, block = at, b""
            for offset in offsets:
                while at < offset:
                    if at >= base + len(block):
                        if not known or known[-1][0] < at:
                            known.append((at, count))
                        base, block = snapshot.piece(stream, at, offsets[-1], PIECE_BYTES)
                        if not block:
                            break
                    low, high = max(at, base), min(offset, base + len(block))
                    if low < high:
                        count += block.count(b"\n", low - base, high - base)
                    at = high
                found.append(count if offset >= begin else None)
        return found

    def moment(self, since: Since, stream: str | None = None) -> dict[str, int]:
        """The offsets of a cursor; of a stream that it does not name, the end when the first byte after it came."""
        with self.snapshot() as snapshot:
            streams = _chosen(snapshot.streams, stream)
            at = parse_cursor(since, streams)
            for name, offset in at.items():
                _check(snapshot, name, offset, False)
            frames = snapshot.whole_frames()
            after = [frames.next(name, frames.after(name, offset)) for name, offset in at.items()]
            index = min((frames.count if found is None else found[0] for found in after), default=0)
            for name in streams:
                first = frames.next(name, index)
                at.setdefault(name, snapshot.ends.get(name, 0) if first is None else first[1])
            return at

    def order(self) -> Callable[[str, int], int]:
        """A key that sorts offsets of all streams by arrival, as far as there are frames."""
        with self.snapshot() as snapshot:
            known = {stream: snapshot.whole_frames().starts(stream) for stream in snapshot.streams}

        def rank(stream: str, offset: int) -> int:
            offsets, indices = known.get(stream, ([], []))
            number = bisect_right(offsets, offset) - 1
            return indices[number] if number >= 0 else -1

        return rank


def _chosen(streams: tuple[str, ...], stream: str | None) -> tuple[str, ...]:
    if stream is None:
        return streams
    if stream not in STREAMS:
        raise errors.BadArgument("stream", f"not a stream: {stream!r}", f"give one of {', '.join(STREAMS)}")
    return (stream,)


def _check(snapshot: LogSnapshot, stream: str, offset: int, strict: bool) -> None:
    if not snapshot.has_come_to(stream, offset):
        raise errors.OffsetAhead(stream, offset, snapshot.ends.get(stream, 0))
    if strict and offset < snapshot.begin(stream):
        raise errors.OutputDropped(stream, snapshot.begin(stream))


def _plan(snapshot: LogSnapshot, streams: Sequence[str], at: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Which stream to read next, and up to where. Bytes without a frame come first if old frames were given up, else
    last: they are so new that their frame is not written yet."""
    ends = snapshot.ends
    unread = {name: at[name] for name in streams if at[name] < ends.get(name, 0)}
    if len(unread) > 1:
        frames = snapshot.frames if snapshot.frames.reaches(unread) else snapshot.whole_frames()
        begin = min(frames.after(name, offset) for name, offset in unread.items())
        for name in unread:
            first = frames.next(name, begin)
            if first is not None and at[name] < first[1]:
                yield name, min(first[1], ends[name])
            elif first is None and frames.whole and frames.trimmed() and frames.next(name) is None:
                yield name, ends[name]
        turn, upto = "", 0
        for name, _, stop in frames.walk(begin):
            if name not in unread:
                continue
            if name != turn:
                if turn:
                    yield turn, upto
                turn, upto = name, 0
            upto = max(upto, min(stop, ends[name]))
            if upto - at[name] >= _TURN_BYTES:
                yield name, upto
        if turn:
            yield turn, upto
    for name in unread:
        yield name, ends[name]


def _add(chunks: list[Chunk], stream: str, offset: int, data: bytes) -> None:
    if chunks:
        last, begin, before = chunks[-1]
        if last == stream and begin + len(before) == offset and len(before) < PIECE_BYTES:
            chunks[-1] = (stream, begin, before + data)
            return
    chunks.append((stream, offset, data))


def _end_with_a_line(chunks: list[Chunk], at: dict[str, int]) -> None:
    """If a page is cut anyway, cut it after a line, so that its text has no incomplete character or sequence."""
    stream, offset, data = chunks[-1]
    cut = data.rfind(b"\n") + 1
    if 0 < cut < len(data) and at[stream] == offset + len(data):
        chunks[-1] = (stream, offset, data[:cut])
        at[stream] = offset + cut


def _back(snapshot: LogSnapshot, stream: str, lines: int, limit: int) -> tuple[list[Chunk], bool]:
    """The last lines of one stream, and whether the limit was reached first."""
    at = snapshot.ends.get(stream, 0)
    size, room = _TAIL_BLOCK_BYTES, limit
    found: list[Chunk] = []
    while lines and at > snapshot.begin(stream):
        if not room:
            return found[::-1], True
        at, data = snapshot.piece_before(stream, at, min(size, room))
        if not data:
            break
        if not found and data.endswith(b"\n"):
            # It closes the last line, it does not begin another one.
            lines += 1
        room -= len(data)
        size = min(size * 2, PIECE_BYTES)
        parts = data.rsplit(b"\n", lines)
        lines -= len(parts) - 1
        if not lines:
            skip = len(parts[0]) + 1
            at, data = at + skip, data[skip:]
        if data:
            found.append((stream, at, data))
    return found[::-1], False


def _terminal_tail(snapshot: LogSnapshot, lines: int, limit: int) -> Page:
    from .terminal_log import last_lines

    at, text, more = last_lines(snapshot, lines, limit)
    snapshot.gaps.clear()
    chunks: list[Chunk] = []
    for begin, data in snapshot.pieces(TTY, at, snapshot.ends.get(TTY, 0)):
        _add(chunks, TTY, begin, data)
    return _page(snapshot, chunks, snapshot.ends, more, text)


def _by_arrival(snapshot: LogSnapshot, starts: dict[str, int], lines: int) -> list[Chunk]:
    """The last lines of several streams together, from offsets after which each has at least so many."""
    snapshot.gaps.clear()
    at = dict(starts)
    chunks: list[Chunk] = []
    for name, stop in _plan(snapshot, list(at), at):
        for begin, data in snapshot.pieces(name, at[name], stop):
            _add(chunks, name, begin, data)
        at[name] = max(at[name], stop)
    return _last_lines(chunks, starts, lines)


def _last_lines(chunks: list[Chunk], starts: dict[str, int], lines: int) -> list[Chunk]:
    """The chunks without the lines that are too many over all streams together, counted at line ends."""
    begins, ends = dict(starts), dict(starts)
    found: list[tuple[str, int]] = []
    for stream, offset, data in chunks:
        at = 0
        while (at := data.find(b"\n", at) + 1) > 0:
            found.append((stream, begins[stream]))
            begins[stream] = offset + at
        ends[stream] = offset + len(data)
    found += [(stream, begin) for stream, begin in begins.items() if begin < ends[stream]]
    # From the newest to the oldest, so that the oldest line kept of each stream is the one that stays.
    kept = dict(reversed(found[-lines:] if lines else []))
    shown = []
    for stream, offset, data in chunks:
        skip = max(0, kept.get(stream, offset + len(data)) - offset)
        if skip < len(data):
            shown.append((stream, offset + skip, data[skip:]))
    return shown


def _page(snapshot: LogSnapshot, chunks: list[Chunk], at: dict[str, int], more: bool, text: str | None = None) -> Page:
    dropped = {stream: snapshot.begin(stream) for stream in snapshot.streams}
    return Page(chunks, format_cursor(at), dropped, snapshot.gaps, more, directory=snapshot.directory, text=text)
