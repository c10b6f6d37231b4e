"""Type text into a session and press Enter a moment later, as a person would. Programs with a screen of their own
swallow an Enter that comes together with its text. Without a text, Enter alone.
"""

from __future__ import annotations

from .door import here
from .parsing import Parser, add_session, count
from .typed import WAIT_USAGE, add_wait_for, report, wait_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = f"ID [TEXT] [--enter-delay MS] {WAIT_USAGE}"
EXAMPLES = """
hold start --name repl --tty -- python3
hold submit repl 'print(2 ** 10)' --match 1024
"""


def arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("text", nargs="?", default="", metavar="TEXT", help="what to type before Enter")
    parser.add_argument(
        "--enter-delay",
        type=count("--enter-delay"),
        metavar="MS",
        help="pause before Enter (default: terminal.enter_delay, 150)",
    )
    add_wait_for(parser)


def main(args: Namespace) -> int:
    with here() as hf:
        session = hf.get(args.session)
        return report(session.submit(args.text, enter_delay_ms=args.enter_delay, wait_for=wait_for(args)), args)
