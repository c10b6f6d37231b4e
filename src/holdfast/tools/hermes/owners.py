"""The owners of this toolset: how their sessions are found and listed, and which ends were reported to their agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import AmbiguousId, NotFound
from ...signals.lines import Note, Signal
from ..owner_sessions import OwnerSessions, by_prefix, elapsed_s, has_survivors
from .labels import FOREGROUND, MODE, PREFIX, SHORT, TASK, called, is_ours, is_over
from .limits import LIST_AGE_S, LIST_ROWS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ...model import Snapshot
    from ...sessions.aio import AsyncHoldfast, AsyncSession
    from .settings import Settings


# The signals that become events of this toolset.
VARIANTS = ("lifecycle", "watch", "watch_disabled", "overflow", "heartbeat")
# The topic under which an end that a reply reported is kept.
_REPORTED = "told"


async def of_task(hf: AsyncHoldfast, task_id: str, *, all: bool = False) -> list[AsyncSession]:
    """The sessions of a task, of any owner. A blank task has none."""
    if not task_id.strip():
        return []
    return [each for each in await hf.sessions(all=all, labels={TASK: task_id}) if is_ours(each)]


class RegistryOwner(OwnerSessions):
    """One of the owners of a registry. A toolset has one owner, and is its `OwnerSessions` itself."""

    def __init__(self, hf: AsyncHoldfast, owner: str) -> None:
        super().__init__(hf, owner, "hermes", variants=VARIANTS)

    def is_own(self, session: Snapshot) -> bool:
        return is_ours(session)


class Owners:
    """The owners whose sessions are found by their ids, and which ends were reported to their agents."""

    def __init__(self, hf: AsyncHoldfast, settings: Settings, owners: Iterable[OwnerSessions]) -> None:
        self._hf = hf
        self._settings = settings
        self._owners = {each.owner: each for each in owners}
        # Ends that a poll has shown: their notices are short. Cosmetic, and so only in memory.
        self.observed: set[str] = set()

    def names(self) -> list[str]:
        return list(self._owners)

    def of(self, owner: str | None) -> OwnerSessions:
        """From now on its sessions are found too."""
        name = owner or ""
        if name not in self._owners:
            self._owners.setdefault(name, RegistryOwner(self._hf, name))
        return self._owners[name]

    async def find(self, ref: object) -> AsyncSession:
        """By its name, its id, or a unique prefix of its id here."""
        text = str(ref).strip()
        for owner in self.names():
            try:
                session = await self.of(owner).find(text)
                if text in (session.id, session.name):
                    return session
            except (NotFound, AmbiguousId):
                pass
        short = SHORT.fullmatch(text)
        if short is None:
            raise NotFound(text)
        every = [each for owner in self.names() for each in await self.of(owner).listed(ended=True)]
        return await by_prefix(text, PREFIX + short.group(1), {called(each): each for each in every}).refresh()

    async def listed(self, task_id: str, owners: Collection[str], session_keys: Collection[str]) -> list[AsyncSession]:
        """The sessions of these owners in the task, and all of the session keys, newest first: those that run, and
        those that ended lately."""
        found = {each.id: each for each in await of_task(self._hf, task_id, all=True) if each.owner in owners}
        for session_key in filter(str.strip, session_keys):
            found.update((each.id, each) for each in await RegistryOwner(self._hf, session_key).listed(ended=True))
        running = [each for each in found.values() if not is_over(each)]
        over = [each for each in found.values() if is_over(each) and elapsed_s(each.ended_at) <= LIST_AGE_S]
        over = [each for each in over if not await _was_answered(each)]
        over.sort(key=lambda each: each.ended_at or "", reverse=True)
        kept = running + over[: max(0, LIST_ROWS - len(running))]
        return sorted(kept, key=lambda each: (each.created_at or "", each.id), reverse=True)

    # Whether an end was reported to the owner's agent. A gateway that informs people has a queue of its own, and
    # neither silences the other.

    def event_of(self, session: AsyncSession) -> str | None:
        """The record of its end."""
        return self.of(session.owner).end_signal(session)

    async def mark_reported(self, session: AsyncSession, event_id: str | None, *, at_once: bool = False) -> None:
        """A reply has reported the end: no notice is due. With `turns`, once the open turn is settled."""
        if event_id is None or session.owner not in self._owners or not self._settings.drains:
            return
        owner = self.of(session.owner)
        # The queue does not know an end that no notice was wanted for.
        owner.kept.put(session.id, _REPORTED, event_id)
        if self._settings.turns and not at_once:
            await owner.consumer().note(event_id)
        else:
            await owner.consumer().ack(event_id)

    async def is_reported(self, session: AsyncSession, event_id: str | None) -> bool:
        if event_id is None or session.owner not in self._owners:
            return False
        owner = self.of(session.owner)
        # In this order: the second look sees a record that is appended in between.
        reported = owner.kept.get(session.id, _REPORTED) == event_id or await _was_to_be_reported(session)
        return reported and not await owner.consumer().is_open(event_id)


async def _was_answered(session: AsyncSession) -> bool:
    """A foreground command whose caller got its end, and which left no process behind."""
    if session.labels.get(MODE) != FOREGROUND or has_survivors(session):
        return False
    records = await session.told()
    queued = {each.queued for each in records if isinstance(each, Note)}
    ends = [each for each in records if isinstance(each, Signal) and each.ends_session]
    return not any(each.routed is True or each.seq in queued for each in ends)


async def _was_to_be_reported(session: AsyncSession) -> bool:
    """Whether its end was for the queue or for a caller that waited."""
    ends = [each for each in await session.told() if isinstance(each, Signal) and each.ends_session]
    return any(each.routed is not False for each in ends)
