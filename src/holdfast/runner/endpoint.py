"""The runner's endpoint: a listening socket and its clients.

A client costs a decoder and the bytes that it has not read yet. One that misbehaves, stays silent or does not read is
closed; no other client waits for it.
"""

from __future__ import annotations

import _socket as socket
import errno
import os

from ..core import failpoints, sockets, wire
from ..core.loop import READ, WRITE, Alarm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..core.loop import Loop
    from .terminal.attach import AttachedClient


CLIENTS_MAX = 64
# Unread answers above this end the connection: the client is stuck, and may come back.
_UNREAD_MAX_BYTES = 4 << 20
# A peer that has not sent its greeting or the rest of a frame, or has not read our last answer, for this long is
# closed. Single bytes in between give it no more time.
SILENCE_S = 10.0
_READ_BYTES = 1 << 16
_BACKLOG = 128
_ACCEPTS_A_TURN = 16
# When no descriptor is free, accepting is tried again after this time, then at growing intervals.
_ACCEPT_RETRY_S = 0.1
_ACCEPT_RETRY_MAX_S = 5.0


class Client:
    """One connection: frames in, frames out, never blocking."""

    def __init__(self, endpoint: Endpoint, connection: socket.socket, greeting: dict[str, Any] | None = None) -> None:
        self._endpoint = endpoint
        self._socket = connection
        self._decoder = wire.Decoder()
        self._unsent = bytearray()
        self._closing = False
        self._paused = False
        self._deadline = Alarm(endpoint.loop, self._deadline_passed)
        # Takes the frames of an attached client, and sends more whenever the client has read everything.
        self.attachment: AttachedClient | None = None
        self.greeting = greeting
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

    def pause_reading(self, paused: bool) -> None:
        """Read nothing from it for now. Nothing that it sends is lost."""
        if paused != self._paused and not self.closed:
            self._paused = paused
            self._watch()

    def close_after_sending(self) -> None:
        self._closing = True
        if not self.closed:
            self._deadline.set(SILENCE_S)
        self._flush()

    def close(self) -> None:
        if self.closed:
            return
        self._deadline.cancel()
        self._endpoint.loop.watch(self._socket.fileno(), 0, self._ready)
        self._socket.close()
        self._endpoint.forget(self)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
            if self.attachment is not None and not self._unsent and not self.closed:
                self.attachment.pump()
        if events & READ and not self.closed:
            self._receive()

    def _receive(self) -> None:
        try:
            # Plain recv: the kernel closes descriptors that a peer sends along.
            received = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self.close()
        elif not self._closing:
            self.feed(received)

    def feed(self, received: bytes) -> None:
        bad: wire.BadFrame | None = None
        try:
            frames = self._decoder.feed(received)
        except wire.BadFrame as problem:
            bad, frames = problem, problem.frames
        for message in frames:
            if self.closed or self._closing:
                return
            if self.attachment is not None:
                self._guarded(self.attachment.receive, message)
            elif not isinstance(message, dict):
                self.send(wire.error({}, "bad-request", "a data frame is not expected here"))
            elif self.greeting is None:
                self._greet(message)
            else:
                self._guarded(lambda request: self._endpoint.serve(self, request), message)
        if bad is not None:
            self.refuse("bad-request", f"{bad}; this socket speaks Holdfast's protocol")
        elif frames:
            self._expect_more()
        elif not self._deadline.is_set:
            self._deadline.set(SILENCE_S)

    def _guarded(self, serve: Callable[[Any], None], message: Any) -> None:
        """A bug of ours that one client's frame triggers must not end the session."""
        try:
            serve(message)
        except Exception as problem:  # noqa: BLE001  logged in full, and the command keeps running
            self._endpoint.failed(problem)
            request = message if isinstance(message, dict) else {}
            text = f"the runner failed at this request: {type(problem).__name__}; see runner.log"
            self.send(wire.error(request, "bad-request", text, what=str(problem)))

    def _greet(self, message: dict[str, Any]) -> None:
        if message["type"] != "hello" or not isinstance(message.get("protocol"), int):
            self.refuse("bad-request", "the first frame must be `hello` with a `protocol`")
            return
        author = message.get("author")
        self.greeting = {**message, "author": author[: wire.AUTHOR_CHARACTERS] if isinstance(author, str) else None}

    def refuse(self, code: str, message: str, /, **facts: object) -> None:
        """Say why, and close the connection."""
        self.send(wire.error({}, code, message, **facts))
        self.close_after_sending()

    def _expect_more(self) -> None:
        """Set a deadline while the peer owes us a greeting or the rest of a frame; set none while it only listens."""
        if self.closed or self._closing:
            return
        if self.greeting is None or self._decoder.midway:
            self._deadline.set(SILENCE_S)
        else:
            self._deadline.cancel()

    def _deadline_passed(self) -> None:
        if self._closing:
            self.close()
            return
        owed = "the rest of a frame" if self._decoder.midway else "a greeting"
        self.refuse("timeout", f"{owed} did not come within {SILENCE_S:g} s", what=owed, waited_s=SILENCE_S)

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
        self._watch()

    def _watch(self) -> None:
        events = (0 if self._paused else READ) | (WRITE if self._unsent else 0)
        self._endpoint.loop.watch(self._socket.fileno(), events, self._ready)

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
        failed: Callable[[Exception], None],
    ) -> None:
        self.loop = loop
        self.path = path
        self.serve = serve
        self._hello = hello
        self._gone = gone
        self.failed = failed
        self.clients: list[Client] = []
        self._retry_s = _ACCEPT_RETRY_S
        directory, name = os.path.split(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sockets.bind_unix(self._listener, directory, name)
        self._inode = os.stat(path).st_ino
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        loop.watch(self._listener.fileno(), READ, self._accept)

    def adopt(self, connection: socket.socket, greeting: dict[str, Any] | None = None) -> Client:
        """Make it a client; with `greeting`, one that need not greet, because it brought the start request."""
        client = Client(self, connection, greeting)
        self.clients.append(client)
        return client

    def forget(self, client: Client) -> None:
        if client in self.clients:
            self.clients.remove(client)
            self._gone(client)

    def close(self) -> None:
        """Unlink the path, unless another socket uses it by now."""
        self.loop.watch(self._listener.fileno(), 0, self._accept)
        failpoints.hit("endpoint.unlink")
        try:
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        except OSError:
            pass
        self._listener.close()

    def _accept(self, _events: int) -> None:
        # Several, because above its backlog the kernel refuses callers; and a bounded number, so that clients that left
        # are noticed before more are counted.
        for _ in range(_ACCEPTS_A_TURN):
            try:
                connection = sockets.accept(self._listener)
            except BlockingIOError:
                return
            except OSError as problem:
                if problem.errno in (errno.EMFILE, errno.ENFILE):
                    self._pause_accepting()
                return
            self._retry_s = _ACCEPT_RETRY_S
            self._add_peer(connection)

    def _add_peer(self, connection: socket.socket) -> None:
        if sockets.peer_uid(connection) != os.getuid():
            connection.close()
            return
        client = self.adopt(connection)
        if len(self.clients) > CLIENTS_MAX:
            client.refuse("too-many-clients", f"{CLIENTS_MAX} clients are connected", limit=CLIENTS_MAX)
            return
        client.send(self._hello())

    def _pause_accepting(self) -> None:
        self.loop.watch(self._listener.fileno(), 0, self._accept)
        self.loop.after(self._retry_s, lambda: self.loop.watch(self._listener.fileno(), READ, self._accept))
        self._retry_s = min(2 * self._retry_s, _ACCEPT_RETRY_MAX_S)
