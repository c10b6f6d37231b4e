"""One row for each route: its scope, what it takes and what it gives.

From these rows come the router, the check of every request and `/openapi.json`. What a route takes is described by rows
of the same kind as the options of a start (model/options.py).
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from .. import __version__
from ..core import jsontext
from ..errors import BadArgument, BadRequest, TooLarge
from ..model.options import CHOICE, DURATION, NUMBER, OTHER, PAIRS, SIZE, SWITCH, TEXT, Option
from ..signals.redact import Redactor, redact
from .responses import WrongMediaType, reached

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import Any

    from starlette.datastructures import QueryParams
    from starlette.requests import Request

    from ..config import Config
    from ..model import Snapshot

    Handler = Callable[[Any], Awaitable[Response | dict[str, Any]]]


def takes(name: str, kind: str, doc: str, **more: Any) -> Option:
    """A parameter of a query or a field of a body."""
    if kind == TEXT:
        more.setdefault("high", 4096)
    return Option(name, kind, "", "", doc, **more)


@dataclass(frozen=True)
class Endpoint:
    method: str
    path: str
    # None: public. Every scope contains the previous ones.
    scope: str | None
    does: str
    run: Handler
    # None: the query is ignored.
    query: tuple[Option, ...] | None = ()
    # None: it takes no body.
    body: tuple[Option, ...] | None = None
    # The fields without which a body means nothing. All others may be null, which is the same as leaving them out.
    required: tuple[str, ...] = ()
    # Whether a value of the body is checked here; the library itself checks those of a start and an update.
    is_checked: bool = True
    # Its name in the audit file.
    audit: str | None = None
    # An example of the body, or of the query.
    example: dict[str, Any] = field(default_factory=dict)
    # The status of the answer, and other statuses besides problems.
    status: int = 200
    also: tuple[int, ...] = ()
    # For an answer that is not JSON: its media types.
    media: tuple[str, ...] = ()
    # The class that describes the answer, in `replies`.
    gives: type | None = None
    # Not for a token that is narrowed to some sessions.
    is_for_all: bool = False


ENDPOINTS: list[Endpoint] = []


def endpoint(method: str, path: str, scope: str | None, does: str, **more: Any) -> Callable[[Handler], Handler]:
    def add(run: Handler) -> Handler:
        ENDPOINTS.append(Endpoint(method, path, scope, does, run, **more))
        return run

    return add


def by_path() -> dict[str, dict[str, Endpoint]]:
    """The routes of each address by method."""
    found: dict[str, dict[str, Endpoint]] = {}
    for each in ENDPOINTS:
        found.setdefault(each.path, {})[each.method] = each
    return found


def as_json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # In ASCII, because half characters of a title or a path cannot be sent otherwise.
    return Response(json.dumps(value, default=str).encode(), status, headers, "application/json")


# The record of a session, for every answer that has one.


# Text without a secret, by its form: our own words, ids and times.
_OURS = re.compile(r"[a-z0-9_.-]{0,16}|\d{4}-\d\d-\d\dT[\d:.]+Z")


class _Remembering(Redactor):
    """Redaction costs more than everything else in an answer, and most texts come again."""

    __slots__ = ()

    def __call__(self, text: str) -> str:
        return text if _OURS.fullmatch(text) else _redacted(text)


@lru_cache(maxsize=4096)
def _redacted(text: str) -> str:
    return redact(text)


redacted = _Remembering().value


def record(shot: Snapshot) -> dict[str, Any]:
    """The keys of a session. Secrets in what people and programs wrote are removed."""
    found = shot.to_json()
    for key in ("command", "description", "labels", "metadata", "needs_input"):
        found[key] = redacted(found[key])
    return found


# What was sent.


def read_query(query: QueryParams, rows: Iterable[Option]) -> dict[str, Any]:
    """The parameters by name. A repeatable parameter is a list."""
    known = {row.name: row for row in rows}
    found: dict[str, Any] = {}
    for name, text in query.multi_items():
        row = known.get(name)
        if row is None:
            raise BadArgument(name[:80], "there is no such parameter", _one_of("give", known))
        if name in found and not row.repeated:
            raise BadRequest(f"{name} is given more than once", "give it once")
        value = row.check(_value(row, text))
        found[name] = [*found.get(name, ()), value] if row.repeated else value
    return found


def _value(row: Option, text: str) -> object:
    if row.takes == NUMBER and text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 17:
        return int(text)
    if row.takes == SWITCH and text in ("true", "false"):
        return text == "true"
    return text


async def read_body(request: Request, row: Endpoint, config: Config) -> dict[str, Any]:
    """The JSON object of the body, with no other fields than these. An empty body is the same as an empty object."""
    known = {each.name: each for each in row.body or ()}
    sent = await _sent(request, config.server_body_bytes, config.server_body_time)
    has_body = bool(sent) or "content-type" in request.headers
    value = _object(request.headers.get("content-type", ""), sent, config.server_body_depth) if has_body else {}
    unknown = sorted(value.keys() - known.keys())
    if unknown:
        raise BadArgument(unknown[0][:80], "there is no such field", _one_of("give", known))
    for name in row.required:
        if value.get(name) is None:
            raise BadArgument(name, "is missing", _one_of("give", row.required))
    if row.is_checked:
        return {name: given if given is None else known[name].check(given) for name, given in value.items()}
    return value


def _object(media: str, sent: bytes, depth: int) -> dict[str, Any]:
    if media.partition(";")[0].strip().lower() != "application/json":
        raise WrongMediaType
    try:
        value = jsontext.read_finite(sent)
        json.loads(sent, object_pairs_hook=_each_once)
    except (ValueError, RecursionError):
        raise BadRequest("the body is not JSON", "send one JSON object") from None
    if not isinstance(value, dict):
        raise BadRequest("the body is not a JSON object", "send one JSON object")
    if jsontext.is_deeper(value, depth):
        error = TooLarge("the nesting of the body", depth, "send a flatter object", unit="levels")
        raise reached(error, "body_depth", depth)
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise BadRequest(f"the field {name[:80]!a} is given more than once", "give it once")
        seen.add(name)


async def _sent(request: Request, most: int, seconds: float) -> bytes:
    sent = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                sent += chunk
                if len(sent) > most:
                    raise reached(TooLarge("the body", most), "body_bytes", most)
    except TimeoutError:
        error = BadRequest(f"the body did not come within {seconds:g} s", "send it at once")
        raise reached(error, "body_time", seconds) from None
    except ClientDisconnect:
        raise BadRequest("the body broke off", "send all of it") from None
    return bytes(sent)


def _one_of(verb: str, known: Iterable[str]) -> str:
    names = ", ".join(known)
    return f"{verb} {names}" if names else "it takes none"


# The description of all routes.


_TYPES: dict[str, dict[str, Any]] = {
    TEXT: {"type": "string"},
    DURATION: {"type": ["number", "string"]},
    SIZE: {"type": ["integer", "string"]},
    NUMBER: {"type": "integer"},
    SWITCH: {"type": "boolean"},
    CHOICE: {"type": "string"},
    PAIRS: {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
    OTHER: {},
}


def _schema(row: Option, *, is_checked: bool = True) -> dict[str, Any]:
    from .replies import option_schema

    schema = dict(_TYPES[row.takes]) if is_checked or row.takes not in (SWITCH, CHOICE) else {}
    if row.takes == OTHER:
        schema = option_schema(row.name)
    if row.takes == CHOICE:
        schema["enum"] = list(row.words)
    if row.takes == NUMBER:
        schema |= {"minimum": row.low, "maximum": row.high}
    return {**schema, "description": row.doc}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    doc = schema.pop("description")
    return {"anyOf": [schema, {"type": "null"}], "description": doc}


def openapi() -> dict[str, Any]:
    from .replies import Problem, schema_of

    shapes: dict[str, Any] = {}
    problem = {"application/problem+json": {"schema": schema_of(Problem, shapes)}}
    paths = {
        path: {method.lower(): _operation(row, shapes, problem) for method, row in rows.items()}
        for path, rows in by_path().items()
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": __version__},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": dict(sorted(shapes.items())),
        },
    }


def _operation(each: Endpoint, shapes: dict[str, Any], problem: dict[str, Any]) -> dict[str, Any]:
    from .replies import schema_of

    parts = [part[1:-1] for part in each.path.split("/") if part.startswith("{")]
    parameters = [{"name": part, "in": "path", "required": True, "schema": {"type": "string"}} for part in parts]
    for row in each.query or ():
        example = {"example": each.example[row.name]} if each.body is None and row.name in each.example else {}
        parameters.append({"name": row.name, "in": "query", "schema": _schema(row), "description": row.doc, **example})
    content: dict[str, Any] = {media: {} for media in each.media}
    if each.gives is not None:
        content["application/json"] = {"schema": schema_of(each.gives, shapes)}
    answers = {
        str(status): {"description": each.does, **({"content": content} if content and status != 304 else {})}
        for status in (each.status, *each.also)
    }
    operation: dict[str, Any] = {
        "summary": each.does,
        "parameters": parameters,
        "responses": {**answers, "default": {"description": "a problem", "content": problem}},
    }
    if each.scope is not None:
        operation |= {"security": [{"token": []}], "x-scope": each.scope}
    if each.body is not None:
        fields = {row.name: _schema(row, is_checked=each.is_checked) for row in each.body}
        fields |= {name: _or_null(field) for name, field in fields.items() if name not in each.required}
        schema = {
            "type": "object",
            "additionalProperties": False,
            "properties": fields,
            "required": list(each.required),
        }
        media = {"schema": schema, **({"example": each.example} if each.example else {})}
        operation["requestBody"] = {"content": {"application/json": media}}
    return operation
