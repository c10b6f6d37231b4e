"""Unix sockets: paths longer than `sun_path`, the user at the other end, descriptors in transit.

A runner's sockets are those of the C module: what the class of the standard library adds to them, a forked runner
pays for with pages that it could have shared.
"""

from __future__ import annotations

import _socket as socket
import os
import select
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Callable


# sizeof(sun_path) less the final NUL.
SUN_PATH_BYTES = 107
# The kernel's SCM_MAX_FD: what one message can carry.
MAX_FDS = 253
_PEER_CREDENTIALS = struct.Struct("iII")
_FD_BYTES = struct.calcsize("i")


def bind_unix(sock: socket.socket, directory: str, name: str) -> None:
    """Bind to `directory/name`, mode 0600 from the start. The caller has made sure of `directory`."""
    # Linux gives the new file the mode of the socket's inode, less the umask; a later chmod is too late.
    os.fchmod(sock.fileno(), 0o600)
    _at(os.path.join(directory, name), sock.bind)


def connect_unix(sock: socket.socket, path: str) -> None:
    """Connect to `path`, however long. Non-blocking: BlockingIOError if its backlog is full."""
    _at(path, sock.connect)


def send_unix(sock: socket.socket, datagram: bytes, path: str) -> None:
    """One datagram to the socket bound to `path`, however long."""
    _at(path, lambda address: sock.sendto(datagram, address))


def _at(path: str, act: Callable[[str], object]) -> None:
    """Call `act` with an address of `path` that fits into `sun_path`."""
    if len(os.fsencode(path)) <= SUN_PATH_BYTES:
        act(path)
        return
    directory, name = os.path.split(path)
    fd = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        act(f"/proc/self/fd/{fd}/{name}")
    finally:
        os.close(fd)


def accept(listener: socket.socket) -> socket.socket:
    """Accept one connection. BlockingIOError when none waits."""
    return socket.socket(fileno=listener._accept()[0])  # type: ignore[attr-defined]


def peer_uid(sock: socket.socket) -> int:
    """The user at the other end, as the kernel knew it when the connection was made."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    uid: int = _PEER_CREDENTIALS.unpack(raw)[1]
    return uid


def has_left(sock: socket.socket) -> bool:
    """Has the other end closed the connection?"""
    poll = select.poll()
    poll.register(sock, select.POLLHUP | select.POLLRDHUP)
    return bool(poll.poll(0))


def send_with_fds(sock: socket.socket, data: bytes, fds: Sequence[int]) -> int:
    """Send the first part of `data` with `fds` attached; how many bytes went. The rest is sent without."""
    if not fds:
        return sock.send(data)
    if not data or len(fds) > MAX_FDS:
        raise ValueError(f"{len(fds)} descriptors cannot ride on {len(data)} bytes")
    return sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))])


def recv_with_fds(sock: socket.socket, size: int, max_fds: int) -> tuple[bytes, list[int]]:
    """Up to `size` bytes and `max_fds` descriptors, all close-on-exec. More than those are closed at once."""
    # What finds no room in the control buffer is closed by the kernel and never becomes a descriptor of ours.
    room = socket.CMSG_SPACE(max_fds * _FD_BYTES) if max_fds else 0
    data, ancillary, _flags, _address = sock.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.extend(struct.unpack_from(f"{len(payload) // _FD_BYTES}i", payload))
    # The padding of the control buffer may have let one more in.
    for fd in fds[max_fds:]:
        os.close(fd)
    return data, fds[:max_fds]
