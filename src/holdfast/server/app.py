"""What can be asked for behind the gate."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.routing import Route, Router, WebSocketRoute

from .. import __version__
from ..errors import BadArgument, BadRequest, NotFound, TooLarge
from ..host.aio import AsyncHoldfast
from ..runner import jsontext
from ..runner.clock import rfc3339
from . import limits
from .problems import NoSuchAddress, NotReady, TicketSpent, WrongMediaType

if TYPE_CHECKING:
    from typing import Any, Literal

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send
    from starlette.websockets import WebSocket

    from ..host.aio import AsyncSession
    from .credentials import Caller
    from .tickets import Ticket, Tickets

FEATURES = ("attach",)
_NS = 1_000_000_000


class App:
    """The routes, over one home. `leaving` is set when the server is told to leave."""

    def __init__(self, hf: AsyncHoldfast, *, instance: str, tickets: Tickets, leaving: asyncio.Event) -> None:
        self._hf = hf
        self._instance = instance
        self._tickets = tickets
        self._leaving = leaving
        self.routes = [
            Route("/healthz", self.health),
            Route("/readyz", self.readiness),
            Route("/v1/info", self.info),
            Route("/v1/sessions/{id}/tickets", self.ticket, methods=["POST"]),
            WebSocketRoute("/v1/sessions/{id}/attach", self.attach),
            Route("/v1/sessions/{id}/attach", self.no_upgrade),
        ]
        self._router = Router(self.routes, redirect_slashes=False, default=_nowhere)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Only inside an app do Starlette's routes raise what is wrong instead of answering in their own way.
        await self._router({**scope, "app": self}, receive, send)

    async def health(self, request: Request) -> Response:
        return JSONResponse({"ok": True})

    async def readiness(self, request: Request) -> Response:
        try:
            with os.scandir(self._hf.home.sessions):
                pass
        except OSError:
            raise NotReady from None
        return JSONResponse({"ok": True})

    async def info(self, request: Request) -> Response:
        caller: Caller = request.state.caller
        caller.must("observe")
        return JSONResponse(
            {
                "version": __version__,
                "instance": self._instance,
                "features": FEATURES,
                "limits": limits.told(),
                "scopes": caller.scopes,
            }
        )

    async def ticket(self, request: Request) -> Response:
        caller: Caller = request.state.caller
        role = _role((await _object(request, "role")).get("role"))
        caller.must(role)
        session = await self._hf.get(_reference(request.path_params["id"]))
        secret = self._tickets.issue(session.id, role, caller, request.state.origin)
        until = time.time_ns() + int(limits.TICKET_S * _NS)
        return JSONResponse({"ticket": secret, "expires_at": rfc3339(until), "role": role})

    async def attach(self, socket: WebSocket) -> None:
        from .viewer import attend

        caller: Caller = socket.state.caller
        ticket: Ticket | None = socket.state.ticket
        asked = socket.query_params.get("role")
        role = _role(asked or "control") if ticket is None else ticket.role
        if ticket is not None and asked not in (None, ticket.role):
            raise TicketSpent
        caller.must(role)
        # Everything that is asked of a runner carries the author of its host.
        async with AsyncHoldfast(self._hf.home.path, config=self._hf.config, author=f"web:{caller.label}") as hf:
            session = await self._session(hf, socket.path_params["id"], ticket)
            await attend(
                socket,
                session,
                role=role,
                label=caller.label,
                instance=self._instance,
                enter_delay_ms=round(hf.config.terminal_enter_delay * 1000),
                leaving=self._leaving,
            )

    async def _session(self, hf: AsyncHoldfast, ref: str, ticket: Ticket | None) -> AsyncSession:
        try:
            session = await hf.get(_reference(ref))
        except NotFound:
            if ticket is None:
                raise
            raise TicketSpent from None
        if ticket is not None and session.id != ticket.session:
            raise TicketSpent
        return session

    async def no_upgrade(self, request: Request) -> Response:
        raise BadRequest("this address speaks WebSocket alone", "send a WebSocket upgrade, version 13")


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    raise NoSuchAddress


def _reference(text: str) -> str:
    """An id, the beginning of one, or a name. Pids and `last` are words of whoever sits at the machine."""
    if text == "last" or text.isdigit():
        raise NotFound(text)
    return text


def _role(given: object) -> Literal["control", "observe"]:
    if given == "control":
        return "control"
    if given == "observe":
        return "observe"
    raise BadArgument("role", "is neither control nor observe", "give one of the two")


async def _object(request: Request, *fields: str) -> dict[str, Any]:
    """The JSON object that was sent, with no other fields than these."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise WrongMediaType
    sent = bytearray()
    try:
        async with asyncio.timeout(limits.BODY_S):
            async for chunk in request.stream():
                sent += chunk
                if len(sent) > limits.BODY_BYTES:
                    raise TooLarge("the body", limits.BODY_BYTES)
    except TimeoutError:
        raise BadRequest(f"the body did not come within {limits.BODY_S:g} s", "send it at once") from None
    except ClientDisconnect:
        raise BadRequest("the body broke off", "send all of it") from None
    try:
        value = jsontext.read_finite(bytes(sent))
    except (ValueError, RecursionError):
        raise BadRequest("the body is not JSON", "send one JSON object") from None
    if not isinstance(value, dict):
        raise BadRequest("the body is no JSON object", "send one JSON object")
    unknown = sorted(set(value) - set(fields))
    if unknown:
        raise BadArgument(unknown[0][:80], "there is no such field", f"give {', '.join(fields)}")
    return value
