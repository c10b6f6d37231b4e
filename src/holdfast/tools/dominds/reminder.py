"""The record of one daemon as the agent sees it. It has no file of its own: it is what the session's files say."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from ...model import EXITED, FINAL_STATES, LOST, RUNNING, STARTING
from ...runner import clock
from ...runner.commandline import command_text
from ...signals.records import Note, Signal
from ...signals.styles.dominds import event_id
from ...signals.words import spell
from . import sessions, wording
from .answers import cause, gap_lines
from .streams import STREAMS, last_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ...host.aio import AsyncSession
    from .family import Dominds
    from .streams import View
    from .wording import Texts

# An ending that whoever waited for it has not confirmed yet may be on its way to him. It takes a second at most.
_ON_ITS_WAY_S = 2.0


def is_reminder(session: AsyncSession, told: Sequence[Signal | Note], *, receipt: bool) -> bool:
    """Does the agent have to be reminded of it? Not of what a call told, nor of what a call still waits for. `receipt`:
    the call that started it waits no more."""
    if session.state not in FINAL_STATES:
        return _age_s(session.created_at) >= sessions.wait_s(session)
    if session.exit is not None and session.exit.cause == "spawn_error":
        return False
    if sessions.survivors(session) or _left_somebody(told):
        return True
    ended = next((each.seq for each in told if isinstance(each, Signal) and each.ends_session), None)
    notes = [each for each in told if isinstance(each, Note)]
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
    async def of(cls, tools: Dominds, session: AsyncSession, told: Sequence[Signal | Note]) -> Reminder:
        state = (await session.records())["state"] or {}
        views = [await last_lines(session, stream, sessions.view_lines(session)) for stream in STREAMS]
        shown = tools.shown(session.id)
        command = state.get("command") or {}
        completed = session.state in FINAL_STATES and not sessions.survivors(session)
        fields: dict[str, Any] = {
            "kind": "daemon",
            "sessionId": session.id,
            "daemonPid": session.pid,
            "pid": session.pid,
            "runnerPid": session.runner_pid,
            "runnerEndpoint": session.endpoint,
            "initialCommandLine": session.command,
            "shell": sessions.shell(session),
            "daemonCommandLine": command_text(command.get("line") or []),
            "startTime": session.started_at,
            "bootId": state.get("boot"),
            "kernelStartTime": command.get("start"),
            "processGroupId": state.get("pgid"),
            "originDialogId": session.labels.get("dialog"),
            "originRootId": session.labels.get("root"),
            "completed": completed,
            "lastUpdated": _last_updated(session, told),
            "state": session.state,
            "exitCode": None if session.exit is None else session.exit.code,
            "exitSignal": None if session.exit is None else session.exit.signal,
            "cause": None if session.exit is None else session.exit.cause,
            "requestedBy": None if session.exit is None else session.exit.by,
            "survivors": sessions.survivors(session),
            "survivorsMore": sessions.survivors_more(session),
            "streams": {
                view.stream: {
                    "end": session.ends.get(view.stream, 0),
                    "shown": shown.get(view.stream, 0),
                    "linesScrolledOut": view.scrolled,
                    "droppedBefore": view.dropped_before,
                }
                for view in views
            },
            "update": wording.read_call(session.pid),
        }
        if not completed:
            fields["delete"] = wording.stop_call(session.pid)
        if session.state in FINAL_STATES:
            fields.update(tools.kept().get(session.id, "told") or {})
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
        """Has it ended, and does nothing of it live?"""
        return bool(self._fields["completed"])

    @property
    def fingerprint(self) -> tuple[Any, ...]:
        left = len(self._fields["survivors"]) + self._fields["survivorsMore"]
        return (self.state, left, *sorted(self._session.ends.items()))

    def to_json(self) -> dict[str, Any]:
        return dict(self._fields)

    def message(self) -> dict[str, str]:
        """For a transcript: role user, marked as of the environment."""
        return {"role": "user", "role_hint": "environment", "content": self.render()}

    def render(self) -> str:
        """The same bytes as long as nothing changed: how long it has run is told as of the last change."""
        session, texts = self._session, self._texts
        command, uptime = wording.one_line(session.command), self._uptime()
        why = cause(session, texts)
        said = [
            self.summary(),
            texts(f"advice_{self._aspect()}", stop=wording.stop_call(session.pid)),
            "",
            texts("snapshot_pid", pid=session.pid),
            texts("snapshot_command", command=command),
            texts("snapshot_shell", shell=sessions.shell(session)),
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
            said += [wording.NO_OUTPUT] if view.empty else wording.fenced(text)
        return "\n".join(said)

    def summary(self) -> str:
        """Its first line."""
        session = self._session
        left = len(sessions.survivors(session)) + sessions.survivors_more(session)
        summary = wording.SUMMARIES[self._aspect()].format(command=wording.one_line(session.command), count=left)
        return wording.REMINDER.format(id=session.id, summary=summary, pid=session.pid, uptime=self._uptime())

    def _uptime(self) -> str:
        return spell(max(0.0, _seconds_between(self.started_at, self._fields["lastUpdated"])))

    def _aspect(self) -> str:
        if self.state == EXITED and self._fields["survivors"]:
            return "survived"
        return RUNNING if self.state == STARTING else self.state

    def _status(self) -> str:
        exit = self._session.exit
        if self.state in (STARTING, RUNNING):
            return wording.STATUS_RUNNING
        if self.state != EXITED or exit is None:
            return self._texts(f"status_{self.state}")
        code = "null" if exit.code is None else exit.code
        return wording.STATUS_EXITED.format(code=code, signal=exit.signal or "null")


def told_facts(signal: Signal, at: str) -> dict[str, str]:
    """What a reminder says of a wake-up that was delivered."""
    return {"exitWakeEventId": event_id(signal), "exitWakeNotifiedAt": at}


def _left_somebody(told: Sequence[Signal | Note]) -> bool:
    return any(isinstance(each, Signal) and each.variant == "survivors" and each.fields.get("pids") for each in told)


def _last_updated(session: AsyncSession, told: Sequence[Signal | Note]) -> str:
    """The last change that can be seen: it began to be a daemon, it printed, it ended, its last process went."""
    changes = [session.last_output_at, session.ended_at]
    if session.state not in FINAL_STATES and session.started_at is not None:
        began = datetime.fromisoformat(session.started_at).timestamp() + sessions.wait_s(session)
        changes.append(clock.rfc3339(round(began * 1e9)))
    if session.state == LOST or session.exit is not None:
        changes += [each.at for each in told if isinstance(each, Signal) and each.variant in ("lifecycle", "survivors")]
    return max(filter(None, changes), default=session.started_at or session.created_at or "")


def _seconds_between(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() if start and end else 0.0


def _age_s(at: str | None) -> float:
    return 0.0 if at is None else clock.wall_ns() / 1e9 - datetime.fromisoformat(at).timestamp()
