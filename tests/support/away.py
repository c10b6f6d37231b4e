"""A place as a test sees it, and the deputies that hold links to it."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from support import probe, processes
from support.processes import Process
from support.waiting import Gate, wait_gone
from support.world import World


class GateThere(Gate):
    """A gate whose path is another one there."""

    def __init__(self, path: Path, there: str) -> None:
        super().__init__(path)
        self._there = there

    def __str__(self) -> str:
        return self._there


class Away:
    """A place as a test sees it: the name that a session is given, and its files as seen from here."""

    def __init__(self, place: str, world: World, *, home: Path, work: Path, work_there: str) -> None:
        self.place = place
        self.home = home
        self.state = home / ".local" / "state" / "holdfast"
        self.guests = self.state / "guests" / "sessions"
        # A directory for the files of a test, and its name there.
        self.work = work
        self.work_there = work_there
        self._world = world
        shutil.copy(probe.__file__, work / "probe.py")

    def probe(self, *words: object) -> list[str]:
        """The command line of the suite's child program there."""
        return ["python3", "-I", "-S", f"{self.work_there}/probe.py", *map(str, words)]

    def gate(self) -> GateThere:
        name = f"gate-{len(list(self.work.iterdir()))}"
        made = GateThere(self.work / name, f"{self.work_there}/{name}")
        self._world.closing.callback(made.close)
        return made

    def sessions(self) -> list[str]:
        """The directories of sessions there; what is over has moved home."""
        return sorted(os.listdir(self.guests)) if self.guests.exists() else []


def deputies(world: World) -> list[Process]:
    """The living deputies of this world: each holds the directory of its session."""
    found = []
    for row in processes.table().values():
        if row.state not in "ZX" and processes.command_line(row.pid).endswith(("deputy", "next-deputy")):
            held = processes.descriptors(row.pid).values()
            if any(path.startswith(f"{world.home}/") for path in held):
                found.append(row)
    return found


def kill_deputies(world: World) -> None:
    for row in deputies(world):
        processes.send(row, signal.SIGKILL)
        wait_gone(row.pid)


def runners_there(away: Away, id: str) -> list[int]:
    """Who holds the session's directory over there: its pids here."""
    inside = f"/root/.local/state/holdfast/guests/sessions/{id}"
    name = inside if away.place.startswith("podman:") else str(away.guests / id)
    below = processes.descendants(os.getpid())
    return [row.pid for row in below if name in processes.descriptors(row.pid).values()]
