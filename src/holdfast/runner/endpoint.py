"""The runner's door: a listening socket and the clients that came through it.

A client costs a decoder and what it has not read yet. One that misbehaves, stays silent or does not read is
closed; nobody else waits for it.
"""

from __future__ import annotations

import _socket as socket
import errno
import os

from . import points, sockets, wire
from .loop import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .attach import Attachment
    from .loop import Loop, Timer

CLIENTS_MAX = 64
# Unread answers above this end the connection: the client is stuck, and may come back.
_UNREAD_MAX_BYTES = 4 << 20
# A peer that owes us its greeting, the rest of a frame, or the reading of our last word for this long is not one of
# ours. Single bytes in between do not buy it more time.
SILENCE_S = 10.0
_READ_BYTES = 1 << 16
_BACKLOG = 128
_ACCEPTS_A_TURN = 16
# With every descriptor taken, accepting is tried again after this, and ever later while that lasts.
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
        self._held = False
        self._deadline: Timer | None = None
        # What an attached client's frames go to, and who has more for it whenever it has read all.
        self.stream: Attachment | None = None
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

    def hold(self, held: bool) -> None:
        """Read nothing more from it for now: it waits, and nothing of what it sends is lost."""
        if held != self._held and not self.closed:
            self._held = held
            self._watch()

    def close_after_sending(self) -> None:
        self._closing = True
        self._wait_for_peer(self.close)
        self._flush()

    def close(self) -> None:
        if self.closed:
            return
        self._wait_no_more()
        self._endpoint.loop.watch(self._socket.fileno(), 0, self._ready)
        self._socket.close()
        self._endpoint.forget(self)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
            if self.stream is not None and not self._unsent and not self.closed:
                self.stream.pump()
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
            if self.stream is not None:
                self._guarded(self.stream.receive, message)
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
        elif self._deadline is None:
            self._wait_for_peer(self._out_of_patience)

    def _guarded(self, serve: Callable[[Any], None], message: Any) -> None:
        """A bug of ours that one client's frame brings out must not end the session."""
        try:
            serve(message)
        except Exception as problem:  # noqa: BLE001  told in full, and the command goes on
            self._endpoint.failed(problem)
            request = message if isinstance(message, dict) else {}
            text = f"the runner failed at this request: {type(problem).__name__}; its log says where"
            self.send(wire.error(request, "bad-request", text, what=str(problem)))

    def _greet(self, message: dict[str, Any]) -> None:
        if message["type"] != "hello" or not isinstance(message.get("protocol"), int):
            self.refuse("bad-request", "the first frame must be `hello` with a `protocol`")
            return
        author = message.get("author")
        self.greeting = {**message, "author": author[: wire.AUTHOR_CHARACTERS] if isinstance(author, str) else None}

    def refuse(self, code: str, message: str, /, **facts: object) -> None:
        """Say why, and have nothing more to do with this peer."""
        self.send(wire.error({}, code, message, **facts))
        self.close_after_sending()

    def _expect_more(self) -> None:
        """A deadline while the peer owes us a greeting or the rest of a frame; none while it just listens."""
        self._wait_no_more()
        if not self.closed and not self._closing and (self.greeting is None or self._decoder.midway):
            self._wait_for_peer(self._out_of_patience)

    def _wait_for_peer(self, then: Callable[[], None]) -> None:
        self._wait_no_more()
        if not self.closed:
            self._deadline = self._endpoint.loop.after(SILENCE_S, then)

    def _wait_no_more(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _out_of_patience(self) -> None:
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
        events = (0 if self._held else READ) | (WRITE if self._unsent else 0)
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
        """Make it a client; with `greeting`, one that need not greet: it brought the start request."""
        client = Client(self, connection, greeting)
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
        # Many, for above the backlog the kernel turns callers away at once; but not for ever: one that comes and goes
        # faster than we accept must be seen leaving before it counts twice.
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
            self._let_in(connection)

    def _let_in(self, connection: socket.socket) -> None:
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
