"""One list, one stop, one output, one set of observers over sessions and in-process daemons."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.daemons.handle import Handle
from holdfast.daemons.observers import Change
from holdfast.errors import AlreadyEnded, BadArgument, NotFound
from support import lsp_server
from support.points import Points
from support.signal_file import endings
from support.waiting import BOUND_S, until
from support.world import World


class Noted:
    """Changes as an observer got them, with a way to wait for one."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._came = threading.Condition()

    def __call__(self, change: Change) -> None:
        with self._came:
            self.changes.append(change)
            self._came.notify_all()

    def ops(self, id: str) -> list[str]:
        return [change.op for change in self.changes if change.id == id]

    def wait(self, id: str, op: str) -> Change:
        def found() -> Change | None:
            return next((each for each in self.changes if (each.id, each.op) == (id, op)), None)

        with self._came:
            assert self._came.wait_for(lambda: found() is not None, BOUND_S), f"no {op} of {id}: {self.changes}"
        change = found()
        assert change is not None
        return change


def wait_for_stop(handle: Handle) -> None:
    stop = threading.Event()
    handle.on_stop(stop.set)
    assert stop.wait(BOUND_S)


def test_sessions_and_daemons_are_in_one_list_by_their_start(world: World) -> None:
    hf = world.open()
    first = hf.start(world.probe("forever"), owner="conv-1")
    second = hf.daemons.thread(wait_for_stop, owner="conv-1")
    third = hf.start(world.probe("forever"), owner="conv-2", tty=True)
    done = hf.run(world.probe("say", "done", "exit", "3"), owner="conv-1")
    assert [shot.id for shot in hf.daemons.list()] == [first.id, second.id, third.id]
    assert [shot.id for shot in hf.daemons.list(owner="conv-1")] == [first.id, second.id]
    assert [shot.id for shot in hf.daemons.list("terminal")] == [third.id]
    everything = hf.daemons.list(include_terminal=True)
    assert [shot.id for shot in everything] == [first.id, second.id, third.id, done.id]
    assert everything[-1].metadata["exit_code"] == 3
    assert [shot.in_process for shot in everything] == [False, True, False, False]

    async def same() -> list[str]:
        async with holdfast.open_async() as other:
            return [shot.id for shot in await other.daemons.list(include_terminal=True)]

    assert asyncio.run(same()) == [shot.id for shot in everything]
    for id in (first.id, third.id, second.id):
        assert hf.daemons.stop(id).status == "running"
    for id in (first.id, third.id):
        hf.get(id).wait()
    until(lambda: hf.daemons.list() == [], what="the end of all")


def test_a_stop_returns_what_was_before_and_when_it_was_accepted(world: World) -> None:
    hf = world.open()
    session = hf.start(world.probe("ignore", "TERM", "say", "deaf", "forever"), grace=0.1)
    session.wait(match="deaf")
    before = hf.daemons.stop(session.id, by="another")
    assert (before.id, before.status, before.stopping, before.exit) == (session.id, "running", None, None)
    session.wait(timeout=BOUND_S)
    shot = hf.daemons.get(session.id)
    assert shot.exit is not None
    assert (shot.status, shot.exit.by) == ("killed", "another")
    with pytest.raises(AlreadyEnded):
        hf.daemons.stop(session.id)
    with pytest.raises(NotFound):
        hf.daemons.stop("nothing-like-it")


def test_survivors_of_an_ended_session_are_stopped(world: World) -> None:
    hf = world.open()
    session = hf.run(world.probe("fork", "{", "forever", "}", "exit", "0"))
    assert session.exit is not None
    assert len(session.exit.survivors) == 1
    assert [shot.id for shot in hf.daemons.list()] == [session.id]
    assert hf.daemons.stop(session.id).status == "completed"
    until(lambda: hf.daemons.list() == [], what="the end of the survivor")


def test_output_is_the_kinds_text_bounded_and_from_a_cursor_on(world: World) -> None:
    hf = world.open()
    session = hf.run(world.probe("quiet", "lines", "5000"))
    whole = hf.daemons.output(session.id)
    assert whole.text.endswith("line 4999\nline 5000\n")
    assert whole.cut == 0
    assert hf.daemons.output(session.id, tail=2).text == "line 4999\nline 5000\n"
    first = hf.daemons.output(session.id, since=0)
    assert first.text.startswith("line 1\nline 2\n")
    long = hf.run(world.probe("quiet", "lines", "20000"))
    tail = hf.daemons.output(long.id)
    assert len(tail.text) <= 64 << 10
    assert tail.cut == long.ends["stdout"] - len(tail.text)
    page = hf.daemons.output(long.id, since=0)
    assert page.more
    rest = page.text
    while page.more:
        page = hf.daemons.output(long.id, since=page.cursor)
        rest += page.text
    assert rest == long.text()
    with pytest.raises(BadArgument):
        hf.daemons.output(long.id, tail=0)


def test_observers_hear_of_sessions_that_any_host_starts_from_then_on(world: World) -> None:
    hf = world.open()
    before = hf.start(world.probe("forever"))
    noted = Noted()
    leave = hf.daemons.observe(noted)
    with holdfast.open() as other:
        session = other.start(world.probe("forever"), owner="conv-9")
        noted.wait(session.id, "running")
        other.get(before.id).stop()
        session.stop()
    ended = noted.wait(session.id, "killed")
    assert noted.ops(session.id) == ["added", "running", "killed"]
    assert ended.snapshot is not None
    assert (ended.snapshot.owner, ended.snapshot.status, ended.snapshot.in_process) == ("conv-9", "killed", False)
    noted.wait(before.id, "killed")
    assert noted.ops(before.id) == ["killed"], "no change from before is reported"
    leave()
    hf.run(world.probe("exit", "0"))
    assert noted.ops("last") == []
    count = len(noted.changes)
    hf.close()
    assert len(noted.changes) == count


def test_observers_of_a_monitor_see_it_as_it_was_at_each_change(world: World) -> None:
    hf = world.open()
    noted = Noted()
    hf.daemons.observe(noted)
    session = hf.start(world.probe("say", "one", "say", "two"), kind="monitor", monitor={"limit": 300})
    ended = noted.wait(session.id, "completed").snapshot
    assert ended is not None
    assert [ended.metadata[name] for name in ("events", "suppressed", "level", "persistent")] == [3, 0, "live", False]
    now = hf.daemons.get(session.id).metadata
    assert {name: ended.metadata[name] for name in ("deadline", "command")} == {
        name: now[name] for name in ("deadline", "command")
    }
    assert [now[name] for name in ("events", "suppressed", "level", "persistent")] == [3, 0, "live", False]
    (record,) = endings(world, session.id)
    assert record["snapshot"]["metadata"]["deadline"] == now["deadline"]


def test_observers_of_a_language_server_see_the_state_it_had_at_each_change(world: World) -> None:
    hf = world.open()
    noted = Noted()
    hf.daemons.observe(noted)
    server = hf.daemons.lsp(lsp_server.argv(), server="toy")
    server.request("echo", "x")
    shots = [noted.wait(server.id, op).snapshot for op in ("running", "ready", "health")]
    assert [shot and shot.metadata["state"] for shot in shots] == ["starting", "running", "running"]
    server.stop()


def test_observers_hear_of_daemons_inside_another_host(world: World) -> None:
    hf = world.open()
    noted = Noted()
    hf.daemons.observe(noted)
    host = world.host(
        "import holdfast\n"
        "with holdfast.open() as hf:\n"
        "    print(hf.daemons.thread(lambda handle: handle.line('x') or handle.report('fine')).id)\n"
        "    input()\n"
    )
    id = host.line()
    completed = noted.wait(id, "completed")
    assert noted.ops(id) == ["added", "running", "event", "completed"]
    assert completed.snapshot is not None
    assert completed.snapshot.in_process
    assert completed.snapshot.metadata["summary"] == "fine"
    host.send("\n")
    assert host.wait() == 0


def test_an_unreachable_and_a_removed_session_are_each_reported_once(world: World, points: Points) -> None:
    points.set("runner.answered=pause")
    hf = world.open(config=_impatient())
    noted = Noted()
    hf.daemons.observe(noted)
    session = hf.start(world.probe("forever"))
    paused = points.wait("runner.answered")
    for _ in range(2):
        (shot,) = hf.daemons.list()
        assert (shot.state, shot.status) == ("unreachable", "running")
    assert noted.wait(session.id, "unreachable").snapshot is not None
    paused.release()
    until(lambda: hf.daemons.list()[0].state == "running", what="an answer")
    session.kill()
    assert noted.ops(session.id).count("unreachable") == 1
    hf.daemons.list(include_terminal=True)
    session.remove()
    hf.daemons.list()
    noted.wait(session.id, "removed")


def _impatient() -> Any:
    from holdfast.config import load

    return load({**os.environ, "HOLDFAST_HOSTS_SWEEP_TIMEOUT": "0.2"})


@pytest.mark.covers("signals:38")
def test_at_observer_time_the_signal_can_be_claimed_and_is_drained_with_all_others(world: World) -> None:
    hf = world.open()
    claimed: list[str] = []
    done = threading.Event()

    def claim(change: Change) -> None:
        if change.op == "failed":
            with hf.signals("conv-1").claim() as batch:
                claimed.extend(signal.id for signal in batch)
            done.set()

    hf.daemons.observe(claim)
    session = hf.start("echo hello; exit 0", owner="conv-1")
    session.wait()
    until(lambda: endings(world, session.id), what="the ending")

    def fail(_handle: Handle) -> None:
        raise ValueError("no luck")

    handle = hf.daemons.thread(fail, owner="conv-1")
    assert done.wait(BOUND_S)
    handle.settled.result(BOUND_S)
    assert claimed == [hf.get(session.id).metadata["signal_id"], f"{handle.id}.2"]
    assert not hf.signals("conv-1").pending()


@pytest.mark.covers("signals:38")
def test_a_lost_daemon_is_reported_once_by_the_next_host_that_looks(world: World) -> None:
    host = world.host(
        "import holdfast, threading\n"
        "def work(handle):\n"
        "    handle.line('at work')\n"
        "    threading.Event().wait()\n"
        "hf = holdfast.open()\n"
        "print(hf.daemons.thread(work, owner='conv-2').id)\n"
        "threading.Event().wait()\n"
    )
    id = host.line()
    hf, other = world.open(), world.open()
    inbox = hf.signals("conv-2")
    with inbox.waker() as waker:
        assert waker.wait(BOUND_S), "its line"
        with inbox.claim() as batch:
            assert [signal.variant for signal in batch] == ["event"]
        host.kill()
        assert waker.wait(BOUND_S), "the death of its host wakes the waiter"
    with inbox.claim() as batch:
        ended = [signal for signal in batch if signal.variant == "lifecycle"]
    assert [(each.session, each.fields["status"], each.fields["cause"], each.fields["code"]) for each in ended] == [
        (id, "failed", "lost", None)
    ]
    assert not inbox.pending()
    assert not other.signals("conv-2").pending()
    (shot,) = hf.daemons.list(include_terminal=True)
    assert (shot.status, shot.exit and shot.exit.cause) == ("failed", "lost")
    os.unlink(world.runtime / f"{id}.sock")


def test_the_drain_reports_an_agents_result_and_a_tasks_lines(world: World) -> None:
    hf = world.open()
    agent = hf.daemons.thread(lambda _handle: "found 3 bugs", kind="local_agent", owner="conv-3")
    agent.settled.result(BOUND_S)
    task = hf.daemons.thread(lambda handle: handle.line("step one"), owner="conv-3")
    task.settled.result(BOUND_S)
    with hf.signals("conv-3").drain() as message:
        assert f"{agent.id} [local_agent]" in message.text
        assert "| found 3 bugs" in message.text
        assert "| step one" in message.text
        assert f"{task.id} [local_task]" in message.text


@pytest.mark.parametrize("way", ["list", "get", "output"])
def test_looking_acknowledges_nothing(world: World, way: str) -> None:
    hf = world.open()
    handle = hf.daemons.thread(lambda _handle: "x", owner="conv-4")
    handle.settled.result(BOUND_S)
    looks: dict[str, Callable[[], object]] = {
        "list": lambda: hf.daemons.list(include_terminal=True),
        "get": lambda: hf.daemons.get(handle.id),
        "output": lambda: hf.daemons.output(handle.id),
    }
    inbox = hf.signals("conv-4")
    assert inbox.pending() == 1
    for _ in range(10):
        looks[way]()
    assert inbox.pending() == 1
