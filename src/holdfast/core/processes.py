"""Processes: identity, descent, ending a whole tree, and the rungs of a stop.

A process is known by boot id, pid and kernel start time together. Nothing here signals a bare pid: a target is
opened as a pidfd, looked at once more through `/proc`, and only then signalled, so a reused pid is never hit.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

from . import failpoints, jsontext
from .ending import AFTER_GRACE, AT_ONCE
from .kernel_signals import DEFAULTED, NUMBERS, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from typing import Any, Callable


BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
# The kernel's PROC_PID_INIT_INO, the same on every machine.
_FIRST_PID_NAMESPACE = 0xEFFFFFFC

# The session's mark in the environment of its command. Descendants inherit it, so they can still be found after
# the runner, their subreaper, is gone.
SESSION_VARIABLE = "HOLDFAST_SESSION_ID"
# Which session of a node is visited, for the processes between the two homes.
VISIT_VARIABLE = "HOLDFAST_VISIT"
# Launchers and runners carry this instead. One that was started from inside another session is a descendant of
# that session's runner by birth, but never part of its tree. Neither is a probe that a runner started for
# itself, nor the deliverer of notices to people, nor what those start.
ROLE_VARIABLE = "HOLDFAST_ROLE"
_OUR_ROLES = frozenset(f"{ROLE_VARIABLE}={role}".encode() for role in ("launcher", "runner", "probe", "people"))

# Freezing is a race against forks. A storm that outruns this many walks is killed as far as it is known, and
# walked again.
_FREEZE_WALKS = 20
# How often, and with which pauses, a process in the middle of its exec is looked at again.
_EXEC_LOOKS = 20
_EXEC_PAUSE_S = 0.0005
# A runner works on its tree for at most this long before it serves its clients again.
_STEP_S = 0.05
# One answer names this many processes, each with this much of its command line; the rest is counted.
NAMED_MAX = 256
_COMMAND_CHARACTERS = 200
# A command longer than this is cut where it is shown; the spec has all of it.
_TEXT_CHARACTERS = 512
_HARMLESS = dict.fromkeys(map(ord, "_@%+=:,./-"))


class Process:
    """One process: a pid with its start time, and what `/proc` showed."""

    __slots__ = ("group", "parent", "pid", "session", "start", "state")

    def __init__(self, pid: int, start: int, parent: int, group: int, session: int, state: str) -> None:
        self.pid = pid
        self.start = start
        self.parent = parent
        self.group = group
        self.session = session
        self.state = state

    def __repr__(self) -> str:
        return f"<process {self.pid} started at tick {self.start}, {self.state}>"


def boot_id() -> str:
    with open(BOOT_ID_PATH) as file:
        return file.read().strip()


def pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def pid_namespace_is_over(namespace: int) -> bool:
    """Whether no process lives in it any more, as far as we can see: only the first namespace sees all processes."""
    if pid_namespace() != _FIRST_PID_NAMESPACE:
        return False
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}/ns/pid").st_ino == namespace:
                    return False
            except OSError:
                continue  # gone, or another user's
    return True


def time_namespace() -> int:
    """The kernel shows shifted start times to a process in another one. 0 on kernels without time namespaces."""
    try:
        return os.stat("/proc/self/ns/time").st_ino
    except FileNotFoundError:
        return 0


def own_identity() -> dict[str, Any]:
    """Boot, namespaces and identity of this very runner. They last as long as it does, so they are read once, and
    those that it shares with its launcher are read there."""
    global _place, _identity
    pid = os.getpid()
    if _place is None:
        _place = {"boot": boot_id(), "pidns": pid_namespace(), "timens": time_namespace()}
    if _identity is None or _identity["runner"]["pid"] != pid:
        _identity = {**_place, "runner": {"pid": pid, "start": start_time(pid)}}
    return _identity


_place: dict[str, Any] | None = None
_identity: dict[str, Any] | None = None


def _read(path: str) -> bytes:
    """The beginning of a file. Not through a file object: a walk opens hundreds, and each costs more than what it
    reads."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def look(pid: int) -> Process | None:
    """The process that has this pid now; None when there is none or it is a zombie."""
    process = _look(pid)
    return None if process is None or process.state in "ZX" else process


def _look(pid: int) -> Process | None:
    try:
        fields = stat_fields(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Process(pid, int(fields[19]), int(fields[1]), int(fields[2]), int(fields[3]), chr(fields[0][0]))


def stat_fields(path: str) -> list[bytes]:
    """The fields of a `stat` file from the third on, which is the state."""
    stat = _read(path)
    # The name before it may hold spaces and parentheses.
    return stat[stat.rindex(b")") + 2 :].split()


def cpu_ticks(fields: list[bytes]) -> int:
    """The processor time that a process has used, by its `stat_fields`, in ticks of the kernel."""
    return int(fields[11]) + int(fields[12])


def start_time(pid: int) -> int:
    process = _look(pid)
    if process is None:
        raise ProcessLookupError(errno.ESRCH, f"no process {pid}")
    return process.start


def same(pid: int, start: int) -> bool:
    """Does the process recorded as (pid, start) still live?"""
    process = look(pid)
    return process is not None and process.start == start


def command_text(command: object) -> str:
    """The command as one line that a shell would read as the same words."""
    if isinstance(command, list):
        command = " ".join(_quoted(str(word)) for word in command)
    return str(command or "")[:_TEXT_CHARACTERS]


def _quoted(word: str) -> str:
    if word.isascii() and word.translate(_HARMLESS).isalnum():
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def command_line(pid: int) -> list[str]:
    try:
        raw = _read(f"/proc/{pid}/cmdline")
    except OSError:
        return []
    return [os.fsdecode(word) for word in raw.rstrip(b"\0").split(b"\0")] if raw else []


def describe(process: Process) -> dict[str, Any]:
    line = " ".join(command_line(process.pid))
    if not line:
        try:
            with open(f"/proc/{process.pid}/comm") as file:
                line = file.read().strip()
        except OSError:
            line = "?"
    return {"pid": process.pid, "start": process.start, "command": _cut(line)}


def _cut(command: str) -> str:
    """Counted as it is sent and recorded, where one character may take twelve."""
    command = command[:_COMMAND_CHARACTERS]
    while len(jsontext.write(command)) > _COMMAND_CHARACTERS + 2:
        command = command[: len(command) * 3 // 4]
    return command


def everyone() -> dict[int, Process]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = look(int(name))
            if process is not None:
                found[process.pid] = process
    return found


def descendants(root: int) -> list[Process]:
    """All living processes below `root`, without launchers and runners and what is theirs."""
    found: list[Process] = []
    parents = [root]
    while parents:
        for pid in _children(parents.pop()):
            process = look(pid)
            # Nothing hangs below a zombie: its children came to the subreaper and are listed there.
            if process is not None and not _is_ours(pid):
                found.append(process)
                parents.append(pid)
    # The kernel may skip a child in its list while a sibling exits. An empty list is worth a second, slower look.
    return found or _below(everyone(), {root})


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                pids.extend(map(int, file.read().split()))
    except OSError:
        pass  # gone meanwhile, or a kernel without these files: the slower look finds the rest
    return pids


def _raw_environment(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _below(table: dict[int, Process], roots: set[int]) -> list[Process]:
    """Those of `table` that descend from `roots`, launchers and runners and what is theirs left out."""
    below = set(roots)
    ours: set[int] = set()
    grew = True
    while grew:
        grew = False
        for pid, process in table.items():
            if process.parent in below and pid not in below and pid not in ours:
                (ours if _is_ours(pid) else below).add(pid)
                grew = True
    return [table[pid] for pid in sorted(below - roots)]


def _is_ours(pid: int) -> bool:
    for _ in range(_EXEC_LOOKS):
        found = _raw_environment(pid)
        # Its parent runs again when its exec is half done, and then the kernel shows neither of the two yet.
        if found or command_line(pid) or look(pid) is None:
            break
        time.sleep(_EXEC_PAUSE_S)
    return not _OUR_ROLES.isdisjoint(found.split(b"\0"))


def environment(pid: int) -> dict[str, str]:
    pairs = (word.partition(b"=") for word in _raw_environment(pid).split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name}


def orphans(
    session: str,
    command: dict[str, Any] | None,
    pgid: int | None,
    runner: dict[str, Any] | None = None,
    survivors: Iterable[dict[str, Any]] = (),
) -> list[Process]:
    """What lives of a session whose runner is gone: the command itself, its group, the recorded survivors, everything
    below those, and whatever carries the session's mark. Each is verified by start time; a process group
    without its leader by its kernel session, which the runner (on a terminal: the command) led: the kernel does not
    reuse either number while a member lives."""
    table = everyone()
    roots: set[int] = set()
    born = 0
    if command is not None:
        born = command["start"]
        leader = table.get(command["pid"])
        if leader is not None and leader.start == born:
            roots.add(leader.pid)
            if pgid == leader.pid:
                roots.update(pid for pid, process in table.items() if process.group == pgid)
        elif leader is None and runner is not None and pgid == command["pid"]:
            roots.update(
                pid
                for pid, process in table.items()
                if process.group == pgid and process.session in (runner["pid"], pgid) and process.start >= born
            )
    for each in survivors:
        survivor = table.get(each["pid"])
        if survivor is not None and survivor.start == each["start"] and survivor.pid > 1:
            roots.add(survivor.pid)
    mark = os.fsencode(f"{SESSION_VARIABLE}={session}")
    for pid, process in table.items():
        # Not by `environment`, which decodes all variables: this looks at every process of the machine.
        if process.start >= born and mark in _raw_environment(pid).split(b"\0"):
            roots.add(pid)
    roots = {pid for pid in roots if not _is_ours(pid)}
    members = [table[pid] for pid in sorted(roots)] + _below(table, roots)
    return [process for process in members if process.pid != os.getpid()]


def members(living: list[Process], command: int | None, target: str) -> list[Process]:
    """Those of a session's processes that a signal to its `command`, `group`, `session` or `tree` goes to. `session`
    are all groups that have the command's terminal."""
    if target == "command":
        return [process for process in living if process.pid == command]
    if target == "group":
        return [process for process in living if process.group == command]
    return [process for process in living if process.session == command] if target == "session" else living


def send(process: Process, number: int) -> str | None:
    """Signal this very process. None when done or when it is gone; else the errno's name."""
    return send_to(process.pid, process.start, number)


def send_to(pid: int, start: int, number: int) -> str | None:
    if pid <= 1:
        raise ValueError(f"pid {pid} is never signalled")
    try:
        pidfd = None if failpoints.off("pidfd") else os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    except (AttributeError, OSError):
        pidfd = None
    try:
        try:
            # The descriptor pins the process; only then does the look at its start time prove anything.
            if not same(pid, start):
                return None
            failpoints.hit("tree.kill")
            if pidfd is None:
                os.kill(pid, number)
            else:
                signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return None
        except OSError as problem:
            return errno.errorcode.get(problem.errno or 0, str(problem.errno))
    finally:
        if pidfd is not None:
            os.close(pidfd)
    return None


class Sweep:
    """Freeze, walk, kill, again until nothing lives or the time is over. One `step` is short, so that a runner answers
    its clients between two.

    Freezing first keeps a tree that forks on a member's death from outrunning the walk.
    """

    def __init__(self, living: Callable[[], list[Process]], settle_s: float) -> None:
        self._living = living
        self._deadline = time.monotonic() + settle_s
        self._frozen: dict[int, Process] = {}
        self._errors: dict[int, str] = {}
        self._walks = 0
        # Killed processes need a moment to be torn down; the pause doubles because a long one means real work.
        self.pause_s = 0.001

    def step(self) -> list[dict[str, Any]] | None:
        """None: call again after `pause_s`. Else done, with the survivors."""
        if not self._freeze():
            return None
        for process in self._frozen.values():
            send(process, signal.SIGKILL)
        errors, self._errors = self._errors, {}
        self._frozen, self._walks = {}, 0
        left = self._living()
        if not left:
            return []
        hopeless = all(process.pid in errors for process in left)
        if hopeless or time.monotonic() > self._deadline:
            return [_survivor(process, errors) for process in left]
        self.pause_s = min(self.pause_s * 2, 0.05)
        return None

    def _freeze(self) -> bool:
        """False: there are more of them than one short step can freeze."""
        pause_at = time.monotonic() + _STEP_S
        while self._walks < _FREEZE_WALKS and time.monotonic() < pause_at:
            self._walks += 1
            fresh = [process for process in self._living() if process.pid not in self._frozen]
            if not fresh:
                return True
            for process in fresh:
                self._frozen[process.pid] = process
                problem = send(process, signal.SIGSTOP)
                if problem is not None:
                    self._errors[process.pid] = problem
        return self._walks == _FREEZE_WALKS


def _survivor(process: Process, errors: dict[int, str]) -> dict[str, Any]:
    record = describe(process)
    if process.pid in errors:
        record["error"] = errors[process.pid]
    return record


def described(processes: Iterable[Process]) -> list[dict[str, Any]]:
    return [describe(process) for process in processes]


def described_some(processes: list[Process]) -> tuple[list[dict[str, Any]], int]:
    """As many as one answer may name, and how many more there are."""
    return described(processes[:NAMED_MAX]), max(0, len(processes) - NAMED_MAX)


# How a command is ended: rung by rung, each gentler than the next. `Ladder` is a plain state machine without I/O;
# `climb` acts on it, for a runner with timers and child exits, for a host when the runner is gone.


COMMAND, GROUP, TREE = "command", "group", "tree"
# Every process group that has the session's terminal; and the terminal itself, as if a person typed.
SESSION, TERMINAL = "session", "terminal"
# The interrupt key, as a person types it; the terminal turns it into a signal.
INTR = "INTR"
_OF_THE_COMMAND = (COMMAND, TERMINAL)

# The last rung is given this long to take effect before the answer names survivors.
SETTLE_S = 4.0


class Rung:
    __slots__ = ("signal", "target", "wait_s")

    def __init__(self, signal: str, target: str, wait_s: float) -> None:
        self.signal = signal
        self.target = target
        self.wait_s = wait_s

    def __str__(self) -> str:
        return f"{self.signal} to the {self.target}"


def rungs(grace_s: float, asked: list[dict[str, Any]] | None = None, *, tty: bool = False) -> list[Rung]:
    """The graceful signal to the command alone, so that it can shut its children down in its own order; then to
    whatever is left; then the kill. On a terminal first the key, twice, and before TERM a hang-up: interactive shells
    ignore TERM, but not a hang-up. A grace of 0 kills at once. An asked rung that says it is the `last` is not
    followed by a kill: what does not leave then stays."""
    if asked is None and tty:
        steps = [
            Rung(INTR, TERMINAL, grace_s * 0.2),
            Rung(INTR, TERMINAL, grace_s * 0.2),
            Rung("HUP", SESSION, grace_s * 0.3),
            Rung("TERM", TREE, grace_s * 0.3),
        ]
    elif asked is None:
        steps = [Rung("TERM", COMMAND, grace_s * 0.6), Rung("TERM", TREE, grace_s * 0.4)]
    else:
        steps = [Rung(rung["signal"], rung.get("target") or COMMAND, float(rung["wait_s"])) for rung in asked]
    if grace_s == 0:
        steps = [rung for rung in steps if rung.signal == "KILL"]
    asks_only = grace_s > 0 and asked is not None and bool(asked) and asked[-1].get("last") is True
    if not asks_only and (not steps or steps[-1].signal != "KILL"):
        steps.append(Rung("KILL", TREE, SETTLE_S))
    return steps


class Ladder:
    """Ask `step` whenever something died or `until` has passed; it names the rung to act on, if any."""

    def __init__(self, steps: list[Rung]) -> None:
        self._steps = steps
        self._position = -1
        self.until = 0.0
        self.over = False

    def replace(self, steps: list[Rung]) -> None:
        """Begin again with other rungs."""
        self._steps = steps
        self._position = -1
        self.until = 0.0

    @property
    def rung(self) -> Rung | None:
        return self._steps[self._position] if self._position >= 0 else None

    @property
    def _reach(self) -> str:
        """How far this ladder goes: the target of its last rung."""
        return self._steps[-1].target

    def step(self, now: float, *, command_gone: bool, tree_gone: bool) -> Rung | None:
        if self.over:
            return None
        if tree_gone or (command_gone and self._reach == COMMAND):
            self.over = True
            return None
        current = self.rung
        if current is not None and now < self.until and not (command_gone and current.target in _OF_THE_COMMAND):
            return None
        self._position += 1
        while (
            command_gone and self._position < len(self._steps) and self._steps[self._position].target in _OF_THE_COMMAND
        ):
            self._position += 1  # there is no command to signal, or to wait for
        if self._position == len(self._steps):
            self._position -= 1
            self.over = True
            return None
        rung = self._steps[self._position]
        self.until = now + rung.wait_s
        return rung


def climb(
    ladder: Ladder,
    find: Callable[[], list[Process]],
    command: int | None,
    *,
    acting: Callable[[Rung, str | None], None],
    send: Callable[[Process, int], object] = send,
    interrupt: Callable[[list[Process]], None] | None = None,
) -> Generator[tuple[list[Process], float], None, list[dict[str, Any]]]:
    """Climb a ladder over what `find` finds of a session. Yields the processes to wait for, and until when; returns the
    survivors. `acting(rung, how)` is called before each rung: `how` the command is killed by it, None if it is not.
    `interrupt` types the interrupt key; only a terminal has one."""
    has_acted = False
    while True:
        living = find()
        command_gone = not any(process.pid == command for process in living)
        rung = ladder.step(time.monotonic(), command_gone=command_gone, tree_gone=not living)
        if ladder.over:
            return described(living)
        if rung is None:
            yield living, ladder.until
            continue
        how = None
        if rung.signal == "KILL" and not command_gone:
            how = AFTER_GRACE if has_acted else AT_ONCE
        has_acted = True
        acting(rung, how)
        if rung.signal == "KILL" and rung.target == TREE:
            sweep = Sweep(find, rung.wait_s)
            while (survivors := sweep.step()) is None:
                yield [], time.monotonic() + sweep.pause_s
            return survivors
        if rung.signal == INTR:
            assert interrupt is not None
            interrupt(living)
            continue
        # A stopped process does not see the signal before it is continued.
        for number in [NUMBERS["SIG" + rung.signal], *([] if rung.signal == "KILL" else [signal.SIGCONT])]:
            for process in members(living, command, rung.target):
                send(process, number)


def start_program(argv: list[str], environment: dict[str, str], descriptors: dict[int, int], *, setsid: bool) -> int:
    """Start a program of our own, not the command of the session: with these descriptors (its number, ours) and
    /dev/null for the standard streams that are not among them. Returns its pid."""
    # Out of the way of the numbers that are wanted; and a descriptor that has its number already would be closed.
    ours = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for number, fd in descriptors.items()}
    try:
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
        actions += [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in ours.items()]
        session: dict[str, Any] = {"setsid": True} if setsid else {}
        return os.posix_spawnp(
            argv[0], argv, environment, file_actions=actions, **session, setsigmask=[], setsigdef=DEFAULTED
        )
    finally:
        for fd in ours.values():
            os.close(fd)
