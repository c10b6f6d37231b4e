"""A live view of everything that runs: what it costs, what it printed last, how many signals wait for its owner.

Keys: arrows or j and k select, Enter attaches (or shows the logs of a session without a terminal) and comes back when
you detach, l shows the logs, s stops, r restarts, / filters as `hold ls --search` does, q leaves. What was asked for is
finished also when you leave first.

CPU is in percent of one processor since the last look, memory what its processes hold resident. Where our output is no
terminal, or with --json, there is one look and no more: CPU is then over the whole life of the processes.
"""

from __future__ import annotations

import os

from .door import author, here, settings
from .output import is_terminal, note, say, say_json
from .parsing import Parser, add_json
from .tables import style, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = "[--json]"
EXAMPLES = """
hold top
hold top | grep -v running              one look, as a table
hold top --json | jq -r '.[] | select(.needs_input) | .id'
"""


def arrange(parser: Parser) -> None:
    add_json(parser, "what runs now, one look,")


def main(args: Namespace) -> int:
    if not args.json and is_terminal(0) and is_terminal(1) and os.environ.get("TERM", "dumb") != "dumb":
        from .toplive import live

        return live(author(), settings())
    from ..host.driver import drive
    from .inbox import persons
    from .toplist import Details, Row
    from .topscreen import HEADS, cells

    with here() as hf:
        shots = hf.daemons.list()
        waiting = drive(persons(hf._core).counts(shot.owner for shot in shots))
        rows = [Row(shot, signals=waiting.get(shot.id, 0)) for shot in shots]
        Details(hf.home).fill(rows)
        if args.json:
            say_json([row.to_json() for row in rows])
        elif rows:
            say(table(HEADS, [cells(row) for row in rows], style(hf.config)))
        elif is_terminal(1):
            note("nothing runs")
    return 0
