"""Word from a command that takes its time: a heartbeat while it prints, a reminder when it takes longer than expected.

Neither ends anything. Each has one one-shot timer; a silent command has no heartbeat and no timer for one.
"""

from __future__ import annotations

import time

from .lines import tail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .life import Life
    from .loop import Timer

# What is printed together is told together.
_GATHER_S = 1.0
_TAIL_CHARACTERS = 2000
_TAIL_BYTES = 16 << 10
# Of the soft deadline: told at so many times its length, then no more.
TIMES = (1, 2, 4, 8, 16)


class Rhythm:
    """When heartbeats are due, by a clock that is given. The first output since the last one makes the next due: an
    interval after the last, and not before a moment has passed."""

    __slots__ = ("interval_s", "last", "n")

    def __init__(self, now: float, interval_s: float) -> None:
        self.interval_s = interval_s
        self.last = now
        self.n = 0

    def due(self, printed: float) -> float:
        return max(self.last + self.interval_s, printed + _GATHER_S)

    def beat(self, now: float) -> int:
        self.last = now
        self.n += 1
        return self.n


class Heartbeat:
    def __init__(self, life: Life, interval_s: float) -> None:
        self._life = life
        self._born = time.monotonic()
        self._rhythm = Rhythm(self._born, interval_s)
        self._timer: Timer | None = None
        self._over = False
        # Which stream spoke last, and where each was, in bytes and lines, when the last heartbeat told of it.
        self._stream = ""
        self._told = life.log.ends()
        self._told_lines: dict[str, int] = life.log.facts()["lines"]

    def heard(self, stream: str, _size: int) -> None:
        self._stream = stream
        if self._timer is None and not self._over:
            now = time.monotonic()
            self._timer = self._life.loop.after(self._rhythm.due(now) - now, self._beat)

    def begin(self, _attempt: int) -> None:
        self._over = False

    def pause(self) -> None:
        """What it has printed is told in its time."""

    def finish(self) -> None:
        """What the command printed last, its ending tells."""
        self.close()

    def facts(self) -> dict[str, Any]:
        return {"heartbeats": self._rhythm.n}

    def close(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        self._timer = None
        log = self._life.log
        told, told_lines = self._told, self._told_lines
        self._told, self._told_lines = log.ends(), log.facts()["lines"]
        now = time.monotonic()
        shown = self._tail(told[self._stream], self._told[self._stream])
        self._life.signals.emit(
            "heartbeat",
            {
                "n": self._rhythm.beat(now),
                "interval_s": self._rhythm.interval_s,
                "elapsed_s": round(now - self._born, 3),
                "new_bytes": sum(end - told[name] for name, end in self._told.items()),
                "new_lines": sum(count - told_lines[name] for name, count in self._told_lines.items()),
                "tail": shown["text"],
                "stream": self._stream,
                "offset": shown["offset"],
            },
        )

    def _tail(self, begin: int, end: int) -> dict[str, Any]:
        """Of the stream that spoke last, only what is new."""
        try:
            at, raw = self._life.log.read(self._stream, max(begin, end - _TAIL_BYTES), _TAIL_BYTES)
        except OSError:
            return {"text": "", "offset": end}
        if at > begin:
            return tail(raw, at, lines=_TAIL_CHARACTERS, chars=_TAIL_CHARACTERS)
        # Where the last one ended nothing is missing, and so the first line is none whose beginning is not here.
        shown = tail(raw, 0, lines=_TAIL_CHARACTERS, chars=_TAIL_CHARACTERS)
        return {**shown, "offset": at + shown["offset"]}


def times_passed(limit_s: float, elapsed_s: float) -> int:
    """The greatest of TIMES whose moment has come; 0 before the first."""
    return max((times for times in TIMES if times * limit_s <= elapsed_s), default=0)


class SoftDeadline:
    """`born` is when its host asked for the command, where that is known: the hard limit counts from there too."""

    def __init__(self, life: Life, limit_s: float, born: float | None = None) -> None:
        self._life = life
        self._born = time.monotonic() if born is None else born
        self._limit_s: float | None = None
        self._timer: Timer | None = None
        self._told = 0
        self.set(limit_s)

    def set(self, limit_s: float | None) -> None:
        """Move it. One whose time is already over is told at once."""
        self.close()
        self._limit_s = limit_s
        self._told = 0
        self._arm()

    def heard(self, stream: str, size: int) -> None:
        pass

    def begin(self, attempt: int) -> None:
        if attempt > 1:
            self._born = time.monotonic()
        self.set(self._limit_s)

    def pause(self) -> None:
        self.close()

    def finish(self) -> None:
        self.close()

    def facts(self) -> dict[str, Any]:
        return {"soft_told": self._told}

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._limit_s is None:
            return
        elapsed_s = time.monotonic() - self._born
        passed = times_passed(self._limit_s, elapsed_s)
        due = passed if passed > self._told else next((times for times in TIMES if times > self._told), None)
        if due is not None:
            self._timer = self._life.loop.after(max(0.0, due * self._limit_s - elapsed_s), self._tell)

    def _tell(self) -> None:
        self._timer = None
        assert self._limit_s is not None
        elapsed_s = time.monotonic() - self._born
        # Woken late, from a suspended machine say, it tells the last of those that passed.
        passed = times_passed(self._limit_s, elapsed_s)
        if passed > self._told:
            self._told = passed
            hard_s = self._life.now("timeout")
            self._life.signals.emit(
                "deadline",
                {
                    "limit_s": self._limit_s,
                    "elapsed_s": round(elapsed_s, 3),
                    "hard_in_s": None if hard_s is None else round(max(0.0, hard_s - elapsed_s), 3),
                    "n": passed,
                },
            )
        self._arm()
