"""Kinds of daemons: the letter of their ids, what their snapshot tells under `metadata`, their text, their stop.

A new kind is one class, registered:

    class Build(Kind):
        name, prefix = "build", "u"

        def metadata(self, shot, spec):
            return {"target": shot.metadata.get("target")}

    register(Build())
"""

from __future__ import annotations

from ..errors import BadArgument, RunnerGone
from ..home import ID_ALPHABET
from ..model import FINAL_STATES, KIND_LETTERS, UNKNOWN_KIND_LETTER, Snapshot
from ..runner import clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..host.core import Core
    from ..host.log import Log

    # What was asked for at the start; read only when a kind needs it.
    Spec = Callable[[], Mapping[str, Any]]

# What an agent is shown of a log at once.
OUTPUT_MAX_BYTES = 64 << 10
_ALL_LINES = 1 << 30
_MONITOR_LINES = 200
_PROMPT_CHARACTERS = 500


class Output:
    """The text of a daemon. `cut` bytes of its log stand before it, `more` says that others follow; `cursor` is where
    to go on."""

    __slots__ = ("id", "kind", "status", "text", "cursor", "cut", "more")

    def __init__(self, shot: Snapshot, text: str, *, cursor: str, cut: int = 0, more: bool = False) -> None:
        self.id = shot.id
        self.kind = shot.kind
        self.status = shot.status
        self.text = text
        self.cursor = cursor
        self.cut = cut
        self.more = more

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def __repr__(self) -> str:
        return f"<Output of {self.id}: {len(self.text)} characters>"


class Kind:
    """What is the same for all of a kind; `name` and `prefix` are its own."""

    name = "unknown"
    prefix = UNKNOWN_KIND_LETTER
    # Run by a host instead of a runner.
    in_process = False
    # The stream that is its text; None for all.
    stream: str | None = None
    # How many lines are shown unless somebody asks for another number.
    lines: int | None = None

    def metadata(self, shot: Snapshot, spec: Spec) -> dict[str, Any]:
        return {}

    def output(self, log: Log, shot: Snapshot, tail: int | None, since: str | int | None) -> Output:
        """Its text, also after the end."""
        if since is not None:
            page = log.read(since, stream=self.stream, limit=OUTPUT_MAX_BYTES)
            return Output(shot, page.text, cursor=page.cursor, more=page.more)
        lines = tail if tail is not None else self.lines or _ALL_LINES
        page = log.tail(lines, stream=self.stream, limit=OUTPUT_MAX_BYTES)
        first: dict[str, int] = {}
        for stream, offset, _ in page.chunks:
            first.setdefault(stream, offset)
        cut = sum(offset - page.dropped_before.get(stream, 0) for stream, offset in first.items())
        return Output(shot, page.text, cursor=page.cursor, cut=cut)

    async def stop(self, core: Core, id: str, *, grace: float | None, by: str | None) -> None:
        """Ask for its end and come back when that was accepted. The ending is told by whoever owns the daemon."""
        connection = await core.begin_stop(id, grace=grace, by=by)
        if connection is not None:
            try:
                # Answered in the order of asking: when this is, the stop is under way.
                await connection.request("ping", core.config.hosts_reply_timeout)
                return
            except RunnerGone:
                pass  # it may be over by now, or its runner was killed under our hands
            finally:
                connection.close()
        # No runner is there to do it: this host does, from the records, and has to stay until it is done.
        await core.finish_stop(id, None, grace=grace, by=by)


class LocalBash(Kind):
    name, prefix = "local_bash", "b"

    def metadata(self, shot: Snapshot, spec: Spec) -> dict[str, Any]:
        return {"command": shot.command, "cwd": shot.cwd, "exit_code": shot.exit and shot.exit.code}


class Terminal(Kind):
    name, prefix = "terminal", "p"

    def metadata(self, shot: Snapshot, spec: Spec) -> dict[str, Any]:
        rows, cols = shot.size or (None, None)
        title, alt_screen = shot.metadata.get("title"), shot.metadata.get("alt_screen", False)
        return {"command": shot.command, "rows": rows, "cols": cols, "title": title, "alt_screen": alt_screen}


class Monitor(Kind):
    name, prefix = "monitor", "m"
    lines = _MONITOR_LINES

    def metadata(self, shot: Snapshot, spec: Spec) -> dict[str, Any]:
        told = shot.metadata
        events = told.get("events")
        if "monitor" not in told and isinstance(events, int):
            return {"command": shot.command}  # the snapshot of a signal tells the rest as it was
        # Once it has ended, the exit record has its counts.
        facts = {**(events if isinstance(events, dict) else {}), **(told.get("monitor") or {})}
        return {
            "command": shot.command,
            "events": facts.get("count", 0),
            "suppressed": facts.get("suppressed", 0),
            "level": facts.get("level"),
            "persistent": facts.get("persistent", bool((spec().get("monitor") or {}).get("persistent"))),
            "deadline": _deadline(shot, spec),
        }


class Lsp(Kind):
    name, prefix = "lsp", "l"
    # stdout is the protocol's.
    stream = "stderr"

    def metadata(self, shot: Snapshot, spec: Spec) -> dict[str, Any]:
        told = shot.metadata
        return {
            "server": told.get("server"),
            "command": shot.command,
            "state": _server_state(shot),
            "exit_code": shot.exit and shot.exit.code,
            "restarts": max(0, (shot.attempt or 1) - 1),
            "failed_starts": told.get("failed_starts", 0),
            "max_restarts": told.get("max_restarts"),
            # Known only to the host that speaks to it.
            "open_requests": None,
        }


class _InProcess(Kind):
    in_process = True
    facts: tuple[str, ...] = ()

    def metadata(self, shot: Snapshot, spec: Spec) -> dict[str, Any]:
        return {fact: shot.metadata.get(fact) for fact in self.facts}


class LocalTask(_InProcess):
    name, prefix = "local_task", "k"
    facts: tuple[str, ...] = ("function", "phase", "progress", "summary", "error")

    def output(self, log: Log, shot: Snapshot, tail: int | None, since: str | int | None) -> Output:
        """Its lines, and behind them what became of it."""
        out = super().output(log, shot, tail, since)
        said = _result(shot)
        if said and not out.more:
            out.text = f"{out.text}{'' if not out.text or out.text.endswith(chr(10)) else chr(10)}{said}"
        return out


class LocalAgent(_InProcess):
    name, prefix = "local_agent", "a"
    facts: tuple[str, ...] = (
        *("agent_type", "prompt", "async", "phase", "summary", "error"),
        *("worktree_path", "worktree_branch"),
    )

    def metadata(self, shot: Snapshot, spec: Spec) -> dict[str, Any]:
        told = super().metadata(shot, spec)
        if isinstance(told.get("prompt"), str):
            told["prompt"] = told["prompt"][:_PROMPT_CHARACTERS]
        return told

    def output(self, log: Log, shot: Snapshot, tail: int | None, since: str | int | None) -> Output:
        """The result; while there is none, what it was asked. Its lines are for whoever asks by cursor."""
        out = super().output(log, shot, tail, since)
        if since is None:
            prompt = shot.metadata.get("prompt")
            lines = _result(shot) or (f"prompt: {prompt[:_PROMPT_CHARACTERS]}" if prompt else "")
            out.text = "\n".join(lines.splitlines()[-tail:]) if tail else lines
            out.cut = 0
        return out


class InProcessTeammate(LocalAgent):
    name, prefix = "in_process_teammate", "t"


class RemoteAgent(LocalAgent):
    name, prefix = "remote_agent", "r"
    facts = ("node", "remote_id", "phase", "summary", "error", "last_seen")


class LocalWorkflow(LocalTask):
    name, prefix = "local_workflow", "w"
    facts = ("steps", "step", "phase", "summary", "error")


class Dream(LocalTask):
    name, prefix = "dream", "d"
    facts = ("topic", "phase", "summary", "error")


class Unknown(LocalTask):
    """Whatever a host calls it: in the list, in the queue, stopped like the others, and nothing is known about it."""

    name, prefix = "unknown", UNKNOWN_KIND_LETTER
    facts = ()


_UNKNOWN = Unknown()
_KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        *(LocalBash(), Terminal(), Monitor(), Lsp(), LocalTask(), LocalAgent(), InProcessTeammate()),
        *(RemoteAgent(), LocalWorkflow(), Dream()),
    )
}


def of(name: str) -> Kind:
    return _KINDS.get(name, _UNKNOWN)


def names() -> tuple[str, ...]:
    return tuple(_KINDS)


def register(kind: Kind) -> None:
    """From now on daemons of this kind have its letter, metadata, text and stop. The same name again replaces it."""
    if len(kind.prefix) != 1 or kind.prefix not in ID_ALPHABET:
        raise BadArgument("prefix", f"{kind.prefix!r} is no letter of an id", "give one of 0-9 and a-z")
    taken = next((each.name for each in _KINDS.values() if each.prefix == kind.prefix and each.name != kind.name), None)
    if taken is not None:
        raise BadArgument("prefix", f"{kind.prefix!r} is the letter of {taken}", "choose another")
    _KINDS[kind.name] = kind
    KIND_LETTERS[kind.name] = kind.prefix


def dress(shot: Snapshot, spec: Spec) -> Snapshot:
    """The snapshot, with what its kind tells in `metadata` beside what was given there."""
    shot.metadata = {**shot.metadata, **of(shot.kind).metadata(shot, spec)}
    return shot


def _result(shot: Snapshot) -> str:
    """What it reported, or why it failed; empty while neither is known."""
    summary, error = shot.metadata.get("summary"), shot.metadata.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    return "\n".join([*([str(summary)] if summary else []), *([f"error: {error}"] if error else [])])


def _server_state(shot: Snapshot) -> str:
    """As far as anybody but the host that speaks to it can tell."""
    if shot.state in FINAL_STATES:
        return "stopped" if shot.status in ("completed", "killed") else "error"
    # A signal carries what its runner knew at that time.
    if shot.metadata.get("state") in ("starting", "running", "stopping", "error", "stopped"):
        return str(shot.metadata["state"])
    if shot.stopping:
        return "stopping"
    if shot.health == "unhealthy":
        return "error"
    ready = shot.metadata.get("ready")
    return "running" if ready is True or (isinstance(ready, dict) and ready.get("ok")) else "starting"


def _deadline(shot: Snapshot, spec: Spec) -> str | None:
    limit, began = spec().get("timeout"), shot.started_at
    if not isinstance(limit, (int, float)) or began is None:
        return None
    from datetime import datetime

    try:
        began_ms = round(datetime.fromisoformat(began).timestamp() * 1000)
    except ValueError:
        return None
    return clock.rfc3339(began_ms * 1_000_000 + round(limit * 1e9))
