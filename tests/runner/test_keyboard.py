"""Units on their way into a terminal: whole and in order, whatever happens while they are written."""

from __future__ import annotations

import os
import tty as modes
from collections.abc import Iterator

import pytest

from holdfast.core.loop import READ, Loop
from holdfast.core.vt.tracker import Tracker
from holdfast.runner.terminal.keyboard import Keyboard
from holdfast.runner.terminal.pty import Tty


class Desk:
    """A keyboard on a raw terminal, and the program at its other end."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.tty = Tty(24, 80, echo=False)
        self.keyboard = Keyboard(self.loop, self.tty, Tracker(24, 80))
        self.slave = os.open(self.tty.path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        modes.setraw(self.slave)
        self.heard = b""

    def read(self, size: int) -> bytes:
        """What the program reads, until it has so much; then nothing more comes."""

        def take(_events: int) -> None:
            self.heard += os.read(self.slave, 65536)
            if len(self.heard) >= size:
                self.loop.leave()

        self.loop.watch(self.slave, READ, take)
        bound = self.loop.after(10, self.loop.leave)
        self.loop.run(lambda: None)
        bound.cancel()
        return self.heard

    def close(self) -> None:
        self.keyboard.abandon("the test is over")
        self.loop.close()
        os.close(self.slave)
        self.tty.close()


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


@pytest.mark.covers("terminal:40")
def test_what_is_typed_because_a_unit_was_taken_tears_no_other(desk: Desk) -> None:
    units = [letter * 50_000 for letter in (b"a", b"b", b"c")]
    desk.keyboard.write(units[0], lambda _taken: desk.keyboard.write(units[2]))
    desk.keyboard.write(units[1])
    assert desk.read(150_000) == b"".join(units)


@pytest.mark.covers("terminal:8")
def test_an_answer_waits_for_the_unit_under_way_and_goes_before_the_next(desk: Desk) -> None:
    desk.keyboard.write(b"a" * 100_000)
    desk.keyboard.write(b"b")
    desk.keyboard.answer([b"<1>", b"<2>"])
    assert desk.read(100_007) == b"a" * 100_000 + b"<1><2>b"


def test_answers_beyond_what_is_kept_are_counted(desk: Desk) -> None:
    desk.keyboard.write(b"a" * 100_000)
    desk.keyboard.answer([b"x" * 1024] * 100)
    assert desk.keyboard.replies_dropped == 36
    assert desk.read(100_000 + 65536) == b"a" * 100_000 + b"x" * 65536
