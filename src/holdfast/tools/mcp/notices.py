"""What happened to the sessions, told to clients as it comes, and to those who connect later.

Told is not acknowledged: signals stay in the queue until the agent takes them with a tool, so a client that cannot be
pushed to, or looked away, loses nothing. Each is told once to each connection.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from typing import TYPE_CHECKING

from mcp.shared.exceptions import MCPDeprecationWarning

from ...errors import HoldfastError
from ...host.asyncio_driver import Asynchronous
from ...signals.budget import Limits
from ...signals.drain import render
from .connections import of
from .resources import SIGNALS
from .sound import sound

if TYPE_CHECKING:
    from mcp.server.session import ServerSession
    from mcp_types import LoggingLevel

    from ...signals.consumer import AsyncConsumer
    from ...signals.records import Signal
    from ...signals.waker import Waker
    from ..toolset import Toolset
    from .news import News

# More than so many that wait are not looked through; whoever has so many to deal with need not hear of the next.
_MOST = 1_000
# From here on what is known to be told is looked through for what is settled.
_REMEMBERED = 2 * _MOST
# A client that takes nothing for so long is told no more.
_SEND_S = 5.0
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
        self.told: set[str] = set()


class Notices:
    def __init__(self, toolset: Toolset, news: News) -> None:
        self._toolset = toolset
        self._news = news
        self._clients: dict[object, _Client] = {}
        # What was said of the queue itself, to whoever listens for that.
        self._known: set[str] = set()
        self._waker: Waker | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.ensure_future(self._tell_all())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def add(self, session: ServerSession) -> None:
        connection = of(session)
        self._clients[connection] = _Client(session)
        connection.exit_stack.callback(self._clients.pop, connection, None)
        if self._waker is not None:
            self._waker.poke()

    def set_level(self, session: ServerSession, level: LoggingLevel) -> None:
        client = self._clients.get(of(session))
        if client is not None:
            client.level = level

    async def _tell_all(self) -> None:
        while True:
            try:
                await self._follow(self._toolset.consumer())
            except HoldfastError as problem:
                # The index is locked, say: what waits there waits on.
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
                        await self._news.tell(SIGNALS)
                    await self._remember(self._known, waiting, consumer)
                    await asyncio.gather(*(self._tell(client, waiting, consumer) for client in self._all()))
                    # What was given back is due later.
                    await waker.stirred(driver, pending.next_due)
            finally:
                self._waker = None

    def _all(self) -> list[_Client]:
        return list(self._clients.values())

    async def _tell(self, client: _Client, waiting: list[Signal], consumer: AsyncConsumer) -> None:
        new = [signal for signal in waiting if signal.id not in client.told]
        await self._remember(client.told, waiting, consumer)
        message = render(new, self._toolset.name, limits=Limits.of(self._toolset.hf.config)) if new else None
        level: LoggingLevel = "warning" if any(map(_is_bad, new)) else "info"
        if not message or _LEVELS.index(level) < _LEVELS.index(client.level):
            return
        data = {"text": sound(message.text), "signals": message.ids}
        try:
            async with asyncio.timeout(_SEND_S):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", MCPDeprecationWarning)
                    await client.session.send_log_message(level, data, logger=_LOGGER)
        except TimeoutError:
            self._clients.pop(of(client.session), None)

    async def _remember(self, told: set[str], waiting: list[Signal], consumer: AsyncConsumer) -> None:
        told.update(signal.id for signal in waiting)
        if len(told) > _REMEMBERED:
            for id in list(told):
                if not await consumer.is_open(id):
                    told.discard(id)


def _is_bad(signal: Signal) -> bool:
    return signal.variant == "lifecycle" and signal.fields.get("status") in ("failed", "killed")
