"""What consumers do, written once for blocking and asynchronous hosts: it awaits nothing but a driver."""

from __future__ import annotations

import os
import sys
import time
from _weakref import ref

from ..errors import BadArgument, HoldfastError, IndexBusy
from .bodies import load
from .indexing import ended_id, is_coming
from .records import Signal, split_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    from ..config import Config
    from ..home import Home
    from ..host.driver import Driver
    from ..index.pointers import Pointer
    from .catchup import Catchup
    from .drain import Message
    from .pending import Pending
    from .queue import Queue
    from .styles import Style
    from .waker import Waker

    T = TypeVar("T")
    Seen = Callable[[str], bool]
    Owns = Callable[[Signal], bool]
    Passing = Callable[[Signal], bool]
    Redact = Callable[[str], str]

# How long a call waits for an index that is locked. A turn that was made must not be made again for a short lock.
_LOOK_S = 2.0
_SETTLE_S = 10.0
_AGAIN_S = 0.05
# How long a record that is named elsewhere already is waited for, and how often it is looked for meanwhile. Whoever
# waited for an end has a second to say that he told it.
_APPEND_S = 2.0
_SOON_S = 0.005
_WHY_CHARACTERS = 200
_KNOWN_S = 3600.0


class Claim:
    """Signals in this process's hands. `open` are the ids whose fate is not decided."""

    # Held here, for then our modules may be empty already.
    _is_finalizing = staticmethod(sys.is_finalizing)

    def __init__(self, inbox: Inbox, token: int) -> None:
        self.inbox = inbox
        self.token = token
        self.signals: list[Signal] = []
        self.open: dict[str, None] = {}
        self.remaining = 0
        self.parked: list[str] = []
        self.gone: dict[str, int] = {}
        self._pid = os.getpid()

    def __del__(self) -> None:
        self.abandon("nobody settled it")

    def abandon(self, why: str) -> None:
        """Nobody will decide it any more, and while we live nobody else would get it. A forked child's copy decides
        nothing."""
        try:
            if self.open and os.getpid() == self._pid:
                ids = list(self.open)
                self.open.clear()
                self.inbox.give_back(ids, self.token, why)
        except Exception:
            # While the interpreter goes down nothing can be imported, and our death gives it back soon enough.
            if not self._is_finalizing():
                raise

    async def settle(self, ids: Iterable[str] | None = None) -> int:
        """Done. Idempotent; ids of another claim of this consumer count too, for the work was done."""
        chosen = list(self.open) if ids is None else list(ids)
        if not chosen:
            return 0
        settled = await self.inbox.insist(lambda: self.inbox.queue.settle(chosen), _SETTLE_S)
        self.decided(chosen)
        return settled

    async def release(self, reason: str, *, poison: bool = False, ids: Iterable[str] | None = None) -> None:
        """Back to the queue, for a growing while. `poison`: it is the signal's fault, and it parks in the end."""
        chosen = [id for id in (self.open if ids is None else ids) if id in self.open]
        if not chosen:
            return
        why = reason[:_WHY_CHARACTERS]
        queue = self.inbox.queue
        parked = await self.inbox.insist(lambda: queue.release(chosen, self.token, why, poison=poison), _SETTLE_S)
        self.parked += parked
        self.inbox.parked_untold += parked
        self.decided(chosen)

    async def untake(self, ids: Iterable[str]) -> None:
        """Back to the queue at once, as if they had not been claimed: nobody could be told of them."""
        chosen = [id for id in ids if id in self.open]
        if chosen:
            await self.inbox.insist(lambda: self.inbox.queue.untake(chosen, self.token), _SETTLE_S)
            self.decided(chosen)

    def decided(self, ids: Iterable[str]) -> None:
        for id in ids:
            self.open.pop(id, None)


class Inbox:
    """One consumer in one host."""

    def __init__(self, driver: Driver, home: Home, config: Config, queue: Queue, catchup: Catchup) -> None:
        self.driver = driver
        self.config = config
        self.queue = queue
        self.catchup = catchup
        self.hints: set[str] = set()
        # Parked by what was given back since the last message.
        self.parked_untold: list[str] = []
        self._home = home
        self._replace = False
        self._known_until = 0.0
        self._latest: ref[Claim] | None = None
        self._noted: Claim | None = None
        self._abandoned: list[tuple[list[str], int, str]] = []
        self._wakers: list[ref[Waker]] = []

    def open(self, *, replace: bool) -> None:
        """Be known as a consumer from now on; where the index is busy, from the first call on that finds it free."""
        self._replace = replace
        self._known_until = 0.0
        try:
            if self.queue.starts_now:
                self.catchup.run()  # what happened before is known as such
            self._be_known()
        except IndexBusy:
            pass

    def _be_known(self) -> None:
        """Once an hour too, for who is not used is dropped in the end."""
        if time.monotonic() >= self._known_until:
            self.queue.open(replace=self._replace)
            self._replace = False
            self._known_until = time.monotonic() + _KNOWN_S

    async def pending(self) -> Pending:
        await self._look()
        return await self.insist(self.queue.pending, _LOOK_S)

    async def peek(self, limit: int) -> list[Signal]:
        await self._look()
        found = await self.insist(lambda: self.queue.peek(limit), _LOOK_S)
        # As it would come: the next delivery is one more than there were.
        return load(self._home, [(pointer, deliveries + 1) for pointer, deliveries in found])[0]

    async def is_open(self, id: str) -> bool:
        self.hints.add(_session_of(id))
        await self._look()
        return await self.insist(lambda: self.queue.is_open(id), _LOOK_S)

    async def parked(self) -> list[tuple[Signal, str | None]]:
        found = await self.insist(self.queue.parked, _LOOK_S)
        signals = {signal.id: signal for signal in load(self._home, [each[:2] for each in found])[0]}
        return [(signals[pointer.id], why) for pointer, _, why in found if pointer.id in signals]

    async def untold(self) -> set[str]:
        await self._look()
        return await self.insist(self.queue.untold, _LOOK_S)

    async def claim(
        self, limit: int | None, seen: Seen | None, owns: Owns | None, passing: Passing | None = None
    ) -> Claim:
        """The next signals. None that `seen` knows, none that `owns` does not: and nothing at all, neither shown nor
        settled, where one of the two fails. Nor what is `passing`, once the end of its session was settled here."""
        if limit is not None and limit < 1:
            raise BadArgument("limit", f"{limit} is too few", "give 1 or more")
        for waker in self.wakers():
            waker.clear()
        await self._look()
        claim = Claim(self, _token())
        wanted = limit or self.config.signals_claim_limit
        while True:
            claimed = await self.insist(lambda: self.queue.claim(wanted, claim.token), _LOOK_S)
            # In our hands from now on: whatever goes wrong below, they go back.
            claim.open.update((pointer.id, None) for pointer, _ in claimed.taken)
            claim.remaining = claimed.remaining
            claim.parked += claimed.parked
            signals, gone = load(self._home, claimed.taken)
            await self._count_gone(claim, gone)
            claim.signals += await self._shown(claim, signals, seen, owns, passing)
            if claim.signals or not claimed.taken:
                break
        if claim.signals:
            self._latest = ref(claim)
            await self._join(claim)
        if claim.remaining:
            for waker in self.wakers():
                waker.poke()
        return claim

    async def _count_gone(self, claim: Claim, gone: list[Pointer]) -> None:
        if gone:
            await self.insist(lambda: self.queue.count_unread(gone), _LOOK_S)
        for pointer in gone:
            claim.gone[pointer.session] = claim.gone.get(pointer.session, 0) + 1
        claim.decided(pointer.id for pointer in gone)

    async def _shown(
        self,
        claim: Claim,
        signals: list[Signal],
        seen: Seen | None,
        owns: Owns | None,
        passing: Passing | None,
    ) -> list[Signal]:
        try:
            mine = {signal.id for signal in signals if owns is None or owns(signal)}
            known = {id for id in mine if seen is not None and seen(id)}
            past = [signal for signal in signals if passing is not None and signal.id in mine and passing(signal)]
            over = {session for session in {signal.session for signal in past} if await self._is_past(session)}
            known |= {signal.id for signal in past if signal.session in over}
        except BaseException:
            ids = [signal.id for signal in signals]
            await self.insist(lambda: self.queue.untake(ids, claim.token), _SETTLE_S)
            claim.decided(ids)
            raise
        others = [signal.id for signal in signals if signal.id not in mine]
        if others:
            await self.insist(lambda: self.queue.defer(others, claim.token), _SETTLE_S)
        if known:
            await self.insist(lambda: self.queue.settle(known), _SETTLE_S)
        claim.decided([*others, *known])
        return [signal for signal in signals if signal.id in mine and signal.id not in known]

    async def _is_past(self, session: str | None) -> bool:
        """Was this consumer told its end? What it gave back before comes later than that."""
        ended = None if session is None else ended_id(self._home, session)
        return ended is not None and await self.insist(lambda: self.queue.was_settled(ended), _LOOK_S)

    async def render(self, claim: Claim, style: str | Style, quote: str, redact: Redact | None = None) -> Message:
        """What was claimed, as one message; what cannot be shown is given back. What was parked is named once."""
        from .budget import Limits
        from .drain import render
        from .redact import redact as redact_all

        try:
            parked = [*self.parked_untold, *claim.parked]
            limits, hidden = Limits.of(self.config), redact or redact_all
            message = render(claim.signals, style, limits=limits, quote=quote, parked=parked, redact=hidden)
        except BaseException as problem:
            await claim.release(f"{type(problem).__name__} while it was rendered: {problem}")
            raise
        self.parked_untold = []
        return message

    async def note(self, id: str) -> Claim:
        """Somebody got it by another way: it shares the fate of the claim that is open, or of the next that has
        something to show."""
        await self._look_for(id)
        claim = self._latest() if self._latest is not None else None
        if claim is None or not claim.open:
            claim = self._noted
        if claim is None or not claim.open:
            claim = self._noted = Claim(self, _token())
        if id not in claim.open:
            token = claim.token
            await self.insist(lambda: self.queue.join(id, token), _LOOK_S)
            claim.open[id] = None
        return claim

    async def _join(self, claim: Claim) -> None:
        noted, self._noted = self._noted, None
        if noted is not None and noted.open:
            ids, token = list(noted.open), noted.token
            await self.insist(lambda: self.queue.move(token, claim.token), _LOOK_S)
            noted.decided(ids)
            claim.open.update(dict.fromkeys(ids))

    async def ack(self, id: str | None, upto: str | None) -> int:
        if (id is None) == (upto is None):
            raise BadArgument("id", "one signal, or all up to one", "give `id` or `upto`")
        if id is not None:
            await self._look_for(id)
            return await self.insist(lambda: self.queue.settle([id]), _SETTLE_S)
        assert upto is not None
        self.hints.add(_session_of(upto))
        await self._look()
        return await self.insist(lambda: self.queue.settle_up_to(upto), _SETTLE_S)

    def give_back(self, ids: list[str], token: int, why: str) -> None:
        """Now if that can be; else with the next call. It may be a collection of garbage that brings us here, in the
        midst of a question to the index: asking another would wait for ourselves. Or a host that was closed before:
        then nobody would close what is opened here."""
        self._abandoned.append((ids, token, why[:_WHY_CHARACTERS]))
        database = self.queue.store.index.database
        if database.idle:
            was_open = database.is_open
            try:
                self._give_back_all()
            except (HoldfastError, OSError):
                pass
            finally:
                if not was_open:
                    database.close()

    def _give_back_all(self) -> None:
        while self._abandoned:
            ids, token, why = self._abandoned[0]
            self.queue.release(ids, token, why)
            del self._abandoned[0]

    # Waking.

    def waker(self) -> Waker:
        from .waker import Waker

        made = Waker(self)
        self._wakers = [*(each for each in self._wakers if each() is not None), ref(made)]
        return made

    def wakers(self) -> list[Waker]:
        found = (each() for each in self._wakers)
        return [waker for waker in found if waker is not None and not waker.closed]

    # Waiting for an index that somebody else holds.

    async def insist(self, work: Callable[[], T], bound_s: float, *, away: bool = False) -> T:
        began = time.monotonic()
        while True:
            try:
                return await self.driver.call(work) if away else work()
            except IndexBusy as busy:
                waited = time.monotonic() - began
                if waited >= bound_s:
                    raise IndexBusy(busy.path, round(waited, 2), full=busy.full) from None
            await self.driver.ready((), (), _AGAIN_S)

    async def _look_for(self, id: str) -> None:
        """As `_look`, with this signal in it. The exit record names that of the end, which is appended right behind
        it: who was quicker than the runner waits for it, or it would be told in spite of what is said of it now."""
        self.hints.add(_session_of(id))
        deadline = time.monotonic() + _APPEND_S
        while is_coming(self._home, id) and time.monotonic() < deadline:
            await self.driver.ready((), (), _SOON_S)
        await self._look()

    async def _look(self) -> None:
        """What was appended since the last look is entered. The lease is prolonged: we are here."""
        hints, self.hints = self.hints, set()
        try:
            await self.insist(lambda: self.catchup.run(hints), _LOOK_S, away=self.catchup.takes_long)
        except BaseException:
            self.hints |= hints
            raise
        for waker in self.wakers():
            waker.refresh()
        await self.insist(self._be_known, _LOOK_S)
        await self.insist(self._give_back_all, _LOOK_S)
        await self.insist(self.queue.prolong, _LOOK_S)


def _token() -> int:
    return int.from_bytes(os.urandom(7), "big")


def _session_of(id: str) -> str:
    found = split_id(id)
    if found is None:
        raise BadArgument("id", f"{ascii(id)[:80]} is no signal", "give the id of a signal, such as b7k2m9qa1.3")
    return found[0]
