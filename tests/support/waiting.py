"""Waiting without sleeping: on descriptors, the end of a process, file-system events; always bounded."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from support import evidence, processes

# Only guards against hanging: a wait that succeeds never takes it.
BOUND_S = 30.0

# Only for what no descriptor can tell (a field of /proc): how late we look, never a stand-in for an event.
_LAST_RESORT_TICK_S = 0.005

_IN_ANY_CHANGE = 0x002 | 0x004 | 0x008 | 0x040 | 0x080 | 0x100 | 0x200 | 0x400 | 0x800
_libc = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")


class TooLate(AssertionError):
    """A wait passed its bound; carries the state of the world at that moment."""

    def __init__(self, what: str, bound: float) -> None:
        super().__init__(f"{what} did not happen within {bound:g} s\n{evidence.describe()}")


class Watch:
    """A file-system watch on one directory, as a descriptor to wait on."""

    def __init__(self, directory: Path) -> None:
        self.fd: int = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        if _libc.inotify_add_watch(self.fd, os.fsencode(directory), _IN_ANY_CHANGE) < 0:
            number = ctypes.get_errno()
            self.close()
            raise OSError(number, os.strerror(number), str(directory))

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, timeout: float) -> None:
        """Until something changed; takes the events that are there."""
        if is_readable(self.fd, timeout):
            os.read(self.fd, 65536)

    def close(self) -> None:
        os.close(self.fd)


def until(
    predicate: Callable[[], T],
    bound: float = BOUND_S,
    *,
    wake: int | None = None,
    watch: Path | None = None,
    what: str | None = None,
) -> T:
    """The first true answer of the predicate, asked again whenever `wake` is readable or `watch` changes."""
    deadline = time.monotonic() + bound
    watched = Watch(watch) if watch is not None else None
    try:
        while not (answer := predicate()):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TooLate(what or str(getattr(predicate, "__name__", "the condition")), bound)
            if watched is not None:
                watched.wait(left)
            elif wake is None or is_readable(wake, left):
                # A descriptor that stays readable while the answer is still no must not make us spin.
                select.select([], [], [], min(_LAST_RESORT_TICK_S, left))
        return answer
    finally:
        if watched is not None:
            watched.close()


def wait_for_file(path: Path, bound: float = BOUND_S) -> Path:
    """Until the file is there; its directory must exist."""
    until(path.exists, bound, watch=path.parent, what=f"the file {path}")
    return path


def wait_gone(pid: int, bound: float = BOUND_S) -> None:
    """Until the process has ended; an orphan that came to us is reaped."""
    process = processes.look(pid)
    if process is not None and not processes.is_gone(pid):
        processes.wait_any([process], bound)
        if not processes.is_gone(pid, process.start):
            raise TooLate(f"the end of {processes.describe(process)}", bound)
    processes.reap_adopted()


def is_readable(fd: int, timeout: float) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(max(0.0, timeout) * 1000))


def wait_readable(fd: int, bound: float = BOUND_S, what: str = "input") -> None:
    if not is_readable(fd, bound):
        raise TooLate(what, bound)


async def turn() -> None:
    """One turn of the event loop."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    loop.call_soon(over.set_result, None)
    await over


class Lines:
    """Lines of a descriptor, each waited for with a bound."""

    def __init__(self, fd: int, what: str) -> None:
        self._fd = fd
        self._what = what
        self._buffer = b""

    def next(self, bound: float = BOUND_S) -> str:
        """The next line without its end; '' at end of file."""
        deadline = time.monotonic() + bound
        while b"\n" not in self._buffer:
            if not is_readable(self._fd, deadline - time.monotonic()):
                raise TooLate(f"a line of {self._what} (so far {self._buffer[-200:]!r})", bound)
            try:
                more = os.read(self._fd, 65536)
            except OSError:
                # The master of a terminal says EIO where a pipe says end of file.
                more = b""
            if not more:
                line, self._buffer = self._buffer, b""
                return line.decode(errors="replace")
            self._buffer += more
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode(errors="replace").rstrip("\r")


class Gate:
    """A FIFO, one way: `release` for the probe's `await PATH`, or `line` for its `tell PATH TEXT`."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path, 0o600)
        self.path = path
        # Read-write: neither side's open() ever waits for the other.
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._lines = Lines(self._fd, str(path))

    def __str__(self) -> str:
        return str(self.path)

    def release(self, times: int = 1) -> None:
        os.write(self._fd, b"." * times)

    def line(self, bound: float = BOUND_S) -> str:
        return self._lines.next(bound)

    def close(self) -> None:
        os.close(self._fd)
