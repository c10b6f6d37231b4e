"""The command and everything that descends from it, as its parent and subreaper sees them."""

from __future__ import annotations

import ctypes
import errno
import os
import sys

from . import points, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .descriptors import Reserve

_PR_SET_CHILD_SUBREAPER = 36
# Children that are not the command's (a launcher that was started inside the session) keep us from being childless.
_LOOKS = 8
_libc = ctypes.CDLL(None, use_errno=True)


class Family:
    def __init__(self, reserve: Reserve) -> None:
        self._reserve = reserve
        # Identity of the command, once there is one: pid, start, line.
        self.command: dict[str, Any] | None = None
        self.status: int | None = None
        self.rusage: Any = None
        # Looking at the family costs a walk through /proc, so it is done when a death may have changed it.
        self.somebody_died = False
        self._extinct = False
        # Children of ours that are no part of the family: who wants to know how each ended.
        self.apart: dict[int, Callable[[int], None]] = {}

    @property
    def command_gone(self) -> bool:
        return self.status is not None

    def reap(self) -> bool:
        """Collect every child that ended, adopted orphans too. True when the command was among them."""
        left = False
        while True:
            try:
                pid, status, rusage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._extinct = self.somebody_died = True
                return left
            if pid == 0:
                return left
            told = self.apart.pop(pid, None)
            if told is not None:
                told(status)
                continue
            self.somebody_died = True
            if self.command is not None and pid == self.command["pid"] and self.status is None:
                self.status, self.rusage = status, rusage
                left = True

    def childless(self) -> bool:
        """Not even a launcher or runner that was started from inside the session hangs below us."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return False

    def living(self) -> list[tree.Process]:
        """Everybody below us. Once there was nobody, there never will be."""
        if self._extinct:
            return []
        try:
            with self._reserve:
                living = self._look_around()
        except OSError:
            # No descriptor to look around with: the command at least is known, and is our child until it is reaped.
            return [] if self.command is None or self.command_gone else [self._command()]
        self._extinct = self.status is not None and not living
        return living

    def _look_around(self) -> list[tree.Process]:
        """One that forks and dies all the time may be missed by a walk: its child came to us when we had already looked
        at ours. While the kernel says that we have children, an empty walk is made again."""
        for _ in range(_LOOKS):
            living = tree.descendants(os.getpid())
            if living or self.childless():
                return living
        return []

    def send(self, target: str, number: int, living: list[tree.Process]) -> int:
        """Signal the command, its group or all of them; to how many."""
        assert self.command is not None
        with self._reserve:
            members = tree.members(living, self.command["pid"], target)
            return sum(self._send(process, number) is None for process in members)

    def _send(self, process: tree.Process, number: int) -> str | None:
        if self.command is None or process.pid != self.command["pid"] or self.command_gone:
            return tree.send(process, number)
        # A child that was not reaped cannot have lost its pid, so no look and no descriptor is needed.
        try:
            if points.ACTIVE:
                points.hit("tree.kill")
            os.kill(process.pid, number)
        except OSError as problem:
            return errno.errorcode.get(problem.errno or 0, str(problem.errno))
        return None

    def _command(self) -> tree.Process:
        assert self.command is not None
        pid = self.command["pid"]
        return tree.Process(pid, self.command["start"], os.getpid(), pid, os.getsid(0), "?")

    def command_is_stopped(self) -> bool:
        """Is the command held by SIGSTOP or its like? It looks idle, and is not."""
        if self.command is None or self.status is not None:
            return False
        try:
            process = tree.look(self.command["pid"])
        except OSError:
            with self._reserve:
                process = tree.look(self.command["pid"])
        return process is not None and process.state in "Tt"


def become_subreaper(wanted: bool = True) -> None:
    """Orphans of the command come to us instead of init, so none is lost from sight."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, wanted, 0, 0, 0)
