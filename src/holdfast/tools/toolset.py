"""A family of tools over the sessions of one owner: schemas, checked calls, approval, progress."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..errors import BadArgument, HoldfastError, NotAllowed
from . import parameters
from .answer import Answer
from .tool import Tool
from .unread import SIGNALS, signals

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Any, TypeVar

    from ..host.aio import AsyncHoldfast, AsyncSession
    from ..index.kept import Kept
    from ..signals.consumer import AsyncConsumer

    T = TypeVar("T")
    Approve = Callable[["Call"], Awaitable[bool | str]]
    # Called with the last line that a session printed while somebody waits for it.
    Progress = Callable[[str], Awaitable[None]]

__all__ = ["PROGRESS_S", "SHAPES", "Call", "Tool", "Toolset"]

SHAPES = ("mcp", "openai", "anthropic")
# So often whoever waits is told how it goes.
PROGRESS_S = 3.0

_progress: ContextVar[Progress | None] = ContextVar("progress", default=None)


class Call:
    """A call that somebody is asked to approve."""

    __slots__ = ("arguments", "owner", "tool")

    def __init__(self, tool: Tool, arguments: Mapping[str, Any], owner: str) -> None:
        self.tool = tool
        self.arguments = dict(arguments)
        self.owner = owner

    def __repr__(self) -> str:
        return f"<Call {self.tool.name} {self.arguments}>"


class Toolset:
    """A family's own class names its tools, and has a method `_<tool>` for each, which gets the checked arguments.

    `approve` is asked before each tool that acts: True lets it pass, a text says why not.
    """

    name = ""
    tools: tuple[Tool, ...] = ()
    # Whether arguments of another type than the declared one are refused.
    strict_types = False
    # What an MCP client is told about this family; every word of it has to be true for these tools.
    instructions = ""
    # What a client can read besides sessions and signals: descriptions by name.
    resources: Mapping[str, str] = MappingProxyType({})
    # Keys of the data that repeat the text at length: over a wire they are left out, the text is there twice anyway.
    said_in_text: tuple[str, ...] = ()
    # Takes secrets out of every answer; None returns what commands printed as it is.
    redact: Callable[[str], str] | None = None
    # Whether the family takes `redact` as an option of its own.
    redacts_itself = False

    def __init__(self, hf: AsyncHoldfast, owner: str, *, approve: Approve | None = None) -> None:
        if not owner.strip():
            raise BadArgument("owner", "is empty", "give the key of the agent that calls")
        self.hf = hf
        self.owner = owner
        self._approve = approve
        self._by_name = {tool.name: tool for tool in self.tools}
        self._offered: Tool | None = None
        self._kept = hf.kept(f"{self.name}:{owner}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} for {self.owner}>"

    async def open(self) -> None:
        """What has to be done before the first call. Calling it again changes nothing."""

    async def close(self) -> None:
        """Let go of what this object holds. No session notices."""

    async def __aenter__(self) -> Toolset:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def schemas(self, shape: str = "mcp", *, strict: bool = False) -> list[dict[str, Any]]:
        """As one of the model APIs wants them. `strict` is for modes that accept a part of JSON Schema only."""
        if shape not in SHAPES:
            raise BadArgument("shape", f"{shape[:40]!a} is not known", "give " + " or ".join(SHAPES))
        return [_shaped(tool, shape, strict) for tool in self.tools]

    async def call(self, name: str, arguments: object = None, *, progress: Progress | None = None) -> Answer:
        """Never raises for what the model did: that is an answer too. Cancelling ends the waiting, nothing else."""
        tool = self._by_name.get(name)
        if tool is None:
            problem = BadArgument("tool", f"there is no {name[:40]!a}", "there is " + ", ".join(self._by_name))
            return Answer.of_error(problem)
        token = _progress.set(progress)
        try:
            taken = _lenient(tool, arguments) if tool is self._offered else self._take(tool, arguments)
            if not tool.reads:
                await self._ask(tool, taken)
            answer: Answer = await getattr(self, "_" + name.replace("-", "_"))(**taken)
        except HoldfastError as problem:
            answer = await self._failed(tool, problem)
        finally:
            _progress.reset(token)
        return (answer if self.redact is None else answer.redacted(self.redact)).visible()

    def _take(self, tool: Tool, arguments: object) -> dict[str, Any]:
        return parameters.take(tool.parameters, arguments, strict=self.strict_types)

    async def _ask(self, tool: Tool, taken: dict[str, Any]) -> None:
        if self._approve is None:
            return
        verdict = await self._approve(Call(tool, parameters.as_given(taken), self.owner))
        if verdict is not True:
            raise NotAllowed(tool.name, verdict or "it was not approved")

    async def _failed(self, tool: Tool, problem: HoldfastError) -> Answer:
        """A family words its own errors."""
        return Answer.of_error(problem)

    def offer_signals(self) -> None:
        """For agents that nobody tells by itself: one tool more, where the family has none for it."""
        if SIGNALS.name not in self._by_name:
            self.tools = (*self.tools, SIGNALS)
            self._by_name[SIGNALS.name] = self._offered = SIGNALS

    async def resource(self, name: str) -> str:
        """The text of one of `resources`."""
        raise NotImplementedError

    async def reminding(self, answer: Answer) -> Answer:
        """The answer with what the family would show the agent before each of its turns, for agents whose host cannot
        show it."""
        return answer

    async def _signals(self, ack: list[str] | None) -> Answer:
        return await signals(self, ack)

    def hides(self) -> Callable[[str], str] | None:
        """What takes secrets out of results, where the host wants that."""
        return self.redact

    # For the families.

    def consumer(self) -> AsyncConsumer:
        """Where what the owner is to be told waits, for this family."""
        return self.hf.signals(self.owner)

    def kept(self) -> Kept:
        return self._kept

    async def find(self, ref: object) -> AsyncSession:
        """One of the owner's: others do not exist."""
        return await self.hf.get(ref, owner=self.owner)

    async def waiting(self, sessions: Sequence[AsyncSession], outcome: Awaitable[T]) -> T:
        """Await it; whoever asked for progress is told the last line meanwhile, now and then. One that is only being
        started may be added to the list later."""
        tell = _progress.get()
        if tell is None:
            return await outcome
        telling = asyncio.ensure_future(_tell(tell, sessions))
        try:
            return await outcome
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)


def _lenient(tool: Tool, arguments: object) -> dict[str, Any]:
    """For a tool that is none of the family's own."""
    return parameters.take(tool.parameters, arguments)


async def _tell(tell: Progress, sessions: Sequence[AsyncSession]) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        for session in sessions:
            lines = (await session.tail(1)).strip()
            await tell(lines[-200:] or "no output yet")


def _shaped(tool: Tool, shape: str, strict: bool) -> dict[str, Any]:
    if strict:
        schema = parameters.strict_schema(tool.parameters, nullable=shape != "anthropic")
    else:
        schema = parameters.schema(tool.parameters)
    if shape == "openai":
        function = {"name": tool.name, "description": tool.description, "parameters": schema, "strict": strict}
        return {"type": "function", "function": function}
    if shape == "anthropic":
        found: dict[str, Any] = {"name": tool.name, "description": tool.description, "input_schema": schema}
        return {**found, "strict": True} if strict else found
    return {
        "name": tool.name,
        "title": tool.title or tool.name,
        "description": tool.description,
        "inputSchema": schema,
        "annotations": {
            "readOnlyHint": tool.reads,
            "destructiveHint": tool.destroys,
            "idempotentHint": tool.repeats,
            "openWorldHint": tool.opens,
        },
    }
