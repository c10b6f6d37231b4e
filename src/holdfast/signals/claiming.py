"""Who may have which signal when: the rules of claims, without I/O and on a clock that is handed in.

A signal that one consumer has not settled is free, held, backed off or parked. It becomes free again at once when its
holder dies, after the lease when its holder is silent, and after a growing wait when its holder gave it back. Only
what a holder dies of, or calls poison, ever parks a signal.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..config import Config

_NS = 1_000_000_000


class Rules:
    """The numbers in force."""

    __slots__ = ("alone_after", "lease_ns", "park_after", "waits_ns")

    def __init__(
        self,
        *,
        lease_s: float = 900.0,
        waits_s: Sequence[float] = (1.0, 5.0, 30.0, 60.0),
        alone_after: int = 5,
        park_after: int = 8,
    ) -> None:
        self.lease_ns = round(lease_s * _NS)
        self.waits_ns = tuple(round(wait * _NS) for wait in waits_s) or (0,)
        self.alone_after = alone_after
        self.park_after = park_after

    @classmethod
    def of(cls, config: Config) -> Rules:
        return cls(
            lease_s=config.signals_lease,
            waits_s=config.signals_release_waits,
            alone_after=config.signals_alone_after,
            park_after=config.signals_park_after,
        )


class Delivery:
    """What one consumer's queue knows about one signal. `failures` are deliveries that ended in the holder's death or
    as poison; `not_before_ns` is on the monotonic clock."""

    __slots__ = ("deliveries", "failures", "held", "not_before_ns", "parked", "pos", "releases")

    def __init__(
        self,
        pos: int,
        deliveries: int = 0,
        releases: int = 0,
        failures: int = 0,
        not_before_ns: int = 0,
        *,
        held: bool = False,
        parked: bool = False,
    ) -> None:
        self.pos = pos
        self.deliveries = deliveries
        self.releases = releases
        self.failures = failures
        self.not_before_ns = not_before_ns
        self.held = held
        self.parked = parked

    def __repr__(self) -> str:
        state = "parked" if self.parked else "held" if self.held else "free"
        return f"<delivery of {self.pos}: {state}, {self.deliveries} times, {self.failures} failed>"

    def is_due(self, now_ns: int) -> bool:
        return not self.held and not self.parked and self.not_before_ns <= now_ns

    def take(self) -> None:
        self.held = True
        self.deliveries += 1

    def untake(self) -> None:
        """As if it had not been handed out: the host could not even look at it."""
        self.held = False
        self.deliveries -= 1

    def defer(self, rules: Rules, now_ns: int) -> None:
        """Somebody else's, says the host: not again soon, and nothing counted."""
        self.untake()
        self.not_before_ns = now_ns + rules.waits_ns[-1]

    def release(self, rules: Rules, now_ns: int, *, poison: bool = False) -> bool:
        """Given back. True when that parks it."""
        self.held = False
        self.not_before_ns = now_ns + rules.waits_ns[min(self.releases, len(rules.waits_ns) - 1)]
        self.releases += 1
        return poison and self._fail(rules)

    def orphan(self, rules: Rules) -> bool:
        """Its holder died: free at once. True when that parks it."""
        self.held = False
        self.not_before_ns = 0
        return self._fail(rules)

    def expire(self) -> None:
        """Its holder lives and was silent for a whole lease: free, and nobody's fault."""
        self.held = False
        self.not_before_ns = 0

    def comes_alone(self, rules: Rules) -> bool:
        return self.failures + 1 >= rules.alone_after

    def _fail(self, rules: Rules) -> bool:
        self.failures += 1
        self.parked = self.failures >= rules.park_after
        return self.parked


def choose(due: Iterable[Delivery], limit: int, rules: Rules) -> list[Delivery]:
    """The next ones of those that are due, in the order given: one that may be poison takes nobody with it."""
    chosen: list[Delivery] = []
    for delivery in due:
        if len(chosen) >= limit:
            break
        if delivery.comes_alone(rules):
            return chosen or [delivery]
        chosen.append(delivery)
    return chosen


class Holder:
    """Who holds a claim: a process at one life, in its namespaces, and until when without another word from it."""

    __slots__ = ("boot", "pid", "pidns", "start", "timens", "until_ns", "until_wall_ns")

    def __init__(
        self, boot: str, pidns: int, timens: int, pid: int, start: int, until_ns: int = 0, until_wall_ns: int = 0
    ) -> None:
        self.boot = boot
        self.pidns = pidns
        self.timens = timens
        self.pid = pid
        self.start = start
        self.until_ns = until_ns
        self.until_wall_ns = until_wall_ns

    def __repr__(self) -> str:
        return f"<holder {self.pid} of boot {self.boot[:8]}>"

    @property
    def identity(self) -> tuple[str, int, int, int, int]:
        return self.boot, self.pidns, self.timens, self.pid, self.start

    @property
    def clock(self) -> str:
        """Which monotonic clock its times are on: those of another boot or time namespace cannot be compared."""
        return f"{self.boot}:{self.timens}"

    def can_see(self, other: Holder) -> bool:
        """Whether its pids and start times mean the same to both."""
        return self.identity[:3] == other.identity[:3]

    def remaining_ns(self, other: Holder, now_ns: int, wall_ns: int) -> int:
        """How long `other` may still be silent. The wall clock decides only where there is no better one."""
        return other.until_ns - now_ns if other.clock == self.clock else other.until_wall_ns - wall_ns


HOLDS = "holds"
SILENT = "was silent"
DEAD = "died"


def standing(here: Holder, other: Holder, now_ns: int, wall_ns: int, lives: Callable[[int, int], bool]) -> str:
    """What has become of another holder, as far as that can be told from here."""
    if other.boot != here.boot:
        return DEAD
    if here.can_see(other) and not lives(other.pid, other.start):
        return DEAD
    return HOLDS if here.remaining_ns(other, now_ns, wall_ns) > 0 else SILENT
