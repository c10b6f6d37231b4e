"""A node that has much to do for one view, and a view that takes nothing: others do not notice."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import threading
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from support.fabric_proxy import FabricProxy
from support.own_time import OwnTime
from support.scale import scaled
from support.serving import START_BOUND_S, EventReader, ended, started
from support.through_nodes import ThroughNode
from support.waiting import BOUND_S, until
from support.webviewer import WebViewer

if TYPE_CHECKING:
    from support.fleets import Fleet, Machine
    from support.world import World


LOG_BYTES = scaled(24, 64) << 20
PART_BYTES = 1 << 20
WAIT_S = scaled(5, 60)
# Takes long on random text, so that each search ends at its 2 s.
SLOW = quote("[a-m].{40}=wanted")


@pytest.mark.covers("nodes:18")
@pytest.mark.timeout(300)
def test_a_search_a_wait_and_a_download_delay_no_other_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # The usual one is as large as the log, of which it would drop the beginning.
    monkeypatch.setenv("HOLDFAST_LOG_SESSION_CAP", "128MiB")
    serving = ThroughNode(world)
    big = started(serving, f"base64 -w 200 /dev/urandom | head -c {LOG_BYTES}")["id"]
    ended(serving, big)
    idle = started(serving, "exec cat", tty=True)["id"]
    alone = [_asked(serving, idle) for _ in range(20)]
    answers: dict[str, list[bytes]] = {"search": [], "wait": []}
    over = threading.Event()

    def search() -> None:
        while not over.is_set():
            answers["search"].append(serving.ask(f"/v1/sessions/{big}/search?re={SLOW}").body)

    def wait() -> None:
        answers["wait"].append(serving.ask(f"/v1/sessions/{idle}/wait?until=exit&timeout={WAIT_S}", bound=90).body)

    with socket.create_connection(("127.0.0.1", serving.port), BOUND_S) as download:
        head = "\r\n".join(f"{name}: {value}" for name, value in serving.bearer.items())
        download.sendall(f"GET {serving.at(f'/v1/sessions/{big}/log/stdout')} HTTP/1.1\r\n{head}\r\n\r\n".encode())
        got = len(download.recv(1 << 10))
        # A part of it goes through during each request, so that there are enough of them.
        parts = threading.Semaphore(0)

        def read_rest() -> None:
            nonlocal got
            while got <= LOG_BYTES:
                parts.acquire()
                end = got + PART_BYTES
                while got < end and (more := download.recv(64 << 10)):
                    got += len(more)

        threads = [threading.Thread(target=each) for each in (search, wait)]
        for thread in threads:
            thread.start()
        # The download takes all its credit, and stops there.
        held_up = [_asked(serving, idle) for _ in range(20)]
        rest = threading.Thread(target=read_rest)
        rest.start()
        flowing: list[float] = []
        while rest.is_alive():
            parts.release()
            flowing.append(_asked(serving, idle))
        over.set()
        for thread in (*threads, rest):
            thread.join()
    assert got > LOG_BYTES
    assert [b'"timeout"' in body for body in answers["wait"]] == [True]
    assert answers["search"]
    assert all(b'"complete": false' in body for body in answers["search"])
    assert len(flowing) >= 20
    for took in (held_up, flowing):
        usual, now = (quantiles(each, n=10) for each in (alone, took))
        assert now[4] < usual[4] + 0.03
        assert now[8] < usual[8] + 0.1
        assert max(took) < max(alone) + 0.5
    world.open().get(idle).kill()


def test_a_download_that_is_cut_off_is_no_failure_of_the_node(world: World) -> None:
    serving = ThroughNode(world)
    id = started(serving, "base64 -w 200 /dev/urandom | head -c 20000000")["id"]
    ended(serving, id)
    head = "\r\n".join(f"{name}: {value}" for name, value in serving.bearer.items())
    request = f"GET {serving.at(f'/v1/sessions/{id}/log/stdout')} HTTP/1.1\r\n{head}\r\n\r\n".encode()
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", serving.port), BOUND_S) as download:
            download.sendall(request)
            assert download.recv(12) == b"HTTP/1.1 200"
        # The node hears of it before it hears of this.
        assert serving.ask("/v1/info").status == 200
    serving.direct.leave()
    assert "Traceback" not in serving.direct.program.errors()


def _asked(serving: ThroughNode, id: str) -> float:
    """The time of two requests, one that reads and one that acts, without what the servers waited for a processor."""
    own = OwnTime(*serving.pids)
    assert serving.call("GET", f"/v1/sessions/{id}").status == 200
    assert serving.call("POST", f"/v1/sessions/{id}/input", {"write": "x"}).status == 200
    return own.stop().seconds(*serving.pids)


VIEWERS = 12
FLOOD_BYTES = 2 << 20


@pytest.mark.covers("nodes:21")
@pytest.mark.timeout(300)
def test_a_view_that_the_fabric_cuts_off_continues_and_nodes_are_not_affected(world: World, fleet: Fleet) -> None:
    node = fleet.join("a")
    before_node, before_view = (FabricProxy(world, fleet.port) for _ in range(2))
    log = _write_deadline(fleet, scaled("1s", "10s"))
    # The same view on a connection of its own.
    twin = fleet.machine("twin")
    twin.home.mkdir(mode=0o700)
    shutil.copytree(fleet.view.file(""), twin.file(""), ignore=shutil.ignore_patterns("*.lock", "fabric.json"))
    before_node.carry(node.file("joined.json"))
    before_view.carry(fleet.view.file("viewing.json"))
    before_view.takes_little()
    node.serve()
    serving = fleet.serve_view()
    until(lambda: serving.call("GET", "/v1/nodes/a/info").status == 200, START_BOUND_S, what="the node")
    printing = f"stty raw -echo; printf up; head -c 1 >/dev/null; yes | head -c {FLOOD_BYTES}; exec cat"
    id = node.hold("start", "--tty", "--", printing).stdout.strip()
    node.hold("wait", id, "--match", "up")
    viewers = [
        WebViewer(serving.address, serving.token, id, base="/v1/nodes/a", from_="start", lag="exact", draws=False)
        for _ in range(VIEWERS)
    ]
    for viewer in viewers:
        viewer.until(lambda viewer=viewer: viewer.at == 2, "what was printed first")  # type: ignore[misc]
    until(lambda: _listed(serving.call("GET", "/v1/sessions?nodes=all").json) == {id}, what="its session in the list")
    with EventReader(serving, "/v1/nodes/a/events?types=signal") as reader:
        last = f"{reader.until('hello')['generation']}:0"

    before_view.stall()
    node.hold("keys", id, "g")
    new = node.hold("run", "--notify", "exit", "--owner", "other", "--json", "--", "true").stdout
    until(lambda: "Slow Consumer" in log.read_text(), 60, what="that the fabric cuts the view off")
    # Others are answered meanwhile, on the same fabric.
    until(lambda: _state(twin) == "connected", START_BOUND_S, what="an answer to another")
    before_view.flow()

    until(lambda: before_view.connections == 2, START_BOUND_S, what="the next connection of the view")
    until(lambda: serving.call("GET", "/v1/nodes/a/info").status == 200, START_BOUND_S, what="the node")
    for viewer in viewers:
        while viewer.closed is None and viewer.at < 2 + FLOOD_BYTES:
            viewer.take(1)
        if viewer.closed is not None:
            viewer.join(from_=viewer.at)
    for viewer in viewers:
        viewer.until(lambda viewer=viewer: viewer.at == 2 + FLOOD_BYTES, "every byte", 60)  # type: ignore[misc]
        viewer.leave()
    assert all(len(viewer.of("init")) > 1 for viewer in viewers)
    with EventReader(serving, "/v1/nodes/a/events?types=signal", last=last) as reader:
        reader.until("signal", owner="other")
    until(
        lambda: len(_listed(serving.call("GET", "/v1/sessions?nodes=all").json)) == 2, START_BOUND_S, what="the new one"
    )
    assert before_node.connections == 1
    assert log.read_text().count("Slow Consumer") == 1, new
    assert serving.call("GET", "/v1/nodes").json["items"][0]["state"] == "connected"


def _listed(page: dict[str, list[dict[str, str]]]) -> set[str]:
    return {row["id"] for row in page["items"]}


def _state(view: Machine) -> str:
    (row,) = json.loads(view.hold("node", "ls", "--json").stdout)["nodes"]
    return str(row["state"])


def _write_deadline(fleet: Fleet, deadline: str) -> Path:
    """Have the server of the fabric cut off after this time whoever takes nothing, and say so in this file."""
    path = fleet.view.file("nats.conf")
    log = path.with_name("nats.log")
    text = re.sub('write_deadline: "[^"]*"', f'write_deadline: "{deadline}"', path.read_text())
    path.write_text(f'{text}log_file: "{log}"\n')
    (child,) = Path(f"/proc/{fleet.fabric.pid}/task/{fleet.fabric.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGHUP)
    until(lambda: log.exists() and "Reloaded" in log.read_text(), what="the new configuration")
    return log
