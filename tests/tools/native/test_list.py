"""`list`: a line each, short, and what is over only when it is asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from holdfast.tools.native.report import listed
from holdfast.tools.native.seen import Seen
from support.scale import scaled
from support.waiting import until

if TYPE_CHECKING:
    from support.agents import Agents
    from support.world import World


ENDED = scaled(60, 200)


@pytest.mark.covers("native:23")
@pytest.mark.slow
def test_many_that_ended_are_counted_and_shown_when_asked_for(agents: Agents, world: World) -> None:
    agent = agents("native")
    for _ in range(ENDED):
        agent.call("run", command=["true"])
    for name in ("a", "b", "c"):
        agent.call("run", command=world.probe("forever"), name=name, wait_s=0)
    answer = agent.call("list")
    assert answer.text.split("\n")[0] == f"[3 running; {ENDED} ended, list(all=true) shows them]"
    assert len(answer.text.split("\n")) == 4
    assert {each["name"] for each in answer.data["sessions"]} == {"a", "b", "c"}
    every = agent.call("list", all=True)
    assert every.text.startswith(f"[3 running, {ENDED} ended; the {ENDED - 50} oldest are not shown]")
    assert len(every.text) < 4000
    agent.call("stop", all=True, grace_s=0)


def test_twenty_sessions_stay_under_two_thousand_characters(direct: Agents, world: World) -> None:
    agent = direct("native")
    agent.call("run", command=["sh", "-c", "exec sleep 60", *["argument"] * 30], name="x" * 60, wait_s=0)
    (session,) = agent.run(agent.hf.sessions(owner="agent-7"))
    session.needs_input = {"line": "Continue?"}
    session.ends = {"stdout": 123_456}
    answer = listed([session] * 20, Seen(agent.tools.kept), all=False)
    assert len(answer.text) < 2000
    lines = answer.text.split("\n")[1:]
    assert len(lines) == 20
    assert all(": sh -c" in line and line.endswith("...; waits for input; 123.5 KB unread") for line in lines)
    agent.call("stop", all=True, grace_s=0)


def test_a_line_has_what_is_needed(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    id = agent.call("run", command=["sh", "-c", f"cat {gate}; printf 12345; sleep 60"], name="web", wait_s=0).data["id"]
    assert re.fullmatch(rf"\[1 running\]\n{id} web running [\d.]+s: sh -c 'cat .*", agent.call("list").text)
    agent.call("stop", ids="web", grace_s=0)
    answer = agent.call("list", all=True)
    assert re.fullmatch(
        rf"\[no session is running, 1 ended\]\n{id} web stopped by you \(signal KILL\) after .*", answer.text
    )


def test_unread_output_is_counted(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    agent.call("run", command=world.probe("quiet", "await", gate, "write", "12345", "forever"), name="web", wait_s=0)
    gate.release()
    until(lambda: agent.call("list").text.endswith("; 5 bytes unread"))
    agent.call("read", id="web")
    assert "unread" not in agent.call("list").text
    agent.call("stop", ids="web", grace_s=0)


def test_one_that_ended_and_left_processes_does_not_run(agents: Agents, world: World) -> None:
    agent = agents("native")
    command = world.probe("daemon", "{", "forever", "}", "exit", 0)
    id = agent.call("run", command=command, wait_s=20).data["id"]
    answer = agent.call("list")
    heading, line = answer.text.split("\n")
    assert heading == "[no session is running, 1 ended with processes that still run]"
    assert line.startswith(f"{id} exit 0 after ")
    assert "; 1 process still runs" in line
    assert answer.data["running"] == 0
    agent.call("stop", ids=id, grace_s=0)
