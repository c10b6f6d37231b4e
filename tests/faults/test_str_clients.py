"""STR-02: clients that die in mid-frame. The others get every byte, and the runner gets its descriptors back."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import sys

import pytest

from holdfast.core import wire
from support import numbered_stream, processes
from support.bystander import Bystanders
from support.peer import HELLO, Peer
from support.program import Program
from support.promised import Beside, promised
from support.scale import scaled
from support.waiting import until
from support.world import World

CLIENTS = scaled(16, 50)
SIZE = scaled(4, 8) << 20

# Follows stdout over the socket alone, as one who cannot reach the files: asks for what comes next until the end.
CLIENT = """
import hashlib, json, socket, struct, sys
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])

def send(message):
    raw = json.dumps(message).encode()
    sock.sendall(struct.pack(">IB", len(raw) + 1, 1) + raw)

buffer = b""
def take(size):
    global buffer
    while len(buffer) < size:
        part = sock.recv(1 << 16)
        if not part:
            sys.exit("the runner hung up")
        buffer += part
    found, buffer = buffer[:size], buffer[size:]
    return found

def frame():
    length, kind = struct.unpack(">IB", take(5))
    return kind, take(length - 1)

send(json.loads(sys.argv[2]))
assert json.loads(frame()[1])["type"] == "hello"
at, size, digest = 0, int(sys.argv[3]), hashlib.sha256()
print("ready", flush=True)
while at < size:
    send({"type": "wait", "id": 1, "output_after": {"stdout": at}})
    assert json.loads(frame()[1])["reason"] in ("output", "exit")
    send({"type": "output", "id": 2, "stream": "stdout", "since": at})
    reply = json.loads(frame()[1])
    kind, raw = frame()
    assert kind == 2 and reply["from"] == at == struct.unpack(">Q", raw[:8])[0], (at, reply)
    digest.update(raw[8:])
    at += len(raw) - 8
print(digest.hexdigest(), flush=True)
"""


@pytest.mark.covers("STR-02")
@pytest.mark.slow
def test_str_02_half_of_fifty_clients_killed_at_random_points_leave_the_others_byte_exact(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    gate = world.gate()
    command = ["sh", "-c", f'head -c1 {gate} >/dev/null; "$@"; exec cat', "sh", *numbered_stream.argv(SIZE, chunk=5000)]
    session = world.open().start(command, stdin="open")
    runner = session.runner_pid
    assert runner is not None
    attached = world.closing.enter_context(Peer(str(session.endpoint)))
    before = len(settled(attached, runner))
    script = world.root / "client.py"
    script.write_text(CLIENT)
    words = [sys.executable, "-I", "-S", str(script), str(session.endpoint), json.dumps(HELLO), str(SIZE)]
    crowd: list[Program] = [world.program(words) for _ in range(CLIENTS)]
    for client in crowd:
        assert client.line() == "ready", client.errors()
    assert len(processes.descriptors(runner)) >= before + CLIENTS
    chance = random.Random(2)
    doomed = chance.sample(crowd, CLIENTS // 2)
    gate.release()
    for client in doomed:
        # At a point of its own: so much more output, then the end of one client.
        mark = session.refresh().ends["stdout"] + chance.randrange(SIZE // CLIENTS)
        until(lambda mark=mark: session.refresh().ends["stdout"] >= min(mark, SIZE))  # type: ignore[misc]
        client.signal(signal.SIGKILL)
    wanted = hashlib.sha256(numbered_stream.at(0, SIZE)).hexdigest()
    for client in crowd:
        if client not in doomed:
            assert client.line(60) == wanted, client.errors()
            assert client.wait() == 0
    for client in doomed:
        client.wait()
    until(lambda: len(settled(attached, runner)) == len_with_log(runner, before), what="the return of descriptors")
    attached.close()
    assert session.refresh().state == "running"
    promised(world, session, bystander=bystander, beside=beside)
    assert session.stop(grace=0).done


def settled(attached: Peer, runner: int) -> dict[int, str]:
    """What the runner has open, once it has seen everybody leave who left before this."""
    attached.ask("ping")
    return processes.descriptors(runner)


def len_with_log(runner: int, before: int) -> int:
    """The log and its frames were opened meanwhile, and stay."""
    names = [to.rpartition("/")[2] for to in processes.descriptors(runner).values()]
    return before + sum(name == "frames" or name.startswith("stdout.") for name in names)


@pytest.mark.covers("STR-02")
def test_str_02_clients_that_vanish_in_the_middle_of_a_reply_are_forgotten_at_once(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    command = ["sh", "-c", '"$@"; echo; echo end; exec cat', "sh", *numbered_stream.argv(1 << 20)]
    session = world.open().start(command, stdin="open")
    assert session.wait(match="^end$", timeout=30).reason == "match"
    runner = session.runner_pid
    assert runner is not None
    with Peer(str(session.endpoint)) as attached:
        attached.hello()
        before = settled(attached, runner)
        for cut in (0, 1, 4, 5, 100, 1000, 65_536, 200_000):
            peer = Peer(str(session.endpoint))
            peer.hello()
            assert attached.ask("ping")["type"] == "reply"
            peer.send(b"".join(_output(since) for since in range(0, 1 << 20, 1 << 18)))
            left = cut
            while left > 0:
                left -= len(peer.sock.recv(left))
            peer.close()
            reply = attached.ask("output", since=cut)
            data = attached.frame()
            assert isinstance(data, tuple)
            assert data[1] == numbered_stream.at(cut, len(data[1]))
            assert reply["from"] == cut
        until(lambda: settled(attached, runner) == before, what="the return of the descriptors")
    promised(world, session, bystander=bystander, beside=beside)
    assert session.stop(grace=0).done


def _output(since: int) -> bytes:
    return wire.control({"type": "output", "id": 1, "since": since})
