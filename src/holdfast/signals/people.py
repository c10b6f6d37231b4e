"""Which signals people are told, when, and when again. Pure: clocks and chance are given.

People are consumers like others; what is particular to them is patience. A notice that is old, or about a session that
somebody is looking at, is none; several about one session in a short time are one; a way that fails is tried again ever
later, and then given up.
"""

from __future__ import annotations

from ..runner.people import is_told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .records import Signal

# What is done with a signal instead of telling it.
OTHER = "other"
BEFORE = "before"
EXPIRED = "expired"
ATTENDED = "attended"

_OF_LIFECYCLE = ("ended", "failed", "limit", "restarting")

# Waits grow by up to this part, so that many who failed together do not come again together.
_JITTER = 0.2


def variants_of(events: Collection[str]) -> list[str]:
    """Which signals can be such events. Every ending can: a session may wish that it is told."""
    return sorted({"lifecycle", *(event for event in events if event not in _OF_LIFECYCLE)})


class Moment:
    """Now: by the clock of this boot, and by the one that people read."""

    __slots__ = ("boot", "mono_ns", "wall_ns")

    def __init__(self, boot: str, mono_ns: int, wall_ns: int) -> None:
        self.boot = boot
        self.mono_ns = mono_ns
        self.wall_ns = wall_ns


def fate(
    signal: Signal,
    now: Moment,
    *,
    events: Collection[str],
    notify: bool | None,
    max_age_s: float,
    attended_s: float,
    since_ns: int = 0,
) -> str | None:
    """None: people are told. Else why not. `notify` is the session's own wish, `since_ns` when the channel began."""
    if not is_told(signal.variant, signal.fields, events, notify):
        return OTHER
    if wall_ns(signal) < since_ns:
        return BEFORE
    if age_s(signal, now) > max_age_s:
        return EXPIRED
    idle_s = _person_idle_s(signal)
    return ATTENDED if idle_s is not None and idle_s <= attended_s else None


def age_s(signal: Signal, now: Moment) -> float:
    """Not by the wall clock where the other can tell: it jumps."""
    if signal.boot == now.boot and signal.mono_ns:
        return (now.mono_ns - signal.mono_ns) / 1e9
    return (now.wall_ns - (wall_ns(signal) or now.wall_ns)) / 1e9


def wall_ns(signal: Signal) -> int:
    """When it happened, for people; 0 where that cannot be read."""
    from datetime import datetime

    try:
        return round(datetime.fromisoformat(signal.at).timestamp() * 1e9)
    except (ValueError, OverflowError):
        return 0


def _person_idle_s(signal: Signal) -> float | None:
    """How long before the signal a person who controls the session typed or looked; None where there is none."""
    attached = signal.snapshot.get("attached")
    idle = attached.get("person_idle_s") if isinstance(attached, dict) else None
    return float(idle) if isinstance(idle, (int, float)) and not isinstance(idle, bool) else None


def retry_wait(
    waits: Collection[float], failures: int, wanted_s: float | None, chance: Callable[[], float]
) -> float | None:
    """How long until it is tried again after so many failures; None: given up. Never before `wanted_s`, which the other
    side asked for."""
    if failures > len(waits):
        return None
    wait = list(waits)[failures - 1] * (1 + _JITTER * chance())
    return wait if wanted_s is None else max(wait, wanted_s)


class Gathering:
    """The signals of one channel until they are told: the first of a session at once, what follows within `apart_s` of
    it together. With `ring_apart_s` that holds between any two notices, whatever session they are about."""

    def __init__(self, apart_s: float, ring_apart_s: float = 0.0) -> None:
        self._apart_s = apart_s
        self._ring_apart_s = ring_apart_s
        self._waiting: dict[str, list[Signal]] = {}
        # Sessions of which a notice is under way, and those of which one went out not long ago.
        self._busy: set[str] = set()
        self._free_at: dict[str, float] = {}
        self._ring_at = float("-inf")

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, signal: Signal) -> None:
        self._waiting.setdefault(_about(signal), []).append(signal)

    def take(self, now: float, limit: int) -> list[list[Signal]]:
        """What is to be told now, at most `limit` notices. Each is under way until it is `done`."""
        self._free_at = {about: at for about, at in self._free_at.items() if at > now}
        if now < self._ring_at or (self._ring_apart_s and self._busy):
            return []
        due = [about for about in self._waiting if about not in self._busy and about not in self._free_at]
        if self._ring_apart_s:
            groups = [[signal for about in due for signal in self._waiting[about]]] if due else []
        else:
            due = due[: max(0, limit)]
            groups = [self._waiting[about] for about in due]
        for about in due:
            del self._waiting[about]
            self._busy.add(about)
        return groups

    def done(self, signals: list[Signal], now: float) -> None:
        for about in map(_about, signals):
            self._busy.discard(about)
            self._free_at[about] = now + self._apart_s
        self._ring_at = now + self._ring_apart_s

    def drop(self) -> list[Signal]:
        """All that waits, for somebody else."""
        waiting, self._waiting = self._waiting, {}
        return [signal for each in waiting.values() for signal in each]

    def next_at(self) -> float | None:
        """When there will be something to take; None where that is not a matter of time."""
        times = [
            max(self._free_at.get(about, float("-inf")), self._ring_at)
            for about in self._waiting
            if about not in self._busy and not (self._ring_apart_s and self._busy)
        ]
        return min(times, default=None)

    def calm_at(self) -> float:
        """From then on it does not matter any more what was told before."""
        return max(self._free_at.values(), default=float("-inf"))


def _about(signal: Signal) -> str:
    return signal.session or "home"
