"""The background of one owner: catalog, queue, observers, wake."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.core import failpoints
from holdfast.daemons import kinds
from holdfast.daemons.observers import Change as ViewChange
from holdfast.errors import AlreadyEnded, BadArgument, DiskFull, IndexBusy, KindReserved, NotFound
from holdfast.home import ID_ALPHABET
from holdfast.tools.evva import Change, DaemonSnapshot, DaemonState, Event, Lifecycle, Signal, new_id
from support.own_daemon import OWNER, Own
from support.points import Points
from support.signal_file import records
from support.waiting import BOUND_S, until
from support.world import World


@pytest.fixture
def state(world: World) -> DaemonState:
    return world.closing.enter_context(DaemonState(world.open(), OWNER))


def line(text: str, id: str = "x00000001") -> Signal:
    return Signal(id, "webcam", event=Event(text))


def broken_wake() -> None:
    raise RuntimeError("a wake of the test")


def ended(status: str, id: str = "x00000001", **facts: Any) -> Signal:
    return Signal(id, "webcam", lifecycle=Lifecycle(status, **facts))


@pytest.mark.covers("evva:1")
def test_ids_have_the_letter_of_their_kind_and_reserved_kinds_are_not_started(state: DaemonState) -> None:
    letters = {kind: kinds.of(kind).prefix for kind in kinds.names()} | {"webcam": "x"}
    assert letters["local_bash"] + letters["monitor"] + letters["local_agent"] + letters["lsp"] == "bmal"
    for kind, letter in letters.items():
        made = [new_id(kind) for _ in range(1000)]
        assert {id[0] for id in made} == {letter}
        assert {len(id) for id in made} == {9}
        assert set("".join(made)) <= set(ID_ALPHABET)
        assert len(ID_ALPHABET) == 36
    for kind in ("remote_agent", "in_process_teammate", "local_workflow", "dream"):
        with pytest.raises(KindReserved, match=f'kind "{kind}" is reserved'):
            state.start("true", kind=kind)
    assert len(state) == 0


@pytest.mark.covers("evva:2")
def test_nothing_is_registered_without_an_id_and_the_same_id_overwrites(state: DaemonState) -> None:
    changes: list[Change] = []
    state.subscribe(changes.append)
    state.register(None)
    state.register(Own(""))
    assert (len(state), changes) == (0, [])
    second = Own("x00000001")
    state.register(Own("x00000001"))
    state.register(second)
    assert len(state) == 1
    assert state.get("x00000001") is second
    assert [(change.domain, change.op, change.id) for change in changes] == [("daemons", "added", "x00000001")] * 2
    assert not state.has_pending()


@pytest.mark.covers("evva:3")
def test_snapshots_are_in_the_order_of_their_start_also_by_kind(state: DaemonState) -> None:
    for id, after in (("x00000003", 3), ("x00000001", 1), ("x00000002", 2)):
        state.register(Own(id, after=after, kind="webcam" if after != 2 else "dream"))
    session = state.start("sleep 60")
    assert [shot.id for shot in state.snapshot()] == ["x00000001", "x00000002", "x00000003", session.id]
    assert [shot.id for shot in state.snapshot_by_kind("webcam")] == ["x00000001", "x00000003"]
    assert [shot.id for shot in state.snapshot_by_kind("local_bash")] == [session.id]
    session.stop(grace=0)


@pytest.mark.covers("evva:4")
def test_what_is_evicted_leaves_the_catalog_and_can_be_recalled(state: DaemonState) -> None:
    changes: list[Change] = []
    session = state.start("sleep 60")
    state.register(Own("x00000001"))
    state.subscribe(changes.append)
    for id in (session.id, "x00000001"):
        state.evict(id)
        assert state.get(id) is None
        recalled = state.recall(id)
        assert recalled is not None
        assert recalled.snapshot().id == id
        assert recalled.output() == ("a picture\n" if id == "x00000001" else "")
        (change,) = [each for each in changes if each.id == id]
        assert change.op == "removed"
        assert change.snapshot is not None
        assert change.snapshot.status == "running"
    assert len(state) == 0
    state.evict("x99999999")
    state.evict(session.id)
    assert len(changes) == 2
    assert session.refresh().state == "running"
    session.stop(grace=0)
    assert state.stop("x00000001").status == "running"
    with pytest.raises(AlreadyEnded):
        state.stop("x00000001")
    assert "x00000001" in [shot.id for shot in state.everything()]


@pytest.mark.covers("evva:5")
def test_a_stop_of_an_unknown_a_finished_a_running_and_a_failing_daemon(state: DaemonState) -> None:
    with pytest.raises(NotFound):
        state.stop("x99999999")
    over = Own("x00000001")
    over.status = "failed"
    state.register(over)
    with pytest.raises(AlreadyEnded) as already:
        state.stop("x00000001")
    assert (over.kills, already.value.status) == (0, "failed")
    snapshot: Any = already.value.snapshot
    assert snapshot == over.snapshot()
    running = Own("x00000002")
    state.register(running)
    before = state.stop("x00000002")
    assert (before.status, running.status, running.kills) == ("running", "killed", 1)
    state.register(Own("x00000003", problem=PermissionError("not mine")))
    with pytest.raises(PermissionError, match="not mine"):
        state.stop("x00000003")
    session = state.start("sleep 60")
    assert state.stop(session.id).status == "running"
    session.wait(timeout=BOUND_S)
    with pytest.raises(AlreadyEnded):
        state.stop(session.id)
    recalled = state.recall(session.id)
    assert recalled is not None
    assert (recalled.snapshot().status, recalled.snapshot().requested_by) == ("killed", OWNER)


def test_a_stop_of_an_object_of_the_host_is_the_cause_of_its_end(state: DaemonState) -> None:
    class Telling(Own):
        def kill(self) -> None:
            super().kill()
            state.emit(ended("completed", id=self.id, exit_code=0))

    state.register(Telling("x00000001"))
    state.stop("x00000001")
    state.register(Own("x00000002", problem=PermissionError("not mine")))
    with pytest.raises(PermissionError):
        state.stop("x00000002")
    state.emit(ended("completed", id="x00000002"))
    first, second = [each.snapshot for each in state.drain_signals()]
    assert first is not None
    assert (first.status, first.cause, first.requested_by) == ("killed", "stop", OWNER), "the first reason wins"
    assert second is not None
    assert (second.status, second.cause, second.requested_by) == ("completed", "exit", None)


def test_an_object_with_an_async_kill_can_be_stopped_by_any_caller(world: World, state: DaemonState) -> None:
    over = threading.Semaphore(0)

    class Slow(Own):
        async def kill(self) -> None:  # type: ignore[override]
            await asyncio.to_thread(over.release)

    state.register(Slow("x00000001"))
    state.emit(line("one"))
    state.stop("x00000001")
    assert over.acquire(timeout=BOUND_S)
    world.open().daemons.stop("x00000001", by="another")
    assert over.acquire(timeout=BOUND_S)
    state.emit(ended("killed"))


def test_an_object_whose_snapshot_fails_hides_no_other(state: DaemonState, caplog: pytest.LogCaptureFixture) -> None:
    broken = Own("x00000001")
    state.register(broken)
    state.register(Own("x00000002", after=1))
    broken.blind = True
    assert [(shot.id, shot.status) for shot in state.snapshot()] == [("x00000001", "running"), ("x00000002", "running")]
    assert "the snapshot of x00000001 failed" in caplog.text


def test_a_command_without_a_description_is_called_by_its_first_line(state: DaemonState) -> None:
    session = state.start("\nexec sleep 60\necho never")
    (shot,) = state.snapshot()
    assert shot.description == "exec sleep 60"
    session.stop(grace=0)


@pytest.mark.covers("evva:6")
def test_observers_see_what_is_queued_and_the_wake_comes_after_them(world: World, state: DaemonState) -> None:
    seen: list[tuple[str, int]] = []
    woken = threading.Event()

    def look(change: Change) -> None:
        seen.append((change.op, len(records(world, change.id))))

    def wake() -> None:
        seen.append(("wake", len(records(world, "x00000001"))))
        woken.set()

    state.set_wake(wake)
    state.subscribe(look)
    state.emit(line("one"))
    assert woken.wait(BOUND_S)
    assert seen == [("event", 1), ("wake", 1)]
    (event,) = [record for record in records(world, "x00000001") if "event" in record]
    assert event["event"]["lines"][0]["text"] == "one"
    del seen[:]
    state.drain_signals().settle()
    session = state.start("exit 3")
    until(lambda: "wake" in [op for op, _ in seen], what="the wake")
    ops = [op for op, _ in seen]
    assert ops == ["added", "running", "failed", "wake"]
    assert seen[2][1] == len(records(world, session.id)), "the ending was in the file before anybody heard of it"


@pytest.mark.covers("evva:7")
def test_an_observer_that_raises_stops_no_other_observer(state: DaemonState, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def broken(_change: Change) -> None:
        raise RuntimeError("an observer of the test")

    state.subscribe(broken)
    state.subscribe(lambda change: heard.append(change.op))
    state.set_wake(lambda: heard.append("wake"))
    state.emit(line("one"))
    until(lambda: heard == ["event", "wake"], what="all of them")
    assert "an observer of the test" in caplog.text
    state.drain_signals().settle()
    state.set_wake(broken_wake)
    session = state.start("true")
    until(lambda: "a wake of the test" in caplog.text, what="the wake")
    state.set_wake(lambda: heard.append("wake"))
    assert heard[-1] == "wake", "a wake after one that failed is called"
    assert session.wait(timeout=BOUND_S).reason == "exit"
    assert "completed" in heard


def test_an_observer_may_wait_for_what_another_thread_emits(world: World) -> None:
    hf = world.open()
    state = world.closing.enter_context(DaemonState(hf, OWNER))
    heard: list[tuple[str, str]] = []

    def note(change: Change | ViewChange) -> None:
        heard.append((change.op, change.id))
        if change.id != "x00000003":
            other = threading.Thread(target=state.emit, args=(line("more", id="x00000003"),))
            other.start()
            other.join(BOUND_S)
            assert not other.is_alive(), "observers are called outside all locks"

    state.register(Own("x00000001"))
    hf.daemons.observe(note)
    state.subscribe(note)
    state.set_wake(lambda: heard.append(("wake", "")))
    state.emit(line("one"))
    ops = [op for op, _ in heard]
    assert heard[-1] == ("wake", ""), "after all that was heard"
    assert ops.index("wake") > max(at for at, each in enumerate(heard) if each == ("event", "x00000001"))


@pytest.mark.covers("evva:8")
def test_signals_come_in_order_and_once(state: DaemonState) -> None:
    state.register(Own("x00000001"))
    assert not state.has_pending()
    assert list(state.drain_signals()) == []
    state.emit(line("one"))
    state.emit(line("two"))
    state.emit(ended("failed", exit_code=4))
    assert state.has_pending()
    first = state.drain_signals()
    assert [(each.event.line if each.event else each.lifecycle and each.lifecycle.status) for each in first] == [
        *("one", "two", "failed"),
    ]
    assert first[2].lifecycle is not None
    assert first[2].lifecycle.exit_code == 4
    assert [each.is_lifecycle for each in first] == [False, False, True]
    assert len({each.id for each in first}) == 3
    assert not state.has_pending()
    assert len(state.drain_signals()) == 0
    assert len(state) == 0, "the second drain settled the first"


def test_a_signal_has_one_variant_and_an_end_is_recorded_once(
    world: World, state: DaemonState, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="either"):
        state.emit(Signal("x00000001", "webcam"))
    with pytest.raises(ValueError, match="either"):
        state.emit(Signal("x00000001", "webcam", lifecycle=Lifecycle("failed"), event=Event("x")))
    with pytest.raises(BadArgument):
        state.emit(line("x", id="../../up"))
    state.emit(ended("running"))
    assert not state.has_pending(), "what is not an end is recorded, not queued"
    assert len(records(world, "x00000001")) == 1
    state.emit(ended("killed"))
    state.emit(ended("completed"))
    assert [each.lifecycle and each.lifecycle.status for each in state.drain_signals()] == ["killed"]
    assert "a second end of x00000001 was dropped" in caplog.text


def test_a_drain_takes_all_that_is_pending(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.signals.consumer.CLAIM_LIMIT", 3)
    state = world.closing.enter_context(DaemonState(world.open(), OWNER))
    for number in range(10):
        state.emit(line(str(number)))
    assert [each.event and each.event.line for each in state.drain_signals()] == [str(number) for number in range(10)]
    assert not state.has_pending()


def test_threads_that_drain_at_once_share_the_signals_and_all_are_settled(state: DaemonState) -> None:
    for number in range(40):
        state.emit(line(str(number)))
    got: list[str] = []
    together = threading.Barrier(4)

    def drain() -> None:
        together.wait(BOUND_S)
        while batch := state.drain_signals():
            got.extend(each.id for each in batch)

    threads = [threading.Thread(target=drain) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(BOUND_S)
    assert len(got) == len(set(got)) == 40
    assert state.consumer.unsettled() == set()


def test_a_batch_that_could_not_be_settled_is_settled_by_the_next_drain(
    state: DaemonState, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.emit(line("one"))
    first = state.drain_signals()

    def busy(*_: object) -> int:
        raise IndexBusy("index.db", 1.0)

    with monkeypatch.context() as broken:
        broken.setattr(type(first._claimed), "settle", busy)
        with pytest.raises(IndexBusy):
            state.drain_signals()
    assert state.consumer.unsettled() == {"x00000001"}
    assert list(state.drain_signals()) == []
    assert state.consumer.unsettled() == set()


def test_what_is_emitted_is_what_is_drained(state: DaemonState) -> None:
    started = datetime(2026, 1, 31, 8, tzinfo=UTC)
    shot = DaemonSnapshot("x00000001", "webcam", "running", "the webcam", OWNER, started, metadata={"frames": 7})
    emitted: list[Event | Lifecycle] = [
        Event("one", stream="stderr", offset=40),
        Event("two", suppressed=3, offset=10, cursor="stdout:4"),
        Event("the light is low", variant="watch", offset=12),
        Event("", closing=True),
        Lifecycle("completed"),
        Lifecycle("failed", cause="out_of_memory", exit_signal="SIGKILL", survivors=2),
        Lifecycle("failed", exit_code=0),
        Lifecycle("killed", cause="idle_timeout", exit_code=143),
    ]
    for number, variant in enumerate(emitted):
        lifecycle, event = (variant, None) if isinstance(variant, Lifecycle) else (None, variant)
        # Each end is of a daemon of its own.
        id = f"x0000000{max(1, number - 2)}"
        state.emit(Signal(id, "webcam", snapshot=shot, lifecycle=lifecycle, event=event))
    drained = list(state.drain_signals())
    assert [each.event for each in drained if each.event] == emitted[:4]
    causes = [each.lifecycle and each.lifecycle.cause for each in drained[4:]]
    assert causes == ["exit", "out_of_memory", "exit", "idle_timeout"]
    assert [each.lifecycle and replace(each.lifecycle, cause=None) for each in drained[4:]] == [
        replace(each, cause=None) for each in emitted if isinstance(each, Lifecycle)
    ]
    for each in drained:
        assert each.snapshot is not None
        assert each.snapshot.metadata.facts["frames"] == 7
        assert each.snapshot.description == "the webcam"
        if each.lifecycle is not None:
            assert each.snapshot.status == each.lifecycle.status


def test_an_unregistered_object_has_signals_and_is_no_daemon(world: World, state: DaemonState) -> None:
    changes: list[tuple[str, str]] = []
    state.subscribe(lambda change: changes.append((change.op, change.id)))
    with world.open() as hf, DaemonState(hf, OWNER) as other:
        other.emit(line("one"))
        assert (len(other), other.get("x00000001"), other.recall("x00000001")) == (0, None, None)
        other.emit(ended("failed", id="x00000002"))
        assert len(other) == 0
    assert [(each.daemon_id, each.is_event) for each in until(state.drain_signals, what="its signals")] == [
        ("x00000001", True),
        ("x00000002", False),
    ]
    until(lambda: len(changes) == 2, what="the changes")
    assert changes == [("event", "x00000001"), ("failed", "x00000002")], (
        "and no end of an object that was not registered"
    )
    assert not state.has_pending()
    assert (state.everything(), len(state)) == ([], 0)


def test_a_registered_object_is_added_once(state: DaemonState) -> None:
    heard: list[str] = []
    state.subscribe(lambda change: heard.append(change.op))
    state.register(Own("x00000001"))
    state.emit(line("one"))
    state.emit(ended("running"))
    state.emit(ended("completed"))
    assert heard == ["added", "event", "running", "completed"]


def test_two_states_of_one_host_emit_for_the_same_object_and_another_owner_cannot(world: World) -> None:
    hf = world.open()
    one, two = (world.closing.enter_context(DaemonState(hf, OWNER)) for _ in range(2))
    other = world.closing.enter_context(DaemonState(hf, "another owner"))
    one.emit(line("one"))
    two.emit(line("two"))
    with pytest.raises(ValueError, match="are written by the process that runs it"):
        other.emit(line("three"))
    two.emit(ended("completed"))
    found = [each.event.line if each.event else each.lifecycle for each in one.drain_signals()]
    assert found == ["one", "two", Lifecycle("completed", cause="exit")]


def test_an_end_that_another_state_emitted_is_dropped(
    world: World, state: DaemonState, caplog: pytest.LogCaptureFixture
) -> None:
    other = world.closing.enter_context(DaemonState(world.open(), OWNER))
    other.emit(line("one"))
    with pytest.raises(ValueError, match="are written by the process that runs it"):
        state.emit(ended("failed"))
    other.emit(ended("completed"))
    state.emit(ended("failed"))
    state.emit(line("two"))
    assert "a second end of x00000001 was dropped" in caplog.text
    assert "a signal of x00000001 came after its end" in caplog.text
    assert [each.is_event for each in state.drain_signals()] == [True, False]


def test_with_a_full_disk_signals_wait_and_observers_are_still_called(
    state: DaemonState,
) -> None:
    heard: list[str] = []
    state.subscribe(lambda change: heard.append(change.op))
    state.set_wake(lambda: heard.append("wake"))
    failpoints.reload({"HOLDFAST_POINTS": "runner.before_directory=error:ENOSPC"})
    try:
        state.emit(line("one"))
        state.emit(ended("failed"))
        assert heard == ["event", "wake", "failed", "wake"]
        assert not state.has_pending()
    finally:
        failpoints.reload({})
    assert [each.is_event for each in state.drain_signals()] == [True, False]
    # Being recorded late they may wake once more: a wake is a hint.
    assert [op for op in heard if op != "wake"] == ["event", "failed"], "observers are called once"
    failpoints.reload({"HOLDFAST_POINTS": "runner.before_directory=error:EROFS"})
    try:
        with pytest.raises(DiskFull, match="cannot be written"):
            state.emit(line("x", id="x00000002"))
    finally:
        failpoints.reload({})


def test_the_signals_of_a_session_are_written_by_its_runner_only(state: DaemonState) -> None:
    session = state.start("sleep 60")
    with pytest.raises(ValueError, match="are written by the process that runs it"):
        state.emit(line("x", id=session.id))
    session.stop(grace=0)


def test_an_unsubscribed_observer_and_no_observer_hear_nothing(state: DaemonState) -> None:
    heard: list[str] = []
    late: list[str] = []
    leave = state.subscribe(lambda change: heard.append(change.op))

    def subscribe_another(_change: Change) -> None:
        if not late:
            late.append("subscribed")
            state.subscribe(lambda change: late.append(change.op))

    state.subscribe(subscribe_another)
    state.subscribe(None)()
    state.register(Own("x00000001"))
    assert late == ["subscribed"], "an observer that is added during a notification gets the next"
    leave()
    state.evict("x00000001")
    assert heard == ["added"]
    assert late == ["subscribed", "removed"]


def test_a_snapshot_stays_that_of_its_moment(world: World, state: DaemonState) -> None:
    gate = world.gate()
    session = state.start(world.probe("say", "one", "await", gate, "say", "two"))
    session.wait(match="one", timeout=BOUND_S)
    (shot,) = state.snapshot()
    assert shot.metadata.output == "ready\none\n"
    gate.release()
    session.wait(timeout=BOUND_S)
    assert shot.metadata.output == "ready\none\n"
    assert (shot.status, shot.ended_at, shot.metadata.exit_code) == ("running", None, None)
    later = state.get(session.id)
    assert later is not None
    assert later.snapshot().metadata.output == "ready\none\ntwo\n"
    with pytest.raises(AttributeError):
        shot.status = "completed"  # type: ignore[misc]


def test_a_daemon_whose_end_is_recorded_and_not_yet_signalled_is_in_the_catalog(
    state: DaemonState, points: Points
) -> None:
    points.set("runner.exit_written=pause")
    session = state.start("true")
    paused = points.wait("runner.exit_written")
    daemon = state.get(session.id)
    paused.release()
    assert daemon is not None
    until(state.has_pending, what="the signal of the end")
    state.drain_signals().settle()
    assert state.get(session.id) is None


def test_of_two_streams_the_last_bytes_are_shown_without_a_hole(world: World, state: DaemonState) -> None:
    go = world.root / "go"
    os.mkfifo(go)
    session = state.start(f"seq 1 40000; read _ < {go}; seq 1 8000 >&2")
    session.wait(match="^40000$", timeout=BOUND_S)
    go.write_text("\n")
    session.wait(timeout=BOUND_S)
    daemon = state.recall(session.id)
    assert daemon is not None
    tail = daemon.snapshot().metadata.read()
    shown = [int(line) for line in tail.text.splitlines()]
    assert shown == [*range(shown[0], 40001), *range(1, 8001)]
    assert (64 << 10) - 8 < len(tail.text) <= 64 << 10
    everything = sum(len(f"{number}\n") for last in (40000, 8000) for number in range(1, last + 1))
    assert tail.cut == everything - len(tail.text)


def test_sessions_of_the_owner_that_others_started_are_there_and_those_of_others_are_not(
    world: World, state: DaemonState
) -> None:
    changes: list[Change] = []
    state.subscribe(changes.append)
    other = world.open()
    mine = other.start(world.probe("forever"), owner=OWNER, tty=True, description="a\nterminal")
    other.start(world.probe("exit", "0"), owner="another owner").wait(timeout=BOUND_S)
    until(lambda: [change.op for change in changes if change.id == mine.id] == ["added", "running"], what="the change")
    (shot,) = state.snapshot()
    assert (shot.id, shot.kind, shot.description, shot.agent_id) == (mine.id, "terminal", "a terminal", OWNER)
    assert shot.started_at.tzinfo is UTC
    assert {change.id for change in changes} == {mine.id}
    mine.stop(grace=0)
