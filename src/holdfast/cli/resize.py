"""Give the terminal of a session another size. While somebody is attached, their terminal decides, unless the session
was started with a fixed size.
"""

from __future__ import annotations

from .door import here
from .output import say_json
from .parsing import Parser, add_json, add_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = "ID ROWSxCOLS [--json]"
EXAMPLES = """
hold resize editor 40x120
"""


def arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("size", metavar="ROWSxCOLS", help="such as 40x120")
    add_json(parser, "the session")


def main(args: Namespace) -> int:
    from ..host.tty import check_size

    rows, cols = check_size(args.size)
    with here() as hf:
        session = hf.get(args.session).resize(rows, cols)
        if args.json:
            say_json(session)
    return 0
