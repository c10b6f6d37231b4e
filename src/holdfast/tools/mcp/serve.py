"""The server on a transport: stdio for one client, HTTP on loopback for several."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from typing import TYPE_CHECKING

import uvicorn
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings

from ...errors import BadArgument
from ...host.aio import AsyncHoldfast
from ...serving.leaving import Server, on_signals
from ...serving.listener import bound, check_port
from ...serving.waiting import HEADER_BYTES, PROVEN, Waiting
from .. import toolset
from .address import LOOPBACK, PATH, address
from .server import Bridge

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send


async def over_stdio(family: str, owner: str, author: str, *, redact: bool = False) -> None:
    """Until the client closes our input, or we are told to leave."""
    async with AsyncHoldfast(author=author) as hf:
        bridge = Bridge(toolset(family, hf, owner=owner, redact=redact))
        server = bridge.server()

        async def leave(number: int) -> None:
            # Our input is read by a thread that nothing can wake: what we hold we let go of here, and are gone.
            await bridge.close()
            await hf.close()
            os._exit(128 + number)

        on_signals(lambda number: asyncio.ensure_future(leave(number)))
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())


async def over_http(
    family: str,
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
    """Until it is told to leave, by a signal, which is returned. `listening` gets the address, with the port that was
    given where 0 was asked for."""
    if host not in LOOPBACK:
        raise BadArgument(
            "host", f"{host} is not this machine alone", f"give {' or '.join(LOOPBACK)}; ssh -L reaches it"
        )
    check_port(port)
    with _bound(host, port) as listener:
        port = listener.getsockname()[1]
        async with AsyncHoldfast(author=author) as hf:
            server = Bridge(toolset(family, hf, owner=owner, redact=redact)).server()
            app = server.streamable_http_app(
                streamable_http_path=PATH, transport_security=security(port, hosts, origins), host=host
            )
            guarded = Guarded(app, token)
            config = uvicorn.Config(
                guarded,
                http=Waiting,
                h11_max_incomplete_event_size=HEADER_BYTES,
                # Below that it has a line for every stranger who speaks no HTTP.
                log_level="error",
                lifespan="on",
                ws="none",
                server_header=False,
            )
            http = _Server(config)
            on_signals(http.leave)
            listening(address(host, port))
            await http.serve(sockets=[listener])
            return http.told_by


def security(port: int, hosts: Sequence[str] = (), origins: Sequence[str] = ()) -> TransportSecuritySettings:
    """Named hosts and origins only: a page that some browser shows must not talk to us."""
    here = [f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[*here, *hosts],
        allowed_origins=[*(f"http://{each}" for each in here), *origins],
    )


class _Server(Server):
    told_by: int | None = None

    def leave(self, number: int) -> None:
        self.told_by = number
        # Streams that clients keep open would hold us up for ever; that they are cut is no news, and this process ends.
        logging.disable(logging.CRITICAL)
        self.should_exit = self.force_exit = True


class Guarded:
    """Lets nobody pass who has not the token. Being on this machine is no proof: others may share it."""

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
        raise BadArgument("port", f"{host}:{port} cannot be had ({problem.strerror})", "give another --port") from None
