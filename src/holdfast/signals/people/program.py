"""`python -m holdfast.signals.people.program [--config FILE] HOME`: notifies people of what is due, and exits.

One per home, under the lock that its caller took and handed on. It stays while a notice is being delivered or waits
for a retry, and while more signals may be joined to the last notice.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from threading import Timer

from ...config import load
from ...core import clock, failpoints, processes, records
from ...errors import HoldfastError, IndexBusy
from ...home import Home
from ...model import LIVE_STATES
from ...places.kinds import is_away
from ...runner.people_notifier import LOCK_FD, lock_path, take_lock
from ...sessions.core import Core
from ...sessions.driver import Blocking, drive
from ..consumer import Consumer
from ..consumers import Consumers
from ..lines import Signal
from ..queue import RETAINED
from ..redact import Redactor
from .delivery import BUSY_S, ChannelQueue, Delivery, Moment, Subscription, variants_of
from .status import ChannelStatus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ...config import Config
    from .channels import Channel, Outcome
    from .delivery import Batch


# The bell: rings at the terminals of all people who are attached to a session of this home.


def ring(home: str, config: Config, text: str) -> int:
    """Returns at how many terminals. It opens a host of its own, because it is called from a thread."""
    core = Core(Blocking(), Home(home), config, "people")
    try:
        rung = 0
        for shot in drive(core.sessions(all=False, fits=lambda shot: shot.state in LIVE_STATES)):
            if any((shot.attached or {}).values()):
                try:
                    rung += drive(core.request(shot.id, "ring", text=text))["rung"]
                except HoldfastError:
                    continue  # it has just ended, or is of an earlier release and has no bell
        return rung
    finally:
        core.close()


# The program.


# Without a configuration file, a channel is this old: the signal that called us is not older.
_CALLED_WITHIN_NS = 10 * 10**9
_USAGE = "usage: python -m holdfast.signals.people.program [--config FILE] HOME"


class Deliverer:
    def __init__(self, core: Core) -> None:
        self._home = core.home
        self._config = core.config
        self._changed_ns = core.config.changed_ns()
        self._status = ChannelStatus(core.home.path)
        self._redact = Redactor()
        self._boot = processes.boot_id()
        self._delivery: Delivery | None = None
        self._leaving = False
        consumers = Consumers(core.driver, core.index, core.config, core.runtime)
        # A channel that has ended gets no consumer: its signals must not keep this process running.
        self._consumers = {
            each: Consumer(consumers.open(each.name, variants=variants_of(each.events), start=RETAINED, replace=True))
            for each in subscriptions(core.config, core.home.path)
            if self._status.over(each.name, each.address) is None
        }
        for each in self._consumers:
            self._status.begin(each.name, each.events, self._changed_ns or clock.wall_ns() - _CALLED_WITHIN_NS)

    def run(self) -> bool:
        """Until nothing is left to do. False if `leave` was called before."""
        if not self._consumers:
            return True
        with ExitStack() as stack:
            waker = stack.enter_context(next(iter(self._consumers.values())).waker())
            self._delivery = delivery = Delivery(waker.fileno(), waker.clear)
            stack.callback(delivery.close)
            delivery.ways += [self._way(to, consumer, delivery.wake) for to, consumer in self._consumers.items()]
            return not self._leaving and delivery.run(self._next_due_s, outdated=self.is_outdated)

    def is_outdated(self) -> bool:
        """Whether the configuration was written since we read it."""
        return self._config.changed_ns() != self._changed_ns

    def leave(self) -> None:
        self._leaving = True
        if self._delivery is not None:
            self._delivery.leave()

    def has_more(self) -> bool:
        """Whether something came after the last look."""
        try:
            return any(consumer.pending() for consumer in self._open())
        except IndexBusy:
            return True

    def _open(self) -> list[Consumer]:
        return [
            consumer for each, consumer in self._consumers.items() if self._status.over(each.name, each.address) is None
        ]

    def _next_due_s(self) -> float | None:
        try:
            dues = [due for each in self._open() if (due := each.pending().next_due) is not None]
        except IndexBusy:
            return BUSY_S
        return max(0.0, min(dues) - clock.mono_ns() / 1e9) if dues else None

    def _way(self, to: Subscription, consumer: Consumer, wake: Callable[[], None]) -> ChannelQueue:
        def claim(limit: int) -> tuple[Batch, Sequence[Signal]]:
            batch = consumer.claim(limit)
            return batch, list(batch)

        return ChannelQueue(
            to,
            claim,
            self._config,
            notify=lambda session: notify_people_of(self._home, session),
            redact=self._redact,
            status=self._status,
            now=lambda: Moment(self._boot, clock.mono_ns(), clock.wall_ns()),
            wake=wake,
        )


def subscriptions(config: Config, home: str) -> list[Subscription]:
    """The channels that are configured."""
    from .channels import Bell, Command, Webhook

    def of(name: str, address: str, channel: Channel, events: Sequence[str] | None) -> Subscription:
        return Subscription(name, address, channel, config.people_events if events is None else events)

    found = []
    if config.people_command is not None:
        command = config.people_command
        found.append(of("people:command", command.argv[0], Command(command.argv), command.events))
    for name, channel in config.people_webhooks.items():
        webhook = Webhook(channel, config.people_timeout)
        found.append(of(f"people:webhook:{name}", channel.url, webhook, channel.events))
    if config.people_bell:
        bell = Bell(lambda text: ring(home, config, text))
        found.append(Subscription("people:bell", "", bell, config.people_events, config.people_bell_apart))
    return found


def send_test(config: Config, home: str, names: Collection[str] = ()) -> dict[str, Outcome]:
    """Send a test notice through the channels with these names, or through all; the outcome of each."""
    from .notices import Notice

    record = {
        "v": 1,
        "id": "home.1",
        "seq": 1,
        "session": None,
        "at": clock.now_text(),
        "snapshot": {"name": "Holdfast"},
        "event": {"test": True, "lines": [{"text": "notices arrive here"}]},
    }
    notice = Notice([Signal(record)], Redactor())
    notice.title = notice.fields["title"] = "Holdfast: test notice"
    outcomes = {}
    for each in subscriptions(config, home):
        if not names or each.name in names:
            delivery = each.channel.deliver(notice)
            timer = Timer(config.people_timeout, delivery.abort)
            timer.start()
            outcomes[each.name] = delivery.run()
            timer.cancel()
    return outcomes


def notify_people_of(home: Home, session: str) -> bool | None:
    """The setting of the session: notify people of its end, of nothing, or as configured."""
    directory = home.session(session)
    spec = records.found(None, os.path.join(directory, "spec.json"))
    # Of a session in another place, this machine decides.
    file = records.LOCAL_CHANGES if is_away(spec) else "state.json"
    changed = records.found(None, os.path.join(directory, file)).get("changed")
    setting = {**spec, **(changed if isinstance(changed, dict) else {})}.get("notify_people")
    return setting if isinstance(setting, bool) else None


def handed_lock(home: str) -> int | None:
    """The lock on `home` that our caller holds and gave us."""
    try:
        given, there = os.fstat(LOCK_FD), os.stat(lock_path(home), follow_symlinks=False)
    except OSError:
        return None
    if (given.st_dev, given.st_ino) != (there.st_dev, there.st_ino):
        return None
    os.set_inheritable(LOCK_FD, False)
    return LOCK_FD


def main(arguments: Sequence[str]) -> int:
    given, file = list(arguments), None
    if given[:1] == ["--config"] and len(given) > 1:
        file, given = given[1], given[2:]
    if len(given) != 1:
        print(_USAGE, file=sys.stderr)
        return 2
    try:
        home = Home(given[0])
        home.create()
        lock = handed_lock(home.path)
        lock = take_lock(home.path) if lock is None else lock
        core = Core(Blocking(), home, load(os.environ, file), "people")
        try:
            deliver(core, lock)
        finally:
            core.close()
    except HoldfastError as problem:
        print(f"holdfast: {problem}", file=sys.stderr)
        return 1
    return 0


def deliver(core: Core, lock: int | None) -> None:
    """Deliver while we have the lock. A signal after its release starts another process; one just before it is seen
    here."""
    os.chdir("/")
    deliverer: Deliverer | None = None
    leaving = False

    def leave(_number: int, _frame: object) -> None:
        nonlocal leaving
        leaving = True
        if deliverer is not None:
            deliverer.leave()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave)
    while lock is not None and not leaving:
        deliverer = deliverer or Deliverer(core)
        done = deliverer.run()
        if deliverer.is_outdated() and not leaving:
            core.config = load(os.environ, core.config.file)
            deliverer = None
            continue
        failpoints.hit("people.leaving")
        os.close(lock)
        lock = take_lock(core.home.path) if done and deliverer.has_more() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
