"""Waiting for signals on one descriptor, without a thread and without a tick.

The descriptor is an epoll over datagram sockets that writers send to, and over pidfds: of the runners whose sessions
this consumer wants, and of other holders of its signals. A wake makes it readable, `clear` makes it unreadable. A new
waker is readable, so that its owner looks once for what happened before.
"""

from __future__ import annotations

import _socket as socket
import os
import select
import stat
import time
from _thread import allocate_lock

from ..core import failpoints, processes, sockets, wake
from ..errors import Busy, HoldfastError, UnsafeDirectory
from ..sessions.driver import Blocking, drive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType
    from typing import Any, Self

    from ..sessions.driver import Driver
    from .consumer import AsyncConsumer


# A consumer of more owners than this is woken for all owners.
_OWNERS_MAX = 16
_HINT_BYTES = 64
_HINTS_AT_ONCE = 10_000
# Runners whose death wakes a waiting consumer.
WATCHED_RUNNERS_MAX = 256
# Wake sockets of one name.
WAKE_SOCKETS_MAX = 64


class WakeSocket:
    """A socket in the wake directory: writers of signals for `name` send it the id of the session."""

    def __init__(self, runtime: str, name: str) -> None:
        directory = wake_directory(runtime)
        make_room(directory, name, WAKE_SOCKETS_MAX)
        file = f"{name}-{os.urandom(6).hex()}"
        self.path = os.path.join(directory, file)
        self._socket = _datagram_socket()
        try:
            sockets.bind_unix(self._socket, directory, file)
            found = os.lstat(self.path)
        except BaseException:
            self._socket.close()
            raise
        self._file = found.st_dev, found.st_ino

    def fileno(self) -> int:
        return self._socket.fileno()

    def take_hints(self) -> list[str]:
        """The sessions that were named since the last call, in that order; of very many, the rest keeps it readable."""
        sessions: dict[str, None] = {}
        for _ in range(_HINTS_AT_ONCE):
            try:
                hint = self._socket.recv(_HINT_BYTES)
            except BlockingIOError:
                break
            sessions[os.fsdecode(hint.partition(b" ")[0])] = None
        sessions.pop("", None)  # our own
        return list(sessions)

    def make_readable(self) -> None:
        """Send it a datagram, as a writer does."""
        try:
            sender = _datagram_socket()
        except OSError:
            return
        try:
            sockets.send_unix(sender, b" ", self.path)
        except OSError:
            pass  # its buffer is full, so it is readable
        finally:
            sender.close()

    def leave_to_parent(self) -> None:
        """In a forked child."""
        self._socket.close()

    def close(self) -> None:
        self._socket.close()
        try:
            found = os.lstat(self.path)
            if (found.st_dev, found.st_ino) == self._file:
                os.unlink(self.path)
        except OSError:
            pass


class Waker:
    """`fileno` for select and event loops, `wait` for programs that block, `await` for asyncio. One waits at a time."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._closed = True
        self._pid = os.getpid()
        self._consumer = consumer
        self._config = consumer.config
        self._epoll = select.epoll()
        self._closed = False
        self._sockets: list[WakeSocket] = []
        # The pidfd of each watched process, and the processes whose death has woken already: each wakes once.
        self._pidfds: dict[tuple[int, int], int] = {}
        self._gone: set[tuple[int, int]] = set()
        self._lock = allocate_lock()
        try:
            self._bind()
        except BaseException:
            self.close()
            raise
        self.make_readable()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Waker of {self._consumer.name}{', closed' if self.closed else ''}>"

    @property
    def closed(self) -> bool:
        """True also in a forked child: the sockets and the epoll belong to its parent."""
        return self._closed or os.getpid() != self._pid

    def fileno(self) -> int:
        return self._epoll.fileno()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until something can be claimed: True. False after the timeout."""
        return drive(self.wait_due(Blocking(), timeout))

    def __await__(self) -> Generator[Any, Any, bool]:
        from ..sessions.driver import Asynchronous

        return self.wait_due(Asynchronous(), None).__await__()

    async def wait_due(self, driver: Driver, timeout: float | None) -> bool:
        """Wait until a signal is due: it is new, its back-off has ended, or its holder is gone. After a wake it waits a
        moment more, so that a burst becomes one message."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self.clear()
            pending = await self._consumer.pending()
            if pending:
                return True
            again_ns = self._consumer.catchup.again_ns
            times = (pending.next_due, again_ns and again_ns / 1e9, deadline)
            until = min((each for each in times if each is not None), default=None)
            if await driver.ready([self.fileno()], (), _left(until)):
                left = _left(deadline)
                gather = self._config.signals_wake_gather
                await driver.ready((), (), gather if left is None else min(gather, left))
            elif deadline is not None and time.monotonic() >= deadline:
                return False

    async def wait_readable(self, driver: Driver, until: float | None = None) -> None:
        """Wait until the descriptor is readable, or until the time `until`. Whether anything is due is not checked."""
        await driver.ready([self.fileno()], (), _left(until))

    def clear(self) -> set[str]:
        """Make it unreadable until something else happens. Call it before a claim: what comes later is in the claim, or
        makes it readable again. Returns the sessions that writers have named since the queue was last looked at."""
        with self._lock:
            if not self.closed:
                self._receive()
        return set(self._consumer.hints)

    def _receive(self) -> None:
        for each in self._sockets:
            self._consumer.hints.update(each.take_hints())
        ready = {fd for fd, _ in self._epoll.poll(0)}
        for process, fd in list(self._pidfds.items()):
            if fd in ready:
                self._note_death(process)
                self._drop(process)

    def make_readable(self) -> None:
        """Until the next `clear`."""
        for each in self._sockets[:1]:
            each.make_readable()

    def refresh(self) -> None:
        """Watch the processes whose death may free or end something. One that is dead already wakes at once."""
        if self.closed or failpoints.off("pidfd"):
            return
        wanted = set(self._wanted())
        with self._lock:
            if not self.closed:
                self._refresh(wanted)

    def _refresh(self, wanted: set[tuple[int, int]]) -> None:
        for process in self._pidfds.keys() - wanted:
            self._drop(process)
        self._gone &= wanted
        for process in wanted - self._pidfds.keys() - self._gone:
            if len(self._pidfds) >= WATCHED_RUNNERS_MAX:
                break
            if not self._watch(process):
                self._note_death(process)
                self.make_readable()

    def close(self) -> None:
        if self._closed:
            return
        if os.getpid() != self._pid:
            # Parent and child share the epoll: what is unregistered here would be unregistered there.
            self._closed = True
            for fd in self._pidfds.values():
                os.close(fd)
            for each in self._sockets:
                each.leave_to_parent()
            self._epoll.close()
            return
        with self._lock:
            if not self._closed:
                self._close()

    def _close(self) -> None:
        self._closed = True
        for process in list(self._pidfds):
            self._drop(process)
        for each in self._sockets:
            each.close()
        self._sockets.clear()
        self._epoll.close()

    def _wanted(self) -> list[tuple[int, int]]:
        """Other holders of this consumer's signals, and the runners of its sessions."""
        owners = self._consumer.queue.filter.owners
        known = list(self._consumer.catchup.known.values())
        watched = [process for each in known if owners is None or each.owner in owners for process in each.watch]
        try:
            others = [(other.pid, other.start) for other in self._consumer.queue.visible_others()]
        except HoldfastError:
            others = list(self._pidfds)  # the index is busy: keep those that are watched
        return [*others, *watched]

    def _watch(self, process: tuple[int, int]) -> bool:
        pid, start = process
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError:
            return True  # no pidfd is available: the next look notices the death
        if not processes.same(pid, start):
            os.close(fd)
            return False
        self._epoll.register(fd, select.EPOLLIN)
        self._pidfds[process] = fd
        return True

    def _note_death(self, process: tuple[int, int]) -> None:
        self._gone.add(process)
        self._consumer.catchup.dead.add(process)

    def _drop(self, process: tuple[int, int]) -> None:
        fd = self._pidfds.pop(process)
        self._epoll.unregister(fd)
        os.close(fd)

    def _bind(self) -> None:
        owners = self._consumer.queue.filter.owners
        names = [wake.ALL] if owners is None or len(owners) > _OWNERS_MAX else [*map(wake.owner_hash, owners)]
        for name in names:
            made = WakeSocket(self._consumer.catchup.runtime, name)
            self._sockets.append(made)
            self._epoll.register(made.fileno(), select.EPOLLIN)


def _datagram_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


def wake_directory(runtime: str) -> str:
    """The directory of the wake sockets; only our user may enter it."""
    path = os.path.join(runtime, wake.DIRECTORY)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UnsafeDirectory(
            path, "it is not a directory that only this user can use", "remove it: it is created again"
        )
    return path


def make_room(directory: str, name: str, most: int) -> None:
    """Remove the sockets of dead processes where one name has too many."""
    there = [each for each in os.listdir(directory) if each.partition("-")[0] == name]
    if len(there) < most:
        return
    if len(there) - sweep(directory, there) >= most:
        raise Busy(f"{most} hosts already wait for these signals")


def sweep(directory: str, names: list[str] | None = None) -> int:
    """Remove the sockets of processes that are gone. Returns how many."""
    gone = dead(directory, names)
    for path in gone:
        os.unlink(path)
    return len(gone)


def dead(directory: str, names: list[str] | None = None) -> list[str]:
    """The sockets at which no process listens any more."""
    found = []
    sender = _datagram_socket()
    try:
        if names is None:
            names = os.listdir(directory) if os.path.isdir(directory) else []
        for name in names:
            path = os.path.join(directory, name)
            try:
                sockets.connect_unix(sender, path)
            except ConnectionRefusedError:
                found.append(path)
            except OSError:
                continue
    finally:
        sender.close()
    return found
