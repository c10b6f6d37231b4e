"""Delivering to people: which signals, when, and when again; claimed and settled.

A claim is held until its notice is delivered or given up, retries included: if this process dies, another one takes
over at once with the same signals. One thread decides and uses the queue; each delivery has a thread of its own and a
time limit.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from dataclasses import dataclass

from ...core import failpoints
from ...core.clock import epoch
from ...errors import HoldfastError, IndexBusy
from ...runner.people_notifier import concerns_people
from .channels import AGAIN, DELIVERED, FAILED, GONE, Outcome
from .notices import Notice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Protocol

    from ...config import Config
    from ..lines import Signal
    from ..redact import Redactor
    from .channels import Channel
    from .channels import Delivery as ChannelsDelivery
    from .status import ChannelStatus


# Which signals become notices, when, and when again. Pure: clocks and randomness are arguments.
#
# Old signals, and signals of a session that a person is using, are not sent; several about one session in a short time
# become one notice; a channel that fails is tried again after growing waits, and then given up.


# Why a signal is not sent.
OTHER = "other"
BEFORE = "before"
EXPIRED = "expired"
ATTENDED = "attended"

_OF_LIFECYCLE = ("ended", "failed", "limit", "restarting")

# Waits grow by up to this part, so that deliveries that failed together are not retried together.
_JITTER = 0.2


def variants_of(events: Collection[str]) -> list[str]:
    """The variants of these events. Always with the endings: a session may ask for a notice of its end."""
    return sorted({"lifecycle", *(event for event in events if event not in _OF_LIFECYCLE)})


@dataclass(slots=True)
class Moment:
    """Now: by the clock of this boot, and by the one that people read."""

    boot: str
    mono_ns: int
    wall_ns: int


def reason_not_to_send(
    signal: Signal,
    now: Moment,
    *,
    events: Collection[str],
    notify: bool | None,
    max_age_s: float,
    attended_s: float,
    since_ns: int = 0,
) -> str | None:
    """None: send it. Else why not. `notify` is the setting of the session, `since_ns` the beginning of the channel."""
    if not concerns_people(signal.variant, signal.fields, events, notify):
        return OTHER
    # The time of a signal has milliseconds; it may be in the same one as the beginning of the channel.
    if round(wall_ns(signal) / 10**6) < since_ns // 10**6:
        return BEFORE
    if age_s(signal, now) > max_age_s:
        return EXPIRED
    idle_s = _person_idle_s(signal)
    return ATTENDED if idle_s is not None and idle_s <= attended_s else None


def age_s(signal: Signal, now: Moment) -> float:
    """By the monotonic clock where possible: the wall clock jumps."""
    if signal.boot == now.boot and signal.mono_ns:
        return (now.mono_ns - signal.mono_ns) / 1e9
    return (now.wall_ns - (wall_ns(signal) or now.wall_ns)) / 1e9


def wall_ns(signal: Signal) -> int:
    """When it happened, for people; 0 where that cannot be read."""
    return round((epoch(signal.at) or 0) * 1e9)


def _person_idle_s(signal: Signal) -> float | None:
    """How long before the signal a person in control of the session typed or looked; None without such a person."""
    attached = signal.snapshot.get("attached")
    idle = attached.get("person_idle_s") if isinstance(attached, dict) else None
    return float(idle) if isinstance(idle, (int, float)) and not isinstance(idle, bool) else None


def retry_wait(
    waits: Collection[float], failures: int, wanted_s: float | None, chance: Callable[[], float]
) -> float | None:
    """How long until it is tried again after so many failures; None: given up. Never before `wanted_s`, which the other
    side asked for."""
    if failures > len(waits):
        return None
    wait = list(waits)[failures - 1] * (1 + _JITTER * chance())
    return wait if wanted_s is None else max(wait, wanted_s)


class Gathering:
    """The signals of one channel until they are sent: the first of a session at once, those within `apart_s` after it
    together. `ring_apart_s` is the time between any two notices, of any session."""

    def __init__(self, apart_s: float, ring_apart_s: float = 0.0) -> None:
        self._apart_s = apart_s
        self._ring_apart_s = ring_apart_s
        self._waiting: dict[str, list[Signal]] = {}
        # Sessions of which a notice is under way, and those of which one went out not long ago.
        self._busy: set[str] = set()
        self._free_at: dict[str, float] = {}
        self._ring_at = float("-inf")

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, signal: Signal) -> None:
        self._waiting.setdefault(_about(signal), []).append(signal)

    def take(self, now: float, limit: int) -> list[list[Signal]]:
        """What is to be sent now, at most `limit` notices. Each is under way until `done`."""
        self._free_at = {about: at for about, at in self._free_at.items() if at > now}
        if now < self._ring_at or (self._ring_apart_s and self._busy):
            return []
        due = [about for about in self._waiting if about not in self._busy and about not in self._free_at]
        if self._ring_apart_s:
            groups = [[signal for about in due for signal in self._waiting[about]]] if due else []
        else:
            due = due[: max(0, limit)]
            groups = [self._waiting[about] for about in due]
        for about in due:
            del self._waiting[about]
            self._busy.add(about)
        return groups

    def done(self, signals: list[Signal], now: float) -> None:
        for about in map(_about, signals):
            self._busy.discard(about)
            self._free_at[about] = now + self._apart_s
        self._ring_at = now + self._ring_apart_s

    def drop(self) -> list[Signal]:
        """Remove all that waits."""
        waiting, self._waiting = self._waiting, {}
        return [signal for each in waiting.values() for signal in each]

    def next_at(self) -> float | None:
        """When there will be something to take; None where that is not a matter of time."""
        times = [
            max(self._free_at.get(about, float("-inf")), self._ring_at)
            for about in self._waiting
            if about not in self._busy and not (self._ring_apart_s and self._busy)
        ]
        return min(times, default=None)

    def calm_at(self) -> float:
        """When recent notices no longer delay or join new ones."""
        return max(self._free_at.values(), default=float("-inf"))


def _about(signal: Signal) -> str:
    return signal.session or "home"


# Claiming what is to be sent, sending it, and settling it.


if TYPE_CHECKING:

    class Batch(Protocol):
        def settle(self, ids: Iterable[str] | None = None) -> object: ...
        def release(self, reason: str, *, ids: Iterable[str] | None = None) -> object: ...


# As many signals of one channel are held at a time: beyond that the queue keeps them.
_HELD_MAX = 1000
# A queue that is busy is asked again after this.
BUSY_S = 1.0


@dataclass(eq=False, slots=True)
class Subscription:
    """A channel, the name of its consumer, and its events. `ring_apart_s` is the time between two notices of a bell."""

    name: str
    address: str
    channel: Channel
    events: Collection[str]
    ring_apart_s: float = 0.0


class Job(threading.Thread):
    """One delivery in its thread. `outcome` is there when it is done; then `wake` is called."""

    def __init__(self, delivery: ChannelsDelivery, until: float, wake: Callable[[], None]) -> None:
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


@dataclass(eq=False, slots=True)
class Task:
    """One notice, from its first try to its last."""

    signals: list[Signal]
    notice: Notice
    failures: int = 0
    due_at: float = float("-inf")
    job: Job | None = None


class ChannelQueue:
    """One channel, with the consumer whose signals go through it. `notify` is the setting of a session."""

    def __init__(
        self,
        to: Subscription,
        claim: Callable[[int], tuple[Batch, Sequence[Signal]]],
        config: Config,
        *,
        notify: Callable[[str], bool | None],
        redact: Redactor,
        status: ChannelStatus,
        now: Callable[[], Moment],
        wake: Callable[[], None],
        chance: Callable[[], float] = random.random,
        at_once: int = 4,
    ) -> None:
        self._to = to
        self._claim = claim
        self._config = config
        self._notify = notify
        self._redact = redact
        self._status = status
        self._now = now
        self._wake = wake
        self._chance = chance
        self._at_once = at_once
        self._gathering = Gathering(config.people_apart, to.ring_apart_s)
        self._tasks: list[Task] = []
        self._batches: dict[str, Batch] = {}
        # Done, and not settled in the queue yet.
        self._unsettled: list[tuple[Batch, list[str]]] = []
        self._ask_again_at: float | None = None
        self.over = status.over(to.name, to.address) is not None

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
        if len(times) < self._at_once:
            times += [task.due_at for task in self._tasks if task.job is None]
            gathered = self._gathering.next_at()
            times += [] if gathered is None else [gathered]
        times += [] if self._ask_again_at is None else [self._ask_again_at]
        return min(times, default=None)

    def calm_at(self, clock: float) -> float | None:
        """When this process may leave: until then a signal may be joined to a recent notice. None while it works."""
        at_work = self._tasks or self._unsettled or self._batches
        return None if at_work else max(clock, self._gathering.calm_at())

    def close(self) -> None:
        """Give back what is not done, for the next process."""
        for task in self._tasks:
            if task.job is not None:
                task.job.delivery.abort()
        self._tasks.clear()
        self._gathering.drop()
        self._settle()
        while self._batches:
            batch = next(iter(self._batches.values()))
            ids = [id for id, its in self._batches.items() if its is batch]
            batch.release("its holder leaves", ids=ids)
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
                self._status.expired(self._to.name, expired)
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
        if self._status.has_sent(self._to.name, signal.id):
            return BEFORE
        notify = None if signal.session is None else self._notify(signal.session)
        return reason_not_to_send(
            signal,
            moment,
            events=self._to.events,
            notify=notify,
            max_age_s=self._config.people_max_age,
            attended_s=self._config.people_attended,
            since_ns=self._status.since_ns(self._to.name),
        )

    def _send_out(self, clock: float) -> None:
        for signals in self._gathering.take(clock, self._at_once - len(self._running)):
            task = Task(signals, Notice(signals, self._redact))
            self._tasks.append(task)
            self._try(task, clock)

    def _try(self, task: Task, clock: float) -> None:
        failpoints.hit("people.deliver")
        task.job = Job(self._to.channel.deliver(task.notice), clock + self._config.people_timeout, self._wake)
        task.job.start()

    def _look_after(self, task: Task, clock: float) -> None:
        job = task.job
        if job is None:
            if clock >= task.due_at and len(self._running) < self._at_once:
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
            wait = retry_wait(self._config.people_retry_waits, task.failures, outcome.after_s, self._chance)
            # Not beyond the age at which it is not sent any more.
            if wait is not None and age_s(task.notice.first, self._now()) + wait <= self._config.people_max_age:
                task.due_at = clock + wait
                return
        if outcome.kind != DELIVERED:
            self._status.failed(self._to.name, id, outcome.why)
        self._finish(task, clock)
        if outcome.kind == GONE:
            self._status.end(self._to.name, self._to.address, outcome.why)
            self.over = True

    def _finish(self, task: Task, clock: float) -> None:
        failpoints.hit("people.delivered")
        self._tasks.remove(task)
        self._gathering.done(task.signals, clock)
        self._status.sent(self._to.name, {signal.id: wall_ns(signal) for signal in task.signals})
        self._unsettled += [(self._batches.pop(signal.id), [signal.id]) for signal in task.signals]

    def _settle(self) -> None:
        while self._unsettled:
            batch, ids = self._unsettled[0]
            batch.settle(ids)
            del self._unsettled[0]


class Delivery:
    """All channels of a home, and the loop that serves them. `waker` is readable when there may be something new."""

    def __init__(self, waker: int, clear: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> None:
        self.ways: list[ChannelQueue] = []
        self._waker = waker
        self._clear = clear
        self._clock = clock
        self._rung = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._leaving = False

    def wake(self) -> None:
        os.eventfd_write(self._rung, 1)

    def leave(self) -> None:
        """Safe in a signal handler."""
        self._leaving = True
        self.wake()

    def run(
        self,
        next_due_s: Callable[[], float | None] = lambda: None,
        *,
        outdated: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Until nothing is left to do; or until `leave`: then False. `next_due_s` is how long until the queue
        has more; `outdated` says that the configuration has changed."""
        while not self._leaving and not outdated():
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
            if not times:
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
                continue  # the end of this process frees them as well

    def __del__(self) -> None:
        # Not before: a delivery that was aborted may still report its outcome.
        os.close(self._rung)
