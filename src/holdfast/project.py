"""A project: the services of a `holdfast.toml` or `Procfile`, started in order and stopped in reverse.

Each service is a session with the labels `project` and `service`. Its key is the file and the service, so that two
hosts never start it twice, and the same project in another directory is another project.
"""

from __future__ import annotations

import os
import re
from threading import Thread

from .config.settings import checked_table, nearest_line, nearest_or_all, tables
from .errors import BadArgument, ConfigError, HoldfastError, NameTaken
from .sessions.find import project_file, service_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from .model import Snapshot, Stopped
    from .sessions.api import Holdfast, Session

READY, EXIT = "ready", "exit"
# Options of a start that a service may have, beside `command` and `after`.
_KEYS = (
    *("cwd", "env", "tty", "size", "ready", "health", "restart", "watch", "labels", "timeout", "idle_timeout"),
    *("memory", "shell", "notify", "stop_ladder", "description", "log_cap", "place", "stdin"),
)
# An option as a fix names it for Python.
_KEYWORD = re.compile(r"\b([a-z_]+)=True\b")
# The ports of a Procfile's processes, as foreman gives them out if there is no other `PORT`.
_FIRST_PORT, _PORT_STEP = 5000, 100
_LAST_LINES = 10
# A service without `ready` that fails within this time has failed to start.
_FIRST_S = 0.3
# How long `up` is silent before it says what it waits for, for the first time and later.
_QUIET_S, _STILL_QUIET_S = 1.0, 10.0


class Service:
    """One entry of the file. `after` has the services it waits for, each with READY or EXIT; `line` is that of a
    Procfile."""

    def __init__(self, name: str, line: int | None, command: str | list[str], options: dict[str, Any]) -> None:
        self.name = name
        self.line = line
        self.command = command
        self.after: dict[str, str] = {}
        self.options = options

    @property
    def probes(self) -> str | None:
        """What `ready` waits for, in words."""
        ready = self.options.get("ready")
        return ", ".join(map(str, ready)) if isinstance(ready, list) else None if ready is None else str(ready)

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
        self,
        hf: Holdfast,
        names: Iterable[str] = (),
        say: Callable[[str], None] = lambda _line: None,
        found: Callable[[str, Session], None] = lambda _name, _session: None,
    ) -> dict[str, Session]:
        """Start what is not running, each service as soon as those in its `after` are there; return when all are ready.
        `say` gets a line for each step, `found` each session as soon as it runs. If services fail, the others are still
        started, but for those that need them; the error has the last lines of each."""
        wanted, start = self._with_needed(names), _Start(self, hf, say, found)
        works = start.works
        for service in self.services.values():
            if service.name in wanted:
                for needed, what in service.after.items():
                    if what == EXIT and (needed, EXIT) not in works:
                        works[needed, EXIT] = Work(start.end, needed)
                works[service.name, READY] = Work(start.service, service)
        try:
            for work in works.values():
                work.start()
            for work in works.values():
                work.join(_QUIET_S)
                while work.is_alive():
                    if start.awaited:
                        say(f"waiting for {', '.join(list(start.awaited.values()))}")
                    work.join(_STILL_QUIET_S)
        finally:
            start.over = True
        failures = dict.fromkeys(work.problem for work in works.values() if isinstance(work.problem, _Failed))
        for work in works.values():
            if not isinstance(work.problem, _Failed):
                work.result()
        if failures:
            raise ServiceFailed(list(failures))
        return {name: work.result() for (name, what), work in works.items() if what == READY}

    def down(
        self,
        hf: Holdfast,
        names: Iterable[str] = (),
        grace: float | None = None,
        done: Callable[[str, Stopped], None] = lambda _name, _stopped: None,
    ) -> dict[str, Stopped]:
        """Stop services, each as soon as all that need it are gone; first those that are no longer in the file, which
        may need any. `done` is called with each as it is gone."""
        chosen, live = self._known(names), self.sessions(hf)
        order = [name for name in live if name not in self.services] + list(reversed(self.services))
        works: dict[str, Work] = {}

        def stop(name: str, users: list[Work]) -> Stopped:
            for each in users:
                each.result()
            stopped = hf.stop_all([live[name].id], grace)[0]
            done(name, stopped)
            return stopped

        for name in order:
            if name in live and (name in chosen or not chosen):
                users = [work for user, work in works.items() if self._needs(user, name)]
                works[name] = Work(stop, name, users)
                works[name].start()
        return {name: work.result() for name, work in works.items()}

    def _needs(self, user: str, name: str) -> bool:
        """Whether one needs the other. One that is no longer in the file may need all that are."""
        return name in (self._with_needed([user]) if user in self.services else self.services)

    def sessions(self, hf: Holdfast, *, all: bool = False) -> dict[str, Session]:
        """The newest session of each service, live ones unless `all`."""
        found = hf.sessions(all=all, labels={"project": self.name})
        return {each.labels["service"]: each for each in found if each.metadata.get("project_file") == self.file}

    def identity(self, service: Service) -> dict[str, Any]:
        """The name and labels of its session."""
        labels = {**service.options.get("labels", {}), "project": self.name, "service": service.name}
        return {"name": f"{self.name}-{service.name}", "labels": labels}

    def _known(self, names: Iterable[str]) -> list[str]:
        for name in names:
            if name not in self.services:
                raise ConfigError(
                    self.file, None, name, "is not a service of this project", nearest_or_all(name, self.services)
                )
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


class Work(Thread):
    """A call in a thread of its own, which does not hold up the end of the program."""

    def __init__(self, call: Callable[..., Any], *args: object) -> None:
        super().__init__(daemon=True)
        self._work = call, args
        self._value: Any = None
        self.problem: BaseException | None = None

    def run(self) -> None:
        call, args = self._work
        try:
            self._value = call(*args)
        except BaseException as problem:  # noqa: BLE001 - raised by `result`
            self.problem = problem

    def result(self) -> Any:
        """Wait for its end."""
        self.join()
        if self.problem is not None:
            raise self.problem
        return self._value


class _Start:
    """One `up`: a thread for each service, which ends when it is ready, and one for each end that others wait for."""

    def __init__(
        self, project: Project, hf: Holdfast, say: Callable[[str], None], found: Callable[[str, Session], None]
    ) -> None:
        self._project = project
        self._hf = hf
        self._say = say
        self._found = found
        self.works: dict[tuple[str, str], Work] = {}
        # Set when the call has ended, or was interrupted: then nothing more is started.
        self.over = False
        # What is waited for, by service.
        self.awaited: dict[str, str] = {}
        self.started: set[str] = set()
        # What there was of each service before.
        self._before = project.sessions(hf, all=True)

    def service(self, service: Service) -> Session:
        """Start it when what it needs is there, and wait until it is ready."""
        name = service.name
        try:
            for each in service.after.items():
                self.works[each].result()
        except _Failed as failed:
            self._say(f"{name}: not started, because {failed.service} failed")
            raise
        try:
            session = self._session(service)
        except HoldfastError as problem:
            raise self._failed(name, "", "was not started", f"{problem.message}; {problem.fix}") from None
        if service.probes is None:
            # A command with a mistake in it ends at once.
            if name in self.started:
                session.wait(timeout=_FIRST_S)
            return self._checked(session, name)
        if not _is_ready(session):
            self.awaited[name] = f"{name} to be ready ({service.probes})"
            session.wait(ready=True)
            late = session.exit is None and not _is_ready(session)
            self._checked(session, name, f"did not become ready in time ({service.probes})" if late else "")
            self._say(f"{name}: {'ready' if _is_ready(session) else 'done'}")
        return session

    def end(self, name: str) -> Session:
        """Wait until it has exited with 0."""
        session: Session = self.works[name, READY].result()
        is_news = session.exit is None or name in self.started
        self.awaited[name] = f"{name} to end"
        session.wait()
        self._checked(session, name)
        if is_news:
            self._say(f"{name}: done")
        return session

    def _checked(self, session: Session, name: str, how: str = "") -> Session:
        """Refuse one that has failed."""
        self.awaited.pop(name, None)
        exit = session.exit
        if exit is not None and exit.code != 0:
            how = f"failed with {f'exit code {exit.code}' if exit.signal is None else exit.signal}"
        elif session.condition == "restarting":
            how = "fails and is restarted"
        if how:
            raise self._failed(name, session.id, how, session.tail(_LAST_LINES))
        return session

    def _session(self, service: Service) -> Session:
        """The session of this service, started if need be."""
        project, name = self._project, service.name
        # After a while, another host may have started it meanwhile.
        last = (project.sessions(self._hf, all=True) if service.after else self._before).get(name)
        runs = last is not None and last.exit is None
        if last is not None and last.metadata.get("project_digest") == service.digest:
            needed = any(each.after.get(name) == EXIT for each in project.services.values())
            if runs or (needed and last.exit is not None and last.exit.code == 0):
                self._say(f"{name}: already {'running' if runs else 'done'}, {last.id}")
                self._found(name, last)
                return last
        if self.over:
            raise InterruptedError
        options: dict[str, Any] = {
            **service.options,
            **project.identity(service),
            "metadata": {"project_file": project.file, "project_digest": service.digest},
            "key": service_key(project.file, name),
            "replace": runs,
        }
        if runs:
            self._say(f"{name}: changed, starting it again")
        try:
            session = self._hf.start(service.command, **options)
        except NameTaken:
            # Another project has the same name. Labels tell them apart.
            del options["name"]
            session = self._hf.start(service.command, **options)
        self._say(f"{name}: started, {session.id}")
        self.started.add(name)
        self._found(name, session)
        return session

    def _failed(self, name: str, id: str, how: str, last: str) -> _Failed:
        self._say(f"{name}: {how}")
        return _Failed(name, id, how, last)


def _is_ready(session: Snapshot) -> bool:
    return bool((session.metadata.get("ready") or {}).get("ok"))


class _Failed(Exception):
    """One service; `last` is what it printed last."""

    def __init__(self, service: str, id: str, how: str, last: str) -> None:
        super().__init__(service, how)
        self.service = service
        self.id = id
        self.how = how
        self.last = last


class ServiceFailed(HoldfastError):
    """Services that were not started, ended, or did not become ready in time."""

    code, http_status, exit_code = "service-failed", 409, 1

    def __init__(self, failures: Sequence[_Failed]) -> None:
        lines = []
        for each in failures:
            printed = each.last.splitlines() or ["(it printed nothing)"]
            lines += [f"{each.service}{each.id and f' ({each.id})'} {each.how}:", *(f"  {line}" for line in printed)]
        if len(failures) > 1:
            lines = [f"{len(failures)} services failed:", *(f"  {line}" for line in lines)]
        super().__init__("\n".join(lines), services=[each.service for each in failures])
        logs = [f"`hold logs {each.id}` shows all that it printed; " for each in failures if each.id]
        self.fix = f"{''.join(logs[:1])}`hold up` again starts what is missing"


def find(directory: str, file: str | None = None) -> str | None:
    """The file of the project: the one that is given, else the first in this directory or above."""
    return project_file(directory) if file is None else os.path.abspath(file)


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
    project = Project(file, name or os.path.basename(directory) or "project", _ordered(file, text, services))
    for service in services.values():
        _check(project, text, directory, service)
    return project


def _check(project: Project, text: str, directory: str, service: Service) -> None:
    """Refuse what a start would refuse, before anything is started."""
    from .config import Config
    from .sessions.start_request import build

    options: Any = service.options
    try:
        options["cwd"] = os.path.normpath(os.path.join(directory, options.get("cwd", ".")))
        if isinstance(options.get("labels", {}), dict):
            options = {**options, **project.identity(service)}
        build(service.command, options, config=Config(), author="project", environ=os.environ)
        if not os.path.isdir(options["cwd"]) and not options.get("place"):
            raise BadArgument("cwd", "is not a directory", "create it, or name another")
    except (HoldfastError, TypeError, ValueError) as problem:
        key = str(getattr(problem, "argument", "command"))
        why = getattr(problem, "message", str(problem)).removeprefix(f"{key}: ")
        fix = _KEYWORD.sub(r"\1 = true", getattr(problem, "fix", "see the guide"))
        path = ("session", service.name) if key == "name" else ("session", service.name, key)
        line = service.line or nearest_line(text, *path)
        raise ConfigError(project.file, line, ascii(".".join(path))[1:-1][:120], why, fix) from None


def _from_toml(file: str, text: str) -> tuple[str, dict[str, Service]]:
    read = checked_table(file, text, (), tables(file, text), ("project", "session"))
    project = checked_table(file, text, ("project",), read.get("project", {}), ("name",))
    given = checked_table(file, text, ("session",), read.get("session", {}), None)
    return str(project.get("name", "")), {name: _service(file, text, name, each) for name, each in given.items()}


def _service(file: str, text: str, name: str, table: object) -> Service:
    path = ("session", name)

    def wrong(key: str, why: str, fix: str) -> ConfigError:
        return ConfigError(file, nearest_line(text, *path, key), f"session.{name}.{key}", why, fix)

    given = checked_table(file, text, path, table, ("command", "after", *_KEYS))
    command = given.get("command")
    if not command or not (isinstance(command, str) or _texts(command)):
        raise wrong("command", "must be a line for the shell, or a list of words", 'such as "npm run dev"')
    service = Service(name, None, command, {key: given[key] for key in _KEYS if key in given})
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
    env = _dotenv(os.path.join(os.path.dirname(file), ".env"))
    first = env.get("PORT") or os.environ.get("PORT") or ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = re.match(r"([A-Za-z0-9_-]+):\s*(\S.*)", line)
        if found is None:
            raise ConfigError(file, number, None, "is not `NAME: COMMAND`", "such as web: npm start")
        port = (int(first) if first.isdecimal() else _FIRST_PORT) + _PORT_STEP * len(services)
        services[found[1]] = Service(found[1], number, found[2], {"env": {**env, "PORT": str(port)}})
    return services


def _dotenv(file: str) -> dict[str, str]:
    """The variables of a `.env`, as foreman reads it; none if there is no such file."""
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            lines = opened.read().splitlines()
    except FileNotFoundError:
        return {}
    env = {}
    for line in lines:
        found = re.fullmatch(r"\s*(?:export\s+)?(\w+)=(?:'(.*)'|\"(.*)\"|(.*?))\s*", line)
        if found is not None:
            name, literal, escaped, plain = found.groups()
            env[name] = literal or plain or re.sub(r"\\(.)", r"\1", (escaped or "").replace("\\n", "\n"))
    return env


def _ordered(file: str, text: str, services: dict[str, Service]) -> dict[str, Service]:
    """Each service after those it waits for, otherwise as in the file."""
    done: dict[str, Service] = {}

    def add(service: Service, above: tuple[str, ...]) -> None:
        path = ("session", service.name, "after")
        line, key = nearest_line(text, *path), ".".join(path)
        for needed in service.after:
            if needed not in services:
                why = f"waits for {needed!r}, which is not a service of this file"
                raise ConfigError(file, line, key, why, nearest_or_all(needed, services))
            if needed in above or needed == service.name:
                circle = " -> ".join([*above[above.index(needed) if needed in above else len(above) :], service.name])
                why = f"the services wait for each other: {circle} -> {needed}"
                raise ConfigError(file, line, key, why, "remove one of these `after`")
            if needed not in done:
                add(services[needed], (*above, service.name))
        done[service.name] = service

    for service in services.values():
        if service.name not in done:
            add(service, ())
    return done


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
