"""The loop of an agent that is woken by signals; no wake is lost between two checks.

One turn at a time, from any number of threads: a caller that finds the gate busy returns, because the one inside looks
again after it has become idle. That last look closes the gap between "nothing is left" and "idle".
"""

from __future__ import annotations

from _thread import allocate_lock

from ..sessions.driver import drive, driven
from .consumer import AsyncConsumer, AsyncNotice, Consumer, Notice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, Protocol

    from .consumer import Owns, Seen
    from .waker import Waker


if TYPE_CHECKING:

    class Held(Protocol):
        """What was claimed for one turn."""

        async def settle(self) -> object: ...

        async def release(self, reason: str) -> object: ...

    class Source(Protocol):
        """Where the signals of a loop come from."""

        def clear(self) -> object: ...

        def make_readable(self) -> None: ...

        async def take(self) -> Held | None: ...

        async def pending(self) -> int: ...


class Turns:
    """The five steps, over any source; it awaits nothing but that and the turn."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._busy = allocate_lock()

    @property
    def busy(self) -> bool:
        return self._busy.locked()

    def enter(self) -> bool:
        """From idle to busy, in one step. False: another caller is inside, and will see what is due."""
        return self._busy.acquire(blocking=False)

    async def leave(self) -> bool:
        """Be idle, then look once more. True: there is more, and we are inside again."""
        self._busy.release()
        try:
            more = await self._source.pending() != 0
        except BaseException:
            self._source.make_readable()  # the next waiter has to look instead
            raise
        return more and self.enter()

    async def run(self, turn: Callable[[Any], Awaitable[object]], limit: int | None = None) -> int:
        """Turns until nothing is left, at most `limit`; returns how many. 0 if a turn is already running.

        A turn that raises has its signals given back, and is raised. What is left then makes the waker readable."""
        return await self.inside(turn, limit) if self.enter() else 0

    async def inside(self, turn: Callable[[Any], Awaitable[object]], limit: int | None = None) -> int:
        """The same for a caller that has entered."""
        turns = 0
        inside = True
        try:
            while limit is None or turns < limit:
                self._source.clear()
                held = await self._source.take()
                if held is None:
                    inside = False
                    inside = await self.leave()
                    if not inside:
                        return turns
                    continue
                turns += 1
                await self._one(turn, held)
            return turns
        finally:
            if inside and await self.leave():
                self._busy.release()
                self._source.make_readable()

    async def _one(self, turn: Callable[[Any], Awaitable[object]], held: Held) -> None:
        try:
            await turn(held)
        except BaseException as problem:
            await held.release(f"{type(problem).__name__}: {problem}")
            raise
        await held.settle()


class _Drained:
    """A consumer as a source: each take is one drain that has something to say."""

    def __init__(self, consumer: AsyncConsumer, style: str, seen: Seen | None, owns: Owns | None, quote: str) -> None:
        self._consumer = consumer
        self._style = style
        self._seen = seen
        self._owns = owns
        self._quote = quote
        self.waker = consumer.waker()
        self.clear = self.waker.clear
        self.make_readable = self.waker.make_readable
        self.pending = consumer.pending

    async def take(self) -> AsyncNotice | None:
        while True:
            notice = await self._consumer.drain(self._style, seen=self._seen, owns=self._owns, quote=self._quote)
            if notice.text:
                return notice
            if not notice.signals:
                return None
            await notice.settle()


class _Gate:
    """What both gates have in common."""

    def __init__(
        self,
        consumer: AsyncConsumer,
        style: str = "native",
        *,
        seen: Seen | None = None,
        owns: Owns | None = None,
        quote: str = "prefix",
    ) -> None:
        self._source = _Drained(consumer, style, seen, owns, quote)
        self._turns = Turns(self._source)

    @property
    def busy(self) -> bool:
        return self._turns.busy

    @property
    def waker(self) -> Waker:
        """What to wait for before the next `run`."""
        return self._source.waker

    def enter(self) -> bool:
        """Step 1, for hosts that have their own loop. False: another caller runs the turns; return."""
        return self._turns.enter()

    def close(self) -> None:
        self._source.waker.close()


class AsyncGate(_Gate):
    """The loop of an agent, for asyncio; any number of callers may `run` it. Options as in `drain`."""

    async def leave(self) -> bool:
        """Step 5. True: something came meanwhile, go back to step 2."""
        return await self._turns.leave()

    async def run(self, turn: Callable[[AsyncNotice], Awaitable[object]], limit: int | None = None) -> int:
        """Steps 1 to 5: `turn(notice)` for one message after the other, until nothing is left. Returns how many."""
        return await self._turns.run(turn, limit)

    async def serve(self, turn: Callable[[AsyncNotice], Awaitable[object]]) -> None:
        """Wait and run, until a turn raises."""
        while True:
            await self._source.waker
            await self.run(turn)


class Gate(_Gate):
    """The loop of an agent, for programs that block; any number of callers may `run` it. Options as in `drain`."""

    def __init__(
        self,
        consumer: Consumer,
        style: str = "native",
        *,
        seen: Seen | None = None,
        owns: Owns | None = None,
        quote: str = "prefix",
    ) -> None:
        super().__init__(consumer._async, style, seen=seen, owns=owns, quote=quote)

    leave = driven(AsyncGate.leave)

    def run(self, turn: Callable[[Notice], object], limit: int | None = None) -> int:
        """Steps 1 to 5: `turn(notice)` for one message after the other, until nothing is left. Returns how many."""

        async def taken(notice: AsyncNotice) -> None:
            turn(Notice(notice))

        return drive(self._turns.run(taken, limit))

    def serve(self, turn: Callable[[Notice], object]) -> None:
        """Wait and run, until a turn raises."""
        while True:
            self._source.waker.wait()
            self.run(turn)
