"""Where the server is reached over HTTP, and the token that it asks for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...errors import BadArgument, UnsafeDirectory

if TYPE_CHECKING:
    from ...home import Home

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PATH = "/mcp"
_TOKEN_BYTES = 32
_TOKEN_CHARACTERS = 16


def address(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"


def token_of(home: Home) -> str:
    """The home's own token for this server, made when first asked for. Whoever can read the home may have it."""
    directory = os.path.join(home.path, "server")
    path = os.path.join(directory, "mcp-token")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        pass
    else:
        import secrets

        with open(fd, "w") as file:
            file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
    return read_token(path)


def read_token(path: str) -> str:
    with open(path) as file:
        facts = os.fstat(file.fileno())
        if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
            raise UnsafeDirectory(path, "others can read the token", f"chmod 600 {path}, and make a new token")
        token = file.read().strip()
    if len(token) < _TOKEN_CHARACTERS:
        raise BadArgument(
            "token", f"{path} holds no token of {_TOKEN_CHARACTERS} characters or more", "delete it, and start again"
        )
    return token
