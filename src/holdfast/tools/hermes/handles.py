"""A background process as programs written against hermes-agent know it: an object with attributes, which can be read
as a mapping too; and their queue of completions.
"""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from collections import deque
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from ...errors import NotFound, Removed, RunnerGone, SessionEnded
from ...sessions.driver import drive
from . import labels, limits, process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import Any

    from ...sessions.aio import AsyncSession
    from ...signals.waker import Waker
    from .events import Drained, Event


class ProcessSession(dict[str, "Any"]):
    """The mapping is what the spawn answered. `exited`, `exit_code` and `output_buffer` are looked up when they are
    read. A start that failed has no session, and `id` is empty."""

    # Recipients, kept for the program that set them.
    watcher_platform = watcher_chat_id = watcher_user_id = watcher_user_name = watcher_thread_id = ""
    watcher_message_id = ""
    watcher_interval = 0

    id = ""
    # The id in the rest of the library, and for `hold`.
    native_id = ""
    command = ""
    task_id = ""
    owner: str | None = None
    pid: int | None = None
    cwd: str | None = None
    # Seconds since the epoch.
    started_at = 0.0
    pid_scope = "host"

    def __init__(self, facts: dict[str, Any], session: AsyncSession | None, shown: Callable[[str], str] = str) -> None:
        super().__init__(facts)
        self._shown = shown
        self._session = session
        self._watched: list[str] = list(facts.get("watch_patterns") or [])
        self._notifies = bool(facts.get("notify_on_complete"))
        if session is not None:
            self.id, self.native_id = labels.called(session), session.id
            self.command, self.pid, self.cwd = session.command, labels.pid_of(session), session.cwd
            self.owner, self.task_id = session.owner, session.labels.get(labels.TASK, "")
            self.started_at = labels.began_at(session)
            self.pid_scope = process.place(session).get("pid_scope", "host")

    def __repr__(self) -> str:
        return f"<ProcessSession {self.id or 'that failed to start'}>"

    @property
    def session_key(self) -> str:
        """Empty where the task itself owns it."""
        return "" if self.owner in (None, f"task:{self.task_id}") else str(self.owner)

    @property
    def _now(self) -> AsyncSession | None:
        """As it is now: one that has ended does not change."""
        if self._session is not None and not labels.is_over(self._session):
            try:
                drive(self._session.refresh())
            except (NotFound, Removed):
                pass  # its last known state
        return self._session

    @property
    def exited(self) -> bool:
        shot = self._now
        return shot is None or labels.is_over(shot)

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and where none was seen."""
        shot = self._now
        if shot is None:
            return self.get("exit_code")
        return None if shot.exit is None else process.exit_code(shot.exit.code, shot.exit.signal)

    @property
    def output_buffer(self) -> str:
        """The newest of its output, at most as much as a reply holds."""
        shot = self._now
        if shot is None:
            return ""
        try:
            return drive(process.tail(shot, limits.REPLY_CHARS, self._shown))[0]
        except (NotFound, Removed):
            return ""

    @property
    def detached(self) -> bool:
        shot = self._now
        return shot is not None and bool(process.health(shot).get("detached"))

    @property
    def notify_on_complete(self) -> bool:
        return self._notifies

    @notify_on_complete.setter
    def notify_on_complete(self, wanted: bool) -> None:
        self._set_notifies(wanted)

    def _set_notifies(self, wanted: bool) -> None:
        self._notifies = bool(wanted)
        self._try(lambda session: session.update(notify="exit" if wanted else "never"))

    @property
    def watch_patterns(self) -> list[str]:
        return list(self._watched)

    @watch_patterns.setter
    def watch_patterns(self, wanted: Iterable[str]) -> None:
        for pattern in [each for each in wanted if each not in self._watched]:
            self._try(partial(_watch, pattern))
            self._watched.append(pattern)

    def _try(self, change: Callable[[AsyncSession], Any]) -> None:
        """Without effect on a session that has ended."""
        if self._session is not None:
            try:
                drive(change(self._session))
            except (SessionEnded, RunnerGone, NotFound, Removed):
                pass


def _watch(pattern: str, session: AsyncSession) -> Awaitable[str]:
    return session.watch({"literal": pattern})


class CompletionQueue:
    """In place of hermes-agent's `queue.Queue`: the events of every owner that this registry started something for. An
    event that was taken is settled with the others of its drain; events that were not taken come again."""

    def __init__(self, drain: Callable[[], list[Drained]], wakers: Callable[[], list[Waker]]) -> None:
        self._drain = drain
        self._wakers = wakers
        self._lock = threading.Lock()
        self._events: deque[tuple[Event, Drained | None]] = deque()
        # Wakes the threads that wait here when the program itself puts an event in.
        self._bells: set[int] = set()

    def put(self, event: Event, block: bool = True, timeout: float | None = None) -> None:
        """An event of the program's own, kept as long as this object lives."""
        with self._lock:
            self._events.append((event, None))
            for bell in self._bells:
                os.eventfd_write(bell, 1)

    put_nowait = put

    def qsize(self) -> int:
        with self._lock:
            self._fill()
            return len(self._events)

    def empty(self) -> bool:
        return self.qsize() == 0

    def get_nowait(self) -> Event:
        with self._lock:
            if not self._events:
                self._fill()
            if not self._events:
                raise queue.Empty
            event, drained = self._events.popleft()
            last = drained is not None and not any(each is drained for _, each in self._events)
        if last and drained is not None:
            drive(drained.settle())
        return event

    def get(self, block: bool = True, timeout: float | None = None) -> Event:
        if not block:
            return self.get_nowait()
        until = None if timeout is None else time.monotonic() + timeout
        with ExitStack() as closing:
            wakers = self._wakers()
            for each in wakers:
                closing.callback(each.close)
            bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            closing.callback(self._leave, bell)
            with self._lock:
                self._bells.add(bell)
            while True:
                try:
                    return self.get_nowait()
                except queue.Empty:
                    left = None if until is None else until - time.monotonic()
                    if left is not None and left <= 0:
                        raise
                select.select([*(each.fileno() for each in wakers), bell], [], [], left)
                for each in wakers:
                    each.clear()

    def _leave(self, bell: int) -> None:
        with self._lock:
            self._bells.discard(bell)
            os.close(bell)

    def task_done(self) -> None:
        """As programs call it on a `queue.Queue`."""

    def _fill(self) -> None:
        for drained in self._drain():
            if drained.events:
                self._events.extend((event, drained) for event in drained.events)
            else:
                drive(drained.settle())


def format_uptime_short(seconds: float) -> str:
    """`45s`, `3m 5s`, `30h 0m`."""
    left = max(0, int(seconds))
    if left < 60:
        return f"{left}s"
    minutes = left // 60
    return f"{minutes}m {left % 60}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60}m"
