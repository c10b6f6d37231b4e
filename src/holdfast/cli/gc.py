"""Remove sessions that ended long ago or whose logs are too many, and what the dead left behind.

The limits are settings: log.keep, log.home_cap, log.free_floor (see `hold config`). Hosts do the same on their own
now and then. No live session is ever removed.
"""

from __future__ import annotations

from .door import here
from .output import note, say, say_json
from .parsing import Parser, add_json
from .tables import megabytes, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = "[--dry-run] [--all] [--json]"
EXAMPLES = """
hold gc --dry-run
hold gc
hold stop --all && hold gc --all
"""


def arrange(parser: Parser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")
    parser.add_argument("--all", action="store_true", help="every session; refused while one is live")
    add_json(parser, "what went")


def main(args: Namespace) -> int:
    with here(need_config=True) as hf:
        done = hf.collect(dry_run=args.dry_run, all=args.all)
    if args.json:
        say_json(done)
        return 0
    verb = "would remove" if args.dry_run else "removed"
    for id in done.removed:
        say(f"{verb} {id}")
    for path in done.swept:
        say(f"{verb} {printable(path)}")
    for text in done.skipped:
        note(printable(text))
    say(f"{_counted(done.removed, 'session')}, {_counted(done.swept, 'leftover')}, {megabytes(done.freed_bytes)}")
    return 0


def _counted(things: list[str], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"
