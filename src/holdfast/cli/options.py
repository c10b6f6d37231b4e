"""Flags of the tables of options, those that `run`, `start` and `restart` share, and standard input into a session."""

from __future__ import annotations

import os

from ..errors import BadArgument
from ..model.options import DURATION, NUMBER, OPTIONS, PAIRS, SIZE, SWITCH
from ..model.session import seconds, size_bytes
from .output import Awaiting, note, printable
from .parsing import REST, Namespace, Parser, count, duration, pair, usage, variable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..model import Snapshot, Typed
    from ..model.options import Option, StartOptions
    from ..model.session import Record
    from ..sessions.connection import Connection
    from ..sessions.core import Core
    from ..sessions.start_request import Command

    Flag = tuple[tuple[str, ...], dict[str, Any]]


# The options that `run` and `start` share, and how the words of a command become one.


COMMAND_HELP = """\
The words after `--` are the program and its arguments. A single argument that contains spaces or shell syntax is
run by the shell: hold run -- 'make && ./app | tee out'
"""

_COMMON = (
    *("--wait", "--name", "--label", "--cwd", "--env", "--place", "--tty", "--stdin", "--input", "--timeout"),
    *("--restart", "--ready", "--watch", "--json", "--help-all"),
)
_COLORS = ("foreground", "background")
# Flags that say more about an option; they follow its own flag. `requested` joins them.
_MORE: dict[str, dict[str, dict[str, Any]]] = {
    "env": {"--unset-env": {"action": "append", "type": variable, "metavar": "K", "help": "remove a variable"}},
    "size": {
        "--term": {"metavar": "NAME", "help": "the value of TERM (default: xterm-256color)"},
        "--size-policy": {
            "choices": ("latest", "smallest", "fixed"),
            "help": "latest: the size of the window used last (default); smallest: the smallest of all; fixed: --size",
        },
        "--no-echo": {"action": "store_true", "help": "do not show what is typed"},
        "--clipboard": {
            "action": "store_true",
            "help": "the command may write to the clipboard of clients that allow it",
        },
        **{
            f"--{color}": {"metavar": "COLOR", "help": f"{color} colour reported to programs, such as #1e1e2e"}
            for color in _COLORS
        },
    },
    "monitor": {"--persistent": {"action": "store_true", "help": "a monitor without a time limit"}},
    "ready": {
        "--ready-any": {"action": "store_true", "help": "ready as soon as one of several --ready holds"},
        "--ready-timeout": {
            "type": duration("--ready-timeout"),
            "metavar": "T",
            "help": "signal that it did not become ready after this time (default: 60s)",
        },
    },
    "notify_people": {
        "--no-notify-people": {
            "dest": "notify_people",
            "action": "store_false",
            "default": None,
            "help": "do not notify people",
        }
    },
}


def add_start_options(parser: Parser) -> None:
    parser.common = frozenset(_COMMON)
    parser.add_argument("command", nargs=REST, metavar="CMD", help="the command, preferably after `--`")
    groups: dict[str, list[Flag]] = {}
    for option in OPTIONS.values():
        if option.flag:
            flags = groups.setdefault(option.group, [])
            flags.append(flag_of(option))
            for name, words in _MORE.get(option.name, {}).items():
                flags.append(((name,), words))
    for title, flags in groups.items():
        parser.add_group(title).add_arguments(flags)


def flag_of(option: Option) -> Flag:
    """The flag of a row of a table of options, as a parser takes it. None is the value of one that is not given."""
    words: dict[str, Any] = {"help": option.help}
    if option.takes == SWITCH:
        words |= {"action": "store_true", "default": None}
    elif option.words:
        words["choices"] = option.words
    else:
        words["metavar"] = option.metavar
        parse = _PARSERS_BY_NAME.get(option.name) or _PARSERS.get(option.takes)
        if parse is not None:
            words["type"] = parse(option)
        if option.repeated:
            words["action"] = "append"
    return (*_SHORT.get(option.name, ()), option.flag), words


# Short forms that people know from elsewhere.
_SHORT = {"tty": ("-t",)}


def ladder(text: str) -> list[Record]:
    """`INT:2s,TERM/group:5s,KILL/tree` as rungs: signal, target, time to wait."""
    from ..core.kernel_signals import NUMBERS

    rungs: list[Record] = []
    for part in text.split(","):
        sent, _, wait = part.strip().partition(":")
        signal, slash, target = sent.partition("/")
        if "SIG" + signal.removeprefix("SIG") not in NUMBERS or (slash and target not in ("command", "group", "tree")):
            raise BadArgument(
                "--stop-ladder", f"{part[:80]!a} is not a step of a stop", "such as INT:2s,TERM/group:5s,KILL/tree"
            )
        rungs.append(
            {"signal": signal, "target": target or "command", "wait_s": seconds(wait or 0, "--stop-ladder")},
        )
    return rungs


# How the value of an option is read, by what it takes or by its name; all others are text.
_PARSERS: dict[str, Callable[[Option], Callable[[str], object]]] = {
    DURATION: lambda option: lambda text: seconds(text, option.flag),
    SIZE: lambda option: lambda text: size_bytes(text, option.flag),
    NUMBER: lambda option: count(option.flag, option.low),
    PAIRS: lambda option: pair(option.flag),
}
_PARSERS_BY_NAME: dict[str, Callable[[Option], Callable[[str], object]]] = {
    "pass_fds": lambda option: count(option.flag, option.low),
    "stop_ladder": lambda option: ladder,
}


def requested(args: Namespace, program: str) -> tuple[Command, StartOptions]:
    """The command and the options of a start, as the library takes them."""
    options: Any = {}
    for option in OPTIONS.values():
        value = getattr(args, option.flag[2:].replace("-", "_"), None) if option.flag else None
        options[option.name] = dict(value) if option.takes == PAIRS and value else value
    options["env"] = environment(args) or None
    options["tty"] = terminal(args)
    options["owner_pid"] = owning_process(args)
    options["monitor"] = {"persistent": True} if args.persistent else args.monitor
    options["ready"] = readiness(args)
    options["input"] = None
    options = {name: value for name, value in options.items() if value is not None}
    if args.input is not None:
        give_input(args, options)
    return command(args.command, args.shell, program), options


def terminal(args: Namespace) -> bool | dict[str, Any] | None:
    """The terminal that any of its options asks for; None on pipes."""
    asked: dict[str, Any] = {name: getattr(args, name) for name in ("term", "size_policy") if getattr(args, name)}
    if args.no_echo:
        asked["echo"] = False
    if args.clipboard:
        asked["clipboard"] = True
    colors = {name: getattr(args, name) for name in _COLORS if getattr(args, name) is not None}
    if colors:
        asked["colors"] = colors
    return asked or (True if args.tty or args.size is not None else None)


def readiness(args: Namespace) -> dict[str, Any] | None:
    """When the session counts as ready, as the library takes it."""
    if args.ready is None:
        for name in ("ready_any", "ready_timeout"):
            if getattr(args, name):
                raise BadArgument(f"--{name.replace('_', '-')}", "changes --ready", "give --ready too")
        return None
    ready: dict[str, Any] = {"any" if args.ready_any else "all": args.ready}
    if args.ready_timeout is not None:
        ready["timeout"] = args.ready_timeout
    return ready


def reaching(options: StartOptions) -> Awaiting:
    """On a terminal, say what a start in another place waits for."""
    place = options.get("place") or "local"
    return Awaiting(None if place == "local" else lambda: f"{place} to start it")


def print_notes(session: Snapshot) -> None:
    """Print which values the start changed."""
    for text in session.metadata.get("notes") or ():
        note(f"{session.id}: {printable(str(text))}")


def owning_process(args: Namespace) -> int | None:
    if args.owner_pid is None and args.lifetime == "owner":
        # This process exits at once: the session is for its caller.
        return os.getppid()
    pid: int | None = args.owner_pid
    return pid


def environment(args: Namespace) -> dict[str, str | None]:
    return {**dict.fromkeys(args.unset_env or ()), **dict(args.env or ())}


def command(words: list[str], shell: str | None, program: str) -> Command:
    """A list is a program and its arguments, text is a line for the shell."""
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise usage("no command given", program)
    if len(words) == 1 and (shell is not None or _is_line(words[0])):
        return words[0]
    if shell is not None:
        raise BadArgument("--shell", "takes one line, not several words", "quote the line: -- 'make && ./app'")
    return words


def _is_line(word: str) -> bool:
    """Whether it has characters that mean something to a shell."""
    return not word.replace("/", "").translate({ord(each): None for each in "@%+=:,.-_~"}).isalnum()


def give_input(args: Namespace, options: StartOptions) -> None:
    """The whole input at the start, if it is small; else the command is started with an open stdin, and `args.rest` is
    written to it."""
    from ..errors import TooLarge
    from ..sessions.start_request import INPUT_MAX_BYTES

    source = Source(args.input)
    if not source.is_longer_than(INPUT_MAX_BYTES):
        options["input"] = source.whole()
        return
    if args.stdin == "closed":
        raise BadArgument("--input", "cannot be written to a closed stdin", "leave --stdin out")
    if args.restart is not None:
        # Each attempt would need it again.
        fix = "have the command read a file itself, or leave out --restart"
        raise TooLarge("--input of a command with --restart", INPUT_MAX_BYTES, fix)
    if not options.get("tty"):
        options["stdin"] = "open"
    args.rest = source


# Our standard input into that of a session, piece by piece, no faster than the command reads it.


_PIECE_BYTES = 1 << 16


class Source:
    """A file, or our standard input with `-`, read piece by piece."""

    def __init__(self, path: str = "-") -> None:
        self._fd = 0 if path == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._read: list[bytes] = []

    def is_longer_than(self, size: int) -> bool:
        """Read as much as it takes to know."""
        count = sum(map(len, self._read))
        while count <= size and (piece := os.read(self._fd, _PIECE_BYTES)):
            self._read.append(piece)
            count += len(piece)
        return count > size

    def whole(self) -> bytes:
        return b"".join([*self._read, *iter(lambda: os.read(self._fd, _PIECE_BYTES), b"")])

    def next(self) -> bytes:
        """The next piece; empty at the end."""
        return self._read.pop(0) if self._read else os.read(self._fd, _PIECE_BYTES)


async def pour(core: Core, id: str, *, source: Source | None = None, last: bytes = b"", close: bool = False) -> Typed:
    """Write the source (our standard input by default) to its end; then `last`, then close its stdin if `close`."""
    from ..model import Typed

    _, connection = await core.connect(id)
    reply_s = core.config.hosts_reply_timeout
    poured = Typed(0, cursor=core.log(id).cursor())
    try:
        source = source or Source()
        while piece := source.next():
            await _write(connection, piece, reply_s, poured)
        if last:
            await _write(connection, last, reply_s, poured)
        if close:
            await connection.request("close_stdin", reply_s)
        return poured
    finally:
        connection.close()


async def _write(connection: Connection, piece: bytes, reply_s: float, poured: Typed) -> None:
    taken, warnings = await connection.write(piece, reply_s)
    poured.accepted += taken
    poured.warnings += [warning for warning in warnings if warning not in poured.warnings]


def pour_beside(core: Core, id: str, source: Source | None = None, *, close: bool = True) -> None:
    """The same on a thread of its own, to the end of either side. The caller follows the session and sees if it stops
    reading or ends."""
    import signal
    import threading

    from ..errors import HoldfastError
    from ..sessions.driver import drive

    def work() -> None:
        # Handlers run on the main thread, which must be the one that a signal interrupts.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            drive(pour(core, id, source=source, close=close))
        except (HoldfastError, OSError):
            pass

    threading.Thread(target=work, name="stdin", daemon=True).start()
