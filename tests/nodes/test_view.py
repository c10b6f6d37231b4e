"""What a view shows of its nodes, and sessions of others that it visits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.own_time import QuietTime

if TYPE_CHECKING:
    from support.fleets import Fleet


def test_ls_lists_sessions_of_nodes_and_names_those_that_did_not_answer(fleet: Fleet) -> None:
    node = fleet.node("a")
    fleet.join("away")
    there = node.hold("start", "--name", "web", "--", "sleep 1000").stdout.strip()
    ended = node.hold("start", "--", "true").stdout.strip()
    node.hold("wait", ended)
    here = fleet.view.hold("start", "--", "sleep 1000").stdout.strip()
    passed = QuietTime()
    listed = fleet.view.hold("ls", "--nodes", "--json")
    assert passed.seconds() < 5
    rows = json.loads(listed.stdout)
    assert {(row["node"], row["id"]) for row in rows} == {(None, here), ("a", there)}
    assert "away did not answer: not connected" in listed.stderr
    assert fleet.view.hold("ls", "--nodes", "a", "-aq").stdout.split() == [f"a/{there}", f"a/{ended}"]
    words = fleet.view.hold("ls", "--nodes").stdout
    assert words.split()[:2] == ["NODE", "ID"]
    unknown = fleet.view.hold("ls", "--nodes", "nobody", check=False)
    assert (unknown.returncode, unknown.stdout) == (3, "")
    assert [row["id"] for row in json.loads(fleet.view.hold("ls", "--json").stdout)] == [here]


def test_a_visit_reads_types_and_stops(fleet: Fleet) -> None:
    node = fleet.node("a")
    id = node.hold("start", "--name", "repl", "--tty", "--owner", "them", "--", "cat").stdout.strip()
    view = fleet.view
    view.hold("submit", "a/repl", "typed by a visitor")
    view.hold("wait", "a/repl", "--match", "typed by a visitor")
    print(view.hold("logs", f"a/{id}").stdout)
    print(view.hold("status", f"a/{id}", "--json").stdout)
    print(view.hold("ls").stdout)
    print(view.hold("screen", "a/repl").stdout)
    print(view.hold("search", "a/repl", "visitor").stdout)
    print(view.hold("stop", "a/repl").stdout)
    print(view.hold("logs", f"a/{id}").stdout)
    print(view.hold("signals").stdout)
    print(node.hold("signals", "--owner", "them").stdout)
    print(view.hold("rm", "a/repl").stdout)
    print(node.hold("logs", id).stdout)
    assert 0
