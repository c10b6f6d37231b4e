"""A run as the tools show it: which are listed, and what is said of each."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...model import FINAL_STATES, PENDING, RUNNING, STALE, UNREACHABLE
from ...runner import tree
from ...signals.records import Note
from . import reading, runs, settings, texts
from .runs import SCOPE_LABEL, at_ms
from .scopes import label

if TYPE_CHECKING:
    from typing import Any

    from ...host.aio import AsyncSession
    from ...model import Snapshot
    from .toolset import OpenClaw

# What is kept about a session, beside how far its output was polled.
ROW, POSITION, EMPTY_POLLS, INPUT_CLOSED = "row", "position", "empty", "eof"
# Why it has no row: its call gave all of it; the agent wants to see it no more. And why it has one all the same: its
# call let go of it in the moment of its end.
TOLD, CLEARED, REMOVED, YIELDED = "told", "cleared", "removed", "yielded"


async def listed(tools: OpenClaw) -> list[AsyncSession]:
    """Newest first: what runs in the background, and what ended there lately."""
    found = await with_row(tools)
    running = [each for each in found if each.state not in FINAL_STATES and is_backgrounded(tools, each)]
    since = now_ms() - tools.settings.rows_ms
    over = [each for each in found if each.state in FINAL_STATES and runs.reason(each) != runs.SPAWN_ERROR]
    over = [each for each in over if ended_at_ms(each) >= since or (each.exit and each.exit.survivors)]
    recent = sorted([each for each in over if not await was_told_in_its_call(tools, each)], key=ended_at_ms)
    recent = recent[-settings.ROWS :]
    return sorted([*running, *recent], key=lambda each: (each.created_at or "", each.id), reverse=True)


async def with_row(tools: OpenClaw) -> list[AsyncSession]:
    """Of all that there are, those of which nothing is kept that takes their row; `was_told_in_its_call` takes more."""
    hidden = {id for id, why in tools.notes.all(ROW).items() if why != YIELDED}
    return [each for each in await of_scope(tools, all=True) if each.id not in hidden]


async def was_told_in_its_call(tools: OpenClaw, session: AsyncSession) -> bool:
    """The call that started it gave its end: known by the caller, who lives, or by what it told the runner."""
    if session.state not in FINAL_STATES:
        return False
    if runs.BACKGROUND_LABEL in session.labels or (session.exit and session.exit.survivors):
        return False
    if tools.notes.get(session.id, ROW) == YIELDED:
        return False
    return not runs.is_backgrounded(session) or any(
        isinstance(each, Note) and each.answered is not None for each in await session.told()
    )


def is_backgrounded(tools: OpenClaw, session: Snapshot) -> bool:
    """Its call let go of it, or its caller is gone."""
    return runs.is_backgrounded(session) or tools.notes.get(session.id, ROW) == YIELDED


async def of_scope(tools: OpenClaw, *, all: bool = False) -> list[AsyncSession]:
    return await tools.hf.sessions(all=all, owner=tools.owner, labels={SCOPE_LABEL: label(tools.owner)})


async def row(tools: OpenClaw, session: AsyncSession) -> dict[str, Any]:
    tail, more = await reading.last_chars(session, settings.TAIL_CHARS)
    found: dict[str, Any] = {
        "sessionId": runs.run_id(session),
        "status": status(session),
        "startedAt": at_ms(session.started_at),
        "runtimeMs": runtime_ms(session),
        "cwd": session.cwd,
        "command": session.command,
        "name": short_name(session.command),
        "tail": tail,
        "truncated": more or any(session.dropped_before.values()),
    }
    if session.state in FINAL_STATES:
        return {**found, **ended_facts(session), "endedAt": at_ms(session.ended_at)}
    return {**found, "pid": session.pid, **await live_facts(tools, session), "health": health(session)}


def line(found: dict[str, Any]) -> str:
    marks = ["overall-timeout"] if found.get("exitReason") == runs.OVERALL_TIMEOUT else []
    marks += ["input-wait"] if found.get("waitingForInput") else []
    said = "".join(f" [{mark}]" for mark in marks)
    took = texts.duration(found["runtimeMs"])
    return f"{found['sessionId']} {found['status']:<9} {took}{said} :: {found['name']}"


async def live_facts(tools: OpenClaw, session: AsyncSession) -> dict[str, Any]:
    """Of a run that goes on."""
    spec = await runs.limits(session)
    writable = session.tty or (spec.get("stdin") == "open" and spec.get("input_bytes") is None)
    # Who would write to it is gone with the runner.
    writable = writable and session.state != STALE and not tools.notes.get(session.id, INPUT_CLOSED)
    last = at_ms(session.last_output_at)
    idle_ms = now_ms() - (last or at_ms(session.started_at) or now_ms())
    blocked = session.needs_input is not None
    quiet = writable and idle_ms >= tools.settings.input_wait_ms
    facts: dict[str, Any] = {
        "stdinWritable": writable,
        "waitingForInput": bool(writable and (blocked or quiet)),
        "idleMs": max(0, idle_ms),
        "lastOutputAt": last,
        "timeoutAtMs": timeout_at_ms(session, spec),
    }
    if facts["waitingForInput"]:
        facts["inputWaitEvidence"] = "blocked" if blocked else "idle"
    return facts


def ended_facts(session: Snapshot) -> dict[str, Any]:
    assert session.exit is not None
    why = runs.reason(session)
    facts: dict[str, Any] = {
        "exitCode": session.exit.code,
        "exitSignal": session.exit.signal,
        "exitReason": why,
        "timedOut": why in (runs.OVERALL_TIMEOUT, runs.NO_OUTPUT_TIMEOUT),
        "noOutputTimedOut": why == runs.NO_OUTPUT_TIMEOUT,
    }
    if session.exit.survivors:
        facts["survivors"] = [dict(each) for each in session.exit.survivors]
    if session.exit.oom:
        facts["oom"] = True
    return facts


def left_behind(session: Snapshot) -> str:
    """What is to be said of its survivors; those that a stop is still killing are not left behind."""
    assert session.exit is not None
    named = texts.processes(session.exit.survivors)
    return texts.survivors_dying(named) if session.stopping else texts.survivors_left(named)


def status(session: Snapshot) -> str:
    return RUNNING if session.status == PENDING else session.status


def health(session: Snapshot) -> str | None:
    return session.state if session.state in (UNREACHABLE, STALE) else session.health


async def is_finalizing(session: AsyncSession) -> bool:
    """Its process is gone, and its end is not on record yet. Of another pid namespace nothing can be told."""
    if session.state != RUNNING or session.pid is None:
        return False
    state = (await session.records())["state"] or {}
    return state.get("pidns") == tree.pid_namespace() and tree.look(session.pid) is None


def timeout_at_ms(session: Snapshot, spec: dict[str, Any]) -> int | None:
    """The limit runs from the request."""
    asked = at_ms(session.created_at)
    return None if spec.get("timeout") is None or asked is None else asked + round(spec["timeout"] * 1000)


def runtime_ms(session: Snapshot) -> int:
    began = at_ms(session.started_at)
    return 0 if began is None else max(0, (at_ms(session.ended_at) or now_ms()) - began)


def ended_at_ms(session: Snapshot) -> int:
    return at_ms(session.ended_at) or at_ms(session.last_output_at) or at_ms(session.created_at) or 0


def short_name(command: str) -> str:
    """The verb and its first word that is no option."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    target = next((word for word in words[1:] if not word.startswith("-")), "")
    return texts.one_line(" ".join([*words[:1], target]), settings.NAME_CHARACTERS)


def now_ms() -> int:
    return round(datetime.now(UTC).timestamp() * 1000)
