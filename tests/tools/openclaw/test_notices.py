"""What is told of runs in the background, and what was told already."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from support import signal_file
from support.agents import Agent
from support.faults import kill_runner, sweep_up
from support.waiting import turn, until, wait_for_file, wait_gone

if TYPE_CHECKING:
    from support.world import World


@pytest.fixture
def opened(world: World) -> Any:
    def one(**options: Any) -> Agent:
        made = Agent("openclaw", "agent-7", **options)
        world.closing.callback(made.close)
        return made

    return one


DRAINING = """
import asyncio, holdfast
from holdfast.tools import toolset

async def main():
    async with holdfast.open_async() as hf, toolset("openclaw", hf, owner="agent-7") as tools:
        async with await tools.drain() as notice:
            print(*(line for line in notice.text.splitlines() if line.startswith("Exec ")), "over", sep="\\n")

asyncio.run(main())
"""


def drained(agent: Agent, *, settle: bool = True) -> list[str]:
    """The lines of one drain that tell something."""

    async def drain() -> str:
        notice = await agent.tools.drain()
        text: str = notice.text
        if settle:
            await notice.settle()
        else:
            await notice.release("the turn failed")
        return text

    return [line for line in agent.run(drain()).splitlines() if line.startswith("Exec ")]


def ended(agent: Agent, world: World, command: str, **more: Any) -> str:
    """Run in the background, to its end, without a look of the agent's."""
    name: str = agent.call("exec", command=command, background=True, **more).data["sessionId"]

    async def id() -> str:
        return (await agent.hf.get(name)).id

    session = agent.run(id())
    until(lambda: signal_file.endings(world, session))
    return name


@pytest.mark.covers("openclaw:35")
def test_each_ending_is_notified_once_unless_it_is_an_empty_success(opened: Any, world: World) -> None:
    first = opened()
    ended(first, world, "true")
    assert drained(first) == []
    printed = ended(first, world, "echo all  good")
    assert drained(first) == [f"Exec completed ({printed}, code 0) :: all good"]
    failed = ended(first, world, "echo bad >&2; exit 1")
    polled = ended(first, world, "echo seen")
    until(lambda: "code 0" in first.call("process", action="poll", sessionId=polled, timeout=500).text)
    told_by = [world.host(DRAINING).lines_until("over")[:-1] for _ in range(3)]
    assert told_by == [[f"Exec failed ({failed}, code 1) :: bad"], [], []]


def test_a_kill_that_saw_the_end_acknowledges_it_and_lists_and_logs_do_not(opened: Any, world: World) -> None:
    agent = opened()
    killed = agent.call("exec", command="sleep 600", background=True).data["sessionId"]
    agent.call("process", action="kill", sessionId=killed)
    looked_at = ended(agent, world, "echo x")
    agent.call("process", action="list")
    agent.call("process", action="log", sessionId=looked_at)
    (line,) = drained(agent)
    assert looked_at in line


def test_a_run_that_its_call_reported_is_not_notified_and_one_that_yielded_is(opened: Any, world: World) -> None:
    agent = opened()
    assert agent.call("exec", command="echo told").data["status"] == "completed"
    assert agent.call("exec", command="echo told; exit 2", notifyOnExit="failure").data["exitCode"] == 2
    yielded = agent.call("exec", command="sleep 0.5; echo late", yieldMs=10).data["sessionId"]
    (line,) = until(lambda: drained(agent))
    assert line.startswith(f"Exec completed ({yielded}, code 0) :: late")


def test_options_choose_which_endings_are_notified(opened: Any, world: World) -> None:
    agent = opened()
    ended(agent, world, "echo x; exit 1", notifyOnExit=False)
    ended(agent, world, "echo x", notifyOnExit="failure")
    assert drained(agent) == []
    failed = ended(agent, world, "exit 1", notifyOnExit="failure")
    assert drained(agent) == [f"Exec failed ({failed}, code 1)"]
    chatty = opened(exec={"notifyOnExitEmptySuccess": True})
    silent = ended(chatty, world, "true")
    assert drained(chatty) == [f"Exec completed ({silent}, code 0)"]


def test_a_notice_shows_the_end_of_long_output(opened: Any, world: World) -> None:
    agent = opened()
    ended(agent, world, "seq 1000 2000")
    (line,) = drained(agent)
    snippet = line.partition(" :: ")[2]
    assert snippet.endswith(" 1999 2000")
    assert len(snippet) <= 180


def test_an_aborted_poll_does_not_acknowledge_the_end(opened: Any, world: World) -> None:
    agent = opened()
    name = ended(agent, world, "seq 300000")

    async def aborted_after(steps: int) -> bool:
        """Was it aborted before it answered? Then the notice still waits."""
        calling = asyncio.ensure_future(agent.tools.call("process", {"action": "poll", "sessionId": name}))
        for _ in range(steps):
            await turn()
        calling.cancel()
        aborted = isinstance((await asyncio.gather(calling, return_exceptions=True))[0], asyncio.CancelledError)
        event = (await (await agent.hf.get(name)).wait(timeout=0)).signal_id
        assert await agent.tools.consumer().is_open(event) == aborted, steps
        return aborted

    steps = 0
    while agent.run(aborted_after(steps)):
        steps += 1
    assert steps > 3
    assert drained(agent) == []


def test_a_foreground_run_that_its_call_aborted_is_not_notified(opened: Any, world: World) -> None:
    agent = opened()
    mark = world.cwd / "began"

    async def abort() -> str:
        asked = {"command": f"touch {mark}; echo x; exec sleep 600"}
        calling = asyncio.ensure_future(agent.tools.call("exec", asked))
        await asyncio.to_thread(wait_for_file, mark)
        (session,) = await agent.hf.sessions()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        return str(session.id)

    session = agent.run(abort())
    until(lambda: signal_file.endings(world, session))
    assert drained(agent) == []


@pytest.mark.parametrize("action", ["clear", "remove"])
def test_a_cleared_or_removed_run_is_not_notified(opened: Any, world: World, action: str) -> None:
    agent = opened()
    name = ended(agent, world, "echo x")
    assert agent.call("process", action=action, sessionId=name).data["status"] == "completed"
    assert drained(agent) == []


def session_of(agent: Agent, name: str) -> Any:
    return agent.run(agent.hf.get(name))


@pytest.mark.covers("found:12")
@pytest.mark.parametrize("command_dead", [False, True], ids=["stale", "lost"])
@pytest.mark.parametrize("drained_before", [False, True], ids=["unseen", "seen"])
def test_a_removed_run_whose_runner_was_killed_is_not_notified(
    opened: Any, world: World, command_dead: bool, drained_before: bool
) -> None:
    agent = opened()
    name = agent.call("exec", command="echo up; exec sleep 600", background=True).data["sessionId"]
    session = session_of(agent, name)
    kill_runner(session)
    if command_dead:
        os.kill(session.pid, signal.SIGKILL)
        wait_gone(session.pid)
    if drained_before:
        drained(agent, settle=False)  # as a host does whose turn failed: all of it is due again
    removed = agent.call("process", action="remove", sessionId=name)
    assert removed.data["status"] == "completed", removed.text
    wait_gone(session.pid)
    (ending,) = until(lambda: [*looked(agent), signal_file.endings(world, session.id)][-1])
    assert ending["lifecycle"]["cause"] == ("lost" if command_dead else "stop")
    assert drained(agent) == []
    assert world.host(DRAINING).lines_until("over")[:-1] == []
    sweep_up(world, world.open())


def looked(agent: Agent) -> list[Any]:
    """Make a host look at what there is to tell."""
    agent.run(agent.tools.consumer().pending())
    return []


STUBBORN = "(trap '' TERM; echo up; while :; do sleep 600; done) & while :; do sleep 600; done"


@pytest.mark.covers("found:12")
@pytest.mark.parametrize("ends", ["stop", "timeout"])
def test_a_survivor_that_is_being_killed_is_not_reported_as_running(opened: Any, world: World, ends: str) -> None:
    agent = opened(exec={"killGraceMs": 4000})
    limit = {"timeout": 1} if ends == "timeout" else {}
    name = agent.call("exec", command=STUBBORN, background=True, **limit).data["sessionId"]
    session = session_of(agent, name)
    until(lambda: "up" in agent.call("process", action="log", sessionId=name).text)
    if ends == "stop":
        stopping = world.program(world.hold_argv("stop", session.id))
    (ending,) = until(lambda: signal_file.endings(world, session.id))
    assert agent.run(session.refresh()).exit.survivors, "it is told before the last process was killed"
    assert not ending["snapshot"]["exit"]["survivors"]
    (line,) = drained(agent)
    assert "still run" not in line, line
    polled = agent.call("process", action="poll", sessionId=name)
    assert "still run" not in polled.text, polled.text
    assert "are being ended" in polled.text, polled.text
    until(lambda: not agent.run(session.refresh()).exit.survivors)
    if ends == "stop":
        assert stopping.wait(30) == 0
    assert drained(agent) == []


@pytest.mark.covers("found:12")
def test_a_foreground_call_that_timed_out_does_not_report_dying_processes_as_running(opened: Any) -> None:
    agent = opened(exec={"killGraceMs": 4000})
    late = agent.call("exec", command=STUBBORN, timeout=1)
    assert late.data["failureKind"] == "overall-timeout"
    assert late.data["survivors"], "it is told before the last process was killed"
    assert "still run" not in late.text
    assert "are being ended" in late.text
