"""What a view's server answers for its nodes: `/v1/nodes/{node}/...` is `/v1/...` of that node."""

from __future__ import annotations

import asyncio
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
from .following import by_reason, far_shots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from starlette.datastructures import QueryParams
    from starlette.types import Receive, Scope, Send

    from ..server.app import App
    from ..server.tokens import Caller
    from .following import Followed
    from .rows import FarShot
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
        facts: dict[str, Any] = {"seen_at": each.seen_at, "why": each.why, "version": each.version, "sessions": counts}
        state = "connected" if each.why is None else "unreachable"
        fingerprint = there.viewing.fingerprint(known[each.name])
        # Of finished sessions only the newest are counted.
        facts |= {"truncated": each.floor is not None, "fingerprint": fingerprint}
        items.append({"name": each.name, "state": state, **facts})
    return {"items": items}


class Elsewhere:
    """The sessions of nodes for one page of a list: those that are known here, and where the page goes on to older
    ones, what the nodes answer."""

    def __init__(self, there: Nodes, caller: Caller, fits: Callable[[Any], bool]) -> None:
        self._there = there
        self._caller = caller
        self._fits = fits
        self._nodes: list[Followed] = []
        self._shots: dict[str, list[FarShot]] = {}
        # How many there are beside those that are known, and whether another page has some of them.
        self.count = 0
        self.has_more = False
        # Nodes whose older sessions are missing, because they did not answer.
        self.truncated: list[str] = []

    @property
    def shots(self) -> list[FarShot]:
        return [shot for shots in self._shots.values() for shot in shots]

    @property
    def silent(self) -> list[Followed]:
        return [node for node in self._nodes if node.why is not None]

    async def look(self, wanted: str) -> None:
        """`all` nodes, or names separated by commas."""
        names = None if wanted == "all" else [name.strip() for name in wanted.split(",")]
        self._nodes = await self._there.following.look(names)
        for node in self._nodes:
            self._shots[node.name] = self._seen(node.rows.values())

    async def look_below(self, oldest: str | None, query: QueryParams) -> bool:
        """Ask the nodes that may have more sessions for the page, if those created after `oldest` are not enough. True
        if there were any."""
        short = [node for node in self._nodes if node.floor is not None and (oldest is None or oldest <= node.floor)]
        asked = urlencode([each for each in query.multi_items() if each[0] != "nodes"])
        pages = await asyncio.gather(*(self._page(node, asked) for node in short))
        for node, page in zip(short, pages, strict=True):
            if page is None:
                self.truncated.append(node.name)
                continue
            self._shots[node.name] = self._seen(far_shots(node.name, page))
            count = page.get("count")
            if type(count) is int:
                self.count += max(0, count - len(self._shots[node.name]))
            self.has_more |= page.get("next") is not None
        return bool(short)

    async def _page(self, node: Followed, query: str) -> dict[str, Any] | None:
        return None if node.why is not None else await self._there.following.page(node, self._caller, query)

    def _seen(self, shots: Iterable[FarShot]) -> list[FarShot]:
        return [each for each in shots if self._caller.sees(None, each.owner, each.labels) and self._fits(each)]


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
