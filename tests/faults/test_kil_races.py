"""KIL-08 and KIL-09: stops that meet exits, deadlines, each other, and starts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import pytest

import holdfast
from holdfast.errors import Unreachable
from holdfast.sessions import act, core
from support.bystander import Bystanders
from support.points import Points
from support.promised import Beside, is_typed, marked, promised
from support.waiting import until, wait_gone
from support.world import World

STOPPER = """
import json, sys, holdfast
hf = holdfast.open()
print("stopping")
try:
    stopped = hf.get(sys.argv[1]).stop(grace=float(sys.argv[2]), by=sys.argv[3])
    print(json.dumps([stopped.done, len(stopped.found), stopped.already]))
except holdfast.HoldfastError as problem:
    print(json.dumps(problem.to_json()))
"""

STARTER = """
import sys, holdfast
hf = holdfast.open()
try:
    print("started", hf.start(sys.argv[1:], grace=0.5).id)
except holdfast.HoldfastError as problem:
    print("refused", problem.code)
"""


def other_session(world: World, beside: Beside) -> str:
    """The id of the one session that is not beside, told from its directory."""
    ids = {path.name for path in (world.home / "sessions").iterdir()}
    [id] = ids - {beside.session.id}
    return id


@pytest.mark.covers("KIL-08")
@pytest.mark.parametrize("rung", [1, 2, 3])
def test_kil_08_a_command_that_exits_between_two_rungs_has_its_own_code_and_the_first_reason(
    world: World, points: Points, without: str, beside: Beside, bystander: Bystanders, rung: int
) -> None:
    points.set(f"runner.rung={rung}*pause")
    hf = world.open()
    gate = world.gate()
    session = hf.start(world.probe("ignore", "TERM", "lines", 3, "await", gate, "exit", 4))
    assert session.wait(match="^line 3$", timeout=30).reason == "match"
    stopper = world.host(STOPPER, session.id, 0.3, "first")
    assert stopper.line() == "stopping"
    hit = points.wait("runner.rung")
    assert session.pid is not None
    gate.release()
    until(lambda: not marked(session.id), what="the end of the command by itself")
    hit.release()
    assert json.loads(stopper.line())[0] is True
    promised(world, session, bystander=bystander, beside=beside, numbers=3)
    assert session.exit is not None
    assert (session.exit.code, session.exit.cause, session.exit.by) == (4, "stop", "first")


@pytest.mark.covers("KIL-08")
def test_kil_08_a_host_too_slow_to_hear_that_the_stop_is_done_still_gets_the_reply(
    world: World, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks whether the runner is still at work just after that has answered and left."""
    points.set("runner.rung=1*pause")
    session = world.open().start(["sleep", "600"])
    runner = session.runner_pid
    assert runner is not None
    real = core.Core.request

    async def request(self: core.Core, id: str, kind: str, *more: Any, **fields: Any) -> Any:
        if kind == "ping":
            points.wait("runner.rung").release()
            wait_gone(runner)
        return await real(self, id, kind, *more, **fields)

    monkeypatch.setattr(core.Core, "request", request)
    monkeypatch.setattr(act.Stop, "_bound_s", lambda *_: 0.1)
    stopped = session.stop(grace=0)
    assert (stopped.done, stopped.already, len(stopped.found)) == (True, False, 1)


@pytest.mark.covers("KIL-08")
def test_kil_08_fifty_stops_at_once_get_the_same_answer(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    session = hf.start(world.probe("ignore", "TERM", "fork", "{", "forever", "}", "lines", 3, "forever"))
    assert session.wait(match="^line 3$", timeout=30).reason == "match"

    async def stop_all() -> list[dict[str, object]]:
        async with holdfast.open_async() as other:
            handle = await other.get(session.id)
            answers = await asyncio.gather(*(handle.stop(grace=2, by=f"stopper {n}") for n in range(50)))
            return [answer.to_json() for answer in answers]

    answers = asyncio.run(stop_all())
    facts = {json.dumps([answer[key] for key in ("found", "survivors", "rung", "took_s")]) for answer in answers}
    assert len(facts) == 1
    assert len(json.loads(facts.pop())[0]) == 2
    promised(world, session, bystander=bystander, beside=beside, numbers=3)
    assert session.exit is not None
    assert (session.exit.signal, session.exit.cause) == ("SIGKILL", "stop")
    assert str(session.exit.by).startswith("stopper ")
    again = session.stop()
    assert (again.done, again.already, again.found) == (True, True, [])
    assert session.refresh().to_json()["exit"]["by"] == session.exit.by


@pytest.mark.covers("KIL-08")
def test_kil_08_a_stop_that_comes_after_the_deadline_does_not_change_the_reason(
    world: World, points: Points, without: str, beside: Beside, bystander: Bystanders
) -> None:
    points.set("runner.rung=1*pause")
    session = world.open().start(world.probe("ignore", "TERM", "lines", 3, "forever"), grace=0.3)
    assert session.wait(match="^line 3$", timeout=30).reason == "match"
    session.update(timeout=0.01)  # counted from the start: it has passed
    hit = points.wait("runner.rung")
    stopper = world.host(STOPPER, session.id, 0.3, "late")
    assert stopper.line() == "stopping"
    hit.release()
    assert json.loads(stopper.line())[0] is True
    promised(world, session, bystander=bystander, beside=beside, numbers=3)
    assert session.exit is not None
    assert (session.exit.cause, session.exit.by) == ("overall_timeout", "limit")
    assert (session.exit.signal, session.status) == ("SIGKILL", "killed")


@pytest.mark.covers("KIL-08")
def test_kil_08_a_deadline_that_passes_during_a_stop_does_not_change_the_reason(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    session = world.open().start(world.probe("ignore", "TERM", "lines", 3, "forever"))
    assert session.wait(match="^line 3$", timeout=30).reason == "match"
    stopper = world.host(STOPPER, session.id, 60, "early")
    until(lambda: session.refresh().stopping, what="the ladder")
    session.update(timeout=0.01)  # counted from the start: it has passed
    # An answer later it has been acted on.
    assert session.refresh().stopping
    assert session.kill().done
    assert stopper.lines_until("stopping")
    assert json.loads(stopper.line())[0] is True
    promised(world, session, bystander=bystander, beside=beside, numbers=3)
    assert session.exit is not None
    assert (session.exit.cause, session.exit.by, session.exit.signal) == ("stop", "early", "SIGKILL")


@pytest.mark.covers("KIL-08")
def test_kil_08_a_hasty_stop_hurries_a_patient_one_and_both_are_answered(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    session = hf.start(world.probe("ignore", "TERM", "lines", 3, "forever"))
    assert session.wait(match="^line 3$", timeout=30).reason == "match"
    patient = world.host(STOPPER, session.id, 60, "patient")
    assert patient.line() == "stopping"
    until(lambda: session.refresh().stopping, what="the ladder of the patient one")
    assert session.stopping is not None
    assert session.stopping["by"] == "patient"
    assert (session.desired["state"], session.desired["epoch"]) == ("down", 2)
    assert session.kill().done
    assert json.loads(patient.line()) == [True, 1, False]
    promised(world, session, bystander=bystander, beside=beside, numbers=3)
    assert session.exit is not None
    assert (session.exit.cause, session.exit.by) == ("stop", "patient")


@pytest.mark.covers("KIL-09")
@pytest.mark.parametrize("at", ["runner.before_spawn", "runner.spawned", "runner.state_written", "runner.answered"])
def test_kil_09_a_stop_that_comes_while_it_starts_ends_it(
    world: World, points: Points, without: str, beside: Beside, bystander: Bystanders, at: str
) -> None:
    points.set(f"{at}=pause")
    starter = world.host(STARTER, *world.probe("quiet", "forever"))
    hit = points.wait(at)
    points.clear()
    id = other_session(world, beside)
    stopper = world.host(STOPPER, id, 1, "early bird")
    assert stopper.line() == "stopping"
    hit.release()
    assert json.loads(stopper.line())[0] is True
    session = world.open().get(id)
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    assert (session.exit.cause, session.exit.by) == ("stop", "early bird")
    assert not marked(id)
    starter.wait()


@pytest.mark.covers("KIL-09")
@pytest.mark.parametrize("at", ["runner.spec_written", "runner.before_spawn"])
def test_kil_09_a_stop_that_cannot_be_heard_yet_says_so_and_works_later(
    world: World,
    points: Points,
    without: str,
    beside: Beside,
    bystander: Bystanders,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
) -> None:
    """Nothing is spawned so far; the stop does not claim that it ended anything."""
    points.set(f"{at}=pause")
    world.host(STARTER, *world.probe("quiet", "forever"))
    hit = points.wait(at)
    points.clear()
    hf = world.open()
    id = other_session(world, beside)
    monkeypatch.setenv("HOLDFAST_HOSTS_REPLY_TIMEOUT", "0.2")
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", "0.3")
    with pytest.raises(Unreachable) as told:
        world.open().get(id).stop(grace=1)
    is_typed(told.value)
    assert not marked(id)
    hit.release()
    until(lambda: hf.get(id).state == "running", what="the start")
    session = hf.get(id)
    promised(world, session, bystander=bystander, beside=beside, error=told.value)
    assert session.stop(grace=1).done
    promised(world, session, bystander=bystander, beside=beside)


@pytest.mark.covers("KIL-09")
def test_kil_09_a_runner_asked_to_leave_while_it_starts_leaves_no_process_behind(
    world: World, points: Points, without: str, beside: Beside, bystander: Bystanders
) -> None:
    points.set("runner.spawned=pause")
    world.host(STARTER, *world.probe("quiet", "forever"))
    hit = points.wait("runner.spawned")
    points.clear()
    os.kill(hit.pid, signal.SIGTERM)
    hit.release()
    wait_gone(hit.pid)
    session = world.open().get(other_session(world, beside))
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    assert (session.exit.cause, session.exit.by) == ("stop", "system")
