"""Scopes: of several replacements the newest lives, cancels reach what starts, others never wait."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.tools.openclaw import supervisor as slugs
from holdfast.tools.openclaw.runs import Withdrawn
from holdfast.tools.openclaw.spawn import SpawnInput
from holdfast.tools.openclaw.supervisor import Supervisor
from support import processes, signal_file
from support.agents import Agent
from support.waiting import wait_gone

if TYPE_CHECKING:
    from support.points import Points
    from support.world import World


@pytest.fixture
def agent(world: World) -> Agent:
    made = Agent("openclaw", "agent-7")
    world.closing.callback(made.close)
    return made


def supervisor(agent: Agent) -> Supervisor:
    return Supervisor(agent.hf, "agent-7", kill_grace_ms=1500)


SLEEPER = ["sleep", "600"]

REPLACING = """
import asyncio, json, sys, holdfast
from contextvars import ContextVar
from holdfast.errors import HoldfastError
from holdfast.sessions.claims import Claim
from holdfast.tools.openclaw.spawn import SpawnInput
from holdfast.tools.openclaw.supervisor import Supervisor

drawn = ContextVar("drawn")
draw = Claim.ticket
Claim.ticket = lambda claim: drawn.get().setdefault("ticket", draw(claim))

async def replace(one, number, fails):
    facts = {"fails": fails}
    drawn.set(facts)
    argv = ["/no/such/program"] if fails else ["sleep", "600"]
    try:
        run = await one.spawn(SpawnInput(argv=argv, scope_key="shared", replace_existing_scope=True))
    except HoldfastError as problem:
        facts["error"] = problem.code
        return facts, None
    return {**facts, "run": run.run_id, "pid": run.pid}, run

async def main():
    every = int(sys.argv[1])
    async with holdfast.open_async() as hf:
        one = Supervisor(hf, "agent-7", kill_grace_ms=500)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        made = await asyncio.gather(*[replace(one, n, every and n % every == 0) for n in range(16)])
        print(json.dumps([facts for facts, _ in made]), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        living = json.loads(await asyncio.to_thread(sys.stdin.readline))
        waits = [run.wait() for facts, run in made if run is not None and facts["run"] not in living]
        exits = await asyncio.wait_for(asyncio.gather(*waits), 30)
        print(json.dumps([exit.reason for exit in exits]), flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.covers("openclaw:27")
@pytest.mark.parametrize("every", [0, 7])
def test_of_64_replacements_by_4_hosts_the_newest_lives(agent: Agent, world: World, every: int) -> None:
    hosts = [world.host(REPLACING, every) for _ in range(4)]
    for host in hosts:
        assert host.line() == "ready", host.errors()
    for host in hosts:
        host.send("go\n")
    made = [facts for host in hosts for facts in json.loads(host.line(40) or host.errors())]
    assert sorted(each["ticket"] for each in made) == list(range(1, 65))
    newest = max(made, key=lambda each: each["ticket"])
    living = [each for each in agent.run(supervisor(agent).list_by_scope("shared")) if each.state != "exited"]
    assert [each.run_id for each in living] == ([] if newest["fails"] else [newest["run"]])
    for host in hosts:
        host.send("\n" + json.dumps([each.run_id for each in living]) + "\n")
        reasons = json.loads(host.line(30) or host.errors())
        assert set(reasons) <= {"manual-cancel"}
        assert host.wait(30) == 0
    for each in made:
        if each.get("pid") and each is not newest:
            assert processes.is_gone(each["pid"])
    assert agent.run(supervisor(agent).cancel_scope("shared")) == len(living)


@pytest.mark.covers("openclaw:28")
def test_a_replacement_that_is_cancelled_before_its_turn_never_begins(agent: Agent, world: World) -> None:
    # The replacement waits for what it replaces as long as the others take to start.
    one = Supervisor(agent.hf, "agent-7", kill_grace_ms=60_000)

    async def fenced() -> tuple[Any, Any, list[Any]]:
        stubborn = SpawnInput(argv=world.probe("ignore", "TERM", "say", "up", "forever"), scope_key="busy")
        first = await one.spawn(stubborn)
        assert (await first.session.wait(match="up", timeout=30)).reason == "match"
        again = SpawnInput(argv=SLEEPER, scope_key="busy", replace_existing_scope=True, run_id="never-born")
        replacing = asyncio.ensure_future(one.spawn(again))
        assert (await first.session.wait(idle=0.1, timeout=30)).reason == "idle"
        others = [SpawnInput(argv=SLEEPER, scope_key=f"other {n}", replace_existing_scope=True) for n in range(24)]
        started = await asyncio.gather(*map(one.spawn, others))
        assert not replacing.done() or (await replacing).pid is None
        await one.cancel("never-born")
        withdrawn = await asyncio.wait_for(replacing, 30)
        for run in started:
            await run.cancel()
        return first, withdrawn, started

    first, withdrawn, started = agent.run(fenced())
    assert isinstance(withdrawn, Withdrawn)
    assert withdrawn.pid is None
    assert agent.run(withdrawn.wait()).reason == "manual-cancel"
    assert agent.run(one.get_record("never-born")) is None
    assert len({run.pid for run in started}) == 24
    agent.run(first.cancel(force=True))


@pytest.mark.parametrize("scope_key", [None, "alone"])
def test_a_forced_cancel_of_a_starting_run_gives_no_grace(agent: Agent, points: Points, scope_key: str | None) -> None:
    points.set("runner.before_spawn=pause")
    one = supervisor(agent)

    async def cancelled() -> Any:
        spawning = asyncio.ensure_future(one.spawn(SpawnInput(argv=SLEEPER, run_id="newborn", scope_key=scope_key)))
        hit = await asyncio.to_thread(points.wait, "runner.before_spawn", 20)
        cancelling = asyncio.ensure_future(one.cancel("newborn", force=True))
        await asyncio.wait({cancelling}, timeout=0.2)
        hit.release()
        assert await cancelling
        return await (await spawning).wait()

    exit = agent.run(cancelled())
    assert (exit.reason, exit.exit_signal) == ("manual-cancel", "SIGKILL")


@pytest.mark.covers("openclaw:29")
def test_cancelling_a_scope_stops_starting_runs_and_no_later_ones(agent: Agent, points: Points) -> None:
    points.set("runner.before_spawn=pause")
    one = supervisor(agent)

    async def cancelled() -> tuple[int, list[Any], Any]:
        inputs = [SpawnInput(argv=SLEEPER, scope_key="crowd") for _ in range(16)]
        spawning = [asyncio.ensure_future(one.spawn(input)) for input in inputs]
        hits = [await asyncio.to_thread(points.wait, "runner.before_spawn", 20) for _ in range(16)]
        cancelling = asyncio.ensure_future(supervisor_of_another_host.cancel_scope("crowd"))
        here = asyncio.ensure_future(one.cancel_scope("crowd"))
        await asyncio.wait({cancelling, here}, timeout=0.05)
        late = asyncio.ensure_future(one.spawn(SpawnInput(argv=SLEEPER, scope_key="crowd")))
        hits.append(await asyncio.to_thread(points.wait, "runner.before_spawn", 20))
        points.clear()
        for hit in hits:
            hit.release()
        runs = await asyncio.gather(*spawning)
        count = await here
        await cancelling
        return count, runs, await late

    supervisor_of_another_host = supervisor(agent)
    count, runs, late = agent.run(cancelled())
    assert count == 16
    for run in runs:
        assert agent.run(run.wait()).reason == "manual-cancel"
        assert run.pid is None or processes.is_gone(run.pid)
    assert not processes.is_gone(late.pid)
    assert agent.run(one.cancel_scope("  ")) == 0
    assert agent.run(one.list_by_scope("")) == []
    assert agent.run(one.cancel_scope("crowd")) == 1
    wait_gone(late.pid)


def test_starts_at_the_same_time_are_given_different_names(
    agent: Agent, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slugs, "_ADJECTIVES", "calm")
    monkeypatch.setattr(slugs, "_NOUNS", "fox")
    points.set("runner.before_spawn=pause")
    one = supervisor(agent)

    async def together() -> list[Any]:
        spawning = [asyncio.ensure_future(one.spawn(SpawnInput(argv=SLEEPER))) for _ in range(3)]
        hits = [await asyncio.to_thread(points.wait, "runner.before_spawn", 20) for _ in range(3)]
        for hit in hits:
            hit.release()
        return await asyncio.gather(*spawning)

    started = agent.run(together())
    assert sorted(run.run_id for run in started) == ["calm-fox", "calm-fox-2", "calm-fox-3"]
    for run in started:
        agent.run(run.cancel())


@pytest.mark.parametrize("asked", ["cancel", "replacement"])
def test_later_starts_delay_neither_a_cancel_nor_a_replacement(agent: Agent, points: Points, asked: str) -> None:
    """Each of a stream of starts is in flight before the one in front of it is done."""
    points.set("runner.before_spawn=pause")
    one, other = supervisor(agent), supervisor(agent)
    plain = SpawnInput(argv=SLEEPER, scope_key="busy")

    async def begin() -> tuple[Any, Any]:
        spawning = asyncio.ensure_future(one.spawn(plain))
        return spawning, await asyncio.to_thread(points.wait, "runner.before_spawn", 20)

    async def streamed() -> tuple[Any, Any]:
        first, first_hit = await begin()
        replacing = SpawnInput(argv=SLEEPER, scope_key="busy", replace_existing_scope=True)
        waits = other.spawn(replacing) if asked == "replacement" else other.cancel_scope("busy")
        waiting: Any = asyncio.ensure_future(waits)
        # Its first step draws the ticket.
        await asyncio.wait({waiting}, timeout=0)
        second, second_hit = await begin()
        first_hit.release()
        await first
        if asked == "replacement":
            # It comes to its own start while the second stands still.
            (await asyncio.to_thread(points.wait, "runner.before_spawn", 20)).release()
        done = await asyncio.wait_for(waiting, 30)
        assert not second.done()
        second_hit.release()
        points.clear()
        return await first, [await second, *([done] if asked == "replacement" else [])]

    first, living = agent.run(streamed())
    assert agent.run(first.wait()).reason == "manual-cancel"
    for run in living:
        assert not processes.is_gone(run.pid)
        agent.run(run.cancel())


@pytest.mark.parametrize("asked", ["cancel", "replacement"])
def test_a_start_that_no_other_host_can_see_yet_stops_itself(agent: Agent, points: Points, asked: str) -> None:
    points.set("runner.before_directory=pause")
    one, other = supervisor(agent), supervisor(agent)

    async def overtaken() -> tuple[Any, Any]:
        spawning = asyncio.ensure_future(one.spawn(SpawnInput(argv=SLEEPER, scope_key="busy")))
        hit = await asyncio.to_thread(points.wait, "runner.before_directory", 20)
        points.clear()
        if asked == "replacement":
            newer = await other.spawn(SpawnInput(argv=SLEEPER, scope_key="busy", replace_existing_scope=True))
        else:
            newer = None
            assert await other.cancel_scope("busy") == 0
        hit.release()
        return await spawning, newer

    older, newer = agent.run(overtaken())
    assert agent.run(older.wait()).reason == "manual-cancel"
    if newer is not None:
        assert not processes.is_gone(newer.pid)
        agent.run(newer.cancel())


def test_a_run_without_the_flag_starts_beside_others_and_a_replaced_run_is_not_notified(
    agent: Agent, world: World
) -> None:
    one = supervisor(agent)
    first, second = (agent.run(one.spawn(SpawnInput(argv=SLEEPER, scope_key="s", notify="exit"))) for _ in range(2))
    assert first.pid != second.pid
    third = agent.run(one.spawn(SpawnInput(argv=SLEEPER, scope_key="s", replace_existing_scope=True)))
    assert [each.run_id for each in agent.run(one.list_by_scope("s")) if each.state != "exited"] == [third.run_id]
    for run in (first, second):
        (record,) = signal_file.endings(world, run.session.id)
        assert record["routed"] is False
    agent.run(third.cancel())
