"""A daemon at one moment, by value: frozen, and with nothing copied that the log keeps anyway.

`output` and `recent_lines` are read when somebody asks for them, below the ends of that moment: a log only grows, so
they stay what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ...signals.quoting import Quoter
from .output import Tail, lines_of
from .words import is_terminal

if TYPE_CHECKING:
    from ...host.log import Log
    from ...model import Snapshot

RECENT_LINES = 200
DESCRIPTION_CHARACTERS = 120
# What has another name in the view.
_VIEW_NAMES = {
    "async_": "async",
    "err": "error",
    "event_count": "events",
    "server_name": "server",
    "restart_count": "failed_starts",
    "restarts_total": "restarts",
}


@dataclass(frozen=True)
class LocalBash:
    command: str
    exit_code: int | None
    exit_signal: str | None
    read: Callable[[], Tail] = field(repr=False, compare=False)

    @property
    def output(self) -> str:
        return self.read().text


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
class Lsp:
    server_name: str
    command: str
    state: str
    exit_code: int | None
    restart_count: int
    max_restarts: int
    restarts_total: int
    read: Callable[[], Tail] = field(repr=False, compare=False)

    @property
    def output(self) -> str:
        return self.read().text


@dataclass(frozen=True)
class Other:
    """Of a kind that is not one of this family's: what the view tells, and the log."""

    facts: Mapping[str, Any]
    read: Callable[[], Tail] = field(repr=False, compare=False)

    @property
    def output(self) -> str:
        return self.read().text


Metadata = LocalBash | Monitor | LocalAgent | Lsp | Other


@dataclass(frozen=True)
class DaemonSnapshot:
    """`metadata` is that of the kind; a host's own objects bring their own. `survivors` is how many live on."""

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
    # Why it could not even be started.
    error: str | None = None

    @property
    def is_terminal(self) -> bool:
        return is_terminal(self.status)


def of(shot: Snapshot, log: Callable[[], Log]) -> DaemonSnapshot:
    """From the view's picture. `log` is opened only when somebody reads."""
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
    """A language server is one daemon through all its restarts, and each of them has a start of its own."""
    times = (shot.created_at, shot.started_at) if shot.kind == "lsp" else (shot.started_at, shot.created_at)
    return moment(times[0]) or moment(times[1]) or datetime.now(UTC)


def _description(shot: Snapshot) -> str:
    """Its own, or its name; of a command that has neither, the first line."""
    if shot.description != shot.command:
        return shot.description
    return next((line for line in shot.command.split("\n") if line.strip()), shot.id)


def _metadata(shot: Snapshot, log: Callable[[], Log]) -> Metadata:
    told, exit, ends = shot.metadata, shot.exit, dict(shot.ends)
    code = exit.code if exit else None

    def read(lines: int | None = None, stream: str | None = None) -> Tail:
        return Tail.of(log(), lines=lines, stream=stream, until=ends)

    if shot.kind == "local_bash":
        return LocalBash(shot.command, code, exit.signal if exit else None, read)
    if shot.kind == "monitor":
        events = _number(told.get("events"))
        persistent = bool(told.get("persistent"))
        return Monitor(shot.command, events, persistent, code, told.get("level"), lambda: read(RECENT_LINES))
    if shot.kind == "local_agent":
        return LocalAgent(
            agent_type=_text(told.get("agent_type")),
            prompt=_text(told.get("prompt")),
            async_=told.get("async") is not False,
            phase=_text(told.get("phase")),
            summary=_text(told.get("summary")),
            err=_text(told.get("error")),
            name=_text(told.get("name")),
            worktree_path=told.get("worktree_path"),
            worktree_branch=told.get("worktree_branch"),
        )
    if shot.kind == "lsp":
        return Lsp(
            server_name=_text(told.get("server")),
            command=shot.command,
            state=_text(told.get("state")),
            exit_code=code,
            restart_count=_number(told.get("failed_starts")),
            max_restarts=_number(told.get("max_restarts")),
            restarts_total=_number(told.get("restarts")),
            read=lambda: read(stream="stderr"),
        )
    return Other(dict(told), read)


def told_facts(metadata: object) -> dict[str, object]:
    """Of the metadata that a host gives: what a record can keep, under the names of the view."""
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
    """As it may stand in a list or a message: harmless, short."""
    return Quoter(str, tags=True).label(text or "", DESCRIPTION_CHARACTERS)


def moment(text: str | None) -> datetime | None:
    """A recorded time, aware and in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC) if text else None


def _spawn_error(error: object) -> str | None:
    return _text(error.get("message")) or None if isinstance(error, Mapping) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    # Of an ended monitor the view's `events` may still be its counts.
    if isinstance(value, Mapping):
        value = value.get("count")
    return value if isinstance(value, int) else 0
