"""A fabric that breaks, in every way: readers continue where they were, and nothing is lost on the nodes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from websockets.exceptions import WebSocketException

from holdfast.core.clock import rfc3339
from support.fabric_proxy import FabricProxy
from support.fleets import leave
from support.own_time import QuietTime
from support.scale import scaled
from support.serving import START_BOUND_S, EventReader
from support.through_nodes import there
from support.waiting import until, wait_gone
from support.webviewer import BINARY, WebViewer

if TYPE_CHECKING:
    from support.fabric_proxy import Message
    from support.fleets import Fleet, FleetServing, Machine
    from support.world import World

# Waits for a line, and prints 4 KiB in which every byte occurs.
BYTES = """
import os, random, tty
tty.setraw(0)
os.write(1, b"ready")
os.read(0, 1)
os.write(1, bytes(range(256)) + random.Random(7).randbytes(3840))
os.read(0, 1)
"""


def proxied(world: World, fleet: Fleet, *names: str) -> tuple[FabricProxy, FleetServing, list[Machine]]:
    """Nodes behind a proxy, and the server of their view, which is not."""
    proxy = FabricProxy(world, fleet.port)
    nodes = [fleet.join(name) for name in names]
    for node in nodes:
        proxy.carry(node.file("joined.json"))
        node.serve()
    serving = fleet.serve_view()
    for name in names:
        reached(serving, name)
    return proxy, serving, nodes


def reached(serving: FleetServing, node: str, bound: float = START_BOUND_S) -> None:
    # A request that was under way when the fabric broke may take 35 s.
    target = f"/v1/nodes/{node}/info"
    until(lambda: serving.ask(target, bound=45).status == 200, bound, what=f"node {node}")


@pytest.mark.covers("nodes:16")
@pytest.mark.timeout(900)
def test_every_byte_comes_through_a_fabric_as_it_is_in_the_log(world: World, fleet: Fleet) -> None:
    _, serving, (node,) = proxied(world, fleet, "a")
    id = node.hold("start", "--tty", "--", sys.executable, "-c", BYTES).stdout.strip()
    node.hold("wait", id, "--match", "ready")

    def attach(**query: object) -> WebViewer:
        return WebViewer(serving.address, serving.token, id, BINARY, base="/v1/nodes/a", **query)  # type: ignore[arg-type]

    live = [attach(from_="start", role=role) for role in ("control", "observe")]
    for viewer in live:
        viewer.begun()
    node.hold("keys", id, "g")
    end = len("ready") + 4096
    for viewer in live:
        viewer.until(lambda viewer=viewer: viewer.at == end, "all bytes")  # type: ignore[misc]
    (segment,) = (node.home / "sessions" / id).glob("tty.0*")
    whole = segment.read_bytes()
    assert set(whole) == set(range(256))
    assert [bytes(viewer.live) for viewer in live] == [whole, whole]
    for role, step in (("observe", scaled(193, 1)), ("control", scaled(512, 1))):
        for offset in range(0, len(whole) + 1, step):
            viewer = attach(from_=offset, role=role)
            init = viewer.begun()
            assert (init["resumed"], init["at"], init["screen"]) == (True, offset, None)
            while viewer.at < len(whole):
                assert viewer.take(30)
            assert viewer.live == whole[offset:]
            viewer.leave()
    for viewer in live:
        viewer.leave()
    node.hold("stop", id, "--grace", "0")


@pytest.mark.covers("nodes:19")
@pytest.mark.timeout(scaled(120, 900))
def test_signals_come_once_and_in_order_through_a_fabric_that_is_cut(world: World, fleet: Fleet) -> None:
    proxy, serving, (node,) = proxied(world, fleet, "a")
    target, chance = "/v1/nodes/a/events?types=signal", random.Random(19)
    with EventReader(serving, target) as reader:
        last = f"{reader.until('hello')['generation']}:0"
    cuts = scaled(6, 50)
    done = threading.Event()

    def load() -> None:
        for number in range(cuts):
            node.hold("run", "--notify", "exit", "--owner", "load", "--", f"echo {number}")
        done.set()

    loading = threading.Thread(target=load)
    loading.start()
    seen: list[str] = []
    times = 0
    while times < cuts or not done.is_set() or len(seen) < len(_in_files(node)):
        reached(serving, "a")
        try:
            with EventReader(serving, target, last=last) as reader:
                if reader.answer.status != 200:
                    continue
                left = chance.randrange(3)
                for name, id, data in reader:
                    assert name in ("hello", "signal"), (name, data)
                    if name == "signal":
                        assert id is not None
                        seen.append(data["id"])
                        last = id
                        left -= 1
                    if left <= 0 and times < cuts:
                        times += 1
                        proxy.cut()
                        left = 1 << 30
                    elif done.is_set() and len(seen) >= len(_in_files(node)):
                        break
        except OSError:
            continue
    loading.join()
    assert times == cuts
    assert len(seen) >= cuts
    assert sorted(seen) == sorted(_in_files(node))
    # Its own queue, which is read there, has the order in which they entered it.
    assert seen == [each["id"] for each in json.loads(node.hold("signals", "--owner", "load", "--json").stdout)]
    with EventReader(serving, target, last=last) as reader:
        reader.until("hello")
        for path in node.home.glob("index.db*"):
            path.unlink(missing_ok=True)
        assert reader.until("reset") == {"reason": "new_generation"}


def _in_files(node: Machine) -> list[str]:
    """The signals for queues that the files of its sessions have."""
    files = (path.read_bytes() for path in (node.home / "sessions").glob("*/signals.jsonl"))
    records = [json.loads(line) for file in files for line in file.splitlines(keepends=True) if line.endswith(b"\n")]
    return [each["id"] for each in records if each.get("routed") is True]


@pytest.mark.covers("nodes:2")
@pytest.mark.parametrize("victim", ["nats-server", pytest.param("hold fabric", marks=pytest.mark.long)])
def test_a_killed_fabric_disturbs_no_work_and_every_machine_reconnects(world: World, fleet: Fleet, victim: str) -> None:
    nodes = [fleet.join(name) for name in "ab"]
    for node in nodes:
        node.serve()
    serving = fleet.serve_view()
    began = rfc3339(time.time_ns())
    stop = world.root / "stop"
    script = f"stty -opost; i=0; while [ ! -e {stop} ]; do echo $i; i=$((i+1)); sleep 0.5; done; echo end; exit 7"
    started: dict[str, Machine] = {}
    for node in nodes:
        reached(serving, node.name)
        for _ in range(10):
            asked = {"command": script, "tty": True, "notify": "exit", "owner": "load"}
            answer = serving.call("POST", f"/v1/nodes/{node.name}/sessions", asked)
            assert answer.status == 201, answer.body
            started[answer.json["id"]] = node
    first = next(iter(started))
    viewer = WebViewer(serving.address, serving.token, first, base="/v1/nodes/a", from_="start", lag="exact")
    viewer.until(lambda: viewer.at > 3, "output")
    assert {each["state"] for each in serving.call("GET", "/v1/nodes").json["items"]} == {"connected"}
    sizes = {id: _logged(node, id) for id, node in started.items()}
    (server,) = Path(f"/proc/{fleet.fabric.pid}/task/{fleet.fabric.pid}/children").read_text().split()
    killed = QuietTime()
    os.kill(int(server) if victim == "nats-server" else fleet.fabric.pid, signal.SIGKILL)
    wait_gone(int(server))
    until(lambda: _states(serving) == {"unreachable"}, START_BOUND_S, what="that both nodes are unreachable")
    assert killed.seconds() < 40
    since = rfc3339(time.time_ns())
    for row in serving.call("GET", "/v1/nodes").json["items"]:
        # The time of its last word, which was before it was called unreachable.
        assert began < row["seen_at"] <= since
        assert row["why"]
        # Its rows are still there, and none is called ended.
        assert row["sessions"] == {"running": 10}
    assert fleet.fabric.wait() != 0
    if victim == "nats-server":
        assert "nats-server ended, killed by signal 9" in fleet.fabric.errors()
    for machine in (*nodes, fleet.view):
        assert machine.hold("run", "--", "echo local").stdout == "local\n"
    until(
        lambda: all(len(_logged(node, each)) > len(sizes[each]) for each, node in started.items()), what="more output"
    )
    viewer.until(lambda: viewer.closed is not None, "that the attach ends")
    at = viewer.at

    fleet.start_fabric()
    for node in nodes:
        reached(serving, node.name, 60)
    viewer.join(from_=at)
    viewer.until(lambda: viewer.at > at, "what comes after its byte")
    assert [(init["at"], init["resumed"]) for init in viewer.of("init")[1:]] == [(at, True)]
    stop.touch()
    viewer.until(lambda: viewer.closed is not None, "the end")
    for id, node in started.items():
        woke = there(serving, node.name, f"/sessions/{id}/wait?until=exit&timeout=30")
        assert woke["session"]["exit"]["code"] == 7, woke["session"]["exit"]
        log = _logged(node, id)
        lines = log.split()
        assert lines == [b"%d" % number for number in range(len(lines) - 1)] + [b"end"]
        answer = serving.call("GET", f"/v1/nodes/{node.name}/sessions/{id}/log/tty")
        assert answer.body == log
    assert bytes(viewer.live) == _logged(nodes[0], first)[viewer.live_from :]
    for node in nodes:
        until(lambda node=node: len(_exits(serving, node)) == 10, what="a signal for each")  # type: ignore[misc]
        assert sorted(_exits(serving, node)) == sorted(id for id in started if started[id] is node)


def _states(serving: FleetServing) -> set[str]:
    return {each["state"] for each in serving.call("GET", "/v1/nodes").json["items"]}


def _exits(serving: FleetServing, node: Machine) -> list[str]:
    items = there(serving, node.name, "/signals?limit=200")["items"]
    return [each["session"] for each in items if each["owner"] == "load"]


def _logged(node: Machine, id: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((node.home / "sessions" / id).glob("tty.0*")))


@pytest.mark.covers("nodes:10")
def test_a_second_machine_under_a_name_and_a_copied_home_are_named_and_not_used(world: World, fleet: Fleet) -> None:
    node = fleet.node("a")
    serving = fleet.serve_view()
    reached(serving, "a")
    id = node.hold("start", "--tty", "--", "cat").stdout.strip()
    viewer = WebViewer(serving.address, serving.token, id, base="/v1/nodes/a")
    viewer.begun()
    fingerprint = fleet.listed()["a"]["fingerprint"]
    second = fleet.machine("second")
    inviting, code = fleet.invite("a")
    refused = second.hold("node", "join", code, check=False)
    assert inviting.wait(START_BOUND_S) != 0
    for text in (refused.stderr, inviting.errors()):
        assert "the name a belongs to another machine" in text
        assert fingerprint in text
    assert refused.returncode != 0
    assert not second.file("joined.json").exists()
    viewer.type(b"undisturbed")
    viewer.until(lambda: "undisturbed" in viewer.text, "its echo")
    assert fleet.listed()["a"]["fingerprint"] == fingerprint

    copy = fleet.machine("copy")
    copy.home.mkdir(mode=0o700)
    shutil.copytree(node.file(""), copy.file(""), ignore=shutil.ignore_patterns("*.lock"))
    viewer.leave()
    server = copy.program("serve", "--no-listen")
    world.closing.callback(leave, server)
    answers = [serving.call("POST", "/v1/nodes/a/sessions", {"command": "true"})]
    while sum(each.status == 409 for each in answers) < 3:
        answers.append(serving.call("POST", "/v1/nodes/a/sessions", {"command": "true"}))
    ran = [each.json for each in answers if each.status == 201]
    turned_away = [each.json for each in answers if each.status != 201]
    # Before the view knows of the copy, a request may have been sent to the first machine. That is said.
    started = set(node.hold("ls", "-aq").stdout.split()) - {id}
    assert {each["id"] for each in ran} <= started
    assert len(started) - len(ran) <= sum(each["sent"] for each in turned_away)
    # A process that begins now has not known either of them.
    for _ in range(3):
        serving.kill()
        serving.program.wait()
        serving.start()
        until(lambda: "no fabric" not in _asked_why(serving), START_BOUND_S, what="the fabric")
        answer = serving.call("POST", "/v1/nodes/a/sessions", {"command": "true"})
        assert (answer.slug, answer.json["sent"]) == ("node-twice", False)
        done = fleet.view.hold("start", "--place", "node:a", "--json", "--", "true", check=False)
        assert json.loads(done.stderr.splitlines()[-1])["code"] == "node-twice", done.stderr
        assert "two machines answer" in str(fleet.listed()["a"]["why"])
    assert set(node.hold("ls", "-aq").stdout.split()) == {id} | started
    assert copy.hold("ls", "-aq").stdout == ""
    server.signal(signal.SIGTERM)
    server.wait(START_BOUND_S)
    reached(serving, "a")
    assert fleet.listed()["a"]["state"] == "connected"


def _asked_why(serving: FleetServing) -> str:
    return str(serving.call("GET", "/v1/nodes/a/info").json.get("why"))


@pytest.mark.covers("nodes:4")
@pytest.mark.timeout(900)
def test_through_a_connection_that_cuts_delays_drops_and_stalls_nothing_is_lost_or_doubled(
    world: World, fleet: Fleet
) -> None:
    proxy = FabricProxy(world, fleet.port)
    node = fleet.join("a")
    node.serve()
    serving = fleet.serve_view()
    reached(serving, "a")
    stop = world.root / "stop"
    script = f"stty -opost; i=0; while [ ! -e {stop} ]; do echo $i; i=$((i+1)); sleep 0.1; done; echo end"
    printing = [node.hold("start", "--tty", "--", script).stdout.strip() for _ in range(2)]
    typing = node.hold("start", "--tty", "--", "stty -echo -opost; exec cat").stdout.strip()
    # From here on both sides go through it; the view reads its file again when it changes.
    proxy.carry(fleet.view.file("viewing.json"), node.file("joined.json"))
    until(lambda: proxy.connections >= 2, START_BOUND_S, what="both connections")
    reached(serving, "a")
    weather = _Weather(proxy, world)
    results: dict[str, tuple[int, bool]] = {}
    longest = [0.0]
    viewers = [_Patient(serving, id) for id in printing]
    readers = [threading.Thread(target=viewer.read_all) for viewer in viewers]
    for reader in readers:
        reader.start()
    number = 0
    while not weather.is_over:
        text = f"<{number}>"
        number += 1
        asked = QuietTime()
        answer = serving.ask(
            f"/v1/nodes/a/sessions/{typing}/input",
            {**serving.bearer, "Content-Type": "application/json"},
            method="POST",
            body=json.dumps({"write": text + "\n"}).encode(),
            bound=60,
        )
        longest.append(asked.seconds())
        is_whole = len(answer.body) == int(answer.headers["content-length"])
        is_unknown = not is_whole or (answer.status != 200 and bool(answer.json.get("sent")))
        results[text] = answer.status, is_unknown
    weather.end()
    reached(serving, "a", 60)
    stop.touch()
    for reader, viewer, id in zip(readers, viewers, printing, strict=True):
        reader.join(90)
        assert not reader.is_alive()
        assert viewer.live == _logged(node, id)
        assert viewer.live.endswith(b"end\n")
    # An exchange ends 35 s after the last word; one that is not answered is given up after 10 s.
    assert max(longest) < 36
    last = serving.call("POST", f"/v1/nodes/a/sessions/{typing}/input", {"write": "last\n"})
    assert last.status == 200, last.body
    until(lambda: b"last" in _logged(node, typing), what="what was typed last")
    log = _logged(node, typing)
    for text, (status, is_unknown) in results.items():
        count = log.count(text.encode())
        assert count <= 1 if is_unknown else count == (status == 200), (text, status, is_unknown, count)
    assert weather.kinds >= {"cut", "delay", "stall"}
    assert weather.dropped
    assert sum(status == 200 for status, _ in results.values()) >= 3


class _Weather:
    """Cuts, delays and stalls at random, and drops one message of a hundred."""

    def __init__(self, proxy: FabricProxy, world: World) -> None:
        self._proxy = proxy
        self._chance = random.Random(4)
        self._over = threading.Event()
        self._is_delayed = threading.Event()
        self.dropped = 0
        self.kinds: set[str] = set()
        proxy.change = self._change
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        world.closing.callback(self.end)

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self._proxy.change = lambda message: message.payload
        self._proxy.flow()

    def _change(self, message: Message) -> bytes | None:
        # In a short run the first drop comes soon.
        if self._chance.random() < 0.01 or (not self.dropped and message.kind == 3):
            self.dropped += 1
            return None
        if self._is_delayed.is_set():
            self._is_delayed.clear()
            self._over.wait(2)
        return message.payload

    def _run(self) -> None:
        deadline = time.monotonic() + scaled(12, 600)
        kinds = ["cut", "delay", "stall"]
        while time.monotonic() < deadline and not self._over.wait(self._chance.uniform(0.3, scaled(2, 8))):
            kind = kinds[len(self.kinds)] if len(self.kinds) < 3 else self._chance.choice(kinds)
            self.kinds.add(kind)
            if kind == "cut":
                self._proxy.cut()
            elif kind == "delay":
                self._is_delayed.set()
            else:
                self._proxy.stall()
                self._over.wait(self._chance.uniform(0.2, scaled(1, 50)))
                self._proxy.flow()
        self._over.set()


class _Patient:
    """A reader that attaches again at its byte whenever it is cut off."""

    def __init__(self, serving: FleetServing, id: str) -> None:
        self._serving = serving
        self._id = id
        self.live = b""

    def read_all(self) -> None:
        deadline = time.monotonic() + scaled(120, 800)
        while not self.live.endswith(b"end\n") and time.monotonic() < deadline:
            try:
                viewer = WebViewer(
                    *(self._serving.address, self._serving.token, self._id),
                    base="/v1/nodes/a",
                    from_=len(self.live) or "start",
                    lag="exact",
                    role="observe",
                )
            except (OSError, WebSocketException):
                continue
            while viewer.closed is None and not viewer.live.endswith(b"end\n") and time.monotonic() < deadline:
                viewer.take(1)
            if viewer.of("init"):
                assert viewer.of("init")[0]["at"] == len(self.live)
                self.live += bytes(viewer.live)
            viewer.leave()
