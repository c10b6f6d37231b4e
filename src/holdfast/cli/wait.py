"""Block until one of the conditions holds, and say which. Without any, until the command has ended.

Without a condition, exit with the code of the command (128+n for signal n). With a condition, exit with 0 when it
holds. If the command ends first, exit with its code, or with 1 if that is 0. Exit with 124 on timeout, 5 if the runner
is gone.
"""

from __future__ import annotations

from .door import here
from .output import note, say, say_json
from .parsing import Parser, add_json, add_session, count, duration
from .tables import outcome, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from ..model import Exit, Woke

USAGE = (
    "ID [--exit] [--match RE] [--output] [--idle T] [--port N] [--ready] [--timeout T]\n"
    "                    [--since CURSOR] [--propagate] [--json]"
)
EXAMPLES = """
hold wait web --match 'Local:.*http' --timeout 30s
hold wait web --port 3000 && curl localhost:3000
hold wait last --exit --propagate
"""


def arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("--exit", action="store_true", help="the command has ended")
    parser.add_argument("--match", metavar="RE", help="a line matches, also one that was printed before")
    parser.add_argument("--output", action="store_true", help="it printed something new")
    parser.add_argument("--idle", type=duration("--idle"), metavar="T", help="it was silent for this long")
    parser.add_argument("--port", type=count("--port", 1), metavar="N", help="something listens at this local port")
    parser.add_argument("--ready", action="store_true", help="it is ready, as its start defined")
    parser.add_argument("--timeout", type=duration("--timeout"), metavar="T", help="give up after this time")
    parser.add_argument("--since", metavar="CURSOR", help="count only what came behind this cursor")
    parser.add_argument("--propagate", action="store_true", help="with --exit: exit with the code of the command")
    add_json(parser, "reason, cursor, match and session")


def main(args: Namespace) -> int:
    from ..errors import NOT_REACHED, TIMED_OUT

    asked_more = bool(args.match or args.output or args.idle is not None or args.port is not None or args.ready)
    with here() as hf:
        session = hf.get(args.session)
        woke = session.wait(
            match=args.match,
            output=args.output,
            idle=args.idle,
            port=args.port,
            ready=args.ready,
            since=args.since,
            timeout=args.timeout,
        )
    if args.json:
        say_json(woke)
    else:
        say(woke.reason + _detail(woke, session.exit))
    if woke.reason == "timeout":
        return TIMED_OUT
    if woke.reason == "not_ready":
        note("it did not become ready in time, and goes on")
        return 1
    if woke.reason in ("stale", "lost"):
        return NOT_REACHED
    if woke.reason == "exit":
        if args.propagate or not (asked_more or args.exit):
            return exit_code(session.exit)
        if not args.exit:
            note("the command ended before that")
            return exit_code(session.exit) or 1
    return 0


def _detail(woke: Woke, exit: Exit | None) -> str:
    if woke.match:
        return f": {printable(woke.match)}"
    ended = woke.reason == "exit" and exit is not None and exit.cause != "spawn_error"
    return f": {outcome(exit)}" if ended and exit else ""


def exit_code(exit: Exit | None) -> int:
    """The code that the command itself would have left in a shell."""
    code = None if exit is None else exit.shell_code
    return 1 if code is None else code
