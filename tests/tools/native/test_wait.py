"""`wait`: on events, for one of several, and nothing is missed between two calls."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

from support.agents import shown
from support.waiting import until

if TYPE_CHECKING:
    from support.agents import Agent, Agents
    from support.world import World


def start(agent: Agent, name: str, command: list[str], **options: object) -> str:
    id: str = agent.call("run", command=command, name=name, wait_s=0, **options).data["id"]
    return id


@pytest.mark.covers("native:9")
def test_the_first_of_several_that_ends_is_named_and_the_others_run_on(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    start(agent, "a", world.probe("forever"))
    start(agent, "b", world.probe("await", gate, "say", "over", "exit", 4))
    start(agent, "c", world.probe("forever"))
    gate.release()
    answer = agent.call("wait", ids=["a", "b", "c"], until="exit", timeout_s=30)
    assert re.match(r"\[b \w+ exit 4 after", answer.text)
    assert answer.data["name"] == "b"
    assert answer.data["reason"] == "exit"
    assert answer.text.splitlines()[-2:] == ["over", 'next: wait(ids=["a","c"])']
    assert {each["name"] for each in agent.call("list").data["sessions"]} == {"a", "c"}
    # Asked for again, what was told is not told again.
    again = agent.call("wait", ids=["a", "b", "c"], timeout_s=0.2)
    assert again.data["reason"] == "timeout"
    assert not re.search(r"^\[?b ", again.text, re.MULTILINE)
    agent.call("stop", all=True, grace_s=0)


@pytest.mark.covers("native:10")
def test_a_match_counts_only_behind_what_the_agent_saw(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    words = ["await", gate, "say", "token one", "await", gate, "say", "token two"]
    id = start(agent, "web", world.probe("quiet", *words, "forever"))
    gate.release()

    def output(ending: str) -> bool:
        return bool(shown(agent.call("read", id=id, since="0")).endswith(ending))

    until(lambda: output("token one"))
    # Printed before the call, and not seen yet.
    first = agent.call("wait", ids="web", until="match", pattern="token", timeout_s=30)
    assert first.data["reason"] == "match"
    assert 'matched "token one"' in first.text
    # Seen: it does not count again.
    assert agent.call("wait", ids="web", until="match", pattern="token", timeout_s=0.3).data["reason"] == "timeout"
    gate.release()
    until(lambda: output("token two"))
    # Printed between two calls.
    second = agent.call("wait", ids="web", until="match", pattern="token", timeout_s=30)
    assert 'matched "token two"' in second.text
    assert shown(second) == "token two"
    agent.call("stop", ids="web", grace_s=0)


@pytest.mark.covers("native:10")
@pytest.mark.parametrize("between", [True, False], ids=["before-the-call", "during-the-call"])
def test_a_match_that_begins_in_what_the_agent_saw_of_a_line_counts(
    direct: Agents, world: World, between: bool
) -> None:
    agent = direct("native")
    gate = world.gate()
    words = ["await", gate, "write", "token o", "await", gate, "write", "ne", "await", gate, "say", " more"]
    start(agent, "web", world.probe("quiet", *words, "forever"))

    def output(ending: str) -> bool:
        return bool(shown(agent.call("read", id="web", since="0")).endswith(ending))

    gate.release()
    until(lambda: output("token o"))
    assert shown(agent.call("read", id="web")) == "token o"
    # What lies within what was seen does not count, wherever the line ends.
    assert agent.call("wait", ids="web", until="match", pattern="token", timeout_s=0.2).data["reason"] == "timeout"

    async def matched() -> Any:
        waiting = asyncio.ensure_future(
            agent.tools.call("wait", {"ids": "web", "until": "match", "pattern": "^token one$", "timeout_s": 20})
        )
        if not between:
            await asyncio.wait((waiting,), timeout=0.2)
            gate.release()
        return await waiting

    if between:
        gate.release()
        until(lambda: output("token one"))
    answer = agent.run(matched())
    assert answer.data["reason"] == "match"
    assert 'matched "token one"' in answer.text
    gate.release()
    until(lambda: output("more"))
    assert "token" not in shown(agent.call("wait", ids="web", until="match", pattern="more", timeout_s=20))
    agent.call("stop", ids="web", grace_s=0)


@pytest.mark.covers("native:11")
def test_a_timeout_is_no_error_and_says_how_it_stands(agents: Agents, world: World) -> None:
    agent = agents("native")
    start(agent, "job", world.probe("say", "still at it", "forever"))
    until(lambda: "still at it" in agent.call("read", id="job", since="0").text)
    agent.call("read", id="job")
    answer = agent.call("wait", ids="job", timeout_s=0.3)
    assert not answer.error
    assert answer.data["reason"] == "timeout"
    said = r'\[job \w+ running [\d.]+s, no exit within [\d.]+s, last line "still at it", cursor stdout:\d+\]'
    assert re.fullmatch(said, answer.text)
    agent.call("stop", ids="job", grace_s=0)


def test_a_timeout_of_several_says_how_each_stands(agents: Agents, world: World) -> None:
    agent = agents("native")
    start(agent, "a", world.probe("say", "here", "forever"))
    start(agent, "b", world.probe("quiet", "forever"))
    until(lambda: "here" in agent.call("read", id="a", since="0").text)
    answer = agent.call("wait", ids=["a", "b"], timeout_s=0.5)
    assert not answer.error
    assert 'last line "here"' in answer.text
    assert "no output yet" in answer.text
    agent.call("stop", all=True, grace_s=0)


def test_the_other_conditions(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    start(agent, "web", world.probe("await", gate, "serve", 0, "forever"))
    gate.release()
    port = re.search(r"port (\d+)", agent.call("wait", ids="web", until="match", pattern="port", timeout_s=20).text)
    assert port is not None
    answer = agent.call("wait", ids="web", until="port", pattern=int(port[1]), timeout_s=20)
    assert f"port {port[1]} is open" in answer.text
    assert "quiet for 0.2s" in agent.call("wait", ids="web", until="idle", pattern="0.2", timeout_s=20).text
    assert agent.call("wait", ids="web", until="output", timeout_s=0.2).data["reason"] == "timeout"
    agent.call("stop", ids="web", grace_s=0)
    start(agent, "slow", world.probe("await", gate, "say", "up", "forever"), ready="line:^up$")
    gate.release()
    ready = agent.call("wait", ids="slow", until="ready", timeout_s=20)
    assert ready.data["reason"] == "ready"
    assert "ready on line" in ready.text
    agent.call("stop", ids="slow", grace_s=0)


def test_a_wait_for_ready_without_a_probe_is_refused_also_beside_other_conditions(agents: Agents, world: World) -> None:
    agent = agents("native")
    start(agent, "with", world.probe("quiet", "forever"), ready="line:^up$")
    start(agent, "without", world.probe("quiet", "forever"))
    alone = agent.call("wait", ids=["without"], until="ready", timeout_s=20)
    assert alone.error
    assert "was started without a `ready` condition" in alone.text
    among = agent.call("wait", ids=["with", "without"], until="ready", timeout_s=20)
    assert among.error
    assert among.text == alone.text
    agent.call("stop", all=True, grace_s=0)


def test_waiting_for_the_others_is_waiting_for_the_same(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    start(agent, "a", world.probe("quiet", "forever"))
    start(agent, "b", world.probe("quiet", "await", gate, "say", "over 1", "forever"))
    gate.release()
    answer = agent.call("wait", ids=["a", "b"], until="match", pattern=r"over \d", timeout_s=30)
    assert answer.text.endswith(r"""next: wait(ids=["a"], until="match", pattern="over \\d")""")
    agent.call("stop", all=True, grace_s=0)


def test_a_pattern_alone_is_waited_for(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    start(agent, "web", world.probe("await", gate, "say", "token", "forever"))
    gate.release()
    assert agent.call("wait", ids="web", pattern="tok.n", timeout_s=20).data["reason"] == "match"
    agent.call("stop", ids="web", grace_s=0)


def test_an_end_ends_every_wait(agents: Agents, world: World) -> None:
    agent = agents("native")
    start(agent, "brief", world.probe("exit", 2))
    answer = agent.call("wait", ids="brief", until="match", pattern="never", timeout_s=20)
    assert answer.data["reason"] == "exit"
    assert "exit 2" in answer.text
    # And is not announced again.
    assert agent.call("signals").data["signals"] == []
