"""A command as one line of text, and the words for why it ended."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# A command longer than this is cut where it is shown; the spec has all of it.
CHARACTERS = 512
_HARMLESS = dict.fromkeys(map(ord, "_@%+=:,./-"))


def command_text(command: object) -> str:
    """The command as one line that a shell would read as the same words."""
    if isinstance(command, list):
        command = " ".join(_quoted(str(word)) for word in command)
    return str(command or "")[:CHARACTERS]


def _quoted(word: str) -> str:
    if word.isascii() and word.translate(_HARMLESS).isalnum():
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


# These were asked for: by a stop, or by a limit set at start.
ASKED_CAUSES = ("stop", "overall_timeout", "idle_timeout", "ttl", "owner_gone")
# The author of a stop by such a limit.
LIMIT = "limit"

# How a command that was asked to end did so: by itself within the grace, killed by the runner after it, killed by the
# runner without any, or killed by another process while it still had time.
IN_GRACE, AFTER_GRACE, AT_ONCE, ELSEWHERE = "grace", "kill", "at_once", "elsewhere"


def status_of(exit: dict[str, Any]) -> str:
    if exit.get("start_limit"):
        # The end of its last attempt may have been asked for; that no other follows was not.
        return "failed"
    if exit.get("status"):
        # Reported by a host that ran it in its own way.
        return str(exit["status"])
    if exit["cause"] in ASKED_CAUSES:
        return "killed"
    return "completed" if exit["cause"] == "exit" and exit["code"] == 0 else "failed"
