"""Asking one's own terminal: a real pseudo-terminal whose other end answers as a script says."""

from __future__ import annotations

import os
import pty
import re
import threading
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.attach_loop import KeySplitter
from holdfast.terminal.probe import ANSWERS_WITHIN_S, QUESTIONS, Answers, probe
from support.own_time import QuietTime
from support.waiting import is_readable

EACH = re.compile(rb"\x1b\][^\x1b\x07]*(?:\x1b\\|\x07)|\x1b\[[^@-~]*[@-~]")
ANSWERED: Mapping[bytes, bytes] = {
    b"\x1b]10;?\x1b\\": b"\x1b]10;rgb:d0d0/c0c0/b0b0\x1b\\",
    b"\x1b]11;?\x1b\\": b"\x1b]11;rgb:1010/2020/3030\x07",
    b"\x1b[16t": b"\x1b[6;20;10t",
    b"\x1b[14t": b"\x1b[4;480;800t",
    b"\x1b[?u": b"\x1b[?1u",
    b"\x1b[c": b"\x1b[?62;22c",
}


class Answering:
    """The other end of a pseudo-terminal. Answers each question with what `answers` has for it."""

    def __init__(self) -> None:
        self._master, self.slave = pty.openpty()
        tty.setraw(self.slave)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.asked: list[bytes] = []

    def script(self, answer: Callable[[bytes], bytes]) -> None:
        def work() -> None:
            begun = b""
            while not self._over.is_set():
                if not is_readable(self._master, 0.01):
                    continue
                begun += os.read(self._master, 4096)
                for question in EACH.findall(begun):
                    self.asked.append(question)
                    os.write(self._master, answer(question))
                begun = EACH.sub(b"", begun)

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def type(self, data: bytes) -> None:
        os.write(self._master, data)

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        os.close(self._master)
        os.close(self.slave)


@pytest.fixture
def terminal() -> Iterator[Answering]:
    made = Answering()
    yield made
    made.close()


def test_a_terminal_that_answers_reports_colours_cell_and_keyboard(terminal: Answering) -> None:
    terminal.script(lambda question: ANSWERED[question])
    answers, typed = probe(terminal.slave, terminal.slave, within_s=5)
    assert answers.complete
    assert typed == b""
    assert answers.describe(24, 80) == {"foreground": [208, 192, 176], "background": [16, 32, 48], "cell": [20, 10]}
    assert answers.keyboard == 1
    assert terminal.asked == list(ANSWERED)


def test_what_is_typed_between_the_answers_is_kept(terminal: Answering) -> None:
    keys = iter([b"ls", b"\x1b[A", b"\x1b", b"\xc3\xa9", b"\x1b[1;5C", b"\r"])
    terminal.type(b"before ")
    terminal.script(lambda question: next(keys) + ANSWERED[question])
    answers, typed = probe(terminal.slave, terminal.slave, within_s=5)
    assert answers.complete
    assert typed == b"before ls\x1b[A\x1b\xc3\xa9\x1b[1;5C\r"


def test_a_terminal_that_knows_little_is_done_at_the_last_answer(terminal: Answering) -> None:
    terminal.script(lambda question: b"\x1b[?6c" if question == b"\x1b[c" else b"")
    passed = QuietTime()
    answers, typed = probe(terminal.slave, terminal.slave, within_s=30)
    assert passed.seconds() < 10
    assert (answers.describe(24, 80), answers.keyboard, typed) == ({}, None, b"")


def test_a_terminal_that_answers_nothing_costs_the_bound_and_no_more(terminal: Answering) -> None:
    terminal.type(b"typed")
    begun, passed = time.monotonic(), QuietTime()
    answers, typed = probe(terminal.slave, terminal.slave)
    took = time.monotonic() - begun
    assert not answers.complete
    assert typed == b"typed"
    assert took >= ANSWERS_WITHIN_S
    assert passed.seconds() < ANSWERS_WITHIN_S + 2


def test_answers_that_come_late_are_taken_out_of_what_is_typed(terminal: Answering) -> None:
    answers, typed = probe(terminal.slave, terminal.slave, within_s=0)
    late = b"".join(ANSWERED.values())
    assert typed == b""
    assert answers.feed(b"ls" + late[:10]) == b"ls"
    assert answers.has_partial
    assert answers.feed(late[10:] + b"\r") == b"\r"
    assert answers.complete


def test_answers_that_come_an_hour_late_are_not_typed(terminal: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    keyboard = KeySplitter(None)
    window = SimpleNamespace(keys=terminal.slave, screen=terminal.slave, size=lambda: (24, 80))
    assert keyboard.ask(window) == b""  # type: ignore[arg-type]
    later = time.monotonic() + 3600
    monkeypatch.setattr(time, "monotonic", lambda: later)
    late = b"".join(ANSWERED.values())
    assert keyboard.feed(b"l", exact_keys=False) == [b"l"]
    assert keyboard.feed(late[:10], exact_keys=False) == []
    assert keyboard.feed(late[10:] + b"s", exact_keys=False) == [b"s"]
    # They came once: what looks like one now was pasted.
    assert b"".join(keyboard.feed(late, exact_keys=False)) == late  # type: ignore[arg-type]


def test_the_area_of_a_terminal_that_reports_no_cell_is_divided() -> None:
    answers = Answers()
    answers.feed(b"\x1b[4;480;800t")
    assert answers.describe(24, 80) == {"cell": [20, 10]}
    assert Answers().describe(0, 0) == {}


def test_a_terminal_that_hung_up_is_no_answer() -> None:
    reads, writes = os.pipe()
    other, ours = os.pipe()
    os.close(writes)
    answers, typed = probe(reads, ours, within_s=5)
    assert (answers.complete, typed) == (False, b"")
    assert os.read(other, 100) == QUESTIONS
    for fd in (reads, other, ours):
        os.close(fd)


@pytest.mark.parametrize(
    "text, color",
    [
        (b"rgb:ffff/8080/0000", [255, 128, 0]),
        (b"rgb:ff/80/00", [255, 128, 0]),
        (b"rgb:f/8/0", [255, 136, 0]),
        (b"rgba:ffff/8080/0000/ffff", [255, 128, 0]),
        (b"#ff8000", [255, 128, 0]),
        (b"mauve", None),
    ],
)
def test_colours_are_read_in_every_form(text: bytes, color: list[int] | None) -> None:
    answers = Answers()
    assert answers.feed(b"\x1b]11;" + text + b"\x07") == b""
    assert answers.background == color


def test_an_answer_that_does_not_end_was_typed() -> None:
    answers = Answers()
    assert answers.feed(b"a\x1b[?6") == b"a"
    assert answers.has_partial
    assert answers.release() == b"\x1b[?6"
    assert not answers.has_partial


def test_after_the_last_answer_all_input_was_typed() -> None:
    assert Answers().feed(b"\x1b[?62c\x1b[?62c") == b"\x1b[?62c"


@given(
    st.lists(st.sampled_from([*ANSWERED.values(), b"ls", b"\x1b[A", b"\x1bOP", b"\xc3\xa9", b"\x1b"])),
    st.integers(0, 99),
)
def test_splitting_changes_nothing(sent: list[bytes], cut: int) -> None:
    stream = b"".join(sent)
    whole, cutted = Answers(), Answers()
    expected = whole.feed(stream) + whole.release()
    assert cutted.feed(stream[:cut]) + cutted.feed(stream[cut:]) + cutted.release() == expected
    assert (cutted.complete, cutted.describe(24, 80)) == (whole.complete, whole.describe(24, 80))
