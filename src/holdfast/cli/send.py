"""Write to the input of a session that was started with --tty or --stdin open. Exactly the text is sent, unless
--newline asks for a line end. Without a text, or with `-`, our own input is passed on as it comes.
"""

from __future__ import annotations

from .door import core, here
from .parsing import Parser, add_session
from .typed import WAIT_USAGE, add_wait_for, report, wait_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from ..model import Typed

USAGE = f"ID [TEXT] [--newline] {WAIT_USAGE}"
EXAMPLES = """
hold start --name calc --stdin open -- bc
hold send calc --newline '2 ^ 10' --match 1024
hold send calc < sums.txt
"""


def arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what to write; `-` or nothing: our input")
    parser.add_argument("-n", "--newline", action="store_true", help="end it with a line end")
    add_wait_for(parser)


def main(args: Namespace) -> int:
    end = b"\n" if args.newline else b""
    if args.text is None or args.text == "-":
        return report(_pass_on(args.session, end, wait_for(args)), args)
    import os

    with here() as hf:
        session = hf.get(args.session)
        return report(session.send(os.fsencode(args.text) + end, wait_for=wait_for(args)), args)


def _pass_on(ref: str, end: bytes, wait: dict[str, Any] | None) -> Typed:
    from ..host.driver import drive
    from ..host.inputs import wait_behind
    from .pump import pour

    home = core()
    try:
        id = home.find(ref)
        return drive(wait_behind(home, id, drive(pour(home, id, last=end)), wait))
    finally:
        home.close()
