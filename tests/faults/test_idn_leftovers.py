"""IDN-05: what the dead leave behind is called what it is, and collected."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import errors
from support import processes
from support.bystander import Bystanders
from support.faults import kill_runner, sweep_up
from support.points import Points
from support.promised import Beside, home_is_usable, is_typed, left_alone, marked, promised
from support.waiting import until
from support.world import World


def directories(world: World, beside: Beside) -> list[Path]:
    return [path for path in (world.home / "sessions").iterdir() if path.name != beside.session.id]


def sockets(world: World, beside: Beside) -> list[str]:
    found = {path.name for path in world.runtime.glob("*.sock") if not path.name.startswith("launcher-")}
    return sorted(found - {f"{beside.session.id}.sock"})


@pytest.mark.covers("IDN-05")
def test_idn_05_a_socket_without_a_listener_is_swept_and_its_session_is_lost(
    world: World, without: str, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    session = hf.start(world.probe("forever"))
    assert session.wait(match="ready", timeout=30).reason == "match"
    kill_runner(session)
    for row in marked(session.id):
        processes.end(row)
    assert session.refresh().state == "lost"
    assert sockets(world, beside) == [f"{session.id}.sock"]
    swept = hf.collect().swept
    assert [Path(path).name for path in swept] == [f"{session.id}.sock"]
    assert sockets(world, beside) == []
    promised(world, session, bystander=bystander, beside=beside)
    assert session.text() == "ready\n"


# Where a start is killed, and what then lies there. The same point ends the launcher's spare and the direct way.
HALVES = {
    "runner.before_directory=kill": set[str](),
    "records.create=kill": set[str](),
    "records.create=2*kill": {".exit.reserved"},
    "records.rename=kill": {".exit.reserved", "spec.json.tmp"},
    "runner.spec_written=kill": {".exit.reserved", "spec.json"},
    "runner.before_spawn=kill": {".exit.reserved", "spec.json"},
}


@pytest.mark.covers("IDN-05")
@pytest.mark.parametrize("plan", HALVES)
def test_idn_05_a_start_that_died_is_never_starting_for_ever(
    world: World, points: Points, bystander: Bystanders, beside: Beside, plan: str
) -> None:
    hf = world.open()
    points.set(plan)
    with pytest.raises(errors.HoldfastError) as caught:
        hf.start(world.probe("forever"))
    is_typed(caught.value)
    points.clear()
    halves = directories(world, beside)
    assert halves
    for half in halves:
        assert {path.name for path in half.iterdir()} in (HALVES[plan], set())
        assert marked(half.name) == []
    seen = {session.id: session.state for session in hf.sessions(all=True)}
    assert seen.pop(beside.session.id) == "running"
    assert set(seen.values()) <= {"lost"}
    assert hf.recover().live[0].id == beside.session.id
    young = hf.collect()
    assert not {str(half) for half in halves} & set(young.swept), "somebody might still be starting there"
    assert any(finding.check == "leftovers" for finding in hf.doctor())
    sweep_up(world, hf)
    assert directories(world, beside) == []
    assert sockets(world, beside) == []
    left_alone(bystander)
    beside.unharmed()
    home_is_usable(world.open())


@pytest.mark.covers("IDN-05")
def test_idn_05_a_command_whose_runner_died_before_its_first_record_is_stale(
    world: World, points: Points, bystander: Bystanders, beside: Beside
) -> None:
    """Nothing on disk names the command, so only its mark can. Without that it would run on, listed nowhere."""
    hf = world.open()
    points.set("runner.spawned=kill")
    with pytest.raises(errors.HoldfastError):
        hf.start(["sleep", "600"])
    points.clear()
    (half,) = (path for path in directories(world, beside) if (path / "spec.json").exists())
    session = hf.get(half.name)
    assert session.state == "stale"
    (command,) = marked(session.id)
    stopped = session.stop(grace=0)
    assert stopped.done
    assert [found["pid"] for found in stopped.found] == [command.pid]
    assert promised(world, session, bystander=bystander, beside=beside).state == "lost"
    sweep_up(world, hf)
    assert directories(world, beside) == []


@pytest.mark.covers("IDN-05")
def test_idn_05_a_living_runner_without_its_socket_is_unreachable_and_can_be_stopped(
    world: World, without: str, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    session = hf.start(world.probe("forever"))
    assert session.wait(match="ready", timeout=30).reason == "match"
    Path(session.endpoint or "").unlink()
    seen = session.refresh()
    assert (seen.state, seen.status) == ("unreachable", "running")
    assert "no process listens" in seen.metadata["evidence"]
    with pytest.raises(errors.Unreachable) as caught:
        session.send("x")
    is_typed(caught.value)
    hf.collect()
    assert session.refresh().state == "unreachable", "a live session is not collected"
    assert session.stop(grace=0).done
    until(lambda: session.refresh().state == "exited", watch=world.session(session.id), what="the exit record")
    promised(world, session, bystander=bystander, beside=beside)
