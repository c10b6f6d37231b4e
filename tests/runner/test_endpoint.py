"""The runner's door with real sockets, on a loop whose clock goes on when nothing is ready: who owes us something is
not kept."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import loop as runner_loop
from holdfast.core import wire
from holdfast.core.loop import Loop
from holdfast.runner import endpoint
from holdfast.runner.endpoint import Client, Endpoint

HELLO = wire.control({"type": "hello", "protocol": 1, "author": "test:1"})
PATIENCE_S = 0.1


class Door:
    """An endpoint that answers `echo`, and the loop it lives on."""

    def __init__(self, path: Path) -> None:
        self.now = 1000.0
        self.loop = Loop()
        self.path = path
        self.gone: list[Client] = []
        self.failed: list[Exception] = []
        self.endpoint = Endpoint(
            self.loop,
            str(path),
            hello=lambda: {"type": "hello"},
            serve=self.serve,
            gone=self.gone.append,
            failed=self.failed.append,
        )

    def serve(self, client: Client, message: dict[str, Any]) -> None:
        if message["type"] == "stumble":
            raise RuntimeError("over its own feet")
        client.send({"type": "reply", "pad": "x" * message.get("size", 0)})

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(self.path))
        sock.setblocking(False)
        return sock

    def monotonic(self) -> float:
        return self.now

    def ready(self, wait_s: float | None) -> list[tuple[int, int]]:
        """In the place of the loop's: who would sleep finds that the time has passed."""
        found = Loop.ready(self.loop, 0.0)
        if not found:
            self.now += wait_s or 0.0
        return found

    def run(self, seconds: float) -> None:
        """Let the loop turn for so long."""
        self.loop._leaving = False
        self.loop.after(seconds, self.loop.leave)
        self.loop.run(lambda: None)

    def close(self) -> None:
        for client in list(self.endpoint.clients):
            client.close()
        self.endpoint.close()
        self.loop.close()


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setattr(endpoint, "SILENCE_S", PATIENCE_S)
    made = Door(tmp_path / "s")
    monkeypatch.setattr(runner_loop, "time", made)
    monkeypatch.setattr(made.loop, "ready", made.ready)
    yield made
    made.close()


def received(sock: socket.socket) -> tuple[list[Any], bool]:
    """The frames that are there, and whether the other side hung up."""
    decoder = wire.Decoder()
    found: list[Any] = []
    while True:
        try:
            received = sock.recv(1 << 16)
        except BlockingIOError:
            return found, False
        except ConnectionResetError:
            return found, True
        if not received:
            return found, True
        found += decoder.feed(received)


def test_a_silent_caller_gets_an_error_and_is_closed_in_time(door: Door) -> None:
    with door.connect() as sock:
        door.run(PATIENCE_S / 2)
        assert received(sock) == ([{"type": "hello"}], False)
        door.run(PATIENCE_S)
        frames, closed = received(sock)
    assert closed
    assert [frame["code"] for frame in frames] == ["timeout"]
    assert "a greeting did not come" in frames[0]["message"]
    assert len(door.gone) == 1
    assert door.endpoint.clients == []


def test_half_a_frame_is_waited_for_and_no_longer(door: Door) -> None:
    with door.connect() as sock:
        sock.sendall(HELLO + wire.control({"type": "echo"}) + HELLO[:7])
        door.run(PATIENCE_S * 1.5)
        frames, closed = received(sock)
    assert closed
    assert [frame["type"] for frame in frames] == ["hello", "reply", "error"]
    assert "the rest of a frame" in frames[-1]["message"]


def test_a_caller_that_greeted_may_be_silent_as_long_as_it_likes(door: Door) -> None:
    with door.connect() as sock:
        sock.sendall(HELLO)
        door.run(PATIENCE_S * 3)
        assert received(sock) == ([{"type": "hello"}], False)


def test_the_caller_that_brought_the_start_request_need_not_greet(door: Door) -> None:
    """On the faulty code it was closed after ten seconds, and with it went a command of lifetime `call`."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        client = door.endpoint.adopt(theirs, {"author": "api:1"})
        door.run(PATIENCE_S * 3)
        assert not client.closed
        assert client.author == "api:1"
        ours.sendall(wire.control({"type": "echo"}))
        door.run(0.01)
        assert received(ours) == ([{"type": "reply", "pad": ""}], False)


@pytest.mark.parametrize("talk", [HELLO, HELLO + HELLO], ids=["greeting", "request"])
def test_single_bytes_buy_no_time(door: Door, talk: bytes) -> None:
    """On the faulty code each byte began the wait anew: half a greeting could hold a place for ever."""
    with door.connect() as sock:
        done = len(talk) - len(HELLO)
        sock.sendall(talk[:done])
        rest = [bytes([byte]) for byte in talk[done:]]

        def dribble() -> None:
            if rest[1:]:
                try:
                    sock.send(rest.pop(0))
                except OSError:
                    return
                door.loop.after(PATIENCE_S / 10, dribble)

        dribble()
        door.run(PATIENCE_S * 2.5)
        assert rest[1:], "not all was sent"
        frames, closed = received(sock)
    assert closed
    assert frames[-1]["code"] == "timeout"


def test_one_that_does_not_read_its_refusal_is_closed_all_the_same_and_costs_nothing(door: Door) -> None:
    """On the faulty code it stayed, and whatever it sent was kept."""
    with door.connect() as sock:
        sock.sendall(HELLO + wire.control({"type": "echo", "size": 900_000}) * 3)
        door.run(0.02)
        client = door.endpoint.clients[0]
        assert client.has_unsent
        sock.sendall(b"\xff" * 5)
        door.run(0.02)
        for _ in range(200):
            try:
                sock.send(bytes(1 << 16))
            except BlockingIOError:
                pass
            door.run(0)
        assert len(client._decoder._buffer) == 0
        assert len(client._unsent) < 3_000_000
        door.run(PATIENCE_S * 1.5)
        assert client.closed


def test_unread_answers_above_the_limit_end_the_connection(door: Door) -> None:
    with door.connect() as sock:
        sock.sendall(HELLO + wire.control({"type": "echo", "size": 900_000}) * 8)
        door.run(0.05)
        assert door.endpoint.clients == []


def test_requests_before_a_bad_frame_are_answered_whatever_the_cut(door: Door) -> None:
    for cut in (None, 5, len(HELLO), len(HELLO) + 9):
        stream = HELLO + wire.control({"type": "echo"}) + b"GET / HTTP/1.1\r\n"
        with door.connect() as sock:
            for part in [stream] if cut is None else [stream[:cut], stream[cut:]]:
                sock.sendall(part)
                door.run(0.01)
            frames, closed = received(sock)
        assert closed
        assert [frame["type"] for frame in frames] == ["hello", "reply", "error"]
        assert frames[-1]["code"] == "bad-request"


@pytest.mark.parametrize(
    "greeting",
    [
        {"type": "ping", "id": 1},
        {"type": "hello"},
        {"type": "hello", "protocol": "1"},
        {"type": "hello", "protocol": None},
    ],
)
def test_a_conversation_without_a_greeting_is_refused(door: Door, greeting: dict[str, Any]) -> None:
    with door.connect() as sock:
        sock.sendall(wire.control(greeting) + wire.control({"type": "echo"}))
        door.run(0.02)
        frames, closed = received(sock)
    assert closed
    assert [frame.get("code") for frame in frames] == [None, "bad-request"]


@pytest.mark.parametrize("author, known", [("cli:root", "cli:root"), ("x" * 5000, "x" * 256), (7, None), ({}, None)])
def test_an_author_is_short_text_or_absent(door: Door, author: object, known: str | None) -> None:
    with door.connect() as sock:
        sock.sendall(wire.control({"type": "hello", "protocol": 1, "author": author}))
        door.run(0.01)
        assert door.endpoint.clients[0].author == known


def test_a_data_frame_is_refused_and_the_conversation_continues(door: Door) -> None:
    with door.connect() as sock:
        sock.sendall(HELLO + wire.data(0, b"x") + wire.control({"type": "echo"}))
        door.run(0.02)
        frames, closed = received(sock)
    assert not closed
    assert [frame["type"] for frame in frames] == ["hello", "error", "reply"]


def test_only_our_own_socket_is_unlinked(door: Door) -> None:
    door.path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as successor:
        successor.bind(str(door.path))
        door.endpoint.close()
        assert door.path.exists()
        door.endpoint = Endpoint(
            door.loop,
            str(door.path) + "2",
            hello=dict,
            serve=door.serve,
            gone=lambda _client: None,
            failed=door.failed.append,
        )


def test_a_request_that_we_stumble_over_is_reported_and_the_conversation_continues(door: Door) -> None:
    with door.connect() as sock:
        sock.sendall(HELLO + wire.control({"type": "stumble", "id": 3}) + wire.control({"type": "echo"}))
        door.run(PATIENCE_S / 2)
        frames, closed = received(sock)
    assert not closed
    assert [(frame["type"], frame.get("id"), frame.get("code")) for frame in frames[1:]] == [
        ("error", 3, "bad-request"),
        ("reply", None, None),
    ]
    assert [str(problem) for problem in door.failed] == ["over its own feet"]
