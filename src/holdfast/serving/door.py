"""Connections of a server: admission, slow requests, and leaving.

uvicorn's own accept loop reports a connection only after its TLS handshake, so it cannot count unfinished handshakes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from asyncio import sslproto
from contextlib import nullcontext
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..config.settings import Settings

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle


# Accept the connections of a server. Connections that have not shown a valid token yet share a small number of
# places: when all are taken, the oldest of these connections is closed. They can neither use up the descriptors or
# the memory nor keep the owner out.


# In the extensions of a scope: called when its request has shown a valid token.
PROVEN = "holdfast.proven"
# The head of a request: its size, beyond which the HTTP parser refuses it, and the time for it to arrive.
HEADER_BYTES = Settings.server_header_bytes
HEADER_S = Settings.server_header_time
UNAUTHENTICATED = 256
# A connection has this long to send its head or its ClientHello, and then to send its token, before it can be closed to
# make room. Meanwhile others wait in the backlog of the listener.
_SEND_S = 0.05
_AUTHENTICATE_S = 0.2
_HANDSHAKE_S = 10
_TLS_SHUTDOWN_S = 0.5
# A TLS record starts with its type (1 byte), version (2) and length (2).
_RECORD_BYTES, _HANDSHAKE = 5, b"\x16"
# Connections accepted in one turn of the event loop. Each may cost a TLS handshake.
_ACCEPT_BATCH = 8
_NO_DESCRIPTORS_PAUSE_S = 0.1
_LOG_INTERVAL_S = 60.0

_log = logging.getLogger("holdfast.serving")


class _Tls(sslproto.SSLProtocol):
    """asyncio allocates 256 KiB for each TLS connection; a TLS record has at most 16 KiB."""

    max_size = 32 * 1024

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if exc is not None:
            # That of a failed handshake refers to this object, which would wait for the garbage collector.
            exc.__traceback__ = None


class _Connection:
    """An accepted connection without a valid token. Until its first request or its TLS ClientHello is complete, it
    costs a descriptor and a timer: no parser, no TLS state."""

    __slots__ = ("is_closed", "is_late", "protected_until", "received", "sock", "timer", "transport")

    def __init__(self, sock: socket.socket, protected_until: float) -> None:
        self.sock = sock
        self.protected_until = protected_until
        self.received = 0
        self.is_closed = False
        # Its head did not come in time.
        self.is_late = False
        self.timer: asyncio.TimerHandle | None = None
        # That of the socket, below TLS: it exists during the handshake, and holds no buffers once it is closed.
        self.transport: asyncio.WriteTransport | None = None


class Door:
    """Accepts connections, and closes those that send neither a request nor a ClientHello in time."""

    def __init__(
        self,
        protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext | None,
        header_bytes: int,
        header_s: float,
    ) -> None:
        self.header_bytes = header_bytes
        self.header_s = header_s
        self._protocol = protocol
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        # Before and after their head or ClientHello is complete; oldest first.
        self._incomplete: dict[_Connection, None] = {}
        self._connected: dict[_Connection, None] = {}
        # The event loop refers to tasks weakly.
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed_count = 0
        self._logged_at = float("-inf")

    def open(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listeners.append(listener)
        self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Stop accepting, and close connections that have not sent anything complete."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        for connection in [*self._incomplete, *(each for each in self._connected if each.transport is None)]:
            self._close(connection)

    async def wait_closed(self) -> None:
        """uvicorn calls this on a server of asyncio. There is nothing to wait for."""

    def authenticated(self, transport: asyncio.BaseTransport) -> None:
        """A request on this connection has shown a valid token."""
        if transport.is_closing():
            return  # one of TLS has let go of its socket
        sock = transport.get_extra_info("socket")
        for connection in self._connected:
            if connection.transport is not None and connection.transport.get_extra_info("socket") is sock:
                del self._connected[connection]
                return

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPT_BATCH):
            wait_s = self._until_room()
            if wait_s > 0:
                self._pause(listener, wait_s)
                return
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._out_of_descriptors(listener)
                return
            sock.setblocking(False)
            if self._is_full():
                self._evict(self._oldest())
            connection = _Connection(sock, self._loop.time() + _SEND_S)
            self._incomplete[connection] = None
            if sock.family == socket.AF_UNIX:
                # The kernel knows the peer's user, and does not support SO_RCVLOWAT here.
                self._connect(connection)
                continue
            connection.timer = self._loop.call_later(self.header_s, self._out_of_time, connection)
            self._loop.add_reader(sock, self._on_readable, connection)
            self._on_readable(connection)

    def _on_readable(self, connection: _Connection) -> None:
        """Connect once the head of a request, or the first TLS record, is complete. Until then the bytes stay in the
        kernel, which wakes us when more have arrived."""
        sock = connection.sock
        try:
            head = sock.recv(self.header_bytes, socket.MSG_PEEK)
            if self._context is not None and head[:1] != _HANDSHAKE:
                self._close(connection)
                return
            is_incomplete = bool(head) and len(head) < self._needed(head)
            if is_incomplete and len(head) <= connection.received:
                self._close(connection)  # woken without new bytes: the peer has shut down its side
                return
            connection.received = len(head)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, self._needed(head) if is_incomplete else 1)
        except BlockingIOError:
            return
        except OSError:
            self._close(connection)
            return
        if not is_incomplete:
            self._stop_watching(connection)
            self._connect(connection)

    def _out_of_time(self, connection: _Connection) -> None:
        """Close it. If it has sent a part of a request, the protocol answers before that. A connection that sent
        nothing gets no answer: a browser would take it for that to its next request."""
        if self._context is not None or not connection.received:
            self._close(connection)
            return
        connection.is_late = True
        self._stop_watching(connection)
        with contextlib.suppress(OSError):
            connection.sock.recv(self.header_bytes)  # closing with unread bytes would reset the connection
        self._connect(connection)

    def _needed(self, head: bytes) -> int:
        """The number of bytes to wait for before looking again."""
        if self._context is None:
            is_complete = b"\r\n\r\n" in head or b"\n\n" in head
            return 0 if is_complete else min(len(head) + 1, self.header_bytes)
        length = int.from_bytes(head[3:5], "big") if len(head) >= _RECORD_BYTES else 0
        return min(_RECORD_BYTES + length, self.header_bytes)

    def _stop_watching(self, connection: _Connection) -> None:
        if connection.timer is not None:
            connection.timer.cancel()
            connection.timer = None
            self._loop.remove_reader(connection.sock)

    def _connect(self, connection: _Connection) -> None:
        del self._incomplete[connection]
        self._connected[connection] = None
        connection.protected_until = self._loop.time() + _AUTHENTICATE_S
        task = self._loop.create_task(self._hand_over(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hand_over(self, connection: _Connection) -> None:
        try:
            transport, protocol = await self._loop.connect_accepted_socket(self._new_protocol, connection.sock)
        except OSError:
            self._connected.pop(connection, None)
            connection.sock.close()
            return
        connection.transport = transport
        if connection.is_closed:
            transport.abort()
        elif connection.is_late and isinstance(protocol, Waiting):
            protocol.late(has_begun=True)

    def _new_protocol(self) -> asyncio.BaseProtocol:
        protocol = self._protocol()
        if self._context is None:
            return protocol
        return _Tls(
            self._loop,
            protocol,
            self._context,
            None,  # type: ignore[arg-type]
            server_side=True,
            ssl_handshake_timeout=_HANDSHAKE_S,
            ssl_shutdown_timeout=_TLS_SHUTDOWN_S,
        )

    def _is_full(self) -> bool:
        return len(self._incomplete) + len(self._connected) >= UNAUTHENTICATED

    def _oldest(self) -> _Connection:
        oldest = [next(iter(each)) for each in (self._incomplete, self._connected) if each]
        return min(oldest, key=lambda each: each.protected_until)

    def _until_room(self) -> float:
        """The time until another connection can be accepted."""
        if self._is_full():
            for connection in list(self._connected):
                if connection.transport is not None and connection.transport.is_closing():
                    del self._connected[connection]
        return self._oldest().protected_until - self._loop.time() if self._is_full() else 0.0

    def _evict(self, connection: _Connection) -> None:
        self._close(connection)
        self._closed_count += 1
        self._log_closed()

    def _close(self, connection: _Connection) -> None:
        self._incomplete.pop(connection, None)
        self._connected.pop(connection, None)
        connection.is_closed = True
        if connection.transport is not None:
            connection.transport.abort()
        elif connection.timer is not None:
            self._stop_watching(connection)
            with contextlib.suppress(OSError):
                connection.sock.recv(self.header_bytes)  # closing with unread bytes would reset the connection
            connection.sock.close()

    def _out_of_descriptors(self, listener: socket.socket) -> None:
        if self._incomplete or self._connected:
            self._evict(self._oldest())
        self._log_closed()
        self._pause(listener, _NO_DESCRIPTORS_PAUSE_S)

    def _pause(self, listener: socket.socket, seconds: float) -> None:
        self._loop.remove_reader(listener)
        self._loop.call_later(seconds, self._accept_again, listener)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            with contextlib.suppress(OSError, ValueError):
                self._loop.add_reader(listener, self._accept, listener)

    def _log_closed(self) -> None:
        """At most one line a minute: otherwise another user could fill the disk."""
        now = self._loop.time()
        if now - self._logged_at < _LOG_INTERVAL_S:
            return
        self._logged_at = now
        count, self._closed_count = self._closed_count, 0
        _log.warning("closed %d connections that showed no valid token (at most %d wait)", count, UNAUTHENTICATED)


# A server that accepts connections through the door, and leaves on a signal.


_STARTUP_FAILURE = 3


def on_signals(asked: Callable[[int], object]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, asked, number)


class Server(uvicorn.Server):
    """Leaves when it is asked to, and lets us clean up: uvicorn itself dies of the signal."""

    header_bytes = HEADER_BYTES
    header_s = HEADER_S

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(_STARTUP_FAILURE)
        door = Door(self._protocol, self.config.ssl, self.header_bytes, self.header_s)
        # Where connections find it.
        self.server_state.door = door  # type: ignore[attr-defined]
        for listener in sockets or ():
            door.open(listener)
        self.servers = [door]  # type: ignore[list-item]
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def let_go(transport: asyncio.Transport) -> None:
    """Free the buffers of a lost connection. Its protocol is part of a cycle, which the garbage collector finds late; a
    transport of TLS that is closed once more no longer refers to them. uvicorn closes it where there was no error."""
    transport.close()


# A connection is closed when the head of its next request does not come in time.


class Waiting(H11Protocol):
    """One connection of HTTP/1.1."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = self.extended(self.app)
        self._head_timer: asyncio.TimerHandle | None = None

    def extended(self, app: ASGIApp) -> ASGIApp:
        """The application, with what it needs of its connection in the extensions of each scope."""

        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "extensions": {**scope.get("extensions", {}), PROVEN: self.proven}}, receive, send)

        return wrapped

    def proven(self) -> None:
        self.server_state.door.authenticated(self.transport)  # type: ignore[attr-defined]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.head_came()
        super().connection_lost(exc)
        let_go(self.transport)

    def data_received(self, data: bytes) -> None:
        # uvicorn has None here until the first request.
        before: RequestResponseCycle | None = self.cycle
        if self._head_timer is None and before is not None and before.response_complete:
            self._expect_head()
        super().data_received(data)
        if self.cycle is not before:
            self.head_came()

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self.server_state.door.header_s, self._out_of_time)  # type: ignore[attr-defined]

    def _out_of_time(self) -> None:
        self.late(has_begun=bool(self.conn.trailing_data[0]))

    def late(self, *, has_begun: bool) -> None:
        """The head of a request did not come in time, or only a part of it."""
        self.transport.close()

    def head_came(self) -> None:
        """Stop the timer: the head of a request is complete."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
