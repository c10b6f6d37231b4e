"""The handle of an in-process daemon: how it tells what it does, from whichever thread."""

from __future__ import annotations

import threading
from concurrent.futures import wait

from ..errors import BadArgument, ShuttingDown
from . import keeper as keeping
from .workers import CANCELLED, RAISED, TaskWorker

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent.futures import Future
    from typing import Any

    from ..model import Snapshot
    from .hostloop import HostLoop
    from .keeper import Keeper
    from .workers import OutsideWorker, ThreadWorker

# Lines that wait for the loop's thread. Whoever writes more has to wait for it too.
_WAITING_MAX_BYTES = 1 << 20
# On top of the grace, for a busy machine and a slow disk.
_SETTLED_MARGIN_S = 5.0


class Handle:
    """The first of `report`, `fail`, the end of the work itself and a stop decides how it ended."""

    def __init__(
        self,
        host: HostLoop,
        keeper: Keeper,
        worker: TaskWorker | ThreadWorker | OutsideWorker,
        shot: Callable[[dict[str, Any]], Snapshot],
        phased: Callable[[str, Snapshot], None],
    ) -> None:
        self._host = host
        self._keeper = keeper
        self._worker = worker
        self._shot = shot
        self._phased = phased
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._size = 0
        self.id = keeper.id
        self.kind: str = keeper.spec["kind"]

    def __repr__(self) -> str:
        return f"<Handle {self.id} {self._keeper.status}>"

    # What it tells.

    def line(self, text: str) -> None:
        """A line for the log and, as an `event`, for the owner: joined, limited and counted like a monitor's."""
        raw = _bytes("text", text).rstrip(b"\n") + b"\n"
        with self._lock:
            first = not self._lines
            self._lines.append(raw)
            self._size += len(raw)
            full = self._size > _WAITING_MAX_BYTES
        if full:
            self._ask(self._write_lines)
        elif first:
            try:
                self._host.post(self._write_lines)
            except ShuttingDown:
                pass  # it was told to end, and whoever would hear is gone

    def phase(self, text: str) -> None:
        """What it is doing; told to observers as `phase:<text>`, never queued. Ignored once it has ended."""
        _bytes("text", text)
        shot = self._ask(lambda: self._keeper.snapshot() if self._keeper.describe(phase=text) else None)
        if shot is not None:
            self._phased(text, self._shot(shot))

    def progress(self, value: float | str) -> None:
        """How far it is, as a number or in words: for whoever looks."""
        if isinstance(value, str):
            _bytes("value", value)
        self._ask(lambda: self._keeper.describe(soon=True, progress=value))

    def report(self, summary: str | None = None, *, phase: str | None = None) -> bool:
        """It has completed, and this is the result. False when its end was told before."""
        return self._end(keeping.COMPLETED, summary=summary, phase=phase)

    def fail(self, error: str | BaseException | None, summary: str | None = None, *, phase: str | None = None) -> bool:
        """It has failed, and this is why (or the summary says it). False when its end was told before."""
        said = None if error is None else in_words(error)
        return self._end(keeping.FAILED, error=said, summary=summary, phase=phase)

    def give_up(self, summary: str | None = None, *, error: str | None = None, phase: str | None = None) -> bool:
        """It was interrupted, and leaves: killed. False when its end was told before."""
        return self._end(keeping.CANCELLED, summary=summary, error=error, phase=phase)

    # How it is stopped.

    def on_stop(self, callback: Callable[[], object]) -> None:
        """Called once when somebody asks for its end: a task is cancelled besides, a thread can do nothing else."""
        if not self._worker.on_stop(callback):
            callback()

    @property
    def stopping(self) -> bool:
        """Has somebody asked for its end?"""
        return self._worker.stopping

    def stop(self, *, grace: float | None = None, by: str | None = None) -> None:
        """Ask for its end, and do not wait for it."""
        self._ask(lambda: self._keeper.stop(by=by or self._keeper.spec["author"], grace_s=grace))

    # What it is.

    @property
    def task(self) -> asyncio.Task[Any] | None:
        return self._worker.task if isinstance(self._worker, TaskWorker) else None

    @property
    def thread(self) -> threading.Thread | None:
        return getattr(self._worker, "thread", None)

    def snapshot(self) -> Snapshot:
        return self._shot(self._host.call(self._keeper.snapshot))

    # How its host keeps it.

    @property
    def settled(self) -> Future[None]:
        """Done when nothing more is to be waited for: it is over and gone, or has survived its stop."""
        return self._keeper.settled

    def host_leaves(self, *, blocking: bool) -> None:
        """The host closes, and it ends with it. A task whose own loop a blocking host holds up is not waited for."""
        held_up = blocking and isinstance(self._worker, TaskWorker) and self._worker.is_on_this_loop
        self._ask(lambda: self._keeper.host_closes(0.0 if held_up else None))

    def wait_settled(self) -> None:
        """Until nothing more is to be waited for, and never for ever."""
        wait([self._keeper.settled], self._keeper.spec["grace"] + _SETTLED_MARGIN_S)

    def left(self, outcome: str, value: object) -> None:
        """The work is over, with or without a word."""

        def record() -> None:
            self._write_lines()
            if outcome == CANCELLED:
                self._keeper.end(keeping.CANCELLED)
            elif outcome == RAISED:
                self._keeper.end(keeping.FAILED, error=in_words(value))
            else:
                self._keeper.end(keeping.COMPLETED, summary=value if isinstance(value, str) else None)
            self._keeper.worker_left()

        try:
            self._host.call(record)
        except ShuttingDown:
            self._keeper.unlock()

    def _end(self, outcome: str, **facts: str | None) -> bool:
        def record() -> bool:
            self._write_lines()
            return self._keeper.end(outcome, **facts)

        return bool(self._ask(record))

    def _ask(self, work: Callable[[], Any]) -> Any:
        """None when this host is closed: its daemons have been told to end, and what they say is no longer heard."""
        try:
            return self._host.call(work)
        except ShuttingDown:
            return None

    def _write_lines(self) -> None:
        with self._lock:
            lines, self._lines, self._size = self._lines, [], 0
        if lines:
            self._keeper.line(b"".join(lines))


def in_words(problem: object) -> str:
    if isinstance(problem, BaseException):
        return f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
    return str(problem)


def _bytes(argument: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise BadArgument(argument, f"is {type(text).__name__}, not text", "give a string")
    return text.encode("utf-8", "replace")
