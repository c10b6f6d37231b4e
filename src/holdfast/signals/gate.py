"""The loop of an agent that is woken by signals, without the wake that gets lost between two checks.

One turn at a time, whoever asks for it and however often: who finds the gate busy goes away, for the one inside looks
again after it has let go. That last look closes the gap between "nothing is left" and "I am idle".
"""

from __future__ import annotations

from _thread import allocate_lock

from ..host.driver import drive
from .consumer import AsyncConsumer, AsyncNotice, Consumer, Notice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Protocol

    from .inbox import Owns, Seen
    from .waker import Waker

    class Held(Protocol):
        """What was claimed for one turn."""

        async def settle(self) -> object: ...

        async def release(self, reason: str) -> object: ...

    class Source(Protocol):
        """Where the signals of a loop come from."""

        def clear(self) -> None: ...

        def poke(self) -> None: ...

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
        """From idle to busy, in one step. False: somebody is inside, and will see what there is."""
        return self._busy.acquire(blocking=False)

    async def leave(self) -> bool:
        """Be idle, then look once more. True: there is more, and we are inside again."""
        self._busy.release()
        try:
            more = await self._source.pending() != 0
        except BaseException:
            self._source.poke()  # whoever waits has to look in our place
            raise
        return more and self.enter()

    async def run(self, turn: Callable[[Held], Awaitable[object]], limit: int | None = None) -> int:
        """Turns until nothing is left, at most `limit`; how many there were: none where somebody is inside already.

        A turn that raises has its signals given back, and is raised. What is left then makes the waker readable."""
        return await self.inside(turn, limit) if self.enter() else 0

    async def inside(self, turn: Callable[[Held], Awaitable[object]], limit: int | None = None) -> int:
        """The same for who has entered."""
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
                self._source.poke()

    async def _one(self, turn: Callable[[Held], Awaitable[object]], held: Held) -> None:
        try:
            await turn(held)
        except BaseException as problem:
            await held.release(f"{type(problem).__name__}: {problem}")
            raise
        await held.settle()


class _Drained:
    """A consumer as a source: each take is one drain that has something to say."""

    def __init__(
        self, consumer: Consumer | AsyncConsumer, style: str, seen: Seen | None, owns: Owns | None, quote: str
    ) -> None:
        self._inbox = consumer._inbox
        self._style = style
        self._seen = seen
        self._owns = owns
        self._quote = quote
        self._asynchronous = isinstance(consumer, AsyncConsumer)
        self.waker = consumer.waker()

    def clear(self) -> None:
        self.waker.clear()

    def poke(self) -> None:
        self.waker.poke()

    async def pending(self) -> int:
        return await self._inbox.pending()

    async def take(self) -> _Turn | None:
        while True:
            claim = await self._inbox.claim(None, self._seen, self._owns)
            message = await self._inbox.render(claim, self._style, self._quote)
            if message.text:
                notice = AsyncNotice(claim, message) if self._asynchronous else Notice(claim, message)
                return _Turn(notice)
            if not claim.signals:
                return None
            await claim.settle()


class _Turn:
    def __init__(self, notice: Notice | AsyncNotice) -> None:
        self.notice = notice

    async def settle(self) -> int:
        return await self.notice._claim.settle()

    async def release(self, reason: str) -> None:
        await self.notice._claim.release(reason)


class Gate:
    """The loop for programs that block; any number of threads may call `run`. The options are those of `drain`."""

    def __init__(
        self,
        consumer: Consumer,
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
        """Step 1, for hosts that have a loop of their own. False: go away."""
        return self._turns.enter()

    def leave(self) -> bool:
        """Step 5. True: something came meanwhile, go back to step 2."""
        return drive(self._turns.leave())

    def run(self, turn: Callable[[Notice], object], limit: int | None = None) -> int:
        """Steps 1 to 5: `turn(notice)` for one message after the other, until nothing is left. How many."""

        async def taken(held: object) -> None:
            assert isinstance(held, _Turn)
            assert isinstance(held.notice, Notice)
            turn(held.notice)

        return drive(self._turns.run(taken, limit))

    def serve(self, turn: Callable[[Notice], object]) -> None:
        """Wait and run, until a turn raises."""
        while True:
            self._source.waker.wait()
            self.run(turn)

    def close(self) -> None:
        self._source.waker.close()


class AsyncGate:
    """The same for asyncio; any number of tasks may call `run`."""

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
        return self._source.waker

    def enter(self) -> bool:
        return self._turns.enter()

    async def leave(self) -> bool:
        return await self._turns.leave()

    async def run(self, turn: Callable[[AsyncNotice], Awaitable[object]], limit: int | None = None) -> int:
        async def taken(held: object) -> None:
            assert isinstance(held, _Turn)
            assert isinstance(held.notice, AsyncNotice)
            await turn(held.notice)

        return await self._turns.run(taken, limit)

    async def serve(self, turn: Callable[[AsyncNotice], Awaitable[object]]) -> None:
        while True:
            await self._source.waker
            await self.run(turn)

    def close(self) -> None:
        self._source.waker.close()
