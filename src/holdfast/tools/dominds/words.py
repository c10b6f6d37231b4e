"""Every text of this toolset. Texts that agents and hosts match are in capitals and the same in every language; the
free words are in `ENGLISH`, and another language may be supplied in their place.
"""

from __future__ import annotations

from string import Formatter
from typing import TYPE_CHECKING

from ...errors import BadArgument
from ...signals.redact import Quoter, fence

if TYPE_CHECKING:
    from collections.abc import Mapping


COMPLETED = "✅ Command completed ({how})"
RECEIPT = "🟢 {command} is now running in the background (PID: {pid})"
NOT_EXECUTED = "❌ Failed to execute command: {why}"
STILL_RUNNING = "⚠️  {count} process(es) of this command are still running: {named}"
SCROLLED_DURING = "⚠️  {count} lines scrolled out of view during execution"
SCROLLED = "⚠️  {count} lines have scrolled out of view"
BLOCK = "📤 {stream}:"
DAEMON_BLOCK = "📤 Daemon {pid} {stream} output:"
NO_OUTPUT = "(no output)"
TIMED_OUT = "⏱️ Timed out waiting for new {streams} output from daemon {pid} (timeout_ms={timeout})."
EXITED_MEANWHILE = "⏹️ Daemon {pid} exited while waiting for new {streams} output"
STOPPED = "✅ Daemon process {pid} ({command}) stopped successfully"
ALREADY = "✅ Daemon process {pid} ({command}) had already exited ({how})"
NOT_FOUND = "❌ No daemon process found with PID {pid}"
NOT_STOPPED = "❌ Failed to stop daemon process {pid}: {why}"
TRUNCATED = (
    "...[tool_output_truncated_in_tool tool={tool} original_chars={chars} limit_chars={limit} "
    "omitted_chars={omitted}]..."
)
REMINDER = "🔄 [System notice] Daemon lifecycle reminder [{id}] - {summary} | PID {pid}, uptime: {uptime}"
SUMMARIES = {
    "running": "🟢 {command} running (system-maintained / live source of truth)",
    "exited": "🟡 {command} exited (exit event notice)",
    "survived": "🟡 {command} exited, {count} process(es) still running",
    "unreachable": "🟠 {command} runner not answering",
    "stale": "🔴 {command} stale: runner gone, process alive",
    "lost": "⚪ {command} lost: no exit record",
}
STATUS_RUNNING = "running"
STATUS_EXITED = "exited (code: {code}, signal: {signal})"
READ_CALL = 'get_daemon_output({{ "pid": {pid} }})'
STOP_CALL = 'stop_daemon({{ "pid": {pid} }})'

ENGLISH = {
    "receipt": (
        "It had not ended after {waited}, so only the waiting ended. A lifecycle reminder of it keeps itself current: "
        "do not copy it into notes of your own. Read it with {read}, end it with {stop}."
    ),
    "so_far": "📤 {stream} so far:",
    "so_far_cut": "📤 {stream} so far (last {limit} characters):",
    "nothing_so_far": "(no output so far)",
    "lost_waiting": "its runner was lost while the command was waited for ({evidence}); what it printed: {read}",
    "silent_waiting": "its runner does not answer, the command may run on (PID: {pid}); look again with {read}",
    "older_pid": "PID {pid} is session {id} here; the earlier session {older} had the same pid.",
    "foreign_pid": "Nothing was signalled: PID {pid} is no longer a process of this daemon.",
    "ended": "Ended with {how}, by {rung}",
    "survivors": "{count} process(es) survived: {named}",
    "state_exited": "State: exited ({how})",
    "state_unreachable": "State: unreachable: {evidence}. The log is readable and may lag",
    "state_mismatch": "State: unreachable (identity-mismatch of {part}): {evidence}. The log is this daemon's own",
    "state_stale": "State: stale: the runner is gone, the process lives. Later output is not captured; {stop} ends it",
    "state_lost": "State: lost: exit unknown, {evidence}. The log is readable up to the last stored byte",
    "cause": "Cause: {cause}",
    "by": "{cause}, asked by {by}",
    "dropped": "⚠️  {stream} before offset {offset} was dropped by retention",
    "gap": "⚠️  {stream} is incomplete from offset {offset}: the disk refused {count} bytes",
    "cut": "(last {limit} characters)",
    "advice_running": "Kept current by the system. Do not answer, acknowledge or copy it.",
    "advice_exited": "It has ended. This states the end and implies no action.",
    "advice_survived": "Its command has ended, some of its processes have not. {stop} stops them.",
    "advice_unreachable": "Its log is readable and may lag.",
    "advice_stale": "Later output is not captured. {stop} ends it.",
    "advice_lost": "How it ended is unknown. Its log is readable up to the last stored byte.",
    "status_unreachable": "running as far as known (runner not answering)",
    "status_stale": "running, not captured (runner gone)",
    "status_lost": "unknown (no exit record)",
    "snapshot_pid": "Daemon PID: {pid}",
    "snapshot_command": "Command: {command}",
    "snapshot_shell": "Shell: {shell}",
    "snapshot_status": "Lifecycle status: {status}",
    "snapshot_uptime": "Uptime: {uptime}",
    "snapshot_started": "Started at: {started}",
    "snapshot_scrolled": "{stream}: {count} lines have scrolled out of view",
    "snapshot_stream": "{stream}:",
    "more_reminders": "and {count} more running daemon(s); the resource holdfast://reminders has all",
    "no_reminders": "no daemons",
}

_LABELS = Quoter(lambda text: text, tags=False)


class Texts:
    """The free words, English unless others are given."""

    def __init__(self, others: Mapping[str, str] | None = None) -> None:
        unknown = sorted(set(others or ()) - set(ENGLISH))
        if unknown:
            raise BadArgument("texts", f"there is no text {unknown[0][:40]!a}", "see `words.ENGLISH`")
        for name, text in (others or {}).items():
            if not _blanks(text) <= _blanks(ENGLISH[name]):
                why = f"{name!a} cannot be filled in"
                raise BadArgument("texts", why, f"put nothing but the names in braces of {ENGLISH[name]!a}")
        self._texts = {**ENGLISH, **(others or {})}

    def __call__(self, name: str, **facts: object) -> str:
        return self._texts[name].format(**facts)


def _blanks(text: str) -> set[str]:
    """The names in braces; more than a name, or half of it, fits nowhere."""
    try:
        parts = [(name, spec, how) for _, name, spec, how in Formatter().parse(text) if name is not None]
    except ValueError:
        return {text}
    return {name if not spec and how is None else text for name, spec, how in parts}


def read_call(pid: int | None) -> str:
    return READ_CALL.format(pid=pid)


def stop_call(pid: int | None) -> str:
    return STOP_CALL.format(pid=pid)


def one_line(text: str) -> str:
    """A command inside a sentence."""
    return _LABELS.label(text)


def fenced(text: str) -> list[str]:
    mark = fence([text])
    return [mark + "console", text, mark]


def exit_words(code: int | None, signal: str | None) -> str:
    if signal is not None:
        return f"exit code: unknown, signal: {signal}"
    return f"exit code: {'unknown' if code is None else code}"
