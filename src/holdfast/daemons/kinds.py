"""Kinds of daemons: the letter of their ids, the metadata of their snapshot, their text, their stop.

A new kind is one class, registered:

    class Build(Kind):
        name, prefix = "build", "u"

        def metadata(self, shot, spec):
            return {"target": shot.metadata.get("target")}

    register(Build())
"""

from __future__ import annotations

from ..core import clock
from ..errors import BadArgument
from ..home import ID_ALPHABET
from ..model import FINAL_STATES, KIND_LETTERS, UNKNOWN_KIND_LETTER, Snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..sessions.core import Core
    from ..sessions.log import Chunk, Log, Page

    # The options of the start; read only if a kind needs them.
    Spec = Callable[[], Mapping[str, Any]]

# The most text of a log that is shown at once.
OUTPUT_MAX_BYTES = 64 << 10
_ALL_LINES = 1 << 30
_MONITOR_LINES = 200
# The rest of a cut line is left out if it is no longer than this.
_LINE_REST_BYTES = 8 << 10
_PROMPT_CHARACTERS = 500


class Output:
    """The text of a daemon. Its log has `cut` bytes before it, and others after it if `more`; `cursor` continues."""

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
    """The defaults of a kind; each has a `name` and a `prefix` of its own."""

    name = "unknown"
    prefix = UNKNOWN_KIND_LETTER
    # Run by a host instead of a runner.
    in_process = False
    # The stream of its text; None for all.
    stream: str | None = None
    # How many lines are shown by default.
    lines: int | None = None

    def metadata(self, shot: Snapshot, spec: Spec) -> dict[str, Any]:
        return {}

    def output(self, log: Log, shot: Snapshot, tail: int | None, since: str | int | None) -> Output:
        """Its text, also after the end."""
        if since is not None:
            page = log.read(since, stream=self.stream, limit=OUTPUT_MAX_BYTES)
            return Output(shot, page.text, cursor=page.cursor, more=page.more)
        page, cut = last_page(log, self.lines if tail is None else tail, stream=self.stream)
        return Output(shot, page.text, cursor=page.cursor, cut=cut)

    async def stop(self, core: Core, id: str, *, grace: float | None, by: str | None) -> None:
        """Ask for its end and return when that was accepted. The owner of the daemon signals the end."""
        from ..sessions.act import Stop

        stopping = Stop(core, id, grace, by)
        await stopping.begin()
        await stopping.accepted()


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
        known = shot.metadata
        events = known.get("events")
        if "monitor" not in known and isinstance(events, int):
            return {"command": shot.command}  # the snapshot of a signal has the rest
        # Once it has ended, the exit record has its counts.
        facts = {**(events if isinstance(events, dict) else {}), **(known.get("monitor") or {})}
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
    # stdout carries the protocol.
    stream = "stderr"

    def metadata(self, shot: Snapshot, spec: Spec) -> dict[str, Any]:
        known = shot.metadata
        return {
            "server": known.get("server"),
            "command": shot.command,
            "state": _server_state(shot),
            "exit_code": shot.exit and shot.exit.code,
            "restarts": max(0, (shot.attempt or 1) - 1),
            "failed_starts": known.get("failed_starts", 0),
            "max_restarts": known.get("max_restarts"),
            # Only the host that is connected to it knows.
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
        """Its lines, and after them its result."""
        out = super().output(log, shot, tail, since)
        result = _result(shot)
        if result and not out.more:
            out.text = f"{out.text}{'' if not out.text or out.text.endswith(chr(10)) else chr(10)}{result}"
        return out


class LocalAgent(_InProcess):
    name, prefix = "local_agent", "a"
    facts: tuple[str, ...] = (
        *("agent_type", "prompt", "async", "phase", "summary", "error"),
        *("worktree_path", "worktree_branch"),
    )

    def metadata(self, shot: Snapshot, spec: Spec) -> dict[str, Any]:
        facts = super().metadata(shot, spec)
        if isinstance(facts.get("prompt"), str):
            facts["prompt"] = facts["prompt"][:_PROMPT_CHARACTERS]
        return facts

    def output(self, log: Log, shot: Snapshot, tail: int | None, since: str | int | None) -> Output:
        """Its result or, before there is one, its prompt. Its lines are read by cursor."""
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
    """A kind that is not registered: listed, queued and stopped like the others, without metadata."""

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
        raise BadArgument("prefix", f"{kind.prefix!r} cannot be the first letter of an id", "give one of 0-9 and a-z")
    taken = next((each.name for each in _KINDS.values() if each.prefix == kind.prefix and each.name != kind.name), None)
    if taken is not None:
        raise BadArgument("prefix", f"{kind.prefix!r} is the letter of {taken}", "choose another")
    _KINDS[kind.name] = kind
    KIND_LETTERS[kind.name] = kind.prefix


def dress(shot: Snapshot, spec: Spec) -> Snapshot:
    """Add the metadata of its kind to that which was given at the start."""
    shot.metadata = {**shot.metadata, **of(shot.kind).metadata(shot, spec)}
    return shot


# The end of a log, at most 64 KiB in whole characters.


def last_page(
    log: Log, lines: int | None = None, *, stream: str | None = None, until: Mapping[str, int] | None = None
) -> tuple[Page, int]:
    """The last lines, or all, and the number of bytes of the log before them. `more`: the limit cut them."""
    from ..sessions.log import Page

    page = log.tail(lines or _ALL_LINES, stream=stream, limit=OUTPUT_MAX_BYTES, until=until)
    chunks = page.chunks
    if (page.more or len(page.data) > OUTPUT_MAX_BYTES) and not page.told:
        # The limit applied to each stream, and the first line may be cut.
        chunks = _whole(_last(chunks, OUTPUT_MAX_BYTES))
        shown = [chunk for chunk in chunks if chunk[2]]
        page = Page(shown, page.cursor, page.dropped_before, page.gaps, True, directory=log.directory)
    first: dict[str, int] = {}
    for name, offset, data in reversed(chunks):
        if data or name not in first:
            first[name] = offset
    return page, sum(offset - page.dropped_before.get(name, 0) for name, offset in first.items())


def _last(chunks: list[Chunk], room: int) -> list[Chunk]:
    """The last `room` bytes of all streams together. A chunk that is left out becomes an empty one at its end, where
    its stream continues."""
    kept: list[Chunk] = []
    for name, offset, data in reversed(chunks):
        skip = max(0, len(data) - room)
        kept.append((name, offset + skip, data[skip:]))
        room -= len(data) - skip
    return kept[::-1]


def _whole(chunks: list[Chunk]) -> list[Chunk]:
    """Without the partial line, or at least the partial character, at the beginning."""
    name = next((name for name, _, data in chunks if data), None)
    skip = _first_whole(b"".join(data for each, _, data in chunks if each == name)[: _LINE_REST_BYTES + 4])
    kept: list[Chunk] = []
    for each, offset, data in chunks:
        left_out = min(skip, len(data)) if each == name else 0
        skip -= left_out
        kept.append((each, offset + left_out, data[left_out:]))
    return kept


def _first_whole(data: bytes) -> int:
    """Where the first whole line begins or, if that is too far, the first whole character."""
    end = data.find(b"\n", 0, _LINE_REST_BYTES)
    if end >= 0:
        return end + 1
    return next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)


def _result(shot: Snapshot) -> str:
    """Its summary and its error; empty if there is neither."""
    summary, error = shot.metadata.get("summary"), shot.metadata.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    return "\n".join([*([str(summary)] if summary else []), *([f"error: {error}"] if error else [])])


def _server_state(shot: Snapshot) -> str:
    """As far as a host knows that is not connected to it."""
    if shot.state in FINAL_STATES:
        return "stopped" if shot.status in ("completed", "killed") else "error"
    # A signal has the state that its runner knew.
    if shot.metadata.get("state") in ("starting", "running", "stopping", "error", "stopped"):
        return str(shot.metadata["state"])
    if shot.stopping:
        return "stopping"
    if shot.health == "unhealthy":
        return "error"
    ready = shot.metadata.get("ready")
    return "running" if ready is True or (isinstance(ready, dict) and ready.get("ok")) else "starting"


def _deadline(shot: Snapshot, spec: Spec) -> str | None:
    limit, began = spec().get("timeout"), clock.epoch(shot.started_at)
    if not isinstance(limit, (int, float)) or began is None:
        return None
    return clock.rfc3339(round(began * 1000) * 1_000_000 + round(limit * 1e9))
