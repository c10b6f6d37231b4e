"""Where the server is reached over HTTP, and the token that it asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...serving import listener, tokenfile

if TYPE_CHECKING:
    from ...home import Home

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PATH = "/mcp"


def address(host: str, port: int) -> str:
    return listener.url("http", host, port, PATH)


def token_of(home: Home) -> str:
    """The home's own token for this server, made when first asked for."""
    return tokenfile.token_of(home, "mcp-token")


def read_token(path: str) -> str:
    """A token that the user keeps in a file of their own."""
    return tokenfile.read_token(path, follow=True)
