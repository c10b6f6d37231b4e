"""Every problem that only another machine can cause, each provoked for real."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import NodeTaken
from support.fabric_proxy import FabricProxy, flipped
from support.fleets import leave
from support.serving import START_BOUND_S
from support.waiting import until

if TYPE_CHECKING:
    from support.fabric_proxy import Message
    from support.fleets import Fleet
    from support.serving import Answer
    from support.world import World

OPENED = 2


@pytest.mark.covers("server:15")
def test_each_problem_of_a_node_is_provoked(world: World, fleet: Fleet) -> None:
    node = fleet.join("a")
    proxy = FabricProxy(world, fleet.port)
    proxy.carry(fleet.view.file("viewing.json"))
    serving = fleet.serve_view()

    def asked() -> Answer:
        return serving.call("GET", "/v1/nodes/a/info")

    def is_problem(answer: Answer, status: int, slug: str) -> dict[str, object]:
        assert (answer.status, answer.slug) == (status, slug), answer.body
        page = serving.ask(f"/problems/{slug}", {"Host": serving.address})
        assert (page.status, slug in page.body.decode()) == (200, True)
        found: dict[str, object] = answer.json
        assert found["node"] == "a"
        return found

    # It has joined, and its server does not run.
    until(lambda: asked().json.get("why") == "not connected", START_BOUND_S, what="the fabric")
    found = is_problem(asked(), 504, "node-unreachable")
    assert (found["sent"], found["seen_at"]) == (False, None)

    # Another key answers under its name.
    server = node.serve()
    until(lambda: asked().status == 200, START_BOUND_S, what="the node")
    proxy.change = _answered_by_another
    is_problem(asked(), 502, "node-refused")
    proxy.change = lambda message: message.payload
    assert asked().status == 200

    # Another machine is invited under its name.
    inviting, code = fleet.invite("a")
    refused = fleet.machine("second").hold("node", "join", code, check=False)
    assert (refused.returncode, inviting.wait(START_BOUND_S)) == (NodeTaken.exit_code, NodeTaken.exit_code)
    for said in (refused.stderr, inviting.errors()):
        assert NodeTaken("a", fleet.listed()["a"]["fingerprint"]).message in said

    # Its home was copied, and both machines run.
    copy = fleet.machine("copy")
    copy.home.mkdir(mode=0o700)
    shutil.copytree(node.file(""), copy.file(""), ignore=shutil.ignore_patterns("*.lock"))
    second = copy.serve()
    until(lambda: asked().status == 409, START_BOUND_S, what="that a home was copied")
    is_problem(asked(), 409, "node-twice")

    # What was heard of it last is known.
    leave(second)
    listed = until(lambda: _connected(serving.call("GET", "/v1/nodes")), START_BOUND_S, what="the node alone")
    assert listed
    leave(server)
    until(lambda: asked().status == 504, START_BOUND_S, what="the end of the node")
    found = is_problem(asked(), 504, "node-unreachable")
    (row,) = serving.call("GET", "/v1/nodes").json["items"]
    assert found["seen_at"] == row["seen_at"] >= listed["seen_at"]


def _answered_by_another(message: Message) -> bytes:
    is_answer = message.is_sent is False and message.kind == OPENED
    return flipped(message.payload, 8 * len(message.payload) - 1) if is_answer else message.payload


def _connected(answer: Answer) -> dict[str, str] | None:
    (row,) = answer.json["items"]
    return row if row["state"] == "connected" else None
