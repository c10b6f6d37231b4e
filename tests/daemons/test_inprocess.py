"""Daemons inside a host: the host does the work of a runner, and every host sees them like any session."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import holdfast
from holdfast.core import wake
from holdfast.daemons import in_process
from holdfast.daemons.handle import Handle
from holdfast.daemons.observers import Change
from holdfast.errors import (
    AlreadyEnded,
    BadArgument,
    DamagedRecord,
    DiskFull,
    NameTaken,
    NotFound,
    ShuttingDown,
    StdinClosed,
    Unreachable,
    Unsupported,
)
from support import signal_file
from support.faults import halt
from support.points import Points
from support.signal_file import records
from support.waiting import BOUND_S, until
from support.world import World


def endings(world: World, id: str) -> list[dict[str, Any]]:
    return [record["lifecycle"] for record in signal_file.endings(world, id)]


def over(handle: Handle) -> Handle:
    handle.settled.result(BOUND_S)
    return handle


def fail(_handle: Handle) -> None:
    raise ValueError("no luck")


def fail_after_all(handle: Handle) -> None:
    handle.report("early")
    fail(handle)


def wait_for_stop(handle: Handle) -> None:
    stop = threading.Event()
    handle.on_stop(stop.set)
    assert stop.wait(BOUND_S)


@pytest.mark.covers("signals:38")
@pytest.mark.parametrize(
    "work,status,code,facts",
    [
        (lambda _handle: "done well", "completed", 0, {"summary": "done well"}),
        (lambda _handle: None, "completed", 0, {}),
        (fail, "failed", None, {"error": "ValueError: no luck"}),
        (
            lambda handle: handle.fail("too hard", "half of it"),
            "failed",
            None,
            {"error": "too hard", "summary": "half of it"},
        ),
        (fail_after_all, "completed", 0, {"summary": "early"}),
    ],
    ids=["returns", "returns nothing", "raises", "fails", "reports and raises"],
)
def test_a_thread_ends_once_as_it_reported_or_as_it_was_observed(
    world: World, work: Callable[[Handle], object], status: str, code: int | None, facts: dict[str, str]
) -> None:
    hf = world.open()
    handle = over(hf.daemons.thread(work, owner="conv-1", description="the work"))
    (shot,) = hf.daemons.list(include_terminal=True)
    assert shot.id == handle.id
    assert (shot.status, shot.kind, shot.in_process, shot.owner) == (status, "local_task", True, "conv-1")
    assert shot.exit is not None
    assert (shot.exit.code, shot.exit.cause, shot.exit.survivors) == (code, "exit", [])
    assert {name: shot.metadata[name] for name in facts} == facts
    assert shot.description == "the work"
    (ended,) = endings(world, handle.id)
    assert (ended["status"], ended["code"]) == (status, code)
    assert [record["seq"] for record in records(world, handle.id)] == [1, 2]
    assert hf.daemons.list() == []


async def _return() -> str:
    return "slept"


async def _raise() -> None:
    raise KeyError("gone")


@pytest.mark.covers("signals:38")
@pytest.mark.parametrize(
    "work,status,cause",
    [
        (_return, "completed", "exit"),
        (_raise, "failed", "exit"),
        (lambda: asyncio.Event().wait(), "killed", "stop"),
    ],
    ids=["returns", "raises", "is cancelled"],
)
def test_a_task_ends_once_as_it_was_observed(
    world: World, work: Callable[[], Coroutine[Any, Any, Any]], status: str, cause: str
) -> None:
    async def main() -> str:
        async with holdfast.open_async() as hf:
            handle = hf.daemons.task(work(), kind="local_agent", metadata={"prompt": "look"})
            assert handle.task is not None
            if status == "killed":
                handle.task.cancel()
            await asyncio.wait([handle.task])
            await asyncio.wrap_future(handle.settled)
            (shot,) = await hf.daemons.list("local_agent", include_terminal=True)
            assert shot.exit is not None
            assert (shot.status, shot.exit.cause) == (status, cause)
            return handle.id

    id = asyncio.run(main())
    assert id.startswith("a")
    assert [each["status"] for each in endings(world, id)] == [status]


def test_a_task_that_makes_its_coroutine_of_its_handle_reports_what_it_does(world: World) -> None:
    async def work(handle: Handle) -> None:
        handle.phase("reading")
        handle.progress(0.5)
        handle.line("first")
        handle.report("read")

    async def main() -> None:
        calls: list[str] = []
        async with holdfast.open_async() as hf:
            hf.daemons.observe(lambda change: calls.append(change.op))
            handle = hf.daemons.task(work)
            await asyncio.wrap_future(handle.settled)
            shot = await hf.daemons.get(handle.id)
            assert (shot.metadata["phase"], shot.metadata["progress"], shot.metadata["summary"]) == (
                "reading",
                0.5,
                "read",
            )
            assert (await hf.daemons.output(handle.id)).text == "first\nread"
        assert calls == ["added", "running", "phase:reading", "event", "completed"]

    asyncio.run(main())


@pytest.mark.covers("signals:38")
def test_the_daemons_of_a_killed_host_are_lost_to_the_next_host(world: World) -> None:
    host = world.host(
        "import holdfast, threading\n"
        "hf = holdfast.open()\n"
        "handle = hf.daemons.thread(lambda handle: threading.Event().wait(), owner='conv-2')\n"
        "print(handle.id)\n"
        "threading.Event().wait()\n"
    )
    id = host.line()
    hf = world.open()
    (shot,) = hf.daemons.list()
    assert (shot.id, shot.state, shot.status) == (id, "running", "running")
    host.kill()
    shot = hf.daemons.get(id)
    assert (shot.state, shot.status) == ("lost", "failed")
    assert shot.exit is not None
    assert (shot.exit.cause, shot.exit.code) == ("lost", None)
    assert "its host is gone" in shot.metadata["evidence"]
    with pytest.raises(AlreadyEnded):
        hf.daemons.stop(id)
    os.unlink(world.runtime / f"{id}.sock")


def test_a_child_that_its_host_forked_does_not_make_dead_daemons_look_alive(world: World) -> None:
    gate, left = world.gate(), world.gate()
    host = world.host(
        "import holdfast, os, sys, threading\n"
        "hf = holdfast.open()\n"
        "handle = hf.daemons.thread(lambda handle: threading.Event().wait())\n"
        "if os.fork() == 0:\n"
        "    open(sys.argv[1]).read(1)\n"
        "    open(sys.argv[2], 'w').write('left\\n')\n"
        "    os._exit(0)\n"
        "print(handle.id)\n"
        "threading.Event().wait()\n",
        gate,
        left,
        env={"PYTHONWARNINGS": "ignore"},
    )
    id = host.line()
    host.kill()
    assert world.open().daemons.get(id).state == "lost"
    gate.release()
    assert left.line() == "left"
    os.unlink(world.runtime / f"{id}.sock")


def test_a_stop_by_another_host_asks_and_the_daemon_ends_as_killed(world: World) -> None:
    hf = world.open()
    stop = threading.Event()

    def work(handle: Handle) -> str:
        handle.on_stop(stop.set)
        stop.wait(BOUND_S)
        assert handle.stopping
        return "what there was"

    handle = hf.daemons.thread(work, name="worker")
    other = world.host(
        "import holdfast\n"
        "with holdfast.open(author='other') as hf:\n"
        "    before = hf.daemons.stop('worker')\n"
        "    print(before.status, hf.get('worker').wait(timeout=30).reason)\n"
    )
    assert other.line() == "running exit", other.errors()
    over(handle)
    shot = hf.daemons.get("worker")
    assert shot.exit is not None
    assert (shot.status, shot.exit.cause, shot.exit.by) == ("killed", "stop", "other")
    assert shot.metadata["summary"] == "what there was", "a report that still comes is kept"
    assert [each["status"] for each in endings(world, handle.id)] == ["killed"]
    other.wait()


def test_a_stop_cancels_a_task_and_runs_its_callbacks_even_when_one_raises(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        calls: list[str] = []
        async with holdfast.open_async() as hf:
            handle = hf.daemons.task(asyncio.Event().wait())
            handle.on_stop(lambda: fail(handle))
            handle.on_stop(lambda: calls.append("second"))
            before = await hf.daemons.stop(handle.id, by="me")
            assert (before.status, before.stopping) == ("running", None)
            await asyncio.wrap_future(handle.settled)
            shot = await hf.daemons.get(handle.id)
            assert shot.exit is not None
            assert (shot.status, shot.exit.by) == ("killed", "me")
            handle.on_stop(lambda: calls.append("at once"))
        assert calls == ["second", "at once"]

    asyncio.run(main())
    assert "no luck" in caplog.text


def test_a_thread_that_does_not_stop_is_named_as_a_survivor_until_it_is_gone(world: World) -> None:
    hf = world.open()
    release = threading.Event()
    handle = hf.daemons.thread(lambda _handle: release.wait(), name="stubborn", grace=0.1)
    assert handle.thread is not None
    stopped = hf.get(handle.id).stop()
    (survivor,) = stopped.survivors
    assert survivor["command"] == "thread stubborn"
    assert survivor["pid"] == handle.thread.native_id
    over(handle)
    shot = hf.daemons.get(handle.id)
    assert shot.exit is not None
    assert (shot.status, len(shot.exit.survivors)) == ("killed", 1)
    assert [each.id for each in hf.daemons.list()] == [handle.id], "what survives is listed"
    release.set()
    handle.thread.join()
    until(lambda: hf.get(handle.id).exit.survivors == [], what="the end of the survivor")  # type: ignore[union-attr]

    def counts() -> list[int]:
        return [len(record["survivors"]["pids"]) for record in signal_file.of(world, handle.id, "survivors")]

    until(lambda: counts() == [1, 0], what="the record of it")
    assert [each["status"] for each in endings(world, handle.id)] == ["killed"]
    with pytest.raises(AlreadyEnded) as already:
        hf.daemons.stop(handle.id)
    assert already.value.status == "killed"


def test_each_callback_of_a_stop_is_called_once_however_often_it_is_asked_for(world: World) -> None:
    hf = world.open()
    release = threading.Event()
    called: list[str] = []
    done = threading.Event()
    handle = hf.daemons.thread(lambda _handle: release.wait(), grace=0.0)
    handle.on_stop(lambda: called.append("first"))
    handle.on_stop(done.set)
    hf.daemons.stop(handle.id)
    over(handle)
    assert done.wait(BOUND_S)
    hf.daemons.stop(handle.id)
    handle.on_stop(release.set)
    assert release.is_set(), "it was asked to end already"
    until(lambda: hf.get(handle.id).exit.survivors == [], what="the end of the survivor")  # type: ignore[union-attr]
    assert called == ["first"]
    assert len(endings(world, handle.id)) == 1


def test_a_thread_that_reported_and_stays_is_named_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "_LEAVING_S", 0.05)
    hf = world.open()
    release = threading.Event()
    handle = hf.daemons.thread(lambda handle: handle.report("all") and release.wait())
    over(handle)
    shot = hf.daemons.get(handle.id)
    assert shot.exit is not None
    assert (shot.status, len(shot.exit.survivors)) == ("completed", 1)
    handle.on_stop(release.set)
    assert hf.daemons.stop(handle.id).status == "completed"
    until(lambda: hf.get(handle.id).exit.survivors == [], what="the end of the survivor")  # type: ignore[union-attr]
    assert [each["status"] for each in endings(world, handle.id)] == ["completed"]


@pytest.mark.covers("signals:39")
def test_a_stop_of_what_has_ended_signals_nothing_and_says_so(world: World) -> None:
    hf = world.open()
    handle = over(hf.daemons.thread(lambda _handle: None))
    session = hf.start("true")
    signal_file.ended(world, session)
    for id in (handle.id, session.id):
        before = records(world, id)
        with pytest.raises(AlreadyEnded) as already:
            hf.daemons.stop(id)
        assert already.value.status == "completed"
        assert already.value.snapshot is not None
        assert already.value.snapshot["id"] == id
        stopped = hf.get(id).stop()
        assert (stopped.already, stopped.found, stopped.signal_id) == (True, [], before[-1]["id"])
        assert records(world, id) == before
    with pytest.raises(NotFound):
        hf.daemons.stop("k00000000")


def test_threads_that_report_an_end_at_once_make_one_ending_and_the_first_counts(world: World) -> None:
    hf = world.open()
    for _ in range(20):
        start = threading.Barrier(4)
        believed: list[str] = []

        def report(handle: Handle, word: str, start: threading.Barrier = start, believed: list[str] = believed) -> None:
            start.wait()
            first = handle.report(word) if word == "report" else handle.fail(word)
            if first:
                believed.append(word)

        release = threading.Event()
        handle = hf.daemons.thread(lambda _handle, release=release: release.wait())  # type: ignore[misc]
        reporters = [threading.Thread(target=report, args=(handle, word)) for word in ("report", "fail", "error")]
        for each in reporters:
            each.start()
        start.wait()
        for each in reporters:
            each.join()
        handle.phase("too late")
        release.set()
        over(handle)
        assert len(believed) == 1
        (ended,) = endings(world, handle.id)
        assert ended["status"] == ("completed" if believed == ["report"] else "failed")
        assert hf.daemons.get(handle.id).metadata["phase"] is None


def test_lines_are_events_under_a_monitors_limits_and_all_of_them_are_in_the_log(world: World) -> None:
    hf = world.open()

    def work(handle: Handle) -> None:
        for number in range(20_000):
            handle.line(f"line {number}")

    handle = over(hf.daemons.thread(work, owner="conv-3"))
    events = [record["event"] for record in records(world, handle.id) if "event" in record]
    assert sum(len(each["lines"]) + each["suppressed"] for each in events) == 20_000
    assert [each["closing"] for each in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["lines"][-1]["text"] == "line 19999"
    assert hf.get(handle.id).text() == "".join(f"line {number}\n" for number in range(20_000))
    assert hf.daemons.output(handle.id, tail=2).text == "line 19998\nline 19999\n"
    assert hf.daemons.output(handle.id, since="stdout:0").text.startswith("line 0\n")
    (ended,) = endings(world, handle.id)
    assert ended["events"] == {"count": 20_000, "suppressed": sum(each["suppressed"] for each in events)}


def test_other_hosts_ask_a_daemon_what_they_ask_any_session(world: World) -> None:
    hf = world.open()
    release = threading.Event()

    def work(handle: Handle) -> None:
        handle.line("here")
        release.wait(BOUND_S)

    handle = hf.daemons.thread(work, owner="conv-1")
    with holdfast.open() as other:
        session = other.get(handle.id)
        assert session.wait(output=True, since="0", timeout=BOUND_S).reason == "output"
        assert session.text() == "here\n"
        with pytest.raises(StdinClosed):
            session.send("hello")
        with pytest.raises(Unsupported, match="no signal"):
            session.send_signal("TERM")
        with pytest.raises(Unsupported, match="ends with its host"):
            session.update(lifetime="detached")
        session.update(owner="conv-2", description="another's")
        assert (session.owner, session.description) == ("conv-2", "another's")
        assert session.wait(timeout=0).reason == "timeout"
        release.set()
        assert session.wait(timeout=BOUND_S).reason == "exit"
    over(handle)
    assert records(world, handle.id)[-1]["owner"] == "conv-2"


def test_a_time_limit_ends_it_as_it_ends_a_session(world: World) -> None:
    hf = world.open()
    handle = over(hf.daemons.thread(wait_for_stop, timeout=0.05))
    shot = hf.daemons.get(handle.id)
    assert shot.exit is not None
    assert (shot.status, shot.exit.cause) == ("killed", "overall_timeout")


@pytest.mark.parametrize("notify,routed", [("exit", [True]), ("never", [False]), ("failure", [False])])
def test_an_owner_that_declined_the_end_is_not_notified_of_it(world: World, notify: Any, routed: list[bool]) -> None:
    hf = world.open()
    handle = over(hf.daemons.thread(lambda _handle: None, notify=notify))
    assert [record["routed"] for record in records(world, handle.id) if "lifecycle" in record][1:] == routed


def test_a_host_that_closes_ends_its_daemons_and_waits_for_them(world: World) -> None:
    with holdfast.open(author="host-1") as hf:
        thread = hf.daemons.thread(wait_for_stop)
    assert thread.thread is not None
    thread.thread.join(BOUND_S)
    assert not thread.thread.is_alive()

    async def main() -> str:
        async with holdfast.open_async(author="host-1") as hf:
            return hf.daemons.task(asyncio.Event().wait()).id

    for id in (thread.id, asyncio.run(main())):
        shot = world.open().daemons.get(id)
        assert shot.exit is not None
        assert (shot.status, shot.exit.cause, shot.exit.by) == ("killed", "owner_gone", "host-1")
        assert shot.exit.survivors == []
    with pytest.raises(ShuttingDown):
        hf.daemons.thread(lambda _handle: None)
    thread.line("said too late")
    assert thread.report("too late") is False


def test_a_blocking_host_inside_an_event_loop_does_not_wait_for_what_it_holds_up(world: World) -> None:
    async def main() -> str:
        with holdfast.open() as hf:
            handle = hf.daemons.task(asyncio.Event().wait())
        assert handle.task is not None
        await asyncio.wait([handle.task])
        assert handle.task.cancelled()
        return handle.id

    id = asyncio.run(main())
    assert [each["status"] for each in endings(world, id)] == ["killed"]


def test_changes_are_delivered_in_the_order_of_the_calls_however_late_the_loop_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, late = in_process.HostLoop._turn, threading.Event()
    monkeypatch.setattr(in_process.HostLoop, "_turn", lambda host: turn(host) if late.is_set() else None)
    hf = world.open()
    ops: list[str] = []
    hf.daemons.observe(lambda change: ops.append(change.op))
    handle = hf.daemons.thread(wait_for_stop)
    handle.phase("reading")
    until(lambda: ops[-1:] == ["phase:reading"], what="the phase")
    assert ops == ["added", "running", "phase:reading"]
    late.set()
    handle.stop()
    over(handle)


@pytest.mark.covers("signals:38")
def test_observers_find_the_signal_on_disk_and_the_wake_comes_after_them(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hf = world.open()
    order: list[str] = []
    done = threading.Event()
    real = wake.hosts

    def call(runtime: str, owner: str | None, session: str | None, seq: int) -> None:
        order.append(f"wake {seq}")
        real(runtime, owner, session, seq)
        if seq == 2:
            done.set()

    monkeypatch.setattr(wake, "hosts", call)

    def look(change: Change) -> None:
        if change.op == "completed":
            assert change.snapshot is not None
            assert (change.snapshot.status, change.domain) == ("completed", "daemons")
            assert len(endings(world, change.id)) == 1
            # An observer may ask about the daemon of its change.
            assert hf.daemons.get(change.id).status == "completed"
            order.append("observed")

    def refuse(_change: Change) -> None:
        order.append("raised")
        raise ValueError("an observer's own trouble")

    hf.daemons.observe(lambda change: refuse(change) if change.op == "completed" else None)
    hf.daemons.observe(look)
    handle = hf.daemons.thread(lambda _handle: None)
    assert done.wait(BOUND_S)
    over(handle)
    assert order == ["wake 1", "raised", "observed", "wake 2"]
    assert "an observer's own trouble" in caplog.text


def test_a_name_belongs_to_one_at_a_time_session_or_daemon(world: World) -> None:
    hf = world.open()
    release = threading.Event()
    handle = hf.daemons.thread(lambda _handle: release.wait(), name="one")
    with pytest.raises(NameTaken):
        hf.daemons.thread(lambda _handle: None, name="one")
    with pytest.raises(NameTaken):
        hf.start("true", name="one")
    release.set()
    over(handle)
    again = over(hf.daemons.thread(lambda _handle: None, name="one"))
    assert hf.get("one").id == again.id


def test_what_cannot_be_run_inside_a_host_is_refused_before_anything_exists(world: World) -> None:
    hf = world.open()
    with pytest.raises(BadArgument, match="run by a runner"):
        hf.daemons.thread(lambda _handle: None, kind="local_bash")
    coroutine = _return()
    with pytest.raises(BadArgument, match="running event loop"):
        hf.daemons.task(coroutine)
    with pytest.raises(BadArgument, match="notify"):
        hf.daemons.thread(lambda _handle: None, notify="loudly")  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="not text"):
        over(hf.daemons.thread(lambda _handle: None)).line(7)  # type: ignore[arg-type]
    assert len(os.listdir(world.home / "sessions")) == 1


def test_a_disk_that_refuses_the_record_refuses_the_daemon(world: World, points: Points) -> None:
    hf = world.open()
    points.set("records.create=error:ENOSPC", here=True)
    ran = threading.Event()
    with pytest.raises(DiskFull):
        hf.daemons.thread(lambda _handle: ran.set())
    points.clear()
    assert not ran.is_set()
    assert os.listdir(world.home / "sessions") == []


def test_an_unknown_kind_is_listed_stopped_and_read_like_the_others(world: World) -> None:
    hf = world.open()

    def work(handle: Handle) -> None:
        handle.line("odd")
        wait_for_stop(handle)

    handle = hf.daemons.thread(work, kind="of_next_year")
    assert handle.id.startswith("x")
    assert [each.kind for each in hf.daemons.list()] == ["of_next_year"]
    hf.daemons.stop(handle.id)
    over(handle)
    assert hf.daemons.output(handle.id).text == "odd\n"


def test_long_results_are_kept_whole_for_any_caller_and_short_in_the_signal(world: World) -> None:
    hf = world.open()
    handle = over(hf.daemons.thread(lambda _handle: "x" * 10_000, kind="local_agent"))
    assert hf.daemons.output(handle.id).text == "x" * 10_000
    summary = records(world, handle.id)[-1]["snapshot"]["metadata"]["summary"]
    assert summary == "x" * 2000 + " ...[8000 characters cut]"


def test_a_host_that_does_not_answer_is_not_signalled_for_its_daemon(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = world.host(
        "import holdfast, threading\n"
        "hf = holdfast.open()\n"
        "print(hf.daemons.thread(lambda handle: threading.Event().wait()).id)\n"
        "threading.Event().wait()\n"
    )
    id = host.line()
    halt(host.pid)
    monkeypatch.setenv("HOLDFAST_HOSTS_REPLY_TIMEOUT", "0.2")
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", "0.2")
    hf = world.open()
    (shot,) = hf.daemons.list()
    assert (shot.state, shot.status) == ("unreachable", "running")
    with pytest.raises(Unreachable) as silent:
        hf.daemons.stop(id)
    assert silent.value.pid == host.pid
    assert host.returncode is None
    host.signal(signal.SIGCONT)
    until(lambda: hf.daemons.list()[0].state == "running", what="an answer")
    host.kill()
    os.unlink(world.runtime / f"{id}.sock")


def test_a_record_that_names_neither_a_runner_nor_a_host_is_damaged(world: World) -> None:
    hf = world.open()
    handle = over(hf.daemons.thread(lambda _handle: None))
    path = world.session(handle.id) / "state.json"
    state = json.loads(path.read_text())
    del state["check"]
    for wrong in ({**state, "runner": "moon"}, {**state, "host": None}, {**state, "host": {"pid": "x", "start": 1}}):
        path.write_text(json.dumps(wrong))
        with pytest.raises(DamagedRecord):
            hf.daemons.get(handle.id)
