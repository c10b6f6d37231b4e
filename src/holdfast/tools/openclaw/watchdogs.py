"""How long an agent's command line may be silent: one table, and nobody else has a number of it."""

from __future__ import annotations

from dataclasses import dataclass

# One renewal while an agent compacts its conversation, which prints nothing.
COMPACTION_GRACE_MS = 300_000

_MARGIN_MS = 1000
_LEAST_MS = 1000
_RATIO_MIN, _RATIO_MAX = 0.05, 0.95


@dataclass(frozen=True)
class Profile:
    name: str
    ratio: float
    min_ms: int
    max_ms: int


FRESH = Profile("fresh", 0.8, 180_000, 600_000)
RESUME = Profile("resume", 0.3, 60_000, 180_000)


@dataclass(frozen=True)
class Configured:
    """What a backend has instead of the table's numbers. It never changes which profile applies. `no_output_ms` of 0
    turns the watchdog off."""

    no_output_ms: int | None = None
    ratio: float | None = None
    min_ms: int | None = None
    max_ms: int | None = None


def profile_for(*, resumed: bool, explicit_timeout: bool = False, scheduled: bool = False) -> Profile:
    """A resumed conversation answers soon, unless somebody said how long it may take, or nobody is there to wait."""
    return RESUME if resumed and not explicit_timeout and not scheduled else FRESH


def no_output_ms(timeout_ms: int, profile: Profile, configured: Configured | None = None) -> int | None:
    """None: there is no watchdog. A timeout of 0 is none: longer than any, and nothing that silence must be shorter
    than."""
    own = configured or Configured()
    if own.no_output_ms == 0:
        return None
    if own.no_output_ms is not None:
        wanted = own.no_output_ms
    else:
        ratio = profile.ratio if own.ratio is None else min(max(own.ratio, _RATIO_MIN), _RATIO_MAX)
        least = profile.min_ms if own.min_ms is None else own.min_ms
        most = profile.max_ms if own.max_ms is None else own.max_ms
        wanted = min(max(round(timeout_ms * ratio), least), most) if timeout_ms else most
    return max(min(wanted, timeout_ms - _MARGIN_MS) if timeout_ms else wanted, _LEAST_MS)
