"""The tools `terminal` and `process`, and a command in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ...core.ending import LIMIT
from ...core.processes import SETTLE_S
from ...errors import (
    AmbiguousId,
    BadArgument,
    HoldfastError,
    NotFound,
    RunnerGone,
    SessionEnded,
    Unreachable,
)
from ..base import BOOLEAN, INTEGER, STRING, STRINGS, Answer, Parameter, Tool, Toolset
from ..owner_sessions import Running, unless
from . import labels, limits, process, words
from .events import drain
from .owners import VARIANTS, Owners
from .process import Actions, unknown
from .settings import Settings
from .start import LOCAL, Starting, TerminalArguments, moved_to, reporting_directory, spelled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from typing import Any, TypeVar

    from ...model import Snapshot, Woke
    from ...sessions.aio import AsyncHoldfast, AsyncSession
    from ...signals.lines import Signal
    from ..base import Approve
    from .events import Drained


if TYPE_CHECKING:
    T = TypeVar("T")
    Facts = dict[str, Any]

INTERRUPT = "interrupt"
YIELD = "yield"


# A foreground command: started like any other, and left running when the caller stops waiting.


# Between the end of a command and the report of it.
_MARGIN_S = 1.0
_SERVERS = re.compile(
    r"""(?x) (?:^|[;&|(\n])\s*
    (?: (?:env|exec|sudo|time|nice|nohup|uv\ run|poetry\ run|npx|pnpm\ exec|yarn\ exec)\s+
      | [A-Za-z_]\w*=(?:"[^"]*"|'[^']*'|[^\s"'])*\s+ )*
    (?: (?:npm|pnpm|yarn|bun)\s+(?:run\s+)?(?:dev|start|serve|watch|preview)\b
      | (?:next|nuxt|astro|remix|vite|webpack)\s+(?:dev|serve|start|preview)\b | vite(?:\s+--|\s*$)
      | webpack-dev-server\b
      | (?:uvicorn|gunicorn|hypercorn|daphne|flask\s+run|fastapi\s+(?:dev|run)|nodemon|http-server|live-server)\b
      | python[0-9.]*\s+-m\s+(?:http\.server|uvicorn|flask|gunicorn)\b | python[0-9.]*\s+\S*manage\.py\s+runserver\b
      | (?:rails|rackup|bin/rails)\s+(?:s|server)\b | php\s+-S\b | jupyter\s+(?:lab|notebook)\b | ng\s+serve\b
      | docker(?:-compose|\s+compose)(?:\s+-\S+(?:\s+(?!up\b)[^\s-]\S*)?)*\s+up\b(?!.*\s(?:-d|--detach)\b)
      | cargo\s+watch\b | tail\s+(?:-\S*f|--follow)
    )"""
)
_ONLY_ASKS = re.compile(r"\s(?:--help|--version)\b")


def is_server(command: str) -> bool:
    """Whether it looks like a command that does not end by itself."""
    return _SERVERS.search(command) is not None and _ONLY_ASKS.search(command) is None


async def in_foreground(tools: Hermes, wanted: TerminalArguments, stop: asyncio.Future[str]) -> Facts:
    """`stop` may be set before there is a command."""
    hf, settings, starting = tools.hf, tools.settings, tools.starting
    server = is_server(wanted.command)
    if server and settings.foreground_guard == "refuse":
        said = words.REFUSED_SERVER.format(command=wanted.command)
        return {"output": "", "exit_code": -1, "error": said, "error_code": "bad-argument", "status": "error"}
    limit, cap = wanted.timeout or limits.timeout_s(), limits.foreground_cap_s()
    wait_s = min(settings.server_wait_s, cap) if server else cap
    if limit <= wait_s:
        # Its deadline comes first: the answer says how that ended it, and a stop may take its time.
        wait_s = limit + settings.grace_s + SETTLE_S + _MARGIN_S

    async def run(place: str, started: Callable[[], None]) -> Facts:
        options, hints = await starting.options(wanted, place)
        if stop.done() and stop.result() == INTERRUPT:
            return {"output": words.INTERRUPTED, "exit_code": 130, "error": None}
        options |= {**reporting_directory(options["shell"]), "notify": "auto", "timeout": limit}
        waited = True
        async with Running(hf, wanted.command, on_start=started, wait=wait_s, **options) as running:
            try:
                outcome = tools.with_progress(running.sessions, running.outcome(min(limit, wait_s)))
                if await unless(stop, outcome) is None:
                    await running.started()  # a start that is under way is not aborted
                session = running.result()
            except Unreachable:
                if running.session is None:
                    raise
                # It runs on without an answer from there, and its end is queued.
                session, waited = await running.session.refresh(), False
        if session is None:
            (session,) = running.sessions
            if stop.result() == INTERRUPT:
                return await _interrupted(session, settings)
            return await _yielded(session, settings, wanted)
        if (session.stopping or {}).get("by") == LIMIT:
            return await _overdue(session, settings, limit)
        if not labels.is_over(session):
            facts = await _yielded(session, settings, wanted)
            return facts | ({"promoted_from_foreground": words.promoted(server, wait_s)} if waited else {})
        moved = moved_to(hf, session)
        if moved is not None:
            starting.place.move(place, moved)
        return await _ended(hf, session, settings, wanted, limit, moved, hints)

    facts, again = await starting.begin(wanted, run)
    return facts | again


async def _interrupted(session: AsyncSession, settings: Settings) -> Facts:
    with contextlib.suppress(HoldfastError):
        # This reply reports the end. If no runner takes this, the command is stopped all the same.
        await session.update(notify="never")
    stopped = await settings.stop(session, "interrupt")
    text, _, _ = await _output(session, settings)
    facts: Facts = {"output": _with_line(text, words.INTERRUPTED), "exit_code": 130, "error": None}
    facts["session_id"] = labels.called(session)
    if stopped.survivors:
        facts["survivors"] = [each["pid"] for each in stopped.survivors]
    if not labels.is_over(session):
        # It survived, or its end is not recorded yet: from now on it is a background process, and its end is due.
        await _to_background(session)
        facts |= {"process_running": True, "hint": words.SURVIVED} if stopped.survivors else process.health(session)
    return facts


async def _overdue(session: AsyncSession, settings: Settings, limit: int) -> Facts:
    """Its time is over and it survived: from now on it is a background process, and its end is due."""
    await _to_background(session)
    text, _, _ = await _output(session, settings)
    facts: Facts = {"output": _with_line(text, words.TIMED_OUT.format(limit_s=limit)), "exit_code": 124, "error": None}
    facts |= {"cause": "overall_timeout", "session_id": labels.called(session), "survivors": [session.pid]}
    return facts | {"process_running": True, "hint": words.SURVIVED}


async def _yielded(session: AsyncSession, settings: Settings, wanted: TerminalArguments) -> Facts:
    # A limit that was not asked for is lifted.
    await _to_background(session, **({"timeout": None} if wanted.timeout is None else {}))
    text, _, _ = await _output(session, settings)
    facts: Facts = {
        "output": text,
        "exit_code": None,
        "error": None,
        "status": "yielded_to_background",
        "session_id": labels.called(session),
        "pid": session.pid,
        **process.place(session),
    }
    if not settings.drains:
        facts |= {"notify_unsupported": words.NO_DELIVERY, "note": words.YIELDED_SILENTLY}
    else:
        facts |= {"notify_on_complete": True, "note": words.YIELDED}
    return process.with_health(facts, session)


async def _to_background(session: AsyncSession, **changes: Any) -> None:
    """From now on its end is queued."""
    yielded = {**session.labels, labels.MODE: labels.YIELDED}
    try:
        await session.update(labels=yielded, notify="exit", **changes)
    except SessionEnded:
        pass  # just now: no call waited any more, so its end is queued
    except (RunnerGone, Unreachable):
        await session.refresh()  # the same; and the answer says so


async def _ended(
    hf: AsyncHoldfast,
    session: AsyncSession,
    settings: Settings,
    wanted: TerminalArguments,
    limit: int,
    moved: str | None,
    hints: list[str],
) -> Facts:
    exit = session.exit
    code = None if exit is None else process.exit_code(exit.code, exit.signal)
    text, cut, characters = await _output(session, settings)
    late = exit is not None and exit.cause == "overall_timeout"
    facts: Facts = {
        "output": _with_line(text, words.TIMED_OUT.format(limit_s=limit)) if late else text,
        "exit_code": 124 if late else code,
        "error": None,
    }
    if late:
        facts["cause"] = "overall_timeout"
    if exit is not None and exit.cause == "lost":
        facts |= {"error": "the command and its supervisor are gone; no exit code was seen", "error_code": "lost"}
    if moved is not None:
        facts["cwd"] = moved
    survivors = process.survivors(exit)
    if survivors:
        hints = [*hints, words.HINT_SURVIVORS]
    if cut:
        facts |= {
            "output_total_chars": characters,
            "truncation_note": words.READ_THE_REST.format(id=labels.called(session)),
        }
        facts |= {"full_output_path": _log_path(hf, session)} if session.place == LOCAL else {}
    if cut or survivors or late:
        facts["session_id"] = labels.called(session)
    meaning = None if late else process.meaning(wanted.command, code)
    facts |= {"exit_code_meaning": meaning} if meaning else {}
    return facts | survivors | ({"hint": "; ".join(hints)} if hints else {})


async def _output(session: AsyncSession, settings: Settings) -> tuple[str, bool, int]:
    """The shown part, whether something is left out, and how many characters there are."""
    gone = sum(session.dropped_before.values())
    whole = await session.text()
    whole = whole if gone else process.without_noise(whole)
    total = gone + len(whole)
    if gone and "\n" in whole[:-1]:
        # It was dropped by bytes: the first line may be only the end of one.
        whole = whole.partition("\n")[2]
    text, cut = process.window(await process.aside(session, lambda: settings.shown(whole)))
    return (f"{words.DROPPED.format(count=gone)}\n{text}", True, total) if gone else (text, cut, total)


def _log_path(hf: AsyncHoldfast, session: AsyncSession) -> str:
    """The file with all bytes, or the directory if there are several."""
    directory = hf.home.session(session.id)
    stream = "tty." if session.tty else "stdout."
    files = [name for name in os.listdir(directory) if name.startswith(stream)]
    return os.path.join(directory, files[0]) if len(files) == 1 else directory


def _with_line(text: str, line: str) -> str:
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}"


# The tools `terminal` and `process`.


_TERMINAL = Tool(
    "terminal",
    words.TERMINAL,
    (
        Parameter("command", STRING, words.COMMAND, required=True),
        Parameter("background", BOOLEAN, words.BACKGROUND, default=False),
        Parameter("timeout", INTEGER, words.TIMEOUT, minimum=1),
        Parameter("deadline", INTEGER, words.DEADLINE, minimum=1),
        Parameter("workdir", STRING, words.WORKDIR),
        Parameter("pty", BOOLEAN, words.PTY, default=False),
        Parameter("notify", BOOLEAN, words.NOTIFY, default=False, aliases=("notify_on_complete",)),
        Parameter("watch_patterns", STRINGS, words.WATCH_PATTERNS),
        Parameter("heartbeat", INTEGER, words.HEARTBEAT, default=0, minimum=0),
        Parameter("persist_on_release", BOOLEAN, words.PERSIST, default=False),
        Parameter("stdin", STRING, words.STDIN, choices=("open", "closed")),
    ),
    title="Terminal",
    destroys=True,
    opens=True,
)
_PROCESS = Tool(
    "process",
    words.PROCESS,
    (
        Parameter("action", STRING, words.ACTION, required=True, choices=words.ACTIONS),
        Parameter("session_id", STRING, words.SESSION_ID),
        Parameter("data", STRING, words.DATA),
        Parameter("timeout", INTEGER, words.WAIT_TIMEOUT, minimum=1),
        Parameter("offset", INTEGER, words.OFFSET, minimum=0),
        Parameter("limit", INTEGER, words.LIMIT, default=limits.LOG_LINES, minimum=1, maximum=limits.LOG_LINES_MAX),
        Parameter("since", STRING, words.SINCE),
        Parameter("acknowledge", BOOLEAN, words.ACKNOWLEDGE, default=False),
        Parameter("raw", BOOLEAN, words.RAW, default=False),
    ),
    title="Background processes",
    destroys=True,
)

# What each action of `process` uses beside the id.
_USED = {
    "poll": ("since", "acknowledge"),
    "log": ("offset", "limit", "raw"),
    "wait": ("timeout",),
    "write": ("data",),
    "submit": ("data",),
}


class Hermes(Toolset):
    """`options` are those of `Settings`; the task is the owner where none is given."""

    name = "hermes"
    tools = (_TERMINAL, _PROCESS)
    variants = VARIANTS
    redacts_itself = True
    instructions = (
        "Commands run here outlive this connection: a `terminal` call that is aborted, a client that restarts or a "
        "server that dies ends the waiting; a foreground command runs on until its timeout, a background one until it "
        "ends. `process` lists them, shows their output and waits for them: do not poll. The notices asked for with "
        "notify, watch_patterns or heartbeat stay in a queue until you acknowledge them with `signals`."
    )

    def __init__(
        self,
        hf: AsyncHoldfast,
        owner: str,
        *,
        approve: Approve | None = None,
        task_id: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(hf, owner, approve=approve)
        self.settings = Settings(task_id or owner, **options)
        self._owners = Owners(hf, self.settings, [self])
        self.starting = Starting(self, self.settings)
        self._actions = Actions(self._owners, self.settings)
        # One for each call that waits right now, set with the reason why it should stop.
        self._waiting: set[asyncio.Future[str]] = set()

    async def open(self) -> None:
        if self.settings.drains:
            self.consumer()  # from now on signals are kept for the owner

    def is_own(self, session: Snapshot) -> bool:
        return labels.is_ours(session)

    def redactor(self) -> Callable[[str], str] | None:
        return self.settings.without_secrets if self.settings.redact else None

    async def drain(
        self,
        *,
        limit: int | None = None,
        seen: Callable[[str], bool] | None = None,
        owns: Callable[[Signal], bool] | None = None,
    ) -> Drained:
        """What happened, as events and as one message. `owns` may leave signals to others; if it fails, all stay."""
        observed = self._owners.observed
        return await drain(self.hf, self.consumer(), observed, self.settings, limit=limit, seen=seen, owns=owns)

    async def is_completion_consumed(self, session_id: str) -> bool:
        return await self._actions.is_consumed(session_id)

    def interrupt(self) -> None:
        """The user wants it to stop: foreground commands are ended, waits end."""
        self._stop_waiting(INTERRUPT)

    def yield_now(self) -> None:
        """The user has written: foreground commands continue in the background, waits end."""
        self._stop_waiting(YIELD)

    def _stop_waiting(self, why: str) -> None:
        for call in self._waiting:
            if not call.done():
                call.set_result(why)

    # The tools.

    async def tool_terminal(self, **arguments: Any) -> Answer:
        wanted = TerminalArguments(**arguments)
        if wanted.background:
            return _answer(await self.starting.in_background(wanted))
        with self._interruptible() as stop:  # before anything else: a start may take a while
            return _answer(await in_foreground(self, wanted, stop))

    async def tool_process(self, action: str, session_id: str | None, **arguments: Any) -> Answer:
        if action == "list":
            return _answer(await self._actions.listed(self.settings.task_id, [self.owner], [self.owner]))
        if session_id is None or not session_id.strip():
            return _answer({"error": words.NO_SESSION_ID.format(action=action), "error_code": BadArgument.code})
        used = {name: arguments[name] for name in _USED.get(action, ())}
        if action == "wait":
            used["waiting"] = self._wait
        return _answer(await getattr(self._actions, action)(session_id, **used))

    def _take(self, tool: Tool, arguments: object) -> dict[str, Any]:
        if tool is _PROCESS and isinstance(arguments, dict):
            return super()._take(tool, _checked(arguments))
        if tool is not _TERMINAL or not isinstance(arguments, dict):
            return super()._take(tool, arguments)
        try:
            taken = super()._take(tool, _mended(arguments))
            taken["watch_patterns"] = taken["watch_patterns"] or []
            TerminalArguments(**taken).check()
        except BadArgument as problem:
            problem.fix = _with_call(problem, arguments)
            raise
        return taken

    async def _failed(self, tool: Tool, problem: HoldfastError) -> Answer:
        said: dict[str, Any] = {"error": str(problem) if problem.fix else problem.message, "error_code": problem.code}
        if isinstance(problem, NotFound):
            said = unknown(problem)
        elif isinstance(problem, AmbiguousId):
            said["candidates"] = list(problem.candidates)
        elif tool is _TERMINAL:
            said = {"output": "", "exit_code": -1, **said}
        else:
            said = {"status": "error", **said}
        return _answer(said)

    # Waiting, until something happens or the user wants to continue.

    @contextmanager
    def _interruptible(self) -> Iterator[asyncio.Future[str]]:
        """Set with the reason when the call should stop waiting."""
        stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.add(stop)
        try:
            yield stop
        finally:
            self._waiting.discard(stop)
            stop.cancel()

    async def _wait(self, session: AsyncSession, outcome: Awaitable[Woke]) -> Woke | None:
        with self._interruptible() as stop:
            return await unless(stop, self.with_progress([session], outcome))


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """For the tool `process`: a known action, and `limit` within its bounds."""
    action, limit = given.get("action"), given.get("limit")
    if isinstance(action, str) and action not in words.ACTIONS:
        problem = BadArgument("action", "is not known")
        problem.message, problem.fix = words.unknown_action(action), ""
        raise problem
    many = isinstance(limit, int) and limit > limits.LOG_LINES_MAX
    return {**given, "limit": limits.LOG_LINES_MAX} if many else given


def _mended(given: dict[str, Any]) -> dict[str, Any]:
    """Accept what models write instead of what they mean."""
    mended = dict(given)
    for name in ("notify", "notify_on_complete"):
        if isinstance(mended.get(name), list):
            meant, watched = mended.pop(name), mended.get("watch_patterns") or []
            if isinstance(watched, list):
                mended["watch_patterns"] = [*watched, *meant]
    patterns = mended.get("watch_patterns")
    if isinstance(patterns, list) and not all(isinstance(each, str) for each in patterns):
        raise BadArgument("watch_patterns", "has an item that is not text", 'give texts, such as ["ERROR"]')
    if mended.get("command") is None:
        for name in ("code", "cmd"):
            if name in mended:
                call = spelled({"command": str(mended[name])})
                raise BadArgument("command", f"is required; there is no parameter {name}", f"call {call}")
    return mended


def _with_call(problem: BadArgument, given: dict[str, Any]) -> str:
    """The fix with a corrected call: without the wrong argument, or with what was meant."""
    wrong = problem.argument
    if wrong == "command" or "terminal(" in problem.fix:
        return problem.fix
    right = dict(given)
    value = right.pop(wrong, None)
    names = [each.name for each in _TERMINAL.parameters]
    if wrong == "watch_patterns" and isinstance(value, list):
        right[wrong] = [each for each in value if isinstance(each, str) and each]
    elif wrong not in names:
        right |= dict.fromkeys(get_close_matches(wrong, names, 1), value)
    return f"{problem.fix}; call {spelled(right)}"


def _answer(said: dict[str, Any]) -> Answer:
    failed = said.get("error") is not None and said.get("status") != "already_exited"
    return Answer(json.dumps(said, ensure_ascii=False), said, error=failed)
