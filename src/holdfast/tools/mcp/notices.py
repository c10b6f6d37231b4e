"""What happened to the sessions, told to clients as it comes.

Told is not acknowledged: signals stay in the queue until the agent takes them with a tool, so a client that cannot be
pushed to, or looked away, loses nothing. Each is told once by this server.
"""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING

from mcp.shared.exceptions import MCPDeprecationWarning

from ...host.asyncio_driver import Asynchronous
from ...signals.drain import render
from .resources import SIGNALS

if TYPE_CHECKING:
    from typing import Self

    from mcp.server.session import ServerSession
    from mcp_types import LoggingLevel

    from ...signals.records import Signal
    from ..toolset import Toolset
    from .news import News

_AT_ONCE = 100
_LOGGER = "holdfast"
_LEVELS: tuple[LoggingLevel, ...] = (
    *("debug", "info", "notice", "warning"),
    *("error", "critical", "alert", "emergency"),
)


class Notices:
    def __init__(self, toolset: Toolset, news: News) -> None:
        self._toolset = toolset
        self._news = news
        self._clients: dict[object, ServerSession] = {}
        self._levels: dict[object, LoggingLevel] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._tell_all())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def add(self, session: ServerSession) -> None:
        # As in news.py: the connection is what outlives one message.
        connection = session._connection
        self._clients[connection] = session
        connection.exit_stack.callback(self._forget, connection)

    def set_level(self, session: ServerSession, level: LoggingLevel) -> None:
        self._levels[session._connection] = level

    def _forget(self, connection: object) -> None:
        self._clients.pop(connection, None)
        self._levels.pop(connection, None)

    async def _tell_all(self) -> None:
        consumer = self._toolset.consumer()
        driver = Asynchronous()
        told: set[str] = set()
        with consumer.waker() as waker:
            while True:
                waker.clear()
                waiting = await consumer.peek(_AT_ONCE)
                new = [signal for signal in waiting if signal.id not in told]
                # Only what still waits has to be remembered.
                told = {signal.id for signal in waiting}
                if new:
                    await self._tell(new)
                await waker.stirred(driver)

    async def _tell(self, signals: list[Signal]) -> None:
        message = render(signals, self._toolset.name)
        await self._news.tell(SIGNALS)
        if not message:
            return
        level: LoggingLevel = "warning" if any(map(_is_bad, signals)) else "info"
        data = {"text": message.text, "signals": message.ids}
        for connection, session in list(self._clients.items()):
            if _LEVELS.index(level) >= _LEVELS.index(self._levels.get(connection, "debug")):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", MCPDeprecationWarning)
                    await session.send_log_message(level, data, logger=_LOGGER)


def _is_bad(signal: Signal) -> bool:
    return signal.variant == "lifecycle" and signal.fields.get("status") in ("failed", "killed")
