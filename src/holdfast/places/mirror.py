"""What grows in a session's directory in another place, in pieces for the copy of it here.

The files are those of a running session, so the order counts. Sizes are taken in one order and sent in the opposite
one: a reader of the copy never sees a record about bytes that are not there yet.
"""

from __future__ import annotations

import binascii
import os
import re
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    # A file at the last look: its identity, and how much of it was sent.
    Sent = tuple[tuple[int, int], int]


PIECE_BYTES = 256 << 10
# The end of the copy shows whether it is the beginning of the present file.
_PROOF_BYTES = 4 << 10
SEGMENT = re.compile(r"(stdout|stderr|tty)\.[0-9]{20}")
# What of a session is copied, and how large an honest runner lets each get at most. Segments are bounded together, by
# the log cap of the session.
_COPIED: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"(state|exit)\.json"), PIECE_BYTES),
    (SEGMENT, 1 << 40),
    (re.compile(r"(stdout|stderr|tty)\.dropped"), 4 << 10),
    (re.compile(r"frames"), 16 << 20),
    (re.compile(r"signals(\.1)?\.jsonl"), 64 << 20),
    (re.compile(r"marks\.jsonl"), 64 << 20),
    (re.compile(r"inputs(\.1)?\.jsonl"), 4 << 20),
    (re.compile(r"report"), 64 << 10),
    (re.compile(r"runner\.log"), 256 << 10),
)
# Always replaced as a whole. The other files only grow, or are replaced.
_RECORDS = ("state.json", "exit.json")
_SENT_LAST = ("frames", "signals.1.jsonl", "signals.jsonl", *_RECORDS)


def limit(name: str) -> int | None:
    return next((limit for pattern, limit in _COPIED if pattern.fullmatch(name)), None)


def is_copied(name: str) -> bool:
    return limit(name) is not None


class Growth:
    """What the copy lacks. `have` is what it has: the size of each file, and the check of its end. A visit gets no
    signals: they go to the owner only."""

    def __init__(self, path: str, have: dict[str, list[int]], *, is_visit: bool = False) -> None:
        self._path = path
        self._last = tuple(name for name in _SENT_LAST if not is_visit or not name.startswith("signals"))
        self._have = have
        self._sent: dict[str, Sent] = {}

    def pieces(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Everything that has come since the last look, each piece with its heading."""
        found = self._look()
        if found is None:
            return  # the whole directory is gone there: the copy keeps its files
        for name in sorted({*self._sent, *self._have} - {name for name, _ in found}):
            self._sent.pop(name, None)
            self._have.pop(name, None)
            yield {"type": "vanished", "name": name}, b""
        for name, (file, size) in reversed(found):
            try:
                yield from self._grown(name, file, size)
            except FileNotFoundError:
                continue  # retention was quicker: the next look reports it

    def _look(self) -> list[tuple[str, Sent]] | None:
        """The files that are there and their sizes, in the opposite order of sending."""
        found = self._sizes(self._last)
        # Listed after the records were looked at: a listing may miss a file that is created while it is read, and see
        # the record about it that is created later.
        try:
            names = [name for name in os.listdir(self._path) if is_copied(name) and name not in _SENT_LAST]
        except FileNotFoundError:
            return None
        return found + self._sizes(names)

    def _sizes(self, names: Iterable[str]) -> list[tuple[str, Sent]]:
        found: list[tuple[str, Sent]] = []
        for name in sorted(names, key=_rank, reverse=True):
            try:
                file = os.lstat(os.path.join(self._path, name))
            except FileNotFoundError:
                continue
            if stat.S_ISREG(file.st_mode):
                # A record is another file each time, and inode numbers are reused.
                born = file.st_mtime_ns if name in _RECORDS else 0
                # A command writes its report itself: the copy has the beginning.
                found.append((name, ((file.st_ino, born), min(file.st_size, limit(name) or 0))))
        return found

    def _grown(self, name: str, file: tuple[int, int], size: int) -> Iterator[tuple[dict[str, Any], bytes]]:
        known, at = self._sent.get(name, (None, 0))
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
            self._sent[name] = file, at
        finally:
            os.close(fd)

    def _shared(self, name: str, fd: int) -> int:
        """How much of this file the copy has already."""
        size, check = self._have.pop(name, (0, 0))
        if name in _RECORDS or size > os.fstat(fd).st_size or not size:
            return 0
        return size if checksum(fd, size) == check else 0


def _rank(name: str) -> tuple[int, str]:
    """The order of sending: bytes, then records about them, and the exit record last."""
    if SEGMENT.fullmatch(name):
        return 0, name
    return (2 + _SENT_LAST.index(name) if name in _SENT_LAST else 1), name


def checksum(fd: int, size: int) -> int:
    begin = max(0, size - _PROOF_BYTES)
    return binascii.crc32(os.pread(fd, size - begin, begin))
