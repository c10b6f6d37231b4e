"""The terminal that `hold` itself runs in: its keys and its size, raw mode and back."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What a session may have.
_ROWS_MAX, _COLS_MAX = 500, 1000

_INPUT, _OUTPUT, _CONTROL, _LOCAL, _CHARACTERS = 0, 1, 2, 3, 6


class OwnTerminal:
    """`keys` is where its keys are read, None where something else is our input. Output goes to `screen`."""

    def __init__(self, keys: int | None, screen: int) -> None:
        self.keys = keys
        opened = _open_again(screen)
        self._opened = opened
        self.screen = screen if opened is None else opened
        self._before: list[Any] | None = None

    def size(self) -> tuple[int, int] | None:
        """Rows and columns, as a session can have them; None where nobody set them."""
        rows, cols, _, _ = self._window()
        return (min(rows, _ROWS_MAX), min(cols, _COLS_MAX)) if rows and cols else None

    def window(self) -> tuple[int, int] | None:
        """The same, where it may be larger than a session can be."""
        rows, cols, _, _ = self._window()
        return (rows, cols) if rows and cols else None

    def cell(self) -> tuple[int, int] | None:
        """Height and width of a character in pixels, where the terminal told the system."""
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
        """Whether we are in the foreground; else the terminal is somebody else's just now."""
        try:
            return os.tcgetpgrp(self.screen) == os.getpgrp()
        except OSError:
            # Not our controlling terminal: nobody else's job either.
            return True

    def enter(self) -> None:
        """Every key as it is typed, none of them a signal, nothing changed on the way out."""
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
        """At once, not by TCSADRAIN: a terminal that takes nothing must not keep us."""
        assert self.keys is not None
        while True:
            try:
                termios.tcsetattr(self.keys, termios.TCSANOW, settings)
                return
            except termios.error as problem:
                # A signal came while we were not in the foreground; unlike others, this call is not begun anew.
                if problem.args[0] != errno.EINTR:
                    raise OSError(*problem.args) from None

    def leave(self) -> None:
        """As it was before; a terminal that is gone, or not ours any more, is let be."""
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
    """The same terminal through a description of our own, which may be non-blocking: to change the one that we share
    with the shell would outlive us. None where that cannot be had."""
    try:
        opened = os.open(os.ttyname(fd), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(opened).st_rdev != os.fstat(fd).st_rdev:
        os.close(opened)
        return None
    return opened
