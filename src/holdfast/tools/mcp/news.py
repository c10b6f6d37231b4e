"""Who wants to hear of which resource, and what is new of it.

While somebody wants to hear of a log or a screen, one task waits for its output; nothing is asked again and again.
Clients of two eras are told: those that subscribe, and those that listen on a stream.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mcp.server.subscriptions import ResourceUpdated

from ...errors import HoldfastError, Unreachable
from ...model import FINAL_STATES, LOST
from .connections import of
from .resources import SESSIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mcp.server.session import ServerSession
    from mcp.server.subscriptions import SubscriptionBus

    from ...daemons.observers import Change
    from ...host.aio import AsyncSession
    from .resources import Resources

# A program that prints all the time is told of so often at most.
_GATHER_S = 0.25
# A runner that did not answer may do so again; after so long it is asked.
_AGAIN_S = 1.0
# A client that takes nothing for so long is told no more.
_SEND_S = 5.0


class News:
    def __init__(self, resources: Resources, bus: SubscriptionBus) -> None:
        self._resources = resources
        self._bus = bus
        self._wanted: Counter[str] = Counter()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Of clients that subscribe: by resource, and each by the connection that it has.
        self._subscribed: dict[str, dict[object, ServerSession]] = {}

    @contextmanager
    def wanted(self, resources: Iterable[tuple[str, AsyncSession | None]]) -> Iterator[None]:
        """Of each the session as it was when it was asked for: what is printed from then on is new."""
        resources = list(resources)
        for uri, watched in resources:
            self._want(uri, watched)
        try:
            yield
        finally:
            for uri, _ in resources:
                self._want_no_more(uri)

    def subscribe(self, session: ServerSession, uri: str, watched: AsyncSession | None) -> None:
        connection = of(session)
        subscribers = self._subscribed.setdefault(uri, {})
        if connection in subscribers:
            self._revive(uri, watched)
            return
        subscribers[connection] = session
        self._want(uri, watched)
        connection.exit_stack.callback(self.unsubscribe, session, uri)

    def unsubscribe(self, session: ServerSession, uri: str) -> None:
        if self._subscribed.get(uri, {}).pop(of(session), None) is not None:
            self._want_no_more(uri)

    async def tell(self, uri: str) -> None:
        await self._bus.publish(ResourceUpdated(uri=uri))
        sessions = list(self._subscribed.get(uri, {}).values())
        await asyncio.gather(*(self._send(session, uri) for session in sessions))

    async def _send(self, session: ServerSession, uri: str) -> None:
        try:
            async with asyncio.timeout(_SEND_S):
                await session.send_resource_updated(uri)
        except TimeoutError:
            self.unsubscribe(session, uri)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    def _want(self, uri: str, watched: AsyncSession | None) -> None:
        self._wanted[uri] += 1
        self._revive(uri, watched)

    def _revive(self, uri: str, watched: AsyncSession | None) -> None:
        """Begin to watch, also what was over when it was watched before: a name may have another session now."""
        if uri not in self._tasks or self._tasks[uri].done():
            listed = uri == SESSIONS or self._resources.is_of_family(uri)
            watch = self._watch_list(uri) if listed else self._watch(uri, watched)
            self._tasks[uri] = asyncio.ensure_future(watch)

    def _want_no_more(self, uri: str) -> None:
        self._wanted[uri] -= 1
        if not self._wanted[uri]:
            del self._wanted[uri]
            task = self._tasks.pop(uri, None)
            if task is not None:
                task.cancel()

    async def _watch(self, uri: str, session: AsyncSession | None) -> None:
        if session is None:
            return  # the notices tell of it
        try:
            cursor, silent = session.cursor, False
            while not (over := session.state in FINAL_STATES) or _prints_on(session):
                try:
                    # After the end of the command what is left of it may print, until that has ended too.
                    woke = await session.wait(output=True, extinct=over, since=cursor)
                except Unreachable:
                    if not silent:
                        await self.tell(uri)
                    silent = True
                    await asyncio.sleep(_AGAIN_S)
                    continue
                silent = False
                if over and woke.reason != "output":
                    return
                # The wait has looked again; its own cursor stands before what woke it.
                cursor = session.cursor
                await self.tell(uri)
                await asyncio.sleep(_GATHER_S)
        except HoldfastError:
            await self.tell(uri)  # reading it says what is wrong

    async def _watch_list(self, uri: str) -> None:
        changed = asyncio.Event()
        owner = self._resources.toolset.owner

        def note(change: Change) -> None:
            if change.snapshot is None or change.snapshot.owner == owner:
                changed.set()

        forget = self._resources.toolset.hf.daemons.observe(note)
        try:
            while True:
                await changed.wait()
                changed.clear()
                await self.tell(uri)
                await asyncio.sleep(_GATHER_S)
        finally:
            forget()


def _prints_on(session: AsyncSession) -> bool:
    """Of one that is over: is somebody left whose output is still captured?"""
    return session.state != LOST and session.exit is not None and bool(session.exit.survivors)
