"""Real sessions and their hosts: nothing is lost or invented, wherever a host dies and whatever it calls."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from datetime import datetime
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.sessions.driver import drive
from holdfast.sessions.observe import Observed
from holdfast.sessions.run import start_connected
from support import signal_file
from support.points import Points
from support.scale import scaled
from support.waiting import BOUND_S, until, wait_gone
from support.world import World

OWNER = "conv-1"

# Claims everything, keeps the ids as a transcript would, settles.
TURN = """
import sys, holdfast
consumer = holdfast.open().signals("conv-1")
batch = consumer.claim()
print(*batch.ids, flush=True)
batch.settle()
print("settled", flush=True)
"""


def ended(hf: Holdfast, world: World, count: int = 1, **options: Any) -> list[holdfast.Session]:
    """So many sessions that have ended, each with one signal, in their order."""
    sessions = []
    for number in range(count):
        session = hf.start(world.probe("say", f"number {number}", "exit", number), owner=OWNER, **options)
        signal_file.ended(world, session)
        sessions.append(session)
    return sessions


@pytest.mark.covers("LOG-09", "signals:10", "signals:11")
@pytest.mark.parametrize(
    "point, deliveries",
    [
        ("signals.indexed", [1, 1]),
        ("signals.claimed", [2, 2]),
        ("signals.settling", [2, 2]),
        ("signals.settled", []),
    ],
)
def test_host_killed_between_emission_and_settle_loses_and_invents_nothing(
    world: World, points: Points, point: str, deliveries: list[int]
) -> None:
    hf = world.open()
    ids = [f"{session.id}.2" for session in ended(hf, world, 2)]
    host = world.host(TURN, env={"HOLDFAST_POINTS": f"{point}=kill"})
    stored = host.line().split()
    assert host.wait() == -signal.SIGKILL
    assert stored in ([], ids)
    consumer = hf.signals(OWNER)
    batch = consumer.claim()
    assert [(each.id, each.deliveries) for each in batch] == [
        (id, count) for id, count in zip(ids, deliveries, strict=False)
    ]
    batch.release("see what a stored transcript makes of it")
    until(lambda: consumer.pending() or not deliveries, what="its turn again")
    again = consumer.claim(seen=stored.__contains__)
    assert again.ids == (ids if deliveries and not stored else [])
    again.settle()
    assert consumer.pending() == 0
    assert consumer.pending().next_due is None


@pytest.mark.covers("signals:8")
def test_host_killed_as_a_successor_is_succeeded(world: World, points: Points) -> None:
    hf = world.open()
    world.closing.callback(hf.collect)
    session = hf.start(world.probe("sleep", 1000), owner=OWNER)
    session.wait(match="ready", timeout=BOUND_S)  # what it prints later breaks its pipe
    assert session.runner_pid is not None
    assert session.pid is not None
    os.kill(session.runner_pid, signal.SIGKILL)
    wait_gone(session.runner_pid)
    host = world.host(TURN, env={"HOLDFAST_POINTS": "signals.taken_over=kill"})
    assert host.wait() == -signal.SIGKILL
    consumer = hf.signals(OWNER)
    with consumer.claim() as batch:
        assert [(each.variant, each.fields.get("state")) for each in batch] == [("health", "stale")]
    os.kill(session.pid, signal.SIGKILL)
    wait_gone(session.pid)
    with consumer.claim() as batch:
        assert [(each.variant, each.code, each.cause) for each in batch] == [("lifecycle", None, "lost")]
    assert session.refresh().state == "lost"
    assert consumer.pending() == 0


@pytest.mark.slow
@pytest.mark.covers("signals:16")
def test_reading_acknowledges_nothing(world: World) -> None:
    hf = world.open()
    session = hf.start(world.probe("say", "needle"), owner=OWNER, tty=True)
    signal_file.ended(world, session)
    consumer = hf.signals(OWNER)
    assert consumer.pending() == 1
    for _ in range(100):
        hf.sessions(all=True)
        session.refresh()
        session.read()
        session.tail(5)
        session.search("needle")
        _ = session.screen().text
        with session.attach(role="observe"):
            pass
    hf.recover()
    assert consumer.pending() == 1
    assert consumer.claim().signals[0].deliveries == 1


@pytest.mark.covers("signals:17")
def test_wait_by_prefix_names_the_signal_and_a_note_of_it_shares_the_turns_fate(world: World) -> None:
    hf = world.open()
    consumer = hf.signals(OWNER)
    gates = [world.gate(), world.gate()]
    first, second = (hf.start(world.probe("await", gate), owner=OWNER) for gate in gates)
    gates[0].release()
    signal_file.ended(world, first)
    batch = consumer.claim()
    assert batch.ids == [f"{first.id}.2"]
    gates[1].release()
    woke = hf.get(second.id[:6]).wait(timeout=BOUND_S)
    assert woke.signal_id == f"{second.id}.2"
    consumer.note(woke.signal_id)
    assert second.id not in consumer.drain().text
    batch.release("the turn failed")
    until(consumer.pending)
    with consumer.drain() as notice:
        assert second.id in notice.text
    assert consumer.pending() == 0


def test_hand_over_by_update_moves_the_signals(world: World) -> None:
    hf = world.open()
    gate = world.gate()
    session = hf.start(world.probe("await", gate), owner=OWNER)
    mine, theirs = hf.signals(OWNER), hf.signals("conv-2")
    with theirs.waker() as waker:
        theirs.claim()
        session.update(owner="conv-2")
        gate.release()
        assert waker.wait(BOUND_S)
    assert theirs.claim().ids == [f"{session.id}.2"]
    assert mine.pending() == 0


def test_unsettled_signals_move_with_an_ended_session_and_the_rest_stays(world: World) -> None:
    hf = world.open()
    mine, theirs = hf.signals(OWNER), hf.signals("conv-2")
    settled, waiting = (hf.start(world.probe("exit", 3), owner=OWNER) for _ in range(2))
    for each in (settled, waiting):
        each.wait(timeout=BOUND_S)
    until(lambda: mine.pending() == 2, what="both endings")
    assert mine.ack(f"{settled.id}.2") == 1
    with theirs.waker() as waker:
        theirs.claim()
        for each in (settled, waiting):
            assert each.update(owner="conv-2").owner == "conv-2"
        assert waker.wait(BOUND_S)
    assert mine.pending() == 0
    assert theirs.claim().ids == [f"{waiting.id}.2"]
    # For every host, and for a rebuilt index.
    assert {each.id for each in world.open().sessions(all=True, owner="conv-2")} == {settled.id, waiting.id}
    with pytest.raises(holdfast.errors.SessionEnded):
        waiting.update(notify="never")
    hf.close()
    for path in world.home.glob("index.db*"):
        path.unlink(missing_ok=True)
    reopened = world.open()
    assert {signal.session for signal in reopened.signals("conv-2").peek(10)} == {settled.id, waiting.id}
    assert reopened.signals(OWNER).pending() == 0


@pytest.mark.covers("signals:23")
def test_after_a_drain_every_log_is_readable_from_the_cursor_that_it_names(world: World) -> None:
    hf = world.open()
    sessions = {}
    for code in (0, 3):
        session = hf.start(["sh", "-c", f"seq {code + 1}00; seq 7 >&2; exit {code}"], owner=OWNER)
        session.wait(timeout=BOUND_S)
        sessions[session.id] = session
    consumer = hf.signals(OWNER)
    until(lambda: consumer.pending() == 2, what="both endings")
    with consumer.drain() as notice:
        cursors = dict(re.findall(r"^(\w{9}) .*; whole output: cursor (\S+)$", notice.text, re.MULTILINE))
    assert consumer.pending() == 0
    assert cursors.keys() == sessions.keys()
    for id, session in sessions.items():
        page = session.read(since=cursors[id])
        assert len(page.text.splitlines()) == (100 if session.exit and session.exit.code == 0 else 400) + 7
        assert [shot.id for shot in hf.sessions(all=True) if shot.id == id] == [id]


def test_sessions_that_are_over_are_noted_in_the_index_several_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.signals.catchup._OVER_AT_ONCE", 3)
    hf = world.open()
    consumer = hf.signals(OWNER)
    found: list[str | None] = []
    unfinished: list[int] = []
    for _ in range(3):
        (session,) = ended(hf, world)
        assert session.runner_pid is not None
        wait_gone(session.runner_pid)
        with consumer.claim() as batch:
            found += [signal.session for signal in batch]
        unfinished.append(len(hf._core.index.unfinished()))
    assert unfinished == [1, 2, 0]
    assert len(set(found)) == len(found) == 3
    assert consumer.pending() == 0


def test_end_that_its_caller_was_given_is_not_reported_again(hf: Holdfast, world: World) -> None:
    done = hf.run(world.probe("exit", 3), owner=OWNER)
    assert done.exit is not None
    assert done.exit.code == 3
    assert world.open().signals(OWNER).pending() == 0


@pytest.mark.parametrize("teller", ["runner", "host"])
def test_the_notice_of_a_command_that_could_not_be_started_says_why(world: World, points: Points, teller: str) -> None:
    if teller == "host":
        points.set("runner.exit_written=kill")
    hf = world.open()
    world.closing.callback(hf.collect)
    with pytest.raises((holdfast.errors.SpawnError, holdfast.errors.RunnerGone)):
        hf.start(["/no/such/program"], owner=OWNER)
    points.clear()
    consumer = hf.signals(OWNER)
    until(consumer.pending, what="the ending")  # a killed runner hangs up a little before its lock is free
    notice = consumer.drain()
    (signal,) = notice.signals
    assert signal.fields["error"]["path"] == "/no/such/program"
    assert "could not be started: exec: No such file or directory" in notice.text


def test_end_that_its_caller_did_not_wait_for_is_reported(hf: Holdfast, world: World) -> None:
    gate = world.gate()
    running = hf.run(world.probe("await", gate, "exit", 3), wait=0.01, owner=OWNER)
    assert running.state == "running"
    consumer = world.open().signals(OWNER)
    with consumer.waker() as waker:
        gate.release()
        assert waker.wait(BOUND_S)
    (signal,) = consumer.claim().signals
    assert (signal.session, signal.code, signal.routed) == (running.id, 3, "auto")


RUNS = scaled(201, 980)


@pytest.mark.slow
@pytest.mark.covers("signals:18")
def test_every_end_around_the_callers_limit_is_reported_by_exactly_one_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand runs that end within a few milliseconds of their caller's patience."""
    # On a busy machine a caller may take longer than a second to confirm.
    monkeypatch.setenv("HOLDFAST_SIGNALS_ANSWER_GRACE", "30s")

    async def main() -> tuple[set[str], set[str]]:
        given, let_go = set[str](), set[str]()
        async with holdfast.open_async() as hf:
            at_once = asyncio.Semaphore(8)

            async def one(wait: float) -> float:
                async with at_once:
                    run = await hf.run(["sleep", "0.01"], wait=wait, owner=OWNER)
                    (given if run.state == "exited" else let_go).add(run.id)
                    if run.started_at is None or run.ended_at is None:
                        return 0.0
                    lived = datetime.fromisoformat(run.ended_at) - datetime.fromisoformat(run.started_at)
                    return lived.total_seconds()

            # How long one lives here, so that the two ends cross.
            took = sorted(await asyncio.gather(*(one(10.0) for _ in range(20))))[10]
            waits = [took + 0.005 * (number % 201 - 100) / 100 for number in range(RUNS)]
            await asyncio.gather(*map(one, waits))
        return given, let_go

    given, let_go = asyncio.run(main())
    hf = world.open()
    consumer = hf.signals(OWNER)
    heard: list[str | None] = []

    def all_told() -> bool:
        with consumer.claim() as batch:
            heard.extend(signal.session for signal in batch)
        return let_go <= set(heard)

    until(all_told)
    assert len(heard) == len(set(heard))
    assert len(given) + len(let_go) == 20 + RUNS
    assert let_go, "no end crossed its limit"
    assert set(heard) & given == set()


def test_the_signal_of_an_end_is_there_when_a_wait_for_it_returns(
    world: World, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On faulty code the wait saw `exit.json` and returned before the runner had written the signal."""
    points.set("runner.exit_written=pause")
    hf = world.open()
    session = hf.start("exit 3", owner=OWNER)
    hit = points.wait("runner.exit_written")
    request = hf._core.request

    def asked(*args: Any, **fields: Any) -> Any:
        hit.release()
        return request(*args, **fields)

    monkeypatch.setattr(hf._core, "request", asked)
    try:
        assert session.wait().reason == "exit"
        with hf.signals(OWNER).claim() as batch:
            assert [signal.session for signal in batch] == [session.id]
    finally:
        hit.release()


def test_a_runner_that_hangs_before_the_signal_of_the_end_outlasts_no_time_limit(world: World, points: Points) -> None:
    points.set("runner.exit_written=pause")
    session = world.open().start("exit 3")
    hit = points.wait("runner.exit_written")
    try:
        began = time.monotonic()
        # Most of this bound is for the look at the session that follows.
        assert session.wait(timeout=0.2).reason == "exit"
        assert time.monotonic() - began < 5
    finally:
        hit.release()


def test_an_end_after_the_callers_limit_is_reported_once_although_its_runner_answers_late(
    world: World, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On faulty code the call saw the exit record, returned the end without confirming it, and it was queued too."""
    points.set("runner.exit_written=pause")
    hf = world.open()
    observe = hf._core.observe
    seen: list[str] = []

    async def observed(id: str) -> Observed:
        found = await observe(id)
        seen.append(found.state)
        points.wait("runner.exit_written").release()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(hf._core, "observe", observed)
        run = hf.run("exit 3", wait=2.0, owner=OWNER)
    assert seen == ["exited"]
    consumer = hf.signals(OWNER)
    heard: list[str | None] = []

    def decided() -> bool:
        with consumer.claim() as batch:
            heard.extend(signal.session for signal in batch)
        lines = (world.session(run.id) / "signals.jsonl").read_bytes()
        return bool(heard) or b'{"answered":' in lines

    until(decided, what="the end, confirmed or in the queue")
    assert heard == ([] if run.state == "exited" else [run.id])


def test_a_start_says_how_many_consumers_listen(world: World) -> None:
    hf = world.open()
    session = hf.start("true", owner=OWNER, notify="exit")
    assert session.metadata["consumers"] == 0
    assert session.metadata["notes"] == [f"no consumer for signals of owner {OWNER} yet; they wait"]
    nobodys = hf.start("true", watch=["ERROR"])
    assert nobodys.metadata["notes"] == ["no consumer for signals of sessions without an owner yet; they wait"]
    hf.signals(OWNER)
    heard = hf.start("true", owner=OWNER, notify="exit")
    assert heard.metadata["consumers"] == 1
    assert "notes" not in heard.metadata
    for each in (session, nobodys, heard):
        each.wait(timeout=BOUND_S)


def test_reading_to_the_end_names_the_record_of_it_and_acknowledges_nothing(world: World) -> None:
    hf = world.open()
    inbox = hf.signals(OWNER)
    (session,) = ended(hf, world)
    until(inbox.pending, what="the ending in the queue")
    assert session.read().signal_id == f"{session.id}.2"
    assert session.read(limit=1).signal_id is None
    assert session.pending_signals() == 1
    inbox.ack(f"{session.id}.2")
    assert session.pending_signals() == 0


def test_a_lost_session_has_a_record_of_its_end_too(world: World) -> None:
    hf = world.open()
    session = hf.start(world.probe("forever"), owner=OWNER)
    assert session.wait(match="ready", timeout=BOUND_S).reason == "match"
    assert session.runner_pid is not None
    os.kill(session.runner_pid, signal.SIGKILL)
    wait_gone(session.runner_pid)
    session.stop(grace=0)
    with hf.signals(OWNER).claim() as batch:
        (lost,) = (each.id for each in batch.signals if each.ends_session)
    assert session.wait(timeout=BOUND_S).signal_id == lost
    hf.collect()  # what the killed runner left in the runtime directory


@pytest.mark.parametrize("way", ["ack", "note", "is open"])
def test_an_end_that_is_taken_note_of_before_its_record_is_written_is_not_reported(
    world: World, points: Points, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The exit record names it first. On faulty code there was nothing to settle yet, and so it was delivered later."""
    monkeypatch.setattr("holdfast.signals.consumer._APPEND_S", 2 * BOUND_S)  # however late the runner continues
    points.set("runner.exit_written=pause")
    hf = world.open()
    consumer = hf.signals(OWNER)
    session = hf.start(world.probe("exit", 3), owner=OWNER)
    runner = points.wait("runner.exit_written")
    woke = session.wait(timeout=BOUND_S)
    assert (woke.reason, woke.signal_id) == ("exit", f"{session.id}.2")
    release = threading.Timer(0.2, runner.release)
    release.start()
    assert woke.signal_id is not None
    if way == "ack":
        assert consumer.ack(woke.signal_id) == 1
    elif way == "is open":
        assert consumer.is_open(woke.signal_id)
        consumer.ack(woke.signal_id)
    else:
        consumer.note(woke.signal_id).settle()
    release.join()
    assert not consumer.is_open(woke.signal_id)
    assert consumer.drain().signals == []


def test_an_end_that_is_acknowledged_while_another_may_still_answer_it_is_not_reported(world: World) -> None:
    """The caller that started it waited, and closed its connection without confirming. On faulty code the end was
    not in the queue yet when it was acknowledged, and was delivered later."""
    hf = world.open()
    consumer = hf.signals(OWNER)
    asked = {"type": "wait", "id": 0, "exit": True, "confirm": True}
    seen, connection = drive(start_connected(hf._core, ["true"], {"owner": OWNER, "notify": "auto"}, then=asked))
    assert connection is not None
    woke = hf.get(seen.files.id).wait(timeout=BOUND_S)
    assert woke.signal_id is not None
    assert consumer.ack(woke.signal_id) == 1
    connection.close()
    assert consumer.drain().signals == []
