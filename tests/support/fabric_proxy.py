"""A proxy before a NATS server: sees every message, and cuts, stalls, delays, drops or changes what it is told to."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.world import World


class Message(NamedTuple):
    """One message as the server got it from a machine (`is_sent`) or gave it to one."""

    is_sent: bool
    subject: str
    reply: str
    payload: bytes

    @property
    def exchange(self) -> str:
        return self.subject.rpartition(".")[2]

    @property
    def kind(self) -> int:
        return self.payload[0] if self.payload else 0


class FabricProxy:
    """`change` is asked for each message: the payload to hand on, or None to drop it. It may block, which delays what
    comes behind it. `line` may change the first line of the server, which says what it is."""

    def __init__(self, world: World, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.messages: list[Message] = []
        self.raw = bytearray()
        self.change: Callable[[Message], bytes | None] = lambda message: message.payload
        self.line: Callable[[bytes], bytes] = lambda line: line
        self._flowing = threading.Event()
        self._flowing.set()
        self._sockets: set[socket.socket] = set()
        self._forgotten: set[socket.socket] = set()
        self.connections = 0
        self._receives_bytes = 0
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._run(self._accept)
        world.closing.callback(self.close)

    def carry(self, *files: Path) -> None:
        """Have the machine with this record go through here."""
        for path in files:
            move(path, url=f"nats://127.0.0.1:{self.port}")

    def cut(self) -> None:
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """From now on nothing passes over the connections that there are, and neither end is told."""
        self._forgotten |= self._sockets

    def stall(self) -> None:
        self._flowing.clear()

    def takes_little(self) -> None:
        """Of what the server sends while this stalls, little fits into the buffers here."""
        self._receives_bytes = 4096

    def flow(self) -> None:
        self._flowing.set()

    def close(self) -> None:
        self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.flow()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _run(self, work: Callable[..., None], *values: object) -> None:
        thread = threading.Thread(target=work, args=values, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket()
            if self._receives_bytes:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receives_bytes)
            try:
                server.connect(("127.0.0.1", self._to))
            except OSError:
                server.close()
                client.close()
                continue
            self.connections += 1
            self._sockets |= {client, server}
            ends = [client, server]
            self._run(self._pump, client, server, True, ends)
            self._run(self._pump, server, client, False, ends)

    def _pump(self, source: socket.socket, sink: socket.socket, is_sent: bool, ends: list[socket.socket]) -> None:
        with suppress(OSError, ValueError, IndexError), source.makefile("rb") as file:
            while line := file.readline():
                words = line.split()
                if words[0] in (b"PUB", b"HPUB", b"MSG", b"HMSG"):
                    unit = self._message(is_sent, words, line, file.read(int(words[-1]) + 2))
                else:
                    unit = self.line(line) if words[0] == b"INFO" else line
                self._flowing.wait()
                if unit and source not in self._forgotten:
                    sink.sendall(unit)
        for each in ends:
            with suppress(OSError):
                if source not in self._forgotten or self._is_closed:
                    each.shutdown(socket.SHUT_RDWR)
        # The second of the two closes.
        if len(ends) == 2 and self._forget(ends):
            for each in ends:
                each.close()

    def _forget(self, ends: list[socket.socket]) -> bool:
        is_first = ends[0] in self._sockets
        self._sockets -= set(ends)
        return not is_first

    def _message(self, is_sent: bool, words: list[bytes], line: bytes, rest: bytes) -> bytes:
        self.raw += line + rest
        if words[0] in (b"HPUB", b"HMSG"):
            return line + rest
        # PUB subject [reply] size; MSG subject sid [reply] size.
        given = words[1:-1] if is_sent else [words[1], *words[3:-1]]
        reply = given[1].decode() if len(given) > 1 else ""
        message = Message(is_sent, given[0].decode(), reply, rest[:-2])
        self.messages.append(message)
        payload = self.change(message)
        return b"" if payload is None else line + payload + b"\r\n"


def move(path: Path, **facts: str) -> None:
    """Change what this record says of its fabric."""
    record = json.loads(path.read_text())
    record.pop("check", None)
    for each in (*record.get("views", {}).values(), record):
        if "fabric" in each:
            each["fabric"].update(facts)
    # As the program writes it: a server that runs sees the new file.
    new = path.with_suffix(".new")
    new.write_text(json.dumps(record))
    new.chmod(0o600)
    new.replace(path)


def flipped(payload: bytes, bit: int) -> bytes:
    changed = bytearray(payload)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
