"""Another user of the machine opens connections and says nothing, or half of something: the owner is not kept out."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.config.settings import Settings
from holdfast.serving.door import UNAUTHENTICATED
from support.own_time import OwnTime
from support.scale import scaled
from support.serving import START_BOUND_S, new_certificate
from support.waiting import until

if TYPE_CHECKING:
    from support.program import Program
    from support.world import World

NOBODY = 65534
# The interpreter may stand in a directory that is closed to others; reading it is all that the capability grants.
AS_NOBODY = [
    "setpriv",
    *(f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),
]
CONNECTIONS = scaled(600, 1500)
# The long form waits for the second line of the log; the short form sets a shorter interval in the server.
LOG_INTERVAL_S = scaled(1.0, 60.0)
FOR_S = scaled(2.0, 62.0)
ANSWER_S = 2.0
MEMORY_BYTES = 150 * 1000 * 1000
HELD = 16
LOST = 200
RECEIVE_BUFFER_BYTES = 32 * 1024  # of a TLS connection
# The listener, pipes, the event loop, the index.
OTHER_DESCRIPTORS = 40

KINDS = {
    "plain": ["silent", "half-head", "slow-head"],
    "tls": ["silent", "half-hello", "slow-hello", "hello", "handshake-half-head"],
    "mcp": ["silent", "half-head", "slow-head"],
}

SERVER = """
import sys
from holdfast.cli import main
from holdfast.serving import door

assert door._LOG_INTERVAL_S == 60.0
door._LOG_INTERVAL_S = float(sys.argv.pop(1))
main()
"""

# Keeps this many connections open, of each kind in turn: opens all at once, and later replaces those that the server
# has closed, at most 100 a second. At `renew` it closes all and opens as many again at
# once. Answers each line with how many it has opened, and how many handshakes it has finished.
CROWD = """
import os, resource, select, socket, ssl, sys

port, count, kinds = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
HEAD = b"GET /v1/info HTTP/1.1\\r\\nHost: x\\r\\nX-Half: "
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 64, count + 64))
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
poller, connections, opened, handshakes, burst_until, turn = select.poll(), {}, 0, 0, count, 0


class Connection:
    def __init__(self, kind):
        self.kind, self.slow = kind, b""
        self.sock = socket.socket()
        self.sock.setblocking(False)
        self.sock.connect_ex(("127.0.0.1", port))

    def connected(self):
        if self.kind == "half-head":
            self.sock.send(HEAD)
        elif self.kind == "slow-head":
            self.slow = HEAD + b"x" * 1000
        elif self.kind != "silent":
            self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self.tls = context.wrap_bio(self.incoming, self.outgoing)
            self.shakes_hands()
            hello = self.outgoing.read()
            if self.kind == "slow-hello":
                self.slow = hello
            else:
                self.sock.send(hello[: len(hello) // 2] if self.kind == "half-hello" else hello)

    def shakes_hands(self):
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def received(self):
        global handshakes
        data = self.sock.recv(65536)
        if not data:
            raise OSError
        if self.kind == "handshake-half-head":
            self.incoming.write(data)
            if self.tls.version() is None and self.shakes_hands():
                self.tls.write(HEAD)
                handshakes += 1
            self.sock.send(self.outgoing.read())


poller.register(0, select.POLLIN)
while True:
    for _ in range(min(100 if opened < burst_until else 2, count - len(connections))):
        one = Connection(kinds[opened % len(kinds)])
        connections[one.sock.fileno()] = one
        poller.register(one.sock, select.POLLOUT)
        opened += 1
    for fd, event in poller.poll(0):
        if fd == 0:
            if b"renew" in os.read(0, 100):
                for one in connections.values():
                    poller.unregister(one.sock)
                    one.sock.close()
                connections.clear()
                burst_until = opened + count
            print(opened, handshakes, flush=True)
            continue
        one = connections.get(fd)
        if one is None:
            continue
        try:
            if event & (select.POLLHUP | select.POLLERR):
                raise OSError
            if event & select.POLLOUT:
                poller.modify(one.sock, select.POLLIN)
                one.connected()
            else:
                one.received()
        except OSError:
            poller.unregister(fd)
            del connections[fd]
            one.sock.close()
    turn += 1
    for one in connections.values() if turn % 5 == 0 else ():
        try:
            one.slow = one.slow[one.sock.send(one.slow[:1]) :] if one.slow else b""
        except OSError:
            one.slow = b""
    select.select([], [], [], 0.02)
"""


class Server:
    """One of the three, with the owner's requests."""

    def __init__(self, world: World, kind: str, before: str = "") -> None:
        self.context: ssl.SSLContext | None = None
        words: list[object] = ["serve", "--port", 0]
        if kind == "tls":
            certificate, key = new_certificate(world.root)
            words += ["--tls-cert", certificate, "--tls-key", key]
            self.context = ssl.create_default_context(cafile=str(certificate))
        if kind == "mcp":
            words = ["mcp", "--http", "--port", 0, "--owner", "agent-7"]
        self.program: Program = world.host(before + SERVER, LOG_INTERVAL_S, *words)
        said = self.program.line(START_BOUND_S) if kind != "mcp" else until(self._listens, START_BOUND_S)
        found = re.search(r"127\.0\.0\.1:(\d+)", said or "")
        assert found is not None, self.program.errors()
        self.port = int(found[1])
        file, prefix = ("mcp-token", "") if kind == "mcp" else ("token", "hf_home_")
        token = prefix + (world.home / "server" / file).read_text().strip()
        head = f"Host: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        path = "/mcp" if kind == "mcp" else "/v1/sessions/none/tickets"
        self.body = json.dumps(call if kind == "mcp" else {"role": "observe"}).encode()
        post = f"POST {path} HTTP/1.1\r\n{head}Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n"
        post += "Accept: application/json, text/event-stream\r\n"
        self.held_head = f"{post}Expect: 100-continue\r\n\r\n".encode()
        self.held_answer = b"HTTP/1.1 200 " if kind == "mcp" else b"HTTP/1.1 404 "
        self.request = f"GET /v1/info HTTP/1.1\r\n{head}\r\n".encode()
        if kind == "mcp":
            with self.connect() as there:
                there.sendall(f"{post}\r\n".encode() + self.body)
                session = re.search(rb"mcp-session-id: (\w+)", there.recv(4096))
            assert session is not None
            ping = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "ping"})
            head += f"Mcp-Session-Id: {session[1].decode()}\r\nContent-Type: application/json\r\n"
            head += f"Accept: application/json, text/event-stream\r\nContent-Length: {len(ping)}\r\n"
            self.request = f"POST {path} HTTP/1.1\r\n{head}\r\n{ping}".encode()

    def _listens(self) -> str | None:
        return self.program.errors() if "--print-config" in self.program.errors() else None

    def connect(self) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.port), START_BOUND_S)
        return plain if self.context is None else self.context.wrap_socket(plain, server_hostname="127.0.0.1")

    def ask(self) -> float:
        """How long the owner waits for an answer."""
        passed = OwnTime(os.getpid(), self.program.pid)
        with self.connect() as there:
            there.sendall(self.request)
            answer = there.recv(4096)
        passed.stop()
        assert answer.startswith(b"HTTP/1.1 200"), answer
        return passed.seconds(self.program.pid)

    def hold(self) -> socket.socket:
        """A connection with a valid token whose request is not complete: the server waits for its body."""
        there = self.connect()
        there.sendall(self.held_head)
        answer = there.recv(4096)
        assert answer.startswith(b"HTTP/1.1 100"), answer
        return there

    def finish(self, held: socket.socket) -> None:
        with held:
            held.sendall(self.body)
            answer = held.recv(4096)
        assert answer.startswith(self.held_answer), answer

    def memory_bytes(self) -> int:
        """The most that it had at any time."""
        return self._status_bytes("VmHWM")

    def resident_bytes(self) -> int:
        return self._status_bytes("VmRSS")

    def _status_bytes(self, name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{self.program.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.program.pid}/fd").iterdir()))


class Crowd:
    """Another user's connections."""

    def __init__(self, world: World, server: Server, kind: str) -> None:
        world.root.chmod(0o711)  # the script is there
        self._program = world.host(CROWD, server.port, CONNECTIONS, *KINDS[kind], prefix=AS_NOBODY)

    def counts(self) -> tuple[int, int]:
        """Connections opened so far, TLS handshakes finished so far."""
        self._program.send("count\n")
        opened, handshakes = self._program.line(START_BOUND_S).split()
        return int(opened), int(handshakes)

    def renew(self) -> None:
        self._program.send("renew\n")
        target = int(self._program.line(START_BOUND_S).split()[0]) + CONNECTIONS
        until(lambda: self.counts()[0] >= target, START_BOUND_S)

    def end(self) -> None:
        assert self._program.returncode is None, self._program.errors()
        self._program.kill()


@pytest.mark.needs("setpriv")
@pytest.mark.timeout(scaled(60, 240))
@pytest.mark.covers("found:40")
@pytest.mark.parametrize("kind", ["plain", "tls", "mcp"])
def test_half_open_connections_of_another_user_leave_the_owner_answered(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The owner's bodies wait until the crowd has come anew.
    monkeypatch.setenv("HOLDFAST_SERVER_BODY_TIME", "300")
    server = Server(world, kind)
    server.ask()
    lines_before = len(server.program.errors().splitlines())
    began = time.monotonic()
    crowd = Crowd(world, server, kind)
    waits = [server.ask()]
    while crowd.counts()[0] < CONNECTIONS:
        waits.append(server.ask())
    until_s = time.monotonic() + FOR_S
    while time.monotonic() < until_s or len(waits) < 5:
        crowd.counts()  # one turn of the crowd for each request of the owner
        waits.append(server.ask())

    # The owner's connections remain while more unauthenticated ones than there is room for come after them.
    held = [server.hold() for _ in range(HELD)]
    crowd.renew()
    waits.append(server.ask())
    assert UNAUTHENTICATED < server.descriptors() <= UNAUTHENTICATED + HELD + OTHER_DESCRIPTORS
    for each in held:
        server.finish(each)

    assert kind != "tls" or crowd.counts()[1] > CONNECTIONS // 100
    crowd.end()
    elapsed = time.monotonic() - began
    assert max(waits) < ANSWER_S, f"the owner waited {max(waits):.2f} s for answer {waits.index(max(waits))}"
    assert server.memory_bytes() < MEMORY_BYTES
    lines = server.program.errors().splitlines()[lines_before:]
    assert all("showed no valid token" in line for line in lines), lines
    assert 2 <= len(lines) <= elapsed / LOG_INTERVAL_S + 1, lines
    assert server.ask() < ANSWER_S
    server.program.signal(signal.SIGINT)
    assert server.program.wait(START_BOUND_S) == 0
    assert len(server.program.errors().splitlines()) == lines_before + len(lines) + 1


@pytest.mark.parametrize("is_finished", [True, False], ids=["reset after its handshake", "handshake that fails"])
def test_a_lost_tls_connection_frees_its_buffers_at_once(world: World, is_finished: bool) -> None:
    server = Server(world, "tls", "import gc; gc.disable()")

    def lose(count: int) -> None:
        for _ in range(count):
            with socket.create_connection(("127.0.0.1", server.port), START_BOUND_S) as plain:
                if is_finished:
                    assert server.context is not None
                    tls = server.context.wrap_socket(plain, server_hostname="127.0.0.1")
                    tls.sendall(b"GET /v1/info HTTP/1.1\r\n")
                    tls.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    tls.close()
                else:
                    plain.sendall(b"\x16\x03\x01\x00\x05hello")
                    while plain.recv(4096):
                        pass
        server.ask()

    lose(50)
    before = server.resident_bytes()
    lose(LOST)
    assert server.resident_bytes() - before < LOST * RECEIVE_BUFFER_BYTES


def test_the_share_of_unauthenticated_connections_is_the_smaller_one() -> None:
    assert Settings.server_connections // 2 >= UNAUTHENTICATED
