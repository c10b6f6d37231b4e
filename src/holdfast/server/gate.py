"""The gate: sees every request and every upgrade before anybody else, and every answer after.

In this order: form and size, Host, Origin, credentials. Being on this machine is no proof, and neither is a browser
that asks on behalf of a page: others share the machine, and any page can make a browser ask.
"""

from __future__ import annotations

import logging
import re
import secrets
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect
from uvicorn.protocols.utils import ClientDisconnected

from ..errors import BadRequest, HoldfastError, ShuttingDown, TooLarge
from . import headers as standard
from . import limits
from .problems import BadOrigin, NoSuchAddress, TicketSpent, Unauthenticated, WrongHost, WrongMethod, answer

if TYPE_CHECKING:
    import asyncio

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from .addresses import Names
    from .credentials import Caller, Patience, Tokens
    from .tickets import Ticket, Tickets

PUBLIC = frozenset(("/healthz", "/readyz"))
HANG_UP = "holdfast.hang_up"
LOST = "holdfast.lost"
PROVEN = "holdfast.proven"

# Of these a path is never made; somebody tries what lies behind them.
_HIDDEN = re.compile(rb"%(?:2e|2f|5c|00)", re.IGNORECASE)
_DOTS = re.compile(rb"(?:^|/)\.{1,2}(?:/|$)")
_ONCE = ("origin", "authorization", "sec-fetch-site")
_log = logging.getLogger(__name__)


class Gate:
    def __init__(
        self,
        app: ASGIApp,
        *,
        names: Names,
        tokens: Tokens,
        tickets: Tickets,
        patience: Patience,
        leaving: asyncio.Event,
        tls: bool = False,
    ) -> None:
        self._app = app
        self._names = names
        self._tokens = tokens
        self._tickets = tickets
        self._patience = patience
        self._leaving = leaving
        self._tls = tls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            raise RuntimeError(f"there is no way in for {scope['type']}")
        scope.setdefault("state", {})["request_id"] = secrets.token_hex(8)
        way_out = _WayOut(scope, send, self._tls)
        try:
            if await self._passes(scope, receive, way_out):
                await self._app(scope, receive, way_out)
        except (WebSocketDisconnect, ClientDisconnected):
            pass
        except HoldfastError as error:
            await way_out.give_up(error, receive)
        except HTTPException as error:
            allowed = (error.headers or {}).get("Allow")
            refusal = NoSuchAddress() if allowed is None else WrongMethod(scope["method"], allowed)
            await way_out.give_up(refusal, receive)
        except Exception:  # noqa: BLE001
            _log.exception("a request failed")
            await way_out.give_up(HoldfastError("the server failed; its own output tells why"), receive)

    async def _passes(self, scope: Scope, receive: Receive, way_out: _WayOut) -> bool:
        """Whether to hand it on; False where it is answered or cut off."""
        headers = Headers(scope=scope)
        _check_form(scope, headers)
        self._check_host(headers)
        origin = self._check_origin(headers)
        if origin in self._names.other_origins:
            way_out.add(standard.for_other_origin(origin or ""))
            if scope["type"] == "http" and scope["method"] == "OPTIONS":
                # A browser asks first whether it may ask, and sends no credentials with that.
                way_out.add(standard.for_preflight())
                await Response(status_code=204)(scope, receive, way_out)
                return False
        if self._leaving.is_set() and scope["path"] != "/healthz":
            raise ShuttingDown
        state = scope["state"]
        state["origin"] = origin
        if scope["path"] in PUBLIC and scope["type"] == "http":
            return True
        ticket = _ticket_of(scope)
        authorization = headers.get("authorization")
        if ticket is None and authorization is None:
            raise Unauthenticated("the request has no token")
        wrong = TicketSpent() if ticket is not None else Unauthenticated("the token is not known here")
        caller, state["ticket"] = self._who(ticket, authorization, origin)
        if caller is None:
            if await self._patience.hold_back(_peer(scope)):
                raise wrong
            await _hang_up(scope, receive)
            return False
        if scope["type"] == "websocket" and ticket is None and origin is not None:
            raise BadOrigin("a page attaches with a ticket")
        state["caller"] = caller
        # From now on it has its place among those who may be here.
        scope["extensions"][PROVEN]()
        return True

    def _check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        if len(given) != 1:
            raise BadRequest("there must be one header Host", "send the host and port that the URL has")
        if given[0].lower() not in self._names.hosts:
            raise WrongHost

    def _check_origin(self, headers: Headers) -> str | None:
        origin = headers.get("origin")
        known = self._names
        if origin is not None and origin not in known.own_origins and origin not in known.other_origins:
            raise BadOrigin("the request comes from a page of another server")
        site = headers.get("sec-fetch-site")
        if site not in (None, "same-origin", "none") and origin not in known.other_origins:
            raise BadOrigin("the browser says that another site asked for this")
        return origin

    def _who(
        self, ticket: str | None, authorization: str | None, origin: str | None
    ) -> tuple[Caller | None, Ticket | None]:
        caller = None if authorization is None else self._tokens.caller(authorization)
        if ticket is None:
            return caller, None
        taken = self._tickets.take(ticket, origin)
        if taken is None or (authorization is not None and caller != taken.caller):
            return None, None
        return taken.caller, taken


class _WayOut:
    """Dresses what is sent, and knows whether an answer can still be given."""

    def __init__(self, scope: Scope, send: Send, tls: bool) -> None:
        self._scope = scope
        self._send = send
        self._tls = tls
        self._added: dict[str, str] = {}
        self._is_started = False

    def add(self, headers: dict[str, str]) -> None:
        self._added |= headers

    async def __call__(self, message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.close" and not self._is_started:
            # The server below would answer with a page of its own, without our headers.
            await self.give_up(BadRequest("the upgrade is refused", "see `GET /v1/info`"), _nothing)
            return
        if kind in ("http.response.start", "websocket.http.response.start", "websocket.accept"):
            self._is_started = True
            dressed = MutableHeaders(raw=list(message.get("headers", ())))
            for name, value in {**standard.of_every_answer(tls=self._tls), **self._added}.items():
                dressed.setdefault(name, value)
            message = {**message, "headers": dressed.raw}
        await self._send(message)

    async def give_up(self, error: HoldfastError, receive: Receive) -> None:
        if not self._is_started:
            await answer(error, self._scope)(self._scope, receive, self)
        elif self._scope["type"] == "websocket":
            try:
                await self._send({"type": "websocket.close", "code": 1011, "reason": error.code})
            except (OSError, RuntimeError):
                pass  # it is closed already
        else:
            # Half of an answer must not look like the whole.
            await _hang_up(self._scope, receive)


def _check_form(scope: Scope, headers: Headers) -> None:
    path = scope["raw_path"]
    size = len(path) + len(scope["query_string"]) + sum(len(name) + len(value) + 4 for name, value in headers.raw)
    if size > limits.HEADER_BYTES:
        raise TooLarge("the request line with the headers", limits.HEADER_BYTES)
    if any(len(headers.getlist(name)) > 1 for name in _ONCE):
        raise BadRequest(f"one of {', '.join(_ONCE)} is repeated", "send each once")
    if _HIDDEN.search(path) or _DOTS.search(path):
        raise BadRequest("the path has dots, slashes or NUL where a name belongs", "name the session by its id")


def _ticket_of(scope: Scope) -> str | None:
    """Only an upgrade has one: a secret in any other URL is none."""
    if scope["type"] != "websocket":
        return None
    given = QueryParams(scope["query_string"]).getlist("ticket")
    if len(given) > 1:
        raise BadRequest("there is more than one ticket", "send one")
    return given[0] if given else None


def _peer(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else "unix"


async def _hang_up(scope: Scope, receive: Receive) -> None:
    scope["extensions"][HANG_UP]()
    while (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
        pass


async def _nothing() -> Message:
    raise RuntimeError("nothing is to be received any more")
