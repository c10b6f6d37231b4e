"""Command lines that are agents: one per conversation, watched for silence, found again by the next host."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.tools.openclaw import cli_agent, runs
from holdfast.tools.openclaw.cli_agent import FRESH, RESUME, Backend, CliAgent, Configured, Turn, no_output_ms
from holdfast.tools.openclaw.supervisor import Supervisor
from support.agents import Agent

if TYPE_CHECKING:
    from support.world import World


@pytest.fixture
def agent(world: World) -> Agent:
    made = Agent("openclaw", "agent-7")
    world.closing.callback(made.close)
    return made


def cli(agent: Agent, *command: str, resume: list[str] | None = None, **options: Any) -> CliAgent:
    one = Supervisor(agent.hf, "agent-7", kill_grace_ms=300)
    return CliAgent(one, Backend("demo", command, resume, **options))


SILENCE = {name: Configured(no_output_ms=1000) for name in ("fresh", "resume")}
CHECKS = [
    (600_000, FRESH, 480_000),
    (600_000, RESUME, 180_000),
    (120_000, FRESH, 119_000),
    (30_000, RESUME, 29_000),
    (1_800_000, FRESH, 600_000),
]


@pytest.mark.covers("openclaw:31")
@pytest.mark.parametrize("timeout_ms, profile, expected", CHECKS)
def test_the_numbers_are_the_same_for_the_agent_runner_and_its_backends(
    agent: Agent, timeout_ms: int, profile: cli_agent.Profile, expected: int
) -> None:
    assert no_output_ms(timeout_ms, profile) == expected
    assert Backend("demo", ["x"]).no_output_ms(timeout_ms, profile) == expected
    runner = cli(agent, "sleep", "600", timeout_ms=timeout_ms)
    resumed = profile is RESUME
    run = agent.run(runner.ask(Turn("c1", "hello", resumed=resumed)))
    spec = agent.run(run.session.records())["spec"]
    assert (spec["timeout"], spec["idle_timeout"]) == (timeout_ms / 1000, expected / 1000)
    agent.run(run.cancel())


def test_what_is_configured_beats_the_table_and_not_the_profile(agent: Agent) -> None:
    assert no_output_ms(100_000, FRESH, Configured(no_output_ms=0)) is None
    assert no_output_ms(100_000, FRESH, Configured(no_output_ms=500_000)) == 99_000
    assert no_output_ms(1500, RESUME) == 1000
    # 0 is no limit to stay below, and allows as much silence as the longest.
    assert (no_output_ms(0, FRESH), no_output_ms(0, RESUME)) == (600_000, 180_000)
    assert no_output_ms(0, FRESH, Configured(max_ms=300_000)) == 300_000
    assert no_output_ms(0, RESUME, Configured(no_output_ms=90_000)) == 90_000
    assert no_output_ms(1_000_000, FRESH, Configured(ratio=7, min_ms=0, max_ms=10**9)) == 950_000
    assert no_output_ms(1_000_000, FRESH, Configured(ratio=0.001, min_ms=0)) == 50_000
    own = {"resume": Configured(no_output_ms=7000)}
    runner = cli(agent, "x", watchdogs=own)
    assert runner.limits(Turn("c", "p"), resumed=True)[2] == 7000
    assert runner.limits(Turn("c", "p"), resumed=False)[2] == 480_000
    assert runner.limits(Turn("c", "p", timeout_ms=600_000), resumed=True)[1] is FRESH
    assert runner.limits(Turn("c", "p", scheduled=True), resumed=True)[1] is FRESH


def test_a_prompt_is_answered(agent: Agent) -> None:
    result = agent.run(cli(agent, "sh", "-c", "read -r line; echo answer to $line").answer(Turn("c1", "question\n")))
    assert (result.text, result.trouble, result.retried) == ("answer to question\n", None, False)


def test_an_agent_gets_its_own_variables_and_no_secrets_of_the_host(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of the host")
    monkeypatch.setenv("SOME_PASSWORD", "of the host")
    turn = Turn("c1", "", env={"OPENAI_API_KEY": "its own"})
    result = agent.run(cli(agent, "sh", "-c", 'echo "$OPENAI_API_KEY,$SOME_PASSWORD,${PATH:+found}"').answer(turn))
    assert result.text == "its own,,found\n"


def test_two_runs_of_a_conversation_never_answer_at_once(agent: Agent) -> None:
    runner = cli(agent, "sleep", "600", resume=["sleep", "601"])
    first = agent.run(runner.ask(Turn("c1", "one")))
    other = agent.run(runner.ask(Turn("c2", "elsewhere")))
    second = agent.run(runner.ask(Turn("c1", "two", resumed=True)))
    assert agent.run(first.wait()).reason == "manual-cancel"
    assert agent.run(other.session.refresh()).state == "running"
    for run in (second, other):
        agent.run(run.cancel())


def test_a_silent_resumed_conversation_is_retried_once_as_a_fresh_one(agent: Agent) -> None:
    runner = cli(agent, "echo", "fresh", resume=["sleep", "600"], watchdogs=SILENCE)
    result = agent.run(runner.answer(Turn("c1", "hello", resumed=True)))
    assert (result.text, result.retried) == ("fresh\n", True)


def test_a_run_that_printed_something_or_timed_out_is_not_retried(agent: Agent) -> None:
    half = cli(agent, "echo", "fresh", resume=["sh", "-c", "echo half; sleep 600"], watchdogs=SILENCE)
    result = agent.run(half.answer(Turn("c1", "hello", resumed=True)))
    assert result.retried is False
    assert result.trouble == "demo: no output for 1.0 s (profile resume); its last output:\nhalf"
    late = cli(agent, "sh", "-c", "while sleep 0.1; do echo .; done")
    result = agent.run(late.answer(Turn("c2", "hello", timeout_ms=1500)))
    assert result.trouble is not None
    assert result.trouble.startswith("demo: overall timeout of 1.5 s (profile fresh); its last output:\n.")


ASKING = """
import asyncio, sys, holdfast
from holdfast.tools.openclaw.cli_agent import Backend, CliAgent, Turn
from holdfast.tools.openclaw.supervisor import Supervisor

async def main():
    hf = holdfast.open_async()
    runner = CliAgent(Supervisor(hf, "agent-7"), Backend("demo", ["sh", "-c", sys.argv[1]]))
    await runner.ask(Turn("c1", "hello"))
    print("asked", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_the_answer_for_a_host_that_died_is_taken_once_by_the_next(agent: Agent, world: World) -> None:
    gate = world.gate()
    line = f"cat > /dev/null; head -c 1 {gate} > /dev/null; echo answered"
    host = world.host(ASKING, line)
    assert host.line() == "asked", host.errors()
    host.kill()
    runner = cli(agent, "sh")
    gate.release()

    async def both() -> list[Any]:
        return list(await asyncio.gather(runner.take("c1"), cli(agent, "sh").take("c1")))

    taken = [each for each in agent.run(both()) if each is not None]
    assert [each.text for each in taken] == ["answered\n"]
    assert agent.run(runner.take("c1")) is None
    assert agent.run(runner.take("c9")) is None


def test_a_compaction_is_given_more_time_for_its_silence(agent: Agent, world: World) -> None:
    gate = world.gate()
    runner = cli(agent, "sh", "-c", f"head -c 1 {gate} > /dev/null; echo compacted", watchdogs=SILENCE)

    async def compacted() -> Any:
        run = await runner.ask(Turn("c1", "hello"))
        await runner.compacts(run)
        silent = await run.session.wait(timeout=1.5)
        gate.release()
        return silent.reason, await run.wait()

    reason, exit = agent.run(compacted())
    assert (reason, exit.reason, exit.stdout) == ("timeout", "exit", "compacted\n")


def test_a_compaction_is_over_with_the_next_output(agent: Agent, world: World) -> None:
    gate = world.gate()
    line = f"head -c 1 {gate} > /dev/null; echo compacted; exec sleep 600"
    runner = cli(agent, "sh", "-c", line, watchdogs=SILENCE)

    async def compacted() -> tuple[float, Any, Any]:
        run = await runner.ask(Turn("c1", "hello"))
        await runner.compacts(run)
        longer = (await runs.limits(run.session))["idle_timeout"]
        gate.release()
        exit = await asyncio.wait_for(run.wait(), 30)
        return longer, exit, await runner._trouble(run, exit)

    longer, exit, trouble = agent.run(compacted())
    assert longer == 301
    assert (exit.reason, exit.stdout) == ("no-output-timeout", "compacted\n")
    assert trouble.startswith("demo: no output for 1.0 s (profile fresh)")


def test_a_compaction_arms_no_watchdog_that_was_turned_off(agent: Agent) -> None:
    runner = cli(agent, "sleep", "600", watchdogs={"fresh": Configured(no_output_ms=0)})

    async def compacted() -> Any:
        run = await runner.ask(Turn("c1", "hello"))
        await runner.compacts(run)
        found = await runs.limits(run.session)
        await run.cancel()
        return found["idle_timeout"]

    assert agent.run(compacted()) is None
