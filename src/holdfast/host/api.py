"""`Holdfast` and `Session` for programs that block: each call runs the common logic to its end."""

from __future__ import annotations

import os

from ..config import load
from ..home import Home
from ..model import SESSION_KEYS, Exported, Recovered, Snapshot, Stopped, Typed, Woke, seconds
from . import inputs, verbs
from .core import Core
from .driver import Blocking, drive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Any, Literal, Self, Unpack

    from ..config import Config
    from ..daemons.view import Daemons
    from ..errors import DamagedRecord
    from ..index.kept import Kept
    from ..model import Collected, Finding, StartOptions
    from ..signals.consumer import Consumer
    from ..signals.records import Note, Signal
    from ..terminal.screen import Screen
    from .attach import Attachment
    from .log import Page
    from .request import Command
    from .restarting import Lifetime
    from .search import Hit


def open(
    home: str | os.PathLike[str] | None = None, *, config: Config | None = None, author: str | None = None
) -> Holdfast:
    """A host's door to one home. `author` is how this host is named in records of what was asked by whom."""
    return Holdfast(home, config=config, author=author)


class Session(Snapshot):
    """A handle on one session, and what was last seen of it: the JSON keys are its attributes."""

    __slots__ = ("_core",)

    def __init__(self, core: Core, shot: Snapshot) -> None:
        self._core = core
        self._show(shot)

    def __repr__(self) -> str:
        return f"<Session {self.id} {verbs.in_words(self)}>"

    def _show(self, shot: Snapshot) -> None:
        for key in SESSION_KEYS:
            setattr(self, key, getattr(shot, key))

    def refresh(self) -> Session:
        """Look again: what has become of it."""
        self._show(drive(self._core.observe(self.id)).snapshot())
        return self

    # Reading: from the files, never consuming, never acting.

    def read(self, since: str | int | None = None, *, stream: str | None = None, limit: int | None = None) -> Page:
        """What was printed since a cursor (default: all that is retained), in the order it came."""
        return verbs.read(self._core, self.id, since, stream, limit)

    def text(self, stream: str | None = None) -> str:
        """All that is retained, as clean text."""
        return verbs.text(self._core, self.id, stream)

    def tail(self, lines: int, *, stream: str | None = None) -> str:
        """The last lines, as clean text."""
        return self.last(lines, stream=stream).text

    def last(self, lines: int, *, stream: str | None = None) -> Page:
        """The last lines, with their offsets."""
        return self._core.log(self.id).tail(lines, stream=stream)

    def lines_before(self, stream: str, offset: int) -> int:
        """How many lines of a stream ended before an offset, those that were dropped included."""
        return self._core.log(self.id).lines_before(stream, offset)

    def raw(self, stream: str = "stdout", since: int = 0) -> Iterator[bytes]:
        """The bytes of one stream as they were printed."""
        return self._core.log(self.id).raw(stream, since)

    def search(
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

        return search(
            self._core.log(self.id),
            pattern,
            context=context,
            stream=stream,
            newest=newest,
            limit=limit,
            ignore_case=ignore_case,
        )

    def follow(self, since: str | int | None = None, *, stream: str | None = None) -> Iterator[Page]:
        """Pages as they come, until the command has ended."""
        from .waiting import follow

        pages = follow(self._core, self.id, since, stream)
        try:
            while True:
                try:
                    yield drive(pages.__anext__())  # type: ignore[arg-type]
                except StopAsyncIteration:
                    return
        finally:
            drive(pages.aclose())  # type: ignore[attr-defined]

    # Waiting.

    def wait(
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
        """Block until one of the conditions holds; the end of the command ends every wait, with `extinct` the end of
        all its processes. `reason` says which. `stream` is the one whose output counts."""
        conditions: Any = {"exit": exit, "match": match, "output": output, "idle": idle, "port": port, "ready": ready}
        conditions |= {"extinct": extinct, "since": since, "stream": stream, "timeout": timeout}
        woke = drive(verbs.wait(self._core, self.id, **conditions))
        woke.session = self.refresh()
        return woke

    # Acting.

    def send(self, data: str | bytes, *, wait_for: Mapping[str, Any] | None = None) -> Typed:
        """Write to its input as it stands: bytes as given, text as UTF-8, nothing appended."""
        return drive(inputs.write(self._core, self.id, data, wait_for))

    def submit(
        self,
        text: str = "",
        *,
        enter_delay_ms: int | None = None,
        wait_for: Mapping[str, Any] | None = None,
    ) -> Typed:
        """Type text and press Enter a moment later, as a person would; without a time, as configured."""
        return drive(inputs.submit(self._core, self.id, text, enter_delay_ms, wait_for))

    def keys(self, *keys: str, delay_ms: int = 0, wait_for: Mapping[str, Any] | None = None) -> Typed:
        """Press keys by name: `Enter`, `C-c`, `M-x`, `Up`, `F5`, one character each, `text:...`, `hex:...`."""
        return drive(inputs.keys(self._core, self.id, keys, delay_ms, wait_for))

    def paste(
        self,
        text: str,
        *,
        bracketed: str = "auto",
        raw: bool = False,
        submit: bool = False,
        wait_for: Mapping[str, Any] | None = None,
    ) -> Typed:
        """Paste text: in brackets where the program asked for them, without control characters. `submit` presses Enter
        a moment later."""
        return drive(inputs.paste(self._core, self.id, text, bracketed, raw, submit, wait_for))

    def eof(self, *, wait_for: Mapping[str, Any] | None = None) -> Typed:
        """The end of its input: closes the pipe, or types the key that means it."""
        return drive(inputs.eof(self._core, self.id, wait_for))

    def close_stdin(self) -> None:
        """The command reads the end of its input, after all that was sent."""
        self.eof()

    def resize(self, rows: int, cols: int) -> Session:
        """Give its terminal this size, where no attached client decides it."""
        drive(verbs.resize(self._core, self.id, rows, cols))
        return self.refresh()

    def screen(self, *, at: int | None = None, history: int = 0, settle_ms: int = 0) -> Screen:
        """What a person would see of its terminal, now or at an offset of its log."""
        return drive(verbs.screen(self._core, self.id, at, history, settle_ms))

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        format: str = "asciicast3",
        since: str | int | None = None,
        until: str | int | None = None,
        idle_limit: float | None = None,
    ) -> Exported:
        """Write a recording of its terminal to a file: asciicast3, asciicast2, raw or text."""
        return verbs.export(self._core, self.id, path, format, since, until, idle_limit)

    def attach(
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
    ) -> Attachment:
        """Its terminal as it is and as it goes on, and a way to type into it. Leaving changes nothing. With `hold` the
        command waits while this client is far behind, as for the reader of a pipe."""
        from .attach import Attachment, connect

        if history_rows is None:
            history_rows = self._core.config.terminal_history_rows
        request = verbs.attach_request(role, since, history_rows, lag, size, terminal, kind, label, visible, hold)
        return Attachment(self._core, self.id, request, drive(connect(self._core, self.id, request)))

    def send_signal(self, signal: str | int, target: str = "command") -> int:
        """One operating-system signal to the command, its group or its tree; how many processes got it."""
        return drive(verbs.send_signal(self._core, self.id, signal, target))

    def stop(
        self,
        grace: float | str | None = None,
        by: str | None = None,
        ladder: Sequence[Mapping[str, Any]] | None = None,
    ) -> Stopped:
        """End it with its whole tree, gently first. Says what was found and what survived. `ladder` are rungs as in
        `stop_ladder`, for this stop alone."""
        limit = None if grace is None else seconds(grace)
        stopped = drive(self._core.stop(self.id, grace=limit, by=by, ladder=ladder))
        stopped.session = self.refresh()
        return stopped

    def kill(self) -> Stopped:
        """End it with its whole tree, at once."""
        return self.stop(grace=0)

    def remove(self) -> None:
        """Forget a session that is over: log, records and all."""
        drive(self._core.remove(self.id))

    def records(self) -> dict[str, Any]:
        """Its records as they stand in its directory: `spec`, `state` and `exit`; None for one that is not there."""
        return verbs.records(self._core, self.id)

    def told(self) -> list[Signal | Note]:
        """Everything that was told of it, and the notes about that, from its own file."""
        return verbs.told(self._core, self.id)

    def pending_signals(self) -> int:
        """How many of its signals wait for its owner. Looking acknowledges none of them."""
        return drive(verbs.pending_signals(self._core, [self]))[self.id]

    def watch(self, pattern: str | Mapping[str, Any]) -> str:
        """Tell the owner of lines that match, from now on: text, or `/regex/`. The id of the watch."""
        return drive(verbs.watch(self._core, self.id, pattern))

    def unwatch(self, watch: str) -> bool:
        """Tell of it no more. False when there was no such watch."""
        return drive(verbs.unwatch(self._core, self.id, watch))

    def update(self, **changes: Any) -> Session:
        """Change name, owner, labels, description, notify, timeout, idle_timeout, ttl; None clears."""
        drive(self._core.update(self.id, changes))
        return self.refresh()

    def restart(
        self,
        *,
        env: Mapping[str, str | None] | None = None,
        input: str | bytes | None = None,
        pass_fds: Sequence[int] | None = None,
        lifetime: Lifetime | None = None,
        owner_pid: int | None = None,
        grace: float | None = None,
    ) -> Session:
        """Stop it if it runs, and start the same command anew, as a new session that names this one. What was never
        stored (values of variables, input, descriptors, the life of a gone owner) has to be given again."""
        from .restarting import restart

        again = restart(
            self._core,
            self.id,
            env=env,
            input=input,
            pass_fds=pass_fds,
            lifetime=lifetime,
            owner_pid=owner_pid,
            grace=grace,
        )
        return Session(self._core, drive(again).snapshot())


class Holdfast:
    """One home, for programs that block. Use as a context manager, or `close` it."""

    def __init__(
        self,
        home: str | os.PathLike[str] | None = None,
        *,
        config: Config | None = None,
        author: str | None = None,
    ) -> None:
        self._core = Core(Blocking(), Home(home), config or load(os.environ), author or f"api:{os.getpid()}")
        self._daemons: Daemons | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Holdfast {self._core.home.path}>"

    @property
    def home(self) -> Home:
        """Where everything of this home is."""
        return self._core.home

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self._core.config

    @property
    def trouble(self) -> str | None:
        """What is wrong with the index, if anything: everything works without it, only slower."""
        return self._core.index.trouble

    def signals(self, owner: str) -> Consumer:
        """What happened to the sessions of one owner: its default consumer."""
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
        """A named reader of signals, of some owners or of everybody. `start` is `retained` (of owners the default),
        `now` (of everybody), or the id of a signal; another filter under the same name is refused unless `replace`."""
        from ..signals.consumer import Consumer

        consumers = self._core.consumers
        return Consumer(consumers.open(name, owners, variants=variants, kinds=kinds, start=start, replace=replace))

    def kept(self, reader: str) -> Kept:
        """What one reader keeps about sessions from call to call, such as how far it was shown. Lost with the index."""
        from ..index.kept import Kept

        return Kept(self._core.index, reader)

    @property
    def daemons(self) -> Daemons:
        """All that runs in the background, whoever runs it; and what this host runs inside itself."""
        if self._daemons is None:
            from ..daemons.view import Daemons

            self._daemons = Daemons(self._core)
        return self._daemons

    def close(self) -> None:
        """Let go. No session notices; what this host ran inside itself ends with it."""
        if self._daemons is not None:
            self._daemons.close()
        self._core.close()

    def start(self, command: Command, **options: Unpack[StartOptions]) -> Session:
        """Start a command in the background: a str runs in the shell, a list is argv."""
        return Session(self._core, drive(verbs.start(self._core, command, options)).snapshot())

    def run(
        self,
        command: Command,
        *,
        wait: float | str | None = None,
        started: Callable[[Session], None] | None = None,
        **options: Unpack[StartOptions],
    ) -> Session:
        """Start and wait for the end, at most `wait` seconds. Running out of time ends only the waiting. `started` is
        called with the session as soon as it runs."""
        tell = None if started is None else lambda seen: started(Session(self._core, seen.snapshot()))
        return Session(self._core, drive(verbs.run(self._core, command, wait, options, tell)).snapshot())

    def get(self, ref: object, *, owner: str | None = None) -> Session:
        """A session by id, unique prefix of 4 or more, name, pid, or "last"; with an owner, one of its own."""
        return Session(self._core, drive(self._core.look_up(ref, owner)))

    def remove(self, ref: object) -> str:
        """Remove a session that is over, or whose records are damaged and of which nothing lives; its id."""
        id = self._core.find(ref)
        drive(self._core.remove(id))
        return id

    @property
    def damaged(self) -> dict[str, DamagedRecord]:
        """The sessions that the last listing or recovery could not use, by id, and why."""
        return dict(self._core.damaged)

    def sessions(
        self,
        *,
        all: bool = False,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        status: str | None = None,
        state: str | None = None,
        name: str | None = None,
        search: str | None = None,
    ) -> list[Session]:
        """Live sessions, or all that are retained, oldest first."""
        fits = verbs.fits(owner=owner, labels=labels, status=status, state=state, name=name, search=search)
        shots = drive(self._core.sessions(all=all, fits=fits, owner=owner))
        return [Session(self._core, shot) for shot in shots]

    def recover(self) -> Recovered:
        """Look at everything that is not known to be over, in one bounded sweep, identity proven."""
        return verbs.handles(drive(self._core.recover()), lambda shot: Session(self._core, shot))

    def stop_all(
        self,
        refs: Iterable[object],
        grace: float | str | None = None,
        by: str | None = None,
        ladder: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Stopped]:
        """Stop many at once."""
        return drive(verbs.stop_all(self._core, refs, grace, by, ladder))

    def collect(self, *, dry_run: bool = False, all: bool = False) -> Collected:
        """Remove finished sessions that are too old or too many, and leftovers."""
        return verbs.collect(self._core, dry_run=dry_run, all=all)

    def doctor(self, *, rebuild: bool = False) -> list[Finding]:
        """Look at everything that could be wrong with this home, and mend what can be mended."""
        from .doctor import examine

        return drive(examine(self._core, rebuild=rebuild))
