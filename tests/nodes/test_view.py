"""What a view shows of its nodes, and sessions of others that it visits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import hostile_node
from support.fleets import leave
from support.own_time import QuietTime
from support.serving import START_BOUND_S
from support.waiting import until

if TYPE_CHECKING:
    from support.fleets import Fleet, Machine
    from support.world import World


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
    (away,) = [line.split() for line in fleet.view.hold("node", "ls").stdout.splitlines() if line.startswith("away")]
    assert away[:3] == ["away", "unreachable", "-"]
    words = fleet.view.hold("ls", "--nodes").stdout
    assert words.split()[:2] == ["NODE", "ID"]
    # After a visit the list is the same.
    fleet.view.hold("logs", "a/web")
    assert [line.split()[:2] for line in fleet.view.hold("ls", "--nodes").stdout.splitlines()] == [
        line.split()[:2] for line in words.splitlines()
    ]
    fleet.view.hold("rm", "a/web")
    unknown = fleet.view.hold("ls", "--nodes", "nobody", check=False)
    assert (unknown.returncode, unknown.stdout) == (3, "")
    assert [row["id"] for row in json.loads(fleet.view.hold("ls", "--json").stdout)] == [here]


def test_the_reason_that_a_node_gives_is_shown_cleaned(fleet: Fleet, world: World) -> None:
    node = fleet.join("hostile")
    liar = world.program([sys.executable, hostile_node.__file__, str(node.home), "-1", "none"], env=node.env)
    serving = fleet.serve_view()

    def why() -> str:
        (row,) = serving.call("GET", "/v1/nodes").json["items"]
        return str(row["why"])

    until(lambda: "gnp.exe" in why(), START_BOUND_S, what="its reason")
    (row,) = json.loads(fleet.view.hold("node", "ls", "--json").stdout)["nodes"]
    listed = fleet.view.hold("ls", "--nodes").stderr
    for text in (why(), row["why"], listed.rstrip("\n")):
        assert "gnp.exe" in text
        assert len(text) < 1000
        assert text.isprintable(), text
    liar.end()


# What a host of the view does with a session of a node through the library and a toolset.
_HOST = """
import asyncio, json, sys
import holdfast
from holdfast.tools import toolset

async def main():
    async with holdfast.open_async() as hf:
        session = await hf.get(sys.argv[1])
        tools = toolset("native", hf, owner="agent-7")
        read = await tools.call("read", {"id": sys.argv[1]})
        typed = await tools.call("send", {"id": sys.argv[1], "text": "from a tool", "submit": True})
        woke = await session.wait(match="from a tool", timeout=20)
        print(json.dumps([session.id, session.metadata["visit"], read.text, typed.text, woke.reason]))

asyncio.run(main())
"""


def _contents(machine: Machine, id: str) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in (machine.home / "sessions" / id).iterdir()}


def _but_signals(contents: dict[str, bytes]) -> dict[str, bytes]:
    """Its runner may record by itself that it waits for input."""
    return {name: content for name, content in contents.items() if name != "signals.jsonl"}


@pytest.mark.covers("nodes:24")
def test_a_session_of_others_on_a_node_is_read_typed_into_and_stopped_by_its_reference(
    fleet: Fleet, world: World
) -> None:
    node, view = fleet.node("a"), fleet.view
    # With `auto` an end that a waiting host reports to its owner is not told again: a visitor is no such host.
    words = ("--name", "repl", "--tty", "--owner", "them", "--notify", "auto", "--", "echo ready; cat")
    id = node.hold("start", *words).stdout.strip()
    node.hold("wait", id, "--match", "ready")
    before = _contents(node, id)
    assert "ready" in view.hold("logs", "a/repl").stdout
    assert "ready" in view.hold("screen", "a/repl").stdout
    assert "ready" in view.hold("search", "a/repl", "re.dy").stdout
    assert view.hold("wait", f"a/{id}", "--match", "ready").returncode == 0
    shown = json.loads(view.hold("status", "a/repl", "--json").stdout)
    assert (shown["id"], shown["name"], shown["metadata"]["visit"]) == (id, "a/repl", "a")
    said = " ".join(view.hold("status", "a/repl").stdout.split())
    for text in ("place node:a", f"pid {shown['pid']} in node:a", f"runner pid {shown['runner_pid']} in node:a,"):
        assert text in said
    assert _but_signals(_contents(node, id)) == _but_signals(before)

    following = view.program("logs", "-f", "a/repl")
    view.hold("submit", "a/repl", "sent")
    while "sent" not in following.line():
        pass
    waiting = view.program("wait", "a/repl")
    attached = view.hold("attach", "a/repl", "--stdin-eof", "detach", input="attached\n")
    assert "sent" in attached.stdout
    host = world.program([sys.executable, "-c", _HOST, "a/repl"], env=view.env)
    assert host.wait(20) == 0, host.errors()
    found, visited, read, typed, reason = json.loads(host.line())
    assert (found, visited, reason) == (id, "a", "match"), typed
    assert "ready" in read
    author = [
        json.loads(line)["by"] for line in (node.home / "sessions" / id / "inputs.jsonl").read_text().splitlines()
    ]
    assert all("@" in each for each in author), author
    now = _contents(node, id)
    grown = {name for name in now if now[name] != before.get(name)}
    assert {name.partition(".")[0] for name in grown} <= {"tty", "frames", "inputs", "marks", "signals"}, grown
    assert now["spec.json"] == before["spec.json"]

    assert view.hold("stop", "a/repl").returncode == 0
    while following.returncode is None and following.line():
        pass
    assert following.wait(20) is not None
    assert waiting.wait(20) is not None
    told = json.loads(node.hold("signals", "--owner", "them", "--json").stdout)
    assert [each["lifecycle"]["phase"] for each in told if "lifecycle" in each] == ["ended"]
    copy = view.home / "sessions" / id
    until(lambda: (copy / "exit.json").exists() and _exited(view, id), START_BOUND_S, what="the end in the copy")
    for owner in ("them", "agent-7"):
        assert json.loads(view.hold("signals", "--owner", owner, "--json").stdout) == []
    assert json.loads(view.hold("signals", "--json").stdout) == []
    assert not list(copy.glob("signals*"))
    node.hold("node", "revoke", json.loads(node.hold("node", "ls", "--json").stdout)["views"][0]["view"])
    logged = view.hold("logs", f"a/{id}").stdout
    assert "attached" in logged
    assert "from a tool" in logged
    view.hold("rm", "a/repl")
    assert not copy.exists()
    assert "from a tool" in node.hold("logs", id).stdout


def test_rm_of_a_running_visit_forgets_the_copy_and_leaves_the_session(fleet: Fleet) -> None:
    node, view = fleet.node("a"), fleet.view
    id = node.hold("start", "--name", "job", "--", "echo begun; sleep 1000").stdout.strip()
    view.hold("wait", "a/job", "--match", "begun")
    endpoint = Path(json.loads((view.home / "sessions" / id / "state.json").read_text())["endpoint"])
    assert endpoint.exists()
    assert view.hold("rm", f"a/{id}").returncode == 0
    assert view.hold("ls", "-aq").stdout == ""
    until(lambda: not endpoint.exists(), START_BOUND_S, what="the end of the deputy")
    assert node.hold("ls", "-q").stdout.split() == [id]
    assert "begun" in view.hold("logs", "a/job").stdout
    view.hold("stop", "--all", "--grace", "0")
    assert node.hold("ls", "-q").stdout.split() == [id]
    view.hold("rm", "a/job")


@pytest.mark.covers("nodes:25", "server:15")
def test_a_visit_that_fails_says_why(fleet: Fleet) -> None:
    node, view = fleet.node("a", scope="observe"), fleet.view
    id = node.hold("start", "--name", "repl", "--tty", "--", "echo ready; cat").stdout.strip()
    node.hold("wait", id, "--match", "ready")
    seen = json.loads(view.hold("ls", "--nodes", "--json").stdout)
    assert [row["id"] for row in seen] == [id]

    def problem(*words: str) -> tuple[int, str, str]:
        done = view.hold(*words, "--json", check=False)
        found = json.loads(done.stderr.splitlines()[-1])
        return done.returncode, found["code"], found["message"]

    # One that exists here, by an id that a session of this home has.
    mine = view.home / "sessions" / id
    mine.mkdir(mode=0o700)
    (mine / "spec.json").write_text(json.dumps({"id": id}))
    code, slug, message = problem("status", f"a/{id}")
    assert (code, slug) == (4, "visit-exists")
    assert id in message
    (mine / "spec.json").unlink()
    mine.rmdir()

    # With `observe`: it reads, and an input is refused; nothing is typed.
    assert "ready" in view.hold("logs", "a/repl").stdout
    code, slug, message = problem("send", "a/repl", "no")
    assert (code, slug) == (4, "observe-only")
    assert "control" in message
    refused = view.hold("stop", "a/repl", "--json", check=False)
    assert (refused.returncode, json.loads(refused.stdout)[0]["error"]["code"]) == (4, "observe-only")
    assert json.loads(node.hold("status", id, "--json").stdout)["state"] == "running"
    observing = view.program("attach", "a/repl", "--observe")
    while "ready" not in observing.line(START_BOUND_S):
        pass
    until(lambda: _attached(node, id) == {"control": 0, "observe": 1}, START_BOUND_S, what="an observer")
    leave(observing)
    assert not (node.home / "sessions" / id / "inputs.jsonl").exists()

    # One that was in the list, and was removed meanwhile.
    view.hold("rm", f"a/{id}")
    node.hold("stop", id, "--grace", "0")
    node.hold("rm", id)
    code, slug, message = problem("status", f"a/{id}")
    assert (code, slug) == (3, "not-found")
    assert f"a/{id}" in message
    code, slug, message = problem("status", f"nobody/{id}")
    assert (code, slug) == (3, "not-found")
    assert "nobody" in message


def _attached(machine: Machine, id: str) -> object:
    return json.loads(machine.hold("status", id, "--json").stdout)["attached"]


def _exited(machine: Machine, id: str) -> bool:
    return bool(json.loads(machine.hold("status", id, "--json").stdout)["state"] == "exited")
