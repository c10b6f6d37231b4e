"""Waiting for signals on one descriptor, without a thread and without a tick.

The descriptor is an epoll over datagram sockets that writers send to, and over pidfds: of the runners whose sessions
this consumer wants, and of other holders of its signals. It is readable until `clear`, from the beginning, so that
what happened before is looked at once.
"""

from __future__ import annotations

import _socket as socket
import os
import select
import stat
import time
from _thread import allocate_lock

from ..core import failpoints, processes, signalfile, sockets
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
# Wake sockets of one owner.
WAKE_SOCKETS_MAX = 64


class Waker:
    """`fileno` for select and event loops, `wait` for programs that block, `await` for asyncio. One waits at a time."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._closed = True
        self._pid = os.getpid()
        self._consumer = consumer
        self._config = consumer.config
        self._epoll = select.epoll()
        self._closed = False
        self._sockets: dict[int, tuple[socket.socket, str, tuple[int, int]]] = {}
        # By the process watched, and those that are known to be gone: each death wakes once.
        self._pidfds: dict[tuple[int, int], int] = {}
        self._gone: set[tuple[int, int]] = set()
        self._lock = allocate_lock()
        try:
            self._bind()
        except BaseException:
            self.close()
            raise
        self.poke()

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
        """In a forked child too: what is registered and bound is the parent's."""
        return self._closed or os.getpid() != self._pid

    def fileno(self) -> int:
        return self._epoll.fileno()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until something can be claimed: True. False after the timeout."""
        return drive(self.arrival(Blocking(), timeout))

    def __await__(self) -> Generator[Any, Any, bool]:
        from ..sessions.driver import Asynchronous

        return self.arrival(Asynchronous(), None).__await__()

    async def arrival(self, driver: Driver, timeout: float | None) -> bool:
        """Wait until something is due: it came, its back-off ended, or its holder is gone. A burst is joined first."""
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

    async def stirred(self, driver: Driver, until: float | None = None) -> None:
        """Wait until something may have come since the last `clear`, or until the time `until`."""
        await driver.ready([self.fileno()], (), _left(until))

    def clear(self) -> None:
        """Not readable any more, until something else happens. Call it before a claim: what comes after is in the
        claim, or makes it readable again."""
        with self._lock:
            if not self.closed:
                self._clear()

    def hinted(self) -> set[str]:
        """Clear it; the sessions that were named since the last look at the queue."""
        self.clear()
        return set(self._consumer.hints)

    def _clear(self) -> None:
        for each, _, _ in self._sockets.values():
            for _ in range(_HINTS_AT_ONCE):
                try:
                    hint = each.recv(_HINT_BYTES)
                except BlockingIOError:
                    break
                session = hint.partition(b" ")[0]
                if session:
                    self._consumer.hints.add(os.fsdecode(session))
        ready = {fd for fd, _ in self._epoll.poll(0)}
        for process, fd in list(self._pidfds.items()):
            if fd in ready:
                self._note_death(process)
                self._drop(process)

    def poke(self) -> None:
        """Make it readable, as a writer would."""
        own = next(iter(self._sockets.values()), None)
        if own is None:
            return
        try:
            with_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        except OSError:
            return
        try:
            sockets.send_unix(with_socket, b" ", own[1])
        except OSError:
            pass  # full: readable it is
        finally:
            with_socket.close()

    def refresh(self) -> None:
        """Watch the processes that matter now. One that died before it could be watched wakes at once."""
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
                self.poke()

    def close(self) -> None:
        if self._closed:
            return
        if os.getpid() != self._pid:
            # Parent and child share the epoll: what is unregistered here would be unregistered there.
            self._closed = True
            for fd in self._pidfds.values():
                os.close(fd)
            for each, _, _ in self._sockets.values():
                each.close()
            self._epoll.close()
            return
        with self._lock:
            if not self._closed:
                self._close()

    def _close(self) -> None:
        self._closed = True
        for process in list(self._pidfds):
            self._drop(process)
        for each, path, own in self._sockets.values():
            each.close()
            try:
                found = os.lstat(path)
                if (found.st_dev, found.st_ino) == own:
                    os.unlink(path)
            except OSError:
                pass
        self._sockets.clear()
        self._epoll.close()

    def _wanted(self) -> list[tuple[int, int]]:
        owners = self._consumer.queue.filter.owners
        heard = [live for live in list(self._consumer.catchup.live.values()) if owners is None or live.owner in owners]
        try:
            others = [(other.pid, other.start) for other in self._consumer.queue.visible_others()]
        except HoldfastError:
            others = list(self._pidfds)  # the index is busy: those we know
        return [*others, *(process for live in heard for process in live.watch)]

    def _watch(self, process: tuple[int, int]) -> bool:
        pid, start = process
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError:
            return True  # no pidfd to be had: the next look notices the death
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
        directory = wake_directory(self._consumer.catchup.runtime)
        owners = self._consumer.queue.filter.owners
        names = (
            [signalfile.WAKE_ALL]
            if owners is None or len(owners) > _OWNERS_MAX
            else [*map(signalfile.owner_hash, owners)]
        )
        for name in names:
            make_room(directory, name, WAKE_SOCKETS_MAX)
            made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            path = os.path.join(directory, f"{name}-{os.urandom(6).hex()}")
            try:
                sockets.bind_unix(made, directory, os.path.basename(path))
                found = os.lstat(path)
                self._epoll.register(made.fileno(), select.EPOLLIN)
            except BaseException:
                made.close()
                raise
            self._sockets[made.fileno()] = (made, path, (found.st_dev, found.st_ino))


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


def wake_directory(runtime: str) -> str:
    """Where wake sockets are: ours alone, as the runtime directory is."""
    path = os.path.join(runtime, signalfile.WAKE_DIRECTORY)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UnsafeDirectory(path, "it is not a directory of ours alone", "remove it: it is created again")
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
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
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
