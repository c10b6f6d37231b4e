"""A host that is killed while it waits: the next one finds everything, and what happened meanwhile is told once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.agents import shown
from support.processes import connections
from support.waiting import until

if TYPE_CHECKING:
    from support.agents import Agents
    from support.program import Program
    from support.world import World

WAITS = """
import asyncio, sys
import holdfast
from holdfast.tools import toolset

async def main():
    async with holdfast.open_async() as hf:
        tools = toolset("native", hf, owner="agent-7")
        for name in ("one", "two"):
            answer = await tools.call("run", {"command": sys.argv[1:], "name": name, "wait_s": 0})
            assert not answer.error, answer.text
            while "hello" not in (await tools.call("read", {"id": name, "since": "0"})).text:
                pass
            await tools.call("read", {"id": name})
        print("started", flush=True)
        sys.stdin.readline()
        await tools.call("wait", {"ids": ["one", "two"]})

asyncio.run(main())
"""


def kill_while_it_waits(host: Program, world: World) -> None:
    """It is connected to both runners as long as it waits for both."""
    assert host.line() == "started"
    endpoints = [world.open().get(name).endpoint or "" for name in ("one", "two")]
    until(lambda: not any(map(connections, endpoints)), what="the end of all earlier requests, ours too,")
    host.send("wait\n")
    until(lambda: all(connections(each) > 0 for each in endpoints), what="the wait for both")
    host.kill()


def test_all_is_there_after_the_host_was_killed_and_the_end_is_reported_once(agents: Agents, world: World) -> None:
    gate = world.gate()
    host = world.host(WAITS, *world.probe("say", "hello", "await", gate, "say", "bye", "exit", 7))
    kill_while_it_waits(host, world)
    agent = agents("native")
    listed = agent.call("list")
    assert {each["name"] for each in listed.data["sessions"]} == {"one", "two"}
    # It was seen by the host that is gone.
    assert "nothing new" in agent.call("read", id="one").text
    gate.release()
    (ended,) = until(lambda: agent.call("signals").data["signals"])
    answer = agent.call("wait", ids=["one", "two"])
    assert "exit 7" in answer.text
    assert shown(answer).splitlines()[0] == "bye"
    assert answer.data["id"] == ended.partition(".")[0]
    # Given in an answer, it is told by neither host again.
    assert agent.call("signals").data["signals"] == []
    assert agents("native").call("signals").data["signals"] == []
    agent.call("stop", all=True, grace_s=0)


def test_an_end_that_came_while_no_host_was_running_is_delivered_to_the_next(agents: Agents, world: World) -> None:
    gate = world.gate()
    host = world.host(WAITS, *world.probe("say", "hello", "await", gate, "exit", 7))
    kill_while_it_waits(host, world)
    gate.release(2)
    agent = agents("native")
    until(lambda: not agent.call("list").data["sessions"])
    ids = until(lambda: agent.call("signals").data["signals"])
    agent.call("signals", ack=ids)
    ids += until(lambda: agent.call("signals").data["signals"]) if len(ids) < 2 else []
    agent.call("signals", ack=ids)
    assert len({each.partition(".")[0] for each in ids}) == 2
    assert agents("native").call("signals").data["signals"] == []
