"""Waiting until something happens, or somebody wants to go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, TypeVar

    from ...host.aio import AsyncSession

    T = TypeVar("T")
    # Awaits the second; the first is told of meanwhile.
    Waiting = Callable[[list[AsyncSession], Awaitable[AsyncSession]], Awaitable[AsyncSession]]

INTERRUPT = "interrupt"
YIELD = "yield"


class Race:
    """Of a foreground command with whoever wants its call to end. `told` may be set before there is a command."""

    def __init__(self, told: asyncio.Future[str], waiting: Waiting) -> None:
        self._told = told
        self._waiting = waiting

    @property
    def is_interrupted(self) -> bool:
        return self._told.done() and self._told.result() == INTERRUPT

    async def run(self, outcome: Awaitable[AsyncSession], began: asyncio.Future[AsyncSession]) -> AsyncSession | str:
        """Of a run whose session is known from `began` on."""
        sessions: list[AsyncSession] = []
        began.add_done_callback(lambda begun: sessions.append(begun.result()))
        return await raced(self._waiting(sessions, outcome), self._told, began)


async def raced(outcome: Awaitable[T], told: asyncio.Future[str], began: asyncio.Future[Any] | None = None) -> T | str:
    """The outcome, or the word of whoever ended the waiting. A start that is under way is not aborted."""
    work = asyncio.ensure_future(outcome)
    try:
        first: set[asyncio.Future[Any]] = {work, told}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and began is not None:
            await asyncio.wait({work, began}, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else told.result()
    finally:
        if not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
