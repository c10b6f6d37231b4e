"""The way into a command's stdin, over a real pipe: whole units in order, bounded, and each ending told once."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.loop import Loop
from holdfast.runner.streams import QUEUE_MAX_BYTES, Stdin

_F_SETPIPE_SZ = 1031
_PAGE = 4096


class Door:
    """A Stdin over a pipe that holds one page; the test is the command that reads."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.reader, writer = os.pipe()
        fcntl.fcntl(writer, _F_SETPIPE_SZ, _PAGE)
        os.set_blocking(writer, False)
        os.set_blocking(self.reader, False)
        self.stdin = Stdin(self.loop, writer)
        self.taken: list[tuple[int, bool]] = []

    def write(self, number: int, unit: bytes) -> None:
        self.stdin.write(unit, lambda whole: self.taken.append((number, whole)))

    def read(self) -> bytes:
        """Everything that can come, with the loop turning in between."""
        got = b""
        while True:
            self.turn()
            try:
                part = os.read(self.reader, 1 << 16)
            except BlockingIOError:
                return got
            if not part:
                return got
            got += part

    def turn(self) -> None:
        self.loop.dispatch(self.loop.ready(0))

    def at_end(self) -> bool:
        try:
            return os.read(self.reader, 1) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        self.stdin.abandon("the test is over")
        if self.reader >= 0:
            os.close(self.reader)
        self.loop.close()


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.close()


def test_a_unit_that_fits_goes_at_once_and_nothing_is_watched(door: Door) -> None:
    door.write(1, b"hello\n")
    assert door.taken == [(1, True)]
    assert not door.loop.watched
    assert door.read() == b"hello\n"


def test_an_empty_unit_is_taken(door: Door) -> None:
    door.write(1, b"")
    assert door.taken == [(1, True)]


def test_a_unit_larger_than_the_pipe_is_taken_when_its_last_byte_is(door: Door) -> None:
    unit = os.urandom(5 * _PAGE)
    door.write(1, unit)
    door.write(2, b"second")
    assert door.taken == []
    assert door.stdin.queued_bytes == 4 * _PAGE + len(b"second")
    assert door.read() == unit + b"second"
    assert door.taken == [(1, True), (2, True)]
    assert door.stdin.queued_bytes == 0


def test_the_queue_says_when_it_is_full_and_when_there_is_room_again(door: Door) -> None:
    assert door.stdin.has_room(QUEUE_MAX_BYTES)
    assert not door.stdin.has_room(QUEUE_MAX_BYTES + 1)
    door.write(1, bytes(QUEUE_MAX_BYTES))
    assert door.stdin.has_room(_PAGE)
    assert not door.stdin.has_room(_PAGE + 1)
    door.read()
    assert door.stdin.has_room(QUEUE_MAX_BYTES)


def test_a_close_comes_after_what_is_queued(door: Door) -> None:
    unit = os.urandom(3 * _PAGE)
    door.write(1, unit)
    door.stdin.close()
    assert not door.stdin.is_open
    assert door.stdin.closed_because == "it was closed on request"
    assert door.read() == unit
    assert door.at_end()


def test_a_close_with_nothing_queued_is_the_end_at_once(door: Door) -> None:
    door.stdin.close("that was all")
    assert door.at_end()
    assert door.stdin.closed_because == "that was all"


def test_a_command_that_closed_its_end_is_reported_and_every_unit_answered_once(door: Door) -> None:
    door.write(1, bytes(2 * _PAGE))
    door.write(2, b"more")
    os.close(door.reader)
    door.reader = -1
    door.turn()
    assert door.taken == [(1, False), (2, False)]
    assert door.stdin.closed_because == "the command closed it"
    assert door.stdin.queued_bytes == 0
    assert not door.loop.watched


def test_a_write_to_a_closed_end_answers_that_nothing_was_taken(door: Door) -> None:
    os.close(door.reader)
    door.reader = -1
    door.write(1, b"x")
    assert door.taken == [(1, False)]
    assert not door.stdin.is_open


def test_abandoning_drops_the_queue_and_keeps_the_first_reason(door: Door) -> None:
    door.write(1, bytes(2 * _PAGE))
    door.stdin.abandon("the command has ended")
    door.stdin.abandon("again")
    door.stdin.close("and again")
    assert door.taken == [(1, False)]
    assert door.stdin.closed_because == "the command has ended"


def test_a_stdin_that_was_never_open_says_so() -> None:
    loop = Loop()
    stdin = Stdin(loop, None)
    assert not stdin.is_open
    assert stdin.closed_because == "it was started with stdin closed"
    stdin.close()
    stdin.abandon("the command has ended")
    assert stdin.closed_because == "it was started with stdin closed"
    loop.close()


@given(st.lists(st.tuples(st.integers(0, 3 * _PAGE), st.booleans()), max_size=12))
@settings(deadline=None)
def test_any_units_read_at_any_time_come_out_whole_and_in_order(plan: list[tuple[int, bool]]) -> None:
    door = Door()
    got = sent = b""
    for number, (size, reads) in enumerate(plan):
        unit = bytes([number]) * size
        sent += unit
        door.write(number, unit)
        if reads:
            got += door.read()
    door.stdin.close()
    got += door.read()
    assert got == sent
    assert door.taken == [(number, True) for number in range(len(plan))]
    door.close()
