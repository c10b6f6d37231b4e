"""What a person would see of a session's terminal, now or at an offset of its log: as text, JSON, ANSI, SVG or PNG."""

from __future__ import annotations

import sys

from .door import here
from .output import say_json, write
from .parsing import Parser, add_json, add_session, count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from ..terminal.screen import Screen

USAGE = "ID [--format text|json|ansi|svg|png] [--at OFFSET] [--history N] [--settle MS] [-o FILE]"
EXAMPLES = """
hold screen editor
hold screen editor --format svg -o editor.svg
hold screen top --settle 300 --json | jq .cursor
"""


def arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument(
        "--format", choices=("text", "json", "ansi", "svg", "png"), default="text", help="default: text"
    )
    parser.add_argument("--at", type=count("--at"), metavar="OFFSET", help="as it was at this offset of the log")
    parser.add_argument(
        "--history", type=count("--history"), default=0, metavar="N", help="so many rows that scrolled out, too"
    )
    parser.add_argument(
        "--settle", type=count("--settle"), default=0, metavar="MS", help="wait until it has been quiet for so long"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write it (default: stdout)")
    add_json(parser, "rows, cursor, size and more, as --format json does")


def main(args: Namespace) -> int:
    with here() as hf:
        shown = hf.get(args.session).screen(at=args.at, history=args.history, settle_ms=args.settle)
    form = "json" if args.json else args.format
    if form == "json" and args.output is None:
        say_json(shown.to_json())
    elif args.output is not None:
        from ..host.outfile import save

        save(args.output, [_content(shown, form)])
    else:
        sys.stdout.flush()
        write(1, _content(shown, form))
    return 0


def _content(shown: Screen, form: str) -> bytes:
    if form == "png":
        return shown.to_png()
    if form == "json":
        import json

        return json.dumps(shown.to_json()).encode() + b"\n"
    made = {"text": lambda: shown.text + "\n", "ansi": shown.to_ansi, "svg": shown.to_svg}[form]()
    return made.encode("utf-8", "replace")
