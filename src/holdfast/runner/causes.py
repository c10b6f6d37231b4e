"""Why a session ended, and the word that agents know it by. No imports: everybody needs this."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Somebody asked for these: by a stop, or by a limit set at start.
ASKED_CAUSES = ("stop", "overall_timeout", "idle_timeout", "ttl", "owner_gone")
# By whom, where it was such a limit.
LIMIT = "limit"

# How a command that was asked to end did so: by itself within the grace, killed by the runner after it, killed by the
# runner without any, or killed by another process while it still had time.
IN_GRACE, AFTER_GRACE, AT_ONCE, ELSEWHERE = "grace", "kill", "at_once", "elsewhere"


def status_of(exit: dict[str, Any]) -> str:
    if exit.get("start_limit"):
        # What ended its last attempt may have been asked for; that there is no next one was not.
        return "failed"
    if exit.get("status"):
        # Told by a host of what it ran in its own way.
        return str(exit["status"])
    if exit["cause"] in ASKED_CAUSES:
        return "killed"
    return "completed" if exit["cause"] == "exit" and exit["code"] == 0 else "failed"
