"""`hold up`, `down` and `ps`, and `hold restart` of services: a project."""

from __future__ import annotations

from ..core.clock import epoch
from . import INTERRUPTED
from .end import SURVIVED, in_words
from .host import open_home
from .logs import print_lines
from .look import listing
from .output import below, note, printable, say, say_json, span, state_words, style, width
from .parsing import Namespace, Parser, add_json, duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model import Stopped
    from ..project import Project


UP_HELP = """\
Start the services of a project that are not running, and return when all are ready.

The project is the `holdfast.toml` or `Procfile` in this directory or above. A service starts as soon as the services in
its `after` are ready, or have exited with 0; the others start at once. A service that changed in the file is started
again; the others are left alone.

With --attach, their output is shown as it comes. Ctrl-C leaves everything running; `hold down` stops it.
"""

UP_USAGE = "[-f FILE] [NAME...] [--attach | --json]"
UP_EXAMPLES = """
hold up
hold up --attach
hold up -f deploy/holdfast.toml web
"""


def _project(file: str | None = None) -> Project | None:
    import os

    from ..project import find, load

    found = find(os.getcwd(), file)
    return None if found is None else load(found)


def _required(file: str | None = None) -> Project:
    from ..errors import HoldfastError

    found = _project(file)
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
    parser.add_argument("--attach", action="store_true", help="follow the output of all, until Ctrl-C")
    add_json(parser, "the sessions by service")


def up_main(args: Namespace) -> int:
    return _start(_required(args.file), args.names, attach=args.attach, as_json=args.json)


def _start(project: Project, names: Sequence[str], *, attach: bool = False, as_json: bool = False) -> int:
    import time
    from queue import SimpleQueue

    from ..project import Work

    began = time.time()
    found: SimpleQueue[tuple[str, str] | None] = SimpleQueue()

    def tell(line: str) -> None:
        note(printable(line), head=project.name)

    def ended(id: str, name: str) -> None:
        session = hf.get(id)
        if (epoch(session.ended_at) or began) >= began:
            tell(f"{name}: {state_words(session)[0]}")

    with open_home(need_config=True) as hf:
        output = Work(lambda: print_lines(hf, iter(found.get, None), room=room, follow=True, since=began, ended=ended))
        try:
            if attach:
                room = max(map(width, map(printable, project.services)))
                output.start()
            running = project.up(hf, names, tell, lambda name, session: found.put((session.id, name)))
            found.put(None)
            what = next(iter(running)) + " is" if len(running) == 1 else f"all {len(running)} services are"
            tell(f"{what} ready after {span(time.time() - began)}")
            if as_json:
                say_json(running)
            elif attach:
                tell("Ctrl-C leaves them running")
                output.result()
            else:
                tell(f"`hold logs -f --label project={project.name}` follows their output, `hold down` stops them")
        except KeyboardInterrupt:
            left = list(project.sessions(hf))
            them = "it" if len(left) == 1 else "them"
            what = f"left running: {', '.join(left)}; `hold down` stops {them}" if left else "nothing is running"
            below(printable(what), head=project.name)
            return INTERRUPTED
    return 0


def restart_services(name: str | None, grace: float | None, *, as_json: bool) -> int | None:
    """Restart one service of the project here, or all. None: there is no such service."""
    from ..errors import ConfigError, NotFound

    try:
        project = _required() if name is None else _project()
    except ConfigError:
        if name is None:
            raise
        return None  # a session may have this name
    if project is None or (name is not None and name not in project.services):
        return None
    names = [] if name is None else [name]
    with open_home(need_config=True) as hf:
        try:
            if name is not None and hf.get(name).metadata.get("project_file") != project.file:
                return None
        except NotFound:
            pass  # it was never started
        project.down(
            hf, names, grace, lambda name, stopped: note(f"{printable(name)}: {in_words(stopped)}", head=project.name)
        )
    return _start(project, names, as_json=as_json)


DOWN_HELP = """\
Stop the services of a project, each as soon as no other needs it."""

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
    project = _required(args.file)

    def done(name: str, stopped: Stopped) -> None:
        if not args.json:
            say(f"{printable(name)}: {in_words(stopped)}")

    with open_home(skip_unsafe=True) as hf:
        answers = project.down(hf, args.names, args.grace, done)
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
    project = _project(args.file)
    with open_home() as hf:
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
