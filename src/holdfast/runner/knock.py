"""One question to a port, without waiting for the answer in the loop: does it take a connection, or what does it answer
to a GET. Done within a bound, one way or the other."""

from __future__ import annotations

import _socket as socket
import errno
import os

from .loop import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from .loop import Loop, Timer

    Done = Callable[[bool, str], None]

# A server that has just come up may make its first visitor wait; longer than this is no answer.
ANSWER_S = 10.0
_HEAD_MAX_BYTES = 16 << 10


class Knock:
    """Calls `done(ok, detail)` once, unless it was cancelled before. `request` None: to be let in is enough. `statuses`
    None: any of 200 to 299."""

    def __init__(
        self,
        loop: Loop,
        address: tuple[str, int],
        done: Done,
        *,
        request: bytes | None = None,
        statuses: list[int] | None = None,
        within_s: float = ANSWER_S,
    ) -> None:
        self._loop = loop
        self._done: Done | None = done
        self.over = False
        self._statuses = statuses
        self._request = request
        self._unsent = request or b""
        self._received = b""
        self._timer: Timer | None = None
        self._socket: socket.socket | None = None
        self.where = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
        try:
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            number = self._socket.connect_ex(address)
        except OSError as problem:
            self._finish(False, f"{self.where}: {problem.strerror}")
            return
        if number not in (0, errno.EINPROGRESS):
            self._finish(False, f"{self.where}: {os.strerror(number)}")
            return
        self._timer = loop.after(within_s, lambda: self._finish(False, f"{self.where}: no answer in {within_s:g} s"))
        loop.watch(self._socket.fileno(), WRITE, self._connected)

    def cancel(self) -> None:
        self._done = None
        self._close()

    def _connected(self, _events: int) -> None:
        assert self._socket is not None
        number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self._finish(False, f"{self.where}: {os.strerror(number)}")
        elif self._request is None:
            self._finish(True, f"{self.where} takes connections")
        else:
            self._loop.watch(self._socket.fileno(), WRITE, self._send)

    def _send(self, _events: int) -> None:
        assert self._socket is not None
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError as problem:
            self._finish(False, f"{self.where}: {problem.strerror}")
            return
        if not self._unsent:
            self._loop.watch(self._socket.fileno(), READ, self._receive)

    def _receive(self, _events: int) -> None:
        assert self._socket is not None
        try:
            piece = self._socket.recv(_HEAD_MAX_BYTES)
        except BlockingIOError:
            return
        except OSError as problem:
            self._finish(False, f"{self.where}: {problem.strerror}")
            return
        self._received += piece
        status = status_of(self._received)
        if status == 0 or (status is None and (not piece or len(self._received) > _HEAD_MAX_BYTES)):
            self._finish(False, f"{self.where} does not speak HTTP")
        elif status is not None:
            good = 200 <= status < 300 if self._statuses is None else status in self._statuses
            self._finish(good, f"{self.where} answers {status}")

    def _finish(self, ok: bool, detail: str) -> None:
        done, self._done = self._done, None
        self._close()
        if done is not None:
            done(ok, detail)

    def _close(self) -> None:
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket is not None:
            self._loop.watch(self._socket.fileno(), 0, self._connected)
            self._socket.close()
            self._socket = None


def get(host: str, target: str) -> bytes:
    """`host` as the URL has it, with its port."""
    head = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: holdfast\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    return head.encode("ascii")


def status_of(received: bytes) -> int | None:
    """The status of the answer that these bytes begin. None: not known yet; 0: it is none. What only says that the
    answer takes time (1xx) is passed over."""
    while True:
        line, end, rest = received.partition(b"\r\n")
        if not end:
            return None if b"HTTP/1.".startswith(line[:7]) or line.startswith(b"HTTP/1.") else 0
        word, _, rest_of_line = line.partition(b" ")
        number = rest_of_line[:3]
        if not word.startswith(b"HTTP/1.") or len(number) != 3 or not number.isdigit():
            return 0
        if number[:1] != b"1":
            return int(number)
        _, end, received = rest.partition(b"\r\n\r\n") if not rest.startswith(b"\r\n") else (b"", b"\r\n", rest[2:])
        if not end:
            return None
