"""`AsyncHoldfast` and `AsyncSession`: the calls for asyncio. Only long disk work runs in a thread.

api.py drives the same coroutines with a `Holdfast` or `Session` as `self`, whose methods block: one coroutine calls
another by the class, as `AsyncSession.refresh(self)`.
"""

from __future__ import annotations

import os

from ..config import load
from ..errors import BadArgument
from ..home import Home
from ..model import STORED_KEYS, Exported, Recovered, Snapshot, Stopped, Typed, Woke
from . import inputs
from .core import Core, fits
from .driver import Asynchronous
from .observe import read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Any, Literal, Self, Unpack

    from ..config import Config
    from ..daemons.view import AsyncDaemons, View
    from ..errors import DamagedRecord
    from ..index import Kept
    from ..model import Collected, Finding
    from ..model.options import StartOptions
    from ..signals.consumer import AsyncConsumer
    from ..signals.lines import Note, Signal
    from ..terminal.screen import Screen
    from .api import Holdfast
    from .attach import AsyncAttachment
    from .connection import Connection
    from .driver import Driver
    from .log import Page
    from .run import Lifetime
    from .search import Hit
    from .start_request import Command
    from .wait import WaitConditions


# The longest silence that `screen` waits for.
_SETTLE_MAX_MS = 1000


def open_async(
    home: str | os.PathLike[str] | None = None, *, config: Config | None = None, author: str | None = None
) -> AsyncHoldfast:
    """Open a home, for asyncio. `author` names this host in the records of what it asks for."""
    return AsyncHoldfast(home, config=config, author=author)


def coroutines(hf: Holdfast) -> AsyncHoldfast:
    """A blocking host as coroutines that block its thread, for code that is written once for both kinds of host:
    `drive` runs them to their end."""
    return over(hf._core)


def over(core: Core) -> AsyncHoldfast:
    """A host that shares the core of another."""
    hf = AsyncHoldfast.__new__(AsyncHoldfast)
    hf._core = core
    hf._daemons = None
    return hf


def as_author(hf: AsyncHoldfast, author: str) -> AsyncHoldfast:
    """A host that shares all but its author with another, which stays open meanwhile."""
    import copy

    _ = hf._core.consumers  # both use the same
    core = copy.copy(hf._core)
    core.author = author
    return over(core)


class BaseSession(Snapshot):
    """What `AsyncSession` and `Session` have in common."""

    __slots__ = ("_core",)

    def __init__(self, core: Core, shot: Snapshot) -> None:
        self._core = core
        self._show(shot)

    def __repr__(self) -> str:
        words = f"{self.state}, pid {self.pid}" if self.pid else self.state
        if self.exit is not None:
            words = self.state if self.exit.code is None else f"{self.state} with code {self.exit.code}"
            words = words if self.exit.signal is None else f"{self.state} with signal {self.exit.signal}"
        return f"<{type(self).__name__} {self.id} {words}>"

    def _show(self, shot: Snapshot) -> None:
        for key in STORED_KEYS:
            setattr(self, key, getattr(shot, key))


class AsyncSession(BaseSession):
    """A handle on one session, and what was last seen of it: the JSON keys are its attributes."""

    __slots__ = ()

    async def refresh(self) -> AsyncSession:
        """Read the state of the session again."""
        self._show((await self._core.observe(self.id)).snapshot())
        return self

    async def read(
        self, since: str | int | None = None, *, stream: str | None = None, limit: int | None = None
    ) -> Page:
        """The output since a cursor (default: all that is retained), in the order in which it was printed."""

        def read() -> Page:
            page = self._core.log(self.id).read(since, stream=stream, limit=limit)
            if not page.more:
                page.signal_id = self._core.ensure_end_signal(self.id)
            return page

        return await self._core.driver.call(read)

    async def text(self, stream: str | None = None) -> str:
        """All retained output as clean text."""
        log = self._core.log(self.id)
        return await self._core.driver.call(lambda: log.read(None, stream=stream, limit=max(1, log.size())).text)

    async def tail(self, lines: int, *, stream: str | None = None) -> str:
        """The last lines as clean text."""
        return (await AsyncSession.last(self, lines, stream=stream)).text

    async def last(self, lines: int, *, stream: str | None = None) -> Page:
        """The last lines, with their offsets."""
        log = self._core.log(self.id)
        return await self._core.driver.call(lambda: log.tail(lines, stream=stream))

    async def lines_before(self, stream: str, offset: int) -> int:
        """How many lines of a stream ended before an offset, those that were dropped included."""
        log = self._core.log(self.id)
        return await self._core.driver.call(lambda: log.lines_before(stream, offset))

    async def raw(self, stream: str = "stdout", since: int = 0) -> AsyncIterator[bytes]:
        """The bytes of one stream as they were printed."""
        blocks = self._core.log(self.id).raw(stream, since)
        while (block := await self._core.driver.call(lambda: next(blocks, None))) is not None:
            yield block

    async def search(
        self,
        pattern: str,
        *,
        context: int = 0,
        stream: str | None = None,
        newest: bool = False,
        limit: int | None = None,
        ignore_case: bool = False,
    ) -> list[Hit]:
        """Lines of the clean text that match a regular expression."""
        from .search import search

        log = self._core.log(self.id)
        return await self._core.driver.call(
            lambda: search(
                log,
                pattern,
                context=context,
                stream=stream,
                newest=newest,
                limit=limit,
                ignore_case=ignore_case,
            )
        )

    async def follow(self, since: str | int | None = None, *, stream: str | None = None) -> AsyncIterator[Page]:
        """Pages as they come, until the command has ended."""
        from .wait import follow

        async for page in follow(self._core, self.id, since, stream):
            yield page

    async def wait(self, **conditions: Unpack[WaitConditions]) -> Woke:
        """Wait until one of the conditions holds; `reason` says which. The end of the command ends every wait, with
        `extinct` the end of all its processes. `stream` limits `match`, `idle` and `output` to one stream."""
        from .wait import wait

        woke = await wait(self._core, self.id, **conditions)
        woke.session = await AsyncSession.refresh(self)
        return woke

    async def send(self, data: str | bytes, *, wait_for: Mapping[str, Any] | None = None) -> Typed:
        """Write to its input: bytes unchanged, text as UTF-8, nothing appended."""
        return await inputs.write(self._core, self.id, data, wait_for)

    async def submit(
        self,
        text: str = "",
        *,
        enter_delay_ms: int | None = None,
        wait_for: Mapping[str, Any] | None = None,
    ) -> Typed:
        """Type text and press Enter after `enter_delay_ms` (default: the setting)."""
        return await inputs.submit(self._core, self.id, text, enter_delay_ms, wait_for)

    async def keys(self, *keys: str, delay_ms: int = 0, wait_for: Mapping[str, Any] | None = None) -> Typed:
        """Press keys by name: `Enter`, `C-c`, `M-x`, `Up`, `F5`, one character each, `text:...`, `hex:...`."""
        return await inputs.keys(self._core, self.id, keys, delay_ms, wait_for)

    async def paste(
        self,
        text: str,
        *,
        bracketed: str = "auto",
        raw: bool = False,
        submit: bool = False,
        wait_for: Mapping[str, Any] | None = None,
    ) -> Typed:
        """Paste text without control characters, bracketed if the program turned bracketed paste on. `submit` presses
        Enter a moment later."""
        return await inputs.paste(self._core, self.id, text, bracketed, raw, submit, wait_for)

    async def eof(self, *, wait_for: Mapping[str, Any] | None = None) -> Typed:
        """End its input: close the pipe, or type the end-of-file key of its terminal."""
        return await inputs.eof(self._core, self.id, wait_for)

    async def close_stdin(self) -> None:
        """The same as `eof`, without a result."""
        await AsyncSession.eof(self)

    async def resize(self, rows: int, cols: int) -> AsyncSession:
        """Resize its terminal. While clients are attached, they decide the size."""
        from .start_request import check_size

        rows, cols = check_size((rows, cols))
        await self._core.request(self.id, "resize", rows=rows, cols=cols)
        return await AsyncSession.refresh(self)

    async def screen(self, *, at: int | None = None, history: int = 0, settle_ms: int = 0) -> Screen:
        """The screen of its terminal, now or at an offset of its log. With `settle_ms` it waits, at most a second,
        until the output was silent for that long."""
        from .screens import screen
        from .wait import wait

        if settle_ms:
            if not 0 < settle_ms <= _SETTLE_MAX_MS:
                raise BadArgument("settle_ms", f"{settle_ms} is out of bounds", f"give 1 to {_SETTLE_MAX_MS}")
            await wait(self._core, self.id, idle=settle_ms / 1000, timeout=_SETTLE_MAX_MS / 1000)
        files = read_files(self._core.home, self.id)
        return await self._core.driver.call(lambda: screen(self._core, files, at=at, history=history))

    async def export(
        self,
        path: str | os.PathLike[str],
        *,
        format: str = "asciicast3",
        since: str | int | None = None,
        until: str | int | None = None,
        idle_limit: float | None = None,
    ) -> Exported:
        """Write a recording of its terminal to a file: asciicast3, asciicast2, raw or text."""
        from .recording import FORMATS, Recording

        if format not in FORMATS:
            raise BadArgument("format", f"{format!r} is not one of {', '.join(FORMATS)}")

        def export() -> Exported:
            files = read_files(self._core.home, self.id)
            recording = Recording(files, since=since, until=until, idle_limit=idle_limit)
            recording.save(os.fspath(path), format)
            gaps = [{"from": gap.start, "to": gap.stop, "reason": gap.reason} for gap in recording.tally.missing]
            return Exported(format, recording.begin, recording.end, recording.tally.invalid, gaps)

        return await self._core.driver.call(export)

    async def attach(
        self,
        *,
        role: Literal["control", "observe"] = "control",
        since: Literal["screen", "start", "now"] | int = "screen",
        history_rows: int | None = None,
        lag: Literal["skip", "exact"] = "skip",
        size: tuple[int, int] | None = None,
        terminal: Mapping[str, Any] | None = None,
        kind: Literal["cli", "web", "agent"] = "agent",
        label: str | None = None,
        visible: bool = True,
        hold: bool = False,
    ) -> AsyncAttachment:
        """Attach to its terminal: restore the screen, follow the output, type. Detaching changes nothing. With `hold`
        the command waits while this client is far behind, as it would for the reader of a pipe."""
        from .attach import connect
        from .start_request import check_size

        request = {
            "role": role,
            "from": since,
            "history_rows": self._core.config.terminal_history_rows if history_rows is None else history_rows,
            "lag": lag,
            "size": None if size is None else check_size(size),
            "terminal": None if terminal is None else dict(terminal),
            "kind": kind,
            "label": label,
            "visible": visible,
            **({"hold": True} if hold else {}),  # backpressure, as all other code calls it
        }
        return self._attachment(request, await connect(self._core, self.id, request))

    def _attachment(self, request: dict[str, Any], connection: Connection | None) -> AsyncAttachment:
        from .attach import AsyncAttachment

        return AsyncAttachment(self._core, self.id, request, connection)

    async def send_signal(self, signal: str | int, target: str = "command") -> int:
        """Send one operating-system signal to the command, its group or its tree; returns the number of processes."""
        from .act import send_signal

        return await send_signal(self._core, self.id, signal, target)

    async def stop(
        self,
        grace: float | str | None = None,
        by: str | None = None,
        ladder: Sequence[Mapping[str, Any]] | None = None,
    ) -> Stopped:
        """Stop the whole process tree, gently first. The result lists what was found and what survived. `ladder`
        replaces the session's `stop_ladder` for this stop."""
        from .act import stop

        stopped = await stop(self._core, self.id, grace=grace, by=by, ladder=ladder)
        stopped.session = await AsyncSession.refresh(self)
        return stopped

    async def kill(self) -> Stopped:
        """Kill the whole process tree at once."""
        return await AsyncSession.stop(self, grace=0)

    async def records(self) -> dict[str, Any]:
        """The records in its directory: `spec`, `state` and `exit`; None for a missing one."""
        files = read_files(self._core.home, self.id)
        return {"spec": files.spec, "state": files.state, "exit": files.exit}

    async def told(self) -> list[Signal | Note]:
        """All its signals and the notes about them, from its own file."""
        from ..signals.lines import retained

        return await self._core.driver.call(lambda: retained(self._core.home, self.id))

    async def remove(self) -> None:
        """Remove a finished session: log, records and all."""
        from .act import remove

        await remove(self._core, self.id)

    async def pending_signals(self) -> int:
        """How many of its signals wait for its owner. This acknowledges none of them."""
        return (await self._core.pending_signals([self]))[self.id]

    async def watch(self, pattern: str | Mapping[str, Any]) -> str:
        """Signal lines that match from now on: text, or `/regex/`. Returns the id of the watch."""
        from .feature_options import pattern as checked
        from .feature_options import watch_limits

        limits = watch_limits(self._core.config)
        reply = await self._core.request(self.id, "watch", add=checked(pattern, "pattern"), limits=limits)
        added: str = reply.get("watch") or ""
        return added

    async def unwatch(self, watch: str) -> bool:
        """Remove a watch. False when there is no such watch."""
        return bool((await self._core.request(self.id, "watch", remove=watch)).get("removed"))

    async def update(self, /, **changes: Any) -> AsyncSession:
        """Change name, owner, labels, description, notify, timeout, idle_timeout, ttl; None clears."""
        from .act import update

        await update(self._core, self.id, changes)
        return await AsyncSession.refresh(self)

    async def restart(
        self,
        *,
        env: Mapping[str, str | None] | None = None,
        input: str | bytes | None = None,
        pass_fds: Sequence[int] | None = None,
        lifetime: Lifetime | None = None,
        owner_pid: int | None = None,
        grace: float | None = None,
    ) -> AsyncSession:
        """Stop it if it runs, and start the same command as a new session that names this one. What is never stored
        (values of variables, input, descriptors, the lifetime of a vanished owner) has to be given again."""
        from .run import restart

        again = await restart(
            self._core,
            self.id,
            env=env,
            input=input,
            pass_fds=pass_fds,
            lifetime=lifetime,
            owner_pid=owner_pid,
            grace=grace,
        )
        return type(self)(self._core, again.snapshot())


class BaseHoldfast:
    """What `AsyncHoldfast` and `Holdfast` have in common."""

    _driver: type[Driver]

    def __init__(
        self,
        home: str | os.PathLike[str] | None = None,
        *,
        config: Config | None = None,
        author: str | None = None,
    ) -> None:
        self._core = Core(self._driver(), Home(home), config or load(os.environ), author or f"api:{os.getpid()}")
        self._daemons: View | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._core.home.path}>"

    @property
    def home(self) -> Home:
        """The directory of this home and the paths in it."""
        return self._core.home

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self._core.config

    @property
    def trouble(self) -> str | None:
        """What is wrong with the index, if anything. Everything works without it, but slower."""
        return self._core.index.trouble

    @property
    def damaged(self) -> dict[str, DamagedRecord]:
        """The damaged sessions that the last listing or recovery found, by id, and what is wrong with each."""
        return dict(self._core.damaged)

    def kept(self, reader: str) -> Kept:
        """What one reader remembers about sessions between calls, such as its cursor. Lost with the index."""
        from ..index import Kept

        return Kept(self._core.index, reader)


class AsyncHoldfast(BaseHoldfast):
    """One home, for asyncio. Use with `async with`, or `close` it."""

    _driver = Asynchronous
    _daemons: AsyncDaemons | None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _session(self, shot: Snapshot) -> AsyncSession:
        return AsyncSession(self._core, shot)

    def signals(self, owner: str) -> AsyncConsumer:
        """The default consumer of one owner: the signals of its sessions."""
        return self._core.consumers.of_owner(owner)

    def consumer(
        self,
        name: str,
        owners: str | Iterable[str] = "*",
        *,
        variants: Iterable[str] | None = None,
        kinds: Iterable[str] | None = None,
        start: str | None = None,
        replace: bool = False,
    ) -> AsyncConsumer:
        """A named reader of the signals of some owners or of all. `start` is `retained` (the default for named owners),
        `now` (the default for all), or the id of a signal. Another filter under the same name needs `replace`."""
        consumers = self._core.consumers
        return consumers.open(name, owners, variants=variants, kinds=kinds, start=start, replace=replace)

    @property
    def daemons(self) -> AsyncDaemons:
        """Everything that runs in the background: sessions, and the tasks and threads of hosts."""
        if self._daemons is None:
            from ..daemons.view import AsyncDaemons

            self._daemons = AsyncDaemons(self._core)
        return self._daemons

    async def close(self) -> None:
        """Close the host. Sessions continue; tasks and threads that this host runs itself end."""
        if self._daemons is not None:
            await self._daemons.close()
        self._core.close()

    async def start(self, command: Command, **options: Unpack[StartOptions]) -> AsyncSession:
        """Start a command in the background: a str runs in the shell, a list is argv."""
        from .run import start

        return self._session((await start(self._core, command, options)).snapshot())

    async def run(
        self,
        command: Command,
        *,
        wait: float | str | None = None,
        started: Callable[[AsyncSession], None] | None = None,
        **options: Unpack[StartOptions],
    ) -> AsyncSession:
        """Start a command and wait for its end, at most `wait` seconds; after that it continues to run. `started` is
        called with the session as soon as it runs."""
        from .run import run

        notify = None if started is None else lambda seen: started(self._session(seen.snapshot()))
        return self._session((await run(self._core, command, wait, options, notify)).snapshot())

    async def get(self, ref: object, *, owner: str | None = None) -> AsyncSession:
        """A session by id, unique prefix of 4 or more, name, pid, or "last"; with `owner` only among its sessions."""
        return self._session(await self._core.look_up(ref, owner))

    async def remove(self, ref: object) -> str:
        """Remove a session that has ended, or a damaged one without any live process; returns its id."""
        from .act import remove

        id = self._core.find(ref)
        await remove(self._core, id)
        return id

    async def sessions(
        self,
        *,
        all: bool = False,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        status: str | None = None,
        state: str | None = None,
        name: str | None = None,
        search: str | None = None,
    ) -> list[AsyncSession]:
        """Live sessions, or all that are retained, oldest first."""
        wanted = fits(owner=owner, labels=labels, status=status, state=state, name=name, search=search)
        return [self._session(shot) for shot in await self._core.sessions(all=all, fits=wanted, owner=owner)]

    async def recover(self) -> Recovered:
        """Check every session that is not known to have ended, in one bounded sweep that proves identities."""
        found = await self._core.recover()
        for group in ("live", "exited", "unreachable", "stale", "lost"):
            setattr(found, group, [self._session(shot) for shot in getattr(found, group)])
        return found

    async def stop_all(
        self,
        refs: Iterable[object],
        grace: float | str | None = None,
        by: str | None = None,
        ladder: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Stopped]:
        """Stop many sessions at the same time."""
        from .act import stop_all

        return await stop_all(self._core, refs, grace, by, ladder)

    async def wait_all(
        self, /, refs: Iterable[object], *, any: bool = False, **conditions: Unpack[WaitConditions]
    ) -> list[Woke]:
        """Wait for several sessions at the same time, with the conditions of `wait`: for every one of them, in the
        order of `refs`, or with `any` for the first; each result has its `session`."""
        from .wait import wait_all

        ids = [await self._core.locate(ref) for ref in refs]
        woken = await wait_all(self._core, dict.fromkeys(ids, conditions), any=any)
        for id, woke in woken.items():
            woke.session = self._session((await self._core.observe(id)).snapshot())
        return list(woken.values())

    async def collect(self, *, dry_run: bool = False, all: bool = False) -> Collected:
        """Remove finished sessions that are too old or take too much space, and leftovers."""
        from .gc import collect_home

        return await self._core.driver.call(lambda: collect_home(self._core, dry_run=dry_run, all=all))

    async def doctor(self, *, rebuild: bool = False, place: str | None = None) -> list[Finding]:
        """Check everything that can be wrong with this home, and repair what is safe to repair; or try a place."""
        from .doctor import examine, try_place

        if place is not None:
            return await try_place(self._core, place)
        return await examine(self._core, rebuild=rebuild)
