"""A toolset as an MCP server, on stdio and on HTTP."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import warnings
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

from ... import __version__
from ...errors import BadArgument, HoldfastError
from ...serving.door import HEADER_BYTES, PROVEN, Waiting, on_signals
from ...serving.door import Server as DoorServer
from ...serving.listener import bound, check_port
from ...sessions.aio import AsyncHoldfast
from ...terminal.text import all_visible
from .. import toolset
from ..owner_sessions import unless
from .clients import LOOPBACK, PATH, address
from .notices import Notices
from .resources import News, Resources, disconnected, without_surrogates

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
    from typing import Any

    from mcp.server.context import ServerRequestContext
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ..base import Answer, Toolset


# One toolset as an MCP server: its tools with progress and cancellation, its sessions as resources.


if TYPE_CHECKING:
    Context = ServerRequestContext[None, Any]


class Bridge:
    """Requests of the protocol, answered by the toolset."""

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
            # Clients of today get log messages; those of tomorrow only updates of resources.
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
                on_subscriptions_listen=self._on_listen,
                on_set_logging_level=self._set_level,
            )
        server.add_notification_handler("notifications/initialized", types.NotificationParams, self._connected)
        return server

    async def close(self) -> None:
        """Stop waiting for news, and close the toolset. Clients are not informed."""
        await self._notices.close()
        await self._news.close()
        await self._toolset.close()

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
        reports = 0

        async def progress(line: str) -> None:
            nonlocal reports
            reports += 1
            await context.session.report_progress(reports, message=without_surrogates(all_visible(line)))

        call = self._toolset.call(params.name, params.arguments, progress=progress)
        answer = await self._toolset.reminding(await self._while_connected(context, call))
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=without_surrogates(answer.text))],
            structured_content=without_surrogates(answer.structured(self._toolset.said_in_text)),
            is_error=answer.error,
        )

    async def _while_connected(self, context: Context, call: Awaitable[Answer]) -> Answer:
        """The answer. If the client cancels or is gone, the waiting ends, and nothing counts as reported."""
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if context.request is not None:  # on stdio the process ends with its client
            gone = asyncio.ensure_future(disconnected(context.request))
        try:
            answer = await unless(gone, call)
        finally:
            gone.cancel()
            await asyncio.wait([gone])
        if answer is None:
            raise MCPError(types.CONNECTION_CLOSED, "the client is gone")
        return answer

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

    async def _on_listen(
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
    """Our errors as errors of the protocol, with the same message, code and facts."""
    try:
        yield
    except HoldfastError as problem:
        raise MCPError(
            types.INVALID_PARAMS, without_surrogates(str(problem)), without_surrogates(problem.to_json())
        ) from None


# The server on a transport: stdio for one client, HTTP on loopback for several.


async def over_stdio(name: str, owner: str, author: str, *, redact: bool = False) -> None:
    """Serve until the client closes our input or a signal arrives."""
    async with AsyncHoldfast(author=author) as hf:
        bridge = Bridge(toolset(name, hf, owner=owner, redact=redact))
        server = bridge.server()

        async def leave(number: int) -> None:
            # A thread reads our input and cannot be woken: close everything here and exit.
            await bridge.close()
            await hf.close()
            os._exit(128 + number)

        on_signals(lambda number: asyncio.ensure_future(leave(number)))
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())


async def over_http(
    name: str,
    owner: str,
    author: str,
    *,
    host: str,
    port: int,
    token: str,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    redact: bool = False,
    listening: Callable[[str], None],
) -> int | None:
    """Serve until a signal arrives, which is returned. `listening` gets the address, with the actual port if it was
    0."""
    if host not in LOOPBACK:
        raise BadArgument(
            "host", f"{host!a} is not this machine alone", f"give {' or '.join(LOOPBACK)}; ssh -L reaches it"
        )
    check_port(port)
    with _bound(host, port) as listener:
        port = listener.getsockname()[1]
        async with AsyncHoldfast(author=author) as hf:
            server = Bridge(toolset(name, hf, owner=owner, redact=redact)).server()
            app = server.streamable_http_app(
                streamable_http_path=PATH, transport_security=security(port, hosts, origins), host=host
            )
            guarded = Guarded(app, token)
            config = uvicorn.Config(
                guarded,
                http=Waiting,
                h11_max_incomplete_event_size=HEADER_BYTES,
                # Below that, it logs every client that does not speak HTTP.
                log_level="error",
                lifespan="on",
                ws="none",
                server_header=False,
            )
            http = _Server(config)
            on_signals(http.leave)
            listening(address(host, port))
            await http.serve(sockets=[listener])
            return http.signal


def security(port: int, hosts: Sequence[str] = (), origins: Sequence[str] = ()) -> TransportSecuritySettings:
    """Named hosts and origins only, so that a page in a browser cannot reach us."""
    here = [f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[*here, *hosts],
        allowed_origins=[*(f"http://{each}" for each in here), *origins],
    )


class _Server(DoorServer):
    signal: int | None = None

    def leave(self, number: int) -> None:
        self.signal = number
        # Streams that clients keep open would delay the exit for ever. Cutting them is not worth a log line.
        logging.disable(logging.CRITICAL)
        self.should_exit = self.force_exit = True


class Guarded:
    """Refuses requests without the token. Being on this machine is no proof: several users may share it."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if self._is_known(scope):
            scope["extensions"][PROVEN]()
            await self._app(scope, receive, send)
            return
        from starlette.responses import JSONResponse

        problem = {
            "type": "/problems/unauthenticated",
            "title": "no valid token",
            "status": 401,
            "detail": "the request has no token, or another one",
            "fix": "send `Authorization: Bearer TOKEN`; `hold mcp --http --print-config CLIENT` shows it",
        }
        answer = JSONResponse(problem, 401, {"WWW-Authenticate": "Bearer"}, media_type="application/problem+json")
        await answer(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token, self._expected)


def _bound(host: str, port: int) -> socket.socket:
    try:
        return bound(host, port)
    except OSError as problem:
        raise BadArgument(
            "port", f"cannot listen on {host}:{port} ({problem.strerror})", "give another --port"
        ) from None
