"""Snapshots of daemons, their output, changes, and the constants that programs import.

`output` and `recent_lines` are read from the log when asked for, up to the ends of the snapshot: a log only grows, so
they do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ...core.clock import epoch
from ...daemons.kinds import last_page
from ...daemons.observers import DOMAIN
from ...model import COMPLETED, FAILED, KILLED, PENDING, RUNNING
from ...signals.redact import Quoter
from ...terminal.text import all_visible
from .style import DrainStyle as Style

if TYPE_CHECKING:
    from ...model import Snapshot
    from ...sessions.log import Log


# Constants: kinds, statuses, ops of a change, and the names of the daemon tools.


KIND_LOCAL_BASH = "local_bash"
KIND_MONITOR = "monitor"
KIND_LOCAL_AGENT = "local_agent"
KIND_LSP = "lsp"
# Reserved: a host may register objects of these kinds; this toolset starts none.
KIND_REMOTE_AGENT = "remote_agent"
KIND_IN_PROCESS_TEAMMATE = "in_process_teammate"
KIND_LOCAL_WORKFLOW = "local_workflow"
KIND_DREAM = "dream"
RESERVED = (KIND_REMOTE_AGENT, KIND_IN_PROCESS_TEAMMATE, KIND_LOCAL_WORKFLOW, KIND_DREAM)
KINDS = (KIND_LOCAL_BASH, KIND_MONITOR, KIND_LOCAL_AGENT, KIND_LSP, *RESERVED)

STATUS_PENDING = PENDING
STATUS_RUNNING = RUNNING
STATUS_COMPLETED = COMPLETED
STATUS_FAILED = FAILED
STATUS_KILLED = KILLED
TERMINAL = (STATUS_COMPLETED, STATUS_FAILED, STATUS_KILLED)
STATUSES = (STATUS_PENDING, STATUS_RUNNING, *TERMINAL)

OP_ADDED = "added"
OP_REMOVED = "removed"
OP_EVENT = "event"

_TOOLS = ("daemon_list", "daemon_output", "daemon_stop")


def is_terminal(status: str) -> bool:
    return status in TERMINAL


def names() -> list[str]:
    """The names of the tools that list, read and stop daemons."""
    return list(_TOOLS)


# The output shown to an agent: the end of the log.


RECENT_LINES = 200


class Tail:
    """The last output; the log has `cut` bytes before it."""

    __slots__ = ("cut", "text")

    def __init__(self, text: str, cut: int) -> None:
        self.text = text
        self.cut = cut

    def shown(self) -> Tail:
        return Tail(shown(self.text), self.cut)


def tail_of(log: Log, kind: str, lines: int | None = None, until: Mapping[str, int] | None = None) -> Tail:
    """The output of a daemon of this kind: of a monitor its last lines, of a language server its stderr."""
    if kind == KIND_MONITOR:
        lines = min(lines or RECENT_LINES, RECENT_LINES)
    page, cut = last_page(log, lines, stream="stderr" if kind == KIND_LSP else None, until=until)
    return Tail(page.text, cut if lines is None or page.more else 0)


def shown(text: str) -> str:
    """Text of a program or agent for an answer: hidden characters are spelled, imitations of our words defused."""
    return Style.harmless(all_visible(text))


def lines_of(text: str) -> list[str]:
    """The lines of a text; only LF separates them, not Unicode's line separators."""
    return text.removesuffix("\n").split("\n") if text else []


# Snapshots: frozen, with no copy of the log.


DESCRIPTION_CHARACTERS = 120
# Names that differ in the view.
_VIEW_NAMES = {
    "async_": "async",
    "err": "error",
    "event_count": "events",
    "server_name": "server",
    "restart_count": "failed_starts",
    "restarts_total": "restarts",
}


class _Printing:
    """A daemon whose output is in its log."""

    read: Callable[[], Tail]

    @property
    def output(self) -> str:
        return self.read().text


@dataclass(frozen=True)
class LocalBash(_Printing):
    command: str
    exit_code: int | None
    exit_signal: str | None
    read: Callable[[], Tail] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Monitor:
    command: str
    event_count: int
    persistent: bool
    exit_code: int | None
    level: str | None
    read: Callable[[], Tail] = field(repr=False, compare=False)

    @property
    def recent_lines(self) -> list[str]:
        return lines_of(self.read().text)


@dataclass(frozen=True)
class LocalAgent:
    agent_type: str
    prompt: str
    async_: bool
    phase: str
    summary: str
    err: str
    name: str = ""
    worktree_path: str | None = None
    worktree_branch: str | None = None


@dataclass(frozen=True)
class Lsp(_Printing):
    server_name: str
    command: str
    state: str
    exit_code: int | None
    restart_count: int
    max_restarts: int
    restarts_total: int
    read: Callable[[], Tail] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Other(_Printing):
    """A daemon of another kind: the facts of the view, and the log."""

    facts: Mapping[str, Any]
    read: Callable[[], Tail] = field(repr=False, compare=False)


Metadata = LocalBash | Monitor | LocalAgent | Lsp | Other


@dataclass(frozen=True)
class DaemonSnapshot:
    """`metadata` is that of the kind; objects of a host bring their own. `survivors` is a number of processes."""

    id: str
    kind: str
    status: str
    description: str
    agent_id: str | None
    started_at: datetime
    ended_at: datetime | None = None
    metadata: Any = None
    state: str = ""
    cause: str | None = None
    requested_by: str | None = None
    survivors: int = 0
    place: str = "local"
    ends: Mapping[str, int] = field(default_factory=dict)
    # Why it could not be started.
    error: str | None = None

    @property
    def is_terminal(self) -> bool:
        return is_terminal(self.status)


def of(shot: Snapshot, log: Callable[[], Log]) -> DaemonSnapshot:
    """The snapshot of a session. `log` is called only to read output."""
    exit = shot.exit
    return DaemonSnapshot(
        id=shot.id,
        kind=shot.kind,
        status=shot.status,
        description=one_line(_description(shot)),
        agent_id=shot.owner,
        started_at=_started_at(shot),
        ended_at=moment(shot.ended_at),
        metadata=_metadata(shot, log),
        state=shot.state,
        cause=exit.cause if exit else None,
        requested_by=exit.by if exit else None,
        survivors=len(exit.survivors) + exit.survivors_more if exit else 0,
        place=shot.place or "local",
        ends=dict(shot.ends),
        error=_spawn_error(shot.metadata.get("error")),
    )


def _started_at(shot: Snapshot) -> datetime:
    """A language server is one daemon through all its restarts: its start is that of the first."""
    times = (shot.created_at, shot.started_at) if shot.kind == "lsp" else (shot.started_at, shot.created_at)
    return moment(times[0]) or moment(times[1]) or datetime.now(UTC)


def _description(shot: Snapshot) -> str:
    """Its description or name, or the first line of its command."""
    if shot.description != shot.command:
        return shot.description
    return next((line for line in shot.command.split("\n") if line.strip()), shot.id)


def _metadata(shot: Snapshot, log: Callable[[], Log]) -> Metadata:
    facts, exit, ends = shot.metadata, shot.exit, dict(shot.ends)
    code = exit.code if exit else None

    def read() -> Tail:
        return tail_of(log(), shot.kind, until=ends)

    if shot.kind == "local_bash":
        return LocalBash(shot.command, code, exit.signal if exit else None, read)
    if shot.kind == "monitor":
        events = _number(facts.get("events"))
        persistent = bool(facts.get("persistent"))
        return Monitor(shot.command, events, persistent, code, facts.get("level"), read)
    if shot.kind == "local_agent":
        return LocalAgent(
            agent_type=_text(facts.get("agent_type")),
            prompt=_text(facts.get("prompt")),
            async_=facts.get("async") is not False,
            phase=_text(facts.get("phase")),
            summary=_text(facts.get("summary")),
            err=_text(facts.get("error")),
            name=_text(facts.get("name")),
            worktree_path=facts.get("worktree_path"),
            worktree_branch=facts.get("worktree_branch"),
        )
    if shot.kind == "lsp":
        return Lsp(
            server_name=_text(facts.get("server")),
            command=shot.command,
            state=_text(facts.get("state")),
            exit_code=code,
            restart_count=_number(facts.get("failed_starts")),
            max_restarts=_number(facts.get("max_restarts")),
            restarts_total=_number(facts.get("restarts")),
            read=read,
        )
    return Other(dict(facts), read)


def plain_facts(metadata: object) -> dict[str, object]:
    """The plain values in the metadata of a host, under the names of the view."""
    found: Mapping[Any, Any]
    if isinstance(metadata, Other):
        found = metadata.facts
    elif isinstance(metadata, Mapping):
        found = metadata
    elif is_dataclass(metadata) and not isinstance(metadata, type):
        found = {each.name: getattr(metadata, each.name) for each in fields(metadata)}
        if isinstance(metadata, (LocalBash, Monitor, LocalAgent, Lsp)):
            found = {_VIEW_NAMES.get(name, name): value for name, value in found.items()}
    else:
        found = getattr(metadata, "__dict__", {})
    return {name: value for name, value in found.items() if isinstance(name, str) and _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(each) for name, each in value.items())
    return isinstance(value, (str, int, float, bool))


def one_line(text: str | None) -> str:
    """Short and harmless, for a list or a message."""
    return Quoter(str, tags=True).label(text or "", DESCRIPTION_CHARACTERS)


def moment(text: str | None) -> datetime | None:
    """A recorded time as an aware datetime in UTC."""
    at = epoch(text)
    return None if at is None else datetime.fromtimestamp(at, UTC)


def _spawn_error(error: object) -> str | None:
    return _text(error.get("message")) or None if isinstance(error, Mapping) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    # The `events` of a finished monitor may be a mapping of counts.
    if isinstance(value, Mapping):
        value = value.get("count")
    return value if isinstance(value, int) else 0


# Changes, for observers of a state.


@dataclass(frozen=True)
class Change:
    """`op` is added, removed, a status, `event`, `phase:<text>` or another op of the view; ignore unknown ones."""

    op: str
    id: str
    snapshot: DaemonSnapshot | None
    at: datetime
    domain: str = DOMAIN
