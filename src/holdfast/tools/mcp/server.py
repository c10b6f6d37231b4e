"""One toolset as an MCP server: its tools with progress and cancellation, its sessions as resources."""

from __future__ import annotations

import asyncio
import warnings
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

from ... import __version__
from ...errors import HoldfastError
from ...host.text import all_visible
from .connections import left
from .news import News
from .notices import Notices
from .resources import Resources
from .sound import sound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from typing import Any

    from mcp.server.context import ServerRequestContext

    from ..answer import Answer
    from ..toolset import Toolset

    Context = ServerRequestContext[None, Any]


class Bridge:
    """What the protocol asks, asked of the toolset."""

    def __init__(self, toolset: Toolset) -> None:
        toolset.offer_signals()
        self._toolset = toolset
        self._resources = Resources(toolset)
        self._bus = InMemorySubscriptionBus()
        self._news = News(self._resources, self._bus)
        self._notices = Notices(toolset, self._news)
        self._listen = ListenHandler(self._bus)

    def server(self) -> Server[None]:
        with warnings.catch_warnings():
            # Clients of today are told by log messages; those of tomorrow by resources alone.
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            server: Server[None] = Server(
                "holdfast",
                version=__version__,
                title="Holdfast",
                instructions=self._toolset.instructions,
                lifespan=self._lifespan,
                on_list_tools=self._list_tools,
                on_call_tool=self._call_tool,
                on_list_resources=self._list_resources,
                on_list_resource_templates=self._list_templates,
                on_read_resource=self._read_resource,
                on_subscribe_resource=self._subscribe,
                on_unsubscribe_resource=self._unsubscribe,
                on_subscriptions_listen=self._listened,
                on_set_logging_level=self._set_level,
            )
        server.add_notification_handler("notifications/initialized", types.NotificationParams, self._connected)
        return server

    async def close(self) -> None:
        """Let go of what is waited for. Clients are left to find out."""
        await self._notices.close()
        await self._news.close()

    @asynccontextmanager
    async def _lifespan(self, _server: Server[None]) -> AsyncIterator[None]:
        await self._toolset.open()
        self._notices.begin()
        try:
            yield None
        finally:
            await self.close()

    async def _list_tools(self, _context: Context, _params: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool.model_validate(each) for each in self._toolset.schemas("mcp")])

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        told = 0

        async def progress(line: str) -> None:
            nonlocal told
            told += 1
            await context.session.report_progress(told, message=sound(all_visible(line)))

        call = asyncio.ensure_future(self._toolset.call(params.name, params.arguments, progress=progress))
        try:
            await self._while_there(context, call)
        finally:
            # Whoever asked gave up, or is gone: the waiting ends, and what it would have told is not told yet.
            if not call.done():
                call.cancel()
                await asyncio.wait([call])
        answer = await self._toolset.reminding(call.result())
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=sound(answer.text))],
            structured_content=sound(answer.structured(self._toolset.said_in_text)),
            is_error=answer.error,
        )

    async def _while_there(self, context: Context, call: asyncio.Future[Answer]) -> None:
        if context.request is None:
            await asyncio.wait([call])
            return
        gone = asyncio.ensure_future(left(context.request))
        try:
            both: list[asyncio.Future[Any]] = [call, gone]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            await asyncio.wait([gone])
        if not call.done():
            raise MCPError(types.CONNECTION_CLOSED, "whoever asked is gone")

    async def _list_resources(self, _context: Context, _params: object) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=await self._resources.listed())

    async def _list_templates(self, _context: Context, _params: object) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=self._resources.templates())

    async def _read_resource(
        self, _context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(params.uri)
        with _refusing():
            return types.ReadResourceResult(contents=[await self._resources.read(uri)])

    async def _subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        with _refusing():
            watched = await self._resources.check(str(params.uri))
        self._news.subscribe(context.session, str(params.uri), watched)
        return types.EmptyResult()

    async def _unsubscribe(self, context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self._news.unsubscribe(context.session, str(params.uri))
        return types.EmptyResult()

    async def _listened(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        wanted = [str(uri) for uri in params.notifications.resource_subscriptions or ()]
        with _refusing():
            watched = [(uri, await self._resources.check(uri)) for uri in wanted]
        with self._news.wanted(watched):
            return await self._listen(context, params)

    async def _set_level(self, context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        self._notices.set_level(context.session, params.level)
        return types.EmptyResult()

    async def _connected(self, context: Context, _params: object) -> None:
        self._notices.add(context.session)


@contextmanager
def _refusing() -> Iterator[None]:
    """Errors of ours as errors of the protocol: the same message, code and facts."""
    try:
        yield
    except HoldfastError as problem:
        raise MCPError(types.INVALID_PARAMS, sound(str(problem)), sound(problem.to_json())) from None
