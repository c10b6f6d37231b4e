"""One class per condition: its code, the words of its message, and what to do about it.

A class names its facts as annotations, and `says` makes the message from them: `{fact}`, or `{fact!r}` for text that
is quoted. The constructor takes the facts in their order. A class that annotates `fix` takes that too. A class without
`says` makes its message in a constructor of its own.
"""

from __future__ import annotations

import os
from errno import ENOSPC as _ENOSPC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any
    from typing import dataclass_transform as dataclass_transform  # noqa: PLC0414  (for others, too)
else:

    def dataclass_transform(**_):
        """For type checkers only. At run time `declared_values` reads the annotations."""
        return lambda kind: kind


FAILED = 1
USAGE = 2
NO_SUCH_SESSION = 3
NOT_IN_THIS_STATE = 4
NOT_REACHED = 5
TIMED_OUT = 124

_BY_CODE: dict[str, type[HoldfastError]] = {}


@dataclass_transform(eq_default=False)
class HoldfastError(Exception):
    """The base of all. `str()` is the message and the fix in one line."""

    code = "error"
    http_status = 500
    exit_code = FAILED
    fix = "see `hold doctor`"
    says = ""

    def __init__(self, *given: Any, **named: Any) -> None:
        """With `says` the facts as they are declared; without it the message, and facts by name."""
        if not self.says:
            self._set(*given, **named)
            return
        # A class that only changes the wording of another has the facts of that class.
        kind: type[HoldfastError] = next(each for each in type(self).__mro__ if "says" in vars(each))
        facts = declared_values(kind, given, named)
        fix = facts.pop("fix", None)
        words = {name: _Text(value) if isinstance(value, str) else value for name, value in facts.items()}
        self._set(self.says.format(**words), **facts)
        if isinstance(fix, str) and fix != kind.fix:
            self.fix = fix

    def _set(self, message: str = "", /, **facts: object) -> None:
        self.message = message
        self.facts = facts
        for name, value in facts.items():
            # A fact named like an attribute of every error (the exit code of a command, say) is in `facts` alone.
            if name not in ("message", "facts") and not hasattr(HoldfastError, name):
                setattr(self, name, value)
        self.args = (message,)

    def __init_subclass__(cls) -> None:
        # A subclass that only changes the wording of another has no code of its own.
        if "code" in vars(cls):
            if cls.code in _BY_CODE:
                raise TypeError(f"{_BY_CODE[cls.code].__name__} has the code {cls.code}, too")
            _BY_CODE[cls.code] = cls

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}"

    def __reduce__(self) -> tuple[object, ...]:
        return HoldfastError.from_wire, (self.to_json(),)

    def to_json(self) -> dict[str, object]:
        return {"code": self.code, "message": self.message, "fix": self.fix, "facts": dict(self.facts)}

    @staticmethod
    def from_wire(frame: Mapping[str, object]) -> HoldfastError:
        """The error that an error frame (or `to_json`) describes. Nothing in the frame is trusted."""
        code = frame.get("code")
        code = code if isinstance(code, str) and code else HoldfastError.code
        kind = _BY_CODE.get(code, HoldfastError)
        sent = frame.get("facts")
        facts: dict[str, object] = dict.fromkeys(facts_of(kind))
        if isinstance(sent, dict):
            facts.update((name, value) for name, value in sent.items() if isinstance(name, str))
        message = frame.get("message")
        error = kind.__new__(kind)
        error._set(message if isinstance(message, str) and message else code, **facts)
        if kind is HoldfastError:
            error.code = code
        fix = frame.get("fix")
        if isinstance(fix, str) and fix:
            error.fix = fix
        return error


def facts_of(kind: type[HoldfastError]) -> list[str]:
    """The facts of a class, in the order of its constructor."""
    return [name for name in kind.__annotations__ if name != "fix"]


def declared_values(kind: type, given: Sequence[object], named: Mapping[str, object]) -> dict[str, object]:
    """The arguments of a constructor by name: its parameters are the annotations of `kind`, its defaults attributes."""
    names = list(kind.__annotations__)
    values = {name: vars(kind)[name] for name in names if name in vars(kind)}
    values.update(zip(names, given, strict=False))
    values.update(named)
    if len(given) > len(names) or values.keys() != set(names):
        raise TypeError(f"{kind.__name__} takes {', '.join(names) or 'nothing'}")
    return {name: values[name] for name in names}


class _Text(str):
    """Text of a fact: `!r` in a message quotes it."""

    def __repr__(self) -> str:
        return _short(str(self))


def _short(text: str) -> str:
    """Quoted, free of control characters, and never longer than a line."""
    return ascii(text) if len(text) <= 80 else ascii(text[:80]) + "..."


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items[:10]) + (", ..." if len(items) > 10 else "")


# The request.


class BadRequest(HoldfastError):
    """The form of a request is wrong."""

    code, http_status, exit_code = "bad-request", 400, USAGE
    says = "malformed request: {what}"
    what: str
    fix: str = "send what docs/wire.md describes"


class BadArgument(HoldfastError):
    """A value is invalid: `argument` is its name, `why` the rule it breaks."""

    code, http_status, exit_code = "bad-argument", 400, USAGE
    says = "{argument}: {why}"
    argument: str
    why: str
    fix: str = "give a valid value"


class BadCursor(HoldfastError):
    code, http_status, exit_code = "bad-cursor", 400, USAGE
    says = "not a cursor: {cursor!r}"
    fix = "use the cursor of an earlier read, such as stdout:88412,stderr:0, or 0 for the beginning"
    cursor: str


class BadKey(HoldfastError):
    """No key has this name, or (`why`) the terminal has no bytes for it in its current modes. `suggestions` are
    similar names."""

    code, http_status, exit_code = "bad-key", 400, USAGE
    fix = "name a key such as Enter, C-c, M-x, Up or F5, or send text as `literal`"
    key: str
    suggestions: list[str]
    why: str | None

    def __init__(self, key: str, suggestions: Sequence[str] = (), why: str | None = None) -> None:
        near = list(suggestions)
        message = f"not a key: {_short(key)}: {why}" if why else f"no such key: {_short(key)}"
        super().__init__(message, key=key, suggestions=near, why=why)
        if near:
            self.fix = f"did you mean {_listed(near)}? Text is sent as `literal`"


class BadSize(HoldfastError):
    code, http_status, exit_code = "bad-size", 400, USAGE
    says = "not a terminal size: {size}"
    fix = "give columns from 1 to 1000 and rows from 1 to 500, such as 80x24"
    size: str


class EmptyCommand(HoldfastError):
    code, http_status, exit_code = "empty-command", 400, USAGE
    says = "the command is empty"
    fix = "give a command line or a list whose first item is a program"


# Which session.


class NotFound(HoldfastError):
    code, http_status, exit_code = "not-found", 404, NO_SUCH_SESSION
    says = "no such session: {ref!r}"
    fix = "`hold ls -a` lists every session of this home"
    ref: str


class Removed(HoldfastError):
    code, http_status, exit_code = "removed", 410, NO_SUCH_SESSION
    says = "session {id} was removed"
    fix = "its files are gone; `hold ls -a` lists the sessions that are kept"
    id: str


class AmbiguousId(HoldfastError):
    code, http_status, exit_code = "ambiguous-id", 409, USAGE
    fix = "give more characters of the id"
    ref: str
    candidates: list[str]

    def __init__(self, ref: str, candidates: Sequence[str]) -> None:
        found = list(candidates)
        super().__init__(f"{_short(ref)} matches {len(found)} sessions: {_listed(found)}", ref=ref, candidates=found)


class NameTaken(HoldfastError):
    code, http_status, exit_code = "name-taken", 409, NOT_IN_THIS_STATE
    fix = "choose another name, or `hold stop` the holder first"
    name: str
    holder: str | None

    def __init__(self, name: str, holder: str | None) -> None:
        by = f"running session {holder}" if holder else "another session"
        super().__init__(f"the name {_short(name)} belongs to {by}", name=name, holder=holder)


class KeyReused(HoldfastError):
    code, http_status, exit_code = "key-reused", 409, NOT_IN_THIS_STATE
    fix = "use a new key for a different command, or replace=True to stop the old one and start this one"
    key: str
    holder: str | None

    def __init__(self, key: str, holder: str | None) -> None:
        by = f" (session {holder})" if holder else ""
        message = f"the key {_short(key)} belongs to another command{by}"
        super().__init__(message, key=key, holder=holder)


class Superseded(HoldfastError):
    """While this start waited for its turn, a newer start with the same key and `replace` came."""

    code, http_status, exit_code = "superseded", 409, NOT_IN_THIS_STATE
    says = "a newer start with the key {key!r} replaced this one"
    fix = "nothing to do: the newer command is running"
    key: str


# The state of a session.


class SessionEnded(HoldfastError):
    """The facts `code` and `signal` are those of the exit; `code` of the error itself is the slug."""

    code, http_status, exit_code = "session-ended", 409, NOT_IN_THIS_STATE
    fix = "read its output with `hold logs`, or start it again with `hold restart`"
    id: str
    signal: str | None
    ended_at: str | None

    def __init__(self, id: str, code: int | None, signal: str | None, ended_at: str | None) -> None:
        how = f" by signal {signal}" if signal is not None else f" with code {code}" if code is not None else ""
        when = f" at {ended_at}" if ended_at else ""
        super().__init__(f"session {id} ended{how}{when}", id=id, code=code, signal=signal, ended_at=ended_at)


class AlreadyEnded(HoldfastError):
    """There is nothing left to stop. `snapshot` is the last one."""

    code, http_status, exit_code = "already-ended", 409, NOT_IN_THIS_STATE
    says = "{id} is already {status}"
    fix = "nothing to do: `hold logs` reads its output"
    id: str
    status: str
    snapshot: Mapping[str, object] | None = None


class StillRunning(HoldfastError):
    code, http_status, exit_code = "still-running", 409, NOT_IN_THIS_STATE
    fix = "end it with `hold stop` first"
    id: str
    survivors: list[Mapping[str, object]]

    def __init__(self, id: str, survivors: Sequence[Mapping[str, object]] = (), others: Sequence[str] = ()) -> None:
        which = f"sessions {_listed([id, *others])} are" if others else f"session {id} is"
        pids = _listed([str(each.get("pid")) for each in survivors])
        left = f"; the stop did not end {pids}" if survivors else ""
        super().__init__(f"{which} still running{left}", id=id, survivors=list(survivors))
        if survivors:
            self.fix = "end the remaining processes as a user with permission to signal them, then try again"
        elif others:
            self.fix = "end them with `hold stop` first"


class NotAllowed(HoldfastError):
    """The approval hook refused; nothing was done."""

    code, http_status, exit_code = "not-allowed", 403, FAILED
    says = "{tool} was not allowed: {why}"
    fix = "try another approach, or ask the user"
    tool: str
    why: str


class RunInProgress(HoldfastError):
    """One turn at a time: the current turn looks for new signals before it ends."""

    code, http_status, exit_code = "run-in-progress", 409, NOT_IN_THIS_STATE
    says = "a turn is in progress"
    fix = "nothing to do: the current turn handles new signals"


class KindReserved(HoldfastError):
    """Daemons of this kind belong to the host: it registers them, and they cannot be started here."""

    code, http_status, exit_code = "kind-reserved", 409, NOT_IN_THIS_STATE
    says = 'kind "{kind:.40}" is reserved'
    fix = "register an object of your own of this kind"
    kind: str


class StdinClosed(HoldfastError):
    code, http_status, exit_code = "stdin-closed", 409, NOT_IN_THIS_STATE
    says = "stdin of {id} is closed: {why}"
    fix = 'start the command with stdin="open" to write to it'
    id: str
    why: str


class NotATty(HoldfastError):
    code, http_status, exit_code = "not-a-tty", 409, NOT_IN_THIS_STATE
    fix = "`hold logs -f` follows its output; start the command with tty=True for keys, screen, attach and resize"
    id: str

    def __init__(self, id: str) -> None:
        super().__init__(f"session {id} runs on pipes, not on a terminal", id=id)
        self.fix = self.fix.replace("-f`", f"-f {id}`")


class SelfAttach(HoldfastError):
    code, http_status, exit_code = "self-attach", 409, NOT_IN_THIS_STATE
    says = "cannot attach to session {id} from inside it"
    fix = "attach from a terminal outside the session; `hold logs` reads it from inside"
    id: str


class SizePolicy(HoldfastError):
    """An attached client decides the size, by the session's policy."""

    code, http_status, exit_code = "size-policy", 409, NOT_IN_THIS_STATE
    says = "client {client} controls the size of this terminal (policy {policy})"
    fix = 'resize from that client, detach it, or start with the size policy "fixed"'
    policy: str
    client: str


class ObserveOnly(HoldfastError):
    code, http_status, exit_code = "observe-only", 403, NOT_IN_THIS_STATE
    says = "client {client} only observes: it cannot type or resize"
    fix = "attach again with the role control"
    client: str


class ConsumerMismatch(HoldfastError):
    code, http_status, exit_code = "consumer-mismatch", 409, NOT_IN_THIS_STATE
    says = "consumer {consumer!r} exists with other owners"
    fix = "use another consumer name, or the owners it was created with"
    consumer: str


# The runner.


class IdentityMismatch(HoldfastError):
    """The process that answers, or that has the recorded pid, is not the recorded process. Nothing was sent to it."""

    code, http_status, exit_code = "identity-mismatch", 409, NOT_REACHED
    says = "session {id}: {part} is {found}, but {recorded} was recorded"
    fix = "nothing was signalled; `hold doctor` explains what is left of the session"
    id: str
    part: str
    recorded: object
    found: object


class RunnerGone(HoldfastError):
    code, http_status, exit_code = "runner-gone", 409, NOT_REACHED
    fix = "`hold logs` reads what was kept; `hold stop` ends the command if it is still running"
    id: str
    state: str
    pid: int | None

    def __init__(self, id: str, state: str, pid: int | None) -> None:
        left = f"its command is alive as pid {pid}" if pid and state == "stale" else "its command is gone too"
        super().__init__(f"the runner of session {id} is gone ({state}); {left}", id=id, state=state, pid=pid)


class Unreachable(HoldfastError):
    code, http_status, exit_code = "unreachable", 504, NOT_REACHED
    fix = "try again; `hold logs` reads the files without the runner"
    id: str
    pid: int | None
    waited_s: float

    def __init__(self, id: str, pid: int | None, waited_s: float) -> None:
        within = f"within {waited_s:g} s" if waited_s else "and may be stopped (SIGSTOP)"
        message = f"the runner of session {id} (pid {pid}) is alive but did not answer {within}"
        super().__init__(message, id=id, pid=pid, waited_s=waited_s)


class ProtocolError(HoldfastError):
    code, http_status, exit_code = "protocol-error", 502, FAILED
    says = "protocol error: {why}"
    fix = "the other side is not a runner, or its version is incompatible; run `hold doctor`"
    why: str


class Unsupported(HoldfastError):
    code, http_status, exit_code = "unsupported", 501, FAILED
    fix = "do not use it; if only the runner is too old, restart the session with `hold restart`"
    feature: str
    version: str | None

    def __init__(self, feature: str, version: str | None = None, *, of: str = "the runner") -> None:
        whom = f"{of} (version {version})" if version else "this version"
        super().__init__(f"{whom} does not support {feature}", feature=feature, version=version)


class ForeignPeer(HoldfastError):
    code, http_status, exit_code = "foreign-peer", 403, FAILED
    says = "the other end of the socket belongs to uid {uid}"
    fix = "connect as the user who owns this home"
    uid: int


# Output.


class OutputDropped(HoldfastError):
    code, http_status, exit_code = "output-dropped", 410, NOT_IN_THIS_STATE
    says = "{stream} before offset {dropped_before} was dropped to keep the log within its cap"
    fix = "read from dropped_before on, or start with a larger log_cap"
    stream: str
    dropped_before: int


class OffsetAhead(HoldfastError):
    code, http_status, exit_code = "offset-ahead", 416, USAGE
    says = "offset {offset} of {stream} is ahead of its end, {end}"
    fix = "use the cursor of an earlier read of this session"
    stream: str
    offset: int
    end: int


# Limits and resources.


class TooLarge(HoldfastError):
    code, http_status, exit_code = "too-large", 413, FAILED
    fix = "send it in smaller pieces"
    what: str
    limit: int

    def __init__(self, what: str, limit: int, fix: str | None = None, *, unit: str = "bytes") -> None:
        super().__init__(f"{what} is larger than {limit} {unit}", what=what, limit=limit)
        if fix:
            self.fix = fix


class SpawnError(HoldfastError):
    """The command never started: `step` failed on `path`."""

    code, http_status, exit_code = "spawn-error", 422, FAILED
    fix = "check that the program and the directory exist and may be used"
    errno: int
    step: str
    path: str | None

    def __init__(self, errno: int, step: str, path: str | None) -> None:
        of = f" of {path}" if path else ""
        message = f"the command could not be started: {step}{of}: {os.strerror(errno)}"
        super().__init__(message, errno=errno, step=step, path=path)


class PtyUnavailable(HoldfastError):
    code, http_status, exit_code = "pty-unavailable", 422, FAILED
    fix = "mount devpts or raise kernel.pty.max, or start without tty"
    errno: int
    used: int | None
    allowed: int | None

    def __init__(self, errno: int, used: int | None = None, allowed: int | None = None) -> None:
        # Linux reports "no space left on device", as for a full disk.
        why = "none is free" if errno == _ENOSPC else os.strerror(errno)
        counts = "" if used is None else f" ({used} of {allowed} in use)"
        super().__init__(f"cannot open a PTY: {why}{counts}", errno=errno, used=used, allowed=allowed)


class Busy(HoldfastError):
    code, http_status, exit_code = "busy", 429, FAILED
    says = "busy: {what}"
    fix = "try again shortly"
    what: str


class TooManyClients(HoldfastError):
    code, http_status, exit_code = "too-many-clients", 429, FAILED
    says = "the runner already has {limit} clients"
    fix = "close some connections and try again"
    limit: int


class TooManySessions(HoldfastError):
    code, http_status, exit_code = "too-many-sessions", 429, FAILED
    says = "{limit} sessions are already running"
    fix = "stop some sessions, or raise the limit"
    limit: int


class ShuttingDown(HoldfastError):
    code, http_status, exit_code = "shutting-down", 503, FAILED
    says = "shutting down: no new work is accepted"
    fix = "try again"


class DiskFull(HoldfastError):
    code, http_status, exit_code = "disk-full", 507, FAILED
    says = "no space for {path}: {free} bytes are free"
    fix = "free some space, or let `hold gc` do it"
    path: str
    free: int


class IndexBusy(Busy):
    fix = "try again; if it stays locked, rebuild it with `hold doctor --rebuild`"
    path: str
    waited_s: float
    full: bool

    def __init__(self, path: str, waited_s: float, *, full: bool = False) -> None:
        why = "cannot be used: the disk is full" if full else f"stayed locked for {waited_s:g} s"
        self._set(f"the index {path} {why}", path=path, waited_s=waited_s, full=full)
        if full:
            self.fix = DiskFull.fix


class Timeout(HoldfastError):
    """Only the wait ended; the session still runs."""

    code, http_status, exit_code = "timeout", 504, TIMED_OUT
    says = "{what} did not arrive within {waited_s:g} s"
    fix = "wait again, or longer"
    what: str
    waited_s: float


# Other places.


class PlaceUnreachable(HoldfastError):
    code, http_status, exit_code = "place-unreachable", 502, NOT_REACHED
    says = "{place} cannot be reached: {why}"
    fix = (
        "nothing was started; check that the place is up and that its program (ssh, docker, ...) connects without a "
        "prompt"
    )
    place: str
    why: str


class PlaceGone(HoldfastError):
    code, http_status, exit_code = "place-gone", 502, NOT_REACHED
    says = "{place} is gone: {why}"
    fix = "create the container again, or name another place; nothing was started"
    place: str
    why: str


class PlaceNoPython(HoldfastError):
    code, http_status, exit_code = "place-no-python", 502, FAILED
    says = "{place} has no Python that can run a command there: {why}"
    fix = "install Python 3.9 or later there, or name it in the setting places.python; nothing was started"
    place: str
    why: str


class PlaceUnsupported(HoldfastError):
    code, http_status, exit_code = "place-unsupported", 501, FAILED
    says = "cannot start a runner at the place {place!r}"
    place: str
    fix: str


# Other machines.


class NodeUnreachable(HoldfastError):
    """`sent` says whether the node may have acted on the request: Holdfast never repeats a request."""

    code, http_status, exit_code = "node-unreachable", 504, NOT_REACHED
    says = "the node {node} cannot be reached: {why}"
    fix = "see `hold node ls`; if the request was sent (`sent`), check whether it took effect before you repeat it"
    node: str
    why: str
    sent: bool


class NodeRefused(HoldfastError):
    code, http_status, exit_code = "node-refused", 502, FAILED
    says = "the node {node} was refused: {why}"
    fix = "compare the fingerprints; after `hold node forget` it can be invited again"
    node: str
    why: str


class NodeTaken(HoldfastError):
    code, http_status, exit_code = "node-taken", 409, NOT_IN_THIS_STATE
    says = "the name {node} belongs to another machine, with the fingerprint {fingerprint}"
    fix = "choose another name, or `hold node forget` the first machine"
    node: str
    fingerprint: str


class NodeTwice(HoldfastError):
    """`sent` says whether the first machine may have acted on the request, before the second answered."""

    code, http_status, exit_code = "node-twice", 409, NOT_IN_THIS_STATE
    says = "two machines answer with the key of the node {node}: its home was copied"
    fix = "remove `nodes/key` from the copy and invite it under a name of its own; until then neither is used"
    node: str
    sent: bool


class NoSuchNode(NotFound):
    says = "there is no node {ref!r}"
    fix = "see `hold node ls` for nodes, `hold ls` for the sessions of this home"
    ref: str


class VisitExists(HoldfastError):
    code, http_status, exit_code = "visit-exists", 409, NOT_IN_THIS_STATE
    says = "session {id} of the node {node} has the same id as a session of this home"
    fix = "use the page or `/v1/nodes/NODE/...` for it, or remove the session of this home with `hold rm`"
    id: str
    node: str


class BadInvitation(BadArgument):
    fix = "ask for a new one: `hold node invite NAME` on the other machine"

    def __init__(self, why: str) -> None:
        self._set(f"the invitation cannot be used: {why}", argument="invitation", why=why)


# Files.


class ConfigError(HoldfastError):
    """`line` is None for a value that came from the environment (`file` then is its variable)."""

    code, http_status, exit_code = "config-error", 500, USAGE
    file: str
    line: int | None
    key: str | None
    why: str
    fix: str

    def __init__(self, file: str, line: int | None, key: str | None, why: str, fix: str) -> None:
        where = f"{file}:{line}" if line else file
        about = f"{where}: {key}: " if key else f"{where}: "
        super().__init__(about + why, file=file, line=line, key=key, why=why)
        self.fix = fix


class UnsafeDirectory(HoldfastError):
    """A directory that another user could have made, or could change."""

    code, http_status, exit_code = "unsafe-directory", 500, FAILED
    says = "{path} cannot be used: {why}"
    path: str
    why: str
    fix: str


class UnsafeFile(HoldfastError):
    """A file of another user at a path that we should write to."""

    code, http_status, exit_code = "unsafe-file", 500, FAILED
    says = "{path} was not written: {why}"
    fix = "choose another name, or a directory that only you may write"
    path: str
    why: str


class DamagedRecord(HoldfastError):
    code, http_status, exit_code = "damaged-record", 500, FAILED
    says = "{path} cannot be read: {why}"
    fix = "`hold doctor` moves it to quarantine"
    path: str
    why: str


class MalformedAnswer(DamagedRecord):
    """A runner, or the place it runs in, answered with fields of the wrong type."""

    code, http_status, exit_code = "malformed-answer", 502, FAILED
    says = "invalid answer from the runner of session {session}: {why}"
    fix = "run `hold doctor`: it says how to remove this session"
    session: str
    path: str
    why: str


# Language servers.


class ServerGone(HoldfastError):
    """The language server did not answer: it exited, closed its output, or was stopped."""

    code, http_status, exit_code = "server-gone", 502, FAILED
    fix = "try again when it is running: it is restarted unless it was stopped or failed too often"
    id: str
    server: str
    method: str | None
    why: str

    def __init__(self, id: str, server: str, method: str | None, why: str) -> None:
        asked = f" before it answered {method}" if method else ""
        message = f"language server {_short(server)} ({id}) is gone{asked}: {why}"
        super().__init__(message, id=id, server=server, method=method, why=why)


class ServerRefused(HoldfastError):
    """The language server answered with an error of its own: `number` and `reason` are its words."""

    code, http_status, exit_code = "server-refused", 502, FAILED
    says = "language server {server!r} refused {method}: {reason!r} ({number})"
    fix = "check what the server expects in this request"
    server: str
    method: str
    number: int | None
    reason: str
