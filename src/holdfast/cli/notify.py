"""Whether people are told of a session, by the channels that are configured (a command, webhooks, the bell).

What its owner is told is another matter, and stays as it is. Kept with the session, until it ends.
"""

from __future__ import annotations

from .door import here
from .output import say_json
from .parsing import Parser, add_json, add_sessions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = "on|off ID... [--json]"
EXAMPLES = """
hold notify on release
hold notify off web worker
"""


def arrange(parser: Parser) -> None:
    parser.add_argument("state", choices=("on", "off"), metavar="on|off", help="tell people, or tell none")
    add_sessions(parser)
    add_json(parser, "the sessions")


def main(args: Namespace) -> int:
    with here() as hf:
        sessions = [hf.get(ref) for ref in args.sessions]
        for session in sessions:
            session.update(notify_people=args.state == "on")
        if args.json:
            say_json(sessions)
    return 0
