"""What the commands that type have in common: something to wait for afterwards, and what is said of it."""

from __future__ import annotations

from .output import note, say_json
from .parsing import Parser, add_json, duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from ..model import Typed

WAIT_USAGE = "[--match RE] [--idle T] [...] [--json]"
_TIMED_OUT = 124
_WARNINGS = {
    "canonical_limit": "a line is longer than the terminal takes in one piece: the rest of it is lost",
    "tty_raw": "the program reads its terminal raw: the end of input is a key like any other to it",
}


def add_wait_for(parser: Parser) -> None:
    waits = parser.add_argument_group("wait afterwards, for the first of")
    waits.add_argument("--match", metavar="RE", help="output that matches a regular expression")
    waits.add_argument("--output", action="store_true", help="any output")
    waits.add_argument("--idle", type=duration("--idle"), metavar="T", help="silence of this length")
    waits.add_argument("--exit", action="store_true", help="the end of the command, which ends every wait")
    waits.add_argument("--timeout", type=duration("--timeout"), metavar="T", help="not longer than this (default: 30s)")
    add_json(parser, "what was accepted, warnings, the cursor before it, and what came")


def wait_for(args: Namespace) -> dict[str, Any] | None:
    asked = {name: getattr(args, name) for name in ("match", "output", "idle", "exit") if getattr(args, name)}
    if asked and args.timeout is not None:
        asked["timeout"] = args.timeout
    return asked or None


def report(typed: Typed, args: Namespace) -> int:
    if args.json:
        say_json(typed)
    for warning in typed.warnings:
        note(_WARNINGS.get(warning, warning))
    return _TIMED_OUT if typed.woke is not None and typed.woke.reason == "timeout" else 0
