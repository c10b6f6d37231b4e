"""Paste text into a session that has a terminal: in brackets where the program asked for them, with control characters
taken out, so that nothing in it is run. Without a text, or with `-`, what our input holds.
"""

from __future__ import annotations

import sys

from .door import here
from .parsing import Parser, add_session
from .typed import WAIT_USAGE, add_wait_for, report, wait_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = f"ID [TEXT] [--bracketed auto|always|never] [--raw] {WAIT_USAGE}"
EXAMPLES = """
hold paste repl < snippet.py
hold paste editor --bracketed always "two
lines"
"""


def arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what to paste; `-` or nothing: our input")
    parser.add_argument(
        "--bracketed",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: as the program asked for it (default)",
    )
    parser.add_argument("--raw", action="store_true", help="keep control characters")
    add_wait_for(parser)


def main(args: Namespace) -> int:
    text = sys.stdin.read() if args.text in (None, "-") else args.text
    with here() as hf:
        session = hf.get(args.session)
        return report(session.paste(text, bracketed=args.bracketed, raw=args.raw, wait_for=wait_for(args)), args)
