"""`Holdfast` and `Session`: the calls for programs that block.

Most of them are the coroutines of aio.py, driven to their end.
"""

from __future__ import annotations

from .aio import AsyncHoldfast, AsyncSession, BaseHoldfast, BaseSession
from .driver import Blocking, drive, driven, driven_as, driven_each

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Any, Self, Unpack

    from ..config import Config
    from ..daemons.view import Daemons
    from ..model import Snapshot
    from ..model.options import StartOptions
    from ..signals.consumer import Consumer
    from .attach import Attachment
    from .connection import Connection
    from .start_request import Command


def open(
    home: str | os.PathLike[str] | None = None, *, config: Config | None = None, author: str | None = None
) -> Holdfast:
    """Open a home, for programs that block. `author` names this host in the records of what it asks for."""
    return Holdfast(home, config=config, author=author)


# What a coroutine makes for a blocking `self` is blocking already. These only say so to type checkers.


def _as_session(made: Any) -> Session:
    return made  # type: ignore[no-any-return]


def _as_sessions(made: Any) -> list[Session]:
    return made  # type: ignore[no-any-return]


def _as_attachment(made: Any) -> Attachment:
    return made  # type: ignore[no-any-return]


class Session(BaseSession):
    """A handle on one session, and what was last seen of it: the JSON keys are its attributes."""

    __slots__ = ()

    refresh = driven_as(_as_session, AsyncSession.refresh)
    read = driven(AsyncSession.read)
    text = driven(AsyncSession.text)
    tail = driven(AsyncSession.tail)
    last = driven(AsyncSession.last)
    lines_before = driven(AsyncSession.lines_before)
    raw = driven_each(AsyncSession.raw)
    search = driven(AsyncSession.search)
    follow = driven_each(AsyncSession.follow)
    wait = driven(AsyncSession.wait)
    send = driven(AsyncSession.send)
    submit = driven(AsyncSession.submit)
    keys = driven(AsyncSession.keys)
    paste = driven(AsyncSession.paste)
    eof = driven(AsyncSession.eof)
    close_stdin = driven(AsyncSession.close_stdin)
    resize = driven_as(_as_session, AsyncSession.resize)
    screen = driven(AsyncSession.screen)
    export = driven(AsyncSession.export)
    attach = driven_as(_as_attachment, AsyncSession.attach)
    send_signal = driven(AsyncSession.send_signal)
    stop = driven(AsyncSession.stop)
    kill = driven(AsyncSession.kill)
    records = driven(AsyncSession.records)
    told = driven(AsyncSession.told)
    remove = driven(AsyncSession.remove)
    pending_signals = driven(AsyncSession.pending_signals)
    watch = driven(AsyncSession.watch)
    unwatch = driven(AsyncSession.unwatch)
    update = driven_as(_as_session, AsyncSession.update)
    restart = driven_as(_as_session, AsyncSession.restart)

    def _attachment(self, request: dict[str, Any], connection: Connection | None) -> Attachment:
        from .attach import Attachment

        return Attachment(self._core, self.id, request, connection)


class Holdfast(BaseHoldfast):
    """One home, for programs that block. Use with `with`, or `close` it."""

    _driver = Blocking
    _daemons: Daemons | None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _session(self, shot: Snapshot) -> Session:
        return Session(self._core, shot)

    def signals(self, owner: str) -> Consumer:
        """The default consumer of one owner: the signals of its sessions."""
        from ..signals.consumer import Consumer

        return Consumer(self._core.consumers.of_owner(owner))

    def consumer(
        self,
        name: str,
        owners: str | Iterable[str] = "*",
        *,
        variants: Iterable[str] | None = None,
        kinds: Iterable[str] | None = None,
        start: str | None = None,
        replace: bool = False,
    ) -> Consumer:
        """A named reader of the signals of some owners or of all. `start` is `retained` (the default for named owners),
        `now` (the default for all), or the id of a signal. Another filter under the same name needs `replace`."""
        from ..signals.consumer import Consumer

        consumers = self._core.consumers
        return Consumer(consumers.open(name, owners, variants=variants, kinds=kinds, start=start, replace=replace))

    @property
    def daemons(self) -> Daemons:
        """Everything that runs in the background: sessions, and the tasks and threads of hosts."""
        if self._daemons is None:
            from ..daemons.view import Daemons

            self._daemons = Daemons(self._core)
        return self._daemons

    def close(self) -> None:
        """Close the host. Sessions continue; tasks and threads that this host runs itself end."""
        if self._daemons is not None:
            self._daemons.close()
        self._core.close()

    start = driven_as(_as_session, AsyncHoldfast.start)

    def run(
        self,
        command: Command,
        *,
        wait: float | str | None = None,
        started: Callable[[Session], None] | None = None,
        **options: Unpack[StartOptions],
    ) -> Session:
        """Start a command and wait for its end, at most `wait` seconds; after that it continues to run. `started` is
        called with the session as soon as it runs."""
        from .run import run

        notify = None if started is None else lambda seen: started(self._session(seen.snapshot()))
        return self._session(drive(run(self._core, command, wait, options, notify)).snapshot())

    get = driven_as(_as_session, AsyncHoldfast.get)
    remove = driven(AsyncHoldfast.remove)
    sessions = driven_as(_as_sessions, AsyncHoldfast.sessions)
    recover = driven(AsyncHoldfast.recover)
    stop_all = driven(AsyncHoldfast.stop_all)
    wait_all = driven(AsyncHoldfast.wait_all)
    collect = driven(AsyncHoldfast.collect)
    doctor = driven(AsyncHoldfast.doctor)
