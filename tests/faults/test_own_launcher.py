"""OWN-04: a launcher, or the spare it gave, is killed or wedged at every stage of a start."""

from __future__ import annotations

import os
import signal

import pytest

from support import processes
from support.bystander import Bystanders
from support.faults import halt, kill_launchers, sweep_up
from support.points import Hit, Points
from support.promised import Beside, home_is_usable, promised
from support.waiting import until, wait_gone
from support.world import World

# One start; says how it ended, so that the test can act while it is under way.
STARTER = """
import sys, holdfast
hf = holdfast.open()
try:
    session = hf.start(sys.argv[1:])
    print("started", session.id)
except holdfast.HoldfastError as problem:
    print("refused", problem.code, "|", problem)
"""

# Before any directory exists another way is taken; afterwards this start is what it is.
BEFORE = ["launcher.taken", "runner.request_read", "runner.before_directory"]
AFTER = ["runner.spec_written", "runner.before_spawn", "runner.spawned", "runner.answered"]

# Within it a runner that is not wounded has to come up, also one that needs an interpreter of its own.
START_TIMEOUT_S = "4"

pytestmark = pytest.mark.covers("OWN-04")


def runs(world: World) -> int:
    path = world.root / "runs"
    return len(path.read_text().splitlines()) if path.exists() else 0


def answer_to(points: Points, at: str, wound: signal.Signals) -> Hit:
    """Wound the first that comes to the point."""
    hit = points.wait(at)
    if wound == signal.SIGSTOP:
        halt(hit.pid)
    else:
        os.kill(hit.pid, wound)
        wait_gone(hit.pid)
    return hit


def spares_of(launcher: processes.Process, beside: Beside) -> list[processes.Process]:
    """All of them, once they are complete."""
    rows = [row for row in processes.table().values() if row.ppid == launcher.pid and row.state not in "ZX"]
    spares = [row for row in rows if row.pid != beside.session.runner_pid and row.comm == launcher.comm]
    return spares if len(spares) >= 2 else []


@pytest.mark.parametrize("wound", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "wedged"])
@pytest.mark.parametrize("at", BEFORE)
def test_own_04_a_spare_lost_before_its_directory_is_replaced_by_direct_exec(
    world: World,
    points: Points,
    monkeypatch: pytest.MonkeyPatch,
    beside: Beside,
    bystander: Bystanders,
    at: str,
    wound: signal.Signals,
) -> None:
    """The host goes another way within its bound; a spare that wakes late finds itself given up and leaves."""
    monkeypatch.setenv("HOLDFAST_HOSTS_START_TIMEOUT", START_TIMEOUT_S)
    # The first to come is wounded; the one that stands in for it just passes.
    points.set(f"{at}=1*pause")
    host = world.host(STARTER, *world.probe("append", world.root / "runs", "run", "forever"))
    hit = answer_to(points, at, wound)
    if at != "launcher.taken":
        second = points.wait(at)
        assert second.pid != hit.pid
        second.release()
    word, id = host.line().split()
    assert word == "started"
    hf = world.open()
    session = hf.get(id)
    assert session.wait(match="^ready$", timeout=30).reason == "match"
    points.clear()
    if wound == signal.SIGSTOP:
        os.kill(hit.pid, signal.SIGCONT)
        hit.release()
        wait_gone(hit.pid)
    until(lambda: runs(world) == 1, what="the command's own note")
    assert [each.id for each in hf.sessions(all=True) if each.owner != "beside"] == [id]
    promised(world, session, bystander=bystander, beside=beside)
    assert session.stop(grace=1).done
    promised(world, session, bystander=bystander, beside=beside)
    assert runs(world) == 1
    sweep_up(world, hf)


@pytest.mark.parametrize("at", AFTER)
def test_own_04_a_runner_killed_behind_its_directory_is_reported_as_what_it_is(
    world: World, points: Points, without: str, beside: Beside, bystander: Bystanders, at: str
) -> None:
    """The start fails typed, or was already answered; what lives is stale and can be ended, what does not is lost."""
    points.set(f"{at}=pause")
    host = world.host(STARTER, *world.probe("quiet", "append", world.root / "runs", "run", "forever"))
    answer_to(points, at, signal.SIGKILL)
    points.clear()
    told = host.line()
    assert told.startswith("started" if at == "runner.answered" else "refused runner-gone"), told
    hf = world.open()
    [session] = [each for each in hf.sessions(all=True) if each.owner != "beside"]
    spawned = at in ("runner.spawned", "runner.answered")
    assert session.state == ("stale" if spawned else "lost")
    promised(world, session, bystander=bystander, beside=beside)
    if spawned:
        until(lambda: runs(world) == 1, what="the command's own note")
        stopped = session.stop(grace=1)
        assert stopped.done
        assert stopped.found
    assert session.refresh().state == "lost"
    promised(world, session, bystander=bystander, beside=beside)
    assert runs(world) == (1 if spawned else 0)
    home_is_usable(hf)
    sweep_up(world, hf)


@pytest.mark.parametrize("at", AFTER)
def test_own_04_a_runner_wedged_behind_its_directory_continues_when_it_wakes(
    world: World,
    points: Points,
    monkeypatch: pytest.MonkeyPatch,
    beside: Beside,
    bystander: Bystanders,
    at: str,
) -> None:
    """The start fails typed within its bound; the session is there all the same, once, and complete on waking."""
    monkeypatch.setenv("HOLDFAST_HOSTS_START_TIMEOUT", START_TIMEOUT_S)
    points.set(f"{at}=pause")
    host = world.host(STARTER, *world.probe("append", world.root / "runs", "run", "forever"))
    hit = answer_to(points, at, signal.SIGSTOP)
    told = host.line()
    assert told.startswith("started" if at == "runner.answered" else "refused unreachable"), told
    points.clear()
    os.kill(hit.pid, signal.SIGCONT)
    hit.release()
    hf = world.open()
    [session] = [each for each in hf.sessions(all=True) if each.owner != "beside"]
    assert session.wait(match="^ready$", timeout=30).reason == "match"
    assert session.refresh().state == "running"
    promised(world, session, bystander=bystander, beside=beside)
    assert session.stop(grace=1).done
    promised(world, session, bystander=bystander, beside=beside)
    assert runs(world) == 1


@pytest.mark.parametrize("forks", [1, 2, 3])
def test_own_04_a_launcher_killed_at_a_fork_costs_only_speed(
    world: World, points: Points, beside: Beside, bystander: Bystanders, forks: int
) -> None:
    points.set(f"launcher.fork={forks}*kill")
    host = world.host(STARTER, *world.probe("append", world.root / "runs", "run", "forever"))
    word, id = host.line().split()
    assert word == "started"
    points.clear()
    hf = world.open()
    session = hf.get(id)
    until(lambda: runs(world) == 1, what="the command's own note")
    promised(world, session, bystander=bystander, beside=beside)
    assert session.stop(grace=1).done
    promised(world, session, bystander=bystander, beside=beside)
    assert runs(world) == 1
    sweep_up(world, hf)


def test_own_04_an_idle_launcher_killed_takes_its_spares_and_its_socket_along(
    world: World, beside: Beside, bystander: Bystanders
) -> None:
    [launcher] = world.launchers()
    spares = until(lambda: spares_of(launcher, beside), what="two spares")
    kill_launchers(world)
    for spare in spares:
        wait_gone(spare.pid)
    until(lambda: not list(world.runtime.glob("launcher-*.sock")), what="the end of the launcher's socket")
    hf = world.open()
    home_is_usable(hf)
    assert world.launchers()
    promised(world, hf.run("echo 1", wait=30), bystander=bystander, beside=beside)


def test_own_04_a_wedged_launcher_delays_a_start_by_its_bound_and_wakes_without_harm(
    world: World, monkeypatch: pytest.MonkeyPatch, beside: Beside, bystander: Bystanders
) -> None:
    """Spares still serve; when none is left, the host goes without after its bound. Woken, the launcher finds
    callers who left, and starts nothing for them."""
    monkeypatch.setenv("HOLDFAST_HOSTS_START_TIMEOUT", START_TIMEOUT_S)
    hf = world.open()
    [launcher] = world.launchers()
    until(lambda: spares_of(launcher, beside), what="two spares")
    halt(launcher.pid)
    sessions = [hf.start(world.probe("append", world.root / "runs", "run", "forever"), name=f"s{n}") for n in range(5)]
    os.kill(launcher.pid, signal.SIGCONT)
    for session in sessions:
        assert session.wait(match="^ready$", timeout=30).reason == "match"
    home_is_usable(hf)
    assert {each.name for each in hf.sessions() if each.owner != "beside"} == {f"s{n}" for n in range(5)}
    for session in sessions:
        promised(world, session, bystander=bystander, beside=beside)
    assert all(stopped.done for stopped in hf.stop_all([session.id for session in sessions], grace=1))
    assert runs(world) == 5
