"""The one attempt of an in-process daemon: its worker as others see it, a stop that asks, and its ending."""

from __future__ import annotations

import time

from ..runner import clock, wire
from ..runner.causes import status_of
from ..runner.ending import Ending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from ..runner.descriptors import Reserve
    from ..runner.diary import Diary
    from ..runner.log import Log
    from ..runner.loop import Loop, Timer

    class Worker(Protocol):
        """The task or thread itself."""

        @property
        def alive(self) -> bool: ...

        def cancel(self) -> None:
            """Ask it to end; it may take its time, or refuse."""

        def describe(self) -> dict[str, Any]:
            """How it is named where it is found alive."""


class Worked:
    """In the place of a command and its descendants: one worker, which nobody can signal."""

    def __init__(self, worker: Worker, line: str) -> None:
        self._worker = worker
        # There is a command, and it has no process.
        self.command: dict[str, Any] = {"pid": None, "start": None, "line": [line]}
        self.somebody_died = False

    @property
    def command_gone(self) -> bool:
        return not self._worker.alive

    def living(self) -> list[dict[str, Any]]:
        return [self._worker.describe()] if self._worker.alive else []

    def command_is_stopped(self) -> bool:
        return False

    def cancel(self) -> None:
        self._worker.cancel()

    def send(self, _target: str, _number: int, _living: object) -> int:
        text = "it is a task or thread of its host: no signal of the operating system can be sent to it"
        problem = wire.Problem("unsupported", text, feature="send_signal")
        problem.fix = "stop it"
        raise problem


class ToldEnd:
    """How a host says that something ended which it runs in its own way; `survivors` is how many live on."""

    __slots__ = ("cause", "code", "signal", "status", "survivors")

    def __init__(
        self,
        status: str,
        code: int | None = None,
        signal: str | None = None,
        cause: str | None = None,
        survivors: int = 0,
    ) -> None:
        self.status = status
        self.code = code
        self.signal = signal
        self.cause = cause or ("stop" if status == "killed" else "signal" if signal else "exit")
        self.survivors = survivors


class WorkerEnding(Ending):
    """A worker has no exit status: it told how it ended, or was seen to."""

    def judge_worker(self, code: int | None, survivors: list[dict[str, Any]]) -> None:
        self.blame("exit")
        assert self._cause is not None
        self.at = clock.now_text()
        self.fence()
        self.exit = {
            "code": code,
            "signal": None,
            "cause": self._cause[0],
            "by": self._cause[1],
            "oom": False,
            "complete": True,
            "survivors": survivors,
            "survivors_more": 0,
        }

    def judge_told(self, told: ToldEnd, by: str) -> None:
        """As its host says, unless somebody had asked for its end before."""
        self.blame(told.cause, by if told.cause == "stop" else None)
        self.judge_worker(told.code, [])
        assert self.exit is not None
        self.exit.update(signal=told.signal, survivors_more=told.survivors)
        if self.exit["cause"] == told.cause and status_of(self.exit) != told.status:
            # Cause and code do not say it: one that completed may have no code.
            self.exit["status"] = told.status


class Attempt:
    """Number 1, and the last. A stop cancels, waits, and then says who is still there."""

    number = 1

    def __init__(
        self,
        loop: Loop,
        directory: int,
        log: Log,
        diary: Diary,
        reserve: Reserve,
        family: Worked,
        *,
        facts: Callable[[], dict[str, Any]],
        settled: Callable[[], None],
        outlived: Callable[[], None],
    ) -> None:
        self._loop = loop
        self.family = family
        self.ending = WorkerEnding(loop, directory, log, diary, reserve, facts=facts, settled=settled)
        self._outlived = outlived
        self.began = time.monotonic()
        self.left: float | None = None
        self.started_ns: int | None = None
        self.stopping: dict[str, Any] | None = None
        self.stop_answer: dict[str, Any] | None = None
        self._stop_began = 0.0
        self._found: list[dict[str, Any]] = []
        self._grace: Timer | None = None

    @property
    def started_at(self) -> str | None:
        return None if self.started_ns is None else clock.rfc3339(self.started_ns)

    @property
    def stop_under_way(self) -> bool:
        return self._grace is not None

    def stop(self, by: str | None, grace_s: float) -> None:
        """Ask the worker to end. Whoever asks later joins, and may hurry."""
        if self._grace is not None:
            if grace_s == 0:
                self._grace.cancel()
                self._out_of_time()
            return
        self.stopping = {"by": by, "since": clock.now_text(), "stage": "cancel"}
        self.stop_answer = None
        self._stop_began = time.monotonic()
        self._found = self.family.living()
        self._grace = self._loop.after(grace_s, self._out_of_time)
        self.family.cancel()

    def worker_left(self) -> None:
        self.left = time.monotonic()
        if self._grace is not None:
            self._grace.cancel()
            self._answer()

    def _out_of_time(self) -> None:
        self._answer()
        self._outlived()

    def _answer(self) -> None:
        self._grace = None
        self.stop_answer = {
            "found": self._found,
            "found_more": 0,
            "survivors": self.family.living(),
            "survivors_more": 0,
            "rung": "cancel",
            "took_s": round(time.monotonic() - self._stop_began, 3),
        }
