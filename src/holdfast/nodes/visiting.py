"""The node's side of a visit: finds the session, checks that the view may see it, and names the program to start."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote

from ..core import jsontext
from ..core.processes import ROLE_VARIABLE, VISIT_VARIABLE
from ..errors import HoldfastError, NotFound
from ..home import Home
from ..server.responses import HANG_UP, LOST

if TYPE_CHECKING:
    from typing import Any

    from starlette.types import Message, Scope

    from ..server.tokens import Caller
    from .offering import Serve


_REFERENCE_CHARACTERS = 256
_RUNNER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "runner", "__main__.py")


async def visited(
    serve: Serve, caller: Caller, view: str, node: str, asked: dict[str, Any]
) -> tuple[list[str], dict[str, str]]:
    """The command line and the variables of a far end for the session that a view names. Our own server looks it up,
    with the rights of that view."""
    ref = str(asked.get("session"))
    if not ref or "/" in ref or len(ref) > _REFERENCE_CHARACTERS:
        raise NotFound(ref[:80])
    row = await _row(serve, caller, view, ref)
    visit = {"home": Home().path, "id": row["id"], "scope": caller.scope, "view": view, "node": node}
    environment = {VISIT_VARIABLE: jsontext.write(visit), ROLE_VARIABLE: "runner"}
    return [sys.executable, "-I", "-S", "-X", "utf8", _RUNNER, "visit"], environment


async def _row(serve: Serve, caller: Caller, view: str, ref: str) -> dict[str, Any]:
    body, status = bytearray(), 0

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: Message) -> None:
        nonlocal status
        if event["type"] == "http.response.start":
            status = event["status"]
        else:
            body.extend(event.get("body", b""))

    path = f"/v1/sessions/{quote(ref)}"
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "https",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [],
        "client": None,
        "server": None,
        "extensions": {LOST: asyncio.Event(), HANG_UP: lambda: None},
        "state": {"caller": caller, "peer": f"view:{view}"},
    }
    await serve(scope, receive, send)
    answer = jsontext.read(bytes(body))
    if status == 200:
        found: dict[str, Any] = answer
        return found
    if status in (404, 410):
        raise NotFound(ref)
    raise HoldfastError.from_wire(
        {"code": answer.get("code"), "message": answer.get("detail"), "fix": answer.get("fix")}
    )
