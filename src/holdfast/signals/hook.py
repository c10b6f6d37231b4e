"""Notices in the turns of an agent whose client runs hooks: shown when a turn begins, settled when it has ended.

Nothing is claimed: a hook is a process of its own that exits before the turn begins, and a claim ends with its process.
The index keeps what a turn was shown. A turn that crashes does not report its end, so the next one is shown the same
notices.
"""

from __future__ import annotations

from .consumer import CLAIM_LIMIT
from .items import Limits
from .render import render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..index import Kept
    from .consumer import AsyncConsumer


async def begin(consumer: AsyncConsumer, kept: Kept, conversation: str, style: str = "native") -> str:
    """The notice for a turn that begins; empty if nothing has happened."""
    waiting = await consumer.peek(CLAIM_LIMIT)
    shown: dict[str, list[str]] = {}
    for signal in waiting:
        shown.setdefault(signal.session or "", []).append(signal.id)
    for session, ids in shown.items():
        kept.put(session, conversation, ids)
    return render(waiting, style, limits=Limits(consumer.config)).text


async def end(consumer: AsyncConsumer, kept: Kept, conversation: str) -> int:
    """Settle what the turn was shown; returns how many signals were not settled yet."""
    settled = 0
    for session, ids in kept.all(conversation).items():
        for id in ids:
            settled += await consumer.ack(id)
        kept.put(session, conversation, None)
    return settled
