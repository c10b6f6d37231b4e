"""A fabric that breaks, in every way: readers continue where they were, and nothing is lost on the nodes."""

from __future__ import annotations

import random
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from support.fabric_proxy import FabricProxy
from support.scale import scaled
from support.serving import START_BOUND_S, EventReader
from support.waiting import until
from support.webviewer import BINARY, WebViewer

if TYPE_CHECKING:
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
    until(lambda: serving.call("GET", f"/v1/nodes/{node}/info").status == 200, bound, what=f"node {node}")


@pytest.mark.covers("nodes:16", "nodes:19")
@pytest.mark.timeout(900)
def test_bytes_and_signals_come_whole_through_a_fabric_that_is_cut(world: World, fleet: Fleet) -> None:
    proxy, serving, (node,) = proxied(world, fleet, "a")
    _bytes(serving, node)
    _signals(proxy, serving, node)


def _bytes(serving: FleetServing, node: Machine) -> None:
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


def _signals(proxy: FabricProxy, serving: FleetServing, node: Machine) -> None:
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
    while times < cuts or not done.is_set() or len(seen) < len(_recorded(serving)):
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
                    elif done.is_set() and len(seen) >= len(_recorded(serving)):
                        break
        except OSError:
            continue
    loading.join()
    assert times == cuts
    assert len(seen) >= cuts
    assert seen == _recorded(serving)
    with EventReader(serving, target, last=last) as reader:
        reader.until("hello")
        for path in node.home.glob("index.db*"):
            path.unlink()
        assert reader.until("reset") == {"reason": "new_generation"}


def _recorded(serving: FleetServing) -> list[str]:
    found: list[str] = []
    after = "0"
    while True:
        answer = serving.call("GET", f"/v1/nodes/a/signals?limit=200&after={after}")
        if answer.status != 200:
            reached(serving, "a")
            continue
        if not answer.json["items"]:
            return found
        found += [each["id"] for each in answer.json["items"]]
        after = answer.json["next"]
