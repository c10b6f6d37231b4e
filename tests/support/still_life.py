"""What a feature of a runner needs of the life that holds it, on a clock that the test moves.

The log is a real one. Processes, sockets and the loop are real where a test gives real ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from holdfast.runner.log import Log
from holdfast.runner.loop import Timer

START = 1000.0


class Clock:
    """A loop whose time stands still until it is moved; due timers then fire in order."""

    def __init__(self) -> None:
        self.now = START
        self.woke_at = 0.0
        self.timers: list[Timer] = []

    @property
    def passed(self) -> float:
        return round(self.now - START, 6)

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer(self.now + max(0.0, delay_s), call)
        self.timers.append(timer)
        return timer

    def watch(self, fd: int, events: int, call: Callable[[int], None]) -> None:
        """Nothing happens on a descriptor while time stands still."""

    def pass_by(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            self.timers = [timer for timer in self.timers if timer.call is not None]
            due = min((timer for timer in self.timers if timer.at <= end), key=lambda timer: timer.at, default=None)
            if due is None or due.call is None:
                break
            self.now = max(self.now, due.at)
            call, due.call = due.call, None
            call()
        self.now = end

    @property
    def armed(self) -> int:
        return sum(timer.call is not None for timer in self.timers)


class Emitted(NamedTuple):
    at: float
    variant: str
    fields: dict[str, Any]
    routed: bool | str


class Signals:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.emitted: list[Emitted] = []

    def emit(self, variant: str, fields: dict[str, Any], *, routed: bool | str = True, durable: bool = False) -> None:
        assert not durable
        self.emitted.append(Emitted(round(self._clock() - START, 6), variant, fields, routed))


class Diary:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Family:
    """Those who are of the session, as far as a test says so."""

    def __init__(self) -> None:
        self.processes: list[Any] = []
        self.apart: dict[int, Callable[[int], None]] = {}

    def living(self) -> list[Any]:
        return list(self.processes)

    def reap(self) -> None:
        for pid in list(self.apart):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.apart.pop(pid)(status)


class StillLife:
    def __init__(self, log: Log, loop: Any, clock: Callable[[], float]) -> None:
        self.log = log
        self.loop = loop
        self.signals = Signals(clock)
        self.diary = Diary()
        self.family = Family()
        self.reserve = nullcontext()
        self.terminal: Any = None
        self.stdin: Any = None
        self.spec: dict[str, Any] = {"timeout": None, "cwd": "/", "umask": 0o22, "limits": {}, "oom_score_adj": 0}
        self.stopped_by: list[str | None] = []
        self.features: list[Any] = []

    def now(self, name: str) -> Any:
        return self.spec[name]

    def write_state(self) -> None:
        """There is no directory to write it into."""

    def stop(self, *, by: str | None, grace_s: float | None, climb: Any) -> None:
        self.stopped_by.append(by)

    def prints(self, text: bytes | str, stream: str = "stdout") -> None:
        """Into the log, and those who listen hear of it."""
        chunk = text.encode() if isinstance(text, str) else text
        self.log.append(stream, chunk)
        for feature in self.features:
            feature.heard(stream, len(chunk))

    def told(self, variant: str) -> list[dict[str, Any]]:
        return [each.fields for each in self.signals.emitted if each.variant == variant]

    def times(self, variant: str) -> list[float]:
        return [each.at for each in self.signals.emitted if each.variant == variant]


@contextmanager
def still_life(
    directory: Path,
    *,
    streams: tuple[str, ...] = ("stdout", "stderr"),
    loop: Any = None,
    cap_bytes: int = 64 << 20,
) -> Iterator[StillLife]:
    """On the test's clock, unless a real loop is given."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    log = Log(
        fd,
        list(streams),
        cap_bytes=cap_bytes,
        segment_bytes=8 << 20,
        free_floor_bytes=0,
        say=lambda _text: None,
    )
    clock = Clock()
    try:
        if loop is not None:
            yield StillLife(log, loop, time.monotonic)
        else:
            with patch.object(time, "monotonic", lambda: clock.now):
                yield StillLife(log, clock, lambda: clock.now)
    finally:
        log.close()
        os.close(fd)
