"""A program beside the test: a host, the CLI, a probe. Read by line, killed at will, ended at teardown."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.waiting import BOUND_S, Lines, TooLate

# Makes the terminal on descriptor 0 the controlling one, then becomes the program.
_TAKE_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Program:
    """A running program in a process group of its own. `tty`: on a terminal whose master the test holds."""

    def __init__(
        self, argv: Sequence[str], *, stderr: Path, env: Mapping[str, str], cwd: Path, tty: bool = False
    ) -> None:
        self.argv = list(argv)
        self.stderr = stderr
        self._process: subprocess.Popen[bytes]
        if tty:
            self._out, slave = pty.openpty()
            take = [sys.executable, "-I", "-S", "-c", _TAKE_TERMINAL, *self.argv]
            self._process = subprocess.Popen(take, stdin=slave, stdout=slave, stderr=slave, env=dict(env), cwd=cwd)
            os.close(slave)
            self._in = os.dup(self._out)
        else:
            with stderr.open("wb") as errors:
                self._process = subprocess.Popen(
                    self.argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=dict(env),
                    cwd=cwd,
                    process_group=0,
                )
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._in = os.dup(self._process.stdin.fileno())
            self._out = os.dup(self._process.stdout.fileno())
            self._process.stdin.close()
            self._process.stdout.close()
        self.pid = self._process.pid
        self._lines = Lines(self._out, " ".join(self.argv)[:120])

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def line(self, bound: float = BOUND_S) -> str:
        """The next line of its output; '' at the end."""
        return self._lines.next(bound)

    def lines_until(self, last: str, bound: float = BOUND_S) -> list[str]:
        """The lines up to and with `last`."""
        found = [self.line(bound)]
        while found[-1] != last:
            assert found[-1], f"output ended before {last!r}: {found}\n{self.errors()}"
            found.append(self.line(bound))
        return found

    def send(self, data: str | bytes) -> None:
        os.write(self._in, data.encode() if isinstance(data, str) else data)

    def close_stdin(self) -> None:
        if self._in >= 0:
            os.close(self._in)
            self._in = -1

    def hang_up(self) -> None:
        """Let go of both ends; on a terminal this is the window being closed."""
        self.close_stdin()
        if self._out >= 0:
            os.close(self._out)
            self._out = -1

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self.wait()

    def wait(self, bound: float = BOUND_S) -> int:
        try:
            return self._process.wait(bound)
        except subprocess.TimeoutExpired:
            raise TooLate(f"the end of {' '.join(self.argv)[:120]}", bound) from None

    def errors(self) -> str:
        """What it wrote to stderr (a program on a terminal has none)."""
        return self.stderr.read_text(errors="replace") if self.stderr.exists() else ""

    def end(self) -> None:
        if self.returncode is None:
            self.kill()
        self.hang_up()
