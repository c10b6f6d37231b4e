"""Notifying people: a runner sends nothing itself, it makes sure that a deliverer runs.

A deliverer is a short-lived host, one per home. The lock on `locks/people` is taken here and handed on, so that two
runners never start two, and none is started while a host delivers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

from ..core import failpoints, processes
from ..core.ending import LIMIT_OF_CAUSE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any, Callable


LOCK = "people"
# The deliverer finds the lock here.
LOCK_FD = 3
ROLE = "people"
_ASK_APART_S = 1.0


def concerns_people(variant: str, fields: dict[str, Any], events: Collection[str], notify: bool | None) -> bool:
    """True if people are to be notified of this signal. `notify` is the session's own choice: never, or its end in any
    case."""
    if notify is False:
        return False
    if variant != "lifecycle":
        return variant in events
    phase = fields.get("phase")
    if phase != "ended":
        return phase == "restarting" and "restarting" in events
    cause, by = fields.get("cause"), fields.get("by")
    if (cause == "stop" or (cause == "signal" and by)) and by != "system":
        return False  # requested by a stop, or by a signal that was sent through us
    return (
        notify is True
        or "ended" in events
        or ("failed" in events and fields.get("status") == "failed")
        or ("limit" in events and fields.get("cause") in LIMIT_OF_CAUSE)
    )


class PeopleNotifier:
    """`settings` name the events and the deliverer's program, which is given the home."""

    def __init__(
        self, home: str, settings: dict[str, Any], environment: dict[str, str], say: Callable[[str], None]
    ) -> None:
        self._home = home
        self._events = frozenset(settings["events"])
        # The configuration file and its modification time at the start, 0 without a file; an earlier release did not
        # record it.
        self._config: tuple[str, int] | None = tuple(settings["config"]) if settings.get("config") else None
        self._ask_from = 0.0
        self._argv: list[str] = [*settings["argv"], home]
        self._environment = {**environment, processes.ROLE_VARIABLE: ROLE}
        self._environment.pop(processes.SESSION_VARIABLE, None)
        self._say = say

    def consider(self, variant: str, record: dict[str, Any], notify: bool | None) -> None:
        """Start a deliverer if this record, which is in the queue, is for people."""
        if concerns_people(variant, record[variant], self._events, notify) or self._is_changed(variant):
            self.start_deliverer()

    def _is_changed(self, variant: str) -> bool:
        """True if other channels or events may be configured by now. The deliverer reads the configuration; a runner
        does not. The file is checked at every end, and at other signals at most once a second."""
        now = time.monotonic()
        if self._config is None or (variant != "lifecycle" and now < self._ask_from):
            return False
        self._ask_from = now + _ASK_APART_S
        file, changed_ns = self._config
        try:
            return os.stat(file).st_ctime_ns != changed_ns
        except OSError:
            return False

    def start_deliverer(self) -> None:
        """Start a deliverer, unless one runs already."""
        try:
            lock = take_lock(self._home)
            if lock is not None:
                try:
                    self._start(lock)
                finally:
                    os.close(lock)
        except OSError as problem:
            # The record stays in the queue, and the next deliverer reports it.
            self._say(f"the program that notifies people could not be started: {problem.strerror}")

    def _start(self, lock: int) -> int:
        """Start it with a role that excludes it, and what it starts, from the session's tree."""
        failpoints.hit("people.start")
        return processes.start_program(self._argv, self._environment, {LOCK_FD: lock}, setsid=True)


def lock_path(home: str) -> str:
    return os.path.join(home, "locks", LOCK)


def take_lock(home: str) -> int | None:
    """The right to notify the people of this home, held as long as the descriptor or a copy of it is open; None while
    another process has it."""
    fd = os.open(lock_path(home), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(fd)
        if problem.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            return None
        raise
    return fd
