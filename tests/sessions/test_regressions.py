"""Faults that were met once: what happened on the faulty code, and what must happen."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest

from holdfast.core.processes import rungs
from support.faults import kill_runner, sweep_up
from support.waiting import until, wait_gone

if TYPE_CHECKING:
    from support.points import Points
    from support.world import World


def test_a_renamed_session_leaves_its_old_name_and_is_not_replaced_by_it(world: World) -> None:
    """The claim on the old name still named it: `replace` then ended a session that bore another name."""
    hf = world.open()
    renamed = hf.start(world.probe("forever"), name="a")
    renamed.update(name="b")
    fresh = hf.start(world.probe("forever"), name="a")
    newer = hf.start(world.probe("forever"), name="a", replace=True)
    assert fresh.refresh().status == "killed"
    assert renamed.refresh().state == "running"
    hf.stop_all([renamed.id, newer.id], grace=0)


def test_the_cursor_of_a_match_stands_right_behind_it(world: World) -> None:
    """It stood at the end of the page that was read, so that whatever followed the match was lost to the caller."""
    hf = world.open()
    done = hf.run("printf 'A\\nB\\nC\\n'")
    first = done.wait(match="^A$")
    assert first.cursor == "stdout:2,stderr:0"
    assert done.read(since=first.cursor).data == b"B\nC\n"
    assert done.wait(match="^B$", since=first.cursor).reason == "match"


def test_the_cursor_of_new_output_stands_before_it(world: World) -> None:
    hf = world.open()
    session = hf.start(world.probe("quiet", "read-line", "forever"), stdin="open")
    cursor = session.read().cursor
    session.send("x\n")
    woke = session.wait(output=True, since=cursor, timeout=30)
    assert (woke.reason, session.read(since=woke.cursor).data) == ("output", b"got x\n")
    session.stop(grace=0)


def test_a_process_that_cleared_its_environment_is_found_by_its_group_after_leader_and_runner(world: World) -> None:
    """Only the mark in the environment was looked for then, and the session was called lost."""
    hf = world.open()
    session = hf.start("env -i sleep 60 & echo $!; read x", stdin="open")
    reported = session.wait(match=r"^\d+$", timeout=30).match
    assert reported is not None
    until(lambda: session.send_signal("CONT", "tree") == 2)
    kill_runner(session)
    assert session.pid is not None
    wait_gone(session.pid)  # the end of its stdin ends it
    until(lambda: session.refresh().state == "stale")
    assert [found["pid"] for found in session.stop(grace=1).found] == [int(reported)]
    wait_gone(int(reported))
    sweep_up(world, hf)


@pytest.mark.parametrize("option", ["ttl", "owner"])
def test_a_limit_on_the_sessions_life_also_ends_what_outlived_its_command(world: World, option: str) -> None:
    """The limits were dropped with the exit of the command, and `server &` lived on for ever."""
    hf = world.open()
    gate = world.gate()
    if option == "ttl":
        session = hf.start("sleep 60 & exit 0", ttl=2)
    else:
        owner = world.program(world.probe("await", gate))
        owner.line()
        session = hf.start("sleep 60 & exit 0", lifetime="owner", owner_pid=owner.pid)
    session.wait(timeout=30)
    assert session.exit is not None
    gate.release()
    until(lambda: session.refresh().exit is not None and session.exit.survivors == [])  # type: ignore[union-attr]
    assert session.exit.cause == "exit", "the first reason stays"


def test_a_session_detached_from_its_owner_outlives_it(world: World) -> None:
    """`update` said so and changed nothing: the owner's end still ended it."""
    hf = world.open()
    gate = world.gate()
    owner = world.program(world.probe("await", gate))
    owner.line()
    session = hf.start(world.probe("forever"), lifetime="owner", owner_pid=owner.pid)
    session.update(lifetime="detached")
    gate.release()
    wait_gone(owner.pid)
    assert session.wait(timeout=0.3).reason == "timeout"
    session.stop(grace=0)


def test_a_deadline_passes_though_every_descriptor_is_taken(world: World) -> None:
    """The signal needed two descriptors, found none, and the error ended the runner instead of the command."""
    hf = world.open()
    session = hf.start(world.probe("forever"), timeout=2)
    runner = session.runner_pid
    assert runner is not None
    soft, hard = resource.prlimit(runner, resource.RLIMIT_NOFILE)
    resource.prlimit(runner, resource.RLIMIT_NOFILE, (3, hard))
    assert session.pid is not None
    wait_gone(session.pid)
    resource.prlimit(runner, resource.RLIMIT_NOFILE, (soft, hard))
    until((world.session(session.id) / "exit.json").exists)
    session.refresh()
    assert session.exit is not None
    assert (session.exit.cause, session.exit.signal) == ("overall_timeout", "SIGTERM")


def test_without_grace_only_the_kills_of_an_asked_ladder_are_left() -> None:
    """It was thrown away as a whole, and the tree was killed where the command alone was meant."""
    asked = [{"signal": "TERM", "wait_s": 5}, {"signal": "KILL", "target": "command", "wait_s": 1}]
    assert [str(rung) for rung in rungs(0, asked)] == ["KILL to the command"]
    assert [str(rung) for rung in rungs(0)] == ["KILL to the tree"]


def test_a_kill_of_the_group_spares_processes_that_left_the_group(world: World) -> None:
    """It swept the whole tree and ended the ladder, whatever stood behind it."""
    hf = world.open()
    words = ["fork", "{", "setsid", "say", "away", "forever", "}", "forever"]
    ladder = [{"signal": "KILL", "target": "group", "wait_s": 1}]
    session = hf.start(world.probe("quiet", *words), stop_ladder=ladder)
    session.wait(match="^away$", timeout=30)
    stopped = session.stop()
    assert [left["command"].split()[-1] for left in stopped.survivors] == ["forever"]
    assert session.kill().survivors == []


def test_a_spare_does_not_come_back_while_anything_hangs_below_it(world: World, points: Points) -> None:
    """A runner that was started from inside a session stays a child of its runner; the next session of that process
    would have counted its orphans as its own."""
    hf = world.open()
    hf.run("true")
    nested = f"HOLDFAST_OFF=launcher exec {' '.join(world.hold_argv('start', '--', 'sleep', '60'))}"
    outer = hf.run(nested, wait=20)
    inner = hf.get(outer.text().strip())
    pids = {hf.run("true").runner_pid for _ in range(6)}
    assert outer.runner_pid not in pids
    inner.stop(grace=0)
