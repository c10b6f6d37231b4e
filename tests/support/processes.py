"""The process table as the harness sees it, and what a subreaper has to do."""

from __future__ import annotations

import _posixsubprocess
import ctypes
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterable
from typing import NamedTuple

PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


class Process(NamedTuple):
    pid: int
    start: int
    ppid: int
    pgid: int
    sid: int
    state: str
    comm: str


def look(pid: int) -> Process | None:
    """One row of the process table; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            raw = stat.read().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    comm = raw[raw.index("(") + 1 : raw.rindex(")")]
    fields = raw[raw.rindex(")") + 2 :].split()
    return Process(pid, int(fields[19]), int(fields[1]), int(fields[2]), int(fields[3]), fields[0], comm)


_KTHREADD = 2


def is_kernel_thread(row: Process) -> bool:
    """It has neither environment nor descriptors. A container has no such process: its pid 2 may be any."""
    return row.ppid == _KTHREADD and not row.pgid


def table() -> dict[int, Process]:
    rows = map(look, _pids())
    return {row.pid: row for row in rows if row is not None}


def descendants(root: int, rows: dict[int, Process] | None = None) -> list[Process]:
    """Everything below `root`, zombies too, parents before children."""
    rows = table() if rows is None else rows
    below: dict[int, list[Process]] = {}
    for row in rows.values():
        below.setdefault(row.ppid, []).append(row)
    found: list[Process] = []
    waiting = [root]
    while waiting:
        children = below.get(waiting.pop(0), [])
        found.extend(children)
        waiting.extend(child.pid for child in children)
    return found


def below(root: int) -> list[Process]:
    """The same as `descendants`, from the kernel's own lists of children: the cost is theirs alone."""
    while True:
        found: list[Process] = []
        waiting = [root]
        complete = True
        while waiting:
            for pid in _children(waiting.pop(0)):
                row = look(pid)
                if row is None:
                    complete = False  # its children have moved, perhaps to where we looked already
                else:
                    found.append(row)
                    waiting.append(pid)
        if complete:
            return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


# The processes that were there before the running test.
_older: set[int] = set()


def begin_test() -> None:
    """From now on `recent` leaves out the processes that exist already."""
    _older.clear()
    _older.update(_pids())


def recent() -> list[Process]:
    """Everything below us, and whatever else came since the test began: nothing else can be of this test."""
    found = {row.pid: row for row in below(os.getpid())}
    for pid in _pids():
        if pid not in _older and pid not in found:
            row = look(pid)
            if row is not None:
                found[pid] = row
    return list(found.values())


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def command_line(pid: int) -> str:
    return " ".join(_read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")).strip()


def environment(pid: int) -> bytes:
    return _read(f"/proc/{pid}/environ")


def descriptors(pid: int) -> dict[int, str]:
    """Open descriptors and what they are; empty when the process is gone or not ours to see."""
    found: dict[int, str] = {}
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return found
    for name in names:
        try:
            found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue  # gone, not ours to see, or a path that is longer than the kernel tells
    return found


def connections(endpoint: str) -> int:
    """How many sockets were accepted at a path: each has it, and so has the one that listens there."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        return sum(line.split()[-1] == endpoint for line in file) - 1


def describe(process: Process) -> str:
    line = command_line(process.pid) or f"[{process.comm}]"
    return f"pid {process.pid} ({process.state}, parent {process.ppid}, group {process.pgid}): {line}"


def is_gone(pid: int, start: int | None = None) -> bool:
    """No longer a living process; a zombie lives no more."""
    row = look(pid)
    return row is None or row.state in "ZX" or (start is not None and row.start != start)


def open_pidfd(process: Process) -> int | None:
    """A pidfd on exactly this process, or None when it is gone."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    now = look(process.pid)
    if now is None or now.start != process.start:
        os.close(fd)
        return None
    return fd


def wait_any(processes: Iterable[Process], timeout: float) -> None:
    """Return when one of them has gone, or after the timeout."""
    fds = [fd for fd in map(open_pidfd, processes) if fd is not None]
    try:
        if fds:
            poller = select.poll()
            for fd in fds:
                poller.register(fd, select.POLLIN)
            poller.poll(timeout * 1000)
    finally:
        for fd in fds:
            os.close(fd)


def send(process: Process, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it was gone."""
    fd = open_pidfd(process)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def become_subreaper() -> None:
    """From now on whatever loses its parent below us becomes our child."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


# Children this process made itself. An adopted orphan that ends is ours to reap, as init would; a child of
# our own making that ends unreaped is a leak of the code that made it. The kernel does not remember which is which.
_born: set[tuple[int, int]] = set()


def watch_births() -> None:
    """Remember every child this process makes."""

    def noted(make: Callable[..., int]) -> Callable[..., int]:
        def make_and_note(*args: object, **options: object) -> int:
            pid = make(*args, **options)
            row = look(pid) if pid > 0 else None
            if row is not None:
                _born.add((row.pid, row.start))
            return pid

        return make_and_note

    for name in ("fork", "posix_spawn", "posix_spawnp"):
        setattr(os, name, noted(getattr(os, name)))
    fork_exec = noted(_posixsubprocess.fork_exec)
    setattr(_posixsubprocess, "fork_exec", fork_exec)  # noqa: B010 - the stub declares it a plain function
    setattr(subprocess, "_fork_exec", fork_exec)  # noqa: B010 - subprocess holds it under a private name


def is_adopted_zombie(process: Process) -> bool:
    """An orphan that came to us and has ended."""
    ours = process.ppid == os.getpid() and process.state == "Z"
    return ours and (process.pid, process.start) not in _born


def reap_adopted() -> None:
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return  # the usual case, and cheaper to ask than to look at every process
    except ChildProcessError:
        return
    for pid in _children(os.getpid()):
        row = look(pid)
        if row is not None and is_adopted_zombie(row):
            os.waitpid(pid, os.WNOHANG)


def end(process: Process) -> None:
    """SIGKILL by pidfd, and reap it if it is our child."""
    send(process, signal.SIGKILL)
    wait_any([process], 2.0)
    now = look(process.pid)
    if now is not None and now.start == process.start and now.ppid == os.getpid():
        os.waitpid(process.pid, os.WNOHANG)


def tree_text(root: int) -> str:
    """The tree below `root`, indented, for a failure report."""
    rows = table()
    depth = {root: 0}
    lines = [describe(rows[root])] if root in rows else []
    for row in descendants(root, rows):
        depth[row.pid] = depth.get(row.ppid, 0) + 1
        lines.append("  " * depth[row.pid] + describe(row))
    return "\n".join(lines)


def price(pid: int) -> tuple[int, int, int]:
    """CPU ticks and voluntary context switches so far."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    with open(f"/proc/{pid}/status") as file:
        switches = next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))
    return int(fields[11]), int(fields[12]), switches


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def waiting_for_locks() -> int:
    """How many threads of this process stand before a lock of a file."""
    with open("/proc/locks") as file:
        return sum(" -> FLOCK " in line and f" {os.getpid()} " in line for line in file)
