"""`hold serve` beside the test, as its users start it; and in this process, with a clock that a test moves."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from support.described import check_described
from support.waiting import BOUND_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from pathlib import Path

    from websockets.sync.client import ClientConnection

    from support.program import Program
    from support.world import World

# Its packages take a second to load, and several on a busy machine.
START_BOUND_S = 30.0

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "holdfast.v1.json",
}


class Answer:
    """Status, headers and body as they came."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ")[1]) if lines[0] else 0
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def slug(self) -> str:
        """Which problem it is."""
        assert self.headers["content-type"] == "application/problem+json"
        problem = self.json
        assert problem["status"] == self.status
        assert problem["detail"]
        assert problem["fix"]
        return str(problem["type"]).removeprefix("/problems/")


def request(
    address: tuple[str, int] | str,
    target: str,
    headers: Mapping[str, str],
    *,
    method: str = "GET",
    body: bytes = b"",
    bound: float = BOUND_S,
) -> Answer:
    """One request over a socket of its own, sent as it stands: nothing is added or put right."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as there:
        there.settimeout(bound)
        there.connect(address)
        length = {"Content-Length": str(len(body))} if body else {}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in {**headers, **length}.items())]
        there.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        answer = read_answer(there, is_head=method == "HEAD")
    # Whatever a test asks for.
    check_described(method, target, answer, body)
    return answer


def read_answer(there: socket.socket, *, is_head: bool = False) -> Answer:
    """What comes back: up to its length, or the end; nothing more of an upgrade than its head."""
    raw = b""
    while b"\r\n\r\n" not in raw and (more := there.recv(65536)):
        raw += more
    answer = Answer(raw)
    missing = 0 if is_head else int(answer.headers.get("content-length", 0)) - len(answer.body)
    while missing > 0 and (more := there.recv(missing)):
        answer.body += more
        missing -= len(more)
    if answer.headers.get("transfer-encoding") == "chunked" and not is_head:
        answer.body = b"".join(chunks_of(there, answer.body))
    return answer


def chunks_of(there: socket.socket, read: bytes) -> Iterator[bytes]:
    """The chunks of a body as they come; `read` is what was received of it already."""
    while True:
        while b"\r\n" not in read:
            more = there.recv(65536)
            if not more:
                return
            read += more
        size, _, read = read.partition(b"\r\n")
        while len(read) < int(size, 16) + 2:
            more = there.recv(65536)
            if not more:
                return
            read += more
        if not int(size, 16):
            return
        yield read[: int(size, 16)]
        read = read[int(size, 16) + 2 :]


class EventReader:
    """One reader of `/v1/events`: its events as (name, id, data). It ends after `cut` bytes, wherever that is. Closing
    the socket ends it on the server."""

    def __init__(
        self,
        serving: Serving | Inside,
        target: str = "/v1/events",
        last: str | None = None,
        token: str | None = None,
        cut: int | None = None,
    ):
        headers = serving.bearer if token is None else {**serving.bearer, "Authorization": f"Bearer {token}"}
        if last is not None:
            headers["Last-Event-ID"] = last
        self.socket = socket.create_connection(("127.0.0.1", serving.port), BOUND_S)
        target = serving.at(target) if isinstance(serving, Serving) else target
        lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        raw = b""
        while b"\r\n\r\n" not in raw:
            raw += self.socket.recv(1)
        self.answer = Answer(raw)
        self._text = b""
        self._left = cut
        self._chunks = chunks_of(self.socket, b"")

    def __enter__(self) -> EventReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def __iter__(self) -> Iterator[tuple[str, str | None, Any]]:
        for chunk in self._chunks:
            self._text += chunk[: self._left]
            if self._left is not None:
                self._left = max(0, self._left - len(chunk))
            while b"\n\n" in self._text:
                block, _, self._text = self._text.partition(b"\n\n")
                fields = dict(line.partition(": ")[::2] for line in block.decode().split("\n"))
                if "event" in fields:
                    yield fields["event"], fields.get("id"), json.loads(fields["data"])
            if self._left == 0:
                return

    def until(self, name: str, **facts: Any) -> Any:
        """The data of the next event of this name, in which these facts hold."""
        for event, _, data in self:
            if event == name and all(data.get(key) == value for key, value in facts.items()):
                return data
        raise AssertionError(f"the stream ended before {name}")


def closed_with(viewer: ClientConnection) -> tuple[int, str]:
    """Code and reason with which the server closes the connection."""
    from websockets.exceptions import ConnectionClosed

    try:
        while True:
            viewer.recv(BOUND_S)
    except ConnectionClosed as closed:
        received = closed.rcvd
    assert received is not None
    return received.code, received.reason


class Serving:
    """A server in this test's world, ended at teardown. `token` goes behind `Bearer`."""

    def __init__(self, world: World, *words: object, prefix: Sequence[str] = ()) -> None:
        self.world = world
        self.words = words
        self._prefix = prefix
        self.port = 0
        self.start()

    def start(self) -> None:
        """Start it; once more on the same port, where clients look for it."""
        self.program: Program = self.world.program(
            self.world.hold_argv("serve", *self.words, *(() if "--unix" in self.words else ("--port", self.port))),
            prefix=self._prefix,
        )
        # Before it would be killed, which leaves its wake socket behind.
        self.world.closing.callback(self.leave)
        self.line = self.program.line(START_BOUND_S)
        assert self.line, self.program.errors()
        self.url, _, self.code = self.line.split()[0].partition("/#code=")
        self.address = self.url.partition("://")[2]
        self.port = int(self.url.rpartition(":")[2]) if self.address else 0
        self.secret = (self.world.home / "server" / "token").read_text().strip()
        self.token = f"hf_home_{self.secret}"

    @property
    def pid(self) -> int:
        return self.program.pid

    @property
    def pids(self) -> list[int]:
        """The servers that a request passes, first the one that has the sessions."""
        return [self.pid]

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.program.signal(number)

    def leave(self) -> int:
        """Have it leave, if it is there; its exit code."""
        if self.program.returncode is None:
            self.program.signal(signal.SIGTERM)
        return self.program.wait(START_BOUND_S)

    def fresh_code(self) -> str:
        """A code of `hold open` for one more login."""
        opened = self.world.hold("open", check=True)
        return opened.stdout.strip().partition("#code=")[2]

    @property
    def bearer(self) -> dict[str, str]:
        return {"Host": self.address, "Authorization": f"Bearer {self.token}"}

    def ask(self, target: str, headers: Mapping[str, str] | None = None, **options: Any) -> Answer:
        """With the token, or exactly these headers."""
        chosen = self.bearer if headers is None else headers
        return request(("127.0.0.1", self.port), self.at(target), chosen, **options)

    def at(self, target: str) -> str:
        """Where the server that is asked has this address."""
        return target

    def call(
        self, method: str, target: str, body: object = None, *, token: str | None = None, **headers: str
    ) -> Answer:
        """A call with a JSON body, with the token of the home or another."""
        known = {**self.bearer, "Authorization": f"Bearer {token or self.token}"}
        sent = b"" if body is None else json.dumps(body).encode()
        typed = {} if body is None else {"Content-Type": "application/json"}
        return self.ask(target, {**known, **typed, **headers}, method=method, body=sent)

    def upgrade(self, target: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask(target, {**(self.bearer if headers is None else headers), **UPGRADE})

    def ticket(self, session: str, role: str = "control", **headers: str) -> str:
        answer = self.ask(
            f"/v1/sessions/{session}/tickets",
            {**self.bearer, "Content-Type": "application/json", **headers},
            method="POST",
            body=json.dumps({"role": role}).encode(),
        )
        assert answer.status == 200, answer.body
        return str(answer.json["ticket"])


@pytest.fixture
def serving(request: pytest.FixtureRequest, world: World) -> Serving:
    """The server of this test's home, asked directly; with `also_through_a_node`, also through that of a view."""
    if getattr(request, "param", "direct") == "direct":
        return Serving(world)
    from support.through_nodes import ThroughNode

    return ThroughNode(world)


also_through_a_node = pytest.mark.parametrize("serving", ["direct", "node"], indirect=True)


def started(serving: Serving, command: object, **options: Any) -> dict[str, Any]:
    answer = serving.call("POST", "/v1/sessions", {"command": command, **options})
    assert answer.status == 201, answer.body
    assert answer.headers["location"] == f"/v1/sessions/{answer.json['id']}"
    found: dict[str, Any] = answer.json
    return found


def ended(serving: Serving, id: str) -> dict[str, Any]:
    woke = serving.call("GET", f"/v1/sessions/{id}/wait?until=exit&timeout=20")
    assert woke.json["reason"] == "exit", woke.body
    found: dict[str, Any] = woke.json["session"]
    return found


def filled(path: str, **parts: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: parts.get(found[1], "nobody"), path)


class Inside:
    """A server in this process. `now` is its clock; `slept` are the delays that it asked for, none of which passes."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.gate: asyncio.Event | None = None
        self.port = 0
        self.token = ""

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.gate is not None:
            await self.gate.wait()

    @property
    def bearer(self) -> dict[str, str]:
        return {"Host": f"127.0.0.1:{self.port}", "Authorization": f"Bearer {self.token}"}

    async def ask(self, target: str, headers: Mapping[str, str] | None = None, **options: Any) -> Answer:
        chosen = self.bearer if headers is None else headers
        return await asyncio.to_thread(request, ("127.0.0.1", self.port), target, chosen, **options)

    async def upgrade(self, target: str, headers: Mapping[str, str] | None = None) -> Answer:
        return await self.ask(target, {**(self.bearer if headers is None else headers), **UPGRADE})

    async def ticket(self, session: str, role: str = "control", **headers: str) -> Answer:
        return await self.ask(
            f"/v1/sessions/{session}/tickets",
            {**self.bearer, "Content-Type": "application/json", **headers},
            method="POST",
            body=json.dumps({"role": role}).encode(),
        )


@asynccontextmanager
async def serving_inside(**options: Any) -> AsyncIterator[Inside]:
    from holdfast.home import Home
    from holdfast.server.listen import ListenAddress
    from holdfast.server.serve import Started, serve

    inside, leaving, home = Inside(), asyncio.Event(), Home()
    listening: asyncio.Future[Started] = asyncio.get_running_loop().create_future()
    work = asyncio.ensure_future(
        serve(
            ListenAddress(port=0, **options),
            home,
            listening.set_result,
            clock=lambda: inside.now,
            sleep=inside.sleep,
            leaving=leaving,
        )
    )
    try:
        waited: list[asyncio.Future[Any]] = [work, listening]
        done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if work in done:
            work.result()
        started = listening.result()
        inside.port = int(started.url.rpartition(":")[2])
        with open(started.token_path) as file:  # noqa: ASYNC230
            inside.token = f"hf_home_{file.read().strip()}"
        yield inside
    finally:
        leaving.set()
        if inside.gate is not None:
            inside.gate.set()
        await asyncio.wait_for(work, START_BOUND_S)


def new_certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate that signed itself, and its key."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=hold.example", "-addext", "subjectAltName=DNS:hold.example,IP:127.0.0.1"]
    subprocess.run(["openssl", *words, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key
