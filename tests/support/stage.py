"""A program on a terminal of its own: what it printed, what its screen shows, which process is in its foreground."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from avt._avt import Vt

from support import processes
from support.waiting import BOUND_S, TooLate, is_readable, until

ROWS, COLS = 24, 80

_TAKE_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Stage:
    """The program is the leader of the terminal's session. The screen is what a reference emulator made of it."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLS, 0, 0))
        self.device = os.fstat(slave).st_rdev
        # Shells write their history there, and would make a directory that is not.
        self._home = tempfile.TemporaryDirectory(prefix="hf-stage-")
        env = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "HOME": self._home.name}
        take = [sys.executable, "-I", "-S", "-c", _TAKE_TERMINAL, *argv]
        self._process = subprocess.Popen(take, stdin=slave, stdout=slave, stderr=slave, env=env)
        os.close(slave)
        self.pid = self._process.pid
        self.printed = b""
        self._screen = Vt(COLS, ROWS)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def foreground(self) -> int:
        return os.tcgetpgrp(self.master)

    @property
    def column(self) -> int:
        return self._screen.cursor.col

    def rows(self, above: int = 3) -> list[str]:
        """The row of the cursor, and those above it."""
        row = self._screen.cursor.row
        return [line.text.rstrip() for line in self._screen.view()[max(0, row - above) : row + 1]]

    def inverse(self) -> bool:
        """Is all that stands left of the cursor in reverse video?"""
        cells = self._screen.view()[self._screen.cursor.row].cells[: self.column]
        return bool(cells) and all(cell.pen.inverse for cell in cells)

    def echo_off(self) -> bool:
        local: int = termios.tcgetattr(self.master)[3]
        return bool(local & termios.ICANON) and not local & termios.ECHO

    def send(self, data: bytes) -> None:
        os.write(self.master, data)

    def read_until(self, text: bytes, bound: float = BOUND_S) -> None:
        """Until it has printed this, now or before."""
        while text not in self.printed:
            if not is_readable(self.master, bound):
                raise TooLate(f"{text!r} (so far {self.printed[-300:]!r})", bound)
            self._take()

    def until(self, predicate: Callable[[], bool], what: str) -> None:
        """Until it is so; what is printed meanwhile is taken."""

        def asked() -> bool:
            while is_readable(self.master, 0):
                self._take()
            return predicate()

        until(asked, what=what)

    def _take(self) -> None:
        try:
            chunk = os.read(self.master, 65536)
        except OSError:
            chunk = b""  # hung up
        if not chunk:
            raise AssertionError(f"the program ended; it printed {self.printed[-300:]!r}")
        self.printed += chunk
        self._screen.feed_str(self._decoder.decode(chunk))

    def end(self) -> None:
        members = [row for row in processes.table().values() if row.sid == self.pid]
        for row in members:
            with suppress(ProcessLookupError):  # it may end while we look
                os.kill(row.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        os.close(self.master)
        processes.reap_adopted()
        self._home.cleanup()


@contextmanager
def on_stage(*argv: str) -> Iterator[Stage]:
    stage = Stage(argv)
    try:
        yield stage
    finally:
        stage.end()
