"""The list of a view of a thousand nodes, three hundred of which do not answer: the API, the command line, the page.

Each node runs the code of a node on a connection of its own; what is behind it are rows (`bench.many_nodes`).
"""

from __future__ import annotations

import json
import runpy
import signal
import statistics
import sys
import time
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest

from holdfast.home import Home
from support.own_time import OwnTime, QuietTime
from support.scale import scaled
from support.waiting import until

if TYPE_CHECKING:
    from typing import Any

    from support.browser import Chromium, Tab
    from support.fleets import Fleet, FleetServing
    from support.program import Program
    from support.world import World

MANY_NODES = Path(__file__).parents[2] / "bench/many_nodes.py"
SESSIONS = scaled(20, 100)
# Of the nodes that do not answer, some leave, some have never come, and some are connected and stopped.
LIVE, LEAVING, ABSENT, STOPPED = scaled((60, 6, 24, 16), (700, 50, 130, 120))
SILENT = LEAVING + ABSENT + STOPPED
REASONS = {"not connected": LEAVING + ABSENT, "no answer": STOPPED}
NAMED = 20
ASK_S = scaled(0.1, 1.0)
BOUND_S = scaled(90, 300)
PAGE = "/v1/sessions?nodes=all&state=running&label=tier:web&sort=name&limit=50"


class Crowd:
    def __init__(self, world: World, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        self._world = world
        self.names = [f"n{number:04d}" for number in range(LIVE + SILENT)]
        with monkeypatch.context() as patched:
            patched.setenv("HOLDFAST_HOME", str(fleet.view.home))
            self._plan = runpy.run_path(str(MANY_NODES))["plan"](Home(), self.names, SESSIONS)
        fleet.fabric.signal(signal.SIGHUP)
        self.live = self._start(0, LIVE)
        self.leaving = self._start(LIVE, LEAVING)
        stopped = self._start(LIVE + LEAVING + ABSENT, STOPPED)
        for program in (self.live, self.leaving, stopped):
            assert program.line(BOUND_S) == "ready"
        stopped.signal(signal.SIGSTOP)

    def _start(self, first: int, count: int) -> Program:
        nodes = {name: self._plan["nodes"][name] for name in self.names[first : first + count]}
        path = self._world.root / f"plan-{first}.json"
        path.write_text(json.dumps({**self._plan, "nodes": nodes}))
        return self._world.program([sys.executable, str(MANY_NODES), str(path)])


@pytest.fixture
def crowd(world: World, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Crowd:
    return Crowd(world, fleet, monkeypatch)


@pytest.fixture
def serving(crowd: Crowd, fleet: Fleet) -> FleetServing:
    assert crowd.names
    return fleet.serve_view()


def listed(serving: FleetServing, target: str = PAGE) -> Any:
    answer = serving.call("GET", target)
    assert answer.status == 200, answer.body
    return answer.json


def known(serving: FleetServing) -> tuple[int, int]:
    """How many nodes are connected, and how many sessions they have."""
    connected = [each for each in listed(serving, "/v1/nodes")["items"] if each["state"] == "connected"]
    return len(connected), sum(sum(each["sessions"].values()) for each in connected)


@pytest.mark.covers("nodes:29")
@pytest.mark.timeout(1200)
def test_of_a_thousand_nodes_those_that_answer_are_listed_and_the_others_counted_and_named_by_reason(
    crowd: Crowd, fleet: Fleet, serving: FleetServing, chromium: Chromium
) -> None:
    own = OwnTime(serving.pid, crowd.live.pid, crowd.leaving.pid)
    wanted = (LIVE + LEAVING, (LIVE + LEAVING) * SESSIONS)
    # Each request keeps the view busy: it is asked as often as a page asks.
    pause = Event()
    until(lambda: pause.wait(ASK_S) or known(serving) == wanted, BOUND_S, what="all nodes that answer")
    # The first look waits 2 s for those that do not answer.
    assert own.stop().seconds(serving.pid, crowd.live.pid, crowd.leaving.pid) < scaled(4, 10)
    crowd.leaving.close_stdin()
    until(
        lambda: pause.wait(ASK_S) or listed(serving).get("unreachable_nodes") == REASONS,
        BOUND_S,
        what="all that do not answer",
    )

    # The page of a list: named are the nodes of its sessions and some of the others, counted are all.
    took = []
    for _ in range(scaled(20, 40)):
        own = OwnTime(serving.pid)
        page = listed(serving)
        took.append(own.stop().seconds(serving.pid))
        assert len(page["items"]) == 50
    assert statistics.quantiles(took, n=20)[-1] < 0.15
    shown = {row["node"] for row in page["items"]} & set(crowd.names[LIVE:])
    named = {each["node"]: each for each in page["unavailable"]}
    assert shown <= named.keys() <= set(crowd.names[LIVE:])
    assert len(named) <= len(shown) + NAMED
    assert all(each["why"] in REASONS for each in named.values())
    gone = crowd.names[LIVE]
    alone = listed(serving, f"/v1/sessions?nodes={gone},n0000")
    assert (alone["unreachable_nodes"], {row["node"] for row in alone["items"]}) == (
        {"not connected": 1},
        {"n0000", gone},
    )
    assert alone["unavailable"][0]["seen_at"] is not None
    states = [each["state"] for each in listed(serving, "/v1/nodes")["items"]]
    assert (states.count("connected"), states.count("unreachable")) == (LIVE, SILENT)

    # The command line.
    quiet = QuietTime()
    # All nodes are one process here, on a machine that does more: each gets more than its 2 s.
    asking = fleet.view.program("ls", "--nodes", "-aq", pace=3)
    told = set(iter(lambda: asking.line(BOUND_S), ""))
    assert asking.wait() == 0
    assert quiet.seconds() < scaled(10, 30)
    assert {line.partition("/")[0] for line in told} == set(crowd.names[:LIVE])
    first, second = crowd.names[LIVE], crowd.names[-STOPPED]
    lines = asking.errors().splitlines()
    assert [line for line in lines if "did not answer" in line] == lines
    assert len(lines) == 3
    away = LEAVING + ABSENT - 3
    assert any(line.endswith(f" and {away} more did not answer: not connected") and first in line for line in lines)
    assert any(f" and {STOPPED - 3} more did not answer: no answer" in line and second in line for line in lines)
    assert lines[-1].endswith(f"{SILENT} nodes did not answer; `hold node ls` names each")
    assert {row["node"] for row in fleet.listed().values() if row["why"]} == set(crowd.names[LIVE:])

    # The page: those that answer are rows of its list, the others one line.
    tab = chromium.signed_in()
    tab.page.evaluate(_NOTE_TASKS)
    tab.page.wait_for_selector("a.row[href^='/n/n0']")
    line = f"{SILENT} machines do not answer: {LEAVING + ABSENT} not connected, {STOPPED} no answer"
    tab.shows(line, ".unreachable summary")
    assert tab.page.locator(".unreachable li").count() == 0
    tab.page.click(".unreachable summary")
    tab.page.wait_for_function("(count) => document.querySelectorAll('.unreachable li').length === count", arg=SILENT)
    tab.shows(f"{crowd.names[-1]} no answer", ".unreachable")
    tab.shows("not connected; last heard ", ".unreachable")
    tab.page.click(".unreachable summary")
    # Loaded again, its list is there as soon as one of a single machine.
    quiet = QuietTime()
    tab.page.reload()
    tab.page.wait_for_selector("a.row[href^='/n/n0']")
    assert quiet.seconds() < 1.0
    tab.page.evaluate(_NOTE_TASKS)
    tab.shows(line, ".unreachable summary")
    # It goes on asking, and a change is seen.
    tab.devtools.send("Performance.enable")
    before, quiet, began = _heap(tab), QuietTime(), time.monotonic()
    tab.page.evaluate("window.tasks.length = 0")
    # Among the newest of all, which the page knows.
    newest = crowd.names[LIVE - 1]
    crowd.live.send(f"change {newest} changed\n")
    own = OwnTime(serving.pid, crowd.live.pid)
    until(lambda: listed(serving, f"/v1/sessions?nodes={newest}&name=changed")["items"], BOUND_S, what="a change")
    assert own.stop().seconds(serving.pid, crowd.live.pid) < 0.5
    tab.page.fill("#filter", "changed")
    tab.page.wait_for_selector(f"a.row:has-text('{newest}/changed')")
    tab.page.fill("#filter", "")
    tab.page.wait_for_selector("a.row[href^='/n/n0'] >> nth=2")
    tab.passes(scaled(3, 60))
    stalled_ms = 1000 * (time.monotonic() - began - quiet.seconds())
    assert max(tab.page.evaluate("window.tasks"), default=0) - stalled_ms < 100
    assert _heap(tab) - before < 20_000_000


_NOTE_TASKS = """() => {
    window.tasks = [];
    new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((each) => each.duration)))
        .observe({ type: "longtask" });
}"""


def _heap(tab: Tab) -> float:
    """After a collection."""
    tab.devtools.send("HeapProfiler.collectGarbage")
    found = tab.devtools.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in found if each["name"] == "JSHeapUsedSize"))
