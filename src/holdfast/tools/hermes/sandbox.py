"""Processes in a sandbox of any make: an object with `execute(command, timeout=...)` that runs a command to its end.

The runner's archive is sent there once. Each request is one call: it starts a runner that stays, looks at a session, or
stops it. Output, exit code and the end of the whole tree come from that runner; live input, which needs a stream, is
missing. What is known of a process is in a session that this host keeps. That session ends with the host, because only
the host has the object; the process itself continues.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shlex
import threading
import time
import zlib
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ...core import wire
from ...core.ending import status_of
from ...errors import BadArgument, HoldfastError, PlaceNoPython, PlaceUnreachable, ShuttingDown, SpawnError
from ...places.kinds import runner_archive
from ...places.remote_end import MARK
from ...sessions.start_request import build
from . import labels, limits, process, words
from .handles import ProcessSession
from .labels import SANDBOX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, Protocol

    from ...config import Config
    from ...daemons.handle import Relay
    from ...sessions.aio import AsyncSession
    from .settings import Settings


if TYPE_CHECKING:
    Facts = dict[str, Any]

    class Environment(Protocol):
        def execute(self, command: str, *, timeout: float) -> Any: ...


# One argument of a command may have 128 KiB.
_CHUNK_CHARS = 90_000
# How long a stop may take there after its grace.
_STOP_S = 10.0
_log = logging.getLogger("holdfast.tools.hermes")
_HAVE, _PYTHON = "holdfast-have", "holdfast-python:"
# A directory of our own, in a home that may not exist.
_DIRECTORY = """
umask 077
d=${HOME:-/nowhere}/.local/state/holdfast/runner
mkdir -p "$d" 2>/dev/null || { d=/tmp/holdfast-runner-$(id -u); mkdir -m 700 -p "$d"; }
[ -O "$d" ] || { echo "holdfast: $d belongs to another user" >&2; exit 1; }
"""
_PROBE = """
for p in python3 python; do
  v=$($p -c 'import sys, zlib; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) && break
done
echo "holdfast-python:$p:$v"
[ -d "$d/NAME" ] && echo holdfast-have
"""
# Into a directory, where the interpreter keeps compiled files. It appears in one step; another host may be faster.
_UNPACK = """
import base64, io, os, shutil, sys, zipfile, zlib
new, path = sys.argv[1:]
code = zlib.decompress(base64.b64decode(sys.stdin.read()))
zipfile.ZipFile(io.BytesIO(code)).extractall(new)
try:
    os.rename(new, path)
except OSError:
    shutil.rmtree(new)
    os.stat(path)
"""


def refuse(*, watch_patterns: object = None, heartbeat: int = 0, stdin: str | None = None) -> None:
    """Refuse what needs a stream from or to the sandbox."""
    why = "does not work in a sandbox that only executes commands"
    if watch_patterns:
        raise BadArgument("watch_patterns", why, "leave it out, and read new output with poll or read_log")
    if heartbeat:
        raise BadArgument("heartbeat", why, "leave it out, and call poll as often as news are wanted")
    if stdin not in (None, "closed"):
        raise BadArgument("stdin", f"{stdin[:40]!a} {why}", "leave it out, and let the command read a file instead")


class Sandbox:
    """One such object. Calls are made one at a time: not every make of them takes several."""

    def __init__(self, environment: Environment, timeout_s: float) -> None:
        self._environment = environment
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._command: str | None = None

    def ask(self, request: Facts, wait_s: float = 0.0) -> Facts:
        with self._lock:
            if self._command is None:
                self._command = self._send_runner()
            packed = wire.as_text(json.dumps(request).encode())
            said = self._execute(f"{self._command} ask {packed}", wait_s)
        found = [line[len(MARK) :] for line in said.splitlines() if line.startswith(MARK)]
        if not found:
            raise PlaceUnreachable(SANDBOX, f"it did not answer: {said.strip()[-200:]!a}")
        try:
            answer: Facts = json.loads(wire.from_text(found[-1]) or b"{}")
        except ValueError as problem:
            raise PlaceUnreachable(SANDBOX, f"its answer cannot be read: {problem}") from problem
        if answer.get("error"):
            raise PlaceUnreachable(SANDBOX, answer["error"])
        return answer

    def _send_runner(self) -> str:
        """How the runner is run there, once it is there."""
        code = runner_archive()
        name = hashlib.blake2b(code, digest_size=16).hexdigest()
        said = self._execute(_DIRECTORY + _PROBE.replace("NAME", name))
        python, _, version = next(
            (line[len(_PYTHON) :] for line in said.splitlines() if line.startswith(_PYTHON)), ":"
        ).partition(":")
        if not version or tuple(map(int, version.split("."))) < (3, 9):
            raise PlaceNoPython(SANDBOX, f"found {version}" if version else "none was found")
        if _HAVE not in said.splitlines():
            packed = wire.as_text(zlib.compress(code, 9))
            part = f'"$d/.{name}.{id(self):x}"'
            for at in range(0, len(packed), _CHUNK_CHARS):
                sign = ">>" if at else ">"
                self._execute(f"{_DIRECTORY}printf %s {packed[at : at + _CHUNK_CHARS]} {sign}{part}")
            unpack = f'{python} -c {shlex.quote(_UNPACK)} {part}.new "$d/{name}" <{part} && rm {part}'
            self._execute(_DIRECTORY + unpack)
        return f'{_DIRECTORY}{python} -I -S -X utf8 "$d/{name}"'

    def _execute(self, command: str, wait_s: float = 0.0) -> str:
        try:
            done = self._environment.execute(command, timeout=wait_s + self._timeout_s)
        except Exception as problem:
            raise PlaceUnreachable(SANDBOX, f"{type(problem).__name__}: {problem}") from problem
        if isinstance(done, str):
            return done
        facts = done if isinstance(done, dict) else {key: getattr(done, key, None) for key in ("output", "stdout")}
        return str(facts.get("output") or facts.get("stdout") or "")


class Box:
    """A process in a sandbox. This host keeps a session for it, which is found, read and waited for like any other, and
    puts into it what the sandbox answers."""

    def __init__(self, sandbox: Sandbox, relay: Callable[..., Relay], name: str, where: Facts, grace_s: float) -> None:
        self.sandbox = sandbox
        self.id: str = where["id"]
        self.name = name
        self._where = where
        self._grace_s = grace_s
        self._lock = threading.RLock()  # observers of a change may look again
        self._read_to = 0
        # How many callers want to learn of its end without asking.
        self._watchers = 0
        self._watching: threading.Thread | None = None
        self.is_over = False
        # Is a notice of its end wanted?
        self.notifies = False
        self._relay = relay(self.id, self.stop)

    def look(self) -> None:
        """Fetch its state and its new output: one call, and more only for long output."""
        with self._lock:
            while not self.is_over and not self._take(self.sandbox.ask({"do": "look", **self._asked()})):
                pass

    def stop(self, by: str = "stop") -> list[int]:
        """End its tree, by its runner there. Returns the pids that survived."""
        asked = {"do": "stop", "grace": self._grace_s, "by": by}
        with self._lock:
            if self.is_over:
                return []
            reply = self.sandbox.ask({**asked, **self._asked()}, self._grace_s + _STOP_S)
            self._take(reply, by)
        self.look()
        survivors: list[int] = reply["survivors"]
        return survivors

    def _asked(self) -> Facts:
        return {**self._where, "since": self._read_to, "limit": limits.REPLY_CHARS}

    def _take(self, reply: Facts, by: str | None = None) -> bool:
        """False if there is more output to fetch."""
        data = wire.from_text(reply["data"]) or b""
        if data:
            self._relay.printed(data)
            self._read_to += len(data)
        if len(data) == limits.REPLY_CHARS:
            return False
        exit = reply["exit"] or ({"code": None, "signal": None, "cause": "lost"} if reply["lost"] else None)
        if exit is not None:
            self.is_over = True
            self._relay.end(
                status_of(exit),
                code=exit["code"],
                signal=exit["signal"],
                cause=exit["cause"],
                survivors=len(exit.get("survivors", ())),
                asked_by=by if exit["cause"] == "stop" else None,
            )
        return True

    # Nothing in the sandbox can call us: while a caller waits, or wants a notice of the end, a thread looks.

    @contextmanager
    def watched(self) -> Iterator[None]:
        self.watch(True)
        try:
            yield
        finally:
            self.watch(False)

    def watch(self, wanted: bool) -> None:
        with self._lock:
            self._watchers += 1 if wanted else -1
            if self._watchers and self._watching is None and not self.is_over:
                self._watching = threading.Thread(target=self._watch, name=f"holdfast {self.id}", daemon=True)
                self._watching.start()

    def _watch(self) -> None:
        pause_s, is_silent = limits.ENV_PAUSE_S, False
        while True:
            with self._lock:
                if self.is_over or not self._watchers:
                    self._watching = None
                    return
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, limits.ENV_PAUSE_MAX_S)
            try:
                self.look()
                is_silent = False
            except ShuttingDown:
                return
            except HoldfastError as problem:
                if not is_silent:
                    _log.warning("the sandbox of %s does not answer and is asked again: %s", self.id, problem)
                is_silent = True


def start(
    sandbox: Sandbox,
    command: str,
    *,
    relay: Callable[..., Relay],
    settings: Settings,
    config: Config,
    author: str,
    owner: str,
    task_id: str,
    cwd: str | None,
    env_vars: Mapping[str, str],
    use_pty: bool,
    deadline: int | None,
    persists: bool,
) -> Box:
    options: Any = {
        "cwd": cwd,
        "env": dict(env_vars),
        "place": f"docker:{labels.SANDBOX}",
        "shell": "/bin/sh",
        "grace": settings.grace_s,
        "notify": "never",
        "timeout": deadline,
        **({"tty": True, "size": limits.PTY_SIZE} if use_pty else {"merge_stderr": True, "stdin": "closed"}),
    }
    request = build(command, options, config=config, author=author, environ={})
    request.spec["place"] = "local"
    frame = {"type": "start", "spec": request.spec, "env": request.env, "claims": 0, "then": None}
    reply = sandbox.ask({"do": "start", "request": frame})
    problem = reply.get("spawn_error")
    if problem is not None:
        raise SpawnError(problem["errno"], problem["step"], problem["path"])
    id = labels.new_id()
    given = {labels.ID: id, labels.TASK: task_id, labels.MODE: labels.BACKGROUND}
    given |= {labels.PERSIST: "1"} if persists else {}
    kept = partial(
        relay,
        announced=False,
        command=command,
        cwd=cwd,
        kind="local_bash",
        name=id,
        owner=owner,
        labels=given,
        metadata={"hermes": {"sandbox": True, "pid": reply["pid"]}},
        notify="never",
        # A stop by other tools waits for the sandbox.
        grace=settings.grace_s + _STOP_S,
    )
    where = {"id": request.spec["id"], "home": reply["home"], "endpoint": reply["endpoint"]}
    return Box(sandbox, kept, id, where, settings.grace_s)


class SandboxProcess(ProcessSession):
    """Its attributes ask its sandbox."""

    def __init__(self, box: Box, session: AsyncSession, shown: Callable[[str], str]) -> None:
        pid, place = labels.pid_of(session), process.place(session)
        facts = {"output": words.STARTED, "session_id": labels.called(session), "pid": pid}
        super().__init__({**facts, "exit_code": 0, "error": None, **place}, session, shown)
        self._box = box

    @property
    def _now(self) -> AsyncSession | None:
        self._box.look()
        return super()._now

    @property
    def notify_on_complete(self) -> bool:
        return self._box.notifies

    @notify_on_complete.setter
    def notify_on_complete(self, wanted: bool) -> None:
        if wanted != self._box.notifies:
            self._box.notifies = wanted
            self._set_notifies(wanted)
            self._box.watch(wanted)

    @property
    def watch_patterns(self) -> list[str]:
        return []

    @watch_patterns.setter
    def watch_patterns(self, wanted: Iterable[str]) -> None:
        refuse(watch_patterns=wanted)
