"""Problems that agents met: which signals wake, which calls become daemons, and the names that programs import."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from holdfast.tools import evva
from holdfast.tools.evva import Change, DaemonState
from support import lsp_server, signal_file
from support.agents import Agent
from support.own_daemon import OWNER, Own
from support.scale import scaled
from support.waiting import turn, until, wait_for_file
from support.world import World

Library = Callable[..., Agent]


class Bell:
    """Rings for every wake."""

    def __init__(self) -> None:
        self.rung = threading.Event()
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self.rung.set()


def settled_end(world: World, id: str) -> None:
    """Until its end is on record and its runner has left: then it is decided whether the end is in the queue."""
    until(lambda: signal_file.endings(world, id), what="the end")
    endpoint = world.runtime / f"{id}.sock"
    until(lambda: not endpoint.exists(), watch=world.runtime, what="the end of the runner")


@pytest.mark.covers("found:13")
@pytest.mark.parametrize("moment", ["running", "starting"])
def test_a_cancelled_foreground_command_causes_no_wake_and_is_no_daemon(
    library: Library, world: World, moment: str
) -> None:
    agent = library("evva", OWNER)
    state = world.closing.enter_context(DaemonState(world.open(), OWNER))
    bell, changes = Bell(), list[Change]()
    state.set_wake(bell)
    state.subscribe(changes.append)
    began = world.cwd / "began"

    async def cancelled() -> None:
        call = asyncio.ensure_future(agent.tools.call("bash", {"command": f"echo x; touch {began}; exec sleep 600"}))
        if moment == "running":
            await asyncio.to_thread(wait_for_file, began)
        else:
            await turn()
        call.cancel()
        with pytest.raises(asyncio.CancelledError, match="bash: cancelled"):
            await call

    agent.run(cancelled())
    for session in agent.run(agent.hf.sessions(all=True)):
        settled_end(world, session.id)
        assert signal_file.endings(world, session.id)[0]["lifecycle"]["cause"] == "owner_gone"
    assert not state.has_pending()
    assert state.snapshot() == []
    assert agent.call("daemon_list", include_terminal=True).text == "no daemons"
    # What comes now does wake: the bell works, and rang for nothing else before.
    own = Own("w00000001")
    state.register(own)
    state.emit(evva.new_lifecycle_signal(own, "completed"))
    assert bell.rung.wait(30)
    assert bell.count == 1
    assert {change.id for change in changes} == {own.id}


@pytest.mark.covers("found:13")
def test_a_server_that_becomes_healthy_causes_no_wake_and_one_that_fails_and_recovers_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_RESTART_DELAY", "10ms")
    state = world.closing.enter_context(DaemonState(world.open(), OWNER))
    bell = Bell()
    state.set_wake(bell)
    server = state.start_lsp(lsp_server.argv(), server="toy")
    assert server.request("echo", 1) == 1
    until(lambda: healths(world, server.id) == ["healthy"])
    assert not state.has_pending()
    # A signal behind it: had the server's health rung the bell, this would be its second ring.
    own = Own("w00000002")
    state.register(own)
    state.emit(evva.new_event_signal(own, "a line"))
    assert bell.rung.wait(30)
    assert bell.count == 1
    state.drain_signals().settle()
    bell.rung.clear()
    pid = world.open().get(server.id).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert bell.rung.wait(30), "it failed"
    until(lambda: healths(world, server.id) == ["healthy", "unhealthy", "healthy"])
    variants: list[str] = []

    def both() -> bool:
        with state.fold() as fold:
            variants.extend(each.event.variant for each in fold.batch if each.event is not None)
            texts.append(fold.text)
        return variants.count("health") == 2

    texts: list[str] = []
    until(both, what="that it failed and recovered")
    assert "ready" not in variants
    server.stop()


def healths(world: World, id: str) -> list[str]:
    return [each["health"]["state"] for each in signal_file.of(world, id, "health")]


@pytest.mark.covers("found:13")
def test_a_health_probe_wakes_only_for_a_failure_and_a_recovery(world: World) -> None:
    hf = world.open()
    sick = world.cwd / "sick"
    probe = {"command": f"test ! -e {sick}", "interval": 5, "misses": 1}
    session = hf.start("sleep 600", owner=OWNER, health=probe)
    until(lambda: healths(world, session.id) == ["healthy"])
    assert hf.signals(OWNER).pending() == 0
    sick.touch()
    until(lambda: healths(world, session.id) == ["healthy", "unhealthy"])
    until(lambda: hf.signals(OWNER).pending() == 1, what="the failure")
    sick.unlink()
    until(lambda: healths(world, session.id) == ["healthy", "unhealthy", "healthy"])
    until(lambda: hf.signals(OWNER).pending() == 2, what="the recovery")
    assert [each["routed"] for each in signal_file.of(world, session.id, "health")] == [False, True, True]
    session.stop(grace=0)


@pytest.mark.covers("found:14")
def test_a_process_left_behind_wakes_the_agent_and_is_not_named_twice(library: Library, world: World) -> None:
    agent = library("evva", OWNER)
    state = world.closing.enter_context(DaemonState(world.open(), OWNER))
    bell = Bell()
    state.set_wake(bell)
    answer = agent.call("bash", command="echo said before; sleep 600 & echo pid $!")
    id = answer.data["daemon_id"]
    assert f"1 process it left behind still runs: daemon_stop {id} ends it" in answer.text
    assert bell.rung.wait(30), "the signal is pending and caused no wake"
    assert state.has_pending()
    fold = state.fold()
    (one,) = fold.batch
    assert one.event is not None
    assert (one.daemon_id, one.event.variant) == (id, "survivors")
    for said in ("said before", "left", "process", "sleep 600", "exit", "stop", answer.data["output"].split()[-1]):
        assert said not in one.event.line
        assert said not in fold.text.partition("\n")[2]
    assert id in fold.text
    fold.batch.settle()
    assert [shot.id for shot in state.snapshot()] == [id]
    agent.call("daemon_stop", daemon_id=id)
    until(lambda: state.snapshot() == [])


@pytest.mark.covers("found:14")
def test_a_process_left_behind_is_named_if_no_answer_named_it(library: Library, world: World) -> None:
    """The host died before it could answer: the notice is all that the agent gets."""
    host = world.host(
        "import asyncio, holdfast\n"
        "from holdfast.tools import toolset\n"
        "async def main():\n"
        "    async with holdfast.open_async() as hf:\n"
        f"        tools = toolset('evva', hf, owner={OWNER!r})\n"
        "        tools._ended = lambda *_: print('ended', flush=True) or asyncio.Event().wait()\n"
        "        await tools.call('bash', {'command': 'sleep 600 & echo x'})\n"
        "asyncio.run(main())\n"
    )
    assert host.line() == "ended"
    host.kill()
    state = library("evva", OWNER).tools.state
    (shot,) = until(state.snapshot)
    assert shot.survivors == 1
    until(lambda: "sleep 600" in state.fold().text)
    world.open().get(shot.id).stop(grace=0)


@pytest.mark.covers("found:15")
def test_programs_find_the_names_that_they_import() -> None:
    assert evva.names() == ["daemon_list", "daemon_output", "daemon_stop"]
    assert set(evva.names()) < {tool.name for tool in evva.Evva.tools}
    assert [evva.is_terminal(each) for each in evva.STATUSES] == [False, False, True, True, True]
    assert not evva.is_terminal("unheard of")
    assert (evva.OP_ADDED, evva.OP_REMOVED, evva.OP_EVENT, evva.DOMAIN) == ("added", "removed", "event", "daemons")
    kinds = ["local_bash", "monitor", "local_agent", "lsp"]
    kinds += ["remote_agent", "in_process_teammate", "local_workflow", "dream"]
    assert [getattr(evva, f"KIND_{kind.upper()}") for kind in kinds] == kinds == list(evva.KINDS)
    statuses = ["pending", "running", "completed", "failed", "killed"]
    assert [getattr(evva, f"STATUS_{status.upper()}") for status in statuses] == statuses == list(evva.STATUSES)
    assert set(evva.__all__) <= set(dir(evva))


@pytest.mark.covers("found:15")
def test_signals_of_a_host_are_made_by_two_functions_and_a_stop_has_two_errors(world: World) -> None:
    state = world.closing.enter_context(DaemonState(world.open(), OWNER))
    changes: list[str] = []
    state.subscribe(lambda change: changes.append(change.op))
    own = Own("w00000003")
    state.register(own)
    state.emit(evva.new_event_signal(own, "one line", False))
    state.emit(evva.new_event_signal(own, "", True))
    own.status = "failed"
    state.emit(evva.new_lifecycle_signal(own, "failed"))
    line, closing, end = until(state.drain_signals)
    assert line.event is not None
    assert closing.event is not None
    assert end.lifecycle is not None
    assert end.snapshot is not None
    assert (line.is_event, line.event.line, line.event.closing, line.kind) == (True, "one line", False, "webcam")
    assert (closing.event.line, closing.event.closing) == ("", True)
    assert (end.is_lifecycle, end.lifecycle.status, end.snapshot.status) == (True, "failed", "failed")
    assert evva.OP_ADDED in changes
    with pytest.raises(evva.NotFound):
        state.stop("bnosuch00")
    with pytest.raises(evva.AlreadyEnded) as ended:
        state.stop(own.id)
    assert ended.value.status == "failed"
    assert issubclass(evva.NotFound, HoldfastError)


@pytest.mark.covers("found:15")
def test_a_long_line_of_a_monitor_is_one_event(library: Library, world: World) -> None:
    agent = library("evva", OWNER)
    size = 5_000_000
    line = f"head -c {size} /dev/zero | tr '\\0' x; echo; echo after"
    answer = agent.call("monitor", command=line, description="long", persistent=True, timeout_ms=0)
    id = answer.data["daemon_id"]
    until(lambda: signal_file.endings(world, id), 30)
    texts: list[str] = []

    def ended() -> bool:
        with agent.tools.state.fold() as fold:
            texts.append(fold.text)
        return f"daemon {id} [monitor] completed, events=2" in fold.text

    until(ended)
    (record,) = signal_file.endings(world, id)
    assert record["lifecycle"]["events"]["count"] == 2
    notices = [each["event"] for each in signal_file.of(world, id, "event")]
    assert sum(each["count"] for each in notices) == 2
    assert all("goes_on" not in line for each in notices for line in each["lines"])
    assert any(" goes on; " in line["text"] for each in notices for line in each["lines"])
    assert "after" in "".join(texts)
    assert "events=2" in agent.call("daemon_output", daemon_id=id).text
    shot = agent.tools.state.recall(id).snapshot()
    assert shot.metadata.event_count == 2


@pytest.mark.covers("found:15")
def test_a_language_server_keeps_its_start_through_restarts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_RESTART_DELAY", "10ms")
    state = world.closing.enter_context(DaemonState(world.open(), OWNER))
    server = state.start_lsp(lsp_server.argv(), server="toy")
    assert server.request("echo", 1) == 1
    (before,) = state.snapshot_by_kind("lsp")
    for restart in range(1, scaled(2, 3)):
        pid = world.open().get(server.id).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda restart=restart: server.restarts == restart)  # type: ignore[misc]
        assert server.request("echo", restart) == restart
    (after,) = state.snapshot_by_kind("lsp")
    assert after.started_at == before.started_at
    server.stop()
    assert state.recall(server.id).snapshot().started_at == before.started_at  # type: ignore[union-attr]


@pytest.mark.covers("found:15")
def test_the_output_of_a_crashed_agent_shows_its_error(library: Library) -> None:
    agent = library("evva", OWNER)

    async def crash() -> str:
        async def work() -> None:
            raise RuntimeError("no such model")

        spawned = agent.tools.state.spawn_agent(work(), name="one", agent_type="explorer", prompt="look around")
        await asyncio.wait([spawned.task])
        return str(spawned.id)

    text = agent.call("daemon_output", daemon_id=agent.run(crash())).text
    assert "[subagent crushed]" in text
    assert "\nerror: " in text
    assert "no such model" in text


@pytest.mark.covers("found:15")
def test_a_call_takes_json_text_and_the_empty_string(library: Library) -> None:
    agent = library("evva", OWNER)

    def call(tool: str, arguments: object) -> Any:
        return agent.run(agent.tools.call(tool, arguments))

    assert call("bash", json.dumps({"command": "echo hi"})).text == "hi\n"
    assert call("bash", b'{"command": "echo hi"}').text == "hi\n"
    nothings: tuple[object, ...] = ("", "  ", "{}", "null", None, {})
    for nothing in nothings:
        assert call("daemon_list", nothing).text == "no daemons"
    assert call("bash", "").text == "bash: command is required"
    for wrong in ("{", "[1]", '"x"', "7", "[" * 100_000):
        answer = call("daemon_list", wrong)
        assert answer.error, wrong
        assert answer.text.startswith("daemon_list: decode: "), answer.text
