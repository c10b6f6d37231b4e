"""What outlives hosts: sessions with all their abilities, ends while no host ran."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from support import processes
from support.hermes import DRAIN, HOST, drain, drained, over, printed, process, start
from support.scale import scaled
from support.waiting import until

if TYPE_CHECKING:
    from support.agents import Agents
    from support.program import Program
    from support.world import World


def killed_host(world: World, **arguments: object) -> str:
    """A host that started this and was killed; the id."""
    host: Program = world.host(HOST, json.dumps({"background": True, **arguments}))
    told = json.loads(host.line() or host.errors())
    host.kill()
    host.wait()
    id: str = told["session_id"]
    return id


@pytest.mark.covers("hermes:8")
def test_a_new_host_has_everything_of_a_session_whose_hosts_were_killed(agents: Agents, world: World) -> None:
    id = killed_host(world, command="echo one; read x; echo got $x; cat; exit 9", notify=True)
    agent = agents("hermes", owner="a")
    polled = process(agent, "poll", id)
    assert (polled["status"], polled["session_id"]) == ("running", id)
    printed(agent, id, "one")
    assert process(agent, "log", id, offset=0)["output"] == "one"
    assert process(agent, "submit", id, data="hello")["bytes_written"] == 6
    printed(agent, id, "got hello")
    assert process(agent, "close", id)["message"] == "stdin closed"
    ended = process(agent, "wait", id, timeout=20)
    assert (ended["status"], ended["exit_code"], ended["output"]) == ("exited", 9, "one\ngot hello\n")


@pytest.mark.covers("hermes:9")
def test_an_end_while_no_host_lived_is_reported_once(library: Agents, world: World) -> None:
    gate = world.gate()
    id = killed_host(world, command=f"echo begun; read x <{gate}; echo over; exit 4", notify=True)
    with open(gate.path, "wb") as file:
        file.write(b"\n")
    # Nobody of this toolset looks before its runner has left.
    (session,) = (world.home / "sessions").iterdir()
    endpoint = world.runtime / f"{session.name}.sock"
    until(lambda: not endpoint.exists(), watch=world.runtime, what="the end of the runner")
    first = world.host(DRAIN)
    (event,) = json.loads(first.line() or first.errors())
    assert first.wait(30) == 0, first.errors()
    assert (event["type"], event["session_id"], event["exit_code"]) == ("completion", id, 4)
    assert (event["output"], event["completion_reason"]) == ("begun\nover\n", "exited")
    second = world.host(DRAIN)
    assert json.loads(second.line() or second.errors()) == [], "nor after another restart"
    assert second.wait(30) == 0, second.errors()
    assert drain(library("hermes", owner="a")) == []
    assert over(library("hermes", owner="a"), id)["exit_code"] == 4


def test_a_foreground_command_outlives_its_host_and_its_end_is_reported(library: Agents, world: World) -> None:
    gate, told = world.gate(), world.gate()
    command = f"echo begun; echo up >{told}; read x <{gate}; exit 4"
    host: Program = world.host(HOST, json.dumps({"command": command}))
    assert told.line() == "up", host.errors()
    host.kill()
    host.wait()
    agent = library("hermes", owner="a")
    (row,) = agent.call("process", action="list").data["processes"]
    assert row["status"] == "running"
    with open(gate.path, "wb") as file:
        file.write(b"\n")
    (event,) = drained(agent)
    assert (event["session_id"], event["exit_code"], event["output"]) == (row["session_id"], 4, "begun\n")
    (row,) = agent.call("process", action="list").data["processes"]
    assert (row["status"], row["exit_code"]) == ("exited", 4), "no call reported it"


@pytest.mark.covers("hermes:33")
@pytest.mark.slow
def test_five_hundred_finished_sessions_cost_a_host_no_descriptor(library: Agents) -> None:
    agent = library("hermes")
    import asyncio
    import os

    async def some(count: int) -> None:
        asked = {"command": "true", "background": True, "notify": True}
        for _ in range(count // 10):
            answers = await asyncio.gather(*(agent.tools.call("terminal", asked) for _ in range(10)))
            waits = [{"action": "wait", "session_id": answer.data["session_id"]} for answer in answers]
            await asyncio.gather(*(agent.tools.call("process", each) for each in waits))

    agent.run(some(10))
    agent.call("process", action="list")
    before = processes.descriptors(os.getpid())
    agent.run(some(scaled(100, 500)))
    assert len(agent.call("process", action="list").data["processes"]) == 64
    assert len(processes.descriptors(os.getpid())) == len(before)


def test_a_watch_continues_without_a_host(library: Agents, world: World) -> None:
    gate = world.gate()
    command = f"echo up; read x <{gate}; echo an ERROR here; sleep 0.3"
    id = killed_host(world, command=command, watch_patterns=["ERROR"])
    with open(gate.path, "wb") as file:
        file.write(b"\n")
    agent = library("hermes", owner="a")
    over(agent, id)
    (event,) = drained(agent)
    assert (event["type"], event["pattern"], event["output"]) == ("watch_match", "ERROR", "an ERROR here")
    assert process(agent, "log", id)["total_lines"] == 2
    assert start(agent, "true") != id
