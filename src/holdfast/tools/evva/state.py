"""The background of one owner: its daemons, signals and observers, and the loop of turns over the signals.

It uses the daemon view and the consumer `evva:<owner>`. Several hosts may have one for the same owner.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from ...daemons.observers import DOMAIN, Observers
from ...errors import AlreadyEnded, BadArgument, KindReserved, NotFound, RunInProgress
from ...index import Kept
from ...sessions.driver import Asynchronous, Blocking, drive, driven
from ...signals import loop
from ...signals.consumer import Consumer
from ...signals.consumers import default_name
from ...signals.lines import Signal as Record
from . import signal as signals
from .catalog import SIGNALS_ONLY, Catalog, SessionDaemon
from .emitting import Emitting, kill, spawn
from .signal import Batch, Fold, Folding
from .snapshot import KIND_LOCAL_BASH, KIND_MONITOR, OP_ADDED, OP_REMOVED, RESERVED, Change, moment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from typing import Any, Self, Unpack

    from ...daemons.lsp import AsyncLanguageServer, LanguageServer, Server
    from ...daemons.observers import Change as ViewChange
    from ...daemons.view import View
    from ...daemons.wakes import DueCallback
    from ...model.options import StartOptions
    from ...sessions.aio import AsyncHoldfast, AsyncSession
    from ...sessions.api import Holdfast, Session
    from ...sessions.core import Core
    from ...sessions.start_request import Command
    from ...signals.waker import Waker
    from .catalog import Daemon
    from .emitting import Agent, Work
    from .signal import Signal
    from .snapshot import DaemonSnapshot


# One turn at a time over the pending signals. A second `run` is refused.


class _Held:
    def __init__(self, fold: Fold) -> None:
        self.fold = fold

    async def settle(self) -> None:
        self.fold.batch.settle()

    async def release(self, reason: str) -> None:
        self.fold.batch.release(reason)


class FoldGate:
    """What both gates have in common: the folds of a state are the source of turns."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._turns = loop.Turns(self)
        self._waker: Waker | None = None

    @property
    def waker(self) -> Waker:
        """Made when it is first asked for: most hosts use the wake of the state instead."""
        if self._waker is None:
            self._waker = self._state.consumer.waker()
        return self._waker

    def close(self) -> None:
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.close()

    def clear(self) -> None:
        if self._waker is not None:
            self._waker.clear()

    def make_readable(self) -> None:
        self.look_again()
        self._state.wake_again()

    def look_again(self) -> None:
        """Have the waker look again when the next signal is due."""
        if self._waker is not None:
            self._waker.make_readable()

    async def pending(self) -> int:
        return int(self._state.has_pending())

    async def take(self) -> _Held | None:
        while True:
            fold = self._state.fold()
            if fold:
                return _Held(fold)
            if not fold.ids:
                return None
            fold.batch.settle()

    def _inside(self, turn: Callable[[Fold], object], limit: int | None) -> Coroutine[Any, Any, int]:
        async def taken(held: object) -> None:
            assert isinstance(held, _Held)
            answer = turn(held.fold)
            if inspect.isawaitable(answer):
                await answer

        if not self._turns.enter():
            raise RunInProgress
        return self._turns.inside(taken, limit)


class AsyncGate(FoldGate, loop.AsyncGate):
    """`run(turn)` calls `turn(fold)` until nothing is pending, leaves, and looks again."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._serving = asyncio.Lock()

    async def run(self, turn: Callable[[Fold], Awaitable[object]], limit: int | None = None) -> int:  # type: ignore[override]
        return await self._inside(turn, limit)

    async def serve(self, turn: Callable[[Fold], Awaitable[object]]) -> None:  # type: ignore[override]
        """Wait and run until a turn raises. A second caller waits for the first to leave."""
        async with self._serving:
            while True:
                await self.waker
                self.waker.clear()
                try:
                    await self.run(turn)
                except RunInProgress:
                    # The run in progress takes everything that came before `clear`.
                    await self.waker.wait_readable(Asynchronous())


class Gate(FoldGate, loop.Gate):
    """`run(turn)` calls `turn(fold)` until nothing is pending, leaves, and looks again."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._serving = threading.Lock()

    def run(self, turn: Callable[[Fold], object], limit: int | None = None) -> int:  # type: ignore[override]
        return drive(self._inside(turn, limit))

    def serve(self, turn: Callable[[Fold], object]) -> None:  # type: ignore[override]
        """Wait and run until a turn raises. A second caller waits for the first to leave."""
        with self._serving:
            while True:
                self.waker.wait()
                self.waker.clear()
                try:
                    self.run(turn)
                except RunInProgress:
                    # The run in progress takes everything that came before `clear`.
                    drive(self.waker.wait_readable(Blocking()))


# The state.


FAMILY = "evva"
STARTED_HERE = (KIND_LOCAL_BASH, KIND_MONITOR)
# The topic of a session that records that an answer named its survivors.
_SURVIVORS = "survivors_told"
# Between the first signal of a stop and the next.
GRACE_S = 2.0


class State:
    """What both states have in common. Thread-safe; `core` blocks the calling thread."""

    domain = DOMAIN
    gate: Gate | AsyncGate

    def __init__(self, core: Core, view: View, owner: str, quote: str, ended_tail_chars: int | None) -> None:
        self.owner = owner
        self._core = core
        self._view = view
        self._folding = Folding(core, quote, ended_tail_chars)
        self.consumer = Consumer(core.consumers.open(default_name(owner, FAMILY), [owner]))
        self._catalog = Catalog(core, view, owner, self.consumer)
        self._emitting = Emitting(view, owner, self._catalog)
        # What answers have reported, kept for all hosts of the owner.
        self._answered = Kept(core.index, f"{FAMILY}:{owner}")
        self._observers = Observers()
        self._lock = threading.Lock()
        # Emissions in progress, and whether to wake when their observers have been called.
        self._under_way = 0
        self._wake_due = False
        self._draining = threading.Lock()
        self._unobserve: Callable[[], None] | None = None
        self._wake: Callable[[], object] | None = None
        self._due_callback: DueCallback | None = None
        self._latest: Batch | None = None
        self._parked: list[str] = []
        # Foreground calls: not daemons unless they leave processes behind.
        self._outside: set[str] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.owner}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Call no observer and no wake any more. Daemons continue; signals that were not settled come again."""
        with self._lock:
            due_callback, self._due_callback = self._due_callback, None
            unobserve, self._unobserve = self._unobserve, None
        with self._draining:
            latest, self._latest = self._latest, None
        self.gate.close()
        if due_callback is not None:
            due_callback.close()
        if unobserve is not None:
            unobserve()
        if latest is not None:
            latest.release("the state was closed")

    # The catalog.

    def __len__(self) -> int:
        return len(self.snapshot())

    def __bool__(self) -> bool:
        return True

    def register(self, daemon: Daemon | None) -> None:
        """Add an object of the host; the same id again replaces the former."""
        if daemon is None or not daemon.id:
            return
        self._catalog.register(daemon)
        self._notify(OP_ADDED, daemon.id, self._catalog.shot(daemon))

    def evict(self, id: str) -> None:
        """Remove from the catalog. Directory, log and signals stay."""
        last = self._catalog.evict(id)
        if last is not None:
            self._notify(OP_REMOVED, id, last)

    def get(self, id: str) -> Daemon | None:
        return self._catalog.get(id)

    def recall(self, id: str) -> Daemon | None:
        """As `get`, but also finds evicted and finished daemons."""
        return self._catalog.recall(id)

    def snapshot(self) -> list[DaemonSnapshot]:
        return self._catalog.snapshots()

    def snapshot_by_kind(self, kind: str) -> list[DaemonSnapshot]:
        return [shot for shot in self.snapshot() if shot.kind == kind]

    def everything(self) -> list[DaemonSnapshot]:
        """The catalog, and the finished daemons that are kept."""
        return self._catalog.everything()

    # The queue.

    def emit(self, signal: Signal) -> None:
        """Queue, then observers, then wake. A signal of a daemon that has ended is dropped."""
        with self._lock:
            self._under_way += 1
        try:
            queued = self._emitting.emit(signal)
            if not queued:
                # Other hosts see it when the disk has room again.
                self._notify(signals.op(signal), signal.daemon_id, signal.snapshot)
        finally:
            with self._lock:
                self._under_way -= 1
                due, self._wake_due = self._wake_due and not self._under_way, self._wake_due and bool(self._under_way)
            if due:
                self._call_wake()
        if not queued:
            self._call_wake()
        elif self._due_callback is not None:
            self._due_callback.look(observed=True)

    def drain_signals(self) -> Batch:
        """Claim all pending signals. This settles the batch before, unless it was released."""
        self._emitting.catch_up()
        with self._draining:
            before = self._latest
            # If this fails, the next drain settles it.
            settled = before is not None and before.acknowledge()
            self._latest = None
            # All of them: the message is bounded.
            claimed = self.consumer.claim(max(1, int(self.consumer.pending())))
            if self._due_callback is not None:
                self._due_callback.claimed()
            self._shorten(claimed.signals)
            found = [each for record in claimed.signals for each in signals.of(record, self._shot)]
            batch = self._latest = Batch(claimed, found, self._settled, self._released)
        if before is not None and settled:
            self._settled(before)
        return batch

    def has_pending(self) -> bool:
        self._emitting.catch_up()
        return bool(self.consumer.pending())

    def fold(self) -> Fold:
        """All pending signals as one message."""
        batch = self.drain_signals()
        try:
            with self._lock:
                parked, self._parked = [*self._parked, *batch.parked], []
            message = self._folding.message(batch.records, parked)
        except BaseException as problem:
            batch.release(f"{type(problem).__name__} while it was rendered: {problem}")
            raise
        return Fold(message.text, batch)

    def _settled(self, batch: Batch) -> None:
        """Evict the daemons whose end is settled, unless they have survivors."""
        for each in batch:
            if each.lifecycle is not None:
                last = self._catalog.settled(each.daemon_id, each.snapshot)
                if last is not None:
                    self._notify(OP_REMOVED, each.daemon_id, last)

    def _released(self, batch: Batch) -> None:
        with self._lock:
            self._parked += batch.parked
        self.gate.look_again()
        if self._due_callback is not None:
            self._due_callback.look()

    def _shot(self, record: Record) -> DaemonSnapshot | None:
        if not record.session or not record.snapshot:
            return None
        return self._catalog.of(self._view.shot_of(record.snapshot))

    # Observers and the wake.

    def subscribe(self, callback: Callable[[Change], object] | None) -> Callable[[], None]:
        """Call this for every change; returns a function that ends that."""
        if callback is None:
            return lambda: None
        self._listen()
        return self._observers.add(callback)

    def set_wake(self, callback: Callable[[], object] | None) -> None:
        """Call this when a signal is pending; immediately if one is pending already."""
        self._wake = callback
        if callback is None:
            return
        self._listen()
        with self._lock:
            is_new = self._due_callback is None
            if self._due_callback is None:
                self._due_callback = self._view.call_when_due(self.consumer, self._call_wake)
        if not is_new:
            self._due_callback.claimed()
        self._due_callback.look(observed=True)

    def wake_again(self) -> None:
        """Signals are left for a later turn."""
        if self._due_callback is not None:
            self._due_callback.claimed()
            self._due_callback.look()

    def _call_wake(self) -> None:
        with self._lock:
            # Not before the observers of an emission in progress; the end of the emission wakes.
            self._wake_due = self._under_way > 0
            wake = None if self._wake_due else self._wake
        if wake is not None:
            wake()

    def _notify(self, op: str, id: str, snapshot: DaemonSnapshot | None, at: str | None = None) -> None:
        self._observers.notify(Change(op, id, snapshot, moment(at) or datetime.now(UTC)))

    def _listen(self) -> None:
        with self._lock:
            if self._unobserve is None:
                self._unobserve = self._view.observe(self._heard)

    def _heard(self, change: ViewChange) -> None:
        """A change from the view, after the signal is in the queue."""
        shot = change.snapshot
        if shot is None or shot.owner != self.owner or self._emitting.is_hushed(change.id):
            return
        if shot.metadata.get(SIGNALS_ONLY) and shot.exit is not None and shot.exit.cause == "owner_gone":
            return  # its host exited without reporting an end
        seen = self._catalog.of(shot)
        if seen.survivors or not self._catalog.is_call(change.id):
            if change.op != OP_ADDED:
                self._enter(change.id, seen, change.at)
            self._notify(change.op, change.id, seen, change.at)
        elif seen.is_terminal:
            self._outside.discard(change.id)
        else:
            self._outside.add(change.id)

    def note_survivors(self, id: str) -> None:
        """Record that an answer named the processes that this call left behind."""
        self._answered.put(id, _SURVIVORS, True)

    def _shorten(self, records: Sequence[Record]) -> None:
        """Keep the notice of survivors short where an answer has named them."""
        for record in records:
            if record.variant == "survivors" and record.session and self._answered.get(record.session, _SURVIVORS):
                record.fields["answered"] = True

    def entered(self, id: str) -> None:
        """A call that runs on in the background is a daemon from now on."""
        daemon = self._catalog.get(id)
        if daemon is not None and self._unobserve is not None:
            self._enter(id, daemon.snapshot(), None)

    def _enter(self, id: str, seen: DaemonSnapshot, at: str | None) -> None:
        with self._lock:
            late = id in self._outside
            self._outside.discard(id)
        if late:
            self._notify(OP_ADDED, id, seen, at)

    # Starting.

    def _options(self, options: StartOptions) -> StartOptions:
        kind = options.get("kind", "local_bash")
        if kind in RESERVED:
            raise KindReserved(kind)
        if kind not in STARTED_HERE:
            raise BadArgument("kind", f"{kind[:40]!a} is not started by a command", "give local_bash or monitor")
        made: StartOptions = {"grace": GRACE_S, **options, "owner": self.owner}
        if kind == "monitor":
            made.setdefault("monitor", True)
        return made

    def spawn_agent(
        self,
        work: Work,
        *,
        name: str,
        agent_type: str,
        prompt: str,
        description: str = "",
        async_mode: bool = True,
        worktree_path: str | None = None,
        worktree_branch: str | None = None,
    ) -> Agent | Awaitable[Any]:
        """Run a subagent as a task of the running loop. Without `async_mode`, await the result."""
        facts = {
            "name": name,
            "agent_type": agent_type,
            "prompt": prompt,
            "async": async_mode,
            "worktree_path": worktree_path,
            "worktree_branch": worktree_branch,
        }
        agent = spawn(
            self._view,
            work,
            owner=self.owner,
            description=description or name,
            metadata={fact: value for fact, value in facts.items() if value is not None},
            notify="exit" if async_mode else "never",
        )
        return agent if async_mode else self._inline(agent)

    async def _inline(self, agent: Agent) -> Any:
        assert agent.task is not None
        try:
            return await agent.task
        finally:
            last = self._catalog.of(agent.snapshot())
            # After the observers of its end.
            self._view.deliver(lambda: self._notify(OP_REMOVED, agent.id, last))

    def _server(self, name: str) -> Server | None:
        """The owner's language server of that name, if this host is connected to it."""
        found = [each for each in self._view.servers.values() if each.server == name and not each.over]
        return next((each for each in found if self._catalog.recall(each.id)), None)

    def _to_stop(self, id: str) -> tuple[Daemon, DaemonSnapshot]:
        daemon = self.recall(id)
        if daemon is None:
            raise NotFound(id)
        before = daemon.snapshot()
        if before.is_terminal and not before.survivors:
            problem = AlreadyEnded(id, before.status)
            problem.snapshot = before  # type: ignore[assignment]
            raise problem
        return daemon, before

    async def _kill(self, daemon: Daemon) -> None:
        kill(daemon)


class AsyncDaemonState(State):
    """The background of one owner, for asyncio. Calls that are not awaited block while they ask the index or, for
    `snapshot`, the runners."""

    def __init__(
        self, hf: AsyncHoldfast, owner: str, *, quote: str = "prefix", ended_tail_chars: int | None = None
    ) -> None:
        super().__init__(hf._core.blocking(), hf.daemons, owner, quote, ended_tail_chars)
        self._hf = hf
        self._driver = hf._core.driver
        self.gate: AsyncGate = AsyncGate(self)
        self._one_server = asyncio.Lock()

    async def start(self, command: Command, **options: Unpack[StartOptions]) -> AsyncSession:
        return await self._hf.start(command, **self._options(options))

    async def start_lsp(self, command: Command, *, server: str, **options: Any) -> AsyncLanguageServer:
        """The language server of that name; started if this host has none."""
        async with self._one_server:
            found = self._server(server)
            if found is not None:
                return cast("AsyncLanguageServer", found)
            return await self._hf.daemons.lsp(command, server=server, owner=self.owner, **options)

    async def stop(self, id: str) -> DaemonSnapshot:
        """Request a stop and return the snapshot before it. The end itself comes as a signal."""
        daemon, before = await self._driver.call(lambda: self._to_stop(id))
        if isinstance(daemon, SessionDaemon):
            await self._driver.call(daemon.kill)
        else:
            with self._emitting.stopping(id):
                await self._kill(daemon)
        return before

    async def _kill(self, daemon: Daemon) -> None:
        answer = daemon.kill()
        if inspect.isawaitable(answer):
            await answer


class DaemonState(State):
    """The background of one owner, for programs that block."""

    def __init__(self, hf: Holdfast, owner: str, *, quote: str = "prefix", ended_tail_chars: int | None = None) -> None:
        super().__init__(hf._core, hf.daemons, owner, quote, ended_tail_chars)
        self._hf = hf
        self._driver = hf._core.driver
        self.gate: Gate = Gate(self)
        self._one_server = threading.Lock()

    def start(self, command: Command, **options: Unpack[StartOptions]) -> Session:
        return self._hf.start(command, **self._options(options))

    def start_lsp(self, command: Command, *, server: str, **options: Any) -> LanguageServer:
        """The language server of that name; started if this host has none."""
        with self._one_server:
            found = self._server(server)
            if found is not None:
                return cast("LanguageServer", found)
            return self._hf.daemons.lsp(command, server=server, owner=self.owner, **options)

    stop = driven(AsyncDaemonState.stop)
