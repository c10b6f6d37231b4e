"""Forget sessions that are over: their records and logs are removed.

One that still runs, or whose descendants do, is refused.
"""

from __future__ import annotations

from .door import here
from .output import complain, say, say_json
from .parsing import Parser, add_json, add_sessions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

USAGE = "ID... [--json]"
EXAMPLES = """
hold rm last
hold rm $(hold ls -aq --status completed)
"""


def arrange(parser: Parser) -> None:
    add_sessions(parser)
    add_json(parser, "what went, one entry for each")


def main(args: Namespace) -> int:
    from ..errors import HoldfastError

    worst = 0
    answers: list[dict[str, Any]] = []
    with here() as hf:
        for ref in args.sessions:
            try:
                id = hf.remove(ref)
            except HoldfastError as problem:
                worst = worst or problem.exit_code
                answers.append({"ref": ref, "removed": False, "error": problem.to_json()})
                if not args.json:
                    complain(problem, as_json=False)
            else:
                answers.append({"ref": ref, "id": id, "removed": True, "error": None})
                if not args.json:
                    say(f"removed {id}")
    if args.json:
        say_json(answers)
    return worst
