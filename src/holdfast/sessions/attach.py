"""Attach to a terminal: live through its runner, or from the files of a finished session. The events are the same.

A connection that breaks is the end of the connection, not of the session: if the session ended meanwhile, the rest of
its output and its exit come from the files.
"""

from __future__ import annotations

import os
import time

from ..core import processes, wire
from ..core.records import TTY
from ..core.vt.sequences import TITLE_MAX_BYTES
from ..core.vt.widths import label
from ..errors import HoldfastError, NotATty, OffsetAhead, RunnerGone, SelfAttach, SessionEnded, TooLarge
from ..model import FINAL_STATES, RUNNING
from ..model.events import Bell, Clients, Data, Exit, Gap, Init, Mode, Refused, Size, Written
from .driver import drive, driven
from .marks import checked_state
from .observe import from_files, read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from types import TracebackType
    from typing import Any, Self

    from ..model.events import Event
    from .connection import Connection
    from .core import Core
    from .log import Log
    from .observe import Files


# A runner that was killed closes its sockets a little before its lock is free.
_DYING_LOOKS = 50
_DYING_S = 0.01


async def connect(core: Core, id: str, request: dict[str, Any]) -> Connection | None:
    """A connection on which `attach` was requested; None when only the files are left."""
    check(core, id)
    try:
        _, connection = await core.connect(id)
    except (SessionEnded, RunnerGone):
        return None
    try:
        await connection.ask("attach", core.config.hosts_reply_timeout, **request)
        await connection.accepted(core.config.hosts_reply_timeout)
    except RunnerGone:
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection


def check(core: Core, id: str) -> None:
    """Refuse a session without a terminal, and an attach from inside the session: it would read its own output as
    input, without end."""
    files = read_files(core.home, id)
    if not files.spec.get("tty"):
        raise NotATty(id)
    tty = (files.state or {}).get("tty") or {}
    inside = os.environ.get(processes.SESSION_VARIABLE) == files.id
    if inside or (tty.get("device") is not None and tty["device"] == _controlling_terminal()):
        raise SelfAttach(files.id)


def _controlling_terminal() -> int | None:
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.stat(os.ttyname(fd)).st_rdev
    except OSError:
        return None
    finally:
        os.close(fd)


class _Attachment:
    """Events in, input out, never blocking; the classes below add the waiting."""

    def __init__(self, core: Core, id: str, request: dict[str, Any], connection: Connection | None) -> None:
        self._core = core
        self._id = id
        self._request = request
        self._connection = connection
        self._unsent = bytearray()
        self._draining = False
        self._serial = 0
        # What is still to come if the connection breaks: ranges of the restore, and everything from `_at` on.
        self._pending: list[list[int]] = []
        self._at: int | None = None
        self._ended = False
        self._recorded: Iterator[Event | None] | None = None
        # Always readable, so that a wait for events of a finished session returns at once.
        self._ready: int | None = None
        if connection is None:
            self._continue_from_files()

    def fileno(self) -> int:
        if self._connection is not None:
            return self._connection.fileno()
        assert self._ready is not None
        return self._ready

    def events(self) -> list[Event]:
        """The events that have arrived. Nothing comes after the `Exit` of a finished session."""
        while (events := self._come()) is None:
            time.sleep(_DYING_S)
        return events

    def _come(self) -> list[Event] | None:
        """Returns None while a runner that hung up may be about to leave."""
        if self._connection is not None:
            try:
                return [event for frame in self._connection.arrived() for event in self._event(frame)]
            except RunnerGone:
                self._connection.close()
                self._connection = None
                self._continue_from_files()
        assert self._recorded is not None
        for event in self._recorded:
            return None if event is None else [event]
        return []

    @property
    def history_rows(self) -> int:
        """The number of rows above the page that the restore was asked for."""
        rows: int = self._request["history_rows"]
        return rows

    @property
    def over(self) -> bool:
        """True if every event has arrived."""
        return self._ended and self._connection is None

    @property
    def wants_write(self) -> bool:
        return bool(self._unsent)

    def flush(self) -> None:
        if self._connection is None:
            self._unsent.clear()
        while self._unsent and self._connection is not None:
            try:
                with memoryview(self._unsent) as view:
                    sent = self._connection.send_some(view)
            except RunnerGone:
                # The runner is gone. What it sent before, perhaps the end, is still to be read.
                self._unsent.clear()
                return
            if not sent:
                return
            del self._unsent[:sent]

    def send(self, data: bytes) -> int:
        """Send one atomic unit of input; returns the number that `Written` answers it with."""
        if len(data) > wire.UNIT_MAX_BYTES:
            raise TooLarge("one piece of input", wire.UNIT_MAX_BYTES)
        self._serial += 1
        self._post(wire.data(self._serial, data))
        return self._serial

    def send_parts(self, parts: list[dict[str, Any]]) -> int:
        """Keys, pastes and pauses, as one unit."""
        frame = wire.control({"type": "input", "id": self._serial + 1, "parts": parts})
        if len(frame) > wire.FRAME_MAX_BYTES:
            raise TooLarge("what is typed at once, as it is sent,", wire.FRAME_MAX_BYTES)
        self._serial += 1
        self._post(frame)
        return self._serial

    def resize(self, rows: int, cols: int, *, cell: tuple[int, int] | None = None, visible: bool = True) -> None:
        self._tell("resize", rows=rows, cols=cols, cell=cell and list(cell), visible=visible)

    def focus(self, focused: bool) -> None:
        """Report whether a person looks, for clients whose terminal sends no focus reports."""
        self._tell("focus", focused=focused)

    def observe(self) -> None:
        """Give up control."""
        self._tell("observe")

    def detach(self) -> None:
        """Leave after everything that was sent. The runner hangs up when it has read that."""
        self._tell("detach")
        self._ended = True

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._ready is not None:
            os.close(self._ready)
            self._ready = None
        self._recorded = iter(())
        self._ended = True

    async def _next(self, timeout: float | None) -> list[Event]:
        """The next events; none after the timeout, or when everything has arrived."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.over:
            events = self._come()
            if events:
                return events
            if self.over:
                break
            if events is None:
                await self._core.driver.ready((), (), _DYING_S)
                continue
            left = None if deadline is None else deadline - time.monotonic()
            writers = [self.fileno()] if self._unsent and not self._draining else []
            if not await self._core.driver.ready([self.fileno()], writers, left):
                break
            self.flush()
        return []

    def _tell(self, type: str, **fields: object) -> None:
        self._post(wire.control({"type": type, **fields}))

    def _post(self, frame: bytes) -> None:
        if self._connection is None:
            raise from_files(read_files(self._core.home, self._id)).error_without_runner()
        self._unsent += frame
        self.flush()

    def _event(self, frame: dict[str, Any] | tuple[int, bytes]) -> Iterator[Event]:
        if isinstance(frame, tuple):
            offset, data = frame
            self._passed(offset, len(data))
            yield Data(offset, data)
            return
        kind = frame["type"]
        if kind == "init":
            self._pending = [[part["from"], part["to"]] for part in frame["restore"] if part["from"] < part["to"]]
            self._at = frame["at"]
            # The runner may be in another place: none of its text may become a terminal sequence here.
            yield Init(
                frame["at"],
                tuple(frame["size"]),
                checked_state(frame["state"]),
                [{**part, "state": checked_state(part["state"])} for part in frame["restore"]],
                [tuple(each) for each in frame["resizes"]],
                frame["exact"],
                frame["clients"],
                frame["client"],
                frame["status"],
            )
        elif kind == "mode":
            state = checked_state(frame["state"])
            if state is not None:
                yield Mode(frame["offset"], state)
        elif kind == "size":
            yield Size(frame["rows"], frame["cols"], frame["by"])
        elif kind == "clients":
            yield Clients(frame["clients"], frame["sizes"])
        elif kind == "bell":
            yield Bell(label(str(frame["text"]).encode("utf-8", "ignore"), TITLE_MAX_BYTES))
        elif kind == "gap":
            if self._pending and self._pending[0][0] == frame["from"]:
                self._passed(frame["from"], frame["to"] - frame["from"])
            yield Gap(frame["from"], frame["to"], frame["reason"])
        elif kind == "written":
            yield Written(frame["id"], frame["bytes"])
        elif kind == "exit":
            self._ended = True
            yield Exit(frame["code"], frame["signal"], frame["cause"], frame["output_complete"], frame["output_open"])
        elif kind == "error":
            yield Refused(HoldfastError.from_wire(frame), frame.get("id"))

    def _passed(self, offset: int, size: int) -> None:
        if not self._pending:
            self._at = offset + size
            return
        self._pending[0][0] = offset + size
        if self._pending[0][0] >= self._pending[0][1]:
            self._pending.pop(0)

    # From the files.

    def _continue_from_files(self) -> None:
        if self._ready is None:
            self._ready = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._recorded = iter(()) if self._ended else self._from_files()

    def _from_files(self) -> Iterator[Event | None]:
        seen = from_files(read_files(self._core.home, self._id))
        for _ in range(_DYING_LOOKS):
            if seen.state != RUNNING or self._at is None:
                break
            yield None  # it has hung up: a moment later it is gone, and its end is known
            seen = from_files(read_files(self._core.home, self._id))
        if seen.state not in FINAL_STATES and self._at is not None:
            # The runner hung up and is alive, or the command outlived it.
            raise seen.error_without_runner()
        yield from self._recorded_output(seen.files)
        if seen.state not in FINAL_STATES:
            # What was kept is shown, but the session has not ended and there is no runner to send the rest.
            raise seen.error_without_runner()
        self._ended = True
        shot = seen.snapshot()
        if shot.exit is not None:
            exit = shot.exit
            yield Exit(exit.code, exit.signal, exit.cause, exit.complete, bool(exit.survivors))

    def _recorded_output(self, files: Files) -> Iterator[Event]:
        log = self._core.log(self._id)
        if self._at is None:
            end = log.ends().get(TTY, 0)
            begin = self._request.get("from", "screen")
            if begin == "screen":
                yield from self._recorded_screen(files, end)
                return
            self._at = {"start": log.dropped_before().get(TTY, 0), "now": end}.get(begin, begin)
            if self._at > end:
                raise OffsetAhead(TTY, self._at, end)
            rows, cols = files.spec["size"]
            resizes = log.resizes()
            yield Init(self._at, (rows, cols), None, [], resizes, True, [], None, None)
        for begin, end in self._pending:
            yield from between(log, begin, end)
        self._pending = []
        begin, self._at = self._at, log.ends().get(TTY, 0)
        yield from between(log, begin, self._at)

    def _recorded_screen(self, files: Files, end: int) -> Iterator[Event]:
        from .screens import restore_at

        restore = restore_at(self._core.log(self._id), files, end, self.history_rows)
        state, plan = restore.state, restore.plan
        size = tuple(state["size"])
        yield Init(restore.at, size, state, plan["ranges"], restore.resizes, plan["exact"], [], None, None)
        self._pending = [[part["from"], part["to"]] for part in plan["ranges"]]
        self._at = restore.at
        yield from self._recorded_output(files)


def between(log: Log, at: int, end: int) -> Iterator[Event]:
    """The bytes of a range, and every missing part of it."""
    dropped = log.dropped_before().get(TTY, 0)
    for offset, block in log.blocks(TTY, at, end):
        if offset > at:
            yield Gap(at, offset, "dropped" if at < dropped else "disk")
        yield Data(offset, block)
        at = offset + len(block)
    if at < end:
        yield Gap(at, end, "dropped" if at < dropped else "disk")


class AsyncAttachment(_Attachment):
    """One client of a terminal, for asyncio. Iterate over its events, or select on `fileno()` and take
    those that have come with `events()`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while events := await self._next(None):
            for event in events:
                yield event

    async def wait(self, timeout: float | None = None) -> list[Event]:
        """The next events; none after the timeout, or when all have come."""
        return await self._next(timeout)

    async def drain(self) -> None:
        """Wait until the runner has taken what was sent. A wait for events in another task does not send meanwhile."""
        self._draining = True
        try:
            while self._unsent and self._connection is not None:
                await self._core.driver.ready((), [self.fileno()], None)
                self.flush()
        finally:
            self._draining = False


class Attachment(_Attachment):
    """One client of a terminal, for programs that block. Iterate over its events, or select on `fileno()` and take
    those that have come with `events()`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        while events := drive(self._next(None)):
            yield from events

    wait = driven(AsyncAttachment.wait)
