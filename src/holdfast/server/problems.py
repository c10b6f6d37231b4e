"""Errors as HTTP tells them (RFC 9457), and the conditions that only HTTP knows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from starlette.responses import Response

from ..errors import BadRequest, HoldfastError, NotFound, TooManyClients

if TYPE_CHECKING:
    from starlette.types import Scope
    from starlette.websockets import WebSocket

MEDIA_TYPE = "application/problem+json"
_RETRY_AFTER_S = "1"


class WrongMethod(BadRequest):
    http_status = 405
    fix = "use a method that the header Allow names"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method[:20]} is no method of this address")
        self.allowed = allowed


class NoSuchAddress(NotFound):
    fix = "see `GET /v1/info` for what this server can do"

    def __init__(self) -> None:
        HoldfastError.__init__(self, "there is nothing at this address", ref=None)


class Unauthenticated(HoldfastError):
    code, http_status = "unauthenticated", 401
    fix = "send `Authorization: Bearer hf_home_TOKEN`; TOKEN is in the file that `hold serve` names when it starts"

    def __init__(self, why: str) -> None:
        super().__init__(why)


class TicketSpent(HoldfastError):
    code, http_status = "ticket-spent", 401
    fix = "ask for a new one with POST /v1/sessions/{id}/tickets: each is good for one upgrade of one session"

    def __init__(self) -> None:
        # Which of these it is would tell a stranger something.
        super().__init__("the ticket is unknown, used, too old, or for something else")


class ScopeMissing(HoldfastError):
    code, http_status = "scope-missing", 403
    fix = "use a token that has this scope"
    scope: str

    def __init__(self, scope: str) -> None:
        super().__init__(f"the token has not the scope {scope}", scope=scope)


class BadOrigin(HoldfastError):
    code, http_status = "bad-origin", 403
    fix = "programs send no Origin; pages of other servers need `hold serve --allow-origin URL`"

    def __init__(self, why: str) -> None:
        super().__init__(why)


class WrongHost(HoldfastError):
    code, http_status = "wrong-host", 421
    fix = "use an address of the server, or name this one with `hold serve --host-name NAME`"

    def __init__(self) -> None:
        super().__init__("the header Host names another server")


class WrongMediaType(HoldfastError):
    code, http_status = "wrong-media-type", 415
    fix = "send JSON with `Content-Type: application/json`"

    def __init__(self) -> None:
        super().__init__("the body is not declared as JSON")


class NotReady(HoldfastError):
    code, http_status = "not-ready", 503
    fix = "see `hold doctor` on that machine"

    def __init__(self) -> None:
        super().__init__("the home cannot be read")


class TooManyConnections(TooManyClients):
    def __init__(self, key: str, limit: int) -> None:
        HoldfastError.__init__(self, f"there are {limit} connections already ({key})", key=key, limit=limit)


def status_of(code: str) -> int:
    return HoldfastError.from_wire({"code": code}).http_status


def problem(error: HoldfastError, request_id: str | None = None, instance: str | None = None) -> dict[str, object]:
    """The error as an object. Its own members stand above facts of the same name."""
    return {
        **error.facts,
        "type": f"/problems/{error.code}",
        "title": error.code.replace("-", " "),
        "status": error.http_status,
        "detail": error.message,
        "instance": instance,
        "fix": error.fix,
        "request_id": request_id,
    }


def body(error: HoldfastError, request_id: str | None = None, instance: str | None = None) -> bytes:
    # Paths may hold half characters of the file system.
    return json.dumps(problem(error, request_id, instance), default=str).encode()


def answer(error: HoldfastError, scope: Scope) -> Response:
    """The response to a request, or to an upgrade that is refused."""
    headers = {}
    if error.http_status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="holdfast"'
    if error.http_status in (429, 503):
        headers["Retry-After"] = _RETRY_AFTER_S
    if isinstance(error, WrongMethod):
        headers["Allow"] = error.allowed
    content = body(error, scope.get("state", {}).get("request_id"), scope.get("path"))
    return Response(content, error.http_status, headers, MEDIA_TYPE)


async def refuse(socket: WebSocket, error: HoldfastError) -> None:
    """Answer an upgrade by an HTTP response instead."""
    await socket.send_denial_response(answer(error, socket.scope))
