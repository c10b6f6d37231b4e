"""The PTY of one session: opened, set up, sized, and which client decides its size."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios

from ...core.vt.cursor import COLS_MAX, ROWS_MAX
from ...core.wire import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


_WINDOW = struct.Struct("HHHH")
_TERMINFO = ("/etc/terminfo", "/lib/terminfo", "/usr/share/terminfo", "/usr/lib/terminfo", "/usr/local/share/terminfo")
_PTYS = "/dev/pts"
_PTYS_USED = "/proc/sys/kernel/pty/nr"
_PTYS_ALLOWED = "/proc/sys/kernel/pty/max"
# While a tty is canonical the kernel keeps this much of one line and drops the rest without a word.
CANONICAL_BYTES = 4095 if os.uname().sysname == "Linux" else 1024

# Built here and not copied: the command must not depend on the caller's terminal.
_INPUT = termios.ICRNL | termios.IXON | termios.BRKINT | getattr(termios, "IUTF8", 0x4000)
_OUTPUT = termios.OPOST | termios.ONLCR
_CONTROL = termios.CS8 | termios.CREAD | termios.HUPCL
_LOCAL = termios.ISIG | termios.ICANON | termios.IEXTEN
_ECHO = termios.ECHO | termios.ECHOE | termios.ECHOK | termios.ECHOCTL | termios.ECHOKE
_CHARACTERS = {
    termios.VINTR: 0x03,
    termios.VQUIT: 0x1C,
    termios.VERASE: 0x7F,
    termios.VKILL: 0x15,
    termios.VEOF: 0x04,
    termios.VSTART: 0x11,
    termios.VSTOP: 0x13,
    termios.VSUSP: 0x1A,
    termios.VREPRINT: 0x12,
    termios.VDISCARD: 0x0F,
    termios.VWERASE: 0x17,
    termios.VLNEXT: 0x16,
    termios.VMIN: 1,
}


def size_of(value: object) -> tuple[int, int]:
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(type(each) is int for each in value):
        rows, cols = value
        if 1 <= rows <= ROWS_MAX and 1 <= cols <= COLS_MAX:
            return rows, cols
    raise Problem(
        "bad-size", f"a size is 1 to {ROWS_MAX} rows and 1 to {COLS_MAX} columns", rows_max=ROWS_MAX, cols_max=COLS_MAX
    )


class Unavailable(Exception):
    """No PTY is available: why, and how many are in use of how many. Linux reports ENOSPC, as for a full disk."""

    def __init__(self, problem: OSError) -> None:
        self.errno = problem.errno or 0
        self.used, self.allowed = _counts()
        counts = "" if self.used is None else f" ({self.used} of {self.allowed} in use)"
        reason = "none is free" if self.errno == errno.ENOSPC else problem.strerror
        super().__init__(f"no PTY could be opened: {reason}{counts}")


class Settings:
    """What the command has made of its tty, read at one moment."""

    __slots__ = ("canonical", "echo", "eof", "interrupt", "line_ends")

    def __init__(self, attributes: list[object]) -> None:
        local = attributes[3]
        characters = attributes[6]
        assert isinstance(local, int)
        assert isinstance(characters, list)
        self.canonical = bool(local & termios.ICANON)
        self.echo = bool(local & termios.ECHO)
        self.eof: bytes = characters[termios.VEOF]
        self.interrupt: bytes = characters[termios.VINTR]
        # After each of these no part of the line that was typed is left.
        ends = [termios.VEOF, termios.VKILL]
        if local & termios.ISIG:
            ends += [termios.VINTR, termios.VQUIT, termios.VSUSP]
        self.line_ends: list[bytes] = [b"\r", b"\n", *(characters[index] for index in ends)]


class Tty:
    """Our end, and one descriptor of the command's end: while we hold it, a program that closes and reopens its
    terminal does not end the output."""

    def __init__(self, rows: int, cols: int, *, echo: bool) -> None:
        try:
            self.master, self._slave = os.openpty()
        except OSError as problem:
            raise Unavailable(problem) from None
        self.rows = self.cols = 0
        try:
            self.path = os.ttyname(self._slave)
            self.device = os.fstat(self._slave).st_rdev
            self.set_up(echo)
            self.resize(rows, cols)
            os.set_blocking(self.master, False)
        except OSError as problem:
            self.close()
            raise Unavailable(problem) from None

    def set_up(self, echo: bool) -> None:
        characters: list[bytes | int] = [b"\0"] * len(termios.tcgetattr(self._slave)[6])
        for index, byte in _CHARACTERS.items():
            characters[index] = bytes([byte])
        local = _LOCAL | (_ECHO if echo else 0)
        speed = termios.B38400
        attributes: list[int | list[bytes | int]] = [_INPUT, _OUTPUT, _CONTROL, local, speed, speed, characters]
        termios.tcsetattr(self._slave, termios.TCSANOW, attributes)

    def resize(self, rows: int, cols: int, cell: tuple[int, int] | None = None) -> None:
        """The kernel sends SIGWINCH to the foreground group."""
        height, width = (0, 0) if cell is None else (min(rows * cell[0], 0xFFFF), min(cols * cell[1], 0xFFFF))
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, _WINDOW.pack(rows, cols, width, height))
        self.rows, self.cols = rows, cols

    def settings(self) -> Settings | None:
        """None once every process has closed it."""
        try:
            return Settings(termios.tcgetattr(self.master))
        except termios.error:
            return None

    def foreground(self) -> int | None:
        """The process group that is in the foreground of the terminal, if there still is one."""
        try:
            group = os.tcgetpgrp(self.master)
        except OSError:
            return None
        return group if group > 1 else None

    def close_slave(self) -> None:
        """The command has exited: from now on, end of output means that all processes closed the terminal."""
        if self._slave >= 0:
            os.close(self._slave)
            self._slave = -1

    def close(self) -> None:
        """Close both ends, if no command was started; else the reader of the output closes the master."""
        self.close_slave()
        if self.master >= 0:
            os.close(self.master)
            self.master = -1


def read(fd: int, buffer: memoryview) -> int:
    """Read what is there, up to the size of `buffer`: the kernel returns it in pieces of a page. 0 is the end, which a
    PTY reports as EIO. Raises BlockingIOError when nothing is there."""
    size = 0
    try:
        while size < len(buffer):
            got = os.readv(fd, [buffer[size:]])
            if not got:
                break
            size += got
    except BlockingIOError:
        if not size:
            raise
    except OSError as problem:
        if problem.errno != errno.EIO:
            raise
    return size


def has_terminfo(environment: dict[str, str]) -> bool:
    """Whether a program here can find the description of its terminal, in the directories where ncurses looks."""
    term = environment.get("TERM", "")
    homes = [environment.get("TERMINFO", ""), os.path.join(environment.get("HOME", ""), ".terminfo")]
    homes += environment.get("TERMINFO_DIRS", "").split(":")
    for home in (*homes, *_TERMINFO):
        if home and term and any(os.path.exists(f"{home}/{key}/{term}") for key in (term[0], f"{ord(term[0]):x}")):
            return True
    return False


def _counts() -> tuple[int | None, int | None]:
    """How many PTYs are in use of how many. A container has its own, of which the kernel's totals know nothing."""
    used, allowed = _count(_PTYS_USED), _count(_PTYS_ALLOWED)
    own = _own_limit()
    if own is not None and (allowed is None or own < allowed):
        try:
            return sum(name.isdigit() for name in os.listdir(_PTYS)), own
        except OSError:
            pass
    return used, allowed


def _own_limit() -> int | None:
    """`max=` of what is mounted on /dev/pts."""
    limit = None
    try:
        with open("/proc/self/mountinfo") as file:
            for line in file:
                mount, _, source = line.partition(" - ")
                if mount.split(" ")[4] == _PTYS:
                    # The last one is on top.
                    options = source.rstrip().split(" ")[-1].split(",") if source.startswith("devpts ") else []
                    limit = next((int(each[4:]) for each in options if each.startswith("max=")), None)
    except (OSError, ValueError, IndexError):
        return None
    return limit


def _count(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


POLICIES = ("latest", "smallest", "fixed")


class Sizing:
    """What one client contributes to the choice. `size` is None until it has sent its first `resize`: what it showed
    before that is the painting of a screen as it was."""

    __slots__ = ("cell", "client", "control", "size", "touched", "visible")

    def __init__(self, client: str, *, control: bool, visible: bool) -> None:
        self.client = client
        self.control = control
        self.visible = visible
        self.size: tuple[int, int] | None = None
        self.cell: tuple[int, int] | None = None
        # Grows with every attach, key and resize: the latest is the greatest.
        self.touched = 0


def choose(policy: str, clients: Iterable[Sizing]) -> tuple[tuple[int, int], Sizing] | None:
    """The size that the clients want, and the client that decided it; None if no client does."""
    sized = [client for client in clients if client.control and client.visible and client.size is not None]
    if policy == "fixed" or not sized:
        return None
    latest = max(sized, key=lambda client: client.touched)
    if policy == "smallest":
        rows, cols = (min(each.size[axis] for each in sized if each.size) for axis in (0, 1))
        return (rows, cols), next((each for each in sized if each.size == (rows, cols)), latest)
    assert latest.size is not None
    return latest.size, latest
