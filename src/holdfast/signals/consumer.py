"""`Consumer` and `AsyncConsumer`: a named reader of signals with its own acknowledged position.

Both are thin over inbox.py. What is handed out is settled by a clean end, and comes again after anything else.
"""

from __future__ import annotations

from ..host.driver import drive
from .records import Signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from .drain import Message
    from .inbox import Claim, Inbox, Owns, Passing, Redact, Seen
    from .pending import Pending
    from .styles import Style
    from .waker import Waker

_LEFT = "the loop was left"


class _Held:
    """Signals that were handed out, until their fate is decided."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    def __len__(self) -> int:
        return len(self.signals)

    def __bool__(self) -> bool:
        return bool(self.signals)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} signals, {len(self._claim.open)} open>"

    @property
    def signals(self) -> list[Signal]:
        return self._claim.signals

    @property
    def ids(self) -> list[str]:
        """Of all signals in it. They belong into whatever is stored of the turn, for `seen`."""
        return [signal.id for signal in self.signals]

    @property
    def remaining(self) -> int:
        """How many more are due."""
        return self._claim.remaining

    @property
    def parked(self) -> list[str]:
        """Signals that come no more by themselves since this claim or release; each is named once."""
        return list(self._claim.parked)

    @property
    def gone(self) -> dict[str, int]:
        """How many signals of which session were due and have no record any more."""
        return dict(self._claim.gone)


class Batch(_Held):
    """What one claim took. A clean `with` settles it, an exception gives it back."""

    def __iter__(self) -> Iterator[Signal]:
        return iter(self.signals)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.settle()
        else:
            self.release(f"{kind.__name__}: {error}")

    def settle(self, ids: Iterable[str] | None = None) -> int:
        """Done: these, or all that are open. How many were not settled yet."""
        return drive(self._claim.settle(ids))

    def release(self, reason: str, poison: bool = False, ids: Iterable[str] | None = None) -> None:
        """Back to the queue for a while: these, or all that are open. With `poison` they are parked in the end."""
        drive(self._claim.release(reason, poison=poison, ids=ids))

    def untake(self, ids: Iterable[str]) -> None:
        """Back to the queue at once and uncounted: there was nobody to be told of them."""
        drive(self._claim.untake(ids))


class Notice(Batch):
    """A batch as one message: `text` for the agent. Iterated to its end it is settled, left earlier given back."""

    def __init__(self, claim: Claim, message: Message) -> None:
        super().__init__(claim)
        self.message = message
        self.text = message.text
        self.role_hint = message.role_hint

    def __bool__(self) -> bool:
        """Also one that only names what was parked has something to say."""
        return bool(self.text) or bool(self.signals)

    @property
    def batch(self) -> Batch:
        return Batch(self._claim)

    def __iter__(self) -> Iterator[Signal]:
        try:
            yield from list(self.signals)
        except GeneratorExit:
            self._claim.abandon(_LEFT)
            raise
        self.settle()


class Consumer:
    """One consumer, for programs that block."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def __repr__(self) -> str:
        return f"<Consumer {self.name}>"

    @property
    def name(self) -> str:
        return self._inbox.queue.name

    def pending(self) -> Pending:
        """How many signals are due now; a number with `oldest`, `oldest_at` and `next_due`."""
        return drive(self._inbox.pending())

    def peek(self, n: int = 10) -> list[Signal]:
        """The oldest that are due. Reading acknowledges nothing."""
        return drive(self._inbox.peek(n))

    def is_open(self, id: str) -> bool:
        """Is this signal still to be settled? False also for one that never was this consumer's."""
        return drive(self._inbox.is_open(id))

    def parked(self) -> list[tuple[Signal, str | None]]:
        """Signals that were given up on, each with the last reason; `ack` takes them out."""
        return drive(self._inbox.parked())

    def untold(self) -> set[str]:
        """Sessions of which something is not settled yet, whoever holds it."""
        return drive(self._inbox.untold())

    def claim(self, limit: int | None = None, seen: Seen | None = None, owns: Owns | None = None) -> Batch:
        """The next signals, for this process alone until it settles or releases them. What `seen(id)` knows is settled
        and not returned; what `owns(signal)` denies stays for others."""
        return Batch(drive(self._inbox.claim(limit, seen, owns)))

    def drain(
        self,
        style: str | Style = "native",
        *,
        limit: int | None = None,
        seen: Seen | None = None,
        owns: Owns | None = None,
        passing: Passing | None = None,
        quote: str = "prefix",
        redact: Redact | None = None,
    ) -> Notice:
        """Claim, as one bounded message. What is `passing(signal)` and comes after the end of its session was settled
        is settled and not told. `redact` takes secrets out, in the place of the built-in rules."""
        claim = drive(self._inbox.claim(limit, seen, owns, passing))
        return Notice(claim, drive(self._inbox.render(claim, style, quote, redact)))

    def note(self, id: str) -> Batch:
        """This signal was got by another way: it shares the fate of the batch that is open, or of the next."""
        return Batch(drive(self._inbox.note(id)))

    def ack(self, id: str | None = None, *, upto: str | None = None) -> int:
        """Settle one signal, or all up to one, at once. How many were open."""
        return drive(self._inbox.ack(id, upto))

    def waker(self) -> Waker:
        """Waits for signals on one descriptor."""
        return self._inbox.waker()

    def __iter__(self) -> Notices:
        """One bounded message per wake, for ever. Asking for the next settles the last; leaving gives it back."""
        return Notices(self)


class Notices:
    """What a loop over a consumer goes through."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._waker = consumer.waker()
        self._latest: Claim | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Notice:
        if self._latest is not None:
            drive(self._latest.settle())
            self._latest = None
        while True:
            self._waker.wait()
            notice = self._consumer.drain()
            if notice.text:
                self._latest = notice._claim
                return notice
            notice.settle()

    def __del__(self) -> None:
        # The one thing that a body that raised and a `break` have in common.
        if self._latest is not None:
            self._latest.abandon(_LEFT)
        self._waker.close()


class AsyncBatch(_Held):
    """As `Batch`, for asyncio."""

    def __iter__(self) -> Iterator[Signal]:
        return iter(self.signals)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.settle()
        else:
            await self.release(f"{kind.__name__}: {error}")

    async def settle(self, ids: Iterable[str] | None = None) -> int:
        return await self._claim.settle(ids)

    async def release(self, reason: str, poison: bool = False, ids: Iterable[str] | None = None) -> None:
        await self._claim.release(reason, poison=poison, ids=ids)

    async def untake(self, ids: Iterable[str]) -> None:
        await self._claim.untake(ids)


class AsyncNotice(AsyncBatch):
    """As `Notice`, for asyncio."""

    def __init__(self, claim: Claim, message: Message) -> None:
        super().__init__(claim)
        self.message = message
        self.text = message.text
        self.role_hint = message.role_hint

    def __bool__(self) -> bool:
        """Also one that only names what was parked has something to say."""
        return bool(self.text) or bool(self.signals)

    @property
    def batch(self) -> AsyncBatch:
        return AsyncBatch(self._claim)

    async def __aiter__(self) -> AsyncIterator[Signal]:
        try:
            for signal in list(self.signals):
                yield signal
        except BaseException:
            self._claim.abandon(_LEFT)
            raise
        await self.settle()


class AsyncConsumer:
    """One consumer, for asyncio."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def __repr__(self) -> str:
        return f"<AsyncConsumer {self.name}>"

    @property
    def name(self) -> str:
        return self._inbox.queue.name

    async def pending(self) -> Pending:
        return await self._inbox.pending()

    async def peek(self, n: int = 10) -> list[Signal]:
        return await self._inbox.peek(n)

    async def is_open(self, id: str) -> bool:
        return await self._inbox.is_open(id)

    async def parked(self) -> list[tuple[Signal, str | None]]:
        return await self._inbox.parked()

    async def untold(self) -> set[str]:
        return await self._inbox.untold()

    async def claim(self, limit: int | None = None, seen: Seen | None = None, owns: Owns | None = None) -> AsyncBatch:
        return AsyncBatch(await self._inbox.claim(limit, seen, owns))

    async def drain(
        self,
        style: str | Style = "native",
        *,
        limit: int | None = None,
        seen: Seen | None = None,
        owns: Owns | None = None,
        passing: Passing | None = None,
        quote: str = "prefix",
        redact: Redact | None = None,
    ) -> AsyncNotice:
        claim = await self._inbox.claim(limit, seen, owns, passing)
        return AsyncNotice(claim, await self._inbox.render(claim, style, quote, redact))

    async def note(self, id: str) -> AsyncBatch:
        return AsyncBatch(await self._inbox.note(id))

    async def ack(self, id: str | None = None, *, upto: str | None = None) -> int:
        return await self._inbox.ack(id, upto)

    def waker(self) -> Waker:
        return self._inbox.waker()

    def __aiter__(self) -> AsyncNotices:
        return AsyncNotices(self)


class AsyncNotices:
    """As `Notices`, for asyncio."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._consumer = consumer
        self._waker = consumer.waker()
        self._latest: Claim | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncNotice:
        if self._latest is not None:
            await self._latest.settle()
            self._latest = None
        while True:
            await self._waker
            notice = await self._consumer.drain()
            if notice.text:
                self._latest = notice._claim
                return notice
            await notice.settle()

    def __del__(self) -> None:
        if self._latest is not None:
            self._latest.abandon(_LEFT)
        self._waker.close()
