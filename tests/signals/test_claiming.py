"""Whether another holder still holds its claims, as far as can be seen from here."""

from __future__ import annotations

import pytest

from holdfast.signals.queue import DEAD, HOLDS, SILENT, Holder, state_of

S = 10**9


def holder(boot: str = "one", pidns: int = 1, timens: int = 1, pid: int = 10, until_s: float = 0.0) -> Holder:
    return Holder(boot, pidns, timens, pid, 77, round(until_s * S), round(until_s * S))


@pytest.mark.parametrize(
    "other, now_s, lives, what",
    [
        (holder(until_s=900), 0, True, HOLDS),
        (holder(until_s=900), 0, False, DEAD),
        (holder(until_s=900), 900, True, SILENT),
        (holder(boot="two", until_s=900), 0, True, DEAD),
        # Processes of another pid or time namespace cannot be seen: only the lease counts.
        (holder(pidns=2, until_s=900), 0, False, HOLDS),
        (holder(pidns=2, until_s=900), 901, False, SILENT),
        (holder(timens=2, until_s=900), 0, False, HOLDS),
    ],
)
def test_state_of_another_holder(other: Holder, now_s: int, lives: bool, what: str) -> None:
    assert state_of(other, holder(), now_s * S, now_s * S, lambda pid, start: lives) == what


def test_lease_on_another_monotonic_clock_is_judged_by_the_wall() -> None:
    other = Holder("one", 2, 2, 10, 77, until_ns=5 * S, until_wall_ns=1000 * S)
    assert state_of(other, holder(), 100 * S, 999 * S, lambda pid, start: False) == HOLDS
    assert state_of(other, holder(), 0, 1000 * S, lambda pid, start: False) == SILENT
