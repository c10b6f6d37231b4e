"""What a view's server answers for its nodes: `/v1/nodes/{node}/...` is `/v1/...` of that node."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request

from ..core.clock import rfc3339
from ..errors import BadArgument, NodeUnreachable, NoSuchNode
from ..server import responses
from ..server.endpoints import as_json, by_path, read_body
from ..server.gate import role_of
from ..server.responses import TicketSpent
from .far_app import FarApp

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from starlette.types import Receive, Scope, Send

    from ..server.app import App
    from ..server.tokens import Caller
    from .serving import Nodes


_NS = 1_000_000_000
_PATH = re.compile(r"/v1/nodes/([a-z0-9-]{1,32})(/.+)")
_TICKETS = re.compile(r"/sessions/([^/]+)/tickets")
_ATTACH = re.compile(r"/sessions/([^/]+)/attach")


async def listed(there: Nodes) -> dict[str, Any]:
    """`GET /v1/nodes`."""
    known = there.viewing.nodes()
    items = []
    for each in await there.following.look():
        counts: dict[str, int] = {}
        for row in each.rows.values():
            counts[row.state] = counts.get(row.state, 0) + 1
        facts = {"seen_at": each.seen_at, "why": each.why, "version": each.version, "sessions": counts}
        state = "connected" if each.why is None else "unreachable"
        fingerprint = there.viewing.fingerprint(known[each.name])
        items.append({"name": each.name, "state": state, **facts, "fingerprint": fingerprint})
    return {"items": items}


async def sessions_of(
    app: App, caller: Caller, wanted: str, fits: Callable[[Any], bool]
) -> tuple[list[Any], list[Any]]:
    """Sessions of nodes (`all`, or names with commas) that fit and that the caller may see, and the nodes that did not
    answer."""
    if app.nodes is None or app.nodes.following is None:
        return [], []
    names = None if wanted == "all" else [name.strip() for name in wanted.split(",")]
    found = await app.nodes.following.look(names)
    shots = [shot for node in found for shot in node.rows.values()]
    seen = [shot for shot in shots if caller.sees(None, shot.owner, shot.labels) and fits(shot)]
    away = [node for node in found if node.why is not None]
    return seen, [{"node": each.name, "why": each.why, "seen_at": each.seen_at} for each in away]


async def forward(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """The request goes to the node as the caller's; the node cuts that down to what it grants this view."""
    found = _PATH.fullmatch(scope["path"])
    caller: Caller = scope["state"]["caller"]
    nodes = app.nodes
    if found is None or nodes is None or nodes.calls is None:
        raise NoSuchNode(scope["path"].split("/")[3][:80])
    node, path = found[1], found[2]
    scope["state"]["route"] = "/v1/nodes/{node}/..."
    asked = _TICKETS.fullmatch(path)
    if asked is not None and scope["type"] == "http" and scope["method"] == "POST":
        # Tickets are the view's own: the upgrade is answered here.
        request = Request(scope, receive)
        body = await read_body(request, by_path()["/v1/sessions/{id}/tickets"]["POST"], app.config)
        role = role_of(body.get("role"))
        caller.must(role)
        secret = app.tickets.issue(f"{node}/{asked[1]}", role, caller, scope["state"]["origin"])
        until = rfc3339(time.time_ns() + int(responses.TICKET_S * _NS))
        await as_json({"ticket": secret, "expires_at": until, "role": role})(scope, receive, send)
        return
    if scope["type"] == "websocket":
        scope = _with_role(scope, node, path)
    # A token that is revoked loses what it has open, there as here.
    with app.tokens.in_use(caller):
        try:
            await FarApp(nodes.calls, node)(scope, receive, send, path=f"/v1{path}", caller=caller)
        except NodeUnreachable as problem:
            problem.facts["seen_at"] = nodes.following.seen_at(node)
            raise


def _with_role(scope: Scope, node: str, path: str) -> Scope:
    """The ticket stays here; the node learns the role that it was given for."""
    ticket = scope["state"]["ticket"]
    attach = _ATTACH.fullmatch(path)
    if attach is None:
        raise BadArgument("path", "this address speaks no WebSocket", "attach to a session")
    if ticket is None:
        return scope
    if ticket.session != f"{node}/{attach[1]}":
        raise TicketSpent
    query = [(name, value) for name, value in parse_qsl(scope["query_string"].decode("latin-1"), True)]
    kept = [each for each in query if each[0] not in ("ticket", "role")]
    return {**scope, "query_string": urlencode([*kept, ("role", ticket.role)]).encode()}
