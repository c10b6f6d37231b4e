"""The server itself, login, tokens and observer links."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from starlette.responses import Response

from ... import __version__
from ...core.clock import rfc3339
from ...errors import BadArgument, HoldfastError, PlaceUnreachable
from ...home import check_labels, check_owner, plain_text
from ...model import UNREACHABLE, Collected
from ...model.options import CHOICE, DURATION, OTHER, PAIRS, SWITCH, TEXT
from .. import replies, responses
from ..endpoints import endpoint, openapi, takes
from ..metrics import MEDIA_TYPE
from ..page import is_built
from ..responses import BadOrigin, NoSuchAddress, NotReady, Unauthenticated, problem
from ..tokens import LINK, PAGE, SCOPES, TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ...model import Snapshot
    from ..app import Ask


FEATURES = (
    *("attach", "sessions", "output", "search", "screen", "frames", "export", "links", "signals", "consumers"),
    *("events", "metrics"),
)
_NS = 1_000_000_000
_LINK_S = 86400.0
_LABEL_CHARACTERS = 64


# The server itself.


@endpoint("GET", "/healthz", None, "Whether the server answers", gives=replies.Ok)
async def health(ask: Ask) -> dict[str, Any]:
    return {"ok": True}


@endpoint("GET", "/readyz", None, "Whether the home can be read and the index be used", gives=replies.Ok)
async def readiness(ask: Ask) -> dict[str, Any]:
    try:
        with os.scandir(ask.app.hf.home.sessions):
            pass
    except OSError:
        raise NotReady from None
    if ask.app.hf._core.index.generation() is None:
        raise NotReady
    return {"ok": True}


@endpoint(
    *("GET", "/v1/info", "observe", "Version, limits, and what the caller may do"),
    gives=replies.Info,
)
async def info(ask: Ask) -> dict[str, Any]:
    return {
        "version": __version__,
        "instance": ask.app.instance,
        "features": [*FEATURES, *(["page"] if is_built() else [])],
        "limits": responses.limits(ask.app.config),
        "scopes": ask.caller.scopes,
        "label": ask.caller.label,
    }


@endpoint("GET", "/openapi.json", None, "This description", gives=replies.Description)
async def description(ask: Ask) -> dict[str, Any]:
    return openapi()


@endpoint("GET", "/problems/{slug}", None, "What a problem means", media=("text/plain",))
async def explain(ask: Ask) -> Response:
    slug = ask.part("slug")
    error = HoldfastError.from_wire({"code": slug})
    if type(error) is HoldfastError and slug != HoldfastError.code:
        raise NoSuchAddress
    text = type(error).__doc__ or re.sub(r"\{(\w+)[^}]*\}", r"<\1>", type(error).says)
    return Response(f"{slug} ({error.http_status})\n\n{text}\n\nWhat to do: {error.fix}\n", media_type="text/plain")


@endpoint(
    *("POST", "/v1/gc", "manage", "Remove old sessions and leftovers"),
    body=(takes("dry_run", SWITCH, "Only say what would be removed."),),
    example={"dry_run": True},
    gives=Collected,
    audit="gc",
    is_for_all=True,
)
async def collect(ask: Ask) -> dict[str, Any]:
    return (await ask.hf.collect(dry_run=bool(ask.body.get("dry_run")))).to_json()


@endpoint("GET", "/v1/places", "manage", "Places that sessions run in", gives=replies.Places, is_for_all=True)
async def places(ask: Ask) -> dict[str, Any]:
    found: dict[str, dict[str, int]] = {"local": {}}
    shots = await ask.hf.sessions(all=True)
    for shot in shots:
        counts = found.setdefault(shot.place, {})
        counts[shot.state] = counts.get(shot.state, 0) + 1
    items = [{"place": place, "sessions": counts} for place, counts in sorted(found.items())]
    return {"items": items, "unavailable": unavailable(shots)}


@endpoint(
    "GET", "/v1/nodes", "observe", "Other machines, and whether each answers", gives=replies.Nodes, is_for_all=True
)
async def nodes(ask: Ask) -> dict[str, Any]:
    if ask.nodes is None:
        return {"items": []}
    from ...nodes.routes import listed

    return await listed(ask.nodes)


@endpoint("GET", "/metrics", "observe", "Counters for Prometheus", media=("text/plain",), is_for_all=True)
async def metrics(ask: Ask) -> Response:
    return Response(await ask.app.metrics.text(ask.app.hf), headers={"content-type": MEDIA_TYPE})


# Login and tokens.


@endpoint(
    *("POST", "/v1/auth/exchange", None, "A token for a one-time code"),
    body=(takes("code", TEXT, "The code that `hold serve` or `hold open` printed."),),
    required=("code",),
    gives=replies.NewToken,
)
async def exchange(ask: Ask) -> dict[str, Any]:
    app, request = ask.app, ask.request
    found = app.tokens.exchange(ask.body["code"])
    if found is None:
        fix = "`hold open` prints an address with a new code"
        raise Unauthenticated("the code is unknown, used or too old", fix, reason="wrong_code")
    caller, token = found
    app.note("login", request, id=caller.id)
    return {"token": token, **app.tokens.describe(caller.id)}


@endpoint(
    *("POST", "/v1/auth/prove", None, "Proof that this is the server that knows the token"),
    body=(
        takes("id", TEXT, "The id of the token: hf_<id>_<secret>.", high=64),
        takes("nonce", TEXT, "Random text of the client.", high=256),
    ),
    required=("id", "nonce"),
    example={"id": "home", "nonce": "cJmN0f8Vtz"},
    gives=replies.Proof,
)
async def prove(ask: Ask) -> dict[str, Any]:
    state = ask.request.state
    if not state.is_own:
        raise BadOrigin("a proof is made for pages of this server only")
    proof = ask.app.tokens.prove(ask.body["id"], state.origin, ask.body["nonce"])
    return {"proof": proof, "origin": state.origin}


_TTL = takes("ttl", DURATION, "How long it is valid.", low=1)


@endpoint("GET", "/v1/tokens", "manage", "Tokens that were minted", gives=replies.Tokens, is_for_all=True)
async def tokens(ask: Ask) -> dict[str, Any]:
    return {"items": ask.app.tokens.listed(kind=(TOKEN, PAGE))}


@endpoint(
    *("POST", "/v1/tokens", "manage", "Mint a token; its secret is shown once"),
    body=(
        takes("label", TEXT, "Names it in records of what it does.", high=_LABEL_CHARACTERS),
        takes("scope", CHOICE, "What it may do.", words=SCOPES),
        _TTL,
        takes("sessions", OTHER, "Ids of the only sessions that it may see."),
        takes("owner", TEXT, "The owner whose sessions alone it may see.", high=256),
        takes("labels", PAIRS, "Labels that a session must have to be seen."),
    ),
    example={"label": "ci", "scope": "observe", "ttl": "1h"},
    gives=replies.NewToken,
    status=201,
    audit="token",
    is_for_all=True,
)
async def mint(ask: Ask) -> dict[str, Any]:
    body = ask.body
    scope, sessions, owner = body.get("scope") or "observe", body.get("sessions"), body.get("owner")
    labels = body.get("labels")
    # As sessions have them; records and terminals show the label.
    label = plain_text("label", body.get("label") or "token", _LABEL_CHARACTERS)
    owner, labels = None if owner is None else check_owner(owner), {} if labels is None else check_labels(labels)
    if sessions is not None:
        if not isinstance(sessions, list) or not all(isinstance(each, str) for each in sessions):
            raise BadArgument("sessions", "is not a list of ids", "give full ids")
        sessions = [ask.app.find(ask.hf, ask.caller, each).id for each in sessions]
    limits = {"sessions": sessions, "owner": owner, "labels": labels, "maker": ask.caller.id}
    caller, token = ask.app.tokens.issue(TOKEN, label, scope, body.get("ttl"), **limits)
    ask.facts |= {"id": caller.id, "label": label, "scope": scope}
    return {"token": token, **ask.app.tokens.describe(caller.id)}


@endpoint("DELETE", "/v1/tokens/{tid}", "manage", "Revoke a token", audit="token_revoked", status=204, is_for_all=True)
async def revoke(ask: Ask) -> Response:
    ask.app.tokens.revoke(ask.part("tid"), kind=(TOKEN, PAGE, LINK))
    ask.facts["id"] = ask.part("tid")
    return Response(status_code=204)


@endpoint("GET", "/v1/sessions/{id}/links", "manage", "Observer links of a session", gives=replies.Tokens)
async def links(ask: Ask) -> dict[str, Any]:
    return {"items": ask.app.tokens.listed(kind=(LINK,), session=ask.session.id)}


@endpoint(
    *("POST", "/v1/sessions/{id}/links", "manage", "A link that shows this session only"),
    body=(_TTL,),
    example={"ttl": "1h"},
    gives=replies.NewLink,
    status=201,
    audit="link",
)
async def link(ask: Ask) -> dict[str, Any]:
    ttl = ask.body.get("ttl") or _LINK_S
    limits = {"sessions": [ask.session.id], **ask.caller.narrowing, "maker": ask.caller.id}
    caller, token = ask.app.tokens.issue(LINK, f"link-{ask.session.id}", "observe", ttl, **limits)
    ask.facts["id"] = caller.id
    # Browsers cannot open a unix socket: the client knows what forwards to it.
    base = str(ask.request.base_url)[:-1] if ask.app.url.startswith("unix:") else ask.app.url
    return {"url": f"{base}/link#token={token}", **ask.app.tokens.describe(caller.id)}


@endpoint("DELETE", "/v1/sessions/{id}/links/{lid}", "manage", "Revoke a link", audit="link_revoked", status=204)
async def unlink(ask: Ask) -> Response:
    ask.app.tokens.revoke(ask.part("lid"), kind=(LINK,), session=ask.session.id)
    ask.facts["id"] = ask.part("lid")
    return Response(status_code=204)


@endpoint(
    *("POST", "/v1/sessions/{id}/tickets", "observe", "A ticket for one WebSocket upgrade"),
    body=(takes("role", CHOICE, "What it allows.", words=("control", "observe")),),
    required=("role",),
    example={"role": "observe"},
    gives=replies.Ticket,
)
async def ticket(ask: Ask) -> dict[str, Any]:
    role = ask.body["role"]
    ask.caller.must(role)
    secret = ask.app.tickets.issue(ask.session.id, role, ask.caller, ask.request.state.origin)
    ask.app.metrics.add("tickets_total", "issued")
    until = time.time_ns() + int(responses.TICKET_S * _NS)
    return {"ticket": secret, "expires_at": rfc3339(until), "role": role}


def unavailable(shots: Iterable[Snapshot]) -> list[dict[str, Any]]:
    away = sorted({shot.place for shot in shots if shot.state == UNREACHABLE and shot.place != "local"})
    return [{"place": place, "problem": problem(PlaceUnreachable(place, "it does not answer"))} for place in away]
