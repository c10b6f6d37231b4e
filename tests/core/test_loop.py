"""The runner's loop: descriptors, then the turn, then timers; closed and reused descriptors; long and many timers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.loop import READ, WRITE, Alarm, Loop, Retry, Timer
from support.still_life import Clock


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            pass


def idle() -> None:
    pass


def test_a_ready_descriptor_comes_before_the_turn_and_the_turn_before_a_due_timer(
    loop: Loop, pipe: tuple[int, int]
) -> None:
    order: list[str] = []
    os.write(pipe[1], b"x")

    def read(_events: int) -> None:
        os.read(pipe[0], 1)
        order.append("descriptor")

    def late() -> None:
        order.append("timer")
        loop.leave()

    loop.watch(pipe[0], READ, read)
    loop.after(0, late)
    loop.run(lambda: order.append("turn"))
    assert order[:3] == ["descriptor", "turn", "timer"]


def test_nothing_due_and_nothing_ready_is_one_sleep_in_the_kernel(loop: Loop, pipe: tuple[int, int]) -> None:
    turns: list[float | None] = []
    real = loop.ready

    def select(timeout: float | None = None) -> object:
        turns.append(timeout)
        os.write(pipe[1], b"x")
        return real(timeout)

    loop.watch(pipe[0], READ, lambda _events: loop.leave())
    with patch.object(loop, "ready", select):
        loop.run(idle)
    assert turns == [None]


def test_timers_fire_in_the_order_of_their_times_and_equal_ones_in_order_of_making(loop: Loop) -> None:
    fired: list[int] = []
    now = time.monotonic()
    with patch.object(time, "monotonic", lambda: now):
        for number, delay in enumerate((0.02, 0.01, 0.01, 0.0, 0.02)):
            loop.after(delay, lambda number=number: fired.append(number))  # type: ignore[misc]
        loop.after(0.03, loop.leave)
    loop.run(idle)
    assert fired == [3, 1, 2, 0, 4]


def test_a_cancelled_timer_does_not_fire_even_when_a_due_one_cancels_it(loop: Loop) -> None:
    fired: list[str] = []
    now = time.monotonic()
    with patch.object(time, "monotonic", lambda: now):
        later: list[Timer] = []
        loop.after(0, lambda: later.pop().cancel())
        later.append(loop.after(0, lambda: fired.append("second")))
        gone = loop.after(0, lambda: fired.append("gone"))
        gone.cancel()
        gone.cancel()
        loop.after(0, loop.leave)
    loop.run(idle)
    assert fired == []


def test_an_alarm_that_is_set_again_rings_once_and_later(loop: Loop) -> None:
    rang: list[bool] = []
    now = time.monotonic()
    with patch.object(time, "monotonic", lambda: now):
        alarm = Alarm(loop, lambda: rang.append(alarm.is_set))
        assert not alarm.is_set
        assert alarm.at == float("inf")
        alarm.set(0.0)
        alarm.set(0.02)
        assert alarm.is_set
        assert alarm.at == now + 0.02
        cancelled = Alarm(loop, lambda: rang.append(True))
        cancelled.set(0.0)
        cancelled.cancel()
        loop.after(0.01, lambda: rang.append(alarm.is_set))
        loop.after(0.03, loop.leave)
    loop.run(idle)
    assert rang == [True, False]


class Disk:
    """A disk that refuses every write, and when it was asked for one."""

    def __init__(self, clock: Clock, directory: Path) -> None:
        self.clock = clock
        self.asked: list[float] = []
        self.fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self.retry = Retry(cast("Loop", clock), self.fd, self.write)

    def write(self) -> None:
        self.asked.append(self.clock.passed)
        self.retry.refused()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    clock = Clock()
    (tmp_path / "session").mkdir()
    with patch.object(time, "monotonic", lambda: clock.now):
        disk = Disk(clock, tmp_path / "session")
        yield disk
    os.close(disk.fd)


def test_a_refused_write_is_repeated_ever_later_and_soon_again_after_one_that_was_taken(disk: Disk) -> None:
    disk.write()
    disk.clock.pass_by(2.0)
    assert disk.asked == [0.0, 0.25, 0.75, 1.75]
    disk.clock.pass_by(300.0)
    assert disk.asked[-1] - disk.asked[-2] == 30.0
    disk.retry.taken()
    assert not disk.retry.is_due
    disk.asked.clear()
    disk.retry.refused()
    disk.clock.pass_by(0.3)
    assert disk.asked == [302.25]


def test_a_limited_retry_comes_at_short_intervals_for_ten_seconds(disk: Disk) -> None:
    for _ in range(6):
        disk.retry.refused()
    disk.retry.limit()
    disk.clock.pass_by(60.0)
    assert len(disk.asked) == 40
    assert disk.asked[-1] == 10.0
    assert not disk.retry.is_due


def test_a_write_into_a_removed_directory_is_not_repeated(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "session").rmdir()
    disk.write()
    assert not disk.retry.is_due


def test_a_timer_made_by_a_timer_waits_for_the_next_turn(loop: Loop) -> None:
    order: list[str] = []

    def outer() -> None:
        order.append("outer")
        loop.after(0, inner)

    def inner() -> None:
        order.append("inner")
        loop.leave()

    loop.after(0, outer)
    loop.run(lambda: order.append("turn"))
    assert "turn" in order[order.index("outer") : order.index("inner")]


def test_a_timer_a_lifetime_away_can_be_waited_for(loop: Loop, pipe: tuple[int, int]) -> None:
    """On the faulty code the kernel's limit for one wait ended the runner with an OverflowError."""
    loop.after(36525 * 86400.0, idle)
    os.write(pipe[1], b"x")
    loop.watch(pipe[0], READ, lambda _events: loop.leave())
    loop.run(idle)


def test_a_descriptor_no_longer_watched_in_the_same_turn_is_left_alone(loop: Loop) -> None:
    pairs = [os.pipe() for _ in range(2)]
    called: list[int] = []

    def first_comer(mine: int, other: int) -> None:
        called.append(mine)
        loop.watch(other, 0, lambda _events: None)
        loop.leave()

    for place, (reader, writer) in enumerate(pairs):
        os.write(writer, b"x")
        other = pairs[1 - place][0]
        loop.watch(reader, READ, lambda _events, mine=reader, other=other: first_comer(mine, other))  # type: ignore[misc]
    loop.run(idle)
    assert len(called) == 1
    for fd in (fd for pair in pairs for fd in pair):
        os.close(fd)


def test_a_descriptor_closed_and_opened_again_in_one_turn_gets_no_event_of_its_former_self(loop: Loop) -> None:
    """On the faulty code the number alone decided, and the former owner was called for a stranger's event."""
    first, second = socket.socketpair(), socket.socketpair()
    called: list[str] = []
    fresh: list[socket.socket] = []

    def replace(victim: socket.socket) -> None:
        number = victim.fileno()
        loop.watch(number, 0, lambda _events: None)
        victim.close()
        fresh.extend(socket.socketpair())
        assert number in [each.fileno() for each in fresh]
        loop.watch(number, READ | WRITE, lambda _events: called.append("new"))

    def ready(name: str, other: socket.socket) -> None:
        called.append(name)
        if not fresh:
            replace(other)

    for name, pair, other in (("first", first, second), ("second", second, first)):
        pair[1].send(b"x")
        loop.watch(pair[0].fileno(), READ, lambda _events, name=name, other=other[0]: ready(name, other))  # type: ignore[misc]
    loop.run(loop.leave)
    assert called in (["first"], ["second"])
    for sock in (*first, *second, *fresh):
        sock.close()


def test_a_watch_can_be_changed_and_ended_twice(loop: Loop, pipe: tuple[int, int]) -> None:
    loop.watch(pipe[1], WRITE, lambda _events: None)
    loop.watch(pipe[1], READ, lambda _events: None)
    loop.watch(pipe[1], 0, lambda _events: None)
    loop.watch(pipe[1], 0, lambda _events: None)
    assert not loop.watched


def test_a_wait_that_ended_far_too_late_is_reported_as_sleep(loop: Loop) -> None:
    now = [1000.0]
    with patch.object(time, "monotonic", lambda: now[0]):
        loop.after(1.0, loop.leave)

        def select(_timeout: float | None = None) -> list[object]:
            now[0] += 500.0
            return []

        with patch.object(loop, "ready", select):
            loop.run(idle)
    assert loop.woke_at == 1500.0


def test_a_wait_that_ended_in_time_is_no_sleep(loop: Loop) -> None:
    now = [1000.0]
    with patch.object(time, "monotonic", lambda: now[0]):
        loop.after(1.0, loop.leave)

        def select(timeout: float | None = None) -> list[object]:
            now[0] += (timeout or 0.0) + 0.5
            return []

        with patch.object(loop, "ready", select):
            loop.run(idle)
    assert loop.woke_at == 0.0


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=40))
def test_any_timers_fire_once_each_unless_cancelled_and_in_order(plan: list[tuple[int, bool]]) -> None:
    loop = Loop()
    now = [0.0]
    fired: list[tuple[int, int]] = []
    with patch.object(time, "monotonic", lambda: now[0]):
        timers = [
            loop.after(delay, lambda at=delay, number=number: fired.append((at, number)))  # type: ignore[misc]
            for number, (delay, _) in enumerate(plan)
        ]
        for timer, (_, cancelled) in zip(timers, plan, strict=True):
            if cancelled:
                timer.cancel()
        loop.after(100, loop.leave)

        def select(timeout: float | None = None) -> list[object]:
            now[0] += timeout or 0.0
            return []

        with patch.object(loop, "ready", select):
            loop.run(idle)
    loop.close()
    assert fired == sorted((delay, number) for number, (delay, cancelled) in enumerate(plan) if not cancelled)
