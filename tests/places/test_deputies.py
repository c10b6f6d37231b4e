"""Deputies: killed at every step, cheap while nothing happens, and of use to many at once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.core import wire
from holdfast.errors import HoldfastError
from holdfast.sessions.connection import greeting, open_socket
from support import processes, signal_file
from support.places import deputies, kill_deputies, runners_there
from support.waiting import TooLate, until

if TYPE_CHECKING:
    from holdfast import Holdfast
    from support.places import Away
    from support.points import Points
    from support.world import World

OWNER = "agent-7"


def far_ends() -> list[int]:
    """Of links that this test holds."""
    below = processes.descendants(os.getpid())
    argv = {row.pid: processes.command_line(row.pid) for row in below if row.comm.startswith("python")}
    return [pid for pid, line in argv.items() if "b64decode" in line or "places/boot.py" in line]


@pytest.mark.parametrize(
    "plan", [*(f"deputy.copied={n}*kill" for n in (1, 2, 4, 6)), "deputy.over=kill", "deputy.over=1*error:EIO"]
)
def test_a_deputy_killed_at_any_step_costs_nothing(remote: Away, world: World, points: Points, plan: str) -> None:
    points.set(plan)
    with world.open() as hf:
        gate = remote.gate()
        try:
            id = hf.start(
                remote.probe("quiet", "say", "one", "await", gate, "say", "two", "exit", 3),
                owner=OWNER,
                name="one",
                place=remote.place,
            ).id
        except HoldfastError:
            id = hf.get("one").id  # killed before it could answer
        points.clear()
        until(lambda: hf.get(id).state == "running")
        gate.release()
        session = hf.get(id)
        assert session.wait(timeout=30).reason == "exit"
        assert session.exit is not None
        assert (session.exit.code, session.text()) == (3, "one\ntwo\n")
        assert len(until(lambda: signal_file.endings(world, id), what="the signal of its end")) == 1
        until(lambda: not deputies(world))
        hf.get(id)  # what was left there is removed by another: the fixture looks


def test_a_deputy_killed_before_anything_ran_leaves_nothing_that_runs(
    remote: Away, world: World, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    points.set("deputy.begun=kill")
    with world.open() as hf:
        with pytest.raises(HoldfastError):
            hf.start(remote.probe("forever"), place=remote.place)
        points.clear()
        (id,) = os.listdir(world.home / "sessions")
        # As if that were long ago: nobody can be on the way there any more.
        os.utime(world.session(id) / "spec.json", (0, 0))
        until(lambda: [hf.sessions(), os.listdir(world.home / "sessions")] == [[], []], what="no session")


def test_a_session_removed_here_before_its_deputy_has_left_is_removed_there_too(
    remote: Away, world: World, points: Points
) -> None:
    points.set("deputy.over=1*pause")
    with world.open() as hf:
        id = hf.run("true", place=remote.place).id
        points.clear()
        copied = points.wait("deputy.over")
        hf.remove(id)
        # The next link finds no copy here to go on with.
        remote.cable.drop()
        copied.release()
        until(lambda: remote.sessions() == [], what="the removal there")
        until(lambda: not deputies(world), what="the end of the deputy")


def test_an_idle_session_costs_nothing_on_either_side(hf: Holdfast, away: Away, world: World) -> None:
    session = hf.start(away.probe("forever"), place=away.place)
    session.wait(match="ready", timeout=30)
    quiet = [*(row.pid for row in deputies(world)), *far_ends(), *runners_there(away, session.id)]
    assert len(quiet) == 3

    def is_still() -> bool:
        before = [processes.price(pid) for pid in quiet]
        try:
            until(lambda: [processes.price(pid) for pid in quiet] != before, 0.4)
        except TooLate:
            return True
        return False

    until(is_still, what="half a second in which nobody moves")
    session.stop(grace=0)


def test_the_far_end_leaves_with_its_deputy(hf: Holdfast, away: Away, world: World) -> None:
    session = hf.start(away.probe("forever"), place=away.place)
    session.wait(match="ready", timeout=30)

    assert len(far_ends()) == 1
    kill_deputies(world)
    until(lambda: not far_ends())
    assert hf.get(session.id).state == "running"
    session.stop(grace=0)


def test_a_reader_that_does_not_read_delays_no_other_client(hf: Holdfast, away: Away) -> None:
    gate = away.gate()
    session = hf.start(away.probe("quiet", "await", gate, "fill", 8 << 20, "say", "done", "forever"), place=away.place)
    stuck = open_socket(session.endpoint or "")
    try:
        stuck.send(greeting("test:stuck"))
        stuck.send(wire.control({"type": "attach", "id": 1, "observe": True}))
        gate.release()
        assert session.wait(match="done", timeout=30).reason == "match"
        assert hf.get(session.id).state == "running"
    finally:
        stuck.close()
    session.stop(grace=0)


def test_the_code_is_sent_once(in_podman: Away, world: World) -> None:
    hf = world.open()
    hf.run("true", place=in_podman.place)
    (code,) = (in_podman.state / "runner").iterdir()
    before = code.stat().st_ino
    hf.run("true", place=in_podman.place)
    (code,) = (in_podman.state / "runner").iterdir()
    assert code.stat().st_ino == before
    assert code.stat().st_mode & 0o077 == 0
