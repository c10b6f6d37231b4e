"""A node and a view of different releases: what both know works, what one of them does not know is said by name."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from support.fleets import leave
from support.releases import RELEASES, of_today, unpacked
from support.serving import START_BOUND_S
from support.through_nodes import attached, seen_until, there
from support.waiting import until

if TYPE_CHECKING:
    from support.fleets import Fleet, FleetServing, Machine
    from support.world import World

# A program of a view that asks its node for a service that no release has.
UNKNOWN = """
import asyncio, json
from holdfast.home import Home
from holdfast.nodes.exchange import Broken
from holdfast.nodes.far_app import Calls
from holdfast.nodes.joining import Viewing

async def main():
    viewing = Viewing(Home())
    calls = Calls(viewing)
    async with calls.through(viewing.address) as fabric:
        await fabric.ready.wait()
        talk = await calls.open("a")
        await talk.send({"type": "telepathy", "later": [1]})
        try:
            await talk.receive()
        except Broken as broken:
            print(json.dumps(broken.problem))

asyncio.run(main())
"""


@pytest.mark.covers("nodes:27")
@pytest.mark.parametrize("older", ["node", "view"])
def test_a_node_and_a_view_of_two_releases_share_what_both_know_and_name_the_rest(
    world: World, fleet_of_the_past: Fleet, older: str
) -> None:
    fleet = fleet_of_the_past
    view, node = fleet.view, fleet.join("a")
    files = {each: each.read_bytes() for each in (node.file("joined.json"), node.file("key"), view.file("key"))}
    # One of the two is of this release from now on; nobody joins again.
    newer = view if older == "node" else node
    today = of_today(world, RELEASES[-1])
    newer.env |= {"PYTHONPATH": "", **today.env}
    if newer is view:
        leave(fleet.fabric)
        fleet.start_fabric()
    node.serve()
    serving = fleet.serve_view()
    fleet.until_connected("a")
    versions = {machine: machine.hold("--version").stdout.split()[-1] for machine in (view, node)}
    assert versions == {newer: today.version, (node if newer is view else view): RELEASES[-1].name}

    # Listed, read, attached, started, stopped, followed.
    id = node.hold("start", "--tty", "--name", "repl", "--", "echo ready; cat").stdout.strip()
    assert [row["id"] for row in json.loads(view.hold("ls", "--nodes", "--json").stdout)] == [id]
    until(lambda: [row["id"] for row in _listed(serving)] == [id], START_BOUND_S, what="its session in the list")
    (seen,) = serving.call("GET", "/v1/nodes").json["items"]
    assert (seen["state"], seen["version"]) == ("connected", versions[node])
    with attached(serving, "a", id) as viewer:
        viewer.send(json.dumps({"type": "input", "id": 1, "submit": "typed"}))
        seen_until(viewer, b"typed")
    made = serving.call("POST", "/v1/nodes/a/sessions", {"command": "echo from far"}).json["id"]
    there(serving, "a", f"/sessions/{made}/wait?until=exit&timeout=20")
    assert there(serving, "a", f"/sessions/{made}/output")["text"] == "from far\n"
    # Visited, and a place.
    assert "typed" in view.hold("logs", "a/repl").stdout
    view.hold("submit", "a/repl", "by a visitor")
    view.hold("wait", "a/repl", "--match", "by a visitor")
    ran = view.hold("run", "--place", "node:a", "--", "echo $HOLDFAST_HOME; exit 3", check=False)
    assert (ran.returncode, ran.stdout) == (3, f"{node.home}\n"), ran.stderr
    assert view.hold("stop", "a/repl").returncode == 0
    assert there(serving, "a", f"/sessions/{id}")["state"] == "exited"
    assert {each.read_bytes() for each in files} == set(files.values())

    # What the node does not know.
    asking = world.program([sys.executable, "-c", UNKNOWN], env=view.env)
    problem = json.loads(asking.line(START_BOUND_S))
    assert problem["code"] == "unsupported"
    assert problem["facts"] == {"feature": "the service 'telepathy'", "version": versions[node]}
    answer = serving.call("GET", "/v1/nodes/a/telepathy")
    assert (answer.status, answer.slug) == (501, "unsupported")
    assert (answer.json["feature"], answer.json["version"]) == ("GET /v1/telepathy", versions[node])
    assert "hold" in answer.json["fix"]
    assert serving.call("GET", "/v1/nodes/a/info").status == 200, "the rest goes on"
    until(lambda: not view.endpoints(), START_BOUND_S, what="the end of the deputies")


def _listed(serving: FleetServing) -> list[dict[str, object]]:
    found: list[dict[str, object]] = serving.call("GET", "/v1/sessions?nodes=all&state=running").json["items"]
    return found


@pytest.fixture
def fleet_of_the_past(world: World, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Every machine has the previous release."""
    from support.fleets import Fleet, Machine

    installed = unpacked(world, RELEASES[-1])
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    first = Machine.__init__

    def with_release(machine: Machine, *facts: object) -> None:
        first(machine, *facts)  # type: ignore[arg-type]
        machine.env["PYTHONPATH"] = str(installed)

    monkeypatch.setattr(Machine, "__init__", with_release)
    return Fleet(world)
