"""A launcher that stays for all tests of this process: it takes longer to start than most tests take.

A launcher owns nothing and serves every caller of its context, whatever home the session is in. So a world finds this
one in its runtime directory, under the names that a launcher of its own would have. A host of another context (other
limits, failpoints, abilities) does not see it and starts its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import processes
from support.waiting import BOUND_S

if TYPE_CHECKING:
    from support.processes import Process
    from support.world import World

# Tests in these directories are about what a session does, not about where its runner comes from.
_SHARING = {"cli", "daemons", "docs", "examples", "server", "sessions", "signals", "terminal", "tools"}
_TESTS = Path(__file__).resolve().parent.parent

_START = "import holdfast\nwith holdfast.open() as hf:\n    hf.run(['true'])\n"


class SharedLauncher:
    """One launcher with a world of its own."""

    def __init__(self, world: World, env: dict[str, str]) -> None:
        self._world = world
        env = {**env, **world.env, "HOLDFAST_LAUNCHER_IDLE": "5m"}
        # On a busy machine the first host may have started its session without waiting for the launcher.
        deadline = time.monotonic() + 2 * BOUND_S
        while not (found := world.launchers()) or len(list(world.runtime.glob("launcher-*.sock"))) != 1:
            assert time.monotonic() < deadline, "no launcher came up"
            subprocess.run([sys.executable, "-c", _START], env=env, check=True, timeout=2 * BOUND_S)
        (self.process,) = found
        self._files = list(world.runtime.glob("launcher-*"))
        self._inodes = {(path.stat().st_dev, path.stat().st_ino) for path in self._files}
        # Its spares wait at it too, until one of them is taken.
        self._listener = processes.descriptors(self.process.pid)[3]

    def lend(self, world: World) -> None:
        """Make it the launcher of this world."""
        world.runtime.mkdir(mode=0o700)
        for path in self._files:
            os.link(path, world.runtime / path.name)

    def is_lent(self, path: Path) -> bool:
        status = path.lstat()
        return (status.st_dev, status.st_ino) in self._inodes

    def is_child(self, row: Process) -> bool:
        """A spare, or a runner that was one."""
        return row.ppid == self.process.pid

    def is_spare(self, row: Process) -> bool:
        return self.is_child(row) and self._listener in processes.descriptors(row.pid).values()

    def lives(self) -> bool:
        return not processes.is_gone(self.process.pid, self.process.start)

    def end(self) -> None:
        processes.send(self.process, signal.SIGTERM)
        processes.wait_any([self.process], BOUND_S)
        processes.reap_adopted()
        shutil.rmtree(self._world.root)


_shared: list[SharedLauncher] = []


def current() -> SharedLauncher | None:
    """The one that stands now."""
    return _shared[0] if _shared else None


def is_shared_by(item: pytest.Item) -> bool:
    if item.get_closest_marker("own_launcher") or "world" not in getattr(item, "fixturenames", ()):
        return False
    return item.path.is_relative_to(_TESTS) and item.path.relative_to(_TESTS).parts[0] in _SHARING


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the census counts."""
    from support.world import World, inherited_settings, new_root

    if not is_shared_by(item):
        return
    if _shared and not _shared[0].lives():
        _shared.pop().end()
    if not _shared:
        env = {name: value for name, value in os.environ.items() if name not in inherited_settings()}
        _shared.append(SharedLauncher(World(new_root("hf-launcher-")), env))


def pytest_sessionfinish() -> None:
    while _shared:
        _shared.pop().end()
