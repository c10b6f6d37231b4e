"""The runner's door: a listening socket and the clients that came through it.

A client costs a decoder and what it has not read yet. One that misbehaves, stays silent or does not read is
closed; nobody else waits for it.
"""

from __future__ import annotations

import errno
import os
import socket

from . import points, sockets, wire
from .loop import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .loop import Loop, Timer

CLIENTS_MAX = 64
# Unread answers above this end the connection: the client is stuck, and may come back.
_UNREAD_MAX_BYTES = 4 << 20
# A peer that has said nothing, or half a frame, for this long is not one of ours.
_SILENCE_S = 10.0
_READ_BYTES = 1 << 16
_BACKLOG = 128
# With every descriptor taken, accepting is tried again after this.
_ACCEPT_RETRY_S = 0.2


class Client:
    """One connection: frames in, frames out, never blocking."""

    def __init__(self, endpoint: Endpoint, connection: socket.socket) -> None:
        self._endpoint = endpoint
        self._socket = connection
        self._decoder = wire.Decoder()
        self._unsent = bytearray()
        self._closing = False
        self._deadline: Timer | None = None
        self.greeting: dict[str, Any] | None = None
        connection.setblocking(False)
        endpoint.loop.watch(connection.fileno(), READ, self._ready)
        self._expect_more()

    @property
    def author(self) -> str | None:
        return None if self.greeting is None else self.greeting.get("author")

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def send(self, message: dict[str, Any]) -> None:
        self.send_bytes(wire.control(message))

    def send_bytes(self, payload: bytes) -> None:
        if self.closed:
            return
        self._unsent += payload
        self._flush()

    def close_after_sending(self) -> None:
        self._closing = True
        self._flush()

    def close(self) -> None:
        if self.closed:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._endpoint.loop.watch(self._socket.fileno(), 0, self._ready)
        self._socket.close()
        self._endpoint.forget(self)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if events & READ and not self.closed:
            self._receive()

    def _receive(self) -> None:
        try:
            # Plain recv: the kernel closes descriptors that somebody sends along.
            received = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self.close()
            return
        self.feed(received)

    def feed(self, received: bytes) -> None:
        try:
            frames = self._decoder.feed(received)
        except wire.BadFrame as problem:
            self.send(wire.error({}, "bad-request", f"{problem}; this socket speaks Holdfast's protocol"))
            self.close_after_sending()
            return
        for message in frames:
            if self.closed or self._closing:
                return
            if not isinstance(message, dict):
                self.send(wire.error({}, "bad-request", "a data frame is not expected here"))
            elif self.greeting is None:
                self._greet(message)
            else:
                self._endpoint.serve(self, message)
        self._expect_more()

    def _greet(self, message: dict[str, Any]) -> None:
        if message["type"] != "hello" or not isinstance(message.get("protocol"), int):
            self.send(wire.error(message, "bad-request", "the first frame must be `hello` with a `protocol`"))
            self.close_after_sending()
            return
        self.greeting = message

    def _expect_more(self) -> None:
        """A deadline while the peer owes us a greeting or the rest of a frame; none while it just listens."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if not self.closed and (self.greeting is None or self._decoder.midway):
            self._deadline = self._endpoint.loop.after(_SILENCE_S, self.close)

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            if len(self._unsent) > _UNREAD_MAX_BYTES:
                self.close()
                return
        except OSError:
            self.close()
            return
        if self._closing and not self._unsent:
            self.close()
            return
        self._endpoint.loop.watch(self._socket.fileno(), READ | WRITE if self._unsent else READ, self._ready)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent) and not self.closed


class Endpoint:
    """Accepts peers of our own uid and hands their requests to `serve`."""

    def __init__(
        self,
        loop: Loop,
        path: str,
        *,
        hello: Callable[[], dict[str, Any]],
        serve: Callable[[Client, dict[str, Any]], None],
        gone: Callable[[Client], None],
    ) -> None:
        self.loop = loop
        self.path = path
        self.serve = serve
        self._hello = hello
        self._gone = gone
        self.clients: list[Client] = []
        directory, name = os.path.split(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sockets.bind_unix(self._listener, directory, name)
        self._inode = os.stat(path).st_ino
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        loop.watch(self._listener.fileno(), READ, self._accept)

    def adopt(self, connection: socket.socket) -> Client:
        """The connection that brought the start request goes on as an ordinary client."""
        client = Client(self, connection)
        self.clients.append(client)
        return client

    def forget(self, client: Client) -> None:
        if client in self.clients:
            self.clients.remove(client)
            self._gone(client)

    def close(self) -> None:
        """Leave the path alone when somebody else's socket stands there by now."""
        self.loop.watch(self._listener.fileno(), 0, self._accept)
        if points.ACTIVE:
            points.hit("endpoint.unlink")
        try:
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        except OSError:
            pass
        self._listener.close()

    def _accept(self, _events: int) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as problem:
            if problem.errno in (errno.EMFILE, errno.ENFILE):
                self._pause_accepting()
            return
        if sockets.peer_uid(connection) != os.getuid():
            connection.close()
            return
        client = self.adopt(connection)
        if len(self.clients) > CLIENTS_MAX:
            client.send(wire.error({}, "too-many-clients", f"{CLIENTS_MAX} clients are connected", limit=CLIENTS_MAX))
            client.close_after_sending()
            return
        client.send(self._hello())

    def _pause_accepting(self) -> None:
        self.loop.watch(self._listener.fileno(), 0, self._accept)
        self.loop.after(_ACCEPT_RETRY_S, lambda: self.loop.watch(self._listener.fileno(), READ, self._accept))
