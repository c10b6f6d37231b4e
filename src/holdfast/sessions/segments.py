"""The segments of a session's log, and the order between its streams.

A `LogSnapshot` is of a directory that may change under it: a runner adds and drops segments, people cut, delete and
lock files. A segment that vanished makes it list again; what cannot be read becomes a gap.
"""

from __future__ import annotations

import binascii
import errno
import os
import stat
from bisect import bisect_left, bisect_right

from .. import errors
from ..core import records
from ..core.records import STREAM_NUMBERS, TTY
from ..runner.log import DATA, FRAME, FRAME_BYTES, FRAMES_MAX_BYTES, RESIZE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self


# The `frames` file of a session: in which order the bytes of its streams came.
#
# Derived data. A damaged record is skipped, without the file no order between the streams is known; the bytes
# themselves are read either way. Nothing here is believed beyond what the segments hold.


_STREAM_AT = 28
_KIND_AT = 29
_NAMES = tuple(STREAM_NUMBERS)
# Enough for a reader that keeps up, and read in microseconds.
_SUFFIX_BYTES = 512 * FRAME_BYTES


class Frames:
    """The newest frames of a session, all of them when `whole`."""

    __slots__ = ("_data", "_numbers", "count", "whole")

    def __init__(self, data: bytes, whole: bool = True) -> None:
        self.count = len(data) // FRAME_BYTES
        self.whole = whole
        self._data = data
        # One byte a record, so that the records of a stream are found at memory speed.
        self._numbers = data[_STREAM_AT::FRAME_BYTES][: self.count]

    def next(self, stream: str, index: int = 0, stop: int | None = None) -> tuple[int, int, int] | None:
        """The first good data frame of a stream from `index` on: its index, and the range of its bytes."""
        number = STREAM_NUMBERS[stream]
        stop = self.count if stop is None else stop
        while (index := self._numbers.find(number, index, stop)) >= 0:
            span = self._span(index)
            if span is not None:
                return index, *span
            index += 1
        return None

    def last(self, stream: str) -> tuple[int, int, int] | None:
        """The last good data frame of a stream: its index, and the range of its bytes."""
        number = STREAM_NUMBERS[stream]
        index = self.count
        while (index := self._numbers.rfind(number, 0, index)) >= 0:
            span = self._span(index)
            if span is not None:
                return index, *span
        return None

    def after(self, stream: str, offset: int) -> int:
        """The index from which on every frame of a stream with bytes at or after `offset` is found."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            found = self.next(stream, middle, high)
            if found is None or found[2] > offset:
                high = middle
            else:
                low = found[0] + 1
        return low

    def walk(self, begin: int) -> Iterator[tuple[str, int, int]]:
        """Every good data frame from an index on: its stream, and the range of its bytes."""
        for index in range(begin, self.count):
            number = self._numbers[index]
            span = self._span(index) if number < len(_NAMES) else None
            if span is not None:
                yield _NAMES[number], *span

    def trimmed(self) -> bool:
        """True when older frames were given up: bytes without a frame are then older than those with one."""
        for _, start, _ in self.walk(0):
            return start > 0
        return False

    def reaches(self, unread: Mapping[str, int]) -> bool:
        """True when no frame that was not loaded can matter to a reader at these offsets."""
        if self.whole:
            return True
        for stream, offset in unread.items():
            first = self.next(stream)
            if first is None or first[1] > offset:
                return False
        return True

    def covers(self, stream: str, start: int, stop: int) -> bool:
        """True when these bytes were once stored, or might have been: their frames may be gone."""
        found = self.next(stream, self.after(stream, start))
        if found is not None and found[1] < stop:
            return True
        first = self.next(stream)
        return self.trimmed() and (first is None or first[1] > start)

    def starts(self, stream: str) -> tuple[list[int], list[int]]:
        """First offsets and indices of all frames of a stream, ascending."""
        offsets: list[int] = []
        indices: list[int] = []
        found = self.next(stream)
        while found is not None:
            if not offsets or found[1] >= offsets[-1]:
                offsets.append(found[1])
                indices.append(found[0])
            found = self.next(stream, found[0] + 1)
        return offsets, indices

    def resizes(self, stream: str) -> list[tuple[int, int, int]]:
        """Offset, rows and columns of every change of size, in order."""
        found = []
        kinds = self._data[_KIND_AT::FRAME_BYTES][: self.count]
        index = -1
        while (index := kinds.find(RESIZE, index + 1)) >= 0:
            record = self._record(index)
            if record is not None and record[2] == stream:
                found.append((record[4], record[5] >> 16, record[5] & 0xFFFF))
        return found

    def records(self, begin: int = 0) -> Iterator[tuple[int, int, str, int, int, int]]:
        """Every good record from an index on: monotonic and wall time in ns, stream, kind, offset, length."""
        for index in range(begin, self.count):
            record = self._record(index)
            if record is not None:
                yield record

    def came_at(self, stream: str, offset: int) -> int | None:
        """Monotonic time in ns at which a byte came, or the last byte before it; None without a frame."""
        found = self.next(stream, self.after(stream, offset)) or self.last(stream)
        record = None if found is None else self._record(found[0])
        return None if record is None else record[0]

    def _record(self, index: int) -> tuple[int, int, str, int, int, int] | None:
        begin = index * FRAME_BYTES
        mono, wall, offset, length, number, kind, check = FRAME.unpack_from(self._data, begin)
        if number >= len(_NAMES) or check != binascii.crc32(self._data[begin : begin + FRAME_BYTES - 2]) & 0xFFFF:
            return None
        return mono, wall, _NAMES[number], kind, offset, length

    def _span(self, index: int) -> tuple[int, int] | None:
        begin = index * FRAME_BYTES
        _, _, offset, length, _, kind, check = FRAME.unpack_from(self._data, begin)
        body = self._data[begin : begin + FRAME_BYTES - 2]
        if kind != DATA or not length or check != binascii.crc32(body) & 0xFFFF:
            return None
        return offset, offset + length


def load(directory: str, *, whole: bool = False) -> Frames:
    """The newest frames; a file that cannot be read is as good as none."""
    try:
        fd = os.open(f"{directory}/frames", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return Frames(b"")
    try:
        size = os.fstat(fd).st_size // FRAME_BYTES * FRAME_BYTES
        # Twice what a runner ever writes: a file of another make that is huge is not read whole.
        wanted = min(size, 2 * FRAMES_MAX_BYTES if whole else _SUFFIX_BYTES)
        return Frames(os.pread(fd, wanted, size - wanted), whole or wanted == size)
    except OSError:
        return Frames(b"")
    finally:
        os.close(fd)


# The segments of a session's log as they are now: which bytes exist, which are gone, and why.


# The order in which streams without frames are read, and in which a cursor names them.
STREAMS = _NAMES
OFFSET_MAX = 10**19
PIECE_BYTES = 1 << 20
_OFFSET_DIGITS = 20
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_RECORD_MAX_BYTES = 1 << 20
# How often segments are listed again because one vanished meanwhile.
_LISTINGS = 5


class Gap(tuple[str, int, int, str]):
    """Bytes that are not there: `dropped` by the cap, refused by the `disk`, `missing`, or `unreadable`."""

    __slots__ = ()

    def __new__(cls, stream: str, start: int, stop: int, reason: str) -> Self:
        return super().__new__(cls, (stream, start, stop, reason))

    @property
    def stream(self) -> str:
        return self[0]

    @property
    def start(self) -> int:
        return self[1]

    @property
    def stop(self) -> int:
        return self[2]

    @property
    def reason(self) -> str:
        return self[3]

    def __repr__(self) -> str:
        return f"Gap({self.stream} {self.start}-{self.stop}, {self.reason})"


class LogSnapshot:
    """The log at one moment. A context manager: it holds a descriptor per stream while in use."""

    __slots__ = ("_exit", "_fds", "_frames", "_segments", "directory", "dropped", "ends", "gaps")

    def __init__(self, directory: str, known: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.gaps: list[Gap] = []
        self._fds: dict[str, tuple[int, int]] = {}
        self._exit = _record(directory, "exit.json")
        self._list()
        self.ends = self._ends(known)
        self._frames: Frames | None = None
        recorded = self._recorded()
        if any(end > self.ends.get(stream, 0) for stream, end in recorded.items()):
            # Most often the log only grew between the two readings.
            self._list()
            self.ends = self._ends(known)
        for stream, end in recorded.items():
            self.ends[stream] = max(end, self.ends.get(stream, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for held in self._fds.values():
            os.close(held[1])
        self._fds.clear()

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(stream for stream in STREAMS if stream in self.ends)

    def begin(self, stream: str) -> int:
        """`dropped_before`: where the retained bytes of a stream begin."""
        segments = self._segments.get(stream)
        gone = self.dropped.get(stream, (0, 0))[0]
        return max(gone, _first(segments[0])) if segments else gone

    def newest(self, stream: str) -> float | None:
        """When the last segment of a stream was last written to."""
        segments = self._segments.get(stream)
        try:
            return os.stat(os.path.join(self.directory, segments[-1])).st_mtime if segments else None
        except OSError:
            return None

    def size(self) -> int:
        return sum(self._stored(name) for segments in self._segments.values() for name in segments)

    @property
    def frames(self) -> Frames:
        """The newest frames, enough for a reader that keeps up."""
        if self._frames is None:
            self._frames = load(self.directory)
        return self._frames

    def whole_frames(self) -> Frames:
        if not self.frames.whole:
            self._frames = load(self.directory, whole=True)
        return self.frames

    def piece(self, stream: str, offset: int, stop: int, size: int) -> tuple[int, bytes]:
        """The first bytes from `offset` on and before `stop`, at most `size` and up to the next hole, and where
        they begin. What had to be skipped is noted in `gaps`. No bytes: nothing is left before `stop`."""
        found: list[bytes] = []
        begin = offset
        while offset < stop and size:
            data, upto, reason = self._at(stream, offset, stop, size)
            if data:
                found.append(data)
                offset += len(data)
                size -= len(data)
            elif found:
                break
            else:
                self._note(stream, offset, upto, reason)
                begin = offset = upto
        return begin, found[0] if len(found) == 1 else b"".join(found)

    def pieces(self, stream: str, offset: int, stop: int, size: int = PIECE_BYTES) -> Iterator[tuple[int, bytes]]:
        """The bytes between two offsets in large pieces, each with where it begins; a jump between two is a gap."""
        while offset < stop:
            begin, data = self.piece(stream, offset, stop, size)
            if data:
                yield begin, data
            offset = begin + len(data)

    def piece_before(self, stream: str, stop: int, size: int) -> tuple[int, bytes]:
        """The last bytes before `stop`, at most `size` and of one segment, and where they begin."""
        lost = -1
        while stop > (floor := self.begin(stream)):
            segments = self._segments.get(stream, [])
            number = bisect_left(segments, f"{stream}.{stop:020d}") - 1
            first = _first(segments[number]) if number >= 0 else floor
            bottom = max(first, floor)
            try:
                fd = self._open(stream, first)
                top = min(stop, first + os.fstat(fd).st_size)
                if top > bottom:
                    begin = max(bottom, top - size)
                    data = os.pread(fd, top - begin, begin - first)
                    if len(data) == top - begin:
                        if top < stop:
                            self._note(stream, top, stop, self._reason(stream, top, stop))
                        return begin, data
                    continue
                reason = self._reason(stream, bottom, stop)
            except FileNotFoundError:
                if number >= 0 and lost != first:
                    lost = first
                    self._list()
                    continue
                reason = "missing"
            except OSError:
                reason = "unreadable"
            self._note(stream, bottom, stop, reason)
            stop = bottom
        return stop, b""

    def _at(self, stream: str, offset: int, stop: int, size: int) -> tuple[bytes, int, str]:
        """Bytes at `offset`, or none, with the offset up to which there are none and the reason."""
        lost = -1
        while True:
            begin = self.begin(stream)
            if offset < begin:
                return b"", min(begin, stop), "dropped"
            segments = self._segments.get(stream, [])
            number = bisect_right(segments, f"{stream}.{offset:020d}") - 1
            upto = min(_first(segments[number + 1]), stop) if number + 1 < len(segments) else stop
            if number < 0:
                return b"", upto, self._reason(stream, offset, upto)
            first = _first(segments[number])
            try:
                data = os.pread(self._open(stream, first), min(size, upto - offset), offset - first)
            except FileNotFoundError:
                if lost == first:
                    return b"", upto, "missing"
                lost = first
                self._list()
                continue
            except OSError:
                return b"", upto, "unreadable"
            return data, upto, "" if data else self._reason(stream, offset, upto)

    def _open(self, stream: str, first: int) -> int:
        held = self._fds.get(stream)
        if held is not None and held[0] == first:
            return held[1]
        path = f"{self.directory}/{stream}.{first:020d}"
        fd = os.open(path, _OPEN)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a file", path)
        if held is not None:
            os.close(held[1])
        self._fds[stream] = (first, fd)
        return fd

    def _note(self, stream: str, start: int, stop: int, reason: str) -> None:
        for number, gap in enumerate(self.gaps):
            if (gap.stream, gap.reason) == (stream, reason) and gap.start <= stop and start <= gap.stop:
                self.gaps[number] = Gap(stream, min(start, gap.start), max(stop, gap.stop), reason)
                return
        self.gaps.append(Gap(stream, start, stop, reason))

    def _reason(self, stream: str, start: int, stop: int) -> str:
        """Bytes that were once stored have a frame; those that the disk refused never got one."""
        gaps = self._exit.get("gaps")
        for gap in gaps if isinstance(gaps, list) else []:
            if isinstance(gap, dict) and gap.get("stream") == stream and gap.get("from") == start:
                return str(gap.get("reason"))
        return "missing" if self.whole_frames().covers(stream, start, stop) else "disk"

    def _recorded(self) -> dict[str, int]:
        """The ends as they were recorded: in the exit record, else in the frames."""
        ends = self._exit.get("ends")
        if isinstance(ends, dict):
            return {stream: end for stream, end in ends.items() if stream in STREAMS and isinstance(end, int)}
        if any(self.frames.next(stream) is None for stream in self._segments):
            self.whole_frames()
        found = {stream: self.frames.last(stream) for stream in STREAMS}
        return {stream: frame[2] for stream, frame in found.items() if frame is not None}

    def _list(self) -> None:
        self._segments: dict[str, list[str]] = {}
        self.dropped: dict[str, tuple[int, int]] = {}
        try:
            names = os.listdir(self.directory)
        except (FileNotFoundError, NotADirectoryError):
            raise errors.Removed(os.path.basename(self.directory.rstrip("/"))) from None
        except OSError as problem:
            raise errors.DamagedRecord(self.directory, problem.strerror or str(problem)) from problem
        # A large log has hundreds of segments: their names are sorted and compared as text, which orders them by
        # offset too, and only those that are read become numbers. The first digit is a zero below OFFSET_MAX.
        names.sort()
        for stream in STREAMS:
            names_here = names[bisect_left(names, f"{stream}.0") : bisect_left(names, f"{stream}.1")]
            segments = _only_segments(names_here, len(stream) + 1)
            if segments:
                self._segments[stream] = segments
            if f"{stream}.dropped" in names:
                self._read_dropped(stream)

    def _ends(self, known: tuple[str, ...]) -> dict[str, int]:
        present = {*known, *self._segments, *self.dropped}
        return {stream: self._end(stream) for stream in STREAMS if stream in present}

    def _read_dropped(self, stream: str) -> None:
        try:
            offset, lines = (int(word) for word in _read(f"{self.directory}/{stream}.dropped").split())
        except (OSError, ValueError):
            return
        segments = self._segments.get(stream)
        # The newest segment is never dropped while it is written to: a note that says so is damaged.
        if offset >= 0 and lines >= 0 and (not segments or offset <= _first(segments[-1])):
            self.dropped[stream] = (offset, lines)

    def _end(self, stream: str) -> int:
        for _ in range(_LISTINGS):
            # One that is empty may be a try on a full disk, and gone again in a moment.
            for segment in reversed(self._segments.get(stream, ())):
                stored = self._stored(segment)
                if stored:
                    return _first(segment) + stored
                if not os.path.lexists(f"{self.directory}/{segment}"):
                    break  # it was dropped since we listed them, and others have come
            else:
                break
            self._list()
        return self.begin(stream)

    def has_come_to(self, stream: str, offset: int) -> bool:
        """Has the stream reached this offset, be it with bytes that a full disk refused and nothing followed yet?"""
        return offset <= self.ends.get(stream, 0) or offset <= records.noted_ends(self.directory).get(stream, 0)

    def _stored(self, name: str) -> int:
        try:
            facts = os.stat(f"{self.directory}/{name}", follow_symlinks=False)
        except OSError:
            return 0
        return facts.st_size if stat.S_ISREG(facts.st_mode) else 0


def _first(segment: str) -> int:
    return int(segment[-_OFFSET_DIGITS:])


def _only_segments(names: list[str], prefix: int) -> list[str]:
    size = prefix + _OFFSET_DIGITS
    return [name for name in names if len(name) == size and name.isascii() and name[prefix:].isdecimal()]


def _read(path: str) -> bytes:
    fd = os.open(path, _OPEN)
    try:
        return os.read(fd, min(os.fstat(fd).st_size, _RECORD_MAX_BYTES))
    finally:
        os.close(fd)


def streams_of(directory: str) -> tuple[str, ...]:
    """The streams that a session was started with, silent ones too. None when its spec cannot be read."""
    spec = _record(directory, "spec.json")
    if not spec:
        return ()
    if spec.get("tty"):
        return (TTY,)
    return ("stdout",) if spec.get("merge_stderr") else ("stdout", "stderr")


def _record(directory: str, name: str) -> dict[str, object]:
    try:
        return records.read(f"{directory}/{name}")
    except (OSError, ValueError):
        return {}
