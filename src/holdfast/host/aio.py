"""`AsyncHoldfast` and `AsyncSession`: the same calls for asyncio. Nothing here starts a thread but long disk work."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..config import load
from ..home import Home
from ..model import SESSION_KEYS, Exported, Recovered, Snapshot, Stopped, Typed, Woke, seconds
from . import inputs, verbs
from .asyncio_driver import Asynchronous
from .core import Core

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Any, Literal, Self, Unpack

    from ..config import Config
    from ..daemons.view import AsyncDaemons
    from ..errors import DamagedRecord
    from ..index.kept import Kept
    from ..model import Collected, Finding, StartOptions
    from ..signals.consumer import AsyncConsumer
    from ..signals.records import Note, Signal
    from ..terminal.screen import Screen
    from .api import Holdfast
    from .attach import AsyncAttachment
    from .log import Page
    from .request import Command
    from .restarting import Lifetime
    from .search import Hit


def open_async(
    home: str | os.PathLike[str] | None = None, *, config: Config | None = None, author: str | None = None
) -> AsyncHoldfast:
    """As `open`, for asyncio."""
    return AsyncHoldfast(home, config=config, author=author)


def coroutines(hf: Holdfast) -> AsyncHoldfast:
    """A blocking host as coroutines that await nothing but its thread, for whoever writes once for both kinds of host:
    `drive` runs them to their end."""
    return AsyncHoldfast(core=hf._core)


class AsyncSession(Snapshot):
    """A handle on one session, and what was last seen of it: the JSON keys are its attributes."""

    __slots__ = ("_core",)

    def __init__(self, core: Core, shot: Snapshot) -> None:
        self._core = core
        self._show(shot)

    def __repr__(self) -> str:
        return f"<AsyncSession {self.id} {verbs.in_words(self)}>"

    def _show(self, shot: Snapshot) -> None:
        for key in SESSION_KEYS:
            setattr(self, key, getattr(shot, key))

    async def refresh(self) -> AsyncSession:
        self._show((await self._core.observe(self.id)).snapshot())
        return self

    async def read(
        self, since: str | int | None = None, *, stream: str | None = None, limit: int | None = None
    ) -> Page:
        return await self._core.driver.call(lambda: verbs.read(self._core, self.id, since, stream, limit))

    async def text(self, stream: str | None = None) -> str:
        return await self._core.driver.call(lambda: verbs.text(self._core, self.id, stream))

    async def tail(self, lines: int, *, stream: str | None = None) -> str:
        log = self._core.log(self.id)
        return await self._core.driver.call(lambda: log.tail(lines, stream=stream).text)

    async def last(self, lines: int, *, stream: str | None = None) -> Page:
        log = self._core.log(self.id)
        return await self._core.driver.call(lambda: log.tail(lines, stream=stream))

    async def lines_before(self, stream: str, offset: int) -> int:
        log = self._core.log(self.id)
        return await self._core.driver.call(lambda: log.lines_before(stream, offset))

    async def raw(self, stream: str = "stdout", since: int = 0) -> AsyncIterator[bytes]:
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
        from .waiting import follow

        async for page in follow(self._core, self.id, since, stream):
            yield page

    async def wait(
        self,
        *,
        exit: bool = True,
        match: str | None = None,
        output: bool | None = None,
        idle: float | str | None = None,
        port: int | None = None,
        ready: bool | None = None,
        extinct: bool = False,
        since: str | int | None = None,
        stream: str | None = None,
        timeout: float | str | None = None,
    ) -> Woke:
        conditions: Any = {"exit": exit, "match": match, "output": output, "idle": idle, "port": port, "ready": ready}
        conditions |= {"extinct": extinct, "since": since, "stream": stream, "timeout": timeout}
        woke = await verbs.wait(self._core, self.id, **conditions)
        woke.session = await self.refresh()
        return woke

    async def send(self, data: str | bytes, *, wait_for: Mapping[str, Any] | None = None) -> Typed:
        return await inputs.write(self._core, self.id, data, wait_for)

    async def submit(
        self,
        text: str = "",
        *,
        enter_delay_ms: int | None = None,
        wait_for: Mapping[str, Any] | None = None,
    ) -> Typed:
        return await inputs.submit(self._core, self.id, text, enter_delay_ms, wait_for)

    async def keys(self, *keys: str, delay_ms: int = 0, wait_for: Mapping[str, Any] | None = None) -> Typed:
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
        return await inputs.paste(self._core, self.id, text, bracketed, raw, submit, wait_for)

    async def eof(self, *, wait_for: Mapping[str, Any] | None = None) -> Typed:
        return await inputs.eof(self._core, self.id, wait_for)

    async def close_stdin(self) -> None:
        await self.eof()

    async def resize(self, rows: int, cols: int) -> AsyncSession:
        await verbs.resize(self._core, self.id, rows, cols)
        return await self.refresh()

    async def screen(self, *, at: int | None = None, history: int = 0, settle_ms: int = 0) -> Screen:
        return await verbs.screen(self._core, self.id, at, history, settle_ms)

    async def export(
        self,
        path: str | os.PathLike[str],
        *,
        format: str = "asciicast3",
        since: str | int | None = None,
        until: str | int | None = None,
        idle_limit: float | None = None,
    ) -> Exported:
        export = verbs.export
        return await self._core.driver.call(lambda: export(self._core, self.id, path, format, since, until, idle_limit))

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
        from .attach import AsyncAttachment, connect

        if history_rows is None:
            history_rows = self._core.config.terminal_history_rows
        request = verbs.attach_request(role, since, history_rows, lag, size, terminal, kind, label, visible, hold)
        return AsyncAttachment(self._core, self.id, request, await connect(self._core, self.id, request))

    async def send_signal(self, signal: str | int, target: str = "command") -> int:
        return await verbs.send_signal(self._core, self.id, signal, target)

    async def stop(
        self,
        grace: float | str | None = None,
        by: str | None = None,
        ladder: Sequence[Mapping[str, Any]] | None = None,
    ) -> Stopped:
        limit = None if grace is None else seconds(grace)
        stopped = await self._core.stop(self.id, grace=limit, by=by, ladder=ladder)
        stopped.session = await self.refresh()
        return stopped

    async def kill(self) -> Stopped:
        return await self.stop(grace=0)

    async def records(self) -> dict[str, Any]:
        return verbs.records(self._core, self.id)

    async def told(self) -> list[Signal | Note]:
        return await self._core.driver.call(lambda: verbs.told(self._core, self.id))

    async def remove(self) -> None:
        await self._core.remove(self.id)

    async def pending_signals(self) -> int:
        """How many of its signals wait for its owner. Looking acknowledges none of them."""
        return (await verbs.pending_signals(self._core, [self]))[self.id]

    async def watch(self, pattern: str | Mapping[str, Any]) -> str:
        """Tell the owner of lines that match, from now on: text, or `/regex/`. The id of the watch."""
        return await verbs.watch(self._core, self.id, pattern)

    async def unwatch(self, watch: str) -> bool:
        """Tell of it no more. False when there was no such watch."""
        return await verbs.unwatch(self._core, self.id, watch)

    async def update(self, **changes: Any) -> AsyncSession:
        await self._core.update(self.id, changes)
        return await self.refresh()

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
        from .restarting import restart

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
        return AsyncSession(self._core, again.snapshot())


class AsyncHoldfast:
    """One home, for asyncio. Use with `async with`, or `close` it."""

    def __init__(
        self,
        home: str | os.PathLike[str] | None = None,
        *,
        config: Config | None = None,
        author: str | None = None,
        core: Core | None = None,
    ) -> None:
        self._core = core or Core(
            Asynchronous(), Home(home), config or load(os.environ), author or f"api:{os.getpid()}"
        )
        self._daemons: AsyncDaemons | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncHoldfast {self._core.home.path}>"

    @property
    def home(self) -> Home:
        return self._core.home

    @property
    def config(self) -> Config:
        return self._core.config

    @property
    def trouble(self) -> str | None:
        return self._core.index.trouble

    def signals(self, owner: str) -> AsyncConsumer:
        from ..signals.consumer import AsyncConsumer

        return AsyncConsumer(self._core.consumers.of_owner(owner))

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
        from ..signals.consumer import AsyncConsumer

        consumers = self._core.consumers
        return AsyncConsumer(consumers.open(name, owners, variants=variants, kinds=kinds, start=start, replace=replace))

    def kept(self, reader: str) -> Kept:
        from ..index.kept import Kept

        return Kept(self._core.index, reader)

    @property
    def daemons(self) -> AsyncDaemons:
        if self._daemons is None:
            from ..daemons.view import AsyncDaemons

            self._daemons = AsyncDaemons(self._core)
        return self._daemons

    async def close(self) -> None:
        if self._daemons is not None:
            await self._daemons.close()
        self._core.close()

    async def start(self, command: Command, **options: Unpack[StartOptions]) -> AsyncSession:
        return AsyncSession(self._core, (await verbs.start(self._core, command, options)).snapshot())

    async def run(
        self,
        command: Command,
        *,
        wait: float | str | None = None,
        started: Callable[[AsyncSession], None] | None = None,
        **options: Unpack[StartOptions],
    ) -> AsyncSession:
        tell = None if started is None else lambda seen: started(AsyncSession(self._core, seen.snapshot()))
        return AsyncSession(self._core, (await verbs.run(self._core, command, wait, options, tell)).snapshot())

    async def get(self, ref: object, *, owner: str | None = None) -> AsyncSession:
        return AsyncSession(self._core, await self._core.look_up(ref, owner))

    async def remove(self, ref: object) -> str:
        id = self._core.find(ref)
        await self._core.remove(id)
        return id

    @property
    def damaged(self) -> dict[str, DamagedRecord]:
        return dict(self._core.damaged)

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
        fits = verbs.fits(owner=owner, labels=labels, status=status, state=state, name=name, search=search)
        return [AsyncSession(self._core, shot) for shot in await self._core.sessions(all=all, fits=fits, owner=owner)]

    async def recover(self) -> Recovered:
        return verbs.handles(await self._core.recover(), lambda shot: AsyncSession(self._core, shot))

    async def stop_all(
        self,
        refs: Iterable[object],
        grace: float | str | None = None,
        by: str | None = None,
        ladder: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Stopped]:
        return await verbs.stop_all(self._core, refs, grace, by, ladder)

    async def collect(self, *, dry_run: bool = False, all: bool = False) -> Collected:
        return await self._core.driver.call(lambda: verbs.collect(self._core, dry_run=dry_run, all=all))

    async def doctor(self, *, rebuild: bool = False) -> list[Finding]:
        from .doctor import examine

        return await examine(self._core, rebuild=rebuild)
