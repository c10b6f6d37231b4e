"""The connection behind a handler's session, and whether whoever asked is still there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp.server.connection import Connection
    from mcp.server.session import ServerSession
    from starlette.requests import Request


def of(session: ServerSession) -> Connection:
    """A session is made anew for each message; its connection stays, and tells by its exit stack when it is over. The
    SDK has no public name for it."""
    return session._connection


async def left(request: Request) -> None:
    """Until whoever sent this request is gone, and an answer would reach nobody."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
