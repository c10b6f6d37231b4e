"""A toolset in the hands of a test: the same calls without an event loop of one's own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import holdfast
from holdfast.tools import Answer, toolset

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import mcp

    from support.world import World

T = TypeVar("T")


class Agent:
    """`call` runs one tool to its answer; `run` any coroutine, in the loop that the toolset lives in."""

    def __init__(self, family: str, owner: str, **options: Any) -> None:
        self._loop = asyncio.Runner()
        self.hf = self.run(self._open())
        self.tools: Any = toolset(family, self.hf, owner=owner, **options)
        self.run(self.tools.open())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work)

    def call(self, tool: str, /, **arguments: Any) -> Answer:
        answer: Answer = self.run(self.tools.call(tool, arguments))
        return answer

    def runners(self) -> list[int | None]:
        """Of all that it has started."""
        return [session.runner_pid for session in self.run(self.hf.sessions(all=True))]

    def close(self) -> None:
        """As a host that leaves in good order does."""
        self.run(self.tools.close())
        self.run(self.hf.close())
        self._loop.close()

    async def _open(self) -> holdfast.AsyncHoldfast:
        return holdfast.open_async()


class Client(Agent):
    """The same over the Model Context Protocol: `call` goes through a client and a server."""

    def __init__(self, family: str, owner: str, **options: Any) -> None:
        super().__init__(family, owner, **options)
        self._leave = asyncio.Event()
        self._connected: asyncio.Future[mcp.Client] | None = None
        self._serving: asyncio.Task[None] | None = None

    def call(self, tool: str, /, **arguments: Any) -> Answer:
        return self.run(self._call(tool, arguments))

    def close(self) -> None:
        self.run(self._close())
        super().close()

    async def _call(self, name: str, arguments: dict[str, Any]) -> Answer:
        if self._connected is None:
            self._connected = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve(self._connected))
        client = await asyncio.shield(self._connected)
        result = await client.call_tool(name, arguments)
        (content,) = result.content
        assert content.type == "text"
        return Answer(content.text, result.structured_content, error=bool(result.is_error))

    async def _serve(self, connected: asyncio.Future[mcp.Client]) -> None:
        import mcp

        from holdfast.tools.mcp.server import Bridge

        async with mcp.Client(Bridge(self.tools).server(), mode="legacy", raise_exceptions=True) as client:
            connected.set_result(client)
            await self._leave.wait()

    async def _close(self) -> None:
        self._leave.set()
        if self._serving is not None:
            await self._serving


def shown(answer: Answer) -> str:
    """What stands below the status line."""
    return answer.text.partition("\n")[2]


class Agents:
    """Opens toolsets: `agents("native")` in the way that the test is run over, `agents.library(...)` always directly.
    Both are closed at teardown."""

    def __init__(self, world: World, via: str) -> None:
        self._world = world
        self.via = via

    def __call__(self, family: str, owner: str = "agent-7", **options: Any) -> Agent:
        kind = Client if self.via == "mcp" else Agent
        return self._opened(kind(family, owner, **options))

    def library(self, family: str, owner: str = "agent-7", **options: Any) -> Agent:
        return self._opened(Agent(family, owner, **options))

    def _opened(self, agent: Agent) -> Agent:
        self._world.closing.callback(agent.close)
        return agent


@pytest.fixture(params=["library", "mcp"])
def agents(world: World, request: pytest.FixtureRequest) -> Agents:
    return Agents(world, request.param)


@pytest.fixture
def direct(world: World) -> Agents:
    """For tests of what only the library has."""
    return Agents(world, "library")


def split_blocks(text: str) -> tuple[list[str], dict[str, str]]:
    """The lines outside of all blocks, and what is in each block by the line above it. A block ends with the very fence
    that it began with."""
    fence, heading = "", ""
    outside: list[str] = []
    inside: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if not fence and line.startswith("```") and line.endswith("console"):
            fence = line.removesuffix("console")
            heading = outside[-1]
            inside[heading] = []
        elif fence and line == fence:
            fence = ""
        elif fence:
            inside[heading].append(line)
        else:
            outside.append(line)
    assert not fence, "every block is closed"
    return outside, {heading: "\n".join(lines) for heading, lines in inside.items()}


def block(text: str, heading: str) -> str:
    """What stands in the block below the line that has this in it; empty where there is none."""
    return next((body for line, body in split_blocks(text)[1].items() if heading in line), "")
