"""What each family says and does over the protocol: hints, instructions that are true, reminders."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast.tools import TOOLSETS, toolset
from holdfast.tools.evva import Change, Evva
from holdfast.tools.mcp.server import Bridge
from support import processes
from support.mcp_clients import connected, opened, server, text
from support.waiting import until

if TYPE_CHECKING:
    import mcp

    from support.world import World

# A call that waits for a command, and one that starts a command and does not; both get their command here.
FOREGROUND: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("run", {"wait_s": 100}),
    "dominds": ("shell_cmd", {"timeoutSeconds": 100}),
    "evva": ("bash", {}),
    "hermes": ("terminal", {}),
    "openclaw": ("exec", {"yieldMs": 100_000}),
}
BACKGROUND: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("run", {"wait_s": 0}),
    "dominds": ("shell_cmd", {"timeoutSeconds": 1}),
    "evva": ("bash", {"run_in_background": True}),
    "hermes": ("terminal", {"background": True, "notify": True}),
    "openclaw": ("exec", {"background": True}),
}
# The call that finds commands again, and shows that there is one.
FINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("list", {}),
    "dominds": ("shell_cmd", {"command": "true"}),
    "evva": ("daemon_list", {}),
    "hermes": ("process", {"action": "list"}),
    "openclaw": ("process", {"action": "list"}),
}
OUTLIVES = "Commands run here outlive this connection"


@pytest.mark.covers("found:2")
@pytest.mark.parametrize("family", TOOLSETS)
def test_every_tool_that_can_run_a_shell_line_is_said_to_be_destructive(world: World, family: str) -> None:
    async def main() -> None:
        async with opened(family) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            hints = {name: tool.annotations for name, tool in tools.items()}
            # A command line, or what is typed into a shell.
            takes = {
                name
                for name, tool in tools.items()
                if {"command", "data", "text"} & set(tool.input_schema["properties"])
            }
            assert FOREGROUND[family][0] in takes
            for name in takes:
                hint = hints[name]
                assert hint is not None
                assert hint.destructive_hint is True, name
                assert hint.read_only_hint is False, name

    asyncio.run(main())


def test_a_toolset_is_closed_when_its_client_has_left(world: World) -> None:
    async def main() -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def note_end(change: Change) -> None:
            if change.snapshot is not None and change.snapshot.is_terminal:
                loop.call_soon_threadsafe(ended.set)

        async with holdfast.open_async() as hf:
            left, stays = toolset("evva", hf, owner="agent-7"), toolset("evva", hf, owner="agent-7")
            assert isinstance(left, Evva)
            assert isinstance(stays, Evva)
            seen: list[Change] = []
            left.state.subscribe(seen.append)
            async with connected(Bridge(left).server()) as client:
                await client.list_tools()
            # Observers are called in the order in which they came.
            stays.state.subscribe(note_end)
            await stays.state.start("true")
            await asyncio.wait_for(ended.wait(), 30)
            assert seen == []
            await stays.close()

    asyncio.run(main())


@pytest.mark.covers("found:16")
@pytest.mark.parametrize("family", TOOLSETS)
def test_instructions_name_tools_parameters_and_resources_that_there_are(world: World, family: str) -> None:
    async def main() -> None:
        async with opened(family) as client:
            said = client.instructions or ""
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(re.findall(r"`([^`]+)`", said)) <= set(tools)
            assert "`signals`" in said
            names = {name for tool in tools.values() for name in tool.input_schema["properties"]}
            # Words that are no English ones are names of parameters.
            assert set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b|\b[a-z]+[A-Z]\w+", said)) <= names | set(tools)
            listed = {str(each.uri) for each in (await client.list_resources()).resources}
            assert set(re.findall(r"holdfast://\w+", said)) <= listed

    asyncio.run(main())


@pytest.mark.covers("found:16")
@pytest.mark.parametrize("family", TOOLSETS)
def test_instructions_are_true_about_an_aborted_call(world: World, family: str) -> None:
    """It ends the command, or only the waiting: the one that the instructions of the family say."""
    pid_file = world.cwd / "pid"
    tool, more = FOREGROUND[family]

    async def main() -> None:
        async with opened(family) as client:
            said = client.instructions or ""
            ends = re.search(r"is aborted[^.]* is stopped|is ended[^.]*is aborted", said) is not None
            assert ends != (OUTLIVES in said)
            command = f"echo $$ >{pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 600"
            call = asyncio.create_task(client.call_tool(tool, {"command": command, **more}))
            await asyncio.to_thread(until, pid_file.exists)
            call.cancel()
            await asyncio.wait([call])
            pid = int(pid_file.read_text())
            if ends:
                await asyncio.to_thread(until, lambda: processes.is_gone(pid))
            else:
                # The server has dealt with the cancelled call before it answers another one.
                finds, arguments = FINDS[family]
                await client.call_tool(finds, arguments)
                assert await asyncio.to_thread(_goes_on, world, pid)

    asyncio.run(main())
    world.hold("stop", "--all", "--grace", "0", timeout=60)


def _goes_on(world: World, pid: int) -> bool:
    """A command that was told to end would do so within this time."""
    (session,) = [each for each in world.open().sessions() if each.pid == pid]
    return session.wait(timeout=1.0).reason == "timeout"


@pytest.mark.covers("found:16")
@pytest.mark.parametrize("family", TOOLSETS)
def test_instructions_are_true_about_a_server_that_dies(world: World, family: str) -> None:
    """A command in the background continues, the next server finds it, and its end waits for `signals`."""
    gate = world.cwd / "gate"
    tool, more = BACKGROUND[family]
    command = f"echo seen-$((6 * 7)); until [ -e {gate} ]; do sleep 0.05; done; exit 3"

    async def begin() -> None:
        async with connected(server("--toolset", family)) as client:
            started = await client.call_tool(tool, {"command": command, **more})
            assert not started.is_error, text(started)
            _kill_servers()

    async def go_on() -> None:
        async with opened(family) as client:
            name, arguments = FINDS[family]
            assert "seen-" in text(await client.call_tool(name, arguments))
            gate.touch()
            while "no new signals" in (told := text(await client.call_tool("signals", {}))):
                pass
            assert "seen-42" in told
            assert "3" in told

    try:
        asyncio.run(begin())
    except Exception:  # noqa: BLE001  the connection ends with its server, in whatever way the client says so
        pass
    asyncio.run(go_on())
    world.hold("gc", check=True)


def _kill_servers() -> None:
    """The server that this test started: the client does not say its pid."""
    found = [each for each in processes.descendants(os.getpid()) if "--toolset" in processes.command_line(each.pid)]
    assert found
    for each in found:
        processes.send(each, signal.SIGKILL)


@pytest.mark.covers("found:16")
def test_reminders_of_dominds_are_behind_answers_and_a_resource(world: World) -> None:
    gate = world.cwd / "gate"
    job = f"echo one-$((2 * 3)); until [ -e {gate} ]; do sleep 0.05; done; echo two-$((2 * 4)); exit 3"

    async def reminders(client: mcp.Client) -> str:
        (found,) = (await client.read_resource("holdfast://reminders")).contents
        return str(getattr(found, "text", ""))

    async def main() -> None:
        async with opened("dominds") as client:
            assert "holdfast://reminders" in {str(each.uri) for each in (await client.list_resources()).resources}
            assert await reminders(client) == "no daemons"
            receipt = await client.call_tool("shell_cmd", {"command": job, "timeoutSeconds": 1})
            assert "is now running in the background" in text(receipt)
            pid = (receipt.structured_content or {})["pid"]
            # The answer about the daemon itself says it all; the next one reminds of it, in text and in data.
            assert "reminder [" not in text(receipt)
            other = await client.call_tool("shell_cmd", {"command": "echo other"})
            (line,) = (other.structured_content or {})["reminders"]
            assert f"PID {pid}" in line
            assert "running (system-maintained" in line
            assert text(other).endswith(line)
            whole = await reminders(client)
            assert whole.startswith(line)
            assert "one-6" in whole
            gate.touch()
            while "exited" not in (ended := await reminders(client)):
                pass
            assert "two-8" in ended
            # It changed: all of it is behind the next answer, and none of it behind the one after that.
            after = await client.call_tool("shell_cmd", {"command": "echo other"})
            assert text(after).endswith(ended)
            assert (after.structured_content or {})["reminders"] == [ended]
            again = await client.call_tool("shell_cmd", {"command": "echo other"})
            assert "reminder [" not in text(again)
            assert await reminders(client) == ended
            await client.call_tool("stop_daemon", {"pid": pid})
            assert await reminders(client) == "no daemons"

    asyncio.run(main())
