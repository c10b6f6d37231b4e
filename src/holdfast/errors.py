"""One class per condition. Facts are attributes, the message is made from them, `fix` says what to do."""

from __future__ import annotations

import os
from errno import ENOSPC as _ENOSPC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FAILED = 1
USAGE = 2
NO_SUCH_SESSION = 3
NOT_IN_THIS_STATE = 4
NOT_REACHED = 5
TIMED_OUT = 124

_BY_CODE: dict[str, type[HoldfastError]] = {}


class HoldfastError(Exception):
    """The base of all. `str()` is the message and the fix in one line."""

    code = "error"
    http_status = 500
    exit_code = FAILED
    fix = "see `hold doctor`"

    def __init__(self, message: str, /, **facts: object) -> None:
        self.message = message
        self.facts = facts
        for name, value in facts.items():
            # A fact named like what every error has (the exit code of a command, say) is in `facts` alone.
            if name not in ("message", "facts") and not hasattr(HoldfastError, name):
                setattr(self, name, value)
        super().__init__(message)

    def __init_subclass__(cls) -> None:
        # One that only words another in its own way has no code of its own.
        if "code" in vars(cls):
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
        facts: dict[str, object] = dict.fromkeys(kind.__annotations__)
        if isinstance(sent, dict):
            facts.update((name, value) for name, value in sent.items() if isinstance(name, str))
        message = frame.get("message")
        error = kind.__new__(kind)
        HoldfastError.__init__(error, message if isinstance(message, str) and message else code, **facts)
        if kind is HoldfastError:
            error.code = code
        fix = frame.get("fix")
        if isinstance(fix, str) and fix:
            error.fix = fix
        return error


class BadRequest(HoldfastError):
    """The form of a request is wrong."""

    code, http_status, exit_code = "bad-request", 400, USAGE
    fix = "send what docs/architecture.md describes"
    what: str

    def __init__(self, what: str, fix: str | None = None) -> None:
        super().__init__(f"malformed request: {what}", what=what)
        if fix:
            self.fix = fix


class BadArgument(HoldfastError):
    """A value is not acceptable: `argument` is its name, `why` the rule it breaks."""

    code, http_status, exit_code = "bad-argument", 400, USAGE
    fix = "give an acceptable value"
    argument: str
    why: str

    def __init__(self, argument: str, why: str, fix: str | None = None) -> None:
        super().__init__(f"{argument}: {why}", argument=argument, why=why)
        if fix:
            self.fix = fix


class BadCursor(HoldfastError):
    code, http_status, exit_code = "bad-cursor", 400, USAGE
    fix = "use the cursor of an earlier read, such as stdout:88412,stderr:0, or 0 for the beginning"
    cursor: str

    def __init__(self, cursor: str) -> None:
        super().__init__(f"not a cursor: {_short(cursor)}", cursor=cursor)


class BadKey(HoldfastError):
    """No key has this name, or (`why`) the terminal has no bytes for it as it stands. `suggestions` are near it."""

    code, http_status, exit_code = "bad-key", 400, USAGE
    fix = "name a key such as Enter, C-c, M-x, Up or F5, or send text as `literal`"
    key: str
    suggestions: list[str]
    why: str | None

    def __init__(self, key: str, suggestions: Sequence[str] = (), why: str | None = None) -> None:
        near = list(suggestions)
        message = f"{_short(key)} is no key: {why}" if why else f"no such key: {_short(key)}"
        super().__init__(message, key=key, suggestions=near, why=why)
        if near:
            self.fix = f"did you mean {_listed(near)}? Text is sent as `literal`"


class BadSize(HoldfastError):
    code, http_status, exit_code = "bad-size", 400, USAGE
    fix = "give rows from 1 to 500 and columns from 1 to 1000, such as 30x120"
    size: str

    def __init__(self, size: str) -> None:
        super().__init__(f"not a terminal size: {_short(size)}", size=size)


class EmptyCommand(HoldfastError):
    code, http_status, exit_code = "empty-command", 400, USAGE
    fix = "give a command line or a list whose first item is a program"

    def __init__(self) -> None:
        super().__init__("the command is empty")


class NotFound(HoldfastError):
    code, http_status, exit_code = "not-found", 404, NO_SUCH_SESSION
    fix = "`hold ls -a` lists every session of this home"
    ref: str

    def __init__(self, ref: str) -> None:
        super().__init__(f"no such session: {_short(ref)}", ref=ref)


class Removed(HoldfastError):
    code, http_status, exit_code = "removed", 410, NO_SUCH_SESSION
    fix = "its files are gone; `hold ls -a` lists what is kept"
    id: str

    def __init__(self, id: str) -> None:
        super().__init__(f"session {id} was removed", id=id)


class AmbiguousId(HoldfastError):
    code, http_status, exit_code = "ambiguous-id", 409, USAGE
    fix = "give more of the id"
    ref: str
    candidates: list[str]

    def __init__(self, ref: str, candidates: Sequence[str]) -> None:
        found = list(candidates)
        super().__init__(f"{_short(ref)} fits {len(found)} sessions: {_listed(found)}", ref=ref, candidates=found)


class NameTaken(HoldfastError):
    code, http_status, exit_code = "name-taken", 409, NOT_IN_THIS_STATE
    fix = "choose another name, or `hold stop` the holder first"
    name: str
    holder: str | None

    def __init__(self, name: str, holder: str | None) -> None:
        by = f"running session {holder}" if holder else "a session that is starting"
        super().__init__(f"the name {_short(name)} belongs to {by}", name=name, holder=holder)


class KeyReused(HoldfastError):
    code, http_status, exit_code = "key-reused", 409, NOT_IN_THIS_STATE
    fix = "use a new key for a different command, or replace=True to put it in the place of the old one"
    key: str
    holder: str | None

    def __init__(self, key: str, holder: str | None) -> None:
        message = f"the key {_short(key)} already stands for another command (session {holder or 'unknown'})"
        super().__init__(message, key=key, holder=holder)


class Superseded(HoldfastError):
    """While this start waited for its turn, a newer replacement of the same key came."""

    code, http_status, exit_code = "superseded", 409, NOT_IN_THIS_STATE
    fix = "nothing to do: the newer one runs"
    key: str

    def __init__(self, key: str) -> None:
        super().__init__(f"a newer start replaced this one under the key {_short(key)}", key=key)


class SessionEnded(HoldfastError):
    """Facts `code` and `signal` tell how; `code` of the error itself is the slug."""

    code, http_status, exit_code = "session-ended", 409, NOT_IN_THIS_STATE
    fix = "read what it printed with `hold logs`, or start it again with `hold restart`"
    id: str
    signal: str | None
    ended_at: str | None

    def __init__(self, id: str, code: int | None, signal: str | None, ended_at: str | None) -> None:
        how = f" by signal {signal}" if signal is not None else f" with code {code}" if code is not None else ""
        when = f" at {ended_at}" if ended_at else ""
        super().__init__(f"session {id} ended{how}{when}", id=id, code=code, signal=signal, ended_at=ended_at)


class AlreadyEnded(HoldfastError):
    """Nothing of it lives: there is nothing to stop. `snapshot` is what is known of it."""

    code, http_status, exit_code = "already-ended", 409, NOT_IN_THIS_STATE
    fix = "nothing to do: `hold logs` reads what it printed"
    id: str
    status: str
    snapshot: Mapping[str, object] | None

    def __init__(self, id: str, status: str, snapshot: Mapping[str, object] | None = None) -> None:
        super().__init__(f"{id} is already {status}", id=id, status=status, snapshot=snapshot)


class StillRunning(HoldfastError):
    code, http_status, exit_code = "still-running", 409, NOT_IN_THIS_STATE
    fix = "end it with `hold stop` first"
    id: str
    survivors: list[Mapping[str, object]]

    def __init__(self, id: str, survivors: Sequence[Mapping[str, object]] = ()) -> None:
        pids = _listed([str(each.get("pid")) for each in survivors])
        left = f": the stop left {pids}" if survivors else ""
        super().__init__(f"session {id} is still running{left}", id=id, survivors=list(survivors))
        if survivors:
            self.fix = "end what is left as the user who may, then try again"


class NotAllowed(HoldfastError):
    """Whoever was asked first did not approve of it; nothing was done."""

    code, http_status, exit_code = "not-allowed", 403, FAILED
    fix = "do something else, or ask the person concerned"
    tool: str
    why: str

    def __init__(self, tool: str, why: str) -> None:
        super().__init__(f"{tool} was not allowed: {why}", tool=tool, why=why)


class RunInProgress(HoldfastError):
    """One turn at a time: whoever is inside looks again before it leaves, and sees what came."""

    code, http_status, exit_code = "run-in-progress", 409, NOT_IN_THIS_STATE
    fix = "nothing to do: the turn that is under way sees what came"

    def __init__(self) -> None:
        super().__init__("a turn is under way")


class KindReserved(HoldfastError):
    """Daemons of this kind are a host's own: it registers them, nobody starts one here."""

    code, http_status, exit_code = "kind-reserved", 409, NOT_IN_THIS_STATE
    fix = "register an object of your own of this kind"
    kind: str

    def __init__(self, kind: str) -> None:
        super().__init__(f'kind "{kind[:40]}" is reserved', kind=kind)


class StdinClosed(HoldfastError):
    code, http_status, exit_code = "stdin-closed", 409, NOT_IN_THIS_STATE
    fix = 'start the command with stdin="open" to write to it'
    id: str
    why: str

    def __init__(self, id: str, why: str) -> None:
        super().__init__(f"the input of session {id} is closed: {why}", id=id, why=why)


class NotATty(HoldfastError):
    code, http_status, exit_code = "not-a-tty", 409, NOT_IN_THIS_STATE
    fix = "`hold logs -f` follows its output; start the command with tty=True for keys, screen, attach and resize"
    id: str

    def __init__(self, id: str) -> None:
        super().__init__(f"session {id} runs on pipes, not on a terminal", id=id)
        self.fix = self.fix.replace("-f`", f"-f {id}`")


class SelfAttach(HoldfastError):
    code, http_status, exit_code = "self-attach", 409, NOT_IN_THIS_STATE
    fix = "attach from a terminal outside the session; `hold logs` reads it from inside"
    id: str

    def __init__(self, id: str) -> None:
        super().__init__(f"session {id} cannot be attached from inside itself", id=id)


class SizePolicy(HoldfastError):
    """An attached client decides the size, by the session's policy."""

    code, http_status, exit_code = "size-policy", 409, NOT_IN_THIS_STATE
    fix = 'resize from that client, detach it, or start with the size policy "fixed"'
    policy: str
    client: str

    def __init__(self, policy: str, client: str) -> None:
        super().__init__(f"client {client} sizes this terminal (policy {policy})", policy=policy, client=client)


class ObserveOnly(HoldfastError):
    code, http_status, exit_code = "observe-only", 403, NOT_IN_THIS_STATE
    fix = "attach again with the role control"
    client: str

    def __init__(self, client: str) -> None:
        super().__init__(f"client {client} observes: it can neither type nor resize", client=client)


class ConsumerMismatch(HoldfastError):
    code, http_status, exit_code = "consumer-mismatch", 409, NOT_IN_THIS_STATE
    fix = "use another consumer name, or the owners it was made with"
    consumer: str

    def __init__(self, consumer: str) -> None:
        super().__init__(f"consumer {_short(consumer)} exists with other owners", consumer=consumer)


class IdentityMismatch(HoldfastError):
    """What answers, or what has the recorded pid, is not what was recorded. Nothing was sent to it."""

    code, http_status, exit_code = "identity-mismatch", 409, NOT_REACHED
    fix = "nothing was signalled; `hold doctor` explains what is left of the session"
    id: str
    part: str
    recorded: object
    found: object

    def __init__(self, id: str, part: str, recorded: object, found: object) -> None:
        message = f"session {id}: {part} is {found}, recorded was {recorded}"
        super().__init__(message, id=id, part=part, recorded=recorded, found=found)


class RunnerGone(HoldfastError):
    code, http_status, exit_code = "runner-gone", 409, NOT_REACHED
    fix = "`hold logs` reads what was kept; `hold stop` ends the command where it still lives"
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


class OutputDropped(HoldfastError):
    code, http_status, exit_code = "output-dropped", 410, NOT_IN_THIS_STATE
    fix = "read from dropped_before on, or start with a larger log_cap"
    stream: str
    dropped_before: int

    def __init__(self, stream: str, dropped_before: int) -> None:
        message = f"{stream} before offset {dropped_before} was dropped to keep the log within its cap"
        super().__init__(message, stream=stream, dropped_before=dropped_before)


class OffsetAhead(HoldfastError):
    code, http_status, exit_code = "offset-ahead", 416, USAGE
    fix = "use the cursor of an earlier read of this session"
    stream: str
    offset: int
    end: int

    def __init__(self, stream: str, offset: int, end: int) -> None:
        message = f"offset {offset} of {stream} is ahead of its end, {end}"
        super().__init__(message, stream=stream, offset=offset, end=end)


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
    """The command never came to life: `step` failed on `path`."""

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
        # Linux says that no space is left on the device, as it does of a full disk.
        why = "none is left" if errno == _ENOSPC else os.strerror(errno)
        counts = "" if used is None else f" ({used} of {allowed} in use)"
        super().__init__(f"no PTY could be opened: {why}{counts}", errno=errno, used=used, allowed=allowed)


class Busy(HoldfastError):
    code, http_status, exit_code = "busy", 429, FAILED
    fix = "try again shortly"
    what: str

    def __init__(self, what: str) -> None:
        super().__init__(f"busy: {what}", what=what)


class IndexBusy(HoldfastError):
    code, http_status, exit_code = "index-busy", 503, FAILED
    fix = "try again; if it stays so, `hold doctor --rebuild` makes the index anew"
    path: str
    waited_s: float
    full: bool

    def __init__(self, path: str, waited_s: float, *, full: bool = False) -> None:
        why = "cannot be used: the disk is full" if full else f"stayed locked for {waited_s:g} s"
        super().__init__(f"the index {path} {why}", path=path, waited_s=waited_s, full=full)
        if full:
            self.fix = DiskFull.fix


class TooManyClients(HoldfastError):
    code, http_status, exit_code = "too-many-clients", 429, FAILED
    fix = "close some connections and try again"
    limit: int

    def __init__(self, limit: int) -> None:
        super().__init__(f"the runner already has {limit} clients", limit=limit)


class TooManySessions(HoldfastError):
    code, http_status, exit_code = "too-many-sessions", 429, FAILED
    fix = "stop some sessions, or raise the limit"
    limit: int

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} sessions are already running", limit=limit)


class Unsupported(HoldfastError):
    code, http_status, exit_code = "unsupported", 501, FAILED
    fix = "do without, or `hold restart` the session where only its runner is too old"
    feature: str
    version: str | None

    def __init__(self, feature: str, version: str | None = None) -> None:
        whom = f"the runner (version {version})" if version else "this version"
        super().__init__(f"{whom} does not support {feature}", feature=feature, version=version)


class PlaceUnreachable(HoldfastError):
    code, http_status, exit_code = "place-unreachable", 502, NOT_REACHED
    fix = "see that the place is up and that its program reaches it without asking anything; nothing was started"
    place: str
    why: str

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place} cannot be reached: {why}", place=place, why=why)


class PlaceGone(HoldfastError):
    code, http_status, exit_code = "place-gone", 502, NOT_REACHED
    fix = "make the container again, or name another place; nothing was started"
    place: str
    why: str

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place} is gone: {why}", place=place, why=why)


class PlaceNoPython(HoldfastError):
    code, http_status, exit_code = "place-no-python", 502, FAILED
    fix = "install Python 3.9 or later there, or name it in the setting places.python; nothing was started"
    place: str
    why: str

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place} has no Python that can run a command there: {why}", place=place, why=why)


class PlaceUnsupported(HoldfastError):
    code, http_status, exit_code = "place-unsupported", 501, FAILED
    fix = 'use place="local", or a place of the kinds ssh, docker, podman, apptainer, singularity'
    place: str

    def __init__(self, place: str) -> None:
        super().__init__(f"no way to start a runner at the place {_short(place)}", place=place)


class ShuttingDown(HoldfastError):
    code, http_status, exit_code = "shutting-down", 503, FAILED
    fix = "try again"

    def __init__(self) -> None:
        super().__init__("shutting down, no new work is taken")


class DiskFull(HoldfastError):
    code, http_status, exit_code = "disk-full", 507, FAILED
    fix = "free some space, or let `hold gc` do it"
    path: str
    free: int

    def __init__(self, path: str, free: int) -> None:
        super().__init__(f"no space for {path}: {free} bytes are free", path=path, free=free)


class Timeout(HoldfastError):
    """Only the waiting ended; the session goes on."""

    code, http_status, exit_code = "timeout", 504, TIMED_OUT
    fix = "wait again, or longer"
    what: str
    waited_s: float

    def __init__(self, what: str, waited_s: float) -> None:
        super().__init__(f"{what} did not come within {waited_s:g} s", what=what, waited_s=waited_s)


class ConfigError(HoldfastError):
    """`line` is None for a value that came from the environment (`file` then is its variable)."""

    code, http_status, exit_code = "config-error", 500, USAGE
    file: str
    line: int | None
    key: str | None
    why: str

    def __init__(self, file: str, line: int | None, key: str | None, why: str, fix: str) -> None:
        where = f"{file}:{line}" if line else file
        about = f"{where}: {key}: " if key else f"{where}: "
        super().__init__(about + why, file=file, line=line, key=key, why=why)
        self.fix = fix


class UnsafeDirectory(HoldfastError):
    """A directory that somebody else could have planted, or could change under us."""

    code, http_status, exit_code = "unsafe-directory", 500, FAILED
    path: str
    why: str

    def __init__(self, path: str, why: str, fix: str) -> None:
        super().__init__(f"{path} cannot be used: {why}", path=path, why=why)
        self.fix = fix


class ProtocolError(HoldfastError):
    code, http_status, exit_code = "protocol-error", 502, FAILED
    fix = "the other side is no runner, or of an incompatible version; `hold doctor` tells"
    why: str

    def __init__(self, why: str) -> None:
        super().__init__(f"the conversation broke down: {why}", why=why)


class ServerGone(HoldfastError):
    """The language server did not live to answer: it exited, closed its output, or was stopped."""

    code, http_status, exit_code = "server-gone", 502, FAILED
    fix = "ask again when it runs: it is restarted unless it was stopped or failed too often"
    id: str
    server: str
    method: str | None
    why: str

    def __init__(self, id: str, server: str, method: str | None, why: str) -> None:
        asked = f" before it answered {method}" if method else ""
        super().__init__(
            f"language server {_short(server)} ({id}) is gone{asked}: {why}",
            id=id,
            server=server,
            method=method,
            why=why,
        )


class ServerRefused(HoldfastError):
    """The language server answered with an error of its own: `number` and `reason` are its words."""

    code, http_status, exit_code = "server-refused", 502, FAILED
    fix = "see what the server expects of this request"
    server: str
    method: str
    number: int | None
    reason: str

    def __init__(self, server: str, method: str, number: int | None, reason: str) -> None:
        told = f"language server {_short(server)} refused {method}: {_short(reason)} ({number})"
        super().__init__(told, server=server, method=method, number=number, reason=reason)


class DamagedRecord(HoldfastError):
    code, http_status, exit_code = "damaged-record", 500, FAILED
    fix = "`hold doctor` moves it to quarantine"
    path: str
    why: str

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} cannot be read: {why}", path=path, why=why)


class UnsafeFile(HoldfastError):
    """A file that somebody else put where we should write."""

    code, http_status, exit_code = "unsafe-file", 500, FAILED
    fix = "choose another name, or a directory that only you may write"
    path: str
    why: str

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} is not written to: {why}", path=path, why=why)


class MalformedAnswer(DamagedRecord):
    """A runner, or the place it runs in, answered with fields of the wrong type."""

    code, http_status, exit_code = "malformed-answer", 502, FAILED
    fix = "run `hold doctor`: it says how to remove this session"
    session: str
    path: str
    why: str

    def __init__(self, session: str, path: str, why: str) -> None:
        message = f"invalid answer from the runner of session {session}: {why}"
        HoldfastError.__init__(self, message, session=session, path=path, why=why)


class ForeignPeer(HoldfastError):
    code, http_status, exit_code = "foreign-peer", 403, FAILED
    fix = "connect as the user whose home it is"
    uid: int

    def __init__(self, uid: int) -> None:
        super().__init__(f"the other end of the socket belongs to uid {uid}", uid=uid)


def _short(text: str) -> str:
    """Quoted, free of control characters, and never longer than a line."""
    return ascii(text) if len(text) <= 80 else ascii(text[:80]) + "..."


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items[:10]) + (", ..." if len(items) > 10 else "")
