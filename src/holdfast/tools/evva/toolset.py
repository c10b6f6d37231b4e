"""`bash`, `monitor`, `daemon_list`, `daemon_output`, `daemon_stop`: evva's tools over the sessions of one owner."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING

from ...daemons.kinds import names
from ...errors import AlreadyEnded, BadArgument, HoldfastError, NotFound, SpawnError, Unreachable
from ...model import UNREACHABLE
from ..base import BOOLEAN, INTEGER, STRING, Answer, Parameter, Tool, Toolset
from ..owner_sessions import Running
from . import words
from .catalog import SessionDaemon
from .snapshot import KIND_LOCAL_BASH, Other, Tail, lines_of, tail_of
from .state import FAMILY, GRACE_S, AsyncDaemonState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ...model import Exit
    from ...model.options import StartOptions
    from ...sessions.aio import AsyncHoldfast, AsyncSession
    from ...sessions.log import Log
    from ..base import Approve
    from .catalog import Daemon
    from .snapshot import DaemonSnapshot


BASH_MS, BASH_MOST_MS = 120_000, 600_000
MONITOR_MS, MONITOR_LEAST_MS, MONITOR_MOST_MS = 300_000, 1_000, 3_600_000
TERMINAL_LISTED = 50
KILL, BACKGROUND = "kill", "background"
UNKNOWN = "unknown"

# How long a cancelled call waits for its runner.
_SILENCE_S = 1.0

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
            # Not an enum: a host may register its own kinds at any time.
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
    """Options: `cwd`, `env` and `shell` of commands; `on_timeout="background"` continues a command in the background
    after its timeout; `quote` and `ended_tail_chars` shape the messages of `state.fold()`; `daemon_host=False` has no
    background."""

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
        """The background of this agent."""
        if self._state is None:
            raise BadArgument("daemon_host", "this toolset has no background", "open it with daemon_host=True")
        return self._state

    async def close(self) -> None:
        if self._state is not None:
            self._state.close()

    # Running.

    async def tool_bash(
        self,
        command: str,
        description: str | None,
        timeout: int,
        run_in_background: bool,
        dangerouslyDisableSandbox: bool,  # noqa: N803  the name is evva's
    ) -> Answer:
        if not command.strip():
            return _refused(words.COMMAND_REQUIRED.format(tool="bash"))
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
            # The connection is closed by now, which ended the command.
            raise asyncio.CancelledError(words.CANCELLED) from None
        if session.exit is not None:
            return await self._ended(session, session.exit, limit_s)
        if lets_go and session.state != UNREACHABLE:
            await asyncio.to_thread(self.state.entered, session.id)
            return self._in_background(session)
        return _refused(words.out_of_reach(session.id, session.state))

    async def _run(self, command: str, wait_s: float | None, limit_s: float, options: StartOptions) -> AsyncSession:
        """Run it until it ends, and report progress. Leaving early ends the command, which lives as long as its
        call."""
        start = Running(self.hf, command, wait=wait_s, **options)
        try:
            async with start as running:
                try:
                    return await self.with_progress(running.sessions, running.outcome(limit_s))
                except asyncio.CancelledError:
                    await running.abort(self._silence)
                    raise
        except Unreachable:
            if start.session is None:
                raise
            return start.session

    async def _silence(self, session: AsyncSession) -> None:
        """Cause no notice of the end: the agent knows that it cancelled the call. Survivors are still reported."""
        with suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(_SILENCE_S):
                await session.update(notify="never")
        with suppress(HoldfastError):
            await self.acknowledge(await session.refresh())

    async def _ended(self, session: AsyncSession, exit: Exit, limit_s: float) -> Answer:
        tail = (await asyncio.to_thread(tail_of, self._log(session.id), KIND_LOCAL_BASH)).shown()
        left = len(exit.survivors) + exit.survivors_more
        data = {"daemon_id": session.id, "status": session.status, "exit_code": exit.code, "exit_signal": exit.signal}
        data |= {"cause": exit.cause, "survivors": left, "output": tail.text, "bytes_cut": tail.cut}
        failed = session.status != "completed"
        before, after = [], []
        if exit.cause == "overall_timeout":
            before.append(words.timed_out(limit_s))
        elif exit.cause in ("stop", "owner_gone"):
            before.append(words.CANCELLED)
        elif failed:
            after.append(words.ended(exit))
        if tail.cut:
            before.append(words.beginning_cut(tail, session.id))
        if not tail.text and (exit.cause == "overall_timeout" or not (before or after or left)):
            after.insert(0, words.NO_OUTPUT)
        if left and session.stopping:
            after.append(words.dying(left))
        elif left:
            after.append(words.survivors(left, session.id))
            if self._state is not None:
                self._state.note_survivors(session.id)
        data["message"] = "\n".join((*before, *after))
        output = tail.text.removesuffix("\n") if after else tail.text
        return Answer("\n".join(filter(None, (*before, output, *after))), data, error=failed)

    async def _background(self, command: str, description: str | None) -> Answer:
        if self._state is None:
            return _refused(words.NO_BACKGROUND)
        options: StartOptions = {**self._base, "description": description}
        return self._in_background(await self._state.start(command, **options))

    def _in_background(self, session: AsyncSession) -> Answer:
        return Answer(words.background(session.id), {"daemon_id": session.id, "status": session.status})

    async def tool_monitor(self, command: str, description: str, persistent: bool, timeout_ms: int) -> Answer:
        if not command.strip():
            return _refused(words.COMMAND_REQUIRED.format(tool="monitor"))
        if self._state is None:
            return _refused(words.NO_HOST)
        limit_ms = MONITOR_MS if timeout_ms <= 0 else min(max(timeout_ms, MONITOR_LEAST_MS), MONITOR_MOST_MS)
        note = words.clamped(timeout_ms, limit_ms) if timeout_ms > 0 and limit_ms != timeout_ms else ""
        options: StartOptions = {**self._base, "kind": "monitor", "description": description}
        options["monitor"] = {"persistent": persistent}
        if not persistent:
            options["timeout"] = limit_ms / 1000
        session = await self._state.start(command, **options)
        data = {"daemon_id": session.id, "status": session.status, "timeout_ms": None if persistent else limit_ms}
        return Answer(words.monitor(session.id, "" if persistent else note), data)

    # Looking and ending.

    async def tool_daemon_list(self, kind: str | None, include_terminal: bool) -> Answer:
        shots = await asyncio.to_thread(self.state.everything if include_terminal else self.state.snapshot)
        wanted = [shot for shot in shots if kind is None or _is_of(shot, kind)]
        if kind is not None and not wanted:
            await asyncio.to_thread(self._check_kind, kind)
        over = [shot.id for shot in wanted if shot.is_terminal and not shot.survivors]
        hidden = set(over[:-TERMINAL_LISTED] if include_terminal else over)
        left_out = len(hidden) if include_terminal else 0
        found = [shot for shot in wanted if shot.id not in hidden]
        return Answer(words.listed(found, left_out), {"daemons": [_facts(shot) for shot in found], "more": left_out})

    async def tool_daemon_output(self, daemon_id: str, tail: int | None) -> Answer:
        def read(daemon: Daemon) -> tuple[DaemonSnapshot, Tail]:
            shot = daemon.snapshot()
            return shot, self._body(daemon, shot, tail).shown()

        shot, body = await asyncio.to_thread(read, self._found(daemon_id))
        message, output = words.head(shot), words.body(shot, body, tail)
        data = {**_facts(shot), "message": message, "output": output, "bytes_cut": body.cut}
        return Answer(f"{message}\n---\n{output}", data)

    async def tool_daemon_stop(self, daemon_id: str) -> Answer:
        id = self._found(daemon_id).id
        try:
            before = await self.state.stop(id)
        except AlreadyEnded as ended:
            return Answer(words.already(id, ended.status), {"daemon_id": id, "status": ended.status})
        except NotFound:
            raise
        except Exception as problem:  # noqa: BLE001  a host's own object may fail in any way
            return _refused(f"daemon_stop: kill failed: {problem}")
        return Answer(words.stopping(before), {**_facts(before), "stopping": True})

    def _check_kind(self, kind: str) -> None:
        """Refuse an unknown kind, such as `bash`, instead of an empty list."""
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
        return tail_of(self._log(shot.id), shot.kind, tail)

    def _log(self, id: str) -> Log:
        return self.hf._core.log(id)

    def _take(self, tool: Tool, arguments: object) -> dict[str, Any]:
        """Also accepts the arguments as JSON text; blank text is no arguments."""
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
            # This answer reports the failure. If the acknowledgement fails, a notice reports it again.
            with suppress(HoldfastError):
                await self.acknowledge(await self.find(problem.facts["id"]))
        return Answer(_in_words(tool, problem), {"error": problem.to_json()}, error=True)


def _in_words(tool: Tool, problem: HoldfastError) -> str:
    if isinstance(problem, NotFound):
        found = words.not_found(tool.name, problem.ref)
        return found if problem.ref.strip() else words.ID_REQUIRED.format(tool=tool.name)
    if isinstance(problem, BadArgument):
        if problem.argument == "daemon_host":
            return words.NO_STATE.format(tool=tool.name)
        if problem.argument == "daemon_id" and problem.why == "is required":
            return words.ID_REQUIRED.format(tool=tool.name)
        if problem.argument == "command" and problem.why == "is required":
            return words.COMMAND_REQUIRED.format(tool=tool.name)
        return f"{tool.name}: decode: {problem}"
    if isinstance(problem, SpawnError):
        return f"{tool.name}: {problem.message}"
    return f"{tool.name}: {problem}"


def _refused(text: str) -> Answer:
    return Answer(text, {"error": {"message": text}}, error=True)


def _is_of(shot: DaemonSnapshot, kind: str) -> bool:
    """`unknown` means all kinds that are not built in."""
    return kind == shot.kind or (kind == UNKNOWN and shot.kind not in names())


def _facts(shot: DaemonSnapshot) -> dict[str, Any]:
    """The facts of a snapshot as JSON, without its output."""
    return {
        "daemon_id": shot.id,
        "kind": shot.kind,
        "status": shot.status,
        "description": shot.description,
        "started_at": words.instant(shot.started_at),
        "ended_at": None if shot.ended_at is None else words.instant(shot.ended_at),
        "state": shot.state,
        "cause": shot.cause,
        "requested_by": shot.requested_by,
        "survivors": shot.survivors,
        "exit_code": getattr(shot.metadata, "exit_code", None),
    }
