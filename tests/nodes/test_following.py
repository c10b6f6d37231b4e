"""What a view knows of its nodes: while a machine sleeps, while nobody looks, after the fabric has cut it off."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench import many_nodes
from holdfast.core.clock import rfc3339
from holdfast.home import Home
from holdfast.nodes import fabric
from holdfast.nodes.joining import Viewing
from support.fabric_proxy import FabricProxy
from support.fleets import leave
from support.own_time import OwnTime
from support.scale import scaled
from support.serving import START_BOUND_S, EventReader, Serving
from support.waiting import until

if TYPE_CHECKING:
    from typing import Any

    from support.fleets import Fleet, FleetServing
    from support.program import Program
    from support.world import World

OPEN = 1
_ROOT = Path(__file__).parents[2]
_PATHS = f"{_ROOT}:{_ROOT / 'tests'}"
# In the short form, times are this part of what they are.
PACE = scaled(0.1, 1.0)


def listed(serving: FleetServing, node: str = "a") -> dict[str, Any]:
    """The state of each session of nodes in the view's list."""
    answer = serving.call("GET", "/v1/sessions?nodes=all")
    assert answer.status == 200, answer.body
    return {row["id"]: row["state"] for row in answer.json["items"] if row["node"] == node}


def node_of(serving: FleetServing) -> dict[str, Any]:
    (row,) = serving.call("GET", "/v1/nodes").json["items"]
    found: dict[str, Any] = row
    return found


@pytest.mark.covers("nodes:5")
@pytest.mark.timeout(600)
def test_a_node_that_sleeps_is_unreachable_with_its_age_and_right_again_when_it_wakes(
    world: World, fleet: Fleet
) -> None:
    node = fleet.join("a")
    proxy = FabricProxy(world, fleet.port)
    proxy.carry(fleet.view.file("viewing.json"))
    cable = FabricProxy(world, fleet.port)
    cable.carry(node.file("joined.json"))
    server = node.serve(PACE)
    serving = fleet.serve_view(PACE)
    stop = world.root / "stop"
    ending = node.hold("start", "--", f"while [ ! -e {stop} ]; do sleep 0.1; done").stdout.strip()
    staying = node.hold("start", "--tty", "--", "cat").stdout.strip()
    ended = node.hold("start", "--", "true").stdout.strip()
    node.hold("wait", ended)
    before = {ending: "running", staying: "running", ended: "exited"}
    until(lambda: listed(serving) == before, START_BOUND_S, what="its sessions in the list")
    last = node_of(serving)
    assert (last["state"], last["sessions"]) == ("connected", {"running": 2, "exited": 1})

    asleep = node.processes(server)
    assert len(asleep) >= 6  # server, launcher, two runners, two commands
    for pid in asleep:
        os.kill(pid, signal.SIGSTOP)
    # Its connection will not be there any more when it wakes, and neither side is told.
    cable.forget()
    fell_asleep = rfc3339(time.time_ns())
    began, at = time.monotonic(), len(proxy.messages)
    try:
        while time.monotonic() < began + scaled(12, 300):
            assert listed(serving) == before
            row = node_of(serving)
            assert row["sessions"] == last["sessions"]
            if row["state"] == "connected":
                assert time.monotonic() < began + 40 * PACE + START_BOUND_S
            else:
                # The time of its last word, which was before it fell asleep.
                assert last["seen_at"] <= row["seen_at"] <= fell_asleep
                assert row["why"] in ("no answer", "no message for 35 s")
        assert node_of(serving)["state"] == "unreachable"
        # It wakes when the view has just asked it once more.
        asked = _attempts(proxy, at)
        assert asked > 3
        until(lambda: _attempts(proxy, at) > asked, START_BOUND_S, what="one more attempt")
        stop.touch()
    finally:
        for pid in reversed(asleep):
            os.kill(pid, signal.SIGCONT)
    woken = OwnTime(serving.pid, server.pid)
    after = {**before, ending: "exited"}
    until(
        lambda: (listed(serving), node_of(serving)["state"]) == (after, "connected"),
        120,
        what="its sessions as they are",
    )
    assert woken.stop().seconds(serving.pid, server.pid) < 10


@pytest.mark.parametrize("clock", [0, 1], ids=["since the boot", "of the wall"])
def test_a_jump_of_a_clock_makes_a_new_connection_at_once(
    world: World, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, clock: int
) -> None:
    """While a machine sleeps, the clock of its timers stands still."""
    proxy = FabricProxy(world, fleet.port)
    proxy.carry(fleet.view.file("viewing.json"))
    jumped = [0.0, 0.0]
    read = fabric._clocks
    monkeypatch.setattr(fabric, "_clocks", lambda: [now + more for now, more in zip(read(), jumped, strict=True)])

    async def main() -> None:
        view = Viewing(Home(str(fleet.view.home)))
        address = view.address
        assert address is not None
        changes: asyncio.Queue[str] = asyncio.Queue()

        def changed() -> None:
            changes.put_nowait(str(there.problem))

        there = fabric.Fabric(address, "v", view.name, lambda *_: None, changed, exchange=fabric.TRIAL)
        async with there:
            assert await asyncio.wait_for(changes.get(), START_BOUND_S) == "None"
            own = OwnTime()
            jumped[clock] = 300.0
            assert await asyncio.wait_for(changes.get(), START_BOUND_S) == "this machine was asleep"
            assert await asyncio.wait_for(changes.get(), START_BOUND_S) == "None"
            assert own.stop().seconds() < 3

    asyncio.run(main())
    assert proxy.connections == 2


def _attempts(proxy: FabricProxy, at: int) -> int:
    """How often the view has asked for an answer since then."""
    return sum(each.kind == OPEN and ".n." in each.subject for each in proxy.messages[at:])


@pytest.mark.covers("nodes:30")
@pytest.mark.timeout(600)
def test_while_nobody_looks_no_message_is_sent_and_no_processor_used(world: World, fleet: Fleet) -> None:
    node = fleet.join("a")
    proxy = FabricProxy(world, fleet.port)
    proxy.carry(fleet.view.file("viewing.json"), node.file("joined.json"))
    server = node.serve(PACE)
    serving = fleet.serve_view(PACE)
    id = node.hold("start", "--tty", "--", "cat").stdout.strip()
    until(lambda: listed(serving) == {id: "running"}, START_BOUND_S, what="its session in the list")
    fleet.view.hold("node", "ls")
    fleet.view.hold("logs", f"a/{id}")
    fleet.view.hold("rm", f"a/{id}")

    # A look lasts for 60 s. Then a minute passes without a message.
    began = since = time.monotonic()
    count = len(proxy.messages)
    while time.monotonic() < since + 60 * PACE:
        assert time.monotonic() < began + 120 * PACE + START_BOUND_S
        if len(proxy.messages) > count:
            count, since = len(proxy.messages), time.monotonic()
        select.select([], [], [], 0.02)
    used = {pid: _processor_ns(pid) for pid in (server.pid, serving.pid)}
    count, since = len(proxy.messages), time.monotonic()
    until(lambda: time.monotonic() >= since + 60 * PACE, 90 * PACE)
    assert len(proxy.messages) == count
    for pid, before in used.items():
        # The library's ping, every 20 s.
        assert _processor_ns(pid) - before < 20_000_000
    assert listed(serving) == {id: "running"}


@pytest.mark.covers("nodes:30")
@pytest.mark.timeout(300)
def test_an_open_visit_sends_a_word_every_15_seconds_on_each_side_and_nothing_else(world: World, fleet: Fleet) -> None:
    """Whoever visits looks: the link of the visit tells that it is there."""
    node = fleet.join("a")
    proxy = FabricProxy(world, fleet.port)
    proxy.carry(fleet.view.file("viewing.json"), node.file("joined.json"))
    server = node.serve()
    fleet.until_connected("a")
    id = node.hold("start", "--tty", "--", "cat").stdout.strip()
    fleet.view.hold("logs", f"a/{id}")
    began = since = time.monotonic()
    count = len(proxy.messages)
    while time.monotonic() < since + 2:
        assert time.monotonic() < began + START_BOUND_S, "it comes to rest"
        if len(proxy.messages) > count:
            count, since = len(proxy.messages), time.monotonic()
        select.select([], [], [], 0.02)
    used, since = _processor_ns(server.pid), time.monotonic()
    until(lambda: time.monotonic() >= since + scaled(16, 60), 90)
    said = proxy.messages[count:]
    rounds = (time.monotonic() - since) // 15 + 1
    assert 0 < len(said) <= 4 * rounds, "each passes the proxy twice: to the server of the fabric, and from it"
    assert len({each.exchange for each in said}) == 1
    assert all(len(each.payload) < 100 for each in said)
    assert _processor_ns(server.pid) - used < 20_000_000
    fleet.view.hold("rm", f"a/{id}")


def planned(world: World, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, count: int) -> Program:
    """Nodes that hold their lists back."""
    with monkeypatch.context() as patched:
        patched.setenv("HOLDFAST_HOME", str(fleet.view.home))
        plan = many_nodes.plan(Home(), [f"n{number:02d}" for number in range(count)], 1)
    fleet.fabric.signal(signal.SIGHUP)
    path = world.root / "plan.json"
    path.write_text(json.dumps(plan))
    nodes = world.program([sys.executable, "-m", "support.held_lists", str(path)], env={"PYTHONPATH": _PATHS})
    assert nodes.line(START_BOUND_S) == "ready", nodes.errors()
    return nodes


def test_lists_of_many_nodes_are_read_a_few_at_a_time(
    world: World, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = planned(world, fleet, monkeypatch, 60)
    serving = fleet.serve_view(pace=10)
    assert {each["state"] for each in serving.call("GET", "/v1/nodes").json["items"]} == {"unreachable"}
    for _ in range(32):
        assert nodes.line(START_BOUND_S) == "asked"
    # The streams of events have begun on all; the last of these nodes answers what is asked now.
    assert serving.call("GET", "/v1/nodes/n59/anything").status == 200
    nodes.send("connects\n")
    assert nodes.line().startswith("{")
    nodes.signal(signal.SIGUSR1)
    until(lambda: len(listed(serving, "n59")) == 1, START_BOUND_S, what="the last list")


def test_nodes_that_never_send_their_lists_keep_no_other_from_its_turn(
    world: World, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = planned(world, fleet, monkeypatch, 40)
    serving = fleet.serve_view()
    serving.call("GET", "/v1/nodes")
    for _ in range(40):
        assert nodes.line(START_BOUND_S) == "asked"


def _processor_ns(pid: int) -> int:
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
            total += int(file.read().split()[0])
    return total


@pytest.mark.covers("nodes:30")
def test_a_server_of_a_home_without_nodes_imports_nothing_of_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    serving = Serving(world)
    for target in ("/v1/info", "/v1/sessions?nodes=all", "/v1/nodes"):
        assert serving.ask(target).status == 200, target
    assert serving.ask("/v1/nodes/a/info").status == 404
    serving.leave()
    imported = {line.rpartition("|")[2].strip() for line in serving.program.errors().splitlines()}
    assert "holdfast.server.serve" in imported
    assert [name for name in imported if name.startswith(("nats", "nacl", "holdfast.nodes"))] == []


def test_a_stream_of_events_has_what_changes_on_nodes_where_it_is_asked_for(fleet: Fleet) -> None:
    node = fleet.join("a")
    server = node.serve()
    serving = fleet.serve_view()
    fleet.until_connected("a")
    narrow = serving.call("POST", "/v1/tokens", {"label": "ada", "scope": "observe", "owner": "ada"}).json["token"]
    with (
        EventReader(serving, "/v1/events?types=node") as reader,
        EventReader(serving, "/v1/events?types=node", token=narrow) as narrowed,
        EventReader(serving) as usual,
    ):
        for each in (reader, narrowed, usual):
            each.until("hello")
        reader.until("node", state="connected")
        ids = [node.hold("start", "--owner", owner, "--", "sleep 600").stdout.strip() for owner in ("ben", "ada")]
        assert reader.until("session", id=ids[0])["node"] == "a"
        reader.until("session", id=ids[1])
        here = fleet.view.hold("start", "--", "sleep 600").stdout.strip()
        node.hold("stop", ids[0])
        ended = reader.until("session", id=ids[0], change="ended")
        assert (ended["node"], ended["exit"]["cause"]) == ("a", "stop")
        node.hold("rm", ids[0])
        reader.until("session", id=ids[0], change="removed")
        assert narrowed.until("session")["id"] == ids[1]
        assert usual.until("session")["id"] == here
        leave(server)
        gone = reader.until("node", state="unreachable")
        assert (gone["node"], bool(gone["why"]), bool(gone["seen_at"])) == ("a", True, True)
        node.serve()
        assert reader.until("node", state="connected")["why"] is None
        fleet.join("b").serve()
        reader.until("node", node="b", state="connected")
        fleet.view.hold("node", "forget", "b")
        reader.until("node", node="b", state="forgotten")
