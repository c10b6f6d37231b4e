"""Close the input of a session: the command reads the end of its standard input, after all that was sent."""

from __future__ import annotations

from .door import here
from .output import say_json
from .parsing import Parser, add_json, add_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = "ID [--json]"
EXAMPLES = """
hold start --name sorter --stdin open -- sort
hold send sorter --newline banana && hold send sorter --newline apple
hold eof sorter && hold logs sorter
"""


def arrange(parser: Parser) -> None:
    add_session(parser)
    add_json(parser, "the session")


def main(args: Namespace) -> int:
    with here() as hf:
        session = hf.get(args.session)
        session.close_stdin()
        if args.json:
            say_json(session.refresh())
    return 0
