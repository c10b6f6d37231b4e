"""Connections below the gate, with an application that does what ours does only now and then."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import uvicorn
from uvicorn.server import ServerState

from holdfast.server import serve
from holdfast.server.responses import LOST
from holdfast.server.serve import HttpConnection, WebSocketConnection
from support.serving import UPGRADE
from support.waiting import BOUND_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import ASGIApp, Receive, Scope, Send

PING_S = 0.05
# Long enough for what is said in time to be read in time on a busy machine.
PONG_S = 0.5
ENOUGH = 4
CLOSE, PING = 8, 9
MESSAGE = bytes((0x82, 0x81, 0, 0, 0, 0)) + b"x"
GOODBYE = bytes((0x88, 0x80, 0, 0, 0, 0))


@asynccontextmanager
async def attached(app: ASGIApp) -> AsyncIterator[socket.socket]:
    """The socket of a client whose upgrade is accepted by `app`."""
    config = uvicorn.Config(
        app,
        http=HttpConnection,
        ws=WebSocketConnection,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PONG_S,
        lifespan="off",
        log_config=None,
    )
    config.load()
    loop, state = asyncio.get_running_loop(), ServerState()
    server = await loop.create_server(lambda: HttpConnection(config, state, {}), "127.0.0.1", 0)
    # Little is on its way at a time: what a client does not take comes back to us soon.
    server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with socket.socket() as there:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
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


async def frame(there: socket.socket) -> tuple[int, bytes]:
    """The next short one: its kind, and what is in it."""
    loop = asyncio.get_running_loop()
    kind, length = await loop.sock_recv(there, 2)
    return kind & 15, await loop.sock_recv(there, length)


async def pings_until_closed(there: socket.socket, said: bytes = b"") -> tuple[int, int]:
    """None of which it answers; after each of the first few `said` is sent. How many, and the code of the close."""
    loop, pings = asyncio.get_running_loop(), 0
    while True:
        kind, body = await frame(there)
        if kind == CLOSE:
            return pings, int.from_bytes(body[:2], "big")
        assert kind == PING
        pings += 1
        if pings < ENOUGH:
            await loop.sock_sendall(there, said)


def test_a_pong_that_is_not_read_is_not_missed() -> None:
    """An application that cannot take more is not read for, and that is no fault of the client's."""
    done = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await accept(receive, send)
        await done.wait()
        while (await receive())["type"] != "websocket.disconnect":
            pass

    async def main() -> None:
        async with asyncio.timeout(BOUND_S), attached(app) as there:
            there.send(MESSAGE)
            for _ in range(ENOUGH):
                assert (await frame(there))[0] == PING
            done.set()
            assert (await pings_until_closed(there))[1] == 4408

    asyncio.run(main())


def test_a_pong_behind_a_message_that_takes_its_time_is_not_missed() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await accept(receive, send)
        await receive()

    async def main() -> None:
        async with asyncio.timeout(BOUND_S), attached(app) as there:
            there.send(bytes((0x82, 0xFE, 0x10, 0, 0, 0, 0, 0)))
            pings, code = await pings_until_closed(there, b"x")
            assert pings >= ENOUGH
            assert code == 4408

    asyncio.run(main())


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


def test_a_client_that_reads_nothing_and_answers_no_ping_is_let_go() -> None:
    """What was sent before stands in front of the close, and would never be gone."""
    gone = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await accept(receive, send)
        try:
            while True:
                await send({"type": "websocket.send", "bytes": bytes(64 << 10)})
        finally:
            gone.set()

    async def main() -> None:
        async with asyncio.timeout(BOUND_S), attached(app):
            await gone.wait()

    asyncio.run(main())


def test_a_client_that_reads_nothing_and_says_goodbye_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_SLOW_S", 0.05)
    lost: list[asyncio.Event] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        lost.append(scope["extensions"][LOST])
        await accept(receive, send)
        await send({"type": "websocket.send", "bytes": bytes(1 << 20)})
        await receive()

    async def main() -> None:
        async with asyncio.timeout(BOUND_S), attached(app) as there:
            there.send(GOODBYE)
            await lost[0].wait()

    asyncio.run(main())
