"""A node that has more sessions than a view keeps: what runs is found, and lists continue to the oldest."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from support.fleets import leave
from support.serving import START_BOUND_S
from support.waiting import until

if TYPE_CHECKING:
    from typing import Any

    from support.fleets import Fleet, FleetServing
    from support.world import World

# More than a view keeps of one node.
FINISHED = 210
# A session that goes on, then many that finish.
_HISTORY = """
import sys
import holdfast
with holdfast.open() as hf:
    print(hf.start("exec sleep 1000", name="longjob", owner="ada").id)
    for number in range(int(sys.argv[1])):
        print(hf.run("true", name=f"job-{number:03}", owner=("ada", "ben")[number % 2]).id)
"""


def pages(serving: FleetServing, token: str | None = None, **query: object) -> list[dict[str, Any]]:
    """All pages of a list."""
    found, after = [], None
    while True:
        asked = urlencode({"nodes": "all", **query, **({"after": after} if after else {})})
        answer = serving.call("GET", f"/v1/sessions?{asked}", token=token)
        assert answer.status == 200, answer.body
        found.append(answer.json)
        after = answer.json["next"]
        if after is None:
            return found


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for page in found for row in page["items"]]


def test_what_is_older_than_a_view_keeps_is_found_and_listed(world: World, fleet: Fleet) -> None:
    node = fleet.join("a")
    server = node.serve()
    started = world.program([sys.executable, "-c", _HISTORY, str(FINISHED)], env=node.env)
    longjob, *finished = [started.line(START_BOUND_S) for _ in range(FINISHED + 1)]
    assert started.wait() == 0, started.errors()
    here = fleet.view.hold("start", "--", "exec sleep 1000").stdout.strip()
    serving = fleet.serve_view()
    fleet.until_connected("a")
    until(lambda: len(ids(pages(serving, limit=200))) > 1, START_BOUND_S, what="the sessions of the node")

    # What runs is found by every filter, and counted.
    for query in ({"name": "longjob"}, {"state": "running"}, {"q": "sleep 1000"}, {"sort": "name", "state": "running"}):
        assert set(ids(pages(serving, **query))) - {here} == {longjob}, query
    (row,) = serving.call("GET", "/v1/nodes").json["items"]
    assert (row["sessions"]["running"], row["truncated"]) == (1, True)
    assert ids(pages(serving, name="job-000")) == finished[:1]

    # A list continues to the oldest, whatever its order.
    newest_first = [here, *reversed(finished), longjob]
    found = pages(serving, limit=64, count="true")
    assert ids(found) == newest_first
    assert [page["count"] for page in found] == [len(newest_first)] * len(found)
    assert not any("truncated" in page for page in found)
    by_name = pages(serving, limit=64, sort="name", state="exited")
    assert ids(by_name) == finished
    narrowed = serving.call("POST", "/v1/tokens", {"label": "ben", "scope": "observe", "owner": "ben"}).json["token"]
    assert ids(pages(serving, narrowed, limit=100)) == finished[1::2][::-1]

    # The command line says where it ends.
    shown = fleet.view.hold("ls", "--nodes", "--json")
    assert [row["id"] for row in json.loads(shown.stdout)] == [here, longjob]
    assert "a has more" not in shown.stderr
    shown = fleet.view.hold("ls", "--nodes", "-aq")
    assert {here, f"a/{longjob}", f"a/{finished[-1]}"} <= set(shown.stdout.split())
    assert "a has more sessions than these" in shown.stderr
    shown = fleet.view.hold("ls", "--nodes", "-aq", "--name", "job-000")
    assert (shown.stdout.split(), "a has more" in shown.stderr) == ([f"a/{finished[0]}"], False)

    # Nothing older is known of a node that does not answer, and that is said.
    leave(server)
    until(
        lambda: serving.call("GET", "/v1/nodes").json["items"][0]["state"] == "unreachable",
        START_BOUND_S,
        what="that the node is gone",
    )
    found = pages(serving, limit=200)
    assert len(ids(found)) == 202
    assert [page.get("truncated") for page in found][-1] == ["a"]
    node.hold("stop", longjob, "--grace", "0")
