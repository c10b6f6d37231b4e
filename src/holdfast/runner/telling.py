"""What a runner says about itself and its command: hello, status, and the state record."""

from __future__ import annotations

from . import clock, jsontext, wire
from .commandline import command_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .life import Life

VERSION = "0.1.0"

# What `update` may change while the command runs.
CHANGEABLE = (
    *("name", "owner", "labels", "description", "notify", "notify_people"),
    *("timeout", "idle_timeout", "ttl", "soft", "lifetime"),
)
FEATURES = (
    *("output", "write", "close_stdin", "send_signal", "stop", "wait", "update", "attach", "resize", "parts"),
    *("signals", "restart", "ring", "hold", "paste_pieces"),
)
# A snapshot in a signal stays below this: what may be long goes first.
_SNAPSHOT_MAX_BYTES = 4096


def hello(life: Life) -> dict[str, Any]:
    return {
        "type": "hello",
        "protocol": wire.PROTOCOL,
        "version": VERSION,
        "features": list(FEATURES),
        "identity": {"id": life.id, **_identity(life)},
        "status": status(life),
    }


def state(life: Life) -> dict[str, Any]:
    """The record that lets any host find the runner and prove every process of this session."""
    command = life.command
    assert command is not None
    return {
        "v": 1,
        **_identity(life),
        "protocol": wire.PROTOCOL,
        "version": VERSION,
        "pgid": command["pid"],
        "endpoint": life.spec["endpoint"],
        "started_at": life.started_at,
        "attempt": life.attempt.number,
        "desired": life.desired.facts(),
        "changed": life.changed,
        **({} if life.restarts is None else {"attempts": life.restarts.attempts}),
        **life.features.facts(),
        **({} if life.terminal is None else {"tty": life.terminal.identity()}),
    }


def status(life: Life) -> dict[str, Any]:
    exited = life.exit is not None
    command = life.command
    terminal = life.terminal
    return {
        "state": "exited" if exited else "running" if command else "starting",
        "pid": command and command["pid"],
        "started_at": life.started_at,
        "ended_at": life.ending.at if exited else None,
        "stopping": life.stopping,
        "stopped_by_signal": life.family.command_is_stopped(),
        "exit": life.exit,
        "error": life.ending.error,
        "last_output_at": last_output_at(life),
        "attached": {"control": 0, "observe": 0} if terminal is None else terminal.attached(),
        "stdin": "open" if life.stdin.is_open else "closed",
        "warnings": life.warnings,
        "attempt": life.attempt.number,
        "desired": life.desired.facts(),
        "signals": life.signals.seq,
        **({"signals_blocked": life.signals.blocked} if life.signals.blocked else {}),
        **({} if life.restarts is None else {"failed_starts": life.restarts.failed_starts}),
        **life.log.facts(),
        **{name: life.now(name) for name in CHANGEABLE},
        **life.features.facts(),
        **({} if terminal is None else terminal.facts()),
    }


def snapshot(life: Life) -> dict[str, Any]:
    """The session at this moment, as its signals carry it: by value, bounded, and nothing that it printed."""
    spec, exit, command = life.spec, life.exit, life.command
    facts = life.log.facts()
    attentive = life.features.facts()
    command_line = command_text(spec["command"])
    shot = {
        "id": life.id,
        "kind": spec["kind"],
        "name": life.now("name"),
        "description": life.now("description") or life.now("name") or command_line or life.id,
        "owner": life.now("owner"),
        "labels": life.now("labels"),
        "command": command_line,
        "cwd": spec["cwd"],
        "tty": bool(spec["tty"]),
        "size": None if life.terminal is None else [life.terminal.tty.rows, life.terminal.tty.cols],
        "state": "exited" if exit else "running" if command else "starting",
        "status": life.status,
        "stopping": life.stopping,
        "pid": command and command["pid"],
        "place": spec.get("place"),
        "attached": _attached(life),
        "created_at": spec.get("created_at"),
        "started_at": life.started_at,
        "ended_at": life.ending.at if exit else None,
        "attempt": life.attempt.number,
        "desired": life.desired.facts(),
        # What is being killed right now is not left behind; what the stop leaves is named when it is over.
        "exit": exit and {**exit, "survivors": 0 if life.stopping else len(exit["survivors"]) + exit["survivors_more"]},
        "ends": facts["ends"],
        "dropped_before": facts["dropped_before"],
        "log_bytes": facts["log_bytes"],
        "last_output_at": last_output_at(life),
        "health": attentive.get("health"),
        "needs_input": _without_text(attentive.get("needs_input")),
        "in_process": False,
        "metadata": _metadata(life, attentive),
    }
    for part in ("metadata", "labels", "cwd", "description"):
        if len(jsontext.write(shot)) <= _SNAPSHOT_MAX_BYTES:
            break
        shot[part] = None
    return shot


def _without_text(asks: dict[str, Any] | None) -> dict[str, Any] | None:
    """What the command asks is told by its own signal; others carry that it does."""
    return asks and {part: value for part, value in asks.items() if part != "line"}


def _attached(life: Life) -> dict[str, Any]:
    """Who was there, and how long ago a person who could act did or saw anything."""
    if life.terminal is None:
        return {"control": 0, "observe": 0}
    return {**life.terminal.attached(), "person_idle_s": life.terminal.person_idle_s()}


def _metadata(life: Life, facts: dict[str, Any]) -> dict[str, Any]:
    """What was given, and what a session of this kind has to say of itself."""
    told: dict[str, Any] = dict(life.spec.get("metadata") or {})
    if life.exit is not None:
        told["exit_code"] = life.exit["code"]
    if life.terminal is not None:
        told.update(title=life.terminal.tracker.title, alt_screen=life.terminal.tracker.alt_screen)
    monitor = facts.get("monitor")
    if monitor is not None and life.spec["kind"] == "monitor":
        told.update(events=monitor["count"], suppressed=monitor["suppressed"], level=monitor["level"])
        told.update(persistent=life.spec["monitor"]["persistent"], deadline=_deadline(life))
    if life.restarts is not None:
        told.update(restarts=life.attempt.number - 1, failed_starts=life.restarts.failed_starts)
    if life.spec["kind"] == "lsp":
        told["state"] = _server_state(life, facts)
    return told


def _deadline(life: Life) -> str | None:
    began, limit_s = life.attempt.started_ns, life.now("timeout")
    return None if began is None or limit_s is None else clock.rfc3339(began + round(limit_s * 1e9))


def _server_state(life: Life, facts: dict[str, Any]) -> str:
    """As far as its runner knows: who speaks to it may know better."""
    if life.exit is not None:
        return "error" if life.status == "failed" else "stopped"
    if life.desired.state == "down":
        return "stopping"
    if life.family.command_gone:
        return "error"
    return "running" if (facts.get("ready") or {}).get("ok") else "starting"


def has_ended(life: Life) -> wire.Problem:
    """The answer to whoever wants something of a command that is no more."""
    exit = life.exit or {"code": None, "signal": None}
    return wire.Problem(
        "session-ended",
        f"session {life.id} has ended",
        id=life.id,
        code=exit["code"],
        signal=exit["signal"],
        ended_at=life.ending.at,
    )


def last_output_at(life: Life) -> str | None:
    last = life.log.last_output_wall_ns
    return None if last is None else clock.rfc3339(last)


def _identity(life: Life) -> dict[str, Any]:
    return {"nonce": life.nonce, **life.here, "command": life.command}
