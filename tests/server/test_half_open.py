"""Another user of the machine opens connections and says nothing, or half of something: the owner is not kept out."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.scale import scaled
from support.waiting import until

if TYPE_CHECKING:
    from support.program import Program
    from support.world import World

NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
START_BOUND_S = 30.0
CONNECTIONS = scaled(600, 1500)
FOR_S = scaled(2.0, 12.0)
ANSWER_S = 2.0
# With TLS it peaks at about 200 MiB, too much: handshakes that were broken off keep their buffers for a moment.
MEMORY_KIB = {"plain": 150 << 10, "mcp": 150 << 10, "tls": 400 << 10}

# Opens so many at once, and for each that is closed another, not too many at a time: a third says nothing, a third half
# a head, and a third a byte now and then. Says `begun` once all were opened.
CROWD = """
import os, resource, select, socket, sys, time

port, count, half, slow = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3]), bytes.fromhex(sys.argv[4])
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 64, count + 64))
poller, there, opened = select.poll(), {}, 0

def open_one():
    global opened
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex(("127.0.0.1", port))
    there[one.fileno()] = [one, opened % 3, 0]
    poller.register(one, select.POLLOUT | select.POLLHUP | select.POLLERR)
    opened += 1

told = False
while True:
    for _ in range(min(2 if told else 100, count - len(there))):
        open_one()
    for fd, event in poller.poll(0):
        one, kind, sent = there[fd]
        try:
            if event & (select.POLLHUP | select.POLLERR):
                raise OSError
            if event & select.POLLOUT:
                if kind == 1 and not sent:
                    there[fd][2] = one.send(half)
                poller.modify(one, select.POLLIN | select.POLLHUP | select.POLLERR)
            elif event & select.POLLIN and not one.recv(4096):
                raise OSError
        except OSError:
            poller.unregister(fd)
            del there[fd]
            one.close()
    for entry in list(there.values()) if told else ():
        if entry[1] == 2 and entry[2] < len(slow):
            try:
                entry[2] += entry[0].send(slow[entry[2]:entry[2] + 1])
            except OSError:
                pass
    if opened >= count and not told:
        told = True
        print("begun", flush=True)
    select.select([], [], [], 0.02)
"""


class Server:
    """One of the three, with what its owner asks of it."""

    def __init__(self, world: World, kind: str) -> None:
        self.context: ssl.SSLContext | None = None
        words: list[object] = ["serve", "--port", 0]
        if kind == "tls":
            certificate, key = _certificate(world.root)
            words += ["--tls-cert", certificate, "--tls-key", key]
            self.context = ssl.create_default_context(cafile=str(certificate))
        if kind == "mcp":
            words = ["mcp", "--http", "--port", 0, "--owner", "agent-7"]
        self.program: Program = world.program(world.hold_argv(*words))
        said = self.program.line(START_BOUND_S) if kind != "mcp" else until(self._listens, START_BOUND_S)
        found = re.search(r"127\.0\.0\.1:(\d+)", said or "")
        assert found is not None, self.program.errors()
        self.port = int(found[1])
        file, prefix = ("mcp-token", "") if kind == "mcp" else ("token", "hf_home_")
        token = prefix + (world.home / "server" / file).read_text().strip()
        head = f"Host: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n"
        self.request = f"GET /v1/info HTTP/1.1\r\n{head}\r\n".encode()
        if kind == "mcp":
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            head += "Accept: application/json, text/event-stream\r\n"
            self.request = f"POST /mcp HTTP/1.1\r\n{head}\r\n{body}".encode()

    def _listens(self) -> str | None:
        return self.program.errors() if "--print-config" in self.program.errors() else None

    def ask(self) -> float:
        """How long the owner waits for an answer."""
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", self.port), 10) as plain:
            there = plain if self.context is None else self.context.wrap_socket(plain, server_hostname="127.0.0.1")
            there.sendall(self.request)
            answer = there.recv(4096)
            there.close()
        assert answer.startswith(b"HTTP/1.1 200"), answer
        return time.monotonic() - began

    def memory_kib(self) -> int:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.program.pid}/status").read_text())
        assert found is not None
        return int(found[1])


def _certificate(directory: Path) -> tuple[Path, Path]:
    certificate, key = directory / "cert.pem", directory / "key.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *words, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


@pytest.mark.needs("setpriv")
@pytest.mark.parametrize("kind", ["plain", "tls", "mcp"])
def test_half_open_connections_of_another_user_leave_the_owner_answered(world: World, kind: str) -> None:
    server = Server(world, kind)
    server.ask()
    said_before = len(server.program.errors().splitlines())
    world.root.chmod(0o711)  # that user runs what stands there
    half = b"GET /v1/info HTTP/1.1\r\nHost: x\r\nX-Half: " if kind != "tls" else b"\x16\x03\x01\x02\x00"
    slow = b"GET / HTTP/1.1\r\nX: " + b"x" * 500
    crowd = world.host(CROWD, server.port, CONNECTIONS, half.hex(), slow.hex(), prefix=AS_NOBODY)
    waits = [server.ask()]
    assert crowd.line(START_BOUND_S) == "begun", crowd.errors()
    until_s = time.monotonic() + FOR_S
    while time.monotonic() < until_s or len(waits) < 5:
        waits.append(server.ask())
    assert crowd.returncode is None
    crowd.kill()
    assert max(waits) < ANSWER_S, f"the owner waited {max(waits):.2f} s"
    assert server.memory_kib() < MEMORY_KIB[kind]
    said = server.program.errors().splitlines()[said_before:]
    assert len(said) <= 1, said
    assert all("showed no valid token" in line for line in said), said
    assert server.ask() < ANSWER_S
    server.program.signal(signal.SIGINT)
    assert server.program.wait(START_BOUND_S) == 0
    assert len(server.program.errors().splitlines()) == said_before + len(said) + 1
