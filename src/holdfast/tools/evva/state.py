"""The background of one owner: its daemons, what happened to them, who is told, who is woken.

A thin face over the daemon view and the consumer `evva:<owner>`. Several hosts may hold one for the same owner.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import TYPE_CHECKING

from ...daemons.observers import DOMAIN, shown
from ...errors import AlreadyEnded, BadArgument, KindReserved, NotFound
from ...index.kept import Kept
from ...signals.consumer import Consumer
from ...signals.names import default_name
from ...signals.records import Signal as Record
from . import signal as signals
from .agent import spawn
from .batch import Batch, Fold
from .catalog import SIGNALS_ONLY, Catalog, SessionDaemon
from .change import Change, Listeners
from .emitting import Emitting, kill
from .folding import Folding
from .gate import AsyncGate, Gate
from .words import KIND_LOCAL_BASH, KIND_MONITOR, OP_ADDED, OP_REMOVED, RESERVED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Any, Self, Unpack

    from ...daemons.aiolsp import AsyncLanguageServer
    from ...daemons.lsp import LanguageServer
    from ...daemons.observers import Change as ViewChange
    from ...daemons.view import View
    from ...daemons.waking import Waking
    from ...host.aio import AsyncHoldfast, AsyncSession
    from ...host.api import Holdfast, Session
    from ...host.core import Core
    from ...host.request import Command
    from ...model import StartOptions
    from .agent import Agent, Work
    from .catalog import Daemon
    from .signal import Signal
    from .snapshot import DaemonSnapshot

FAMILY = "evva"
STARTED_HERE = (KIND_LOCAL_BASH, KIND_MONITOR)
# In what is kept of a session: an answer named its survivors.
_SURVIVORS = "survivors_told"
# From the first signal to the next rung.
GRACE_S = 2.0


class State:
    """What both have in common. Thread-safe; `core` waits in the calling thread."""

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
        # What answers said already; every host of the owner knows.
        self._answered = Kept(core.index, f"{FAMILY}:{owner}")
        self._listeners = Listeners()
        self._lock = threading.Lock()
        # Emissions of which observers may still have to hear, and whether somebody is to be woken after that.
        self._under_way = 0
        self._wake_due = False
        self._draining = threading.Lock()
        self._unobserve: Callable[[], None] | None = None
        self._wake: Callable[[], object] | None = None
        self._waking: Waking | None = None
        self._latest: Batch | None = None
        self._parked: list[str] = []
        # Calls that somebody waits for: they are no daemons, as long as nothing of them is left behind.
        self._outside: set[str] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.owner}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go: nobody is told or woken any more. What runs, runs on; what was not settled comes again."""
        with self._lock:
            waking, self._waking = self._waking, None
            unobserve, self._unobserve = self._unobserve, None
        with self._draining:
            latest, self._latest = self._latest, None
        self.gate.close()
        if waking is not None:
            waking.close()
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
        """A host's own object; the same id again takes the place of the former."""
        if daemon is None or not daemon.id:
            return
        self._catalog.register(daemon)
        self._listeners.tell(Change(OP_ADDED, daemon.id, self._catalog.shot(daemon)))

    def evict(self, id: str) -> None:
        """Out of the catalog. Directory, log and signals stay."""
        last = self._catalog.evict(id)
        if last is not None:
            self._listeners.tell(Change(OP_REMOVED, id, last))

    def get(self, id: str) -> Daemon | None:
        return self._catalog.get(id)

    def recall(self, id: str) -> Daemon | None:
        """Also one that is evicted, or over and kept."""
        return self._catalog.recall(id)

    def snapshot(self) -> list[DaemonSnapshot]:
        return self._catalog.snapshots()

    def snapshot_by_kind(self, kind: str) -> list[DaemonSnapshot]:
        return [shot for shot in self.snapshot() if shot.kind == kind]

    def everything(self) -> list[DaemonSnapshot]:
        """The catalog, and what is over and kept."""
        return self._catalog.everything()

    # The queue.

    def emit(self, signal: Signal) -> None:
        """Queue, then observers, then wake. Of a daemon that ended before, nothing more is told."""
        with self._lock:
            self._under_way += 1
        try:
            queued = self._emitting.emit(signal)
            if not queued:
                # Nobody else hears of it before there is room on the disk.
                self._listeners.tell(Change(signals.op(signal), signal.daemon_id, signal.snapshot))
        finally:
            with self._lock:
                self._under_way -= 1
                due, self._wake_due = self._wake_due and not self._under_way, self._wake_due and bool(self._under_way)
            if due:
                self._call_wake()
        if not queued:
            self._call_wake()
        elif self._waking is not None:
            self._waking.look(heard=True)

    def drain_signals(self) -> Batch:
        """All that is pending, claimed. The batch before it is settled, unless it was released."""
        self._emitting.catch_up()
        with self._draining:
            before = self._latest
            # One that cannot be settled is tried again by the next drain.
            settled = before is not None and before.acknowledge()
            self._latest = None
            # All of them: what is shown of many is bounded by the message.
            claimed = self.consumer.claim(max(1, int(self.consumer.pending())))
            if self._waking is not None:
                self._waking.taken()
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
        """All that is pending, as one message."""
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
        """What ended and was told leaves the catalog, unless something of it lives on."""
        for each in batch:
            if each.lifecycle is not None:
                last = self._catalog.settled(each.daemon_id, each.snapshot)
                if last is not None:
                    self._listeners.tell(Change(OP_REMOVED, each.daemon_id, last))

    def _released(self, batch: Batch) -> None:
        with self._lock:
            self._parked += batch.parked
        self.gate.stir()
        if self._waking is not None:
            self._waking.look()

    def _shot(self, record: Record) -> DaemonSnapshot | None:
        if not record.session or not record.snapshot:
            return None
        from ...daemons.listing import dressed

        return self._catalog.of(dressed(self._core, shown(record.snapshot)))

    # Who is told.

    def subscribe(self, callback: Callable[[Change], object] | None) -> Callable[[], None]:
        """Be told of every change; returns what ends that."""
        if callback is None:
            return lambda: None
        self._listen()
        return self._listeners.add(callback)

    def set_wake(self, callback: Callable[[], object] | None) -> None:
        """Called when something is pending; at once, when something is already."""
        self._wake = callback
        if callback is None:
            return
        self._listen()
        with self._lock:
            made, self._waking = self._waking, self._waking or self._view.waken(self.consumer, self._call_wake)
        if made is not None:
            made.taken()
        self._waking.look(heard=True)

    def wake_again(self) -> None:
        """Something is left for a later turn."""
        if self._waking is not None:
            self._waking.taken()
            self._waking.look()

    def _call_wake(self) -> None:
        with self._lock:
            # Not between the queue and the observers of an emission that is under way: its end calls then.
            self._wake_due = self._under_way > 0
            wake = None if self._wake_due else self._wake
        if wake is not None:
            wake()

    def _listen(self) -> None:
        with self._lock:
            if self._unobserve is None:
                self._unobserve = self._view.observe(self._heard)

    def _heard(self, change: ViewChange) -> None:
        """From the view, after the queue has it; what is another owner's is none of ours."""
        shot = change.snapshot
        if shot is None or shot.owner != self.owner or self._emitting.is_hushed(change.id):
            return
        if shot.metadata.get(SIGNALS_ONLY) and shot.exit is not None and shot.exit.cause == "owner_gone":
            return  # nobody told an end: its host went, and with it what there was to tell
        told = self._catalog.of(shot)
        if told.survivors or not self._catalog.is_call(change.id):
            if change.op != OP_ADDED:
                self._enter(change.id, told, change.at)
            self._listeners.tell(Change(change.op, change.id, told, change.at))
        elif told.is_terminal:
            self._outside.discard(change.id)
        else:
            self._outside.add(change.id)

    def survivors_told(self, id: str) -> None:
        """An answer has named what this call left behind."""
        self._answered.put(id, _SURVIVORS, True)

    def _shorten(self, records: Sequence[Record]) -> None:
        """What an answer said is not said again by the notice that follows."""
        for record in records:
            if record.variant == "survivors" and record.session and self._answered.get(record.session, _SURVIVORS):
                record.fields["answered"] = True

    def entered(self, id: str) -> None:
        """A call that nobody waits for any more is a daemon from now on."""
        daemon = self._catalog.get(id)
        if daemon is not None and self._unobserve is not None:
            self._enter(id, daemon.snapshot(), None)

    def _enter(self, id: str, told: DaemonSnapshot, at: str | None) -> None:
        with self._lock:
            late = id in self._outside
            self._outside.discard(id)
        if late:
            self._listeners.tell(Change(OP_ADDED, id, told, at))

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
        """A task of the running loop. Its agent; or, when not `async_mode`, what to await for its result."""
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
            # After its end, which observers may still have to be told.
            self._view.deliver(lambda: self._listeners.tell(Change(OP_REMOVED, agent.id, last)))

    def _server(self, name: str) -> LanguageServer | None:
        """The owner's of that name, where this host speaks to it."""
        found = [each for each in self._view.servers.values() if each.server == name and not each.over]
        return next((each for each in found if self._catalog.is_mine(each.id)), None)


class DaemonState(State):
    """For programs that block."""

    def __init__(self, hf: Holdfast, owner: str, *, quote: str = "prefix", ended_tail_chars: int | None = None) -> None:
        super().__init__(hf._core, hf.daemons, owner, quote, ended_tail_chars)
        self._hf = hf
        self.gate: Gate = Gate(self)
        self._one_server = threading.Lock()

    def start(self, command: Command, **options: Unpack[StartOptions]) -> Session:
        return self._hf.start(command, **self._options(options))

    def start_lsp(self, command: Command, *, server: str, **options: Any) -> LanguageServer:
        """The language server of that name, started if this host has none."""
        with self._one_server:
            return self._server(server) or self._hf.daemons.lsp(command, server=server, owner=self.owner, **options)

    def stop(self, id: str) -> DaemonSnapshot:
        """Ask for its end; what it was before. Its owner tells the ending, never this call."""
        daemon, before = _to_stop(self, id)
        if isinstance(daemon, SessionDaemon):
            daemon.kill()
        else:
            with self._emitting.stopping(id):
                kill(daemon)
        return before


class AsyncDaemonState(State):
    """For asyncio: the same, and what may take long is awaited. The rest asks the index, and `snapshot` the runners: it
    holds the loop up as long as that takes, which is bounded."""

    def __init__(
        self, hf: AsyncHoldfast, owner: str, *, quote: str = "prefix", ended_tail_chars: int | None = None
    ) -> None:
        super().__init__(hf._core.blocking(), hf.daemons, owner, quote, ended_tail_chars)
        self._hf = hf
        self.gate: AsyncGate = AsyncGate(self)
        self._one_server = asyncio.Lock()

    async def start(self, command: Command, **options: Unpack[StartOptions]) -> AsyncSession:
        return await self._hf.start(command, **self._options(options))

    async def start_lsp(self, command: Command, *, server: str, **options: Any) -> AsyncLanguageServer:
        from ...daemons.aiolsp import AsyncLanguageServer

        async with self._one_server:
            found = self._server(server)
            if found is not None:
                return AsyncLanguageServer(found)
            return await self._hf.daemons.lsp(command, server=server, owner=self.owner, **options)

    async def stop(self, id: str) -> DaemonSnapshot:
        daemon, before = await asyncio.to_thread(_to_stop, self, id)
        if isinstance(daemon, SessionDaemon):
            await asyncio.to_thread(daemon.kill)
        else:
            with self._emitting.stopping(id):
                answer = daemon.kill()
                if inspect.isawaitable(answer):
                    await answer
        return before


def _to_stop(state: State, id: str) -> tuple[Daemon, DaemonSnapshot]:
    daemon = state.recall(id)
    if daemon is None:
        raise NotFound(id)
    before = daemon.snapshot()
    if before.is_terminal and not before.survivors:
        problem = AlreadyEnded(id, before.status)
        problem.snapshot = before  # type: ignore[assignment]
        raise problem
    return daemon, before
