"""How long something took, without the time in which the kernel ran other programs in its place.

A promised bound is about Holdfast, not about the load of the machine. The kernel counts for each thread how
long it was ready to run and waited for a processor (`/proc/<pid>/task/<tid>/schedstat`, the second number). On a
machine that has nothing else to do this is next to nothing, and the bound is asserted as it stands.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress


class OwnTime:
    """Counts from its creation to `stop`. `pids` are the processes that it will be about beside this one; without any,
    all that there are, for which it will be is not known yet."""

    def __init__(self, *pids: int | None) -> None:
        known = [pid for pid in pids if pid is not None] or list(map(int, filter(str.isdecimal, os.listdir("/proc"))))
        self._before = {pid: waited_ns(pid) for pid in {os.getpid(), *known}}
        self._began = time.monotonic_ns()
        self._ended = 0

    def stop(self) -> OwnTime:
        self._ended = self._ended or time.monotonic_ns()
        return self

    def seconds(self, *pids: int | None) -> float:
        """Without what this process and `pids` waited for a processor. They must live: the count goes with the process.
        Those that were born meanwhile count from birth."""
        self.stop()
        waited = 0
        for pid in {os.getpid(), *(pid for pid in pids if pid is not None)}:
            waited += max(0, waited_ns(pid) - self._before.get(pid, 0))
        return max(0.0, (self._ended - self._began - waited) / 1e9)


def waited_ns(pid: int) -> int:
    """How long the threads of a process have been ready to run and waited for a processor."""
    total = 0
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                total += int(file.read().split()[1])
    return total


class QuietTime:
    """Counts from its creation, without the time in which any process of the machine waited for a processor or for the
    disk (`/proc/pressure`), or the machine itself, as a virtual one, for a processor of its host (`steal`). For bounds
    on programs that have ended by then, whose own counts are gone with them."""

    def __init__(self) -> None:
        self._stalled_ns = stalled_ns()
        self._began = time.monotonic_ns()

    def seconds(self) -> float:
        passed = time.monotonic_ns() - self._began
        return max(0.0, (passed - (stalled_ns() - self._stalled_ns)) / 1e9)


def stalled_ns() -> int:
    """How long some process has waited for a processor or the disk; 0 on a kernel that does not count this."""
    with open("/proc/stat", "rb") as file:
        total = int(file.readline().split()[8]) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
    for resource in ("cpu", "io"):
        with suppress(OSError), open(f"/proc/pressure/{resource}", "rb") as file:
            total += int(file.readline().rpartition(b"total=")[2]) * 1000
    return total
