"""Overall timeout, idle timeout and ttl, on the monotonic clock. The first that passes ends the command."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .loop import Loop, Timer

# Option of the spec -> cause it leads to.
CAUSES = {"timeout": "overall_timeout", "ttl": "ttl", "idle_timeout": "idle_timeout"}


# No start takes longer: a clock that says so is not ours.
_LONGEST_START_S = 600.0


def asked_at(request: dict[str, Any], timens: int | None) -> float | None:
    """When its host sent this start request, on our monotonic clock. None where it cannot be told: an older host, one
    in another time namespace, or on another machine."""
    asked = request.get("asked")
    if not isinstance(asked, dict) or asked.get("timens") != timens:
        return None
    at = asked.get("monotonic")
    return at if isinstance(at, float) and 0.0 <= time.monotonic() - at <= _LONGEST_START_S else None


class Deadlines:
    def __init__(
        self, loop: Loop, spec: dict[str, Any], passed: Callable[[str], None], asked: float | None = None
    ) -> None:
        self._loop = loop
        self._passed = passed
        # They count from the request, so that a slow start is part of the command's time.
        self._quiet_since = time.monotonic()
        self._born = self._quiet_since if asked is None else asked
        # An attempt of a restarting command has its own time, the session has one ttl.
        self._attempt_began = self._born
        self._limits: dict[str, float] = {}
        self._timers: dict[str, Timer] = {}
        self._held = False
        for option in CAUSES:
            self.set(option, spec.get(option))

    def set(self, option: str, limit_s: float | None) -> None:
        timer = self._timers.pop(option, None)
        if timer is not None:
            timer.cancel()
        self._limits.pop(option, None)
        if limit_s is not None:
            self._limits[option] = limit_s
            self._arm(option)

    def begin_again(self, limits: dict[str, float | None]) -> None:
        """The next attempt begins."""
        self._attempt_began = self._quiet_since = time.monotonic()
        for option, limit_s in limits.items():
            self.set(option, limit_s)

    def output(self) -> None:
        self._quiet_since = time.monotonic()

    def hold(self, held: bool) -> None:
        """Is the command made to wait for a reader? It cannot print then, and that is not silence."""
        self._held = held
        self._quiet_since = time.monotonic()

    def overdue(self) -> str | None:
        """The cause whose time was already over, for a command that ended before anyone noticed. Where we were
        stopped meanwhile nobody knows which came first, and what the command did stands."""
        now = time.monotonic()
        for option in ("timeout", "ttl"):
            if option in self._limits and self._loop.woke_at < self._due(option) <= now:
                return CAUSES[option]
        return None

    def command_left(self) -> None:
        """The command's own limits are over; how long the session may live is not."""
        for option in ("timeout", "idle_timeout"):
            self.set(option, None)

    def _due(self, option: str) -> float:
        if option != "idle_timeout":
            return (self._attempt_began if option == "timeout" else self._born) + self._limits[option]
        # A time in which nobody could have printed or been heard, because we were stopped, is not silence.
        return max(self._quiet_since, self._loop.woke_at) + self._limits[option]

    def _arm(self, option: str) -> None:
        wait_s = max(0.0, self._due(option) - time.monotonic())
        self._timers[option] = self._loop.after(wait_s, lambda: self._judge(option))

    def _judge(self, option: str) -> None:
        if self._held and option == "idle_timeout":
            self._quiet_since = time.monotonic()
        if time.monotonic() >= self._due(option):
            self._passed(CAUSES[option])
        else:
            self._arm(option)
