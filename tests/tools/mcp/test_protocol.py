"""The server and the official client, in one process and over pipes: tools, progress, cancellation, resources."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from mcp.client.subscriptions import ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types import ToolAnnotations

import holdfast
from holdfast.tools import TOOLSETS
from holdfast.tools import toolset as families
from holdfast.tools.mcp.server import Bridge
from support import processes
from support.faults import halt
from support.mcp_clients import Ear, connected, server, text
from support.own_time import OwnTime
from support.scale import LONG
from support.waiting import BOUND_S

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from support.world import World

ERAS = ["legacy", "2026-07-28"]
# What the contract says, and twice that: the machine may be busy.
CANCELLED_S = 0.1
# What clients of today do is no longer what they should.
of_today = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")


def bridge(hf: holdfast.AsyncHoldfast, owner: str = "agent-7") -> Server[None]:
    return Bridge(families("native", hf, owner=owner)).server()


@pytest.mark.parametrize("era", ERAS)
def test_tools_are_listed_with_what_they_may_do(world: World, era: str) -> None:
    async def main() -> None:
        async with holdfast.open_async() as hf, connected(bridge(hf), era) as client:
            listed = {tool.name: tool for tool in (await client.list_tools()).tools}
            hints = {name: tool.annotations or ToolAnnotations() for name, tool in listed.items()}
            assert {name for name, hint in hints.items() if hint.read_only_hint} == {"read", "wait", "screen", "list"}
            assert {name for name, hint in hints.items() if hint.destructive_hint} == {"run", "send", "stop"}
            assert hints["stop"].idempotent_hint
            assert {name for name, hint in hints.items() if hint.open_world_hint} == {"run", "send"}

    asyncio.run(main())


@pytest.mark.parametrize("era", ERAS)
def test_an_answer_is_text_and_the_same_facts_and_an_error_is_marked(world: World, era: str) -> None:
    async def main() -> None:
        async with holdfast.open_async() as hf, connected(bridge(hf), era) as client:
            done = await client.call_tool("run", {"command": "echo hi"})
            assert "hi" in text(done)
            assert not done.is_error
            assert isinstance(done.structured_content, dict)
            wrong = await client.call_tool("read", {"id": "nothing"})
            assert wrong.is_error
            assert "nothing" in text(wrong)

    asyncio.run(main())


@pytest.mark.covers("native:22", "found:33")
@pytest.mark.parametrize("era", ERAS)
def test_while_a_call_waits_the_last_line_is_reported(world: World, era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sys.modules["holdfast.tools.base"].PROGRESS_S <= 5.0, "at least twice in a wait of 10 s"
    if not LONG:
        monkeypatch.setattr(sys.modules["holdfast.tools.base"], "PROGRESS_S", 0.1)
    gate = world.gate()
    told: list[str | None] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)
        if message == "half way":
            gate.release()

    async def main() -> None:
        async with holdfast.open_async() as hf, connected(bridge(hf), era) as client:
            started = await client.call_tool(
                "run", {"command": world.probe("say", "half way", "await", gate), "wait_s": 0, "name": "job"}
            )
            assert not started.is_error, text(started)
            done = await client.call_tool("wait", {"ids": ["job"], "timeout_s": 20}, progress_callback=progress)
            assert "exit 0" in text(done)

    asyncio.run(main())
    assert "half way" in told


@pytest.mark.covers("native:22", "found:33")
@pytest.mark.parametrize("era", ERAS)
def test_a_cancelled_call_ends_the_waiting_at_once_and_not_the_command(world: World, era: str) -> None:
    gate = world.gate()

    async def main() -> None:
        async with holdfast.open_async() as hf, connected(bridge(hf), era) as client:
            await client.call_tool("run", {"command": world.probe("await", gate), "wait_s": 0, "name": "job"})
            waits = [asyncio.create_task(client.call_tool("wait", {"ids": ["job"], "timeout_s": 60})) for _ in range(5)]
            async with asyncio.timeout(BOUND_S):
                while _waiting() < 5:
                    await client.call_tool("list", {})
            passed = OwnTime(os.getpid())
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            assert all(each.cancelled() for each in waits)
            async with asyncio.timeout(BOUND_S):
                while _waiting():
                    await asyncio.to_thread(os.sched_yield)
            took = passed.seconds()
            assert took < CANCELLED_S, f"the server waited on for {took:.3f} s"
            assert (await hf.get("job")).state == "running"
            gate.release()
            assert "exit 0" in text(await client.call_tool("wait", {"ids": ["job"]}))

    asyncio.run(main())


def _waiting() -> int:
    """How many calls of tools the server is in."""
    return sum(getattr(task.get_coro(), "__qualname__", "") == "Toolset.call" for task in asyncio.all_tasks())


def _uri(session: str, what: str = "log") -> str:
    return f"holdfast://sessions/{session}/{what}"


@pytest.mark.parametrize("era", ERAS)
def test_sessions_logs_and_screens_are_resources_of_their_owner(world: World, era: str) -> None:
    async def main() -> None:
        async with holdfast.open_async() as hf, connected(bridge(hf), era) as client:
            mine = await hf.run("echo mine", owner="agent-7", name="mine")
            theirs = await hf.run("echo theirs", owner="agent-8", name="theirs")
            listed = {str(each.uri) for each in (await client.list_resources()).resources}
            assert listed == {"holdfast://sessions", "holdfast://signals", _uri(mine.id)}
            templates = (await client.list_resource_templates()).resource_templates
            assert {each.uri_template for each in templates} == {_uri("{id}"), _uri("{id}", "screen")}
            for ref in (mine.id, "mine"):
                (log,) = (await client.read_resource(_uri(ref))).contents
                assert getattr(log, "text", "") == "mine\n"
            (sessions,) = (await client.read_resource("holdfast://sessions")).contents
            told = json.loads(getattr(sessions, "text", ""))
            assert ([each["id"] for each in told["sessions"]], told["left_out"]) == ([mine.id], 0)
            for uri in (_uri(theirs.id), _uri("theirs"), _uri("none"), _uri(mine.id, "other"), "holdfast://else"):
                with pytest.raises(MCPError) as refused:
                    await client.read_resource(uri)
                assert refused.value.error.data["code"] == "not-found"

    asyncio.run(main())


def test_what_runs_is_listed_before_many_that_ended_after_it_began(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["holdfast.tools.mcp.resources"], "_LISTED", 4)

    async def main() -> None:
        async with holdfast.open_async() as hf, connected(bridge(hf)) as client:
            gate = world.gate()
            lives = await hf.start(world.probe("forever"), owner="agent-7")
            left = await hf.run(world.probe("daemon", "{", "await", gate, "}"), owner="agent-7")
            assert left.exit is not None
            assert left.exit.survivors
            ended = [await hf.run("true", owner="agent-7") for _ in range(4)]
            listed = [str(each.uri) for each in (await client.list_resources()).resources]
            wanted = [lives.id, left.id, ended[2].id, ended[3].id]
            assert listed[2:] == [_uri(id) for id in wanted]
            (sessions,) = (await client.read_resource("holdfast://sessions")).contents
            told = json.loads(getattr(sessions, "text", ""))
            assert ([each["id"] for each in told["sessions"]], told["left_out"]) == (wanted, 2)
            gate.release()
            await lives.stop(0)
            await left.wait(extinct=True)

    asyncio.run(main())


def test_a_screen_is_a_resource_of_a_terminal(world: World) -> None:
    async def main() -> None:
        async with holdfast.open_async() as hf, connected(bridge(hf)) as client:
            shell = await hf.run(["printf", "\\033[2;3Hthere"], tty=True, owner="agent-7")
            assert _uri(shell.id, "screen") in {str(each.uri) for each in (await client.list_resources()).resources}
            (screen,) = (await client.read_resource(_uri(shell.id, "screen"))).contents
            assert getattr(screen, "text", "").splitlines()[1] == "  there"

    asyncio.run(main())


@of_today
@pytest.mark.covers("native:22")
def test_a_client_that_subscribed_to_a_log_is_notified_of_new_output_and_of_the_end(world: World) -> None:
    gate = world.gate()

    async def main() -> None:
        ear = Ear()
        async with holdfast.open_async() as hf, connected(bridge(hf), message_handler=ear.message) as client:
            session = await hf.start(world.probe("await", gate, "say", "news", "await", gate), owner="agent-7")
            await session.wait(match="ready")
            await client.subscribe_resource(_uri(session.id))
            gate.release()
            assert (await _updated(ear)) == _uri(session.id)
            # Nothing is printed, so nothing is told: four times as long as two updates are apart.
            await ear.nothing(1)
            gate.release()
            assert (await _updated(ear)) == _uri(session.id)
            assert (await hf.get(session.id)).state == "exited"

    asyncio.run(main())


@of_today
@pytest.mark.covers("native:22")
@pytest.mark.parametrize("before", [True, False])
def test_a_subscriber_of_a_log_is_notified_of_output_after_the_end(world: World, before: bool) -> None:
    gate, end = world.gate(), world.gate()

    async def main() -> None:
        ear = Ear()

        async def update(message: Any) -> None:
            if getattr(message, "method", "") == "notifications/resources/updated":
                await ear.message(message)

        async with holdfast.open_async() as hf, connected(bridge(hf), message_handler=update) as client:
            words = ["daemon", "{", "await", gate, "say", "late", "await", gate, "}", "await", end]
            session = await hf.start(world.probe(*words), owner="agent-7")
            await session.wait(match="ready")
            if before:
                await client.subscribe_resource(_uri(session.id))
            end.release()
            await session.wait()
            if before:
                assert (await _updated(ear)) == _uri(session.id)
            else:
                await client.subscribe_resource(_uri(session.id))
            # Nobody is told again and again that it has ended.
            await ear.nothing(1)
            gate.release()
            assert (await _updated(ear)) == _uri(session.id)
            assert "late" in await (await hf.get(session.id)).tail(1)
            gate.release()
            await session.wait(extinct=True)

    asyncio.run(main())


@of_today
@pytest.mark.slow
@pytest.mark.covers("native:22")
def test_a_subscriber_of_a_log_is_notified_of_new_output_also_after_its_runner_was_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOSTS_REPLY_TIMEOUT", "0.3")
    gate = world.gate()

    async def main() -> None:
        ear = Ear()

        async def update(message: Any) -> None:
            if getattr(message, "method", "") == "notifications/resources/updated":
                await ear.message(message)

        async with holdfast.open_async() as hf, connected(bridge(hf), message_handler=update) as client:
            session = await hf.start(world.probe("await", gate, "say", "news", "await", gate), owner="agent-7")
            await session.wait(match="ready")
            assert session.runner_pid is not None
            # Before anybody waits there: a wait that it has taken on is not told that it stands still.
            halt(session.runner_pid)
            try:
                await client.subscribe_resource(_uri(session.id))
                assert (await _updated(ear)) == _uri(session.id)
                # Nobody is told again and again that it does not answer.
                await ear.nothing(2)
            finally:
                os.kill(session.runner_pid, signal.SIGCONT)
            gate.release()
            assert (await _updated(ear)) == _uri(session.id)
            assert "news" in await session.tail(1)
            gate.release()
            await session.wait()

    asyncio.run(main())


async def _updated(ear: Ear) -> str:
    while True:
        message = await ear.next()
        if getattr(message, "method", "") == "notifications/resources/updated":
            return str(message.params.uri)


@pytest.mark.covers("native:22")
def test_a_client_that_listens_is_notified_of_new_output_and_of_starts(world: World) -> None:
    gate = world.gate()

    async def main() -> None:
        async with holdfast.open_async() as hf, connected(bridge(hf), "2026-07-28") as client:
            session = await hf.start(world.probe("await", gate, "say", "news", "await", gate), owner="agent-7")
            # Else what it says first is new too, and told twice with the news.
            await session.wait(match="ready")
            wanted = [_uri(session.id), "holdfast://sessions"]
            async with asyncio.timeout(BOUND_S), client.listen(resource_subscriptions=wanted) as events:
                gate.release()
                assert await _next_update(events) == _uri(session.id)
                await hf.run("true", owner="agent-8")
                await hf.run("true", owner="agent-7")
                assert await _next_update(events) == "holdfast://sessions"
            gate.release()
            await session.wait()

    asyncio.run(main())


async def _next_update(events: Any) -> str:
    async for event in events:
        if isinstance(event, ResourceUpdated):
            return event.uri
    raise AssertionError("the stream ended")


@of_today
def test_a_subscription_to_a_missing_or_foreign_session_is_refused(world: World) -> None:
    async def main() -> None:
        async with holdfast.open_async() as hf, connected(bridge(hf)) as client:
            theirs = await hf.run("true", owner="agent-8")
            for uri in (_uri(theirs.id), _uri("none"), "holdfast://else"):
                with pytest.raises(MCPError):
                    await client.subscribe_resource(uri)

    asyncio.run(main())


@pytest.mark.parametrize("family", TOOLSETS)
def test_an_ending_is_reported_and_stays_in_the_queue(world: World, family: str) -> None:
    gate = world.gate()

    async def main() -> None:
        ear = Ear()
        async with holdfast.open_async() as hf:
            tools = families(family, hf, owner="agent-7")
            async with connected(Bridge(tools).server(), logging_callback=ear.log) as client:
                await client.list_tools()
                session = await hf.start(world.probe("say", "no way", "await", gate, "exit", 3), owner="agent-7")
                gate.release()
                told = await ear.next()
                assert told.level == "warning"
                assert told.logger == "holdfast"
                assert "no way" in told.data["text"] or session.id in told.data["text"]
                (id,) = told.data["signals"]
                assert id.startswith(session.id)
                assert await tools.consumer().pending() == 1
                (waiting,) = (await client.read_resource("holdfast://signals")).contents
                assert getattr(waiting, "text", "") == told.data["text"]
                shown = await client.call_tool("signals", {})
                assert text(shown).startswith(told.data["text"])
                assert id in text(shown)
                done = await client.call_tool("signals", {"ack": [id]})
                assert done.structured_content == {"signals": [], "acknowledged": 1, "text": text(done)}
                assert await tools.consumer().pending() == 0

    asyncio.run(main())


def test_what_is_reported_keeps_to_the_limits_that_are_set(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    config = world.root / "config.toml"
    config.write_text("[drain]\nfailed_lines = 2\n")
    monkeypatch.setenv("HOLDFAST_CONFIG", str(config))

    async def main() -> None:
        ear = Ear()
        async with holdfast.open_async() as hf, connected(bridge(hf), logging_callback=ear.log) as client:
            await client.list_tools()
            session = await hf.start(world.probe("lines", 9, "exit", 3), owner="agent-7")
            await session.wait()
            told = (await ear.next()).data["text"]
            (waiting,) = (await client.read_resource("holdfast://signals")).contents
            for text in (told, getattr(waiting, "text", "")):
                assert [line for line in text.splitlines() if line.startswith("| line")] == ["| line 8", "| line 9"]

    asyncio.run(main())


def test_what_waits_beyond_what_the_signals_show_is_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["holdfast.tools.mcp.resources"], "_SIGNALS_SHOWN", 2)

    async def main() -> None:
        async with holdfast.open_async() as hf:
            tools = families("native", hf, owner="agent-7")
            async with connected(Bridge(tools).server()) as client:
                for more in ("", "", "and 1 more waits behind these", "and 2 more wait behind these"):
                    session = await hf.start(world.probe("quiet", "exit", 3), owner="agent-7")
                    signal_id = (await session.wait()).signal_id
                    assert signal_id is not None
                    assert await tools.consumer().is_open(signal_id)
                    (waiting,) = (await client.read_resource("holdfast://signals")).contents
                    last = getattr(waiting, "text", "").splitlines()[-1]
                    assert last == (more or "</holdfast-notice>")

    asyncio.run(main())


@pytest.mark.covers("native:18")
def test_a_server_that_is_killed_during_a_wait_loses_nothing(world: World) -> None:
    gate = world.gate()

    async def started() -> None:
        async with connected(server()) as client:
            await client.call_tool("run", {"command": world.probe("await", gate), "wait_s": 0, "name": "job"})
            waiting = asyncio.create_task(client.call_tool("wait", {"ids": ["job"], "timeout_s": 60}))
            await client.call_tool("list", {})
            os.kill(_server_pid(), signal.SIGKILL)
            with pytest.raises(MCPError):
                await waiting

    async def again() -> str:
        """The ending is told by itself, and by the tool; when it is acknowledged, no more."""
        ear = Ear()
        async with connected(server(), logging_callback=ear.log) as client:
            assert "job" in text(await client.call_tool("list", {"all": True}))
            (id,) = (await ear.next()).data["signals"]
            shown = text(await client.call_tool("signals", {}))
            assert shown.count("completed") == 1
            assert id in shown
            return str(id)

    async def at_last(id: str) -> None:
        ear = Ear()
        async with connected(server(), logging_callback=ear.log) as client:
            assert (await ear.next()).data["signals"] == [id]
            done = await client.call_tool("signals", {"ack": [id]})
            assert (done.structured_content or {})["acknowledged"] == 1
        async with connected(server(), logging_callback=ear.log) as client:
            assert "no new signals" in text(await client.call_tool("signals", {}))
        assert ear.heard.empty()

    asyncio.run(started())
    gate.release()
    world.open().get("job").wait(timeout=BOUND_S)
    asyncio.run(at_last(asyncio.run(again())))
    world.hold("gc", check=True)


def _server_pid() -> int:
    below = processes.descendants(os.getpid())
    (pid,) = [row.pid for row in below if " mcp " in processes.command_line(row.pid)]
    return pid


def test_bytes_that_are_no_text_do_not_end_the_server(world: World) -> None:
    async def main() -> None:
        async with connected(server()) as client:
            world.open().run(["printf", "%s", "arg\udcff"], owner="agent-7")
            assert "printf" in text(await client.call_tool("list", {"all": True}))
            assert any("arg\ufffd" in str(each.description) for each in (await client.list_resources()).resources)

    asyncio.run(main())


def test_notices_come_again_when_the_index_was_locked(world: World) -> None:
    async def main() -> None:
        ear = Ear()
        async with holdfast.open_async() as hf, connected(bridge(hf), logging_callback=ear.log) as client:
            await client.list_tools()
            await hf.run("true", owner="agent-7")
            lock = sqlite3.connect(world.home / "index.db", isolation_level=None)
            with closing(lock):
                lock.execute("BEGIN EXCLUSIVE")
                session = await hf.start("exit 3", owner="agent-7", notify="exit")
                await session.wait()
                # Longer than anybody waits for the index.
                await ear.nothing(3)
                lock.execute("ROLLBACK")
            told = await ear.next()
            assert told.data["signals"][0].startswith(session.id)

    asyncio.run(main())


def test_more_than_anybody_deals_with_do_not_hide_the_next(world: World) -> None:
    async def main() -> None:
        ear = Ear()
        async with holdfast.open_async() as hf, connected(bridge(hf), logging_callback=ear.log) as client:
            await client.list_tools()
            told: set[str] = set()
            for _ in range(12):
                started = await asyncio.gather(*(hf.start("true", owner="agent-7", notify="exit") for _ in range(10)))
                while not {each.id for each in started} <= {id.partition(".")[0] for id in told}:
                    told.update((await ear.next()).data["signals"])
            assert len(told) == 120

    asyncio.run(main())
