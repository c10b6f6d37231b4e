"""Signals that a host makes itself: into the file of the daemon they speak of, which this host keeps."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...daemons.relay import Relay
from ...errors import DiskFull, Superseded
from ...runner.birth import FULL
from ...signals.records import COMMON
from .catalog import SIGNALS_ONLY
from .signal import EVENT
from .snapshot import told_facts
from .words import STATUSES, TERMINAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...daemons.view import View
    from .catalog import Catalog, Daemon
    from .signal import Event, Signal

_log = logging.getLogger("holdfast.tools.evva")

_VARIANT = re.compile("[a-z][a-z_]{0,39}")
# For which there is no room on the disk; older ones go then.
_WAITING_MAX = 1000


class Emitting:
    """What it has no directory for yet gets one with its first signal, and is kept by this host from then on."""

    def __init__(self, view: View, owner: str, catalog: Catalog) -> None:
        self._view = view
        self._owner = owner
        self._catalog = catalog
        self._relays: dict[str, Relay] = {}
        self._making: set[str] = set()
        self._catching_up = threading.RLock()
        self._waiting: deque[Signal] = deque()
        self._hushed = threading.local()
        self._asked: set[str] = set()

    def is_hushed(self, id: str) -> bool:
        """Is what is told of it now, on this very thread, known to observers already, or nothing that happened?"""
        return getattr(self._hushed, "id", None) == id

    @contextmanager
    def stopping(self, id: str) -> Iterator[None]:
        """A host's own object is asked to end: that is the reason of the end that it tells, unless it could not even
        be asked."""
        self._asked.add(id)
        try:
            yield
        except BaseException:
            self._asked.discard(id)
            raise

    def emit(self, signal: Signal) -> bool:
        """False where the disk has no room for it: it waits here. ValueError where somebody else writes that file: its
        runner, or another host."""
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
        """Write what waits. False when there is no room yet."""
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
                raise ValueError(f"{id} is told of by whoever runs it") from None
            told = False
        else:
            told = _tell(relay, signal, self._owner if id in self._asked else None)
        if not told and signal.lifecycle is not None and signal.lifecycle.status in TERMINAL:
            _log.warning("a second end of %s was dropped", id)
        elif not told:
            _log.warning("a signal of %s came after its end and was dropped", id)

    def _relay(self, signal: Signal, daemon: Daemon | None) -> Relay:
        id = signal.daemon_id
        relay = self._relays.get(id)
        if relay is not None:
            return relay
        self._making.add(id)
        try:
            # That one was registered, observers have heard; of another there are only its signals.
            with self._hush(id):
                relay = self._view.relay(
                    id,
                    (lambda: None) if daemon is None else _ender(daemon),
                    told=daemon is not None,
                    kind=signal.kind or "unknown",
                    owner=self._owner,
                    description=signal.snapshot.description if signal.snapshot is not None else None,
                    metadata={SIGNALS_ONLY: True} if daemon is None else {},
                )
        except Superseded:
            # Made by another thread, or by this one in the midst of telling that it was? No lock is held over that.
            made = self._view.handle(id) if id in self._making else None
            if not isinstance(made, Relay):
                raise
            return made
        except BaseException:
            self._making.discard(id)
            raise
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
    """What ends it from a thread of its own, on the loop that it was told of on, if there was one."""
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
    """In a thread without a loop."""
    answer = daemon.kill()
    if inspect.isawaitable(answer):

        async def wait() -> None:
            await answer

        asyncio.run(wait())


def _passes(problem: DiskFull) -> bool:
    """Is there no room, or is the home not to be written at all?"""
    return problem.facts.get("errno") in FULL


def _check(signal: Signal) -> None:
    if signal.lifecycle is not None and signal.event is None:
        if signal.lifecycle.status not in STATUSES:
            raise ValueError(f"{signal.lifecycle.status!a} is no status; there are {', '.join(STATUSES)}")
    elif signal.event is not None and signal.lifecycle is None:
        variant = signal.event.variant
        if variant == "lifecycle" or variant in COMMON or not _VARIANT.fullmatch(variant):
            raise ValueError(f"{variant!a} is no variant of an event")
    else:
        raise ValueError("a signal is either a lifecycle or an event")


def _tell(relay: Relay, signal: Signal, asked_by: str | None) -> bool:
    """False when its end was told before."""
    facts = told_facts(None if signal.snapshot is None else signal.snapshot.metadata)
    lifecycle = signal.lifecycle
    if signal.event is not None:
        return _tell_event(relay, signal.event, facts)
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


def _tell_event(relay: Relay, event: Event, facts: dict[str, object]) -> bool:
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
