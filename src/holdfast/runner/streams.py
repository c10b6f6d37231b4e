"""The command's streams: output read into the log, and a bounded queue into its stdin.

Backpressure: a client may make the command wait for it, as the reader of a pipe does. While the next bytes would push
out of the log what it has not read, the pipes are not read, and the command waits in its write.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections import deque

from ..core import failpoints
from ..core.loop import READ, WRITE
from .terminal import pty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from ..core.loop import Loop
    from .log import LogWriter


READ_BYTES = 1 << 16
# A stream that fills whole reads gets a wider pipe and a buffer that is used again and again: fresh memory for every
# read costs more than the read.
_FLOOD_BYTES = 1 << 18
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_FIONREAD = 0x541B
# Reads of one stream in one turn of the loop: a flood must not starve the rest.
_READS_A_TURN = 4


class Outputs:
    """Reads pipes or a terminal into the log until their end. `on_output(stream, chunk)` is called for what the log has
    taken, `paused(True)` when reading pauses, so that the command has to wait."""

    def __init__(
        self,
        loop: Loop,
        log: LogWriter,
        on_output: Callable[[str, bytes | bytearray], None],
        paused: Callable[[bool], None] = lambda _paused: None,
    ) -> None:
        self._loop = loop
        self._log = log
        self._on_output = on_output
        self._paused = paused
        # Asked before each read while there is backpressure.
        self._may_read: Callable[[int], bool] | None = None
        self._waiting: set[str] = set()
        self._pipes: dict[str, int] = {}
        self._floods: dict[str, bytearray] = {}
        self._pages: memoryview | None = None

    @property
    def are_open(self) -> bool:
        """True if a process still holds a writing end."""
        return bool(self._pipes)

    @property
    def open_names(self) -> list[str]:
        """The streams whose writing end a process still holds."""
        return list(self._pipes)

    def open(self, pipes: dict[str, int]) -> None:
        for name, fd in pipes.items():
            self._pipes[name] = fd
            self._watch(name, fd)

    def read_buffered(self) -> None:
        """Read what was printed up to now, and the end if it is there. Not more: another process that holds the pipe
        may print for ever."""
        for name in list(self._pipes):
            end = self._log.end(name) + _buffered(self._pipes[name])
            more = True
            while more and name in self._pipes:
                more = self._log.end(name) < end
                self._read(name, at_once=True)

    def read_only_while(self, may_read: Callable[[int], bool] | None) -> None:
        """Read only what `may_read(bytes)` allows; None reads whatever comes."""
        self._may_read = may_read
        self.look_again()

    def look_again(self) -> None:
        """The answer of `may_read` may have changed."""
        if self._waiting and self._may_read_more():
            waiting, self._waiting = self._waiting, set()
            for name in waiting:
                self._watch(name, self._pipes[name])
            self._paused(False)

    def _may_read_more(self) -> bool:
        return self._may_read is None or self._may_read(min(_FLOOD_BYTES, self._log.piece_bytes))

    def _wait(self, name: str) -> None:
        self._loop.watch(self._pipes[name], 0, _ignore)
        if not self._waiting:
            self._paused(True)
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
            failpoints.hit("runner.output")
            self._log.append(name, chunk)
            self._on_output(name, chunk)
            if len(chunk) < READ_BYTES:
                return
            if name not in self._floods and name != "tty" and not self._is_narrow:
                _widen(fd)
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
        """True if the log is small and its reader is awaited: then what is in the pipe when the command ends has to fit
        in as well."""
        return self._may_read is not None and self._log.piece_bytes < _FLOOD_BYTES

    def _from_terminal(self, fd: int) -> bytes:
        """The kernel returns a page at a time: gathered, the pages cost one write and one search for each 64 KiB."""
        if self._pages is None:
            self._pages = memoryview(bytearray(READ_BYTES))
        return bytes(self._pages[: pty.read(fd, self._pages)])

    def _close(self, name: str) -> None:
        fd = self._pipes.pop(name)
        self._floods.pop(name, None)
        if name in self._waiting:
            self._waiting.remove(name)
            if not self._waiting:
                self._paused(False)
        self._loop.watch(fd, 0, _ignore)
        os.close(fd)


def _ignore(_events: int) -> None:
    """Nothing is read from what is not watched."""


QUEUE_MAX_BYTES = 1 << 20

# Why nothing can be written, and what to do about it.
NEVER_OPEN = "it was started with stdin closed"
GIVEN = "its input was given at the start and is complete"
ON_REQUEST = "it was closed on request"
BY_COMMAND = "the command closed it"
ENDED = "the command has ended"
FIXES = {
    NEVER_OPEN: 'start the command with stdin="open" to write to it',
    GIVEN: 'start the command with stdin="open" instead of `input` to write to it while it runs',
    ON_REQUEST: "its input has ended; `hold restart` starts it again",
    BY_COMMAND: "it no longer reads; `hold logs` shows what it printed",
    ENDED: "`hold logs` shows what it printed, `hold restart` starts it again",
}


class InputQueue:
    """Input that the command has not read yet, over a pipe or on a terminal. It never blocks the loop."""

    def __init__(self, closed_because: str | None) -> None:
        self.queued_bytes = 0
        # Why nothing can be written any more, for the error.
        self.closed_because = closed_because

    @property
    def is_open(self) -> bool:
        return self.closed_because is None

    def has_room(self, size: int) -> bool:
        return self.queued_bytes + size <= QUEUE_MAX_BYTES


class Stdin(InputQueue):
    """A pipe. Units are written whole and in order; `done` of a unit is called when the kernel took its last byte."""

    def __init__(self, loop: Loop, fd: int | None) -> None:
        super().__init__(NEVER_OPEN if fd is None else None)
        self._loop = loop
        self._fd = fd
        self._units: deque[tuple[memoryview, Callable[[bool], None]]] = deque()
        self._closing = False
        # Called when all that was written is in the kernel's hands.
        self.emptied: Callable[[], None] = lambda: None

    def pipe(self) -> tuple[int, int] | None:
        """Device and inode of the pipe if it is open and empty: a process that reads it waits for input."""
        if self._fd is None or self._closing or self.queued_bytes or _buffered(self._fd):
            return None
        found = os.fstat(self._fd)
        return found.st_dev, found.st_ino

    def write(self, unit: bytes, done: Callable[[bool], None] = lambda _taken: None) -> None:
        self.queued_bytes += len(unit)
        self._units.append((memoryview(unit), done))
        self._drain(0)

    def close(self, because: str = ON_REQUEST) -> None:
        """Close it when what is queued was written."""
        if self.closed_because is None:
            self.closed_because = because
        self._closing = True
        self._drain(0)

    def abandon(self, because: str) -> None:
        """Close it now: no process reads the other end."""
        if self.closed_because is None:
            self.closed_because = because
        while self._units:
            self._units.popleft()[1](False)
        self.queued_bytes = 0
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
                self.queued_bytes -= taken
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


def _widen(fd: int) -> None:
    try:
        fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        pass  # the user's share of pipe memory is used up, or this is not a pipe: the narrow one works too


def _buffered(fd: int) -> int:
    """How many bytes wait in this pipe."""
    return int.from_bytes(fcntl.ioctl(fd, _FIONREAD, bytes(4)), sys.byteorder)
