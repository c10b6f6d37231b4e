"""One selector and one heap of timers, no threads; between events the process sleeps in the kernel without a tick. And
what a process does when the disk or the descriptors run out: repeat a write, keep descriptors in reserve."""

from __future__ import annotations

import heapq
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable


READ: int = select.EPOLLIN
WRITE: int = select.EPOLLOUT

# Waking this much later than planned means that we were stopped or the machine slept, not that it was busy.
_SLEPT_S = 1.0
# Later than planned by more than this, the descriptors may not have been looked at.
_LATE_S = 0.01
# The kernel takes milliseconds in an int: a deadline farther away is approached in steps of two weeks.
_LONGEST_WAIT_S = 14 * 86400.0
# With more ready descriptors than this the kernel serves them in turn.
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
        arrived together with a deadline is seen before the deadline."""
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
            self.dispatch(ready)
            turn()
            if self._fire(now):
                turn()  # what a timer changed waits for no other event

    def ready(self, wait_s: float | None) -> list[tuple[int, int]]:
        """Descriptors on which something happened, and what; sleeps until there is one, or `wait_s` have passed."""
        return self._epoll.poll(wait_s, _READY_MAX)

    def dispatch(self, ready: list[tuple[int, int]]) -> None:
        """Call the watchers of these."""
        before = [self.watched.get(fd) for fd, _ in ready]
        for (fd, events), known in zip(ready, before):
            # A descriptor that an earlier watcher closed may have been opened again for another.
            now_there = self.watched.get(fd)
            if known is not None and now_there is not None and now_there[1] == known[1]:
                # The watcher finds out about an error or a hang-up when it reads or writes.
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


class Alarm:
    """A timer for one purpose: setting it again moves it."""

    __slots__ = ("_call", "_loop", "_timer")

    def __init__(self, loop: Loop, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._timer: Timer | None = None

    @property
    def is_set(self) -> bool:
        return self._timer is not None and self._timer.call is not None

    @property
    def at(self) -> float:
        """When it rings; never, while it is not set."""
        return self._timer.at if self._timer is not None and self._timer.call is not None else float("inf")

    def set(self, delay_s: float) -> None:
        self.cancel()
        self._timer = self._loop.after(max(0.0, delay_s), self._call)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


# A write that the disk refuses is repeated after this, then at growing intervals up to the second: the disk may stay
# full for days. A process that stays only for this write repeats it at the first interval, for at most the third.
_RETRY_S = 0.25
_RETRY_MAX_S = 30.0
_LAST_TRIES_S = 10.0


class Retry:
    """Repeats a write into a directory while the disk refuses it; a directory that was removed takes no more."""

    __slots__ = ("_alarm", "_directory", "_is_limited", "_pause_s", "_until")

    def __init__(self, loop: Loop, directory: int, write: Callable[[], None]) -> None:
        self._alarm = Alarm(loop, write)
        self._directory = directory
        self._pause_s = _RETRY_S
        self._is_limited = False
        self._until: float | None = None

    @property
    def is_due(self) -> bool:
        """Was the write refused, and will it be repeated?"""
        return self._alarm.is_set

    def refused(self) -> None:
        if self._is_limited:
            now = time.monotonic()
            if self._until is None:
                self._until = now + _LAST_TRIES_S
            if now >= self._until:
                return
            self._pause_s = _RETRY_S
        if os.fstat(self._directory).st_nlink:
            self._alarm.set(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _RETRY_MAX_S)

    def taken(self) -> None:
        self._alarm.cancel()
        self._pause_s = _RETRY_S
        self._until = None

    def limit(self) -> None:
        """From now on this process stays only for this write."""
        self._is_limited = True
        if self._alarm.is_set:
            self.refused()


# Loop, signals, directory, lock, log, endpoint, three pipes with both ends, and a few to look around with.
NEEDED = 20


class TooFewDescriptors(Exception):
    """This process may not open enough files to run a session."""

    def __init__(self, given: int, problem: OSError) -> None:
        super().__init__(f"the runner needs {NEEDED} descriptors and was given {given}: {problem.strerror}")
        self.errno = problem.errno


def check_descriptors() -> None:
    """Raise TooFewDescriptors before anything exists, instead of a failure half-way."""
    taken: list[int] = []
    try:
        for _ in range(NEEDED):
            taken.append(os.dup(0))  # noqa: PERF401 - those taken must be known when the next is refused
    except OSError as problem:
        raise TooFewDescriptors(len(taken), problem) from None
    finally:
        for fd in taken:
            os.close(fd)


class Reserve:
    """Two spare descriptors. Inside the `with` block they are closed, so that the files and pidfds needed to record an
    end can be opened even when clients or a lowered limit have taken all other descriptors."""

    def __init__(self) -> None:
        self._fds = [os.dup(0), os.dup(0)]

    def __enter__(self) -> None:
        self.close()

    def __exit__(self, *_: object) -> None:
        try:
            while len(self._fds) < 2:
                self._fds.append(os.dup(0))
        except OSError:
            pass  # the limit sank below even these; the next pass tries again

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())
