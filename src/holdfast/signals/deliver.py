"""`python -m holdfast.signals.deliver [--config FILE] HOME`: tells people what they are to be told, and leaves.

One per home, under the lock that whoever called us has taken and handed on. It stays while something is under way, to
be tried again, or to be joined to what was told a moment ago.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack

from ..config import load
from ..errors import HoldfastError, IndexBusy
from ..home import Home
from ..host.core import Core
from ..host.driver import Blocking
from ..host.ringing import ring
from ..runner import clock, points, records, tree
from ..runner.people import LOCK_FD, lock_path, take_lock
from .attendance import BUSY_S, Attendance, Rules, Way
from .consumer import Consumer
from .consumers import Consumers
from .indexing import is_away
from .people import Moment, variants_of
from .queue import RETAINED
from .redact import Redactor
from .standing import Standing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..config import Config
    from .attendance import Batch
    from .channels import Channel
    from .records import Signal

# Without a configuration file to date a channel by: what called us happened no longer ago than this.
_CALLED_WITHIN_NS = 10 * 10**9
_USAGE = "usage: python -m holdfast.signals.deliver [--config FILE] HOME"


class Post:
    """A channel, the consumer that feeds it, and what it is told."""

    def __init__(
        self, name: str, address: str, channel: Channel, events: Sequence[str] | None, ring_apart_s: float = 0.0
    ) -> None:
        self.name = name
        self.address = address
        self.channel = channel
        self.events = events
        self.ring_apart_s = ring_apart_s


class Deliverer:
    def __init__(self, core: Core) -> None:
        self._home = core.home
        self._config = core.config
        self._changed_ns = core.config.changed_ns()
        self._standing = Standing(core.home.path)
        self._redact = Redactor()
        self._boot = tree.boot_id()
        self._attendance: Attendance | None = None
        self._leaving = False
        consumers = Consumers(core.driver, core.index, core.home, core.config, core.runtime)
        # A way that is over is not asked for, so that what waits for it keeps nobody here.
        self._posts = {
            post: Consumer(consumers.open(post.name, variants=self._variants(post), start=RETAINED, replace=True))
            for post in posts(core.config, core.home.path)
            if self._standing.over(post.name, post.address) is None
        }
        for post in self._posts:
            self._standing.begin(post.name, self._events(post), self._changed_ns or clock.wall_ns() - _CALLED_WITHIN_NS)

    def attend(self) -> bool:
        """Until nothing is left to do. False when we were told to leave before."""
        if not self._posts:
            return True
        with ExitStack() as stack:
            waker = stack.enter_context(next(iter(self._posts.values())).waker())
            self._attendance = attendance = Attendance(waker.fileno(), waker.clear)
            stack.callback(attendance.close)
            attendance.ways += [self._way(post, consumer, attendance.wake) for post, consumer in self._posts.items()]
            return not self._leaving and attendance.run(self._next_due_s, outdated=self.is_outdated)

    def is_outdated(self) -> bool:
        """Whether the configuration was written since we read it."""
        return self._config.changed_ns() != self._changed_ns

    def leave(self) -> None:
        self._leaving = True
        if self._attendance is not None:
            self._attendance.leave()

    def has_more(self) -> bool:
        """Whether something came while nobody was responsible any more."""
        try:
            return any(consumer.pending() for consumer in self._open())
        except IndexBusy:
            return True

    def _open(self) -> list[Consumer]:
        return [
            consumer for post, consumer in self._posts.items() if self._standing.over(post.name, post.address) is None
        ]

    def _next_due_s(self) -> float | None:
        try:
            dues = [due for each in self._open() if (due := each.pending().next_due) is not None]
        except IndexBusy:
            return BUSY_S
        return max(0.0, min(dues) - clock.mono_ns() / 1e9) if dues else None

    def _events(self, post: Post) -> Sequence[str]:
        return self._config.people_events if post.events is None else post.events

    def _variants(self, post: Post) -> list[str]:
        return variants_of(self._events(post))

    def _way(self, post: Post, consumer: Consumer, wake: Callable[[], None]) -> Way:
        config = self._config

        def claim(limit: int) -> tuple[Batch, Sequence[Signal]]:
            batch = consumer.claim(limit)
            return batch, list(batch)

        rules = Rules(
            events=self._events(post),
            apart_s=config.people_apart,
            ring_apart_s=post.ring_apart_s,
            attended_s=config.people_attended,
            max_age_s=config.people_max_age,
            timeout_s=config.people_timeout,
            at_once=config.people_at_once,
            retry_waits=config.people_retry_waits,
            notify=lambda session: wish_of(self._home, session),
        )
        return Way(
            post.name,
            post.address,
            post.channel,
            claim,
            rules,
            redact=self._redact,
            standing=self._standing,
            now=lambda: Moment(self._boot, clock.mono_ns(), clock.wall_ns()),
            wake=wake,
        )


def posts(config: Config, home: str) -> list[Post]:
    """The channels that are configured."""
    found = []
    if config.people_command is not None:
        from .channels.command import Command

        command = config.people_command
        found.append(Post("people:command", command.argv[0], Command(command.argv), command.events))
    for name, channel in config.people_webhooks.items():
        from .channels.webhook import Webhook

        webhook = Webhook(channel, config.people_timeout)
        found.append(Post(f"people:webhook:{name}", channel.url, webhook, channel.events))
    if config.people_bell:
        from .channels.bell import Bell

        bell = Bell(lambda text: ring(home, config, text))
        found.append(Post("people:bell", "", bell, None, config.people_bell_apart))
    return found


def wish_of(home: Home, session: str) -> bool | None:
    """What the session itself wishes by now: that people are told of its end, of nothing, or as usual."""
    directory = home.session(session)
    spec = records.found(None, os.path.join(directory, "spec.json"))
    # A place has no say in it.
    file = records.HERE if is_away(spec) else "state.json"
    changed = records.found(None, os.path.join(directory, file)).get("changed")
    wish = {**spec, **(changed if isinstance(changed, dict) else {})}.get("notify_people")
    return wish if isinstance(wish, bool) else None


def handed_lock(home: str) -> int | None:
    """The lock on `home` that whoever called us holds and gave us."""
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
    """While we have the lock. What comes after we let go of it calls another; what came just before, we see."""
    os.chdir("/")
    deliverer: Deliverer | None = None
    told_to_leave = False

    def leave(_number: int, _frame: object) -> None:
        nonlocal told_to_leave
        told_to_leave = True
        if deliverer is not None:
            deliverer.leave()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave)
    while lock is not None and not told_to_leave:
        deliverer = deliverer or Deliverer(core)
        done = deliverer.attend()
        if deliverer.is_outdated() and not told_to_leave:
            core.config = load(os.environ, core.config.file)
            deliverer = None
            continue
        if points.ACTIVE:
            points.hit("people.leaving")
        os.close(lock)
        lock = take_lock(core.home.path) if done and deliverer.has_more() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
