"""A run in openclaw's words: the record, exit and output of one session, and the handle of its caller."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from ...core import processes
from ...core.clock import epoch
from ...core.ending import LIMIT
from ...errors import BadArgument, HoldfastError, StdinClosed, Unreachable
from ...home import LABEL_VALUE_CHARACTERS, check_labels
from ...model import EXITED, FINAL_STATES, LOST, STALE, STARTING, UNREACHABLE, format_cursor
from ...sessions.log import parse_cursor
from ...terminal.text import Decoder
from ..owner_sessions import retrieve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from typing import Any

    from ...model import Snapshot, Stopped
    from ...sessions.aio import AsyncSession
    from ...sessions.log import Chunk
    from ..owner_sessions import Running
    from .spawn import SpawnInput


SCOPE_LABEL = "openclaw.scope"
BACKGROUND_LABEL = "openclaw.background"
# The key of a session's metadata that holds what only this toolset knows about it.
METADATA = "openclaw"

MANUAL_CANCEL = "manual-cancel"
OVERALL_TIMEOUT = "overall-timeout"
NO_OUTPUT_TIMEOUT = "no-output-timeout"
SPAWN_ERROR = "spawn-error"

_REASONS = {
    "exit": "exit",
    "signal": "signal",
    "out_of_memory": "signal",
    "stop": MANUAL_CANCEL,
    "owner_gone": MANUAL_CANCEL,
    "overall_timeout": OVERALL_TIMEOUT,
    "ttl": OVERALL_TIMEOUT,
    "idle_timeout": NO_OUTPUT_TIMEOUT,
    "spawn_error": SPAWN_ERROR,
    "lost": "lost",
}
_PAGE_BYTES = 1 << 20


@dataclass(frozen=True)
class RunRecord:
    """A copy of what is known about a run."""

    run_id: str
    session_id: str
    backend_id: str
    scope_key: str
    pid: int | None
    process_group_id: int | None
    created_at_ms: int
    started_at_ms: int | None
    last_output_at_ms: int | None
    updated_at_ms: int
    state: str
    termination_reason: str | None
    exit_code: int | None
    exit_signal: str | None
    health: str | None


@dataclass(frozen=True)
class RunExit:
    reason: str
    exit_code: int | None = None
    exit_signal: str | None = None
    duration_ms: int = 0
    stdout: str = ""
    stderr: str = ""
    survivors: list[dict[str, Any]] = field(default_factory=list)
    output_complete: bool = True
    requested_by: str | None = None

    @property
    def timed_out(self) -> bool:
        return self.reason in (OVERALL_TIMEOUT, NO_OUTPUT_TIMEOUT)

    @property
    def no_output_timed_out(self) -> bool:
        return self.reason == NO_OUTPUT_TIMEOUT


def run_id(shot: Snapshot) -> str:
    return shot.name or shot.id


def facts(shot: Snapshot) -> dict[str, Any]:
    """What the start request recorded for this toolset."""
    found = shot.metadata.get(METADATA)
    return found if isinstance(found, dict) else {}


async def limits(session: AsyncSession) -> dict[str, Any]:
    """The options of the start, as changed by `update`."""
    found = await session.records()
    return {**found["spec"], **((found["state"] or {}).get("changed") or {})}


def record(shot: Snapshot) -> RunRecord:
    own = facts(shot)
    return RunRecord(
        run_id=run_id(shot),
        session_id=own.get("session_id") or shot.owner or "",
        backend_id=own.get("backend_id") or "",
        scope_key=own.get("scope_key") or "",
        pid=shot.pid,
        process_group_id=shot.pid,
        created_at_ms=at_ms(shot.created_at) or 0,
        started_at_ms=at_ms(shot.started_at),
        last_output_at_ms=at_ms(shot.last_output_at),
        updated_at_ms=at_ms(shot.ended_at or shot.last_output_at or shot.started_at or shot.created_at) or 0,
        state=state(shot),
        termination_reason=reason(shot),
        exit_code=shot.exit.code if shot.exit else None,
        exit_signal=shot.exit.signal if shot.exit else None,
        health=shot.state if shot.state in (UNREACHABLE, STALE) else None,
    )


def state(shot: Snapshot) -> str:
    if shot.state in (EXITED, LOST):
        return "exited"
    if shot.stopping:
        return "exiting"
    return "starting" if shot.state == STARTING else "running"


def reason(shot: Snapshot) -> str | None:
    """Why the run ended. While a requested stop is in progress: the reason it will have."""
    if shot.exit is not None:
        return _REASONS.get(shot.exit.cause, "exit")
    return MANUAL_CANCEL if shot.stopping and shot.stopping.get("by") != LIMIT else None


def exit_of(shot: Snapshot, stdout: str = "", stderr: str = "") -> RunExit:
    """How a finished session ended."""
    assert shot.exit is not None
    began, ended = at_ms(shot.started_at), at_ms(shot.ended_at)
    return RunExit(
        reason=reason(shot) or "exit",
        exit_code=shot.exit.code,
        exit_signal=shot.exit.signal,
        duration_ms=ended - began if began is not None and ended is not None else 0,
        stdout=stdout,
        stderr=stderr,
        survivors=[dict(each) for each in shot.exit.survivors],
        output_complete=shot.exit.complete,
        requested_by=shot.exit.by,
    )


def caller() -> dict[str, Any]:
    """Identifies this process, which waits for a run in the foreground."""
    pid = os.getpid()
    return {
        "boot": processes.boot_id(),
        "pidns": processes.pid_namespace(),
        "pid": pid,
        "start": processes.start_time(pid),
    }


def is_backgrounded(shot: Snapshot) -> bool:
    """A run whose caller died while it waited counts as backgrounded."""
    waiting = facts(shot).get("caller")
    if BACKGROUND_LABEL in shot.labels or not isinstance(waiting, dict):
        return True
    if waiting.get("boot") != processes.boot_id():
        return True
    # Processes of another pid namespace cannot be checked: the caller may still be alive.
    return waiting.get("pidns") == processes.pid_namespace() and not processes.same(waiting["pid"], waiting["start"])


def at_ms(text: str | None) -> int | None:
    at = epoch(text)
    return None if at is None else round(at * 1000)


def moment() -> int:
    """Orders the requests of all hosts on this machine."""
    return time.monotonic_ns()


def scope_label(key: str) -> str:
    """The key as a label value; a hash where the key is not a valid one."""
    try:
        return check_labels({"scope": key})["scope"] if len(key) <= LABEL_VALUE_CHARACTERS else _hashed(key)
    except BadArgument:
        return _hashed(key)


def _hashed(key: str) -> str:
    return "sha256:" + sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


# The output of a run.


async def ends_of(session: AsyncSession) -> dict[str, int] | None:
    """Where each stream stood when the command exited; None while that is not recorded. Later output belongs to
    processes that outlived the command."""
    ended = (await session.records())["exit"]
    ends: dict[str, int] | None = None if ended is None else ended.get("ends")
    return ends


async def chunks(session: AsyncSession, begin: dict[str, int], ends: dict[str, int]) -> AsyncIterator[Chunk]:
    """The output between these offsets, in order of arrival."""
    at = dict(begin)
    while any(at[stream] < end for stream, end in ends.items()):
        page = await session.read(since=format_cursor(at), limit=_PAGE_BYTES)
        for stream, offset, data in page.chunks:
            if kept := data[: max(0, ends.get(stream, 0) - offset)]:
                yield stream, offset, kept
        after = offsets(page.cursor, ends)
        if after == at:
            return
        at = after


def offsets(cursor: str, streams: Mapping[str, int]) -> dict[str, int]:
    """The cursor's offset for each of these streams."""
    found = parse_cursor(cursor, list(streams))
    return {stream: found.get(stream, 0) for stream in streams}


# The handle of a run: its input, its end, its output.


if TYPE_CHECKING:
    Listener = Callable[[str], object]

CAPTURED_CHARS = 1 << 20
CUT = "[earlier output left out]\n"

# How long the final kill of a stop may take.
SETTLE_MS = 4000

# After the last rung of a stop, the runner needs a moment to report survivors.
_MARGIN_S = 0.25
# Asking a runner to stop takes a moment.
_ASKED_S = 0.5
_SERVED = {"stdout": "stdout", "tty": "stdout", "stderr": "stderr"}


class Stdin:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def write(self, data: str | bytes) -> int:
        return (await self._session.send(data)).accepted

    async def end(self) -> None:
        await self._session.eof()


class ManagedRun:
    """One run, for the host that spawned or adopted it."""

    pid: int | None = None
    started_at_ms: int | None = None
    # True for a run that another start with the same key had begun.
    reused = False
    # The start that also waits for the end, until `first_wait` takes it.
    _foreground: Running | None = None
    _exit: RunExit | None = None
    _stopping: asyncio.Task[Stopped] | None = None
    # Whether the stop in progress has no grace.
    _forced = False
    _listening: asyncio.Task[None] | None = None

    def __init__(self, session: AsyncSession, input: SpawnInput | None = None, *, by: str | None = None) -> None:
        self.session = session
        self.run_id = run_id(session)
        self.pid = session.pid
        self.started_at_ms = at_ms(session.started_at)
        self.stdin = Stdin(session)
        self._by = by
        self._capture = input is None or input.capture_output
        self._cap = CAPTURED_CHARS if input is None else input.max_captured_output_chars
        listeners = {"stdout": input and input.on_stdout, "stderr": input and input.on_stderr}
        given = {stream: listener for stream, listener in listeners.items() if listener}
        if given:
            self._listening = asyncio.ensure_future(_listen(session, given))
            self._listening.add_done_callback(retrieve)

    def __repr__(self) -> str:
        return f"<ManagedRun {self.run_id}>"

    @classmethod
    async def begun(cls, start: Running, input: SpawnInput, name: str, *, by: str | None) -> ManagedRun:
        """The run of this start, once it runs; its caller waits for the end with `first_wait`. A caller that is
        cancelled meanwhile cancels the run. A run with another name is that of an earlier start with the same key."""

        async def cancel(session: AsyncSession) -> None:
            if run_id(session) == name:
                await cls(session, by=by).begin_cancel()

        try:
            await start.started()
        except asyncio.CancelledError:
            await start.abort(cancel)
            raise
        run = cls(start.session or await start.outcome(), input, by=by)
        run.reused = run.run_id != name
        if run.reused:
            await start.close()  # the host that started it waits for it
        else:
            run._foreground = start
        return run

    async def first_wait(self) -> None:
        """The wait that the start asked for. Cancelling it cancels the run."""
        start, self._foreground = self._foreground, None
        if start is None:
            return
        async with start:
            try:
                self.session = await start.outcome()
            except asyncio.CancelledError:
                await self.begin_cancel()
                raise

    async def begin_cancel(self) -> None:
        """Request the stop, without a notice of the end, and return; the runner does the rest."""
        await asyncio.wait({self._stop(silent=True)}, timeout=_ASKED_S)

    async def wait(self) -> RunExit:
        """How the run ended. Also returns when a stop could not kill every process."""
        if self._exit is None:
            self._exit = await self._settled()
        return self._exit

    async def cancel(self, reason: str = MANUAL_CANCEL, *, force: bool = False) -> None:
        """Stop the run; with `force` by an immediate kill. Does nothing after its end."""
        check_reason(reason)
        if self._exit is None:
            await asyncio.shield(self._stop(force=force))

    async def wait_for_extinction(self) -> None:
        """Wait until no process of its tree is left."""
        await self.session.wait(extinct=True)

    @property
    def is_cancelled(self) -> bool:
        """Whether this handle was asked to stop the run."""
        return self._stopping is not None and not self._stopping.cancelled()

    def detach(self) -> None:
        """Call the listeners no more; the run continues."""
        if self._listening is not None:
            self._listening.cancel()

    def _stop(self, *, silent: bool = False, force: bool = False) -> asyncio.Task[Stopped]:
        if self._stopping is None or self._stopping.done() or (force and not self._forced):
            self._forced = force
            self._stopping = asyncio.ensure_future(self._stopped(silent, force))
            self._stopping.add_done_callback(retrieve)
        return self._stopping

    async def _stopped(self, silent: bool, force: bool) -> Stopped:
        if silent:
            with contextlib.suppress(HoldfastError):
                await self.session.update(notify="never")
        return await self.session.stop(grace=0 if force else None, by=self._by)

    async def _settled(self) -> RunExit:
        grace_s = (await self.session.records())["spec"]["grace"]
        while self.session.state not in FINAL_STATES:
            longest_s = (0 if self._forced else grace_s) + SETTLE_MS / 1000 + _MARGIN_S
            left_s = self._stop_left_s(longest_s)
            if left_s <= 0 or self._survivors():
                return await self._unconfirmed()
            try:
                await self.session.wait(timeout=left_s)
            except Unreachable:
                await self.session.refresh()
        if self._listening is not None:
            await asyncio.gather(self._listening, return_exceptions=True)
        return exit_of(self.session, *await self.captured())

    def _stop_left_s(self, longest_s: float) -> float:
        """How long a stop in progress, by any requester, may still take; without one, the longest it can take."""
        began = at_ms((self.session.stopping or {}).get("since"))
        now = at_ms(self.session.observed_at)
        return longest_s if began is None or now is None else longest_s - (now - began) / 1000

    def _survivors(self) -> list[dict[str, object]]:
        """The processes that our own stop could not kill."""
        done = self._stopping
        if done is None or not done.done() or done.cancelled() or done.exception() is not None:
            return []
        return [dict(each) for each in done.result().survivors]

    async def _unconfirmed(self) -> RunExit:
        """The stop is over and did not kill the command: otherwise its exit would be recorded."""
        self.detach()
        await self.session.refresh()
        began, now = at_ms(self.session.started_at), at_ms(self.session.observed_at)
        out, err = await self.captured()
        return RunExit(
            await self._stop_reason(),
            exit_signal="SIGKILL",
            duration_ms=now - began if began is not None and now is not None else 0,
            stdout=out,
            stderr=err,
            survivors=self._survivors() or [{"pid": self.session.pid, "command": self.session.command}],
            output_complete=False,
            requested_by=self._by,
        )

    async def _stop_reason(self) -> str:
        """Without an exit record: from the requester of the stop and the limits of the run."""
        stop = self.session.stopping or {}
        if stop.get("by") != LIMIT:
            return MANUAL_CANCEL
        limit_s = (await limits(self.session)).get("timeout")
        asked, stopped = at_ms(self.session.created_at), at_ms(stop.get("since"))
        late = limit_s is not None and asked is not None and stopped is not None and stopped - asked >= limit_s * 1000
        return OVERALL_TIMEOUT if late else NO_OUTPUT_TIMEOUT

    async def captured(self) -> tuple[str, str]:
        """The end of what the command printed to stdout and stderr."""
        if not self._capture:
            return "", ""
        ends = await ends_of(self.session) or dict(self.session.ends)
        # A character has at most four bytes.
        begin = {stream: max(0, end - 4 * self._cap) for stream, end in ends.items()}
        decoders, texts = {stream: Decoder() for stream in ends}, dict.fromkeys(ends, "")
        async for stream, offset, data in chunks(self.session, begin, ends):
            if not texts[stream] and offset > 0:
                data = data.lstrip(bytes(range(0x80, 0xC0)))  # the rest of a character that begins before it
            texts[stream] += decoders[stream].feed(data)
        found = {"stdout": "", "stderr": ""}
        for stream, decoder in decoders.items():
            text = texts[stream] + decoder.flush()
            cut = begin[stream] > 0 or len(text) > self._cap
            found[_SERVED[stream]] = CUT + text[-self._cap :] if cut else text
        return found["stdout"], found["stderr"]


class _NoStdin(Stdin):
    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    async def write(self, data: str | bytes) -> int:
        raise StdinClosed(self._run_id, "it was withdrawn before it began")

    async def end(self) -> None:
        """There is nothing to close."""


class Withdrawn(ManagedRun):
    """A spawn that a newer replacement or a cancel overtook: it never had a session or a process."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.stdin = _NoStdin(run_id)
        self._exit = RunExit(MANUAL_CANCEL)

    async def begin_cancel(self) -> None:
        """It has ended already."""

    async def captured(self) -> tuple[str, str]:
        return "", ""

    async def wait_for_extinction(self) -> None:
        """It has no processes."""


def check_reason(reason: str) -> None:
    """The runner alone sets every other reason."""
    if reason != MANUAL_CANCEL:
        raise BadArgument("reason", f"{str(reason)[:40]!a} is not a reason for a cancel", f"give {MANUAL_CANCEL}")


async def _listen(session: AsyncSession, listeners: dict[str, Listener]) -> None:
    """Pass the output to the listeners as it comes. One that raises ends this; the run continues."""
    decoders = {stream: Decoder() for stream in listeners}
    with contextlib.suppress(HoldfastError):
        async for page in session.follow():
            # None: what was read before the exit was recorded was printed before the exit.
            ends = await ends_of(session)
            for stream, offset, data in page.chunks:
                served = _SERVED[stream]
                own = data if ends is None else data[: max(0, ends.get(stream, 0) - offset)]
                if served in listeners and own and (text := decoders[served].feed(own)):
                    listeners[served](text)
    for served, decoder in decoders.items():
        if rest := decoder.flush():
            listeners[served](rest)
