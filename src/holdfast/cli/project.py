"""`hold up`, `down` and `ps`: the services of a project."""

from __future__ import annotations

from .host import here
from .look import listing
from .output import note, printable, say, say_json, style
from .parsing import Namespace, Parser, add_json, duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..project import Project


UP_HELP = """\
Start the services of a project that are not running, in order, and return when all are ready.

The project is the `holdfast.toml` or `Procfile` in this directory or above. A service starts when the services in its
`after` are ready, or have exited with 0. A service that changed in the file is started again; the others are left
alone. Ctrl-C leaves everything running.
"""

UP_USAGE = "[-f FILE] [NAME...] [--json]"
UP_EXAMPLES = """
hold up
hold up -f deploy/holdfast.toml web
"""


def _project(args: Namespace) -> Project | None:
    import os

    from ..project import find, load

    file = find(os.getcwd(), args.file)
    return None if file is None else load(file)


def _required(args: Namespace) -> Project:
    from ..errors import HoldfastError

    found = _project(args)
    if found is None:
        error = HoldfastError("no holdfast.toml and no Procfile in this directory or above")
        error.fix = 'create holdfast.toml with [session.web] and command = "...", or name a file with -f'
        raise error
    return found


def _add_project(parser: Parser, names: str | None = None) -> None:
    parser.add_argument("-f", "--file", metavar="FILE", help="the file of the project")
    if names is not None:
        parser.add_argument("names", nargs="*", metavar="NAME", help=names)


def up_arrange(parser: Parser) -> None:
    _add_project(parser, "only these services, and those they need")
    add_json(parser, "the sessions by service")


def up_main(args: Namespace) -> int:
    project = _required(args)
    with here(need_config=True) as hf:
        try:
            running = project.up(hf, args.names, lambda line: note(printable(line), head=project.name))
        except KeyboardInterrupt:
            note(f"left running: {', '.join(project.sessions(hf)) or 'nothing'}; `hold down` stops it")
            raise
        if args.json:
            say_json(running)
    return 0


DOWN_HELP = """\
Stop the services of a project, those that depend on others first."""

DOWN_USAGE = "[-f FILE] [NAME...] [--grace T] [--json]"
DOWN_EXAMPLES = """
hold down
hold down web --grace 30s
"""


def down_arrange(parser: Parser) -> None:
    _add_project(parser, "only these services")
    parser.add_argument("--grace", type=duration("--grace"), metavar="T", help="how long to wait before it is killed")
    add_json(parser, "the processes found and the survivors, by service")


def down_main(args: Namespace) -> int:
    from .end import SURVIVED, in_words

    project = _required(args)
    answers = {}
    with here(skip_unsafe=True) as hf:
        for name, stopped in project.down(hf, args.names, args.grace):
            answers[name] = stopped
            if not args.json:
                say(f"{printable(name)}: {in_words(stopped)}")
    if args.json:
        say_json(answers)
    elif not answers:
        note("no service of this project is running")
    return 0 if all(each.done for each in answers.values()) else SURVIVED


PS_HELP = """\
List the services of a project with their newest sessions; outside a project, what `hold ls` lists."""

PS_USAGE = "[-f FILE] [--json]"
PS_EXAMPLES = """
hold ps
hold ps --json | jq -r 'keys[]'
"""


def ps_arrange(parser: Parser) -> None:
    _add_project(parser)
    add_json(parser, "the sessions by service")


def ps_main(args: Namespace) -> int:
    project = _project(args)
    with here() as hf:
        if project is None:
            found = {session.id: session for session in hf.sessions()}
            missing = []
        else:
            found = project.sessions(hf, all=True)
            missing = [name for name in project.services if name not in found]
        if args.json:
            say_json({**found, **dict.fromkeys(missing)})
            return 0
        if found:
            say(listing(list(found.values()), style(hf.config)))
        if missing:
            note(f"not started: {', '.join(map(printable, missing))}; `hold up` starts them")
    return 0
