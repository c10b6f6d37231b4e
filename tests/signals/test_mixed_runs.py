"""Whatever runs at once, and however it ends: every signal has one variant, numbers have no gap, one ending each."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.signalfile import VARIANTS
from holdfast.signals.waker import Waker
from support.peer import Peer
from support.points import Points
from support.scale import scaled
from support.signal_file import records
from support.waiting import BOUND_S, is_readable, until
from support.world import World

SOURCE = Path(holdfast.__file__).parent
OWNER = "conv-1"
RACES = scaled(150, 1000)
AT_ONCE = 25


def check(world: World, id: str) -> list[dict[str, Any]]:
    """What every file of signals promises."""
    found = records(world, id)
    assert [record["seq"] for record in found] == list(range(1, len(found) + 1))
    for record in found:
        assert record["id"] == f"{id}.{record['seq']}"
        assert record["session"] == id
        assert sum(variant in record for variant in VARIANTS) == 1
    assert endings(found) <= 1
    return found


def _has_ended(world: World, id: str) -> bool:
    return bool(endings(records(world, id)))


def endings(found: list[dict[str, Any]]) -> int:
    return sum(record.get("lifecycle", {}).get("phase") == "ended" for record in found)


@pytest.mark.covers("signals:1")
def test_sessions_of_all_kinds_at_once_then_numbers_without_a_gap_and_one_ending_each(world: World) -> None:
    hf = world.open()
    gate = world.gate()
    quick: dict[str, Any] = {"delay": 0.01, "delay_max": 0.02, "attempts": 3}
    reported: list[dict[str, Any]] = [
        {"command": "echo one; echo two >&2"},
        {"command": "exit 3", "notify": "failure"},
        {"command": "echo ERROR; echo ERROR; exit 1", "watch": ["ERROR", "/err/i"]},
        {"command": "seq 300", "monitor": True},
        {"command": "exit 9", "restart": {"policy": "on-failure", **quick}},
        {"command": "echo up; sleep 600", "ready": "line:up", "timeout": 0.5},
        {"command": "sleep 600", "soft": 0.05, "idle_timeout": 0.3},
        {"command": f"(head -c 1 < {gate}; echo late) & echo soon"},
        {"command": "echo on a terminal", "tty": True},
        {"command": ["no such program"]},
    ]
    sessions = []
    for each in reported:
        try:
            sessions.append(hf.start(each.pop("command"), owner=OWNER, **each))
        except holdfast.errors.SpawnError:
            sessions.append(hf.get("last"))
    for session in sessions:
        assert session.wait(timeout=BOUND_S).reason == "exit"
    gate.release()
    hf.stop_all([session.id for session in sessions])
    for session in sessions:
        until(partial(_has_ended, world, session.id), what="the ending")
    found = {session.id: check(world, session.id) for session in sessions}
    seen = {variant for each in found.values() for record in each for variant in VARIANTS if variant in record}
    assert {"lifecycle", "watch", "event", "ready", "deadline", "survivors"} <= seen
    for told_of in found.values():
        last = next(at for at, record in enumerate(told_of) if endings([record]))
        behind = told_of[last + 1 :]
        assert all("survivors" in record for record in behind), "after the ending only survivors are signalled"


@pytest.mark.covers("signals:6")
def test_exit_stop_and_limit_racing_a_thousand_times_give_one_ending_each_and_the_first_cause_stays(
    world: World,
) -> None:
    causes: dict[str, int] = {}

    async def race(hf: holdfast.AsyncHoldfast, number: int) -> None:
        # Spread so that on any machine some of them meet.
        limit = 0.1 + number % 40 * 0.01
        session = await hf.start(["sleep", "0.2"], owner=OWNER, timeout=limit, grace=0)
        if number % 2:
            await session.wait(timeout=number % 13 * 0.02)
            await session.stop(grace=0)
        await session.wait()
        # The exit record comes first, and right behind it the signal.
        until(lambda: endings(records(world, session.id)), what="the ending")
        found = check(world, session.id)
        assert session.exit is not None
        ended = next(each["lifecycle"] for each in found if each.get("lifecycle", {}).get("phase") == "ended")
        assert (ended["cause"], ended["code"]) == (session.exit.cause, session.exit.code)
        by = {"exit": None, "stop": "racer", "overall_timeout": "limit"}[ended["cause"]]
        assert (ended["by"], session.exit.by) == (by, by)
        assert ended["cause"] != "stop" or number % 2, "no stop was requested"
        assert ended["cause"] != "exit" or (ended["code"], ended["signal"]) == (0, None), "it was killed"
        causes[session.exit.cause] = causes.get(session.exit.cause, 0) + 1

    async def main() -> None:
        async with holdfast.open_async(author="racer") as hf:
            for begin in range(0, RACES, AT_ONCE):
                await asyncio.gather(*(race(hf, number) for number in range(begin, begin + AT_ONCE)))

    asyncio.run(main())
    world.open().collect(all=True)
    assert sum(causes.values()) == RACES
    assert set(causes) <= {"exit", "stop", "overall_timeout"}
    assert len(causes) >= 2, f"no race: {causes}"


@pytest.mark.covers("signals:6")
def test_a_stop_then_a_limit_is_a_stop(world: World) -> None:
    session = world.open().start(world.probe("ignore", "TERM", "say", "deaf", "forever"), grace=0)
    assert session.wait(match="deaf", timeout=BOUND_S).reason == "match"
    assert session.endpoint is not None
    with Peer(session.endpoint) as stopper:
        stopper.hello()
        asked = stopper.ask_later("stop", grace=600, by="stopper")
        assert stopper.ask("ping")["status"]["desired"]["state"] == "down"
        # Only the limit, which grants no grace, ends it in the time of this test.
        stopper.ask("update", timeout=0.1)
        found = stopper.answer(asked)["found"]
    assert [each["pid"] for each in found] == [session.pid]
    assert outcome(world, session) == ("killed", None, "SIGKILL", "stop", "stopper")


@pytest.mark.covers("signals:6")
def test_a_limit_then_a_stop_is_the_limit(world: World) -> None:
    session = world.open().start(world.probe("ignore", "TERM", "say", "deaf", "forever"), grace=600)
    assert session.wait(match="deaf", timeout=BOUND_S).reason == "match"
    session.update(timeout=0.1)
    until(lambda: (session.refresh().stopping or {}).get("by") == "limit", what="the limit")
    assert session.stop(grace=0).done
    assert outcome(world, session) == ("killed", None, "SIGKILL", "overall_timeout", "limit")


@pytest.mark.covers("signals:6")
def test_an_exit_then_a_stop_is_the_exit(world: World, points: Points) -> None:
    points.set("runner.reaped=pause")
    gate = world.gate()
    session = world.open().start(world.probe("await", gate, "exit", 3))
    assert session.endpoint is not None
    with Peer(session.endpoint) as stopper:
        stopper.hello()
        gate.release()
        reaped = points.wait("runner.reaped")
        stopper.ask_later("stop", grace=0, by="stopper")
        reaped.release()
        stopper.rest()  # answered or hung up on: there is nothing to stop
    assert outcome(world, session) == ("failed", 3, None, "exit", None)


@pytest.mark.covers("signals:6")
def test_a_stop_then_an_exit_is_a_stop(world: World) -> None:
    session = world.open().start(world.probe("exit-on", "TERM", 0, "say", "polite", "forever"))
    assert session.wait(match="polite", timeout=BOUND_S).reason == "match"
    assert session.stop(grace=600, by="stopper").done
    assert outcome(world, session) == ("killed", 0, None, "stop", "stopper")


def outcome(world: World, session: holdfast.Session) -> tuple[Any, ...]:
    """As the record and the session say alike, and the record once."""
    until(lambda: endings(records(world, session.id)), what="the ending")
    found = check(world, session.id)
    (ended,) = (each["lifecycle"] for each in found if each.get("lifecycle", {}).get("phase") == "ended")
    exit = session.refresh().exit
    assert exit is not None
    reported = tuple(ended[part] for part in ("status", "code", "signal", "cause", "by"))
    assert reported == (session.status, exit.code, exit.signal, exit.cause, exit.by)
    return reported


@pytest.mark.covers("signals:4")
def test_an_index_that_is_locked_during_a_flood_then_nothing_waits_for_it_and_all_is_claimed_in_order(
    world: World,
) -> None:
    """The rate cannot suffer from what the runner does not even open: it knows no SQLite."""
    assert not [path for path in (SOURCE / "runner").rglob("*.py") if "sqlite" in path.read_text()]
    hf = world.open()
    inbox = hf.signals(OWNER)
    assert inbox.pending() == 0
    with inbox.waker() as waker, closing(sqlite3.connect(hf.home.index, isolation_level=None)) as other:
        gate = world.gate()
        session = hf.start(
            world.probe("await", gate, "lines", 20000), owner=OWNER, monitor={"persistent": True}, notify="exit"
        )
        other.execute("BEGIN EXCLUSIVE")
        gate.release()
        assert session.wait(timeout=BOUND_S).reason == "exit"
        assert woken(waker), "a wake does not need the index"
        until(partial(_has_ended, world, session.id), what="the ending")
        check(world, session.id)
        other.execute("ROLLBACK")
    claimed: list[str] = []
    while inbox.pending():
        with inbox.claim(limit=3) as batch:
            claimed += batch.ids
    routed = [record["id"] for record in records(world, session.id) if record["routed"] is True]
    assert claimed == routed
    assert session.text().count("line ") == 20000


@pytest.mark.slow
@pytest.mark.covers("signals:4", "found:33")
@pytest.mark.needs("strace")
def test_an_index_that_is_locked_for_five_seconds_holds_up_no_second_of_a_flood(world: World) -> None:
    """Its runner makes no system call that names the index, so none can wait for it."""
    hf = world.open()
    inbox = hf.signals(OWNER)
    flood = ["yes", "a line of a flood that goes on and on"]
    monitor = {"persistent": True, "digest_after": 3600}
    session = hf.start(flood, owner=OWNER, monitor=monitor, log_cap=16 << 20)
    assert session.wait(output=True, timeout=BOUND_S).reason == "output"
    trace = world.root / "trace"
    watched = "trace=openat,connect,flock,fcntl,rename,unlink,newfstatat"
    tracing = ["strace", "-qq", "-yy", "-e", watched, "-o", str(trace), "-p", str(session.runner_pid)]
    with inbox.waker() as waker, closing(sqlite3.connect(hf.home.index, isolation_level=None)) as other:
        waker.clear()
        tracer = world.program(tracing)
        until(trace.exists, what="the trace")
        other.execute("BEGIN EXCLUSIVE")
        for _ in range(5):
            before = session.refresh().ends["stdout"]
            assert session.wait(timeout=1).reason == "timeout"
            assert session.refresh().ends["stdout"] > before
        assert woken(waker), "a wake does not need the index"
        other.execute("ROLLBACK")
    session.stop(grace=0)
    tracer.wait(30)
    calls = trace.read_text(errors="replace").splitlines()
    assert any("stdout.0" in call for call in calls), "what it does name is in the trace"
    assert not [call for call in calls if "index.db" in call or "flock(" in call or "SETLK" in call]
    until(partial(_has_ended, world, session.id), what="the ending")
    check(world, session.id)
    claimed: list[str] = []
    while inbox.pending():
        with inbox.claim() as batch:
            claimed += batch.ids
    assert claimed == [record["id"] for record in records(world, session.id) if record["routed"] is True]


def woken(waker: Waker) -> bool:
    return is_readable(waker.fileno(), BOUND_S)
