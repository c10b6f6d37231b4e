"""A toolset in the hands of a test: the same calls without an event loop of one's own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import holdfast
from holdfast.tools import toolset

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from holdfast.tools import Answer
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

    def call(self, name: str, **arguments: Any) -> Answer:
        answer: Answer = self.run(self.tools.call(name, arguments))
        return answer

    def close(self) -> None:
        """As a host that leaves in good order does."""
        self.run(self.tools.close())
        self.run(self.hf.close())
        self._loop.close()

    async def _open(self) -> holdfast.AsyncHoldfast:
        return holdfast.open_async()


class Agents:
    """Opens toolsets: `agents("native")` in the way that the test is run over, `agents.library(...)` always directly.
    Both are closed at teardown."""

    def __init__(self, world: World, via: str) -> None:
        self._world = world
        self.via = via

    def __call__(self, family: str, owner: str = "agent-7", **options: Any) -> Agent:
        return self._opened(Agent(family, owner, **options))

    def library(self, family: str, owner: str = "agent-7", **options: Any) -> Agent:
        return self._opened(Agent(family, owner, **options))

    def _opened(self, agent: Agent) -> Agent:
        self._world.closing.callback(agent.close)
        return agent


@pytest.fixture(params=["library"])
def agents(world: World, request: pytest.FixtureRequest) -> Agents:
    return Agents(world, request.param)
