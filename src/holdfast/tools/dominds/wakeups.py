"""Telling an agent's dialogs that daemons ended: one message for all that end together, each ending once.

The host says which dialog may be given something now, and puts the message there. Where none may, nothing is taken.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING

from ...errors import HoldfastError
from ...runner import clock
from ...signals.budget import Limits
from ...signals.drain import render
from ...signals.gate import Turns
from ...signals.styles import Dominds as Style
from .reminder import told_facts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ...signals.consumer import AsyncBatch
    from ...signals.drain import Message
    from ...signals.records import Signal
    from ...signals.waker import Waker
    from .family import Dominds

    # From the dialog that a daemon was started in to the one that may be told of its end now: the same, else an idle
    # one of the same agent; None where there is none.
    Place = Callable[[str | None], str | None]
    Inject = Callable[[str, Message], Awaitable[object]]

# The first ending waits so long for others.
GATHER_S = 0.5
# An index that failed may do so again at once.
_AGAIN_S = 0.5
_PEEKED = 1000


class Wakeups:
    """The half of a host's loop that is about signals: consumer, waker and gate."""

    def __init__(self, tools: Dominds, place: Place, inject: Inject) -> None:
        self._tools = tools
        self.place = place
        self._inject = inject
        self._consumer = tools.consumer()
        self._freed = asyncio.Event()
        self.waker: Waker = self._consumer.waker()
        self._turns = Turns(self)
        # What failed last: what it was about was given back, and comes again.
        self.trouble: Exception | None = None

    async def deliver(self) -> int:
        """Tell what there is to tell, if a dialog may be told. How many turns that took."""

        async def turn(held: object) -> None:
            assert isinstance(held, _Held)
            await held.tell()

        return await self._turns.run(turn)

    async def serve(self) -> None:
        """Wait and deliver, until cancelled. What fails, be it an injection or the index, is tried again later."""
        while True:
            try:
                await self._serve_once()
            except HoldfastError as problem:
                self.trouble = problem
                await asyncio.sleep(_AGAIN_S)

    async def _serve_once(self) -> None:
        await self.waker
        self._freed.clear()
        told = await self.deliver()
        ends = [] if told else await self._ends()
        if ends and not self._placed(ends):
            await self._freed.wait()

    def message(self, signals: Sequence[Signal]) -> Message:
        return render(signals, Style(self._tools.place), limits=Limits.of(self._tools.hf.config))

    async def tell(self, dialog: str, signals: Sequence[Signal], message: Message) -> str:
        """One message into one dialog. Why it could not be told; empty when it was."""
        try:
            await self._inject(dialog, message)
        except Exception as problem:  # noqa: BLE001  whatever it is, the message comes again
            self.trouble = problem
            return f"{type(problem).__name__}: {problem}"
        try:
            kept, now = self._tools.kept(), clock.now_text()
            for signal in signals:
                if signal.session is not None:
                    kept.put(signal.session, "told", told_facts(signal, now))
        except HoldfastError as problem:
            self.trouble = problem  # it is told, and must not come again for a note
        return ""

    def freed(self) -> None:
        """A dialog may be told something again."""
        self._freed.set()

    def close(self) -> None:
        self.waker.close()

    # The source of the gate.

    def clear(self) -> None:
        self.waker.clear()

    def poke(self) -> None:
        self.waker.poke()

    async def pending(self) -> int:
        return len(await self._due())

    async def take(self) -> _Held | None:
        due = await self._due()
        if not due:
            return None
        await asyncio.sleep(_left_of_gather(due[0].at))
        if not await self._due():
            return None  # whoever could have been told is busy by now
        batch = await self._consumer.claim()
        return _Held(self, batch) if batch else None

    async def _due(self) -> list[Signal]:
        """What somebody may be told now. Looking takes none of it."""
        return self._placed(await self._ends())

    async def _ends(self) -> list[Signal]:
        """The ends that wait to be told. Anything else, such as a restart, wakes nobody, and must not stay: what waits
        would look as if no dialog were free for it."""
        waiting = await self._consumer.peek(_PEEKED)
        for signal in waiting:
            if not signal.ends_session:
                await self._consumer.ack(signal.id)
        return [signal for signal in waiting if signal.ends_session]

    def _placed(self, signals: Sequence[Signal]) -> list[Signal]:
        return [signal for signal in signals if self.place(origin(signal)) is not None]


class _Held:
    """What was claimed for one turn: one message for each dialog that is told something."""

    def __init__(self, wakeups: Wakeups, batch: AsyncBatch) -> None:
        self._wakeups = wakeups
        self._batch = batch

    async def tell(self) -> None:
        for dialog, signals in self._by_dialog().items():
            ids = [signal.id for signal in signals]
            message = self._wakeups.message(signals)
            if message and dialog is None:
                await self._batch.untake(ids)
                continue
            refused = await self._wakeups.tell(dialog, signals, message) if message and dialog is not None else ""
            if refused:
                await self._batch.release(refused, ids=ids)
            else:
                await self._batch.settle(ids)

    def _by_dialog(self) -> dict[str | None, list[Signal]]:
        """The ends among them; what else came since the look is settled with the turn."""
        found: dict[str | None, list[Signal]] = {}
        for signal in self._batch:
            if signal.ends_session:
                found.setdefault(self._wakeups.place(origin(signal)), []).append(signal)
        return found

    async def settle(self) -> int:
        return await self._batch.settle()

    async def release(self, reason: str) -> None:
        await self._batch.release(reason)


def origin(signal: Signal) -> str | None:
    """The dialog that the session was started in."""
    labels = signal.snapshot.get("labels")
    dialog = labels.get("dialog") if isinstance(labels, dict) else None
    return dialog if isinstance(dialog, str) else None


def _left_of_gather(at: str) -> float:
    """How long to wait for others since the first."""
    try:
        age = clock.wall_ns() / 1e9 - datetime.fromisoformat(at).timestamp()
    except ValueError:
        return 0.0
    return min(GATHER_S, max(0.0, GATHER_S - age))
