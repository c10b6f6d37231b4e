"""After each test: nothing that it started, opened, bound, mounted or wrote elsewhere is left."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support import evidence, processes, shared_launcher
from support.processes import Process
from support.world import WORLD, World

# A runner that has answered its last waiter still has to leave; what stays longer was left behind.
_LEAVING_BOUND_S = 30.0
_AFTER_FAILURE_BOUND_S = 0.2
_TICK_S = 0.01

FAILED = pytest.StashKey[bool]()


class Count:
    """What this process had before a test."""

    def __init__(self) -> None:
        processes.begin_test()
        shared = shared_launcher.current()
        rows = processes.below(os.getpid())
        # A spare of the launcher that stays may become a runner of this test.
        self.processes = {(row.pid, row.start) for row in rows if shared is None or not shared.is_child(row)}
        self.descriptors = own_descriptors()
        self.threads = own_threads()


@pytest.fixture(autouse=True)
def census(request: pytest.FixtureRequest, nowhere: Path) -> Iterator[None]:
    """Count before and after; what is left fails the test by name and is then ended."""
    before = Count()
    evidence.forget()
    yield
    world = request.node.stash.get(WORLD, None)
    failed = request.node.stash.get(FAILED, False)
    left, problems = leftovers(before, world, _AFTER_FAILURE_BOUND_S if failed else _LEAVING_BOUND_S)
    problems += outside(nowhere)
    if problems or failed:
        text = evidence.describe()
        keep_at = request.config.getoption("--evidence")
        if keep_at and world is not None:
            evidence.keep(Path(keep_at) / re.sub(r"\W+", "-", request.node.nodeid), world.root, text)
    end_all(left, before)
    if world is not None:
        world.remove()
    if problems:
        pytest.fail("left behind:\n  " + "\n  ".join(problems) + "\n" + text, pytrace=False)


def leftovers(before: Count, world: World | None, bound: float) -> tuple[list[Process], list[str]]:
    """Processes still there after the bound, and one line for each thing that is left."""
    deadline = time.monotonic() + bound
    while True:
        processes.reap_adopted()
        left = strays(before, world)
        wait = deadline - time.monotonic()
        if not left or wait <= 0:
            break
        if not any(processes.is_adopted_zombie(row) for row in left):
            alive = [row for row in left if row.state != "Z"]
            if not alive:
                # A thread that waits for its process takes a moment too.
                select.select([], [], [], _TICK_S)
                continue
            # A runner may also become a spare again, which no descriptor tells.
            processes.wait_any(alive, min(wait, _TICK_S) if any(map(_may_come_back, alive)) else wait)
    problems = [name_process(row, world) for row in left]
    # What a thread or a process holds goes a moment after it was asked to end.
    while (held := other_leftovers(before, world)) and time.monotonic() < deadline:
        select.select([], [], [], _TICK_S)
    problems += held
    if world is not None:
        problems += tracebacks(world)
    return left, problems


def other_leftovers(before: Count, world: World | None) -> list[str]:
    """Threads, descriptors, mounts, sockets and locks."""
    found = threads_left(before) + descriptors_left(before)
    return found if world is None else found + mounts_under(world.root) + runtime_left(world)


def strays(before: Count, world: World | None) -> list[Process]:
    """Our descendants that were not there before, and any other process that is tied to this world."""
    below = processes.below(os.getpid())
    shared = shared_launcher.current()
    found = [row for row in below if (row.pid, row.start) not in before.processes]
    if shared is not None:
        found = [row for row in found if not shared.is_spare(row)]
    if world is not None:
        seen = {row.pid for row in below}
        others = [row for row in processes.recent() if row.pid not in seen and not processes.is_kernel_thread(row)]
        sockets = sockets_under(world.root) if others else set()
        found += [row for row in others if belongs(row, world.root, sockets)]
    return found


def _may_come_back(row: Process) -> bool:
    shared = shared_launcher.current()
    return shared is not None and shared.is_child(row)


def belongs(row: Process, root: Path, sockets: set[str]) -> bool:
    """Its environment names the world, or it holds a file or a bound socket there."""
    name = os.fsencode(root)
    if name in processes.environment(row.pid) or name in os.fsencode(processes.command_line(row.pid)):
        return True
    below = f"{root}/"
    return any(to.startswith(below) or to in sockets for to in processes.descriptors(row.pid).values())


def sockets_under(root: Path) -> set[str]:
    """Unix sockets bound below the directory, named as /proc/<pid>/fd names them."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        rows = [line.split(maxsplit=7) for line in file]
    return {f"socket:[{row[6]}]" for row in rows if len(row) == 8 and row[7].startswith(f"{root}/")}


def name_process(row: Process, world: World | None) -> str:
    """The process, and its session where that is known."""
    if row.state == "Z":
        return f"zombie {processes.describe(row)}: it was not reaped"
    text = "process " + processes.describe(row)
    if world is not None:
        sessions = f"{world.home}/sessions/"
        held = {
            to.removeprefix(sessions).split("/")[0]
            for to in processes.descriptors(row.pid).values()
            if to.startswith(sessions)
        }
        text += "".join(f" (runner of session {id}, {session_end(world, id)})" for id in sorted(held))
    return text


def session_end(world: World, id: str) -> str:
    return "which has ended" if (world.session(id) / "exit.json").exists() else "still running: end it in the test"


def threads_left(before: Count) -> list[str]:
    left = own_threads() - before.threads
    names = {thread.native_id: thread.name for thread in threading.enumerate()} if left else {}
    return [f"thread {names.get(one, one)}" for one in sorted(left)]


def descriptors_left(before: Count) -> list[str]:
    now = own_descriptors()
    opened = [f"descriptor {fd} -> {to}" for fd, to in now.items() if before.descriptors.get(fd) != to]
    closed = [f"descriptor {fd} -> {to} was closed" for fd, to in before.descriptors.items() if fd not in now]
    return opened + closed


def own_descriptors() -> dict[int, str]:
    found = processes.descriptors(os.getpid())
    listing = f"/proc/{os.getpid()}/fd"
    return {fd: to for fd, to in found.items() if to != listing}


def own_threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def mounts_under(root: Path) -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        points = [line.split()[4] for line in file]
    return [f"mount {point}" for point in points if point.startswith(f"{root}/")]


def runtime_left(world: World) -> list[str]:
    """Sockets and held locks in any runtime directory of the world."""
    problems = []
    for path in sorted(world.root.glob("*/holdfast*/**/*")):
        if any(part.endswith(".scratch") for part in path.parts):
            continue  # of a launcher or spare that was killed in mid-rehearsal: the next launcher sweeps it
        with suppress(FileNotFoundError):  # removed while we look
            problems += problems_of(path)
    return problems


def problems_of(path: Path) -> list[str]:
    shared = shared_launcher.current()
    if shared is not None and shared.is_lent(path):
        return []
    mode = path.lstat().st_mode
    if stat.S_ISSOCK(mode):
        return [f"socket {path}"]
    if stat.S_ISREG(mode) and path.suffix == ".lock" and is_locked(path):
        return [f"held lock {path}: {path.read_text(errors='replace').strip()}"]
    return []


def is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def tracebacks(world: World) -> list[str]:
    """Diagnostics of runners and launchers are free of them; a host's own stderr is the test's business."""
    logs = [log for log in evidence.logs(world.root) if log.suffix == ".log"]
    return [f"traceback in {log.relative_to(world.root)}" for log in logs if b"Traceback" in log.read_bytes()]


def outside(nowhere: Path) -> list[str]:
    """Remove what was written outside of a world, so that the next test finds nothing there; one line for each file."""
    found = sorted(nowhere.iterdir())
    for path in found:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return [f"file outside the test's world: {path}" for path in found]


def end_all(left: list[Process], before: Count) -> None:
    """Kill what is left; what loses its parent by that comes to us and goes too."""
    if not left:
        return
    for _ in range(20):
        for row in left:
            processes.end(row)
        processes.reap_adopted()
        left = strays(before, None)
        if not left:
            return
