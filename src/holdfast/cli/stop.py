"""End sessions gently, with everything they started: the polite signal first, then, after the grace, the rest.

Many are ended side by side. One line for each tells what was found and what survived; the exit code is not 0 if
anything did. A session that is already over is no error.
"""

from __future__ import annotations

from .door import here
from .ending import end_all
from .output import note, say_json
from .parsing import Parser, add_json, add_sessions, duration, pair, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = "ID... [--grace T] [--json]\n       hold stop (--all | --owner KEY | --label K=V) [--grace T] [--json]"
EXAMPLES = """
hold stop web
hold stop web worker --grace 30s
hold stop --owner agent-7
hold stop --all
"""


def arrange(parser: Parser) -> None:
    add_sessions(parser, "*")
    parser.add_argument(
        "--grace", type=duration("--grace"), metavar="T", help="how long to wait before it is killed (default: 5s)"
    )
    parser.add_argument("--all", action="store_true", help="every live session of this home")
    parser.add_argument("--owner", metavar="KEY", help="every live session of this owner")
    parser.add_argument(
        "--label", action="append", type=pair("--label"), metavar="K=V", help="every live session with this label"
    )
    add_json(parser, "what was found and what survived, one entry for each")


def main(args: Namespace) -> int:
    wanted = args.all or args.owner is not None or bool(args.label)
    if wanted and args.sessions:
        raise usage("give ids, or one of --all, --owner and --label", "hold stop")
    if not wanted and not args.sessions:
        raise usage("no session given", "hold stop")
    with here(skip_unsafe=True) as hf:
        refs = args.sessions
        if wanted:
            refs = [session.id for session in hf.sessions(owner=args.owner, labels=dict(args.label or ()))]
            if not refs:
                if args.json:
                    say_json([])
                else:
                    note("no such session is running")
                return 0
        return end_all(hf, refs, args.grace, as_json=args.json)
