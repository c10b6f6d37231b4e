"""`bash`, `monitor`, `daemon_list`, `daemon_output`, `daemon_stop`: evva's tools over the sessions of one owner."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING

from ...daemons.kinds import names
from ...errors import AlreadyEnded, BadArgument, HoldfastError, NotFound, SpawnError
from ...model import UNREACHABLE
from ...signals.consumer import AsyncConsumer
from ...signals.names import default_name
from ..answer import Answer
from ..parameters import BOOLEAN, INTEGER, STRING, Parameter
from ..toolset import Tool, Toolset
from . import texts
from .catalog import SessionDaemon
from .output import Tail, lines_of
from .snapshot import RECENT_LINES, Lsp, Monitor, Other
from .state import FAMILY, GRACE_S, AsyncDaemonState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ...host.aio import AsyncHoldfast, AsyncSession
    from ...host.log import Log
    from ...model import Exit, StartOptions
    from ..toolset import Approve
    from .catalog import Daemon
    from .snapshot import DaemonSnapshot

BASH_MS, BASH_MOST_MS = 120_000, 600_000
MONITOR_MS, MONITOR_LEAST_MS, MONITOR_MOST_MS = 300_000, 1_000, 3_600_000
TERMINAL_LISTED = 50
KILL, BACKGROUND = "kill", "background"
UNKNOWN = "unknown"

# So long after its limit a command may be on its way out before its runner is looked at.
_OVERDUE_S = 0.1
# A call that is cancelled waits no longer than this for its runner.
_HUSHED_S = 1.0

_ID = Parameter("daemon_id", STRING, "The id of the daemon, such as b7k2m9qa1.", required=True)

TOOLS = (
    Tool(
        "bash",
        "Run a shell command in a fresh shell and return what it printed. With run_in_background it returns at once "
        "with a daemon id, and a notification comes when the command ends: do not poll for it.",
        (
            Parameter("command", STRING, "The command line.", required=True),
            Parameter("description", STRING, "What it does, in a few words."),
            Parameter("timeout", INTEGER, "Milliseconds until it is ended, at most 600000.", default=BASH_MS),
            Parameter("run_in_background", BOOLEAN, "Return at once; it has no time limit then.", default=False),
            Parameter("dangerouslyDisableSandbox", BOOLEAN, "Ignored.", default=False),
        ),
        destroys=True,
        opens=True,
    ),
    Tool(
        "monitor",
        "Run a command whose every line is an event for you: lines arrive as notifications, and one more when it "
        "ends. Print only what matters, for instance through `grep --line-buffered`.",
        (
            Parameter("command", STRING, "The command line.", required=True),
            Parameter("description", STRING, "What is watched for, in a few words.", required=True),
            Parameter("persistent", BOOLEAN, "Run until it is stopped or exits.", required=True),
            Parameter("timeout_ms", INTEGER, "1000 to 3600000 milliseconds; ignored when persistent.", required=True),
        ),
        destroys=True,
        opens=True,
    ),
    Tool(
        "daemon_list",
        "List your daemons: background commands, monitors, subagents, language servers.",
        (
            # No list to choose from: a host may register kinds of its own at any time.
            Parameter("kind", STRING, f"Only those of this kind, such as {', '.join(names())}; unknown: any other."),
            Parameter("include_terminal", BOOLEAN, "Also those that have ended.", default=False),
        ),
        reads=True,
    ),
    Tool(
        "daemon_output",
        "Show what a daemon printed or reported, also after it has ended. Reading takes nothing away.",
        (_ID, Parameter("tail", INTEGER, "Only so many of the last lines.", minimum=1)),
        reads=True,
    ),
    Tool(
        "daemon_stop",
        "End a daemon and everything it started. Returns when that was accepted; a notification says when it is gone.",
        (_ID,),
        destroys=True,
        repeats=True,
    ),
)


class Evva(Toolset):
    """Options: `cwd`, `env` and `shell` of commands; `on_timeout="background"` lets a command that takes too long run
    on; `quote` and `ended_tail_chars` shape the messages of `state.fold()`; `daemon_host=False` has no background."""

    name = FAMILY
    tools = TOOLS
    instructions = (
        "A `bash` without run_in_background belongs to its call: it is ended with everything it started when the call "
        "is aborted or the server dies. Daemons, which are `bash` with run_in_background and `monitor`, outlive the "
        "call, the client and the server: `daemon_list` finds them again, `daemon_output` shows what they printed, "
        "also after their end. Do not poll: their ends and events are notifications, and stay in a queue until you "
        "acknowledge them with `signals`, which shows them to you where your client does not."
    )

    def __init__(
        self,
        hf: AsyncHoldfast,
        owner: str,
        *,
        approve: Approve | None = None,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        shell: str = "/bin/sh",
        on_timeout: str = KILL,
        quote: str = "prefix",
        ended_tail_chars: int | None = None,
        daemon_host: bool = True,
    ) -> None:
        super().__init__(hf, owner, approve=approve)
        if on_timeout not in (KILL, BACKGROUND):
            raise BadArgument("on_timeout", f"{on_timeout[:40]!a} is not known", f"give {KILL} or {BACKGROUND}")
        self._on_timeout = on_timeout
        self._base: StartOptions = {"cwd": cwd, "shell": shell, "env": dict(env or {})}
        self._state: AsyncDaemonState | None = None
        if daemon_host:
            self._state = AsyncDaemonState(hf, owner, quote=quote, ended_tail_chars=ended_tail_chars)

    @property
    def state(self) -> AsyncDaemonState:
        """What happened to the daemons: fold it into the conversation, be woken by it."""
        if self._state is None:
            raise BadArgument("daemon_host", "this toolset has no background", "open it with daemon_host=True")
        return self._state

    def consumer(self) -> AsyncConsumer:
        return self.hf.consumer(default_name(self.owner, FAMILY), [self.owner])

    async def close(self) -> None:
        if self._state is not None:
            self._state.close()

    # Running.

    async def _bash(
        self,
        command: str,
        description: str | None,
        timeout: int,
        run_in_background: bool,
        dangerouslyDisableSandbox: bool,  # noqa: N803  the name is evva's
    ) -> Answer:
        if not command.strip():
            return _refused(texts.COMMAND_REQUIRED.format(tool="bash"))
        if run_in_background:
            return await self._background(command, description)
        limit_s = (BASH_MS if timeout <= 0 else min(timeout, BASH_MOST_MS)) / 1000
        options: StartOptions = {**self._base, "owner": self.owner, "description": description, "grace": GRACE_S}
        lets_go = self._on_timeout == BACKGROUND and self._state is not None
        options["lifetime"] = "call"
        options["timeout"] = None if lets_go else limit_s
        try:
            session = await self._run(command, limit_s if lets_go else None, limit_s, options)
        except asyncio.CancelledError:
            # The connection is closed by now, and with it the call that the command lived in.
            raise asyncio.CancelledError(texts.CANCELLED) from None
        if session.exit is not None:
            return await self._ended(session, session.exit, limit_s)
        if lets_go and session.state != UNREACHABLE:
            await asyncio.to_thread(self.state.entered, session.id)
            return self._in_background(session)
        return _refused(texts.out_of_reach(session.id, session.state))

    async def _run(self, command: str, wait_s: float | None, limit_s: float, options: StartOptions) -> AsyncSession:
        """Until it ends; whoever asked for progress is told how it goes."""
        began: asyncio.Future[AsyncSession] = asyncio.get_running_loop().create_future()
        outcome = asyncio.ensure_future(self.hf.run(command, wait=wait_s, started=began.set_result, **options))
        try:
            await asyncio.wait([began, outcome], return_when=asyncio.FIRST_COMPLETED)
            if not began.done():
                return await outcome
            return await self.waiting([began.result()], self._in_reach(began.result(), outcome, limit_s))
        except asyncio.CancelledError:
            # The caller may be cancelled again meanwhile: what was begun here goes on, and is short.
            await asyncio.shield(asyncio.ensure_future(self._cancelled(began, outcome)))
            raise

    async def _in_reach(
        self, session: AsyncSession, outcome: asyncio.Task[AsyncSession], limit_s: float
    ) -> AsyncSession:
        """How it ended. Its runner keeps the limit; where none answers when that is over, nobody does."""
        done, _ = await asyncio.wait([outcome], timeout=limit_s + _OVERDUE_S)
        while not done:
            if (await session.refresh()).state == UNREACHABLE:
                outcome.cancel()
                await asyncio.wait([outcome])
                return session
            # It answers: the command is being ended.
            done, _ = await asyncio.wait([outcome], timeout=_OVERDUE_S)
        return outcome.result()

    async def _cancelled(self, began: asyncio.Future[AsyncSession], outcome: asyncio.Task[AsyncSession]) -> None:
        """The agent knows that its call was cancelled: the end that follows from that is not told. What the command
        leaves behind is."""
        await asyncio.wait([began, outcome], return_when=asyncio.FIRST_COMPLETED)
        session = began.result() if began.done() else None
        if session is not None:
            with suppress(HoldfastError, TimeoutError):
                async with asyncio.timeout(_HUSHED_S):
                    await session.update(notify="never")
        outcome.cancel()  # closes the connection, and with it the call that the command lives in
        await asyncio.wait([outcome])
        if session is not None:
            with suppress(HoldfastError):
                await self._acknowledge(await session.refresh())

    async def _acknowledge(self, session: AsyncSession) -> None:
        """Its end, where it is on record, is not announced any more."""
        if session.exit is None:
            return
        ended = session.metadata.get("signal_id") or (await session.wait(timeout=0)).signal_id
        if ended:
            await self.consumer().ack(ended)

    async def _ended(self, session: AsyncSession, exit: Exit, limit_s: float) -> Answer:
        tail = (await asyncio.to_thread(Tail.of, self._log(session.id))).shown()
        left = len(exit.survivors) + exit.survivors_more
        data = {"daemon_id": session.id, "status": session.status, "exit_code": exit.code, "exit_signal": exit.signal}
        data |= {"cause": exit.cause, "survivors": left, "output": tail.text, "bytes_cut": tail.cut}
        failed = session.status != "completed"
        before, after = [], []
        if exit.cause == "overall_timeout":
            before.append(texts.timed_out(limit_s))
        elif exit.cause in ("stop", "owner_gone"):
            before.append(texts.CANCELLED)
        elif failed:
            after.append(texts.ended(exit))
        if tail.cut:
            before.append(texts.beginning_cut(tail, session.id))
        if not tail.text and (exit.cause == "overall_timeout" or not (before or after or left)):
            after.insert(0, texts.NO_OUTPUT)
        if left and session.stopping:
            after.append(texts.dying(left))
        elif left:
            after.append(texts.survivors(left, session.id))
            if self._state is not None:
                self._state.survivors_told(session.id)
        data["message"] = "\n".join((*before, *after))
        output = tail.text.removesuffix("\n") if after else tail.text
        return Answer("\n".join(filter(None, (*before, output, *after))), data, error=failed)

    async def _background(self, command: str, description: str | None) -> Answer:
        if self._state is None:
            return _refused(texts.NO_BACKGROUND)
        options: StartOptions = {**self._base, "description": description}
        return self._in_background(await self._state.start(command, **options))

    def _in_background(self, session: AsyncSession) -> Answer:
        return Answer(texts.background(session.id), {"daemon_id": session.id, "status": session.status})

    async def _monitor(self, command: str, description: str, persistent: bool, timeout_ms: int) -> Answer:
        if not command.strip():
            return _refused(texts.COMMAND_REQUIRED.format(tool="monitor"))
        if self._state is None:
            return _refused(texts.NO_HOST)
        limit_ms = MONITOR_MS if timeout_ms <= 0 else min(max(timeout_ms, MONITOR_LEAST_MS), MONITOR_MOST_MS)
        note = texts.clamped(timeout_ms, limit_ms) if timeout_ms > 0 and limit_ms != timeout_ms else ""
        options: StartOptions = {**self._base, "kind": "monitor", "description": description}
        options["monitor"] = {"persistent": persistent}
        if not persistent:
            options["timeout"] = limit_ms / 1000
        session = await self._state.start(command, **options)
        data = {"daemon_id": session.id, "status": session.status, "timeout_ms": None if persistent else limit_ms}
        return Answer(texts.monitor(session.id, "" if persistent else note), data)

    # Looking and ending.

    async def _daemon_list(self, kind: str | None, include_terminal: bool) -> Answer:
        shots = await asyncio.to_thread(self.state.everything if include_terminal else self.state.snapshot)
        wanted = [shot for shot in shots if kind is None or _is_of(shot, kind)]
        if kind is not None and not wanted:
            await asyncio.to_thread(self._check_kind, kind)
        over = [shot.id for shot in wanted if shot.is_terminal and not shot.survivors]
        hidden = set(over[:-TERMINAL_LISTED] if include_terminal else over)
        left_out = len(hidden) if include_terminal else 0
        found = [shot for shot in wanted if shot.id not in hidden]
        return Answer(texts.listed(found, left_out), {"daemons": [_told(shot) for shot in found], "more": left_out})

    async def _daemon_output(self, daemon_id: str, tail: int | None) -> Answer:
        def read(daemon: Daemon) -> tuple[DaemonSnapshot, Tail]:
            shot = daemon.snapshot()
            return shot, self._body(daemon, shot, tail).shown()

        shot, body = await asyncio.to_thread(read, self._found(daemon_id))
        message, output = texts.head(shot), texts.body(shot, body, tail)
        data = {**_told(shot), "message": message, "output": output, "bytes_cut": body.cut}
        return Answer(f"{message}\n---\n{output}", data)

    async def _daemon_stop(self, daemon_id: str) -> Answer:
        id = self._found(daemon_id).id
        try:
            before = await self.state.stop(id)
        except AlreadyEnded as ended:
            return Answer(texts.already(id, ended.status), {"daemon_id": id, "status": ended.status})
        except NotFound:
            raise
        except Exception as problem:  # noqa: BLE001  a host's own object may fail in any way
            return _refused(f"daemon_stop: kill failed: {problem}")
        return Answer(texts.stopping(before), {**_told(before), "stopping": True})

    def _check_kind(self, kind: str) -> None:
        """That there are none of a kind is no answer where there is no such kind: `bash`, for instance."""
        known = dict.fromkeys((*names(), *(shot.kind for shot in self.state.everything()), UNKNOWN))
        if kind not in known:
            raise BadArgument("kind", f"{kind[:40]!a} is not known", "give " + " or ".join(known))

    def _found(self, id: str) -> Daemon:
        daemon = self.state.recall(id.strip()) if id.strip() else None
        if daemon is None:
            raise NotFound(id)
        return daemon

    def _body(self, daemon: Daemon, shot: DaemonSnapshot, tail: int | None) -> Tail:
        if isinstance(daemon, SessionDaemon) and isinstance(shot.metadata, Other):
            return daemon.text(tail)
        if shot.metadata is None or not hasattr(shot.metadata, "read"):
            text = "" if shot.kind == "local_agent" else daemon.output()
            return Tail("\n".join(lines_of(text)[-tail:]) if tail else text, 0)
        if isinstance(shot.metadata, Monitor):
            return Tail.of(self._log(shot.id), lines=min(tail or RECENT_LINES, RECENT_LINES))
        stream = "stderr" if isinstance(shot.metadata, Lsp) else None
        return Tail.of(self._log(shot.id), lines=tail, stream=stream)

    def _log(self, id: str) -> Log:
        return self.hf._core.log(id)

    def _take(self, tool: Tool, arguments: object) -> dict[str, Any]:
        """Also as JSON text, as a model wrote it; no text at all is no arguments."""
        if isinstance(arguments, (str, bytes)):
            try:
                arguments = json.loads(arguments) if arguments.strip() else {}
            except ValueError as problem:
                raise BadArgument("arguments", f"not JSON: {problem}", "give an object of parameters") from None
            except RecursionError:
                raise BadArgument("arguments", "nested too deeply", "give an object of parameters") from None
        return super()._take(tool, arguments)

    # Words.

    async def _failed(self, tool: Tool, problem: HoldfastError) -> Answer:
        if isinstance(problem, SpawnError) and "id" in problem.facts:
            # What the agent is told by this answer is not announced to it again. Where that cannot be noted it comes
            # twice, which is better than no answer.
            with suppress(HoldfastError):
                await self._acknowledge(await self.find(problem.facts["id"]))
        return Answer(_in_words(tool, problem), {"error": problem.to_json()}, error=True)


def _in_words(tool: Tool, problem: HoldfastError) -> str:
    if isinstance(problem, NotFound):
        found = texts.not_found(tool.name, problem.ref)
        return found if problem.ref.strip() else texts.ID_REQUIRED.format(tool=tool.name)
    if isinstance(problem, BadArgument):
        if problem.argument == "daemon_host":
            return texts.NO_STATE.format(tool=tool.name)
        if problem.argument == "daemon_id" and problem.why == "is required":
            return texts.ID_REQUIRED.format(tool=tool.name)
        if problem.argument == "command" and problem.why == "is required":
            return texts.COMMAND_REQUIRED.format(tool=tool.name)
        return f"{tool.name}: decode: {problem}"
    if isinstance(problem, SpawnError):
        return f"{tool.name}: {problem.message}"
    return f"{tool.name}: {problem}"


def _refused(text: str) -> Answer:
    return Answer(text, {"error": {"message": text}}, error=True)


def _is_of(shot: DaemonSnapshot, kind: str) -> bool:
    """Kinds that nobody registered have one name together, beside the one that their host gave them."""
    return kind == shot.kind or (kind == UNKNOWN and shot.kind not in names())


def _told(shot: DaemonSnapshot) -> dict[str, Any]:
    """The facts of a snapshot as JSON, without its output."""
    return {
        "daemon_id": shot.id,
        "kind": shot.kind,
        "status": shot.status,
        "description": shot.description,
        "started_at": texts.instant(shot.started_at),
        "ended_at": None if shot.ended_at is None else texts.instant(shot.ended_at),
        "state": shot.state,
        "cause": shot.cause,
        "requested_by": shot.requested_by,
        "survivors": shot.survivors,
        "exit_code": getattr(shot.metadata, "exit_code", None),
    }
