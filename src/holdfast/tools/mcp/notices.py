"""Signals, sent to MCP clients as they come, and to clients that connect later.

Sending does not acknowledge: signals stay in the queue until the agent acknowledges them with a tool. So a client
that cannot be pushed to loses nothing. Each signal is sent once to each connection.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from typing import TYPE_CHECKING

from mcp.shared.exceptions import MCPDeprecationWarning

from ...errors import HoldfastError
from ...sessions.driver import Asynchronous
from ...signals.items import Limits
from ...signals.render import render
from .resources import SIGNALS, News, accepted, connection_of, without_surrogates

if TYPE_CHECKING:
    from mcp.server.session import ServerSession
    from mcp_types import LoggingLevel

    from ...signals.consumer import AsyncConsumer
    from ...signals.lines import Signal
    from ...signals.waker import Waker
    from ..base import Toolset


# At most this many signals in the queue are looked at; an agent with more of them does not need the next one.
_MOST = 1_000
# With more remembered signals than this, settled ones are forgotten.
_REMEMBERED = 2 * _MOST
_AGAIN_S = 1.0
_LOGGER = "holdfast"
_LEVELS: tuple[LoggingLevel, ...] = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)


class _Client:
    def __init__(self, session: ServerSession) -> None:
        self.session = session
        self.level: LoggingLevel = "debug"
        self.sent: set[str] = set()


class Notices:
    def __init__(self, toolset: Toolset, news: News) -> None:
        self._toolset = toolset
        self._news = news
        self._clients: dict[object, _Client] = {}
        # The signals that updates of the resource `signals` have announced.
        self._known: set[str] = set()
        self._waker: Waker | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.ensure_future(self._deliver())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def add(self, session: ServerSession) -> None:
        connection = connection_of(session)
        self._clients[connection] = _Client(session)
        connection.exit_stack.callback(self._clients.pop, connection, None)
        if self._waker is not None:
            self._waker.make_readable()

    def set_level(self, session: ServerSession, level: LoggingLevel) -> None:
        client = self._clients.get(connection_of(session))
        if client is not None:
            client.level = level

    async def _deliver(self) -> None:
        while True:
            try:
                await self._follow(self._toolset.consumer())
            except HoldfastError as problem:
                # For example, the index is locked: the signals wait there.
                logging.getLogger(__name__).warning("notices are late: %s", problem)
            await asyncio.sleep(_AGAIN_S)

    async def _follow(self, consumer: AsyncConsumer) -> None:
        driver = Asynchronous()
        with consumer.waker() as waker:
            self._waker = waker
            try:
                while True:
                    waker.clear()
                    pending = await consumer.pending()
                    waiting = await consumer.peek(min(_MOST, pending))
                    if any(signal.id not in self._known for signal in waiting):
                        await self._news.announce(SIGNALS)
                    await self._remember(self._known, waiting, consumer)
                    await asyncio.gather(*(self._send_to(client, waiting, consumer) for client in self._all()))
                    # Released signals are due later.
                    await waker.wait_readable(driver, pending.next_due)
            finally:
                self._waker = None

    def _all(self) -> list[_Client]:
        return list(self._clients.values())

    async def _send_to(self, client: _Client, waiting: list[Signal], consumer: AsyncConsumer) -> None:
        new = [signal for signal in waiting if signal.id not in client.sent]
        await self._remember(client.sent, waiting, consumer)
        message = render(new, self._toolset.name, limits=Limits(self._toolset.hf.config)) if new else None
        level: LoggingLevel = "warning" if any(map(_is_bad, new)) else "info"
        if not message or _LEVELS.index(level) < _LEVELS.index(client.level):
            return
        data = {"text": without_surrogates(message.text), "signals": message.ids}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            sending = client.session.send_log_message(level, data, logger=_LOGGER)
            if not await accepted(sending):
                self._clients.pop(connection_of(client.session), None)

    async def _remember(self, known: set[str], waiting: list[Signal], consumer: AsyncConsumer) -> None:
        known.update(signal.id for signal in waiting)
        if len(known) > _REMEMBERED:
            for id in list(known):
                if not await consumer.is_open(id):
                    known.discard(id)


def _is_bad(signal: Signal) -> bool:
    return signal.variant == "lifecycle" and signal.fields.get("status") in ("failed", "killed")
