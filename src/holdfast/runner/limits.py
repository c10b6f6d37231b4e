"""What ends or restarts a command by itself: deadlines, the end of its owner, restarts."""

from __future__ import annotations

import errno
import os
import time

from ..core import failpoints, processes
from ..core.ending import CAUSE_OF_LIMIT
from ..core.loop import READ, Alarm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..core.loop import Loop


# These options limit one attempt: the next attempt of a command that is restarted has its own time.
LIMITS_OF_AN_ATTEMPT = ("timeout", "idle_timeout")


# No start takes longer: a greater difference means that the two clocks differ.
_LONGEST_START_S = 600.0


def requested_at(request: dict[str, Any], timens: int | None) -> float | None:
    """When the host sent this start request, on our monotonic clock. None if it cannot be known: the host is an older
    version, in another time namespace, or on another machine."""
    asked = request.get("asked")
    if not isinstance(asked, dict) or asked.get("timens") != timens:
        return None
    at = asked.get("monotonic")
    return at if isinstance(at, float) and 0.0 <= time.monotonic() - at <= _LONGEST_START_S else None


class Deadlines:
    """Overall timeout, idle timeout and ttl, on the monotonic clock. The first that passes ends the command."""

    def __init__(
        self, loop: Loop, spec: dict[str, Any], passed: Callable[[str], None], asked: float | None = None
    ) -> None:
        self._loop = loop
        self._passed = passed
        # They count from the request, so that a slow start is part of the command's time.
        self.quiet_since = time.monotonic()
        self._born = self.quiet_since if asked is None else asked
        # An attempt of a restarting command has its own time, the session has one ttl.
        self._attempt_began = self._born
        self._limits: dict[str, float] = {}
        self._alarms = {option: self._alarm(option) for option in CAUSE_OF_LIMIT}
        self._idle_paused = False
        for option in CAUSE_OF_LIMIT:
            self.set(option, spec.get(option))

    def set(self, option: str, limit_s: float | None) -> None:
        if limit_s is None:
            self._limits.pop(option, None)
            self._alarms[option].cancel()
        else:
            self._limits[option] = limit_s
            self._arm(option)

    def begin_again(self, limits: dict[str, float | None]) -> None:
        """The next attempt begins."""
        self._attempt_began = self.quiet_since = time.monotonic()
        for option, limit_s in limits.items():
            self.set(option, limit_s)

    def output(self) -> None:
        self.quiet_since = time.monotonic()

    def pause_idle_limit(self, paused: bool) -> None:
        """Stop counting while the command is made to wait for a reader: it cannot print then, and that is not
        silence."""
        self._idle_paused = paused
        self.quiet_since = time.monotonic()

    def overdue(self) -> str | None:
        """The cause whose time was over when the command ended, before its timer fired. If we were stopped meanwhile,
        it is unknown which came first, and the command's own exit counts."""
        now = time.monotonic()
        for option in ("timeout", "ttl"):
            if option in self._limits and self._loop.woke_at < self._due(option) <= now:
                return CAUSE_OF_LIMIT[option]
        return None

    def command_left(self) -> None:
        """Cancel the limits of the command; the ttl of the session stays."""
        for option in LIMITS_OF_AN_ATTEMPT:
            self.set(option, None)

    def _due(self, option: str) -> float:
        if option != "idle_timeout":
            return (self._attempt_began if option == "timeout" else self._born) + self._limits[option]
        # Time in which we were stopped, and could not read, is not silence.
        return max(self.quiet_since, self._loop.woke_at) + self._limits[option]

    def _alarm(self, option: str) -> Alarm:
        return Alarm(self._loop, lambda: self._check(option))

    def _arm(self, option: str) -> None:
        self._alarms[option].set(self._due(option) - time.monotonic())

    def _check(self, option: str) -> None:
        if self._idle_paused and option == "idle_timeout":
            self.quiet_since = time.monotonic()
        if time.monotonic() >= self._due(option):
            self._passed(CAUSE_OF_LIMIT[option])
        else:
            self._arm(option)


# Without pidfds the owner is checked at this interval.
_LOOK_S = 1.0


class Owner:
    """Calls `gone` once, when the recorded owner has ended. Another process with its pid is not the owner."""

    def __init__(self, loop: Loop, owner: dict[str, Any], gone: Callable[[], None]) -> None:
        self._loop = loop
        self._owner = owner
        self._gone = gone
        self._pidfd: int | None = None
        self._alarm = Alarm(loop, self._look)
        failpoints.hit("runner.owner_look")
        try:
            if failpoints.off("pidfd"):
                raise AttributeError
            self._pidfd = os.pidfd_open(owner["pid"])
        except ProcessLookupError:
            gone()
            return
        except (AttributeError, OSError):
            self._look()
            return
        if processes.same(owner["pid"], owner["start"]):
            loop.watch(self._pidfd, READ, lambda _events: self._left())
        else:
            self._left()

    def close(self) -> None:
        self._alarm.cancel()
        if self._pidfd is not None:
            self._loop.watch(self._pidfd, 0, lambda _events: None)
            os.close(self._pidfd)
            self._pidfd = None

    def _left(self) -> None:
        self.close()
        self._gone()

    def _look(self) -> None:
        if processes.same(self._owner["pid"], self._owner["start"]):
            self._alarm.set(_LOOK_S)
        else:
            self._gone()


# Exit codes of a shell for a command that does not exist or cannot be executed.
_NOT_A_COMMAND = (126, 127)
# These ends were requested.
_FINAL_CAUSES = ("stop", "ttl", "owner_gone")
# The machine was short of something at that moment: descriptors, memory, processes. Other failures to start a command
# (no such file, no permission) would be the same the next time.
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS)
_JITTER = 0.1
_KEPT_ATTEMPTS = 20

UP, DOWN = "up", "down"


class Restarts:
    """Whether and when a command is started again: back-off and start limit. `chance` gives numbers from 0 to 1."""

    def __init__(self, settings: dict[str, Any], *, shell: bool, chance: Callable[[], float]) -> None:
        self._settings = settings
        self._shell = shell
        self._chance = chance
        self._starts: list[float] = []
        self._in_a_row = 0
        # Attempts in a row that ended before `reset_after`.
        self.failed_starts = 0
        # True if the start limit kept the last attempt from being repeated.
        self.limit_reached = False
        # How the last attempts ended, for the status.
        self.attempts: list[dict[str, Any]] = []

    def began(self, now: float) -> None:
        self._starts.append(now)
        self.limit_reached = False

    def was_ready(self) -> None:
        """The command became ready: the next failure counts as the first."""
        if self._settings["reset_on_ready"]:
            self._in_a_row = 0

    def ended(self, now: float, exit: dict[str, Any], error: dict[str, Any] | None = None) -> float | None:
        """In how many seconds the next attempt begins; None when none follows. `error`: why the command could not be
        started."""
        ran_s = now - self._starts[-1]
        self.attempts = [*self.attempts, {**exit, "ran_s": round(ran_s, 3)}][-_KEPT_ATTEMPTS:]
        if not self._is_repeated(exit, error):
            return None
        self.failed_starts += 1
        if ran_s >= self._settings["reset_after"]:
            self._in_a_row = self.failed_starts = 0
        self._starts = [at for at in self._starts if now - at < self._settings["window"]]
        most_failed: int | None = self._settings.get("in_a_row")
        too_many_failed = most_failed is not None and self.failed_starts >= most_failed
        if too_many_failed or len(self._starts) >= self._settings["attempts"]:
            self.limit_reached = True
            return None
        delay_s = min(self._settings["delay"] * 2.0 ** min(self._in_a_row, 32), self._settings["delay_max"])
        self._in_a_row += 1
        return float(delay_s * (1 + _JITTER * (2 * self._chance() - 1)))

    def _is_repeated(self, exit: dict[str, Any], error: dict[str, Any] | None) -> bool:
        code = exit["code"]
        if exit["cause"] == "spawn_error":
            return error is not None and error["errno"] in _SCARCE
        if exit["cause"] in _FINAL_CAUSES or code in self._settings["final_codes"]:
            return False
        if self._shell and code in _NOT_A_COMMAND:
            return False
        if self._settings["policy"] == "always":
            return True
        return exit["cause"] != "exit" or code not in self._settings["success_codes"]


class Desired:
    """What was requested of the session last: to be up or down. Every request makes a new epoch."""

    def __init__(self, by: str | None, at: str) -> None:
        self.state = UP
        self.epoch = 1
        self.by = by
        self.at = at

    def ask(self, state: str, by: str | None, at: str) -> None:
        self.state, self.by, self.at = state, by, at
        self.epoch += 1

    def facts(self) -> dict[str, Any]:
        return {"state": self.state, "epoch": self.epoch, "by": self.by, "at": self.at}
