"""What a dead runner did not record: one host records it, however many look."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.signals.catchup import Catchup
from holdfast.signals.lines import Signal, parse
from holdfast.signals.missing import RunnerGoneFacts, write_missing
from support import processes
from support.faults import kill_runner
from support.own_time import OwnTime
from support.points import Points
from support.scale import scaled
from support.waiting import BOUND_S, until, wait_gone, wait_readable
from support.world import World
from support.written import ENDED, Desk, Writer

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else "/tmp"

# Waits for signals and prints each as it comes.
WATCHER = """
import sys, holdfast
consumer = holdfast.open().consumer(sys.argv[1], "conv-1")
with consumer.waker() as waker:
    consumer.claim()
    print("watching", flush=True)
    for _ in range(2):
        waker.wait()
        with consumer.claim() as batch:
            for each in batch:
                had = each.fields
                print(each.id, each.variant, had.get("state") or had.get("cause"), had.get("code"), flush=True)
"""


def reported(world: World, id: str) -> list[Signal]:
    lines = (world.session(id) / "signals.jsonl").read_bytes().splitlines()
    return [each for each in map(parse, lines) if isinstance(each, Signal)]


def opened(world: World) -> Holdfast:
    """A host that sweeps away in the end what a killed runner leaves."""
    hf = world.open()
    world.closing.callback(hf.collect)
    return hf


def outcome(state: str, session: Writer, **options: Any) -> RunnerGoneFacts:
    facts: dict[str, Any] = {
        "kind": session.kind,
        "owner": session.owner,
        "attempt": 1,
        "notify": "exit",
        "snapshot": {},
    }
    return RunnerGoneFacts(state, **{**facts, **options})


def test_hosts_that_look_at_once_write_one_stale_and_one_ending(desk: Desk, world: World) -> None:
    session = desk.session()
    session.tell()
    session.die()
    desks = [Desk(desk.home) for _ in range(3)]
    lost = {"status": "failed", "code": None, "signal": None, "cause": "lost", "by": None}

    def all_look() -> None:
        begin = threading.Barrier(3)

        def look(each: Desk) -> None:
            consumer = each.consumer()
            begin.wait(BOUND_S)
            for _ in range(5):
                consumer.pending()

        threads = [threading.Thread(target=look, args=(each,)) for each in desks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    for each in desks:
        each.outcomes[session.id] = outcome("stale", session, evidence="its processes live", watch=[(os.getpid(), 0)])
    all_look()
    assert [each.variant for each in reported(world, session.id)] == ["watch", "health"]
    for each in desks:
        each.outcomes[session.id] = outcome("lost", session, ended=lost, row=each.row(session.id))
    all_look()
    assert [each.variant for each in reported(world, session.id)] == ["watch", "health", "lifecycle"]
    assert [each.seq for each in reported(world, session.id)] == [1, 2, 3]
    batch = desk.consumer().claim()
    assert [(each.variant, each.fields.get("cause")) for each in batch][1:] == [("health", None), ("lifecycle", "lost")]
    assert desk.index.unfinished() == []
    for each in desks:
        each.close()


def test_living_writer_is_not_succeeded(desk: Desk, world: World) -> None:
    session = desk.session()
    session.tell()
    with pytest.raises(BlockingIOError):
        write_missing(desk.home, desk.runtime, session.id, outcome("lost", session, ended=ENDED))
    assert len(reported(world, session.id)) == 1


def test_where_another_host_is_about_to_report_it_is_looked_at_again_soon(desk: Desk) -> None:
    session = desk.session()
    session.tell()
    os.close(session._life)
    session._life = os.open("/dev/null", os.O_RDONLY)
    desk.outcomes[session.id] = outcome("lost", session, ended=ENDED)
    consumer = desk.consumer()
    with consumer.claim() as batch:
        assert len(batch) == 1
    again_ns = desk.consumers.catchup.again_ns
    assert again_ns is not None
    assert again_ns - time.monotonic_ns() < 1e9
    with consumer.waker() as waker:
        session.file.close()
        assert waker.wait(BOUND_S)
    assert [each.variant for each in consumer.claim()] == ["lifecycle"]


@pytest.mark.parametrize(
    "notify, status, routed",
    [
        ("exit", "completed", True),
        ("auto", "completed", True),
        ("never", "failed", False),
        ("failure", "completed", False),
        ("failure", "failed", True),
    ],
)
def test_ending_reported_by_a_host_is_routed_as_was_asked(
    desk: Desk, world: World, notify: str, status: str, routed: bool
) -> None:
    session = desk.session()
    session.die()
    ended = {**ENDED, "status": status}
    assert write_missing(desk.home, desk.runtime, session.id, outcome("exited", session, ended=ended, notify=notify))
    assert not write_missing(
        desk.home, desk.runtime, session.id, outcome("exited", session, ended=ended, notify=notify)
    )
    (last,) = reported(world, session.id)
    assert (last.ends_session, last.routed, last.status) == (True, routed, status)


@pytest.mark.covers("signals:8")
def test_three_hosts_that_watch_report_one_stale_and_one_lost(world: World) -> None:
    session = opened(world).start(world.probe("say", "hello", "sleep", 1000), owner="conv-1")
    session.wait(match="hello", timeout=30)
    watchers = [world.host(WATCHER, name) for name in ("one", "two", "three")]
    for each in watchers:
        assert each.line() == "watching"
    assert session.runner_pid is not None
    assert session.pid is not None
    pids = [each.pid for each in watchers]
    passed = OwnTime(*pids)
    os.kill(session.runner_pid, signal.SIGKILL)
    assert {each.line() for each in watchers} == {f"{session.id}.2 health stale None"}
    assert passed.stop().seconds(*pids) < 1
    os.kill(session.pid, signal.SIGKILL)
    wait_gone(session.pid)
    assert {each.line() for each in watchers} == {f"{session.id}.3 lifecycle lost None"}
    for each in watchers:
        assert each.wait() == 0
    assert Counter(each.variant for each in reported(world, session.id)) == {"lifecycle": 2, "health": 1}


@pytest.mark.covers("IDN-08", "signals:3")
@pytest.mark.parametrize("point", ["runner.exit_written", "signals.append", "signals.appended", "signals.before_wake"])
def test_runner_killed_around_the_report_of_its_end_is_reported_once(world: World, points: Points, point: str) -> None:
    second = "kill" if point == "runner.exit_written" else "2*kill"
    points.set(f"{point}={second}")
    hf = opened(world)
    session = hf.start(world.probe("say", "last words", "exit", 7), owner="conv-1")
    points.clear()
    assert session.runner_pid is not None
    wait_gone(session.runner_pid)
    consumer = hf.signals("conv-1")
    batch = consumer.claim()
    (ended,) = batch.signals
    assert (ended.id, ended.status, ended.code, ended.cause) == (f"{session.id}.2", "failed", 7, "exit")
    assert "last words" in json.dumps(ended.tail)
    batch.settle()
    assert consumer.pending() == 0
    assert [each.ends_session for each in reported(world, session.id)] == [False, True]
    assert [shot.id for shot in hf.sessions(all=True)] == [session.id]
    assert hf._core.index.unfinished() == []


def test_ending_that_a_host_reports_has_the_counts_and_the_limit_of_the_exit_record(
    world: World, points: Points
) -> None:
    points.set("runner.exit_written=kill")
    hf = opened(world)
    session = hf.start(world.probe("say", "an ERROR", "sleep", 1000), owner="conv-1", watch=["ERROR"], monitor=True)
    points.clear()
    assert session.wait(match="ERROR", timeout=BOUND_S).reason == "match"
    session.update(timeout=1.5)
    assert session.runner_pid is not None
    wait_gone(session.runner_pid)
    hf.signals("conv-1").pending()
    ended = reported(world, session.id)[-1].fields
    assert (ended["phase"], ended["cause"], ended["limit_s"]) == ("ended", "overall_timeout", 1.5)
    assert ended["watch"] == {"hits": 1, "suppressed": 0, "unscanned": 0}
    assert ended["events"] == {"count": 2, "suppressed": 0}


@pytest.mark.root
def test_a_lock_that_outlives_its_runner_delays_the_report_of_its_death_and_does_not_prevent_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that a killed process has forked holds its lock until it executes its program. On faulty code a host that
    looked at that moment was not woken again."""
    looks = [0]
    run = Catchup.run

    def counted(self: Catchup, hints: Iterable[str] = ()) -> None:
        run(self, hints)
        looks[0] += 1

    monkeypatch.setattr(Catchup, "run", counted)
    hf = opened(world)
    session = hf.start(world.probe("sleep", 1000), owner="conv-1")
    woke: list[bool] = []
    with hf.signals("conv-1").waker() as waker:
        waiting = threading.Thread(target=lambda: woke.append(waker.wait(BOUND_S)))
        waiting.start()
        until(lambda: looks[0], what="its first look")
        lock = held_lock(session.runner_pid or 0, str(world.session(session.id) / "spec.json"))
        kill_runner(session)
        before = looks[0]
        until(lambda: looks[0] > before, what="a look at the lock of a dead runner")
        os.close(lock)
        waiting.join()
    assert woke == [True]
    session.stop(grace=0)


def held_lock(pid: int, path: str) -> int:
    """A second descriptor of the file that this process has locked, which keeps the lock when the process dies."""
    fd = next(number for number, to in processes.descriptors(pid).items() if to == path)
    pidfd = os.pidfd_open(pid)
    try:
        ours: int = ctypes.CDLL(None).syscall(438, pidfd, fd, 0)  # pidfd_getfd
    finally:
        os.close(pidfd)
    assert ours >= 0
    return ours


def test_lost_session_is_reported_by_the_first_host_that_lists(world: World) -> None:
    hf = opened(world)
    session = hf.start(world.probe("sleep", 1000), owner="conv-1")
    assert session.runner_pid is not None
    assert session.pid is not None
    os.kill(session.runner_pid, signal.SIGKILL)
    wait_gone(session.runner_pid)
    with contextlib.suppress(ProcessLookupError):  # its first line may have met a closed pipe
        os.kill(session.pid, signal.SIGKILL)
    wait_gone(session.pid)
    assert world.hold("ls", "-a", check=True).stdout
    assert [each.fields.get("cause") for each in reported(world, session.id)] == [None, "lost"]
    with hf.signals("conv-1").claim() as batch:
        assert [each.cause for each in batch] == ["lost"]


def test_status_and_stop_of_a_lost_session_name_the_record_of_its_end(world: World) -> None:
    hf = opened(world)
    session = hf.start(world.probe("sleep", 1000), owner="conv-1")
    session.wait(match="ready", timeout=BOUND_S)
    assert session.pid is not None
    kill_runner(session)
    os.kill(session.pid, signal.SIGKILL)
    wait_gone(session.pid)
    assert hf.get(session.id).metadata["signal_id"] == f"{session.id}.2"
    again = hf.get(session.id).stop()
    assert (again.already, again.signal_id) == (True, f"{session.id}.2")
    assert hf.signals("conv-1").ack(again.signal_id) == 1
    assert hf.signals("conv-1").pending() == 0


def test_stop_without_a_runner_names_the_record_of_the_end_it_led_to(world: World) -> None:
    hf = opened(world)
    session = hf.start(world.probe("sleep", 1000), owner="conv-1")
    session.wait(match="ready", timeout=BOUND_S)
    kill_runner(session)
    stopped = session.stop(grace=0, by="conv-1")
    (ended,) = [each for each in reported(world, session.id) if each.ends_session]
    assert (stopped.signal_id, ended.cause, ended.fields["by"]) == (ended.id, "stop", "conv-1")


@pytest.mark.covers("signals:2")
def test_end_while_no_host_lives_is_reported_to_the_next(world: World) -> None:
    gate = world.gate()
    starter = world.host(
        "import sys, holdfast\nprint(holdfast.open().start(sys.argv[1:], owner='conv-1').id)\nsys.stdin.read()",
        *world.probe("say", "about to fail", "await", gate, "exit", 7),
    )
    id = starter.line()
    starter.kill()
    gate.release()
    until(lambda: reported(world, id)[-1].ends_session, what="the ending")
    nobody_looked_until = datetime.now(UTC)
    hf = world.open()
    consumer = hf.signals("conv-1")
    with consumer.waker() as waker:
        waker.wait(BOUND_S)
    with consumer.claim() as batch:
        (ended,) = batch.signals
    assert (ended.session, ended.code, ended.status) == (id, 7, "failed")
    assert "about to fail" in ended.tail["stdout"]["text"]
    # The time of the end, not that of the record.
    ended_at = hf.get(id).ended_at
    assert ended_at is not None
    assert datetime.fromisoformat(ended_at) <= datetime.fromisoformat(ended.at) <= nobody_looked_until


@pytest.mark.covers("signals:15", "found:32", "found:33")
def test_exit_makes_the_descriptor_readable_at_once(world: World) -> None:
    # Four times the runner waits for the disk before it wakes anybody, so the disk is memory here: the rest is its own.
    home = world.closing.enter_context(tempfile.TemporaryDirectory(prefix="hf-", dir=MEMORY))
    hf = world.open(home=home)
    consumer = hf.signals("conv-1")
    delays = []
    with consumer.waker() as waker:
        for _ in range(scaled(20, 200)):
            # What it leaves behind keeps its runner, and the runner's count of time.
            session = hf.start("sleep 600 > /dev/null 2>&1 & exec cat", stdin="open", owner="conv-1")
            consumer.claim()
            assert session.pid is not None
            fd = os.pidfd_open(session.pid)
            session.close_stdin()
            wait_readable(fd)
            passed = OwnTime(session.runner_pid)
            wait_readable(waker.fileno())
            delays.append(passed.stop().seconds(session.runner_pid))
            os.close(fd)
            until(consumer.pending)
            consumer.claim().settle()
            session.stop(grace=0)
    slowest = sorted(delays)[-1 - len(delays) // 100 :]
    assert slowest[0] < 0.05, f"the slowest of {len(delays)}: {slowest}"
