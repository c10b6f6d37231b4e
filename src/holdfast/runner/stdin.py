"""The way into a command's standard input: a bounded queue that never blocks the loop."""

from __future__ import annotations

import os
from collections import deque

from .loop import WRITE
from .spawn import buffered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from .loop import Loop

QUEUE_MAX_BYTES = 1 << 20

# Why nothing can be written, and what to do about it.
NEVER_OPEN = "it was started with stdin closed"
GIVEN = "its input was given at the start and is complete"
ON_REQUEST = "it was closed on request"
BY_COMMAND = "the command closed it"
ENDED = "the command has ended"
FIXES = {
    NEVER_OPEN: 'start the command with stdin="open" to write to it',
    GIVEN: 'start the command with stdin="open" in the place of `input` to write to it while it runs',
    ON_REQUEST: "it has had the end of its input; `hold restart` starts it again",
    BY_COMMAND: "it reads no more; `hold logs` shows what it printed",
    ENDED: "`hold logs` shows what it printed, `hold restart` starts it again",
}


class Stdin:
    """Units are written whole and in order; `done` of a unit is called when the kernel took its last byte."""

    def __init__(self, loop: Loop, fd: int | None) -> None:
        self._loop = loop
        self._fd = fd
        self._units: deque[tuple[memoryview, Callable[[bool], None]]] = deque()
        self._queued = 0
        self._closing = False
        # Called when all that was written is in the kernel's hands.
        self.emptied: Callable[[], None] = lambda: None
        # Why nothing can be written any more, for the error that says so.
        self.closed_because = NEVER_OPEN if fd is None else None

    @property
    def is_open(self) -> bool:
        return self.closed_because is None

    @property
    def queued_bytes(self) -> int:
        return self._queued

    def pipe(self) -> tuple[int, int] | None:
        """Device and inode of a pipe that is open and empty: whoever reads it has nothing to read."""
        if self._fd is None or self._closing or self._queued or buffered(self._fd):
            return None
        found = os.fstat(self._fd)
        return found.st_dev, found.st_ino

    def has_room(self, size: int) -> bool:
        return self._queued + size <= QUEUE_MAX_BYTES

    def write(self, unit: bytes, done: Callable[[bool], None] = lambda _taken: None) -> None:
        self._queued += len(unit)
        self._units.append((memoryview(unit), done))
        self._drain(0)

    def close(self, because: str = ON_REQUEST) -> None:
        """After what is queued."""
        if self.closed_because is None:
            self.closed_because = because
        self._closing = True
        self._drain(0)

    def abandon(self, because: str) -> None:
        """Now: nobody reads the other end."""
        if self.closed_because is None:
            self.closed_because = because
        while self._units:
            self._units.popleft()[1](False)
        self._queued = 0
        if self._fd is not None:
            self._loop.watch(self._fd, 0, self._drain)
            os.close(self._fd)
            self._fd = None

    def _drain(self, _events: int) -> None:
        if self._fd is None:
            return
        try:
            while self._units:
                view, done = self._units[0]
                taken = os.write(self._fd, view) if view else 0
                self._queued -= taken
                if taken < len(view):
                    self._units[0] = (view[taken:], done)
                    continue
                self._units.popleft()
                done(True)
        except BlockingIOError:
            self._loop.watch(self._fd, WRITE, self._drain)
            return
        except OSError:
            self.abandon(BY_COMMAND)
            return
        self._loop.watch(self._fd, 0, self._drain)
        if self._closing:
            os.close(self._fd)
            self._fd = None
        else:
            self.emptied()
