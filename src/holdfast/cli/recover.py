"""Look at every session that is not known to be over, prove who answers for it, and tell what became of each.

live         the runner answered
exited       ended since anybody last looked
unreachable  the runner lives and does not answer
stale        the runner is gone, the command lives: `hold stop` ends it
lost         both are gone, and nobody can know how it ended
"""

from __future__ import annotations

from .door import here
from .output import note, say, say_json
from .parsing import Parser, add_json
from .tables import DIM, GREEN, RED, YELLOW, age, state_words, style, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = "[--json]"
EXAMPLES = """
hold recover
hold recover --json | jq -r '.stale[].id'
"""

_GROUPS = {"live": GREEN, "exited": DIM, "unreachable": YELLOW, "stale": YELLOW, "lost": RED}


def arrange(parser: Parser) -> None:
    add_json(parser, "the sessions by group")


def main(args: Namespace) -> int:
    with here() as hf:
        found = hf.recover()
        if args.json:
            say_json(found)
            return 0
        rows = [
            (
                (group, colour),
                (session.id, ""),
                (session.name or "", ""),
                ("" if group != "exited" else state_words(session)[0], ""),
                (age(session.ended_at or session.started_at or session.created_at), DIM),
                (str(session.metadata.get("evidence", "")) if group not in ("live", "exited") else "", ""),
                (session.command, ""),
            )
            for group, colour in _GROUPS.items()
            for session in getattr(found, group)
        ]
        if rows:
            say(table(("GROUP", "ID", "NAME", "HOW", "AGE", "EVIDENCE", "COMMAND"), rows, style(hf.config)))
        else:
            note("nothing to recover: every session is known to be over")
        for path in found.quarantined:
            note(f"{path} cannot be read; `hold doctor` moves it to quarantine")
    return 0
