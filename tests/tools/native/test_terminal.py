"""`send` and `screen`: what came back, and what a person would see."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from support.agents import shown
from support.waiting import until

if TYPE_CHECKING:
    from support.agents import Agent, Agents
    from support.world import World

MENU = """
import os, sys, tty
tty.setcbreak(0)
sys.stdout.write("? Choose a color:\\n\u276f red\\n  green\\n")
sys.stdout.flush()
os.read(0, 1)
print("chosen")
"""


def repl(agent: Agent) -> str:
    id: str = agent.call("run", command=["python3", "-q", "-i", "-u"], tty=True, name="py", wait_s=0).data["id"]
    agent.call("wait", ids="py", until="match", pattern=">>> ", timeout_s=20)
    return id


@pytest.mark.covers("native:13")
def test_a_repl_answers_in_the_same_call_and_is_interrupted(agents: Agents) -> None:
    agent = agents("native")
    repl(agent)
    answer = agent.call("send", id="py", text="2+2")
    rows = [row["text"] for row in answer.data["rows"]]
    assert rows[:2] == [">>> 2+2", "4"]
    assert "\n4\n" in answer.text
    agent.call("send", id="py", text="import time; time.sleep(600)", wait_s=0.2)
    stopped = agent.call("send", id="py", keys=["C-c"], wait_s=2)
    assert "KeyboardInterrupt" in stopped.text
    assert "2+2" not in stopped.text
    ended = agent.call("send", id="py", text="exit(5)", wait_s=5)
    assert "exit 5" in ended.text


def test_what_scrolled_by_is_reported_from_the_log(agents: Agents) -> None:
    agent = agents("native")
    repl(agent)
    answer = agent.call(
        "send", id="py", text="print('\\n'.join('row ' + chr(97 + n % 26) * n for n in range(90)))", wait_s=2
    )
    assert "\nrow b\nrow cc\n" in answer.text
    assert "row " + "l" * 89 in answer.text
    assert "nothing new" in agent.call("read", id="py").text
    agent.call("stop", ids="py", grace_s=0)


def test_input_to_a_pipe_gives_what_is_new(agents: Agents) -> None:
    agent = agents("native")
    agent.call("run", command="cat", stdin="open", name="cat", wait_s=0)
    answer = agent.call("send", id="cat", text="hello", submit=True)
    assert shown(answer) == "hello"
    bare = agent.call("send", id="cat", text="more")
    assert "submit=true adds one" in bare.text
    ended = agent.call("send", id="cat", eof=True)
    assert "exit 0" in ended.text


@pytest.mark.covers("native:14")
def test_three_ways_not_to_send_are_three_errors_each_with_a_way_that_works(agents: Agents, world: World) -> None:
    agent = agents("native")
    agent.call("run", command=world.probe("forever"), name="closed", wait_s=0)
    closed = agent.call("send", id="closed", text="x")
    agent.call("run", command="cat", stdin="open", name="pipe", wait_s=0)
    keys = agent.call("send", id="pipe", keys=["Enter"])
    id = agent.call("run", command="exit 3").data["id"]
    ended = agent.call("send", id=id, text="x")
    assert closed.error
    assert keys.error
    assert ended.error
    assert re.fullmatch(
        r'stdin of closed \w+ is closed; start it with run\(\.\.\., stdin="open"\) or run\(\.\.\., tty=true\)',
        closed.text,
    )
    assert re.fullmatch(
        r'pipe \w+ is not a terminal; send\(id="pipe", text="\.\.\."\), or start it with run\(\.\.\., tty=true\)',
        keys.text,
    )
    assert re.fullmatch(
        rf'{id} has ended: exit 3, [\d.]+s ago; read\(id="{id}"\) still works, run starts it again', ended.text
    )
    # The calls that were named work.
    assert shown(agent.call("send", id="pipe", text="yes\n")) == "yes"
    assert not agent.call("read", id=id).error
    agent.call("stop", all=True, grace_s=0)


def waits_for_input(agent: Agent, id: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = agent.call("screen", id=id).data.get("needs_input")
    return found


@pytest.mark.covers("native:15")
def test_a_screen_shows_text_cursor_and_whether_it_waits_for_input(agents: Agents, world: World) -> None:
    agent = agents("native")
    file = world.cwd / "poem.txt"
    file.write_text("roses are red\nviolets are blue\n")
    agent.call("run", command=["vim", "-u", "NONE", "-N", str(file)], tty=True, name="vim", wait_s=0)
    until(lambda: "violets" in agent.call("screen", id="vim").text)
    moved = agent.call("send", id="vim", keys=["j", "l", "l"], wait_s=2)
    until(lambda: agent.call("screen", id="vim").data["screen"]["cursor"] == {"row": 1, "col": 2, "visible": True})
    vim = agent.call("screen", id="vim")
    assert not moved.error
    assert vim.data["screen"]["rows"][:3] == ["roses are red", "violets are blue", "~"]
    assert vim.text.splitlines()[1:3] == ["roses are red", "vi\u2588olets are blue"]
    assert "120x30" in vim.text
    assert "row 2, column 3" in vim.text
    menu = world.cwd / "menu.py"
    menu.write_text(MENU)
    agent.call("run", command=["python3", str(menu)], tty=True, name="menu", wait_s=0)
    agent.call("run", command="sleep 600", tty=True, name="nap", wait_s=0)
    until(lambda: waits_for_input(agent, "menu"))
    shown = agent.call("screen", id="menu")
    assert shown.data["screen"]["rows"] == ["? Choose a color:", "\u276f red", "  green"]
    assert shown.data["screen"]["cursor"] == {"row": 3, "col": 0, "visible": True}
    assert shown.data["needs_input"]["kind"] == "menu"
    assert (
        'waits for input at "\u276f red" (it is blocked reading its input and the line looks like a question)'
        in shown.text
    )
    nap = agent.call("screen", id="nap")
    assert "waits for" not in nap.text
    assert "needs_input" not in nap.data
    # What was said in an answer is not announced again.
    assert "waits" in agent.call("read", id="menu").text
    assert agent.call("signals").data["signals"] == []
    agent.call("stop", all=True, grace_s=0)


def test_changed_rows_of_a_full_screen_program_are_numbered(agents: Agents, world: World) -> None:
    agent = agents("native")
    file = world.cwd / "poem.txt"
    file.write_text("roses\nviolets\n")
    agent.call("run", command=["vim", "-u", "NONE", "-N", str(file)], tty=True, name="vim", wait_s=0)
    until(lambda: "violets" in agent.call("screen", id="vim").text)
    answer = agent.call("send", id="vim", text="ired ", submit=False, wait_s=2)
    assert answer.text.splitlines()[1] == "  1 red \u2588roses"
    assert "violets" not in answer.text
    agent.call("stop", ids="vim", grace_s=0)


def test_what_the_screen_showed_was_seen(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    command = world.probe("quiet", "await", gate, "say", "one", "await", gate, "exit", 3)
    id = agent.call("run", command=command, tty=True, wait_s=0).data["id"]
    gate.release()
    # The end of the line may come by itself.
    until(lambda: agent.call("screen", id=id).data["screen"]["cursor"]["row"] == 1)
    assert "one" in agent.call("screen", id=id).text
    assert "nothing new" in agent.call("read", id=id).text
    assert "unread" not in agent.call("list").text
    gate.release()
    until(lambda: "exit 3" in agent.call("screen", id=id).text)
    assert agent.call("signals").data["signals"] == []


def test_what_left_the_screen_is_still_new(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    command = world.probe("quiet", "await", gate, "lines", 300, "forever")
    id = agent.call("run", command=command, tty=True, wait_s=0).data["id"]
    gate.release()
    until(lambda: "line 300" in agent.call("screen", id=id).text)
    answer = agent.call("screen", id=id, history=1000)
    assert len(answer.text) < 8400
    assert agent.call("read", id=id, raw=True).text.split("\n")[1].startswith("line 1")
    agent.call("stop", ids=id, grace_s=0)


def test_a_long_history_keeps_to_the_budget(agents: Agents) -> None:
    agent = agents("native")
    command = 'i=0; while [ $i -lt 500 ]; do i=$((i+1)); echo "row $i of a history that is long enough"; done'
    id = agent.call("run", command=command, tty=True).data["id"]
    answer = agent.call("screen", id=id, history=1000)
    assert len(answer.text) < 8400
    assert re.search(r'^\.\.\. \d+ rows of history left out; read\(id="\w+", tail=1000, ', answer.text, re.MULTILINE)
    shown = re.findall(r"^row (\d+) ", answer.text, re.MULTILINE)
    assert shown == [str(n) for n in range(501 - len(shown), 501)]


def test_a_full_screen_keeps_to_the_budget(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    row = "a row that is long enough"
    words = ["write", "\033[?1049h", "await", gate, "repeat", 20, "{", "say", row, "}", "write", "done", "forever"]
    id = agent.call("run", command=world.probe("quiet", *words), tty=True, name="full", wait_s=0).data["id"]
    gate.release()
    agent.run(agent.run(agent.hf.get(id)).wait(match="done", timeout=30))
    answer = agent.call("read", id="full", budget=200)
    left = re.search(r'^\.\.\. (\d+) rows above left out; screen\(id="full"\)$', answer.text, re.MULTILINE)
    assert left is not None
    rows = answer.text.split("\n")[2:]
    assert int(left[1]) + len(rows) == 21
    assert sum(len(each) + 1 for each in rows) <= 200
    assert rows[0] == row
    assert rows[-1].startswith("done")
    agent.call("stop", all=True, grace_s=0)


@pytest.mark.parametrize("wrong", [{"keys": ["Up"]}, {"eof": True}])
def test_what_is_no_text_is_not_submitted(agents: Agents, wrong: dict[str, Any]) -> None:
    agent = agents("native")
    repl(agent)
    answer = agent.call("send", id="py", submit=True, **wrong)
    assert answer.error
    assert answer.text == f"submit: cannot be combined with {next(iter(wrong))}; leave it out, or give text or paste"
    agent.call("stop", ids="py", grace_s=0)


def test_what_is_pasted_may_be_submitted(agents: Agents) -> None:
    agent = agents("native")
    repl(agent)
    assert "\n42\n" not in agent.call("send", id="py", paste="6*7").text
    assert "\n4242\n" in agent.call("send", id="py", paste="*101", submit=True, wait_s=5).text
    agent.call("stop", ids="py", grace_s=0)


def test_an_enter_after_a_paste_that_ended_the_program_is_no_error(agents: Agents) -> None:
    agent = agents("native")
    agent.call("run", command="read -r answer; exit 4", tty=True, name="ask", wait_s=0)
    answer = agent.call("send", id="ask", paste="yes\n", submit=True, wait_s=5)
    assert not answer.error
    assert "exit 4" in answer.text


def test_a_full_screen_that_stands_as_it_stood_is_not_shown_again(agents: Agents, world: World) -> None:
    agent = agents("native")
    file = world.cwd / "poem.txt"
    file.write_text("roses are red\n")
    agent.call("run", command=["vim", "-u", "NONE", "-N", str(file)], tty=True, name="vim", wait_s=0)
    agent.run(agent.run(agent.hf.get("vim")).wait(match="roses", timeout=30))
    agent.call("wait", ids="vim", until="idle", pattern=1, timeout_s=20)
    agent.call("read", id="vim")
    again = agent.call("read", id="vim")
    assert "nothing new" in again.text
    assert "roses" not in again.text
    agent.call("stop", ids="vim", grace_s=0)


def test_an_end_of_input_that_ended_the_program_warns_of_nothing(agents: Agents) -> None:
    agent = agents("native")
    repl(agent)
    ended = agent.call("send", id="py", eof=True, wait_s=20)
    assert "exit 0" in ended.text
    assert "may not treat this" not in ended.text
