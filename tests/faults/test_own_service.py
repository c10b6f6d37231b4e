"""OWN-10: a service manager ends the host's control group with everybody in it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.bystander import Bystanders
from support.faults import sweep_up
from support.levers import cgroup_parent, normal_user
from support.points import Points
from support.promised import Beside, home_is_usable, promised, unbroken, with_control_groups
from support.waiting import until, wait_gone
from support.world import World

pytestmark = pytest.mark.covers("OWN-10")

# Enters the group that its first argument names, as a service is placed there by its manager; then is the host.
SERVICE = """
import json, os, sys, holdfast
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write("0")
session = holdfast.open().start(sys.argv[2:])
print(json.dumps({"id": session.id, "warnings": session.metadata.get("warnings", [])}), flush=True)
sys.stdin.read()
"""


class Manager:
    """Does what systemd does to stop a unit: kills the whole group, until it is empty."""

    def __init__(self, slice: Path) -> None:
        self.slice = slice
        self.unit = slice / "web.service"
        self.unit.mkdir(parents=True)

    def stop(self) -> None:
        (self.unit / "cgroup.kill").write_text("1")
        until(lambda: not self.members(self.unit), what="the end of the unit")

    def members(self, group: Path) -> list[int]:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]

    def remove(self) -> None:
        for directory, _, _ in os.walk(self.slice, topdown=False):
            until(lambda: not self.members(Path(directory)), what=f"the end of everybody in {directory}")  # noqa: B023
            os.rmdir(directory)


@pytest.fixture
def manager() -> Iterator[Manager]:
    """Stands in for systemd where there is none: a slice of the unified hierarchy with one service in it."""
    parent = cgroup_parent()
    assert parent is not None
    made = Manager(parent / f"holdfast-test-{os.getpid()}.slice")
    yield made
    made.remove()


@pytest.mark.needs("root", "service-group")
@with_control_groups
def test_own_10_a_session_outlives_the_service_it_was_started_from(
    world: World, manager: Manager, without: str, beside: Beside, bystander: Bystanders
) -> None:
    host = world.host(SERVICE, manager.unit, *world.probe("lines", 300, 0.001, "exit", 5))
    told = json.loads(host.line() or host.errors())
    assert any("outlives web.service" in str(warning) for warning in told["warnings"]), told
    hf = world.open()
    session = hf.get(told["id"])
    before = (session.pid, session.runner_pid)
    assert session.wait(match="^line 20$", timeout=30).reason == "match"
    assert session.runner_pid in manager.members(manager.slice / "holdfast")
    manager.stop()
    assert host.wait() == -9
    assert session.wait(exit=True, timeout=30).reason == "exit"
    promised(world, session, bystander=bystander, beside=beside, numbers=300)
    assert (session.pid, session.runner_pid) == before
    assert session.exit is not None
    assert session.exit.code == 5
    home_is_usable(hf)
    world.end_launchers()


@pytest.mark.needs("root", "service-group")
def test_own_10_where_the_group_cannot_be_left_the_start_says_so_and_the_end_is_reported_as_what_it_is(
    world: World, manager: Manager, points: Points, beside: Beside, bystander: Bystanders
) -> None:
    points.off("cgroup")
    host = world.host(SERVICE, manager.unit, *world.probe("lines", 20, "forever"))
    told = json.loads(host.line() or host.errors())
    [warning] = told["warnings"]
    assert str(warning).startswith("stopping web.service ends this session too")
    hf = world.open()
    session = hf.get(told["id"])
    assert session.wait(match="^line 20$", timeout=30).reason == "match"
    manager.stop()
    promised(world, session, bystander=bystander, beside=beside)
    assert session.state == "lost"
    assert unbroken(session) == 20
    home_is_usable(hf)
    sweep_up(world, hf)


@pytest.mark.needs("setpriv", "root", "service-group")
def test_own_10_an_ordinary_user_without_the_permission_to_leave_is_warned(
    world: World, manager: Manager, bystander: Bystanders
) -> None:
    """Root put the host there, and the host's user may not write to the groups around it."""
    inside = f'echo $$ > {manager.unit}/cgroup.procs; exec "$@"'
    prefix = ["sh", "-c", inside, "sh", *normal_user(world)]
    host = world.host(
        SERVICE.replace('open(sys.argv[1] + "/cgroup.procs"', 'open("/dev/null"'), manager.unit, "true", prefix=prefix
    )
    told = json.loads(host.line() or host.errors())
    [warning] = told["warnings"]
    assert str(warning).endswith("(Permission denied)")
    host.close_stdin()
    assert host.wait() == 0
    world.end_launchers()
    assert not (manager.slice / "holdfast").exists()


@pytest.mark.needs("systemd")
def test_own_10_a_unit_of_the_user_manager_is_stopped_and_its_session_continues(
    world: World, beside: Beside, bystander: Bystanders
) -> None:
    unit = f"holdfast-test-{os.getpid()}.service"
    environment = [f"--setenv={name}={value}" for name, value in {**world.env, "PATH": os.environ["PATH"]}.items()]
    start = world.hold_argv("start", "--name", "unit", "--", *world.probe("lines", 20, "forever"))
    argv = ["systemd-run", "--user", f"--unit={unit}", "--remain-after-exit", "--wait", *environment, *start]
    subprocess.run(argv, check=True)
    hf = world.open()
    session = hf.get("unit")
    warned = str(session.metadata["warnings"])
    subprocess.run(["systemctl", "--user", "stop", unit], check=True)
    if "outlives" in warned:
        promised(world, session, bystander=bystander, beside=beside, numbers=20)
        assert session.state == "running"
        assert session.stop(grace=1).done
    else:
        assert "ends this session too" in warned
        assert session.runner_pid is not None
        wait_gone(session.runner_pid)
        sweep_up(world, hf)
