"""MCP servers as clients start them, and the official client at the other end."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import mcp
from mcp.client.stdio import StdioServerParameters

from support.waiting import BOUND_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp_types import CallToolResult


def server(*words: str, owner: str = "agent-7") -> StdioServerParameters:
    """`hold mcp` in this test's world."""
    argv = ["-m", "holdfast.cli", "mcp", "--owner", owner, *words]
    return StdioServerParameters(command=sys.executable, args=argv, env=dict(os.environ))


class Ear:
    """The messages that a client received, in order."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Any] = asyncio.Queue()

    async def message(self, message: Any) -> None:
        await self.heard.put(message)

    async def log(self, params: Any) -> None:
        await self.heard.put(params)

    async def nothing(self, seconds: float) -> None:
        """So long nothing may come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                raise AssertionError(f"heard {await self.heard.get()}")

    async def next(self) -> Any:
        async with asyncio.timeout(BOUND_S):
            return await self.heard.get()


@asynccontextmanager
async def connected(target: Any, mode: str = "legacy", **options: Any) -> AsyncIterator[mcp.Client]:
    async with mcp.Client(target, mode=mode, **options) as client:
        yield client


@asynccontextmanager
async def opened(family: str, owner: str = "agent-7", **options: Any) -> AsyncIterator[mcp.Client]:
    """The official client and the server of a family, in one process: what goes over the wire is the same."""
    import holdfast
    from holdfast.tools import toolset
    from holdfast.tools.mcp.server import Bridge

    async with holdfast.open_async() as hf:
        server = Bridge(toolset(family, hf, owner=owner)).server()
        async with connected(server, **options) as client:
            yield client


def text(result: CallToolResult) -> str:
    (content,) = result.content
    assert content.type == "text"
    return content.text
