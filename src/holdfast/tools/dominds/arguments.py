"""The tools as a model sees them, and their arguments checked with the texts that dominds has for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import BadArgument
from ...model.units import LONGEST_S
from .. import parameters
from ..parameters import BOOLEAN, INTEGER, MAP, STRING, Parameter
from ..toolset import Tool

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TIMEOUT_MS_MAX = 86_400_000

_SHELL = (
    Parameter("command", STRING, "The shell command to execute", required=True),
    Parameter("shell", STRING, "Shell to use for execution (default: bash)"),
    Parameter("scrollbackLines", INTEGER, "Number of recent output lines kept in view (default: 500)"),
    Parameter("timeoutSeconds", INTEGER, "Seconds to wait for the command before it goes on as a daemon (default: 5)"),
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


def tools(*, extended: bool) -> tuple[Tool, ...]:
    more_shell = _SHELL_MORE if extended else ()
    output = (_OUTPUT_MORE[0], *_OUTPUT, *_OUTPUT_MORE[1:]) if extended else (_PID, *_OUTPUT)
    return (
        Tool(
            "shell_cmd",
            "Execute a shell command. One that has not ended after timeoutSeconds goes on in the background as a "
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


def _positive(value: int) -> bool:
    return value > 0


def _or_default(value: int) -> bool:
    return value >= 0


def _not_blank(value: str) -> bool:
    return bool(value.strip())


# What each argument has to be besides its type, and the words for one that is not.
_RULES: dict[str, tuple[str, Callable[[Any], bool] | None]] = {
    "shell_cmd.command": ("must be a non-empty string", _not_blank),
    "shell_cmd.shell": ("must be a non-empty string", _not_blank),
    "shell_cmd.scrollbackLines": ("must be a positive integer (or 0 for default)", _or_default),
    "shell_cmd.timeoutSeconds": (
        "must be a positive integer (or 0 for default)",
        lambda value: 0 <= value <= LONGEST_S,
    ),
    "shell_cmd.cwd": ("must be a string", None),
    "shell_cmd.env": ("must be an object of strings", None),
    "get_daemon_output.pid": ("must be a positive integer", _positive),
    "get_daemon_output.stdout": ("must be a boolean", None),
    "get_daemon_output.stderr": ("must be a boolean", None),
    "get_daemon_output.wait_for_new_output": ("must be a boolean", None),
    "get_daemon_output.timeout_ms": (
        f"must be a non-negative integer <= {TIMEOUT_MS_MAX}",
        lambda value: 0 <= value <= TIMEOUT_MS_MAX,
    ),
    "get_daemon_output.session": ("must be a session id", _not_blank),
    "get_daemon_output.since": ("must be a non-negative integer", _or_default),
    "get_daemon_output.lines": ("must be a positive integer", _positive),
    "stop_daemon.pid": ("must be a positive integer", _positive),
    "stop_daemon.entire_pg": ("must be a boolean", None),
}


def take(tool: Tool, given: object) -> dict[str, Any]:
    """The arguments of a call, before anything is done for it. None at all is the same as none of them."""
    given = {} if given is None else given
    if isinstance(given, dict):
        if tool.name == "get_daemon_output" and "stream" in given:
            raise Refused("stream", "get_daemon_output.stream is no longer accepted: use stdout and stderr (booleans)")
        for each in tool.parameters:
            _check(tool, each, given.get(each.name))
    taken = parameters.take(tool.parameters, given, strict=True)
    if tool.name == "get_daemon_output":
        _check_output(taken)
    return taken


def _check(tool: Tool, parameter: Parameter, value: object) -> None:
    words, rule = _RULES[f"{tool.name}.{parameter.name}"]
    if value is None and not parameter.required:
        return
    try:
        good = value is not None and _fits(parameter, value, rule)
    except BadArgument:
        good = False
    if not good:
        raise Refused(parameter.name, f"{tool.name}.{parameter.name} {words}")


def _fits(parameter: Parameter, value: object, rule: Callable[[Any], bool] | None) -> bool:
    taken = parameter.take(value, strict=True)
    return rule is None or rule(taken)


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
