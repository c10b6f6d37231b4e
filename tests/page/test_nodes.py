"""Sessions of other machines on the page: in the list, attached, and what is shown when their machine is away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.fleets import leave

if TYPE_CHECKING:
    from support.browser import Chromium
    from support.fleets import Fleet, FleetServing


@pytest.fixture
def serving(fleet: Fleet) -> FleetServing:
    return fleet.serve_view()


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
    tab.page.click(row)
    tab.page.wait_for_url("**/n/build-box/s/*")
    tab.terminal_shows("ready")
    tab.page.keyboard.type("typed in a browser\n")
    tab.terminal_shows("typed in a browser")
    assert "typed in a browser" in node.hold("logs", "repl").stdout
    # A reload of that address is the same session.
    tab.page.reload()
    tab.terminal_shows("typed in a browser")
    tab.page.goto(f"http://{serving.address}/")
    tab.page.wait_for_selector(row)
    tab.shows("build-box/repl", row)
    leave(server)
    tab.shows("unreachable", row)
    tab.shows("last heard", row)


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
