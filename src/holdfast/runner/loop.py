"""One selector, one heap of timers, no threads. Between events the process sleeps in the kernel without a tick."""

from __future__ import annotations

import heapq
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

READ: int = select.EPOLLIN
WRITE: int = select.EPOLLOUT

# Waking this much later than planned means that we were stopped or the machine slept, not that it was busy.
_SLEPT_S = 1.0
# Later than planned by more than this, it may be that nobody looked at the descriptors.
_LATE_S = 0.01
# The kernel takes milliseconds in an int: a deadline farther away is approached in steps of two weeks.
_LONGEST_WAIT_S = 14 * 86400.0
# The kernel goes round among more than these.
_READY_MAX = 64


class Timer:
    """One-shot. `cancel` is idempotent; a fired timer is spent."""

    __slots__ = ("at", "call")

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    def __init__(self) -> None:
        # The kernel's own, for the `selectors` module is a layer of objects for every turn and every descriptor.
        self._epoll = select.epoll()
        self.watched: dict[int, tuple[int, Callable[[int], None]]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._serial = 0
        self._leaving = False
        # When we last woke from being stopped or suspended, for deadlines that must not count such a time.
        self.woke_at = 0.0

    def watch(self, fd: int, events: int, call: Callable[[int], None]) -> None:
        """Call `call(events)` while `fd` is ready; events 0 stops watching."""
        known = self.watched.get(fd)
        if not events:
            if known is not None:
                del self.watched[fd]
                self._epoll.unregister(fd)
        elif known != (events, call):
            if known is None:
                self._epoll.register(fd, events)
            elif known[0] != events:
                self._epoll.modify(fd, events)
            self.watched[fd] = (events, call)

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer(time.monotonic() + delay_s, call)
        self._serial += 1
        heapq.heappush(self._timers, (timer.at, self._serial, timer))
        return timer

    def woke(self) -> None:
        self.woke_at = time.monotonic()

    def leave(self) -> None:
        self._leaving = True

    def run(self, turn: Callable[[], None]) -> None:
        """Until `leave`. In each turn: ready descriptors first, then `turn`, then timers, so that output that
        arrived together with a deadline is seen before the deadline is judged."""
        while not self._leaving:
            planned = self._next()
            wait_s = None if planned is None else min(max(0.0, planned - time.monotonic()), _LONGEST_WAIT_S)
            ready = self.ready(wait_s)
            now = time.monotonic()
            if not ready and planned is not None and now - planned > _LATE_S:
                # A poll that a stop (SIGSTOP) interrupts returns nothing once its time is over, without a look.
                ready = self.ready(0)
            if planned is not None and now - planned > _SLEPT_S:
                self.woke_at = now
            self.serve(ready)
            turn()
            if self._fire(now):
                turn()  # what a timer changed waits for no other event

    def ready(self, wait_s: float | None) -> list[tuple[int, int]]:
        """Descriptors on which something happened, and what; sleeps until there is one, or `wait_s` have passed."""
        return self._epoll.poll(wait_s, _READY_MAX)

    def serve(self, ready: list[tuple[int, int]]) -> None:
        """Call whoever watches these."""
        before = [self.watched.get(fd) for fd, _ in ready]
        for (fd, events), known in zip(ready, before):
            # One that was closed by another's turn may have been opened anew for somebody else.
            now_there = self.watched.get(fd)
            if known is not None and now_there is not None and now_there[1] == known[1]:
                # An error or a hang-up is for whoever reads or writes there to find out.
                known[1](events & known[0] or known[0])

    def close(self) -> None:
        self._epoll.close()

    def _next(self) -> float | None:
        timers = self._timers
        while timers and timers[0][2].call is None:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def _fire(self, now: float) -> bool:
        due = []
        while self._timers and self._timers[0][0] <= now:
            due.append(heapq.heappop(self._timers)[2])
        for timer in due:
            call, timer.call = timer.call, None
            if call is not None:
                call()
        return bool(due)
