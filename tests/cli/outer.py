"""A window with `hold attach` in it: a pseudo-terminal of which a reference emulator, not ours, is the screen. It
answers whatever it is asked, as a real one does."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyghostty  # type: ignore[import-untyped]

from support.waiting import BOUND_S, TooLate

ROWS, COLS = 24, 80
_TICK_S = 0.05

# The program is in a job of its own under something that waits for it, as under a shell.
_TAKE_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
_PRIVATE_MODES = (1, 5, 6, 7, 9, 12, 25, 45, 47, 66, 69, 1000, 1002, 1003, 1004, 1005, 1006, 1007, 1015, 1016, 1047)
_MORE_MODES = (1049, 2004, 2026)


class Outer:
    def __init__(
        self, argv: Sequence[str], env: dict[str, str] | None = None, rows: int = ROWS, cols: int = COLS
    ) -> None:
        self.master, self.slave = pty.openpty()
        self._size(rows, cols)
        self.settings = termios.tcgetattr(self.slave)
        self.printed = b""
        self.asked: list[bytes] = []
        self._screen = pyghostty.Terminal(cols, rows, fg=(200, 201, 202), bg=(10, 11, 12))
        self._screen.on_reply(self._answer)
        self.before = self.modes()
        take = [sys.executable, "-I", "-S", "-c", _TAKE_TERMINAL, *argv]
        self._process = subprocess.Popen(
            take,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env={**os.environ, "TERM": "xterm-256color", **(env or {})},
        )
        self.pid = self._process.pid

    def _answer(self, reply: bytes) -> None:
        self.asked.append(bytes(reply))
        os.write(self.master, reply)

    def _size(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, cols * 10, rows * 20))

    def resize(self, rows: int, cols: int) -> None:
        self._screen.resize(cols, rows)
        self._size(rows, cols)

    # What it shows.

    @property
    def text(self) -> str:
        shown: str = self._screen.text()
        return shown

    @property
    def everything(self) -> str:
        shown: str = self._screen.contents()
        return shown

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column."""
        col, row = self._screen.cursor
        return row, col

    @property
    def is_raw(self) -> bool:
        local: int = termios.tcgetattr(self.slave)[3]
        return not local & (termios.ICANON | termios.ECHO | termios.ISIG)

    def modes(self) -> dict[str, Any]:
        """All that a program can put the terminal into, as far as the emulator tells."""
        found: dict[str, Any] = {f"?{mode}": self._mode(mode) for mode in (*_PRIVATE_MODES, *_MORE_MODES)}
        found |= {f"{mode}": self._mode(mode, ansi=True) for mode in (4, 20)}
        found["keyboard"] = self._screen.get("kitty_keyboard_flags", "uint8_t")
        found["visible"] = self._screen.get("cursor_visible", "bool")
        found["screen"] = int(self._screen.get("active_screen", "int"))
        found["ground"] = self._screen.get("vt_ground", "bool")
        if found["ground"]:
            reported: list[bytes] = []
            self._screen.on_reply(lambda reply: reported.append(bytes(reply)))
            # Cursor shape, scroll region, pen.
            self._screen.feed(b"\x1bP$q q\x1b\\\x1bP$qr\x1b\\\x1bP$qm\x1b\\")
            self._screen.on_reply(self._answer)
            found["reported"] = reported
        return found

    def _mode(self, mode: int, *, ansi: bool = False) -> bool | None:
        try:
            return bool(self._screen.mode(mode, ansi))
        except pyghostty.GhosttyError:
            return None

    # What happens in it.

    def type(self, data: bytes) -> None:
        os.write(self.master, data)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def until(self, predicate: Callable[[], object], what: str, bound: float = BOUND_S) -> None:
        deadline = time.monotonic() + bound
        while not predicate():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TooLate(f"{what}; printed {self.printed[-500:]!r}, shown\n{self.text}\n", bound)
            # The predicate may be about more than this window: ask it again even when nothing is printed.
            self._take(min(left, _TICK_S))

    def shows(self, text: str, bound: float = BOUND_S) -> None:
        self.until(lambda: text in self.text, f"{text!r} on the screen", bound)

    def _take(self, timeout: float) -> bool:
        """Show what comes next; false if nothing came."""
        if not select.select([self.master], [], [], timeout)[0]:
            return False
        data = os.read(self.master, 65536)
        self.printed += data
        self._screen.feed(data)
        return True

    def end(self, bound: float = BOUND_S) -> int:
        """Its exit code; all that it printed is shown."""
        pidfd = os.pidfd_open(self.pid)
        deadline = time.monotonic() + bound
        try:
            while self._process.poll() is None:
                ready = select.select([self.master, pidfd], [], [], max(0.0, deadline - time.monotonic()))[0]
                if not ready:
                    raise TooLate(f"the end of hold attach; printed {self.printed[-500:]!r}", bound)
                if self.master in ready:
                    self._take(0)
        finally:
            os.close(pidfd)
        while self._take(0):
            pass
        return self._process.returncode

    def stopped(self) -> None:
        """Wait until it is stopped, as a shell would notice."""
        done = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert done is not None
        assert done.si_code == os.CLD_STOPPED, done
        while self._take(0):
            pass

    def is_as_before(self) -> bool:
        return self.modes() == self.before and termios.tcgetattr(self.slave) == self.settings

    def hang_up(self) -> None:
        """The window is closed."""
        if self.master >= 0:
            os.close(self.master)
            os.close(self.slave)
            self.master = -1

    def wait(self, bound: float = BOUND_S) -> int:
        return self._process.wait(bound)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self.hang_up()
