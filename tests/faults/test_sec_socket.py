"""SEC-01 to SEC-03: whatever comes through a runner's socket, the session and its other clients do not notice."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Session
from holdfast.core import wire
from holdfast.errors import HoldfastError
from holdfast.runner.endpoint import CLIENTS_MAX, SILENCE_S
from support import processes
from support.bystander import Bystanders
from support.peer import HELLO, Peer, is_alive, memory_kb
from support.promised import Beside, is_typed, promised
from support.waiting import until
from support.world import World

MIB = 1 << 20


@pytest.fixture
def target(world: World) -> Iterator[Session]:
    """A session that runs, reads and has printed, until the test is over."""
    session = world.open().start(world.probe("lines", 50, "cat"), stdin="open")
    assert session.wait(match="^line 50$", timeout=30).reason == "match"
    yield session
    assert session.stop(grace=0).done


def endpoint(session: Session) -> str:
    assert session.endpoint is not None
    return session.endpoint


def runner_pid(session: Session) -> int:
    assert session.runner_pid is not None
    return session.runner_pid


def frame(kind: int, payload: bytes, length: int | None = None) -> bytes:
    return struct.pack(">IB", len(payload) + 1 if length is None else length, kind) + payload


def is_served(client: Peer) -> None:
    """This client, connected before the fault, still gets its answers."""
    reply = client.ask("output", stream="stdout", since=0)
    assert reply["type"] == "reply"
    assert reply["status"]["state"] == "running"
    data = client.frame()
    assert isinstance(data, tuple)
    assert data[1].startswith(b"ready\nline 1\n")


GARBAGE = {
    "random": random.Random(7).randbytes(5000),
    "http": b"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030100a5010000a10303") + bytes(160),
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "zeros": bytes(4096),
    "text": b"hello?\n",
}


@pytest.mark.covers("SEC-01")
def test_sec_01_garbage_is_answered_with_an_error_and_closed(
    world: World, target: Session, bystander: Bystanders, beside: Beside
) -> None:
    with Peer(endpoint(target)) as attached:
        attached.hello()
        for garbage in GARBAGE.values():
            for greeted in (False, True):
                with Peer(endpoint(target), greet=greeted) as peer:
                    peer.hello()
                    peer.send(garbage)
                    (told,) = peer.rest()
                assert isinstance(told, dict)
                assert (told["type"], told["code"]) == ("error", "bad-request")
                assert "Holdfast's protocol" in told["message"]
                is_served(attached)
    promised(world, target, bystander=bystander, beside=beside, numbers=50)


@pytest.mark.covers("SEC-01", "SEC-02")
@pytest.mark.slow
def test_sec_01_only_silent_and_unfinished_connections_are_closed_after_the_deadline(
    world: World, target: Session, bystander: Bystanders, beside: Beside
) -> None:
    silent = Peer(endpoint(target), greet=False)
    halfway = Peer(endpoint(target), greet=False)
    midway = Peer(endpoint(target))
    patient = Peer(endpoint(target))
    try:
        for peer in (silent, halfway, midway, patient):
            peer.hello()
        talk = wire.control(HELLO)
        halfway.send(talk[: len(talk) // 2])
        midway.send(talk[:-1])
        is_served(patient)
        for peer, owed in ((silent, "a greeting"), (halfway, "the rest of a frame"), (midway, "the rest of a frame")):
            error = peer.message(bound=SILENCE_S + 5)
            assert error["code"] == "timeout"
            assert owed in error["message"]
            assert peer.frame() is None
        is_served(patient)
    finally:
        for peer in (silent, halfway, midway, patient):
            peer.close()
    promised(world, target, bystander=bystander, beside=beside, numbers=50)


BAD_FRAMES = {
    "length 0": frame(wire.CONTROL, b"", 0),
    "length 2^32-1": frame(wire.CONTROL, b"x", 2**32 - 1),
    "over the cap": frame(wire.CONTROL, b"x", wire.FRAME_MAX_BYTES + 1),
    "unknown frame type": frame(9, b"{}"),
    "depth 10,000": frame(wire.CONTROL, b'{"type":"ping","v":' + b"[" * 10_000 + b"]" * 10_000 + b"}"),
    "depth 33": frame(wire.CONTROL, b'{"type":"ping","v":' + b"[" * 32 + b"]" * 32 + b"}"),
    "bad UTF-8": frame(wire.CONTROL, b'{"type":"ping","v":"\xff"}'),
    "no JSON": frame(wire.CONTROL, b'{"type":'),
    "no object": frame(wire.CONTROL, b'["ping"]'),
    "no type": frame(wire.CONTROL, b'{"id":1}'),
    "type no text": frame(wire.CONTROL, b'{"type":{"a":1}}'),
    "NaN": frame(wire.CONTROL, b'{"type":"wait","timeout":NaN}'),
    "short data frame": frame(wire.DATA, b"1234"),
}


@pytest.mark.covers("SEC-02")
def test_sec_02_a_bad_frame_is_refused_with_its_case_and_closed(
    world: World, target: Session, bystander: Bystanders, beside: Beside
) -> None:
    with Peer(endpoint(target)) as attached:
        attached.hello()
        for kind, bad in BAD_FRAMES.items():
            with Peer(endpoint(target)) as peer:
                peer.hello()
                assert peer.ask("ping")["type"] == "reply"
                peer.send(bad)
                error = peer.message()
                assert (error["type"], error["code"]) == ("error", "bad-request"), kind
                assert peer.frame() is None
            is_served(attached)
    promised(world, target, bystander=bystander, beside=beside, numbers=50)


@pytest.mark.covers("SEC-02")
def test_sec_02_an_unknown_request_and_a_million_keys_keep_the_connection(
    world: World, target: Session, bystander: Bystanders, beside: Beside
) -> None:
    before = memory_kb(runner_pid(target))
    with Peer(endpoint(target)) as peer:
        peer.hello()
        error = peer.ask("summon", what="x")
        assert (error["code"], error["status"]["state"]) == ("unsupported", "running")
        assert peer.ask("x" * 900_000)["code"] == "unsupported"
        keys = {f"k{n}": 0 for n in range(70_000)}
        lists: dict[str, list[int]] = {f"l{n}": [] for n in range(60_000)}
        for _ in range(8):  # a million, in frames that are not over the cap
            assert peer.ask("ping", **keys)["type"] == "reply"
            assert peer.ask("wait", **lists, timeout=0)["reason"] == "timeout"
        assert peer.ask("ping")["type"] == "reply"
    assert memory_kb(runner_pid(target)) - before < 60 << 10
    promised(world, target, bystander=bystander, beside=beside, numbers=50)


ODD: list[Any] = [
    None, True, -1, 0, 1.5, 1e300, -1e300, 2**70, "", "x", "\ud800", "\0", "x" * 5000, [], [[]], {}, {"a": 1}, ["TERM"],
]  # fmt: skip
FIELDS = {
    "ping": ["id", "x"],
    "status": ["id"],
    "output": ["stream", "since", "limit"],
    "write": ["data", "base64", "author"],
    "send_signal": ["signal", "target"],
    "stop": ["grace", "by", "reason", "ladder"],
    "wait": ["exit", "extinct", "ready", "closed", "output_after", "signals_after", "confirm", "timeout"],
    "update": ["name", "owner", "labels", "description", "notify", "timeout", "idle_timeout", "ttl", "lifetime", "x"],
    "resize": ["size"],
    "attach": ["x"],
    "watch": ["x"],
    "hello": ["protocol", "author"],
}
CASES = [
    (type, field, value)
    for type, fields in FIELDS.items()
    for field in fields
    for value in ODD
    # These are good requests: they would end the command, write to it, or wait.
    if not (type == "stop" and (field == "reason" or value is None or (field == "grace" and value in (True, 0, 1.5))))
    if not (type == "stop" and (field == "by" and isinstance(value, str)))
    if not (type == "stop" and field == "ladder" and value == [])
    if not (type == "write" and field == "data" and value in ("", "x", "\0", "x" * 5000))
    if not (type == "write" and field == "author")
    if not (type == "update" and value is not None and field in ("timeout", "idle_timeout", "ttl"))
]


@pytest.mark.covers("SEC-02")
def test_sec_02_every_field_of_every_request_takes_any_value_and_the_runner_lives(
    world: World, target: Session, bystander: Bystanders, beside: Beside
) -> None:
    """On the faulty code a lone surrogate, a list for a stream, or a wait of 1e300 seconds ended the runner."""
    with Peer(endpoint(target)) as peer:
        peer.hello()
        for number, (type, field, value) in enumerate(CASES):
            request = {"type": type, "id": number, field: value}
            if type == "wait":
                request.setdefault("timeout", 0)
            if type == "write" and field not in ("data", "base64"):
                request["data"] = ""
            if field == "id":
                assert peer.send(wire.control({"type": type, "id": value}))
                answer = peer.message()
                assert answer["id"] == (value if isinstance(value, int) and abs(value) < 2**63 else None)
                continue
            if type == "wait" and field == "timeout" and value in (None, 1.5):
                continue  # good ones, which would be waited for
            assert peer.send(wire.control(request)), request
            answer = until_answered(peer, number)
            assert answer["type"] in ("reply", "error"), (request, answer)
            if answer["type"] == "error":
                assert answer["code"] in ("bad-argument", "unsupported", "not-a-tty", "offset-ahead", "session-ended")
            assert answer["status"]["state"] == "running", request
        for value in (1e300, 2**70, "5", [], -1):
            assert peer.ask("wait", timeout=value)["code"] == "bad-argument"
            assert peer.ask("stop", grace=value)["code"] == "bad-argument"
            assert peer.ask("update", timeout=value)["code"] == "bad-argument"
            assert peer.ask("stop", ladder=[{"signal": "TERM", "wait_s": value}])["code"] == "bad-argument"
        assert peer.ask("wait", timeout=36525 * 86400, output_after={"stdout": 0})["reason"] == "output"
    assert target.refresh().state == "running"
    promised(world, target, bystander=bystander, beside=beside, numbers=50)


def until_answered(peer: Peer, number: int) -> dict[str, Any]:
    while True:
        found = peer.frame()
        assert found is not None
        if isinstance(found, dict) and found.get("id") == number and found["type"] != "written":
            return found


@pytest.mark.covers("SEC-02")
def test_sec_02_valid_talk_cut_at_every_byte_or_sent_byte_by_byte_does_no_harm(
    world: World, target: Session, bystander: Bystanders, beside: Beside
) -> None:
    talk = wire.control(HELLO) + wire.control({"type": "output", "id": 1, "since": 0})
    with Peer(endpoint(target)) as attached:
        attached.hello()
        for cut in range(len(talk)):
            with Peer(endpoint(target), greet=False) as peer:
                peer.send(talk[:cut])
        is_served(attached)
        with Peer(endpoint(target), greet=False) as peer:
            peer.hello()
            for byte in talk:
                peer.send(bytes([byte]))
            assert peer.message()["type"] == "reply"
            data = peer.frame()
            assert isinstance(data, tuple)
    promised(world, target, bystander=bystander, beside=beside, numbers=50)


@pytest.mark.covers("SEC-02", "SEC-03")
def test_sec_02_incomplete_frames_hold_bounded_memory_and_delay_nothing(
    world: World, target: Session, bystander: Bystanders, beside: Beside
) -> None:
    before = memory_kb(runner_pid(target))
    attached = Peer(endpoint(target))
    attached.hello()
    # All places but one for the host that looks, each with almost all of the largest frame.
    peers = [Peer(endpoint(target)) for _ in range(CLIENTS_MAX - 2)]
    try:
        large = frame(wire.CONTROL, b'{"type":"ping","v":"' + b"x" * (wire.FRAME_MAX_BYTES - 100))
        for peer in peers:
            peer.hello()
            peer.send(large)
        is_served(attached)
        # One frame each, and as much again for the room that a growing buffer is given.
        assert memory_kb(runner_pid(target), "VmHWM") - before < len(peers) * 2200 + (20 << 10)
    finally:
        for peer in [*peers, attached]:
            peer.close()
    until(lambda: len(processes.descriptors(runner_pid(target))) < 40, what="the end of the connections")
    promised(world, target, bystander=bystander, beside=beside, numbers=50)


@pytest.mark.covers("SEC-03")
def test_sec_03_a_thousand_connections_get_the_limit_error_and_slots_come_back(
    world: World, target: Session, bystander: Bystanders, beside: Beside
) -> None:
    attached = Peer(endpoint(target))
    attached.hello()
    # An answer later it has seen the leave of who called before.
    assert attached.ask("ping")["type"] == "reply"
    before = len(processes.descriptors(runner_pid(target)))
    memory = memory_kb(runner_pid(target))
    peers: list[Peer] = []
    told = {"hello": 0, "too-many-clients": 0}
    try:
        for number in range(1000):
            peer = Peer(endpoint(target), greet=number % 2 == 0)  # every other one stays half open
            first = peer.message()
            if first["type"] == "error":
                assert first["facts"]["limit"] == CLIENTS_MAX
                assert peer.frame() is None
                told[first["code"]] += 1
                peer.close()
            else:
                told["hello"] += 1
                peers.append(peer)
            if number % 250 == 0:
                is_served(attached)
        assert told == {"hello": CLIENTS_MAX - 1, "too-many-clients": 1000 - CLIENTS_MAX + 1}
        is_served(attached)
        seen = target.refresh()
        assert seen.state == "unreachable"
        assert "64 clients" in seen.metadata["evidence"]
    finally:
        for peer in peers:
            peer.close()
    is_served(attached)
    until(lambda: len(processes.descriptors(runner_pid(target))) == before, what="the return of the descriptors")
    attached.close()
    assert is_alive(endpoint(target))
    assert memory_kb(runner_pid(target)) - memory < 10 << 10
    promised(world, target, bystander=bystander, beside=beside, numbers=50)


@pytest.mark.covers("SEC-03")
@pytest.mark.parametrize("type", ["wait", "stop"])
def test_sec_03_too_many_unanswered_requests_of_one_client_are_refused_and_room_comes_back(
    world: World, bystander: Bystanders, beside: Beside, type: str
) -> None:
    """On faulty code each was kept and looked at in every turn of the loop."""
    session = world.open().start(world.probe("ignore", "TERM", "lines", 5, "forever"))
    assert session.wait(match="^line 5$", timeout=30).reason == "match"
    with Peer(endpoint(session)) as greedy, Peer(endpoint(session)) as other:
        greedy.hello()
        other.hello()
        asked = {"type": type, "exit": True, "grace": 60}
        for number in range(1000, 1020):
            greedy.send(wire.control({**asked, "id": number}))
        told = [greedy.message() for _ in range(4)]
        assert [(each["id"], each["code"]) for each in told] == [(number, "busy") for number in range(1016, 1020)]
        is_typed(HoldfastError.from_wire(told[0]))
        # What needs no patience is still answered, and so is everybody else.
        assert greedy.ask("ping")["type"] == "reply"
        other.send(wire.control({"type": "stop", "id": 1, "grace": 0}))
        assert {greedy.message()["id"] for _ in range(16)} == set(range(1000, 1016))
        assert other.message()["type"] == "reply"
    promised(world, session, bystander=bystander, beside=beside, numbers=5)


@pytest.mark.covers("SEC-03")
def test_sec_03_unread_replies_end_that_connection_and_no_other(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    session = world.open().start(world.probe("bytes", 2 * MIB, 5, "say", "", "say", "done", "cat"), stdin="open")
    assert session.wait(match="^done$", timeout=30).reason == "match"
    pid = runner_pid(session)
    before = memory_kb(pid, "VmHWM")
    with Peer(endpoint(session)) as attached, Peer(endpoint(session)) as stuck:
        attached.hello()
        request = wire.control({"type": "output", "id": 1, "since": 0})
        for _ in range(200):
            if not stuck.send(request):
                break
        assert attached.ask("ping")["type"] == "reply"
        until(lambda: not stuck.send(request), what="the end of the stuck connection")
        assert attached.ask("ping")["type"] == "reply"
    assert memory_kb(pid, "VmHWM") - before < 30 << 10
    promised(world, session, bystander=bystander, beside=beside)
    assert session.stop(grace=0).done


@pytest.mark.covers("SEC-01", "SEC-02")
def test_sec_02_a_launcher_answers_nonsense_and_starts_the_next_command_as_ever(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    launcher = str(next(world.runtime.glob("launcher-*.sock")))
    for kind, garbage in {**GARBAGE, **BAD_FRAMES}.items():
        with Peer(launcher, greet=False) as peer:
            peer.send(garbage)
            peer.sock.shutdown(1)
            told = peer.rest()
            assert len(told) <= 1, kind
            assert all(isinstance(each, dict) and each["code"] == "bad-request" for each in told), (kind, told)
    for start in ({"type": "hello"}, {"type": "start"}, {"type": "start", "spec": {}}, {"type": "start", "spec": 7}):
        with Peer(launcher, greet=False) as peer:
            peer.send(wire.control(start))
            peer.sock.shutdown(1)
            peer.rest()
    assert os.listdir(world.home / "sessions") == [beside.session.id]
    done = world.open().run("echo fine")
    assert done.text() == "fine\n"
    promised(world, done, bystander=bystander, beside=beside)
    assert json.loads((world.session(done.id) / "exit.json").read_text())["exit"]["code"] == 0
