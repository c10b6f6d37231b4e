"""Start a command in the background and print the id of its session, alone."""

from __future__ import annotations

from .door import here
from .options import COMMAND_HELP, add_start_options, requested, tell_notes
from .output import note, say, say_json
from .parsing import Parser, add_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from ..host.api import Holdfast, Session
    from .pump import Source

USAGE = "[OPTION...] -- CMD..."
EXAMPLES = """
hold start -- npm run dev
hold start --name web --timeout 2h -- 'npm ci && npm run dev'
hold start --name web --ready port:3000 --restart on-failure -- npm run dev; hold wait web --ready
hold start --owner agent-7 --watch '/error/i' --notify failure -- make release; hold signals --owner agent-7
id=$(hold start -- make release) && hold wait $id --exit --propagate
"""


def arrange(parser: Parser) -> None:
    parser.description = f"{__doc__}\n\n{COMMAND_HELP}"
    add_json(parser, "the session")
    add_start_options(parser)


def main(args: Namespace) -> int:
    command, options = requested(args, "hold start")
    with here(need_config=True) as hf:
        session = hf.start(command, **options)
        tell_notes(session)
        if args.json:
            say_json(session)
        else:
            say(session.id)
        if getattr(args, "rest", None) is not None:
            _pour(hf, session, args.rest)
    return 0


def _pour(hf: Holdfast, session: Session, rest: Source) -> None:
    """An input too large for the start request. That the command reads only a part of it is its own affair."""
    import sys

    from ..errors import RunnerGone, SessionEnded, StdinClosed
    from ..host.driver import drive
    from .pump import pour

    sys.stdout.flush()
    try:
        drive(pour(hf._core, session.id, source=rest, close=not session.tty))
    except (RunnerGone, SessionEnded, StdinClosed):
        if session.refresh().state != "exited":
            raise
        note(f"{session.id} has ended; it did not read all of its input")
