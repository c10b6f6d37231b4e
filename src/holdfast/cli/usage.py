"""What a session costs: processor time and memory of its processes, as the kernel counts them."""

from __future__ import annotations

import os
import time

from ..runner import tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..model import Snapshot

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Usage:
    """`cpu` in percent of one processor, `memory` the resident bytes, shared ones counted by each that has them."""

    __slots__ = ("cpu", "memory", "processes")

    def __init__(self, cpu: float | None, memory: int, processes: int) -> None:
        self.cpu = cpu
        self.memory = memory
        self.processes = processes


class Meter:
    """Two looks at one session tell what it needed between them; the first tells what it needed in all its life."""

    def __init__(self) -> None:
        self._at = 0.0
        self._ticks: dict[tuple[int, int], int] = {}

    def read(self, shot: Snapshot) -> Usage | None:
        """None where its processes are not ours to look at."""
        if shot.runner_pid is None or shot.state != "running" or shot.place != "local":
            return None
        now = time.monotonic()
        memory = 0
        ticks: dict[tuple[int, int], int] = {}
        oldest = None
        for process in tree.descendants(shot.runner_pid):
            found = _counted(process.pid)
            if found is not None:
                ticks[process.pid, process.start] = found[0]
                memory += found[1]
                oldest = process.start if oldest is None else min(oldest, process.start)
        used = sum(count - self._ticks.get(who, 0) for who, count in ticks.items())
        if self._at:
            elapsed = now - self._at
        else:
            elapsed = 0.0 if oldest is None else time.clock_gettime(time.CLOCK_BOOTTIME) - oldest / _TICKS_PER_S
        self._at, self._ticks = now, ticks
        cpu = 100 * used / _TICKS_PER_S / elapsed if elapsed > 0 else None
        return Usage(cpu, memory, len(ticks))


def _counted(pid: int) -> tuple[int, int] | None:
    """Ticks of processor time and resident bytes."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return int(fields[11]) + int(fields[12]), int(fields[21]) * _PAGE_BYTES
