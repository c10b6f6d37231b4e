"""Start the command of a session anew, as a new session, and print its id. A session that still runs is stopped first.

One that was started with --restart is started anew in its place: the id is the same, its log goes on. Only if an option
here asks for something different, or its runner is gone, it becomes a new session too.

Name, owner, labels, directory, lifetime and limits are the same as before. The environment is ours; variables that were
given with --env at the first start, and --input, have to be given again, because their values are never stored.
"""

from __future__ import annotations

from .door import here
from .options import environment, owning_process
from .output import say, say_json
from .parsing import Parser, add_json, add_session, count, duration, pair
from .pump import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = "ID [--grace T] [--env K=V] [--unset-env K] [--input FILE] [options] [--json]"
EXAMPLES = """
hold restart web
hold restart web --env TOKEN=$TOKEN --grace 30s
"""


def arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("--grace", type=duration("--grace"), metavar="T", help="how long the stop waits")
    parser.add_argument("--env", action="append", type=pair("--env"), metavar="K=V", help="set a variable")
    parser.add_argument("--unset-env", action="append", metavar="K", help="go without a variable")
    parser.add_argument("--input", metavar="FILE", help="its whole input, from a file, or from ours with `-`")
    parser.add_argument(
        "--pass-fd", action="append", type=count("--pass-fd", 3), metavar="N", help="hand on this open descriptor"
    )
    parser.add_argument("--lifetime", choices=("detached", "owner"), help="another than before")
    parser.add_argument("--owner-pid", type=count("--owner-pid", 1), metavar="PID", help="another owning process")
    add_json(parser, "the new session")


def main(args: Namespace) -> int:
    with here(need_config=True) as hf:
        session = hf.get(args.session).restart(
            env=environment(args) or None,
            input=None if args.input is None else Source(args.input).whole(),
            pass_fds=args.pass_fd,
            lifetime=args.lifetime,
            owner_pid=owning_process(args),
            grace=args.grace,
        )
        if args.json:
            say_json(session)
        else:
            say(session.id)
    return 0
