"""The parser of one command: options as people write them, mistakes as errors that name the fix."""

from __future__ import annotations

import argparse

from ..errors import USAGE, BadArgument, HoldfastError
from ..model.units import seconds, size_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from ..model.session import Record

_WIDTH = 100

# Nobody translates these few words, and looking for a translation costs more than parsing the options.
argparse._ = str  # type: ignore[attr-defined]


class Parser(argparse.ArgumentParser):
    def __init__(self, program: str, usage: str, description: str, examples: str) -> None:
        super().__init__(
            prog=program,
            usage=f"{program} {usage}",
            description=description.strip(),
            epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines()),
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        # Newer interpreters colour help on their own; the reference is made from it and must not change.
        self.color = False

    def error(self, message: str) -> NoReturn:
        raise usage(message, self.prog)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=_WIDTH)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """`-s, --signal SIG`, in every version of Python."""
        if not action.option_strings:
            return super()._format_action_invocation(action)
        names = ", ".join(action.option_strings)
        return names if action.nargs == 0 else f"{names} {self._format_args(action, action.dest.upper())}"


def usage(message: str, program: str) -> HoldfastError:
    """Wrong words on the command line."""
    error = HoldfastError(f"{program.partition(' ')[2] or program}: {message}")
    error.code = "bad-request"
    error.exit_code = USAGE
    error.fix = f"see `{program} --help`"
    return error


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON")


def add_session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", metavar="ID", help="id, beginning of an id, name, pid, or `last`")


def add_sessions(parser: argparse.ArgumentParser, nargs: str = "+") -> None:
    parser.add_argument("sessions", metavar="ID", nargs=nargs, help="id, beginning of an id, name, pid, or `last`")


def add_streams(parser: argparse.ArgumentParser) -> None:
    streams = parser.add_mutually_exclusive_group()
    for name in ("stdout", "stderr"):
        streams.add_argument(f"--{name}", dest="stream", action="store_const", const=name, help=f"only its {name}")


def duration(option: str) -> Callable[[str], float]:
    return lambda text: seconds(text, option)


def size(option: str) -> Callable[[str], int]:
    return lambda text: size_bytes(text, option)


def count(option: str, low: int = 0) -> Callable[[str], int]:
    """A whole number, `low` or more."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) < 19) or int(text) < low:
            raise BadArgument(option, f"{text[:80]!a} is no whole number from {low} on", f"such as {max(low, 10)}")
        return int(text)

    return parse


def pair(option: str) -> Callable[[str], tuple[str, str]]:
    """KEY=VALUE."""

    def parse(text: str) -> tuple[str, str]:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise BadArgument(option, f"{text[:80]!a} is not KEY=VALUE", f"such as {option} color=blue")
        return key, value

    return parse


def ladder(text: str) -> list[Record]:
    """`INT:2s,TERM/group:5s,KILL/tree` as rungs: signal, whom it goes to, how long it is given."""
    rungs: list[Record] = []
    for part in text.split(","):
        whom, _, wait = part.strip().partition(":")
        signal, slash, target = whom.partition("/")
        if not signal or (slash and target not in ("command", "group", "tree")):
            raise BadArgument("--stop-ladder", f"{part[:80]!a} is no rung", "such as INT:2s,TERM/group:5s,KILL/tree")
        rungs.append(
            {"signal": signal, "target": target or "command", "wait_s": seconds(wait or 0, "--stop-ladder")},
        )
    return rungs
