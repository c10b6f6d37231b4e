"""One connection to one runner: who is at the other end is proven part by part, and no peer can hold us up."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import wire
from holdfast.errors import (
    Busy,
    HoldfastError,
    IdentityMismatch,
    ProtocolError,
    RunnerGone,
    TooManyClients,
    Unreachable,
)
from holdfast.sessions.connection import Connection, prove
from holdfast.sessions.driver import Blocking, drive

ID = "b12345678"
IDENTITY: dict[str, Any] = {
    "id": ID,
    "nonce": "n0nce",
    "boot": "b00t",
    "pidns": 1,
    "timens": 2,
    "runner": {"pid": 10, "start": 100},
    "command": {"pid": 11, "start": 110, "line": ["sh", "-c", "x"]},
}
SPEC = {"id": ID}
STATE = {name: value for name, value in IDENTITY.items() if name != "id"}
HELLO = {"type": "hello", "protocol": 1, "identity": IDENTITY, "status": {"state": "running"}}


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection, and the runner's end of it."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield Connection(Blocking(), ours, ID), theirs
    ours.close()
    theirs.close()


@contextmanager
def listener(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Something that answers one caller at this path."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen()

    def run() -> None:
        try:
            peer, _ = server.accept()
        except OSError:
            return
        with peer:
            serve(peer)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        thread.join(30)
        server.close()


def reach(path: Path, timeout: float = 2.0) -> Connection:
    return drive(Connection.open(Blocking(), str(path), ID, author="api:1", timeout=timeout))


def test_greetings_are_exchanged_and_ours_says_who_we_are(tmp_path: Path) -> None:
    heard: list[Any] = []

    def serve(peer: socket.socket) -> None:
        peer.sendall(wire.control(HELLO))
        heard.extend(wire.Decoder().feed(peer.recv(4096)))

    with listener(tmp_path / "s", serve):
        connection = reach(tmp_path / "s")
        assert connection.hello == HELLO
        connection.close()
    assert heard[0]["type"] == "hello"
    assert heard[0]["protocol"] == wire.PROTOCOL
    assert heard[0]["author"] == "api:1"
    assert heard[0]["kind"] == "api"


def test_a_hello_that_comes_in_single_bytes_is_understood(tmp_path: Path) -> None:
    def serve(peer: socket.socket) -> None:
        for byte in wire.control(HELLO):
            peer.sendall(bytes([byte]))
        peer.recv(1)

    with listener(tmp_path / "s", serve):
        connection = reach(tmp_path / "s")
        connection.close()


@pytest.mark.parametrize("plant", ["nothing", "a file", "a directory", "a dead socket", "a datagram socket", "a loop"])
def test_a_socket_without_a_listener_means_that_the_runner_is_gone(tmp_path: Path, plant: str) -> None:
    path = tmp_path / "s"
    if plant == "a file":
        path.write_text("")
    elif plant == "a directory":
        path.mkdir()
    elif plant == "a loop":
        path.symlink_to(path)
    elif plant != "nothing":
        kind = socket.SOCK_DGRAM if plant == "a datagram socket" else socket.SOCK_STREAM
        with socket.socket(socket.AF_UNIX, kind) as dead:
            dead.bind(str(path))
            if plant == "a datagram socket":
                with pytest.raises(RunnerGone):
                    reach(path)
    with pytest.raises(RunnerGone):
        reach(path)


def test_a_listener_that_does_not_greet_is_unreachable_within_the_bound(tmp_path: Path) -> None:
    with (
        listener(tmp_path / "s", lambda peer: void(peer.recv(65536), peer.recv(1))),
        pytest.raises(Unreachable) as late,
    ):
        reach(tmp_path / "s", timeout=0.05)
    assert late.value.waited_s == 0.05


def void(*_: object) -> None:
    return None


def test_a_listener_whose_backlog_is_full_is_unreachable(tmp_path: Path) -> None:
    waiting = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "s"))
        server.listen(0)
        try:
            while True:
                waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                waiting[-1].setblocking(False)
                waiting[-1].connect(str(tmp_path / "s"))
        except BlockingIOError:
            pass
        with pytest.raises(Unreachable):
            reach(tmp_path / "s")
    for sock in waiting:
        sock.close()


def test_a_peer_that_talks_without_end_and_never_greets_is_unreachable(tmp_path: Path) -> None:
    """On the faulty code the bound was only looked at when the peer paused."""

    def serve(peer: socket.socket) -> None:
        flood = wire.data(0, bytes(1000)) * 50
        try:
            while True:
                peer.sendall(flood)
        except OSError:
            pass

    with listener(tmp_path / "s", serve), pytest.raises(Unreachable):
        reach(tmp_path / "s", timeout=0.2)


@pytest.mark.parametrize(
    "said, error",
    [
        (b"", RunnerGone),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolError),
        (wire.control({"type": "reply", "id": 1}), ProtocolError),
        (wire.control(wire.error({}, "too-many-clients", "64", limit=64)), TooManyClients),
        (wire.control(wire.error({}, "what-is-that", "odd")), HoldfastError),
        (wire.control(HELLO)[:-1], RunnerGone),
    ],
)
def test_a_message_that_is_no_hello_is_named_in_the_error(
    tmp_path: Path, said: bytes, error: type[HoldfastError]
) -> None:
    def serve(peer: socket.socket) -> None:
        peer.recv(4096)
        peer.sendall(said)

    with listener(tmp_path / "s", serve), pytest.raises(error):
        reach(tmp_path / "s")


def test_no_descriptor_stays_open_after_any_failure(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number, said in enumerate((b"", b"junk" * 10, wire.control({"type": "x"}))):
        path = tmp_path / str(number)

        def serve(peer: socket.socket, said: bytes = said) -> None:
            peer.recv(4096)
            peer.sendall(said)

        with listener(path, serve), pytest.raises(HoldfastError):
            reach(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_recorded_runner_proves_itself() -> None:
    prove(SPEC["id"], HELLO, SPEC, STATE)
    prove(SPEC["id"], HELLO, SPEC, None)


PARTS = [
    "id",
    "nonce",
    "boot",
    "pidns",
    "timens",
    "runner pid",
    "runner start",
    "command pid",
    "command start",
    "command line",
]


@pytest.mark.parametrize("part", PARTS)
def test_each_part_alone_is_enough_to_refuse_and_is_named(part: str) -> None:
    who, _, fact = part.partition(" ")
    other = {**IDENTITY, who: {**IDENTITY[who], fact: "other"} if fact else "other"}
    with pytest.raises(IdentityMismatch) as mismatch:
        prove(SPEC["id"], {**HELLO, "identity": other}, SPEC, STATE)
    assert mismatch.value.part == part
    assert mismatch.value.found == "other"


def test_a_runner_that_has_not_recorded_its_command_is_known_by_its_id_alone() -> None:
    unborn = {**IDENTITY, "command": None, "nonce": "any"}
    prove(SPEC["id"], {**HELLO, "identity": unborn}, SPEC, None)
    with pytest.raises(IdentityMismatch, match="id"):
        prove(SPEC["id"], {**HELLO, "identity": {**unborn, "id": "bother123"}}, SPEC, None)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(anything | st.fixed_dictionaries({}, optional=dict.fromkeys(IDENTITY, anything)))
def test_any_other_identity_is_a_mismatch_and_nothing_else(identity: Any) -> None:
    with pytest.raises(IdentityMismatch):
        prove(SPEC["id"], {**HELLO, "identity": identity}, SPEC, STATE)


def test_an_answer_is_the_one_to_the_last_question(pair: tuple[Connection, socket.socket]) -> None:
    connection, runner = pair
    runner.sendall(
        wire.control({"type": "reply", "id": 7})
        + wire.data(0, b"x")
        + wire.control({"type": "written", "id": 1, "bytes": 3})
        + wire.control({"type": "reply", "id": 1, "fine": True})
    )
    assert drive(connection.request("ping", 2.0))["fine"]
    assert wire.Decoder().feed(runner.recv(4096)) == [{"type": "ping", "id": 1}]


def test_an_error_answer_is_raised_as_what_it_is(pair: tuple[Connection, socket.socket]) -> None:
    connection, runner = pair
    runner.sendall(wire.control(wire.error({"id": 1}, "busy", "the input queue is full", queued=5)))
    with pytest.raises(Busy) as busy:
        drive(connection.request("write", 2.0, data="x"))
    assert busy.value.facts["queued"] == 5


def test_a_silent_runner_is_unreachable_and_one_that_hangs_up_is_gone(pair: tuple[Connection, socket.socket]) -> None:
    connection, runner = pair
    with pytest.raises(Unreachable):
        drive(connection.request("ping", 0.05))
    runner.close()
    with pytest.raises(RunnerGone):
        drive(connection.request("ping", 2.0))


def test_a_runner_that_does_not_read_is_unreachable(pair: tuple[Connection, socket.socket]) -> None:
    connection, _ = pair
    with pytest.raises(Unreachable):
        drive(connection.send(bytes(8 << 20), 0.05))


def test_bytes_come_in_the_data_frame_behind_the_reply(pair: tuple[Connection, socket.socket]) -> None:
    connection, runner = pair
    payload = bytes(range(256)) * 100
    runner.sendall(wire.control({"type": "reply", "id": 1, "from": 5}) + wire.data(5, payload))
    assert drive(connection.request("output", 2.0, since=5))["from"] == 5
    assert drive(connection.data(2.0)) == (5, payload)
