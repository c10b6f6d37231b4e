"""When a command is started again in the same session, how soon, and when no more. Arithmetic alone."""

from __future__ import annotations

import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

# A shell's own words for a command that is not there, or is none.
_NOT_A_COMMAND = (126, 127)
# Somebody asked for these ends.
_FINAL_CAUSES = ("stop", "ttl", "owner_gone")
# The machine had no more of something just then: descriptors, memory, processes. What else keeps a command from being
# started (no such file, no permission) will do so the next time too.
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS)
_JITTER = 0.1
_KEPT_ATTEMPTS = 20

UP, DOWN = "up", "down"


class Restarts:
    """Back-off and start limit of one session. `chance` gives numbers from 0 to 1."""

    def __init__(self, settings: dict[str, Any], *, shell: bool, chance: Callable[[], float]) -> None:
        self._settings = settings
        self._shell = shell
        self._chance = chance
        self._starts: list[float] = []
        self._in_a_row = 0
        # Attempts in a row that did not even live as long as makes one good.
        self.failed_starts = 0
        # Did the start limit keep the last attempt from being repeated?
        self.limit_reached = False
        # How the last attempts ended, for whoever asks why.
        self.attempts: list[dict[str, Any]] = []

    def began(self, now: float) -> None:
        self._starts.append(now)
        self.limit_reached = False

    def was_ready(self) -> None:
        """It came so far as to be of use: the next failure is a first one."""
        if self._settings["reset_on_ready"]:
            self._in_a_row = 0

    def ended(self, now: float, exit: dict[str, Any], error: dict[str, Any] | None = None) -> float | None:
        """In how many seconds it is started again; None when this end is the last. `error`: why no command came to
        be."""
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
    """What was asked of the session last: to be up or down. Every request makes a new epoch, and what was planned in an
    older one is not done."""

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
