"""Start a command in the background and print the id of its session, alone."""

from __future__ import annotations

from .door import here
from .options import COMMAND_HELP, add_start_options, requested, tell_notes
from .output import say, say_json
from .parsing import Parser, add_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

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
    with here() as hf:
        session = hf.start(command, **options)
    tell_notes(session)
    if args.json:
        say_json(session)
    else:
        say(session.id)
    return 0
