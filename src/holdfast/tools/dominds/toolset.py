"""`Dominds`: the toolset, its schemas, checked arguments and reminders."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from ...errors import BadArgument, HoldfastError, NotFound, Removed, StillRunning
from ...home import check_labels
from ...model import FINAL_STATES, LOST, STALE, UNREACHABLE
from ...model.session import LONGEST_S
from .. import base
from ..base import BOOLEAN, INTEGER, MAP, STRING, Answer, Parameter, Tool, Toolset
from . import sessions, words
from .reminders import Reminder, Wakeups, is_reminder
from .sessions import FAILURE, answer
from .tools import end_stale, get_daemon_output, shell_cmd, stop_daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ...model import Snapshot
    from ...sessions.aio import AsyncHoldfast, AsyncSession
    from ..base import Approve
    from .reminders import Inject, Place
    from .sessions import View


# The tools as a model sees them, and their arguments, checked with dominds' own error texts.


TIMEOUT_MS_MAX = 86_400_000

_SHELL = (
    Parameter("command", STRING, "The shell command to execute", required=True),
    Parameter("shell", STRING, "Shell to use for execution (default: bash)"),
    Parameter("scrollbackLines", INTEGER, "Number of recent output lines kept in view (default: 500)"),
    Parameter(
        "timeoutSeconds", INTEGER, "Seconds to wait for the command before it continues as a daemon (default: 5)"
    ),
)
_SHELL_MORE = (
    Parameter("cwd", STRING, "Directory to run in"),
    Parameter("env", MAP, "Environment variables to set"),
)
_PID = Parameter("pid", INTEGER, "Process id of the daemon", required=True)
_OUTPUT = (
    Parameter("stdout", BOOLEAN, "Show stdout (default: true)"),
    Parameter("stderr", BOOLEAN, "Show stderr (default: true)"),
    Parameter(
        "wait_for_new_output",
        BOOLEAN,
        "Wait until a requested stream has output that was not shown yet (default: false; with timeout_ms: true)",
    ),
    Parameter("timeout_ms", INTEGER, "Longest time to wait for new output, in milliseconds (default: no limit)"),
)
_OUTPUT_MORE = (
    Parameter("pid", INTEGER, "Process id of the daemon"),
    Parameter("session", STRING, "Session id, instead of pid"),
    Parameter("since", INTEGER, "Show one stream from this offset on, instead of its last lines"),
    Parameter("lines", INTEGER, "How many of the last lines to show"),
)


def make_tools(*, extended: bool) -> tuple[Tool, ...]:
    more_shell = _SHELL_MORE if extended else ()
    output = (_OUTPUT_MORE[0], *_OUTPUT, *_OUTPUT_MORE[1:]) if extended else (_PID, *_OUTPUT)
    return (
        Tool(
            "shell_cmd",
            "Execute a shell command. One that has not ended after timeoutSeconds continues in the background as a "
            "daemon, with a reminder that keeps itself current; its end is reported.",
            (*_SHELL, *more_shell),
            title="Run a command",
            destroys=True,
            opens=True,
        ),
        Tool(
            "get_daemon_output",
            "Read what a daemon printed last, also after it has ended. Reading consumes nothing.",
            output,
            title="Read a daemon's output",
            reads=True,
        ),
        Tool(
            "stop_daemon",
            "Stop a daemon: SIGTERM to the process, then its group and descendants, SIGKILL to what does not leave.",
            (
                _PID,
                Parameter("entire_pg", BOOLEAN, "Stop its process group and descendants too (default: true)"),
            ),
            title="Stop a daemon",
            destroys=True,
            repeats=True,
        ),
    )


class Refused(BadArgument):
    """An argument error in the words of dominds, which name the fix themselves."""

    def __init__(self, argument: str, text: str) -> None:
        super().__init__(argument, text)
        self.text = text

    def __str__(self) -> str:
        return self.text


# The error text of each argument, and what is required of its value besides the type.
_RULES: dict[str, tuple[str, Callable[[Any], object] | None]] = {
    "shell_cmd.command": ("must be a non-empty string", str.strip),
    "shell_cmd.shell": ("must be a non-empty string", str.strip),
    "shell_cmd.scrollbackLines": ("must be a positive integer (or 0 for default)", lambda value: value >= 0),
    "shell_cmd.timeoutSeconds": (
        "must be a positive integer (or 0 for default)",
        lambda value: 0 <= value <= LONGEST_S,
    ),
    "shell_cmd.cwd": ("must be a string", None),
    "shell_cmd.env": ("must be an object of strings", None),
    "get_daemon_output.pid": ("must be a positive integer", lambda value: value > 0),
    "get_daemon_output.stdout": ("must be a boolean", None),
    "get_daemon_output.stderr": ("must be a boolean", None),
    "get_daemon_output.wait_for_new_output": ("must be a boolean", None),
    "get_daemon_output.timeout_ms": (
        f"must be a non-negative integer <= {TIMEOUT_MS_MAX}",
        lambda value: 0 <= value <= TIMEOUT_MS_MAX,
    ),
    "get_daemon_output.session": ("must be a session id", str.strip),
    "get_daemon_output.since": ("must be a non-negative integer", lambda value: value >= 0),
    "get_daemon_output.lines": ("must be a positive integer", lambda value: value > 0),
    "stop_daemon.pid": ("must be a positive integer", lambda value: value > 0),
    "stop_daemon.entire_pg": ("must be a boolean", None),
}


def take_arguments(tool: Tool, given: object) -> dict[str, Any]:
    """The checked arguments of a call. No arguments is the same as an empty object."""
    given = {} if given is None else given
    if isinstance(given, dict):
        if tool.name == "get_daemon_output" and "stream" in given:
            raise Refused("stream", "get_daemon_output.stream is no longer accepted: use stdout and stderr (booleans)")
        for each in tool.parameters:
            _check(tool, each, given.get(each.name))
    taken = base.take_arguments(tool.parameters, given, strict=True)
    if tool.name == "get_daemon_output":
        _check_output(taken)
    return taken


def _check(tool: Tool, parameter: Parameter, value: object) -> None:
    if value is None and not parameter.required:
        return
    text, rule = _RULES[f"{tool.name}.{parameter.name}"]
    try:
        taken = None if value is None else parameter.take(value, strict=True)
    except BadArgument:
        taken = None
    if taken is None or (rule is not None and not rule(taken)):
        raise Refused(parameter.name, f"{tool.name}.{parameter.name} {text}")


def _check_output(taken: dict[str, Any]) -> None:
    both = (taken["stdout"] is not False, taken["stderr"] is not False)
    if not any(both):
        raise Refused("stdout", "get_daemon_output requires at least one of stdout/stderr to be true")
    if taken["wait_for_new_output"] is False and taken["timeout_ms"] is not None:
        text = "get_daemon_output.timeout_ms cannot be provided when wait_for_new_output is false"
        raise Refused("timeout_ms", text)
    if "session" in taken and taken["session"] is None and taken["pid"] is None:
        raise Refused("pid", "get_daemon_output.pid must be a positive integer")
    if taken.get("since") is not None and all(both):
        raise Refused("since", "get_daemon_output.since needs exactly one of stdout/stderr to be true")


# `Dominds`: the toolset. It keeps its options, and reads everything about sessions again for each call.


_POLICIES = ("stop", "report")
# An answer has at most this many reminders in full, and this many more as one line each.
_REMINDED_WHOLE = 5
_REMINDED_LINES = 20


class Dominds(Toolset):
    """One agent (`owner`), one of its dialogs (`dialog`, with its `root`), the sessions of one place."""

    name = "dominds"
    variants = ("lifecycle",)
    tools = make_tools(extended=False)
    strict_types = True
    resources = MappingProxyType({"reminders": "the daemons of this agent, as lifecycle reminders"})
    instructions = (
        "Commands run here outlive this connection: an aborted call, a client that restarts or a server that dies ends "
        "the waiting of `shell_cmd`, never the command. After timeoutSeconds a command continues as a daemon; "
        "`get_daemon_output` shows what it printed at any time, and with timeout_ms waits for more: do not poll. "
        "Answers end with the lifecycle reminders of your daemons, and the resource holdfast://reminders has them all. "
        "Ends stay in a queue until you acknowledge them with `signals`."
    )

    def __init__(
        self,
        hf: AsyncHoldfast,
        owner: str,
        *,
        dialog: str | None = None,
        root: str | None = None,
        place: str = "local",
        stale_policy: str = "stop",
        stop_grace_s: float = 1.0,
        result_chars: int = 48_000,
        reminder_chars: int = 4_000,
        extended: bool = False,
        texts: Mapping[str, str] | None = None,
        approve: Approve | None = None,
    ) -> None:
        if stale_policy not in _POLICIES:
            raise BadArgument("stale_policy", f"{str(stale_policy)[:40]!a} is not known", "give stop or report")
        for option, number in (
            ("stop_grace_s", stop_grace_s),
            ("result_chars", result_chars),
            ("reminder_chars", reminder_chars),
        ):
            if number < 0:
                raise BadArgument(option, f"{number} is below 0", "leave it out, or give 0 or more")
        if extended:
            self.tools = make_tools(extended=True)
        super().__init__(hf, owner, approve=approve)
        labels = {"toolset": self.name, "dialog": dialog, "root": root}
        self.labels = check_labels({name: value for name, value in labels.items() if value is not None})
        self.place = place
        self.stale_policy = stale_policy
        self.stop_grace_s = float(stop_grace_s)
        self.result_chars = int(result_chars)
        self.reminder_chars = int(reminder_chars)
        self.texts = words.Texts(texts)
        # The last state of each daemon that an answer showed, for clients that get reminders in answers.
        self._reminded: dict[str, tuple[Any, ...]] = {}

    async def open(self) -> None:
        await self.recover()

    tool_shell_cmd = shell_cmd
    tool_get_daemon_output = get_daemon_output
    tool_stop_daemon = stop_daemon

    def _take(self, tool: Tool, given: object) -> dict[str, Any]:
        return take_arguments(tool, given)

    async def _failed(self, tool: Tool, problem: HoldfastError) -> Answer:
        return answer(FAILURE, [str(problem)], {"error": problem.to_json()})

    # Reminders: the list of the daemons.

    async def reminders(self) -> list[Reminder]:
        """The reminders that a host shows before each generation, by start time. Reading them changes nothing."""
        retired = self.kept.all("retired")
        found = []
        for session in await self.own_sessions():
            if session.id in retired:
                continue
            # Its signals matter once it has ended.
            signals = await session.told() if session.state in FINAL_STATES else []
            if is_reminder(session, signals, receipt=bool(self.shown(session.id))):
                try:
                    found.append(await Reminder.of(self, session, signals))
                except (NotFound, Removed):
                    continue  # another process removed it meanwhile
        return sorted(found, key=lambda each: (each.started_at, each.id))

    async def reminding(self, answer: Answer) -> Answer:
        """The answer with reminders after it, for agents whose host does not show them before each generation: in
        full where something changed since the last answer, one line for a running daemon without changes, nothing for
        a daemon whose end was shown."""
        try:
            found = await self.reminders()
        except HoldfastError:
            return answer  # the next answer has them
        before, self._reminded = self._reminded, {each.id: each.fingerprint for each in found}
        # The answer itself says everything about its own session.
        others = [each for each in found if each.id != answer.data.get("session")]
        whole = [each for each in others if before.get(each.id) != each.fingerprint][-_REMINDED_WHOLE:]
        rest = [each for each in others if each not in whole and not each.completed]
        texts = [each.render() for each in whole] + [each.summary() for each in rest[-_REMINDED_LINES:]]
        if len(rest) > _REMINDED_LINES:
            texts.append(self.texts("more_reminders", count=len(rest) - _REMINDED_LINES))
        if not texts:
            return answer
        redact = self.redactor()
        texts = [redact(each) for each in texts] if redact else texts
        return Answer("\n\n".join([answer.text, *texts]), {**answer.data, "reminders": texts}, error=answer.error)

    async def resource(self, name: str) -> str:
        return "\n\n".join([each.render() for each in await self.reminders()]) or self.texts("no_reminders")

    async def dismiss(self, id: str) -> None:
        """Stop showing its reminder. Refused while a process of it runs."""
        session = await self.find(id)
        if not self.is_own(session):
            raise NotFound(id)
        if sessions.something_lives(session):
            problem = StillRunning(session.id, sessions.survivors(session)[0])
            problem.fix = f"end it with {words.stop_call(session.pid)} first"
            raise problem
        self.retire(session)

    async def recover(self) -> dict[str, list[str]]:
        """Look at every daemon that is not known to have ended. With the policy `stop`, end one whose runner is proven
        dead. Ids by what was found; `quarantined` are unreadable directories."""
        seen = await self.hf.recover()
        mine: dict[str, list[Any]] = {
            state: [each for each in getattr(seen, state) if self.is_own(each)] for state in (UNREACHABLE, STALE, LOST)
        }
        found = {state: [each.id for each in group] for state, group in mine.items()}
        found["stopped"] = []
        if self.stale_policy == "stop":
            for session in mine[STALE]:
                try:
                    if await end_stale(self, session):
                        found["stopped"].append(session.id)
                except HoldfastError:
                    continue  # its reminder shows its state, and stop_daemon gives the reason
        return {**found, "quarantined": list(seen.quarantined)}

    def wakeups(self, place: Place, inject: Inject) -> Wakeups:
        """Delivers ends of daemons to this agent's dialogs. One per agent is enough; several share the work."""
        return Wakeups(self, place, inject)

    # For the modules of this toolset.

    def is_here(self, session: Snapshot) -> bool:
        """A pid may mean any session of this owner in this place; pids of another place mean nothing here."""
        return session.owner == self.owner and session.place == self.place

    def is_own(self, session: Snapshot) -> bool:
        """This toolset started it: other sessions have no reminder, and `recover` leaves them alone."""
        return self.is_here(session) and session.labels.get("toolset") == self.name

    async def own_sessions(self) -> list[AsyncSession]:
        return await self.listed(ended=True, labels={"toolset": self.name})

    def retire(self, session: AsyncSession) -> None:
        self.kept.put(session.id, "retired", True)

    def shown(self, id: str) -> dict[str, int]:
        """How far each stream was shown to this owner."""
        return self.kept.get(id, "shown") or {}

    def show(self, id: str, views: Iterable[View]) -> None:
        before = self.shown(id)
        after = {**before, **{view.stream: max(view.end, before.get(view.stream, 0)) for view in views}}
        if after != before:
            self.kept.put(id, "shown", after)
