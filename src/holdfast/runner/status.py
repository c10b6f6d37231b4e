"""What a runner says about itself and its command: hello, status, and the facts of its records and signals."""

from __future__ import annotations

import time

from ..core import clock, processes, wire
from ..core.ending import bounded
from ..core.shapes import CHANGEABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import Session


VERSION = "0.2.0"

WIRE_FEATURES = (
    *("output", "write", "close_stdin", "send_signal", "stop", "wait", "update", "attach", "resize", "parts"),
    *("signals", "restart", "ring", "hold", "paste_pieces"),
)


def hello(session: Session) -> dict[str, Any]:
    return {
        "type": "hello",
        "protocol": wire.PROTOCOL,
        "version": VERSION,
        "features": list(WIRE_FEATURES),
        "identity": {"id": session.id, **_identity(session)},
        "status": status(session),
    }


def state(session: Session) -> dict[str, Any]:
    """The record that lets any host find the runner and prove every process of this session."""
    command = session.command
    assert command is not None
    return {
        "v": 1,
        **_identity(session),
        "protocol": wire.PROTOCOL,
        "version": VERSION,
        "pgid": command["pid"],
        "endpoint": session.spec["endpoint"],
        "started_at": session.started_at,
        "attempt": session.attempt.number,
        "desired": session.desired.facts(),
        "changed": session.changed,
        **({} if session.restarts is None else {"attempts": session.restarts.attempts}),
        **session.features.facts(),
        **({} if session.terminal is None else {"tty": session.terminal.identity()}),
    }


def end_extras(session: Session) -> dict[str, Any]:
    """What both records of the end, the signal and `exit.json`, say beside the exit."""
    exit = session.exit or {}
    return {**session.features.ended(), **({"start_limit": True} if exit.get("start_limit") else {})}


def exit_facts(session: Session) -> dict[str, Any]:
    """The fields of `exit.json` beside the exit and the log."""
    used, stopping, ended = session.tree.rusage, session.attempt.stopping, session.signals.end_record
    # The signal of the end follows at once: its number is known. No other may be emitted between the two
    # (`exit_sequence`).
    seq = session.signals.seq + 1 if ended is None else int(ended["seq"])
    facts = {
        "started_at": session.started_at,
        "rusage": used and {"user_s": used.ru_utime, "system_s": used.ru_stime, "max_rss_kb": used.ru_maxrss},
        "rung": stopping and stopping.rung,
        "stopping": stopping.facts() if stopping is not None and stopping.answer is None else None,
        "warnings": session.warnings,
        "last_output_at": last_output_at(session),
        "attempt": session.attempt.number,
        "signal_id": f"{session.id}.{seq}",
        **end_extras(session),
        "desired": session.desired.facts(),
        **session.features.last(),
    }
    if session.restarts is not None:
        facts.update(attempts=session.restarts.attempts, failed_starts=session.restarts.failed_starts)
    return facts


def status(session: Session) -> dict[str, Any]:
    exited = session.exit is not None
    command = session.command
    terminal = session.terminal
    return {
        "state": "exited" if exited else "running" if command else "starting",
        "pid": command and command["pid"],
        "started_at": session.started_at,
        "ended_at": session.ending.at if exited else None,
        "stopping": session.stopping,
        "stopped_by_signal": session.tree.command_is_stopped(),
        "exit": session.exit,
        "error": session.ending.error,
        "last_output_at": last_output_at(session),
        "attached": {"control": 0, "observe": 0} if terminal is None else terminal.count_by_role(),
        "stdin": "open" if session.stdin.is_open else "closed",
        "warnings": session.warnings,
        "attempt": session.attempt.number,
        **_restarting(session),
        "desired": session.desired.facts(),
        "signals": session.signals.seq,
        **({"signals_blocked": session.signals.blocked} if session.signals.blocked else {}),
        **({} if session.restarts is None else {"failed_starts": session.restarts.failed_starts}),
        **session.log.facts(),
        **{name: session.current(name) for name in CHANGEABLE},
        **session.features.facts(),
        **({} if terminal is None else terminal.facts()),
    }


def snapshot(session: Session) -> dict[str, Any]:
    """The session at this moment, as its signals carry it: by value, bounded, and nothing that it printed."""
    spec, exit, command = session.spec, session.exit, session.command
    if exit is not None:
        # What is being killed right now does not count as left; what the stop leaves is named when it is over.
        exit = {**exit, "survivors": 0 if session.stopping else len(exit["survivors"]) + exit["survivors_more"]}
    facts = session.log.facts()
    feature_facts = session.features.facts()
    asks = feature_facts.get("needs_input") if session.terminal is None else session.terminal.last_question()
    command_line = processes.command_text(spec["command"])
    shot = {
        "id": session.id,
        "kind": spec["kind"],
        "name": session.current("name"),
        "description": session.current("description") or session.current("name") or command_line or session.id,
        "owner": session.current("owner"),
        "labels": session.current("labels"),
        "command": command_line,
        "cwd": spec["cwd"],
        "tty": bool(spec["tty"]),
        "size": None if session.terminal is None else [session.terminal.tty.rows, session.terminal.tty.cols],
        "state": "exited" if exit else "running" if command else "starting",
        "status": session.status,
        "stopping": session.stopping,
        "pid": command and command["pid"],
        "place": spec.get("place"),
        "attached": _attached(session),
        "created_at": spec.get("created_at"),
        "started_at": session.started_at,
        "ended_at": session.ending.at if exit else None,
        "attempt": session.attempt.number,
        "desired": session.desired.facts(),
        "exit": exit,
        "ends": facts["ends"],
        "dropped_before": facts["dropped_before"],
        "log_bytes": facts["log_bytes"],
        "last_output_at": last_output_at(session),
        "health": feature_facts.get("health"),
        # The question itself is in its own signal; other signals carry only that there is one.
        "needs_input": asks and {part: value for part, value in asks.items() if part != "line"},
        "in_process": False,
        "metadata": _metadata(session, feature_facts),
    }
    return bounded(shot)


def _attached(session: Session) -> dict[str, Any]:
    """The attached clients, and for how long no person with control typed or looked."""
    if session.terminal is None:
        return {"control": 0, "observe": 0}
    return {**session.terminal.count_by_role(), "person_idle_s": session.terminal.person_idle_s()}


def _metadata(session: Session, facts: dict[str, Any]) -> dict[str, Any]:
    """The metadata of the start request, and the facts of this kind of session."""
    metadata: dict[str, Any] = dict(session.spec.get("metadata") or {})
    if session.exit is not None:
        metadata["exit_code"] = session.exit["code"]
    if session.terminal is not None:
        metadata.update(title=session.terminal.tracker.title, alt_screen=session.terminal.tracker.alt_screen)
    monitor = facts.get("monitor")
    if monitor is not None and session.spec["kind"] == "monitor":
        metadata.update(events=monitor["count"], suppressed=monitor["suppressed"], level=monitor["level"])
        metadata.update(persistent=session.spec["monitor"]["persistent"], deadline=_deadline(session))
    if session.restarts is not None:
        metadata.update(restarts=session.attempt.number - 1, failed_starts=session.restarts.failed_starts)
    if session.spec["kind"] == "lsp":
        metadata["state"] = _server_state(session, facts)
    return metadata


def _restarting(session: Session) -> dict[str, Any]:
    """While it waits for its next attempt: the number of that attempt and when it begins."""
    if session.retry_at is None or session.exit is not None:
        return {}
    at_ns = time.time_ns() + round((session.retry_at - time.monotonic()) * 1e9)
    return {"restarting": {"attempt": session.attempt.number + 1, "at": clock.rfc3339(at_ns)}}


def _deadline(session: Session) -> str | None:
    began, limit_s = session.attempt.started_ns, session.current("timeout")
    return None if began is None or limit_s is None else clock.rfc3339(began + round(limit_s * 1e9))


def _server_state(session: Session, facts: dict[str, Any]) -> str:
    """The state as far as its runner knows; its client may know better."""
    if session.exit is not None:
        return "error" if session.status == "failed" else "stopped"
    if session.desired.state == "down":
        return "stopping"
    if session.tree.command_gone:
        return "error"
    return "running" if (facts.get("ready") or {}).get("ok") else "starting"


def has_ended(session: Session) -> wire.Problem:
    """The error for a request that needs a running command."""
    exit = session.exit or {"code": None, "signal": None}
    return wire.Problem(
        "session-ended",
        f"session {session.id} has ended",
        id=session.id,
        code=exit["code"],
        signal=exit["signal"],
        ended_at=session.ending.at,
    )


def last_output_at(session: Session) -> str | None:
    last = session.log.last_output_wall_ns
    return None if last is None else clock.rfc3339(last)


def _identity(session: Session) -> dict[str, Any]:
    return {"nonce": session.nonce, **session.identity, "command": session.command}
