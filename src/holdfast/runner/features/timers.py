"""Signals of a command that takes its time: a heartbeat while it prints, a reminder when it takes longer than expected.

Neither ends anything. Each has one one-shot timer; a silent command has no heartbeat and no timer for one.
"""

from __future__ import annotations

import time

from ...core.loop import Alarm
from ...core.vt.text import log_tail
from . import Feature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import SessionPart


# Output within this time goes into one heartbeat.
_GATHER_S = 1.0
_TAIL_CHARACTERS = 2000
# A soft deadline is signalled at these multiples of its length, then no more.
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


class Heartbeat(Feature):
    def __init__(self, session: SessionPart, interval_s: float) -> None:
        self._session = session
        self._born = time.monotonic()
        self._rhythm = Rhythm(self._born, interval_s)
        self._alarm = Alarm(session.loop, self._beat)
        self._over = False
        # Which stream printed last, and how far each was at the last heartbeat, in bytes and lines.
        self._stream = ""
        self._ends = session.log.ends()
        self._lines: dict[str, int] = session.log.facts()["lines"]

    def on_output(self, stream: str) -> None:
        self._stream = stream
        if not self._alarm.is_set and not self._over:
            now = time.monotonic()
            self._alarm.set(self._rhythm.due(now) - now)

    def begin(self, attempt: int) -> None:
        self._over = False

    def pause(self) -> None:
        """The heartbeat for what was printed still comes, at its time."""

    def facts(self) -> dict[str, Any]:
        return {"heartbeats": self._rhythm.n}

    def close(self) -> None:
        self._over = True
        self._alarm.cancel()

    def _beat(self) -> None:
        log = self._session.log
        ends, lines = self._ends, self._lines
        self._ends, self._lines = log.ends(), log.facts()["lines"]
        now = time.monotonic()
        # The new output of the stream that printed last.
        shown = log_tail(log, self._stream, lines=_TAIL_CHARACTERS, chars=_TAIL_CHARACTERS, since=ends[self._stream])
        self._session.signals.emit(
            "heartbeat",
            {
                "n": self._rhythm.beat(now),
                "interval_s": self._rhythm.interval_s,
                "elapsed_s": round(now - self._born, 3),
                "new_bytes": sum(end - ends[name] for name, end in self._ends.items()),
                "new_lines": sum(count - lines[name] for name, count in self._lines.items()),
                "tail": shown["text"],
                "stream": self._stream,
                "offset": shown["offset"],
            },
        )


def times_passed(limit_s: float, elapsed_s: float) -> int:
    """The greatest of TIMES that has passed; 0 before the first."""
    return max((times for times in TIMES if times * limit_s <= elapsed_s), default=0)


class SoftDeadline(Feature):
    """`born` is when the host asked for the command, where that is known: the hard limit counts from there too."""

    def __init__(self, session: SessionPart, limit_s: float, born: float | None = None) -> None:
        self._session = session
        self._born = time.monotonic() if born is None else born
        self._limit_s: float | None = None
        self._alarm = Alarm(session.loop, self._signal)
        self._signalled = 0
        self.set(limit_s)

    def set(self, limit_s: float | None) -> None:
        """Move the deadline. If the new time is already over, it is signalled at once."""
        self.close()
        self._limit_s = limit_s
        self._signalled = 0
        self._arm()

    def begin(self, attempt: int) -> None:
        if attempt > 1:
            self._born = time.monotonic()
        self.set(self._limit_s)

    def facts(self) -> dict[str, Any]:
        return {"soft_told": self._signalled}

    def close(self) -> None:
        self._alarm.cancel()

    def _arm(self) -> None:
        if self._limit_s is None:
            return
        elapsed_s = time.monotonic() - self._born
        passed = times_passed(self._limit_s, elapsed_s)
        due = passed if passed > self._signalled else next((times for times in TIMES if times > self._signalled), None)
        if due is not None:
            self._alarm.set(due * self._limit_s - elapsed_s)

    def _signal(self) -> None:
        assert self._limit_s is not None
        elapsed_s = time.monotonic() - self._born
        # If it wakes late, for example after a suspend, it signals the last one that passed.
        passed = times_passed(self._limit_s, elapsed_s)
        if passed > self._signalled:
            self._signalled = passed
            hard_s = self._session.current("timeout")
            self._session.signals.emit(
                "deadline",
                {
                    "limit_s": self._limit_s,
                    "elapsed_s": round(elapsed_s, 3),
                    "hard_in_s": None if hard_s is None else round(max(0.0, hard_s - elapsed_s), 3),
                    "n": passed,
                },
            )
        self._arm()
