"""End the input of a session, after all that was sent: the command reads the end of its pipe; on a terminal the key
that means it is typed, and the terminal takes input on.
"""

from __future__ import annotations

from .door import here
from .parsing import Parser, add_session
from .typed import WAIT_USAGE, add_wait_for, report, wait_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = f"ID {WAIT_USAGE}"
EXAMPLES = """
hold start --name sorter --stdin open -- sort
hold send sorter --newline banana && hold send sorter --newline apple
hold eof sorter --exit && hold logs sorter
"""


def arrange(parser: Parser) -> None:
    add_session(parser)
    add_wait_for(parser)


def main(args: Namespace) -> int:
    with here() as hf:
        session = hf.get(args.session)
        return report(session.eof(wait_for=wait_for(args)), args)
