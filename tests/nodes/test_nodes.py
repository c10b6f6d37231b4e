"""A view and its nodes: what works through the fabric, what survives, and who may do what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.own_time import QuietTime
from support.serving import START_BOUND_S, closed_with
from support.through_nodes import attached, seen_until, there
from support.waiting import until

if TYPE_CHECKING:
    from typing import Any

    from support.fleets import Fleet, FleetServing, Machine


def test_two_commands_on_each_machine_connect_homes_that_have_no_listener(fleet: Fleet) -> None:
    node = fleet.machine("build-box")
    inviting, code = fleet.invite("build-box")
    joined = node.hold("node", "join", code).stdout
    said = inviting.line()
    assert joined.rsplit(maxsplit=1)[1] == said.rsplit(maxsplit=1)[1]
    server = node.serve()
    assert not _listening(server.pid)
    id = node.hold("start", "--tty", "--name", "repl", "--", "cat").stdout.strip()
    serving = fleet.serve_view()
    until(lambda: [each["id"] for each in _listed(serving)] == [id], START_BOUND_S, what="its session in the list")
    assert _listed(serving)[0]["node"] == "build-box"
    with attached(serving, "build-box", "repl") as viewer:
        viewer.send(json.dumps({"type": "input", "id": 1, "submit": "typed far away"}))
        seen_until(viewer, b"typed far away")
    assert "typed far away" in there(serving, "build-box", f"/sessions/{id}/output")["text"]
    view = fleet.view
    assert [row["id"] for row in json.loads(view.hold("ls", "--nodes", "--json").stdout)] == [id]
    assert "typed far away" in view.hold("logs", "build-box/repl").stdout
    assert "typed far away" in view.hold("screen", "build-box/repl").stdout
    view.hold("rm", "build-box/repl")
    stopped = serving.call("POST", f"/v1/nodes/build-box/sessions/{id}/stop", {})
    assert stopped.status == 200, stopped.body
    assert there(serving, "build-box", f"/sessions/{id}")["state"] == "exited"
    started = serving.call("POST", "/v1/nodes/build-box/sessions", {"command": "echo $HOLDFAST_HOME"})
    assert started.status == 201, started.body
    new = started.json["id"]
    there(serving, "build-box", f"/sessions/{new}/wait?until=exit&timeout=20")
    assert new in node.hold("ls", "-aq").stdout.split()
    assert fleet.view.hold("ls", "-aq").stdout == ""
    ran = fleet.view.hold("run", "--place", "node:build-box", "--", "echo $HOLDFAST_HOME; exit 3", check=False)
    assert (ran.returncode, ran.stdout) == (3, f"{node.home}\n")
    # Its deputy has the node remove the session's directory there, for which it needs the node's server.
    until(lambda: not fleet.view.endpoints(), START_BOUND_S, what="the end of the deputy")


@pytest.mark.covers("nodes:3")
def test_sessions_outlive_the_server_of_their_node_and_the_view(fleet: Fleet) -> None:
    node = fleet.join("a")
    server = node.serve()
    id = node.hold("start", "--", "while sleep 0.05; do echo tick; done").stdout.strip()
    pid = json.loads(node.hold("status", id, "--json").stdout)["pid"]
    serving = fleet.serve_view()
    for victims in ("node", "view", "both"):
        fleet.until_connected("a")
        before = there(serving, "a", f"/sessions/{id}")["ends"]["stdout"]
        if victims in ("node", "both"):
            server.kill()
        if victims in ("view", "both"):
            serving.kill()
            serving.program.wait()
        if victims in ("node", "both"):
            server = node.serve()
        if victims in ("view", "both"):
            serving.start()
        passed = QuietTime()
        until(lambda: serving.call("GET", f"/v1/nodes/a/sessions/{id}").status == 200, START_BOUND_S, what="the node")
        assert passed.seconds() < 5
        now = there(serving, "a", f"/sessions/{id}")
        assert (now["state"], now["pid"]) == ("running", pid)
        assert now["ends"]["stdout"] >= before


@pytest.mark.covers("nodes:14")
@pytest.mark.parametrize("side", ["node", "view"])
def test_revoke_and_forget_end_open_attaches_at_once_and_are_in_both_audits(fleet: Fleet, side: str) -> None:
    node = fleet.node("a")
    id = node.hold("start", "--tty", "--", "cat").stdout.strip()
    serving = fleet.serve_view()
    until(lambda: serving.call("GET", "/v1/nodes/a/info").status == 200, START_BOUND_S, what="the node")
    with attached(serving, "a", id) as viewer:
        view = json.loads(node.hold("node", "ls", "--json").stdout)["views"][0]["view"]
        if side == "node":
            node.hold("node", "revoke", view)
        else:
            fleet.view.hold("node", "forget", "a")
        passed = QuietTime()
        assert closed_with(viewer)[0] == 1008
        assert passed.seconds() < 1
    ours, theirs = ("view_revoked", "revoked_by_node") if side == "node" else ("forgotten_by_view", "node_forgotten")
    for machine, action in ((node, ours), (fleet.view, theirs)):
        until(lambda machine=machine, action=action: action in _actions(machine), what=f"{action} in the audit")  # type: ignore[misc]
    assert [each for each in (*_audit(node), *_audit(fleet.view)) if str(each.get("by")).startswith("cli:")]
    assert serving.call("GET", "/v1/nodes/a/info").status in (404, 504)


def _actions(machine: Machine) -> list[str]:
    return [each["action"] for each in _audit(machine)]


def _audit(machine: Machine) -> list[dict[str, Any]]:
    path = machine.home / "server" / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _listed(serving: FleetServing) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = serving.call("GET", "/v1/sessions?nodes=all").json["items"]
    return found


def _listening(pid: int) -> list[str]:
    """TCP sockets on which a process listens."""
    import os

    inodes = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{entry}"))
        except FileNotFoundError:
            continue
    tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]
