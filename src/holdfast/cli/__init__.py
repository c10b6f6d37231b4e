"""The `hold` command: runs one command and reports its errors.

Only the module of that command is imported: the overview comes from the table below.
"""

from __future__ import annotations

import os
import sys
from gc import set_threshold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import NoReturn

    from .parsing import Parser


PROGRAM = "hold"

# What people do: for each group its commands, each with its module of this package and at most five words. The module
# has `<command>_main`, `<command>_arrange` (its options) and the text of its help: `<COMMAND>_USAGE`, `_HELP`,
# `_EXAMPLES`. `<command>_understood`, if it is there, gets the words of the command line first and may change them.
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Start": {
        "run": ("run", "run it, show its output"),
        "start": ("start", "start in the background"),
        "up": ("project", "start project services"),
        "down": ("project", "stop project services"),
        "ps": ("project", "list project services"),
        "restart": ("start", "start the command again"),
    },
    "Look": {
        "ls": ("look", "list sessions"),
        "top": ("top", "watch everything live"),
        "status": ("look", "details of one session"),
        "logs": ("logs", "print or follow output"),
        "search": ("logs", "find lines in output"),
        "wait": ("logs", "wait for end or output"),
    },
    "Type": {
        "send": ("type", "write input, unchanged"),
        "submit": ("type", "type text, press Enter"),
        "keys": ("type", "press keys by name"),
        "paste": ("type", "paste text, safely"),
        "eof": ("type", "close its input"),
    },
    "End": {
        "stop": ("end", "stop all its processes"),
        "kill": ("end", "kill, or send a signal"),
        "rm": ("end", "remove finished sessions"),
        "prune": ("end", "remove by age or status"),
    },
    "Screen": {
        "attach": ("terminal", "use its terminal here"),
        "screen": ("terminal", "show its screen"),
        "resize": ("terminal", "change its size"),
        "export": ("terminal", "write a recording"),
        "reset": ("terminal", "repair this terminal"),
    },
    "Signal": {
        "signals": ("signals", "list waiting signals"),
        "ack": ("signals", "acknowledge signals"),
        "notify": ("signals", "send notices to people"),
    },
    "Serve": {
        "serve": ("serve", "sessions over HTTP"),
        "open": ("serve", "print a login address"),
        "mcp": ("serve", "tools for agents (MCP)"),
        "hook": ("serve", "notify agents each turn"),
        "node": ("nodes", "see other machines"),
        "fabric": ("nodes", "connect machines by NATS"),
    },
    "Admin": {
        "rename": ("end", "give another name"),
        "recover": ("admin", "check unfinished sessions"),
        "doctor": ("admin", "find and repair problems"),
        "gc": ("admin", "remove what is old"),
        "config": ("admin", "show the settings"),
        "completion": ("completion", "for your shell"),
    },
}
_MODULES = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}

# Exit codes that a shell reports for a program ended by SIGINT and SIGPIPE.
INTERRUPTED = 130
_BROKEN_PIPE = 141


def main() -> NoReturn:
    """The process `hold`. It leaves with `os._exit`: taking the interpreter apart would cost a fifth of the time of
    `hold ls`, and everything is already written and closed."""
    if sys.getfilesystemencoding() != "utf-8":
        # Words, paths and variables are bytes to the system and must reach a runner as the same bytes.
        words = [os.fsencode(word) for word in sys.argv[1:]]
        os.execv(sys.executable, [os.fsencode(sys.executable), b"-P", b"-X", b"utf8", b"-m", b"holdfast.cli", *words])
    # The first collections would only walk over what was just loaded.
    set_threshold(100_000)
    code = carry_out(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)


def carry_out(words: list[str]) -> int:
    """Run one command line; returns the exit code."""
    _mend_streams()
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _abandon_stdout()
        return _BROKEN_PIPE
    except KeyboardInterrupt:
        _abandon_stdout()
        if sys.stderr.isatty():
            sys.stderr.write("\n")  # below the `^C` that the terminal shows
        return INTERRUPTED
    except Exception as problem:
        from .host import near_session
        from .output import complain

        # Words behind `--` belong to the command that was to be started.
        own = words[: words.index("--")] if "--" in words else words
        rendered = complain(problem, as_json="--json" in own, options=_options(words), near=near_session(problem))
        if rendered is None:
            raise
        _abandon_stdout()
        return rendered


def parser_of(name: str) -> tuple[Parser, ModuleType]:
    """The parser of one command, and its module."""
    from .parsing import Parser

    module = _load(_MODULES[name])
    usage, description, examples = (getattr(module, f"{name.upper()}_{part}") for part in ("USAGE", "HELP", "EXAMPLES"))
    parser = Parser(f"{PROGRAM} {name}", usage, description, examples)
    getattr(module, f"{name}_arrange")(parser)
    return parser, module


def _options(words: list[str]) -> list[str]:
    """The options of the command and what its help calls their values, for the text of an error."""
    if not words or words[0] not in _MODULES:
        return []
    parser = parser_of(words[0])[0]
    return [*parser.options, *(argument.placeholder for argument in parser.arguments)]


def _load(name: str) -> ModuleType:
    """Import one module of this package, without the cost of importlib."""
    __import__(f"{__name__}.{name}")
    return sys.modules[f"{__name__}.{name}"]


def names() -> dict[str, str]:
    """Every command with its sentence."""
    return {name: sentence for group in COMMANDS.values() for name, (_, sentence) in group.items()}


def _dispatch(words: list[str]) -> int:
    name = words[0] if words else "help"
    if name in ("help", "-h", "--help", "--help-all"):
        helped: int = _load("help").main(words)
        return helped
    if name in ("--version", "-V", "version"):
        from .. import __version__

        print(f"holdfast {__version__}")
        return 0
    if name == "__complete":
        offered: int = _load("completion").main(words[1:])
        return offered
    if name not in _MODULES:
        from ..model.session import nearest
        from . import other_tools
        from .parsing import usage

        error, near = usage(f"no command {name[:80]!a}", PROGRAM), nearest(name, names())
        guess = f"did you mean `{PROGRAM} {near}`?" if near else other_tools.program(name)
        error.fix = other_tools.command(name) or guess or error.fix
        raise error
    parser, module = parser_of(name)
    understood = getattr(module, f"{name}_understood", list)
    args = parser.parse(understood(words[1:]))
    if args is None:
        sys.stdout.write(parser.help(whole="--help-all" in words))
        return 0
    code: int = getattr(module, f"{name}_main")(args)
    return code


def _mend_streams() -> None:
    """Open /dev/null for a closed stdin, stdout or stderr: the next file opened would get its number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif stream.errors != "backslashreplace":
            # A file name may contain an incomplete UTF-8 character.
            stream.reconfigure(errors="backslashreplace")


def _abandon_stdout() -> None:
    """Drop the rest of the output, so that the interpreter does not fail to write it at the end."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
