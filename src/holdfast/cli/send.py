"""Write to the input of a session that was started with --stdin open. Exactly the text is sent, unless --newline
asks for a line end. Without a text, or with `-`, our own input is passed on as it comes.
"""

from __future__ import annotations

from .door import core, here
from .output import say_json
from .parsing import Parser, add_json, add_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = "ID [TEXT] [--newline] [--json]"
EXAMPLES = """
hold start --name calc --stdin open -- bc
hold send calc --newline '2 ^ 10'
hold send calc < sums.txt
"""


def arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what to write; `-` or nothing: our input")
    parser.add_argument("-n", "--newline", action="store_true", help="end it with a line end")
    add_json(parser, "how many bytes were taken")


def main(args: Namespace) -> int:
    end = b"\n" if args.newline else b""
    if args.text is None or args.text == "-":
        sent = _pass_on(args.session, end)
    else:
        import os

        with here() as hf:
            sent = hf.get(args.session).send(os.fsencode(args.text) + end)
    if args.json:
        say_json({"accepted": sent})
    return 0


def _pass_on(ref: str, end: bytes) -> int:
    from ..host.driver import drive
    from .pump import pour

    home = core()
    try:
        return drive(pour(home, home.find(ref), last=end))
    finally:
        home.close()
