"""Where a server lets connections in. Those that have not shown a valid token yet have a small share of their own:
when it is full, the oldest of them goes, so that strangers can neither use up the descriptors nor keep the owner out.

uvicorn accepts by itself and sees a connection only after its TLS handshake; half of one would be nobody's to close.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

# How many may wait. One that came just now may still be speaking: beyond these only old ones go, beyond those any.
WAITING = 128
WAITING_MOST = 256
_OLD_S = 1.0
HANDSHAKE_S = 10.0
# So long the other side may take to say goodbye; until then its buffers stay.
_BYE_S = 0.5
# More than this is handed on, whole or not: whoever reads it says that it is too much.
_HEAD_BYTES = 16 * 1024
# A TLS record: its kind, the version, its length.
_RECORD_BYTES, _HANDSHAKE = 5, b"\x16"
# Between two looks at the listener others have their turn.
_AT_ONCE = 64
# The system has no descriptor for another connection.
_PAUSE_S = 0.1
_TOLD_EVERY_S = 60.0

_log = logging.getLogger("holdfast.serving")


class _Guest:
    """A connection that was accepted. One that has not said enough yet costs its descriptor and no more."""

    __slots__ = ("came", "since", "sock", "task", "timer", "transport")

    def __init__(self, sock: socket.socket, since: float) -> None:
        self.sock = sock
        self.since = since
        # How many bytes have come, as long as that is not enough.
        self.came = 0
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        # Before the TLS handshake is over there is none.
        self.transport: asyncio.BaseTransport | None = None


class Door:
    """`silent_s` is how long one may say nothing."""

    def __init__(
        self, protocol: Callable[[], asyncio.Protocol], context: ssl.SSLContext | None, silent_s: float
    ) -> None:
        self._protocol = protocol
        self._context = context
        self._silent_s = silent_s
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        # In the order in which they came.
        self._guests: dict[_Guest, None] = {}
        self._proven: WeakSet[asyncio.BaseTransport] = WeakSet()
        self._sent_away = 0
        self._told_at = float("-inf")

    def open(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listeners.append(listener)
        self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Let nobody in any more. Who is in the middle of a handshake is sent away."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        for guest in [each for each in self._guests if each.transport is None]:
            self._send_away(guest)

    async def wait_closed(self) -> None:
        """As a server of asyncio has it; there is nothing to wait for."""

    def proven(self, transport: asyncio.BaseTransport) -> None:
        """This one has shown a valid token."""
        self._proven.add(transport)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._out_of_descriptors(listener)
                return
            sock.setblocking(False)
            self._make_room()
            guest = _Guest(sock, self._loop.time())
            self._guests[guest] = None
            if sock.family == socket.AF_UNIX:
                # The kernel says whose it is; and it knows no mark for how much has to come before it wakes us.
                guest.task = self._loop.create_task(self._connect(guest))
                continue
            guest.timer = self._loop.call_later(self._silent_s, self._hang_up, guest)
            self._loop.add_reader(sock, self._spoke, guest)

    def _spoke(self, guest: _Guest) -> None:
        """Handed on with the head of a request, or the first record of a TLS handshake. It is looked at where the
        kernel keeps it, and the kernel wakes us when there is more."""
        sock = guest.sock
        try:
            head = sock.recv(_HEAD_BYTES, socket.MSG_PEEK)
            if self._context is not None and head[:1] != _HANDSHAKE:
                self._hang_up(guest)  # no TLS: asyncio would take a quarter of a megabyte to find that out
                return
            missing = bool(head) and len(head) < self._needed(head)
            if missing and len(head) <= guest.came:
                self._hang_up(guest)  # it woke us to say that nothing more comes
                return
            guest.came = len(head)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, self._needed(head) if missing else 1)
        except BlockingIOError:
            return
        except OSError:
            self._hang_up(guest)
            return
        if missing:
            return
        self._listen_no_more(guest)
        guest.task = self._loop.create_task(self._connect(guest))

    def _needed(self, head: bytes) -> int:
        """How many bytes there must be before it is worth looking at them again."""
        if self._context is None:
            whole = b"\r\n\r\n" in head or b"\n\n" in head
            return 0 if whole else min(len(head) + 1, _HEAD_BYTES)
        length = int.from_bytes(head[3:5], "big") if len(head) >= _RECORD_BYTES else 0
        return min(_RECORD_BYTES + length, _HEAD_BYTES)

    def _listen_no_more(self, guest: _Guest) -> None:
        if guest.timer is not None:
            guest.timer.cancel()
            guest.timer = None
            self._loop.remove_reader(guest.sock)

    async def _connect(self, guest: _Guest) -> None:
        bounds = {} if self._context is None else {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": _BYE_S}
        try:
            guest.transport, _ = await self._loop.connect_accepted_socket(
                self._protocol, guest.sock, ssl=self._context, **bounds
            )
        except (OSError, asyncio.CancelledError):
            # It broke off, took too long, or was sent away.
            self._guests.pop(guest, None)
            guest.sock.close()

    def _make_room(self) -> None:
        if len(self._guests) < WAITING:
            return
        for guest in list(self._guests):
            transport = guest.transport
            if transport is not None and (transport.is_closing() or transport in self._proven):
                del self._guests[guest]
        now = self._loop.time()
        for guest in list(self._guests):
            waiting = len(self._guests)
            if waiting < WAITING or (waiting < WAITING_MOST and now - guest.since < _OLD_S):
                break
            self._send_away(guest)
            self._tell()

    def _send_away(self, guest: _Guest) -> None:
        self._sent_away += 1
        self._hang_up(guest)

    def _hang_up(self, guest: _Guest) -> None:
        self._guests.pop(guest, None)
        self._listen_no_more(guest)
        if isinstance(guest.transport, asyncio.WriteTransport):
            guest.transport.abort()
        elif guest.task is not None:
            guest.task.cancel()
        else:
            with contextlib.suppress(OSError):
                guest.sock.recv(_HEAD_BYTES)  # closed with something unread, it would look broken to the other side
            guest.sock.close()

    def _out_of_descriptors(self, listener: socket.socket) -> None:
        oldest = next(iter(self._guests), None)
        if oldest is not None:
            self._send_away(oldest)
        self._tell()
        self._loop.remove_reader(listener)
        self._loop.call_later(_PAUSE_S, self._look_again, listener)

    def _look_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            with contextlib.suppress(OSError, ValueError):
                self._loop.add_reader(listener, self._accept, listener)

    def _tell(self) -> None:
        """Now and then: whoever can fill our share could fill the disk too."""
        now = self._loop.time()
        if now - self._told_at < _TOLD_EVERY_S:
            return
        self._told_at = now
        count, self._sent_away = self._sent_away, 0
        _log.warning("closed %d connections that showed no valid token (at most %d wait)", count, WAITING)
