"""The `frames` file of a session: in which order the bytes of its streams came.

Derived data. A damaged record is skipped, without the file no order between the streams is known; the bytes
themselves are read either way. Nothing here is believed beyond what the segments hold.
"""

from __future__ import annotations

import binascii
import os
import struct

from ..runner.log import DATA, FRAME_BYTES, FRAMES_MAX_BYTES, RESIZE, STREAM_NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_RECORD = struct.Struct("<QQQIBBH")
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

    def last_end(self, stream: str) -> int | None:
        number = STREAM_NUMBERS[stream]
        index = self.count
        while (index := self._numbers.rfind(number, 0, index)) >= 0:
            span = self._span(index)
            if span is not None:
                return span[1]
        return None

    def after(self, stream: str, offset: int) -> int:
        """The index from which on every frame of a stream with bytes at or behind `offset` is found."""
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
        names = {number: name for name, number in STREAM_NUMBERS.items()}
        for index in range(begin, self.count):
            name = names.get(self._numbers[index])
            span = self._span(index) if name is not None else None
            if name is not None and span is not None:
                yield name, *span

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
        """Monotonic time in ns at which a byte came, or the last byte before it; None if no frame tells."""
        found = self.next(stream, self.after(stream, offset))
        if found is None:
            number = STREAM_NUMBERS[stream]
            index = self.count
            while (index := self._numbers.rfind(number, 0, index)) >= 0:
                if self._span(index) is not None:
                    found = (index, 0, 0)
                    break
        record = None if found is None else self._record(found[0])
        return None if record is None else record[0]

    def _record(self, index: int) -> tuple[int, int, str, int, int, int] | None:
        begin = index * FRAME_BYTES
        mono, wall, offset, length, number, kind, check = _RECORD.unpack_from(self._data, begin)
        if number >= len(_NAMES) or check != binascii.crc32(self._data[begin : begin + FRAME_BYTES - 2]) & 0xFFFF:
            return None
        return mono, wall, _NAMES[number], kind, offset, length

    def _span(self, index: int) -> tuple[int, int] | None:
        begin = index * FRAME_BYTES
        _, _, offset, length, _, kind, check = _RECORD.unpack_from(self._data, begin)
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
        # Twice what a runner ever writes: a file that somebody else made huge is not read whole.
        wanted = min(size, 2 * FRAMES_MAX_BYTES if whole else _SUFFIX_BYTES)
        return Frames(os.pread(fd, wanted, size - wanted), whole or wanted == size)
    except OSError:
        return Frames(b"")
    finally:
        os.close(fd)
