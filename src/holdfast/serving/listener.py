"""The socket that a server listens on."""

from __future__ import annotations

import socket

from ..errors import BadArgument

# The kernel drops connections beyond this number, and their clients retry after a second.
BACKLOG = 4096


def check_port(port: int) -> None:
    if not 0 <= port < 1 << 16:
        raise BadArgument("port", f"{port} is none", "give 1 to 65535, or 0 for a free one")


def bound(host: str, port: int) -> socket.socket:
    """From here on who connects waits for us, and is not refused. OSError where the port cannot be had."""
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
