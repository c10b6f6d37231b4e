"""Which question becomes a signal, and when: pacing on a clock that the test moves, real readers of real pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import processes as tree
from holdfast.runner.features.needs_input.feature import NeedsInput, Pacing
from holdfast.runner.features.needs_input.foreground import reads_pipe
from holdfast.runner.streams import Stdin
from support.still_life import StillLife, still_life
from support.waiting import until

NEVER = float("-inf")


@pytest.fixture
def life(tmp_path: Path) -> Iterator[StillLife]:
    with still_life(tmp_path) as life:
        yield life


def test_a_question_is_reported_once() -> None:
    pacing = Pacing()
    due = pacing.due("a", "high", NEVER)
    assert due is not None
    assert due <= 0.0
    assert pacing.note(0.0, "a", "high") is True
    assert pacing.due("a", "high", NEVER) is None
    assert pacing.due("a", "medium", NEVER) is None


def test_another_question_waits_until_ten_seconds_have_passed() -> None:
    pacing = Pacing()
    pacing.note(100.0, "a", "high")
    assert pacing.due("b", "high", NEVER) == 110.0


def test_a_person_who_types_is_not_notified() -> None:
    assert Pacing().due("a", "high", 100.0) == 105.0


def test_low_confidence_is_recorded_and_holds_up_nothing() -> None:
    pacing = Pacing()
    assert pacing.note(100.0, "a", "low") is False
    assert pacing.due("a", "low", NEVER) is None
    assert pacing.due("b", "low", NEVER) == 110.0
    assert pacing.due("a", "high", NEVER) == NEVER
    pacing.note(101.0, "a", "high")
    assert pacing.due("a", "low", NEVER) is None
    assert pacing.due("c", "low", NEVER) == 111.0


class Terminal:
    """What a look at a terminal found, as the test says."""

    def __init__(self) -> None:
        self.inputs_count = 0
        self.person_at = NEVER
        self.found: dict[str, Any] | None = None
        self.looked: Any = None

    def asks(self) -> dict[str, Any] | None:
        return self.found

    def look(self, line: str | None, confidence: str = "high") -> None:
        if line is None:
            self.found = None
        else:
            self.found = {
                "confidence": confidence,
                "kind": "question",
                "evidence": ["blocked_read", "pattern"],
                "line": line,
                "secret": False,
                "since": "2026-08-01T09:14:07.412Z",
                "offset": 12,
            }
        self.looked()


def on_terminal(life: StillLife) -> Terminal:
    terminal = life.terminal = Terminal()
    feature = NeedsInput(life)  # type: ignore[arg-type]
    life.features.append(feature)
    feature.begin(1)
    return terminal


def lines(life: StillLife) -> list[str]:
    return [each["line"] for each in life.told("needs_input")]


def test_what_a_look_finds_is_reported_with_its_evidence(life: StillLife) -> None:
    terminal = on_terminal(life)
    terminal.look("Name?")
    assert life.told("needs_input") == [terminal.found]
    assert life.signals.emitted[0].routed is True
    terminal.look("Name?")
    life.loop.pass_by(100.0)
    assert lines(life) == ["Name?"]
    assert life.loop.armed == 0


def test_the_same_question_after_an_answer_is_another(life: StillLife) -> None:
    terminal = on_terminal(life)
    terminal.look("Password:")
    life.loop.pass_by(3.0)
    terminal.inputs_count += 1
    terminal.look("Password:")
    life.loop.pass_by(6.9)
    assert lines(life) == ["Password:"]
    life.loop.pass_by(0.2)
    assert lines(life) == ["Password:"] * 2
    assert life.times("needs_input") == [0.0, 10.0]


def test_a_question_that_was_answered_before_its_turn_is_not_reported(life: StillLife) -> None:
    terminal = on_terminal(life)
    terminal.look("one?")
    terminal.look("two?")
    assert life.loop.armed == 1
    life.loop.pass_by(5.0)
    terminal.look(None)
    assert life.loop.armed == 0
    life.loop.pass_by(100.0)
    assert lines(life) == ["one?"]


@pytest.mark.covers("signals:36")
def test_while_a_person_types_nothing_is_reported_and_later_what_still_stands(life: StillLife) -> None:
    terminal = on_terminal(life)
    for _ in range(10):
        terminal.inputs_count += 1
        terminal.person_at = life.loop.now
        terminal.look("Name?")
        life.loop.pass_by(2.0)
    assert lines(life) == []
    life.loop.pass_by(2.9)
    assert lines(life) == []
    life.loop.pass_by(0.2)
    assert lines(life) == ["Name?"]


def test_low_confidence_on_a_terminal_is_not_routed(life: StillLife) -> None:
    on_terminal(life).look("", "low")
    assert [each.routed for each in life.signals.emitted] == [False]


def test_after_the_end_nothing_is_reported(life: StillLife) -> None:
    terminal = on_terminal(life)
    terminal.look("one?")
    terminal.look("two?")
    life.features[0].finish()
    assert life.loop.armed == 0
    terminal.look("three?")
    assert lines(life) == ["one?"]


@contextmanager
def reader(life: StillLife, *argv: str) -> Iterator[NeedsInput]:
    """A program that reads a pipe of ours, and the feature that is to notice."""
    ends = os.pipe()
    with subprocess.Popen(argv, stdin=ends[0], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
        os.close(ends[0])
        os.set_blocking(ends[1], False)
        process = tree.look(program.pid)
        life.tree.processes = [process]
        life.stdin = Stdin(life.loop, ends[1])
        feature = NeedsInput(life)  # type: ignore[arg-type]
        life.features.append(feature)
        feature.begin(1)
        try:
            yield feature
        finally:
            program.kill()
            feature.close()
            life.stdin.abandon("the test is over")


def blocks(life: StillLife) -> bool:
    pipe = life.stdin.pipe()
    return pipe is not None and reads_pipe(pipe, life.tree.living()) is True


def test_a_process_that_reads_an_empty_stdin_needs_input_after_a_while(life: StillLife) -> None:
    with reader(life, "cat") as feature:
        until(lambda: blocks(life), what="the read")
        life.prints("Your name: ")
        life.loop.pass_by(1.4)
        assert life.told("needs_input") == []
        assert feature.facts() == {}
        life.loop.pass_by(0.2)
        (told,) = life.told("needs_input")
        assert (told["confidence"], told["line"], told["offset"]) == ("medium", "Your name:", 11)
        assert told["evidence"] == ["blocked_read"]
        assert told["secret"] is False
        assert feature.facts()["needs_input"] == told
        life.loop.pass_by(1000.0)
        assert len(life.told("needs_input")) == 1
        assert life.loop.armed == 0
        life.prints("hm\n")
        assert feature.facts() == {}


@pytest.mark.parametrize(
    "line, kind, secret",
    [
        ("Password: ", "secret", True),
        ("Go on? [y/N] ", "choice", False),
        ("Name? ", "question", False),
        ("done\n", None, False),
    ],
)
def test_what_was_printed_last_reports_the_kind(life: StillLife, line: str, kind: str | None, secret: bool) -> None:
    with reader(life, "cat"):
        until(lambda: blocks(life), what="the read")
        life.prints("something before\n" + line)
        life.loop.pass_by(2.0)
        (told,) = life.told("needs_input")
        assert (told["kind"], told["secret"], told["line"]) == (kind, secret, line.strip())


def test_an_interpreter_at_its_prompt_asks_nothing(life: StillLife) -> None:
    with reader(life, "cat"):
        until(lambda: blocks(life), what="the read")
        life.prints(">>> ")
        life.loop.pass_by(100.0)
        assert life.told("needs_input") == []
        assert life.loop.armed == 0


@pytest.mark.covers("signals:36")
@pytest.mark.parametrize(
    "argv",
    [
        ("sleep", "60"),
        (sys.executable, "-I", "-S", "-c", "import select; select.select([0], [], [])"),
    ],
)
def test_a_process_outside_a_read_needs_no_input(life: StillLife, argv: tuple[str, ...]) -> None:
    with reader(life, *argv):
        life.loop.pass_by(1000.0)
        assert life.told("needs_input") == []
        assert life.loop.armed == 0


def test_a_command_that_comes_to_ask_in_silence_is_noticed(life: StillLife) -> None:
    with reader(life, "cat"):
        until(lambda: blocks(life), what="the read")
        processes, life.tree.processes = life.tree.processes, []
        life.loop.pass_by(4.0)
        assert life.told("needs_input") == []
        life.tree.processes = processes
        life.loop.pass_by(12.0)
        assert len(life.told("needs_input")) == 1


def test_an_answer_that_is_taken_in_silence_makes_the_next_read_another_question(life: StillLife) -> None:
    with reader(life, "cat"):
        until(lambda: blocks(life), what="the read")
        life.loop.pass_by(2.0)
        life.stdin.write(b"an answer\n")
        until(lambda: blocks(life), what="the next read")
        life.loop.pass_by(20.0)
        assert life.times("needs_input") == [1.5, 11.5]


def test_input_that_was_not_read_yet_is_not_waited_for(life: StillLife) -> None:
    with reader(life, "sleep", "60"):
        life.stdin.write(b"unread")
        assert life.stdin.pipe() is None


def test_a_closed_stdin_asks_for_nothing(life: StillLife) -> None:
    life.stdin = Stdin(life.loop, None)
    feature = NeedsInput(life)  # type: ignore[arg-type]
    feature.begin(1)
    life.features.append(feature)
    life.prints("Name? ")
    life.loop.pass_by(10.0)
    assert life.loop.armed == 0
