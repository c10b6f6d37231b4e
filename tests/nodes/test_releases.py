"""A node and a view of different releases: what both know works, what one of them does not know is said by name."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from support.fleets import leave
from support.releases import FROZEN, unpacked
from support.serving import START_BOUND_S
from support.through_nodes import attached, seen_until, there
from support.waiting import until

if TYPE_CHECKING:
    from support.fleets import Fleet, FleetServing
    from support.world import World

# The newest release that has nodes, and one after it: this code with another version, a service, an address and a key
# of sessions that the release does not know, and without an address that it knows.
PREVIOUS, NEXT = "0.2.0", "0.2.1"
_NEW_ADDRESS = """

@endpoint("GET", "/v1/telepathy", "observe", "Whether it is heard", gives=replies.Ok)
async def telepathy(ask: Ask) -> dict[str, Any]:
    return {"ok": True}
"""
CHANGES = {
    "__init__.py": (f'__version__ = "{holdfast.__version__}"', f'__version__ = "{NEXT}"'),
    "nodes/offering.py": (
        'elif kind == "far":',
        'elif kind == "telepathy":\n            await talk.send({"type": "heard"})\n        elif kind == "far":',
    ),
    "server/routes/home.py": ("\n\n# The server itself.\n", f"\n{_NEW_ADDRESS}"),
    "server/routes/history.py": ('"/v1/sessions/{id}/search"', '"/v1/sessions/{id}/find"'),
    "model/session.py": (
        "record = {key: getattr(self, key) for key in SESSION_KEYS}",
        'record = {key: getattr(self, key) for key in SESSION_KEYS} | {"mood": "calm"}',
    ),
}

# A program of a view that asks its node for a service of the later release.
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
            print(json.dumps(await talk.receive()))
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
    # One of the two has the later release from now on; nobody joins again.
    newer = view if older == "node" else node
    newer.env["PYTHONPATH"] = str(_later(world))
    if newer is view:
        leave(fleet.fabric)
        fleet.start_fabric()
    node.serve()
    serving = fleet.serve_view()
    fleet.until_connected("a")
    versions = {machine: machine.hold("--version").stdout.split()[-1] for machine in (view, node)}
    assert [versions[each] for each in (view, node)] == ([NEXT, PREVIOUS] if newer is view else [PREVIOUS, NEXT])

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
    assert "typed" in view.hold("search", "a/repl", "ty.ed").stdout
    view.hold("submit", "a/repl", "by a visitor")
    view.hold("wait", "a/repl", "--match", "by a visitor")
    ran = view.hold("run", "--place", "node:a", "--", "echo $HOLDFAST_HOME; exit 3", check=False)
    assert (ran.returncode, ran.stdout) == (3, f"{node.home}\n"), ran.stderr
    assert view.hold("stop", "a/repl").returncode == 0
    assert there(serving, "a", f"/sessions/{id}")["state"] == "exited"
    assert {each.read_bytes() for each in files} == set(files.values())

    # What one of them does not know.
    asking = world.program([sys.executable, "-c", UNKNOWN], env=view.env)
    heard = json.loads(asking.line(START_BOUND_S))
    known, unknown = "telepathy", f"sessions/{id}/search?re=typed"
    if newer is view:
        known, unknown = unknown, known
    if newer is node:
        assert heard == {"type": "heard"}
        assert there(serving, "a", f"/sessions/{id}")["mood"] == "calm"
    else:
        assert heard["code"] == "unsupported"
        assert heard["facts"] == {"feature": "the service 'telepathy'", "version": PREVIOUS}
        assert f"(version {PREVIOUS}) does not support the service 'telepathy'" in heard["message"]
    assert serving.call("GET", f"/v1/nodes/a/{known}").status == 200
    answer = serving.call("GET", f"/v1/nodes/a/{unknown}")
    assert (answer.status, answer.slug) == (501, "unsupported")
    assert (answer.json["feature"], answer.json["version"]) == (f"GET /v1/{unknown.partition('?')[0]}", versions[node])
    assert "hold" in answer.json["fix"]
    (row,) = [
        each
        for each in serving.call("GET", "/v1/sessions?nodes=all").json["items"]
        if (each["node"], each["id"]) == ("a", id)
    ]
    assert ("mood" in row) == (newer is view), "a view lists what it knows itself"
    until(lambda: not view.endpoints(), START_BOUND_S, what="the end of the deputies")


def _later(world: World) -> Path:
    """A host of the next release, for PYTHONPATH."""
    target = world.root / "later"
    source = Path(holdfast.__file__).parent
    shutil.copytree(source, target / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    for name, (old, new) in CHANGES.items():
        path = target / "holdfast" / name
        text = path.read_text()
        assert text.count(old) == 1, name
        path.write_text(text.replace(old, new))
    return target


def _listed(serving: FleetServing) -> list[dict[str, object]]:
    found: list[dict[str, object]] = serving.call("GET", "/v1/sessions?nodes=all&state=running").json["items"]
    return found


@pytest.fixture
def fleet_of_the_past(world: World, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Every machine has the previous release."""
    from support.fleets import Fleet, Machine

    # The next release describes its answers itself.
    monkeypatch.setattr("support.serving.check_described", lambda *_: None)
    installed = unpacked(world, FROZEN / PREVIOUS)
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    first = Machine.__init__

    def with_release(machine: Machine, *facts: object) -> None:
        first(machine, *facts)  # type: ignore[arg-type]
        machine.env["PYTHONPATH"] = str(installed)

    monkeypatch.setattr(Machine, "__init__", with_release)
    return Fleet(world)
