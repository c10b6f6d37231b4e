"""Sessions of other machines on the page: in the list, attached, and what is shown when their machine is away."""

from __future__ import annotations

import json
import runpy
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.home import Home
from support.browser import until
from support.fleets import leave

if TYPE_CHECKING:
    from support.browser import Chromium
    from support.fleets import Fleet, FleetServing
    from support.world import World

MANY_NODES = Path(__file__).parents[2] / "bench/many_nodes.py"


@pytest.fixture
def serving(fleet: Fleet) -> FleetServing:
    return fleet.serve_view()


@pytest.mark.covers("page:3")
def test_sessions_of_a_node_are_listed_attached_and_shown_as_unreachable(
    chromium: Chromium, fleet: Fleet, serving: FleetServing
) -> None:
    node = fleet.join("build-box")
    server = node.serve()
    node.hold("start", "--tty", "--name", "repl", "--", "echo ready; cat")
    tab = chromium.signed_in()
    row = "a.row[href^='/n/build-box/s/']"
    tab.page.wait_for_selector(row)
    tab.shows("node:build-box", row)
    tab.shows("ready", ".preview pre")
    tab.page.click("nav a:text-is('Grid')")
    tab.shows("ready", ".tile pre")
    tab.page.click("nav a:text-is('Sessions')")
    tab.page.click(row)
    tab.page.wait_for_url("**/n/build-box/s/*")
    tab.terminal_shows("ready")
    tab.page.keyboard.type("typed in a browser\n")
    tab.terminal_shows("typed in a browser")
    assert "typed in a browser" in node.hold("logs", "repl").stdout
    tab.page.click(".timeline svg")
    tab.shows(" ago, ", ".past .moment")
    tab.page.click(".past button:text-is('Live')")
    for view in ("about", "log", "screen"):
        tab.page.click(f"nav button:text-is('{view}')")
        tab.page.wait_for_selector(".about" if view == "about" else ".xterm-screen")
    tab.shows("live", ".connection")
    # A reload of that address is the same session.
    tab.page.reload()
    tab.terminal_shows("typed in a browser")
    tab.page.goto(f"http://{serving.address}/")
    tab.page.wait_for_selector(row)
    tab.shows("build-box/repl", row)
    # What has happened to a session there.
    node.hold("start", "--tty", "--name", "asks", "--", "printf 'Continue? [y/N] '; read answer")
    tab.page.click("a.row:has-text('build-box/asks'):has-text('Continue?')")
    tab.page.click("nav button:text-is('signals')")
    tab.shows("asks · Continue?", ".signals")
    tab.page.goto(f"http://{serving.address}/")
    row += ":has-text('build-box/repl')"
    tab.page.wait_for_selector(row)
    assert tab.problems == []
    leave(server)
    tab.page.wait_for_selector(f"{row}:has-text('unreachable'):has-text('last heard')")


@pytest.mark.usefixtures("serving")
def test_a_session_that_is_visited_is_listed_once(chromium: Chromium, fleet: Fleet) -> None:
    node = fleet.join("build-box")
    node.serve()
    for name in ("visited", "alone"):
        node.hold("start", "--name", name, "--", "echo ready; sleep 600")
    fleet.until_connected("build-box")
    tab = chromium.signed_in()
    row = "a.row[href^='/n/build-box/s/']"
    for name in ("visited", "alone"):
        tab.page.wait_for_selector(f"{row}:has-text('build-box/{name}')")
    fleet.view.hold("logs", "build-box/visited")
    # The visit takes the place of the row of the node.
    tab.page.wait_for_selector("a.row[href^='/s/']:has-text('build-box/visited')")
    tab.page.wait_for_selector(f"{row}:has-text('build-box/visited')", state="detached")
    tab.page.wait_for_selector(f"{row}:has-text('build-box/alone')")
    fleet.view.hold("rm", "build-box/visited")


def test_nodes_are_followed_while_somebody_looks_and_asked_for_nothing_meanwhile(
    chromium: Chromium, fleet: Fleet, serving: FleetServing
) -> None:
    node = fleet.join("build-box")
    server = node.serve()
    node.hold("start", "--name", "first", "--", "sleep 600")
    fleet.until_connected("build-box")
    window = chromium.window()
    tab = chromium.signed_in(window)
    row = "a.row:has-text('build-box/{}')".format
    tab.page.wait_for_selector(row("first"))
    # A node that answers now is listed again a moment later.
    tab.passes(3)

    def lists() -> int:
        return len([each for each in tab.requests if "nodes=all" in each.url])

    def streams() -> float:
        lines = serving.call("GET", "/metrics").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if 'transport="sse"' in line)

    before = lists()
    node.hold("start", "--name", "second", "--", "sleep 600")
    tab.page.wait_for_selector(row("second") + ":has-text('running')")
    node.hold("stop", "second")
    tab.page.wait_for_selector(row("second") + ":has-text('stopped')")
    node.hold("rm", "second")
    tab.page.wait_for_selector(row("second"), state="detached")
    assert lists() == before

    cover = window.new_page()
    until(lambda: streams() == 1, what="a hidden page that does not follow the nodes")
    node.hold("start", "--name", "third", "--", "sleep 600")
    cover.close()
    tab.page.bring_to_front()
    tab.page.wait_for_selector(row("third"))
    until(lambda: streams() == 2)
    leave(server)
    tab.page.wait_for_selector(row("third") + ":has-text('unreachable')")
    assert tab.problems == []


def test_older_sessions_of_nodes_are_found_by_the_filter_and_shown_when_asked_for(
    chromium: Chromium, fleet: Fleet, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("HOLDFAST_HOME", str(fleet.view.home))
        names = [f"n{number:02d}" for number in range(11)]
        plan = runpy.run_path(str(MANY_NODES))["plan"](Home(), names, 100)
    fleet.fabric.signal(signal.SIGHUP)
    path = world.root / "plan.json"
    path.write_text(json.dumps(plan))
    nodes = world.program([sys.executable, str(MANY_NODES), str(path)])
    assert nodes.line() == "ready", nodes.errors()
    serving = fleet.serve_view()
    until(lambda: serving.call("GET", "/v1/sessions?nodes=all&count=true").json["count"] == 1100)
    tab = chromium.signed_in()
    tab.shows("older finished sessions", ".older")
    # Of those that ended, the newest; of those that run, all.
    running = tab.page.locator(".chip:has-text('Running') b")
    ended = tab.page.locator(".chip:has-text('Ended') b")
    until(lambda: int(running.inner_text()) == 275)
    assert int(ended.inner_text()) < 825
    oldest = "a.row:has-text('n10/n10-job-99')"
    tab.page.fill("#filter", "n10-job-99")
    tab.page.wait_for_selector(oldest)
    tab.page.fill("#filter", "")
    tab.page.click(".older button")
    tab.page.wait_for_selector(".older", state="detached")
    until(lambda: int(ended.inner_text()) == 825)
