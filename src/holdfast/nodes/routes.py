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
from .following import by_reason

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from starlette.types import Receive, Scope, Send

    from ..server.app import App
    from ..server.tokens import Caller
    from .following import Followed
    from .serving import Nodes


_NS = 1_000_000_000
# Of nodes that did not answer and have no session on the page of a list, these many are named.
_NAMED = 20
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
    there: Nodes, caller: Caller, wanted: str, fits: Callable[[Any], bool]
) -> tuple[list[Any], list[Followed]]:
    """Sessions of nodes (`all`, or names separated by commas) that match and that the caller may see, and the nodes
    that did not answer."""
    names = None if wanted == "all" else [name.strip() for name in wanted.split(",")]
    found = await there.following.look(names)
    shots = [shot for node in found for shot in node.rows.values()]
    seen = [shot for shot in shots if caller.sees(None, shot.owner, shot.labels) and fits(shot)]
    return seen, [node for node in found if node.why is not None]


def unreachable(silent: list[Followed], shown: set[str]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The nodes that did not answer. Named: those with sessions that are `shown`, and the first of the others. All of
    them counted by reason."""
    others = [node for node in silent if node.name not in shown][:_NAMED]
    named = [node for node in silent if node.name in shown] + others
    rows = [{"node": node.name, "why": node.why, "seen_at": node.seen_at} for node in named]
    return rows, {why: len(names) for why, names in by_reason((node.name, node.why or "") for node in silent).items()}


async def forward(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """Forward the request to the node with the caller's rights; the node limits them to what it grants this view."""
    found = _PATH.fullmatch(scope["path"])
    caller: Caller = scope["state"]["caller"]
    nodes = app.nodes
    if found is None or nodes is None:
        raise NoSuchNode(scope["path"].split("/")[3][:80])
    node, path = found[1], found[2]
    scope["state"]["route"] = "/v1/nodes/{node}/..."
    asked = _TICKETS.fullmatch(path)
    if asked is not None and scope["type"] == "http" and scope["method"] == "POST":
        # Tickets belong to the view: the upgrade is answered here.
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
    # When a token is revoked, its connections are closed there as here.
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
        raise BadArgument("path", "this address does not support WebSocket", "attach to a session")
    if ticket is None:
        return scope
    if ticket.session != f"{node}/{attach[1]}":
        raise TicketSpent
    query = [(name, value) for name, value in parse_qsl(scope["query_string"].decode("latin-1"), True)]
    kept = [each for each in query if each[0] not in ("ticket", "role")]
    return {**scope, "query_string": urlencode([*kept, ("role", ticket.role)]).encode()}
