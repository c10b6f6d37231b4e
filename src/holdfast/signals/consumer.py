"""One consumer: a named reader of signals with its own acknowledged position.

`AsyncConsumer` awaits nothing but a driver; the calls of `Consumer` are its coroutines, run to their end. What is
handed out is settled by a clean end, and is delivered again after anything else.
"""

from __future__ import annotations

import os
import sys
import time
from _weakref import ref

from ..errors import BadArgument, HoldfastError, IndexBusy
from ..sessions.driver import drive, driven, driven_as
from .lines import Signal, ended_id, is_coming, load
from .queue import checked_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Self, TypeVar

    from ..config import Config
    from ..index.queues import Pointer
    from ..sessions.driver import Driver
    from .catchup import Catchup
    from .queue import Pending, Queue
    from .render import Message, Style
    from .waker import Waker

    T = TypeVar("T")
    Seen = Callable[[str], bool]
    Owns = Callable[[Signal], bool]
    Passing = Callable[[Signal], bool]
    Redact = Callable[[str], str]

# Signals of one claim, where the caller gives no limit.
CLAIM_LIMIT = 1000
# How long a call waits for an index that is locked, and how often it tries. Settling waits longer: a turn that was made
# must not be repeated because of a short lock.
_LOOK_S = 2.0
_SETTLE_S = 10.0
_AGAIN_S = 0.05
# How long to wait for a record that is named elsewhere before it is written, and how often to look for it: a host that
# waited for the end has a second to confirm it.
_APPEND_S = 2.0
_SOON_S = 0.005
_WHY_CHARACTERS = 200
_USED_S = 3600.0
_LEFT = "the loop was left"


class AsyncBatch:
    """What one claim took, for asyncio. A clean `async with` settles it, an exception gives it back.

    `ids`: store them with the turn, for `seen`. `open`: those that are neither settled nor given back. `remaining`: how
    many more are due. `parked`: ids that this claim or release parked; each is named once. `gone`: by session, how many
    signals were due but have no record any more."""

    # An attribute, because the globals of this module may be gone while the interpreter exits.
    _is_finalizing = staticmethod(sys.is_finalizing)

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._consumer = consumer
        self._pid = os.getpid()
        self.token = int.from_bytes(os.urandom(7), "big")
        self.signals: list[Signal] = []
        self.open: dict[str, None] = {}
        self.remaining = 0
        self.parked: list[str] = []
        self.gone: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.signals)

    def __bool__(self) -> bool:
        return bool(self.signals)

    def __iter__(self) -> Iterator[Signal]:
        return iter(self.signals)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} signals, {len(self.open)} open>"

    def __del__(self) -> None:
        self.abandon("it was not settled")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.settle()
        else:
            await self.release(f"{kind.__name__}: {error}")

    @property
    def ids(self) -> list[str]:
        return [signal.id for signal in self.signals]

    async def settle(self, ids: Iterable[str] | None = None) -> int:
        """Settle these, or all that are open; returns how many were not settled yet. They may belong to another claim
        of this consumer: the work was done."""
        chosen = list(self.open) if ids is None else list(ids)
        if not chosen:
            return 0
        settled = await self._consumer.retry(lambda: self._consumer.queue.settle(chosen), _SETTLE_S)
        self.mark_done(chosen)
        return settled

    async def release(self, reason: str, poison: bool = False, ids: Iterable[str] | None = None) -> None:
        """Give these, or all that are open, back to the queue for a growing while. With `poison` they are parked in the
        end."""
        chosen = [id for id in (self.open if ids is None else ids) if id in self.open]
        if not chosen:
            return
        why, queue = reason[:_WHY_CHARACTERS], self._consumer.queue
        parked = await self._consumer.retry(lambda: queue.release(chosen, self.token, why, poison=poison), _SETTLE_S)
        self.parked += parked
        self._consumer.parked_unnamed += parked
        self.mark_done(chosen)

    async def unclaim(self, ids: Iterable[str]) -> None:
        """Give these back at once, as if they had not been claimed: no reader could take them."""
        chosen = [id for id in ids if id in self.open]
        if chosen:
            await self._consumer.retry(lambda: self._consumer.queue.unclaim(chosen, self.token), _SETTLE_S)
            self.mark_done(chosen)

    def abandon(self, why: str) -> None:
        """Give back what is open: no other process gets it while this one lives. A forked child does nothing."""
        try:
            if self.open and os.getpid() == self._pid:
                ids = list(self.open)
                self.open.clear()
                self._consumer.release_when_free(ids, self.token, why)
        except Exception:
            # While the interpreter exits, nothing can be imported; the end of this process frees the signals.
            if not self._is_finalizing():
                raise

    def mark_done(self, ids: Iterable[str]) -> None:
        for id in ids:
            self.open.pop(id, None)


class AsyncNotice(AsyncBatch):
    """A batch as one message, for asyncio; `text` is for the agent. Iterating to the end settles it, leaving earlier
    gives it back."""

    message: Message

    def __bool__(self) -> bool:
        """A notice that only names parked signals has a text too."""
        return bool(self.text) or bool(self.signals)

    @property
    def text(self) -> str:
        return self.message.text

    @property
    def role_hint(self) -> str:
        return self.message.role_hint

    @property
    def batch(self) -> AsyncBatch:
        return self

    async def __aiter__(self) -> AsyncIterator[Signal]:
        try:
            for signal in list(self.signals):
                yield signal
        except BaseException:
            self.abandon(_LEFT)
            raise
        await self.settle()


class AsyncConsumer:
    """One consumer, for asyncio."""

    def __init__(self, driver: Driver, config: Config, queue: Queue, catchup: Catchup) -> None:
        self.driver = driver
        self.config = config
        self.queue = queue
        self.home = queue.index.home
        self.catchup = catchup
        self.hints: set[str] = set()
        # Parked since the last message: the next one names them.
        self.parked_unnamed: list[str] = []
        self._replace = False
        self._used_until = 0.0
        self._latest: ref[AsyncBatch] | None = None
        self._noted: AsyncBatch | None = None
        self._abandoned: list[tuple[list[str], int, str]] = []
        self._wakers: list[ref[Waker]] = []

    def __repr__(self) -> str:
        return f"<AsyncConsumer {self.name}>"

    @property
    def name(self) -> str:
        return self.queue.name

    def open(self, *, replace: bool) -> None:
        """Make the consumer; where the index is busy, the first call that finds it free does."""
        self._replace = replace
        self._used_until = 0.0
        try:
            if self.queue.starts_now:
                # What is in the index before the consumer exists does not enter its queue.
                self.catchup.run()
            self._keep_registered()
        except IndexBusy:
            pass

    def _keep_registered(self) -> None:
        """Write what is due before a call: once an hour that the consumer is in use, because an unused one is dropped
        in the end; and the release of claims that were abandoned while the index was in use."""
        if time.monotonic() >= self._used_until:
            self.queue.ensure(replace=self._replace)
            self._replace = False
            self._used_until = time.monotonic() + _USED_S
        self._release_abandoned()

    async def pending(self) -> Pending:
        """How many signals are due now; a number with `oldest`, `oldest_at` and `next_due`."""
        await self._refresh()
        return await self.retry(self.queue.pending, _LOOK_S)

    async def peek(self, n: int = 10) -> list[Signal]:
        """The oldest that are due. Reading acknowledges nothing."""
        await self._refresh()
        found = await self.retry(lambda: self.queue.peek(n), _LOOK_S)
        # As the next delivery will count them.
        for pointer in found:
            pointer.deliveries += 1
        return load(self.home, found)[0]

    async def is_open(self, id: str) -> bool:
        """Is this signal still to be settled? False also for a signal of another consumer."""
        await self._look_until(id)
        return await self.retry(lambda: self.queue.is_open(id), _LOOK_S)

    async def parked(self) -> list[tuple[Signal, str | None]]:
        """Signals that were given up on, each with the last reason; `ack` takes them out."""
        found = await self.retry(self.queue.parked, _LOOK_S)
        signals = {signal.id: signal for signal in load(self.home, found)[0]}
        return [(signals[pointer.id], pointer.why) for pointer in found if pointer.id in signals]

    async def unsettled(self) -> set[str]:
        """Sessions with signals that are not settled yet, whichever process holds them."""
        await self._refresh()
        return await self.retry(self.queue.unsettled, _LOOK_S)

    async def claim(self, limit: int | None = None, seen: Seen | None = None, owns: Owns | None = None) -> AsyncBatch:
        """The next signals, for this process alone until it settles or releases them. What `seen(id)` knows is settled
        and not returned; what `owns(signal)` denies stays for others. Where one of the two fails, nothing is shown or
        settled."""
        batch = AsyncBatch(self)
        await self._claim_into(batch, limit, seen, owns, None)
        return batch

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
        """Claim, and give what was claimed as one bounded message. A signal for which `passing(signal)` is true
        (what says nothing new after the end, such as a heartbeat) is settled and left out once the end of its session
        is settled. `redact` replaces the built-in rules for secrets."""
        notice = AsyncNotice(self)
        await self._claim_into(notice, limit, seen, owns, passing)
        try:
            notice.message = self._rendered(notice, style, quote, redact)
        except BaseException as problem:
            await notice.release(f"{type(problem).__name__} while it was rendered: {problem}")
            raise
        return notice

    async def _claim_into(
        self, batch: AsyncBatch, limit: int | None, seen: Seen | None, owns: Owns | None, passing: Passing | None
    ) -> None:
        if limit is not None and limit < 1:
            raise BadArgument("limit", f"{limit} is too few", "give 1 or more")
        for waker in self.wakers():
            waker.clear()
        await self._refresh()
        wanted = limit or CLAIM_LIMIT
        while True:
            claimed = await self.retry(lambda: self.queue.claim(wanted, batch.token), _LOOK_S)
            # They are held now: whatever fails below, the batch gives them back.
            batch.open.update((pointer.id, None) for pointer in claimed.taken)
            batch.remaining = claimed.remaining
            batch.parked += claimed.parked
            signals, gone = load(self.home, claimed.taken)
            if gone:
                await self._remove_lost(batch, gone)
            batch.signals += await self._selected(batch, signals, seen, owns, passing)
            if batch.signals or not claimed.taken:
                break
        if batch.signals:
            self._latest = ref(batch)
            await self._merge_noted(batch)
        if batch.remaining:
            for waker in self.wakers():
                waker.make_readable()

    async def _remove_lost(self, batch: AsyncBatch, gone: list[Pointer]) -> None:
        await self.retry(lambda: self.queue.remove_lost(gone), _LOOK_S)
        for pointer in gone:
            batch.gone[pointer.session] = batch.gone.get(pointer.session, 0) + 1
        batch.mark_done(pointer.id for pointer in gone)

    async def _selected(
        self,
        batch: AsyncBatch,
        signals: list[Signal],
        seen: Seen | None,
        owns: Owns | None,
        passing: Passing | None,
    ) -> list[Signal]:
        try:
            mine = {signal.id for signal in signals if owns is None or owns(signal)}
            known = {id for id in mine if seen is not None and seen(id)}
            past = [signal for signal in signals if passing is not None and signal.id in mine and passing(signal)]
            over = {session for session in {signal.session for signal in past} if await self._end_is_settled(session)}
            known |= {signal.id for signal in past if signal.session in over}
        except BaseException:
            ids = [signal.id for signal in signals]
            await self.retry(lambda: self.queue.unclaim(ids, batch.token), _SETTLE_S)
            batch.mark_done(ids)
            raise
        others = [signal.id for signal in signals if signal.id not in mine]
        if others:
            await self.retry(lambda: self.queue.defer(others, batch.token), _SETTLE_S)
        if known:
            await self.retry(lambda: self.queue.settle(known), _SETTLE_S)
        batch.mark_done([*others, *known])
        return [signal for signal in signals if signal.id in mine and signal.id not in known]

    async def _end_is_settled(self, session: str | None) -> bool:
        """Whether this consumer has settled the end of that session."""
        ended = None if session is None else ended_id(self.home, session)
        return ended is not None and await self.retry(lambda: self.queue.was_settled(ended), _LOOK_S)

    def _rendered(self, batch: AsyncBatch, style: str | Style, quote: str, redact: Redact | None) -> Message:
        """The message of a batch. It names what was parked since the last message."""
        from .items import Limits
        from .redact import redact as redact_all
        from .render import render

        parked = [*self.parked_unnamed, *batch.parked]
        limits, hide = Limits(self.config), redact or redact_all
        message = render(batch.signals, style, limits=limits, quote=quote, parked=parked, redact=hide)
        self.parked_unnamed = []
        return message

    async def note(self, id: str) -> AsyncBatch:
        """The agent knows this signal from another call: settle or release it with the open claim, or else with the
        next claim that has signals."""
        await self._look_until(id)
        claim = self._latest() if self._latest is not None else None
        if claim is None or not claim.open:
            claim = self._noted
        if claim is None or not claim.open:
            claim = self._noted = AsyncBatch(self)
        if id not in claim.open:
            token = claim.token
            await self.retry(lambda: self.queue.join(id, token), _LOOK_S)
            claim.open[id] = None
        return claim

    async def _merge_noted(self, batch: AsyncBatch) -> None:
        noted, self._noted = self._noted, None
        if noted is not None and noted.open:
            ids, token = list(noted.open), noted.token
            await self.retry(lambda: self.queue.move(token, batch.token), _LOOK_S)
            noted.mark_done(ids)
            batch.open.update(dict.fromkeys(ids))

    async def ack(self, id: str | None = None, *, upto: str | None = None) -> int:
        """Settle one signal, or all up to one, at once; returns how many were open."""
        if (id is None) == (upto is None):
            raise BadArgument("id", "one signal, or all up to one", "give `id` or `upto`")
        if id is not None:
            await self._look_until(id)
            return await self.retry(lambda: self.queue.settle([id]), _SETTLE_S)
        assert upto is not None
        self.hints.add(checked_id(upto)[0])
        await self._refresh()
        return await self.retry(lambda: self.queue.settle_up_to(upto), _SETTLE_S)

    def release_when_free(self, ids: list[str], token: int, why: str) -> None:
        """Release them now; if the index is in use, with the next call: the garbage collector may call this during a
        question to the index, and a second one would deadlock. Where the index was closed, it is closed again."""
        self._abandoned.append((ids, token, why[:_WHY_CHARACTERS]))
        database = self.queue.index.database
        if database.idle:
            was_open = database.is_open
            try:
                self._release_abandoned()
            except (HoldfastError, OSError):
                pass
            finally:
                if not was_open:
                    database.close()

    def _release_abandoned(self) -> None:
        while self._abandoned:
            ids, token, why = self._abandoned[0]
            self.queue.release(ids, token, why)
            del self._abandoned[0]

    def __aiter__(self) -> AsyncNotices:
        """One bounded message per wake, for ever. Asking for the next settles the last; leaving gives it back."""
        return AsyncNotices(self)

    # Waking.

    def waker(self) -> Waker:
        """Waits for signals on one descriptor."""
        from .waker import Waker

        made = Waker(self)
        self._wakers = [*(each for each in self._wakers if each() is not None), ref(made)]
        return made

    def wakers(self) -> list[Waker]:
        found = (each() for each in self._wakers)
        return [waker for waker in found if waker is not None and not waker.closed]

    # Reaching the index.

    async def retry(self, work: Callable[[], T], bound_s: float, *, away: bool = False) -> T:
        """The result of `work`; IndexBusy where another process has locked the index for so long. With `away` it runs
        on another thread under asyncio."""
        began = time.monotonic()
        while True:
            try:
                return await self.driver.call(work) if away else work()
            except IndexBusy as busy:
                waited = time.monotonic() - began
                if waited >= bound_s:
                    raise IndexBusy(busy.path, round(waited, 2), full=busy.full) from None
            await self.driver.ready((), (), _AGAIN_S)

    async def _look_until(self, id: str) -> None:
        """As `_refresh`, but wait until this signal is written. The exit record names the signal of the end before the
        runner appends it: a caller that did not wait would settle nothing, and get the signal later as well."""
        self.hints.add(checked_id(id)[0])
        deadline = time.monotonic() + _APPEND_S
        while is_coming(self.home, id) and time.monotonic() < deadline:
            await self.driver.ready((), (), _SOON_S)
        await self._refresh()

    async def _refresh(self) -> None:
        await self.catch_up()
        await self.retry(self._keep_registered, _LOOK_S)

    async def catch_up(self) -> None:
        """Enter what was appended to signal files into the index, then watch the processes that matter now."""
        hints, self.hints = self.hints, set()
        try:
            await self.retry(lambda: self.catchup.run(hints), _LOOK_S, away=self.catchup.takes_long)
        except BaseException:
            self.hints |= hints
            raise
        for waker in self.wakers():
            waker.refresh()


class AsyncNotices:
    """The iterator over a consumer, for asyncio."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._consumer = consumer
        self._waker = consumer.waker()
        self._latest: AsyncNotice | None = None

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
                self._latest = notice
                return notice
            await notice.settle()

    def __del__(self) -> None:
        # This is called after an exception in the body and after a `break`.
        if self._latest is not None:
            self._latest.abandon(_LEFT)
        self._waker.close()


# For programs that block.


class Batch:
    """What one claim took, for programs that block; the attributes are those of `AsyncBatch`. A clean `with` settles
    it, an exception gives it back."""

    def __init__(self, held: AsyncBatch) -> None:
        self._async = held
        self.signals = held.signals
        self.ids = held.ids
        self.remaining = held.remaining
        self.parked = held.parked
        self.gone = held.gone

    settle = driven(AsyncBatch.settle)
    release = driven(AsyncBatch.release)
    unclaim = driven(AsyncBatch.unclaim)

    def __len__(self) -> int:
        return len(self.signals)

    def __bool__(self) -> bool:
        return bool(self._async)

    def __iter__(self) -> Iterator[Signal]:
        return iter(self.signals)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} signals, {len(self._async.open)} open>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        drive(self._async.__aexit__(kind, error, trace))


class Notice(Batch):
    """A batch as one message, for programs that block; `text` is for the agent. Iterating to the end settles it,
    leaving earlier gives it back."""

    def __init__(self, held: AsyncNotice) -> None:
        super().__init__(held)
        self.message = held.message
        self.text = held.text
        self.role_hint = held.role_hint

    @property
    def batch(self) -> Batch:
        return self

    def __iter__(self) -> Iterator[Signal]:
        try:
            yield from list(self.signals)
        except BaseException:
            self._async.abandon(_LEFT)
            raise
        self.settle()


class Consumer:
    """One consumer, for programs that block; the calls are those of `AsyncConsumer`."""

    def __init__(self, asynchronous: AsyncConsumer) -> None:
        self._async = asynchronous
        self.name = asynchronous.name

    def __repr__(self) -> str:
        return f"<Consumer {self.name}>"

    pending = driven(AsyncConsumer.pending)
    peek = driven(AsyncConsumer.peek)
    is_open = driven(AsyncConsumer.is_open)
    parked = driven(AsyncConsumer.parked)
    unsettled = driven(AsyncConsumer.unsettled)
    ack = driven(AsyncConsumer.ack)
    claim = driven_as(Batch, AsyncConsumer.claim)
    drain = driven_as(Notice, AsyncConsumer.drain)
    note = driven_as(Batch, AsyncConsumer.note)

    def waker(self) -> Waker:
        """Waits for signals on one descriptor."""
        return self._async.waker()

    def __iter__(self) -> Notices:
        """One bounded message per wake, for ever. Asking for the next settles the last; leaving gives it back."""
        return Notices(self)


class Notices:
    """The iterator over a consumer, for programs that block."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._waker = consumer.waker()
        self._latest: Notice | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Notice:
        if self._latest is not None:
            self._latest.settle()
            self._latest = None
        while True:
            self._waker.wait()
            notice = self._consumer.drain()
            if notice.text:
                self._latest = notice
                return notice
            notice.settle()

    def __del__(self) -> None:
        # This is called after an exception in the body and after a `break`.
        if self._latest is not None:
            self._latest._async.abandon(_LEFT)
        self._waker.close()
