"""The texts of this toolset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...terminal.text import visible
from .settings import LOG_CHARS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


ACTIONS = ("list", "poll", "log", "write", "send-keys", "submit", "paste", "kill", "clear", "remove")

NO_COMMAND = "Provide a command to start."
NO_ID = "sessionId is required for this action."
BAD_ACTION = f"Invalid process action. Expected one of: {', '.join(ACTIONS)}"
NO_APPROVING = (
    "exec does not run /approve. An approval is given by a person: show them the /approve line and wait for their word."
)
NO_OUTPUT = "(no output)"
NO_NEW_OUTPUT = "(no new output)"
NO_OUTPUT_YET = "(no output yet)"
NO_OUTPUT_RECORDED = "(no output recorded)"
STILL_RUNNING = "Process still running."
NO_SESSIONS = "No running or recent sessions."
NO_KEYS = "No key data provided."
NO_PASTE = "No paste text provided."
OMITTED = "[earlier output is omitted from this poll; use action=log with offset and limit to inspect retained output]"
DISCARDED = "[earlier output was discarded at the retention cap and cannot be recovered]"
LOG_CUT_BEFORE = f"[earlier lines are left out at {LOG_CHARS} characters; pass offset/limit to page]"
AFTER_EXIT = "[afterExit: processes that outlived the command printed what follows]"
NO_PROCESS_TOOL = (
    "[warning: yieldMs and background are ignored, since the process tool is not offered; waited for the end]"
)
ABORTED = "Command aborted before exit code was captured"
OMITTED_OF = (
    "[earlier output is omitted; use process action=log on session {session} with offset and limit "
    "to inspect retained output]"
)
RUNS_ON = (
    "Command still running (session {session}, pid {pid}). "
    f"Use process ({'/'.join(ACTIONS)}) for follow-up. {{deadline}}"
)
IN_THE_FOREGROUND = (
    "Command still running (session {session}, pid {pid}). Another call waits for it in the foreground; process "
    "reaches it when that call returns. {deadline}"
)
OUTPUT_SO_FAR = "Output so far:"
END_OF_OUTPUT_SO_FAR = "Output so far, the end of it:"
NOT_BACKGROUNDED = "Session {session} is not backgrounded."
FINALIZING = "Session {session} is finalizing."
NOT_WRITABLE = 'Session {session} stdin is not writable. Start it with stdin:"open" or pty:true to write to it.'
NEEDS_PTY = "Session {session} has no terminal for named keys. Start it with pty:true, or send literal or hex."
UNREACHABLE = (
    "Session {session} is unreachable: its runner is alive but does not answer, so it is unknown whether the "
    "command runs. The recorded output is shown; poll again."
)
NOT_TAKEN = (
    "Session {session} is unreachable: its runner is alive but does not answer, so it is unknown whether the "
    "command was given this. Poll it, and try again."
)
STALE = (
    "Session {session} is stale: its runner is gone and its command still runs (pid {pid}). Nothing that it "
    "prints now is recorded; kill ends it."
)
LOST = "Session {session} is lost: its runner and its command are gone, and no exit was recorded."
SURVIVORS_LEFT = "Processes that it started still run: {named}; process kill ends them."
SURVIVORS_DYING = "Processes that it started are being ended: {named}."
SHOWING_LAST = "[showing last {shown} of {total} lines; pass offset/limit to page]"
LOG_CUT_BEHIND = f"[cut at {LOG_CHARS} characters; continue with offset {{offset}}]"
OFFSET_BEHIND_END = "[offset {offset} is beyond the end: there are {total} lines]"
SUBMITTED = "Submitted session {session} (sent CR)."
CLEARED = "Cleared session {session}."
TERMINATED = "Termination requested for session {session}. {seen}"
NOT_TERMINATED = "Unable to terminate session {session}: {why}"
STILL_THERE = "Still alive after the kill: {named}."

RETRY_GUIDANCE = (
    "Its side effects may already have happened: check the state before you run it again, and do not repeat what is "
    "not idempotent. If it needs longer, give a larger timeout. A service is started with background: true and "
    "timeout: 0, not with a trailing &."
)


def deadline(timeout_s: float | None, left_s: float | None) -> str:
    if timeout_s is None or left_s is None:
        return "It has no time limit."
    return f"It is stopped in {duration(left_s * 1000)} unless it ends before (timeout {timeout_s:g} s)."


def timed_out(timeout_s: float | None) -> str:
    after = "" if timeout_s is None else f" after {timeout_s:g} seconds"
    return f"Command timed out{after}. {RETRY_GUIDANCE}"


def silent_too_long(limit_s: float | None) -> str:
    after = "" if limit_s is None else f" (nothing for {limit_s:g} seconds)"
    return f"Command timed out waiting for output{after}. {RETRY_GUIDANCE}"


def by_signal(signal: str, by: str | None, oom: bool) -> str:
    why = "; the kernel ran out of memory" if oom else f"; sent for {by}" if by else ""
    return f"Command aborted by signal {signal}{why}"


def unknown(action: str, ref: str) -> str:
    kind = {"clear": "finished "}.get(action, "active " if action in _ON_LIVING else "")
    return f"No {kind}session found for {ref}"


_ON_LIVING = ("write", "send-keys", "submit", "paste", "kill")


def exited(code: int | None, signal: str | None) -> str:
    if signal is not None:
        return f"Process exited with signal {signal}."
    return "Process exited with unknown exit code." if code is None else f"Process exited with code {code}."


def input_wait(session: str, idle_ms: int, evidence: str) -> str:
    why = "blocked reading its input" if evidence == "blocked" else f"no output for {duration(idle_ms)}"
    return f"Process may be waiting for input ({why}). Use process write, send-keys or submit on session {session}."


def wrote(count: int, session: str, *, eof: bool, tty: bool, warnings: Sequence[str]) -> str:
    """End of file on a terminal is a key: its input stays open."""
    ended = "" if not eof else " (EOF sent)" if tty else " (stdin closed)"
    return _warned(f"Wrote {count} bytes to session {session}{ended}.", warnings)


def sent(count: int, session: str, warnings: Sequence[str]) -> str:
    return _warned(f"Sent {count} bytes to session {session}.", warnings)


def _warned(said: str, warnings: Sequence[str]) -> str:
    return "\n".join([said, *(f"Warning: {_WARNINGS.get(each, each)}" for each in warnings)])


# Explanations of warnings.
_WARNINGS = {
    "canonical_limit": "canonical_limit: the terminal may cut a line as long as this one",
    "tty_raw": "tty_raw: the program reads single keys and may not take this as the end of its input",
}


def pasted(count: int, session: str, warnings: Sequence[str]) -> str:
    return _warned(f"Pasted {count} chars to session {session}.", warnings)


def removed(session: str, *, stopped: bool) -> str:
    return f"Removed session {session}{' (termination requested)' if stopped else ''}."


def processes(found: Sequence[Mapping[str, Any]]) -> str:
    named = [f"pid {each.get('pid')} {one_line(str(each.get('command') or ''), 60)}".strip() for each in found[:5]]
    more = [f"and {len(found) - 5} more"] if len(found) > 5 else []
    return ", ".join([*named, *more])


def one_line(text: str, limit: int) -> str:
    """Foreign text as one short line, so that it cannot imitate ours."""
    return visible("".join(each if each.isprintable() else " " for each in text[: 4 * limit]).strip())[:limit]


def duration(ms: float) -> str:
    seconds = int(ms // 1000)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
