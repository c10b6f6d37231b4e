"""Waking a host that does not wait itself: it is called back when something is due for one of its consumers.

The loop of in-process daemons watches the consumer's waker, so nothing ticks and no thread is started. Observers have
heard by then what it was: what the waker speaks of is read for them first.
"""

from __future__ import annotations

import threading
import time

from ..errors import ShuttingDown
from ..runner.loop import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..runner.loop import Timer
    from ..signals.consumer import Consumer
    from .hostloop import HostLoop

# After a look that failed.
_AGAIN_S = 1.0


class Waking:
    """`hear(sessions)` tells observers of these sessions, `deliver(work)` does work after that. One signal calls back
    once, however often it is looked for, until `taken` says that somebody took what there was."""

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
        # What it has said since it was made, the first look tells.
        self._waker.clear()
        self._lock = threading.Lock()
        self._called_for: tuple[int, str, int] | None = None
        self._taken = 0
        self._again: Timer | None = None

    def begin(self) -> None:
        self._host.call(lambda: self._host.loop.watch(self._waker.fileno(), READ, self._stirred))

    def close(self) -> None:
        def forget() -> None:
            self._host.loop.watch(self._waker.fileno(), 0, self._stirred)
            self._not_again()
            self._waker.close()

        try:
            self._host.call(forget)
        except ShuttingDown:
            self._waker.close()

    def look(self, *, heard: bool = False) -> None:
        """Call back if something is due that nobody was called for, and look again when the next thing is. `heard`:
        observers know of it already, so that we are called on this very thread."""
        while True:
            taken = self._taken
            pending = self._consumer.pending()
            first = next(iter(self._consumer.peek(1)), None) if pending else None
            # With its deliveries: what another host took and died with is due anew, though all else is as it was.
            due = None if first is None else (int(pending), first.id, first.deliveries)
            with self._lock:
                if taken != self._taken:
                    continue  # what we saw may be what was taken
                fresh = due is not None and due != self._called_for
                self._called_for = due
                break
        if pending.next_due is not None:
            left = max(0.0, pending.next_due - time.monotonic())
            self._host.post(lambda: self._look_after(left))
        if fresh and heard:
            self._call()
        elif fresh:
            # It may be newer than what brought us here.
            sessions = self._consumer.untold()
            self._host.post(lambda: self._call_after(sessions))

    def taken(self) -> None:
        with self._lock:
            self._called_for = None
            self._taken += 1

    def _stirred(self, _events: int) -> None:
        self._hear(self._waker.hinted())
        self._deliver(self._look)

    def _look(self) -> None:
        """On the thread that tells observers, which has to live on."""
        try:
            self.look()
        except ShuttingDown:
            pass
        except Exception:  # noqa: BLE001  a busy index most often: nobody may be left asleep for that
            _logger().exception("what is due for %s could not be looked up", self._consumer.name)
            self._host.post(lambda: self._look_after(_AGAIN_S))

    def _call(self) -> None:
        try:
            self._callback()
        except Exception:  # noqa: BLE001  it is the host's own
            _logger().exception("the wake for %s failed", self._consumer.name)

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


def _logger() -> Any:
    import logging

    return logging.getLogger("holdfast.daemons")
