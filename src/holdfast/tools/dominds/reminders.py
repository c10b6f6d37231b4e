"""Daemons as the agent sees them, and one message for those that end together."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from ...core import clock
from ...core.processes import command_text
from ...errors import HoldfastError
from ...model import EXITED, FINAL_STATES, LOST, RUNNING, STARTING
from ...signals.consumer import AsyncBatch
from ...signals.items import Limits
from ...signals.lines import Note, Signal
from ...signals.loop import Turns
from ...signals.render import render
from ...signals.wording import spell
from ..owner_sessions import elapsed_s
from . import sessions, words
from .sessions import STREAMS, cause, gap_lines, last_lines
from .style import DrainStyle as Style
from .style import event_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Any

    from ...sessions.aio import AsyncSession
    from ...signals.render import Message
    from ...signals.waker import Waker
    from .sessions import View
    from .toolset import Dominds
    from .words import Texts


# The record of one daemon as the agent sees it. It has no file of its own: it is computed from the session's files.


# The call that waits for an end confirms it within a second; until then the end may still be on its way to it.
_ON_ITS_WAY_S = 2.0


def is_reminder(session: AsyncSession, signals: Sequence[Signal | Note], *, receipt: bool) -> bool:
    """Whether the agent needs a reminder: not of an end that a call reported, nor while a call still waits for it.
    `receipt`: the call that started it has stopped waiting."""
    if session.state not in FINAL_STATES:
        wait_s: float = sessions.start_fact(session, "wait_s", sessions.WAIT_S)
        return _age_s(session.created_at) >= wait_s
    if session.exit is not None and session.exit.cause == "spawn_error":
        return False
    recorded = [each for each in signals if isinstance(each, Signal)]
    left = any(each.variant == "survivors" and each.fields.get("pids") for each in recorded)
    if left or sessions.survivors(session)[0]:
        return True
    ended = next((each.seq for each in recorded if each.ends_session), None)
    notes = [each for each in signals if isinstance(each, Note)]
    if ended is not None and any(note.answered == ended for note in notes):
        return False
    undecided = session.state == EXITED and not any(note.queued == ended for note in notes)
    return receipt or not undecided or _age_s(session.ended_at) >= _ON_ITS_WAY_S


class Reminder:
    """`to_json` has all fields, `render` the message for the agent, `fingerprint` changes when that does."""

    def __init__(
        self, fields: dict[str, Any], views: Sequence[View], session: AsyncSession, texts: Texts, limit: int
    ) -> None:
        self._fields = fields
        self._views = views
        self._session = session
        self._texts = texts
        self._limit = limit

    @classmethod
    async def of(cls, tools: Dominds, session: AsyncSession, signals: Sequence[Signal | Note]) -> Reminder:
        state = (await session.records())["state"] or {}
        lines = sessions.start_fact(session, "lines", sessions.VIEW_LINES)
        views = [await last_lines(session, stream, lines) for stream in STREAMS]
        shown = tools.shown(session.id)
        command = state.get("command") or {}
        left, more = sessions.survivors(session)
        completed = session.state in FINAL_STATES and not left
        exit = session.exit
        fields: dict[str, Any] = {
            "kind": "daemon",
            "sessionId": session.id,
            "daemonPid": session.pid,
            "pid": session.pid,
            "runnerPid": session.runner_pid,
            "runnerEndpoint": session.endpoint,
            "initialCommandLine": session.command,
            "shell": sessions.start_fact(session, "shell", ""),
            "daemonCommandLine": command_text(command.get("line") or []),
            "startTime": session.started_at,
            "bootId": state.get("boot"),
            "kernelStartTime": command.get("start"),
            "processGroupId": state.get("pgid"),
            "originDialogId": session.labels.get("dialog"),
            "originRootId": session.labels.get("root"),
            "completed": completed,
            "lastUpdated": _last_updated(session, signals),
            "state": session.state,
            "exitCode": exit and exit.code,
            "exitSignal": exit and exit.signal,
            "cause": exit and exit.cause,
            "requestedBy": exit and exit.by,
            "survivors": left,
            "survivorsMore": more,
            "streams": {
                view.stream: {
                    "end": session.ends.get(view.stream, 0),
                    "shown": shown.get(view.stream, 0),
                    "linesScrolledOut": view.scrolled,
                    "droppedBefore": view.dropped_before,
                }
                for view in views
            },
            "update": words.read_call(session.pid),
        }
        if not completed:
            fields["delete"] = words.stop_call(session.pid)
        if session.state in FINAL_STATES:
            fields.update(tools.kept.get(session.id, "told") or {})
        return cls(fields, views, session, tools.texts, tools.reminder_chars)

    def __repr__(self) -> str:
        return f"<Reminder {self.id} of PID {self.pid}, {self.state}>"

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def pid(self) -> int | None:
        return self._session.pid

    @property
    def state(self) -> str:
        return self._session.state

    @property
    def started_at(self) -> str:
        return self._session.started_at or self._session.created_at or ""

    @property
    def completed(self) -> bool:
        """Whether it has ended and none of its processes lives."""
        return bool(self._fields["completed"])

    @property
    def fingerprint(self) -> tuple[Any, ...]:
        left = len(self._fields["survivors"]) + self._fields["survivorsMore"]
        return (self.state, left, *sorted(self._session.ends.items()))

    def to_json(self) -> dict[str, Any]:
        return dict(self._fields)

    def message(self) -> dict[str, str]:
        """For a transcript: role user, marked as coming from the environment."""
        return {"role": "user", "role_hint": "environment", "content": self.render()}

    def render(self) -> str:
        """The same bytes as long as nothing changed: its uptime is that of the last change."""
        session, texts = self._session, self._texts
        command, uptime = words.one_line(session.command), self._uptime()
        why = cause(session, texts)
        said = [
            self.summary(),
            texts(f"advice_{self._aspect()}", stop=words.stop_call(session.pid)),
            "",
            texts("snapshot_pid", pid=session.pid),
            texts("snapshot_command", command=command),
            texts("snapshot_shell", shell=self._fields["shell"]),
            texts("snapshot_status", status=self._status()),
            *([texts("cause", cause=why)] if why else []),
            texts("snapshot_uptime", uptime=uptime),
            texts("snapshot_started", started=session.started_at),
        ]
        said += [
            texts("snapshot_scrolled", stream=view.stream, count=view.scrolled) for view in self._views if view.scrolled
        ]
        said += gap_lines(session, self._views, texts)
        for view in sorted(self._views, key=lambda each: each.stream != "stderr"):
            text, cut = view.tail(self._limit)
            heading = texts("snapshot_stream", stream=view.stream)
            said += ["", f"{heading} {texts('cut', limit=self._limit)}" if cut else heading]
            said += [words.NO_OUTPUT] if view.empty else words.fenced(text)
        return "\n".join(said)

    def summary(self) -> str:
        """Its first line."""
        session = self._session
        left = len(self._fields["survivors"]) + self._fields["survivorsMore"]
        summary = words.SUMMARIES[self._aspect()].format(command=words.one_line(session.command), count=left)
        return words.REMINDER.format(id=session.id, summary=summary, pid=session.pid, uptime=self._uptime())

    def _uptime(self) -> str:
        end = self._fields["lastUpdated"]
        return spell(elapsed_s(self.started_at, end) if end else 0.0)

    def _aspect(self) -> str:
        if self.state == EXITED and self._fields["survivors"]:
            return "survived"
        return RUNNING if self.state == STARTING else self.state

    def _status(self) -> str:
        exit = self._session.exit
        if self.state in (STARTING, RUNNING):
            return words.STATUS_RUNNING
        if self.state != EXITED or exit is None:
            return self._texts(f"status_{self.state}")
        code = "null" if exit.code is None else exit.code
        return words.STATUS_EXITED.format(code=code, signal=exit.signal or "null")


def _last_updated(session: AsyncSession, signals: Sequence[Signal | Note]) -> str:
    """The last visible change: it became a daemon, it printed, it ended, or its last process ended."""
    changes = [session.last_output_at, session.ended_at]
    began = clock.epoch(session.started_at)
    if session.state not in FINAL_STATES and began is not None:
        began += sessions.start_fact(session, "wait_s", sessions.WAIT_S)
        changes.append(clock.rfc3339(round(began * 1e9)))
    if session.state == LOST or session.exit is not None:
        changes += [
            each.at for each in signals if isinstance(each, Signal) and each.variant in ("lifecycle", "survivors")
        ]
    return max(filter(None, changes), default=session.started_at or session.created_at or "")


def _age_s(at: str | None) -> float:
    if at is None:
        return 0.0
    then = clock.epoch(at)
    return math.inf if then is None else clock.wall_ns() / 1e9 - then  # a damaged record


# Wake-ups: one message to a dialog for all daemons that end together, each end once.
#
# The host says which dialog can take a message now, and puts the message there. Where none can, nothing is claimed.


if TYPE_CHECKING:
    # From the dialog that a daemon was started in to the dialog that can take its end now: the same, else an idle one
    # of the same agent; None if there is none.
    Place = Callable[[str | None], str | None]
    Inject = Callable[[str, Message], Awaitable[object]]

# The first end waits this long for others.
GATHER_S = 0.5
# The pause after a failure of the index.
_AGAIN_S = 0.5
_PEEKED = 1000


class Wakeups:
    """The half of a host's loop that is about signals: consumer, waker and gate."""

    def __init__(self, tools: Dominds, place: Place, inject: Inject) -> None:
        self._tools = tools
        self.place = place
        self._inject = inject
        self._consumer = tools.consumer()
        self._freed = asyncio.Event()
        self.waker: Waker = self._consumer.waker()
        self._turns = Turns(self)
        # The last failure. Its signals were released and come again.
        self.trouble: Exception | None = None

    async def deliver(self) -> int:
        """Deliver the ends that are due, if a dialog can take them. Returns the number of turns."""

        async def turn(held: object) -> None:
            assert isinstance(held, AsyncBatch)
            await self._deliver(held)

        return await self._turns.run(turn)

    async def _deliver(self, batch: AsyncBatch) -> None:
        """One message for each dialog. Claimed signals that are not ends are settled with the turn."""
        by_dialog: dict[str | None, list[Signal]] = {}
        for signal in batch:
            if signal.ends_session:
                by_dialog.setdefault(self.place(origin(signal)), []).append(signal)
        for dialog, signals in by_dialog.items():
            ids = [signal.id for signal in signals]
            message = render(signals, Style(self._tools.place), limits=Limits(self._tools.hf.config))
            if message and dialog is None:
                await batch.unclaim(ids)
                continue
            refused = await self._put(dialog, signals, message) if message and dialog is not None else ""
            if refused:
                await batch.release(refused, ids=ids)
            else:
                await batch.settle(ids)

    async def _put(self, dialog: str, signals: Sequence[Signal], message: Message) -> str:
        """Put one message into one dialog. Returns why that failed, or an empty text."""
        try:
            await self._inject(dialog, message)
        except Exception as problem:  # noqa: BLE001  whatever it is, the message comes again
            self.trouble = problem
            return f"{type(problem).__name__}: {problem}"
        try:
            for signal in signals:
                if signal.session is not None:
                    facts = {"exitWakeEventId": event_id(signal), "exitWakeNotifiedAt": clock.now_text()}
                    self._tools.kept.put(signal.session, "told", facts)
        except HoldfastError as problem:
            self.trouble = problem  # the message is delivered and must not come again
        return ""

    async def serve(self) -> None:
        """Wait and deliver until cancelled. A failed injection or index access is tried again later."""
        while True:
            try:
                await self._serve_once()
            except HoldfastError as problem:
                self.trouble = problem
                await asyncio.sleep(_AGAIN_S)

    async def _serve_once(self) -> None:
        await self.waker
        self._freed.clear()
        turns = await self.deliver()
        ends = [] if turns else await self._ends()
        if ends and not self._placed(ends):
            await self._freed.wait()

    def freed(self) -> None:
        """A dialog can take a message again."""
        self._freed.set()

    def close(self) -> None:
        self.waker.close()

    # The source of the gate.

    def clear(self) -> None:
        self.waker.clear()

    def make_readable(self) -> None:
        self.waker.make_readable()

    async def pending(self) -> int:
        return len(await self._due())

    async def take(self) -> AsyncBatch | None:
        due = await self._due()
        if not due:
            return None
        await asyncio.sleep(min(GATHER_S, max(0.0, GATHER_S - _age_s(due[0].at))))
        # By now there may be no dialog left that can take it.
        return (await self._consumer.claim() or None) if await self._due() else None

    async def _due(self) -> list[Signal]:
        """The ends that a dialog can take now. Nothing is claimed."""
        return self._placed(await self._ends())

    async def _ends(self) -> list[Signal]:
        """The ends in the queue. Other signals, such as a restart, wake no dialog and are acknowledged here, because
        they would look as if no dialog were free for them."""
        waiting = await self._consumer.peek(_PEEKED)
        for signal in waiting:
            if not signal.ends_session:
                await self._consumer.ack(signal.id)
        return [signal for signal in waiting if signal.ends_session]

    def _placed(self, signals: Sequence[Signal]) -> list[Signal]:
        return [signal for signal in signals if self.place(origin(signal)) is not None]


def origin(signal: Signal) -> str | None:
    """The dialog that the session was started in."""
    labels = signal.snapshot.get("labels")
    dialog = labels.get("dialog") if isinstance(labels, dict) else None
    return dialog if isinstance(dialog, str) else None
