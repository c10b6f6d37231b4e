"""The `hold` command: finds the file of the command that was asked for, and renders what goes wrong in it.

Nothing but that one command is imported: the overview comes from the table below.
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

COMMANDS: dict[str, dict[str, str]] = {
    "Start": {
        "run": "run a command, show its output, exit with its code",
        "start": "start a command in the background, print its id",
        "restart": "start the command of a session anew",
    },
    "Look": {
        "ls": "list sessions",
        "top": "a live view of everything that runs",
        "status": "everything known about one session",
        "logs": "what a session printed",
        "search": "find lines in what a session printed",
        "wait": "block until a session exits, prints, falls silent, listens or is ready",
    },
    "Write": {
        "send": "write to the input of a session, as it stands",
        "submit": "type text and press Enter",
        "keys": "press keys by name",
        "paste": "paste text, safely",
        "eof": "end the input of a session",
    },
    "Terminal": {
        "attach": "take a session's terminal as one's own, until detached",
        "screen": "what its terminal shows",
        "resize": "give its terminal another size",
        "export": "write a recording of its terminal",
        "play": "play a recording",
        "reset": "mend this terminal after an attach that was killed",
    },
    "Signals": {
        "signals": "what was signalled and waits to be acknowledged",
        "ack": "acknowledge signals",
        "notify": "whether people are told of a session",
    },
    "Serve": {
        "serve": "a server: attach over WebSocket",
        "mcp": "an MCP server: sessions as tools for agents",
    },
    "End": {
        "stop": "end sessions gently, with everything they started",
        "kill": "end sessions at once, or send one operating-system signal",
        "rm": "forget sessions that are over",
    },
    "Care": {
        "recover": "look at every session that is not known to be over",
        "doctor": "find what is wrong with the home, and mend it",
        "gc": "remove old sessions and leftovers",
        "config": "the settings in force, and where each comes from",
        "completion": "print the completion script of a shell",
    },
}

_INTRO = """\
usage: hold COMMAND [OPTION...]

Commands that outlive whoever started them: every byte they print is kept, and
any terminal finds them again.
"""

_OUTRO = """\
examples:
  hold run -- make test                 like `make test`, and its log is kept
  hold start --name web -- npm run dev  go on in the background
  hold ls                               what is running
  hold logs -f web                      watch it
  hold stop web                         end it with everything it started

A session is named by its id, the beginning of its id (4 characters or more),
its name, its pid, or `last`. `hold COMMAND --help` tells about a command. Every
command that reports something takes --json.
Exit codes: 0 fine, 1 the request failed, 2 wrong usage, 3 no such session,
4 not possible in this state, 5 the runner cannot be reached, 124 timeout.
`hold run` and a plain `hold wait` exit with the code of the command; `run` with
127 if there is no such command, 126 if it cannot be executed, 124 if its
--timeout ended it, 125 if Holdfast itself failed.
"""

# What a shell reports of a program that SIGINT or SIGPIPE ended.
_INTERRUPTED = 130
_BROKEN_PIPE = 141


def main() -> NoReturn:
    """The process `hold`. Everything was closed and written when the command is done: to take the interpreter apart
    as well would cost a fifth of the time of `hold ls`."""
    if sys.getfilesystemencoding() != "utf-8":
        # Words, paths and variables are bytes to the system and must stay the same bytes on their way to a runner.
        words = [os.fsencode(word) for word in sys.argv[1:]]
        os.execv(sys.executable, [os.fsencode(sys.executable), b"-P", b"-X", b"utf8", b"-m", b"holdfast.cli", *words])
    # The first collections would only walk over what was just loaded.
    set_threshold(100_000)
    code = carry_out(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)


def carry_out(words: list[str]) -> int:
    """Do what one command line says; the exit code."""
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

        rendered = complain(problem, as_json="--json" in _own(words), options=_options(words))
        if rendered is None:
            raise
        _abandon_stdout()
        return rendered


def parser_of(name: str) -> tuple[Parser, ModuleType]:
    """The parser of one command, and the module that carries it out."""
    from .parsing import Parser

    module = _load(name)
    parser = Parser(f"{PROGRAM} {name}", module.USAGE, module.__doc__ or "", module.EXAMPLES)
    module.arrange(parser)
    return parser, module


def _options(words: list[str]) -> list[str]:
    """Those that the command takes, for the words of an error."""
    if not words or words[0] not in names():
        return []
    return [option for action in parser_of(words[0])[0]._actions for option in action.option_strings]


def _load(name: str) -> ModuleType:
    """One module of this package. By hand: importlib itself is one more thing to load."""
    __import__(f"{__name__}.{name}")
    return sys.modules[f"{__name__}.{name}"]


def names() -> dict[str, str]:
    """Every command with its sentence."""
    return {name: sentence for group in COMMANDS.values() for name, sentence in group.items()}


def overview(width: int = 100) -> str:
    lines = [_INTRO]
    for group, commands in COMMANDS.items():
        lines.append(f"{group}:")
        for name, sentence in commands.items():
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
        from .tables import columns

        sys.stdout.write(overview(columns() or 100))
        return 0
    if name in ("--version", "-V", "version"):
        from .. import __version__

        print(f"holdfast {__version__}")
        return 0
    if name == "__complete":
        offered: int = _load("complete").main(words[1:])
        return offered
    if name not in names():
        return _unknown(name)
    parser, module = parser_of(name)
    try:
        # Options may stand between words, but not behind the command of the user.
        parse = parser.parse_args if name in ("run", "start") else parser.parse_intermixed_args
        understood = getattr(module, "understood", list)
        args = parse(understood(words[1:]))
    except SystemExit as shown:
        return int(shown.code or 0)
    code: int = module.main(args)
    return code


def _unknown(name: str) -> int:
    from difflib import get_close_matches

    from .output import note
    from .tables import printable

    note(f"no command {printable(name[:80])!a}")
    near = get_close_matches(name[:80], names(), 1)
    note(f"did you mean `{PROGRAM} {near[0]}`?" if near else f"`{PROGRAM} --help` lists the commands", head="fix")
    return 2


def _own(words: list[str]) -> list[str]:
    """The words that are ours, not those of a command to be started."""
    return words[: words.index("--")] if "--" in words else words


def _mend_streams() -> None:
    """A closed stdin, stdout or stderr would be the next file we open, and get written to."""
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
            # Half a character of a file name is shown as what it is, and is no error.
            stream.reconfigure(errors="backslashreplace")


def _abandon_stdout() -> None:
    """Nobody reads it any more, or its rest is of no use: the interpreter must not complain when it leaves."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
