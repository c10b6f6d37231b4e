"""A background process as programs written against hermes-agent know it: an object with attributes, which can be read
as a mapping too; and their queue of completions."""

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
from ...host.driver import Blocking, drive
from . import limits, scope, views

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import Any

    from ...host.aio import AsyncSession
    from ...model import Woke
    from ...signals.waker import Waker
    from .events import Drained, Event


class ProcessSession(dict[str, "Any"]):
    """The mapping is what the spawn answered. The attributes are looked up when they are read: `exited`, `exit_code`
    and `output_buffer` are those of this moment. A start that failed has no session, and `id` is empty."""

    # Who is to be told, kept for the program that set it.
    watcher_platform = watcher_chat_id = watcher_user_id = watcher_user_name = watcher_thread_id = ""
    watcher_message_id = ""
    watcher_interval = 0

    def __init__(self, facts: dict[str, Any], session: AsyncSession | None, shown: Callable[[str], str] = str) -> None:
        super().__init__(facts)
        self._shown = shown
        self._session = session
        self._watched: list[str] = list(facts.get("watch_patterns") or [])
        self._notifies = bool(facts.get("notify_on_complete"))

    def __repr__(self) -> str:
        return f"<ProcessSession {self.id or 'that failed to start'}>"

    @property
    def _now(self) -> AsyncSession | None:
        if self._session is not None and not scope.is_over(self._session):
            try:
                drive(self._session.refresh())
            except (NotFound, Removed):
                pass  # what was last known of it
        return self._session

    @property
    def id(self) -> str:
        return "" if self._session is None else scope.called(self._session)

    @property
    def native_id(self) -> str:
        """By which `hold` and the rest of the library know it."""
        return "" if self._session is None else self._session.id

    @property
    def command(self) -> str:
        return "" if self._session is None else self._session.command

    @property
    def task_id(self) -> str:
        return "" if self._session is None else self._session.labels.get(scope.TASK, "")

    @property
    def session_key(self) -> str:
        """Empty where the task itself owns it."""
        owner = "" if self._session is None else self._session.owner or ""
        return "" if owner == f"task:{self.task_id}" else owner

    @property
    def owner(self) -> str | None:
        return None if self._session is None else self._session.owner

    @property
    def pid(self) -> int | None:
        return None if self._session is None else self._session.pid

    @property
    def cwd(self) -> str | None:
        return None if self._session is None else self._session.cwd

    @property
    def started_at(self) -> float:
        """Seconds since the epoch."""
        shot = self._session
        found = None if shot is None else scope.moment(shot.started_at or shot.created_at)
        return 0.0 if found is None else found.timestamp()

    @property
    def exited(self) -> bool:
        shot = self._now
        return shot is None or scope.is_over(shot)

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and where none was seen."""
        shot = self._now
        if shot is None:
            return self.get("exit_code")
        return None if shot.exit is None else views.exit_code(shot.exit.code, shot.exit.signal)

    @property
    def output_buffer(self) -> str:
        """The newest of its output, at most as much as a reply holds."""
        shot = self._now
        if shot is None:
            return ""
        try:
            return drive(views.tail(shot, limits.REPLY_CHARS, self._shown))[0]
        except (NotFound, Removed):
            return ""

    @property
    def detached(self) -> bool:
        shot = self._now
        return shot is not None and bool(views.health(shot).get("detached"))

    @property
    def pid_scope(self) -> str:
        return "host" if self._session is None else views.place(self._session).get("pid_scope", "host")

    @property
    def notify_on_complete(self) -> bool:
        return self._notifies

    @notify_on_complete.setter
    def notify_on_complete(self, wanted: bool) -> None:
        self._notifies = bool(wanted)
        self._try(lambda session: session.update(notify="exit" if wanted else "never"))

    @property
    def watch_patterns(self) -> list[str]:
        return list(self._watched)

    @watch_patterns.setter
    def watch_patterns(self, wanted: Iterable[str]) -> None:
        for pattern in [each for each in wanted if each not in self._watched]:
            self._watched.append(pattern)
            self._try(partial(_watch, pattern))

    def _try(self, change: Callable[[AsyncSession], Any]) -> None:
        """Too late for one that has ended."""
        if self._session is not None:
            try:
                drive(change(self._session))
            except (SessionEnded, RunnerGone, NotFound, Removed):
                pass


def _watch(pattern: str, session: AsyncSession) -> Awaitable[str]:
    return session.watch({"literal": pattern})


class Interrupted(Exception):
    pass


class Interruptible(Blocking):
    """Waits in the calling thread; what is awaited through `waiting` until another thread writes to `fd`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_armed = False

    async def ready(self, readers: Iterable[int], writers: Iterable[int], timeout: float | None) -> set[int]:
        if not self._is_armed:
            return await super().ready(readers, writers, timeout)
        found = await super().ready([*readers, self._fd], writers, timeout)
        if self._fd in found:
            self._is_armed = False
            raise Interrupted
        return found

    async def waiting(self, _session: AsyncSession, outcome: Awaitable[Woke]) -> Woke | None:
        """None where it was interrupted."""
        self._is_armed = True
        try:
            return await outcome
        except Interrupted:
            return None
        finally:
            self._is_armed = False


class CompletionQueue:
    """What hermes-agent has a `queue.Queue` for: the events of every owner that this registry started something for. An
    event that was taken is settled with the others that were drained with it; what was not taken comes again."""

    def __init__(self, drain: Callable[[], list[Drained]], wakers: Callable[[], list[Waker]]) -> None:
        self._drain = drain
        self._wakers = wakers
        self._lock = threading.Lock()
        self._events: deque[tuple[Event, Drained | None]] = deque()
        # Of those that wait here for what the program itself puts in.
        self._bells: set[int] = set()

    def put(self, event: Event, block: bool = True, timeout: float | None = None) -> None:
        """One of the program's own, for as long as this object lives."""
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
