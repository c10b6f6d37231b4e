"""Telling people, as far as a runner does: whose signal is for them, and who delivers it when no host is there.

The runner itself tells nobody. It sees that a deliverer runs: one per home, a host as short-lived as its work. The lock
on `locks/people` is taken here and handed on, so that two runners never call two, and none is called while a host
attends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

from . import points, tree
from .kernel_signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any, Callable

LOCK = "people"
# The deliverer finds the lock here.
LOCK_FD = 3
ROLE = "people"
_ASK_APART_S = 1.0
# Ends that a limit brought which was set at the start.
_LIMITS = ("overall_timeout", "idle_timeout", "ttl")
_DEFAULTS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


def is_told(variant: str, fields: dict[str, Any], events: Collection[str], notify: bool | None) -> bool:
    """Are people to be told of this signal? `notify` is the session's own wish: nothing, or its end in any case."""
    if notify is False:
        return False
    if variant != "lifecycle":
        return variant in events
    phase = fields.get("phase")
    if phase != "ended":
        return phase == "restarting" and "restarting" in events
    cause, by = fields.get("cause"), fields.get("by")
    if (cause == "stop" or (cause == "signal" and by)) and by != "system":
        return False  # a stop that was asked for, or a signal that was sent through us, is no news
    return (
        notify is True
        or "ended" in events
        or ("failed" in events and fields.get("status") == "failed")
        or ("limit" in events and fields.get("cause") in _LIMITS)
    )


class People:
    """`settings` name the events and the deliverer's program, which is given the home."""

    def __init__(
        self, home: str, settings: dict[str, Any], environment: dict[str, str], say: Callable[[str], None]
    ) -> None:
        self._home = home
        self._events = frozenset(settings["events"])
        # The configuration file and its time of change at the start, 0 without one; an earlier release did not say.
        self._config: tuple[str, int] | None = tuple(settings["config"]) if settings.get("config") else None
        self._ask_from = 0.0
        self._argv: list[str] = [*settings["argv"], home]
        self._environment = {**environment, tree.ROLE_VARIABLE: ROLE}
        self._environment.pop(tree.SESSION_VARIABLE, None)
        self._say = say

    def called(self, variant: str, record: dict[str, Any], notify: bool | None) -> None:
        """This record is in the queue."""
        if is_told(variant, record[variant], self._events, notify) or self._is_changed(variant):
            self.call()

    def _is_changed(self, variant: str) -> bool:
        """Other channels or events may be configured by now. The deliverer reads them; a runner reads no configuration.
        It is asked about every end, and about other signals not more often than once a second."""
        now = time.monotonic()
        if self._config is None or (variant != "lifecycle" and now < self._ask_from):
            return False
        self._ask_from = now + _ASK_APART_S
        file, changed_ns = self._config
        try:
            return os.stat(file).st_ctime_ns != changed_ns
        except OSError:
            return False

    def call(self) -> None:
        """Somebody has to tell people: whoever is there already, or one that is started now."""
        try:
            lock = take_lock(self._home)
            if lock is not None:
                try:
                    self._start(lock)
                finally:
                    os.close(lock)
        except OSError as problem:
            # The record stays in the queue, and whoever comes next tells it.
            self._say(f"nobody could be called to tell people: {problem.strerror}")

    def _start(self, lock: int) -> int:
        """By its role no look at the session's tree counts it, nor what it starts."""
        if points.ACTIVE:
            points.hit("people.start")
        high = fcntl.fcntl(lock, fcntl.F_DUPFD_CLOEXEC, LOCK_FD + 1)
        try:
            actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
            actions.append((os.POSIX_SPAWN_DUP2, high, LOCK_FD))
            return os.posix_spawn(
                self._argv[0],
                self._argv,
                self._environment,
                file_actions=actions,
                setsid=True,
                setsigmask=[],
                setsigdef=_DEFAULTS,
            )
        finally:
            os.close(high)


def lock_path(home: str) -> str:
    return os.path.join(home, "locks", LOCK)


def take_lock(home: str) -> int | None:
    """The right to tell the people of this home, held as long as the descriptor or a copy of it is open; None while
    somebody else has it."""
    fd = os.open(lock_path(home), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(fd)
        if problem.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            return None
        raise
    return fd
