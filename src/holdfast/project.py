"""A project: the services of a `holdfast.toml` or `Procfile`, started in order and stopped in reverse.

Each service is a session with the labels `project` and `service`. Its key is the file and the service, so that two
hosts never start it twice, and the same project in another directory is another project.
"""

from __future__ import annotations

import os
import re
from difflib import get_close_matches

from .errors import BadArgument, ConfigError, HoldfastError, NameTaken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from .model import Stopped
    from .sessions.api import Holdfast, Session


FILES = ("holdfast.toml", "Procfile")
READY, EXIT = "ready", "exit"
# Options of a start that a service may have, beside `command` and `after`.
_KEYS = (
    *("cwd", "env", "tty", "size", "ready", "health", "restart", "watch", "labels", "timeout", "idle_timeout"),
    *("memory", "shell", "notify", "stop_ladder", "description", "log_cap", "place", "stdin"),
)
# The ports of a Procfile's processes, as foreman gives them out.
_FIRST_PORT, _PORT_STEP = 5000, 100
_LAST_LINES = 10


class Service:
    """One entry of the file. `after` has the services it waits for, each with READY or EXIT."""

    def __init__(self, name: str, line: int, command: str | list[str], options: dict[str, Any]) -> None:
        self.name = name
        self.line = line
        self.command = command
        self.after: dict[str, str] = {}
        self.options = options

    @property
    def digest(self) -> str:
        """Changes when the service does."""
        from hashlib import sha256

        return sha256(repr((self.command, sorted(self.options.items()))).encode("utf-8", "replace")).hexdigest()[:16]


class Project:
    """The services of one file, each after those it waits for."""

    def __init__(self, file: str, name: str, services: dict[str, Service]) -> None:
        self.file = file
        self.name = name
        self.services = services

    def up(
        self, hf: Holdfast, names: Iterable[str] = (), say: Callable[[str], None] = lambda _line: None
    ) -> dict[str, Session]:
        """Start what is not running, in order; return when all are ready. `say` gets a line for each step. The error
        for a service that fails has its last lines; services that were started before it keep running."""
        wanted = self._with_needed(names)
        running: dict[str, Session] = {}
        for service in self.services.values():
            if service.name in wanted:
                for needed, what in service.after.items():
                    self._await(running[needed], needed, what, say)
                running[service.name] = self._start(hf, service, say)
        for name, session in running.items():
            if "ready" in self.services[name].options:
                self._await(session, name, READY, say)
        return running

    def down(
        self, hf: Holdfast, names: Iterable[str] = (), grace: float | None = None
    ) -> Iterator[tuple[str, Stopped]]:
        """Stop services in reverse order, also those that are no longer in the file."""
        live = self.sessions(hf)
        order = [name for name in live if name not in self.services] + list(reversed(list(self.services)))
        for name in order:
            if name in live and (not names or name in self._known(names)):
                yield name, hf.stop_all([live[name].id], grace)[0]

    def sessions(self, hf: Holdfast, *, all: bool = False) -> dict[str, Session]:
        """The newest session of each service, live ones unless `all`."""
        found = hf.sessions(all=all, labels={"project": self.name})
        ours = [each for each in found if each.metadata.get("project_file") == self.file]
        return {each.labels["service"]: each for each in ours}

    def _start(self, hf: Holdfast, service: Service, say: Callable[[str], None]) -> Session:
        last = self.sessions(hf, all=True).get(service.name)
        same = last is not None and last.metadata.get("project_digest") == service.digest
        if last is not None and same:
            if last.exit is None:
                say(f"{service.name}: already running, {last.id}")
                return last
            needed = any(each.after.get(service.name) == EXIT for each in self.services.values())
            if needed and last.exit.code == 0:
                say(f"{service.name}: already done, {last.id}")
                return last
        changed = last is not None and last.exit is None
        options: dict[str, Any] = {
            **service.options,
            "labels": {**service.options.get("labels", {}), "project": self.name, "service": service.name},
            "metadata": {"project_file": self.file, "project_digest": service.digest},
            "key": f"{self.file}#{service.name}",
            "replace": changed,
        }
        try:
            session = hf.start(service.command, name=f"{self.name}-{service.name}", **options)
        except NameTaken:
            # Another project has the same name. Labels tell them apart.
            session = hf.start(service.command, **options)
        say(f"{service.name}: {'changed, started again' if changed else 'started'}, {session.id}")
        return session

    def _await(self, session: Session, name: str, what: str, say: Callable[[str], None]) -> None:
        """Wait until it is ready, or has exited with 0."""
        probed = "ready" in self.services[name].options
        ready = not probed or (session.metadata.get("ready") or {}).get("ok")
        if (session.exit is None) if what == EXIT else not ready:
            say(f"{name}: waiting until it {'has ended' if what == EXIT else 'is ready'}")
            if what == EXIT:
                session.wait(exit=True)
            else:
                session.wait(ready=True)
            session.refresh()
        ended = session.exit is not None and session.exit.code != 0
        late = probed and what == READY and session.exit is None and not (session.metadata.get("ready") or {}).get("ok")
        if ended or late:
            raise ServiceFailed(name, session.id, session.tail(_LAST_LINES), late=late)

    def _known(self, names: Iterable[str]) -> list[str]:
        for name in names:
            if name not in self.services:
                raise ConfigError(self.file, None, name, "is not a service of this project", _near(name, self.services))
        return list(names)

    def _with_needed(self, names: Iterable[str]) -> set[str]:
        wanted: set[str] = set()
        more = self._known(names) or list(self.services)
        while more:
            name = more.pop()
            if name not in wanted:
                wanted.add(name)
                more += self.services[name].after
        return wanted


class ServiceFailed(HoldfastError):
    """A service ended, or did not become ready in time, while others waited for it."""

    code, http_status, exit_code = "service-failed", 409, 1

    def __init__(self, service: str, id: str, last: str, *, late: bool) -> None:
        how = "did not become ready in time" if late else "failed"
        printed = "".join(f"\n  {line}" for line in last.splitlines()) or "\n  (it printed nothing)"
        super().__init__(f"{service} ({id}) {how}:{printed}", service=service, id=id)
        self.fix = f"`hold logs {id}` shows all of it; `hold up` again starts what is missing"


def find(directory: str, file: str | None = None) -> str | None:
    """The file of the project: the one that is given, else the first in this directory or above."""
    if file is not None:
        return os.path.abspath(file)
    while True:
        for name in FILES:
            path = os.path.join(directory, name)
            if os.path.isfile(path):
                return path
        above = os.path.dirname(directory)
        if above == directory:
            return None
        directory = above


def load(file: str) -> Project:
    """The project of a file, checked. An error names file, line and key."""
    with open(file, encoding="utf-8", errors="replace") as opened:
        text = opened.read()
    directory = os.path.dirname(file)
    if file.endswith(".toml"):
        name, services = _from_toml(file, text)
    else:
        name, services = "", _from_procfile(file, text)
    if not services:
        raise ConfigError(file, None, None, "has no service", 'add one: [session.web] with command = "..."')
    for service in services.values():
        _check(file, text, directory, service)
    return Project(file, name or os.path.basename(directory) or "project", _ordered(file, services))


def _check(file: str, text: str, directory: str, service: Service) -> None:
    """Refuse what a start would refuse, before anything is started."""
    from .config import Config
    from .sessions.start import build

    options: Any = service.options
    try:
        options["cwd"] = os.path.normpath(os.path.join(directory, options.get("cwd", ".")))
        build(service.command, options, config=Config(), author="project", environ=os.environ)
        if not os.path.isdir(options["cwd"]) and not options.get("place"):
            raise BadArgument("cwd", "is not a directory", "create it, or name another")
    except (HoldfastError, TypeError, ValueError) as problem:
        key = str(getattr(problem, "argument", "command"))
        table = f"session.{service.name}"
        why = getattr(problem, "message", str(problem)).removeprefix(f"{key}: ")
        line = _Lines(text).of(table, key) if file.endswith(".toml") else service.line
        raise ConfigError(file, line, f"{table}.{key}", why, getattr(problem, "fix", "see the guide")) from None


def _from_toml(file: str, text: str) -> tuple[str, dict[str, Service]]:
    import tomllib

    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        at = re.search(r"at line (\d+)", str(problem))
        line = int(at[1]) if at else len(text.splitlines())
        raise ConfigError(file, line, None, f"is not TOML: {problem}", "correct that line") from None
    lines = _Lines(text)
    for key in read:
        if key not in ("project", "session"):
            fix = _near(key, ("project", "session"))
            raise ConfigError(file, lines.of(key), key, "is not a section of this file", fix)
    project = _table(file, lines, "project", read.get("project", {}))
    for key in project:
        if key != "name":
            raise ConfigError(
                file, lines.of("project", key), f"project.{key}", "is not a setting", _near(key, ["name"])
            )
    services = {}
    for name, given in _table(file, lines, "session", read.get("session", {})).items():
        services[name] = _service(file, lines, name, _table(file, lines, f"session.{name}", given))
    return str(project.get("name", "")), services


def _service(file: str, lines: _Lines, name: str, given: dict[str, Any]) -> Service:
    def wrong(key: str, why: str, fix: str) -> ConfigError:
        return ConfigError(file, lines.of(f"session.{name}", key), f"session.{name}.{key}", why, fix)

    for key in given:
        if key not in ("command", "after", *_KEYS):
            raise wrong(key, "is not a key of a service", _near(key, ("command", "after", *_KEYS)))
    command = given.get("command")
    if not command or not (isinstance(command, str) or _texts(command)):
        raise wrong("command", "must be a line for the shell, or a list of words", 'such as "npm run dev"')
    service = Service(name, lines.of(f"session.{name}"), command, {key: given[key] for key in _KEYS if key in given})
    after = given.get("after", [])
    if not _texts(after):
        raise wrong("after", "must be a list of services", 'such as ["db:ready"]')
    for each in after:
        needed, _, what = each.partition(":")
        if what not in ("", READY, EXIT):
            raise wrong("after", f"{what!r} is neither `ready` nor `exit`", f"such as {needed}:ready")
        service.after[needed] = what or READY
    return service


def _from_procfile(file: str, text: str) -> dict[str, Service]:
    services: dict[str, Service] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = re.match(r"([A-Za-z0-9_-]+):\s*(\S.*)", line)
        if found is None:
            raise ConfigError(file, number, None, "is not `NAME: COMMAND`", "such as web: npm start")
        port = os.environ.get("PORT") or str(_FIRST_PORT + _PORT_STEP * len(services))
        services[found[1]] = Service(found[1], number, found[2], {"env": {"PORT": port}})
    return services


def _ordered(file: str, services: dict[str, Service]) -> dict[str, Service]:
    """Each service after those it waits for, otherwise as in the file."""
    done: dict[str, Service] = {}

    def add(service: Service, above: tuple[str, ...]) -> None:
        key = f"session.{service.name}.after"
        for needed in service.after:
            if needed not in services:
                why = f"waits for {needed!r}, which is not a service of this file"
                raise ConfigError(file, service.line, key, why, _near(needed, services))
            if needed in above or needed == service.name:
                circle = " -> ".join([*above[above.index(needed) if needed in above else len(above) :], service.name])
                why = f"the services wait for each other: {circle} -> {needed}"
                raise ConfigError(file, service.line, key, why, "remove one of these `after`")
            if needed not in done:
                add(services[needed], (*above, service.name))
        done[service.name] = service

    for service in services.values():
        if service.name not in done:
            add(service, ())
    return done


class _Lines:
    """Line numbers of the keys of a TOML file. A table in another spelling is found by its name alone."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()

    def of(self, table: str, key: str | None = None) -> int:
        within, head = False, 1
        for number, line in enumerate(self._lines, 1):
            found = re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]", line)
            if found:
                within = found[1].replace('"', "").replace(" ", "") == table
                head = number if within else head
            named = re.match(r"\s*\"?([A-Za-z0-9_.-]+)\"?\s*=", line)
            if named and ((within and named[1] == key) or (key is None and named[1] == table)):
                return number
        return head


def _table(file: str, lines: _Lines, name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(file, lines.of(name), name, "must be a table", f"such as [{name}]")
    return value


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _near(word: str, known: Iterable[str]) -> str:
    names = list(known)
    near = get_close_matches(word, names, 1)
    return f"did you mean {near[0]}?" if near else f"one of {', '.join(names)}"
