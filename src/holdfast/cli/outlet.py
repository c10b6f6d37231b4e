"""Bytes on their way to a descriptor that may be slow: queued, counted, written as it takes them."""

from __future__ import annotations

import os
import select

# A pipe that has room at all has room for this much: a write of it never blocks once the descriptor is ready.
_PIECE_BYTES = 4096
# Above this the source is not read until some of it is gone.
_FULL_BYTES = 1 << 18


class Outlet:
    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._queue = bytearray()
        self._ends_line = True
        self._never_blocks = not os.get_blocking(fd)

    def add(self, data: bytes) -> None:
        if data:
            self._queue += data
            self._ends_line = data.endswith(b"\n")

    @property
    def waiting(self) -> bool:
        return bool(self._queue)

    @property
    def full(self) -> bool:
        return len(self._queue) >= _FULL_BYTES

    @property
    def ends_line(self) -> bool:
        """Whether the last that was added ended a line."""
        return self._ends_line

    def drop(self) -> None:
        self._queue.clear()

    def flush(self) -> None:
        """As much as it takes now; to be called when it is ready."""
        while self._queue:
            with memoryview(self._queue) as view:
                try:
                    written = os.write(self.fd, view[:_PIECE_BYTES])
                except BlockingIOError:
                    return
            del self._queue[:written]
            if not self._never_blocks:
                return

    def drain(self, stall_s: float | None) -> bool:
        """All of it. What is not taken within this time, counted from the last that was, is given up; false then."""
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        try:
            while self._queue and poll.poll(None if stall_s is None else stall_s * 1000):
                self.flush()
            return not self._queue
        finally:
            self._queue.clear()
