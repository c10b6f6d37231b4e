"""The texts of evva's answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .snapshot import DESCRIPTION_CHARACTERS, LocalAgent, LocalBash, Lsp, Monitor, Tail, lines_of, one_line, shown

if TYPE_CHECKING:
    from datetime import datetime

    from ...model import Exit
    from .snapshot import DaemonSnapshot


AGENT_CRUSHED = "[subagent crushed]"
AGENT_INTERRUPTED = "[subagent loop interrupted]"
NO_SUMMARY = "(no summary)"
NO_OUTPUT = "(no output)"

CANCELLED = "bash: cancelled"
COMMAND_REQUIRED = "{tool}: command is required"
NO_BACKGROUND = "bash: run_in_background is not available in this context (no DaemonHost)"
NO_HOST = "monitor: host is not configured"
NO_STATE = "{tool}: state unavailable"
ID_REQUIRED = "{tool}: daemon_id is required"
NO_DAEMONS = "no daemons"

_PROMPT_CHARACTERS = 500
# Causes that the exit code or signal implies.
_PLAIN_CAUSES = (None, "exit", "signal")
_SHOWN_STATES = ("unreachable", "stale")


def background(id: str) -> str:
    return (
        f"Daemon {id} started in background. A notification comes when it ends; until then `daemon_output {id}` shows "
        f"what it printed and `daemon_stop {id}` ends it."
    )


def monitor(id: str, note: str) -> str:
    return (
        f"Monitor {id} started. Its lines arrive as notifications, and one more when it ends; "
        f"`daemon_stop {id}` ends it.{f' {note}' if note else ''}"
    )


def clamped(asked_ms: int, ms: int) -> str:
    return f"(timeout_ms is 1000 to 3600000: {asked_ms} became {ms})"


def timed_out(seconds: float) -> str:
    """The lines before the output."""
    return f"bash: command timed out after {duration(seconds)}\n--- partial output ---"


def ended(exit: Exit) -> str:
    """How a command failed: the line after its output."""
    if exit.signal is not None:
        how = f"signal {exit.signal}"
    else:
        how = f"exit code {exit.code}" if exit.code is not None else f"no exit code, cause {exit.cause}"
    return f"--- {how} ---"


def survivors(count: int, id: str) -> str:
    runs = "1 process it left behind still runs" if count == 1 else f"{count} processes it left behind still run"
    return f"({runs}: daemon_stop {id} ends {'it' if count == 1 else 'them'})"


def dying(count: int) -> str:
    left = "1 process it left behind is" if count == 1 else f"{count} processes it left behind are"
    return f"({left} being ended)"


def out_of_reach(id: str, state: str) -> str:
    """The runner does not answer."""
    ways = f"`daemon_output {id}` shows what it printed, `daemon_stop {id}` ends it"
    return f"bash: {id} is {state} and may still run; {ways}"


def beginning_cut(tail: Tail, id: str) -> str:
    """The note about missing output."""
    return f"({tail.cut} bytes cut here: `hold logs {id}` has all)"


def stopping(shot: DaemonSnapshot) -> str:
    if shot.is_terminal:
        return f"daemon_stop: {shot.id} terminating; processes it left behind that are ended: {shot.survivors}"
    return f"daemon_stop: {shot.id} terminating; a killed notice follows when it is gone"


def already(id: str, status: str) -> str:
    return f"daemon_stop: {id} already {status} (no-op)"


def not_found(tool: str, id: str) -> str:
    return f'{tool}: "{one_line(id)}" not found'


def listed(shots: list[DaemonSnapshot], left_out: int) -> str:
    if not shots:
        return NO_DAEMONS
    lines = [f"{len(shots)} daemon(s):", *map(list_line, shots)]
    if left_out:
        lines.append(f"and {left_out} older ones that have ended")
    return "\n".join(lines)


def list_line(shot: DaemonSnapshot) -> str:
    description = one_line(shot.description) or shot.id
    head = f"- {shot.id} [{one_line(shot.kind)}/{shot.status}] {description[:DESCRIPTION_CHARACTERS]}"
    return f"{head} started={instant(shot.started_at)}{_kind_facts(shot)}{_more(shot)}"


def head(shot: DaemonSnapshot) -> str:
    """The first line of `daemon_output`."""
    return f"daemon {shot.id} [{one_line(shot.kind)}/{shot.status}]{_kind_facts(shot, full=True)}{_more(shot)}"


def body(shot: DaemonSnapshot, found: Tail, tail: int | None = None) -> str:
    """What it printed or reported. `found` is already cut to its last lines."""
    text = _body(shot, found)
    if tail is not None and isinstance(shot.metadata, LocalAgent):
        text = "\n".join(lines_of(text)[-tail:])
    return text


def _kind_facts(shot: DaemonSnapshot, *, full: bool = False) -> str:
    facts = shot.metadata
    if isinstance(facts, LocalBash):
        return f" signal={facts.exit_signal}" if facts.exit_signal else _exit(facts.exit_code)
    if isinstance(facts, Monitor):
        return f" events={facts.event_count}"
    if isinstance(facts, LocalAgent):
        said = f" type={one_line(facts.agent_type)}" + (" async" if facts.async_ else "")
        return said + (f" phase={one_line(facts.phase)}" if full and facts.phase else "")
    if isinstance(facts, Lsp):
        restarts = f"{facts.restart_count}/{facts.max_restarts}"
        return f" server={one_line(facts.server_name)} state={facts.state} restarts={restarts}"
    return ""


def _exit(code: int | None) -> str:
    return "" if code is None else f" exit={code}"


def _more(shot: DaemonSnapshot) -> str:
    said = ""
    if shot.is_terminal and shot.cause not in _PLAIN_CAUSES:
        said += f" cause={shot.cause}"
        said += f" by={one_line(shot.requested_by)}" if shot.requested_by else ""
    if shot.state in _SHOWN_STATES:
        said += f" state={shot.state}"
    if shot.survivors:
        said += f" survivors={shot.survivors}"
    return said


def _body(shot: DaemonSnapshot, body: Tail) -> str:
    facts = shot.metadata
    if isinstance(facts, LocalAgent):
        said = [*([facts.summary] if facts.summary else []), *([f"error: {facts.err}"] if facts.err else [])]
        return shown("\n".join(said) or f"prompt: {facts.prompt[:_PROMPT_CHARACTERS]}")
    text = body.text
    if isinstance(facts, Monitor):
        lines = lines_of(text)
        return "\n".join([f"recent {len(lines)} line(s):", *lines]) if lines else "(no events captured)"
    if isinstance(facts, Lsp) and given_up(shot):
        text = f"{_line(text)}{exceeded(facts.server_name, facts.max_restarts)}"
    if shot.cause == "spawn_error":
        text = f"{_line(text)}bg: spawn error: {shot.error}"
    if body.cut:
        text = f"{beginning_cut(body, shot.id)}\n{text}"
    return text or "(no output yet)"


def given_up(shot: DaemonSnapshot) -> bool:
    """Whether a language server failed too often."""
    facts = shot.metadata
    return shot.status == "failed" and isinstance(facts, Lsp) and facts.restart_count >= facts.max_restarts


def exceeded(server: str, most: int) -> str:
    return f'lsp server "{one_line(server)}" exceeded max restarts ({most})'


def instant(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def duration(seconds: float) -> str:
    """In Go's format: 2m0s, 1.5s, 500ms."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    said = f"{round(seconds - 60 * (whole // 60), 3):g}s"
    if whole >= 60:
        said = f"{minutes}m{said}"
    return f"{hours}h{said}" if hours else said


def _line(text: str) -> str:
    """With a newline at the end, unless empty."""
    return text if not text or text.endswith("\n") else text + "\n"
