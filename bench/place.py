"""A home and a runtime directory for one row. Leaving it ends every process that was started in it."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import holdfast
from holdfast.core import processes
from holdfast.sessions.api import Holdfast

MEMORY = "/dev/shm"
_GONE_S = 20.0
# Directories of places that were left. They go at the very end, see `place`.
_used: list[str] = []


class Place:
    def __init__(self, path: str, runtime: str) -> None:
        self.path = path
        self.runtime = runtime
        self.environ = {
            **os.environ,
            "HOLDFAST_HOME": os.path.join(path, "home"),
            "XDG_RUNTIME_DIR": runtime,
            # No config file, whatever this user has.
            "HOLDFAST_CONFIG": "",
            "XDG_CONFIG_HOME": path,
        }
        self.tmux = ["tmux", "-f", "/dev/null", "-S", os.path.join(runtime, "tmux")]
        # Peers that have no command to end them: what they were started for is ended by pid.
        self.strays: list[int] = []

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def open(self) -> Holdfast:
        return holdfast.open()

    def launchers(self) -> list[tuple[int, int]]:
        found = []
        runtime = os.path.join(self.runtime, "holdfast")
        for name in os.listdir(runtime) if os.path.isdir(runtime) else ():
            if name.startswith("launcher-") and name.endswith(".lock"):
                with open(os.path.join(runtime, name)) as file:
                    words = file.read().split()
                if len(words) == 2:
                    found.append((int(words[0]), int(words[1])))
        return found


@contextmanager
def place(home: str = "/var/tmp") -> Iterator[Place]:
    # A runtime directory is kept in memory wherever a login makes one; a home is on disk. Not in /tmp: where
    # thousands of files were just deleted, as tests do there, ext4 takes up to fifty times as long to make one. For
    # the same reason nothing is deleted between two rows.
    made = Place(_directory(home), _directory(MEMORY))
    before = dict(os.environ)
    os.environ.update(made.environ)
    try:
        yield made
    finally:
        try:
            _end_everything(made)
        finally:
            os.environ.clear()
            os.environ.update(before)
            _used.extend((made.path, made.runtime))


def forget_places() -> None:
    while _used:
        shutil.rmtree(_used.pop())


def _directory(parent: str) -> str:
    return tempfile.mkdtemp(prefix="holdfast-bench-", dir=parent if os.access(parent, os.W_OK) else None)


def _end_everything(made: Place) -> None:
    with made.open() as hf:
        hf.stop_all([session.id for session in hf.sessions()], grace=0)
        runners = [session.runner_pid for session in hf.sessions(all=True) if session.runner_pid]
    if os.path.exists(os.path.join(made.runtime, "tmux")):
        subprocess.run([*made.tmux, "kill-server"], capture_output=True, check=False)
    for pid in made.strays:
        end(pid, signal.SIGKILL)
    for pid, start in made.launchers():
        processes.send_to(pid, start, signal.SIGTERM)
    wait_gone([pid for pid, _ in made.launchers()] + [pid for pid in runners if _is_runner(pid)] + made.strays)


def end(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + _GONE_S
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ready = select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))[0]
        os.close(pidfd)
        if not ready:
            raise TimeoutError(f"process {pid} is still there")


def _is_runner(pid: int) -> bool:
    return processes.environment(pid).get(processes.ROLE_VARIABLE) == "launcher"
