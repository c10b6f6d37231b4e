"""A session's directory in another place, and its copy here: what has grown there is told in pieces and written here.

The files are those of a running session, so the order counts. Sizes are taken in one order and told in the opposite
one: a reader of the copy never sees a record that speaks of bytes which have not come yet, as no reader there does.
"""

from __future__ import annotations

import binascii
import os
import re
import stat

from . import records, shapes
from .signalfile import FILE, LINE_MAX_BYTES, OLDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    # Of the file at the last look: which it was, and how much of it was told.
    Told = tuple[tuple[int, int], int]

PIECE_BYTES = 256 << 10
# By the end of what the copy has is told whether it is the beginning of the file that stands there now.
_PROOF_BYTES = 4 << 10
_SIZE_MAX = 1 << 63
_SEGMENT = re.compile(r"(stdout|stderr|tty)\.[0-9]{20}")
# What of a session is copied, and how large an honest runner lets each get at most. Segments are bounded together, by
# the log cap of the session.
_COPIED: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"(state|exit)\.json"), PIECE_BYTES),
    (_SEGMENT, 1 << 40),
    (re.compile(r"(stdout|stderr|tty)\.dropped"), 4 << 10),
    (re.compile(r"frames"), 16 << 20),
    (re.compile(r"signals(\.1)?\.jsonl"), 64 << 20),
    (re.compile(r"marks\.jsonl"), 64 << 20),
    (re.compile(r"inputs(\.1)?\.jsonl"), 4 << 20),
    (re.compile(r"report"), 64 << 10),
    (re.compile(r"runner\.log"), 256 << 10),
)
# Segments are small where the disk refused some bytes between them.
_SEGMENTS_LEAST = 1024
# Replaced as a whole, always. The rest only grows, or is begun anew.
_RECORDS = ("state.json", "exit.json")
_SENT_LAST = ("frames", "signals.1.jsonl", "signals.jsonl", *_RECORDS)


class Nonsense(ValueError):
    """A record that no runner writes."""


class Excess(ValueError):
    """More than the session may have here: of which file, and from where on it is missing."""

    def __init__(self, name: str, at: int, why: str) -> None:
        super().__init__(why)
        stream = name.partition(".")[0] if _SEGMENT.fullmatch(name) else name
        begin = int(name[-20:]) + at if stream != name else at
        self.gap = {"stream": stream, "from": begin, "to": None, "reason": "limit"}


def _limit(name: str) -> int | None:
    return next((limit for pattern, limit in _COPIED if pattern.fullmatch(name)), None)


def segments_max(log_cap: int, segment_bytes: int) -> int:
    """How many segments a runner with this cap can have; it makes none larger than a quarter of the cap."""
    return max(_SEGMENTS_LEAST, 2 * log_cap // max(1, min(segment_bytes, log_cap // 4)))


def is_copied(name: str) -> bool:
    return _limit(name) is not None


class Growth:
    """What the copy lacks. `have` is what it has: the size of each file, and the check of its end."""

    def __init__(self, path: str, have: dict[str, list[int]]) -> None:
        self._path = path
        self._have = have
        self._told: dict[str, Told] = {}

    def pieces(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Everything that has come since the last look, each piece with its heading."""
        found = self._look()
        if found is None:
            return  # what is gone as a whole takes nothing away from the copy
        for name in sorted({*self._told, *self._have} - {name for name, _ in found}):
            self._told.pop(name, None)
            self._have.pop(name, None)
            yield {"type": "vanished", "name": name}, b""
        for name, (file, size) in reversed(found):
            try:
                yield from self._grown(name, file, size)
            except FileNotFoundError:
                continue  # retention was quicker: the next look says so

    def _look(self) -> list[tuple[str, Told]] | None:
        """The files that are there and their sizes, in the opposite order of telling."""
        try:
            names = [name for name in os.listdir(self._path) if is_copied(name)]
        except FileNotFoundError:
            return None
        found = []
        for name in sorted(names, key=_rank, reverse=True):
            try:
                file = os.lstat(os.path.join(self._path, name))
            except FileNotFoundError:
                continue
            if stat.S_ISREG(file.st_mode):
                # A record is another file each time, and the number of the one before may come again.
                born = file.st_mtime_ns if name in _RECORDS else 0
                found.append((name, ((file.st_ino, born), file.st_size)))
        return found

    def _grown(self, name: str, file: tuple[int, int], size: int) -> Iterator[tuple[dict[str, Any], bytes]]:
        known, at = self._told.get(name, (None, 0))
        if known == file and (at == size or name in _RECORDS):
            return
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(os.path.join(self._path, name), flags)
        try:
            if known != file:
                at = self._shared(name, fd)
            anew = at == 0
            if name in _RECORDS:
                size = os.fstat(fd).st_size
            while at < size or anew:
                raw = os.pread(fd, min(PIECE_BYTES, size - at), at)
                if not raw and size:
                    return  # shortened under us: it will be another file at the next look
                yield {"type": "piece", "name": name, "at": at, "anew": anew, "last": at + len(raw) >= size}, raw
                at += len(raw)
                anew = False
            self._told[name] = file, at
        finally:
            os.close(fd)

    def _shared(self, name: str, fd: int) -> int:
        """How much of this file the copy has already."""
        size, check = self._have.pop(name, (0, 0))
        if name in _RECORDS or size > os.fstat(fd).st_size or not size:
            return 0
        return size if _check(fd, size) == check else 0


class Copy:
    """The copy. `facts` are what its state record says otherwise than the one over there; `log_bytes` is what its
    segments may take together, `segments` how many they may be."""

    def __init__(
        self, directory: int, facts: dict[str, Any], log_bytes: int = _SIZE_MAX, segments: int = _SEGMENTS_LEAST
    ) -> None:
        self._directory = directory
        self._facts = facts
        self._log_bytes = log_bytes
        self._segments_max = segments
        # Where the next piece of each file begins, unless it begins the file anew.
        self._next: dict[str, int] = {}
        # Of each file of signals, how long the line is that has not ended yet.
        self._lines: dict[str, int] = {}
        # What a power loss could still take back.
        self._written: set[str] = set()
        for name in os.listdir(directory):
            if name.endswith(".tmp"):
                os.unlink(name, dir_fd=directory)  # of a copy that was killed
        sizes = {name: os.lstat(name, dir_fd=directory).st_size for name in os.listdir(directory)}
        # What is on the disk: also what is begun anew, under its temporary name, beside the file that it will replace.
        self._segments = {name: size for name, size in sizes.items() if _SEGMENT.fullmatch(name)}
        self._stored = sum(self._segments.values())
        if self._exists("state.json"):
            records.write(directory, "state.json", facts)

    def have(self) -> dict[str, list[int]]:
        found = {}
        # Of a session whose runner was found gone, hosts have added to what came from there.
        came = records.found(self._directory, records.AWAY).get("sizes") or {}
        for name in os.listdir(self._directory):
            if is_copied(name) and stat.S_ISREG(os.lstat(name, dir_fd=self._directory).st_mode):
                fd = records.open_own(self._directory, name, os.O_RDONLY)
                try:
                    size = min(os.fstat(fd).st_size, came.get(name, _SIZE_MAX))
                    found[name] = [size, _check(fd, size)]
                    self._next[name] = size
                finally:
                    os.close(fd)
        return found

    def take(self, heading: dict[str, Any], raw: bytes) -> None:
        """ValueError for what no honest runner tells: Nonsense in a record, Excess beyond the limits."""
        name, at = heading.get("name"), heading.get("at", 0)
        if not isinstance(name, str) or not is_copied(name) or not isinstance(at, int) or at < 0:
            raise ValueError(f"a piece of {name!r:.80} at {at!r:.80}")
        if heading["type"] == "vanished":
            self._remove(name)
        elif name == "exit.json":
            self._sync()
            records.write_exit(self._directory, _record(name, heading, raw, shapes.EXIT_RECORD), durable=True)
        elif name == "state.json":
            record = _record(name, heading, raw, shapes.STATE)
            records.write(self._directory, name, {**record, **self._facts})
        else:
            if heading.get("anew") is True:
                self._remove(name + ".tmp")
            self._hold_to_limits(name, at, raw, heading)
            self._append(name, at, raw, heading)

    def _hold_to_limits(self, name: str, at: int, raw: bytes, heading: dict[str, Any]) -> None:
        end = at + len(raw)
        anew = heading.get("anew") is True
        if end > (_limit(name) or 0):
            raise Excess(name, at, f"{name} would have {end} bytes; the limit is {_limit(name)}")
        if not anew and at < self._next.get(name, 0):
            raise Excess(name, at, f"a piece of {name} at {at}, after one that ended at {self._next[name]}")
        self._next[name] = end
        if _SEGMENT.fullmatch(name):
            target = self._target(name, anew)
            known = self._segments.get(target, 0)
            total = self._stored + max(0, end - known)
            if total > self._log_bytes:
                raise Excess(name, at, f"the log would have {total} bytes; the limit is {self._log_bytes}")
            if target not in self._segments and len(self._segments) >= self._segments_max:
                raise Excess(name, at, f"the log would have more than {self._segments_max} segments")
            self._segments[target], self._stored = max(end, known), total
        elif name in (FILE, OLDER):
            first, *rest = raw.split(b"\n")
            before = 0 if anew else self._lines.get(name, 0)
            longest = max(before + len(first), max(map(len, rest), default=0))
            if longest > LINE_MAX_BYTES:
                raise Excess(name, at, f"a line of {name} has {longest} bytes; the limit is {LINE_MAX_BYTES}")
            self._lines[name] = len(rest[-1]) if rest else before + len(first)

    def sizes(self) -> dict[str, int]:
        return {name: size for name, (size, _) in self.have().items()}

    def _append(self, name: str, at: int, raw: bytes, heading: dict[str, Any]) -> None:
        fresh = name + ".tmp"
        target = self._target(name, heading.get("anew") is True)
        fd = records.open_own(self._directory, target, os.O_WRONLY | os.O_CREAT)
        try:
            if at > os.fstat(fd).st_size:
                raise ValueError(f"a piece of {name} at {at}, where {os.fstat(fd).st_size} bytes are")
            view = memoryview(raw)
            while view:
                done = os.pwrite(fd, view, at)
                at, view = at + done, view[done:]
        finally:
            os.close(fd)
        self._written.add(name)
        if target == fresh and (heading.get("last") is True or not self._exists(name)):
            os.rename(fresh, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            if fresh in self._segments:
                self._stored -= self._segments.get(name, 0)
                self._segments[name] = self._segments.pop(fresh)

    def _target(self, name: str, anew: bool) -> str:
        """The file that a piece is written to."""
        # What is begun anew while somebody may be reading the old takes its place when it is whole.
        return name + ".tmp" if anew or self._exists(name + ".tmp") else name

    def _sync(self) -> None:
        for name in sorted(self._written):
            try:
                fd = records.open_file(name, self._directory)
            except (FileNotFoundError, ValueError):
                continue
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        self._written.clear()

    def _exists(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _remove(self, name: str) -> None:
        self._stored -= self._segments.pop(name, 0)
        self._next.pop(name, None)
        try:
            os.unlink(name, dir_fd=self._directory)
        except FileNotFoundError:
            pass


def _rank(name: str) -> tuple[int, str]:
    """The order of telling: bytes, then what speaks of them, and the end last."""
    if _SEGMENT.fullmatch(name):
        return 0, name
    return (2 + _SENT_LAST.index(name) if name in _SENT_LAST else 1), name


def _check(fd: int, size: int) -> int:
    begin = max(0, size - _PROOF_BYTES)
    return binascii.crc32(os.pread(fd, size - begin, begin))


def _record(name: str, heading: dict[str, Any], raw: bytes, shape: shapes.Kind) -> dict[str, Any]:
    """A whole record of that shape."""
    try:
        if heading.get("last") is not True or heading.get("at") or len(raw) > PIECE_BYTES:
            raise ValueError(f"it has more than {PIECE_BYTES} bytes")
        record = records.parse(raw)
        shapes.check(shape, record)
    except ValueError as problem:
        raise Nonsense(f"{name}: {problem}") from None
    return record
