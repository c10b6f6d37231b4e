"""`hf.daemons`: one list, one stop, one output, one set of observers over all that runs in the background.

Sessions are found where they always are. What runs inside this host has a directory like theirs, so that every host
sees it in the same list.
"""

from __future__ import annotations

import os
import threading

from ..errors import BadArgument, ShuttingDown
from ..home import is_id
from ..host.driver import drive
from ..host.observe import from_files, read_files
from ..model import RUNNING
from ..signals.records import Signal
from . import kinds
from .feed import Feed
from .hostloop import HostLoop
from .inprocess import Start
from .listing import dressed, listed, stopped, text_of
from .observers import Change, Observers, Teller, op_of, shown
from .workers import RAISED, OutsideWorker, TaskWorker, ThreadWorker

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Iterable, Mapping
    from typing import Any, Literal, TypedDict, Unpack

    from ..host.core import Core
    from ..host.request import Command
    from ..model import Snapshot, StartOptions
    from ..signals.consumer import Consumer
    from .aiolsp import AsyncLanguageServer
    from .handle import Handle
    from .keeper import Keeper
    from .kinds import Output
    from .lsp import LanguageServer, Notified
    from .observers import Deliverer
    from .relay import Relay
    from .waking import Waking

    Duration = float | str

    class DaemonOptions(TypedDict, total=False):
        """What a task or thread may be given; as for a session, all of it optional."""

        kind: str
        name: str | None
        description: str | None
        owner: str | None
        labels: Mapping[str, str]
        metadata: Mapping[str, Any]
        notify: Literal["never", "exit", "failure", "auto"]
        timeout: Duration | None
        grace: Duration

    AsyncWork = Coroutine[Any, Any, Any] | Callable[[Handle], Coroutine[Any, Any, Any]]
    ThreadWork = Callable[[Handle], object]


# Failed starts in a row after which a language server is given up.
MAX_RESTARTS = 3


class View:
    """What both facades have in common: the daemons of this host, and who observes all."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._closed = False
        self._host: HostLoop | None = None
        self._handles: dict[str, Handle] = {}
        self._own: set[str] = set()
        self._observers = Observers()
        self._deliverer: Deliverer | None = None
        self._feed: Feed | None = None
        # What was last seen of others, for observers.
        self._unreachable: set[str] = set()
        self._seen: set[str] = set()
        self._servers: dict[str, LanguageServer] = {}

    def task(self, work: AsyncWork, **options: Unpack[DaemonOptions]) -> Handle:
        """Run a coroutine, or a function that makes one of its handle, as a task of the running event loop."""
        import asyncio

        try:
            worker = TaskWorker(_running_loop(), options.get("name") or _name_of(work))
            handle = self._begin(worker, work, options)
        except BaseException:
            if asyncio.iscoroutine(work):
                work.close()  # nobody else will, and Python complains about those
            raise
        try:
            worker.start(work if asyncio.iscoroutine(work) else work(handle), handle.left)
        except BaseException as problem:
            worker.alive = False
            handle.left(RAISED, problem)
            raise
        return handle

    def thread(self, work: ThreadWork, **options: Unpack[DaemonOptions]) -> Handle:
        """Run a function in a thread; it is given its handle."""
        worker = ThreadWorker(options.get("name") or _name_of(work))
        handle = self._begin(worker, work, options)
        try:
            worker.start(lambda: work(handle), handle.left)
        except BaseException as problem:
            worker.alive = False
            handle.left(RAISED, problem)
            raise
        return handle

    def relay(
        self, id: str, end: Callable[[], object], *, told: bool = True, **options: Unpack[DaemonOptions]
    ) -> Relay:
        """A daemon that this host runs in its own way and tells us of, under an id of its choice; `end` is called when
        somebody asks for its end. Whatever it tells is in the queue, and heard by observers, when the call returns.
        Not `told`: there are its signals, and nobody hears that it began or went with its host."""
        from .relay import Aside, Relay

        if not is_id(id):
            raise BadArgument("id", f"{ascii(id)[:80]} is no id", "give 6 to 32 of 0-9 and a-z")
        host = self._hosting()
        name = options.get("name") or options.get("kind") or "outside"
        worker = OutsideWorker(name, end)
        aside = Aside(self._told, self._tell)
        keeper = Start(self._core, name, id=id, **options).keep(host, worker, aside.told)
        relay = Relay(
            host, keeper, worker, lambda record: dressed(self._core, shown(record)), self._phased, aside, told=told
        )
        self._keep(relay, keeper)
        aside.call(host, lambda: keeper.begin(told=told))
        return relay

    def waken(self, consumer: Consumer, callback: Callable[[], object]) -> Waking:
        """Call back whenever something is due for this consumer, after observers heard of it."""
        from .waking import Waking

        host = self._hosting()
        with self._lock:
            if self._deliverer is None:
                self._deliverer = self._new_deliverer()
        waking = Waking(host, consumer, self._hear, self.deliver, callback)
        waking.begin()
        return waking

    def _hear(self, sessions: Iterable[str]) -> None:
        """On the loop's thread: what is new in these files."""
        if self._feed is not None:
            self._feed.read(sessions)

    def deliver(self, work: Callable[[], None]) -> None:
        """Do it after what observers are still to be told."""
        deliverer = self._deliverer
        if deliverer is None:
            work()  # nobody is told anything
        else:
            deliverer.deliver(work)

    async def _start_server(
        self,
        command: Command,
        server: str | None,
        root: str | None,
        initialize: Mapping[str, Any] | None,
        max_restarts: int,
        notified: Notified | None,
        options: StartOptions,
    ) -> LanguageServer:
        from ..host import verbs
        from .lsp import LanguageServer
        from .lspstart import greeting, name_of, options_for

        name = server or name_of(command)
        asked = options_for(name, max_restarts, root, options)
        with self._lock:
            if self._closed:
                raise ShuttingDown
        seen = await verbs.start(self._core, command, asked)
        id = seen.files.id
        started = LanguageServer(
            self._core,
            id,
            name,
            initialize=greeting(root or asked.get("cwd"), initialize),
            changed=lambda state: self._server_changed(id, state),
            notified=notified or (lambda _method, _params: None),
        )
        with self._lock:
            self._servers[id] = started
        return started

    def _server_changed(self, id: str, state: str) -> None:
        if self._observers:
            shot = self._with_server(dressed(self._core, from_files(read_files(self._core.home, id)).snapshot()))
            shot.metadata["state"] = state
            self._pass_by(Change(f"phase:{state}", id, shot))

    def _with_server(self, shot: Snapshot) -> Snapshot:
        """What only the host that speaks to a language server knows of it."""
        server = self._servers.get(shot.id)
        if server is not None:
            shot.metadata.update(state=server.state, open_requests=server.open_requests)
        return shot

    @property
    def servers(self) -> Mapping[str, LanguageServer]:
        """The language servers that this host speaks to, by id."""
        return self._servers

    def handle(self, id: str) -> Handle | None:
        """The handle of a daemon of this very host, while it lives."""
        return self._handles.get(id)

    def observe(self, callback: Callable[[Change], object]) -> Callable[[], None]:
        """Be told of every change of every daemon from now on; returns what ends it."""
        host = self._hosting()
        with self._lock:
            if self._deliverer is None:
                self._deliverer = self._new_deliverer()
            if self._feed is None:
                feed = Feed(host.loop, self._core.home, self._core.runtime, self._heard)
                known = self._core.index.look().unfinished
                host.call(lambda: feed.begin(known))
                self._feed = feed
        return self._observers.add(callback)

    def _new_deliverer(self) -> Deliverer:
        return Teller()

    def _begin(self, worker: TaskWorker | ThreadWorker, work: AsyncWork | ThreadWork, options: DaemonOptions) -> Handle:
        from .handle import Handle

        start = Start(self._core, _name_of(work), **options)
        host = self._hosting()
        keeper = start.keep(host, worker, self._told)
        handle = Handle(host, keeper, worker, lambda record: dressed(self._core, shown(record)), self._phased)
        self._keep(handle, keeper)
        host.call(keeper.begin)
        return handle

    def _keep(self, handle: Handle, keeper: Keeper) -> None:
        self._own.add(keeper.id)
        self._handles[keeper.id] = handle
        keeper.settled.add_done_callback(lambda _: self._handles.pop(keeper.id, None))

    def _hosting(self) -> HostLoop:
        with self._lock:
            if self._closed:
                raise ShuttingDown
            if self._host is None:
                self._host = HostLoop()
            return self._host

    # Telling observers.

    def _heard(self, signal: Signal) -> None:
        """Somebody else's daemon has told something. Of our own we know already."""
        if signal.session not in self._own and self._observers:
            for change in self._changes(signal):
                self._pass_by(change)

    def _told(self, record: dict[str, Any], wake: Callable[[], None]) -> None:
        """A record of a daemon of ours is on disk. Observers first, then the wake."""
        changes = [] if not self._observers else self._changes(Signal(record))
        deliverer = self._deliverer
        if not changes or deliverer is None:
            wake()
            return

        def tell() -> None:
            for change in changes:
                self._observers.tell(change)
            wake()

        deliverer.deliver(tell)

    def _tell(self, record: dict[str, Any], wake: Callable[[], None]) -> None:
        """The same on the thread of whoever caused it."""
        for change in self._changes(Signal(record)) if self._observers else ():
            self._observers.tell(change)
        wake()

    def _changes(self, signal: Signal) -> list[Change]:
        id = signal.session or ""
        in_process = id in self._own or kinds.of(signal.kind or "").in_process
        told = {**(signal.snapshot or {"id": id, "kind": signal.kind}), "in_process": in_process}
        snapshot = dressed(self._core, shown(told))
        op = op_of(signal)
        change = Change(op, id, snapshot, signal.at)
        if op == RUNNING and signal.attempt == 1 and signal.fields.get("phase") == "started":
            return [Change("added", id, snapshot, signal.at), change]
        return [change]

    def _phased(self, text: str, snapshot: Snapshot) -> None:
        self._pass_by(Change(f"phase:{text}", snapshot.id, snapshot))

    def look_back(self, shots: list[Snapshot], silent: list[Snapshot]) -> None:
        """What a list finds and no record tells: who does not answer, told when it begins to be so, and who is gone."""
        now = {shot.id for shot in shots}
        for id in [id for id in self._seen - now if not os.path.exists(self._core.home.session(id))]:
            self._seen.discard(id)
            self._pass_by(Change("removed", id, None))
        self._seen |= now
        fresh = [shot for shot in silent if shot.id not in self._unreachable]
        self._unreachable -= {shot.id for shot in shots}
        self._unreachable |= {shot.id for shot in silent}
        for shot in fresh:
            self._pass_by(Change("unreachable", shot.id, shot))

    def _pass_by(self, change: Change) -> None:
        """A change that is in no queue."""
        if self._observers and self._deliverer is not None:
            self._deliverer.deliver(lambda: self._observers.tell(change))

    # Leaving.

    def _leave(self, *, blocking: bool) -> list[Handle]:
        """No more daemons from now on; those that are there are asked to end."""
        with self._lock:
            self._closed = True
        handles = list(self._handles.values())
        for handle in handles:
            handle.host_leaves(blocking=blocking)
        return handles

    def _left(self) -> None:
        servers = list(self._servers.values())
        for stopping in [server.begin_stop() for server in servers]:
            stopping.join()
        for server in servers:
            server.close()
        with self._lock:
            host, feed, deliverer = self._host, self._feed, self._deliverer
            self._host = self._feed = self._deliverer = None
        if host is not None:
            if feed is not None:
                host.call(feed.close)
            host.close()
        if deliverer is not None:
            deliverer.close()


class Daemons(View):
    """For programs that block."""

    def list(
        self, kind: str | None = None, *, owner: str | None = None, include_terminal: bool = False
    ) -> list[Snapshot]:
        """All that runs, whoever runs it, by start time; with `include_terminal` also what has ended and is kept."""
        shots, silent = drive(listed(self._core, kind, owner, include_terminal))
        self.look_back(shots, silent)
        return [self._with_server(shot) for shot in shots]

    def get(self, ref: object) -> Snapshot:
        """One of them, running or not."""
        shot = dressed(self._core, drive(self._core.look_up(ref)))
        return self._with_server(shot)

    def stop(self, ref: object, *, grace: Duration | None = None, by: str | None = None) -> Snapshot:
        """Ask for its end and return what it was before. AlreadyEnded when nothing of it lives."""
        return drive(stopped(self._core, ref, grace, by, self._servers))

    def lsp(
        self,
        command: Command,
        *,
        server: str | None = None,
        root: str | None = None,
        initialize: Mapping[str, Any] | None = None,
        max_restarts: int = MAX_RESTARTS,
        notified: Notified | None = None,
        **options: Unpack[StartOptions],
    ) -> LanguageServer:
        """Start a language server and speak to it. It ends with this host, and is restarted when it fails."""
        return drive(self._start_server(command, server, root, initialize, max_restarts, notified, options))

    def output(self, ref: object, *, tail: int | None = None, since: str | int | None = None) -> Output:
        """The text of its kind, also after the end. Reading takes nothing away."""
        return drive(text_of(self._core, ref, tail, since))

    def close(self) -> None:
        """End what runs inside this host. Sessions notice nothing."""
        for handle in self._leave(blocking=True):
            handle.wait_settled()
        self._left()


class AsyncDaemons(View):
    """The same for asyncio."""

    async def list(
        self, kind: str | None = None, *, owner: str | None = None, include_terminal: bool = False
    ) -> list[Snapshot]:
        shots, silent = await listed(self._core, kind, owner, include_terminal)
        self.look_back(shots, silent)
        return [self._with_server(shot) for shot in shots]

    async def get(self, ref: object) -> Snapshot:
        shot = dressed(self._core, await self._core.look_up(ref))
        return self._with_server(shot)

    async def stop(self, ref: object, *, grace: Duration | None = None, by: str | None = None) -> Snapshot:
        return await stopped(self._core, ref, grace, by, self._servers)

    async def lsp(
        self,
        command: Command,
        *,
        server: str | None = None,
        root: str | None = None,
        initialize: Mapping[str, Any] | None = None,
        max_restarts: int = MAX_RESTARTS,
        notified: Notified | None = None,
        **options: Unpack[StartOptions],
    ) -> AsyncLanguageServer:
        from .aiolsp import AsyncLanguageServer

        started = await self._start_server(command, server, root, initialize, max_restarts, notified, options)
        return AsyncLanguageServer(started)

    async def output(self, ref: object, *, tail: int | None = None, since: str | int | None = None) -> Output:
        return await text_of(self._core, ref, tail, since)

    async def close(self) -> None:
        import asyncio

        for handle in self._leave(blocking=False):
            await asyncio.to_thread(handle.wait_settled)
        await asyncio.to_thread(self._left)

    def _new_deliverer(self) -> Deliverer:
        import asyncio

        from .observers import LoopTeller

        return LoopTeller(asyncio.get_running_loop())


def _running_loop() -> asyncio.AbstractEventLoop:
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise BadArgument("work", "a coroutine needs a running event loop", "use thread()") from None


def _name_of(work: object) -> str:
    name = getattr(work, "__qualname__", None) or getattr(work, "__name__", None) or type(work).__name__
    return str(name)
