"""Signals, the consumers that acknowledge them, and the stream of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response, StreamingResponse

from ...core.signalfile import VARIANTS
from ...errors import BadArgument, BadCursor
from ...index.queues import Filter
from ...model.options import CHOICE, NUMBER, OTHER, SWITCH, TEXT
from .. import replies
from ..endpoints import endpoint, takes
from ..events import TYPES, USUAL_TYPES, Wanted, signal_json
from ..responses import NoSuch
from .sessions import label_of

if TYPE_CHECKING:
    from typing import Any

    from ..app import Ask


_LIMIT = takes("limit", NUMBER, "How many (default 50).", low=1, high=200)


@endpoint(
    *("GET", "/v1/signals", "observe", "Signals in the order of the home; reading acknowledges nothing"),
    query=(
        takes("owner", TEXT, "Only signals of this owner."),
        takes("session", TEXT, "Only signals of this session."),
        takes("variant", CHOICE, "Only signals of this variant.", words=VARIANTS),
        takes("after", TEXT, "The `next` of the page before."),
        _LIMIT,
    ),
    example={"limit": 10},
    gives=replies.Signals,
)
async def signals(ask: Ask) -> dict[str, Any]:
    query = ask.query
    after = query.get("after", "0")
    if not after.isascii() or not after.isdigit() or len(after) > 16:
        raise BadCursor(after)
    owner, variant = query.get("owner"), query.get("variant")
    wanted = Filter(None if owner is None else [owner], None if variant is None else [variant])
    listing = ask.hf._core.consumers.listing(filter=wanted)
    await listing.look()
    session = None if "session" not in query else ask.app.find(ask.hf, ask.caller, query["session"]).id
    limit, at = query.get("limit", 50), int(after)
    items: list[dict[str, Any]] = []
    while len(items) < limit:
        found, last = await listing.after(at, limit)
        for each in found:
            at = each.pos
            if _is_shown(ask, each.signal, session):
                items.append({**signal_json(each.signal), "pos": each.pos})
            if len(items) == limit:
                break
        if last is None:
            break
        at = max(at, last)
    return {"items": items, "next": str(at)}


def _is_shown(ask: Ask, signal: Any, session: str | None) -> bool:
    labels = signal.snapshot.get("labels") or {}
    return session in (None, signal.session) and ask.caller.sees(signal.session, signal.owner, labels)


# Consumers.


_NAME = "/v1/consumers/{name}"


@endpoint(
    *("GET", _NAME, "observe", "A consumer, and what waits for it"),
    query=(_LIMIT,),
    gives=replies.ConsumerPage,
    is_for_all=True,
)
async def consumer(ask: Ask) -> dict[str, Any]:
    known = _known(ask)
    items = await ask.hf._core.consumers.listing(ask.part("name")).waiting(ask.query.get("limit", 50))
    states = ({**signal_json(each.signal), "state": each.state, "why": each.why} for each in items)
    return {**known, "items": list(states)}


def _known(ask: Ask) -> dict[str, Any]:
    for each in ask.hf._core.consumers.known():
        if each["name"] == ask.part("name"):
            return each
    raise NoSuch("consumer", ask.part("name"), "PUT on this address makes it")


@endpoint(
    *("PUT", _NAME, "control", "Make a consumer, or open it again"),
    body=(
        takes("owners", OTHER, "A list of owners, or * (default)."),
        takes("variants", OTHER, "A list of variants; the default is all."),
        takes("kinds", OTHER, "A list of kinds; the default is all."),
        takes("start", TEXT, "retained, now, or the id of a signal."),
        takes("replace", SWITCH, "Give it this filter if it has another."),
    ),
    example={"owners": ["agent-7"]},
    gives=replies.Consumer,
    is_for_all=True,
)
async def open_consumer(ask: Ask) -> dict[str, Any]:
    body = ask.body
    for name in ("owners", "variants", "kinds"):
        given = body.get(name)
        if given is not None and not (name == "owners" and given == "*") and not _are_texts(given):
            raise BadArgument(name, "is not a list of texts")
    opened = ask.hf.consumer(
        ask.part("name"),
        body.get("owners") or "*",
        variants=body.get("variants"),
        kinds=body.get("kinds"),
        start=body.get("start"),
        replace=bool(body.get("replace")),
    )
    # If the index was locked, it is made now.
    await opened.pending()
    return _known(ask)


@endpoint("DELETE", _NAME, "control", "Remove a consumer, and what waits for it", status=204, is_for_all=True)
async def drop_consumer(ask: Ask) -> Response:
    if not ask.hf._core.consumers.drop(ask.part("name")):
        raise NoSuch("consumer", ask.part("name"), "PUT on this address makes it")
    return Response(status_code=204)


@endpoint(
    *("POST", _NAME + "/settle", "control", "Acknowledge these signals"),
    body=(takes("ids", OTHER, "Ids of signals."),),
    required=("ids",),
    gives=replies.Settled,
    is_for_all=True,
)
async def settle(ask: Ask) -> dict[str, Any]:
    ids = ask.body["ids"]
    if not isinstance(ids, list) or not _are_texts(ids):
        raise BadArgument("ids", "is not a list of ids of signals")
    consumer = _reopened(ask)
    return {"settled": sum([await consumer.ack(id) for id in ids])}


@endpoint(
    *("POST", _NAME + "/ack", "control", "Acknowledge all signals up to one"),
    body=(takes("upto", TEXT, "The id of a signal."),),
    required=("upto",),
    gives=replies.Settled,
    is_for_all=True,
)
async def acknowledge(ask: Ask) -> dict[str, Any]:
    return {"settled": await _reopened(ask).ack(upto=ask.body["upto"])}


def _reopened(ask: Ask) -> Any:
    known = _known(ask)
    return ask.hf.consumer(known["name"], known["owners"], variants=known["variants"], kinds=known["kinds"])


def _are_texts(given: object) -> bool:
    return isinstance(given, list) and bool(given) and all(isinstance(each, str) for each in given)


@endpoint(
    *("GET", "/v1/events", "observe", "Changes and signals as they come (server-sent events)"),
    query=(
        takes("types", TEXT, "session, signal (both by default), node (what changes on other machines), with commas."),
        takes("session", TEXT, "Only this session."),
        takes("owner", TEXT, "Only sessions of this owner."),
        takes("label", TEXT, "Only sessions with this label, KEY:VALUE; repeated: all of them.", repeated=True),
    ),
    media=("text/event-stream",),
)
async def events(ask: Ask) -> Response:
    query = ask.query
    types = frozenset(query.get("types", ",".join(USUAL_TYPES)).split(","))
    if not types <= frozenset(TYPES):
        raise BadArgument("types", f"are not of {', '.join(TYPES)}")
    labels = dict(label_of(text) for text in query.get("label", ()))
    session = None if "session" not in query else ask.app.find(ask.hf, ask.caller, query["session"]).id
    wanted = Wanted(types, session, query.get("owner"), labels, ask.caller)
    ask.app.events.check()
    stream = ask.app.events.stream(wanted, ask.request.headers.get("last-event-id"), ask.request.scope, ask.nodes)
    return StreamingResponse(stream, media_type="text/event-stream")
