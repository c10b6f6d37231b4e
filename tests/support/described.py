"""Whether an answer is what `/openapi.json` says of its route: status, media type, every member and its type."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator

if TYPE_CHECKING:
    from support.serving import Answer

PROBLEM = "application/problem+json"


@cache
def _document() -> dict[str, Any]:
    from holdfast.server import routes
    from holdfast.server.endpoints import openapi

    assert routes.__all__
    # As a client has it.
    found: dict[str, Any] = json.loads(json.dumps(openapi()))
    return found


@cache
def _validator(path: str, method: str, status: str, media: str) -> Draft202012Validator:
    schema = _document()["paths"][path][method]["responses"][status]["content"][media]["schema"]
    return Draft202012Validator({**schema, "components": _document()["components"]})


@cache
def _routes() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), path) for path in _document()["paths"]]


def operation_of(method: str, target: str) -> tuple[str, str, dict[str, Any]] | None:
    where = re.sub(r"^/v1/nodes/[^/]+/", "/v1/", target.partition("?")[0])
    path = next((path for pattern, path in _routes() if pattern.fullmatch(where)), None)
    name = "get" if method == "HEAD" else method.lower()
    if path is None or name not in _document()["paths"][path]:
        return None
    return path, name, _document()["paths"][path][name]


def check_described(method: str, target: str, answer: Answer, sent: bytes = b"") -> None:
    """AssertionError for a difference, also of a body that was accepted. Nothing is known of addresses that are no
    route."""
    found = operation_of(method, target)
    if found is None or answer.status in (0, 101):
        return
    path, name, operation = found
    if "requestBody" in operation and answer.status < 400:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        faults = list(Draft202012Validator(schema).iter_errors(json.loads(sent or b"{}")))
        assert not faults, f"{method} {target} accepts {faults[0].json_path}: {faults[0].message[:500]}"
    described = operation["responses"]
    status = str(answer.status) if answer.status < 400 else "default"
    assert status in described, f"{method} {target} answers {answer.status}, which is not described"
    media = answer.headers.get("content-type", "").partition(";")[0]
    content = described[status].get("content", {})
    assert not answer.body or media in content, f"{method} {target} answers with {media}, which is not described"
    if answer.body and "schema" in content.get(media, {}):
        faults = list(_validator(path, name, status, media).iter_errors(answer.json))
        assert not faults, f"{method} {target}: {faults[0].json_path}: {faults[0].message[:500]}"
