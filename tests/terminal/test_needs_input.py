"""Whether a command waits for input. Real programs on sessions' terminals, seen through the status of the session."""

# ruff: noqa: RUF001 - the signs that programs point with are the subject here

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.own_time import QuietTime
from support.processes import price
from support.waiting import Gate, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Holdfast, Session
    from support.world import World

PYTHON = [sys.executable, "-I", "-S", "-c"]
# What a question takes from its last byte, twice over: the contract's bound.
SOON_S = 3.0
# How long a program has to be silent where nothing proves that it reads.
LATE_S = 10.0

HOST_KEY = r"""
printf 'The authenticity of host '\''example (203.0.113.7)'\'' can'\''t be established.\n'
printf 'ED25519 key fingerprint is SHA256:AAAA.\nThis key is not known by any other names.\n'
printf 'Are you sure you want to continue connecting (yes/no/[fingerprint])? ' > /dev/tty
read -r answer < /dev/tty
"""
MENU = """
import os, sys, termios, tty
tty.setraw(0)
os.write(1, '\\x1b[?25l? Pick one:\\r\\n❯ apple\\r\\n  banana\\r\\n  cherry\\r\\n'.encode())
os.read(0, 1)
"""


def side_by_side(world: World, *scenarios: Callable[[Holdfast], None]) -> None:
    """All at once, each as a host of its own, for they mostly wait. What failed is raised when all are over."""
    homes = [world.open() for _ in scenarios]
    with ThreadPoolExecutor(len(scenarios)) as threads:
        running = [threads.submit(scenario, home) for scenario, home in zip(scenarios, homes, strict=True)]
    failed = [future.exception() for future in running]
    if any(failed):
        raise BaseExceptionGroup("side by side", [error for error in failed if error is not None])


def state(session: Session) -> str:
    word = session.refresh().metadata["input_state"]
    assert (session.needs_input is not None) == (word == "needs_input")
    return str(word)


def asked(session: Session, bound: float = SOON_S) -> dict[str, Any]:
    """What it needs, once it needs something."""
    passed = QuietTime()
    until(lambda: state(session) == "needs_input", what="the question")
    assert passed.seconds() < bound
    assert session.needs_input is not None
    return session.needs_input


def becomes(session: Session, word: str, bound: float) -> list[str]:
    """Every state up to and with that one."""
    states: list[str] = []

    def seen() -> bool:
        states.append(state(session))
        return states[-1] == word

    passed = QuietTime()
    until(seen, what=f"the state {word}")
    assert passed.seconds() < bound
    return states


def for_a_while(seconds: float, value: Callable[[], object]) -> set[object]:
    """All values in that time."""
    found: set[object] = set()
    deadline = time.monotonic() + seconds

    def is_over() -> bool:
        found.add(value())
        return time.monotonic() >= deadline

    until(is_over, seconds + 30)
    return found


def a_sleeper_is_quiet_and_costs_nothing_once_that_is_known(home: Holdfast) -> None:
    session = home.start(["sleep", "3600"], tty=True)
    states = becomes(session, "quiet", LATE_S)
    assert set(states) == {"working", "quiet"}
    assert session.metadata["hung"] == "no_cpu"
    assert session.runner_pid is not None
    # It has noticed by then that we hung up.
    home.run(["sleep", "0.2"], wait=30)
    before = price(session.runner_pid)
    home.run(["sleep", "2"], wait=30)
    assert price(session.runner_pid) == before, "an idle session has no timer"
    assert state(session) == "quiet"
    session.kill()
    assert "input_state" not in session.refresh().metadata


QUESTIONS: list[tuple[list[str], dict[str, Any]]] = [
    (["bash", "-c", "read -s x"], {"kind": "secret", "secret": True, "line": ""}),
    (["bash", "-c", "read -s -p 'Password: ' x"], {"kind": "secret", "secret": True, "line": "Password:"}),
    (["bash", "-c", HOST_KEY], {"kind": "choice", "secret": False}),
    ([*PYTHON, "input('Name? ')"], {"kind": "question", "secret": False, "line": "Name?"}),
    ([*PYTHON, MENU], {"kind": "menu", "secret": False, "line": "❯ apple"}),
]


def a_program_that_waits_for_an_answer_needs_input(
    home: Holdfast, *, command: list[str], wanted: dict[str, Any]
) -> None:
    session = home.start(command, tty=True)
    found = asked(session)
    assert {name: found[name] for name in wanted} == wanted
    assert found["confidence"] == "high"
    assert "blocked_read" in found["evidence"]
    assert found["offset"] == session.ends["tty"]
    assert session.created_at is not None
    assert session.created_at < found["since"] <= session.observed_at
    session.kill()


LINE_EDITOR = """
import os, select, tty
tty.setraw(0)
os.write(1, b"Name? ")
while not select.select([0], [], [], 0.1)[0]:
    pass
"""


def a_question_of_a_program_with_its_own_line_editor_is_seen(home: Holdfast) -> None:
    session = home.start([*PYTHON, LINE_EDITOR], tty=True)
    found = asked(session)
    assert (found["kind"], found["line"], found["confidence"]) == ("question", "Name?", "medium")
    assert found["evidence"] == ["polled_read", "pattern"]
    session.kill()


def the_interpreter_is_at_its_prompt_and_at_work_on_what_it_was_given(home: Holdfast) -> None:
    session = home.start([sys.executable, "-q"], tty=True)
    assert set(becomes(session, "at_prompt", LATE_S)) <= {"working", "at_prompt"}
    session.submit("import time; print('off'); time.sleep(3600)")
    session.wait(match="^off", timeout=30)
    assert set(becomes(session, "quiet", LATE_S)) == {"working", "quiet"}
    session.kill()


def a_shell_and_a_pager_are_at_their_prompt(home: Holdfast, *, page: Path) -> None:
    shell = home.start(["bash", "--norc", "--noprofile", "-i"], tty=True, env={"PS1": "me$ "})
    marking = home.start(["bash", "--norc", "-i"], tty=True, env={"PS1": "\\[\\e]133;A\\a\\]me> \\[\\e]133;B\\a\\]"})
    pager = home.start(["less", str(page)], tty=True)
    ended = home.start(["sh", "-c", f"head -5 {page} | less"], tty=True)
    for session in (pager, ended, marking):
        assert set(becomes(session, "at_prompt", SOON_S)) <= {"working", "at_prompt"}
    assert set(becomes(shell, "at_prompt", LATE_S)) <= {"working", "at_prompt"}
    for session in (shell, marking, pager, ended):
        session.kill()


FLASH = """
import os, select
def show(text, seconds):
    os.write(1, text)
    select.select([], [], [], seconds)
for n in range(4):
    show(b"Continue? [y/N] ", 0.3)
    show(b"\\r\\x1b[Kat work", 0.6)
show(b"\\r\\n", None)
"""


def a_prompt_that_flashes_between_two_outputs_is_nothing(home: Holdfast) -> None:
    session = home.start([*PYTHON, FLASH], tty=True)
    assert set(becomes(session, "quiet", 15)) == {"working", "quiet"}
    session.kill()


def a_question_is_known_before_anybody_looks(home: Holdfast) -> None:
    session = home.start(["bash", "-c", "read -s x"], tty=True)
    home.run(["sleep", "4"], wait=30)
    assert state(session) == "needs_input"
    session.kill()


def an_answer_ends_the_question_and_the_same_one_again_is_a_new_one(home: Holdfast, *, gate: Gate) -> None:
    asking = f"import os\nwhile True:\n    input('Name? ')\n    os.read(os.open('{gate}', os.O_RDONLY), 1)"
    session = home.start([*PYTHON, asking], tty=True)
    first = asked(session)
    session.send("Arthur\n")
    assert state(session) == "working"
    gate.release()
    second = asked(session)
    assert second["line"] == first["line"]
    assert second["since"] > first["since"]
    assert second["offset"] > first["offset"]
    session.kill()


def a_silent_question_after_a_long_silence_is_found_by_who_asks(home: Holdfast, *, gate: Gate) -> None:
    session = home.start(["bash", "-c", f"head -c1 {gate} > /dev/null; read -s x"], tty=True)
    becomes(session, "quiet", LATE_S)
    gate.release()
    assert asked(session)["secret"] is True
    session.kill()


def a_bell_counts_until_somebody_types(home: Holdfast) -> None:
    session = home.start(r"printf 'all done\a'; exec sleep 3600", tty=True)
    found = asked(session, LATE_S)
    assert (found["confidence"], found["evidence"], found["line"]) == ("medium", ["bell"], "all done")
    session.send("x")
    assert set(becomes(session, "quiet", LATE_S)) == {"working", "quiet"}
    session.kill()


def a_terminal_started_without_echo_asks_for_no_secret(home: Holdfast) -> None:
    session = home.start("echo ready; exec cat", tty={"echo": False})
    found = asked(session)
    assert (found["confidence"], found["kind"], found["secret"]) == ("low", None, False)
    session.kill()


PROGRESS = """
import os, select, threading
def tell():
    for n in range(100):
        os.write(1, b"\\x1b]9;4;1;%d\\x07" % n)
        select.select([], [], [], 0.2)
threading.Thread(target=tell, daemon=True).start()
input("Name? ")
"""


def progress_beside_the_screen_is_no_activity(home: Holdfast) -> None:
    session = home.start([*PYTHON, PROGRESS], tty=True)
    assert asked(session)["line"] == "Name?"
    session.kill()


REDRAWING = """
import os, signal
def draw(*_):
    os.write(1, b"\\r\\x1b[KName? ")
signal.signal(signal.SIGWINCH, draw)
draw()
os.read(0, 1)
"""


def a_question_drawn_anew_for_another_size_is_the_same_question(home: Holdfast) -> None:
    session = home.start([*PYTHON, REDRAWING], tty=True)
    before = asked(session)
    end = session.ends["tty"]
    session.resize(20, 60)
    session.wait(output=True, since=end, timeout=30)
    # Over the next look, which the redraw makes due.
    seen = for_a_while(1.5, lambda: state(session) and repr(session.needs_input))
    assert seen == {repr(before)}
    session.kill()


def a_question_is_told_without_what_colours_it_or_rings(home: Holdfast) -> None:
    text = "\\x1b[1;31mDel\\x07ete\\u202e \\x1b]8;;http://x\\x07all\\x1b]8;;\\x07 \\x1b[0m\\u200bfiles? "
    session = home.start([*PYTHON, f"input('{text}')"], tty=True)
    assert asked(session)["line"] == "Delete all files?"
    session.kill()


def a_reader_in_the_background_is_said_to_be_hung(home: Holdfast) -> None:
    session = home.start(["bash", "-c", "set -m; cat & exec sleep 3600"], tty=True)
    becomes(session, "quiet", LATE_S)
    assert session.metadata["hung"] == "SIGTTIN"
    session.kill()


@pytest.mark.covers("terminal:44")
@pytest.mark.slow
def test_a_program_that_waits_for_an_answer_needs_input(world: World) -> None:
    side_by_side(
        world,
        *(
            partial(a_program_that_waits_for_an_answer_needs_input, command=command, wanted=wanted)
            for command, wanted in QUESTIONS
        ),
        partial(an_answer_ends_the_question_and_the_same_one_again_is_a_new_one, gate=world.gate()),
        a_terminal_started_without_echo_asks_for_no_secret,
        progress_beside_the_screen_is_no_activity,
        a_question_drawn_anew_for_another_size_is_the_same_question,
        a_question_is_told_without_what_colours_it_or_rings,
        a_question_of_a_program_with_its_own_line_editor_is_seen,
    )


@pytest.mark.covers("terminal:44")
@pytest.mark.slow
def test_a_silent_program_is_known_for_what_it_is(world: World) -> None:
    page = world.root / "page"
    page.write_text("line\n" * 500)
    side_by_side(
        world,
        a_sleeper_is_quiet_and_costs_nothing_once_that_is_known,
        partial(a_shell_and_a_pager_are_at_their_prompt, page=page),
        the_interpreter_is_at_its_prompt_and_at_work_on_what_it_was_given,
        a_prompt_that_flashes_between_two_outputs_is_nothing,
        a_question_is_known_before_anybody_looks,
        partial(a_silent_question_after_a_long_silence_is_found_by_who_asks, gate=world.gate()),
        a_bell_counts_until_somebody_types,
        a_reader_in_the_background_is_said_to_be_hung,
    )


def test_title_and_alternate_screen_are_in_the_metadata(world: World) -> None:
    script = r"printf '\033]2;my title\007\033[?1049hready'; exec sleep 3600"
    session = world.open().start(script, tty=True)
    session.wait(match="ready", timeout=30)
    assert session.refresh().metadata["title"] == "my title"
    assert session.metadata["alt_screen"] is True
    session.kill()
