"""Who is told what happens to daemons: after the queue has the signal, before anybody is woken, outside all locks.

A callback that raises is logged; the others and the wake still have their turn.
"""

from __future__ import annotations

import threading

from ..model import RUNNING, SESSION_KEYS, Exit, Snapshot, format_cursor
from ..runner import clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping
    from queue import SimpleQueue
    from typing import Any, Protocol

    from ..signals.records import Signal

    class Deliverer(Protocol):
        """Runs what has to be told, one after the other, never on the thread that writes the records."""

        def deliver(self, work: Callable[[], None]) -> None: ...

        def close(self) -> None: ...


DOMAIN = "daemons"


class Change:
    """`op` is added, removed, running, completed, failed, killed, restarting, unreachable, `phase:<text>` or the name
    of a variant; one that you do not know is to be ignored."""

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
    """Callbacks in the order in which they came. One that comes during a notification gets the next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Each in a tuple of its own: the same callback may be given twice, and each time has its own way out.
        self._entries: list[tuple[Callable[[Change], object]]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, callback: Callable[[Change], object]) -> Callable[[], None]:
        """Returns what takes it away again."""
        entry = (callback,)
        with self._lock:
            self._entries.append(entry)

        def forget() -> None:
            with self._lock:
                self._entries = [each for each in self._entries if each is not entry]

        return forget

    def tell(self, change: Change) -> None:
        with self._lock:
            entries = list(self._entries)
        for (callback,) in entries:
            try:
                callback(change)
            except Exception:  # noqa: BLE001  whatever it was, it is that observer's
                _logger().exception("an observer of daemons failed at %s of %s", change.op, change.id)


class Teller:
    """For hosts that block: a thread of its own, so that an observer may ask about the very daemons it is told of."""

    def __init__(self) -> None:
        from queue import SimpleQueue

        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=_tell_all, args=(self._work,), name="holdfast observers", daemon=True)
        self._thread.start()

    def deliver(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def close(self) -> None:
        """What was delivered before is told first."""
        self._work.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()


def _tell_all(work: SimpleQueue[Callable[[], None] | None]) -> None:
    while (each := work.get()) is not None:
        each()


class LoopTeller:
    """For asyncio: observers run on the event loop's own thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def deliver(self, work: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            work()  # the loop is closed: whoever has to be woken still is

    def close(self) -> None:
        pass


def shown(record: Mapping[str, Any]) -> Snapshot:
    """The snapshot that a signal carries. What it had no room for is None."""
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
    """What a signal is called as a change."""
    if signal.variant != "lifecycle":
        return signal.variant
    phase = str(signal.fields.get("phase"))
    return {"started": RUNNING, "ended": str(signal.fields.get("status"))}.get(phase, phase)


def _logger() -> Any:
    import logging

    return logging.getLogger("holdfast.daemons")
