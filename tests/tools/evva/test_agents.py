"""Subagents: tasks of the host that end exactly once, whatever they do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

import holdfast
from holdfast.errors import BadArgument
from holdfast.tools import toolset
from holdfast.tools.evva import Agent, AsyncDaemonState, Change, DaemonState, Lifecycle, Signal
from support.own_daemon import OWNER
from support.waiting import BOUND_S
from support.world import World


@asynccontextmanager
async def opened() -> AsyncIterator[AsyncDaemonState]:
    async with holdfast.open_async() as hf:
        state = AsyncDaemonState(hf, OWNER)
        try:
            yield state
        finally:
            state.close()


def spawn(state: AsyncDaemonState | DaemonState, work: Any, **more: Any) -> Agent:
    agent = state.spawn_agent(work, name="scout", agent_type="explorer", prompt="look around", **more)
    assert isinstance(agent, Agent)
    return agent


async def over(agent: Agent) -> None:
    assert agent.task is not None
    await asyncio.wait([agent.task], timeout=BOUND_S)
    assert agent.task.done()


class Waiting:
    """Work that waits for ever, and says when it does."""

    def __init__(self) -> None:
        self.began = asyncio.Event()

    async def __call__(self, _agent: Agent) -> None:
        self.began.set()
        await asyncio.Event().wait()


def ends_of(signals: list[Signal]) -> list[tuple[str, str | None, str, str]]:
    """Status, cause, summary and error of each end."""
    ends = [each for each in signals if each.lifecycle is not None and each.snapshot is not None]
    return [
        (
            each.lifecycle.status if each.lifecycle else "",
            each.lifecycle.cause if each.lifecycle else None,
            each.snapshot.metadata.summary if each.snapshot else "",
            each.snapshot.metadata.err if each.snapshot else "",
        )
        for each in ends
    ]


def run(test: Callable[[AsyncDaemonState], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with opened() as state:
            await test(state)

    asyncio.run(main())


@pytest.mark.covers("evva:25")
def test_the_first_end_wins_and_nothing_comes_after_it(world: World) -> None:
    async def test(state: AsyncDaemonState) -> None:
        changes: list[Change] = []
        state.subscribe(changes.append)

        async def first(agent: Agent) -> None:
            agent.phase("reading")
            assert agent.report("found it") is True
            assert agent.crush("too late", "or is it") is False
            agent.phase("never")

        async def second(agent: Agent) -> None:
            assert agent.crush("broken", ValueError("no luck")) is True
            assert agent.report("too late") is False

        agents = [spawn(state, first), spawn(state, second)]
        for agent in agents:
            await over(agent)

        async def race(agent: Agent) -> None:
            ends = (asyncio.to_thread(agent.report, "r"), asyncio.to_thread(agent.crush, "c"))
            assert sorted(await asyncio.gather(*ends)) == [False, True]

        for _ in range(10):
            await over(spawn(state, race))
        silent = spawn(state, asyncio.to_thread(lambda: None))
        await over(silent)
        signals = list(state.drain_signals())
        assert len(signals) == 13, "one lifecycle each"
        ends = ends_of(signals)
        assert ends[:2] == [
            ("completed", "exit", "found it", ""),
            ("failed", "exit", "broken", "broken: ValueError: no luck"),
        ]
        # Whoever gives no error has said all in the summary.
        assert set(ends[2:12]) <= {("completed", "exit", "r", ""), ("failed", "exit", "c", "")}
        assert ends[12] == ("completed", "exit", "(no summary)", "")
        assert [shot for shot in state.snapshot() if not shot.is_terminal] == []
        state.drain_signals()
        await asyncio.to_thread(lambda: None)  # observers are called on this loop
        mine = [change.op for change in changes if change.id == agents[0].id]
        assert mine == ["added", "running", "phase:reading", "completed", "removed"]
        last = state.recall(agents[0].id)
        assert last is not None
        assert last.snapshot().metadata.phase == "ready_report"
        assert last.snapshot().metadata.name == "scout"

    run(test)


def test_a_task_that_reports_no_end_has_its_end_recorded(world: World) -> None:
    async def test(state: AsyncDaemonState) -> None:
        async def says() -> str:
            return "all fine"

        async def breaks() -> None:
            raise ValueError("no luck")

        for work in (says(), breaks()):
            await over(spawn(state, work))
        work_of_hers = Waiting()
        waiting = spawn(state, work_of_hers)
        await work_of_hers.began.wait()
        assert waiting.task is not None
        waiting.task.cancel()
        await over(waiting)
        with_no_step = spawn(state, asyncio.Event().wait())
        assert with_no_step.task is not None
        with_no_step.task.cancel()
        await over(with_no_step)
        ends = ends_of(list(state.drain_signals()))
        assert ends[0] == ("completed", "exit", "all fine", "")
        assert ends[1][:3] == ("failed", "exit", "[subagent crushed]")
        assert ends[1][3] == "[subagent crushed]: ValueError: no luck"
        assert ends[2] == ("killed", "stop", "[subagent loop interrupted]", "")
        assert ends[3] == ends[2], "also of one that never had its first step"

    run(test)


@pytest.mark.covers("evva:26")
def test_a_stop_cancels_an_agent_and_the_end_of_its_turn_does_not(world: World) -> None:
    async def main() -> None:
        async with holdfast.open_async() as hf:
            tools: Any = toolset("evva", hf, owner=OWNER)
            state: AsyncDaemonState = tools.state
            agents: list[Agent] = []
            waiting = Waiting()

            async def turn() -> None:
                agents.append(spawn(state, waiting, description="a scout"))
                await asyncio.Event().wait()

            running = asyncio.create_task(turn())
            await waiting.began.wait()
            running.cancel()
            await asyncio.wait([running])
            (agent,) = agents
            assert agent.task is not None
            assert not agent.task.done(), "it belongs to the state, not to the turn"
            listed = await tools.call("daemon_list", {})
            assert f"- {agent.id} [local_agent/running] a scout" in listed.text
            assert listed.text.endswith(" type=explorer async")
            shown = await tools.call("daemon_output", {"daemon_id": agent.id})
            assert shown.text == (
                f"daemon {agent.id} [local_agent/running] type=explorer async\n---\nprompt: look around"
            )
            stopped = await tools.call("daemon_stop", {"daemon_id": agent.id})
            assert stopped.text.startswith(f"daemon_stop: {agent.id} terminating; a killed notice follows")
            await over(agent)
            assert agent.task.cancelled()
            (signal,) = state.drain_signals()
            assert signal.lifecycle == Lifecycle("killed", cause="stop")
            assert signal.snapshot is not None
            assert signal.snapshot.requested_by == OWNER
            assert len(state.drain_signals()) == 0

            async def inline(agent: Agent) -> str:
                assert [shot.id for shot in state.snapshot()] == [agent.id]
                return "by return"

            result: Any = state.spawn_agent(inline, name="helper", agent_type="helper", prompt="help", async_mode=False)
            assert await result == "by return"
            assert len(state) == 0
            assert not state.has_pending(), "a sync agent makes no signal"
            await tools.close()

    asyncio.run(main())


def test_a_report_after_the_kill_keeps_its_summary_and_the_status(world: World) -> None:
    async def test(state: AsyncDaemonState) -> None:
        waiting = Waiting()

        async def stubborn(agent: Agent) -> None:
            try:
                await waiting(agent)
            except asyncio.CancelledError:
                agent.report("half of it")

        agent = spawn(state, stubborn)
        await waiting.began.wait()
        agent.kill()
        await over(agent)
        assert ends_of(list(state.drain_signals())) == [("killed", "stop", "half of it", "")]

    run(test)


def test_the_message_has_the_summary_and_the_error(world: World) -> None:
    async def test(state: AsyncDaemonState) -> None:
        async def fine() -> str:
            return "found 3 bugs\nin 2 files"

        async def limited(agent: Agent) -> None:
            agent.crush("[subagent paused at iteration limit]")

        agents = [spawn(state, fine()), spawn(state, limited)]
        for agent in agents:
            await over(agent)
        with state.fold() as fold:
            text = fold.text
        assert f"<system-reminder>daemon {agents[0].id} [local_agent] completed\n| found 3 bugs\n| in 2 files\n" in text
        assert f"<system-reminder>daemon {agents[1].id} [local_agent] failed\n" in text
        assert "[subagent paused at iteration limit]" in text
        async with holdfast.open_async() as hf:
            tools = toolset("evva", hf, owner=OWNER)
            whole = await tools.call("daemon_output", {"daemon_id": agents[0].id})
            assert whole.text.endswith("type=explorer async phase=ready_report\n---\nfound 3 bugs\nin 2 files")
            last = await tools.call("daemon_output", {"daemon_id": agents[0].id, "tail": 1})
            assert last.text.endswith("\n---\nin 2 files")

    run(test)


def test_an_agent_needs_a_running_loop(world: World) -> None:
    state = world.closing.enter_context(DaemonState(world.open(), OWNER))
    with pytest.raises(BadArgument, match="running event loop"):
        spawn(state, asyncio.Event().wait())
    assert len(state) == 0
