"""From the arguments of `terminal` to a start: checked, with the place, the directory, the shell and the variables."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import BadArgument, PtyUnavailable, SpawnError, TooManySessions
from ...home import check_labels
from ..environment import FORCE, environment, exported
from . import limits, scope, shell, texts, views
from .place import LOCAL, Place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from typing import Any

    from ...host.aio import AsyncHoldfast, AsyncSession
    from ...index.kept import Kept
    from .settings import Settings

_TERMINAL_ENV = {"PAGER": "cat", "GIT_PAGER": "cat"}
_SPELLED_CHARS = 200


@dataclass
class Wanted:
    """What `terminal` was asked for."""

    command: str
    background: bool = False
    timeout: int | None = None
    deadline: int | None = None
    workdir: str | None = None
    pty: bool = False
    notify: bool = False
    watch_patterns: list[str] = field(default_factory=list)
    heartbeat: int = 0
    persist_on_release: bool = False
    stdin: str | None = None

    def check(self) -> None:
        """Everything that can be said without looking at the machine."""
        if not self.command.strip():
            raise BadArgument("command", "is empty", "give the command to run")
        if "\0" in self.command:
            raise BadArgument("command", "holds a NUL character, which no shell can be given")
        if not self.background:
            self._refuse_background_only()
        for pattern in self.watch_patterns:
            if not pattern:
                raise BadArgument("watch_patterns", "an empty pattern matches everything", "leave it out")
        if self.workdir is not None and (
            not self.workdir or any(ord(each) < 32 or ord(each) == 127 for each in self.workdir)
        ):
            raise BadArgument("workdir", "is empty or holds control characters", "give the path of a directory")
        if self.heartbeat < 0:
            raise BadArgument("heartbeat", f"{self.heartbeat} is out of bounds", "give seconds, or 0 for none")
        if self.pty and self.stdin == "closed":
            raise BadArgument("stdin", "a terminal is both input and output", "leave stdin out, or pty")

    def _refuse_background_only(self) -> None:
        given: dict[str, object] = {
            "notify": self.notify,
            "watch_patterns": self.watch_patterns,
            "heartbeat": self.heartbeat,
            "deadline": self.deadline,
            "persist_on_release": self.persist_on_release,
        }
        asked = {name: value for name, value in given.items() if value}
        if asked:
            own = {"workdir": self.workdir, "pty": self.pty, "stdin": self.stdin}
            fixed = spelled({"command": self.command, "background": True, **own, **asked})
            raise BadArgument(next(iter(asked)), "is for background commands", f"call {fixed}")

    @property
    def notifies(self) -> bool:
        return self.notify or self.heartbeat > 0


def spelled(arguments: Mapping[str, Any]) -> str:
    """A call of `terminal` with what of these says something. Nothing is cut: somebody may copy it."""
    said = {name: value for name, value in arguments.items() if value not in (None, False, [])}
    return f"terminal({', '.join(f'{name}={_spelled(value)}' for name, value in said.items())})"


def _spelled(value: object) -> str:
    text = "true" if value is True else repr(value)
    return text if len(text) <= _SPELLED_CHARS else "<as you gave it>"


def _is_label(value: str) -> bool:
    """People are called by names that no label can be: those are kept beside them."""
    try:
        return check_labels({"label": value}) == {"label": value} and bool(value)
    except BadArgument:
        return False


class Starting:
    """Makes the options of a start for one task."""

    def __init__(self, hf: AsyncHoldfast, owner: str, settings: Settings, kept: Kept) -> None:
        self._hf = hf
        self._owner = owner
        self._settings = settings
        self.place = Place(settings, kept)
        self._one_at_a_time = asyncio.Lock()

    def _task_directory(self, place: str) -> str | None:
        try:
            return self.place.directory(place)
        except FileNotFoundError:
            raise SpawnError(errno.ENOENT, "cwd", None) from None

    def _directory(self, wanted: Wanted, env: dict[str, str], place: str) -> str | None:
        """Away it is as it was asked for, but for what only we know: what it is called there is found out there."""
        base, path = self._task_directory(place), wanted.workdir
        if path is None:
            return base
        if (path == "~" or path.startswith("~/")) and (place == LOCAL or "HOME" in env):
            path = env.get("HOME", os.path.expanduser("~")) + path[1:]
        elif path.startswith("~") and place == LOCAL:
            path = os.path.expanduser(path)
        return path if path.startswith("~") or base is None else os.path.join(base, path)

    def lost_directory(self, problem: SpawnError, wanted: Wanted) -> None:
        """The directory of a task may be removed, and then every command would fail without a way out: say it."""
        if problem.step == "cwd" and wanted.workdir is None:
            problem.fix = texts.GONE_DIRECTORY

    async def _here(self) -> tuple[dict[str, str], str, list[str]]:
        """The variables, the shell, and what the caller should be told."""
        settings = self._settings
        passed = (*self._hf.config.env_pass, *settings.env_pass)
        env = environment(os.environ, passed=passed, given=settings.env_vars, deny=settings.env_deny, tools=True)
        program = shell.chosen(env)
        host = environment(os.environ, passed=passed, deny=settings.env_deny, tools=True)
        found, problem = await shell.profile(self._hf, program, host)
        found = exported(found, settings.env_deny)
        if "PATH" in found:
            found["PATH"] = shell.joined(found["PATH"], host.get("PATH", ""))
        given = {name.removeprefix(FORCE) for name in settings.env_vars}
        env |= {name: value for name, value in found.items() if name not in given}
        return env, program, [problem] if problem else []

    async def _there(self, place: str) -> tuple[dict[str, str], str, list[str]]:
        """The same in another place, which has variables of its own: only what was asked for is added to them."""
        settings = self._settings
        passed = (*self._hf.config.env_pass, *settings.env_pass)
        ours = {name: value for name, value in os.environ.items() if name in passed}
        env = environment(ours, passed=passed, given=settings.env_vars, deny=settings.env_deny)
        program, path, problem = await shell.survey(self._hf, place, env)
        if path is not None:
            env.setdefault("PATH", path)
        return env, program, [problem] if problem else []

    async def options(self, wanted: Wanted, place: str) -> tuple[dict[str, Any], list[str]]:
        """And what the caller should be told."""
        settings = self._settings
        env, program, hints = await (self._here() if place == LOCAL else self._there(place))
        directory = self._directory(wanted, env, place)
        env.setdefault("PYTHONUNBUFFERED", "1")
        if wanted.pty:
            for name, value in _TERMINAL_ENV.items():
                env.setdefault(name, value)
        options: dict[str, Any] = {
            "name": scope.new_id(),
            "owner": self._owner,
            "cwd": directory,
            "env": env,
            "clean_env": place == LOCAL,
            "place": place,
            "shell": program,
            "grace": settings.grace_s,
        }
        options["labels"] = self._labels(options["name"], wanted)
        origin = {name: value for name, value in settings.origin.items() if value and not _is_label(value)}
        options["metadata"] = {"hermes": {"origin": origin} if origin else {}}
        if settings.ladder is not None:
            # Its limits are kept by a runner, that must not kill either. Nor does then, on behalf of people and other
            # tools, a stop that leaves it some grace.
            options["stop_ladder"] = settings.ladder
            options["metadata"]["hermes"]["only_asks"] = True
        options |= {"tty": True, "size": limits.PTY_SIZE} if wanted.pty else {"merge_stderr": True}
        if not wanted.pty:
            options["stdin"] = wanted.stdin or ("open" if wanted.background else "closed")
        return options, hints

    def _labels(self, id: str, wanted: Wanted) -> dict[str, str]:
        settings = self._settings
        labels = {scope.ID: id, scope.TASK: settings.task_id}
        labels[scope.MODE] = scope.BACKGROUND if wanted.background else scope.FOREGROUND
        if settings.owner_task_id and settings.owner_task_id != settings.task_id:
            labels[scope.OWNER_TASK] = settings.owner_task_id
        if wanted.persist_on_release:
            labels[scope.PERSIST] = "1"
        return labels | {scope.ORIGIN + name: value for name, value in settings.origin.items() if _is_label(value)}

    async def _running(self) -> list[AsyncSession]:
        return [each for each in await scope.of_owner(self._hf, self._owner) if not scope.is_over(each)]

    def _must_have_room(self, running: list[AsyncSession]) -> None:
        allowed = self._settings.max_running
        if allowed is not None and len(running) >= allowed:
            raise TooManySessions(allowed)

    async def must_have_room(self) -> None:
        if self._settings.max_running is not None:
            self._must_have_room(await self._running())

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[Callable[[], None]]:
        """Where only so many may run, nobody else starts inside, or before what is given here is called: each has to
        see what the one before it started."""
        with ExitStack() as held:
            if self._settings.max_running is not None:
                await self._one_at_a_time.acquire()
                held.callback(self._one_at_a_time.release)
            yield held.close

    async def in_background(self, wanted: Wanted) -> dict[str, Any]:
        wanted.check()
        try:
            async with self.alone():
                running = await self._running()
                self._must_have_room(running)
                started, recreated = await self.place.begin(lambda place: self._start(wanted, place))
        except (SpawnError, PtyUnavailable) as problem:
            if isinstance(problem, SpawnError):
                self.lost_directory(problem, wanted)
            said = texts.cannot_start(str(problem))
            return {"output": "", "exit_code": -1, "error": said, "error_code": problem.code}
        session, asked, hints = started
        hints += self._hints(wanted, session, running)
        again = {"environment_recreated": True} if recreated else {}
        return self._started(wanted, session, asked, hints) | again

    async def _start(self, wanted: Wanted, place: str) -> tuple[AsyncSession, dict[str, Any], list[str]]:
        """The session, what was asked for in the words of this toolset, and what the caller should be told."""
        settings = self._settings
        options, hints = await self.options(wanted, place)
        watches = [] if wanted.notifies else wanted.watch_patterns
        options["notify"] = "exit" if wanted.notifies else "never"
        if watches:
            options["watch"] = [{"literal": each} for each in watches]
        if wanted.heartbeat:
            options["heartbeat"] = self._heartbeat_s(wanted)
        if wanted.deadline is not None:
            options["timeout"] = wanted.deadline
        asked: dict[str, Any] = {"notify_on_complete": True} if wanted.notifies else {}
        asked |= {"watch_patterns": watches} if watches else {}
        if settings.completion_output_chars != limits.EVENT_CHARS:
            asked["completion_output_chars"] = settings.completion_output_chars
        options["metadata"]["hermes"] |= asked
        return await self._hf.start(wanted.command, **options), asked, hints

    def _heartbeat_s(self, wanted: Wanted) -> int:
        return max(wanted.heartbeat, round(self._hf.config.session_heartbeat_floor))

    def _hints(self, wanted: Wanted, session: AsyncSession, running: list[AsyncSession]) -> list[str]:
        hints = [] if wanted.notifies or wanted.watch_patterns else [texts.HINT_NO_NOTICE]
        if len(running) >= limits.RUNNING_HINT:
            hints.append(texts.many_running(len(running)))
        facts = (session.command, session.cwd, session.place)
        same = [each for each in running if (each.command, each.cwd, each.place) == facts]
        return hints + ([texts.same_running(scope.called(same[-1]))] if same else [])

    def _started(
        self, wanted: Wanted, session: AsyncSession, asked: dict[str, Any], hints: list[str]
    ) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "output": texts.STARTED,
            "session_id": scope.called(session),
            "pid": session.pid,
            "exit_code": 0,
            "error": None,
        }
        facts |= {key: asked[key] for key in ("notify_on_complete", "watch_patterns") if key in asked}
        if wanted.watch_patterns and wanted.notifies:
            facts["watch_patterns_ignored"] = texts.NOTIFY_WINS
        if wanted.heartbeat:
            facts["heartbeat_seconds"] = self._heartbeat_s(wanted)
        if wanted.deadline is not None:
            facts["deadline_seconds"] = wanted.deadline
        if wanted.timeout is not None:
            facts["timeout_ignored"] = texts.timeout_ignored(wanted.timeout)
        if wanted.persist_on_release:
            facts["persist_on_release"] = True
        if asked and not self._settings.drains:
            facts["notify_unsupported"] = texts.NOBODY_LISTENS
        return facts | views.place(session) | ({"hint": "; ".join(hints)} if hints else {})
