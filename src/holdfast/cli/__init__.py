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

# The overview: for each group its commands, each with its module of this package and its sentence. The module has
# `<command>_main`, `<command>_arrange` (its options) and the text of its help: `<COMMAND>_USAGE`, `_HELP`, `_EXAMPLES`.
# `<command>_understood`, if it is there, gets the words of the command line first and may change them.
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Start": {
        "run": ("run", "run a command, show its output, exit with its code"),
        "start": ("start", "start a command in the background, print its id"),
        "up": ("project", "start the services of a project"),
        "down": ("project", "stop the services of a project"),
        "ps": ("project", "list the services of a project"),
        "restart": ("start", "start the command of a session again"),
    },
    "Look": {
        "ls": ("look", "list sessions"),
        "top": ("top", "a live view of everything that runs"),
        "status": ("look", "everything known about one session"),
        "logs": ("look", "the output of a session"),
        "search": ("look", "find lines in the output of a session"),
        "wait": ("look", "wait until a session exits, prints, falls silent, listens or is ready"),
    },
    "Write": {
        "send": ("type", "write to the input of a session, unchanged"),
        "submit": ("type", "type text and press Enter"),
        "keys": ("type", "press keys by name"),
        "paste": ("type", "paste text, safely"),
        "eof": ("type", "close the input of a session"),
    },
    "Terminal": {
        "attach": ("terminal", "use a session's terminal from this one, until you detach"),
        "screen": ("terminal", "show the screen of its terminal"),
        "resize": ("terminal", "change the size of its terminal"),
        "export": ("terminal", "write a recording of its terminal"),
        "reset": ("terminal", "repair this terminal after an attach was killed"),
    },
    "Signals": {
        "signals": ("signals", "signals that wait to be acknowledged"),
        "ack": ("signals", "acknowledge signals"),
        "notify": ("signals", "switch messages to people on or off for a session"),
    },
    "Serve": {
        "serve": ("serve", "a server: sessions over HTTP and WebSocket"),
        "open": ("serve", "print an address of the server that logs in once"),
        "mcp": ("serve", "an MCP server: sessions as tools for agents"),
        "node": ("nodes", "sessions of other machines: invite, join, list, forget"),
        "fabric": ("nodes", "a NATS server that connects machines"),
    },
    "End": {
        "stop": ("end", "stop sessions gently, with everything they started"),
        "kill": ("end", "kill sessions at once, or send an operating-system signal"),
        "rm": ("end", "remove finished sessions"),
        "prune": ("end", "remove finished sessions by age or status, or all"),
    },
    "Care": {
        "rename": ("end", "give a session another name"),
        "recover": ("care", "check every session that is not known to have ended"),
        "doctor": ("care", "find and repair problems of the home"),
        "gc": ("care", "remove old sessions and leftovers"),
        "config": ("care", "the settings in force, and where each comes from"),
        "completion": ("completion", "print the completion script of a shell"),
    },
}
_MODULES = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}

_INTRO = """\
usage: hold COMMAND [OPTION...]

Run commands that outlive the terminal they were started from: all their output
is kept, and every other terminal finds them.
"""

_OUTRO = """\
examples:
  hold run -- make test                 like `make test`, and its log is kept
  hold start --name web -- npm run dev  run it in the background
  hold ls                               what is running
  hold logs -f web                      follow its output
  hold stop web                         stop it with everything it started

Name a session by its id, the beginning of its id (4 characters or more), its
name, its pid, or `last`. `hold COMMAND --help` explains a command. Every
command that reports something takes --json.
Exit codes: 0 success, 1 the request failed, 2 wrong usage, 3 no such session,
4 not possible in this state, 5 the runner cannot be reached, 124 timeout.
`hold run` and a plain `hold wait` exit with the code of the command; `run` with
127 if the command is not found, 126 if it cannot be executed, 124 if its
--timeout stopped it, 125 if Holdfast itself failed.
"""

# Exit codes that a shell reports for a program ended by SIGINT and SIGPIPE.
_INTERRUPTED = 130
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
        return _INTERRUPTED
    except Exception as problem:
        from .output import complain

        # Words behind `--` belong to the command that was to be started.
        own = words[: words.index("--")] if "--" in words else words
        rendered = complain(problem, as_json="--json" in own, options=_options(words))
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
    """The options of the command, for the text of an error."""
    if not words or words[0] not in _MODULES:
        return []
    return list(parser_of(words[0])[0].options)


def _load(name: str) -> ModuleType:
    """Import one module of this package, without the cost of importlib."""
    __import__(f"{__name__}.{name}")
    return sys.modules[f"{__name__}.{name}"]


def names() -> dict[str, str]:
    """Every command with its sentence."""
    return {name: sentence for group in COMMANDS.values() for name, (_, sentence) in group.items()}


def overview(width: int = 100) -> str:
    lines = [_INTRO]
    for group, commands in COMMANDS.items():
        lines.append(f"{group}:")
        for name, (_, sentence) in commands.items():
            line = f"  {name:<11} {sentence}"
            if len(line) > width:
                cut = line.rindex(" ", 0, width + 1)
                line = f"{line[:cut]}\n{' ' * 14}{line[cut + 1 :]}"
            lines.append(line)
    return "\n".join([*lines, "", _OUTRO])


def _dispatch(words: list[str]) -> int:
    name = words[0] if words else "help"
    if name in ("help", "-h", "--help"):
        if len(words) > 1 and name == "help":
            return _dispatch([words[1], "--help"])
        from .output import columns

        sys.stdout.write(overview(columns() or 100))
        return 0
    if name in ("--version", "-V", "version"):
        from .. import __version__

        print(f"holdfast {__version__}")
        return 0
    if name == "__complete":
        offered: int = _load("completion").main(words[1:])
        return offered
    if name not in _MODULES:
        return _unknown(name)
    parser, module = parser_of(name)
    understood = getattr(module, f"{name}_understood", list)
    args = parser.parse(understood(words[1:]))
    if args is None:
        sys.stdout.write(parser.help())
        return 0
    code: int = getattr(module, f"{name}_main")(args)
    return code


def _unknown(name: str) -> int:
    from difflib import get_close_matches

    from .output import note, printable

    note(f"no command {printable(name[:80])!a}")
    near = get_close_matches(name[:80], names(), 1)
    note(f"did you mean `{PROGRAM} {near[0]}`?" if near else f"`{PROGRAM} --help` lists the commands", head="fix")
    return 2


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
            # A file name may contain half a character.
            stream.reconfigure(errors="backslashreplace")


def _abandon_stdout() -> None:
    """Drop the rest of the output, so that the interpreter does not fail to write it at the end."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
