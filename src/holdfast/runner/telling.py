"""What a runner says about itself and its command: hello, status, and the state record."""

from __future__ import annotations

from . import clock, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .life import Life

VERSION = "0.1.0"

# What `update` may change while the command runs.
CHANGEABLE = ("name", "owner", "labels", "description", "notify", "timeout", "idle_timeout", "ttl", "lifetime")
FEATURES = ("output", "write", "close_stdin", "send_signal", "stop", "wait", "update", "attach", "resize", "parts")


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
    command = life.family.command
    assert command is not None
    return {
        "v": 1,
        **_identity(life),
        "protocol": wire.PROTOCOL,
        "version": VERSION,
        "pgid": command["pid"],
        "endpoint": life.spec["endpoint"],
        "started_at": life.started_at,
        "attempt": 1,
        "changed": life.changed,
        **({} if life.terminal is None else {"tty": life.terminal.identity()}),
    }


def status(life: Life) -> dict[str, Any]:
    exited = life.exit is not None
    command = life.family.command
    terminal = life.terminal
    return {
        "state": "exited" if exited else "running" if command else "starting",
        "pid": command and command["pid"],
        "started_at": life.started_at,
        "ended_at": life.ending.at if exited else None,
        "stopping": None if exited else life.stopping,
        "stopped_by_signal": life.family.command_is_stopped(),
        "exit": life.exit,
        "error": life.ending.error,
        "last_output_at": last_output_at(life),
        "attached": {"control": 0, "observe": 0} if terminal is None else terminal.attached(),
        "stdin": "open" if life.stdin.is_open else "closed",
        "warnings": life.warnings,
        **life.log.facts(),
        **{name: life.now(name) for name in CHANGEABLE},
        **({} if terminal is None else terminal.facts()),
    }


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
    return {"nonce": life.nonce, **life.here, "command": life.family.command}
