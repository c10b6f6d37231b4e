"""Who listens on a port of this machine, as `/proc` tells: the sockets by address, and the processes that hold them.

A look, and no connection: a server that serves one client and leaves is not used up by being looked at.
"""

from __future__ import annotations

import os
import sys
import time

from . import tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = b"0A"
_READ_BYTES = 1 << 16
# The kernel names those that listen first. So many of them are looked through, and the rest is not.
_TABLE_MAX_BYTES = 4 << 20
# So long the loop may be kept by the search for a foreign holder, which goes on the next time.
_SEARCH_S = 0.005

_ANY_4, _ANY_6 = bytes(4), bytes(16)
_MAPPED = bytes(10) + b"\xff\xff"


class NoTable(Exception):
    """This system does not tell who listens."""


def find(port: int, addresses: Collection[bytes]) -> dict[int, int]:
    """The sockets that take connections to this port at one of these addresses (packed, 4 or 16 bytes): the user by
    inode."""
    found: dict[int, int] = {}
    there = False
    for table in _TABLES:
        try:
            rows = list(_rows(table))
        except FileNotFoundError:
            continue  # a kernel without that version of the protocol
        there = True
        mine = [row for row in rows if row[1] == port and any(_takes(row[0], wanted) for wanted in addresses)]
        found.update((inode, uid) for _, _, uid, inode in mine)
    if not there:
        raise NoTable
    return found


def _rows(table: str) -> Iterator[tuple[bytes, int, int, int]]:
    fd = os.open(table, os.O_RDONLY | os.O_CLOEXEC)
    try:
        rest, size = os.read(fd, _READ_BYTES), 0
        first = True
        while rest and size < _TABLE_MAX_BYTES:
            rows = rest.split(b"\n")
            rest = rows.pop()
            for row in rows:
                if first:
                    first = False  # the names of the columns
                    continue
                fields = row.split()
                if fields[3] != _LISTENS:
                    return
                address, _, number = fields[1].partition(b":")
                yield _packed(address), int(number, 16), int(fields[7]), int(fields[9])
            more = os.read(fd, _READ_BYTES)
            if not more:
                return
            size += len(more)
            rest += more
    finally:
        os.close(fd)


def _packed(address: bytes) -> bytes:
    """The kernel writes words of four bytes, each as a number of this machine."""
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    return b"".join(word.to_bytes(4, sys.byteorder) for word in words)


def _takes(listening: bytes, wanted: bytes) -> bool:
    if listening == wanted or listening == _MAPPED + wanted:
        return True
    # One that listens everywhere in the newer protocol takes the older too, but for the few that are told not to.
    return listening == _ANY_6 or (listening == _ANY_4 and len(wanted) == 4)


def holder(inodes: Collection[int], processes: Iterable[tree.Process]) -> int | None:
    """Which of these has one of the sockets."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    return next((process.pid for process in processes if _holds(process.pid, wanted)), None)


def _holds(pid: int, wanted: set[str]) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return False  # gone, or not ours to look at
    for number in numbers:
        try:
            if os.readlink(f"{folder}/{number}") in wanted:
                return True
        except OSError:
            continue
    return False


class Search:
    """For whoever holds these sockets among all processes of the machine, some at a time."""

    def __init__(self, inodes: Collection[int]) -> None:
        self.inodes = set(inodes)
        self.pid: int | None = None
        self._wanted = {f"socket:[{inode}]" for inode in inodes}
        self._left = [int(name) for name in os.listdir("/proc") if name.isdigit()]

    @property
    def over(self) -> bool:
        return self.pid is not None or not self._left

    def go_on(self) -> int | None:
        """The pid, once it is found. None: not yet, or it cannot be."""
        until = time.monotonic() + _SEARCH_S
        while self.pid is None and self._left and time.monotonic() < until:
            pid = self._left.pop()
            if _holds(pid, self._wanted):
                self.pid = pid
        return self.pid
