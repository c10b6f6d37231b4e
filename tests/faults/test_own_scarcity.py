"""A command with a restart policy survives a moment in which the machine has no descriptor, process or memory left."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import Session
from support import processes
from support.levers import pids_group_parent
from support.points import Points
from support.waiting import until
from support.world import World

QUICK = {"policy": "on-failure", "delay": 0.05, "delay_max": 0.1, "attempts": 1000, "window": 3600}


@contextmanager
def no_descriptors(runner: int) -> Iterator[None]:
    before = resource.prlimit(runner, resource.RLIMIT_NOFILE)
    # The one that it keeps back for the end is not enough for a pipe.
    resource.prlimit(runner, resource.RLIMIT_NOFILE, (max(processes.descriptors(runner)) + 1, before[1]))
    yield
    resource.prlimit(runner, resource.RLIMIT_NOFILE, before)


@contextmanager
def no_processes(runner: int) -> Iterator[None]:
    parent = pids_group_parent()
    assert parent is not None
    group = parent / f"holdfast-scarce-{os.getpid()}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(runner))
    (group / "pids.max").write_text("1")
    yield
    (group / "pids.max").write_text("max")
    (parent / "cgroup.procs").write_text(str(runner))


def _start(world: World) -> Session:
    session = world.open().start(world.probe("forever"), restart=QUICK, name="web", owner="me")
    session.wait(match="ready", timeout=30)
    return session


def _comes_back(session: Session, tried: int) -> None:
    first = session.refresh().pid
    until(lambda: session.refresh().attempt > tried and _lives(session), what="another attempt that lives")
    assert session.pid != first or session.attempt > tried
    assert session.state == "running"


def _lives(session: Session) -> bool:
    found = None if session.pid is None else processes.look(session.pid)
    return found is not None and found.state not in "ZX"


@pytest.mark.covers("found:50")
@pytest.mark.needs("root", "pids-group")
@pytest.mark.parametrize("what", ["descriptors", "processes"])
def test_a_restart_is_tried_again_when_there_is_no_more_of_something(world: World, what: str) -> None:
    session = _start(world)
    assert session.runner_pid is not None
    assert session.pid is not None
    scarce = no_descriptors if what == "descriptors" else no_processes
    with scarce(session.runner_pid):
        os.kill(session.pid, signal.SIGKILL)
        until(lambda: session.refresh().attempt >= 4, what="three attempts that fail")
        assert not _lives(session)
        tried = session.attempt
    _comes_back(session, tried)
    stopped = session.stop()
    assert stopped.done
    assert session.refresh().exit is not None
    assert session.exit.cause == "stop"  # type: ignore[union-attr]
    causes = [each["cause"] for each in session.metadata["attempts"]]
    assert (causes[0], set(causes[1:-1]), causes[-1]) == ("signal", {"spawn_error"}, "stop")
    group = (pids_group_parent() or Path()) / f"holdfast-scarce-{os.getpid()}"
    if group.exists():
        until(lambda: not (group / "cgroup.procs").read_text(), what="the group to be empty")
        group.rmdir()


@pytest.mark.covers("found:50")
@pytest.mark.parametrize("name", ["ENOMEM", "EAGAIN", "EMFILE", "ENFILE"])
def test_a_restart_is_retried_after_each_kind_of_resource_shortage(world: World, points: Points, name: str) -> None:
    points.set(f"runner.before_spawn=2*error:{name};runner.before_spawn=3*error:{name}")
    session = _start(world)
    assert session.pid is not None
    os.kill(session.pid, signal.SIGKILL)
    until(lambda: session.refresh().attempt == 4 and _lives(session), what="the fourth attempt")
    session.stop()
    attempts = session.refresh().metadata["attempts"]
    assert [each["cause"] for each in attempts] == ["signal", "spawn_error", "spawn_error", "stop"]


def test_a_restart_that_can_never_work_is_the_end(world: World, points: Points) -> None:
    points.set("runner.before_spawn=2*error:EACCES")
    session = _start(world)
    assert session.pid is not None
    os.kill(session.pid, signal.SIGKILL)
    session.wait(exit=True, timeout=30)
    assert session.refresh().exit is not None
    assert session.exit.cause == "spawn_error"  # type: ignore[union-attr]
    assert session.metadata["error"]["errno"] == errno.EACCES


def test_a_lasting_resource_shortage_ends_at_the_start_limit(world: World, points: Points) -> None:
    points.set("runner.before_spawn=2+*error:ENOMEM")
    command = world.probe("forever")
    session = world.open().start(command, restart={**QUICK, "attempts": 4})
    session.wait(match="ready", timeout=30)
    assert session.pid is not None
    os.kill(session.pid, signal.SIGKILL)
    session.wait(exit=True, timeout=30)
    assert session.refresh().attempt == 4
    assert session.metadata["start_limit"] is True
