"""The tools `terminal` and `process`."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ...errors import AmbiguousId, BadArgument, HoldfastError, NotFound
from ..base import BOOLEAN, INTEGER, STRING, STRINGS, Answer, Parameter, Tool, Toolset
from ..owner_sessions import unless
from . import labels, limits, words
from .events import drain
from .foreground import INTERRUPT, YIELD, in_foreground
from .owners import VARIANTS, Owners
from .process import Actions, unknown
from .settings import Settings
from .start import Starting, TerminalArguments, spelled

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
            TerminalArguments(**taken).check()  # before the call is approved
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
