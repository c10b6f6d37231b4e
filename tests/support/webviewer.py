"""A client over WebSocket that shows what it is told. It reads both dialects by itself, as somebody would who has only
the contract."""

from __future__ import annotations

import base64
import json
import socket
import struct
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from holdfast.terminal.grid import Grid
from support.waiting import BOUND_S, TooLate

if TYPE_CHECKING:
    from collections.abc import Callable

BINARY, JSON = "holdfast.v1", "holdfast.v1.json"
_TICK_S = 0.05
_NAMES = {"mode": "mode_changed", "size": "resized", "exit": "session_ended"}


class WebViewer:
    """`told` has every message but `data`, in the words of the JSON dialect. `live` is what came from the last `init`
    on; an offset that is missing there, or that comes twice, fails at once."""

    def __init__(
        self,
        address: str,
        token: str,
        session: str,
        dialect: str = JSON,
        *,
        reads_ahead: bool = True,
        draws: bool = True,
        base: str = "/v1",
        **query: object,
    ) -> None:
        self.address = address
        self._path = f"{base}/sessions/{session}/attach"
        self._token = token
        self._dialect = dialect
        self._query = query
        self._reads_ahead = reads_ahead
        self._draws = draws
        self.told: list[dict[str, Any]] = []
        self.live = bytearray()
        self.live_from = self.at = self._acked = 0
        self.grid: Grid | None = None
        self.closed: tuple[int, str] | None = None
        self._number = 0
        self._joined = ExitStack()
        self.join(**query)

    def join(self, **query: object) -> None:
        spelled = {name.rstrip("_"): str(value) for name, value in {**self._query, **query}.items()}
        self._socket = self._joined.enter_context(
            connect(
                f"ws://{self.address}{self._path}?{urlencode(spelled)}",
                subprotocols=[Subprotocol(self._dialect)],
                additional_headers={"Authorization": f"Bearer {self._token}"},
                max_size=4 << 20,
                # It takes what comes and shows it later: what holds the server back is that nothing is acknowledged.
                # Or it leaves what comes in the socket.
                max_queue=None if self._reads_ahead else 1,
            )
        )
        self.closed = None

    def leave(self) -> None:
        """Without a word."""
        self._joined.close()

    def vanish(self) -> None:
        """As a machine does that is switched off, and on again."""
        there = self._socket.socket
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        there.shutdown(socket.SHUT_RD)  # a reader in another thread would keep it open
        self._socket.recv_events_thread.join()
        there.close()

    @property
    def text(self) -> str:
        return "" if self.grid is None else "\n".join(row.text.rstrip() for row in self.grid.rows()).rstrip()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.told if message["type"] == kind]

    # In.

    def say(self, type: str, **fields: Any) -> None:
        message = json.dumps({"type": type, **fields}, ensure_ascii=False)
        self._socket.send(message if self._dialect == JSON else b"\1" + message.encode())

    def type(self, data: bytes) -> int:
        """The number that `written` answers."""
        self._number += 1
        if self._dialect == JSON:
            self.say("input", id=self._number, b64=base64.b64encode(data).decode())
        else:
            self._socket.send(b"\2" + struct.pack(">Q", self._number) + data)
        return self._number

    def send_raw(self, message: str | bytes) -> None:
        self._socket.send(message)

    # Out.

    def take(self, timeout: float = 0, *, ack: bool = True) -> bool:
        """What comes next; whether anything came."""
        try:
            received = self._socket.recv(timeout)
        except TimeoutError:
            return False
        except ConnectionClosed as end:
            frame = end.rcvd
            self.closed = (1006, "") if frame is None else (frame.code, frame.reason)
            return False
        self._show(self._decoded(received))
        if ack and self.at > self._acked + 100_000:
            with suppress(ConnectionClosed):  # what it said before is still to be taken
                self.ack()
        return True

    def ack(self) -> None:
        self._acked = self.at
        self.say("ack", offset=self.at)

    def pump(self) -> None:
        """All that has come by now."""
        while self.take():
            pass

    def until(self, predicate: Callable[[], object], what: str, bound: float = BOUND_S) -> None:
        deadline = time.monotonic() + bound
        while not predicate():
            left = deadline - time.monotonic()
            if left <= 0 or self.closed is not None:
                shown = f"it shows {self.text[-500:]!r}, was told {self.told[-3:]}, closed {self.closed}"
                raise TooLate(f"{what} ({shown})", bound)
            # The predicate may be about more than this viewer: ask it again even when nothing comes.
            self.take(min(left, _TICK_S))

    def begun(self) -> dict[str, Any]:
        self.until(lambda: self.of("init"), "the beginning")
        return self.of("init")[-1]

    def _decoded(self, received: str | bytes) -> dict[str, Any]:
        if self._dialect == JSON:
            assert isinstance(received, str), received
            message: dict[str, Any] = json.loads(received)
            if message["type"] == "data":
                message["data"] = base64.b64decode(message["data"], validate=True)
        else:
            assert isinstance(received, bytes), received
            if received[0] == 2:
                return {"type": "data", "offset": struct.unpack_from(">Q", received, 1)[0], "data": received[9:]}
            message = json.loads(received[1:])
            message["type"] = _NAMES.get(message["type"], message["type"])
            if message["type"] == "session_ended":
                message["exit_code"] = message.pop("code")
        if message["type"] == "init" and message["screen"] is not None:
            message["screen"] = base64.b64decode(message["screen"], validate=True)
        return message

    def _show(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "data":
            assert message["offset"] == self.at, f"byte {message['offset']} came where {self.at} was due"
            assert 0 < len(message["data"]) <= 64 << 10
            self.at += len(message["data"])
            if self._draws:
                self.live += message["data"]
                if self.grid is not None:
                    self.grid.feed(message["data"])
            return
        self.told.append(message)
        if kind == "init":
            self._begin(message)
        elif kind == "resized" and self.grid is not None:
            self.grid.resize(message["rows"], message["cols"])

    def _begin(self, init: dict[str, Any]) -> None:
        self._acked = init["at"]
        if init["resumed"]:
            assert init["screen"] is None
            assert init["at"] == self.at or self.grid is None
        else:
            self.live, self.live_from = bytearray(), init["at"]
            self.grid = None
        self.at = init["at"]
        if self.grid is None and init["size"] is not None:
            self.grid = Grid(*init["size"])
            self.grid.feed(init["screen"] or b"")
