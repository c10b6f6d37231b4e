"""The terminal that `hold` runs in: size, raw mode, signals, and writing without blocking."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import struct
import termios

from ..core.vt.cursor import COLS_MAX, ROWS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType
    from typing import Any


_INPUT, _OUTPUT, _CONTROL, _LOCAL, _CHARACTERS = 0, 1, 2, 3, 6


class OwnTerminal:
    """`keys` is the descriptor of its keyboard, None if our input is not a terminal. Output goes to `screen`."""

    def __init__(self, keys: int | None, screen: int) -> None:
        self.keys = keys
        opened = _open_again(screen)
        self._opened = opened
        self.screen = screen if opened is None else opened
        self._before: list[Any] | None = None

    def size(self) -> tuple[int, int] | None:
        """Rows and columns, at most those of a session; None if unknown."""
        rows, cols, _, _ = self._window()
        return (min(rows, ROWS_MAX), min(cols, COLS_MAX)) if rows and cols else None

    def window(self) -> tuple[int, int] | None:
        """Rows and columns; None if unknown."""
        rows, cols, _, _ = self._window()
        return (rows, cols) if rows and cols else None

    def cell(self) -> tuple[int, int] | None:
        """Height and width of a character in pixels; None if unknown."""
        rows, cols, width, height = self._window()
        return (height // rows, width // cols) if rows and cols and height >= rows and width >= cols else None

    def _window(self) -> tuple[int, int, int, int]:
        try:
            rows, cols, width, height = struct.unpack("HHHH", fcntl.ioctl(self.screen, termios.TIOCGWINSZ, bytes(8)))
        except OSError:
            return 0, 0, 0, 0
        return rows, cols, width, height

    @property
    def is_ours(self) -> bool:
        """Whether we are in the foreground; else another job uses the terminal."""
        try:
            return os.tcgetpgrp(self.screen) == os.getpgrp()
        except OSError:
            # Not our controlling terminal: it has no foreground job that we could see.
            return True

    def enter(self) -> None:
        """Raw mode: every key as it is typed, no signal keys, output unchanged."""
        if self.keys is None:
            return
        raw = self._settings()
        if self._before is None:
            self._before = self._settings()
        raw[_INPUT] &= ~(
            termios.IGNBRK
            | termios.BRKINT
            | termios.PARMRK
            | termios.ISTRIP
            | termios.INLCR
            | termios.IGNCR
            | termios.ICRNL
            | termios.IXON
        )
        raw[_OUTPUT] &= ~termios.OPOST
        raw[_CONTROL] = raw[_CONTROL] & ~(termios.CSIZE | termios.PARENB) | termios.CS8
        raw[_LOCAL] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
        raw[_CHARACTERS][termios.VMIN] = 1
        raw[_CHARACTERS][termios.VTIME] = 0
        self._set(raw)

    def _settings(self) -> list[Any]:
        assert self.keys is not None
        try:
            return termios.tcgetattr(self.keys)
        except termios.error as problem:
            raise OSError(*problem.args) from None

    def _set(self, settings: list[Any]) -> None:
        """With TCSANOW: TCSADRAIN would wait for a terminal that accepts nothing."""
        assert self.keys is not None
        while True:
            try:
                termios.tcsetattr(self.keys, termios.TCSANOW, settings)
                return
            except termios.error as problem:
                # A signal came while we were in the background; Python does not repeat this call by itself.
                if problem.args[0] != errno.EINTR:
                    raise OSError(*problem.args) from None

    def leave(self) -> None:
        """Restore the settings, unless the terminal is gone or used by another job."""
        before, self._before = self._before, None
        if before is None or self.keys is None or not self.is_ours:
            return
        try:
            self._set(before)
        except OSError:
            pass

    def close(self) -> None:
        self.leave()
        if self._opened is not None:
            os.close(self._opened)
            self._opened = None


def _open_again(fd: int) -> int | None:
    """Open the terminal again, to make only our own description non-blocking: the other one is shared with the shell.
    None if that fails."""
    try:
        opened = os.open(os.ttyname(fd), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(opened).st_rdev != os.fstat(fd).st_rdev:
        os.close(opened)
        return None
    return opened


class Wakeups:
    """While it is open, these signals only make `fd` readable. Signals that our caller ignores stay ignored."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before: dict[int, Any] = {}
        for number in numbers:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, _noted)

    def taken(self) -> list[int]:
        """The numbers of the signals that came, in order."""
        try:
            return list(os.read(self.fd, 4096))
        except BlockingIOError:
            return []

    def stop_here(self) -> None:
        """Stop, as SIGTSTP does by default, until a SIGCONT comes."""
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, _noted)

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before_fd)
        os.close(self.fd)
        os.close(self._write)


def _noted(_number: int, _frame: FrameType | None) -> None:
    """The number is in the pipe already."""


# A pipe that is ready has room for this much: a write of it does not block.
_PIECE_BYTES = 4096
# Above this the source is not read.
_FULL_BYTES = 1 << 18


class Outlet:
    """A queue of bytes for a descriptor that may be slow."""

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
        """Whether the last bytes that were added ended a line."""
        return self._ends_line

    def drop(self) -> None:
        self._queue.clear()

    def flush(self) -> None:
        """Write what the descriptor accepts now; to be called when it is ready."""
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
        """Write everything. If nothing is accepted for `stall_s`, drops the rest and returns False."""
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        try:
            while self._queue and poll.poll(None if stall_s is None else stall_s * 1000):
                self.flush()
            return not self._queue
        finally:
            self._queue.clear()
