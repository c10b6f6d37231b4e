"""Errors as HTTP answers (RFC 9457), the headers of every answer, and the limits of a server."""

from __future__ import annotations

import json
from email.utils import formatdate
from typing import TYPE_CHECKING, TypeVar

from starlette.responses import Response

from ..config import SETTINGS
from ..errors import BadRequest, HoldfastError, NotFound, TooManyClients
from ..runner.streams import QUEUE_MAX_BYTES

if TYPE_CHECKING:
    from starlette.types import Scope

    from ..config import Config


# Errors as HTTP problems (RFC 9457), and the conditions that only HTTP knows.


MEDIA_TYPE = "application/problem+json"
_RETRY_AFTER_S = "1"


class WrongMethod(BadRequest):
    http_status = 405
    fix = "use a method that the header Allow names"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"this address has no method {method[:20]}")
        self.allowed = allowed


class NoSuchAddress(NotFound):
    fix = "see `GET /v1/info` for what this server can do"

    def __init__(self) -> None:
        self._set("there is nothing at this address", ref=None)


class NoSuch(NotFound):
    """Something other than a session does not exist."""

    def __init__(self, what: str, ref: str, fix: str) -> None:
        self._set(f"no such {what}: {ref[:80]!a}", ref=ref)
        self.fix = fix


# `reason` names a refusal in the audit file and the metrics.


class Unauthenticated(HoldfastError):
    code, http_status = "unauthenticated", 401
    fix = "send `Authorization: Bearer hf_home_TOKEN`; TOKEN is in the file that `hold serve` names when it starts"

    def __init__(self, why: str, fix: str | None = None, *, reason: str = "wrong_token") -> None:
        super().__init__(why)
        self.reason = reason
        self.fix = fix or self.fix


class TicketSpent(HoldfastError):
    code, http_status, reason = "ticket-spent", 401, "wrong_ticket"
    # Saying which of these it is would help an attacker.
    says = "the ticket is unknown, used, too old, or for something else"
    fix = "ask for a new one with POST /v1/sessions/{id}/tickets: each is good for one upgrade of one session"


class ScopeMissing(HoldfastError):
    code, http_status, reason = "scope-missing", 403, "scope_missing"
    says = "the token does not have the scope {scope}"
    fix = "use a token that has this scope"
    scope: str


class BadOrigin(HoldfastError):
    code, http_status, reason = "bad-origin", 403, "bad_origin"
    fix = "programs send no Origin; pages of other servers need `hold serve --allow-origin URL`"

    def __init__(self, why: str) -> None:
        super().__init__(why)


class WrongHost(HoldfastError):
    code, http_status, reason = "wrong-host", 421, "wrong_host"
    says = "the header Host names another server"
    fix = "use an address of the server, or name this one with `hold serve --host-name NAME`"


class WrongMediaType(HoldfastError):
    code, http_status = "wrong-media-type", 415
    says = "the body is not declared as JSON"
    fix = "send JSON with `Content-Type: application/json`"


class NotReady(HoldfastError):
    code, http_status = "not-ready", 503
    says = "the home cannot be read, or its index cannot be used"
    fix = "see `hold doctor` on that machine"


class TooManyConnections(TooManyClients):
    def __init__(self, key: str, limit: int) -> None:
        self._set("there are too many connections already")
        reached(self, key, limit)


def status_of(code: str) -> int:
    return HoldfastError.from_wire({"code": code}).http_status


def problem(error: HoldfastError, request_id: str | None = None, instance: str | None = None) -> dict[str, object]:
    """The error as an object. Its own members have priority over facts of the same name."""
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


# In the extensions of a scope: a function that ends the connection without an answer, and an event that is set when the
# connection has ended.
HANG_UP = "holdfast.hang_up"
LOST = "holdfast.lost"


# What every answer carries.


# Of every answer but the page (page.py): shown by a browser, it may load nothing, run nothing, and not be framed.
_POLICY = "; ".join(
    [
        *("default-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
        "require-trusted-types-for 'script'",
    ]
)
# What browsers know beside the clipboard; there is no word for all. Client hints are headers that we do not read.
_TURNED_OFF = (
    *("accelerometer", "aria-notify", "attribution-reporting", "autoplay", "browsing-topics", "camera"),
    *("captured-surface-control", "ch-ua-high-entropy-values", "compute-pressure", "cross-origin-isolated"),
    *("deferred-fetch", "deferred-fetch-minimal", "digital-credentials-get", "display-capture", "encrypted-media"),
    *("fullscreen", "gamepad", "geolocation", "gyroscope", "hid", "identity-credentials-get", "idle-detection"),
    *("interest-cohort", "join-ad-interest-group", "keyboard-map", "language-detector", "language-model"),
    *("local-fonts", "local-network", "local-network-access", "loopback-network", "magnetometer", "microphone", "midi"),
    *("on-device-speech-recognition", "otp-credentials", "payment", "picture-in-picture", "private-aggregation"),
    *("private-state-token-issuance", "private-state-token-redemption", "publickey-credentials-create"),
    *("publickey-credentials-get", "run-ad-auction", "screen-wake-lock", "serial", "shared-storage"),
    *("shared-storage-select-url", "storage-access", "summarizer", "sync-xhr", "translator", "unload", "usb"),
    *("window-management", "xr-spatial-tracking"),
)
_ALWAYS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": ", ".join(
        ["clipboard-read=(self)", "clipboard-write=(self)", *(f"{feature}=()" for feature in _TURNED_OFF)]
    ),
    "Cache-Control": "no-store",
}
_WITH_TLS = {"Strict-Transport-Security": "max-age=31536000"}


def headers_of_every_answer(*, tls: bool) -> dict[str, str]:
    return {**_ALWAYS, **(_WITH_TLS if tls else {}), "Date": formatdate(usegmt=True)}


def headers_for_other_origin(origin: str) -> dict[str, str]:
    """The headers that let a page of a configured origin read the answer."""
    return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}


def headers_for_preflight() -> dict[str, str]:
    return {
        "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE",
        "Access-Control-Allow-Headers": "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Range",
        "Access-Control-Max-Age": "600",
    }


# How long requests in progress have when the server is asked to shut down, and how long a ticket is valid.
LEAVING_S = 5.0
TICKET_S = 30.0
SCREENS = 32
# The data of one message to an attached client.
PIECE_BYTES = 64 << 10


def limits(config: Config) -> dict[str, object]:
    """The limits that `/v1/info` reports: the settings of this section, and what cannot be set."""
    found = {each.key: getattr(config, each.attribute) for each in SETTINGS if each.section == "server"}
    fixed = {"screens": SCREENS, "ticket_s": TICKET_S, "data_bytes": PIECE_BYTES, "input_queue_bytes": QUEUE_MAX_BYTES}
    return {**found, **fixed}


Reached = TypeVar("Reached", bound=HoldfastError)


def reached(error: Reached, key: str, value: float) -> Reached:
    """The error, with the setting that limits it and its value."""
    error.message += f" (server.{key} is {value:g})"
    error.facts |= {"key": f"server.{key}", "limit": value}
    error.fix += f", or raise server.{key} on the server"
    return error
