"""The command's output, read from pipes or a terminal into the log until its end."""

from __future__ import annotations

import os

from . import points, spawn, tty
from .loop import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from .log import Log
    from .loop import Loop

READ_BYTES = 1 << 16
# A stream that fills whole reads gets a wider pipe and a buffer that is used again and again: fresh memory for every
# read costs more than the read.
_FLOOD_BYTES = 1 << 18
# So many reads of one stream in one turn of the loop, so that a flood cannot starve the rest.
_READS_A_TURN = 4


class Outputs:
    """`heard(stream, chunk)` is called for what the log has taken."""

    def __init__(self, loop: Loop, log: Log, heard: Callable[[str, bytes | bytearray], None]) -> None:
        self._loop = loop
        self._log = log
        self._heard = heard
        self._pipes: dict[str, int] = {}
        self._floods: dict[str, bytearray] = {}
        self._pages: memoryview | None = None

    @property
    def are_open(self) -> bool:
        """Does anybody still hold an end to print into?"""
        return bool(self._pipes)

    @property
    def names(self) -> list[str]:
        """The streams that somebody still holds."""
        return list(self._pipes)

    def open(self, pipes: dict[str, int]) -> None:
        for name, fd in pipes.items():
            self._pipes[name] = fd
            self._watch(name, fd)

    def read_buffered(self) -> None:
        """Read what was printed up to now, and its end where it is there. No more: somebody else who holds the pipe
        may print for ever."""
        for name in list(self._pipes):
            end = self._log.end(name) + spawn.buffered(self._pipes[name])
            more = True
            while more and name in self._pipes:
                more = self._log.end(name) < end
                self._read(name)

    def close(self) -> None:
        for name in list(self._pipes):
            self._close(name)

    def _watch(self, name: str, fd: int) -> None:
        self._loop.watch(fd, READ, lambda _events: self._read(name))

    def _read(self, name: str) -> None:
        fd = self._pipes[name]
        for _ in range(_READS_A_TURN):
            try:
                chunk = self._next_chunk(name, fd)
            except BlockingIOError:
                return
            if not chunk:
                self._close(name)
                return
            if points.ACTIVE:
                points.hit("runner.output")
            self._log.append(name, chunk)
            self._heard(name, chunk)
            if len(chunk) < READ_BYTES:
                return
            if name not in self._floods and name != "tty":
                spawn.widen(fd)
                self._floods[name] = bytearray(_FLOOD_BYTES)

    def _next_chunk(self, name: str, fd: int) -> bytes | bytearray:
        if name == "tty":
            return self._from_terminal(fd)
        flood = self._floods.get(name)
        if flood is None:
            return os.read(fd, READ_BYTES)
        size = os.readv(fd, [flood])
        return flood if size == len(flood) else bytes(memoryview(flood)[:size])

    def _from_terminal(self, fd: int) -> bytes:
        """The kernel hands out a page at a time: gathered, they cost one write and one look each 64 KiB."""
        if self._pages is None:
            self._pages = memoryview(bytearray(READ_BYTES))
        return bytes(self._pages[: tty.read(fd, self._pages)])

    def _close(self, name: str) -> None:
        fd = self._pipes.pop(name)
        self._floods.pop(name, None)
        self._loop.watch(fd, 0, lambda _events: None)
        os.close(fd)
