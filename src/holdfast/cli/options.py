"""The options that `run` and `start` share, and how the words of a command become one."""

from __future__ import annotations

import argparse
import os

from ..errors import BadArgument
from .output import note
from .parsing import count, duration, ladder, pair, size, usage
from .tables import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..host.request import Command
    from ..model import Snapshot, StartOptions

COMMAND_HELP = """\
The words after `--` are the program and its arguments. A single word with spaces or other characters that mean
something to a shell is a line for the shell: hold run -- 'make && ./app | tee out'
"""

# Passed on under the same name when they were given.
_SAME = (
    "name",
    "owner",
    "description",
    "kind",
    "key",
    "cwd",
    "shell",
    "size",
    "stdin",
    "timeout",
    "idle_timeout",
    "ttl",
    "lifetime",
    "memory",
    "grace",
    "stop_ladder",
    "notify",
    "log_cap",
    "notify_people",
    "watch",
    "heartbeat",
    "soft",
    "health",
    "restart",
    "place",
)
_COLORS = ("foreground", "background")
_SWITCHES = ("replace", "clean_env", "merge_stderr")


def add_start_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD", help="the command, best after `--`")

    told = parser.add_argument_group("who it is")
    told.add_argument("--name", help="a name to find it by; free again when it ends")
    told.add_argument("--description", metavar="TEXT", help="what it is for")
    told.add_argument("--owner", metavar="KEY", help="whom it belongs to")
    told.add_argument(
        "--label", action="append", type=pair("--label"), metavar="K=V", help="a label; may be given often"
    )
    told.add_argument("--kind", help="which kind of session it is (default: local_bash, or terminal)")
    told.add_argument("--key", help="one session per key: while it runs, a second start with the key finds it")
    told.add_argument("--replace", action="store_true", help="end the session that holds the key or name first")

    around = parser.add_argument_group("what it gets")
    around.add_argument(
        "--place", metavar="PLACE", help="another machine or container: ssh:HOST, docker:NAME, podman:NAME"
    )
    around.add_argument("--cwd", metavar="DIR", help="where it runs (default: here, or where the place begins)")
    around.add_argument("--env", action="append", type=pair("--env"), metavar="K=V", help="set a variable")
    around.add_argument("--unset-env", action="append", metavar="K", help="take a variable away")
    around.add_argument("--clean-env", action="store_true", help="nothing of our environment but what --env sets")
    around.add_argument("--shell", metavar="PATH", help="the shell that runs the one line after `--`")
    around.add_argument("--tty", action="store_true", help="a terminal of its own, for `hold attach`, keys and screen")
    around.add_argument(
        "--stdin",
        choices=("closed", "open"),
        help="closed: /dev/null (default); open: a pipe for `hold send`, and for the input of `hold run`",
    )
    around.add_argument("--input", metavar="FILE", help="its whole input, from a file, or from ours with `-`")
    around.add_argument("--merge-stderr", action="store_true", help="one stream for stdout and stderr")
    around.add_argument(
        "--pass-fd", action="append", type=count("--pass-fd", 3), metavar="N", help="hand on this open descriptor"
    )

    screen = parser.add_argument_group("its terminal; each of these asks for one, as --tty does")
    screen.add_argument("--size", metavar="ROWSxCOLS", help="how large it is (default: 30x120)")
    screen.add_argument("--term", metavar="NAME", help="what TERM says it is (default: xterm-256color)")
    screen.add_argument(
        "--size-policy",
        choices=("latest", "smallest", "fixed"),
        help="whose size it takes: of the window used last (default), the least of all, none",
    )
    screen.add_argument("--no-echo", action="store_true", help="do not show what is typed")
    screen.add_argument("--clipboard", action="store_true", help="the command may write to the clipboard of who agrees")
    for color in _COLORS:
        screen.add_argument(f"--{color}", metavar="COLOR", help=f"the {color} that it is told of, such as #1e1e2e")

    ends = parser.add_argument_group("when it ends")
    ends.add_argument("--timeout", type=duration("--timeout"), metavar="T", help="end it after this time")
    ends.add_argument(
        "--idle-timeout", type=duration("--idle-timeout"), metavar="T", help="end it after so much silence"
    )
    ends.add_argument("--ttl", type=duration("--ttl"), metavar="T", help="end it after this time, however busy")
    ends.add_argument(
        "--lifetime",
        choices=("detached", "owner", "call"),
        help="detached: until it ends (default); owner: until the owning process ends; call: until `hold run` ends",
    )
    ends.add_argument(
        "--owner-pid",
        type=count("--owner-pid", 1),
        metavar="PID",
        help="the owning process (default: whoever called `hold`)",
    )
    ends.add_argument("--memory", type=size("--memory"), metavar="SIZE", help="end it when it needs more, such as 2G")
    ends.add_argument("--grace", type=duration("--grace"), metavar="T", help="how long a stop waits before it kills")
    ends.add_argument(
        "--stop-ladder", type=ladder, metavar="RUNGS", help="how a stop goes, such as INT:2s,TERM/group:5s,KILL/tree"
    )
    ends.add_argument(
        "--restart", choices=("never", "on-failure", "always"), help="whether it is started again in its place"
    )
    ends.add_argument("--log-cap", type=size("--log-cap"), metavar="SIZE", help="how much of its output is kept")

    _add_telling(parser.add_argument_group("what is told of it, by signals (see `hold signals`)"))


def _add_telling(told: argparse._ArgumentGroup) -> None:
    told.add_argument(
        "--notify",
        choices=("never", "exit", "failure", "auto"),
        help="which endings: none, all (default of start), failures, those that nobody waited for (default of run)",
    )
    told.add_argument(
        "--watch",
        action="append",
        metavar="PATTERN",
        help="lines with this text, or that /regex/ or /regex/i matches; may be given often",
    )
    told.add_argument(
        "--monitor",
        action="store_true",
        help="every line, in batches; such a session is ended after 5 minutes, or the time of --timeout",
    )
    told.add_argument("--persistent", action="store_true", help="a monitor that no limit ends")
    told.add_argument(
        "--heartbeat",
        type=duration("--heartbeat"),
        metavar="T",
        help="that it goes on, and its new output, so often (60s or more)",
    )
    told.add_argument(
        "--soft", type=duration("--soft"), metavar="T", help="that it takes longer than this; it is not ended"
    )
    told.add_argument(
        "--ready",
        action="append",
        metavar="SPEC",
        help="that it is ready: port:N listens, http:URL answers, line:PATTERN is printed; if given often, all of them",
    )
    told.add_argument("--ready-any", action="store_true", help="one of several --ready is enough")
    told.add_argument(
        "--ready-timeout",
        type=duration("--ready-timeout"),
        metavar="T",
        help="after which it is told that it did not become ready (default: 60s)",
    )
    told.add_argument(
        "--health", metavar="SPEC", help="that it fell ill or is well again: port:N, http:URL or command:LINE is asked"
    )
    told.add_argument(
        "--notify-people",
        action="store_true",
        default=None,
        help="people are told too, by the channels that are configured",
    )
    told.add_argument("--no-notify-people", dest="notify_people", action="store_false", help="no people are told")


def requested(args: argparse.Namespace, program: str) -> tuple[Command, StartOptions]:
    """The command and the options of a start, as the library takes them."""
    options: Any = {name: getattr(args, name) for name in _SAME if getattr(args, name) is not None}
    options.update((name, True) for name in _SWITCHES if getattr(args, name))
    tty = terminal(args)
    if tty is not None:
        options["tty"] = tty
    if args.label:
        options["labels"] = dict(args.label)
    env = environment(args)
    if env:
        options["env"] = env
    if args.pass_fd:
        options["pass_fds"] = args.pass_fd
    owner_pid = owning_process(args)
    if owner_pid is not None:
        options["owner_pid"] = owner_pid
    if args.input is not None:
        give_input(args, options)
    if args.monitor or args.persistent:
        options["monitor"] = {"persistent": True} if args.persistent else True
    ready = readiness(args)
    if ready is not None:
        options["ready"] = ready
    return command(args.command, args.shell, program), options


def terminal(args: argparse.Namespace) -> bool | dict[str, Any] | None:
    """What kind of terminal is asked for, by any of its options; None for none."""
    asked: dict[str, Any] = {name: getattr(args, name) for name in ("term", "size_policy") if getattr(args, name)}
    if args.no_echo:
        asked["echo"] = False
    if args.clipboard:
        asked["clipboard"] = True
    colors = {name: getattr(args, name) for name in _COLORS if getattr(args, name) is not None}
    if colors:
        asked["colors"] = colors
    return asked or (True if args.tty or args.size is not None else None)


def readiness(args: argparse.Namespace) -> dict[str, Any] | None:
    """When the session counts as ready, as the library takes it."""
    if args.ready is None:
        for name in ("ready_any", "ready_timeout"):
            if getattr(args, name):
                raise BadArgument(f"--{name.replace('_', '-')}", "says how --ready is meant", "give --ready too")
        return None
    ready: dict[str, Any] = {"any" if args.ready_any else "all": args.ready}
    if args.ready_timeout is not None:
        ready["timeout"] = args.ready_timeout
    return ready


def tell_notes(session: Snapshot) -> None:
    """What the start raised or cut of what was asked."""
    for text in session.metadata.get("notes") or ():
        note(f"{session.id}: {printable(str(text))}")


def owning_process(args: argparse.Namespace) -> int | None:
    if args.owner_pid is None and args.lifetime == "owner":
        # We are gone in a moment; whoever called us is who the session is for.
        return os.getppid()
    pid: int | None = args.owner_pid
    return pid


def environment(args: argparse.Namespace) -> dict[str, str | None]:
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
    """Whether a shell would see more in it than the name of a program."""
    return not word.replace("/", "").translate({ord(each): None for each in "@%+=:,.-_~"}).isalnum()


def give_input(args: argparse.Namespace, options: StartOptions) -> None:
    """The whole input at the start, if it is small; else the command is started with an open stdin, and `args.rest` has
    what to pour into it."""
    from ..errors import TooLarge
    from ..host.request import INPUT_MAX_BYTES
    from .pump import Source

    source = Source(args.input)
    if not source.is_longer_than(INPUT_MAX_BYTES):
        options["input"] = source.whole()
        return
    if args.stdin == "closed":
        raise BadArgument("--input", "cannot be written to a closed stdin", "leave --stdin out")
    if args.restart is not None:
        # Each attempt would have to be given it again.
        fix = "have the command read a file itself, or leave out --restart"
        raise TooLarge("--input of a command with --restart", INPUT_MAX_BYTES, fix)
    if not options.get("tty"):
        options["stdin"] = "open"
    args.rest = source
