"""One selector, one heap of timers, no threads. Between events the process sleeps in the kernel without a tick."""

from __future__ import annotations

import heapq
import selectors
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE

# Waking this much later than planned means that we were stopped or the machine slept, not that it was busy.
_SLEPT_S = 1.0
# The kernel takes milliseconds in an int: a deadline farther away is approached in steps of two weeks.
_LONGEST_WAIT_S = 14 * 86400.0


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
        self.selector = selectors.DefaultSelector()
        # What the selector knows, where looking costs nothing and watching the same again is free.
        self._watched: dict[int, tuple[int, Callable[[int], None]]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._serial = 0
        self._leaving = False
        # When we last woke from being stopped or suspended, for deadlines that must not count such a time.
        self.woke_at = 0.0

    def watch(self, fd: int, events: int, call: Callable[[int], None]) -> None:
        """Call `call(events)` while `fd` is ready; events 0 stops watching."""
        known = self._watched.get(fd)
        if not events:
            if known is not None:
                del self._watched[fd]
                self.selector.unregister(fd)
        elif known != (events, call):
            if known is None:
                self.selector.register(fd, events, call)
            else:
                self.selector.modify(fd, events, call)
            self._watched[fd] = (events, call)

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
            ready = self.selector.select(wait_s)
            now = time.monotonic()
            if planned is not None and now - planned > _SLEPT_S:
                self.woke_at = now
            for key, events in ready:
                # One that was closed by another's turn may have been opened anew for somebody else.
                now_there = self._watched.get(key.fd)
                if now_there is not None and now_there[1] == key.data:
                    key.data(events)
            turn()
            if self._fire(now):
                turn()  # what a timer changed waits for no other event

    def close(self) -> None:
        self.selector.close()

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
