"""Sessions as resources: the list of them, and the log and the screen of each.

holdfast://sessions                 those of the owner, as JSON
holdfast://sessions/{id}/log        the end of what it printed, as clean text
holdfast://sessions/{id}/screen     what a person would see of its terminal
holdfast://signals                  what happened and was not acknowledged yet
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import mcp_types as types

from ...errors import NotFound

if TYPE_CHECKING:
    from ...host.aio import AsyncSession
    from ..toolset import Toolset

SESSIONS = "holdfast://sessions"
SIGNALS = "holdfast://signals"
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
        for session in (await self._sessions())[-_LISTED:]:
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
        """The session that it speaks of, None where it is about all of them. NotFound when there is no such thing."""
        if uri in (SESSIONS, SIGNALS):
            return None
        ref, what = _parts(uri)
        session = await self.toolset.find(ref)
        if what not in (LOG, SCREEN):
            raise NotFound(uri)
        return session

    async def read(self, uri: str) -> types.TextResourceContents:
        session = await self.check(uri)
        if uri == SESSIONS:
            shots = [each.to_json() for each in await self._sessions()]
            return types.TextResourceContents(uri=uri, mime_type=_JSON, text=json.dumps(shots))
        if session is None:
            return types.TextResourceContents(uri=uri, mime_type=_TEXT, text=await self._signals())
        if uri.endswith(SCREEN):
            return types.TextResourceContents(uri=uri, mime_type=_TEXT, text=(await session.screen()).text)
        text = (await session.tail(_LOG_LINES))[-_LOG_CHARACTERS:]
        return types.TextResourceContents(uri=uri, mime_type=_TEXT, text=text)

    async def _sessions(self) -> list[AsyncSession]:
        return await self.toolset.hf.sessions(all=True, owner=self.toolset.owner)

    async def _signals(self) -> str:
        """Rendered as they would be told. Reading acknowledges nothing."""
        from ...signals.drain import render

        return render(await self.toolset.consumer().peek(_SIGNALS_SHOWN), self.toolset.name).text


def _resource(session: AsyncSession, what: str, description: str) -> types.Resource:
    name = f"{session.name or session.id} {what}"
    uri = f"{SESSIONS}/{session.id}/{what}"
    return types.Resource(uri=uri, name=name, description=f"{description}: {session.command[:80]}", mime_type=_TEXT)


def _parts(uri: str) -> tuple[str, str]:
    if not uri.startswith(SESSIONS + "/"):
        raise NotFound(uri)
    ref, _, what = uri[len(SESSIONS) + 1 :].partition("/")
    return ref, what
