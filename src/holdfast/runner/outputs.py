"""The command's output, read from pipes or a terminal into the log until its end.

A reader may hold the command back, as the reader of a pipe does: while the next bytes would push out of the log what it
has not read, the pipes are not read, and the command waits in its write.
"""

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
    """`heard(stream, chunk)` is called for what the log has taken, `held(True)` when the command is made to wait."""

    def __init__(
        self,
        loop: Loop,
        log: Log,
        heard: Callable[[str, bytes | bytearray], None],
        held: Callable[[bool], None] = lambda _held: None,
    ) -> None:
        self._loop = loop
        self._log = log
        self._heard = heard
        self._held = held
        # Asked before each read while a reader may hold the command back.
        self._may_read: Callable[[int], bool] | None = None
        self._waiting: set[str] = set()
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
                self._read(name, at_once=True)

    def hold_while(self, may_read: Callable[[int], bool] | None) -> None:
        """Read only what `may_read(bytes)` allows; None reads whatever comes."""
        self._may_read = may_read
        self.look_again()

    def look_again(self) -> None:
        """The answer of `may_read` may be another by now."""
        if self._waiting and self._may_read_more():
            waiting, self._waiting = self._waiting, set()
            for name in waiting:
                self._watch(name, self._pipes[name])
            self._held(False)

    def _may_read_more(self) -> bool:
        return self._may_read is None or self._may_read(min(_FLOOD_BYTES, self._log.piece_bytes))

    def _wait(self, name: str) -> None:
        self._loop.watch(self._pipes[name], 0, _ignore)
        if not self._waiting:
            self._held(True)
        self._waiting.add(name)

    def close(self) -> None:
        for name in list(self._pipes):
            self._close(name)

    def _watch(self, name: str, fd: int) -> None:
        self._loop.watch(fd, READ, lambda _events: self._read(name))

    def _read(self, name: str, *, at_once: bool = False) -> None:
        fd = self._pipes[name]
        for _ in range(_READS_A_TURN):
            if self._may_read is not None and not at_once and not self._may_read_more():
                self._wait(name)
                return
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
            if name not in self._floods and name != "tty" and not self._is_narrow:
                spawn.widen(fd)
                self._floods[name] = bytearray(_FLOOD_BYTES)

    def _next_chunk(self, name: str, fd: int) -> bytes | bytearray:
        if name == "tty":
            return self._from_terminal(fd)
        flood = self._floods.get(name)
        if self._is_narrow:
            return os.read(fd, min(READ_BYTES, self._log.piece_bytes))
        if flood is None:
            return os.read(fd, READ_BYTES)
        size = os.readv(fd, [flood])
        return flood if size == len(flood) else bytes(memoryview(flood)[:size])

    @property
    def _is_narrow(self) -> bool:
        """A small log whose reader is waited for: what is in the pipe when the command ends has to fit in as well."""
        return self._may_read is not None and self._log.piece_bytes < _FLOOD_BYTES

    def _from_terminal(self, fd: int) -> bytes:
        """The kernel hands out a page at a time: gathered, they cost one write and one look each 64 KiB."""
        if self._pages is None:
            self._pages = memoryview(bytearray(READ_BYTES))
        return bytes(self._pages[: tty.read(fd, self._pages)])

    def _close(self, name: str) -> None:
        fd = self._pipes.pop(name)
        self._floods.pop(name, None)
        if name in self._waiting:
            self._waiting.remove(name)
            if not self._waiting:
                self._held(False)
        self._loop.watch(fd, 0, _ignore)
        os.close(fd)


def _ignore(_events: int) -> None:
    """Nothing is read from what is not watched."""
