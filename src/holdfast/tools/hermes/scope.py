"""Which sessions are this toolset's, by what they are called, and which of them are listed."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...errors import AmbiguousId, NotFound
from ...model import FINAL_STATES
from ...signals.records import Note, Signal
from . import limits

if TYPE_CHECKING:
    from collections.abc import Collection

    from ...host.aio import AsyncHoldfast, AsyncSession
    from ...model import Snapshot

# Labels. The first name of a session is its id here, whatever it is called later.
ID = "hermes.id"
TASK = "hermes.task"
OWNER_TASK = "hermes.owner_task"
ORIGIN = "hermes.origin."
PERSIST = "hermes.persist"
MODE = "hermes.mode"

FOREGROUND = "foreground"
BACKGROUND = "background"
# Began in the foreground, and its caller stopped waiting.
YIELDED = "yielded"

PREFIX = "proc_"
_SHORT = re.compile(rf"(?:{PREFIX})?([0-9a-f]{{{limits.PREFIX_DIGITS},{limits.ID_DIGITS}}})")


def new_id() -> str:
    return PREFIX + secrets.token_hex(limits.ID_DIGITS // 2)


def called(shot: Snapshot) -> str:
    return shot.labels.get(ID) or shot.name or shot.id


def is_over(shot: Snapshot) -> bool:
    return shot.state in FINAL_STATES


def is_ours(shot: Snapshot) -> bool:
    return ID in shot.labels


def is_meant(shot: Snapshot, ref: object) -> bool:
    """By what `find` would find it by, were it the only one."""
    text = str(ref).strip()
    short = _SHORT.fullmatch(text)
    begins_so = short is not None and called(shot).startswith(PREFIX + short.group(1))
    return begins_so or text in (shot.id, shot.name, called(shot))


def begins(name: str, ref: object) -> bool:
    """Is it what `ref` means, whole or by its first digits?"""
    text = str(ref).strip()
    short = _SHORT.fullmatch(text)
    return text == name or (short is not None and name.startswith(PREFIX + short.group(1)))


async def find(hf: AsyncHoldfast, ref: object, owners: Collection[str]) -> AsyncSession:
    """One of these owners' by its name, its id, or a prefix of what it is called here."""
    text = str(ref).strip()
    for owner in owners:
        try:
            session = await hf.get(text, owner=owner)
            if text in (session.id, session.name):
                return session
        except (NotFound, AmbiguousId):
            pass
    short = _SHORT.fullmatch(text)
    if short is None:
        raise NotFound(text)
    wanted = PREFIX + short.group(1)
    candidates = {called(each): each for owner in owners for each in await of_owner(hf, owner, all=True)}
    if wanted in candidates:
        return await candidates[wanted].refresh()
    found = sorted(name for name in candidates if name.startswith(wanted))
    if len(found) > 1:
        raise AmbiguousId(text, found)
    if not found:
        raise NotFound(text)
    return await candidates[found[0]].refresh()


async def of_task(hf: AsyncHoldfast, task_id: str, *, all: bool = False) -> list[AsyncSession]:
    """Whoever owns them. A blank task has none."""
    if not task_id.strip():
        return []
    return [each for each in await hf.sessions(all=all, labels={TASK: task_id}) if is_ours(each)]


async def of_owner(hf: AsyncHoldfast, owner: str, *, all: bool = False) -> list[AsyncSession]:
    return [each for each in await hf.sessions(all=all, owner=owner) if is_ours(each)]


async def listed(
    hf: AsyncHoldfast, task_id: str, owners: Collection[str], session_keys: Collection[str]
) -> list[AsyncSession]:
    """What these owners have of the task, and all of the session keys, newest first: all that run, and what ended
    lately."""
    found = {each.id: each for each in await of_task(hf, task_id, all=True) if each.owner in owners}
    for session_key in filter(None, session_keys):
        found.update((each.id, each) for each in await of_owner(hf, session_key, all=True))
    running = [each for each in found.values() if not is_over(each)]
    over = [each for each in found.values() if is_over(each) and (since(each.ended_at) or 0.0) <= limits.LIST_AGE_S]
    over = [each for each in over if not await _is_done_with(each)]
    over.sort(key=lambda each: each.ended_at or "", reverse=True)
    kept = running + over[: max(0, limits.LIST_ROWS - len(running))]
    return sorted(kept, key=lambda each: (each.created_at or "", each.id), reverse=True)


async def _is_done_with(session: AsyncSession) -> bool:
    """A foreground command whose caller was answered with its end, and of which nothing lives on."""
    if session.labels.get(MODE) != FOREGROUND or (session.exit is not None and session.exit.survivors):
        return False
    told = await session.told()
    queued = {each.queued for each in told if isinstance(each, Note)}
    ends = [each for each in told if isinstance(each, Signal) and each.ends_session]
    return not any(each.routed is True or each.seq in queued for each in ends)


async def is_promised(session: AsyncSession) -> bool:
    """Is its end for somebody: for the queue, or for whoever waited for it?"""
    ends = [each for each in await session.told() if isinstance(each, Signal) and each.ends_session]
    return any(each.routed is not False for each in ends)


def moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def since(text: str | None, until: str | None = None) -> float | None:
    """Seconds from then to `until`, or to now; None for "not yet"."""
    begin, end = moment(text), moment(until) or datetime.now(UTC)
    return None if begin is None else max(0.0, (end - begin).total_seconds())
