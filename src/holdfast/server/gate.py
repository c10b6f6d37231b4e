"""The gate: sees every request before anything else and every answer after. Tickets.

In this order: form and size, Host, Origin, credentials. A connection from this machine is no proof, and neither is one
from a browser: other users share the machine, and any page can make a browser send requests.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect
from uvicorn.protocols.utils import ClientDisconnected

from ..core.clock import now_text
from ..errors import BadArgument, BadRequest, Busy, HoldfastError, ShuttingDown, TooLarge, TooManyClients
from ..serving.door import PROVEN
from . import responses as standard
from .attach import DIALECTS, chosen, error_message
from .endpoints import by_path
from .listen import is_trusted
from .page import ADDRESSES
from .responses import (
    HANG_UP,
    BadOrigin,
    NoSuchAddress,
    ScopeMissing,
    TicketSpent,
    Unauthenticated,
    WrongHost,
    WrongMethod,
    answer,
    reached,
)
from .tokens import digest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import Literal

    from starlette.types import Message, Receive, Scope, Send

    from .app import App
    from .listen import Names, Proxies
    from .metrics import Metrics
    from .tokens import Caller

    Check = Callable[[Scope, Receive, "_WayOut"], Awaitable[bool]]


# The gate: sees every request and every upgrade first, and every answer last.


# How a caller without a token gets one, and how it checks that this is the server it knows.
LOGIN = frozenset(("/v1/auth/exchange", "/v1/auth/prove"))
ATTACH = "/v1/sessions/{id}/attach"
# Addresses below it are those of another machine.
NODES = "/v1/nodes/"
_TOO_MANY = 1013

# No path of ours has these characters: such requests probe for files.
_HIDDEN = re.compile(rb"%(?:2e|2f|5c|00)", re.IGNORECASE)
_DOTS = re.compile(rb"(?:^|/)\.{1,2}(?:/|$)")
_ONCE = ("origin", "authorization", "sec-fetch-site")
_FOR = re.compile(r"\s*for=", re.IGNORECASE)
# All others are counted as OTHER, because clients choose the text.
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
# Refusals that are recorded in the audit file.
_REFUSALS = (BadOrigin, ScopeMissing, WrongHost, TicketSpent, Unauthenticated)
_log = logging.getLogger(__name__)
ACCESS_LOG = "holdfast.server.access"
_access = logging.getLogger(ACCESS_LOG)


class Gate:
    def __init__(self, app: App, names: Names, proxies: Proxies = (), *, tls: bool = False) -> None:
        self._app = app
        self._names = names
        self._proxies = proxies
        self._tls = tls
        public = [path for path, rows in by_path().items() if "GET" in rows and rows["GET"].scope is None]
        # The addresses that need no token: the page, health, the description of the routes and of problems.
        self._public = _any_of(public)
        self._page = _any_of(ADDRESSES)
        self._known = _any_of([*by_path(), ATTACH])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            raise RuntimeError(f"unsupported connection type: {scope['type']}")
        await self._let_in(scope, receive, send, self._passes)

    async def offered(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request that came through the fabric: its caller is known by a key, so it has no Host and no Origin."""
        await self._let_in(scope, receive, send, self._passes_from_fabric)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send, passes: Check) -> None:
        scope.setdefault("state", {})["request_id"] = secrets.token_hex(8)
        way_out = _WayOut(scope, send, self._tls, self._app.metrics)
        began = time.monotonic()
        try:
            if await passes(scope, receive, way_out):
                await self._app(scope, receive, way_out)
        except (WebSocketDisconnect, ClientDisconnected):
            pass
        except HoldfastError as error:
            if isinstance(error, _REFUSALS):
                self._refused(scope, error.reason)
            if await self._may_answer(scope, error):
                await way_out.give_up(error, receive)
            else:
                await hang_up(scope, receive)
        except HTTPException as error:
            allowed = (error.headers or {}).get("Allow")
            refusal = NoSuchAddress() if allowed is None else WrongMethod(scope["method"], allowed)
            await way_out.give_up(refusal, receive)
        except Exception:  # noqa: BLE001
            _log.exception("a request failed")
            await way_out.give_up(HoldfastError("the server failed; see its own output"), receive)
        finally:
            self._note(scope, way_out, time.monotonic() - began)

    def _note(self, scope: Scope, way_out: _WayOut, took_s: float) -> None:
        """Write the access log and the counters: the template of the request, never its content."""
        state = scope["state"]
        route, method = state.get("route", "-"), scope.get("method", "WEBSOCKET")
        if scope["type"] == "http" and method not in _METHODS:
            method = "OTHER"
        self._app.metrics.request(route, method, way_out.status, took_s)
        caller: Caller | None = state.get("caller")
        _access.info(
            "%s %s %s %d %.1f ms %d bytes %s %s",
            *(now_text(), method, route, way_out.status, took_s * 1000, way_out.bytes),
            *("-" if caller is None else caller.id, state["request_id"]),
        )

    async def _passes(self, scope: Scope, receive: Receive, way_out: _WayOut) -> bool:
        """Returns whether to pass the request on; False if it is answered or cut off."""
        headers = Headers(scope=scope)
        scope["state"]["peer"] = self._peer(scope, headers)
        _check_form(scope, headers, self._app.config.server_header_bytes)
        self._check_host(headers)
        origin = self._check_origin(scope, headers)
        if origin in self._names.other_origins:
            way_out.add(standard.headers_for_other_origin(origin or ""))
            if scope["type"] == "http" and scope["method"] == "OPTIONS":
                # A browser first asks for permission (preflight), and sends no credentials with that.
                way_out.add(standard.headers_for_preflight())
                await Response(status_code=204)(scope, receive, way_out)
                return False
        if self._app.leaving.is_set() and scope["path"] != "/healthz":
            raise ShuttingDown
        state = scope["state"]
        state["origin"] = origin
        if self._is_public(scope):
            return True
        if scope["path"] in LOGIN and scope["type"] == "http":
            state["origin"] = origin or self._own_origin(headers["host"].lower())
            state["is_own"] = origin is None or origin in self._names.own_origins
            return True
        ticket = _ticket_of(scope)
        authorization = headers.get("authorization")
        if ticket is None and authorization is None:
            path = scope["path"]
            if not self._known.fullmatch(path) and not path.startswith(NODES):
                raise NoSuchAddress
            raise Unauthenticated("the request has no token", reason="no_token")
        caller, state["ticket"] = self._caller(ticket, authorization, origin)
        if caller is None:
            raise TicketSpent if ticket is not None else Unauthenticated("the token is not known here")
        if scope["type"] == "websocket" and ticket is None and origin is not None:
            raise BadOrigin("a page attaches with a ticket")
        state["caller"] = caller
        # From now on it counts among the authenticated connections.
        scope["extensions"][PROVEN]()
        return True

    async def _passes_from_fabric(self, scope: Scope, receive: Receive, way_out: _WayOut) -> bool:
        _check_form(scope, Headers(scope=scope), self._app.config.server_header_bytes)
        if scope["path"] in LOGIN:
            raise NoSuchAddress  # a view is known by its key
        # A node answers only for itself: its views may not see the nodes that it sees.
        scope["state"] |= {"origin": None, "ticket": None, "is_own": False, "is_from_view": True}
        if self._app.leaving.is_set() and scope["path"] != "/healthz":
            raise ShuttingDown
        return True

    async def _may_answer(self, scope: Scope, error: HoldfastError) -> bool:
        """Wait before wrong credentials are refused. False at once if too many wait already."""
        if isinstance(error, TicketSpent):
            self._app.metrics.add("tickets_total", "refused")
        elif not isinstance(error, Unauthenticated) or error.reason == "no_token":
            return True
        return await self._app.patience.hold_back(peer_of(scope))

    def _is_public(self, scope: Scope) -> bool:
        return _is_read(scope, self._public)

    def _own_origin(self, host: str) -> str:
        """Our origin for a client that sends no Origin; behind a proxy that is the public URL."""
        known = self._names.own_origins
        own = f"{'https' if self._tls else 'http'}://{host}"
        return own if own in known else next(each for each in known if each.partition("://")[2] == host)

    def _peer(self, scope: Scope, headers: Headers) -> str:
        """The other end of the socket; its headers about clients count only if it is a trusted proxy."""
        peer = scope["client"][0] if scope.get("client") else "unix"
        for named in reversed(forwarded_for(headers)):
            if not is_trusted(peer, self._proxies) or named == "unknown":
                break
            peer = named
        return peer

    def _refused(self, scope: Scope, reason: str) -> None:
        self._app.metrics.add("auth_failures_total", reason)
        state = scope["state"]
        token = {"token": state["caller"].id} if "caller" in state else {}
        self._app.audit.note("refused", peer=peer_of(scope), reason=reason, request_id=state["request_id"], **token)

    def _check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        if len(given) != 1:
            raise BadRequest("there must be one header Host", "send the host and port that the URL has")
        if given[0].lower() not in self._names.hosts:
            raise WrongHost

    def _check_origin(self, scope: Scope, headers: Headers) -> str | None:
        origin = headers.get("origin")
        known = self._names
        if origin is not None and origin not in known.own_origins and origin not in known.other_origins:
            raise BadOrigin("the request comes from a page of another server")
        site = headers.get("sec-fetch-site")
        way = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"), origin
        is_link = way == ("navigate", "document", None) and _is_read(scope, self._page)
        if site not in (None, "same-origin", "none") and origin not in known.other_origins and not is_link:
            raise BadOrigin("the browser says that another site asked for this")
        return origin

    def _caller(
        self, ticket: str | None, authorization: str | None, origin: str | None
    ) -> tuple[Caller | None, Ticket | None]:
        caller = None if authorization is None else self._app.tokens.caller(authorization)
        if ticket is None:
            return caller, None
        taken = self._app.tickets.take(ticket, origin)
        if taken is None or not self._app.tokens.is_valid(taken.caller):
            return None, None
        if authorization is not None and caller != taken.caller:
            return None, None
        return taken.caller, taken


class _WayOut:
    """Adds headers to what is sent, and knows whether an answer can still be given."""

    def __init__(self, scope: Scope, send: Send, tls: bool, metrics: Metrics) -> None:
        self._scope = scope
        self._send = send
        self._tls = tls
        self._metrics = metrics
        self._added: dict[str, str] = {}
        self._is_started = False
        self.status = 0
        self.bytes = 0

    def add(self, headers: dict[str, str]) -> None:
        self._added |= headers

    async def __call__(self, message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.close" and not self._is_started:
            # The server underneath would answer with its own page, without our headers.
            await self.give_up(BadRequest("the upgrade is refused", "see `GET /v1/info`"), _nothing)
            return
        if kind in ("http.response.start", "websocket.http.response.start", "websocket.accept"):
            self._is_started = True
            self.status = message.get("status", 101)
            if self.status == 101 and self._scope["state"].get("ticket") is not None:
                self._metrics.add("tickets_total", "used")
            dressed = MutableHeaders(raw=list(message.get("headers", ())))
            for name, value in {**standard.headers_of_every_answer(tls=self._tls), **self._added}.items():
                dressed.setdefault(name, value)
            if kind == "http.response.start" and not self._tls and not self._is_proof_for_program():
                # If a reused connection breaks, a browser repeats the request, secret included, to any program that
                # uses the port by then. It does not repeat a request on a new connection.
                dressed["Connection"] = "close"
            message = {**message, "headers": dressed.raw}
        self.bytes += len(message.get("body") or message.get("bytes") or message.get("text") or ())
        await self._send(message)

    def _is_proof_for_program(self) -> bool:
        """A program sends its token on the connection that has the proof. Browsers send Origin with every POST."""
        is_program = all(name.lower() != b"origin" for name, _ in self._scope["headers"])
        return self.status == 200 and self._scope["path"] == "/v1/auth/prove" and is_program

    async def give_up(self, error: HoldfastError, receive: Receive) -> None:
        if not self._is_started and self._scope["type"] == "websocket" and isinstance(error, TooManyClients):
            await self._turn_away(error)
        elif not self._is_started:
            await answer(error, self._scope)(self._scope, receive, self)
        elif self._scope["type"] == "websocket":
            try:
                await self._send({"type": "websocket.close", "code": 1011, "reason": error.code})
            except (OSError, RuntimeError):
                pass  # it is already closed
        else:
            # A part of an answer must not look like the whole.
            await hang_up(self._scope, receive)

    async def _turn_away(self, error: HoldfastError) -> None:
        """A page cannot see the answer to a refused upgrade: accept it, send the reason, and close it."""
        # A client that offers none of our dialects can still read the close code.
        dialect = chosen([*self._scope["subprotocols"], DIALECTS[0].name])
        spelled = dialect.spell(error_message(error))
        accepted = dialect.name if dialect.name in self._scope["subprotocols"] else None
        await self({"type": "websocket.accept", "subprotocol": accepted})
        await self(
            {"type": "websocket.send", **({"text": spelled} if isinstance(spelled, str) else {"bytes": spelled})}
        )
        await self({"type": "websocket.close", "code": _TOO_MANY, "reason": error.code})


def _check_form(scope: Scope, headers: Headers, header_bytes: int) -> None:
    path = scope["raw_path"]
    size = len(path) + len(scope["query_string"]) + sum(len(name) + len(value) + 4 for name, value in headers.raw)
    if size > header_bytes:
        raise reached(TooLarge("the request line with the headers", header_bytes), "header_bytes", header_bytes)
    if any(len(headers.getlist(name)) > 1 for name in _ONCE):
        raise BadRequest(f"one of {', '.join(_ONCE)} is repeated", "send each once")
    if _HIDDEN.search(path) or _DOTS.search(path):
        raise BadRequest("the path has dots, slashes or NUL where a name belongs", "name the session by its id")


def forwarded_for(headers: Headers) -> list[str]:
    """The client addresses that proxies report, the nearest proxy last. `Forwarded` (RFC 7239) is what they should
    send, and `X-Forwarded-For` what most of them send. A proxy that sends one may pass on the other as its client wrote
    it: if the two differ, neither counts."""
    pairs = re.split("[,;]", ",".join(headers.getlist("forwarded")))
    registered = _hosts(pair.partition("=")[2] for pair in pairs if _FOR.match(pair))
    usual = _hosts(",".join(headers.getlist("x-forwarded-for")).split(","))
    return (registered or usual) if registered == usual or not (registered and usual) else []


def _hosts(given: Iterable[str]) -> list[str]:
    """The host without a port; an IPv6 address has its port after the brackets."""
    named = [each.strip(' \t"') for each in given]
    hosts = [each.partition("]")[0][1:] if each[:1] == "[" else re.sub(r"^([^:]*):\d+$", r"\1", each) for each in named]
    return [host[:64] for host in hosts if host]


def _ticket_of(scope: Scope) -> str | None:
    """The ticket of an upgrade; a ticket in any other URL is ignored."""
    if scope["type"] != "websocket":
        return None
    given = QueryParams(scope["query_string"]).getlist("ticket")
    if len(given) > 1:
        raise BadRequest("there is more than one ticket", "send one")
    return given[0] if given else None


def _is_read(scope: Scope, addresses: re.Pattern[str]) -> bool:
    is_read = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
    return is_read and addresses.fullmatch(scope["path"]) is not None


def _any_of(paths: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)) for path in paths))


def peer_of(scope: Scope) -> str:
    peer: str = scope["state"]["peer"]
    return peer


async def hang_up(scope: Scope, receive: Receive) -> None:
    scope["extensions"][HANG_UP]()
    while (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
        pass


async def _nothing() -> Message:
    raise RuntimeError("nothing is to be received any more")


# How long the answer to wrong credentials is delayed.


_FIRST_DELAY_S = 0.25
_LONGEST_DELAY_S = 8.0
_HELD_BACK = 64
# A peer is forgotten after this time without an attempt; at most this many are remembered.
_FORGET_S = 60.0
_PEERS = 1024


class Patience:
    """Answers to wrong credentials are delayed, longer each time, per peer. Right credentials never come here."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._failures: dict[str, tuple[int, float]] = {}
        self._held = 0

    async def hold_back(self, peer: str) -> bool:
        """Wait until the answer may be sent. False at once if too many wait already."""
        now = self._clock()
        count, last = self._failures.pop(peer, (0, now))
        if now - last > _FORGET_S:
            count = 0
        # Popped and put back: the first of the dictionary is the one that has been silent longest.
        self._failures[peer] = count + 1, now
        if len(self._failures) > _PEERS:
            del self._failures[next(iter(self._failures))]
        if self._held >= _HELD_BACK:
            return False
        self._held += 1
        try:
            await self._sleep(min(_FIRST_DELAY_S * 2 ** min(count, 16), _LONGEST_DELAY_S))
        finally:
            self._held -= 1
        return True


# Tickets: each allows one upgrade of one session in one role, soon, for the caller that asked for it.


_TICKET_BYTES = 32


def role_of(given: object) -> Literal["control", "observe"]:
    if given == "control":
        return "control"
    if given == "observe":
        return "observe"
    raise BadArgument("role", "is neither control nor observe", "give one of the two")


@dataclass(frozen=True)
class Ticket:
    session: str
    role: Literal["control", "observe"]
    caller: Caller
    origin: str | None
    expires: float


class Tickets:
    """The tickets that were issued and not used. They are kept in one process, so no other instance accepts them."""

    def __init__(self, clock: Callable[[], float], most: int) -> None:
        self._clock = clock
        self._most = most
        # By digest, so that the time of a lookup reveals nothing about the secret. All have the same lifetime, so the
        # oldest come first.
        self._open: dict[bytes, Ticket] = {}

    def issue(self, session: str, role: Literal["control", "observe"], caller: Caller, origin: str | None) -> str:
        now = self._clock()
        while self._open and (first := next(iter(self._open))) and self._open[first].expires <= now:
            del self._open[first]
        if len(self._open) >= self._most:
            raise reached(Busy("too many tickets are outstanding"), "tickets", self._most)
        secret = secrets.token_urlsafe(_TICKET_BYTES)
        self._open[digest(secret)] = Ticket(session, role, caller, origin, now + standard.TICKET_S)
        return secret

    def take(self, secret: str, origin: str | None) -> Ticket | None:
        """What the ticket allows. Presenting it uses it up, also at the wrong address."""
        ticket = self._open.pop(digest(secret), None)
        if ticket is None or ticket.expires <= self._clock() or ticket.origin != origin:
            return None
        return ticket
