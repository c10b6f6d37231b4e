"""A node that lies about its sessions, before the list of a view: the API, the command line and the page."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest

from holdfast.nodes.following import ROWS_MAX
from holdfast.nodes.rows import TEXT_CHARACTERS
from support import hostile_node
from support.hostile_node import MARKUP
from support.peer import memory_kb
from support.scale import scaled
from support.serving import START_BOUND_S
from support.waiting import until

if TYPE_CHECKING:
    from typing import Any

    from support.browser import Chromium
    from support.fleets import Fleet, FleetServing
    from support.world import World

# What would act on a terminal, or turn text around.
FORBIDDEN = set("\x1b\x07\u202e\u2066")
ROWS = scaled(20_000, 1_000_000)
GROWS_BY_AT_MOST_KB = 120 << 10


@pytest.fixture
def serving(fleet: Fleet) -> FleetServing:
    return fleet.serve_view()


@pytest.mark.covers("nodes:26")
@pytest.mark.timeout(scaled(600, 3600))
def test_rows_of_a_hostile_node_are_bounded_cleaned_and_shown_as_its_own(
    world: World, chromium: Chromium, fleet: Fleet, serving: FleetServing
) -> None:
    view, node, honest = fleet.view, fleet.join("hostile"), fleet.node("honest")
    true = honest.hold("start", "--name", "true", "--", "sleep 600").stdout.strip()
    ours = view.hold("start", "--name", "ours", "--", "sleep 600").stdout.strip()
    before = memory_kb(serving.program.pid)
    argv = [sys.executable, hostile_node.__file__, str(node.home), str(ROWS), ours]
    liar = world.program(argv, env=node.env)

    def state() -> dict[str, Any]:
        (found,) = [each for each in serving.call("GET", "/v1/nodes").json["items"] if each["name"] == "hostile"]
        assert isinstance(found, dict)
        return found

    until(lambda: state()["state"] == "connected", START_BOUND_S, what="the node")
    assert liar.line(scaled(60, 3000)) == "all told"
    assert memory_kb(serving.program.pid) - before < GROWS_BY_AT_MOST_KB
    until(lambda: "lastlong0" in _ids(serving), START_BOUND_S, what="its list, after its events")
    found = state()
    assert len(json.dumps(found)) < 2000
    assert not set(json.dumps(found, ensure_ascii=False)) & FORBIDDEN
    assert sum(found["sessions"].values()) <= ROWS_MAX

    rows = serving.call("GET", "/v1/sessions?nodes=all&limit=200").json["items"]
    (mine,) = [each for each in rows if each["node"] is None]
    assert (mine["id"], mine["name"], mine["place"]) == (ours, "ours", "local")
    assert {each["node"] for each in rows} == {None, "honest", "hostile"}
    assert [(each["id"], each["name"]) for each in rows if each["node"] == "honest"] == [(true, "true")]
    (another,) = [each for each in rows if each["id"] == "another00"]
    assert (another["node"], another["name"]) == ("hostile", "claims another")
    now = datetime.now(UTC) + timedelta(seconds=1)
    for each in rows:
        assert each["id"].isalnum()
        assert all(datetime.fromisoformat(each[key]) < now for key in each if key.endswith("_at") and each[key])
        assert len(json.dumps(each)) < 20 * TEXT_CHARACTERS
    # What it sends as a page of ours may do nothing there. No description of ours fits it.
    asked = Request(f"http://{serving.address}/v1/nodes/hostile/info", headers=serving.bearer)
    with urlopen(asked, timeout=START_BOUND_S) as answer:
        assert answer.headers["content-type"] == "text/html"
        assert "default-src 'none'" in answer.headers["content-security-policy"]

    # What it says of a failure, to a list, to a visit and to a request through the view.
    for words in (("ls", "--nodes", "hostile", "--search", "refused"), ("logs", "hostile/markup000"), ("doctor",)):
        done = view.hold(*words, check=False, timeout=START_BOUND_S)
        said = done.stdout + done.stderr
        assert "hostile" in said
        assert len(said) < 1 << 14, words
        assert not set(said) & FORBIDDEN, words
    visited = view.hold("logs", "hostile/markup000", check=False)
    assert visited.returncode != 0
    assert {each["id"] for each in json.loads(view.hold("ls", "-a", "--json").stdout)} == {ours}, "nothing was copied"
    assert view.hold("logs", "honest/true").returncode == 0
    view.hold("rm", "honest/true")

    shown = view.hold("ls", "--nodes", "-a").stdout + view.hold("node", "ls").stdout
    assert len(shown) < 1 << 20
    assert "claims to be ours" not in shown, "an id that is known here is listed once"
    listed = shown.splitlines()
    assert any(line.startswith("hostile") and "bidi00000" in line for line in listed)
    assert {line.split()[0] for line in listed if "00000" in line or "000  " in line} == {"hostile"}
    assert next(line.split()[:2] for line in listed if line.startswith("honest")) == ["honest", true]
    assert not set(shown) & FORBIDDEN

    tab = chromium.signed_in()
    for id in ("markup000", "bidi00000", "nested000", "wide00000", "undated00", "another00", "lastlong0"):
        tab.page.wait_for_selector(f"a.row[href='/n/hostile/s/{id}']")
    hrefs = tab.page.eval_on_selector_all("a.row", "rows => rows.map(row => row.getAttribute('href'))")
    assert {href.rpartition("/")[0] for href in hrefs} == {"/s", "/n/hostile/s", "/n/honest/s"}
    assert all(href.rpartition("/")[2].isalnum() for href in hrefs)
    assert tab.page.eval_on_selector_all("a.row img, a.row script", "found => found.length") == 0
    assert "owned" not in tab.page.title()
    tab.shows(MARKUP[:20], "a.row[href='/n/hostile/s/markup000']")
    assert not set(tab.page.text_content("body") or "") & FORBIDDEN
    assert tab.problems == []
    liar.end()


def _ids(serving: FleetServing) -> set[str]:
    return {each["id"] for each in serving.call("GET", "/v1/sessions?nodes=hostile&limit=200").json["items"]}
