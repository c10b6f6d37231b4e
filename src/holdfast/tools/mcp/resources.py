"""Sessions as resources: the list of them, and the log and the screen of each.

holdfast://sessions                 those of the owner, as JSON
holdfast://sessions/{id}/log        the end of what it printed, as clean text
holdfast://sessions/{id}/screen     what a person would see of its terminal
holdfast://signals                  what happened and was not acknowledged yet
holdfast://reminders                of a family that has them, the reminders of its daemons
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import mcp_types as types

from ...errors import NotFound
from ...host.text import all_visible
from ...model import FINAL_STATES
from ...signals.styles import STYLES
from .sound import sound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...host.aio import AsyncSession
    from ..toolset import Toolset

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
        """The session that it speaks of, None where it is about all of them. NotFound when there is no such thing."""
        if uri in (SESSIONS, SIGNALS) or self.is_of_family(uri):
            return None
        ref, what = _parts(uri)
        session = await self.toolset.find(ref)
        if what not in (LOG, SCREEN):
            raise _no_such(uri)
        return session

    async def read(self, uri: str) -> types.TextResourceContents:
        session = await self.check(uri)
        if uri == SESSIONS:
            sessions = await self._sessions()
            shots = [each.to_json() for each in _foremost(sessions)]
            text = json.dumps({"sessions": shots, "left_out": len(sessions) - len(shots)})
            return types.TextResourceContents(uri=uri, mime_type=_JSON, text=text)
        if session is None:
            text = await self._signals() if uri == SIGNALS else await self.toolset.resource(uri.removeprefix(_ROOT))
        else:
            text = (await session.screen()).text if uri.endswith(SCREEN) else await _log(session)
            text = STYLES[self.toolset.name].harmless(all_visible(text))
        hidden = self.toolset.hides()
        return types.TextResourceContents(uri=uri, mime_type=_TEXT, text=sound(hidden(text) if hidden else text))

    def is_of_family(self, uri: str) -> bool:
        return uri.startswith(_ROOT) and uri.removeprefix(_ROOT) in self.toolset.resources

    async def _sessions(self) -> list[AsyncSession]:
        return await self.toolset.hf.sessions(all=True, owner=self.toolset.owner)

    async def _signals(self) -> str:
        """Rendered as they would be told. Reading acknowledges nothing."""
        from ...signals.budget import Limits
        from ...signals.drain import render

        consumer = self.toolset.consumer()
        waiting = await consumer.peek(_SIGNALS_SHOWN)
        text = render(waiting, self.toolset.name, limits=Limits.of(self.toolset.hf.config)).text
        more = await consumer.pending() - len(waiting) if len(waiting) == _SIGNALS_SHOWN else 0
        rest = f"and {more} more {'waits' if more == 1 else 'wait'} behind these" if more > 0 else ""
        return "\n".join(filter(None, (text, rest)))


def _foremost(sessions: Sequence[AsyncSession]) -> list[AsyncSession]:
    """Those of which something lives, then those that ended, of each the newest: what runs for long began long ago."""
    live = [each for each in sessions if each.state not in FINAL_STATES or (each.exit and each.exit.survivors)]
    known = {each.id for each in live}
    ended = [each for each in sessions if each.id not in known]
    room = max(0, _LISTED - len(live))
    return live[-_LISTED:] + ended[len(ended) - min(room, len(ended)) :]


async def _log(session: AsyncSession) -> str:
    """The end of it; that there is more is said first."""
    text = await session.tail(_LOG_LINES)
    whole = text.count("\n") < _LOG_LINES and not any(session.dropped_before.values())
    if len(text) > _LOG_CHARACTERS:
        whole = False
        cut = text[-_LOG_CHARACTERS:]
        text = cut.partition("\n")[2] or cut
    return text if whole else f"[the end of {sum(session.ends.values()):,} bytes; what was before is left out]\n{text}"


def _no_such(uri: str) -> NotFound:
    problem = NotFound(uri)
    problem.message = f"no such resource: {uri[:200]!a}"
    problem.fix = "resources/list shows those there are"
    return problem


def _resource(session: AsyncSession, what: str, description: str) -> types.Resource:
    name = f"{session.name or session.id} {what}"
    uri = f"{SESSIONS}/{session.id}/{what}"
    about = sound(f"{description}: {session.command[:80]}")
    return types.Resource(uri=uri, name=sound(name), description=about, mime_type=_TEXT)


def _parts(uri: str) -> tuple[str, str]:
    if not uri.startswith(SESSIONS + "/"):
        raise _no_such(uri)
    ref, _, what = uri[len(SESSIONS) + 1 :].partition("/")
    return ref, what
