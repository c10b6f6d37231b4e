"""The command and its descendants as their subreaper sees them: reaping, signals, a stop; and their control group."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time

from ..core import clock, failpoints, processes
from ..core.ending import ELSEWHERE, IN_GRACE
from ..core.kernel_signals import NUMBERS
from ..core.loop import Alarm
from ..core.processes import Ladder, rungs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..core.loop import Loop, Reserve
    from ..core.processes import Rung


_PR_SET_CHILD_SUBREAPER = 36
# An empty walk is repeated this often while the kernel says that we have children: they may not belong to the command
# (such as a launcher that was started inside the session).
_LOOKS = 8
_libc = ctypes.CDLL(None, use_errno=True)


class ProcessTree:
    def __init__(self, reserve: Reserve) -> None:
        self._reserve = reserve
        # Identity of the command, once there is one: pid, start, line.
        self.command: dict[str, Any] | None = None
        self.wait_status: int | None = None
        self.rusage: Any = None
        # True if a walk through /proc is due, to see what is left: after a death, and when a stop or the command is
        # over.
        self.look_due = False
        self._extinct = False
        # Children of the runner that are not part of the tree, such as probes, and what to call with their status.
        self.apart: dict[int, Callable[[int], None]] = {}

    @property
    def command_gone(self) -> bool:
        return self.wait_status is not None

    def reap(self) -> None:
        """Collect every child that ended, adopted orphans too."""
        while True:
            try:
                pid, status, rusage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._extinct = self.look_due = True
                return
            if pid == 0:
                return
            ended = self.apart.pop(pid, None)
            if ended is not None:
                ended(status)
                continue
            self.look_due = True
            if self.command is not None and pid == self.command["pid"] and self.wait_status is None:
                self.wait_status, self.rusage = status, rusage

    def childless(self) -> bool:
        """True if we have no children at all, not even those that `living` leaves out."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return False

    def living(self) -> list[processes.Process]:
        """The command and its descendants. Once all are gone no other can appear."""
        if self._extinct:
            return []
        try:
            with self._reserve:
                living = self._walk()
        except OSError:
            # No descriptor for a walk. At least the command is known: it is our child until it is reaped.
            if self.command is None or self.command_gone:
                return []
            pid = self.command["pid"]
            return [processes.Process(pid, self.command["start"], os.getpid(), pid, os.getsid(0), "?")]
        self._extinct = self.wait_status is not None and not living
        return living

    def _walk(self) -> list[processes.Process]:
        """A walk may miss a process that constantly forks and dies: its child became ours after we had listed our
        children. While the kernel says that we have children, an empty walk is repeated."""
        for _ in range(_LOOKS):
            living = processes.descendants(os.getpid())
            if living or self.childless():
                return living
        return []

    def send(self, target: str, number: int, living: list[processes.Process]) -> int:
        """Signal the command, its group or all of `living`. Returns how many got the signal."""
        assert self.command is not None
        members = processes.members(living, self.command["pid"], target)
        return sum(self.send_one(process, number) is None for process in members)

    def send_one(self, process: processes.Process, number: int) -> str | None:
        """Returns None when the signal was sent or the process is gone; else the errno's name."""
        if self.command is None or process.pid != self.command["pid"] or self.command_gone:
            with self._reserve:
                return processes.send(process, number)
        # A child that was not reaped cannot have lost its pid, so it needs no check and no descriptor.
        try:
            failpoints.hit("tree.kill")
            os.kill(process.pid, number)
        except OSError as problem:
            return errno.errorcode.get(problem.errno or 0, str(problem.errno))
        return None

    def command_is_stopped(self) -> bool:
        """True if the command is stopped by SIGSTOP or the like: it looks idle and is not."""
        if self.command is None or self.wait_status is not None:
            return False
        try:
            process = processes.look(self.command["pid"])
        except OSError:
            with self._reserve:
                process = processes.look(self.command["pid"])
        return process is not None and process.state in "Tt"


def set_title(*words: str | None) -> None:
    """Show these words as our command line, for `ps`, `top` and `pgrep -f`. No text of the command: `pkill -f` with
    such text must hit the command alone. The title is written over the words we were started with; the last of them
    is blank, to make room."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return
    start, end = int(fields[45]), int(fields[46])
    shown = " ".join(["hold:", *filter(None, words)])
    while len(title := shown.encode("utf-8", "replace")) >= end - start > 0:
        shown = shown[:-1]
    if start:
        ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)


def become_subreaper(wanted: bool = True) -> None:
    """Orphans of the command become children of the runner instead of init, so that none is lost."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, wanted, 0, 0, 0)


class Stopping:
    """One stop: it climbs the ladder, driven by timers and by the end of processes. Every client that asked gets the
    same answer."""

    def __init__(
        self,
        loop: Loop,
        tree: ProcessTree,
        *,
        by: str | None,
        grace_s: float,
        ladder: list[dict[str, Any]] | None,
        interrupt: Callable[[list[processes.Process]], None] | None = None,
    ) -> None:
        self._tree = tree
        self._ladder = Ladder(rungs(grace_s, ladder, tty=interrupt is not None))
        command = None if tree.command is None else tree.command["pid"]
        self._climbing = processes.climb(
            self._ladder, tree.living, command, acting=self._acting, send=tree.send_one, interrupt=interrupt
        )
        self._alarm = Alarm(loop, self.climb)
        self._began = time.monotonic()
        self._found, self._found_more = processes.described_some(tree.living())
        # How the command was killed, once it was.
        self._killed: str | None = None
        self.by = by
        self.since = clock.now_text()
        self.rung: str | None = None
        # What was found and what survived; None while the stop is in progress.
        self.answer: dict[str, Any] | None = None

    def facts(self) -> dict[str, Any]:
        return {"by": self.by, "since": self.since, "stage": self.rung}

    def hurry(self) -> None:
        """A later request wants no grace."""
        if self._ladder.rung is not None and self._ladder.rung.signal != "KILL":
            self._ladder.replace(rungs(0))
            self.climb()

    def climb(self) -> None:
        """Act on the next rung if it is due: after a death, or when the time of a rung is over."""
        if self.answer is not None:
            return
        self._tree.reap()
        try:
            _, until = next(self._climbing)
        except StopIteration as end:
            self._done(end.value)
        else:
            self._alarm.set(until - time.monotonic())

    def how_it_ended(self, number: int | None) -> str:
        """How the stopped command ended; `number` is the signal it died of."""
        if number != NUMBERS["SIGKILL"]:
            return IN_GRACE
        return self._killed or ELSEWHERE

    def _acting(self, rung: Rung, how: str | None) -> None:
        failpoints.hit("runner.rung")
        self._killed = how or self._killed
        self.rung = str(rung)

    def _done(self, survivors: list[dict[str, Any]]) -> None:
        self._alarm.cancel()
        self._tree.reap()
        self.answer = {
            "found": self._found,
            "found_more": self._found_more,
            "survivors": survivors[: processes.NAMED_MAX],
            "survivors_more": max(0, len(survivors) - processes.NAMED_MAX),
            "rung": self.rung,
            "took_s": round(time.monotonic() - self._began, 3),
        }
        self._tree.look_due = True  # what is left is checked once more


# Control groups: out of the group of a service that may be stopped, and a memory limit for one session.
#
# For the limit both hierarchies are supported, because machines still boot with the older one. The command starts
# inside: the runner enters the group just before the spawn and leaves it right after.


# Beside the service's own group, under our own name.
_OUTSIDE = "holdfast"


def leave_service_group() -> str | None:
    """Leave the group of a service, because its manager ends every process in it together with the service.

    Returns a warning for the callers of sessions started from here: the new group, or that we could not leave. None: we
    are not in a service. Decision 0009 has the reasons.
    """
    group, service = own_service()
    if service is None:
        return None
    mount = _mounts()[1]
    outside = os.path.join(group.partition("/" + service)[0] or "/", _OUTSIDE)
    try:
        if mount is None or _service(group) is None or failpoints.off("cgroup"):
            raise PermissionError(errno.EPERM, "the unified hierarchy is not in use")
        os.makedirs(mount + outside, 0o755, exist_ok=True)
        _write(os.path.join(mount + outside, "cgroup.procs"), "0")
    except OSError as problem:
        return f"stopping {service} ends this session too: it cannot leave that group ({problem.strerror})"
    return f"runs in the control group {outside}, so that it outlives {service}; limits of {service} do not apply to it"


def own_service() -> tuple[str, str | None]:
    """The control group of this process, and the service whose stop would end it."""
    with open("/proc/self/cgroup") as file:
        paths = {controllers: path.rstrip("\n") for _, controllers, path in (line.split(":", 2) for line in file)}
    group = paths.get("", "/")
    return group, _service(group) or _service(paths.get("name=systemd", "/"))


def _service(path: str) -> str | None:
    """The service whose stop would end the processes of this group; a scope ends only with its last process."""
    for name in reversed(path.split("/")):
        if name.endswith(".scope"):
            return None
        if name.endswith(".service"):
            return name
    return None


class Unavailable(Exception):
    """No memory limit can be set here; the text says why."""


class MemoryGroup:
    def __init__(self, session: str, limit_bytes: int) -> None:
        if failpoints.off("cgroup"):
            raise Unavailable("control groups are switched off")
        self._origin, parent, self._unified = _own_group()
        self.path = os.path.join(parent, f"holdfast-{session}")
        unified = self._unified
        try:
            os.mkdir(self.path, 0o755)
            _write(
                os.path.join(self.path, "memory.max" if unified else "memory.limit_in_bytes"),
                str(limit_bytes),
            )
        except OSError as problem:
            self.remove()
            raise Unavailable(f"{self.path}: {problem.strerror}") from None
        try:
            # Swapping instead of ending would make the machine slow.
            swap = "memory.swap.max" if unified else "memory.memsw.limit_in_bytes"
            _write(os.path.join(self.path, swap), "0" if unified else str(limit_bytes))
        except OSError:
            pass  # no swap accounting here

    def enter(self) -> None:
        _write(os.path.join(self.path, "cgroup.procs"), "0")

    def leave(self) -> None:
        try:
            _write(os.path.join(self._origin, "cgroup.procs"), "0")
        except OSError:
            pass  # our old group is gone: the runner shares the limit of its command

    def oom_kills(self) -> int:
        name = "memory.events" if self._unified else "memory.oom_control"
        try:
            with open(os.path.join(self.path, name)) as file:
                counts = dict(line.split() for line in file)
        except (OSError, ValueError):
            return 0
        return int(counts.get("oom_kill", 0))

    def remove(self) -> None:
        try:
            os.rmdir(self.path)
        except OSError:
            pass  # never made, or a survivor still lives in it


def _own_group() -> tuple[str, str, bool]:
    """In the hierarchy that has the memory controller: the group we are in, the one to make ours in, and whether
    it is the unified hierarchy."""
    mounts = _mounts()
    with open("/proc/self/cgroup") as file:
        lines = [line.rstrip("\n").split(":", 2) for line in file]
    for _, controllers, path in lines:
        mount = mounts[0] if "memory" in controllers.split(",") else None
        if mount is not None:
            group = mount + path.rstrip("/")
            return group, group, False
    for _, controllers, path in lines:
        if not controllers and mounts[1] is not None:
            group = mounts[1] + path.rstrip("/")
            # A group that contains processes may not give controllers to its children, so ours is its sibling.
            parent = os.path.dirname(group) if path != "/" else group
            with open(os.path.join(parent, "cgroup.subtree_control")) as file:
                if "memory" in file.read().split():
                    return group, parent, True
            raise Unavailable(f"{parent} does not hand out the memory controller")
    raise Unavailable("no control group hierarchy with a memory controller is mounted")


def _mounts() -> tuple[str | None, str | None]:
    """Where the memory controller of the older hierarchy, and the unified hierarchy, are mounted."""
    older = unified = None
    with open("/proc/self/mountinfo") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            kind, _, options = right.split()[:3]
            point = left.split()[4]
            if kind == "cgroup2":
                unified = point
            elif kind == "cgroup" and "memory" in options.split(","):
                older = point
    return older, unified


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
