"""The life of a server: see that it may listen there, listen, serve until told to leave, leave."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvicorn

from ..host.aio import AsyncHoldfast
from ..serving.leaving import Server, on_signals
from ..serving.tokenfile import token_of, token_path
from . import limits
from .addresses import names
from .app import App
from .connections import Asking, Attached
from .credentials import Patience, Tokens, home_token
from .entrance import Entrance, check, opened
from .gate import Gate
from .tickets import Tickets

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from ..home import Home

_FILE = "token"


@dataclass(frozen=True)
class Started:
    """What whoever started the server is told."""

    url: str
    token_path: str
    instance: str


async def serve(
    entrance: Entrance,
    home: Home,
    started: Callable[[Started], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    leaving: asyncio.Event | None = None,
) -> int | None:
    """Until it is told to leave, by a signal, which is returned, or by `leaving`. No session is touched by that, or by
    any other end."""
    leaving = leaving or asyncio.Event()
    check(entrance)
    home.create()
    token = token_of(home, _FILE)
    instance = secrets.token_hex(8)
    tickets = Tickets(clock)
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(opened(entrance))
        port = None if entrance.unix else listener.getsockname()[1]
        hf = await stack.enter_async_context(AsyncHoldfast(home.path, author="web:server"))
        gate = Gate(
            App(hf, instance=instance, tickets=tickets, leaving=leaving),
            names=names(
                entrance.scheme,
                port,
                bind=None if entrance.unix else entrance.bind,
                host_names=entrance.host_names,
                allow_origins=entrance.allow_origins,
                public_url=entrance.public_url,
            ),
            tokens=Tokens([home_token(token)]),
            tickets=tickets,
            patience=Patience(clock, sleep),
            leaving=leaving,
            tls=entrance.url(port).startswith("https:"),
        )
        server = _Server(_configured(gate, entrance), leaving)
        on_signals(server.told)
        started(Started(entrance.url(port), token_path(home, _FILE), instance))
        await server.serve(sockets=[listener])
        return server.told_by


def _configured(gate: Gate, entrance: Entrance) -> uvicorn.Config:
    return uvicorn.Config(
        gate,
        http=Asking,
        ws=Attached,
        ws_max_size=limits.FRAME_BYTES,
        ws_ping_interval=limits.PING_INTERVAL_S,
        ws_ping_timeout=limits.PONG_S,
        # A window per viewer costs more memory than this machine's own network is worth.
        ws_per_message_deflate=False,
        h11_max_incomplete_event_size=limits.HEADER_BYTES,
        lifespan="off",
        # Its lines would show query strings, and those have tickets.
        access_log=False,
        log_config=None,
        log_level="error",
        # Whoever is not a proxy that was named could put any address into such headers.
        proxy_headers=False,
        server_header=False,
        date_header=False,
        ssl_certfile=entrance.tls_cert,
        ssl_keyfile=entrance.tls_key,
    )


class _Server(Server):
    def __init__(self, config: uvicorn.Config, leaving: asyncio.Event) -> None:
        super().__init__(config)
        self.silent_s = limits.HEADER_S
        self.told_by: int | None = None
        self._leaving = leaving

    def told(self, number: int) -> None:
        if self._leaving.is_set():
            os._exit(128 + number)
        self.told_by = number
        self._leaving.set()

    async def main_loop(self) -> None:
        # uvicorn's own looks ten times a second whether it is to leave: an idle server has nothing to do.
        await self._leaving.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        state = self.server_state
        deadline = asyncio.get_running_loop().time() + limits.LEAVING_S
        # Viewers see `leaving` and close with 1001; requests are answered.
        if state.tasks:
            _, late = await asyncio.wait(list(state.tasks), timeout=limits.LEAVING_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        # Clients that were told answer with a close of their own. Until then we read what they still send, or the
        # kernel would take back what we sent.
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                for attached in [each for each in state.connections if isinstance(each, Attached)]:
                    await attached.lost.wait()
        for connection in list(state.connections):
            connection.shutdown()
        # They are told of their end in the next round of the loop.
        await asyncio.sleep(0)
