"""OWN-05 and OWN-06: the runner itself is killed or wedged."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from holdfast import Session, errors
from holdfast.errors import RunnerGone, Unreachable
from support import processes
from support.bystander import Bystanders
from support.faults import kill_runner, sweep_up, wedged
from support.own_time import QuietTime
from support.points import Points
from support.promised import Beside, home_is_usable, promised, unbroken
from support.waiting import until, wait_gone
from support.world import World

# Long enough for a runner on a busy machine, short enough to wait for in a test.
SWEEP_S = 1.0

STOPPER = """
import sys, holdfast
holdfast.open().get(sys.argv[1]).stop(grace=0.3)
"""

# Waits in one of several ways, and says when it asks its runner for a sign of life; much more often than others do.
WAITER = """
import json, sys, holdfast
from holdfast.sessions import connection

async def ask(self, type, within, /, **fields):
    await plain(self, type, within, **fields)
    print(type)

plain, connection.Connection.ask = connection.Connection.ask, ask
connection.RENEW_S = 0.2
hf, way = holdfast.open(), sys.argv[1]
try:
    if way == "run":
        print("run")
        hf.run(sys.argv[2:], name="awaited")
    elif way == "follow":
        for page in hf.get("awaited").follow(hf.get("awaited").cursor):
            pass
    else:
        hf.get("awaited").wait(timeout=None if way == "wait" else 3600)
except holdfast.HoldfastError as problem:
    print(json.dumps(problem.to_json()))
"""


def author() -> str:
    """Who a host in this process says it is."""
    return f"api:{os.getpid()}"


@pytest.mark.covers("OWN-05")
def test_own_05_a_printer_whose_runner_was_killed_is_lost_with_its_log_whole_up_to_the_kill(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    session = hf.start(world.probe("lines-forever", 0.001))
    assert session.wait(match="^line 50$", timeout=30).reason == "match"
    kill_runner(session)
    assert session.pid is not None
    wait_gone(session.pid)  # by its next line, which nobody takes
    promised(world, session, bystander=bystander, beside=beside)
    assert session.state == "lost"
    assert unbroken(session) >= 50
    with pytest.raises(RunnerGone) as told:
        session.send("more\n")
    promised(world, session, bystander=bystander, beside=beside, error=told.value)
    assert session.wait(exit=True, timeout=30).reason == "lost"
    stopped = session.stop()
    assert (stopped.done, stopped.already) == (True, True)
    home_is_usable(hf)
    sweep_up(world, hf)


@pytest.mark.covers("OWN-05", "KIL-12")
def test_own_05_a_sleeper_whose_runner_was_killed_is_stale_until_it_is_stopped(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    session = hf.start(world.probe("ignore", "HUP", "lines", 5, "forever"))
    assert session.wait(match="^line 5$", timeout=30).reason == "match"
    kill_runner(session)
    promised(world, session, bystander=bystander, beside=beside, numbers=5)
    assert session.state == "stale"
    with pytest.raises(RunnerGone) as told:
        session.send_signal("USR1")
    assert told.value.facts["state"] == "stale"
    assert told.value.facts["pid"] == session.pid
    stopped = session.stop(grace=1)
    assert stopped.done
    assert [each["pid"] for each in stopped.found] == [session.pid]
    assert session.pid is not None
    assert processes.is_gone(session.pid)
    promised(world, session, bystander=bystander, beside=beside, numbers=5, error=told.value)
    assert session.state == "lost"
    # On faulty code the stop left no word of itself, and what somebody asked for read as a failure.
    assert session.exit is not None
    assert (session.status, session.exit.cause, session.exit.by) == ("killed", "stop", author())
    assert (session.exit.code, session.exit.signal) == (None, None)
    sweep_up(world, hf)


@pytest.mark.covers("OWN-05")
@pytest.mark.parametrize("at", ["runner.output=5*kill", "runner.reaped=kill", "runner.exit_written=kill"])
def test_own_05_a_runner_killed_around_the_exit_never_makes_one_up(
    world: World, points: Points, without: str, beside: Beside, bystander: Bystanders, at: str
) -> None:
    """Before the record is written nobody can know the code; from then on it is known for good."""
    points.set(at)
    hf = world.open()
    session = hf.start(world.probe("lines", 40, 0.002, "exit", 5))
    assert session.runner_pid is not None
    assert session.pid is not None
    wait_gone(session.runner_pid)
    wait_gone(session.pid)
    points.clear()
    told = session.wait(exit=True, timeout=30)
    recorded = at.startswith("runner.exit_written")
    assert told.reason == ("exit" if recorded else "lost")
    promised(world, session, bystander=bystander, beside=beside, numbers=40 if recorded else None)
    assert session.state == ("exited" if recorded else "lost")
    assert session.exit is not None
    assert session.exit.code == (5 if recorded else None)
    assert session.status == "failed"
    assert session.stop().already
    # Another host, for this one's launcher still has the plan.
    home_is_usable(world.open())
    sweep_up(world, hf)


def is_asleep(session: Session) -> bool:
    assert session.pid is not None
    row = processes.look(session.pid)
    return row is not None and row.state == "S"


@pytest.mark.covers("OWN-05", "KIL-13")
def test_own_05_a_hundred_reads_change_nothing_about_a_stale_session(
    world: World, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    session = hf.start(world.probe("signal-report", "lines", 20, "forever"))
    assert session.wait(match="^line 20$", timeout=30).reason == "match"
    kill_runner(session)
    text, files = session.text(), sorted(path.name for path in world.session(session.id).iterdir())
    assert session.pid is not None
    until(lambda: is_asleep(session), what="the rest of the command")
    before = processes.look(session.pid)
    for _ in range(100):
        assert hf.get(session.id).state == "stale"
        assert session.text() == text
        assert session.wait(output=True, timeout=0).reason == "timeout"
        session.tail(5)
        hf.sessions(all=True)
    after = processes.look(session.pid)
    assert before is not None
    assert after is not None
    assert (after.pid, after.start, after.state) == (before.pid, before.start, before.state)
    assert sorted(path.name for path in world.session(session.id).iterdir()) == files
    promised(world, session, bystander=bystander, beside=beside, numbers=20)
    assert session.stop(grace=0.5).done
    assert processes.is_gone(session.pid)
    assert session.text() == text
    sweep_up(world, hf)


@pytest.mark.covers("OWN-06")
def test_own_06_a_wedged_runner_is_unreachable_within_the_bound_and_loses_nothing(
    world: World, without: str, beside: Beside, bystander: Bystanders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", str(SWEEP_S))
    monkeypatch.setenv("HOLDFAST_HOSTS_REPLY_TIMEOUT", str(SWEEP_S))
    hf = world.open()
    gate = world.gate()
    session = hf.start(world.probe("lines", 300, 0.001, "await", gate, "exit", 6))
    assert session.wait(match="^line 20$", timeout=30).reason == "match"
    with wedged(session):
        gate.release()
        passed = QuietTime()
        found = {each.id: each for each in hf.sessions()}
        # One bound for all: the wedged one costs it once, and the others are told right.
        assert passed.seconds() < 3 * SWEEP_S + 1
        assert found[session.id].state == "unreachable"
        assert found[session.id].status == "running"
        assert found[beside.session.id].state == "running"
        promised(world, session, bystander=bystander, beside=beside)
        assert session.state == "unreachable"
        assert unbroken(session) >= 20
        with pytest.raises(Unreachable) as told:
            session.send("x")
        assert told.value.facts["pid"] == session.runner_pid
        promised(world, session, bystander=bystander, beside=beside, error=told.value)
    assert session.wait(exit=True, timeout=30).reason == "exit"
    promised(world, session, bystander=bystander, beside=beside, numbers=300)
    assert session.exit is not None
    assert session.exit.code == 6


@pytest.mark.covers("OWN-06")
def test_own_06_a_wedged_runner_is_stopped_from_its_records_and_reports_the_end_on_waking(
    world: World, without: str, beside: Beside, bystander: Bystanders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", str(SWEEP_S))
    monkeypatch.setenv("HOLDFAST_HOSTS_REPLY_TIMEOUT", str(SWEEP_S))
    hf = world.open()
    session = hf.start(world.probe("fork", "{", "forever", "}", "lines", 10, "forever"))
    assert session.wait(match="^line 10$", timeout=30).reason == "match"
    with wedged(session):
        stopped = session.stop(grace=0.5)
        assert stopped.done
        assert len(stopped.found) == 2
        promised(world, session, bystander=bystander, beside=beside, numbers=10)
    until(lambda: session.refresh().state == "exited", what="the record of the end")
    promised(world, session, bystander=bystander, beside=beside, numbers=10)
    # On faulty code the runner saw a signal that nobody it knew had sent, and called it the cause.
    assert session.exit is not None
    assert (session.status, session.exit.cause, session.exit.by) == ("killed", "stop", author())
    assert session.exit.signal == "SIGTERM"


@pytest.mark.covers("OWN-06", "KIL-08")
def test_own_06_a_deadline_found_overdue_on_waking_does_not_take_the_place_of_an_earlier_stop(
    world: World, points: Points, beside: Beside, bystander: Bystanders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First reason wins, also where the runner was not there to hear it: the host that stopped died on its ladder,
    and the deadline of the command passed afterwards."""
    monkeypatch.setenv("HOLDFAST_HOSTS_REPLY_TIMEOUT", str(SWEEP_S))
    hf = world.open()
    began = time.monotonic()
    session = hf.start(world.probe("lines", 3, "forever"))
    assert session.wait(match="^line 3$", timeout=30).reason == "match"
    session.update(timeout=time.monotonic() - began + 2)  # counted from the start
    with wedged(session):
        points.set("host.intent_written=kill")
        assert world.host(STOPPER, session.id).wait() == -signal.SIGKILL
        points.clear()
        assert session.pid is not None
        assert not processes.is_gone(session.pid)
    assert session.wait(exit=True, timeout=30).reason == "exit"
    promised(world, session, bystander=bystander, beside=beside, numbers=3)
    assert session.exit is not None
    assert (session.exit.cause, session.exit.signal) == ("stop", "SIGTERM")
    assert session.exit.by is not None
    assert session.exit.by.startswith("api:")


@pytest.mark.covers("OWN-06")
@pytest.mark.parametrize("way", ["wait", "long wait", "follow", "run"])
def test_own_06_a_wait_that_is_under_way_when_the_runner_wedges_says_so_and_never_hangs(
    world: World, beside: Beside, bystander: Bystanders, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """On faulty code a wait without a bound of its own slept until the runner woke, if it ever did."""
    monkeypatch.setenv("HOLDFAST_HOSTS_REPLY_TIMEOUT", str(SWEEP_S))
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", str(SWEEP_S))
    hf = world.open()
    printer = world.probe("lines", 3, "forever")
    if way != "run":
        assert hf.start(printer, name="awaited").wait(match="^line 3$", timeout=30).reason == "match"
    waiting = world.host(WAITER, way, *printer)
    # It asks for signs of life, and gets them.
    assert [waiting.line() for _ in range(3)][-2:] == ["ping", "ping"]
    session = hf.get("awaited")
    assert session.wait(match="^line 3$", timeout=30).reason == "match"
    with wedged(session):
        while (said := waiting.line()) == "ping":
            pass
        error = errors.HoldfastError.from_wire(json.loads(said))
        assert isinstance(error, Unreachable)
        assert (error.pid, error.waited_s) == (session.runner_pid, SWEEP_S)
        promised(world, session, bystander=bystander, beside=beside, numbers=3, error=error)
    until(lambda: session.refresh().state == "running", what="the waking of the runner")
    assert session.stop(grace=0).done
    promised(world, session, bystander=bystander, beside=beside, numbers=3)


@pytest.mark.covers("IDN-06")
def test_an_intent_that_cannot_be_read_costs_the_reason_and_nothing_else(world: World, beside: Beside) -> None:
    hf = world.open()
    session = hf.start(world.probe("lines", 1, "forever"))
    assert session.wait(match="^line 1$", timeout=30).reason == "match"
    kill_runner(session)
    (world.session(session.id) / "intent.json").write_text("{")
    assert session.stop(grace=1).done
    assert session.refresh().state == "lost"
    assert session.exit is not None
    assert (session.exit.cause, session.status) == ("lost", "failed")
    assert "intent.json" in session.metadata["evidence"]
    assert {each.id for each in hf.sessions(all=True)} == {session.id, beside.session.id}
    sweep_up(world, hf)
