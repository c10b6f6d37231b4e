"""The socket that a server listens on, and the file of its token."""

from __future__ import annotations

import errno
import ipaddress
import os
import secrets
import socket
import stat
from typing import TYPE_CHECKING

from ..core import directories, records
from ..errors import BadArgument, UnsafeDirectory

if TYPE_CHECKING:
    from ..home import Home


# The socket that a server listens on.


# The kernel drops connections beyond this number, and their clients retry after a second.
BACKLOG = 4096


def check_port(port: int) -> None:
    if not 0 <= port < 1 << 16:
        raise BadArgument("port", f"{port} is not a port number", "give 1 to 65535, or 0 for a free one")


def is_loopback(bind: str) -> bool:
    """Whether only this machine reaches the address."""
    if bind == "localhost":
        return True
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        raise BadArgument("bind", f"{bind[:80]!a} is not an address", "give one such as 127.0.0.1 or ::1") from None


def bound(host: str, port: int) -> socket.socket:
    """A listening socket: from here on clients wait for us and are not refused. OSError when the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def url(scheme: str, host: str, port: int, path: str = "") -> str:
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{path}"


# A token in a file of the home, for clients that can read the home.


_TOKEN_BYTES = 32
_TOKEN_CHARACTERS = 16
# No token is longer.
_FILE_BYTES = 4096


def token_path(home: Home, name: str) -> str:
    return os.path.join(home.path, "server", name)


def token_of(home: Home, name: str) -> str:
    """The token of this name, made when first asked for."""
    path = token_path(home, name)
    try:
        directories.private(os.path.dirname(path), directories.WRITABLE)
    except directories.Unfit as problem:
        raise UnsafeDirectory(problem.path, problem.why, problem.fix) from None
    if not os.path.lexists(path):
        # Another server may start at the same moment.
        records.new_once(None, path, secrets.token_urlsafe(_TOKEN_BYTES).encode() + b"\n")
    return read_token(path)


def read_token(path: str, *, follow: bool = False) -> str:
    """What the file holds. `follow`: a link to it is as good, since the user named it."""
    try:
        # A FIFO in its place must not hold us up.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    except OSError as problem:
        if problem.errno != errno.ELOOP:
            raise
        raise UnsafeDirectory(path, "it is a symlink", f"rm {path}; a new token is made at the next start") from None
    with open(fd) as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise UnsafeDirectory(path, "it is not a file", f"remove {path}; a new token is made at the next start")
        if facts.st_uid != os.geteuid():
            why = f"it belongs to uid {facts.st_uid}, not to us"
            raise UnsafeDirectory(path, why, f"rm {path}; a new token is made at the next start")
        if facts.st_mode & directories.OPEN:
            why = f"others can read the token (its mode is {stat.S_IMODE(facts.st_mode):04o})"
            raise UnsafeDirectory(path, why, f"rm {path}: others may have read it; a new one is made at the next start")
        token = file.read(_FILE_BYTES).strip()
    if len(token) < _TOKEN_CHARACTERS:
        raise BadArgument(
            "token", f"{path} holds no token of {_TOKEN_CHARACTERS} characters or more", "delete it, and start again"
        )
    return token
