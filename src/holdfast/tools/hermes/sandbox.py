"""Processes in a sandbox of any make: an object with `execute(command, timeout=...)` that runs a command to its end.

The runner's archive is sent there once. Each request is one call: it starts a runner that stays, looks at a session, or
stops it. Output, exit code and the end of the whole tree come from that runner; what needs a stream, live input, is
missing. The processes are known as long as the registry lives, for nobody else has the object.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import threading
import time
import zlib
from typing import TYPE_CHECKING

from ... import wire
from ...errors import BadArgument, PlaceNoPython, PlaceUnreachable, SpawnError, StdinClosed
from ...host.request import build
from ...host.text import clean
from ...places.bundle import runner_archive
from ...runner.once import MARK
from . import limits, scope, texts, views
from .handles import ProcessSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, Protocol

    from ...config import Config
    from .settings import Settings
    from .views import Shown

    Facts = dict[str, Any]

    class Environment(Protocol):
        def execute(self, command: str, *, timeout: float) -> Any: ...


NAME = "sandbox"
# One argument of a command may have 128 KiB.
_CHUNK_CHARS = 90_000
# As much of the output is kept here.
_KEPT_BYTES = 4 * limits.REPLY_CHARS
# In so much of it the last characters of a reply are looked for.
_NEWEST_BYTES = 32 << 10
_HAVE, _PYTHON = "holdfast-have", "holdfast-python:"
# A directory of our own, in a home that may be missing.
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
# Into a directory, where the interpreter keeps what it has compiled. It appears in one step; another may be quicker.
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


def pauses_s(first: float = limits.ENV_PAUSE_S, most: float = limits.ENV_PAUSE_MAX_S) -> Iterator[float]:
    """Each half as long again as the one before."""
    while True:
        yield first
        first = min(1.5 * first, most)


def refuse(*, watch_patterns: object = None, heartbeat: int = 0, stdin: str | None = None) -> None:
    """What needs a stream from the sandbox, or to it."""
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
            raise PlaceUnreachable(NAME, f"it did not answer: {said.strip()[-200:]!a}")
        try:
            answer: Facts = json.loads(wire.from_text(found[-1]) or b"{}")
        except ValueError as problem:
            raise PlaceUnreachable(NAME, f"its answer cannot be read: {problem}") from problem
        if answer.get("error"):
            raise PlaceUnreachable(NAME, answer["error"])
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
            raise PlaceNoPython(NAME, f"found {version}" if version else "none was found")
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
            raise PlaceUnreachable(NAME, f"{type(problem).__name__}: {problem}") from problem
        if isinstance(done, str):
            return done
        facts = done if isinstance(done, dict) else {key: getattr(done, key, None) for key in ("output", "stdout")}
        return str(facts.get("output") or facts.get("stdout") or "")


class SandboxProcess(ProcessSession):
    """As its runner there last told."""

    def __init__(
        self,
        sandbox: Sandbox,
        command: str,
        *,
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
        tell: Callable[[SandboxProcess], None],
    ) -> None:
        name = scope.new_id()
        options: Any = {
            "cwd": cwd,
            "env": dict(env_vars),
            "place": f"docker:{NAME}",
            "shell": "/bin/sh",
            "grace": settings.grace_s,
            "notify": "never",
            "timeout": deadline,
            **({"tty": True, "size": limits.PTY_SIZE} if use_pty else {"merge_stderr": True, "stdin": "closed"}),
        }
        request = build(command, options, config=config, author=author, environ={})
        request.spec["place"] = "local"
        frame = {"type": "start", "spec": request.spec, "env": request.env, "claims": 0, "then": None}
        told = sandbox.ask({"do": "start", "request": frame})
        problem = told.get("spawn_error")
        if problem is not None:
            raise SpawnError(problem["errno"], problem["step"], problem["path"])
        super().__init__({}, None)
        self.sandbox = sandbox
        self._where = {"id": request.spec["id"], "home": told["home"], "endpoint": told["endpoint"]}
        self._settings = settings
        self.persists = persists
        self._grace_s = settings.grace_s
        self._lock = threading.Lock()
        self._name, self._command, self._owner, self._task = name, command, owner, task_id
        self._cwd, self._began = cwd, time.time()
        self._pid: int | None = told["pid"]
        self._tell = tell
        self._raw, self._read_to, self._dropped_lines = b"", 0, 0
        self._exit: Facts | None = None
        # Whether it has ended, and whether all its output is here: a call brings only a piece.
        self._over = self._is_lost = self._is_whole = self._is_cut = False
        self._ended: float | None = None
        self.update(
            output=texts.STARTED,
            session_id=name,
            pid=self._pid,
            exit_code=0,
            error=None,
            place=NAME,
            pid_scope="sandbox",
        )

    def look(self) -> None:
        """One call: how it stands, and what it printed since the last."""
        if not self._is_whole:
            self._take(self.sandbox.ask({"do": "look", **self._asked()}))

    def stop(self, by: str) -> list[int]:
        """Through its runner; the pids of what survived."""
        if self._over:
            return []
        told = self.sandbox.ask({"do": "stop", "grace": self._grace_s, "by": by, **self._asked()}, self._grace_s + 10)
        self._take(told)
        return list(told["survivors"])

    def _asked(self) -> Facts:
        return {**self._where, "since": self._read_to, "limit": limits.REPLY_CHARS}

    def _take(self, told: Facts) -> None:
        data = wire.from_text(told["data"]) or b""
        with self._lock:
            if told["since"] + len(data) > self._read_to:
                self._raw += data[max(0, self._read_to - told["since"]) :]
                self._read_to = told["since"] + len(data)
                self._forget()
            ended = told["exit"] is not None or told["lost"]
            if ended and not self._over:
                self._exit, self._is_lost, self._ended = told["exit"], told["lost"], time.time()
                self._over = True
            # An answer from before the end says nothing of that: answers may be taken in another order.
            self._is_whole = self._is_whole or (ended and len(data) < limits.REPLY_CHARS)

    def _forget(self) -> None:
        """Keep the newest of the output: whole lines, or a part of a line that is very long."""
        border = len(self._raw) - _KEPT_BYTES
        if border <= 0:
            return
        cut = self._raw.rfind(b"\n", 0, border) + 1
        if len(self._raw) - cut > 2 * _KEPT_BYTES:
            cut = border
            while self._raw[cut] & 0xC0 == 0x80 and cut < border + 3:
                cut += 1  # not within a character
        self._dropped_lines += self._raw.count(b"\n", 0, cut)
        self._raw = self._raw[cut:]
        self._is_cut = self._is_cut or cut > 0

    def catch_up(self, until: float = math.inf) -> None:
        """Fetch the output that is there, call by call, until it is whole or the time is over."""
        before = -1
        while not self._is_whole and self._read_to != before and time.monotonic() < until:
            before = self._read_to
            self.look()

    # What programs read.

    @property
    def id(self) -> str:
        return self._name

    @property
    def native_id(self) -> str:
        return str(self._where["id"])

    @property
    def command(self) -> str:
        return self._command

    @property
    def task_id(self) -> str:
        return self._task

    @property
    def owner(self) -> str:
        return self._owner

    @property
    def session_key(self) -> str:
        return "" if self._owner == f"task:{self._task}" else self._owner

    @property
    def pid(self) -> int | None:
        return self._pid

    @property
    def cwd(self) -> str | None:
        return self._cwd

    @property
    def started_at(self) -> float:
        return self._began

    @property
    def exited(self) -> bool:
        self.look()
        return self._over

    @property
    def exit_code(self) -> int | None:
        self.look()
        return None if self._exit is None else views.exit_code(self._exit.get("code"), self._exit.get("signal"))

    @property
    def output_buffer(self) -> str:
        self.look()
        return self.tail(limits.REPLY_CHARS, self._settings.redacted)[0]

    @property
    def detached(self) -> bool:
        return False

    @property
    def pid_scope(self) -> str:
        return "sandbox"

    @property
    def notify_on_complete(self) -> bool:
        return self._notifies

    @notify_on_complete.setter
    def notify_on_complete(self, wanted: bool) -> None:
        if not wanted:
            self.stop_notices()
        elif not self._notifies:
            self["notify_on_complete"] = self._notifies = True
            threading.Thread(target=self._tell, args=(self,), daemon=True).start()

    @property
    def watch_patterns(self) -> list[str]:
        return []

    @watch_patterns.setter
    def watch_patterns(self, wanted: Iterable[str]) -> None:
        refuse(watch_patterns=list(wanted))

    def stop_notices(self) -> None:
        """None will come any more; setting `notify_on_complete` again makes another attempt."""
        self["notify_on_complete"] = self._notifies = False

    @property
    def is_over(self) -> bool:
        """As last told: `exited` asks."""
        return self._over

    def text(self) -> str:
        with self._lock:
            return clean(self._raw)

    def tail(self, characters: int, shown: Shown | None = None) -> tuple[str, bool]:
        """The last so many characters as results show them, and whether there is more before them."""
        with self._lock:
            raw = self._raw
        # Colours and progress are left out of the text.
        part = raw[-max(_NEWEST_BYTES, 4 * characters) :]
        if len(part) < len(raw) and b"\n" in part[:-1]:
            part = part.partition(b"\n")[2]
        text, cut = views.last((shown or self._settings.shown)(clean(part)), characters)
        return text, cut or len(part) < len(raw) or self._is_cut

    # What the tools answer.

    def head(self) -> Facts:
        command = self._settings.shown(self._command)
        return {"session_id": self._name, "command": command, "status": "exited" if self._over else "running"}

    def uptime_s(self) -> int:
        return int((self._ended or time.time()) - self._began)

    def ended(self) -> Facts:
        if not self._over:
            return {}
        exit = self._exit or {"cause": "lost"}
        facts: Facts = {
            "exit_code": None if self._exit is None else views.exit_code(exit.get("code"), exit.get("signal")),
            "completion_reason": views.reason(exit["cause"]),
            "termination_source": views.source(exit["cause"], exit.get("by"), foreground=False),
        }
        left = [each["pid"] for each in exit.get("survivors") or []]
        return facts | ({"survivors": left} if left else {})

    def more(self) -> Facts:
        """Of an end that is known before all of the output is here."""
        return {"output_cut": True, "note": texts.REST_FOLLOWS} if self._over and not self._is_whole else {}

    def polled(self) -> Facts:
        self.look()
        preview, cut = self.tail(limits.POLL_CHARS)
        facts = self.head() | {"pid": self._pid, "uptime_seconds": self.uptime_s(), "output_preview": preview}
        facts |= {"output_cut": True} if cut else {}
        return facts | self.ended() | self.more() | {"place": NAME, "pid_scope": "sandbox"}

    def row(self, task_id: str | None) -> Facts:
        preview, _ = self.tail(limits.LIST_PREVIEW_CHARS)
        row = self.head() | {"cwd": self._cwd, "pid": self._pid, "uptime_seconds": self.uptime_s()}
        row |= {
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(self._began)),
            "output_preview": preview,
        }
        row |= {"notify_on_complete": True} if self._notifies else {}
        row |= {"persist_on_release": True} if self.persists else {}
        row |= {"session_scoped": True} if task_id and task_id != self._task else {}
        return row | self.ended() | {"place": NAME, "pid_scope": "sandbox"}

    def log(self, offset: int | None, limit: int) -> Facts:
        self.catch_up()
        lines = self.text().split("\n")
        if not lines[-1]:
            lines.pop()
        total = self._dropped_lines + len(lines)
        first = max(self._dropped_lines, total - limit if offset is None else offset)
        kept = lines[first - self._dropped_lines :][:limit]
        # As one text, for a key may stand on several lines.
        output = self._settings.shown("\n".join(kept))
        facts = self.head() | {"output": output, "total_lines": total, "showing": f"{len(kept)} lines"}
        facts |= {"first_line": first} | ({"lines_dropped": self._dropped_lines} if self._dropped_lines else {})
        return facts | ({"next_offset": first + len(kept)} if first + len(kept) < total else {})

    def waited(self, timeout: int | None, is_interrupted: threading.Event) -> Facts:
        allowed = limits.timeout_s()
        if timeout is not None and timeout < 1:
            raise BadArgument("timeout", f"{timeout} is out of bounds", "give a whole number of at least 1")
        limit = min(timeout or allowed, allowed)
        until = time.monotonic() + limit
        delays = pauses_s()
        self.look()
        while not self._over and not is_interrupted.is_set():
            left = until - time.monotonic()
            if left <= 0:
                break
            is_interrupted.wait(min(left, next(delays)))
            self.look()
        if self._over:
            self.catch_up(until)
            text, cut = self.tail(limits.WAIT_EXITED_CHARS)
            return self.head() | {"output": text} | ({"output_cut": True} if cut else {}) | self.ended() | self.more()
        facts = self.head()
        text, _ = self.tail(limits.WAIT_RUNNING_CHARS)
        facts |= {"process_running": True, "output": text}
        if is_interrupted.is_set():
            return facts | {"status": "interrupted", "note": texts.WAIT_INTERRUPTED}
        return facts | {"status": "timeout", "timeout_note": texts.wait_over(limit)}

    def killed(self, by: str) -> Facts:
        self.look()
        before = self._over
        survivors = self.stop(by)
        self.catch_up()
        if survivors or not self._over:
            said = {"error": texts.still_there(survivors), "error_code": "still-running", "survivors": survivors}
            return {"status": "error", "session_id": self._name, "process_running": not self._over, **said}
        text, cut = self.tail(limits.WAIT_EXITED_CHARS)
        ended = self.ended()
        status = "already_exited" if before or ended["completion_reason"] != "killed" else "killed"
        return {"status": status, "session_id": self._name, **ended, "output": text, "output_cut": cut}

    def no_input(self) -> Facts:
        self.look()
        if self._over:
            return {"status": "already_exited", "error": texts.FINISHED}
        said = f"stdin of {self._name} is closed: its sandbox runs commands to their end and has no stream for input"
        return {"status": "error", "error": said, "error_code": StdinClosed.code}

    def given_up(self, why: str) -> Facts:
        """The event where an end was to be announced and cannot be seen."""
        return {
            "type": "watch_disabled",
            "event_id": f"{self._where['id']}.unreachable",
            "session_id": self._name,
            "session_key": self._owner,
            "command": self._settings.shown_in_notice(self._command),
            "task_id": self._task,
            "message": texts.sandbox_given_up(self._name, self._settings.shown_in_notice(why)),
            "error_code": PlaceUnreachable.code,
        }

    def event(self) -> Facts:
        text, cut = self.tail(self._settings.completion_output_chars, self._settings.shown_in_notice)
        return {
            "type": "completion",
            "event_id": f"{self._where['id']}.end",
            "session_id": self._name,
            "session_key": self._owner,
            "command": self._settings.shown_in_notice(self._command),
            "task_id": self._task,
            "output": text,
            "output_cut": cut,
            "observed": False,
            **self.ended(),
        }
