"""Results of tools show what commands printed as it is, unless the host wants secrets taken out."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from holdfast.signals.redact import MARK
from holdfast.tools import TOOLSETS, toolset
from holdfast.tools.hermes import Registry
from holdfast.tools.mcp.server import Bridge
from support.agents import Agents
from support.hermes import beside
from support.mcp_clients import connected, server, text

if TYPE_CHECKING:
    from support.world import World

CODE = (Path(__file__).parents[1] / "signals" / "ordinary_code.txt").read_text().splitlines()
# The tool of each family that runs a command and returns its output.
RUN: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("run", {}),
    "dominds": ("shell_cmd", {}),
    "evva": ("bash", {}),
    "hermes": ("terminal", {}),
    "openclaw": ("exec", {}),
}


def a_key() -> str:
    return "gh" + "p_" + "".join(random.choices(string.ascii_letters + string.digits, k=34)) + "7z"


def printed(world: World) -> tuple[Path, list[str]]:
    """A file of code with keys in it, and its lines."""
    lines = [*CODE, f"password=hunter{secrets.randbelow(100)}", f'api_key = "{a_key()}"', "ends here"]
    path = world.cwd / "printed.txt"
    path.write_text("\n".join(lines) + "\n")
    return path, lines


@pytest.mark.covers("found:4")
@pytest.mark.parametrize("family", TOOLSETS)
def test_a_tool_returns_what_was_printed_as_it_is(world: World, family: str) -> None:
    path, lines = printed(world)
    tool, options = RUN[family]
    # As many at a time as no family cuts.
    for part in (0, 60, 120, len(lines) - 25):
        wanted = lines[part : part + 25]
        command = f"sed -n '{part + 1},{part + 25}p' {path}"
        answer = Agents(world, "library")(family).call(tool, command=command, **options)
        said = answer.data["output"] if family == "hermes" else answer.text
        assert [line for line in wanted if line not in said] == []
        assert MARK not in answer.text


@pytest.mark.covers("found:4")
@pytest.mark.parametrize("family", TOOLSETS)
def test_secrets_are_taken_out_where_the_host_wants_it_and_code_is_not(world: World, family: str) -> None:
    path, lines = printed(world)
    tool, options = RUN[family]
    code, (password, key) = lines[-13:-3], lines[-3:-1]
    answer = Agents(world, "library")(family, redact=True).call(tool, command=f"tail -n 13 {path}", **options)
    said = answer.data["output"] if family == "hermes" else answer.text
    everything = answer.text + json.dumps(answer.data)
    assert [line for line in code if line not in said] == []
    assert password not in everything
    assert key.split('"')[1] not in everything
    assert f"password={MARK}" in said


@pytest.mark.covers("found:4")
def test_a_registry_returns_output_unchanged_by_default(world: World) -> None:
    path, lines = printed(world)
    hf = world.open()
    plain, careful = Registry(hf), Registry(hf, redact=True)
    id = plain.spawn_local(f"cat {path}")["session_id"]
    plain.wait(id)
    assert plain.read_log(id, limit=5000)["output"].split("\n") == lines
    told = careful.read_log(id, limit=5000)["output"].split("\n")
    assert told[: len(CODE)] == lines[: len(CODE)]
    assert [line for line in told[len(CODE) :] if MARK in line] == told[len(CODE) : -1]


@pytest.mark.covers("found:4")
@pytest.mark.parametrize("inside", [False, True], ids=["local", "sandbox"])
def test_whatever_a_registry_says_of_a_process_is_redacted_where_the_host_wants_it(world: World, inside: bool) -> None:
    path, lines = printed(world)
    key = a_key()
    hf = world.open()
    env = beside(world)[0] if inside else "local"
    for registry, hidden in ((Registry(hf), False), (Registry(hf, redact=True), True)):
        process = registry.spawn_via_env(env, f": {key}; tail -n 3 {path}")
        done = registry.wait(process.id, 60)
        assert (done["exit_code"], done["output"].split("\n")[2]) == (0, lines[-1])
        found = registry.get(process.id)
        assert found is not None
        rows = [row for row in registry.list_sessions() if row["session_id"] == process.id]
        again = registry.kill_process(process.id)
        buffers = [process.output_buffer, found.output_buffer]
        for said in [done, registry.poll(process.id), registry.read_log(process.id), again, *rows, *buffers]:
            text = json.dumps(said) if isinstance(said, dict) else said
            assert (lines[-3] in text) is not hidden
            assert (MARK in text) is hidden
            assert key not in text or not hidden
        assert len(rows) == 1


@pytest.mark.covers("found:4")
def test_the_notice_of_an_end_in_a_sandbox_holds_no_secret(world: World) -> None:
    path, lines = printed(world)
    registry = Registry(world.open())
    registry.spawn_via_env(beside(world)[0], f"tail -n 3 {path}", notify_on_complete=True)
    event = registry.completion_queue.get(timeout=60)
    assert (event["exit_code"], f"password={MARK}" in event["output"]) == (0, True)
    assert lines[-3] not in event["output"]


@pytest.mark.covers("found:4")
def test_the_mcp_server_takes_secrets_out_only_when_asked(world: World) -> None:
    path, lines = printed(world)
    for words, hidden in ((["--redact"], True), ([], False)):

        async def asked(words: list[str] = words) -> str:
            async with connected(server(*words)) as client:
                return text(await client.call_tool("run", {"command": f"tail -n 3 {path}"}))

        answer = asyncio.run(asked())
        assert (lines[-3] in answer) is not hidden
        assert (lines[-2] in answer) is not hidden
        assert lines[-1] in answer


@pytest.mark.covers("found:4")
def test_progress_and_the_list_of_sessions_hold_no_secret_where_the_host_wants_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.tools.base.PROGRESS_S", 0.1)
    gate, key = world.gate(), a_key()
    seen: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(str(message))
        if "token" in seen[-1]:
            gate.release()

    async def main() -> str:
        async with holdfast.open_async() as hf:
            careful = Bridge(toolset("native", hf, owner="agent-7", redact=True)).server()
            async with connected(careful) as client:
                command = world.probe("say", f"token={key}", "await", gate)
                await client.call_tool("run", {"command": command, "wait_s": 0, "name": "job"})
                await client.call_tool("wait", {"ids": ["job"], "timeout_s": 20}, progress_callback=note)
                (found,) = (await client.read_resource("holdfast://sessions")).contents
                return str(found)

    listed = asyncio.run(main())
    assert MARK in "".join(seen)
    assert key not in "".join(seen)
    assert MARK in listed
    assert key not in listed
