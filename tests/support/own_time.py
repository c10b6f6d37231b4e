"""How long something took, without the time in which the kernel ran other programs in its place.

A bound of the contract speaks of Holdfast, not of what else the machine does. The kernel counts for each thread how
long it was ready to run and waited for a processor (`/proc/<pid>/task/<tid>/schedstat`, the second number). On a
machine that has nothing else to do this is next to nothing, and the bound is asserted as it stands.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress


class OwnTime:
    """Counts from its creation to `stop`."""

    def __init__(self) -> None:
        # Of everybody: which processes will have to do with it is not known yet.
        self._before = {int(name): _waited_ns(int(name)) for name in os.listdir("/proc") if name.isdecimal()}
        self._began = time.monotonic_ns()

    def stop(self, *pids: int | None) -> float:
        """In seconds. `pids` are the processes beside this one; those that were born meanwhile count from birth."""
        ended = time.monotonic_ns()
        waited = 0
        for pid in {os.getpid(), *(pid for pid in pids if pid is not None)}:
            waited += max(0, _waited_ns(pid) - self._before.get(pid, 0))
        return max(0.0, (ended - self._began - waited) / 1e9)


def _waited_ns(pid: int) -> int:
    total = 0
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                total += int(file.read().split()[1])
    return total
