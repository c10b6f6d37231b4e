"""What the configuration says about terminals: how long Enter waits, what a question looks like, what is kept."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast import errors
from holdfast.sessions.recording import Recording
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Holdfast, Session
    from support.world import World

    Open = Callable[[], Holdfast]

PYTHON = [sys.executable, "-I", "-S", "-c"]
# Says whether the end of a line came with the line.
TIMED = """
import os, time, tty
tty.setraw(0)
os.write(1, b"ready")
heard = os.read(0, 4096)
began = time.monotonic()
while not heard.endswith(b"\\r"):
    heard += os.read(0, 4096)
os.write(1, b"Enter late" if time.monotonic() - began > 1.5 else b"Enter at once")
"""


@pytest.fixture
def open_home(world: World) -> Open:
    """The home as it is configured now; all that runs in it ends with the test."""

    def open() -> Holdfast:
        hf = world.open()
        world.closing.callback(lambda: [session.kill() for session in hf.sessions()])
        return hf

    return open


def typed_into(world: World, session: Session) -> list[dict[str, object]]:
    lines = (world.session(session.id) / "inputs.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("delay, came", [("0", "Enter at once"), ("4s", "Enter late")])
def test_enter_waits_as_long_as_configured(
    open_home: Open, monkeypatch: pytest.MonkeyPatch, delay: str, came: str
) -> None:
    monkeypatch.setenv("HOLDFAST_TERMINAL_ENTER_DELAY", delay)
    session = open_home().start([*PYTHON, TIMED], tty=True)
    session.wait(match="ready", timeout=30)
    typed = session.submit("hello", wait_for={"match": "Enter.*", "timeout": 10})
    assert typed.woke is not None
    assert typed.woke.match == came


def test_an_attach_brings_as_many_rows_of_history_as_configured(
    open_home: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.model.events import Init

    # A clear screen to begin at is there before every line.
    source = "import os\nfor n in range(3000): os.write(1, b'\\x1b[2J\\x1b[H%d\\r\\n' % n + b'x' * 100)\n"
    session = open_home().run([*PYTHON, source], tty=True)
    begins = []
    for rows in ("0", "5000"):
        monkeypatch.setenv("HOLDFAST_TERMINAL_HISTORY_ROWS", rows)
        with open_home().get(session.id).attach() as attachment:
            init = next(event for event in attachment if isinstance(event, Init))
        begins.append(init.restore[0]["from"])
    assert begins[0] > begins[1]


def test_patterns_of_the_configuration_report_a_question(open_home: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TERMINAL_PROMPTS", "question=^Quo vadis, .{1,20}! $")
    session = open_home().start("printf 'Quo vadis, you! '; read answer", tty=True)
    until(lambda: session.refresh().needs_input is not None, what="the question")
    assert session.needs_input is not None
    assert (session.needs_input["kind"], session.needs_input["line"]) == ("question", "Quo vadis, you!")


def test_patterns_replace_those_of_their_kind_only_on_request(open_home: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TERMINAL_PROMPTS", "question=^Quo vadis, .{1,20}! $")
    question = "printf 'Really? '; read answer"
    added = open_home().start(question, tty=True)
    until(lambda: added.refresh().needs_input is not None, what="the question")
    assert added.needs_input is not None
    assert added.needs_input["kind"] == "question"
    monkeypatch.setenv("HOLDFAST_TERMINAL_PROMPTS_REPLACE", "true")
    replaced = open_home().start(question, tty=True)
    until(lambda: replaced.refresh().metadata["input_state"] != "working", what="a look")
    until(lambda: (replaced.refresh().needs_input or {}).get("confidence") in (None, "low"), what="no sure question")
    assert (replaced.refresh().needs_input or {}).get("kind") != "question"


def test_of_an_input_its_author_time_and_size_are_kept_but_not_its_content(open_home: Open, world: World) -> None:
    asking = "printf 'name: '; read name; stty -echo; printf 'secret: '; read secret; stty echo; echo done; read last"
    session = open_home().start(asking, tty=True)
    session.wait(match="name:", timeout=30)
    session.send("Ann\n", wait_for={"match": "secret:"})
    session.send("hunter2\n", wait_for={"match": "done"})
    session.keys("x", "Enter", wait_for={"exit": True})
    assert [sorted(entry) for entry in typed_into(world, session)] == [["at", "by", "bytes", "offset"]] * 3


def test_the_term_of_the_environment_is_in_the_recording_and_in_a_restart(open_home: Open, world: World) -> None:
    from holdfast.sessions.observe import read_files

    hf = open_home()
    session = hf.run("echo $TERM", tty=True, env={"TERM": "screen-256color"})
    assert session.text().strip() == "screen-256color"
    assert Recording(read_files(hf.home, session.id)).header().term == "screen-256color"
    again = session.restart()
    again.wait(timeout=30)
    assert again.text().strip() == "screen-256color"
    other = again.restart(env={"TERM": "vt220"})
    other.wait(timeout=30)
    assert other.text().strip() == "vt220"


def test_text_without_bytes_is_refused(open_home: Open, world: World) -> None:
    session = open_home().start("cat", tty=True)
    for send in (session.send, session.paste, session.submit):
        with pytest.raises(errors.BadArgument):
            send("a\ud800")
    assert not (world.session(session.id) / "inputs.jsonl").exists()


def test_more_than_one_message_holds_is_too_large_and_the_session_continues(open_home: Open, world: World) -> None:
    session = open_home().start("stty raw -echo; echo ready; exec cat", tty=True)
    session.wait(match="ready", timeout=30)
    for text in ("x" * (1 << 20), "\u00e9" * (200 << 10)):
        with pytest.raises(errors.TooLarge):
            session.submit(text)
    assert session.send("z").accepted == 1
