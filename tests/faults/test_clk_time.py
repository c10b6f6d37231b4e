"""CLK-02, CLK-03 and CLK-05: clocks that jump, machines that sleep, deadlines with nobody there."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from holdfast.core import clock, loop
from holdfast.core.ending import CAUSE_OF_LIMIT
from holdfast.core.loop import Loop
from holdfast.runner import limits as deadlines
from holdfast.runner.limits import Deadlines
from support.bystander import Bystanders
from support.faults import halt, runner_of
from support.own_time import QuietTime
from support.points import Points
from support.promised import Beside, left_alone, promised
from support.waiting import until, wait_gone
from support.world import World

HOUR_S = 3600
TEN_YEARS_S = 10 * 365 * 86400


class WallClock:
    """A wall clock that can be set, for this process and for every runner that starts from now on."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = world.root / "wall-shift"
        self.set(0)
        monkeypatch.setenv("HOLDFAST_WALL_SHIFT_FILE", str(self._path))
        monkeypatch.setattr(clock, "_WALL_SHIFT_FILE", str(self._path))

    def set(self, shift_s: float) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(str(shift_s))
        new.rename(self._path)


@pytest.fixture
def wall(world: World, monkeypatch: pytest.MonkeyPatch) -> WallClock:
    return WallClock(world, monkeypatch)


@pytest.mark.covers("CLK-02")
@pytest.mark.parametrize("jump_s", [-HOUR_S, TEN_YEARS_S], ids=["an-hour-back", "ten-years-on"])
def test_clk_02_a_jump_of_the_wall_clock_moves_no_deadline_no_order_and_no_wait(
    world: World, wall: WallClock, bystander: Bystanders, jump_s: float
) -> None:
    hf = world.open()
    gate = world.gate()
    words = ["say", "one", "err", "say", "two", "await", gate, "out", "say", "three", "err", "say", "four", "forever"]
    session = hf.start(world.probe(*words), timeout=60, idle_timeout=60, ttl=60)
    until(lambda: session.text().count("\n") == 3, watch=world.session(session.id), what="two")
    wall.set(jump_s)
    cursor = session.refresh().cursor
    woke = session.wait(idle=0.05, timeout=30)
    assert woke.reason == "idle"
    gate.release()
    assert session.wait(match="^four$", since=cursor, timeout=30).reason == "match"
    assert session.refresh().state == "running", "no deadline passed"
    assert session.text().split() == ["ready", "one", "two", "three", "four"]
    assert [stream for stream, _, _ in session.read(since=0).chunks][-1] == "stderr"
    passed = QuietTime()
    assert session.wait(match="never", timeout=0.1).reason == "timeout"
    assert passed.seconds() < 5.0
    assert session.stop(grace=0).done
    ended = session.refresh()
    assert ended.exit is not None
    assert ended.exit.cause == "stop"
    assert ended.started_at is not None
    assert ended.ended_at is not None
    assert (ended.ended_at > ended.started_at) == (jump_s > 0), "what people read is the clock that people see"
    left_alone(bystander)


@pytest.mark.covers("CLK-02")
@pytest.mark.parametrize("option, cause", list(CAUSE_OF_LIMIT.items()))
def test_clk_02_a_deadline_passes_in_its_own_time_whatever_the_wall_clock_says(
    world: World, wall: WallClock, bystander: Bystanders, option: str, cause: str
) -> None:
    session = world.open().start(world.probe("forever"), **{option: 0.3})  # type: ignore[arg-type]
    wall.set(-HOUR_S)
    assert session.wait(exit=True, timeout=30).reason == "exit"
    ended = session.refresh().exit
    assert ended is not None
    assert ended.cause == cause
    left_alone(bystander)


@pytest.mark.covers("CLK-02")
@pytest.mark.parametrize("jump_s", [-HOUR_S, TEN_YEARS_S], ids=["an-hour-back", "ten-years-on"])
def test_clk_02_collection_by_age_skips_the_run_after_a_jump_and_says_why(
    world: World, wall: WallClock, jump_s: float
) -> None:
    """On faulty code a clock that is ten years ahead for a moment removes everything that ever ended."""
    hf = world.open()
    done = hf.run("echo kept")
    assert hf.collect().skipped == []
    wall.set(jump_s)
    collected = hf.collect()
    assert collected.removed == []
    assert len(collected.skipped) == 1
    assert "wall clock" in collected.skipped[0]
    wall.set(0)
    assert hf.collect().removed == []
    assert hf.get(done.id).text() == "kept\n"


@pytest.mark.covers("CLK-03")
def test_clk_03_a_deadline_that_passed_while_the_runner_stood_still_acts_once_on_waking(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    began = time.monotonic()
    # Of two signals that wait for it, it would see one.
    session = world.open().start(world.probe("signal-report", "say", "deaf", "forever"), grace=2)
    assert session.wait(match="deaf", timeout=30).reason == "match"
    session.update(timeout=time.monotonic() - began + 1.0)  # counted from the start
    due = time.monotonic() + 1.1
    runner = runner_of(session)
    halt(runner.pid)
    until(lambda: time.monotonic() > due, what="the deadline")
    os.kill(runner.pid, signal.SIGCONT)
    assert session.wait(exit=True, timeout=30).reason == "exit"
    ended = promised(world, session, bystander=bystander, beside=beside)
    assert ended.exit is not None
    assert (ended.exit.cause, ended.status) == ("overall_timeout", "killed")
    # The rung to the command and the rung to its tree, one signal each.
    assert ended.text().count("signal TERM") == 2


@pytest.mark.covers("CLK-03")
@pytest.mark.parametrize("slept_s", [2.2, 4.3], ids=["shorter", "longer"])
def test_clk_03_an_idle_timeout_does_not_count_the_sleep(
    world: World, bystander: Bystanders, beside: Beside, slept_s: float
) -> None:
    """On faulty code the timer, found late, ended the command the moment everybody woke."""
    gate = world.gate()
    session = world.open().start(world.probe("await", gate, "say", "awake", "exit", 0))
    assert session.wait(match="ready", timeout=30).reason == "match"
    session.update(idle_timeout=2.0)
    woken_at = time.monotonic() + slept_s
    runner = runner_of(session)
    halt(session.pid or 0)
    halt(runner.pid)
    until(lambda: time.monotonic() > woken_at, what="the end of the sleep")
    gate.release()
    os.kill(runner.pid, signal.SIGCONT)
    os.kill(session.pid or 0, signal.SIGCONT)
    assert session.wait(exit=True, timeout=30).reason == "exit"
    ended = promised(world, session, bystander=bystander, beside=beside)
    assert ended.exit is not None
    assert (ended.exit.cause, ended.exit.code) == ("exit", 0)


@pytest.mark.covers("CLK-03")
def test_clk_03_a_command_that_ended_while_the_runner_stood_still_ended_by_itself(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    gate = world.gate()
    began = time.monotonic()
    session = world.open().start(world.probe("await", gate, "exit", 6))
    assert session.wait(match="ready", timeout=30).reason == "match"
    session.update(timeout=time.monotonic() - began + 1.0)  # counted from the start
    due = time.monotonic() + 1.1
    runner = runner_of(session)
    halt(runner.pid)
    gate.release()
    wait_gone(session.pid or 0)
    until(lambda: time.monotonic() > due, what="the deadline")
    os.kill(runner.pid, signal.SIGCONT)
    assert session.wait(exit=True, timeout=30).reason == "exit"
    ended = promised(world, session, bystander=bystander, beside=beside)
    assert ended.exit is not None
    assert (ended.exit.cause, ended.exit.code) == ("exit", 6)


class StoodStill:
    """A monotonic clock as a suspended machine has it: it goes on where it was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (loop, deadlines):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now


@pytest.mark.covers("CLK-03")
def test_clk_03_a_clock_that_stood_still_only_puts_the_deadline_off(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_of_the_machine = StoodStill(monkeypatch)
    turns = Loop()
    passed: list[str] = []
    limits: dict[str, Any] = {"timeout": 50.0, "idle_timeout": 20.0}
    judged = Deadlines(turns, limits, passed.append)

    def at(now: float) -> list[str]:
        clock_of_the_machine.now = now
        turns._fire(now)
        return passed

    assert at(1019.9) == []
    judged.output()
    # Hours of suspension later: for this clock no time has passed.
    assert at(1019.9) == []
    assert at(1039.8) == []
    assert at(1039.9) == ["idle_timeout"]
    assert at(1049.9) == ["idle_timeout"]
    assert at(1050.0) == ["idle_timeout", "overall_timeout"]
    assert at(2000.0) == ["idle_timeout", "overall_timeout"], "once each"
    turns.close()


START_AND_LEAVE = """
import sys, time, holdfast
option, *words = sys.argv[1:]
began = time.monotonic()
session = holdfast.open().start(words)
session.wait(match="^alone$")
session.update(**{option: time.monotonic() - began + 1.0})  # counted from the start
print(session.id)
"""


@pytest.mark.covers("CLK-05")
@pytest.mark.parametrize("option, cause", list(CAUSE_OF_LIMIT.items()))
def test_clk_05_with_no_host_alive_the_runner_keeps_the_deadline_itself(
    world: World, without: str, bystander: Bystanders, option: str, cause: str
) -> None:
    host = world.host(START_AND_LEAVE, option, *world.probe("say", "alone", "forever"))
    id = host.line()
    assert host.wait() == 0, host.errors()
    record = world.session(id) / "exit.json"
    until(record.exists, watch=record.parent, what="the end")
    ended = world.open().get(id)
    assert ended.exit is not None
    assert (ended.exit.cause, ended.exit.by, ended.status) == (cause, "limit", "killed")
    assert ended.text() == "ready\nalone\n"
    left_alone(bystander)


RUNS = """
import sys, holdfast
print("asking")
print(holdfast.open().run(sys.argv[1:], timeout=4).exit.cause)
"""


@pytest.mark.covers("CLK-05")
def test_clk_05_a_slow_start_is_part_of_the_commands_time(
    world: World, points: Points, bystander: Bystanders, beside: Beside
) -> None:
    """On faulty code the time ran from the moment the runner had come to it, however late that was."""
    points.set("runner.before_directory=pause")
    points.off("launcher")
    host = world.host(RUNS, *world.probe("lines", 2, "forever"))
    assert host.line() == "asking"
    asked = time.monotonic()
    slow = points.wait("runner.before_directory")
    until(lambda: time.monotonic() >= asked + 3, what="three of the four seconds")
    slow.release()
    released = time.monotonic()
    assert host.line() == "overall_timeout"
    assert time.monotonic() - released < 4
    [session] = [each for each in world.open().sessions(all=True) if each.id != beside.session.id]
    promised(world, session, bystander=bystander, beside=beside)
