"""The actions of the tool `process`, each as a mapping of the facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import (
    BadArgument,
    NotFound,
    Removed,
    RunnerGone,
    SessionEnded,
    StdinClosed,
    StillRunning,
    Unreachable,
    Unsupported,
)
from ...places import LOCAL
from . import limits, scope, texts, views
from .lines import numbered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from typing import Any, Protocol

    from ...errors import HoldfastError
    from ...host.aio import AsyncHoldfast, AsyncSession
    from ...model import Woke
    from .settings import Settings

    class Told(Protocol):
        """Whether an end was told."""

        observed: set[str]

        async def event_of(self, session: AsyncSession) -> str | None: ...
        async def told(self, session: AsyncSession, event_id: str | None, *, at_once: bool = False) -> None: ...
        async def is_told(self, session: AsyncSession, event_id: str | None) -> bool: ...

    Facts = dict[str, Any]
    Aside = Callable[[Callable[[], str]], Awaitable[str]]
    # Awaits it; None where somebody interrupted the waiting.
    Waiting = Callable[[AsyncSession, Awaitable[Woke]], Awaitable[Woke | None]]


class Process:
    """`owners`: whose sessions are found. `aside` does in a thread what would hold up an event loop; without one
    everybody waits anyway."""

    def __init__(
        self,
        hf: AsyncHoldfast,
        owners: Collection[str],
        settings: Settings,
        consuming: Told,
        aside: Aside | None = None,
    ) -> None:
        self._hf = hf
        self._owners = owners
        self._settings = settings
        self._consuming = consuming
        self._aside = aside

    async def find(self, ref: object) -> AsyncSession:
        return await scope.find(self._hf, ref, self._owners)

    async def listed(self, task_id: str, owners: Collection[str], session_keys: Collection[str]) -> Facts:
        rows = await scope.listed(self._hf, task_id, owners, session_keys)
        found = []
        for each in rows:
            try:
                found.append(await self._row(each, task_id))
            except (NotFound, Removed):
                continue  # another process removed it while we looked
        return {"processes": found}

    async def _row(self, session: AsyncSession, task_id: str) -> Facts:
        asked = session.metadata.get("hermes") or {}
        preview, _ = await views.tail(session, limits.LIST_PREVIEW_CHARS, self._settings.shown)
        row: Facts = {
            "session_id": scope.called(session),
            "command": self._settings.shown(session.command)[: limits.LIST_COMMAND_CHARS],
            "cwd": session.cwd,
            "pid": session.pid,
            "started_at": views.local_time(session.started_at or session.created_at),
            "uptime_seconds": views.uptime(session),
            "status": views.status(session),
            "output_preview": preview,
        }
        if session.exit is not None and scope.is_over(session):
            ended = views.how_it_ended(session, session.exit)
            row |= {"exit_code": ended["exit_code"], "exited_at": views.local_time(session.ended_at)}
            row["completion_reason"] = ended["completion_reason"]
        notifies = asked.get("notify_on_complete") or session.labels.get(scope.MODE) == scope.YIELDED
        if notifies and self._settings.drains:
            row["notify_on_complete"] = True
        if asked.get("watch_patterns"):
            row["watch_patterns"] = asked["watch_patterns"]
        if (session.metadata.get("watch") or {}).get("hits"):
            row["watch_hit"] = True
        if scope.PERSIST in session.labels:
            row["persist_on_release"] = True
        if session.labels.get(scope.OWNER_TASK):
            row["owner_task_id"] = session.labels[scope.OWNER_TASK]
        if session.labels.get(scope.TASK) != task_id:
            row["session_scoped"] = True
        return row | views.health(session) | views.survivors(session.exit) | views.place(session)

    async def poll(self, ref: object, *, since: str | None = None, acknowledge: bool = False) -> Facts:
        session = await self.find(ref)
        more = False
        if since is None:
            preview, cut, cursor = await views.newest(session, limits.POLL_CHARS, self._settings.shown)
        else:
            page = await session.read(since, limit=limits.REPLY_CHARS)
            if page.more or not scope.is_over(session):
                page = page.whole()
            cursor = page.cursor
            begins = bool(page.chunks) and await views.nothing_before(session, *page.chunks[0][:2])
            text = views.without_noise(page.text) if begins else page.text
            preview, cut = views.last(self._settings.shown(text), limits.REPLY_CHARS)
            more = page.more
        facts = self._head(session)
        facts |= {"pid": session.pid, "uptime_seconds": views.uptime(session), "output_preview": preview}
        facts |= {"cursor": cursor, **({"output_cut": True} if cut else {})}
        facts |= {"note": texts.MORE_FOLLOWS} if more else {}
        if session.exit is not None and scope.is_over(session):
            event = await self._consuming.event_of(session)
            facts |= {**views.how_it_ended(session, session.exit), "event_id": event}
            self._consuming.observed.add(session.id)
            if acknowledge:
                await self._consuming.told(session, event)
        return views.with_health(facts, session) | views.survivors(session.exit) | views.place(session)

    async def log(self, ref: object, *, offset: int | None = None, limit: int, raw: bool = False) -> Facts:
        session = await self.find(ref)
        window = await numbered(session, offset, limit, self._worked, raw=raw)
        first, lines = window.first, window.lines
        reaches_end = first + len(lines) >= window.total
        shows_end = reaches_end and (bool(lines) or window.total == 0)
        if first == 0 and not raw:
            first = views.noise(lines)
            lines = lines[first:]
        # Redacted as one text, for a key may stand on several lines; lines stay lines.
        seen, text = self._settings.redacted if raw else self._settings.shown, "\n".join(lines)
        lines = (await self._worked(len(text), lambda: seen(text))).split("\n") if lines else []
        kept = views.within(lines, limits.REPLY_CHARS, from_end=offset is None)
        cut = len(kept) < len(lines) or any(len(line) > limits.REPLY_CHARS for line in lines)
        if offset is None:
            first += len(lines) - len(kept)
        else:
            reaches_end = reaches_end and len(kept) == len(lines)
            shows_end = shows_end and kept == lines
        facts = self._head(session)
        facts |= {"output": "\n".join(kept), "total_lines": window.total, "showing": f"{len(kept)} lines"}
        facts["first_line"] = first
        if window.dropped:
            facts["lines_dropped"] = window.dropped
        if not reaches_end:
            facts["next_offset"] = first + len(kept)
        if cut:
            facts["output_cut"] = True
        if session.exit is not None and scope.is_over(session) and shows_end and session.exit.complete:
            await self._consuming.told(session, await self._consuming.event_of(session))
        return facts

    async def _worked(self, characters: int, work: Callable[[], str]) -> str:
        return work() if self._aside is None or characters < limits.LONG_CHARS else await self._aside(work)

    async def wait(self, ref: object, *, timeout: int | None = None, waiting: Waiting | None = None) -> Facts:
        allowed = limits.timeout_s()
        if timeout is not None and timeout < 1:
            raise BadArgument("timeout", f"{timeout} is out of bounds", "give a whole number of at least 1")
        limit = min(timeout or allowed, allowed)
        session = await self.find(ref)
        outcome = session.wait(timeout=limit)
        try:
            woke = await (outcome if waiting is None else waiting(session, outcome))
        except Unreachable as problem:
            text, _ = await views.tail(await session.refresh(), limits.WAIT_RUNNING_CHARS, self._settings.shown)
            facts = self._head(session) | {"process_running": True, "output": text, **views.health(session)}
            return facts | {"status": "error", "error": str(_worded(problem, session)), "error_code": problem.code}
        clamped = texts.wait_clamped(timeout, allowed) if timeout is not None and timeout > allowed else None
        if woke is not None and woke.reason in ("exit", "lost") and session.exit is not None:
            text, cut = await views.tail(session, limits.WAIT_EXITED_CHARS, self._settings.shown)
            facts = self._head(session) | {"status": "exited", "output": text}
            facts |= {"output_cut": True} if cut else {}
            event = woke.signal_id or await self._consuming.event_of(session)
            facts |= {**views.how_it_ended(session, session.exit), "event_id": event}
            facts |= {"timeout_note": clamped} if clamped else {}
            await self._consuming.told(session, event)
            return facts | views.survivors(session.exit)
        text, _ = await views.tail(session, limits.WAIT_RUNNING_CHARS, self._settings.shown)
        facts = self._head(session) | {"process_running": True, "output": text}
        if woke is None:
            return facts | {"status": "interrupted", "note": texts.WAIT_INTERRUPTED}
        return facts | {"status": "timeout", "timeout_note": clamped or texts.wait_over(limit), **views.health(session)}

    async def kill(self, ref: object) -> Facts:
        session = await self.find(ref)
        over_before = scope.is_over(session)
        stopped = await self._settings.stop(session, "process.kill")
        pids = [each["pid"] for each in stopped.survivors]
        head: Facts = {"session_id": scope.called(session)}
        if pids or not scope.is_over(session):
            error = {"error": texts.still_there(pids), "error_code": StillRunning.code, "survivors": pids}
            return {"status": "error", **head, "process_running": not scope.is_over(session), **error}
        event = await self._consuming.event_of(session)
        ended = {} if session.exit is None else views.how_it_ended(session, session.exit)
        text, cut = await views.tail(session, limits.WAIT_EXITED_CHARS, self._settings.shown)
        await self._consuming.told(session, event)  # last: whoever is aborted before was given nothing
        facts = head | ended | {"output": text, "output_cut": cut, "event_id": event}
        if over_before or ended.get("completion_reason") != "killed":
            descendants = {"descendants_stopped": [each["pid"] for each in stopped.found]} if stopped.found else {}
            return {"status": "already_exited", **facts, **descendants}
        return {"status": "killed", **facts}

    async def write(self, ref: object, data: str) -> Facts:
        return await self._typed(ref, data, enter=False)

    async def submit(self, ref: object, data: str) -> Facts:
        return await self._typed(ref, data, enter=True)

    async def _typed(self, ref: object, data: str, *, enter: bool) -> Facts:
        session = await self.find(ref)
        try:
            if enter and session.tty:
                typed = await session.submit(data)
            else:
                typed = await session.send(data + "\n" if enter else data)
        except (SessionEnded, StdinClosed, RunnerGone, Unreachable) as problem:
            return await self._not_typed(session, problem)
        note = {"note": "; ".join(typed.warnings)} if typed.warnings else {}
        return {"status": "ok", "bytes_written": typed.accepted, **note}

    async def close(self, ref: object) -> Facts:
        session = await self.find(ref)
        try:
            typed = await session.eof()
        except (SessionEnded, StdinClosed, RunnerGone, Unreachable) as problem:
            return await self._not_typed(session, problem)
        note = {"note": "; ".join(typed.warnings)} if typed.warnings else {}
        return {"status": "ok", "message": texts.EOF_SENT if session.tty else texts.STDIN_CLOSED, **note}

    async def _not_typed(self, session: AsyncSession, problem: HoldfastError) -> Facts:
        """What has ended meanwhile, or is lost, is no error."""
        if isinstance(problem, SessionEnded) or scope.is_over(await session.refresh()):
            return {"status": "already_exited", "error": texts.FINISHED}
        raise _worded(problem, session)

    async def ack(self, ref: object) -> Facts:
        session = await self.find(ref)
        if not scope.is_over(session):
            raise _worded(StillRunning(session.id), session)
        if not self._settings.drains:
            return {"status": "error", "error": texts.NOBODY_LISTENS, "error_code": Unsupported.code}
        event = await self._consuming.event_of(session)
        await self._consuming.told(session, event, at_once=True)
        return {"status": "ok", "event_id": event}

    async def is_consumed(self, ref: object) -> bool:
        """Was its end told, or taken note of? False for what has not ended, or does not exist."""
        try:
            session = await self.find(ref)
        except NotFound:
            return False
        return scope.is_over(session) and await self._consuming.is_told(
            session, await self._consuming.event_of(session)
        )

    def _head(self, session: AsyncSession) -> Facts:
        return {
            "session_id": scope.called(session),
            "command": self._settings.shown(session.command),
            "status": views.status(session),
        }


def unknown(problem: NotFound) -> Facts:
    return {"status": "not_found", "error": texts.not_found(problem.ref), "error_code": problem.code}


def _worded(problem: HoldfastError, session: AsyncSession) -> HoldfastError:
    """By the id that it has here, and with what these tools can do about it."""
    id = scope.called(session)
    if isinstance(problem, StdinClosed):
        problem.message, problem.fix = texts.stdin_closed(id, problem.why), texts.START_OPEN
    elif isinstance(problem, RunnerGone):
        problem.message, problem.fix = texts.supervisor_gone(id), f"{texts.log_of(id)}, {texts.kill_of(id)}"
    elif isinstance(problem, Unreachable):
        # Of another place it is told why.
        problem.message = texts.supervisor_silent(id) if session.place == LOCAL else problem.message
        problem.fix = f"try again; {texts.log_of(id)}"
    elif isinstance(problem, StillRunning):
        problem.message, problem.fix = texts.still_running(id), texts.wait_or_kill(id)
    return problem
