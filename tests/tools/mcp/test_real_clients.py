"""The agents that people use, at the other end: what they hand to the model is what a command printed."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.tools import TOOLSETS
from support.conversations import CONVERSATIONS
from support.mcp_clients import opened, text
from support.model_api import Model, ModelApi, ToolCall, strings
from support.real_clients import CLAUDE_CODE, CODEX, GEMINI, OPENCODE

if TYPE_CHECKING:
    from support.model_api import Conversation
    from support.real_clients import Client
    from support.world import World

long = pytest.mark.long


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Client:
    wanted: Client = request.param
    if wanted.program() is None:
        pytest.skip(f"{wanted.name} is not installed: tools/mcp-clients.sh needs npm and its registry")
    return wanted


@pytest.mark.timeout(500)
@pytest.mark.covers("habits:18")
@pytest.mark.parametrize("family", TOOLSETS)
@pytest.mark.parametrize(
    "client",
    [
        pytest.param(CODEX, id="codex"),
        pytest.param(CLAUDE_CODE, id="claude-code", marks=long),
        pytest.param(GEMINI, id="gemini", marks=long),
        pytest.param(OPENCODE, id="opencode", marks=long),
    ],
    indirect=True,
)
def test_a_real_client_hands_what_commands_print_to_the_model(world: World, client: Client, family: str) -> None:
    world.closing.callback(stop_all, world)
    model = client.talk(world, family, CONVERSATIONS[family](world.cwd))
    # Every tool of the family that it was offered was called.
    assert _tools(model) == model.asked


@pytest.mark.timeout(500)
@pytest.mark.covers("habits:19")
@pytest.mark.parametrize(
    "client",
    [pytest.param(GEMINI, id="gemini"), pytest.param(CLAUDE_CODE, id="claude-code", marks=long)],
    indirect=True,
)
def test_an_agent_is_told_in_its_next_turn_that_its_build_has_failed(world: World, client: Client) -> None:
    world.closing.callback(stop_all, world)
    printed = "broken-$((6 * 7))"
    model = Model(_build(f"until test -e {world.cwd}/go; do sleep 0.05; done; echo {printed}; exit 3"))
    with ModelApi(model) as api:
        run, argv = client.configured(world, api.url, "native")
        run.add_hooks(client, world.hold("hook", client.name, check=True).stdout)

        def turn() -> list[int]:
            """How often each request of a new conversation has what the build printed."""
            before = len(model.seen)
            done = run.execute(argv)
            found = [json.dumps(asked).count("broken-42") for asked in model.seen[before:]]
            assert found, done
            return found

        assert not any(turn())
        assert model.finished, model.problem
        # It fails while no client runs.
        (world.cwd / "go").touch()
        build = world.open().get("build")
        assert build.wait(timeout=60).reason == "exit"
        # A turn that crashes when it has the notice: the client is killed before it is answered.
        model.asks = run.kill
        assert turn() == [1]
        model.asks = lambda: None
        assert turn() == [1]
        assert world.open().signals(f"mcp:{world.cwd}").pending() == 0


def _build(command: str) -> Conversation:
    seen = yield ToolCall("run", {"command": command, "name": "build", "wait_s": 0})
    assert "running" in seen


def _tools(model: Model) -> set[str]:
    ours = [name for name in model.offered if "holdfast" in name]
    return {re.sub(r"^.*holdfast\|?_+", "", name) for name in ours}


def stop_all(world: World) -> None:
    world.hold("stop", "--all", "--grace", "0", timeout=60)


@pytest.mark.slow
@pytest.mark.covers("found:1")
@pytest.mark.parametrize("family", TOOLSETS)
def test_text_and_structured_content_are_each_the_whole_answer(world: World, family: str) -> None:
    async def main() -> None:
        async with opened(family) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            asked = set()
            # Two readers of the same answers: one has the texts alone, one the structured content alone.
            readers = [CONVERSATIONS[family](world.cwd), CONVERSATIONS[family](world.cwd)]
            calls = [next(each) for each in readers]
            while calls:
                call: ToolCall = calls[0]
                assert calls == [call, call], "the two readers learned different things"
                asked.add(call.tool)
                answer = await client.call_tool(call.tool, call.arguments)
                _same(family, call, text(answer), answer.structured_content)
                seen = (text(answer), json.dumps(answer.structured_content, ensure_ascii=False))
                calls = [*_sent(readers[0], seen[0]), *_sent(readers[1], seen[1])]
            assert asked == tools

    world.closing.callback(stop_all, world)
    asyncio.run(main())


def _sent(reader: Any, seen: str) -> list[ToolCall]:
    try:
        return [reader.send(seen)]
    except StopIteration:
        return []


# What frames output in a text, and says nothing.
_FRAME = re.compile(r"`{3,}(?:console)?|---|\U0001f4e4 .*:|Output so far.*:|\(no output.*\)|")


def _same(family: str, call: ToolCall, said: str, data: Any) -> None:
    """Each line of the text is in the structured content, and all output there is in the text."""
    assert isinstance(data, dict)
    if family == "hermes" and call.tool != "signals":
        assert json.loads(said) == data
        return
    known = strings(data)
    for line in said.split("\n"):
        assert _FRAME.fullmatch(line.strip()) or line.rstrip() in known, f"{line!r} of {call} is not in {data}"
    output = data.get("output", "")
    for each in output.values() if isinstance(output, dict) else [output]:
        assert each.strip("\n") in said
    if family in _AGREE:
        _AGREE[family](call, said, data)


def _native_agrees(_call: ToolCall, said: str, data: dict[str, Any]) -> None:
    if "message" in data:
        assert said == f"{data['message']}\n{data['output']}".rstrip("\n")
        assert data["state"] == ("running" if "running" in data["message"] else "exited")
    cursor = re.search(r", cursor ([\w:,]+)\]", said)
    if cursor is not None:
        assert data["cursor"] == cursor.group(1)


def _dominds_agrees(call: ToolCall, said: str, data: dict[str, Any]) -> None:
    """The state is the one that the text says, and the offsets are those of what the text shows."""
    if "state" not in data:
        assert call.tool == "signals" or "No daemon process found" in said
        return
    first = said.partition("\n")[0]
    completed = re.fullmatch(r"✅ Command completed \(exit code: (\d+)\)", first)
    if completed is not None:
        assert (data["state"], data["exit"]["code"]) == ("exited", int(completed.group(1)))
    elif "stopped successfully" in first:
        assert data["state"] == "exited"
        assert f"signal: {data['exit']['signal']}," in said
    else:
        # A daemon's output has no line about a state where it simply runs.
        assert "is now running in the background" in first or call.tool == "get_daemon_output"
        assert (data["state"], data["exit"]) == ("running", None)
    own = said.partition("\n🔄 ")[0]  # what follows reminds of other daemons
    for stream, place in data.get("streams", {}).items():
        block = re.search(rf"\b{stream}(?: so far| output)?:\n`{{3}}console\n(.*?)\n`{{3}}", own, re.DOTALL)
        _is_between(place["start"], place["end"], "" if block is None else block.group(1))


def _openclaw_agrees(call: ToolCall, said: str, data: dict[str, Any]) -> None:
    if call.tool == "signals" or data.get("error"):
        return
    code, signal = re.search(r"exited with code (\d+)", said), re.search(r"exited with signal (\w+)", said)
    runs = "still running" in said
    for each in data.get("killed", [data]):
        if code or signal:
            assert each["status"] == "completed"
            told = (int(code.group(1)) if code else None, signal.group(1) if signal else None)
            assert (each["exitCode"], each["exitSignal"]) == told
        elif runs:
            assert (each["status"], each.get("exitCode")) == ("running", None)
        elif call.tool == "exec":
            assert (each["status"], each["exitCode"]) == ("completed", 0)
    if "cursor" in data:
        printed = said.partition("Output so far:\n")[2] if call.tool == "exec" and runs else said
        printed = re.sub(r"\(no (?:new )?output\)|\(Command exited .*\)|Process (?:still|exited) .*", "", printed)
        since, end = ("0", data["cursor"]) if call.tool == "exec" else (data["cursor"], data["nextCursor"])
        _is_between(_position(since), _position(end), printed.rstrip("\r\n"))


def _position(cursor: str) -> int:
    """How many bytes of all streams are before it."""
    return sum(int(each.rpartition(":")[2]) for each in cursor.split(","))


def _is_between(start: int, end: int, printed: str) -> None:
    """So many bytes are what was printed, with the line end that a text leaves out."""
    left_out = end - start - len(printed.encode())
    assert left_out in ((1, 2) if printed else (0,)), f"{printed!r} is not from {start} to {end}"


_AGREE = {"native": _native_agrees, "dominds": _dominds_agrees, "openclaw": _openclaw_agrees}
