"""Attending to people: claims what they are to be told, tells it, and settles it when it was.

A claim is held as long as its notice is under way, retries included: if we die, another takes over at once with the
same signals. One thread decides and touches the queue; each delivery has a thread of its own, which is given so long
and then cut off.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time

from ..errors import HoldfastError, IndexBusy
from ..runner import points
from .channels import AGAIN, DELIVERED, FAILED, GONE, Outcome
from .notices import Notice
from .people import BEFORE, EXPIRED, Gathering, Moment, age_s, fate, retry_wait, wall_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Protocol

    from .channels import Channel, Delivery
    from .records import Signal
    from .redact import Redactor
    from .standing import Standing

    class Batch(Protocol):
        def settle(self, ids: Iterable[str] | None = None) -> object: ...
        def release(self, reason: str, *, ids: Iterable[str] | None = None) -> object: ...


# As many signals of one channel are held at a time: beyond that the queue keeps them.
_HELD_MAX = 1000
# A queue that is busy is asked again after this.
BUSY_S = 1.0


class Rules:
    """The numbers in force, and what a session wishes."""

    def __init__(
        self,
        *,
        events: Sequence[str],
        apart_s: float,
        ring_apart_s: float = 0.0,
        attended_s: float,
        max_age_s: float,
        timeout_s: float,
        at_once: int,
        retry_waits: Sequence[float],
        notify: Callable[[str], bool | None],
    ) -> None:
        self.events = frozenset(events)
        self.apart_s = apart_s
        self.ring_apart_s = ring_apart_s
        self.attended_s = attended_s
        self.max_age_s = max_age_s
        self.timeout_s = timeout_s
        self.at_once = at_once
        self.retry_waits = tuple(retry_waits)
        self.notify = notify


class Job(threading.Thread):
    """One delivery in its thread. `outcome` is there when it is done; then `wake` is called."""

    def __init__(self, delivery: Delivery, until: float, wake: Callable[[], None]) -> None:
        super().__init__(name="holdfast-people", daemon=True)
        self.delivery = delivery
        self.until = until
        self.outcome: Outcome | None = None
        self._wake = wake

    def run(self) -> None:
        try:
            self.outcome = self.delivery.run()
        except Exception as problem:  # noqa: BLE001 - whatever it is, it must not hold up the others
            self.outcome = Outcome(FAILED, f"{type(problem).__name__}: {problem}")
        self._wake()


class Task:
    """One notice, from its first try to its last."""

    def __init__(self, signals: list[Signal], notice: Notice) -> None:
        self.signals = signals
        self.notice = notice
        self.failures = 0
        self.due_at = float("-inf")
        self.job: Job | None = None


class Way:
    """One channel, with the consumer whose signals go through it."""

    def __init__(
        self,
        name: str,
        address: str,
        channel: Channel,
        claim: Callable[[int], tuple[Batch, Sequence[Signal]]],
        rules: Rules,
        *,
        redact: Redactor,
        standing: Standing,
        now: Callable[[], Moment],
        wake: Callable[[], None],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self._address = address
        self._channel = channel
        self._claim = claim
        self._rules = rules
        self._redact = redact
        self._standing = standing
        self._now = now
        self._wake = wake
        self._chance = chance
        self._gathering = Gathering(rules.apart_s, rules.ring_apart_s)
        self._tasks: list[Task] = []
        self._batches: dict[str, Batch] = {}
        # Done, and the queue does not know it yet.
        self._unsettled: list[tuple[Batch, list[str]]] = []
        self._ask_again_at: float | None = None
        self.over = standing.over(name, address) is not None

    def turn(self, clock: float) -> None:
        """Everything that is to be done now."""
        for task in list(self._tasks):
            if not self.over:
                self._look_after(task, clock)
        self._ask_again_at = None
        try:
            self._settle()
            if self.over:
                self.close()
            else:
                self._take_in()
        except IndexBusy:
            self._ask_again_at = clock + BUSY_S
        if not self.over:
            self._send_out(clock)

    def next_at(self) -> float | None:
        """When the next turn has something to do, if nothing else happens."""
        times = [task.job.until for task in self._tasks if task.job is not None]
        if len(times) < self._rules.at_once:
            times += [task.due_at for task in self._tasks if task.job is None]
            gathered = self._gathering.next_at()
            times += [] if gathered is None else [gathered]
        times += [] if self._ask_again_at is None else [self._ask_again_at]
        return min(times, default=None)

    def calm_at(self, clock: float) -> float | None:
        """From when on nobody needs us: what was told lately matters for what comes. None while there is work."""
        at_work = self._tasks or self._unsettled or self._batches
        return None if at_work else max(clock, self._gathering.calm_at())

    def close(self) -> None:
        """What is not done is for whoever comes next."""
        for task in self._tasks:
            if task.job is not None:
                task.job.delivery.abort()
        self._tasks.clear()
        self._gathering.drop()
        self._settle()
        while self._batches:
            batch = next(iter(self._batches.values()))
            ids = [id for id, its in self._batches.items() if its is batch]
            batch.release("whoever held it leaves", ids=ids)
            for id in ids:
                del self._batches[id]

    @property
    def _running(self) -> list[Task]:
        return [task for task in self._tasks if task.job is not None]

    def _take_in(self) -> None:
        room = _HELD_MAX - len(self._batches)
        while room > 0:
            batch, signals = self._claim(room)
            if not signals:
                return
            room -= len(signals)
            moment = self._now()
            fates = {signal.id: self._fate(signal, moment) for signal in signals}
            rest = sorted(id for id, why in fates.items() if why is not None)
            expired = sum(why == EXPIRED for why in fates.values())
            if expired:
                self._standing.expired(self.name, expired)
            for signal in signals:
                if fates[signal.id] is not None:
                    continue
                # After a lease that ran out we may be given again what we have.
                if signal.id not in self._batches:
                    self._gathering.add(signal)
                self._batches[signal.id] = batch
            if rest:
                self._unsettled.append((batch, rest))
                self._settle()

    def _fate(self, signal: Signal, moment: Moment) -> str | None:
        rules = self._rules
        if self._standing.has_sent(self.name, signal.id):
            return BEFORE
        notify = None if signal.session is None else rules.notify(signal.session)
        return fate(
            signal,
            moment,
            events=rules.events,
            notify=notify,
            max_age_s=rules.max_age_s,
            attended_s=rules.attended_s,
            since_ns=self._standing.since_ns(self.name),
        )

    def _send_out(self, clock: float) -> None:
        for signals in self._gathering.take(clock, self._rules.at_once - len(self._running)):
            task = Task(signals, Notice(signals, self._redact))
            self._tasks.append(task)
            self._try(task, clock)

    def _try(self, task: Task, clock: float) -> None:
        if points.ACTIVE:
            points.hit("people.deliver")
        task.job = Job(self._channel.deliver(task.notice), clock + self._rules.timeout_s, self._wake)
        task.job.start()

    def _look_after(self, task: Task, clock: float) -> None:
        job = task.job
        if job is None:
            if clock >= task.due_at and len(self._running) < self._rules.at_once:
                self._try(task, clock)
            return
        outcome = job.outcome
        if outcome is None:
            if clock < job.until:
                return
            outcome = job.delivery.abort()
        task.job = None
        self._judge(task, outcome, clock)

    def _judge(self, task: Task, outcome: Outcome, clock: float) -> None:
        id = task.notice.first.id
        if outcome.kind == AGAIN:
            task.failures += 1
            wait = retry_wait(self._rules.retry_waits, task.failures, outcome.after_s, self._chance)
            # Not beyond the age at which nobody wants to know any more.
            if wait is not None and age_s(task.notice.first, self._now()) + wait <= self._rules.max_age_s:
                task.due_at = clock + wait
                return
        if outcome.kind != DELIVERED:
            self._standing.failed(self.name, id, outcome.why)
        self._finish(task, clock)
        if outcome.kind == GONE:
            self._standing.end(self.name, self._address, outcome.why)
            self.over = True

    def _finish(self, task: Task, clock: float) -> None:
        if points.ACTIVE:
            points.hit("people.delivered")
        self._tasks.remove(task)
        self._gathering.done(task.signals, clock)
        self._standing.sent(self.name, {signal.id: wall_ns(signal) for signal in task.signals})
        self._unsettled += [(self._batches.pop(signal.id), [signal.id]) for signal in task.signals]

    def _settle(self) -> None:
        while self._unsettled:
            batch, ids = self._unsettled[0]
            batch.settle(ids)
            del self._unsettled[0]


class Attendance:
    """All ways of a home, and the one loop that turns them. `waker` is readable when there may be something new."""

    def __init__(self, waker: int, clear: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.ways: list[Way] = []
        self._waker = waker
        self._clear = clear
        self._clock = clock
        self._rung = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._told_to_leave = False

    def wake(self) -> None:
        os.eventfd_write(self._rung, 1)

    def leave(self) -> None:
        """Safe in a signal handler."""
        self._told_to_leave = True
        self.wake()

    def run(
        self,
        next_due_s: Callable[[], float | None] = lambda: None,
        *,
        stay: bool = False,
        outdated: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Until nobody needs us, or we are told to leave: then False. `next_due_s` is when the queue itself will have
        more, from now; `outdated` says that other channels or events are configured by now."""
        while not self._told_to_leave and not outdated():
            self._clear()
            try:
                os.eventfd_read(self._rung)
            except BlockingIOError:
                pass
            now = self._clock()
            for way in self.ways:
                way.turn(now)
            times = [at for way in self.ways if (at := way.next_at()) is not None]
            due_s = next_due_s()
            if due_s is not None:
                times.append(now + due_s)
            if not times and not stay:
                calm = [way.calm_at(now) for way in self.ways]
                if all(at is not None and at <= now for at in calm):
                    return True
                times = [at for at in calm if at is not None and at > now]
            wait_s = max(0.0, min(times) - self._clock()) if times else None
            select.select([self._waker, self._rung], [], [], wait_s)
        return False

    def close(self) -> None:
        for way in self.ways:
            try:
                way.close()
            except HoldfastError:
                continue  # our death frees them as well

    def __del__(self) -> None:
        # Not before: a delivery that was cut off may still say that it is done.
        os.close(self._rung)
