"""Press keys by name in a session that has a terminal: Enter, Tab, Escape, Up, PageDown, F5, C-c, M-x, S-Tab, one
character each; `text:...` types a text, `hex:1b5b41` bytes. A name that is not known is an error, never typed.
"""

from __future__ import annotations

from .door import here
from .parsing import Parser, add_session, count
from .typed import WAIT_USAGE, add_wait_for, report, wait_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = f"ID KEY... [--delay MS] {WAIT_USAGE}"
EXAMPLES = """
hold keys editor Escape : w q Enter
hold keys menu Down Down Enter --idle 1s
hold keys repl text:'help()' Enter
"""


def arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("keys", nargs="+", metavar="KEY", help="a key, with modifiers such as C-, M- and S-")
    parser.add_argument("--delay", type=count("--delay"), default=0, metavar="MS", help="pause between two keys")
    add_wait_for(parser)


def main(args: Namespace) -> int:
    with here() as hf:
        session = hf.get(args.session)
        return report(session.keys(*args.keys, delay_ms=args.delay, wait_for=wait_for(args)), args)
