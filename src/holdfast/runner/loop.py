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
        self._timers: list[tuple[float, int, Timer]] = []
        self._serial = 0
        self._leaving = False
        # How long the last wait overslept, for deadlines that must not count a suspension.
        self.overslept_s = 0.0

    def watch(self, fd: int, events: int, call: Callable[[int], None]) -> None:
        """Call `call(events)` while `fd` is ready; events 0 stops watching."""
        known = fd in self.selector.get_map()
        if not events:
            if known:
                self.selector.unregister(fd)
        elif known:
            self.selector.modify(fd, events, call)
        else:
            self.selector.register(fd, events, call)

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer(time.monotonic() + delay_s, call)
        self._serial += 1
        heapq.heappush(self._timers, (timer.at, self._serial, timer))
        return timer

    def leave(self) -> None:
        self._leaving = True

    def run(self, turn: Callable[[], None]) -> None:
        """Until `leave`. In each turn: ready descriptors first, then `turn`, then timers, so that output that
        arrived together with a deadline is seen before the deadline is judged."""
        while not self._leaving:
            planned = self._next()
            wait_s = None if planned is None else max(0.0, planned - time.monotonic())
            ready = self.selector.select(wait_s)
            now = time.monotonic()
            late = 0.0 if planned is None else now - planned
            self.overslept_s = late if late > _SLEPT_S else 0.0
            for key, events in ready:
                if key.fd in self.selector.get_map():
                    key.data(events)
            turn()
            self._fire(now)

    def close(self) -> None:
        self.selector.close()

    def _next(self) -> float | None:
        timers = self._timers
        while timers and timers[0][2].call is None:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def _fire(self, now: float) -> None:
        due = []
        while self._timers and self._timers[0][0] <= now:
            due.append(heapq.heappop(self._timers)[2])
        for timer in due:
            call, timer.call = timer.call, None
            if call is not None:
                call()
