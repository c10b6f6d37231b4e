"""One run in the hands of whoever started it, or found it again: its input, its end, what it printed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from ...errors import BadArgument, HoldfastError, Unreachable
from ...host.agent_text import Decoder
from ...model import FINAL_STATES
from ...runner.causes import LIMIT
from .runs import MANUAL_CANCEL, NO_OUTPUT_TIMEOUT, OVERALL_TIMEOUT, RunExit, at_ms, exit_of, limits, run_id
from .spawning import CAPTURED_CHARS, SETTLE_MS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...host.aio import AsyncHoldfast, AsyncSession
    from ...model import Stopped
    from .spawning import SpawnInput

    Listener = Callable[[str], object]

CUT = "[earlier output left out]\n"

# Behind the last rung of a stop: its runner needs a moment to say that something is left.
_MARGIN_S = 0.25
# A stop is under way when its runner has been asked, which takes a moment.
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
    """`pid` is None for a replacement that was withdrawn before it began: it has ended already."""

    def __init__(self, session: AsyncSession, input: SpawnInput | None = None, *, by: str | None = None) -> None:
        self.session = session
        self.run_id = run_id(session)
        self.pid = session.pid
        self.started_at_ms = at_ms(session.started_at)
        self.stdin = Stdin(session)
        # Another start with the same key was quicker: this is its run.
        self.reused = False
        self._by = by
        # The start that also waits for the end, until its caller lets go.
        self._foreground: asyncio.Task[AsyncSession] | None = None
        self._capture = input is None or input.capture_output
        self._cap = CAPTURED_CHARS if input is None else input.max_captured_output_chars
        self._exit: RunExit | None = None
        self._stopping: asyncio.Task[Stopped] | None = None
        # Is the stop that is under way one without any grace?
        self._forced = False
        self._telling: asyncio.Task[None] | None = None
        listeners = {"stdout": input and input.on_stdout, "stderr": input and input.on_stderr}
        heard = {stream: listener for stream, listener in listeners.items() if listener}
        if heard:
            self._telling = asyncio.ensure_future(_tell(session, heard))
            self._telling.add_done_callback(_looked_at)

    def __repr__(self) -> str:
        return f"<ManagedRun {self.run_id}>"

    @classmethod
    async def begun(
        cls, hf: AsyncHoldfast, input: SpawnInput, options: dict[str, Any], wait_s: float | None, *, by: str | None
    ) -> ManagedRun:
        """Started by somebody who waits `wait_s` for its end, which `first_wait` does. Whoever is aborted while it
        starts ends it as soon as it is there."""
        begun: asyncio.Future[AsyncSession] = asyncio.get_running_loop().create_future()
        work = asyncio.ensure_future(hf.run(input.command, wait=wait_s, started=begun.set_result, **options))
        aborted = None
        while not (work.done() or begun.done()):
            try:
                await asyncio.wait({work, begun}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError as abort:
                aborted = abort
        if aborted is not None and not begun.done():
            work.exception()  # it never began, and nobody is left to be told why
            raise aborted
        run = cls(begun.result() if begun.done() else work.result(), input, by=by)
        run.reused = run.run_id != options["name"]
        if run.reused:
            work.cancel()  # whoever started it waits for it
            work.add_done_callback(_looked_at)
        else:
            run._foreground = work
        if aborted is not None:
            if not run.reused:
                await run.begin_cancel()
            raise aborted
        return run

    async def first_wait(self) -> None:
        """The wait that its start asked for. Aborted, the run is cancelled."""
        work, self._foreground = self._foreground, None
        if work is None:
            return
        try:
            self.session = await asyncio.shield(work)
        except asyncio.CancelledError:
            work.cancel()
            await self.begin_cancel()
            raise

    async def begin_cancel(self) -> None:
        """Ask for its end, and do not wait for it: its runner does the rest. Who wants it gone does not want to hear
        of it again."""
        await asyncio.wait({self._stop(untold=True)}, timeout=_ASKED_S)

    async def wait(self) -> RunExit:
        """How it ended. Settles in any case: also where something of it cannot be killed."""
        if self._exit is None:
            self._exit = await self._settled()
        return self._exit

    async def cancel(self, reason: str = MANUAL_CANCEL, *, force: bool = False) -> None:
        """Run the ladder; with `force` its last rung alone. After its end this changes nothing."""
        check_reason(reason)
        if self._exit is None:
            await asyncio.shield(self._stop(force=force))

    async def wait_for_extinction(self) -> None:
        """Until nothing of its tree lives."""
        await self.session.wait(extinct=True)

    @property
    def is_cancelled(self) -> bool:
        """Was its end asked for here?"""
        return self._stopping is not None and not self._stopping.cancelled()

    def detach(self) -> None:
        """Tell the listeners nothing more; the run goes on."""
        if self._telling is not None:
            self._telling.cancel()

    def _stop(self, *, untold: bool = False, force: bool = False) -> asyncio.Task[Stopped]:
        if self._stopping is None or self._stopping.done() or (force and not self._forced):
            self._forced = force
            self._stopping = asyncio.ensure_future(self._stopped(untold, force))
            self._stopping.add_done_callback(_looked_at)
        return self._stopping

    async def _stopped(self, untold: bool, force: bool) -> Stopped:
        if untold:
            with contextlib.suppress(HoldfastError):
                await self.session.update(notify="never")
        return await self.session.stop(grace=0 if force else None, by=self._by)

    async def _settled(self) -> RunExit:
        spec = (await self.session.records())["spec"]
        longest_s: float = spec["grace"] + SETTLE_MS / 1000 + _MARGIN_S
        while self.session.state not in FINAL_STATES:
            if left := self._survivors():
                return await self._unconfirmed(left)
            ending = asyncio.ensure_future(self._end_comes(longest_s))
            stopping = {self._stopping} if self._stopping is not None and not self._stopping.done() else set()
            try:
                await asyncio.wait({ending, *stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not ending.done():
                    continue  # the stop is over, and may have left something
                await ending
            finally:
                if not ending.done():
                    ending.cancel()
                    await asyncio.gather(ending, return_exceptions=True)
            if self.session.state not in FINAL_STATES and self._stop_left_s(longest_s) <= 0:
                # Its end would be on record if the command itself were gone.
                return await self._unconfirmed([{"pid": self.session.pid, "command": self.session.command}])
        if self._telling is not None:
            await asyncio.gather(self._telling, return_exceptions=True)
        out, err = await self.captured()
        return exit_of(self.session, out, err)

    async def _end_comes(self, longest_s: float) -> None:
        """Not to be reached settles nothing: that is reported, and passes or ends."""
        try:
            await self.session.wait(timeout=max(0.0, self._stop_left_s(longest_s)))
        except Unreachable:
            await self.session.refresh()

    def _stop_left_s(self, longest_s: float) -> float:
        """How long the stop that somebody asked for may still take. Without one: one that begins right now is then
        seen before its time is over."""
        began = at_ms((self.session.stopping or {}).get("since"))
        now = at_ms(self.session.observed_at)
        return longest_s if began is None or now is None else longest_s - (now - began) / 1000

    def _survivors(self) -> list[dict[str, object]]:
        done = self._stopping
        if done is None or not done.done() or done.cancelled() or done.exception() is not None:
            return []
        return [dict(each) for each in done.result().survivors]

    async def _unconfirmed(self, survivors: list[dict[str, object]]) -> RunExit:
        """All that could be done was done, and something still lives."""
        self.detach()
        await self.session.refresh()
        began, now = at_ms(self.session.started_at), at_ms(self.session.observed_at)
        out, err = await self.captured()
        why = await self._why_it_is_stopped()
        return RunExit(
            why,
            exit_signal="SIGKILL",
            timed_out=why != MANUAL_CANCEL,
            no_output_timed_out=why == NO_OUTPUT_TIMEOUT,
            duration_ms=now - began if began is not None and now is not None else 0,
            stdout=out,
            stderr=err,
            survivors=survivors,
            output_complete=False,
            requested_by=self._by,
        )

    async def _why_it_is_stopped(self) -> str:
        """The end is not on record, and so its reason is not: but who asked is known, and which limits there are."""
        if (self.session.stopping or {}).get("by") != LIMIT:
            return MANUAL_CANCEL
        limit_s = (await limits(self.session)).get("timeout")
        asked, stopped = at_ms(self.session.created_at), at_ms((self.session.stopping or {}).get("since"))
        late = limit_s is not None and asked is not None and stopped is not None and stopped - asked >= limit_s * 1000
        return OVERALL_TIMEOUT if late else NO_OUTPUT_TIMEOUT

    async def captured(self) -> tuple[str, str]:
        """The end of what it printed on each stream, up to its own end; what survivors print later is not its."""
        if not self._capture:
            return "", ""
        ends = await recorded_ends(self.session) or self.session.ends
        texts = {"stdout": "", "stderr": ""}
        for stream, end in ends.items():
            texts[_SERVED[stream]] = await _last(self.session, stream, end, self._cap)
        return texts["stdout"], texts["stderr"]


def check_reason(reason: str) -> None:
    """Every other reason is what its runner saw, and nobody else can say it."""
    if reason != MANUAL_CANCEL:
        raise BadArgument("reason", f"{str(reason)[:40]!a} is none that a cancel has", f"give {MANUAL_CANCEL}")


def _looked_at(done: asyncio.Task[Any]) -> None:
    """Nobody may be left to hear of what went wrong; that is no news to the event loop."""
    if not done.cancelled():
        done.exception()


async def recorded_ends(session: AsyncSession) -> dict[str, int] | None:
    """Where each stream stood when the command ended; None where that is not on record."""
    ended = (await session.records())["exit"]
    ends: dict[str, int] | None = None if ended is None else ended.get("ends")
    return ends


async def _last(session: AsyncSession, stream: str, end: int, cap: int) -> str:
    # A character has at most four bytes.
    begin = max(0, end - 4 * cap)
    decoder, cursor = Decoder(), begin
    parts: list[str] = []
    while cursor < end:
        page = await session.read(since=f"{stream}:{cursor}", stream=stream)
        for _, offset, data in page.chunks:
            if not parts and offset > 0:
                data = data.lstrip(bytes(range(0x80, 0xC0)))  # the rest of a character whose beginning is not here
            parts.append(decoder.feed(data[: max(0, end - offset)]))
            cursor = offset + len(data)
        if not page.chunks:
            break
    text = "".join(parts) + decoder.flush()
    return text if begin == 0 and len(text) <= cap else CUT + text[-cap:]


async def _tell(session: AsyncSession, listeners: dict[str, Listener]) -> None:
    """What it prints, as it comes, to who listens. A listener that raises is told nothing more; the run goes on."""
    decoders = {stream: Decoder() for stream in listeners}
    with contextlib.suppress(HoldfastError):
        async for page in session.follow():
            # Read before the end was on record, it is of before the end.
            ends = await recorded_ends(session)
            for stream, offset, data in page.chunks:
                served = _SERVED[stream]
                mine = data if ends is None else data[: max(0, ends.get(stream, 0) - offset)]
                if served in listeners and mine and (text := decoders[served].feed(mine)):
                    listeners[served](text)
    for served, decoder in decoders.items():
        if rest := decoder.flush():
            listeners[served](rest)
