"""The toolset `openclaw`: its two tools, and what a host does with it beside calling them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ... import places
from ...errors import BadArgument
from ...model import FINAL_STATES
from ...signals.names import default_name
from ...signals.styles.openclaw import OpenClaw as Style
from ..answer import Answer
from ..parameters import BOOLEAN, INTEGER, MAP, NUMBER, STRING, STRINGS, Parameter
from ..toolset import Tool, Toolset
from . import executing, process, rows, settings, texts
from .supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ...errors import HoldfastError
    from ...host.aio import AsyncHoldfast, AsyncSession
    from ...signals.consumer import AsyncConsumer, AsyncNotice
    from ..toolset import Approve
    from .policy import Decide

_EXEC = Tool(
    "exec",
    "Run a shell command. It waits yieldMs for the end and then leaves the command running in the background, where "
    "the process tool reaches it. For a service use background: true and timeout: 0.",
    (
        Parameter("command", STRING, "the shell command", required=True),
        Parameter("workdir", STRING, "where it runs; default: the agent's own directory"),
        Parameter("env", MAP, "variables to set"),
        Parameter("yieldMs", INTEGER, "how long to wait for the end, 10 to 120000; default 10000", minimum=0),
        Parameter("background", BOOLEAN, "do not wait at all", default=False),
        Parameter(
            "timeout",
            NUMBER,
            "seconds after which it is stopped, also in the background; 0 is never, default 1800",
            minimum=0,
            aliases=("timeoutSeconds",),
        ),
        Parameter("noOutputTimeout", NUMBER, "seconds of silence after which it is stopped; 0 is never", minimum=0),
        Parameter("pty", BOOLEAN, "run on a terminal, for programs that need one", default=False),
        Parameter(
            "stdin", STRING, "without pty: closed (default), or open for process write", choices=("closed", "open")
        ),
        Parameter("key", STRING, "while a run with the same key lives, that one is answered and none is started"),
        Parameter(
            "notifyOnExit", STRING, "whether its end in the background is told", choices=("true", "false", "failure")
        ),
        Parameter("elevated", BOOLEAN, "ask for elevated permissions"),
        Parameter("host", STRING, "where to run", choices=("auto", "gateway", "sandbox", "node")),
        Parameter("security", STRING, "stricter than configured", choices=settings.SECURITY),
        Parameter("ask", STRING, "ask more often than configured", choices=settings.ASK),
        Parameter("node", STRING, "the name of the node, with host node"),
    ),
    title="Run a command",
    destroys=True,
    opens=True,
)
_PROCESS = Tool(
    "process",
    "Manage commands that run in the background: list, poll (new output), log (by line), write, send-keys, submit, "
    "paste, kill, clear, remove.",
    (
        Parameter("action", STRING, ", ".join(texts.ACTIONS), required=True),
        Parameter("sessionId", STRING, "for every action but list"),
        Parameter("timeout", INTEGER, "poll: milliseconds to wait for output or exit, at most 30000", minimum=0),
        Parameter("cursor", STRING, "poll: read from here and move nothing"),
        Parameter("offset", INTEGER, "log: first line, from 0", minimum=0),
        Parameter("limit", INTEGER, "log: number of lines", minimum=1),
        Parameter("data", STRING, "write: text for stdin"),
        Parameter("eof", BOOLEAN, "write: close stdin afterwards", default=False),
        Parameter("literal", STRING, "send-keys: text, first"),
        Parameter("hex", STRINGS, "send-keys: bytes such as 1b, second"),
        Parameter("keys", STRINGS, "send-keys: names such as Enter, C-c, Up, last"),
        Parameter("text", STRING, "paste: the text"),
        Parameter("bracketed", BOOLEAN, "paste: as a paste where the program takes one", default=True),
        Parameter("all", BOOLEAN, "kill: everything of this agent", default=False),
    ),
    title="Background commands",
    destroys=True,
)


class OpenClaw(Toolset):
    """`exec` are settings as openclaw has them under `tools.exec`; `policy` decides what may run
    (without one: what `security: full` with `ask: off` or the allow-list permits); `offered` are the
    tools that the agent has; `cwd` is where it is; `sandbox` is the container (`podman:NAME`) that commands run in
    unless they ask for the gateway, that of OPENCLAW_SANDBOX where none is given."""

    name = "openclaw"
    tools: tuple[Tool, ...] = (_EXEC, _PROCESS)
    instructions = (
        "An `exec` that is aborted while it waits is stopped. One that still runs after yieldMs, or was started with "
        "background, goes on when the client restarts or the server dies, until its timeout. `process` lists these, "
        "shows their output and types into them; its poll takes a timeout and waits: do not call it again and again. "
        "How they end stays in a queue until you acknowledge it with `signals`."
    )
    said_in_text = ("aggregated",)

    def __init__(
        self,
        hf: AsyncHoldfast,
        owner: str,
        *,
        approve: Approve | None = None,
        exec: Mapping[str, Any] | None = None,
        policy: Decide | None = None,
        offered: Sequence[str] = ("exec", "process"),
        cwd: str | None = None,
        sandbox: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        unknown = sorted(set(offered) - {tool.name for tool in self.tools})
        if unknown:
            raise BadArgument("offered", f"there is no tool {unknown[0]!a}", "there is exec and process")
        self.tools = tuple(tool for tool in OpenClaw.tools if tool.name in offered)
        super().__init__(hf, owner, approve=approve)
        self.environ = dict(os.environ if environ is None else environ)
        self.settings = settings.Settings(exec, self.environ)
        self.policy = policy
        self.offered = tuple(offered)
        self.cwd = os.path.abspath(cwd or os.getcwd())
        place = places.check(sandbox or self.environ.get("OPENCLAW_SANDBOX") or None)
        self.sandbox = None if place == places.LOCAL else place
        self.supervisor = Supervisor(hf, owner, kill_grace_ms=self.settings.kill_grace_ms)
        # Rows and read positions; they survive this host.
        self.notes = self.kept()
        self._consumer: AsyncConsumer | None = None

    async def open(self) -> None:
        """Be known as somebody who wants to hear of endings."""
        self.consumer()

    def consumer(self) -> AsyncConsumer:
        """Where endings wait until they are drained, or were polled."""
        if self._consumer is None:
            self._consumer = self.hf.consumer(default_name(self.owner, "openclaw"), owners=[self.owner])
        return self._consumer

    async def drain(self) -> AsyncNotice:
        """What happened in the background, as one message; settled by a clean `async with`."""
        return await self.consumer().drain(Style(self.settings.notify_empty_success))

    async def active(self) -> int:
        """How many runs are not extinct, those included whose row was removed."""
        return len(await rows.of_scope(self))

    async def acknowledge(self, session: AsyncSession) -> None:
        """The agent is being told of its end: it need not hear of it again."""
        if session.state in FINAL_STATES:
            woke = await session.wait(timeout=0)
            if woke.signal_id is not None:
                await self.consumer().ack(woke.signal_id)

    async def _exec(self, **asked: Any) -> Answer:
        return await executing.execute(self, **asked)

    async def _process(self, **asked: Any) -> Answer:
        return await process.act(self, **asked)

    def _take(self, tool: Tool, arguments: object) -> dict[str, Any]:
        if isinstance(arguments, dict):
            if isinstance(arguments.get("notifyOnExit"), bool):
                arguments = {**arguments, "notifyOnExit": str(arguments["notifyOnExit"]).lower()}
            # What is missing is answered as what is blank.
            missing = [each.name for each in tool.parameters if each.required and arguments.get(each.name) is None]
            arguments = {**arguments, **dict.fromkeys(missing, "")}
        return super()._take(tool, arguments)

    async def _failed(self, tool: Tool, problem: HoldfastError) -> Answer:
        return executing.failed(str(problem), problem.code)
