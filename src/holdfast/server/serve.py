"""The server, from its start to its end, and its connections."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from ..config import load
from ..core.sockets import peer_uid
from ..errors import BadRequest, ForeignPeer, TooLarge
from ..serving.door import PROVEN, Server, Waiting, let_go, on_signals
from ..serving.listener import token_of, token_path
from ..sessions.aio import AsyncHoldfast
from . import responses as standard
from . import routes as _routes  # noqa: F401  (they add themselves to the table)
from .app import App
from .attach import chosen, error_message
from .gate import Gate, peer_of
from .listen import ListenAddress, check, names, opened, proxies
from .responses import HANG_UP, LOST, MEDIA_TYPE, TooManyConnections, body, reached
from .tokens import announce
from .watching import NAMES, Watching

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn._types import ASGISendEvent
    from uvicorn.config import Config
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle
    from uvicorn.server import ServerState

    from ..config import Config as Limits
    from ..errors import HoldfastError
    from ..home import Home
    from ..serving.door import Door


# Connections underneath the gate: they are counted, and no answer is sent without our headers.


_TOO_BIG, _NO_PONG = 1009, 4408
# How long a closing connection may take to read what is still to be sent: one that did not answer a ping, and others.
_SILENT_S, _SLOW_S = 1.0, 30.0


class HttpConnection(Waiting):
    """One connection until it is upgraded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lost = asyncio.Event()
        # The peer that has shown a valid token on it.
        self.peer: str | None = None

    def extended(self, app: ASGIApp) -> ASGIApp:
        return _with_extensions(app, self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        stranger = _foreign_uid(transport)
        if stranger is not None:
            self.head_came()
            self._refuse(ForeignPeer(stranger))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost.set()

    def handle_websocket_upgrade(self, event: Any) -> None:
        self.head_came()
        super().handle_websocket_upgrade(event)

    def _should_upgrade(self) -> bool:
        # An upgrade that the WebSocket library would refuse is handled as a plain request, which the gate answers.
        if self._get_upgrade() != b"websocket":
            return False
        scope = self.scope
        # At most one byte longer than the target that was sent: the question mark.
        target = scope["raw_path"] + b"?" + scope["query_string"]
        lines = [f"{scope['method']} ".encode() + target + f" HTTP/{scope['http_version']}".encode()]
        lines += [name + b": " + value for name, value in self.headers]
        return _would_be_accepted(b"\r\n".join([*lines, b"", b""]))

    def send_400_response(self, msg: str) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            # A second answer would be read as part of the first.
            self.transport.close()
        elif len(self.conn.trailing_data[0]) > (most := self.server_state.door.header_bytes):  # type: ignore[attr-defined]
            self._refuse(reached(TooLarge("the request line with the headers", most), "header_bytes", most))
        else:
            self._refuse(BadRequest(msg.rstrip(".").lower(), "send HTTP/1.1"))

    def late(self, *, has_begun: bool) -> None:
        if has_begun:
            most = self.server_state.door.header_s  # type: ignore[attr-defined]
            self._refuse(reached(BadRequest("the headers are incomplete", "send them at once"), "header_time", most))
        else:
            super().late(has_begun=has_begun)

    def _refuse(self, error: HoldfastError) -> None:
        """Answer before there is a request that the gate could answer."""
        content = body(error)
        head = {
            **standard.headers_of_every_answer(tls=self.scheme == "https"),
            "Content-Type": MEDIA_TYPE,
            "Content-Length": str(len(content)),
            "Connection": "close",
        }
        lines = [f"HTTP/1.1 {error.http_status} {HTTPStatus(error.http_status).phrase}"]
        lines += [f"{name}: {value}" for name, value in head.items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + content)
        self.transport.close()


class WebSocketConnection(WebSocketsSansIOProtocol):
    """One connection after it requested an upgrade."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.server_state = server_state
        self.app = _with_extensions(self.app, self)
        self.lost = asyncio.Event()
        self.peer: str | None = None
        # Since the last ping it has sent something, and its pong may follow; or we have not read from it.
        self._is_excused = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._subprotocol: str | None = None
        self._end = self.conn.fail
        self.conn.fail = self._fail  # type: ignore[method-assign]

    def _fail(self, code: int, reason: str = "") -> None:
        """The library closes a connection with its own reason. For a message that is too large, we name the limit."""
        if code == _TOO_BIG:
            most = self.server_state.limits.server_frame_bytes  # type: ignore[attr-defined]
            error = reached(TooLarge("a message", most), "frame_bytes", most)
            reason = error.code
            if self._subprotocol is not None and self.conn.state is State.OPEN:
                spelled = chosen([self._subprotocol]).spell(error_message(error))
                if isinstance(spelled, str):
                    self.conn.send_text(spelled.encode())
                else:
                    self.conn.send_binary(spelled)
        self._end(code, reason)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        super().connection_lost(exc)
        let_go(self.transport)
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
        self.conn.fail(_NO_PONG, f"no-pong (server.pong_wait is {self.config.ws_ping_timeout:g})")
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()
        self._flush_timer = self.loop.call_later(_SILENT_S, self.transport.abort)

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "websocket.accept":
            self._subprotocol = message.get("subprotocol")
        await super().send(message)
        # uvicorn takes an upgrade that was answered by a refusal for one that was not answered.
        self.handshake_complete |= self.close_sent

    async def run_asgi(self) -> None:
        await super().run_asgi()
        if self._flush_timer is None and not self.lost.is_set():
            self._flush_timer = self.loop.call_later(_SLOW_S, self.transport.abort)


_Counted = HttpConnection | WebSocketConnection


def _with_extensions(app: Any, connection: _Counted) -> ASGIApp:
    """Two extensions that ASGI lacks: end a connection without an answer, and learn of its end without receiving."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        extended: Scope = {**scope}
        extended["extensions"] = {
            **scope.get("extensions", {}),
            HANG_UP: connection.transport.abort,
            LOST: connection.lost,
            PROVEN: lambda: _prove(connection, peer_of(extended)),
        }
        try:
            await app(extended, receive, send)
        except asyncio.CancelledError:
            # The shutdown has waited long enough. uvicorn would call this an error, and answer in its own words.
            connection.transport.abort()
            await connection.lost.wait()

    return wrapped


def _prove(connection: _Counted, peer: str) -> None:
    """The connection has shown a valid token: from now on it counts as authenticated."""
    if connection.peer == peer:
        return
    others = [each for each in connection.connections if isinstance(each, _Counted) and each is not connection]
    peers = [each.peer for each in others if each.peer is not None]
    limits: Limits = connection.server_state.limits  # type: ignore[attr-defined]
    if len(peers) >= limits.server_connections:
        raise TooManyConnections("connections", limits.server_connections)
    # On a unix socket all peers look the same.
    if peer != "unix" and peers.count(peer) >= limits.server_connections_per_peer:
        raise TooManyConnections("connections_per_peer", limits.server_connections_per_peer)
    connection.peer = peer
    door: Door | None = getattr(connection.server_state, "door", None)
    if door is not None:
        door.authenticated(connection.transport)


def _would_be_accepted(head: bytes) -> bool:
    protocol = ServerProtocol()
    protocol.receive_data(head)
    return any(
        isinstance(event, Request) and protocol.accept(event).status_code == HTTPStatus.SWITCHING_PROTOCOLS
        for event in protocol.events_received()
    )


def _foreign_uid(transport: asyncio.BaseTransport) -> int | None:
    """The user at the other end of a unix socket, if that is neither we nor root. The directory of the socket keeps
    other users out, unless its mode was changed since."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return None
    uid = peer_uid(sock)
    return None if uid in (os.geteuid(), 0) else uid


# The life of a server: check that it may listen there, listen, serve until asked to leave, leave.


_FILE = "token"
_PLACE_S = 10.0


@dataclass(frozen=True)
class Started:
    """What the starter of the server needs to know. `code` opens the page once."""

    url: str
    code: str
    token_path: str
    instance: str


async def serve(
    address: ListenAddress,
    home: Home,
    started: Callable[[Started], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    leaving: asyncio.Event | None = None,
) -> int | None:
    """Serve until a signal, which is returned, or `leaving`. Neither this nor any other end affects a session."""
    leaving = leaving or asyncio.Event()
    check(address)
    home.create()
    token = token_of(home, _FILE)
    directory = os.path.dirname(token_path(home, _FILE))
    config = load(os.environ)
    # A slow place delays only the requests that concern it, and these no longer than this.
    config.places_timeout = min(config.places_timeout, _PLACE_S)
    async with AsyncExitStack() as stack:
        listeners = [] if address.is_closed else [stack.enter_context(opened(address))]
        port = listeners[0].getsockname()[1] if listeners and not address.unix else None
        url = "" if address.is_closed else address.url(port)
        hf = await stack.enter_async_context(AsyncHoldfast(home.path, config=config, author="web:server"))
        app = App(hf, directory=directory, token=token, url=url, clock=clock, sleep=sleep, leaving=leaving)
        stack.push_async_callback(app.events.close)
        stack.push_async_callback(app.searches.close)
        gate = Gate(app, names(address, port), proxies(address.trusted_proxies), tls=url.startswith("https:"))
        stack.push_async_callback(_cancelled, asyncio.create_task(_take_part(home, app, gate)))
        server = _Server(_configured(gate, address, config), leaving, config)
        on_signals(server.leave)
        if listeners:
            stack.callback(_forget, announce(directory, app.instance, url))
        started(Started(url, app.tokens.issue_code(), token_path(home, _FILE), app.instance))
        await server.serve(sockets=listeners)
        return server.signal


async def _take_part(home: Home, app: App, gate: Gate) -> None:
    """Take part in the fabric of this home as soon as it has one; nothing of it is imported before."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    with Watching() as watching:
        watching.watch(home.path, "home", NAMES)
        loop.add_reader(watching.fileno(), changed.set)
        try:
            while not os.path.isdir(os.path.join(home.path, "nodes")):  # noqa: ASYNC240
                await changed.wait()
                changed.clear()
                watching.read()
        finally:
            loop.remove_reader(watching.fileno())
    from ..nodes.serving import Nodes

    async with Nodes(home, gate.offered, app.audit.note, app.tokens) as app.nodes:
        await asyncio.Event().wait()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _forget(note: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(note)


def _configured(gate: Gate, address: ListenAddress, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        gate,
        http=HttpConnection,
        ws=WebSocketConnection,
        ws_max_size=limits.server_frame_bytes,
        ws_ping_interval=limits.server_ping_interval,
        ws_ping_timeout=limits.server_pong_wait,
        # A window per viewer costs more memory than this machine's own network is worth.
        ws_per_message_deflate=False,
        h11_max_incomplete_event_size=limits.server_header_bytes,
        lifespan="off",
        # Its lines would show query strings, which may have tickets.
        access_log=False,
        log_config=None,
        log_level="error",
        # Any client could put any address into such headers.
        proxy_headers=False,
        server_header=False,
        date_header=False,
        ssl_certfile=address.tls_cert,
        ssl_keyfile=address.tls_key,
    )


class _Server(Server):
    def __init__(self, config: uvicorn.Config, leaving: asyncio.Event, limits: Limits) -> None:
        super().__init__(config)
        self.header_bytes, self.header_s = limits.server_header_bytes, limits.server_header_time
        self.server_state.limits = limits  # type: ignore[attr-defined]
        self.signal: int | None = None
        self._leaving = leaving

    def leave(self, number: int) -> None:
        if self._leaving.is_set():
            os._exit(128 + number)
        self.signal = number
        self._leaving.set()

    async def main_loop(self) -> None:
        # uvicorn itself checks ten times a second whether to shut down: an idle server has nothing to do.
        await self._leaving.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        state = self.server_state
        deadline = asyncio.get_running_loop().time() + standard.LEAVING_S
        # Viewers see `leaving` and close with 1001; requests are answered.
        if state.tasks:
            _, late = await asyncio.wait(list(state.tasks), timeout=standard.LEAVING_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        # Clients answer our close with their own. Until then we read what they still send, or the kernel would discard
        # what we sent.
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                for attached in [each for each in state.connections if isinstance(each, WebSocketConnection)]:
                    await attached.lost.wait()
        for connection in list(state.connections):
            connection.shutdown()
        # The loop closes them in its next round.
        await asyncio.sleep(0)
