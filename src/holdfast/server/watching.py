"""File-system notification (inotify) about the directories of sessions."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


_MODIFY, _MOVED_FROM, _MOVED_TO = 0x2, 0x40, 0x80
_CREATE, _DELETE = 0x100, 0x200
_OVERFLOW, _IGNORED = 0x4000, 0x8000
_ONLY_DIRECTORY = 0x0100_0000
# Entries that come and go; and, of a session, what is written.
NAMES = _CREATE | _DELETE | _MOVED_FROM | _MOVED_TO | _ONLY_DIRECTORY
CONTENTS = NAMES | _MODIFY
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 << 10


class Watching:
    """Directories that are watched, each under a name of the caller. A context manager."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._names: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    def watch(self, path: str, name: str, mask: int) -> None:
        """Does nothing if it cannot be watched: the directory is gone, or there are too many watches."""
        number = self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask)
        if number >= 0:
            self._names[number] = name

    def read(self) -> set[tuple[str, str]] | None:
        """Names of directories, and of what changed in them; None when some was missed."""
        found: set[tuple[str, str]] = set()
        while True:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return found
            at = 0
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                entry = os.fsdecode(data[at : at + length].rstrip(b"\0"))
                at += length
                if mask & _OVERFLOW:
                    return None
                if mask & _IGNORED:
                    self._names.pop(number, None)
                elif number in self._names:
                    found.add((self._names[number], entry))
