"""A server that lets connections in by our own door, and how it is told to leave."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

import uvicorn

from .door import Door

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from contextlib import AbstractContextManager


_STARTUP_FAILURE = 3


def on_signals(told: Callable[[int], object]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, told, number)


class Server(uvicorn.Server):
    """Leaves when it is told to, and lets us clean up: uvicorn's own way is to die of the signal."""

    # How long a connection may say nothing before it asks for something.
    silent_s = 10.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(_STARTUP_FAILURE)
        door = Door(self._protocol, self.config.ssl, self.silent_s)
        # Where connections find it.
        self.server_state.door = door  # type: ignore[attr-defined]
        for listener in sockets or ():
            door.open(listener)
        self.servers = [door]  # type: ignore[list-item]
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()
