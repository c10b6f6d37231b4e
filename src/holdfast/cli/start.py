"""`hold start` and `hold restart`."""

from __future__ import annotations

from .host import open_home
from .options import (
    COMMAND_HELP,
    Source,
    add_start_options,
    environment,
    owning_process,
    print_notes,
    reaching,
    requested,
)
from .output import Awaiting, note, say, say_json
from .parsing import Namespace, Parser, add_json, add_session, count, duration, pair, variable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..sessions.api import Holdfast, Session


START_HELP = """\
Start a command in the background and print only the id of its session."""

START_USAGE = "[OPTION...] -- CMD..."
START_EXAMPLES = """
hold start -- npm run dev
hold start --name web --timeout 2h -- 'npm ci && npm run dev'
hold start --name web --ready port:3000 --restart on-failure -- npm run dev; hold wait web --ready
hold start --owner agent-7 --watch '/error/i' --notify failure -- make release; hold signals --owner agent-7
id=$(hold start -- make release) && hold wait $id --exit --propagate
"""


def start_arrange(parser: Parser) -> None:
    parser.description = f"{START_HELP}\n\n{COMMAND_HELP}"
    add_json(parser, "the session")
    add_start_options(parser)


def start_main(args: Namespace) -> int:
    command, options = requested(args, "hold start")
    with open_home(need_config=True) as hf:
        with reaching(options):
            session = hf.start(command, **options)
        print_notes(session)
        if args.json:
            say_json(session)
        else:
            say(session.id)
        if getattr(args, "rest", None) is not None:
            _pour(hf, session, args.rest)
    return 0


def _pour(hf: Holdfast, session: Session, rest: Source) -> None:
    """Write an input that is too large for the start request. The command need not read all of it."""
    import sys

    from ..errors import RunnerGone, SessionEnded, StdinClosed
    from ..sessions.driver import drive
    from .options import pour

    sys.stdout.flush()
    try:
        drive(pour(hf._core, session.id, source=rest, close=not session.tty))
    except (RunnerGone, SessionEnded, StdinClosed):
        if session.refresh().state != "exited":
            raise
        note(f"{session.id} has ended; it did not read all of its input")


RESTART_HELP = """\
Start the command of a session again, as a new session, and print its id. A session that is still running is stopped
first. If ID is a service of the current project, it is restarted as the file now defines it; without an ID, all
services are. If another session also has that name, the running one is used; if both run, it is an error.

A session that was started with --restart is restarted in place: it keeps its id and its log. It becomes a new session
only if an option here asks for something different, or if its runner is gone.

Name, owner, labels, directory, lifetime and limits are the same as before. The environment is the current one; give
--env and --input again, because their values are never stored.
"""

RESTART_USAGE = "[ID] [--grace T] [--env K=V] [--unset-env K] [--input FILE] [options] [--json]"
RESTART_EXAMPLES = """
hold restart web
hold restart web --env TOKEN=$TOKEN --grace 30s
hold restart                            in a project: all its services
"""


def restart_arrange(parser: Parser) -> None:
    add_session(parser, "?")
    parser.add_argument("--grace", type=duration("--grace"), metavar="T", help="how long to wait before it is killed")
    parser.add_argument("--env", action="append", type=pair("--env"), metavar="K=V", help="set a variable")
    parser.add_argument("--unset-env", action="append", type=variable, metavar="K", help="remove a variable")
    parser.add_argument("--input", metavar="FILE", help="its whole input: a file, or `-` for stdin")
    parser.add_argument(
        "--pass-fd", action="append", type=count("--pass-fd", 3), metavar="N", help="pass on this open descriptor"
    )
    parser.add_argument("--lifetime", choices=("detached", "owner"), help="a different lifetime than before")
    parser.add_argument("--owner-pid", type=count("--owner-pid", 1), metavar="PID", help="a different owning process")
    add_json(parser, "the new session")


def restart_main(args: Namespace) -> int:
    from .end import being_stopped

    given = (args.env, args.unset_env, args.input, args.pass_fd, args.lifetime, args.owner_pid)
    if args.session is None or not any(given):
        from .project import restart_services

        code = restart_services(args.session, args.grace, as_json=args.json)
        if code is not None:
            return code
    with open_home(need_config=True) as hf:
        before = hf.get(args.session)
        input = None if args.input is None else Source(args.input).whole()
        with Awaiting(lambda: being_stopped([before.id])):
            session = before.restart(
                env=environment(args) or None,
                input=input,
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
