"""Observers of daemons, the signals of other hosts and runners for them, and callbacks when a signal is due."""

from __future__ import annotations

import _socket as socket
import logging
import os
import threading
import time

from ..core import clock, signalfile, sockets
from ..core.loop import READ
from ..errors import ShuttingDown
from ..model import RUNNING, SESSION_KEYS, Exit, Snapshot, format_cursor
from ..signals.records import Signal, entries, generations
from ..signals.waker import make_room, wake_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Protocol

    from ..core.loop import Loop, Timer
    from ..home import Home
    from ..signals.consumer import Consumer
    from .in_process import HostLoop

    class Deliverer(Protocol):
        """Runs callbacks one after the other, never on the thread that writes the records."""

        def deliver(self, work: Callable[[], None]) -> None: ...

        def close(self) -> None: ...


_log = logging.getLogger("holdfast.daemons")

DOMAIN = "daemons"


class Change:
    """`op` is added, removed, running, completed, failed, killed, restarting, unreachable, `phase:<text>` or the name
    of a variant. Ignore an op that you do not know."""

    __slots__ = ("at", "domain", "id", "op", "snapshot")

    def __init__(self, op: str, id: str, snapshot: Snapshot | None, at: str | None = None) -> None:
        self.domain = DOMAIN
        self.op = op
        self.id = id
        self.snapshot = snapshot
        self.at = at or clock.now_text()

    def __repr__(self) -> str:
        return f"<Change {self.op} {self.id}>"


class Observers:
    """Callbacks in the order in which they were added. One that is added during a notification gets the next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Each in a tuple of its own: the same callback may be added twice, and each time is removed on its own.
        self._entries: list[tuple[Callable[[Any], object]]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, callback: Callable[[Any], object]) -> Callable[[], None]:
        """Returns a function that removes it."""
        entry = (callback,)
        with self._lock:
            self._entries.append(entry)

        def remove() -> None:
            with self._lock:
                self._entries = [each for each in self._entries if each is not entry]

        return remove

    def notify(self, change: Any) -> None:
        """Call them all. One that raises is logged."""
        with self._lock:
            entries = list(self._entries)
        for (callback,) in entries:
            try:
                callback(change)
            except Exception:  # noqa: BLE001  it is the observer's own
                _log.exception("an observer of daemons failed at %s of %s", change.op, change.id)


class ThreadDeliverer:
    """For hosts that block: a thread of its own, so that an observer may ask about the daemon of its change."""

    def __init__(self) -> None:
        from queue import SimpleQueue

        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast observers", daemon=True)
        self._thread.start()

    def deliver(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def close(self) -> None:
        """Work that was delivered before runs first."""
        self._work.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


class LoopDeliverer:
    """For asyncio: observers run on the event loop's own thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def deliver(self, work: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            work()  # the loop is closed: wakes still have to happen

    def close(self) -> None:
        pass


def shown(record: Mapping[str, Any]) -> Snapshot:
    """The snapshot that a signal carries. What it had no room for is None."""
    values = {key: record.get(key) for key in SESSION_KEYS}
    exit = values["exit"]
    if exit is not None:
        survivors = exit.get("survivors") or 0
        if isinstance(survivors, int):
            exit = {**exit, "survivors": [], "survivors_more": survivors}
        values["exit"] = Exit.from_json(exit)
    ends: dict[str, int] = dict(values["ends"] or {})
    values["ends"] = ends
    values["cursor"] = format_cursor(ends)
    values["metadata"] = dict(values["metadata"] or {})
    values["labels"] = dict(values["labels"] or {})
    values["description"] = values["description"] or values["name"] or values["command"] or values["id"]
    return Snapshot(**values)


def op_of(signal: Signal) -> str:
    """What a signal is called as a change."""
    if signal.variant != "lifecycle":
        return signal.variant
    phase = str(signal.fields.get("phase"))
    return {"started": RUNNING, "ended": str(signal.fields.get("status"))}.get(phase, phase)


# The signals of runners and other hosts.
#
# A datagram says that a signal file has grown; the new records are read from the file. Nothing polls, and the next
# datagram makes up for one that was lost.


_HINT_BYTES = 64
# How many hosts of one home may observe: as many as may wait for the signals of one owner.
_HOSTS_MAX = 64


class _Place:
    """How far the file of one session was read."""

    __slots__ = ("at", "inode", "seq")

    def __init__(self) -> None:
        self.inode = 0
        self.at = 0
        self.seq = 0


class Feed:
    """Calls `heard(signal)` on the loop's thread for every record that is written from now on."""

    def __init__(self, loop: Loop, home: Home, runtime: str, heard: Callable[[Signal], None]) -> None:
        self._loop = loop
        self._home = home
        self._heard = heard
        self._places: dict[str, _Place] = {}
        directory = wake_directory(runtime)
        make_room(directory, signalfile.WAKE_VIEW, _HOSTS_MAX)
        name = f"{signalfile.WAKE_VIEW}-{os.urandom(6).hex()}"
        self._path = os.path.join(directory, name)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            sockets.bind_unix(self._socket, directory, name)
        except BaseException:
            self._socket.close()
            raise

    def begin(self, known: Iterable[str]) -> None:
        """Of the sessions in `known` only new records count. The list is made after the socket is bound."""
        for session in known:
            self._read(session)
        self._loop.watch(self._socket.fileno(), READ, self._hinted)

    def close(self) -> None:
        self._loop.watch(self._socket.fileno(), 0, self._hinted)
        self._socket.close()
        try:
            os.unlink(self._path)
        except OSError:
            pass

    def _hinted(self, _events: int) -> None:
        sessions: dict[str, None] = {}
        while True:
            try:
                hint = self._socket.recv(_HINT_BYTES)
            except OSError:
                break
            sessions[os.fsdecode(hint.partition(b" ")[0])] = None
        self.read(sessions)

    def read(self, sessions: Iterable[str]) -> None:
        """Report what is new in their files."""
        for session in sessions:
            for signal in self._read(session):
                self._heard(signal)

    def _read(self, session: str) -> list[Signal]:
        """The records of its file that were not read before."""
        if session == "home":
            return []
        place = self._places.setdefault(session, _Place())
        found: list[Signal] = []
        try:
            with generations(self._home.session(session)) as there:
                inodes = [inode for _, inode in there]
                for fd, inode in there[inodes.index(place.inode) if place.inode in inodes else 0 :]:
                    at = place.at if inode == place.inode else 0
                    for _, end, each in entries(fd, session, at):
                        if each is None:
                            break  # it is being written: a datagram follows when it is whole
                        at = end
                        # Records that a rotation carried over were read before.
                        if isinstance(each, Signal) and each.seq > place.seq:
                            place.seq = each.seq
                            found.append(each)
                    place.inode, place.at = inode, at
        except OSError:
            pass  # the next datagram reads it again
        return found


# Calling a host that does not wait itself when something is due for one of its consumers. The loop of in-process
# daemons watches the consumer's waker, so nothing polls and no thread is started.


# After a look that failed.
_AGAIN_S = 1.0


class Waking:
    """`hear(sessions)` reads the signals of these sessions for observers, `deliver(work)` runs work after observers.
    One signal calls back once, however often it is looked for, until `taken` says that the signals were claimed."""

    def __init__(
        self,
        host: HostLoop,
        consumer: Consumer,
        hear: Callable[[set[str]], None],
        deliver: Callable[[Callable[[], None]], None],
        callback: Callable[[], object],
    ) -> None:
        self._host = host
        self._consumer = consumer
        self._hear = hear
        self._deliver = deliver
        self._callback = callback
        self._waker = consumer.waker()
        # The first look finds what it has reported so far.
        self._waker.clear()
        self._lock = threading.Lock()
        self._called_for: tuple[int, str, int] | None = None
        self._taken = 0
        self._again: Timer | None = None

    def begin(self) -> None:
        self._host.call(lambda: self._host.loop.watch(self._waker.fileno(), READ, self._woken))

    def close(self) -> None:
        def forget() -> None:
            self._host.loop.watch(self._waker.fileno(), 0, self._woken)
            self._not_again()
            self._waker.close()

        try:
            self._host.call(forget)
        except ShuttingDown:
            self._waker.close()

    def look(self, *, heard: bool = False) -> None:
        """Call back if something new is due, and look again when the next signal is due. With `heard` the observers
        have been called already: the callback runs on this thread."""
        while True:
            taken = self._taken
            pending = self._consumer.pending()
            first = next(iter(self._consumer.peek(1)), None) if pending else None
            # With its deliveries: a signal that another host claimed before it died is due again.
            due = None if first is None else (int(pending), first.id, first.deliveries)
            with self._lock:
                if taken != self._taken:
                    continue  # the signals that we saw may have been claimed since
                fresh = due is not None and due != self._called_for
                self._called_for = due
                break
        if pending.next_due is not None:
            left = max(0.0, pending.next_due - time.monotonic())
            self._host.post(lambda: self._look_after(left))
        if fresh and heard:
            self._call()
        elif fresh:
            # Observers may not have been called for it yet.
            sessions = self._consumer.untold()
            self._host.post(lambda: self._call_after(sessions))

    def taken(self) -> None:
        with self._lock:
            self._called_for = None
            self._taken += 1

    def _woken(self, _events: int) -> None:
        self._hear(self._waker.hinted())
        self._deliver(self._look)

    def _look(self) -> None:
        """On the thread of observers, which must not end."""
        try:
            self.look()
        except ShuttingDown:
            pass
        except Exception:  # noqa: BLE001  most often a busy index: the host has to be woken all the same
            _log.exception("looking for due signals of %s failed", self._consumer.name)
            self._host.post(lambda: self._look_after(_AGAIN_S))

    def _call(self) -> None:
        try:
            self._callback()
        except Exception:  # noqa: BLE001  it is the host's own
            _log.exception("the wake for %s failed", self._consumer.name)

    def _call_after(self, sessions: set[str]) -> None:
        self._hear(sessions)
        self._deliver(self._call)

    def _look_after(self, seconds: float) -> None:
        self._not_again()
        self._again = self._host.loop.after(seconds, lambda: self._deliver(self._look))

    def _not_again(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
