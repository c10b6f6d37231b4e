"""How often one session may tell of matches. Pure: time is given, and it judges at matches alone, so no timer ticks."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

ARMED, COOLING, STRUCK, DISABLED = "armed", "cooling", "struck", "disabled"
STRIKES, LIFETIME, TOO_SLOW = "strikes", "lifetime", "too_slow"


class Outcome:
    """What becomes of a batch. `emit`: it is told, with so many lines that were not told before it."""

    __slots__ = ("disabled", "emit", "suppressed")

    def __init__(self, *, emit: bool = False, suppressed: int = 0, disabled: str | None = None) -> None:
        self.emit = emit
        self.suppressed = suppressed
        # Why watching ended with this batch.
        self.disabled = disabled


class Limiter:
    def __init__(self, *, interval_s: float, strikes: int, lifetime: int) -> None:
        self._interval_s = interval_s
        self._strikes_max = strikes
        self._lifetime = lifetime
        self.state = ARMED
        self.hits = 0
        # Windows in a row in which something was dropped.
        self.strikes = 0
        # Matching lines of which nobody was told yet.
        self.suppressed = 0
        # The end of the window that the last delivery opened.
        self.until = 0.0
        self.reason: str | None = None

    def delivers(self, now: float) -> bool:
        """Would a match of this moment be told, but for the breaker? Then it is worth waiting for its neighbours."""
        return self.state == ARMED or (self.state != DISABLED and now >= self.until)

    def arrive(self, lines: int, now: float, admit: Callable[[], bool]) -> Outcome:
        """A batch of so many matching lines. `admit` asks the breaker, and is called only where its word counts."""
        if not self.delivers(now):
            return self._drop(lines)
        if self.state == COOLING:
            self.strikes = 0  # the window was clean
        if not admit():
            # As if there had been no match: what a crowd of sessions does is not this one's fault.
            self.state = ARMED
            self.suppressed += lines
            return Outcome()
        before, self.suppressed = self.suppressed, 0
        self.hits += 1
        self.state = COOLING
        self.until = now + self._interval_s
        if self.hits >= self._lifetime:
            self.disable(LIFETIME)
        return Outcome(emit=True, suppressed=before, disabled=self.reason)

    def disable(self, reason: str) -> None:
        self.state = DISABLED
        self.reason = reason

    def take_suppressed(self) -> int:
        """The number is told now."""
        suppressed, self.suppressed = self.suppressed, 0
        return suppressed

    @property
    def until_ns(self) -> int | None:
        """The same as signals tell time, in nanoseconds of the monotonic clock; None before the first window."""
        return round(self.until * 1e9) if self.hits else None

    def facts(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "hits": self.hits,
            "strikes": self.strikes,
            "suppressed": self.suppressed,
            "until": self.until_ns,
            "disabled": self.reason,
        }

    def _drop(self, lines: int) -> Outcome:
        self.suppressed += lines
        if self.state == COOLING:
            self.state = STRUCK
            self.strikes += 1
            if self.strikes >= self._strikes_max:
                self.disable(STRIKES)
                return Outcome(disabled=STRIKES)
        return Outcome()
