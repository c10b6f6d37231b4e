"""B16: many viewers of one session over WebSocket."""

from __future__ import annotations

import base64
import json
import os
import selectors
import socket
import subprocess
import sys
import time

from holdfast.sessions.api import Session

from .measure import Spread, interleaved, ratio
from .place import place
from .report import Against, Row

_VIEWERS = 50
_BYTES = 4 << 20
_ROUNDS = 7
_ACK_BYTES = 128 << 10
_READ_BYTES = 256 << 10
_BOUND_S = 120.0

# Sends the same bytes in messages of the same size to each client that asks, and reads what they send.
_ECHO = """
import asyncio, socket, sys
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute

PIECE = bytes(9) + bytes(64 << 10)

async def echo(viewer):
    await viewer.accept("holdfast.v1")
    await viewer.receive()
    async def read():
        while (await viewer.receive())["type"] != "websocket.disconnect":
            pass
    reading = asyncio.ensure_future(read())
    for _ in range(int(sys.argv[1]) >> 16):
        await viewer.send_bytes(PIECE)
    await reading

listener = socket.create_server(("127.0.0.1", 0), backlog=512)
print(listener.getsockname()[1], flush=True)
app = Starlette(routes=[WebSocketRoute("/{path:path}", echo)])
config = uvicorn.Config(app, ws="websockets-sansio", ws_per_message_deflate=False, lifespan="off", log_level="error")
uvicorn.Server(config).run([listener])
"""
# Prints in raw mode, so that the log has exactly what was written, once a line was typed.
_PRINTER = f"""
import os, tty
tty.setraw(0)
os.write(1, b"ready")
os.read(0, 1)
data = (b"a line of a chatty program, of the length that such lines have\\n" * 1024)[: 1 << 16]
left = {_BYTES}
while left:
    left -= os.write(1, data[:left])
os.read(0, 1)
"""


class _Viewer:
    """The cheapest client there is: it counts bytes of output, and acknowledges them."""

    def __init__(self, port: int, path: str, token: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), _BOUND_S)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            *(f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: Upgrade", "Upgrade: websocket"),
            *("Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Protocol: holdfast.v1"),
            *(f"Authorization: Bearer {token}", "", ""),
        ]
        self.socket.sendall("\r\n".join(lines).encode())
        self._buffer = bytearray()
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += self.socket.recv(1)
        if b" 101 " not in self._buffer:
            raise AssertionError(bytes(self._buffer))
        self._buffer.clear()
        self._left = 0
        self.got = self._acked = 0

    def begun(self) -> None:
        """Wait for the first message."""
        while not self._buffer:
            self._buffer += self.socket.recv(_READ_BYTES)

    def say(self, message: dict[str, object]) -> None:
        text = b"\1" + json.dumps(message).encode()
        self.socket.sendall(bytes([0x82, 0x80 | len(text), 0, 0, 0, 0]) + text)

    def take(self, base: int) -> None:
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise AssertionError(f"a viewer was disconnected after {self.got} bytes")
        buffer = self._buffer
        buffer += data
        at = 0
        while True:
            if self._left:
                step = min(self._left, len(buffer) - at)
                self._left -= step
                self.got += step
                at += step
            if len(buffer) - at < 14:
                break
            size, head = buffer[at + 1], 2
            if size == 126:
                size, head = int.from_bytes(buffer[at + 2 : at + 4], "big"), 4
            elif size == 127:
                size, head = int.from_bytes(buffer[at + 2 : at + 10], "big"), 10
            if buffer[at] == 0x82 and size > 9 and (buffer[at + head] == 2 or base < 0):
                if len(buffer) - at < head + 9:
                    break
                # Output: a byte, the offset, and the bytes.
                at += head + 9
                self._left = size - 9
            elif len(buffer) - at >= head + size:
                at += head + size
            else:
                break
        del buffer[:at]
        if self.got - self._acked >= _ACK_BYTES:
            self._acked = self.got
            self.say({"type": "ack", "offset": max(base, 0) + self.got})


def _delivered(viewers: list[_Viewer], base: int) -> float:
    """MB/s in total until each has everything."""
    waiting = selectors.DefaultSelector()
    for viewer in viewers:
        waiting.register(viewer.socket, selectors.EVENT_READ, viewer)
    left = len(viewers)
    began = time.perf_counter()
    while left:
        for key, _ in waiting.select(_BOUND_S):
            key.data.take(base)
            if key.data.got >= _BYTES:
                waiting.unregister(key.fileobj)
                left -= 1
    took = time.perf_counter() - began
    for viewer in viewers:
        viewer.socket.close()
    return len(viewers) * _BYTES / took / 1e6


def viewers() -> list[Row]:
    with place() as here, here.open() as hf:
        echo = subprocess.Popen([sys.executable, "-c", _ECHO, str(_BYTES)], stdout=subprocess.PIPE)
        words = [os.path.join(os.path.dirname(sys.executable), "hold"), "serve", "--port", "0"]
        server = subprocess.Popen(words, stdout=subprocess.PIPE)
        try:
            assert echo.stdout is not None
            assert server.stdout is not None
            echo_port = int(echo.stdout.readline())
            port = int(server.stdout.readline().split()[0].decode().partition("/#")[0].rpartition(":")[2])
            with open(os.path.join(here.environ["HOLDFAST_HOME"], "server", "token")) as file:
                token = f"hf_home_{file.read().strip()}"

            def reference() -> float:
                found = [_Viewer(echo_port, "/", "") for _ in range(_VIEWERS)]
                for viewer in found:
                    viewer.say({"type": "go"})
                return _delivered(found, -1)

            def ours(role: str) -> float:
                session = hf.start([sys.executable, "-c", _PRINTER], tty=True)
                session.wait(match="ready", timeout=_BOUND_S)
                path = f"/v1/sessions/{session.id}/attach?from=now&lag=exact&role={role}"
                found = [_Viewer(port, path, token) for _ in range(_VIEWERS)]
                for viewer in found:
                    viewer.begun()
                session.send("g")
                try:
                    return _delivered(found, len("ready"))
                finally:
                    _end(session)

            sides = {"reference": reference, "observe": lambda: ours("observe"), "control": lambda: ours("control")}
            figures = interleaved(sides, _ROUNDS)
        finally:
            for program in (server, echo):
                program.terminate()
                program.wait()
                assert program.stdout is not None
                program.stdout.close()
        rows = []
        for role, goal in (("observe", 0.5), ("control", None)):
            against = [
                Against("an echo server of the same stack", ratio(figures[role], figures["reference"]), at_least=goal)
            ]
            speed = Spread.of(figures[role]).median
            what = f"{_VIEWERS} WebSocket viewers of one session ({role})"
            rows.append(Row("B16", what, f"{speed:.0f} MB/s in total", against))
        return rows


def _end(session: Session) -> None:
    session.stop(grace=0)
    session.wait(timeout=_BOUND_S)
    session.remove()


ROWS = {"B16": viewers}
