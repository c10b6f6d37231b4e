"""Connections below the gate, with an application that does what ours does only now and then."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.server import ServerState

from holdfast.server.connections import Asking, Attached
from holdfast.server.gate import LOST
from support.serving import UPGRADE
from support.waiting import BOUND_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp, Receive, Scope, Send

PING_S = 0.05
MESSAGE = bytes((0x82, 0x81, 0, 0, 0, 0)) + b"x"


@asynccontextmanager
async def attached(app: ASGIApp) -> AsyncIterator[socket.socket]:
    """The socket of a client whose upgrade is accepted by `app`."""
    config = uvicorn.Config(
        app, http=Asking, ws=Attached, ws_ping_interval=PING_S, ws_ping_timeout=PING_S, lifespan="off", log_config=None
    )
    config.load()
    loop, state = asyncio.get_running_loop(), ServerState()
    server = await loop.create_server(lambda: Asking(config, state, {}), "127.0.0.1", 0)
    with socket.socket() as there:
        there.setblocking(False)
        await loop.sock_connect(there, server.sockets[0].getsockname())
        lines = [f"{name}: {value}" for name, value in {"Host": "x", **UPGRADE}.items()]
        await loop.sock_sendall(there, "\r\n".join(["GET / HTTP/1.1", *lines, "", ""]).encode())
        assert (await loop.sock_recv(there, 4096)).startswith(b"HTTP/1.1 101")
        yield there
    server.close()
    for connection in list(state.connections):
        connection.transport.abort()
    await asyncio.gather(*state.tasks)


async def accept(receive: Receive, send: Send) -> None:
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})


def test_the_end_of_a_connection_is_seen_by_an_application_that_does_not_receive() -> None:
    seen = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await accept(receive, send)
        await scope["extensions"][LOST].wait()
        seen.set()

    async def main() -> None:
        async with asyncio.timeout(BOUND_S), attached(app) as there:
            # Of what nobody receives only the first is read, so that neither is the end of it.
            there.send(MESSAGE * 2)
            there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            there.close()
            await seen.wait()

    asyncio.run(main())
