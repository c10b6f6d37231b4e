"""List sessions: the live ones, oldest first; with -a also those that are over and still kept."""

from __future__ import annotations

from ..model import STATES, STATUSES
from .door import here
from .inbox import with_pending
from .output import is_terminal, note, say, say_json
from .parsing import Parser, add_json, pair
from .tables import DIM, age, state_words, style, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from ..host.api import Session
    from .tables import Style

USAGE = "[-a] [-q] [--owner KEY] [--label K=V] [--status STATUS] [--search TEXT] [--json]"
EXAMPLES = """
hold ls
hold ls -a --status failed
hold ls --label app=web --json | jq -r '.[].id'
hold stop $(hold ls -q --search pytest)
"""


def arrange(parser: Parser) -> None:
    parser.add_argument("-a", "--all", action="store_true", help="also sessions that are over")
    parser.add_argument("-q", "--quiet", action="store_true", help="ids alone")
    parser.add_argument("--owner", metavar="KEY", help="only those of this owner")
    parser.add_argument(
        "--label", action="append", type=pair("--label"), metavar="K=V", help="only those with this label"
    )
    parser.add_argument("--name", help="only those with this name")
    parser.add_argument("--status", choices=STATUSES, metavar="STATUS", help="one of " + ", ".join(STATUSES))
    parser.add_argument("--state", choices=STATES, metavar="STATE", help="one of " + ", ".join(STATES))
    parser.add_argument("--search", metavar="TEXT", help="in id, name, command, directory, description or labels")
    add_json(parser, "the sessions")


def main(args: Namespace) -> int:
    with here() as hf:
        found = hf.sessions(
            all=args.all or args.status in ("completed", "failed", "killed") or args.state in ("exited", "lost"),
            owner=args.owner,
            labels=dict(args.label or ()),
            status=args.status,
            state=args.state,
            name=args.name,
            search=args.search,
        )
        if args.json:
            say_json(with_pending(hf._core, found))
        elif args.quiet:
            for session in found:
                say(session.id)
        elif found:
            say(listing(found, style(hf.config)))
        elif is_terminal(1):
            note("no session is running; `hold ls -a` shows those that are over" if not args.all else "no sessions")
        for id, problem in hf.damaged.items():
            note(f"{id} is damaged: {problem.message}; {problem.fix}")
        if hf.trouble is not None:
            note(hf.trouble)
    return 0


def listing(sessions: Sequence[Session], style: Style) -> str:
    head = ("ID", "NAME", "STATE", "AGE", "OWNER", "LABELS", "COMMAND")
    rows = []
    for session in sessions:
        labels = " ".join(f"{key}={value}" for key, value in session.labels.items())
        rows.append(
            (
                (session.id, ""),
                (session.name or "", ""),
                state_words(session),
                (age(session.ended_at or session.started_at or session.created_at), DIM),
                (session.owner or "", ""),
                (labels, DIM),
                (session.command, ""),
            )
        )
    return table(head, rows, style)
