"""A client of a runner or launcher by hand: any bytes, at any speed, without the library's manners."""

from __future__ import annotations

import socket
import time
from typing import Any

from holdfast.core import sockets, wire
from support.waiting import BOUND_S, TooLate, is_readable

HELLO = {"type": "hello", "protocol": 1, "version": "0", "features": [], "kind": "test", "author": "test:peer"}

Frame = dict[str, Any] | tuple[int, bytes]


class Peer:
    """One connection. Reads are bounded; `None` is the end of the conversation."""

    def __init__(self, path: str, *, greet: bool = True) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Blocking, so that a full backlog is waited for.
            sockets.connect_unix(self.sock, path)
        except OSError:
            self.sock.close()
            raise
        self.sock.settimeout(BOUND_S)
        self._decoder = wire.Decoder(wire.START_MAX_BYTES)
        self._frames: list[Frame] = []
        self._serial = 0
        if greet:
            self.send(wire.control(HELLO))

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def send(self, data: bytes) -> bool:
        """False when the other side has hung up."""
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def frame(self, bound: float = BOUND_S) -> Frame | None:
        """The next frame; None when the other side has hung up."""
        deadline = time.monotonic() + bound
        while not self._frames:
            if not is_readable(self.sock.fileno(), deadline - time.monotonic()):
                raise TooLate("a frame of the other side", bound)
            try:
                received = self.sock.recv(1 << 18)
            except ConnectionResetError:
                received = b""
            if not received:
                return None
            self._frames += self._decoder.feed(received)
        return self._frames.pop(0)

    def message(self, bound: float = BOUND_S) -> dict[str, Any]:
        frame = self.frame(bound)
        assert isinstance(frame, dict), frame
        return frame

    def hello(self) -> dict[str, Any]:
        found = self.message()
        assert found["type"] == "hello", found
        return found

    def ask(self, type: str, **fields: Any) -> dict[str, Any]:
        """The reply, or the error, to this request; what comes before it is passed over."""
        return self.answer(self.ask_later(type, **fields))

    def ask_later(self, type: str, **fields: Any) -> int:
        """Send a request whose answer is not waited for here: its number, for `answer`."""
        self._serial += 1
        assert self.send(wire.control({"type": type, "id": self._serial, **fields}))
        return self._serial

    def answer(self, number: int, bound: float = BOUND_S) -> dict[str, Any]:
        while True:
            frame = self.frame(bound)
            assert frame is not None, f"hung up on request {number}"
            if isinstance(frame, dict) and frame.get("id") == number and frame["type"] in ("reply", "error"):
                return frame

    def rest(self, bound: float = BOUND_S) -> list[Frame]:
        """Everything until the other side hangs up."""
        found: list[Frame] = []
        while (frame := self.frame(bound)) is not None:
            found.append(frame)
        return found


def is_alive(path: str) -> bool:
    """Whether this endpoint greets and answers a caller right now."""
    with Peer(path) as peer:
        peer.hello()
        return bool(peer.ask("ping")["type"] == "reply")


def memory_kb(pid: int, field: str = "VmRSS") -> int:
    """Resident memory of a process; `VmHWM` is the most it ever had."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field + ":"))
