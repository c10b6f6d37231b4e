"""Find what is wrong with the home, the runtime directory and the index, and mend what can be mended.

No running session is touched. Exits with 1 if a problem remains.
"""

from __future__ import annotations

from .door import here
from .output import say, say_json
from .parsing import Parser, add_json
from .tables import GREEN, RED, YELLOW, printable, style

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = "[--rebuild] [--json]"
EXAMPLES = """
hold doctor
hold doctor --rebuild
"""

_COLOURS = {"ok": GREEN, "warning": YELLOW, "problem": RED}


def arrange(parser: Parser) -> None:
    parser.add_argument("--rebuild", action="store_true", help="make the index anew from the session directories")
    add_json(parser, "the findings")


def main(args: Namespace) -> int:
    with here(skip_unsafe=True) as hf:
        findings = hf.doctor(rebuild=args.rebuild)
        if args.json:
            say_json([finding.to_json() for finding in findings])
        else:
            shown = style(hf.config)
            for finding in findings:
                level = "mended" if finding.repaired else finding.level
                colour = GREEN if finding.repaired else _COLOURS.get(finding.level, "")
                say(f"{shown.paint(level.ljust(8), colour)} {finding.check}: {printable(finding.text)}")
                if finding.fix and not finding.repaired and finding.level != "ok":
                    say(f"{'':8} fix: {printable(finding.fix)}")
    return 1 if any(finding.level == "problem" and not finding.repaired for finding in findings) else 0
