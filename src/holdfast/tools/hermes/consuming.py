"""Whether the end of a session is still to be told to its agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...signals.names import default_name
from . import scope

if TYPE_CHECKING:
    from ...host.aio import AsyncHoldfast, AsyncSession
    from ...index.kept import Kept
    from ...signals.consumer import AsyncConsumer
    from .settings import Settings

VARIANTS = ("lifecycle", "watch", "watch_disabled", "overflow", "heartbeat")
_TOLD = "told"


class Consuming:
    """The agent's consumer of one owner. A gateway that tells people is another one, and neither silences the other."""

    def __init__(self, hf: AsyncHoldfast, owner: str, settings: Settings, kept: Kept) -> None:
        self._hf = hf
        self._owner = owner
        self._settings = settings
        self._consumer: AsyncConsumer | None = None
        # Ends that a poll has shown: their notices are short. Only a matter of looks, and so only in memory.
        self.observed: set[str] = set()
        # Has the ends that were told: the queue knows nothing of one that no notice was wanted of.
        self._kept = kept

    @property
    def consumer(self) -> AsyncConsumer:
        """One for all calls: what is noted joins the batch that this one handed out."""
        if self._consumer is None:
            name = default_name(self._owner, "hermes")
            self._consumer = self._hf.consumer(name, [self._owner], variants=VARIANTS)
        return self._consumer

    async def event_of(self, session: AsyncSession) -> str | None:
        """The record of the end of a session that has ended. One that lost its runner has none before somebody who
        wants to be told of it looks."""
        found = (await session.wait(timeout=0)).signal_id
        if found is None and self._settings.drains:
            await self.consumer.pending()
            found = (await session.wait(timeout=0)).signal_id
        return found

    async def told(self, session: AsyncSession, event_id: str | None, *, at_once: bool = False) -> None:
        """A reply has told the end: no notice is wanted. Only its owner can say so."""
        if event_id is None or session.owner != self._owner or not self._settings.drains:
            return
        self._kept.put(session.id, _TOLD, event_id)
        if self._settings.turns and not at_once:
            await self.consumer.note(event_id)
        else:
            await self.consumer.ack(event_id)

    async def is_told(self, session: AsyncSession, event_id: str | None) -> bool:
        if event_id is None or session.owner != self._owner:
            return False
        # In this order: a record that is appended in between is seen by the second look.
        told = self._kept.get(session.id, _TOLD) == event_id or await scope.is_promised(session)
        return told and not await self.consumer.is_open(event_id)
