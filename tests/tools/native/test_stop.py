"""`stop`: what it took, what survived, and that a second one changes nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from support import processes
from support.waiting import until

if TYPE_CHECKING:
    from support.agents import Agents
    from support.points import Points
    from support.world import World


@pytest.mark.covers("native:16")
def test_a_tree_that_ignores_term_is_ended_and_a_second_stop_does_nothing(agents: Agents, world: World) -> None:
    agent = agents("native")
    command = world.probe("ignore", "TERM,INT,HUP", "fork", "{", "say", "child", "forever", "}", "forever")
    id = agent.call("run", command=command, name="stubborn", wait_s=0).data["id"]
    until(lambda: "child" in agent.call("read", id=id, since="0").text)
    answer = agent.call("stop", ids="stubborn", grace_s=0.2)
    assert not answer.error
    assert re.fullmatch(
        rf"\[stubborn {id} stopped by you \(signal KILL\) in [\d.]+s, 2 processes, KILL to .*\]", answer.text
    )
    assert answer.data["survivors"] == []
    assert answer.data["found"] == 2
    again = agent.call("stop", ids=id)
    assert not again.error
    assert again.data["already"]
    said = rf"\[stubborn {id} had ended: stopped by you \(signal KILL\), [\d.]+s ago; nothing to stop\]"
    assert re.fullmatch(said, again.text)
    # Who asked for it need not be told.
    assert agent.call("signals").data["signals"] == []


@pytest.mark.covers("native:16")
def test_survivors_are_listed(direct: Agents, world: World, points: Points) -> None:
    points.set("tree.kill=error:EPERM")
    agent = direct("native")
    agent.call("run", command=world.probe("forever"), name="web", wait_s=0.2)
    session = agent.run(agent.hf.get("web"))
    answer = agent.call("stop", ids="web", grace_s=0.2)
    assert answer.error
    assert re.search(rf" NOT ended in .*; SURVIVED: {session.pid} /.*\]$", answer.text)
    assert [each["pid"] for each in answer.data["survivors"]] == [session.pid]
    taken = agent.call("run", command=world.probe("forever"), name="web", replace=True)
    assert taken.error
    assert f"is still running; the stop did not end {session.pid}" in taken.text
    assert session.pid is not None
    row = processes.look(session.pid)
    assert row is not None
    processes.end(row)
    until(lambda: agent.call("read", id=session.id).data["state"] == "exited")
    points.clear()


def test_all_of_them_at_once(agents: Agents, world: World) -> None:
    agent, other = agents("native"), agents("native", owner="b")
    for name in ("one", "two"):
        agent.call("run", command=world.probe("forever"), name=name, wait_s=0)
    other.call("run", command=world.probe("forever"), name="theirs", wait_s=0)
    answer = agent.call("stop", all=True, grace_s=0)
    assert answer.text.startswith("[2 of 2 stopped]")
    assert "theirs" not in answer.text
    assert agent.call("stop", all=True).text == "[no session of yours is running]"
    assert len(other.call("list").data["sessions"]) == 1
    other.call("stop", ids=["theirs"], grace_s=0)


def test_what_to_stop_has_to_be_said(agents: Agents) -> None:
    answer = agents("native").call("stop")
    assert answer.error
    assert answer.text == "ids: no session is named; give ids, or all=true"
