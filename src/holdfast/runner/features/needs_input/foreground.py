"""What the processes in the foreground of a terminal are doing, as far as `/proc` shows: whether one sits in a read on
that terminal or in a poll for it, whether any runs, waits for a disk or is stopped. Of a pipe: whether any process sits
in a read on it.

Looking changes nothing and signals no process. What may not be looked at (another user's process, a kernel without
`/proc/<pid>/syscall`) is unknown, never a no.
"""

from __future__ import annotations

import os
import select
import struct
import sys

from ....core import processes as tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


# Limits that keep a look short for any command; what lies beyond them is unknown.
_PROCESSES_MAX = 64
_THREADS_MAX = 64

# The numbers of read and readv. A process of another word size than the machine's has others, and is taken for one
# that does not read.
_READS = {
    "x86_64": (0, 19),
    "aarch64": (63, 65),
    "riscv64": (63, 65),
    "loongarch64": (63, 65),
    "ppc64le": (3, 145),
    "s390x": (3, 145),
    "armv7l": (3, 145),
    "i686": (3, 145),
}
# The same of poll and ppoll; select and pselect6; epoll_wait, epoll_pwait and epoll_pwait2. Only of machines whose
# words have 64 bits, the lowest first, because the sets that are waited for are read from memory.
_GENERIC_POLLS = {73: "poll", 72: "select", 22: "epoll", 441: "epoll"}
_POLLS = {
    "x86_64": {7: "poll", 271: "poll", 23: "select", 270: "select", 232: "epoll", 281: "epoll", 441: "epoll"},
    "aarch64": _GENERIC_POLLS,
    "riscv64": _GENERIC_POLLS,
    "loongarch64": _GENERIC_POLLS,
}
# A line editor waits for a handful of descriptors; of more only the first are looked at.
_POLLED_MAX = 64
_POLL_ENTRY = struct.Struct("=iHH")
# /dev/tty is each process's own terminal, and those looked at have this one.
_OWN_TERMINAL = os.makedev(5, 0)


class ForegroundLook:
    """`blocked_read` is None where it cannot be known. `polled_read`: a process is seen to sleep until there is input
    on the terminal, perhaps among other things; False where that is not so or cannot be known. `stopped` names the
    signal that stopped a process for touching the terminal from the background, or is `stopped` for a process in the
    foreground that was stopped by anything."""

    __slots__ = ("blocked_read", "cpu_ticks", "disk_wait", "polled_read", "running", "stopped")

    def __init__(self) -> None:
        self.blocked_read: bool | None = None
        self.polled_read = False
        self.running = False
        self.disk_wait = False
        self.stopped: str | None = None
        # Of all of them together; to be compared with those of another look.
        self.cpu_ticks = 0

    @property
    def vetoes(self) -> list[str]:
        """What speaks against waiting for input."""
        return [name for name in ("running", "disk_wait") if getattr(self, name)]


def look(device: int, group: int, processes: Iterable[tree.Process] | None = None) -> ForegroundLook:
    """At the foreground `group` of the terminal with this device number. `processes` are those of the session, where
    they were listed already; else all are listed."""
    seen = ForegroundLook()
    if sys.platform != "linux":
        return seen
    listed = list(tree.everyone().values() if processes is None else processes)
    members = [process for process in listed if process.group == group]
    answers = [_look_at(process.pid, device, seen) for process in members[:_PROCESSES_MAX]]
    if True in answers:
        seen.blocked_read = True
    elif None not in answers and len(members) <= _PROCESSES_MAX:
        seen.blocked_read = False
    sessions = {process.session for process in members}
    for process in listed:
        if process.state == "T" and process.group != group and process.session in sessions:
            seen.stopped = _stopped_by(process.pid, device) or seen.stopped
    return seen


def reads_pipe(pipe: tuple[int, int], processes: Iterable[tree.Process]) -> bool | None:
    """Does one of these sit in a read on the pipe with this device and inode? None where it cannot be known."""
    calls = _READS.get(os.uname().machine)
    if sys.platform != "linux" or calls is None:
        return None
    known = True
    for process in list(processes)[:_PROCESSES_MAX]:
        try:
            threads = os.listdir(f"/proc/{process.pid}/task")
        except OSError:
            continue  # gone meanwhile
        for thread in threads[:_THREADS_MAX]:
            call = _call(process.pid, thread)
            if call is None:
                known = False
            elif call[0] in calls and _is_pipe(process.pid, call[1], pipe):
                return True
    return False if known else None


def _look_at(pid: int, device: int, seen: ForegroundLook) -> bool | None:
    """Is it blocked in a read on the terminal? One that runs in another thread is at work, not waiting."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        seen.cpu_ticks += tree.cpu_ticks(tree.stat_fields(f"/proc/{pid}/stat"))
    except OSError:
        return False  # gone meanwhile
    answers: list[bool | None] = []
    for thread in threads[:_THREADS_MAX]:
        try:
            state = tree.stat_fields(f"/proc/{pid}/task/{thread}/stat")[0]
        except OSError:
            continue
        if state == b"R":
            seen.running = True
            return False
        if state == b"D":
            seen.disk_wait = True
            return False
        if state in (b"T", b"t"):
            seen.stopped = seen.stopped or "stopped"
        elif state == b"S":
            call = _call(pid, thread)
            answers.append(_reads(pid, call, device))
            seen.polled_read = seen.polled_read or _polls(pid, call, device)
    if True in answers:
        return True
    return None if None in answers or len(threads) > _THREADS_MAX else False


def _reads(pid: int, call: tuple[int, ...] | None, device: int) -> bool | None:
    calls = _READS.get(os.uname().machine)
    if calls is None or call is None:
        return None
    return call[0] in calls and _is_terminal(pid, call[1], device)


def _polls(pid: int, call: tuple[int, ...] | None, device: int) -> bool:
    """Does it sleep in a poll, select or epoll that input on the terminal would end?"""
    kind = _POLLS.get(os.uname().machine, {}).get(call[0]) if call is not None else None
    if call is None or kind is None:
        return False
    try:
        if kind == "poll":
            waited = _poll_entries(pid, call[1], call[2])
        elif kind == "select":
            waited = _select_set(pid, call[1], call[2])
        else:
            waited = _epoll_entries(pid, call[1])
    except (OSError, OverflowError, ValueError):
        return False
    return any(_is_terminal(pid, descriptor, device) for descriptor in waited)


def _poll_entries(pid: int, address: int, count: int) -> list[int]:
    data = _memory(pid, address, min(count, _POLLED_MAX) * _POLL_ENTRY.size)
    data = data[: len(data) - len(data) % _POLL_ENTRY.size]
    return [fd for fd, events, _ in _POLL_ENTRY.iter_unpack(data) if fd >= 0 and events & select.POLLIN]


def _select_set(pid: int, count: int, address: int) -> list[int]:
    if not address:
        return []
    bits = int.from_bytes(_memory(pid, address, (min(count, 1024) + 7) // 8), "little")
    return [fd for fd in range(min(count, 1024)) if bits >> fd & 1][:_POLLED_MAX]


def _epoll_entries(pid: int, epoll: int) -> list[int]:
    """The kernel lists them: `tfd:        0 events:       19 ...`, the events in hexadecimal."""
    with open(f"/proc/{pid}/fdinfo/{epoll}", "rb", buffering=0) as file:
        lines = [line.split() for line in file.read(1 << 14).splitlines() if line.startswith(b"tfd:")]
    waited = [words for words in lines[:_POLLED_MAX] if len(words) >= 4 and words[2] == b"events:"]
    return [int(words[1]) for words in waited if int(words[3], 16) & select.EPOLLIN]


def _memory(pid: int, address: int, size: int) -> bytes:
    """Where the call may be read, what its arguments point to may be read too."""
    fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, size, address)
    finally:
        os.close(fd)


def _stopped_by(pid: int, device: int) -> str | None:
    """The kernel stops a process of the background that reads the terminal, or writes to it under `tostop`, in the
    middle of that call."""
    calls = _READS.get(os.uname().machine)
    call = _call(pid, str(pid))
    if calls is None or call is None or not _is_terminal(pid, call[1], device):
        return None
    return "SIGTTIN" if call[0] in calls else "SIGTTOU"


def _call(pid: int, thread: str) -> tuple[int, ...] | None:
    """The number and the first two arguments of the system call it is in; None where we may not know."""
    try:
        with open(f"/proc/{pid}/task/{thread}/syscall", "rb", buffering=0) as file:
            words = file.read(256).split()
    except OSError:
        return None
    if len(words) < 3 or not words[0].isdigit():
        return -1, -1, -1  # running again, or not in a call
    return int(words[0]), int(words[1], 16), int(words[2], 16)


def _is_terminal(pid: int, descriptor: int, device: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}/fd/{descriptor}").st_rdev in (device, _OWN_TERMINAL)
    except OSError:
        return False


def _is_pipe(pid: int, descriptor: int, pipe: tuple[int, int]) -> bool:
    try:
        found = os.stat(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == pipe
