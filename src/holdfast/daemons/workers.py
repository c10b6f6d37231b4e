"""What runs inside the host: an asyncio task, a thread, or what it runs in its own way. All end of their own will."""

from __future__ import annotations

import os
import threading

from ..runner import tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from typing import Any

    # How it ended, and what it gave back or raised.
    Left = Callable[[str, object], None]

RETURNED, RAISED, CANCELLED = "returned", "raised", "cancelled"


class Callbacks:
    """What is to be called when a stop is asked for: each once, whichever thread brings it and whenever."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], object]] = []
        self.asked = threading.Event()

    def add(self, callback: Callable[[], object]) -> bool:
        """False when the stop was asked for before: the caller's turn."""
        with self._lock:
            if self.asked.is_set():
                return False
            self._waiting.append(callback)
            return True

    def ask(self) -> list[Callable[[], object]]:
        with self._lock:
            self.asked.set()
            waiting, self._waiting = self._waiting, []
            return waiting


class TaskWorker:
    """`cancel` may come from any thread: the task is cancelled on its own loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._callbacks = Callbacks()
        self.task: asyncio.Task[Any] | None = None
        self.alive = True

    def start(self, coroutine: Coroutine[Any, Any, Any], left: Left) -> None:
        self.task = self._loop.create_task(coroutine, name=self._name)
        self.task.add_done_callback(lambda task: self._left(task, left))

    def on_stop(self, callback: Callable[[], object]) -> bool:
        """Called on the loop when a stop is asked for. False when it was asked for already."""
        return self._callbacks.add(callback)

    @property
    def stopping(self) -> bool:
        return self._callbacks.asked.is_set()

    @property
    def is_on_this_loop(self) -> bool:
        """Are we called on the very loop that the task needs?"""
        import asyncio

        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def cancel(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:
            self.alive = False  # its loop is closed: it will never run again

    def describe(self) -> dict[str, Any]:
        here = tree.here()["runner"]
        return {"pid": here["pid"], "start": here["start"], "command": f"task {self._name}"}

    def _cancel(self) -> None:
        waiting = self._callbacks.ask()
        if self.task is not None:
            self.task.cancel()
        run_all(waiting)

    def _left(self, task: asyncio.Task[Any], left: Left) -> None:
        self.alive = False
        if task.cancelled():
            left(CANCELLED, None)
        elif (problem := task.exception()) is not None:
            left(RAISED, problem)
        else:
            left(RETURNED, task.result())


class _Asked:
    """`cancel` sets what the worker can look at, and calls its callbacks on another thread: they may take long, or ask
    us something.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._callbacks = Callbacks()
        self.alive = True

    def on_stop(self, callback: Callable[[], object]) -> bool:
        return self._callbacks.add(callback)

    @property
    def stopping(self) -> bool:
        return self._callbacks.asked.is_set()

    def cancel(self) -> None:
        waiting = self._callbacks.ask()
        if waiting:
            threading.Thread(target=run_all, args=(waiting,), name="holdfast on_stop", daemon=True).start()


class ThreadWorker(_Asked):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.thread: threading.Thread | None = None
        self._id = 0

    def start(self, work: Callable[[], object], left: Left) -> None:
        self.thread = threading.Thread(target=self._run, args=(work, left), name=self._name, daemon=True)
        self.thread.start()

    def describe(self) -> dict[str, Any]:
        start = tree.look(self._id)
        return {
            "pid": self._id or os.getpid(),
            "start": 0 if start is None else start.start,
            "command": f"thread {self._name}",
        }

    def _run(self, work: Callable[[], object], left: Left) -> None:
        self._id = threading.get_native_id()
        outcome: str
        value: object
        try:
            value = work()
            outcome = RETURNED
        except BaseException as problem:  # noqa: BLE001  it ends the thread, and is told
            outcome, value = RAISED, problem
        self.alive = False
        left(outcome, value)


class OutsideWorker(_Asked):
    """What a host runs in its own way: it lives until the host says that it has ended. `end` asks for that."""

    def __init__(self, name: str, end: Callable[[], object]) -> None:
        super().__init__(name)
        self._callbacks.add(end)

    def describe(self) -> dict[str, Any]:
        here = tree.here()["runner"]
        return {"pid": here["pid"], "start": here["start"], "command": self._name}


def run_all(callbacks: list[Callable[[], object]]) -> None:
    """One that raises keeps no other from its turn."""
    for callback in callbacks:
        try:
            callback()
        except Exception:
            import logging

            logging.getLogger("holdfast.daemons").exception("a callback of a stop failed")
