"""`hf.daemons`: one list, one stop, one output, one set of observers over everything that runs in the background.

A daemon inside this host has a directory like that of a session, so that every host sees it in the same list.
"""

from __future__ import annotations

import os
import threading

from ..errors import AlreadyEnded, BadArgument, DamagedRecord, NotFound, ShuttingDown
from ..home import is_id
from ..model import RUNNING, UNREACHABLE, seconds
from ..sessions.driver import driven, driven_as
from ..sessions.observe import from_files, read_files
from ..signals.lines import Signal
from . import kinds
from .handle import Handle, Relay, Worker
from .in_process import HostLoop, keep, make_spec
from .observers import Change, Observers, ThreadDeliverer, op_of, shown
from .wakes import DueCallback, Feed

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Iterable, Mapping
    from typing import Any, Literal, TypedDict, Unpack

    from ..model import Snapshot
    from ..model.options import StartOptions
    from ..sessions.core import Core
    from ..sessions.start_request import Command
    from ..signals.consumer import Consumer
    from .kinds import Output
    from .lsp import AsyncLanguageServer, LanguageServer, Notified, Server
    from .observers import Deliverer

    Duration = float | str

    class DaemonOptions(TypedDict, total=False):
        """The options of a task or thread; they are those of a session."""

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


async def listed(
    core: Core, kind: str | None, owner: str | None, include_terminal: bool
) -> tuple[list[Snapshot], list[Snapshot]]:
    """All daemons by start time, then id; and those among them that did not answer."""

    def fits(shot: Snapshot) -> bool:
        return (kind is None or shot.kind == kind) and (owner is None or shot.owner == owner)

    shots = await core.sessions(all=include_terminal, fits=fits)
    shots.sort(key=lambda shot: (shot.started_at or shot.created_at or "", shot.id))
    return [dressed(core, shot) for shot in shots], [shot for shot in shots if shot.state == UNREACHABLE]


async def stopped(
    core: Core, ref: object, grace: Duration | None, by: str | None, servers: Mapping[str, Server]
) -> Snapshot:
    """Ask for its end; returns the snapshot from before. The owner of the daemon signals the end itself."""
    id = await core.locate(ref)
    seen = await core.observe(id)
    shot = dressed(core, seen.snapshot())
    if seen.final:
        raise AlreadyEnded(id, shot.status, shot.to_json())
    if id in servers and grace is None:
        servers[id].begin_stop(by)
        return shot
    await kinds.of(shot.kind).stop(core, id, grace=None if grace is None else seconds(grace), by=by)
    return shot


async def text_of(core: Core, ref: object, tail: int | None, since: str | int | None) -> Output:
    if tail is not None and tail < 1:
        raise BadArgument("tail", f"{tail} is not a number of lines", "give 1 or more")
    id = await core.locate(ref)
    shot = dressed(core, (await core.observe(id)).snapshot())
    return await core.driver.call(lambda: kinds.of(shot.kind).output(core.log(id), shot, tail, since))


def dressed(core: Core, shot: Snapshot) -> Snapshot:
    return kinds.dress(shot, lambda: _spec(core, shot.id))


def _spec(core: Core, id: str) -> Mapping[str, Any]:
    """Empty if it was just removed or is damaged: a list still shows the others."""
    try:
        return read_files(core.home, id).current()
    except (NotFound, DamagedRecord):
        return {}


def _running_loop() -> asyncio.AbstractEventLoop:
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise BadArgument("work", "a coroutine needs a running event loop", "use thread()") from None


def _name_of(work: object) -> str:
    name = getattr(work, "__qualname__", None) or getattr(work, "__name__", None) or type(work).__name__
    return str(name)


class View:
    """What both facades have in common: the daemons of this host, and the observers of all daemons."""

    # Does the thread that closes this host wait meanwhile?
    _blocks: bool

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
        # The sessions of the last list, and those among them that did not answer.
        self._listed: set[str] = set()
        self._unreachable: set[str] = set()
        # The language servers that this host is connected to, by id.
        self.servers: dict[str, Server] = {}

    # Daemons inside this host.

    def task(self, work: AsyncWork, **options: Unpack[DaemonOptions]) -> Handle:
        """Run a coroutine, or a function that makes one of its handle, as a task of the running event loop."""
        import asyncio

        try:
            worker = Worker(options.get("name") or _name_of(work), _running_loop())
            handle = self._begin(worker, _name_of(work), options)
        except BaseException:
            if asyncio.iscoroutine(work):
                work.close()  # else Python warns that it was never awaited
            raise
        return _started(
            handle, lambda: worker.start_task(work if asyncio.iscoroutine(work) else work(handle), handle.left)
        )

    def thread(self, work: ThreadWork, **options: Unpack[DaemonOptions]) -> Handle:
        """Run a function in a thread; it is given its handle."""
        worker = Worker(options.get("name") or _name_of(work))
        handle = self._begin(worker, _name_of(work), options)
        return _started(handle, lambda: worker.start_thread(lambda: work(handle), handle.left))

    def _begin(self, worker: Worker, function: str, options: DaemonOptions) -> Handle:
        spec = make_spec(self._core, function, **options)
        host = self._hosting()
        keeper = keep(self._core, host, spec, worker, self._observe_record, self.deliver)
        handle = Handle(self, host, keeper, worker)
        self._add(handle)
        host.call(lambda: keeper.do(keeper.begin))
        return handle

    def relay(
        self,
        id: str,
        end: Callable[[], object],
        *,
        announced: bool = True,
        command: str | None = None,
        cwd: str | None = None,
        **options: Unpack[DaemonOptions],
    ) -> Relay:
        """An object that this host runs itself, under an id of its choice; `end` is called when its end is asked for.
        What the handle reports is in the queue, and observers have been called, when the call returns. An object that
        is not `announced` has its signals, but no signal that it began or ended with its host. `command` and `cwd` are
        what it runs elsewhere."""
        if not is_id(id):
            raise BadArgument("id", f"not an id: {ascii(id)[:80]}", "give 6 to 32 of 0-9 and a-z")
        host = self._hosting()
        name = options.get("name") or options.get("kind") or "outside"
        worker = Worker(name)
        worker.on_stop(end)
        spec = make_spec(self._core, command or name, id=id, **options)
        spec["cwd"] = cwd or spec["cwd"]
        keeper = keep(self._core, host, spec, worker, self._observe_record, self.deliver)
        relay = Relay(self, host, keeper, worker, announced=announced)
        self._add(relay)
        relay.begin()
        return relay

    def handle(self, id: str) -> Handle | None:
        """The handle of a daemon of this host, while it lives."""
        return self._handles.get(id)

    def _add(self, handle: Handle) -> None:
        self._own.add(handle.id)
        self._handles[handle.id] = handle
        handle.settled.add_done_callback(lambda _: self._handles.pop(handle.id, None))

    def _hosting(self) -> HostLoop:
        with self._lock:
            if self._closed:
                raise ShuttingDown
            if self._host is None:
                self._host = HostLoop()
            return self._host

    # Observers.

    def observe(self, callback: Callable[[Change], object]) -> Callable[[], None]:
        """Call back for every change of every daemon from now on; returns a function that ends that."""
        host = self._hosting()
        with self._lock:
            if self._deliverer is None:
                self._deliverer = self._new_deliverer()
            if self._feed is None:
                feed = Feed(host.loop, self._core.home, self._core.runtime, self._observe_other)
                known = self._core.index.look().unfinished
                host.call(lambda: feed.begin(known))
                self._feed = feed
        return self._observers.add(callback)

    def call_when_due(self, consumer: Consumer, callback: Callable[[], object]) -> DueCallback:
        """Call back whenever something is due for this consumer, after the observers of it."""
        host = self._hosting()
        with self._lock:
            if self._deliverer is None:
                self._deliverer = self._new_deliverer()
        due_callback = DueCallback(host, consumer, self._read_signals, self.deliver, callback)
        due_callback.begin()
        return due_callback

    def deliver(self, work: Callable[[], None]) -> None:
        """Do it after the pending calls of observers."""
        deliverer = self._deliverer
        if deliverer is None:
            work()  # there is no observer
        else:
            deliverer.deliver(work)

    def notify(self, change: Change) -> None:
        """Call the observers of a change that may be in no queue."""
        deliverer = self._deliverer
        if self._observers and deliverer is not None:
            deliverer.deliver(lambda: self._observers.notify(change))

    def shot_of(self, record: Mapping[str, Any]) -> Snapshot:
        """The snapshot that a keeper or a signal gives."""
        return dressed(self._core, shown(record))

    def _new_deliverer(self) -> Deliverer:
        return ThreadDeliverer()

    def _read_signals(self, sessions: Iterable[str]) -> None:
        """On the loop's thread: read what is new in the files of these sessions."""
        if self._feed is not None:
            self._feed.read(sessions)

    def _observe_record(self, record: dict[str, Any]) -> None:
        """A record of a daemon of this host is on disk: call the observers, here."""
        for change in self._changes(Signal(record)) if self._observers else ():
            self._observers.notify(change)

    def _observe_other(self, signal: Signal) -> None:
        """A signal of a runner or of another host."""
        if signal.session not in self._own and self._observers:
            for change in self._changes(signal):
                self.notify(change)

    def _changes(self, signal: Signal) -> list[Change]:
        id = signal.session or ""
        in_process = id in self._own or kinds.of(signal.kind or "").in_process
        snapshot = self.shot_of({**(signal.snapshot or {"id": id, "kind": signal.kind}), "in_process": in_process})
        change = Change(op_of(signal), id, snapshot, signal.at)
        if change.op == RUNNING and signal.attempt == 1 and signal.fields.get("phase") == "started":
            return [Change("added", id, snapshot, signal.at), change]
        return [change]

    def compare(self, shots: list[Snapshot], unreachable: list[Snapshot]) -> None:
        """Notify observers of changes that only a list shows: sessions that begin to be unreachable, or are removed."""
        now = {shot.id for shot in shots}
        for id in [id for id in self._listed - now if not os.path.exists(self._core.home.session(id))]:
            self._listed.discard(id)
            self.notify(Change("removed", id, None))
        self._listed |= now
        before, self._unreachable = self._unreachable, self._unreachable - now | {shot.id for shot in unreachable}
        for shot in unreachable:
            if shot.id not in before:
                self.notify(Change("unreachable", shot.id, shot))

    # Language servers.

    def _server_changed(self, id: str, state: str) -> None:
        if self._observers:
            shot = self._with_server(dressed(self._core, from_files(read_files(self._core.home, id)).snapshot()))
            shot.metadata["state"] = state
            self.notify(Change(f"phase:{state}", id, shot))

    def _with_server(self, shot: Snapshot) -> Snapshot:
        """Add what only the host that is connected to a language server knows."""
        server = self.servers.get(shot.id)
        if server is not None:
            shot.metadata.update(state=server.state, open_requests=server.open_requests)
        return shot

    # Closing.

    def _end_all(self) -> list[Handle]:
        """Start no more daemons, and ask those of this host to end."""
        with self._lock:
            self._closed = True
        handles = list(self._handles.values())
        for handle in handles:
            handle.host_leaves(blocking=self._blocks)
        return handles

    def _release(self) -> None:
        servers = list(self.servers.values())
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


def _started(handle: Handle, start: Callable[[], None]) -> Handle:
    try:
        start()
    except BaseException as problem:
        handle.not_started(problem)
        raise
    return handle


class AsyncDaemons(View):
    """All daemons, for asyncio."""

    _blocks = False

    async def list(
        self, kind: str | None = None, *, owner: str | None = None, include_terminal: bool = False
    ) -> list[Snapshot]:
        """All that run, by start time; with `include_terminal` also those that have ended and are kept."""
        shots, unreachable = await listed(self._core, kind, owner, include_terminal)
        self.compare(shots, unreachable)
        return [self._with_server(shot) for shot in shots]

    async def get(self, ref: object) -> Snapshot:
        """One of them, running or not."""
        shot = dressed(self._core, await self._core.look_up(ref))
        return self._with_server(shot)

    async def stop(self, ref: object, *, grace: Duration | None = None, by: str | None = None) -> Snapshot:
        """Ask for its end and return its snapshot from before. AlreadyEnded if nothing of it lives."""
        return await stopped(self._core, ref, grace, by, self.servers)

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
        """Start a language server and connect to it. It ends with this host, and is restarted when it fails."""
        from ..sessions.run import start
        from .lsp import name_of, options_for

        with self._lock:
            if self._closed:
                raise ShuttingDown
        name = server or name_of(command)
        asked = options_for(name, max_restarts, root, options)
        seen = await start(self._core, command, asked)
        id = seen.files.id
        made = self._server_class()(
            self._core,
            id,
            name,
            root=root or asked.get("cwd"),
            initialize=initialize,
            changed=lambda state: self._server_changed(id, state),
            notified=notified,
        )
        with self._lock:
            self.servers[id] = made
        return made

    def _server_class(self) -> type[AsyncLanguageServer]:
        from .lsp import AsyncLanguageServer

        return AsyncLanguageServer

    async def output(self, ref: object, *, tail: int | None = None, since: str | int | None = None) -> Output:
        """The text of its kind, also after the end. Reading acknowledges nothing."""
        return await text_of(self._core, ref, tail, since)

    async def close(self) -> None:
        """End the daemons inside this host. Sessions continue."""
        for handle in self._end_all():
            await self._core.driver.call(handle.wait_settled)
        await self._core.driver.call(self._release)

    def _new_deliverer(self) -> Deliverer:
        import asyncio

        from .observers import LoopDeliverer

        return LoopDeliverer(asyncio.get_running_loop())


def _as_server(made: Any) -> LanguageServer:
    """Only for type checkers: for a blocking `self` it is one."""
    return made  # type: ignore[no-any-return]


class Daemons(View):
    """All daemons, for programs that block."""

    _blocks = True

    list = driven(AsyncDaemons.list)
    get = driven(AsyncDaemons.get)
    stop = driven(AsyncDaemons.stop)
    lsp = driven_as(_as_server, AsyncDaemons.lsp)
    output = driven(AsyncDaemons.output)
    close = driven(AsyncDaemons.close)

    def _server_class(self) -> type[LanguageServer]:
        from .lsp import LanguageServer

        return LanguageServer
