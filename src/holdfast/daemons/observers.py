"""Observers of daemons: what a change is, and on which thread their callbacks run."""

from __future__ import annotations

import logging
import threading

from ..core import clock
from ..model import RUNNING, SESSION_KEYS, Exit, Snapshot, format_cursor

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    from ..signals.lines import Signal

    class Deliverer(Protocol):
        """Runs callbacks one after the other, never on the thread that writes the records."""

        def deliver(self, work: Callable[[], None]) -> None: ...

        def close(self) -> None: ...


_log = logging.getLogger("holdfast.daemons")

DOMAIN = "daemons"


class Change:
    """`op` is added, removed, running, completed, failed, killed, restarting, unreachable, `phase:<text>` or the name
    of a variant. Ignore an op that you do not know."""

    __slots__ = ("at", "domain", "id", "op", "snapshot")

    def __init__(self, op: str, id: str, snapshot: Snapshot | None, at: str | None = None) -> None:
        self.domain = DOMAIN
        self.op = op
        self.id = id
        self.snapshot = snapshot
        self.at = at or clock.now_text()

    def __repr__(self) -> str:
        return f"<Change {self.op} {self.id}>"


class Observers:
    """Callbacks in the order in which they were added. One that is added during a notification gets the next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Each in a tuple of its own: the same callback may be added twice, and each time is removed on its own.
        self._entries: list[tuple[Callable[[Any], object]]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, callback: Callable[[Any], object]) -> Callable[[], None]:
        """Returns a function that removes it."""
        entry = (callback,)
        with self._lock:
            self._entries.append(entry)

        def remove() -> None:
            with self._lock:
                self._entries = [each for each in self._entries if each is not entry]

        return remove

    def notify(self, change: Any) -> None:
        """Call them all. One that raises is logged."""
        with self._lock:
            entries = list(self._entries)
        for (callback,) in entries:
            try:
                callback(change)
            except Exception:  # noqa: BLE001  it is the observer's own
                _log.exception("an observer of daemons failed at %s of %s", change.op, change.id)


class ThreadDeliverer:
    """For hosts that block: a thread of its own, so that an observer may ask about the daemon of its change."""

    def __init__(self) -> None:
        from queue import SimpleQueue

        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast observers", daemon=True)
        self._thread.start()

    def deliver(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def close(self) -> None:
        """Work that was delivered before runs first."""
        self._work.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


class LoopDeliverer:
    """For asyncio: observers run on the event loop's own thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def deliver(self, work: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            work()  # the loop is closed, but the host still has to be called

    def close(self) -> None:
        pass


def shown(record: Mapping[str, Any]) -> Snapshot:
    """The snapshot in a signal. What the record had no room for is None."""
    values = {key: record.get(key) for key in SESSION_KEYS}
    exit = values["exit"]
    if exit is not None:
        survivors = exit.get("survivors") or 0
        if isinstance(survivors, int):
            exit = {**exit, "survivors": [], "survivors_more": survivors}
        values["exit"] = Exit.from_json(exit)
    ends: dict[str, int] = dict(values["ends"] or {})
    values["ends"] = ends
    values["cursor"] = format_cursor(ends)
    values["metadata"] = dict(values["metadata"] or {})
    values["labels"] = dict(values["labels"] or {})
    values["description"] = values["description"] or values["name"] or values["command"] or values["id"]
    return Snapshot(**values)


def op_of(signal: Signal) -> str:
    """The op of a change that a signal reports."""
    if signal.variant != "lifecycle":
        return signal.variant
    phase = str(signal.fields.get("phase"))
    return {"started": RUNNING, "ended": str(signal.fields.get("status"))}.get(phase, phase)
