"""Connections below the gate: how many, how long until they ask for something, and no answer without our headers."""

from __future__ import annotations

import asyncio
import os
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.server import ServerProtocol

from ..errors import BadRequest, ForeignPeer, TooLarge
from ..runner.sockets import peer_uid
from . import headers as standard
from . import limits
from .gate import HANG_UP, LOST, PROVEN
from .problems import MEDIA_TYPE, TooManyConnections, body

if TYPE_CHECKING:
    from typing import Any

    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn._types import ASGISendEvent
    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from ..errors import HoldfastError
    from ..serving.door import Door

_NO_PONG = 4408
# What is still to be sent when a connection is closed may never be taken: by whom we hear nothing, and by others.
_SILENT_S, _SLOW_S = 1.0, 30.0


class Asking(H11Protocol):
    """One connection until it is upgraded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = _with_extensions(self.app, self)
        self.lost = asyncio.Event()
        self.is_proven = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        stranger = _foreign_uid(transport)
        if stranger is not None:
            self._refuse(ForeignPeer(stranger))
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        # uvicorn has None here until the first request.
        before: RequestResponseCycle | None = self.cycle
        if self._head_timer is None and before is not None and before.response_complete:
            self._expect_head()
        super().data_received(data)
        if self.cycle is not before:
            self._head_came()

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._head_came()
        super().handle_websocket_upgrade(event)

    def _should_upgrade(self) -> bool:
        # What the WebSocket library would refuse, in its own words or by silence, goes through the gate as what it also
        # is, a request.
        if self._get_upgrade() != b"websocket":
            return False
        scope = self.scope
        # With a question mark more than came, if there was none, and no less.
        target = scope["raw_path"] + b"?" + scope["query_string"]
        lines = [f"{scope['method']} ".encode() + target + f" HTTP/{scope['http_version']}".encode()]
        lines += [name + b": " + value for name, value in self.headers]
        return _would_be_accepted(b"\r\n".join([*lines, b"", b""]))

    def send_400_response(self, msg: str) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            # Whoever reads that answer would take this one for a part of it.
            self.transport.close()
        elif len(self.conn.trailing_data[0]) > limits.HEADER_BYTES:
            self._refuse(TooLarge("the request line with the headers", limits.HEADER_BYTES))
        else:
            self._refuse(BadRequest(msg.rstrip(".").lower(), "send HTTP/1.1"))

    def _refuse(self, error: HoldfastError) -> None:
        """An answer before there is a request that the gate could answer."""
        content = body(error)
        head = {
            **standard.of_every_answer(tls=self.scheme == "https"),
            "Content-Type": MEDIA_TYPE,
            "Content-Length": str(len(content)),
            "Connection": "close",
        }
        lines = [f"HTTP/1.1 {error.http_status} {HTTPStatus(error.http_status).phrase}"]
        lines += [f"{name}: {value}" for name, value in head.items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + content)
        self.transport.close()

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(limits.HEADER_S, self.transport.close)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Attached(WebSocketsSansIOProtocol):
    """One connection after it asked for an upgrade."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.server_state = server_state
        self.app = _with_extensions(self.app, self)
        self.lost = asyncio.Event()
        self.is_proven = False
        # Since the last ping: it said something, behind which the pong may be, or it was not listened to.
        self._is_excused = False
        self._flush_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        super().connection_lost(exc)
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        self._is_excused = True
        super().data_received(data)

    def send_keepalive_ping(self) -> None:
        self._is_excused = self.read_paused
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        self.pong_timer = None
        self.pending_ping_payload = None
        if self.close_sent or self.transport.is_closing():
            return
        if self._is_excused:
            self.schedule_ping()
            return
        self.conn.fail(_NO_PONG, "no-pong")
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()
        self._flush_timer = self.loop.call_later(_SILENT_S, self.transport.abort)

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        # uvicorn takes an upgrade that was answered by a refusal for one that was not answered.
        self.handshake_complete |= self.close_sent

    async def run_asgi(self) -> None:
        await super().run_asgi()
        if self._flush_timer is None and not self.lost.is_set():
            self._flush_timer = self.loop.call_later(_SLOW_S, self.transport.abort)


def _with_extensions(app: Any, connection: Asking | Attached) -> ASGIApp:
    """For what ASGI has no word: to end a connection without an answer, and to learn of its end without receiving."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        extensions = {
            **scope.get("extensions", {}),
            HANG_UP: connection.transport.abort,
            LOST: connection.lost,
            PROVEN: lambda: _prove(connection),
        }
        try:
            await app({**scope, "extensions": extensions}, receive, send)
        except asyncio.CancelledError:
            # The server leaves and has waited long enough. uvicorn would call it an error, and answer in its own words.
            connection.transport.abort()
            await connection.lost.wait()

    return wrapped


def _prove(connection: Asking | Attached) -> None:
    """It has shown a valid token: it leaves the share of strangers and counts among those who may be here."""
    if connection.is_proven:
        return
    others = [each for each in connection.connections if isinstance(each, Asking | Attached) and each.is_proven]
    if len(others) >= limits.CONNECTIONS:
        raise TooManyConnections("connections", limits.CONNECTIONS)
    # On a unix socket all peers are one, and may be a proxy.
    if sum(_is_same(each, connection) for each in others) >= limits.CONNECTIONS_PER_PEER:
        raise TooManyConnections("connections_per_peer", limits.CONNECTIONS_PER_PEER)
    connection.is_proven = True
    door: Door | None = getattr(connection.server_state, "door", None)
    if door is not None:
        door.authenticated(connection.transport)


def _is_same(one: Asking | Attached, other: Asking | Attached) -> bool:
    return one.client is not None and other.client is not None and one.client[0] == other.client[0]


def _would_be_accepted(head: bytes) -> bool:
    protocol = ServerProtocol()
    protocol.receive_data(head)
    return any(
        isinstance(event, Request) and protocol.accept(event).status_code == HTTPStatus.SWITCHING_PROTOCOLS
        for event in protocol.events_received()
    )


def _foreign_uid(transport: asyncio.BaseTransport) -> int | None:
    """The user at the other end of a unix socket, where that is neither we nor root. The directory of the socket keeps
    others out, unless its mode was changed since."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return None
    uid = peer_uid(sock)
    return None if uid in (os.geteuid(), 0) else uid
