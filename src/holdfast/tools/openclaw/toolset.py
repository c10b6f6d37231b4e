"""The toolset `openclaw`: the tools `exec` and `process`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...errors import BadArgument, HoldfastError
from ...places import kinds
from ..base import BOOLEAN, INTEGER, MAP, NUMBER, STRING, STRINGS, Answer, Parameter, Tool, Toolset
from . import execute, process, settings, views, words
from .style import DrainStyle as Style
from .supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ...sessions.aio import AsyncHoldfast
    from ...signals.consumer import AsyncNotice
    from ..base import Approve
    from .settings import Decide


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
        Parameter("key", STRING, "while a run with the same key is alive, return that one and start nothing"),
        Parameter(
            "notifyOnExit",
            STRING,
            "whether you are notified of its end in the background",
            choices=("true", "false", "failure"),
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
        Parameter("action", STRING, ", ".join(words.ACTIONS), required=True),
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
    """`exec` are openclaw's settings under `tools.exec`. `policy` decides what may run; without one only
    `security: full` with `ask: off`, or what the allow-list permits. `offered` are the agent's tools, `cwd` its
    directory. `sandbox` is the container (`podman:NAME`, default OPENCLAW_SANDBOX) for commands that do not ask for the
    gateway."""

    name = "openclaw"
    tools: tuple[Tool, ...] = (_EXEC, _PROCESS)
    instructions = (
        "An `exec` that is aborted while it waits is stopped. One that still runs after yieldMs, or was started with "
        "background, keeps running until its timeout when the client restarts or the server dies. `process` lists "
        "these, shows their output and types into them; its poll takes a timeout and waits: do not call it again and "
        "again. How they end stays in a queue until you acknowledge it with `signals`."
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
        place = kinds.check(sandbox or self.environ.get("OPENCLAW_SANDBOX") or None)
        self.sandbox = None if place == kinds.LOCAL else place
        self.supervisor = Supervisor(hf, owner, kill_grace_ms=self.settings.kill_grace_ms)

    async def open(self) -> None:
        """Register the consumer of endings."""
        self.consumer()

    async def drain(self) -> AsyncNotice:
        """The endings in the background as one message; a clean `async with` settles it."""
        return await self.consumer().drain(Style(self.settings.notify_empty_success))

    async def active(self) -> int:
        """The number of runs with live processes, including those whose row was removed."""
        return len(await views.of_scope(self))

    async def tool_exec(self, **asked: Any) -> Answer:
        return await execute.execute(self, **asked)

    async def tool_process(self, **asked: Any) -> Answer:
        return await process.act(self, **asked)

    def _take(self, tool: Tool, arguments: object) -> dict[str, Any]:
        if isinstance(arguments, dict):
            if isinstance(arguments.get("notifyOnExit"), bool):
                arguments = {**arguments, "notifyOnExit": str(arguments["notifyOnExit"]).lower()}
            # A missing value gets the same answer as a blank one.
            missing = [each.name for each in tool.parameters if each.required and arguments.get(each.name) is None]
            arguments = {**arguments, **dict.fromkeys(missing, "")}
        return super()._take(tool, arguments)

    async def _failed(self, tool: Tool, problem: HoldfastError) -> Answer:
        return execute.failed(str(problem), problem.code)
