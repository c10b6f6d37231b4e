"""What runners and other hosts tell of their daemons, for the observers of this one.

A datagram says that a file has grown, whether or not anybody is to be told; what is new is read there. Nothing is
asked again and again, and a hint that was lost is made good by the next.
"""

from __future__ import annotations

import _socket as socket
import os

from ..runner import sockets, wake
from ..runner.loop import READ
from ..signals.indexing import generations, lines
from ..signals.records import Signal, parse
from ..signals.waker import make_room, wake_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..home import Home
    from ..runner.loop import Loop

_HINT_BYTES = 64
# As many hosts of one home may observe, as may wait for the signals of one owner.
_HOSTS_MAX = 64


class _Place:
    """How far the file of one session was read."""

    __slots__ = ("at", "inode", "seq")

    def __init__(self) -> None:
        self.inode = 0
        self.at = 0
        self.seq = 0


class Feed:
    """`told(signal)` for every record that is written from now on, on the loop's thread. `known` are sessions that were
    there before: of those only what is new, of all others everything. Bound before it is asked for them."""

    def __init__(self, loop: Loop, home: Home, runtime: str, told: Callable[[Signal], None]) -> None:
        self._loop = loop
        self._home = home
        self._told = told
        self._places: dict[str, _Place] = {}
        directory = wake_directory(runtime)
        make_room(directory, wake.VIEW, _HOSTS_MAX)
        name = f"{wake.VIEW}-{os.urandom(6).hex()}"
        self._path = os.path.join(directory, name)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            sockets.bind_unix(self._socket, directory, name)
        except BaseException:
            self._socket.close()
            raise

    def begin(self, known: Iterable[str]) -> None:
        for session in known:
            self._read(session)
        self._loop.watch(self._socket.fileno(), READ, self._hinted)

    def close(self) -> None:
        self._loop.watch(self._socket.fileno(), 0, self._hinted)
        self._socket.close()
        try:
            os.unlink(self._path)
        except OSError:
            pass

    def _hinted(self, _events: int) -> None:
        sessions: dict[str, None] = {}
        while True:
            try:
                hint = self._socket.recv(_HINT_BYTES)
            except OSError:
                break
            sessions[os.fsdecode(hint.partition(b" ")[0])] = None
        self.read(sessions)

    def read(self, sessions: Iterable[str]) -> None:
        """Tell what is new in their files, hinted at or not."""
        for session in sessions:
            for signal in self._read(session):
                self._told(signal)

    def _read(self, session: str) -> list[Signal]:
        """What its file has that was not read before."""
        if session == "home":
            return []
        place = self._places.setdefault(session, _Place())
        found: list[Signal] = []
        try:
            fds = generations(self._home.session(session))
        except OSError:
            return []
        try:
            inodes = [os.fstat(fd).st_ino for fd in fds]
            first = inodes.index(place.inode) if place.inode in inodes else 0
            for fd, inode in list(zip(fds, inodes, strict=True))[first:]:
                at = place.at if inode == place.inode else 0
                for line in lines(fd, at):
                    if not line.endswith(b"\n"):
                        break  # it is being written: the hint comes when it is whole
                    at += len(line)
                    each = parse(line, session)
                    # What a rotation carried over was read before.
                    if isinstance(each, Signal) and each.seq > place.seq:
                        place.seq = each.seq
                        found.append(each)
                place.inode, place.at = inode, at
        finally:
            for fd in fds:
                os.close(fd)
        return found
