"""Is the command well? A probe at long intervals; only a change of the answer is told."""

from __future__ import annotations

from . import clock, probes
from .knock import ANSWER_S
from .patterns import BadPattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .life import Life
    from .loop import Timer
    from .probes import Command, Port

HEALTHY, UNHEALTHY = "healthy", "unhealthy"
# A health probe is the one thing that wakes an idle session again and again.
LEAST_INTERVAL_S = 5.0


class Tally:
    """Hits and misses become a state: one hit is enough, of misses several in a row. Pure."""

    def __init__(self, misses: int) -> None:
        self._enough = misses
        self._missed = 0
        self._run_since = ""
        self.state: str | None = None
        self.since: str | None = None

    def take(self, ok: bool, at: str) -> bool:
        """Did the state change? It is so since the first hit or miss of its kind."""
        if self._missed == 0 or ok:
            self._run_since = at
        self._missed = 0 if ok else self._missed + 1
        state = HEALTHY if ok else UNHEALTHY if self._missed >= self._enough else self.state
        if state == self.state:
            return False
        self.state, self.since = state, self._run_since
        return True

    def forget(self) -> None:
        """Misses of what is no more are none of what comes next."""
        self._missed = 0


def _take(life: Life, tally: Tally, ok: bool, evidence: str) -> None:
    before = tally.state
    if tally.take(ok, clock.now_text()):
        life.write_state()
        fields = {"state": tally.state, "evidence": evidence, "since": tally.since}
        # That it is well for the first time is what everybody expects: recorded, and nobody is woken for it.
        life.signals.emit("health", fields, routed=before is not None or not ok)


class Health:
    """With `held` it waits for `release`, when the command is ready or nobody waits for that any more."""

    def __init__(self, life: Life, settings: dict[str, Any], environment: dict[str, str], *, held: bool) -> None:
        self._life = life
        self._every_s = max(settings["interval"], LEAST_INTERVAL_S)
        if settings["interval"] < LEAST_INTERVAL_S:
            life.diary.warn(f"a health probe every {settings['interval']:g} s was put at {LEAST_INTERVAL_S:g} s")
        self._held = held
        self._tally = Tally(settings["misses"])
        self._runs = False
        self._timer: Timer | None = None
        self._probe: Port | Command | None = None
        try:
            self._probe = probes.make(
                life,
                settings["probe"],
                owner_check=settings.get("owner_check", False),
                environment=environment,
                within_s=min(ANSWER_S, self._every_s),
            )
        except (probes.BadProbe, BadPattern) as problem:
            life.diary.warn(f"no health probe: {problem}")

    def heard(self, stream: str, size: int) -> None:
        pass

    def begin(self, _attempt: int) -> None:
        self._runs = True
        self._tally.forget()
        if not self._held:
            self._arm(self._every_s)

    def release(self, _ready: bool = True) -> None:
        if self._runs:
            self._arm(0.0)

    def pause(self) -> None:
        self.close()

    def finish(self) -> None:
        self.close()

    def facts(self) -> dict[str, Any]:
        return {"health": self._tally.state}

    def close(self) -> None:
        self._runs = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._probe is not None:
            self._probe.cancel()

    def _arm(self, delay_s: float) -> None:
        if self._probe is not None:
            self._timer = self._life.loop.after(delay_s, self._try)

    def _try(self) -> None:
        assert self._probe is not None
        self._timer = None
        self._probe.try_(self._tried)

    def _tried(self, ok: bool, evidence: str) -> None:
        self._arm(self._every_s)
        _take(self._life, self._tally, ok, evidence)


class ToldHealth:
    """Without a probe: well since a host said that it is ready, and not any more when it goes unasked."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._tally = Tally(1)

    def heard(self, stream: str, size: int) -> None:
        pass

    def begin(self, _attempt: int) -> None:
        pass

    def release(self, ready: bool = True) -> None:
        self._take(ready, "a host said that it is ready" if ready else "nobody said in time that it is ready")

    def pause(self) -> None:
        self._take(False, "the command ended")

    def finish(self) -> None:
        pass

    def facts(self) -> dict[str, Any]:
        return {"health": self._tally.state}

    def close(self) -> None:
        pass

    def _take(self, ok: bool, evidence: str) -> None:
        _take(self._life, self._tally, ok, evidence)
