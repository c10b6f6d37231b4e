"""The tools `terminal` and `process`."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ...errors import AmbiguousId, BadArgument, HoldfastError, NotFound
from ..answer import Answer
from ..parameters import BOOLEAN, INTEGER, STRING, STRINGS, Parameter
from ..toolset import Tool, Toolset
from . import limits, texts
from .consuming import Consuming
from .events import drain
from .foreground import in_foreground
from .process import Process, unknown
from .racing import INTERRUPT, YIELD, Race, raced
from .settings import Settings
from .starting import Starting, Wanted, spelled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from typing import Any

    from ...host.aio import AsyncHoldfast, AsyncSession
    from ...model import Woke
    from ...signals.consumer import AsyncConsumer
    from ...signals.records import Signal
    from ..toolset import Approve
    from .events import Drained

_TERMINAL = Tool(
    "terminal",
    texts.TERMINAL,
    (
        Parameter("command", STRING, texts.COMMAND, required=True),
        Parameter("background", BOOLEAN, texts.BACKGROUND, default=False),
        Parameter("timeout", INTEGER, texts.TIMEOUT, minimum=1),
        Parameter("deadline", INTEGER, texts.DEADLINE, minimum=1),
        Parameter("workdir", STRING, texts.WORKDIR),
        Parameter("pty", BOOLEAN, texts.PTY, default=False),
        Parameter("notify", BOOLEAN, texts.NOTIFY, default=False, aliases=("notify_on_complete",)),
        Parameter("watch_patterns", STRINGS, texts.WATCH_PATTERNS),
        Parameter("heartbeat", INTEGER, texts.HEARTBEAT, default=0, minimum=0),
        Parameter("persist_on_release", BOOLEAN, texts.PERSIST, default=False),
        Parameter("stdin", STRING, texts.STDIN, choices=("open", "closed")),
    ),
    title="Terminal",
    destroys=True,
    opens=True,
)
_PROCESS = Tool(
    "process",
    texts.PROCESS,
    (
        Parameter("action", STRING, texts.ACTION, required=True, choices=texts.ACTIONS),
        Parameter("session_id", STRING, texts.SESSION_ID),
        Parameter("data", STRING, texts.DATA),
        Parameter("timeout", INTEGER, texts.WAIT_TIMEOUT, minimum=1),
        Parameter("offset", INTEGER, texts.OFFSET, minimum=0),
        Parameter("limit", INTEGER, texts.LIMIT, default=limits.LOG_LINES, minimum=1, maximum=limits.LOG_LINES_MAX),
        Parameter("since", STRING, texts.SINCE),
        Parameter("acknowledge", BOOLEAN, texts.ACKNOWLEDGE, default=False),
        Parameter("raw", BOOLEAN, texts.RAW, default=False),
    ),
    title="Background processes",
    destroys=True,
)


class Hermes(Toolset):
    """`options` are those of `Settings`; the task is the owner where none is given."""

    name = "hermes"
    tools = (_TERMINAL, _PROCESS)
    redacts_itself = True
    instructions = (
        "Commands run here outlive this connection: a `terminal` call that is aborted, a client that restarts or a "
        "server that dies ends the waiting; a foreground command goes on until its timeout, a background one until it "
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
        self._consuming = Consuming(hf, owner, self.settings, self.kept())
        self._starting = Starting(hf, owner, self.settings, self.kept())
        self._process_actions = Process(hf, [owner], self.settings, self._consuming, asyncio.to_thread)
        # Calls that wait for something right now, to be told why they should stop.
        self._waiting: set[asyncio.Future[str]] = set()

    async def open(self) -> None:
        if self.settings.drains:
            self._consuming.consumer  # noqa: B018  from now on what is promised to the owner is kept for it

    def consumer(self) -> AsyncConsumer:
        return self._consuming.consumer

    def hides(self) -> Callable[[str], str] | None:
        return self.settings.without_secrets if self.settings.redact else None

    async def drain(
        self,
        *,
        limit: int | None = None,
        seen: Callable[[str], bool] | None = None,
        owns: Callable[[Signal], bool] | None = None,
    ) -> Drained:
        """What happened, as events and as one message. `owns` may leave signals to others; where it fails, all stay."""
        return await drain(self.hf, self._consuming, self.settings, limit=limit, seen=seen, owns=owns)

    async def is_completion_consumed(self, session_id: str) -> bool:
        return await self._process_actions.is_consumed(session_id)

    def interrupt(self) -> None:
        """The user wants it to stop: foreground commands are ended, waits end."""
        self._tell(INTERRUPT)

    def yield_now(self) -> None:
        """The user has written: foreground commands go on in the background, waits end."""
        self._tell(YIELD)

    def _tell(self, why: str) -> None:
        for call in self._waiting:
            if not call.done():
                call.set_result(why)

    # The tools.

    async def _terminal(self, **arguments: Any) -> Answer:
        wanted = Wanted(**arguments)
        if wanted.background:
            return _answer(await self._starting.in_background(wanted))
        with self._listening() as told:  # before anything else: a start may take a while
            race = Race(told, self.waiting)
            return _answer(await in_foreground(self.hf, self._starting, self.settings, wanted, race))

    async def _process(self, action: str, session_id: str | None, **arguments: Any) -> Answer:
        if action == "list":
            return _answer(await self._process_actions.listed(self.settings.task_id, [self.owner], [self.owner]))
        if session_id is None or not session_id.strip():
            return _answer({"error": texts.no_session_id(action), "error_code": BadArgument.code})
        return _answer(await self._act(action, session_id, **arguments))

    async def _act(
        self,
        action: str,
        id: str,
        *,
        data: str | None,
        timeout: int | None,
        offset: int | None,
        limit: int,
        since: str | None,
        acknowledge: bool,
        raw: bool,
    ) -> dict[str, Any]:
        process = self._process_actions
        if action == "poll":
            return await process.poll(id, since=since, acknowledge=acknowledge)
        if action == "log":
            return await process.log(id, offset=offset, limit=limit, raw=raw)
        if action == "wait":
            return await process.wait(id, timeout=timeout, waiting=self._wait)
        if action == "write":
            return await process.write(id, data or "")
        if action == "submit":
            return await process.submit(id, data or "")
        one = {"kill": process.kill, "close": process.close, "ack": process.ack}[action]
        return await one(id)

    def _take(self, tool: Tool, arguments: object) -> dict[str, Any]:
        if tool is _PROCESS and isinstance(arguments, dict):
            return super()._take(tool, _checked(arguments))
        if tool is not _TERMINAL or not isinstance(arguments, dict):
            return super()._take(tool, arguments)
        try:
            taken = super()._take(tool, _mended(arguments))
            taken["watch_patterns"] = taken["watch_patterns"] or []
            Wanted(**taken).check()
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

    # Waiting, until something happens or somebody wants to go on.

    @contextmanager
    def _listening(self) -> Iterator[asyncio.Future[str]]:
        """What is set with the word of whoever wants the call to stop waiting."""
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.add(told)
        try:
            yield told
        finally:
            self._waiting.discard(told)
            told.cancel()

    async def _wait(self, session: AsyncSession, outcome: Awaitable[Woke]) -> Woke | None:
        with self._listening() as told:
            woke = await raced(self.waiting([session], outcome), told)
        return None if isinstance(woke, str) else woke


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """Of the tool `process`: a known action, and no more lines than there may be."""
    action, limit = given.get("action"), given.get("limit")
    if isinstance(action, str) and action not in texts.ACTIONS:
        problem = BadArgument("action", "is not known")
        problem.message, problem.fix = texts.unknown_action(action), ""
        raise problem
    many = isinstance(limit, int) and limit > limits.LOG_LINES_MAX
    return {**given, "limit": limits.LOG_LINES_MAX} if many else given


def _mended(given: dict[str, Any]) -> dict[str, Any]:
    """What models write instead of what was meant."""
    mended = dict(given)
    for name in ("notify", "notify_on_complete"):
        if isinstance(mended.get(name), list):
            meant, watched = mended.pop(name), mended.get("watch_patterns") or []
            if isinstance(watched, list):
                mended["watch_patterns"] = [*watched, *meant]
    patterns = mended.get("watch_patterns")
    if isinstance(patterns, list) and not all(isinstance(each, str) for each in patterns):
        raise BadArgument("watch_patterns", "holds something that is no text", 'give texts, such as ["ERROR"]')
    if mended.get("command") is None:
        for name in ("code", "cmd"):
            if name in mended:
                call = spelled({"command": str(mended[name])})
                raise BadArgument("command", f"is required; there is no parameter {name}", f"call {call}")
    return mended


def _with_call(problem: BadArgument, given: dict[str, Any]) -> str:
    """How to mend it, with the call as it would be right: without what was wrong, or with what was meant."""
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
