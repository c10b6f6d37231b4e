"""Hosts come and go: killed in the middle, two at once, with the index gone. Nothing is lost, nothing comes twice."""

from __future__ import annotations

import os
import re
import signal
import threading

import pytest

from holdfast.tools.evva import Batch, DaemonState, Signal
from support.own_daemon import OWNER
from support.signal_file import endings
from support.waiting import BOUND_S, until
from support.world import World

HEAD = f"""
import sys, threading, asyncio, holdfast
from holdfast.tools.evva import AsyncDaemonState, DaemonState, Event, Lifecycle, Signal
from holdfast.tools import toolset
OWNER = {OWNER!r}
"""


def state_of(world: World) -> DaemonState:
    return world.closing.enter_context(DaemonState(world.open(), OWNER))


def lifecycles(batch: Batch) -> list[Signal]:
    return [each for each in batch if each.is_lifecycle]


@pytest.mark.covers("evva:9")
def test_signals_that_a_killed_host_did_not_settle_come_again_once(world: World) -> None:
    host = world.host(
        HEAD
        + """
state = DaemonState(holdfast.open(), OWNER)
for command in ("echo one", "echo two; exit 3"):
    state.start(command).wait()
while True:
    batch = state.drain_signals()
    if len(batch) == 2:
        break
    batch.release("not all yet")
print(*batch.ids, flush=True)
threading.Event().wait()
"""
    )
    ids = host.line().split()
    before = state_of(world)
    assert not before.has_pending(), "a living host holds them"
    host.kill()
    again = state_of(world).drain_signals()
    assert [each.id for each in again] == ids
    assert [each.redelivered for each in again] == [True, True]
    again.settle()
    assert len(before.drain_signals()) == 0


@pytest.mark.covers("evva:10")
def test_two_hosts_that_drain_at_once_share_the_signals(world: World) -> None:
    code = (
        HEAD
        + """
with holdfast.open() as hf, DaemonState(hf, OWNER) as state:
    print("ready", flush=True)
    for _ in sys.stdin:
        with state.fold() as fold:
            print(*fold.ids, flush=True)
"""
    )
    starter = state_of(world)
    hosts = [world.host(code) for _ in range(2)]
    for host in hosts:
        assert host.line() == "ready"
    shares: list[list[str]] = [[], []]
    expected: set[str] = set()
    # One of the two takes all that is there; which of them differs each time.
    for _ in range(50):
        sessions = [starter.start("true") for _ in range(3)]
        for session in sessions:
            session.wait(timeout=30)
        expected |= {session.refresh().metadata["signal_id"] for session in sessions}
        until(lambda: int(starter.consumer.pending()) == 3, what="all of them in the queue")
        for host in hosts:
            host.send("go\n")
        for host, share in zip(hosts, shares, strict=True):
            share += host.line().split()
        if all(shares):
            break
    assert all(shares)
    assert sorted([*shares[0], *shares[1]]) == sorted(expected), "each in exactly one batch"
    for host in hosts:
        host.close_stdin()
        assert host.wait() == 0


@pytest.mark.covers("evva:12")
def test_a_background_command_outlives_its_host_and_the_next_host_gets_its_end(world: World) -> None:
    host = world.host(
        HEAD
        + """
async def main():
    async with holdfast.open_async() as hf:
        tools = toolset("evva", hf, owner=OWNER)
        answer = await tools.call("bash", {"command": "sleep 2; echo x", "run_in_background": True})
        print(answer.data["daemon_id"], flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    )
    id = host.line()
    host.kill()
    # The next host comes when all is over.
    until(lambda: endings(world, id), what="the end of the command")
    state = state_of(world)
    with state.fold() as fold:
        assert f"<system-reminder>daemon {id} [local_bash] completed, exit code 0\n| x\n</system-reminder>" in fold.text
        (ended,) = fold.batch
    assert ended.lifecycle is not None
    assert (ended.lifecycle.status, ended.lifecycle.exit_code) == ("completed", 0)
    assert ended.snapshot is not None
    assert ended.snapshot.metadata.output == "x\n"


@pytest.mark.covers("evva:27")
def test_an_agent_whose_host_died_is_reported_lost_once(world: World) -> None:
    host = world.host(
        HEAD
        + """
async def main():
    async with holdfast.open_async() as hf:
        state = AsyncDaemonState(hf, OWNER)
        agent = state.spawn_agent(asyncio.Event().wait(), name="scout", agent_type="scout", prompt="look around")
        print(agent.id, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    )
    id = host.line()
    assert id.startswith("a")
    host.kill()
    first, second = state_of(world), state_of(world)
    with first.fold() as fold:
        ended = lifecycles(fold.batch)
        assert [(each.daemon_id, each.kind) for each in ended] == [(id, "local_agent")]
        assert f"<system-reminder>daemon {id} [local_agent] failed, cause=lost\n(no summary)" in fold.text
    assert ended[0].lifecycle is not None
    assert (ended[0].lifecycle.status, ended[0].lifecycle.cause) == ("failed", "lost")
    assert len(second.drain_signals()) == 0
    assert len(first.drain_signals()) == 0
    (world.runtime / f"{id}.sock").unlink(missing_ok=True)


@pytest.mark.covers("evva:29")
def test_without_its_index_everything_is_there_and_old_ends_are_marked(world: World) -> None:
    state = state_of(world)
    running = state.start("echo up; sleep 60", description="the server")
    done = state.start("echo hi")
    done.wait(timeout=BOUND_S)
    until(state.has_pending, what="the end")
    state.drain_signals().settle()
    state.close()
    for name in os.listdir(world.home):
        if name.startswith("index.db"):
            os.unlink(world.home / name)
    host = world.host(
        HEAD
        + """
async def main():
    async with holdfast.open_async() as hf:
        tools = toolset("evva", hf, owner=OWNER)
        for name, arguments in (
            ("daemon_list", {"include_terminal": True}),
            ("daemon_output", {"daemon_id": sys.argv[1]}),
            ("daemon_stop", {"daemon_id": sys.argv[2]}),
        ):
            print((await tools.call(name, arguments)).text.replace("\\n", "|"), flush=True)
        with tools.state.fold() as fold:
            print(fold.text.replace("\\n", "|"), flush=True)
            print([each.replayed for each in fold.batch if each.daemon_id == sys.argv[1]], flush=True)
        await tools.close()
asyncio.run(main())
""",
        done.id,
        running.id,
    )
    listed = host.line()
    assert f"- {running.id} [local_bash/running] the server" in listed
    assert f"- {done.id} [local_bash/completed] echo hi" in listed
    assert host.line() == f"daemon {done.id} [local_bash/completed] exit=0|---|hi|"
    assert host.line().startswith(f"daemon_stop: {running.id} terminating")
    digest = host.line()
    (line,) = re.findall(rf"<system-reminder>daemon {done.id} [^|]*</system-reminder>", digest)
    assert "completed" in line
    assert "replayed" in line
    assert host.line() == "[True]"
    assert host.wait() == 0
    world.open().get(running.id).wait(timeout=BOUND_S)


def test_a_host_that_waits_is_woken_by_the_end_that_another_caused(world: World) -> None:
    state, other = state_of(world), state_of(world)
    woken = threading.Event()
    session = state.start("sleep 60")
    other.set_wake(woken.set)
    state.stop(session.id)
    assert woken.wait(BOUND_S)
    with other.fold() as fold:
        assert f"daemon {session.id} [local_bash] killed, signal SIGTERM, cause=stop, by={OWNER}" in fold.text
    assert len(state) == 0, "settled by one host, it is out of the catalog of all"


def test_the_death_of_a_runner_and_of_a_host_that_held_signals_wakes(world: World) -> None:
    state = state_of(world)
    woken = threading.Event()
    state.set_wake(woken.set)
    session = state.start("exec sleep 60")
    shot = session.refresh()
    assert shot.runner_pid is not None
    assert shot.pid is not None
    # Only a look finds the processes to watch: the start was one.
    until(lambda: session.id in [each.id for each in state.snapshot()], what="the session")
    for pid in (shot.runner_pid, shot.pid):
        os.kill(pid, signal.SIGKILL)
    assert woken.wait(BOUND_S)
    (lost,) = until(lambda: lifecycles(state.drain_signals()), what="the end")
    assert lost.lifecycle is not None
    assert (lost.lifecycle.status, lost.lifecycle.cause) == ("failed", "lost")
    assert len(state.drain_signals()) == 0
    (world.runtime / f"{session.id}.sock").unlink()

    state.set_wake(None)
    state.start("true")
    host = world.host(
        HEAD
        + """
state = DaemonState(holdfast.open(), OWNER)
while not (batch := state.drain_signals()):
    pass
print(*batch.ids, flush=True)
threading.Event().wait()
"""
    )
    (id,) = host.line().split()
    woken.clear()
    state.set_wake(woken.set)
    assert not woken.is_set(), "a living host holds it"
    host.kill()
    assert woken.wait(BOUND_S)
    (again,) = state.drain_signals()
    assert (again.id, again.redelivered) == (id, True)


def test_signals_of_a_host_that_died_after_claiming_them_wake_again(world: World) -> None:
    state = state_of(world)
    woken = threading.Semaphore(0)
    state.set_wake(woken.release)
    state.start("true")
    assert woken.acquire(timeout=BOUND_S)
    host = world.host(
        HEAD
        + """
state = DaemonState(holdfast.open(), OWNER)
print(*state.drain_signals().ids, flush=True)
threading.Event().wait()
"""
    )
    (id,) = host.line().split()
    assert not state.has_pending(), "a living host holds it"
    host.kill()
    assert woken.acquire(timeout=BOUND_S), "the same signal as before is due again"
    assert [each.id for each in state.drain_signals()] == [id]


def test_a_released_signal_wakes_when_it_is_due_also_after_another_was_due(world: World) -> None:
    state = state_of(world)
    state.start("exit 3").wait(timeout=BOUND_S)
    until(state.has_pending, what="the first end")
    batch = state.drain_signals()
    (first,) = batch.ids
    batch.release("the test was not ready")
    state.start("exit 4").wait(timeout=BOUND_S)
    until(state.has_pending, what="the second end")
    woken = threading.Semaphore(0)
    state.set_wake(woken.release)
    assert woken.acquire(timeout=BOUND_S)
    with state.fold() as fold:
        assert first not in fold.ids
    assert woken.acquire(timeout=BOUND_S), "nothing else will wake it"
    assert [each.id for each in state.drain_signals()] == [first]
