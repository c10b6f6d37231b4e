"""From a spec to a running command.

`posix_spawn` (a vfork underneath) starts the command in half the time of a fork of the interpreter and reports
exec's errno by itself. What it cannot do, the runner does to itself just before and undoes just after: it is
single-threaded, so no other code runs in between.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import sys

from ..core.kernel_signals import DEFAULTED, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .process_tree import MemoryGroup
    from .terminal.pty import Tty


# `posix_spawn` of the C library, called with a set of signals that `os.posix_spawn` cannot express.
#
# glibc keeps signals 32 and 33 for its threads. It leaves them ignored in everything it spawns, unless they are in
# the set of signals that go back to the default, and its `sigaddset`, which Python uses, refuses to put them there. A
# command that was given ignored signals passes them on to all it starts. So the set is made here, bit by bit.
#
# The numbers of the flags are those of Linux. Other systems have others (on macOS 0x80 starts the process suspended),
# and get `os.posix_spawn`.


_SETPGROUP, _SETSIGDEF, _SETSIGMASK, _SETSID = 0x02, 0x04, 0x08, 0x80
# More than the opaque structures have in any C library; glibc and musl need 336 and 80 bytes.
_ROOM_BYTES = 1024
_SIGNALS = 64
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
_Set = ctypes.c_ulong * (1024 // _WORD_BITS)

_ENCODING = sys.getfilesystemencoding()

_libc = ctypes.CDLL(None)
_EMPTY = _Set()
_ALL = _Set()
for _number in range(1, _SIGNALS + 1):
    if _number not in (signal.SIGKILL, signal.SIGSTOP):
        _ALL[(_number - 1) // _WORD_BITS] |= 1 << (_number - 1) % _WORD_BITS
# Made at the first use of each, and used for every start from then on.
_attributes: dict[bool, Any] = {}


def posix_spawn(
    path: str,
    argv: list[str],
    environment: dict[str, str],
    actions: list[tuple[Any, ...]],
    setsid: bool,
    memory: MemoryGroup | None = None,
) -> int:
    """The pid of a new process with every signal at its default and none blocked, as leader of its own process group,
    or of its own session with `setsid`, in the control group `memory`. OSError as `os.posix_spawn` raises it,
    ValueError for what cannot be passed."""
    if sys.platform != "linux":
        group: dict[str, Any] = {"setsid": True} if setsid else {"setpgroup": 0}
        return os.posix_spawn(
            path, argv, environment, file_actions=actions, **group, setsigmask=[], setsigdef=DEFAULTED
        )
    if any(not name or "=" in name for name in environment):
        raise ValueError("illegal environment variable name")
    words = _strings(argv)
    variables = _strings([f"{name}={value}" for name, value in environment.items()])
    (where,) = _encoded([path])
    if setsid not in _attributes:
        _attributes[setsid] = _make_attributes(setsid)
    steps = ctypes.create_string_buffer(_ROOM_BYTES)
    pid = ctypes.c_int()
    _check(_libc.posix_spawn_file_actions_init(steps))
    try:
        for action in actions:
            _check(_add(steps, action))
        # Until its exec the new process shares our memory: if the group had no room for our copy of the arguments, the
        # kernel would kill us with it.
        if memory is not None:
            memory.enter()
        try:
            _check(_libc.posix_spawn(ctypes.byref(pid), where, steps, _attributes[setsid], words, variables), path)
        finally:
            if memory is not None:
                memory.leave()
    finally:
        _libc.posix_spawn_file_actions_destroy(steps)
    return pid.value


def _make_attributes(setsid: bool) -> Any:
    attributes = ctypes.create_string_buffer(_ROOM_BYTES)
    flags = _SETSIGDEF | _SETSIGMASK | (_SETSID if setsid else _SETPGROUP)
    _check(_libc.posix_spawnattr_init(attributes))
    _check(_libc.posix_spawnattr_setflags(attributes, ctypes.c_short(flags)))
    _check(_libc.posix_spawnattr_setpgroup(attributes, ctypes.c_int(0)))
    _check(_libc.posix_spawnattr_setsigmask(attributes, _EMPTY))
    _check(_libc.posix_spawnattr_setsigdefault(attributes, _ALL))
    return attributes


def _add(steps: Any, action: tuple[Any, ...]) -> int:
    if action[0] == os.POSIX_SPAWN_DUP2:
        return int(_libc.posix_spawn_file_actions_adddup2(steps, action[1], action[2]))
    _, fd, path, flags, mode = action
    return int(_libc.posix_spawn_file_actions_addopen(steps, fd, *_encoded([path]), flags, mode))


def _strings(values: list[str]) -> Any:
    return (ctypes.c_char_p * (len(values) + 1))(*_encoded(values))


def _encoded(values: list[str]) -> list[bytes]:
    found = [value.encode(_ENCODING, "surrogateescape") for value in values]
    if any(b"\0" in value for value in found):
        raise ValueError("embedded null byte")
    return found


def _check(number: int, path: str | None = None) -> None:
    if number:
        raise OSError(number, os.strerror(number), path)


LIMITS = {
    name[len("RLIMIT_") :].lower(): getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")
}
_OOM_SCORE = "/proc/self/oom_score_adj"


class SpawnFailed(Exception):
    """The command could not be started: at which step, why, and for which path."""

    def __init__(self, number: int, step: str, path: str) -> None:
        super().__init__(f"{step}: {os.strerror(number)}: {path}")
        self.errno = number
        self.step = step
        self.path = path

    def record(self) -> dict[str, Any]:
        name = errno.errorcode.get(self.errno, str(self.errno))
        return {"errno": self.errno, "name": name, "step": self.step, "path": self.path, "message": str(self)}


class Spawned:
    """A spawned command and our ends of its pipes or its terminal. `stdin` is None when it reads from /dev/null, and
    on a terminal, which is written to by its keyboard."""

    def __init__(self, pid: int, stdin: int | None, outputs: dict[str, int]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.outputs = outputs


def spawn(
    spec: dict[str, Any],
    environment: dict[str, str],
    passed: list[tuple[int, int]],
    tty: Tty | None = None,
    memory: MemoryGroup | None = None,
) -> Spawned:
    """Start what `spec` says, over pipes or on `tty`. `passed` are (our descriptor, the command's number) pairs."""
    stdin: int | None = None
    outputs: dict[str, int] = {}
    ours: list[int] = []
    theirs: list[int] = []
    actions: list[tuple[Any, ...]]
    try:
        if tty is None:
            if spec["stdin"] == "open":
                reader, stdin = _pipe("stdin")
                ours.append(stdin)
                theirs.append(reader)
            else:
                theirs.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            for name in ("stdout",) if spec["merge_stderr"] else ("stdout", "stderr"):
                outputs[name], writer = _pipe(name)
                ours.append(outputs[name])
                theirs.append(writer)
            actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((*theirs[:2], theirs[-1]))]
        else:
            # The leader of a new session gets its controlling terminal by being the first to open one, and its own
            # group is in the foreground then.
            outputs["tty"] = tty.master
            actions = [(os.POSIX_SPAWN_OPEN, 0, tty.path, os.O_RDWR, 0)]
            actions += [(os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
        actions += _pass(passed, theirs)
        pid = _spawn_in_its_setting(spec, environment, actions, tty is not None, memory)
    except BaseException:
        for fd in ours:
            os.close(fd)
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    for fd in ours:
        os.set_blocking(fd, False)
    return Spawned(pid, stdin, outputs)


def arguments(spec: dict[str, Any]) -> list[str]:
    command = spec["command"]
    if not isinstance(command, str):
        return list(command)
    shell = spec["shell"]
    return [*shell, command] if isinstance(shell, list) else [shell, "-c", command]


def _pipe(name: str) -> tuple[int, int]:
    try:
        return os.pipe()
    except OSError as problem:
        raise SpawnFailed(problem.errno or 0, "pipe", name) from None


def _pass(passed: list[tuple[int, int]], theirs: list[int]) -> list[tuple[Any, ...]]:
    """The actions that give the command its passed descriptors; one whose number another is to get is duplicated
    first."""
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


def _spawn_in_its_setting(
    spec: dict[str, Any],
    environment: dict[str, str],
    actions: list[tuple[Any, ...]],
    setsid: bool,
    memory: MemoryGroup | None,
) -> int:
    """With its working directory, umask and limits, which we set for ourselves meanwhile."""
    argv, cwd = arguments(spec), spec["cwd"]
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
            pid = posix_spawn(path, [spec["argv0"] or argv[0], *argv[1:]], environment, actions, setsid, memory)
        except OSError as problem:
            step = _exec_step(path, problem.errno) if problem.filename == path else "spawn"
            raise SpawnFailed(problem.errno or 0, step, str(problem.filename or path)) from None
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
    # ENOENT for an existing file means that the interpreter in its first line (or its loader) is missing.
    return "interpreter" if number == errno.ENOENT and os.path.exists(path) else "exec"


def _limit_self(limits: dict[str, list[int]], undo: list[tuple[int, tuple[int, int]]], descriptors: int) -> None:
    """Soft limits are inherited from the first instruction on, and can be restored: `undo` has the old values. The
    limit for descriptors stays wide enough to pass them on; the exact one is set right after the spawn."""
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
    """We could not restore our own hard limits, so the command gets them from outside right after its birth. Its soft
    limits have applied from the start."""
    if not hasattr(resource, "prlimit"):
        return
    for name, (soft, hard) in limits.items():
        try:
            resource.prlimit(pid, LIMITS[name], (soft, hard))
        except (OSError, ValueError):
            continue  # already gone, or above what we may set: the inherited limit stays


def _raise_oom_score(wanted: int) -> bytes | None:
    """Let the kernel kill the command before its runner. Returns what to write back, None when nothing changed."""
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
