"""The log writer: raw segments per stream, the `frames` index, caps, and what happens when the disk refuses.

Offsets are absolute and count every byte the command printed, stored or not. A segment's name carries its first
offset, so what was dropped in front and what the disk refused in the middle can be read off the names alone.
"""

from __future__ import annotations

import binascii
import errno
import os
import struct

from ..core import clock, failpoints, records
from ..core.records import STREAM_NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


DATA, RESIZE = 0, 1

_FRAME_BODY = struct.Struct("<QQQIBB")
_FRAME_CHECK = struct.Struct("<H")
# Both together.
FRAME = struct.Struct("<QQQIBBH")
FRAME_BYTES = FRAME.size

# About 130,000 reads. Above it the older half goes: order and timing of very old output are worth less than room.
# A small log has fewer, so that its own bytes have most of the cap that both share.
FRAMES_MAX_BYTES = 4 << 20
_FRAMES_SHARE = 8
# How often a refusing disk is tried again, and how often the free space is checked.
_RETRY_NS = 100_000_000
_FREE_CHECK_BYTES = 4 << 20
# Below the free-space floor a session keeps this many segments only: the live tail and its predecessor.
_FLOOR_SEGMENTS = 2
# A disk that refuses again and again makes many gaps; above this they are only counted.
_GAPS_MAX = 64

# Not the disk's fault: the segment in use is still good, only a new file cannot be opened.
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


def frame(mono_ns: int, wall_ns: int, stream: str, kind: int, offset: int, length: int) -> bytes:
    body = _FRAME_BODY.pack(mono_ns, wall_ns, offset, length, STREAM_NUMBERS[stream], kind)
    return body + _FRAME_CHECK.pack(binascii.crc32(body) & 0xFFFF)


class _Segment:
    __slots__ = ("lines", "name", "size")

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        self.lines = 0


class _Stream:
    __slots__ = ("dropped_before", "end", "fd", "lines", "lines_dropped", "name", "segments")

    def __init__(self, name: str) -> None:
        self.name = name
        self.end = 0
        self.lines = 0
        self.dropped_before = 0
        self.lines_dropped = 0
        self.segments: list[_Segment] = []
        self.fd: int | None = None


class LogWriter:
    """Appends what streams print. Never raises for a disk that refuses: it counts the lost bytes and warns once."""

    def __init__(
        self,
        directory: int,
        streams: list[str],
        *,
        cap_bytes: int,
        segment_bytes: int,
        free_floor_bytes: int,
        say: Callable[[str], None],
        refused: Callable[[str, int, str], None] = lambda _stream, _offset, _reason: None,
    ) -> None:
        self._directory = directory
        self._streams = {name: _Stream(name) for name in streams}
        self._cap = cap_bytes
        # A quarter of the cap at most, so that dropping one segment never takes most of what is kept.
        self._segment = max(1, min(segment_bytes, cap_bytes // 4))
        self._piece = max(1, cap_bytes // 16)
        self._frames_max = min(FRAMES_MAX_BYTES, cap_bytes // _FRAMES_SHARE)
        self._free_floor = free_floor_bytes
        self._say = say
        # Called once for every outage: the stream, the offset, and the reason.
        self._refused = refused
        self._size = 0
        self._by_age: list[_Stream] = []  # one entry per closed-or-open segment, in order of creation
        self._frames: int | None = None
        self._frames_size = 0
        # The last resize frame: without it, later frames cannot be drawn.
        self._last_resize = b""
        self._until_free_check = _FREE_CHECK_BYTES
        self._low = False
        self._refused_since: dict[str, int] = {}
        self._retry_at_ns = 0
        # How far a reader that holds the command back has read each stream: nothing after that offset is dropped.
        self._kept_from: dict[str, int] | None = None
        self.gaps: list[dict[str, Any]] = []
        self.gaps_more = 0
        self._lost_bytes = 0  # in finished gaps, named or only counted
        self.warnings: list[str] = []
        self.last_output_wall_ns: int | None = None

    @property
    def size(self) -> int:
        return self._size

    def ends(self) -> dict[str, int]:
        return {name: stream.end for name, stream in self._streams.items()}

    def end(self, name: str) -> int:
        return self._streams[name].end

    def first(self, name: str) -> int:
        """The oldest byte that is kept."""
        return self._streams[name].dropped_before

    def facts(self) -> dict[str, Any]:
        ends: dict[str, int] = {}
        lines: dict[str, int] = {}
        dropped_before: dict[str, int] = {}
        lines_dropped: dict[str, int] = {}
        for name, stream in self._streams.items():
            ends[name] = stream.end
            lines[name] = stream.lines
            dropped_before[name] = stream.dropped_before
            lines_dropped[name] = stream.lines_dropped
        open_gaps = self._open_gaps()
        return {
            "ends": ends,
            "lines": lines,
            "dropped_before": dropped_before,
            "lines_dropped": lines_dropped,
            "log_bytes": self._size,
            "gaps": self.gaps + open_gaps,
            "gaps_more": self.gaps_more,
            "lost_bytes": self._lost_bytes + sum(gap["to"] - gap["from"] for gap in open_gaps),
        }

    def append(self, name: str, chunk: bytes | bytearray) -> None:
        # Small against the cap, so that room for it can always be made without touching the newest segments.
        if len(chunk) > self._piece:
            for begin in range(0, len(chunk), self._piece):
                self.append(name, chunk[begin : begin + self._piece])
            return
        stream = self._streams[name]
        mono, wall = clock.mono_ns(), clock.wall_ns()
        self.last_output_wall_ns = wall
        offset = stream.end
        stream.end += len(chunk)
        newlines = chunk.count(b"\n")
        stream.lines += newlines
        stored = self._store(stream, offset, chunk, newlines, mono)
        if stored:
            self._append_frame(frame(mono, wall, name, DATA, offset, stored))
        if stored < len(chunk):
            records.note_ends(self._directory, self.ends())

    def keep_from(self, read: dict[str, int] | None) -> None:
        """Drop no segment with a byte at or after these offsets; None lets the cap alone decide."""
        self._kept_from = read

    @property
    def piece_bytes(self) -> int:
        """The number of bytes that can be appended at once while the command waits for a slow reader."""
        return self._piece

    def has_room(self, incoming: int) -> bool:
        """True if this many bytes can be appended without dropping a byte that the awaited reader has not read."""
        kept_from = self._kept_from
        if kept_from is None:
            return True
        over = self._size + self._frames_size + FRAME_BYTES + incoming - self._cap
        gone = dict.fromkeys(self._streams, 0)
        for stream in self._by_age:
            if over <= 0:
                break
            number = gone[stream.name]
            if self._may_drop(stream, number):
                gone[stream.name] += 1
                over -= stream.segments[number].size
        return over <= 0

    def resize(self, name: str, rows: int, cols: int) -> None:
        """A terminal got this size at the end of what it printed up to now."""
        size = rows << 16 | cols
        self._last_resize = frame(clock.mono_ns(), clock.wall_ns(), name, RESIZE, self._streams[name].end, size)
        self._append_frame(self._last_resize)

    def read(self, name: str, since: int, limit: int) -> tuple[int, bytes]:
        """Read from the first retained byte at or after `since`, across as many segments as `limit` takes. If bytes are
        missing, or a file was cut, removed or locked, the result stops before the gap or begins after it."""
        begin = since
        parts: list[bytes] = []
        for segment in self._streams[name].segments:
            first = int(segment.name.rpartition(".")[2])
            if first + segment.size <= begin:
                continue
            if first > begin:
                if parts:
                    break
                begin = since = first
            part = self._read_file(segment.name, begin - first, limit)
            if not part:
                continue
            parts.append(part)
            begin += len(part)
            limit -= len(part)
            if limit <= 0:
                break
        return since, b"".join(parts)

    def _read_file(self, name: str, at: int, limit: int) -> bytes:
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._directory)
            try:
                return os.pread(fd, limit, at)
            finally:
                os.close(fd)
        except OSError as problem:
            if problem.errno in _NO_DESCRIPTOR:
                raise
            return b""

    def has_gap(self, name: str, begin: int, end: int) -> bool:
        """True if the disk refused any of these bytes."""
        gaps = self.gaps + self._open_gaps()
        return any(gap["stream"] == name and gap["from"] < end and gap["to"] > begin for gap in gaps)

    def sync(self) -> None:
        """Sync the whole log, also segments that are closed by now."""
        for stream in self._streams.values():
            for segment in stream.segments:
                self._sync_file(segment.name)
        if self._frames is not None:
            self._sync_file("frames")

    def _sync_file(self, name: str) -> None:
        try:
            fd = records.open_file(name, self._directory)
        except (FileNotFoundError, ValueError):
            return  # it was removed; readers report a gap
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        for stream in self._streams.values():
            self._close_segment(stream)
        if self._frames is not None:
            os.close(self._frames)
            self._frames = None

    def _store(self, stream: _Stream, offset: int, chunk: bytes | bytearray, newlines: int, mono: int) -> int:
        if stream.name in self._refused_since and mono < self._retry_at_ns:
            return 0
        stored = 0
        problem: OSError | None = None
        try:
            self._make_room(len(chunk))
            self._ready_segment(stream, offset)
            assert stream.fd is not None
            view = memoryview(chunk)
            while stored < len(chunk):
                failpoints.hit("log.append")
                stored += os.write(stream.fd, view[stored:])
        except OSError as refusal:
            problem = refusal
        if stored:
            self._end_gap(stream, offset)
            stream.segments[-1].size += stored
            stream.segments[-1].lines += newlines if problem is None else chunk.count(b"\n", 0, stored)
            self._size += stored
        if problem is not None:
            self._refuse(stream, offset + stored, problem, mono)
        return stored

    def _ready_segment(self, stream: _Stream, offset: int) -> None:
        """The segment in use, or a new one if that is full or was cut or removed: what follows must begin at its own
        offset."""
        if stream.fd is not None:
            segment = stream.segments[-1]
            found = os.fstat(stream.fd)
            if found.st_size == segment.size and found.st_nlink:
                if segment.size < self._segment:
                    return
            else:
                self._warn(f"{segment.name} was changed by another process; {stream.name} continues in a new segment")
                self._close_segment(stream)
                self._size -= max(0, segment.size - (found.st_size if found.st_nlink else 0))
                segment.size = found.st_size if found.st_nlink else 0
        self._open_segment(stream, offset)

    def _open_segment(self, stream: _Stream, offset: int) -> None:
        name = f"{stream.name}.{offset:020d}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            failpoints.hit("log.rotate")
            fd = os.open(name, flags, 0o600, dir_fd=self._directory)
        except OSError as problem:
            if problem.errno in _NO_DESCRIPTOR and stream.fd is not None:
                self._warn(f"no descriptor for a new segment: {stream.name} continues in its current one")
                return
            raise
        if stream.fd is not None:
            os.close(stream.fd)
        stream.fd = fd
        stream.segments.append(_Segment(name))
        self._by_age.append(stream)

    def _close_segment(self, stream: _Stream) -> None:
        if stream.fd is not None:
            os.close(stream.fd)
            stream.fd = None

    def _make_room(self, incoming: int) -> None:
        self._until_free_check -= incoming
        if self._until_free_check <= 0:
            self._until_free_check = _FREE_CHECK_BYTES
            self._check_free_space()
        while self._size + self._frames_size + FRAME_BYTES + incoming > self._cap and self._drop_oldest():
            pass
        if self._low:
            while len(self._by_age) > _FLOOR_SEGMENTS and self._drop_oldest():
                pass

    def _check_free_space(self) -> None:
        space = os.fstatvfs(self._directory)
        low = space.f_bavail * space.f_frsize < self._free_floor
        if low and not self._low:
            self._warn("free space is below the floor: only the newest segments are kept")
        self._low = low

    def _drop_oldest(self) -> bool:
        """Drop the oldest segment that is not being written. False when there is none."""
        return any(self._may_drop(stream) and self._drop(stream) for stream in self._by_age)

    def _drop(self, stream: _Stream) -> bool:
        segment = stream.segments[0]
        begin = int(segment.name.rpartition(".")[2])
        # Noted before it is done, so that a reader never counts dropped lines as still to come.
        noted = self._note_dropped(stream, begin + segment.size, stream.lines_dropped + segment.lines)
        if not noted and len(stream.segments) == 1:
            return False  # only its name says how far the stream has come
        try:
            os.unlink(segment.name, dir_fd=self._directory)
        except FileNotFoundError:
            self._warn(f"{segment.name} was already gone")
        self._by_age.remove(stream)
        del stream.segments[0]
        if not stream.segments:
            self._close_segment(stream)
        stream.dropped_before = begin + segment.size
        stream.lines_dropped += segment.lines
        self._size -= segment.size
        return True

    def _may_drop(self, stream: _Stream, number: int = 0) -> bool:
        """True if the oldest segment of a stream may be dropped, or the one that is the oldest after `number`
        others."""
        segment = stream.segments[number]
        if self._kept_from is not None:
            begin = int(segment.name.rpartition(".")[2])
            if begin + segment.size > self._kept_from.get(stream.name, 0):
                return False
        return number + 1 < len(stream.segments) or stream.fd is None or segment.size >= self._segment

    def _note_dropped(self, stream: _Stream, offset: int, lines: int) -> bool:
        """Note the dropped offset in a file next to the segments, so that readers have the right counts after the
        runner has left. False when the disk refuses the note."""
        temporary = f"{stream.name}.dropped.tmp"
        try:
            fd = records.create(self._directory, temporary)
            try:
                os.write(fd, b"%d %d\n" % (offset, lines))
            finally:
                os.close(fd)
            os.rename(temporary, f"{stream.name}.dropped", src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except OSError as problem:
            self._warn(f"{stream.name}.dropped could not be written: {problem.strerror}")
            return False
        return True

    def _refuse(self, stream: _Stream, offset: int, problem: OSError, mono: int) -> None:
        """From `offset` on nothing is stored. The segment is closed: what is stored later begins a new one, so
        that its name has the right offset."""
        if stream.fd is not None:
            self._close_segment(stream)
            if not stream.segments[-1].size:
                self._discard_empty(stream)
        outage = not self._refused_since
        self._refused_since.setdefault(stream.name, offset)
        self._retry_at_ns = mono + _RETRY_NS
        reason = problem.strerror or str(problem)
        if outage:
            self._refused(stream.name, offset, reason)
        self._warn(f"the disk refuses the log of {stream.name} ({reason}); the command keeps running")

    def _discard_empty(self, stream: _Stream) -> None:
        """A full disk may still have room for names: each try would leave another empty file."""
        name = stream.segments.pop().name
        del self._by_age[len(self._by_age) - 1 - self._by_age[::-1].index(stream)]
        try:
            os.unlink(name, dir_fd=self._directory)
        except OSError:
            pass

    def _end_gap(self, stream: _Stream, offset: int) -> None:
        begin = self._refused_since.pop(stream.name, offset)
        if begin == offset:
            return
        self._lost_bytes += offset - begin
        if len(self.gaps) < _GAPS_MAX:
            self.gaps.append({"stream": stream.name, "from": begin, "to": offset, "reason": "disk"})
        else:
            self.gaps_more += 1

    def _open_gaps(self) -> list[dict[str, Any]]:
        return [
            {"stream": name, "from": begin, "to": self._streams[name].end, "reason": "disk"}
            for name, begin in self._refused_since.items()
            if begin < self._streams[name].end
        ]

    def _append_frame(self, record: bytes) -> None:
        """Derived data: losing a frame loses order and timing of some bytes, never a byte."""
        try:
            if self._frames is None:
                self._frames = records.open_own(self._directory, "frames", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            failpoints.hit("log.frame")
            if os.write(self._frames, record) < len(record):
                os.ftruncate(self._frames, self._frames_size)  # half a record would shift all that follow
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._frames_size += len(record)
            if self._frames_size > self._frames_max:
                self._halve_frames()
        except OSError as problem:
            self._warn(f"frames could not be written: {problem.strerror}")

    def _halve_frames(self) -> None:
        assert self._frames is not None
        kept = self._frames_max // 2 // FRAME_BYTES * FRAME_BYTES
        self._make_room(kept)  # for a moment there are both, and a copy
        try:
            source = records.open_own(self._directory, "frames", os.O_RDONLY)
            try:
                tail = self._last_resize + os.pread(source, kept, max(0, self._frames_size - kept))
            finally:
                os.close(source)
            fresh = self._copy_frames(tail)
        except OSError:
            # There is no room for a copy, or nothing to copy: remove all of them, because they may not grow for ever.
            os.ftruncate(self._frames, 0)
            self._frames_size = 0
            raise
        os.close(self._frames)
        self._frames = fresh
        self._frames_size = len(tail)

    def _copy_frames(self, tail: bytes) -> int:
        fresh = records.create(self._directory, "frames.tmp", os.O_WRONLY | os.O_APPEND)
        try:
            if os.write(fresh, tail) < len(tail):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.rename("frames.tmp", "frames", src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except OSError:
            os.close(fresh)
            os.unlink("frames.tmp", dir_fd=self._directory)
            raise
        return fresh

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            if len(self.warnings) < 16:
                self.warnings.append(text)
            self._say(text)
