"""Signals that a host emits itself, and its subagents."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...daemons.handle import Relay, in_words
from ...errors import DiskFull, Superseded
from ...runner.directory import DISK_FULL
from ...signals.lines import COMMON
from . import words
from .catalog import SIGNALS_ONLY
from .signal import EVENT
from .snapshot import STATUSES, TERMINAL, plain_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any, Unpack

    from ...daemons.handle import Handle
    from ...daemons.view import DaemonOptions, View
    from ...model import Snapshot
    from .catalog import Catalog, Daemon
    from .signal import Event, Signal


# Signals of a host: written into the signal file of their daemon, which this host keeps.


_log = logging.getLogger("holdfast.tools.evva")

_VARIANT = re.compile("[a-z][a-z_]{0,39}")
# Signals that wait for room on the disk; beyond this number the oldest are lost.
_WAITING_MAX = 1000


class Emitting:
    """A daemon gets a directory, kept by this host, with its first signal."""

    def __init__(self, view: View, owner: str, catalog: Catalog) -> None:
        self._view = view
        self._owner = owner
        self._catalog = catalog
        self._relays: dict[str, Relay] = {}
        self._catching_up = threading.RLock()
        self._waiting: deque[Signal] = deque()
        self._hushed = threading.local()
        self._asked: set[str] = set()

    def is_hushed(self, id: str) -> bool:
        """Whether observers need not be called for the change that this thread is writing."""
        return getattr(self._hushed, "id", None) == id

    @contextmanager
    def stopping(self, id: str) -> Iterator[None]:
        """The host stops one of its own objects: that is the cause of the end that follows, unless this raises."""
        self._asked.add(id)
        try:
            yield
        except BaseException:
            self._asked.discard(id)
            raise

    def emit(self, signal: Signal) -> bool:
        """False if the disk has no room: the signal waits here. ValueError if a runner or another host writes the
        signals of this daemon."""
        _check(signal)
        if not self.catch_up():
            return self._wait(signal)
        try:
            self._write(signal)
        except DiskFull as problem:
            if not _passes(problem):
                raise
            return self._wait(signal)
        return True

    def catch_up(self) -> bool:
        """Write the waiting signals. False if there is still no room."""
        if not self._waiting:
            return True
        with self._catching_up:
            while self._waiting:
                signal = self._waiting[0]
                try:
                    with self._hush(signal.daemon_id):
                        self._write(signal)
                except DiskFull:
                    return False
                except ValueError as problem:
                    _log.warning("a signal of %s was dropped: %s", signal.daemon_id, problem)
                self._waiting.popleft()
        return True

    def _wait(self, signal: Signal) -> bool:
        self._waiting.append(signal)
        if len(self._waiting) > _WAITING_MAX:
            lost = self._waiting.popleft()
            _log.error("the disk is full, and a signal of %s is lost", lost.daemon_id)
        else:
            _log.warning("the disk is full: %d signals wait in memory", len(self._waiting))
        return False

    def _write(self, signal: Signal) -> None:
        id = signal.daemon_id
        try:
            relay = self._relay(signal, self._catalog.registered(id))
        except Superseded:
            shot = self._catalog.written(id)
            if shot is None or shot.status not in TERMINAL:
                raise ValueError(f"the signals of {id} are written by the process that runs it") from None
            recorded = False
        else:
            recorded = _record(relay, signal, self._owner if id in self._asked else None)
        if not recorded and signal.lifecycle is not None and signal.lifecycle.status in TERMINAL:
            _log.warning("a second end of %s was dropped", id)
        elif not recorded:
            _log.warning("a signal of %s came after its end and was dropped", id)

    def _relay(self, signal: Signal, daemon: Daemon | None) -> Relay:
        id = signal.daemon_id
        relay = self._relays.get(id)
        if relay is not None:
            return relay
        try:
            # Observers were called when a daemon was registered; one that was not has only its signals.
            with self._hush(id):
                relay = self._view.relay(
                    id,
                    (lambda: None) if daemon is None else _ender(daemon),
                    announced=daemon is not None,
                    kind=signal.kind or "unknown",
                    owner=self._owner,
                    description=signal.snapshot.description if signal.snapshot is not None else None,
                    metadata={SIGNALS_ONLY: True} if daemon is None else {},
                )
        except Superseded:
            # Made meanwhile by another thread, by an observer on this one, or by another state of the owner.
            made = self._view.handle(id)
            if not isinstance(made, Relay) or made.snapshot().owner != self._owner:
                raise
            relay = made
        self._relays[id] = relay
        return relay

    @contextmanager
    def _hush(self, id: str) -> Iterator[None]:
        before = getattr(self._hushed, "id", None)
        self._hushed.id = id
        try:
            yield
        finally:
            self._hushed.id = before


def _ender(daemon: Daemon) -> Callable[[], object]:
    """A function that ends the daemon from another thread, on the loop on which it was emitted, if any."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return lambda: kill(daemon)

    async def end() -> None:
        answer = daemon.kill()
        if inspect.isawaitable(answer):
            await answer

    return lambda: asyncio.run_coroutine_threadsafe(end(), loop).result()


def kill(daemon: Daemon) -> None:
    """End it in a thread without a running loop."""
    answer = daemon.kill()
    if inspect.isawaitable(answer):

        async def wait() -> None:
            await answer

        asyncio.run(wait())


def _passes(problem: DiskFull) -> bool:
    """Whether the disk is full, not unwritable."""
    return problem.facts.get("errno") in DISK_FULL


def _check(signal: Signal) -> None:
    if signal.lifecycle is not None and signal.event is None:
        if signal.lifecycle.status not in STATUSES:
            raise ValueError(f"{signal.lifecycle.status!a} is not a status; give one of {', '.join(STATUSES)}")
    elif signal.event is not None and signal.lifecycle is None:
        variant = signal.event.variant
        if variant == "lifecycle" or variant in COMMON or not _VARIANT.fullmatch(variant):
            raise ValueError(f"{variant!a} is not a variant of an event")
    else:
        raise ValueError("a signal is either a lifecycle or an event")


def _record(relay: Relay, signal: Signal, asked_by: str | None) -> bool:
    """Record the signal. False if the end was recorded before."""
    facts = plain_facts(None if signal.snapshot is None else signal.snapshot.metadata)
    lifecycle = signal.lifecycle
    if signal.event is not None:
        return _record_event(relay, signal.event, facts)
    assert lifecycle is not None
    if lifecycle.status not in TERMINAL:
        return relay.runs(lifecycle.status, facts)
    return relay.end(
        lifecycle.status,
        code=lifecycle.exit_code,
        signal=lifecycle.exit_signal,
        cause=lifecycle.cause,
        survivors=lifecycle.survivors,
        asked_by=asked_by,
        facts=facts,
    )


def _record_event(relay: Relay, event: Event, facts: dict[str, object]) -> bool:
    cursor = event.cursor
    if event.suppressed and cursor is None and event.offset is not None:
        cursor = f"{event.stream}:{event.offset}"
    if event.variant == EVENT:
        return relay.event(
            event.line,
            stream=event.stream,
            offset=event.offset,
            suppressed=event.suppressed,
            cursor=cursor,
            closing=event.closing,
            facts=facts,
        )
    fields = {"line": event.line, "text": event.line, "stream": event.stream, "offset": event.offset}
    fields |= {"suppressed": event.suppressed, "closing": event.closing, "cursor": cursor}
    return relay.notice(event.variant, fields, facts)


# A subagent: a task of this host whose end is recorded exactly once.


if TYPE_CHECKING:
    Work = Coroutine[Any, Any, Any] | Callable[["Agent"], Coroutine[Any, Any, Any]]

READY, CRUSHED = "ready_report", "crushed"


class Agent:
    """The first of `report`, `crush` and `kill` decides how it ended; later ones are ignored."""

    def __init__(self, handle: Handle, owner: str) -> None:
        self._handle = handle
        self._owner = owner
        self.id = handle.id
        self.kind = handle.kind

    def __repr__(self) -> str:
        return f"<Agent {self.id}>"

    @property
    def task(self) -> asyncio.Task[Any] | None:
        return self._handle.task

    def snapshot(self) -> Snapshot:
        return self._handle.snapshot()

    def phase(self, text: str) -> None:
        self._handle.phase(text)

    def report(self, summary: str) -> bool:
        """Completed, with this result. False if it had ended before."""
        return self._handle.report(summary, phase=READY)

    def crush(self, summary: str, err: str | BaseException | None = None, status: str = "failed") -> bool:
        """Failed, or killed. An agent that was killed before stays killed."""
        error = None if err is None else f"{summary}: {in_words(err)}"
        if status == "killed":
            return self._handle.give_up(summary, error=error, phase=CRUSHED)
        return self._handle.fail(error, summary, phase=CRUSHED)

    def kill(self) -> None:
        """Record the request, then cancel the task."""
        self._handle.stop(by=self._owner)

    async def live(self, work: Work) -> Any:
        """Run the work, and record its end if the work did not. The handle records a cancellation."""
        try:
            result = await (work if asyncio.iscoroutine(work) else work(self))
        except Exception as problem:
            self.crush(words.AGENT_CRUSHED, problem)
            raise
        self.report(result if isinstance(result, str) and result else words.NO_SUMMARY)
        return result


def spawn(view: View, work: Work, **options: Unpack[DaemonOptions]) -> Agent:
    """Start an agent as a task of the running loop. Cancelling its caller does not cancel it."""
    agents: list[Agent] = []

    def begin(handle: Handle) -> Coroutine[Any, Any, Any]:
        handle.summary_if_cancelled = words.AGENT_INTERRUPTED
        agents.append(Agent(handle, options.get("owner") or ""))
        return agents[0].live(work)

    options["kind"] = "local_agent"
    try:
        handle = view.task(begin, **options)
    except BaseException:
        if asyncio.iscoroutine(work):
            work.close()  # else Python warns that it was never awaited
        raise
    if handle.task is not None and asyncio.iscoroutine(work):
        # A task that was cancelled before its first step leaves it open.
        handle.task.add_done_callback(lambda _: work.close())
    return agents[0]
