"""A runner's loop inside a host: one thread that keeps all of its in-process daemons.

Everything that is written about them, and every answer given to other hosts, comes from here, so that none of it needs
a lock. The thread is started with the first daemon and sleeps in the kernel while nothing happens.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from concurrent.futures import Future

from ..errors import ShuttingDown
from ..runner.descriptors import Reserve
from ..runner.loop import READ, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol, TypeVar

    T = TypeVar("T")

    class Kept(Protocol):
        def turn(self) -> None:
            """After whatever happened in the loop: ends are recorded, waiters answered."""

        def host_leaves(self) -> None:
            """The loop is closing, and nobody will be there for it any more."""

        def leave_to_parent(self) -> None:
            """In a forked child: let go of the locks, which are the parent's."""


class HostLoop:
    def __init__(self) -> None:
        self.loop = Loop()
        self.reserve = Reserve()
        self.kept: list[Kept] = []
        self._work: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pid = os.getpid()
        self._closing = threading.Lock()
        self._closed = False
        self.loop.watch(self._bell, READ, self._rung)
        self._thread = threading.Thread(target=self._run, name="holdfast daemons", daemon=True)
        _alive.add(self)
        self._thread.start()

    @property
    def here(self) -> bool:
        """Is this the thread of the loop itself?"""
        return threading.get_ident() == self._thread.ident

    def call(self, work: Callable[[], T]) -> T:
        """Do it on the loop's thread and give its answer, or its error."""
        return work() if self.here else self.post(work).result()

    def post(self, work: Callable[[], T]) -> Future[T]:
        """The same without waiting; in the order in which it was asked for."""
        answer: Future[T] = Future()
        with self._closing:
            if self._closed or os.getpid() != self._pid:
                raise ShuttingDown
            self._work.append((work, answer))
            os.eventfd_write(self._bell, 1)
        return answer

    def close(self) -> None:
        """Whatever was asked for before is done first."""
        with self._closing:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
            os.eventfd_write(self._bell, 1)
        self._thread.join()
        for each in self.kept:
            each.host_leaves()
        self.loop.close()
        self.reserve.close()
        os.close(self._bell)
        _alive.discard(self)

    def _run(self) -> None:
        while not self._closed or self._work:
            try:
                self.loop.run(self._turn)
            except Exception:  # noqa: BLE001  one daemon's trouble, or a bug of ours, must not end the others
                _logger().exception("the loop of in-process daemons met a problem, and goes on")

    def _rung(self, _events: int) -> None:
        os.eventfd_read(self._bell)
        while self._work:
            work, answer = self._work.popleft()
            try:
                answer.set_result(work())
            except BaseException as problem:  # noqa: BLE001  it belongs to whoever asked
                answer.set_exception(problem)
        if self._closed:
            self.loop.leave()

    def _turn(self) -> None:
        for each in list(self.kept):
            each.turn()

    def leave_to_parent(self) -> None:
        for each in self.kept:
            each.leave_to_parent()


_alive: weakref.WeakSet[HostLoop] = weakref.WeakSet()


def _after_fork() -> None:
    """A child that lives on must not make its dead parent's daemons look alive."""
    for each in list(_alive):
        each.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)


def _logger() -> Any:
    import logging

    return logging.getLogger("holdfast.daemons")
