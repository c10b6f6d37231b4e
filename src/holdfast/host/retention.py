"""The retention policy: which sessions may go. Touches nothing."""

from __future__ import annotations

import time

from ..runner import clock, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

AGE_S = 7 * 86400.0
HOME_BYTES = 4 << 30

# Written times have milliseconds, and clocks of one machine are read one after the other.
_CLOCK_SLACK_S = 1.0
# Slewing moves a clock by 0.05 %; what is beyond that, and beyond a minute, was a jump.
_JUMP_S = 60.0
_JUMP_SHARE = 0.001


class Facts:
    """What the policy needs to know of a session. `final`: it ended, and nothing of it is left alive."""

    __slots__ = ("bytes", "created_at", "damage", "ended_at", "final", "id", "state")

    def __init__(
        self,
        id: str,
        state: str,
        *,
        final: bool,
        bytes: int,
        created_at: str | float | None = None,
        ended_at: str | float | None = None,
        damage: str | None = None,
    ) -> None:
        # Why its records cannot be used; it goes as others do, by the age of its last change.
        self.damage = damage
        self.id = id
        self.state = state
        self.final = final
        self.bytes = bytes
        self.created_at = epoch_seconds(created_at)
        self.ended_at = epoch_seconds(ended_at)

    @property
    def finished(self) -> bool:
        return self.final or self.state == "lost"


class Limits:
    """`age_s` counts from the exit. `home_bytes` bounds all sessions together; None is no bound."""

    __slots__ = ("age_s", "free_bytes", "home_bytes")

    def __init__(self, age_s: float | None = AGE_S, home_bytes: int | None = HOME_BYTES, free_bytes: int = 0) -> None:
        self.age_s = age_s
        self.home_bytes = home_bytes
        self.free_bytes = free_bytes


class Plan:
    """`remove` in the order of removal, `notes` for people."""

    __slots__ = ("notes", "remove")

    def __init__(self, remove: list[Facts], notes: list[str]) -> None:
        self.remove = remove
        self.notes = notes


class Moment:
    """Now, by the clock that people read and by the one that nobody can set."""

    __slots__ = ("boot", "boot_s", "wall_s")

    def __init__(self, wall_s: float, boot_s: float, boot: str) -> None:
        self.wall_s = wall_s
        self.boot_s = boot_s
        self.boot = boot

    @classmethod
    def now(cls) -> Moment:
        return cls(clock.wall_ns() / 1e9, time.clock_gettime(time.CLOCK_BOOTTIME), tree.boot_id())


def plan(
    sessions: Iterable[Facts],
    limits: Limits,
    now: float,
    *,
    jumped: str | None = None,
    free_bytes: int | None = None,
) -> Plan:
    """Which finished sessions go: those that ended long ago, then the oldest until the rest fits.

    `jumped` says why the wall clock cannot be trusted in this run: then nothing goes for its age.
    """
    sessions = list(sessions)
    finished = sorted((each for each in sessions if each.finished), key=_oldest_end_first)
    ahead = [each for each in finished if each.ended_at is not None and each.ended_at > now + _CLOCK_SLACK_S]
    if ahead and not jumped:
        jumped = f"session {ahead[0].id} ended in the future by the wall clock"
    notes = [f"nothing is removed for its age in this run: {jumped}"] if jumped else []

    def too_old(each: Facts) -> bool:
        if jumped or limits.age_s is None or each.ended_at is None:
            return False
        return now - each.ended_at > limits.age_s

    remove = [each for each in finished if too_old(each)]
    freed = sum(each.bytes for each in remove)
    over_cap = 0 if limits.home_bytes is None else sum(each.bytes for each in sessions) - limits.home_bytes
    short = 0 if free_bytes is None else limits.free_bytes - free_bytes
    for each in finished:
        if max(over_cap, short) <= freed:
            break
        # One without a byte of output would go for nothing.
        if each.bytes and not too_old(each):
            remove.append(each)
            freed += each.bytes
    if over_cap > freed:
        notes.append(f"running sessions hold {over_cap - freed:,} bytes more than log.home_cap allows")
    if short > freed:
        notes.append(f"free space is {short - freed:,} bytes below log.free_floor, and no finished session holds them")
    return Plan(remove, notes)


def jump(before: Moment, now: Moment) -> str | None:
    """Why the wall clock cannot be trusted, seen from the last collection; None when it can."""
    wall = now.wall_s - before.wall_s
    if wall < -_CLOCK_SLACK_S:
        return f"the wall clock is {-wall:.0f} s behind the last collection"
    if now.boot == before.boot:
        true = now.boot_s - before.boot_s
        if abs(wall - true) > max(_JUMP_S, _JUMP_SHARE * abs(true)):
            return f"the wall clock moved by {wall - true:+.0f} s since the last collection"
    return None


def epoch_seconds(at: str | float | None) -> float | None:
    """Seconds since 1970 of an RFC 3339 time; None for what is no time."""
    if at is None or isinstance(at, float | int):
        return at
    from datetime import UTC, datetime

    try:
        read = datetime.fromisoformat(at)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _oldest_end_first(facts: Facts) -> tuple[float, str]:
    at = facts.ended_at if facts.ended_at is not None else facts.created_at
    return at or 0.0, facts.id
