"""Sessions as MCP resources, and subscriptions to them.

holdfast://sessions                 those of the owner, as JSON
holdfast://sessions/{id}/log        the end of its output, as clean text
holdfast://sessions/{id}/screen     what a person would see of its terminal
holdfast://signals                  what happened and was not acknowledged yet
holdfast://reminders                of a toolset that has them, the reminders of its daemons
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import mcp_types as types
from mcp.server.subscriptions import ResourceUpdated

from ...errors import HoldfastError, NotFound, Unreachable
from ...index import plain
from ...model import FINAL_STATES, LOST
from ...signals.render import style_named
from ...terminal.text import all_visible
from ..base import each_text
from ..owner_sessions import end_of, has_survivors, is_extinct

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator, Sequence
    from typing import TypeVar

    from mcp.server.connection import Connection
    from mcp.server.session import ServerSession
    from mcp.server.subscriptions import SubscriptionBus
    from starlette.requests import Request

    from ...daemons.observers import Change
    from ...sessions.aio import AsyncSession
    from ..base import Toolset


# Replace lone surrogates, which stand for bytes that are not UTF-8: they would end a transport.


if TYPE_CHECKING:
    T = TypeVar("T")


def without_surrogates(value: T) -> T:
    """The same value with U+FFFD in place of surrogates, at any depth."""
    if isinstance(value, str):
        return plain(value)  # type: ignore[return-value]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(each) for key, each in value.items()}  # type: ignore[return-value]
    if isinstance(value, list | tuple):
        return [without_surrogates(each) for each in value]  # type: ignore[return-value]
    return value


# Sessions as resources: the list of them, and the log and the screen of each.


SESSIONS = "holdfast://sessions"
SIGNALS = "holdfast://signals"
_ROOT = "holdfast://"
LOG = "log"
SCREEN = "screen"

_LOG_CHARACTERS = 100_000
_LOG_LINES = 5_000
_LISTED = 100
_SIGNALS_SHOWN = 50
_JSON = "application/json"
_TEXT = "text/plain"


class Resources:
    def __init__(self, toolset: Toolset) -> None:
        self.toolset = toolset

    async def listed(self) -> list[types.Resource]:
        found = [
            types.Resource(uri=SESSIONS, name="sessions", description="all sessions of this agent", mime_type=_JSON),
            types.Resource(uri=SIGNALS, name="signals", description="what was not acknowledged yet", mime_type=_TEXT),
        ]
        for name, description in self.toolset.resources.items():
            found.append(types.Resource(uri=_ROOT + name, name=name, description=description, mime_type=_TEXT))
        for session in _foremost(await self._sessions()):
            found.append(_resource(session, LOG, "what it printed"))
            if session.tty:
                found.append(_resource(session, SCREEN, "what its terminal shows"))
        return found

    def templates(self) -> list[types.ResourceTemplate]:
        made = types.ResourceTemplate
        return [
            made(uri_template=f"{SESSIONS}/{{id}}/{LOG}", name="log", mime_type=_TEXT, description="what it printed"),
            made(
                uri_template=f"{SESSIONS}/{{id}}/{SCREEN}", name="screen", mime_type=_TEXT, description="its terminal"
            ),
        ]

    async def check(self, uri: str) -> AsyncSession | None:
        """The session of the resource; None if it is about all of them. NotFound if there is no such resource."""
        if uri in (SESSIONS, SIGNALS) or self.is_of_toolset(uri):
            return None
        ref, what = _parts(uri)
        session = await self.toolset.find(ref)
        if what not in (LOG, SCREEN):
            raise _no_such(uri)
        return session

    async def read(self, uri: str) -> types.TextResourceContents:
        session = await self.check(uri)
        redact = self.toolset.redactor()
        if uri == SESSIONS:
            sessions = await self._sessions()
            shots = [each.to_json() for each in _foremost(sessions)]
            if redact is not None:
                shots = each_text(shots, redact)
            text = json.dumps({"sessions": shots, "left_out": len(sessions) - len(shots)})
            return types.TextResourceContents(uri=uri, mime_type=_JSON, text=text)
        if session is None:
            text = await self._signals() if uri == SIGNALS else await self.toolset.resource(uri.removeprefix(_ROOT))
        else:
            text = (await session.screen()).text if uri.endswith(SCREEN) else await _log(session)
            text = style_named(self.toolset.name).harmless(all_visible(text))
        return types.TextResourceContents(
            uri=uri, mime_type=_TEXT, text=without_surrogates(redact(text) if redact else text)
        )

    def is_of_toolset(self, uri: str) -> bool:
        return uri.startswith(_ROOT) and uri.removeprefix(_ROOT) in self.toolset.resources

    async def _sessions(self) -> list[AsyncSession]:
        return await self.toolset.hf.sessions(all=True, owner=self.toolset.owner)

    async def _signals(self) -> str:
        """Rendered as in a notice. Reading acknowledges nothing."""
        from ...signals.items import Limits
        from ...signals.render import render

        consumer = self.toolset.consumer()
        waiting = await consumer.peek(_SIGNALS_SHOWN)
        text = render(waiting, self.toolset.name, limits=Limits(self.toolset.hf.config)).text
        more = await consumer.pending() - len(waiting) if len(waiting) == _SIGNALS_SHOWN else 0
        rest = f"and {more} more {'waits' if more == 1 else 'wait'} behind these" if more > 0 else ""
        return "\n".join(filter(None, (text, rest)))


def _foremost(sessions: Sequence[AsyncSession]) -> list[AsyncSession]:
    """Sessions with a living process, then those that ended, the newest of each: a long job began long ago."""
    live = [each for each in sessions if not is_extinct(each)]
    known = {each.id for each in live}
    ended = [each for each in sessions if each.id not in known]
    room = max(0, _LISTED - len(live))
    return live[-_LISTED:] + ended[len(ended) - min(room, len(ended)) :]


async def _log(session: AsyncSession) -> str:
    """The end of it, with a note first if there is more."""
    lines = await session.tail(_LOG_LINES)
    text, cut = end_of(lines, _LOG_CHARACTERS)
    whole = not cut and lines.count("\n") < _LOG_LINES and not any(session.dropped_before.values())
    return text if whole else f"[the end of {sum(session.ends.values()):,} bytes; what was before is left out]\n{text}"


def _no_such(uri: str) -> NotFound:
    problem = NotFound(uri)
    problem.message = f"no such resource: {uri[:200]!a}"
    problem.fix = "resources/list shows those there are"
    return problem


def _resource(session: AsyncSession, what: str, description: str) -> types.Resource:
    name = f"{session.name or session.id} {what}"
    uri = f"{SESSIONS}/{session.id}/{what}"
    about = without_surrogates(f"{description}: {session.command[:80]}")
    return types.Resource(uri=uri, name=without_surrogates(name), description=about, mime_type=_TEXT)


def _parts(uri: str) -> tuple[str, str]:
    if not uri.startswith(SESSIONS + "/"):
        raise _no_such(uri)
    ref, _, what = uri[len(SESSIONS) + 1 :].partition("/")
    return ref, what


# The connection behind a handler's session, and whether its client is still there.


def connection_of(session: ServerSession) -> Connection:
    """A session is made for each message; its connection stays, and its exit stack runs when it closes. The SDK has no
    public name for it."""
    return session._connection


async def disconnected(request: Request) -> None:
    """Return when the client of this request has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


# Subscriptions to resources, and updates of them.
#
# While a client wants updates of a log or a screen, one task waits for its output; nothing polls. Some clients
# subscribe, others listen on a stream.


# The shortest time between two updates of a program that prints all the time.
_GATHER_S = 0.25
# A runner that did not answer is asked again after this time.
_AGAIN_S = 1.0
# A client that accepts nothing for this long gets no more.
_SEND_S = 5.0


async def accepted(sending: Awaitable[None]) -> bool:
    """Whether the client accepts the message in time."""
    try:
        async with asyncio.timeout(_SEND_S):
            await sending
    except TimeoutError:
        return False
    return True


class News:
    def __init__(self, resources: Resources, bus: SubscriptionBus) -> None:
        self._resources = resources
        self._bus = bus
        self._wanted: Counter[str] = Counter()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Clients that subscribe, by resource and connection.
        self._subscribed: dict[str, dict[object, ServerSession]] = {}

    @contextmanager
    def wanted(self, resources: Iterable[tuple[str, AsyncSession | None]]) -> Iterator[None]:
        """Each with its session as it was when it was asked for: output from then on is new."""
        resources = list(resources)
        for uri, watched in resources:
            self._want(uri, watched)
        try:
            yield
        finally:
            for uri, _ in resources:
                self._want_no_more(uri)

    def subscribe(self, session: ServerSession, uri: str, watched: AsyncSession | None) -> None:
        connection = connection_of(session)
        subscribers = self._subscribed.setdefault(uri, {})
        if connection in subscribers:
            self._revive(uri, watched)
            return
        subscribers[connection] = session
        self._want(uri, watched)
        connection.exit_stack.callback(self.unsubscribe, session, uri)

    def unsubscribe(self, session: ServerSession, uri: str) -> None:
        if self._subscribed.get(uri, {}).pop(connection_of(session), None) is not None:
            self._want_no_more(uri)

    async def announce(self, uri: str) -> None:
        await self._bus.publish(ResourceUpdated(uri=uri))
        sessions = list(self._subscribed.get(uri, {}).values())
        await asyncio.gather(*(self._send(session, uri) for session in sessions))

    async def _send(self, session: ServerSession, uri: str) -> None:
        if not await accepted(session.send_resource_updated(uri)):
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
        """Start to watch, also if the session was over before: the name may belong to another session now."""
        if uri not in self._tasks or self._tasks[uri].done():
            listed = uri == SESSIONS or self._resources.is_of_toolset(uri)
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
            return  # `Notices` announces it
        try:
            cursor, silent = session.cursor, False
            while not (over := session.state in FINAL_STATES) or _prints_on(session):
                try:
                    # After the end of the command its survivors may still print.
                    woke = await session.wait(output=True, extinct=over, since=cursor)
                except Unreachable:
                    if not silent:
                        await self.announce(uri)
                    silent = True
                    await asyncio.sleep(_AGAIN_S)
                    continue
                silent = False
                if over and woke.reason != "output":
                    return
                # The wait has refreshed the session; its own cursor is before the new output.
                cursor = session.cursor
                await self.announce(uri)
                await asyncio.sleep(_GATHER_S)
        except HoldfastError:
            await self.announce(uri)  # reading it says what is wrong

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
                await self.announce(uri)
                await asyncio.sleep(_GATHER_S)
        finally:
            forget()


def _prints_on(session: AsyncSession) -> bool:
    """For a session that is over: whether survivors are left whose output is still captured."""
    return session.state != LOST and has_survivors(session)
