"""From the arguments of `terminal` to a start: place, directory, shell and variables."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import shutil
import signal
import subprocess
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...core import records
from ...errors import BadArgument, HoldfastError, PlaceGone, PtyUnavailable, SpawnError, TooManySessions
from ...home import check_labels
from ...places import kinds
from ...runner import directory as session_directory
from ..environment import FORCE, choosing_there, chosen_shell, environment, exported
from ..owner_sessions import has_survivors
from . import labels, limits, process, words

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Any, TypeVar

    from ...index import Kept
    from ...sessions.aio import AsyncHoldfast, AsyncSession
    from ..owner_sessions import OwnerSessions
    from .settings import Settings


# Shells with the syntax of sh.
_KNOWN = ("bash", "zsh", "sh", "dash", "ksh", "mksh")


# The last directory of a foreground command. A descriptor of the command leads to the file `report` of its session.


# Room for the paths of two directories.
_REPORT_MAX_BYTES = 16 << 10
# A number that scripts do not choose for their own. Opened by its path, because dash has no two-digit descriptors.
_REPORT_FD = 199
# Evaluates the command unchanged, without parameters or variables of ours, and reports where it began and where it
# left. If the command replaces the shell or the trap, its last directory is unknown.
_WRAPPER = (
    f"{{ {{ pwd -P; printf '\\0'; }} >/proc/self/fd/{_REPORT_FD}; }} 2>/dev/null; "
    f"trap '{{ pwd -P >>/proc/self/fd/{_REPORT_FD}; }} 2>/dev/null' EXIT; eval \"set --;$1\""
)


def reporting_directory(program: str) -> dict[str, Any]:
    """The options of a start whose command reports its last directory."""
    return {"shell": [program, "-c", _WRAPPER, program], "pass_fds": {_REPORT_FD: None}}


def moved_to(hf: AsyncHoldfast, session: AsyncSession) -> str | None:
    """The last directory of a command that has ended; None if it did not move, or did not report a directory."""
    try:
        fd = records.open_file(os.path.join(hf.home.session(session.id), session_directory.REPORT_FILE))
    except (FileNotFoundError, ValueError):
        return None  # the command itself may have put something else there
    with open(fd, "rb") as file:
        began, _, ended = os.fsdecode(file.read(_REPORT_MAX_BYTES)).partition("\0")
    path = ended.removesuffix("\n")
    if ended == began or not ended.endswith("\n") or not path.startswith("/"):
        return None
    return path if session.place != LOCAL or os.path.isdir(path) else None


# The variables that the user's shell exports after it has read its files as a login and interactive shell.


_MARK = b"\0holdfast-exports\0"
_ENV_PROGRAM = shutil.which("env") or "/usr/bin/env"
_EXPORTS = f"printf '\\0holdfast-exports\\0'; {_ENV_PROGRAM} -0"

# By shell, and the HOME and PATH that it began with. Asked once per process, because profiles are slow.
_profiles: dict[tuple[str, str, str], dict[str, str]] = {}
_profiles_lock = threading.Lock()


def shell_profile(shell: str, env: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """The exports that differ from `env`, and what went wrong, which only the first caller learns."""
    key = (shell, env.get("HOME", ""), env.get("PATH", ""))
    with _profiles_lock:
        problem = None
        if key not in _profiles:
            _profiles[key], problem = _ask_profile(shell, env)
        return _profiles[key], problem


def _ask_profile(shell: str, env: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    # Values must not reach a disk: the output is in memory. A pipe would stay open as long as a daemon of the profile.
    with open(os.memfd_create("profile"), "w+b") as output:
        try:
            asked = subprocess.Popen(
                [shell, "-l", "-i", "-c", _EXPORTS],
                env={**env, "TERM": "dumb"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as problem:
            return {}, words.PROFILE_FAILED.format(program=shell, why=problem.strerror or str(problem))
        why = "it did not say"
        try:
            asked.wait(limits.PROFILE_S)
        except subprocess.TimeoutExpired:
            why = "it took too long"
            os.killpg(asked.pid, signal.SIGKILL)
            asked.wait()
        output.seek(0)
        _, found, variables = output.read().rpartition(_MARK)
    if not found or not variables:
        return {}, words.PROFILE_FAILED.format(program=shell, why=why)
    pairs = [os.fsdecode(each).partition("=") for each in variables.split(b"\0")[:-1]]
    return {name: value for name, _, value in pairs if env.get(name) != value}, None


# The same in another place, where only its shell and PATH are learned: it has variables of its own.


_SHELL_MARK, _OWN_MARK, _PATH_MARK = "holdfast-shell:", "holdfast-own:", "holdfast-path:"
_SURVEY = f"""{choosing_there(_KNOWN, fit=True)}
printf '\\n{_SHELL_MARK}%s\\n{_OWN_MARK}%s\\n' "$_hf_shell" "$PATH"
exec "$_hf_shell" -l -i -c 'printf "\\n{_PATH_MARK}%s\\n" "$PATH"'
"""

# By place and the variables that matter: its shell, and the PATH of a login there; None where it did not say.
_surveys: dict[tuple[str, ...], tuple[str, str | None]] = {}


async def shell_survey(hf: AsyncHoldfast, place: str, env: Mapping[str, str]) -> tuple[str, str | None, str | None]:
    """The shell of another place, the PATH of a login there, and what went wrong, which only the first caller learns.
    A place that cannot be reached raises, because nothing can run there."""
    key = (place, *(env.get(name, "") for name in ("SHELL", "HOME", "PATH")))
    if key in _surveys:
        return *_surveys[key], None
    brief: Any = {"timeout": limits.PROFILE_S, "grace": 0.3, "notify": "never", "labels": {"hermes.asks": "path"}}
    asked = await hf.run(["/bin/sh", "-c", _SURVEY], place=place, env=env, **brief)
    lines = (await asked.text("stdout")).splitlines()
    program, own, theirs = (_after(lines, mark) for mark in (_SHELL_MARK, _OWN_MARK, _PATH_MARK))
    try:
        if not has_survivors(asked):
            await asked.remove()
    except HoldfastError:
        pass  # retention removes it
    why = "it took too long" if asked.exit and asked.exit.cause == "overall_timeout" else "it did not say"
    if program is None:
        return "/bin/sh", None, words.LOGIN_PATH_FAILED.format(program="shell", why=why, place=place)
    _surveys[key] = program, None if theirs is None else joined(theirs, own or "")
    return *_surveys[key], words.LOGIN_PATH_FAILED.format(
        program=program, why=why, place=place
    ) if theirs is None else None


def _after(lines: Sequence[str], mark: str) -> str | None:
    """The text after the last such mark: a profile may print anything before it."""
    found = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
    return found[-1] if found else None


def joined(theirs: str, ours: str) -> str:
    first = theirs.split(":")
    return ":".join(first + [each for each in ours.split(":") if each and each not in first])


# Where the commands of a task run: as its host says, or as the variables of hermes-agent say.


if TYPE_CHECKING:
    T = TypeVar("T")

LOCAL = kinds.LOCAL
_KIND = "TERMINAL_ENV"
# The container or instance that the commands run in.
_CONTAINER = "TERMINAL_CONTAINER"
_SSH_HOST, _SSH_USER, _SSH_PORT, _SSH_KEY = (f"TERMINAL_SSH_{name}" for name in ("HOST", "USER", "PORT", "KEY"))
_SSH_USUAL_PORT = "22"
# In a name it stands for the task, so that each task has a place of its own.
_TASK = "{task_id}"
_INSTEAD = "place"


def named(given: str | None, task_id: str, environ: Mapping[str, str] = os.environ) -> str:
    """A place, from its name (`podman:NAME`) or its kind (`podman`); from the variables where none is given."""
    asked = (environ.get(_KIND, "") if given is None else given).strip() or LOCAL
    if asked in kinds.KINDS:
        asked = f"{asked}:{_ssh(environ) if asked == 'ssh' else _needed(environ, _CONTAINER, asked)}"
    return kinds.check(asked.replace(_TASK, task_id))


def _needed(environ: Mapping[str, str], variable: str, kind: str) -> str:
    found = environ.get(variable, "").strip()
    if not found:
        raise BadArgument(variable, f"is not set, and commands are to run in {kind}", "set it; nothing was started")
    return found


def _ssh(environ: Mapping[str, str]) -> str:
    host = _needed(environ, _SSH_HOST, "ssh")
    user, port = environ.get(_SSH_USER, "").strip(), environ.get(_SSH_PORT, "").strip()
    if environ.get(_SSH_KEY, "").strip():
        fix = "name the key in ssh's own configuration, or in the setting places.ssh; nothing was started"
        raise BadArgument(_SSH_KEY, "is not handed to ssh", fix)
    name = f"{user}@{host}" if user else host
    return name if port in ("", _SSH_USUAL_PORT) else f"ssh://{name}:{port}"


class Place:
    """The place of one task. A place that is gone may be made again, under the same name or another."""

    def __init__(self, settings: Settings, kept: Kept) -> None:
        self._settings = settings
        self._kept = kept
        # One call at a time makes it again; `_made` counts how often.
        self._making = asyncio.Lock()
        self._made = 0

    def now(self) -> str:
        place = named(self._settings.place, self._settings.task_id)
        instead = None if place == LOCAL else self._kept.get(place, _INSTEAD)
        return instead if isinstance(instead, str) else place

    async def begin(self, start: Callable[[str], Awaitable[T]]) -> tuple[T, bool]:
        """The result of `start` in the place, and whether the place had to be made again for it."""
        place, made = self.now(), self._made
        try:
            return await start(place), False
        except PlaceGone as gone:
            async with self._making:
                # Another call, or another host, may have made it already, perhaps under the same name.
                if self._made == made and self.now() == place:
                    await self._make_again(place, gone)
        return await start(self.now()), True

    async def _make_again(self, place: str, gone: PlaceGone) -> None:
        for key in [key for key in _surveys if key[0] == place]:
            del _surveys[key]
        self.move(place, None)
        first = named(self._settings.place, self._settings.task_id)
        if place != first:
            self._kept.put(first, _INSTEAD, None)
        again = self._settings.recreate
        if again is None:
            raise gone
        try:
            made = again(self._settings.task_id)
            new = kinds.check(await made if inspect.isawaitable(made) else made)
        except HoldfastError:
            raise
        except Exception as problem:
            raise PlaceGone(place, f"making it again failed ({type(problem).__name__}: {problem})") from problem
        if new == LOCAL:
            fix = "have it make a container; nothing was started"
            raise BadArgument("recreate", "gave this machine in the place of another one", fix)
        if new != first:
            self._kept.put(first, _INSTEAD, new)
        self._made += 1

    # Its working directory.

    def directory(self, place: str) -> str | None:
        """Where the last command left the task, else where the task begins; None away is the default of the place."""
        settings = self._settings
        found = self._kept.get(f"task:{settings.task_id}", _topic(place))
        if isinstance(found, str):
            return found
        return settings.cwd or os.environ.get("TERMINAL_CWD") or (os.getcwd() if place == LOCAL else None)

    def move(self, place: str, directory: str | None) -> None:
        self._kept.put(f"task:{self._settings.task_id}", _topic(place), directory)


def _topic(place: str) -> str:
    return "cwd" if place == LOCAL else f"cwd in {place}"


# From the arguments of `terminal` to a start.


_TERMINAL_ENV = {"PAGER": "cat", "GIT_PAGER": "cat"}
_SPELLED_CHARS = 200


@dataclass
class TerminalArguments:
    """The arguments of `terminal`. They are checked (`check`) where they come from a caller."""

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
        """Check everything that does not need a look at the machine."""
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
    """A call of `terminal` with those arguments that are set. Nothing is cut, so that it can be copied."""
    said = {name: value for name, value in arguments.items() if value not in (None, False, [])}
    return f"terminal({', '.join(f'{name}={_spelled(value)}' for name, value in said.items())})"


def _spelled(value: object) -> str:
    text = "true" if value is True else repr(value)
    return text if len(text) <= _SPELLED_CHARS else "<as you gave it>"


def _is_label(value: str) -> bool:
    """Whether it can be a label; people may have names that cannot."""
    try:
        return check_labels({"label": value}) == {"label": value} and bool(value)
    except BadArgument:
        return False


class Starting:
    """Makes the options of a start for one task."""

    def __init__(self, sessions: OwnerSessions, settings: Settings) -> None:
        self._hf = sessions.hf
        self._sessions = sessions
        self._settings = settings
        self.place = Place(settings, sessions.kept)
        self._one_at_a_time = asyncio.Lock()

    def _directory(self, wanted: TerminalArguments, env: dict[str, str], place: str) -> str | None:
        """In another place a path is resolved there, except for what only this side knows."""
        path = wanted.workdir
        try:
            base = self.place.directory(place)
        except FileNotFoundError:
            raise SpawnError(errno.ENOENT, "cwd", None) from None
        if path is None:
            return base
        if (path == "~" or path.startswith("~/")) and (place == LOCAL or "HOME" in env):
            path = env.get("HOME", os.path.expanduser("~")) + path[1:]
        elif path.startswith("~") and place == LOCAL:
            path = os.path.expanduser(path)
        return path if path.startswith("~") or base is None else os.path.join(base, path)

    async def _here(self) -> tuple[dict[str, str], str, list[str]]:
        """The variables, the shell, and hints for the caller."""
        settings = self._settings
        passed = (*self._hf.config.env_pass, *settings.env_pass)
        env = environment(os.environ, passed=passed, given=settings.env_vars, deny=settings.env_deny, tools=True)
        program = chosen_shell(env, _KNOWN.__contains__)
        host = environment(os.environ, passed=passed, deny=settings.env_deny, tools=True)
        found, problem = await self._hf._core.driver.call(lambda: shell_profile(program, host))
        found = exported(found, settings.env_deny)
        if "PATH" in found:
            found["PATH"] = joined(found["PATH"], host.get("PATH", ""))
        given = {name.removeprefix(FORCE) for name in settings.env_vars}
        env |= {name: value for name, value in found.items() if name not in given}
        return env, program, [problem] if problem else []

    async def _there(self, place: str) -> tuple[dict[str, str], str, list[str]]:
        """The same in another place: only what was asked for is added to its own variables."""
        settings = self._settings
        passed = (*self._hf.config.env_pass, *settings.env_pass)
        ours = {name: value for name, value in os.environ.items() if name in passed}
        env = environment(ours, passed=passed, given=settings.env_vars, deny=settings.env_deny)
        program, path, problem = await shell_survey(self._hf, place, env)
        if path is not None:
            env.setdefault("PATH", path)
        return env, program, [problem] if problem else []

    async def options(self, wanted: TerminalArguments, place: str) -> tuple[dict[str, Any], list[str]]:
        """And hints for the caller."""
        settings = self._settings
        env, program, hints = await (self._here() if place == LOCAL else self._there(place))
        directory = self._directory(wanted, env, place)
        env.setdefault("PYTHONUNBUFFERED", "1")
        if wanted.pty:
            for name, value in _TERMINAL_ENV.items():
                env.setdefault(name, value)
        options: dict[str, Any] = {
            "name": labels.new_id(),
            "owner": self._sessions.owner,
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
            # The runner enforces the limits and must not kill either. So a stop by people and other tools does not
            # kill it either, as long as it leaves some grace.
            options["stop_ladder"] = settings.ladder
            options["metadata"]["hermes"]["only_asks"] = True
        options |= {"tty": True, "size": limits.PTY_SIZE} if wanted.pty else {"merge_stderr": True}
        if not wanted.pty:
            options["stdin"] = wanted.stdin or ("open" if wanted.background else "closed")
        return options, hints

    def _labels(self, id: str, wanted: TerminalArguments) -> dict[str, str]:
        settings = self._settings
        given = {labels.ID: id, labels.TASK: settings.task_id}
        given[labels.MODE] = labels.BACKGROUND if wanted.background else labels.FOREGROUND
        if settings.owner_task_id and settings.owner_task_id != settings.task_id:
            given[labels.OWNER_TASK] = settings.owner_task_id
        if wanted.persist_on_release:
            given[labels.PERSIST] = "1"
        return given | {labels.ORIGIN + name: value for name, value in settings.origin.items() if _is_label(value)}

    async def begin(
        self, wanted: TerminalArguments, start: Callable[[str, Callable[[], None]], Awaitable[T]]
    ) -> tuple[T, dict[str, Any]]:
        """What `start` returns for the place of the task, and what to say if that place had to be made again. With
        `max_running`, one start at a time, because each has to see the one before it: the next may begin when `start`
        calls the function that it gets, or returns."""
        with ExitStack() as held:
            if self._settings.max_running is not None:
                await self._one_at_a_time.acquire()
                held.callback(self._one_at_a_time.release)
                if len(await self._running()) >= self._settings.max_running:
                    raise TooManySessions(self._settings.max_running)
            try:
                found, recreated = await self.place.begin(lambda place: start(place, held.close))
            except SpawnError as problem:
                if problem.step == "cwd" and wanted.workdir is None:
                    # If the directory of the task was removed, every command fails: say the way out.
                    problem.fix = words.GONE_DIRECTORY
                raise
        return found, {"environment_recreated": True} if recreated else {}

    async def _running(self) -> list[AsyncSession]:
        return [each for each in await self._sessions.listed() if not labels.is_over(each)]

    async def in_background(self, wanted: TerminalArguments) -> dict[str, Any]:
        before = await self._running()
        try:
            started, again = await self.begin(wanted, lambda place, _: self._start(wanted, place))
        except (SpawnError, PtyUnavailable) as problem:
            said = words.CANNOT_START.format(why=str(problem))
            return {"output": "", "exit_code": -1, "error": said, "error_code": problem.code}
        session, asked, hints = started
        hints += self._hints(wanted, session, before)
        return self._started(wanted, session, asked, hints) | again

    async def _start(self, wanted: TerminalArguments, place: str) -> tuple[AsyncSession, dict[str, Any], list[str]]:
        """The session, what was asked for in the words of this toolset, and hints for the caller."""
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

    def _heartbeat_s(self, wanted: TerminalArguments) -> int:
        return max(wanted.heartbeat, round(self._hf.config.session_heartbeat_floor))

    def _hints(self, wanted: TerminalArguments, session: AsyncSession, running: list[AsyncSession]) -> list[str]:
        hints = [] if wanted.notifies or wanted.watch_patterns else [words.HINT_NO_NOTICE]
        if len(running) >= limits.RUNNING_HINT:
            hints.append(words.MANY_RUNNING.format(count=len(running)))
        facts = (session.command, session.cwd, session.place)
        same = [each for each in running if (each.command, each.cwd, each.place) == facts]
        return hints + ([words.SAME_RUNNING.format(id=labels.called(same[-1]))] if same else [])

    def _started(
        self, wanted: TerminalArguments, session: AsyncSession, asked: dict[str, Any], hints: list[str]
    ) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "output": words.STARTED,
            "session_id": labels.called(session),
            "pid": session.pid,
            # As in hermes-agent: the start succeeded.
            "exit_code": 0,
            "error": None,
        }
        facts |= {key: asked[key] for key in ("notify_on_complete", "watch_patterns") if key in asked}
        if wanted.watch_patterns and wanted.notifies:
            facts["watch_patterns_ignored"] = words.NOTIFY_WINS
        if wanted.heartbeat:
            facts["heartbeat_seconds"] = self._heartbeat_s(wanted)
        if wanted.deadline is not None:
            facts["deadline_seconds"] = wanted.deadline
        if wanted.timeout is not None:
            facts["timeout_ignored"] = words.TIMEOUT_IGNORED.format(timeout=wanted.timeout)
        if wanted.persist_on_release:
            facts["persist_on_release"] = True
        if asked and not self._settings.drains:
            facts["notify_unsupported"] = words.NO_DELIVERY
        return facts | process.place(session) | ({"hint": "; ".join(hints)} if hints else {})
