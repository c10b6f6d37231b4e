"""The end of a command: its causes, the status that follows, and what its signal says.

Its runner writes that signal, or a host for a runner that was killed.
"""

from __future__ import annotations

from . import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


# Option of the spec -> cause it leads to, and back.
CAUSE_OF_LIMIT = {"timeout": "overall_timeout", "idle_timeout": "idle_timeout", "ttl": "ttl"}
LIMIT_OF_CAUSE = {cause: option for option, cause in CAUSE_OF_LIMIT.items()}
# These were asked for: by a stop, or by a limit set at start.
ASKED_CAUSES = ("stop", *LIMIT_OF_CAUSE, "owner_gone")
# The author of a stop by such a limit.
LIMIT = "limit"

# How a command that was asked to end did so: by itself within the grace, killed by the runner after it, killed by the
# runner without any, or killed by another process while it still had time.
IN_GRACE, AFTER_GRACE, AT_ONCE, ELSEWHERE = "grace", "kill", "at_once", "elsewhere"

# The signal of the end shows this much of each stream: enough to see why a command failed.
TAIL_LINES = 30
TAIL_CHARACTERS = 2000
# A snapshot in a signal stays below this: what may be long goes first.
_SNAPSHOT_MAX_BYTES = 4096


def status_of(exit: dict[str, Any]) -> str:
    if exit.get("start_limit"):
        # Even if a stop ended the last attempt, nobody requested that the restarts end: the session failed.
        return "failed"
    # Reported by a host that ran it in its own way; else it follows from the cause.
    return str(exit.get("status") or status_after(exit["cause"], exit["code"]))


def status_after(cause: str, code: int | None) -> str:
    if cause in ASKED_CAUSES:
        return "killed"
    return "completed" if code == 0 else "failed"


def attempt_fields(exit: dict[str, Any], duration_s: float | None, current: Callable[[str], Any]) -> dict[str, Any]:
    """How one attempt ended, for a signal. `current` has the limits that were in force."""
    limit = LIMIT_OF_CAUSE.get(exit["cause"])
    return {
        "status": status_of(exit),
        "code": exit["code"],
        "signal": exit["signal"],
        "cause": exit["cause"],
        "by": exit["by"],
        "stopped": exit.get("stopped"),
        "duration_s": duration_s,
        **({} if limit is None else {"limit_s": current(limit)}),
    }


def end_fields(
    exit: dict[str, Any],
    duration_s: float | None,
    current: Callable[[str], Any],
    *,
    kind: str,
    ends: dict[str, int],
    tail: Callable[[str], dict[str, Any]],
) -> dict[str, Any]:
    """The fields of the signal of the end. `tail` has the last output of a stream."""
    # A language server writes messages of its protocol to stdout, which are not for reading.
    silent = ("stdout",) if kind == "lsp" else ()
    return {
        **attempt_fields(exit, duration_s, current),
        "output_complete": exit["complete"],
        "ends": ends,
        "tail": {stream: tail(stream) for stream, end in ends.items() if end and stream not in silent},
    }


def bounded(snapshot: dict[str, Any]) -> dict[str, Any]:
    """The snapshot of a session as a signal carries it: what is too long is left out."""
    for part in ("metadata", "labels", "cwd", "description"):
        if len(jsontext.write(snapshot)) <= _SNAPSHOT_MAX_BYTES:
            break
        snapshot[part] = None
    return snapshot
