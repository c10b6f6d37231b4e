"""What a feature of a runner needs of the life that holds it, on a clock that the test moves.

The log is a real one. Processes, sockets and the loop are real where a test gives real ones.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from holdfast.core.loop import Timer
from holdfast.runner.features.watch import Watch
from holdfast.runner.log import LogWriter

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


class Tree:
    """The processes of the session, as far as a test says so."""

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
    def __init__(self, log: LogWriter, loop: Any, clock: Callable[[], float]) -> None:
        self.log = log
        self.loop = loop
        self.signals = Signals(clock)
        self.runner_log = Diary()
        self.tree = Tree()
        self.reserve = nullcontext()
        self.terminal: Any = None
        self.stdin: Any = None
        self.spec: dict[str, Any] = {"timeout": None, "cwd": "/", "umask": 0o22, "limits": {}, "oom_score_adj": 0}
        self.stopped_by: list[str | None] = []
        self.features: list[Any] = []

    def current(self, name: str) -> Any:
        return self.spec[name]

    def write_state(self) -> None:
        """There is no directory to write it into."""

    def stop(self, *, by: str | None, grace_s: float | None = None, ladder: Any = None) -> None:
        self.stopped_by.append(by)

    def prints(self, text: bytes | str, stream: str = "stdout") -> None:
        """Append to the log and notify the listeners."""
        chunk = text.encode() if isinstance(text, str) else text
        self.log.append(stream, chunk)
        for feature in self.features:
            feature.on_output(stream)

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
    log = LogWriter(
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


def pattern(number: int, given: str | dict[str, Any]) -> dict[str, Any]:
    parts = {"literal": given} if isinstance(given, str) else given
    return {"id": f"w{number}", "stream": "any", "ignore_case": False, "once": False, "before": 0, **parts}


class Watched:
    """A session that is watched: what it prints, and what that makes the watch tell."""

    def __init__(
        self,
        life: Any,
        home: Path,
        session: str,
        patterns: tuple[str | dict[str, Any], ...],
        lifetime: int = 1 << 53,
    ) -> None:
        self.life = life
        self.clock: Clock = life.loop
        self.states: list[str | None] = []
        life.spec.update({"id": session, "endpoint": str(home / "run" / "socket"), "owner": session, "notify": "never"})
        self.life.changed = {}
        self.life.write_state = lambda: self.states.append(self.life.changed.get("notify"))
        self.life.now = lambda name: self.life.changed.get(name, life.spec[name])
        self.watch = Watch(
            self.life,
            {
                "patterns": [pattern(number, each) for number, each in enumerate(patterns, 1)],
                "interval": 15.0,
                "strikes": 3,
                "lifetime": lifetime,
                "gather_ms": 100,
                "partial_ms": 500,
            },
        )
        life.features.append(self.watch)
        self.watch.begin(1)

    def prints(self, text: str | bytes, stream: str = "stdout", *, then_s: float = 0.0) -> None:
        self.life.prints(text, stream)
        self.clock.pass_by(then_s)

    def ends(self) -> dict[str, int]:
        self.watch.finish()
        ended: dict[str, int] = self.watch.ended()["watch"]
        self.watch.close()
        return ended

    @property
    def told(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.life.told("watch")
        return found

    @property
    def disabled(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.life.told("watch_disabled")
        return found

    def times(self, variant: str = "watch") -> list[float]:
        """Of the matches, without the wait for neighbours."""
        return [round(at - 0.1, 3) for at in self.life.times(variant)]


class Stage:
    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self._stack = stack
        self._count = 0

    def watch(
        self,
        *patterns: str | dict[str, Any],
        tty: bool = False,
        cap_bytes: int = 64 << 20,
        lifetime: int = 1 << 53,
    ) -> Watched:
        self._count += 1
        directory = self.path / f"session{self._count}"
        directory.mkdir()
        streams = ("tty",) if tty else ("stdout", "stderr")
        life = self._stack.enter_context(still_life(directory, streams=streams, cap_bytes=cap_bytes))
        return Watched(life, self.path, f"b{self._count}", patterns, lifetime)
