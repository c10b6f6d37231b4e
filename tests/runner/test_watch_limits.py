"""How often a session may tell of matches: the table of the contract, as an oracle and by what it promises."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runner.features.watch import DISABLED, LIFETIME, STRIKES, Limiter, Verdict

INTERVAL_S = 15.0


def limiter(strikes: int = 3, lifetime: int = 8) -> Limiter:
    return Limiter(interval_s=INTERVAL_S, strikes=strikes, lifetime=lifetime)


class Told(NamedTuple):
    at: float
    suppressed: int


class Run:
    """Batches of one line, one after the other."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.told: list[Told] = []
        self.disabled: list[tuple[float, str]] = []

    def match(self, at: float, lines: int = 1) -> Verdict:
        outcome = self.limiter.arrive(lines, at)
        if outcome.emit:
            self.told.append(Told(at, outcome.suppressed))
        if outcome.disabled is not None:
            self.disabled.append((at, outcome.disabled))
        return outcome


@pytest.mark.covers("signals:26")
def test_matches_all_the_time_are_reported_three_times() -> None:
    run = Run(limiter())

    for second in range(60):
        run.match(float(second))

    assert [told.at for told in run.told] == [0.0, 15.0, 30.0]
    assert run.disabled == [(31.0, STRIKES)]
    assert len(run.told) + sum(told.suppressed for told in run.told) + run.limiter.suppressed == 60


@pytest.mark.covers("signals:27")
def test_a_match_now_and_then_is_reported_eight_times() -> None:
    run = Run(limiter())

    for number in range(10):
        run.match(20.0 * number)

    assert [told.at for told in run.told] == [20.0 * number for number in range(8)]
    assert run.disabled == [(140.0, LIFETIME)]
    assert run.limiter.suppressed == 2


@pytest.mark.covers("signals:28")
def test_a_clean_window_forgives_strikes() -> None:
    run = Run(limiter())
    for at in (0.0, 1.0, 15.0, 16.0, 30.0, 45.0, 46.0, 60.0):
        run.match(at)

    assert not run.disabled
    assert run.limiter.strikes == 1


@pytest.mark.covers("signals:28")
def test_drops_are_reported_once_with_the_next_match() -> None:
    run = Run(limiter())

    for at in (0.0, 1.0, 2.0, 3.0, 4.0, 15.0, 30.0):
        run.match(at)

    assert [told.suppressed for told in run.told] == [0, 4, 0]


def test_a_window_ends_when_its_time_is_up_to_the_moment() -> None:
    run = Run(limiter())
    run.match(0.0)

    assert not run.match(INTERVAL_S - 0.001).emit
    assert run.match(INTERVAL_S).emit


class Oracle:
    """The table, row by row."""

    def __init__(self) -> None:
        self.state, self.h, self.k, self.s, self.u = "armed", 0, 0, 0, 0

    def batch(self, n: int, now: int) -> tuple[bool, int, str | None]:
        if self.state == "disabled":
            self.s += n
            return False, 0, None
        if self.state == "cooling" and now < self.u:
            self.s += n
            self.k += 1
            self.state = "disabled" if self.k == 3 else "struck"
            return False, 0, "strikes" if self.k == 3 else None
        if self.state == "struck" and now < self.u:
            self.s += n
            return False, 0, None
        if self.state == "cooling":
            self.k = 0
        suppressed, self.s = self.s, 0
        self.h += 1
        self.u = now + 15
        self.state = "disabled" if self.h == 8 else "cooling"
        return True, suppressed, "lifetime" if self.h == 8 else None


_batches = st.lists(st.tuples(st.sampled_from([0, 1, 7, 14, 15, 16, 40]), st.integers(1, 5)), max_size=60)


@given(_batches)
def test_the_limiter_does_what_the_table_says(batches: list[tuple[int, int]]) -> None:
    limits, oracle, now = limiter(), Oracle(), 0
    for step, lines in batches:
        now += step
        outcome = limits.arrive(lines, float(now))

        assert (outcome.emit, outcome.suppressed, outcome.disabled) == oracle.batch(lines, now)
        assert (limits.hits, limits.strikes, limits.suppressed) == (oracle.h, oracle.k, oracle.s)
        assert limits.state == oracle.state


@given(_batches, st.integers(1, 4), st.integers(1, 9))
def test_whatever_comes_the_limits_hold_and_nothing_is_uncounted(
    batches: list[tuple[int, int]], strikes: int, lifetime: int
) -> None:
    run = Run(limiter(strikes, lifetime))
    now, lines_in_all, lines_told = 0.0, 0, 0
    for step, lines in batches:
        now += step
        lines_in_all += lines
        lines_told += lines if run.match(now, lines).emit else 0

    times = [told.at for told in run.told]
    assert len(times) <= lifetime
    assert all(later - earlier >= INTERVAL_S for earlier, later in pairwise(times))
    assert len(run.disabled) <= 1
    assert (run.limiter.state == DISABLED) == bool(run.disabled)
    assert lines_told + sum(told.suppressed for told in run.told) + run.limiter.suppressed == lines_in_all
