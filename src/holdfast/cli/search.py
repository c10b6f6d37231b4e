"""Find lines in what a session printed, as clean text. Patterns are RE2. Exits with 1 if nothing matches."""

from __future__ import annotations

from .door import here
from .output import say, say_json
from .parsing import Parser, add_json, add_session, add_streams, count
from .tables import DIM, RED, style

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from ..host.search import Hit
    from .tables import Style

USAGE = "ID PATTERN [-C N] [-i] [-n N] [--newest] [--stdout | --stderr] [--json]"
EXAMPLES = """
hold search web 'ERROR|WARN' -C 2
hold search last -i timeout --newest -n 5
hold search web 'listening on (.*)' --json | jq -r '.[0].text'
"""

NO_MATCH = 1


def arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("pattern", metavar="PATTERN", help="a regular expression")
    parser.add_argument("-C", "--context", type=count("-C"), default=0, metavar="N", help="lines around each match")
    parser.add_argument("-i", "--ignore-case", action="store_true", help="upper and lower case are the same")
    parser.add_argument("-n", "--limit", type=count("-n", 1), metavar="N", help="at most so many matches")
    parser.add_argument("--newest", action="store_true", help="from the end backwards")
    add_streams(parser)
    add_json(parser, "the matches: stream, offset, line, text, spans, before, after")


def main(args: Namespace) -> int:
    with here() as hf:
        session = hf.get(args.session)
        hits = session.search(
            args.pattern,
            context=args.context,
            stream=args.stream,
            newest=args.newest,
            limit=args.limit,
            ignore_case=args.ignore_case,
        )
        if args.json:
            say_json([_record(hit) for hit in hits])
        else:
            _show(hits, style(hf.config), context=args.context, newest=args.newest)
    return 0 if hits else NO_MATCH


def _record(hit: Hit) -> dict[str, Any]:
    return {
        "stream": hit.stream,
        "offset": hit.offset,
        "line": hit.line,
        "text": hit.text,
        "spans": hit.spans,
        "before": hit.before,
        "after": hit.after,
    }


def _show(hits: list[Hit], style: Style, *, context: int, newest: bool) -> None:
    """As grep does: `number:line`, context as `number-line`, `--` where lines are left out; no line twice."""
    shown: tuple[str, int] | None = None
    for n, hit in enumerate(hits):
        line = hit.line or 0
        following = hits[n + 1] if n + 1 < len(hits) and not newest else None
        first = line - len(hit.before)
        if shown is not None and shown[0] == hit.stream and first <= shown[1] + 1 and not newest:
            skip = shown[1] + 1 - first
        else:
            skip = 0
            if shown is not None and context:
                say(style.paint("--", DIM))
        for at, text in list(enumerate(hit.before, first))[skip:]:
            say(style.paint(f"{at}-", DIM) + text)
        say(style.paint(f"{line}:", DIM) + _marked(hit, style))
        last = line
        for at, text in enumerate(hit.after, line + 1):
            if following is not None and following.stream == hit.stream and at >= (following.line or 0):
                break
            say(style.paint(f"{at}-", DIM) + text)
            last = at
        shown = (hit.stream, last)


def _marked(hit: Hit, style: Style) -> str:
    parts, at = [], 0
    for low, high in hit.spans:
        parts.append(hit.text[at:low])
        parts.append(style.paint(hit.text[low:high], RED, "1"))
        at = high
    return "".join([*parts, hit.text[at:]])
