"""What wakes a host for its daemons: the signals that runners and other hosts write, and a signal that is due.

A datagram says that a signal file has grown; the new records are read from the file. Nothing polls, and the next
datagram makes up for one that was lost.
"""

from __future__ import annotations

import logging
import threading
import time

from ..core import wake
from ..core.loop import READ
from ..errors import ShuttingDown
from ..signals.lines import Signal, entries, generations, unread
from ..signals.waker import WakeSocket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..core.loop import Loop, Timer
    from ..home import Home
    from ..signals.consumer import Consumer
    from .in_process import HostLoop


_log = logging.getLogger("holdfast.daemons")


class _Position:
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
        self._positions: dict[str, _Position] = {}
        self._socket = WakeSocket(runtime, wake.VIEW)

    def begin(self, known: Iterable[str]) -> None:
        """Of the sessions in `known` only new records count. The list is made after the socket is bound."""
        for session in known:
            self._read(session)
        self._loop.watch(self._socket.fileno(), READ, self._on_wake)

    def close(self) -> None:
        self._loop.watch(self._socket.fileno(), 0, self._on_wake)
        self._socket.close()

    def _on_wake(self, _events: int) -> None:
        self.read(self._socket.take_hints())

    def read(self, sessions: Iterable[str]) -> None:
        """Report what is new in their files."""
        for session in sessions:
            for signal in self._read(session):
                self._heard(signal)

    def _read(self, session: str) -> list[Signal]:
        """The records of its file that were not read before."""
        if session == "home":
            return []
        position = self._positions.setdefault(session, _Position())
        found: list[Signal] = []
        try:
            with generations(self._home.session(session)) as there:
                for fd, inode, at in unread(there, position.inode, position.at):
                    for _, end, each in entries(fd, session, at):
                        if each is None:
                            break  # it is being written: a datagram follows when it is whole
                        at = end
                        # Records that a rotation carried over were read before.
                        if isinstance(each, Signal) and each.seq > position.seq:
                            position.seq = each.seq
                            found.append(each)
                    position.inode, position.at = inode, at
        except OSError:
            pass  # the next datagram reads it again
        return found


# When to look again after a look that failed.
_AGAIN_S = 1.0


class DueCallback:
    """Calls `callback` when a signal is due for a consumer, for a host that does not wait itself: the loop of
    in-process daemons watches the waker. One signal calls back once, until `claimed` says that it was claimed.

    `read(sessions)` reads new signals of these sessions for observers; `deliver(work)` runs work after observers."""

    def __init__(
        self,
        host: HostLoop,
        consumer: Consumer,
        read: Callable[[set[str]], None],
        deliver: Callable[[Callable[[], None]], None],
        callback: Callable[[], object],
    ) -> None:
        self._host = host
        self._consumer = consumer
        self._read_signals = read
        self._deliver = deliver
        self._callback = callback
        self._waker = consumer.waker()
        # The first look finds everything that the waker has reported so far.
        self._waker.clear()
        self._lock = threading.Lock()
        self._called_for: tuple[int, str, int] | None = None
        self._claims = 0
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

    def look(self, *, observed: bool = False) -> None:
        """Call back if another signal is due, and look again when the next one will be. With `observed` the observers
        have been called already: the callback runs on this thread."""
        while True:
            claims = self._claims
            pending = self._consumer.pending()
            first = next(iter(self._consumer.peek(1)), None) if pending else None
            # Deliveries count: a signal that another host claimed before it died is due again.
            due = None if first is None else (int(pending), first.id, first.deliveries)
            with self._lock:
                if claims != self._claims:
                    continue  # these signals may have been claimed meanwhile
                fresh = due is not None and due != self._called_for
                self._called_for = due
                break
        if pending.next_due is not None:
            left = max(0.0, pending.next_due - time.monotonic())
            self._host.post(lambda: self._look_after(left))
        if fresh and observed:
            self._call()
        elif fresh:
            # Observers may not have been called for it yet.
            sessions = self._consumer.unsettled()
            self._host.post(lambda: self._call_after(sessions))

    def claimed(self) -> None:
        with self._lock:
            self._called_for = None
            self._claims += 1

    def _woken(self, _events: int) -> None:
        self._read_signals(self._waker.clear())
        self._deliver(self._look)

    def _look(self) -> None:
        """Look, on the thread of observers, which no error may end."""
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
        self._read_signals(sessions)
        self._deliver(self._call)

    def _look_after(self, seconds: float) -> None:
        self._not_again()
        self._again = self._host.loop.after(seconds, lambda: self._deliver(self._look))

    def _not_again(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
