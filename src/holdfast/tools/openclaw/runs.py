"""A run as openclaw speaks of it: a projection of a session, made when it is asked for and kept by nobody."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from ...model import EXITED, LOST, STALE, STARTING, UNREACHABLE
from ...runner import tree
from ...runner.causes import LIMIT

if TYPE_CHECKING:
    from typing import Any

    from ...host.aio import AsyncSession
    from ...model import Snapshot

SCOPE_LABEL = "openclaw.scope"
BACKGROUND_LABEL = "openclaw.background"
KEY_LABEL = "openclaw.key"
# Under this word a session's metadata has what only this toolset knows of it.
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
_TIMEOUTS = (OVERALL_TIMEOUT, NO_OUTPUT_TIMEOUT)


@dataclass(frozen=True)
class RunRecord:
    """A copy: changing nothing changes a run."""

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
    timed_out: bool = False
    no_output_timed_out: bool = False
    survivors: list[dict[str, Any]] = field(default_factory=list)
    output_complete: bool = True
    requested_by: str | None = None


def run_id(shot: Snapshot) -> str:
    return shot.name or shot.id


def facts(shot: Snapshot) -> dict[str, Any]:
    """What the start request said of it in our words."""
    found = shot.metadata.get(METADATA)
    return found if isinstance(found, dict) else {}


async def limits(session: AsyncSession) -> dict[str, Any]:
    """What was asked for, as `update` left it."""
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
    """Why it ended; while somebody's stop is under way, that this is why it will."""
    if shot.exit is not None:
        return _REASONS.get(shot.exit.cause, "exit")
    return MANUAL_CANCEL if shot.stopping and shot.stopping.get("by") != LIMIT else None


def exit_of(shot: Snapshot, stdout: str = "", stderr: str = "") -> RunExit:
    """How a session that is over ended."""
    assert shot.exit is not None
    why = reason(shot) or "exit"
    began, ended = at_ms(shot.started_at), at_ms(shot.ended_at)
    return RunExit(
        reason=why,
        exit_code=shot.exit.code,
        exit_signal=shot.exit.signal,
        duration_ms=ended - began if began is not None and ended is not None else 0,
        stdout=stdout,
        stderr=stderr,
        timed_out=why in _TIMEOUTS,
        no_output_timed_out=why == NO_OUTPUT_TIMEOUT,
        survivors=[dict(each) for each in shot.exit.survivors],
        output_complete=shot.exit.complete,
        requested_by=shot.exit.by,
    )


def caller() -> dict[str, Any]:
    """Who waits for a run in the foreground, so that others can see whether it still may."""
    pid = os.getpid()
    return {"boot": tree.boot_id(), "pidns": tree.pid_namespace(), "pid": pid, "start": tree.start_time(pid)}


def is_backgrounded(shot: Snapshot) -> bool:
    """A run whose caller died before it let go of it is nobody's foreground any more."""
    who = facts(shot).get("caller")
    if BACKGROUND_LABEL in shot.labels or not isinstance(who, dict):
        return True
    if who.get("boot") != tree.boot_id():
        return True
    # Of another pid namespace nothing can be told: it may live.
    return who.get("pidns") == tree.pid_namespace() and not tree.same(who["pid"], who["start"])


def at_ms(text: str | None) -> int | None:
    return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1000)
