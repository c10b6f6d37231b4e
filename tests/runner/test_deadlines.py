"""Overall timeout, ttl and idle timeout on a clock that the test moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ending import CAUSE_OF_LIMIT
from holdfast.core.loop import Timer
from holdfast.runner.limits import Deadlines, requested_at


class Clock:
    """A loop whose time stands still until it is moved; due timers then fire in order."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.woke_at = 0.0
        self.timers: list[Timer] = []

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer(self.now + delay_s, call)
        self.timers.append(timer)
        return timer

    def pass_by(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            due = sorted((t for t in self.timers if t.call is not None and t.at <= end), key=lambda t: t.at)
            if not due:
                break
            self.now = max(self.now, due[0].at)
            self._fire(due[0])
        self.now = end

    def sleep(self, seconds: float) -> None:
        """Stopped or suspended: nothing ran meanwhile, and what is due comes in one go on waking."""
        self.now += seconds
        self.woke_at = self.now
        for timer in sorted((t for t in self.timers if t.at <= self.now), key=lambda t: t.at):
            self._fire(timer)

    @property
    def armed(self) -> int:
        return sum(timer.call is not None for timer in self.timers)

    @staticmethod
    def _fire(timer: Timer) -> None:
        call, timer.call = timer.call, None
        if call is not None:
            call()


class Watched:
    """Deadlines on such a clock, and which causes they told."""

    def __init__(self, **limits: float | None) -> None:
        self.clock = Clock()
        self.causes: list[str] = []
        self._patch = patch.object(time, "monotonic", lambda: self.clock.now)
        self._patch.start()
        loop: Any = self.clock
        self.deadlines = Deadlines(loop, limits, self.causes.append)

    def close(self) -> None:
        self._patch.stop()


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(**limits: float | None) -> Watched:
        made.append(Watched(**limits))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_without_limits_no_timer_ticks(watch: Callable[..., Watched]) -> None:
    watched = watch(timeout=None, ttl=None, idle_timeout=None)
    assert watched.clock.armed == 0
    watched.deadlines.output()
    assert watched.clock.armed == 0


@pytest.mark.parametrize("option, cause", CAUSE_OF_LIMIT.items())
def test_a_limit_passes_once_at_its_time_and_not_before(watch: Callable[..., Watched], option: str, cause: str) -> None:
    watched = watch(**{option: 5.0})
    watched.clock.pass_by(4.999)
    assert watched.causes == []
    watched.clock.pass_by(0.001)
    assert watched.causes == [cause]
    watched.clock.pass_by(1000)
    assert watched.causes == [cause]


def test_output_puts_off_the_idle_timeout_and_nothing_else(watch: Callable[..., Watched]) -> None:
    watched = watch(timeout=20.0, idle_timeout=5.0)
    for _ in range(4):
        watched.clock.pass_by(4.0)
        watched.deadlines.output()
    assert watched.causes == []
    watched.clock.pass_by(4.0)
    assert watched.causes == ["overall_timeout"]


def test_output_costs_no_timer(watch: Callable[..., Watched]) -> None:
    watched = watch(idle_timeout=5.0)
    for _ in range(1000):
        watched.deadlines.output()
    assert len(watched.clock.timers) == 1


def test_silence_is_counted_from_the_last_output(watch: Callable[..., Watched]) -> None:
    watched = watch(idle_timeout=5.0)
    watched.clock.pass_by(3.0)
    watched.deadlines.output()
    watched.clock.pass_by(4.9)
    assert watched.causes == []
    watched.clock.pass_by(0.1)
    assert watched.causes == ["idle_timeout"]


def test_time_slept_through_is_not_silence(watch: Callable[..., Watched]) -> None:
    watched = watch(idle_timeout=5.0)
    watched.clock.pass_by(4.0)
    watched.clock.sleep(3600.0)
    assert watched.causes == []
    watched.clock.pass_by(4.9)
    assert watched.causes == []
    watched.clock.pass_by(0.2)
    assert watched.causes == ["idle_timeout"]


def test_an_overall_timeout_slept_through_passes_once_on_waking(watch: Callable[..., Watched]) -> None:
    watched = watch(timeout=5.0)
    watched.clock.sleep(3600.0)
    watched.clock.pass_by(100.0)
    assert watched.causes == ["overall_timeout"]


def test_a_limit_set_later_counts_from_the_start(watch: Callable[..., Watched]) -> None:
    watched = watch()
    watched.clock.pass_by(10.0)
    watched.deadlines.set("timeout", 12.0)
    watched.clock.pass_by(1.9)
    assert watched.causes == []
    watched.clock.pass_by(0.2)
    assert watched.causes == ["overall_timeout"]


def test_a_limit_set_later_to_a_time_already_over_passes_at_the_next_turn(watch: Callable[..., Watched]) -> None:
    watched = watch()
    watched.clock.pass_by(10.0)
    watched.deadlines.set("ttl", 1.0)
    watched.clock.pass_by(0)
    assert watched.causes == ["ttl"]


def test_a_limit_taken_back_never_passes(watch: Callable[..., Watched]) -> None:
    watched = watch(timeout=5.0)
    watched.deadlines.set("timeout", None)
    assert watched.clock.armed == 0
    watched.clock.pass_by(100.0)
    assert watched.causes == []
    assert watched.deadlines.overdue() is None


def test_a_command_that_ended_when_its_time_was_over_ended_of_that(watch: Callable[..., Watched]) -> None:
    watched = watch(timeout=5.0, ttl=3.0, idle_timeout=1.0)
    watched.clock.now += 2.0
    assert watched.deadlines.overdue() is None, "silence alone proves nothing about one that is gone"
    watched.clock.now += 2.0
    assert watched.deadlines.overdue() == "ttl"
    watched.clock.now += 2.0
    assert watched.deadlines.overdue() == "overall_timeout"


def test_when_the_command_is_gone_only_the_ttl_still_passes(watch: Callable[..., Watched]) -> None:
    watched = watch(timeout=5.0, ttl=3.0, idle_timeout=1.0)
    watched.deadlines.command_left()
    assert watched.clock.armed == 1
    watched.clock.pass_by(100.0)
    assert watched.causes == ["ttl"]


@given(st.integers(1, 50), st.lists(st.integers(0, 30), max_size=30))
def test_the_idle_timeout_passes_at_the_first_silence_that_is_long_enough(limit: int, pauses: list[int]) -> None:
    watched = Watched(idle_timeout=float(limit))
    try:
        expected = False
        for pause in pauses:
            watched.clock.pass_by(pause)
            expected = expected or pause >= limit
            assert watched.causes == (["idle_timeout"] if expected else [])
            watched.deadlines.output()
    finally:
        watched.close()


def test_limits_of_the_command_count_from_the_request_and_silence_from_the_start() -> None:
    causes: list[str] = []
    clock = Clock()
    loop: Any = clock
    with patch.object(time, "monotonic", lambda: clock.now):
        Deadlines(loop, {"timeout": 5.0, "ttl": 6.0, "idle_timeout": 4.5}, causes.append, clock.now - 3.0)
        clock.pass_by(2.1)
        assert causes == ["overall_timeout"]
        clock.pass_by(1.0)
        assert causes == ["overall_timeout", "ttl"]
        clock.pass_by(1.5)
        assert causes == ["overall_timeout", "ttl", "idle_timeout"]


HERE = 4026531834


@pytest.mark.parametrize(
    "asked, taken",
    [
        ({"monotonic": 999.0, "timens": HERE}, True),
        ({"monotonic": 1000.5, "timens": HERE}, False),  # the future
        ({"monotonic": 399.0, "timens": HERE}, False),  # no start takes so long
        ({"monotonic": float("nan"), "timens": HERE}, False),
        ({"monotonic": "999", "timens": HERE}, False),
        ({"monotonic": 999.0, "timens": HERE + 1}, False),
        ({"monotonic": 999.0}, False),
        (999.0, False),
        (None, False),
    ],
)
def test_a_hosts_clock_is_taken_only_where_it_is_ours(asked: object, taken: bool) -> None:
    with patch.object(time, "monotonic", lambda: 1000.0):
        assert (requested_at({"asked": asked}, HERE) == 999.0) is taken
