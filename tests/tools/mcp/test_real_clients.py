"""The agents that people use, at the other end: what they hand to the model is what a command printed."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.tools import TOOLSETS
from support.conversations import CONVERSATIONS, strings
from support.mcp_clients import opened, text
from support.real_clients import CLAUDE_CODE, CODEX, OPENCODE

if TYPE_CHECKING:
    from support.model_api import Model, ToolCall
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
        pytest.param(OPENCODE, id="opencode", marks=long),
    ],
    indirect=True,
)
def test_a_real_client_hands_what_commands_print_to_the_model(world: World, client: Client, family: str) -> None:
    world.closing.callback(stop_all, world)
    model = client.talk(world, family, CONVERSATIONS[family](world.cwd))
    # Every tool of the family that it was offered was called.
    assert _tools(model) == model.asked


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
    if "message" in data and family == "native":
        assert said == f"{data['message']}\n{data['output']}".rstrip("\n")
        assert data["state"] == ("running" if "running" in data["message"] else "exited")
    cursor = re.search(r", cursor ([\w:,]+)\]", said)
    if cursor is not None:
        assert data["cursor"] == cursor.group(1)
