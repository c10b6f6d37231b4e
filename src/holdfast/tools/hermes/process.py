"""The actions of the tool `process`, and sessions and their output as this toolset shows them."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.clock import epoch
from ...core.kernel_signals import NUMBERS
from ...core.vt.widths import decode
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
from ...model import FINAL_STATES, STALE, STARTING, UNREACHABLE
from ...places.kinds import LOCAL
from ..owner_sessions import both_ends, elapsed_s, end_of
from . import labels, limits, words

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
    from typing import Any

    from ...errors import HoldfastError
    from ...model import Exit, Snapshot, Stopped, Woke
    from ...sessions.aio import AsyncSession
    from .owners import Owners
    from .settings import Settings


# Output by line numbers that never shift: the first line ever printed is 0.


# More than any log keeps.
_ALL_BYTES = 1 << 40


@dataclass
class Window:
    """`lines` begin at number `first`; `total` counts all lines ever printed, `dropped` those that are not kept."""

    lines: list[str]
    first: int
    total: int
    dropped: int


async def numbered(session: AsyncSession, first: int | None, count: int, *, raw: bool) -> Window:
    """`count` lines from `first` on, or the last ones."""
    dropped = sum([await session.lines_before(each, session.dropped_before.get(each, 0)) for each in session.ends])
    lines = (await _everything(session, raw=raw)).split("\n")
    if not lines[-1]:
        lines.pop()
    start = max(0, len(lines) - count if first is None else first - dropped)
    return Window(lines[start : start + count], dropped + start, dropped + len(lines), dropped)


async def _everything(session: AsyncSession, *, raw: bool) -> str:
    """All output that is kept."""
    if session.tty and not raw:
        return await session.text()  # the rows of a terminal are not its bytes
    page = await session.read(limit=_ALL_BYTES)
    if session.state not in FINAL_STATES and not raw:
        page = page.whole()
    return await aside(session, lambda: decode(page.data) if raw else page.text)


async def aside(session: AsyncSession, work: Callable[[], str]) -> str:
    """Do something that takes long for a long text, without blocking an event loop."""
    return await session._core.driver.call(work)


def only_stream(session: AsyncSession) -> str | None:
    """Its only stream; None for a session with two, which this toolset did not start."""
    streams = tuple(session.ends) or ("stdout",)
    return streams[0] if len(streams) == 1 else None


# Sessions and what they printed, as this toolset shows them.


if TYPE_CHECKING:
    Shown = Callable[[str], str]

# Complaints of a shell without a terminal. They help no reader.
_NOISE = (
    "no job control in this shell",
    "cannot set terminal process group",
    "tcsetattr: Inappropriate ioctl for device",
)
# All of them together are shorter than this.
_NOISE_BYTES = 2048
_REASONS = {
    "stop": "killed",
    "owner_gone": "killed",
    "overall_timeout": "timed_out",
    "idle_timeout": "timed_out",
    "ttl": "timed_out",
    "lost": "lost",
    "spawn_error": "failed_start",
}
_MEANINGS = {
    ("grep", 1): "no lines matched",
    ("rg", 1): "no lines matched",
    ("diff", 1): "the files differ",
    ("test", 1): "the condition is false",
    ("[", 1): "the condition is false",
    ("find", 1): "some directories could not be read",
    ("curl", 6): "the host name could not be resolved",
    ("curl", 7): "the connection failed",
    ("curl", 22): "the server answered with an error status",
    ("curl", 28): "the operation timed out",
    ("git", 1): "often no error: differences were found, or nothing was there to do",
}
_NEWEST_BYTES = 32 << 10
# What a shell reads as one piece, and in the group what ends a command.
_PIECE = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|(&&|\|\||[;|\n])|[^\\'"&|;\n]+|.""", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def exit_code(code: int | None, signal: str | None) -> int | None:
    """0 to 255, or -N for signal N; None where neither was seen."""
    if code is not None or signal is None:
        return code
    number = NUMBERS.get(signal) or signal.removeprefix("SIG")
    return -int(number) if str(number).isdecimal() else None


def reason(cause: str) -> str:
    return _REASONS.get(cause, "exited")


def source(cause: str, by: str | None, *, foreground: bool) -> str:
    """What ended it; empty for a command that ended by itself."""
    if cause == "overall_timeout":
        return "terminal.timeout" if foreground else "terminal.deadline"
    if cause in ("idle_timeout", "ttl", "owner_gone", "out_of_memory"):
        return by or cause
    if cause in ("lost", "spawn_error"):
        return {"lost": "backend_lost", "spawn_error": "failed_start"}[cause]
    return by or "" if cause == "stop" else ""


def meaning(command: str, code: int | None) -> str | None:
    """What an exit code that looks like trouble usually means."""
    if code is None or code == 0:
        return None
    if code < 0 or 128 < code <= 128 + 64:
        number = -code if code < 0 else code - 128
        names = [name for name, each in NUMBERS.items() if each == number]
        said = f"ended by signal {number}" + (f" ({names[0]})" if names else "")
        return said if code < 0 else f"usually {said}"
    parts = [part for part in _last_command(command).split() if not _ASSIGNMENT.match(part)] or [""]
    return _MEANINGS.get((parts[0].rsplit("/", 1)[-1], code))


def _last_command(command: str) -> str:
    text = command.rstrip(" \t\n;")
    ends = [piece.end() for piece in _PIECE.finditer(text) if piece.group(1)]
    return text[ends[-1] :] if ends else text


def is_foreground(shot: Snapshot) -> bool:
    return shot.labels.get(labels.MODE) in (labels.FOREGROUND, labels.YIELDED)


def how_it_ended(shot: Snapshot, exit: Exit) -> dict[str, Any]:
    return {
        "exit_code": exit_code(exit.code, exit.signal),
        "completion_reason": reason(exit.cause),
        "termination_source": source(exit.cause, exit.by, foreground=is_foreground(shot)),
    }


def status(shot: Snapshot) -> str:
    return "exited" if labels.is_over(shot) else "running"


def health(shot: Snapshot) -> dict[str, Any]:
    """For a session that is not simply running or over."""
    if shot.state in (UNREACHABLE, STALE, STARTING):
        detached = {"detached": True} if shot.state == STALE else {}
        note = words.AWAY if shot.state == UNREACHABLE and shot.place != LOCAL else words.HEALTH[shot.state]
        return {"health": shot.state, "note": note, **detached}
    return {} if shot.health in (None, "healthy") else {"health": shot.health, "note": words.UNHEALTHY}


def with_health(facts: dict[str, Any], shot: Snapshot) -> dict[str, Any]:
    """The facts and its health, with both notes joined."""
    found = health(shot)
    notes = [each["note"] for each in (facts, found) if "note" in each]
    return facts | found | ({"note": "; ".join(notes)} if notes else {})


def place(shot: Snapshot) -> dict[str, Any]:
    """For a session in another place: its pid counts there."""
    if labels.facts(shot).get("sandbox"):
        return {"place": labels.SANDBOX, "pid_scope": "sandbox"}
    return {} if shot.place == LOCAL else {"place": shot.place, "pid_scope": "sandbox"}


def survivors(exit: Exit | None) -> dict[str, Any]:
    return {} if exit is None or not exit.survivors else {"survivors": [each["pid"] for each in exit.survivors]}


def uptime(shot: Snapshot) -> int:
    return int(elapsed_s(shot.started_at or shot.created_at, shot.ended_at))


def local_time(text: str | None) -> str:
    at = epoch(text)
    return "" if at is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))


# Output.


def noise(lines: Sequence[str]) -> int:
    """How many lines at the beginning are noise."""
    others = (number for number, line in enumerate(lines) if not any(each in line for each in _NOISE))
    return next(others, len(lines))


def without_noise(text: str) -> str:
    # Seldom more than two; what follows may be long.
    while any(each in text.partition("\n")[0] for each in _NOISE):
        text = text.partition("\n")[2]
    return text


async def nothing_before(session: AsyncSession, stream: str, offset: int) -> bool:
    """Whether there is no output before this but noise."""
    if offset == 0:
        return True
    if offset > _NOISE_BYTES or session.dropped_before.get(stream, 0):
        return False
    text = (await session.read(f"{stream}:0", stream=stream, limit=offset)).text
    return text.endswith("\n") and not without_noise(text)


async def tail(session: AsyncSession, characters: int, shown: Shown) -> tuple[str, bool]:
    """The last characters of the output, from a line start, and whether there is more before them."""
    seen, cut, _ = await newest(session, characters, shown)
    return seen, cut


async def newest(session: AsyncSession, characters: int, shown: Shown) -> tuple[str, bool, str]:
    """As `tail`, and the cursor after it."""
    if session.metadata.get("alt_screen") and not labels.is_over(session):
        cursor = session.cursor
        return *last(shown((await session.screen()).text), characters), cursor
    text, whole, cursor = await _newest(session, characters)
    seen, cut = last(shown(without_noise(text) if whole else text), characters)
    return seen, cut or not whole, cursor


async def _newest(session: AsyncSession, characters: int) -> tuple[str, bool, str]:
    """Text with at least these last characters, whether it is all there is, and the cursor after it."""
    stream = only_stream(session)
    if stream is None or session.tty:
        # Each line has at least one character, so that many lines are enough.
        cursor = session.cursor
        text = await session.tail(characters)
        whole = len(text.splitlines()) < characters and not any(session.dropped_before.values())
        return text, whole, cursor
    begin, end = session.dropped_before.get(stream, 0), session.ends.get(stream, 0)
    # Colours and progress are left out of the text; a line may be long.
    start = max(begin, end - max(_NEWEST_BYTES, 4 * characters))
    if start == end:
        return "", begin == 0, session.cursor
    page = await session.read(f"{stream}:{start}", stream=stream, limit=end - start)
    if page.more or not labels.is_over(session):
        page = page.whole()
    text = page.text
    if start > begin and "\n" in text[:-1]:
        text = text.partition("\n")[2]
    return text, start == 0, page.cursor


def last(text: str, characters: int) -> tuple[str, bool]:
    """The end of it from a line start, and whether something was left out. A single line that is too long is cut."""
    if len(text) <= characters:
        return text, False
    kept, _ = end_of(text, max(1, characters - len(words.CUT) - 1))
    return f"{words.CUT}\n{kept}", True


def window(text: str, characters: int = limits.OUTPUT_CHARS) -> tuple[str, bool]:
    """The beginning and the end of it, cut at line borders, with a count of what is missing between them."""
    if len(text) <= characters:
        return text, False
    begin, end = both_ends(text, characters, limits.OUTPUT_HEAD_SHARE, whole_lines=True)
    head, missing = text[:begin], text[begin:end]
    mark = words.LEFT_OUT.format(characters=len(missing), lines=missing.count("\n") + (not missing.endswith("\n")))
    return f"{head}{'' if head.endswith(chr(10)) else chr(10)}{mark}\n{text[end:]}", True


def within(lines: Sequence[str], characters: int, *, from_end: bool) -> list[str]:
    """As many whole lines as fit, at least one; of one that alone is too long, the part on the side that counts."""
    kept: list[str] = []
    room = characters
    for line in reversed(lines) if from_end else lines:
        room -= len(line) + 1
        if room < 0 and kept:
            break
        kept.append(line[-characters:] if from_end else line[:characters])
    return kept[::-1] if from_end else kept


# The actions of the tool `process`, each as a mapping of the facts.


if TYPE_CHECKING:
    Facts = dict[str, Any]
    Find = Callable[[object], Coroutine[Any, Any, AsyncSession]]
    Stop = Callable[[AsyncSession, str], Coroutine[Any, Any, Stopped]]
    # Awaits the second; None where the wait was interrupted.
    Waiting = Callable[[AsyncSession, Awaitable[Woke]], Awaitable[Woke | None]]


class Actions:
    """A caller that finds or stops sessions in another way gives `find` and `stop`."""

    def __init__(
        self, owners: Owners, settings: Settings, *, find: Find | None = None, stop: Stop | None = None
    ) -> None:
        self._owners = owners
        self._settings = settings
        self.find: Find = find or owners.find
        self._stop: Stop = stop or settings.stop

    async def listed(self, task_id: str, owners: Collection[str], session_keys: Collection[str]) -> Facts:
        found = []
        for each in await self._owners.listed(task_id, owners, session_keys):
            try:
                found.append(await self._row(each, task_id))
            except (NotFound, Removed):
                continue  # another process removed it meanwhile
        return {"processes": found}

    async def _row(self, session: AsyncSession, task_id: str) -> Facts:
        asked = labels.facts(session)
        preview, _ = await tail(session, limits.LIST_PREVIEW_CHARS, self._settings.shown)
        row: Facts = {
            "session_id": labels.called(session),
            "command": self._settings.shown(session.command)[: limits.LIST_COMMAND_CHARS],
            "cwd": session.cwd,
            "pid": labels.pid_of(session),
            "started_at": local_time(session.started_at or session.created_at),
            "uptime_seconds": uptime(session),
            "status": status(session),
            "output_preview": preview,
        }
        if session.exit is not None and labels.is_over(session):
            ended = how_it_ended(session, session.exit)
            row |= {"exit_code": ended["exit_code"], "exited_at": local_time(session.ended_at)}
            row["completion_reason"] = ended["completion_reason"]
        notifies = asked.get("notify_on_complete") or session.labels.get(labels.MODE) == labels.YIELDED
        if notifies and self._settings.drains:
            row["notify_on_complete"] = True
        if asked.get("watch_patterns"):
            row["watch_patterns"] = asked["watch_patterns"]
        if (session.metadata.get("watch") or {}).get("hits"):
            row["watch_hit"] = True
        if labels.PERSIST in session.labels:
            row["persist_on_release"] = True
        if session.labels.get(labels.OWNER_TASK):
            row["owner_task_id"] = session.labels[labels.OWNER_TASK]
        if session.labels.get(labels.TASK) != task_id:
            row["session_scoped"] = True
        return row | health(session) | survivors(session.exit) | place(session)

    async def poll(self, ref: object, *, since: str | None = None, acknowledge: bool = False) -> Facts:
        session = await self.find(ref)
        more = False
        if since is None:
            preview, cut, cursor = await newest(session, limits.POLL_CHARS, self._settings.shown)
        else:
            page = await session.read(since, limit=limits.REPLY_CHARS)
            if page.more or not labels.is_over(session):
                page = page.whole()
            cursor = page.cursor
            begins = bool(page.chunks) and await nothing_before(session, *page.chunks[0][:2])
            text = without_noise(page.text) if begins else page.text
            preview, cut = last(self._settings.shown(text), limits.REPLY_CHARS)
            more = page.more
        facts = self._head(session)
        facts |= {"pid": labels.pid_of(session), "uptime_seconds": uptime(session), "output_preview": preview}
        facts |= {"cursor": cursor, **({"output_cut": True} if cut else {})}
        facts |= {"note": words.MORE_FOLLOWS} if more else {}
        if session.exit is not None and labels.is_over(session):
            event = self._owners.event_of(session)
            facts |= {**how_it_ended(session, session.exit), "event_id": event}
            self._owners.observed.add(session.id)
            if acknowledge:
                await self._owners.mark_reported(session, event)
        return with_health(facts, session) | survivors(session.exit) | place(session)

    async def log(self, ref: object, *, offset: int | None = None, limit: int, raw: bool = False) -> Facts:
        session = await self.find(ref)
        window = await numbered(session, offset, limit, raw=raw)
        first, lines = window.first, window.lines
        reaches_end = first + len(lines) >= window.total
        shows_end = reaches_end and (bool(lines) or window.total == 0)
        if first == 0 and not raw:
            first = noise(lines)
            lines = lines[first:]
        # Redacted as one text, because a key may span several lines; lines stay lines.
        seen, text = self._settings.redacted if raw else self._settings.shown, "\n".join(lines)
        lines = (await aside(session, lambda: seen(text))).split("\n") if lines else []
        kept = within(lines, limits.REPLY_CHARS, from_end=offset is None)
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
        if session.exit is not None and labels.is_over(session) and shows_end and session.exit.complete:
            await self._owners.mark_reported(session, self._owners.event_of(session))
        return facts

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
            error = {"error": str(_worded(problem, await session.refresh())), "error_code": problem.code}
            return await self._waited_for(session, **health(session), status="error", **error)
        clamped = (
            words.WAIT_CLAMPED.format(asked=timeout, allowed=allowed)
            if timeout is not None and timeout > allowed
            else None
        )
        if woke is not None and woke.reason in ("exit", "lost") and session.exit is not None:
            text, cut = await tail(session, limits.WAIT_EXITED_CHARS, self._settings.shown)
            facts = self._head(session) | {"status": "exited", "output": text}
            facts |= {"output_cut": True} if cut else {}
            event = woke.signal_id or self._owners.event_of(session)
            facts |= {**how_it_ended(session, session.exit), "event_id": event}
            facts |= {"timeout_note": clamped} if clamped else {}
            await self._owners.mark_reported(session, event)
            return facts | survivors(session.exit)
        if woke is None:
            return await self._waited_for(session, status="interrupted", note=words.WAIT_INTERRUPTED)
        over = clamped or words.WAIT_OVER.format(waited_s=limit)
        return await self._waited_for(session, status="timeout", timeout_note=over, **health(session))

    async def interrupted(self, ref: object) -> Facts:
        """The answer of a wait that another thread ended."""
        return await self._waited_for(await self.find(ref), status="interrupted", note=words.WAIT_INTERRUPTED)

    async def _waited_for(self, session: AsyncSession, **outcome: Any) -> Facts:
        """The answer of a wait that ended before the process."""
        text, _ = await tail(session, limits.WAIT_RUNNING_CHARS, self._settings.shown)
        return self._head(session) | {"process_running": True, "output": text, **outcome}

    async def kill(self, ref: object) -> Facts:
        session = await self.find(ref)
        over_before = labels.is_over(session)
        stopped = await self._stop(session, "process.kill")
        pids = [each["pid"] for each in stopped.survivors]
        head: Facts = {"session_id": labels.called(session)}
        if pids or not labels.is_over(session):
            error = {"error": words.still_there(pids), "error_code": StillRunning.code, "survivors": pids}
            return {"status": "error", **head, "process_running": not labels.is_over(session), **error}
        event = self._owners.event_of(session)
        ended = {} if session.exit is None else how_it_ended(session, session.exit)
        text, cut = await tail(session, limits.WAIT_EXITED_CHARS, self._settings.shown)
        await self._owners.mark_reported(session, event)  # last: an aborted call has reported nothing
        facts = head | ended | {"output": text, "output_cut": cut, "event_id": event}
        if over_before or ended.get("completion_reason") != "killed":
            descendants = {"descendants_stopped": [each["pid"] for each in stopped.found]} if stopped.found else {}
            return {"status": "already_exited", **facts, **descendants}
        return {"status": "killed", **facts}

    async def write(self, ref: object, data: str | None) -> Facts:
        return await self._typed(ref, data or "", enter=False)

    async def submit(self, ref: object, data: str | None) -> Facts:
        return await self._typed(ref, data or "", enter=True)

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
        return {"status": "ok", "message": words.EOF_SENT if session.tty else words.STDIN_CLOSED, **note}

    async def _not_typed(self, session: AsyncSession, problem: HoldfastError) -> Facts:
        """A session that has ended meanwhile, or is lost, is not an error."""
        if isinstance(problem, SessionEnded) or labels.is_over(await session.refresh()):
            return {"status": "already_exited", "error": words.FINISHED}
        raise _worded(problem, session)

    async def ack(self, ref: object) -> Facts:
        session = await self.find(ref)
        if not labels.is_over(session):
            raise _worded(StillRunning(session.id), session)
        if not self._settings.drains:
            return {"status": "error", "error": words.NO_DELIVERY, "error_code": Unsupported.code}
        event = self._owners.event_of(session)
        await self._owners.mark_reported(session, event, at_once=True)
        return {"status": "ok", "event_id": event}

    async def is_consumed(self, ref: object) -> bool:
        """Whether its end was reported or acknowledged. False for a session that has not ended or does not exist."""
        try:
            session = await self.find(ref)
        except NotFound:
            return False
        return labels.is_over(session) and await self._owners.is_reported(session, self._owners.event_of(session))

    def _head(self, session: AsyncSession) -> Facts:
        return {
            "session_id": labels.called(session),
            "command": self._settings.shown(session.command),
            "status": status(session),
        }


def unknown(problem: NotFound) -> Facts:
    return {"status": "not_found", "error": words.NOT_FOUND.format(ref=problem.ref), "error_code": problem.code}


def _worded(problem: HoldfastError, session: AsyncSession) -> HoldfastError:
    """With the id that it has here, and what these tools can do about it."""
    id = labels.called(session)
    if isinstance(problem, StdinClosed):
        problem.message, problem.fix = words.STDIN_IS_CLOSED.format(id=id, why=problem.why), words.START_OPEN
    elif isinstance(problem, RunnerGone):
        problem.message, problem.fix = (
            words.SUPERVISOR_GONE.format(id=id),
            f"{words.LOG_OF.format(id=id)}, {words.KILL_OF.format(id=id)}",
        )
    elif isinstance(problem, Unreachable):
        # For another place the message has the reason.
        problem.message = words.SUPERVISOR_SILENT.format(id=id) if session.place == LOCAL else problem.message
        problem.fix = f"try again; {words.LOG_OF.format(id=id)}"
    elif isinstance(problem, StillRunning):
        problem.message, problem.fix = words.STILL_RUNNING.format(id=id), words.WAIT_OR_KILL.format(id=id)
    return problem
