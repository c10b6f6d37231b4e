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
    leave(server)
    tab.shows("unreachable", row)
    tab.shows("last heard", row)
