"""The handle of an in-process daemon, for any thread, and the task, thread or object of the host behind it."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import wait

from ..core import processes, wire
from ..errors import BadArgument, ShuttingDown
from .in_process import call_all
from .observers import Change

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Mapping
    from concurrent.futures import Future
    from typing import Any

    from ..model import Snapshot
    from .in_process import HostLoop, Keeper
    from .view import View

    # `Handle.left`: how the work ended, and what it returned or raised.
    Left = Callable[..., None]


# Lines that wait for the loop's thread. A caller that writes more waits for that thread.
_WAITING_MAX_BYTES = 1 << 20
# On top of the grace, for a busy machine and a slow disk.
_SETTLED_MARGIN_S = 5.0


class Worker:
    """A task of `loop`, a thread, or an object that the host runs itself. Nothing can end it by force: `cancel` asks it
    to end, from any thread. The keeper of the daemon uses it as the attempt and the process tree of a session."""

    number = 1

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._name = name
        self._loop = loop
        self._lock = threading.Lock()
        self._on_stop: list[Callable[[], object]] = []
        self._thread_id = 0
        # It looks like a running command, but has no process of its own.
        self.command: dict[str, Any] = {"pid": None, "start": None, "line": [name]}
        self.started_ns: int | None = None
        self.began = time.monotonic()
        self.left: float | None = None
        self.task: asyncio.Task[Any] | None = None
        self.thread: threading.Thread | None = None
        self.alive = True
        # Was its end asked for?
        self.stopping = False

    def start_task(self, coroutine: Coroutine[Any, Any, Any], left: Left) -> None:
        assert self._loop is not None

        def done(task: asyncio.Task[Any]) -> None:
            self.alive = False
            if task.cancelled():
                left("killed")
            elif (problem := task.exception()) is not None:
                left("failed", error=in_words(problem))
            else:
                left("completed", summary=task.result())

        self.task = self._loop.create_task(coroutine, name=self._name)
        self.task.add_done_callback(done)

    def start_thread(self, work: Callable[[], object], left: Left) -> None:
        def run() -> None:
            self._thread_id = threading.get_native_id()
            try:
                result = work()
            except BaseException as problem:  # noqa: BLE001  it ends the thread, and is recorded
                self.alive = False
                left("failed", error=in_words(problem))
            else:
                self.alive = False
                left("completed", summary=result)

        self.thread = threading.Thread(target=run, name=self._name, daemon=True)
        self.thread.start()

    def on_stop(self, callback: Callable[[], object]) -> bool:
        """Call this once when a stop is requested. False if one was requested already: the caller has to call it."""
        with self._lock:
            if not self.stopping:
                self._on_stop.append(callback)
            return not self.stopping

    @property
    def is_on_this_loop(self) -> bool:
        """Whether the caller runs on the loop that the task needs."""
        import asyncio

        try:
            return self._loop is not None and asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def cancel(self) -> None:
        """A task is cancelled on its own loop. The callbacks of the others run in a thread, because they may take long
        or ask about this daemon."""
        if self._loop is None:
            callbacks = self._take_callbacks()
            if callbacks:
                threading.Thread(target=call_all, args=(callbacks,), name="holdfast on_stop", daemon=True).start()
            return
        try:
            self._loop.call_soon_threadsafe(self._cancel_task)
        except RuntimeError:
            self.alive = False  # its loop is closed: it will never run again

    def _cancel_task(self) -> None:
        callbacks = self._take_callbacks()
        if self.task is not None:
            self.task.cancel()
        call_all(callbacks)

    def _take_callbacks(self) -> list[Callable[[], object]]:
        with self._lock:
            self.stopping = True
            callbacks, self._on_stop = self._on_stop, []
            return callbacks

    @property
    def command_gone(self) -> bool:
        return not self.alive

    def command_is_stopped(self) -> bool:
        return False

    def send(self, _target: str, _number: int, _living: object) -> int:
        text = "it is a task or thread of its host: no signal of the operating system can be sent to it"
        problem = wire.Problem("unsupported", text, feature="send_signal")
        problem.fix = "stop it"
        raise problem

    def living(self) -> list[dict[str, Any]]:
        if not self.alive:
            return []
        if self.thread is not None:
            found = processes.look(self._thread_id)
            start = 0 if found is None else found.start
            return [{"pid": self._thread_id or os.getpid(), "start": start, "command": f"thread {self._name}"}]
        here = processes.own_identity()["runner"]
        command = self._name if self.task is None else f"task {self._name}"
        return [{"pid": here["pid"], "start": here["start"], "command": command}]


class Handle:
    """The first of `report`, `fail`, the end of the work itself and a stop decides how it ended."""

    def __init__(self, view: View, host: HostLoop, keeper: Keeper, worker: Worker) -> None:
        self._view = view
        self._host = host
        self._keeper = keeper
        self._worker = worker
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._size = 0
        self.id = keeper.id
        self.kind: str = keeper.spec["kind"]
        # The summary of a task that is cancelled and reports nothing.
        self.summary_if_cancelled: str | None = None

    def __repr__(self) -> str:
        return f"<Handle {self.id} {self._keeper.status}>"

    # What it reports.

    def line(self, text: str) -> None:
        """Write a line to the log and, as an `event`, to the owner: joined, limited and counted like a monitor's."""
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
                pass  # the host is closed

    def phase(self, text: str) -> None:
        """Say what it is doing. Observers get it as `phase:<text>`; it is never queued. Ignored after the end."""
        _bytes("text", text)
        shot = self._ask(lambda: self._keeper.snapshot() if self._keeper.describe({"phase": text}) else None)
        if shot is not None:
            self._view.notify(Change(f"phase:{text}", self.id, self._view.shot_of(shot)))

    def progress(self, value: float | str) -> None:
        """Set its progress in the snapshot: a number or words."""
        if isinstance(value, str):
            _bytes("value", value)
        self._ask(lambda: self._keeper.describe({"progress": value}))

    def report(self, summary: str | None = None, *, phase: str | None = None) -> bool:
        """Record that it completed, with its result. False if its end was recorded before."""
        return self._end("completed", summary=summary, phase=phase)

    def fail(self, error: str | BaseException | None, summary: str | None = None, *, phase: str | None = None) -> bool:
        """Record that it failed, and why. False if its end was recorded before."""
        return self._end("failed", error=None if error is None else in_words(error), summary=summary, phase=phase)

    def give_up(self, summary: str | None = None, *, error: str | None = None, phase: str | None = None) -> bool:
        """Record that it was interrupted, as `killed`. False if its end was recorded before."""
        return self._end("killed", summary=summary, error=error, phase=phase)

    # How it is stopped.

    def on_stop(self, callback: Callable[[], object]) -> None:
        """Call this once when a stop is requested. A task is cancelled as well; a thread has only this."""
        if not self._worker.on_stop(callback):
            callback()

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested."""
        return self._worker.stopping

    def stop(self, *, grace: float | None = None, by: str | None = None) -> None:
        """Request a stop, without waiting for the end."""
        self._ask(lambda: self._keeper.stop(by=by or self._keeper.spec["author"], grace_s=grace))

    # What it is.

    @property
    def task(self) -> asyncio.Task[Any] | None:
        return self._worker.task

    @property
    def thread(self) -> threading.Thread | None:
        return self._worker.thread

    def snapshot(self) -> Snapshot:
        return self._view.shot_of(self._host.call(self._keeper.snapshot))

    # How its host keeps it.

    @property
    def settled(self) -> Future[None]:
        """Done when there is nothing more to wait for: it has ended and left, or survived its stop."""
        return self._keeper.settled

    def host_leaves(self, *, blocking: bool) -> None:
        """Stop it because its host closes. A task is not waited for if the closing host blocks the loop it needs."""
        grace_s = 0.0 if blocking and self._worker.is_on_this_loop else None
        self._ask(lambda: self._keeper.stop("owner_gone", by=self._keeper.spec["author"], grace_s=grace_s))

    def wait_settled(self) -> None:
        """Until there is nothing more to wait for, within a bound."""
        wait([self._keeper.settled], self._keeper.spec["grace"] + _SETTLED_MARGIN_S)

    def left(self, how: str, *, summary: object = None, error: str | None = None) -> None:
        """Record the end of the work, unless it has reported one."""
        if how == "killed":
            summary = self.summary_if_cancelled

        def record() -> None:
            self._record_end(how, summary=summary if isinstance(summary, str) else None, error=error)
            self._keeper.worker_left()

        try:
            self._host.call(lambda: self._keeper.do(record))
        except ShuttingDown:
            self._keeper.unlock()

    def not_started(self, problem: BaseException) -> None:
        self._worker.alive = False
        self.left("failed", error=in_words(problem))

    def _end(self, how: str, **facts: str | None) -> bool:
        return bool(self._ask(lambda: self._record_end(how, **facts)))

    def _record_end(self, how: str, **facts: str | None) -> bool:
        self._write_lines()
        given = {name: value for name, value in facts.items() if value is not None}
        return self._keeper.end(how, code=0 if how == "completed" else None, facts=given)

    def _ask(self, work: Callable[[], Any]) -> Any:
        """Do the work on the loop of the host. None after the host was closed: its daemons were stopped, and nothing
        more is recorded."""
        try:
            return self._host.call(lambda: self._keeper.do(work))
        except ShuttingDown:
            return None

    def _write_lines(self) -> None:
        with self._lock:
            lines, self._lines, self._size = self._lines, [], 0
        if lines:
            self._keeper.line(b"".join(lines))


class Relay(Handle):
    """The handle of an object that the host runs itself: the host says what happens, and it is recorded here. Observers
    are called before a call returns, on the thread of the caller. An object that is not `announced` has its signals,
    but no signal that it began or ended with its host."""

    def __init__(self, view: View, host: HostLoop, keeper: Keeper, worker: Worker, *, announced: bool) -> None:
        super().__init__(view, host, keeper, worker)
        self._announced = announced

    def begin(self) -> None:
        self._ask(lambda: self._keeper.begin(signalled=self._announced))

    def printed(self, data: bytes) -> None:
        """Write output to its log alone."""
        self._ask(lambda: self._keeper.printed(data))

    def event(
        self,
        text: str,
        *,
        stream: str = "stdout",
        offset: int | None = None,
        suppressed: int = 0,
        cursor: str | None = None,
        closing: bool = False,
        facts: Mapping[str, object] | None = None,
    ) -> bool:
        """Record one line at once. Before it, `suppressed` lines were left out, from `cursor` on. `facts` change its
        snapshot. False after its end."""
        lines = [] if (closing or suppressed) and not text else [{"text": text, "stream": stream, "offset": offset}]
        fields = {"lines": lines, "count": len(lines) + suppressed, "suppressed": suppressed, "level": "live"}
        return self.notice("event", {**fields, "closing": closing, "cursor": cursor}, facts)

    def notice(self, variant: str, fields: dict[str, Any], facts: Mapping[str, object] | None = None) -> bool:
        """Record a signal of another variant for its owner."""
        return bool(self._ask(lambda: self._keeper.emit(variant, fields, facts=facts)))

    def runs(self, phase: str = "running", facts: Mapping[str, object] | None = None) -> bool:
        """Record that it runs, or runs again; observers get it, the queue does not."""
        return bool(self._ask(lambda: self._keeper.emit("lifecycle", {"phase": phase}, routed=False, facts=facts)))

    def end(
        self,
        status: str,
        *,
        code: int | None = None,
        signal: str | None = None,
        cause: str | None = None,
        survivors: int = 0,
        asked_by: str | None = None,
        facts: Mapping[str, object] | None = None,
    ) -> bool:
        """Record its end; `asked_by` requested it, if anything did. False if its end was recorded before."""

        def record() -> bool:
            if asked_by is not None:
                self._keeper.ending.set_cause("stop", asked_by)
            ended = self._keeper.end(status, code=code, signal=signal, cause=cause, survivors=survivors, facts=facts)
            self._leave()
            return ended

        return bool(self._ask(record))

    def host_leaves(self, *, blocking: bool) -> None:
        if self._announced:
            super().host_leaves(blocking=blocking)
            self.end("killed")
            return

        def record() -> None:
            self._keeper.changed["notify"] = "never"
            self._keeper.end("killed", cause="owner_gone", by=self._keeper.spec["author"])
            self._leave()
            self._keeper.signals.take_due()

        self._host.call(record)

    def _leave(self) -> None:
        self._worker.alive = False
        self._keeper.worker_left()

    def _ask(self, work: Callable[[], Any]) -> Any:
        answer, due = self._host.call(lambda: (work(), self._keeper.signals.take_due()))
        call_all(due)
        return answer


def in_words(problem: object) -> str:
    if isinstance(problem, BaseException):
        return f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
    return str(problem)


def _bytes(argument: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise BadArgument(argument, f"is {type(text).__name__}, not text", "give a string")
    return text.encode("utf-8", "replace")
