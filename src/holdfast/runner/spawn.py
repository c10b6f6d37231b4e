"""From a spec to a running command.

`posix_spawn` (a vfork underneath) starts the command in half the time of a fork of the interpreter and reports
exec's errno by itself. What it cannot do, the runner does to itself just before and undoes just after: it is
single-threaded, so nobody sees the moment in between.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import sys

from . import libc_spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .tty import Tty

LIMITS = {
    name[len("RLIMIT_") :].lower(): getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")
}
# A chatty command gets a wider pipe, so that it and the runner take turns less often.
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_OOM_SCORE = "/proc/self/oom_score_adj"
_FIONREAD = 0x541B


class SpawnFailed(Exception):
    """The command never came to be: at which step, why, and for which path."""

    def __init__(self, number: int, step: str, path: str) -> None:
        super().__init__(f"{step}: {os.strerror(number)}: {path}")
        self.errno = number
        self.step = step
        self.path = path

    def record(self) -> dict[str, Any]:
        name = errno.errorcode.get(self.errno, str(self.errno))
        return {"errno": self.errno, "name": name, "step": self.step, "path": self.path, "message": str(self)}


class Command:
    """A spawned command and our ends of its pipes or its terminal. `stdin` is None when it reads from /dev/null, and
    on a terminal, which is written to by its keyboard."""

    def __init__(self, pid: int, stdin: int | None, outputs: dict[str, int]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.outputs = outputs


def spawn(
    spec: dict[str, Any], environment: dict[str, str], passed: list[tuple[int, int]], tty: Tty | None = None
) -> Command:
    """Start what `spec` says, over pipes or on `tty`. `passed` are (our descriptor, the command's number) pairs."""
    if tty is not None:
        return _spawn_on(tty, spec, environment, passed)
    argv = arguments(spec)
    ours: list[int] = []
    theirs: list[int] = []
    try:
        stdin = _open_stdin(spec["stdin"] == "open", ours, theirs)
        outputs: dict[str, int] = {}
        out_theirs = _open_output("stdout", outputs, ours, theirs)
        err_theirs = out_theirs if spec["merge_stderr"] else _open_output("stderr", outputs, ours, theirs)
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, theirs[0], 0)]
        actions += [(os.POSIX_SPAWN_DUP2, out_theirs, 1), (os.POSIX_SPAWN_DUP2, err_theirs, 2)]
        actions += _pass(passed, theirs)
        pid = _spawn(spec, argv, environment, actions)
    except BaseException:
        for fd in ours:
            os.close(fd)
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    for fd in ours:
        os.set_blocking(fd, False)
    return Command(pid, stdin, outputs)


def _spawn_on(tty: Tty, spec: dict[str, Any], environment: dict[str, str], passed: list[tuple[int, int]]) -> Command:
    """Start what `spec` says on a terminal: as leader of a new session, which gets its controlling terminal by being
    the first to open one. Also then the group in the foreground is its own."""
    theirs: list[int] = []
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, tty.path, os.O_RDWR, 0)]
    actions += [(os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
    try:
        actions += _pass(passed, theirs)
        pid = _spawn(spec, arguments(spec), environment, actions, setsid=True)
    finally:
        for fd in theirs:
            os.close(fd)
    return Command(pid, None, {"tty": tty.master})


def arguments(spec: dict[str, Any]) -> list[str]:
    command = spec["command"]
    if not isinstance(command, str):
        return list(command)
    shell = spec["shell"]
    return [*shell, command] if isinstance(shell, list) else [shell, "-c", command]


def widen(fd: int) -> None:
    try:
        fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        pass  # the user's share of pipe memory is used up, or no pipe at all: the narrow one works too


def buffered(fd: int) -> int:
    """How many bytes wait in this pipe."""
    return int.from_bytes(fcntl.ioctl(fd, _FIONREAD, bytes(4)), sys.byteorder)


def _open_stdin(is_open: bool, ours: list[int], theirs: list[int]) -> int | None:
    if not is_open:
        theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        return None
    reader, writer = _pipe("stdin")
    theirs.append(reader)
    ours.append(writer)
    return writer


def _open_output(name: str, outputs: dict[str, int], ours: list[int], theirs: list[int]) -> int:
    reader, writer = _pipe(name)
    ours.append(reader)
    theirs.append(writer)
    outputs[name] = reader
    return writer


def _pipe(name: str) -> tuple[int, int]:
    try:
        return os.pipe()
    except OSError as problem:
        raise SpawnFailed(problem.errno or 0, "pipe", name) from None


def _pass(passed: list[tuple[int, int]], theirs: list[int]) -> list[tuple[Any, ...]]:
    """Move descriptors that stand where another one has to go out of the way first."""
    wanted = {number for _, number in passed}
    actions = []
    for fd, number in passed:
        source = fd
        if fd in wanted and fd != number:
            source = os.dup(fd)
            while source in wanted:
                theirs.append(source)
                source = os.dup(fd)
            theirs.append(source)
        actions.append((os.POSIX_SPAWN_DUP2, source, number))
    return actions


def _spawn(
    spec: dict[str, Any],
    argv: list[str],
    environment: dict[str, str],
    actions: list[tuple[Any, ...]],
    *,
    setsid: bool = False,
) -> int:
    cwd = spec["cwd"]
    try:
        os.chdir(cwd)
    except OSError as problem:
        raise SpawnFailed(problem.errno or 0, "cwd", cwd) from None
    before = os.umask(spec["umask"])
    # Before the limits, one of which may leave no descriptor to write it with.
    score = _raise_oom_score(spec["oom_score_adj"])
    undo: list[tuple[int, tuple[int, int]]] = []
    try:
        numbers = [number for action in actions for number in action[1:3] if isinstance(number, int)]
        _limit_self(spec["limits"], undo, descriptors=1 + max(numbers))
        path = _find(argv[0], environment)
        try:
            pid = libc_spawn.spawn(path, [spec["argv0"] or argv[0], *argv[1:]], environment, actions, setsid)
        except OSError as problem:
            raise SpawnFailed(problem.errno or 0, _exec_step(path, problem.errno), path) from None
        except ValueError:
            raise SpawnFailed(errno.EINVAL, "exec", path) from None
    finally:
        for limit, values in undo:
            resource.setrlimit(limit, values)
        _restore_oom_score(score)
        os.umask(before)
        os.chdir("/")
    _harden_limits(pid, spec["limits"])
    return pid


def _find(name: str, environment: dict[str, str]) -> str:
    if "/" in name:
        return name
    refused = None
    for directory in environment.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory or ".", name)
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            refused = path
    if refused is not None:
        raise SpawnFailed(errno.EACCES, "exec", refused)
    raise SpawnFailed(errno.ENOENT, "exec", name)


def _exec_step(path: str, number: int | None) -> str:
    # ENOENT for a file that is there means the interpreter in its first line (or its loader) is missing.
    return "interpreter" if number == errno.ENOENT and os.path.exists(path) else "exec"


def _limit_self(limits: dict[str, list[int]], undo: list[tuple[int, tuple[int, int]]], descriptors: int) -> None:
    """Soft limits are inherited from the first instruction on, and can be taken back: `undo` tells to what. The one
    for descriptors stays wide enough to hand them over; the exact one follows right after the birth."""
    for name, (soft, hard) in limits.items():
        limit = LIMITS[name]
        current = resource.getrlimit(limit)
        if current == (soft, hard):
            continue
        ceiling = current[1]
        wanted = soft if ceiling == resource.RLIM_INFINITY or (0 <= soft <= ceiling) else ceiling
        if name == "nofile" and 0 <= wanted < descriptors:
            wanted = min(descriptors, current[0]) if current[0] >= 0 else descriptors
        try:
            resource.setrlimit(limit, (wanted, ceiling))
        except (OSError, ValueError):
            raise SpawnFailed(errno.EPERM, "limits", name) from None
        undo.append((limit, current))


def _harden_limits(pid: int, limits: dict[str, list[int]]) -> None:
    """Hard limits cannot be taken back from oneself, so the command gets them from outside right after its birth.
    Its soft ones have been in force all along."""
    if not hasattr(resource, "prlimit"):
        return
    for name, (soft, hard) in limits.items():
        try:
            resource.prlimit(pid, LIMITS[name], (soft, hard))
        except (OSError, ValueError):
            continue  # already gone, or above what we may grant: the inherited ceiling stays


def _raise_oom_score(wanted: int) -> bytes | None:
    """The kernel takes the command before its runner. Returns what to write back, None when nothing changed."""
    if not wanted:
        return None
    try:
        fd = os.open(_OOM_SCORE, os.O_RDWR | os.O_CLOEXEC)
        try:
            before = os.read(fd, 32).strip()
            if int(before) >= wanted:
                return None
            os.write(fd, b"%d" % wanted)
        finally:
            os.close(fd)
    except OSError:
        return None
    return before


def _restore_oom_score(before: bytes | None) -> None:
    if before is not None:
        fd = os.open(_OOM_SCORE, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, before)
        finally:
            os.close(fd)
