"""The sessions of one owner: find, scope, wait, acknowledge. The base of every toolset.

`OwnerSessions` finds and lists the sessions of an owner, and acknowledges their ends in its queue. `Running` is a
command that a call starts and waits for, and `unless` a wait that something else may end. `end_of` and `both_ends` cut
text that is too long for an answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..core import clock
from ..errors import AmbiguousId, BadArgument, NotFound, Unreachable
from ..model import FINAL_STATES, UNREACHABLE
from ..signals.consumers import default_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from typing import Any, Self, TypeVar

    from ..index import Kept
    from ..model import Snapshot
    from ..sessions.aio import AsyncHoldfast, AsyncSession
    from ..sessions.start_request import Command
    from ..signals.consumer import AsyncConsumer

    T = TypeVar("T")


# A command may take this long to leave after its limit; then its runner is asked whether it still answers.
_OVERDUE_S = 0.1


class OwnerSessions:
    """The sessions of `owner` for one toolset. `variants` are the signals that its queue gets; None is all.
    A toolset without a queue of its own shares the owner's."""

    def __init__(
        self,
        hf: AsyncHoldfast,
        owner: str,
        toolset: str,
        *,
        own_queue: bool = True,
        variants: Iterable[str] | None = None,
    ) -> None:
        if not owner.strip():
            raise BadArgument("owner", "is empty", "give the key of the agent that calls")
        self.hf = hf
        self.owner = owner
        self._queue = default_name(owner, toolset) if own_queue else None
        self._variants = variants
        self._consumer: AsyncConsumer | None = None
        # What the toolset notes about sessions. It is in the index and survives this process.
        self.kept: Kept = hf.kept(f"{toolset}:{owner}")

    # Scope and find.

    def is_own(self, session: Snapshot) -> bool:
        """Whether a session of the owner belongs to this toolset; one with a label of its own checks that."""
        return True

    async def listed(self, *, ended: bool = False, labels: Mapping[str, str] | None = None) -> list[AsyncSession]:
        """The owner's sessions in this toolset, oldest first: those that run, or all of them."""
        found = await self.hf.sessions(all=ended, owner=self.owner, labels=labels)
        return [each for each in found if self.is_own(each)]

    async def find(self, ref: object) -> AsyncSession:
        """A session of the owner, by id, name, pid or prefix. NotFound for a session of another owner."""
        return await self.hf.get(ref, owner=self.owner)

    # The queue of signals.

    def consumer(self) -> AsyncConsumer:
        """The queue of signals for this owner and toolset. From the first call on, signals are kept for it."""
        if self._consumer is None:
            if self._queue is None:
                self._consumer = self.hf.signals(self.owner)
            else:
                self._consumer = self.hf.consumer(self._queue, [self.owner], variants=self._variants)
        return self._consumer

    def end_signal(self, session: AsyncSession) -> str | None:
        """The id of the signal that records its end. None before the end."""
        if session.state not in FINAL_STATES:
            return None
        return session.metadata.get("signal_id") or self.hf._core.ensure_end_signal(session.id)

    async def acknowledge(self, session: AsyncSession) -> None:
        """An answer reports its end, so no notice of the end is due."""
        signal = self.end_signal(session)
        if signal is not None:
            await self.consumer().ack(signal)


def by_prefix(ref: str, prefix: str, named: Mapping[str, AsyncSession]) -> AsyncSession:
    """The session with this name, or the only one whose name begins so. `ref` is how the caller wrote it."""
    if prefix in named:
        return named[prefix]
    found = sorted(name for name in named if name.startswith(prefix))
    if not found:
        raise NotFound(ref)
    if len(found) > 1:
        raise AmbiguousId(ref, found)
    return named[found[0]]


class Running:
    """A command that a call starts and waits for, as a context. `session` is None until it has started. Leaving the
    context early closes the connection of the start: only the wait ends, unless the command lives as long as its call.
    """

    def __init__(
        self, hf: AsyncHoldfast, command: Command, *, on_start: Callable[[], object] | None = None, **options: Any
    ) -> None:
        """Start it. The options are those of `hf.run`, `wait` included. `on_start` is called once, when it runs."""
        self._on_start = on_start
        self._started = asyncio.Event()
        # Filled when the command has started: `with_progress` holds this list from before.
        self.sessions: list[AsyncSession] = []
        self._run = asyncio.ensure_future(hf.run(command, started=self._note, **options))
        self._run.add_done_callback(self._over)

    @property
    def session(self) -> AsyncSession | None:
        return self.sessions[0] if self.sessions else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if not self._run.done():
            self._run.cancel()
            await asyncio.wait([self._run])

    def _note(self, session: AsyncSession) -> None:
        self.sessions.append(session)
        self._started.set()
        if self._on_start is not None:
            self._on_start()

    def _over(self, run: asyncio.Task[AsyncSession]) -> None:
        retrieve(run)
        self._started.set()

    async def started(self) -> None:
        """Return once the command runs, or once it is known that it could not be started."""
        await self._started.wait()

    async def abort(self, end: Callable[[AsyncSession], Awaitable[None]]) -> None:
        """For a call that is cancelled: `end` the session. A start that is under way is awaited first. A caller that
        is cancelled again leaves this to itself."""

        async def ended() -> None:
            await self.started()
            if self.session is not None:
                await end(self.session)

        await asyncio.shield(asyncio.ensure_future(ended()))

    def result(self) -> AsyncSession | None:
        """The session if `outcome` is known by now; None while the call would still wait."""
        return self._run.result() if self._run.done() else None

    async def outcome(self, limit_s: float | None = None) -> AsyncSession:
        """The session when it has ended or the wait is over. Its runner enforces `limit_s`; Unreachable when the
        runner does not answer after that time."""
        done, _ = await asyncio.wait([self._run], timeout=None if limit_s is None else limit_s + _OVERDUE_S)
        while not done:
            session = self.session
            if session is not None and (await session.refresh()).state == UNREACHABLE:
                raise Unreachable(session.id, session.runner_pid, limit_s or 0.0)
            done, _ = await asyncio.wait([self._run], timeout=_OVERDUE_S)
        return self._run.result()


async def unless(stop: asyncio.Future[Any], outcome: Awaitable[T]) -> T | None:
    """The outcome; None if `stop` is set before. Then only the waiting ends."""
    work = asyncio.ensure_future(outcome)
    work.add_done_callback(retrieve)
    try:
        both: set[asyncio.Future[Any]] = {work, stop}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        if not work.done():
            work.cancel()
            await asyncio.wait([work])


def retrieve(done: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging an exception that no caller is left to receive."""
    if not done.cancelled():
        done.exception()


# What is left of a session.


def has_survivors(session: Snapshot) -> bool:
    """Whether its command has ended and left processes behind."""
    return session.exit is not None and bool(session.exit.survivors)


def is_extinct(session: Snapshot) -> bool:
    """Whether it has ended and left no process behind."""
    return session.state in FINAL_STATES and not has_survivors(session)


# Times.


def elapsed_s(begin: str | None, end: str | None = None) -> float:
    """Seconds between two recorded times, or until now; 0 without a beginning."""
    began, until = clock.epoch(begin), clock.epoch(end) if end else clock.wall_ns() / 1e9
    return 0.0 if began is None or until is None else max(0.0, until - began)


# Cutting text.


def end_of(text: str, limit: int) -> tuple[str, bool]:
    """The last `limit` characters, from a line start where there is one; and whether something is missing."""
    if len(text) <= limit:
        return text, False
    kept = text[len(text) - limit :]
    if text[len(text) - limit - 1] != "\n":
        kept = kept.partition("\n")[2] or kept
    return kept, True


def both_ends(text: str, limit: int, head_share: float, *, whole_lines: bool = False) -> tuple[int, int]:
    """Where the middle begins and ends that has to be left out, so that `limit` characters remain."""
    head = int(limit * head_share)
    tail = len(text) - (limit - head)
    if whole_lines:
        head = text.rfind("\n", 0, head) + 1 or head
        after = text.find("\n", tail, len(text) - 1) + 1
        tail = after or tail
    return head, tail
