"""A view and its nodes: what works through the fabric, what survives, and who may do what."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.fleets import Machine, leave
from support.levers import namespace_argv
from support.own_time import QuietTime
from support.serving import START_BOUND_S, closed_with, new_certificate
from support.through_nodes import attached, there
from support.waiting import until

if TYPE_CHECKING:
    from typing import Any

    from support.fleets import Fleet
    from support.world import World


@pytest.mark.covers("nodes:1")
@pytest.mark.namespaces
def test_two_commands_on_each_machine_connect_homes_that_reach_nothing_but_the_fabric(world: World) -> None:
    network = Network(world)
    view = Machine(world, "view", network.hub)
    nodes = {name: Machine(world, f"m-{name}", network.spoke()) for name in ("build-box", "other")}
    certificate, key = new_certificate(world.root)
    fabric = view.program(
        *("fabric", "--bind", "0.0.0.0", "--host", HUB, "--port", PORT, "--tls-cert", certificate, "--tls-key", key)
    )
    world.closing.callback(leave, fabric)
    assert f"tls://{HUB}:{PORT}" in fabric.line(START_BOUND_S), fabric.errors()
    for name, node in nodes.items():
        inviting = view.program("node", "invite", name, "--scope", "manage")
        joined = node.hold(*inviting.line(START_BOUND_S).split()[1:]).stdout
        assert inviting.line().rsplit(maxsplit=1)[1] == joined.rsplit(maxsplit=1)[1]
        assert inviting.wait(START_BOUND_S) == 0
        node.serve()
    assert network.listening() == [{PORT}, set(), set()]
    # Both addresses of the hub, and its own.
    assert network.seen_from(0) == {HUB, "10.83.1.1", "10.83.1.2"}
    assert network.seen_from(1) == {HUB, "10.83.2.1", "10.83.2.2"}

    node, ref = nodes["build-box"], "build-box/repl"
    id = node.hold("start", "--tty", "--name", "repl", "--", "cat").stdout.strip()
    there = nodes["other"].hold("start", "--", "sleep 1000").stdout.strip()

    def listed() -> set[tuple[str, str]]:
        return {(row["node"], row["id"]) for row in json.loads(view.hold("ls", "--nodes", "--json").stdout)}

    until(lambda: listed() == {("build-box", id), ("other", there)}, START_BOUND_S, what="all sessions in the list")

    def states() -> set[str]:
        return {row["state"] for row in json.loads(view.hold("node", "ls", "--json").stdout)["nodes"]}

    # On a busy machine it may take longer than a look waits.
    until(lambda: states() == {"connected"}, START_BOUND_S, what="all nodes")
    view.hold("submit", ref, "typed far away")
    attached = view.hold("attach", ref, "--stdin-eof", "detach", input="attached\n")
    assert "typed far away" in attached.stdout
    view.hold("wait", ref, "--match", "attached")
    assert "typed far away" in node.hold("logs", id).stdout
    assert "attached" in view.hold("logs", ref).stdout
    assert "attached" in view.hold("screen", ref).stdout
    assert view.hold("stop", ref).returncode == 0
    assert json.loads(node.hold("status", id, "--json").stdout)["state"] == "exited"
    ran = view.hold("run", "--place", "node:build-box", "--", "echo $HOLDFAST_HOME; exit 3", check=False)
    assert (ran.returncode, ran.stdout) == (3, f"{node.home}\n")
    # Its deputy has the node remove the session's directory there, for which it needs the node's server.
    until(lambda: not view.endpoints(), START_BOUND_S, what="the end of the deputy")


HUB, PORT = "10.83.0.1", 4654


class Network:
    """A network of its own for each machine. A spoke has a link to the hub, and a route to nothing else."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._spokes: list[int] = []
        argv = namespace_argv("--net", "sh", "-c", f"ip address add {HUB}/32 dev lo && ip link set lo up && {_HOLD}")
        self._hub = self._holder(argv)
        self.hub = _within(self._hub)
        # A machine that forwards would be a route from one spoke to another; a namespace has what the machine has.
        world.program([*self.hub, "sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward"]).wait()

    def spoke(self) -> list[str]:
        """The prefix for programs of a machine of its own."""
        number = len(self._spokes) + 1
        alone = [*_within(self._hub, "--user"), "unshare", "--net"]
        pid = self._holder([*alone, "sh", "-c", f"ip link set lo up && {_HOLD}"])
        self._spokes.append(pid)
        ours, theirs = f"10.83.{number}.1", f"10.83.{number}.2"
        at_hub = f"ip link add s{number} type veth peer name hub netns {pid} && ip link set s{number} up"
        self._do(self._hub, f"{at_hub} && ip address add {ours}/30 dev s{number}")
        self._do(pid, f"ip address add {theirs}/30 dev hub && ip link set hub up && ip route add {HUB} via {ours}")
        return _within(pid)

    def listening(self) -> list[set[int]]:
        """The ports on which anything listens: at the hub, and at each spoke."""
        return [_listening(pid) for pid in (self._hub, *self._spokes)]

    def seen_from(self, spoke: int) -> set[str]:
        """The addresses of all machines to which this spoke can connect, whatever answers there."""
        hosts = [HUB, *(f"10.83.{number + 1}.{end}" for number in range(len(self._spokes)) for end in (1, 2))]
        asked = [*_within(self._spokes[spoke]), sys.executable, "-c", _CONNECT, str(PORT), *hosts]
        program = self._world.program(asked)
        seen = set(program.line(START_BOUND_S).split())
        assert program.wait() == 0, program.errors()
        return seen

    def _holder(self, argv: list[str]) -> int:
        program = self._world.program(argv)
        assert program.line() == "up", program.errors()
        return program.pid

    def _do(self, pid: int, words: str) -> None:
        done = self._world.program([*_within(pid), "sh", "-c", words])
        assert done.wait() == 0, done.errors()


_HOLD = "echo up && exec cat"
_CONNECT = """
import errno, socket, sys
seen = []
for host in sys.argv[2:]:
    there = socket.socket()
    there.settimeout(1)
    if there.connect_ex((host, int(sys.argv[1]))) in (0, errno.ECONNREFUSED):
        seen.append(host)
print(*seen)
"""


def _within(pid: int, *flags: str) -> list[str]:
    return ["nsenter", f"--target={pid}", "--preserve-credentials", *(flags or ("--user", "--net"))]


def _listening(pid: int) -> set[int]:
    """The TCP ports on which anything listens in the network of this process."""
    tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


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


def test_a_node_trusts_no_view_while_its_file_is_damaged_and_heeds_it_again_afterwards(fleet: Fleet) -> None:
    node = fleet.join("a")
    server = node.serve()
    id = node.hold("start", "--tty", "--", "cat").stdout.strip()
    serving = fleet.serve_view()

    def answers() -> bool:
        return serving.call("GET", "/v1/nodes/a/info").status == 200

    until(answers, START_BOUND_S, what="the node")
    path = node.file("joined.json")
    intact = path.read_text()
    with attached(serving, "a", id) as viewer:
        _write(path, intact[:-20])
        assert closed_with(viewer)[0] == 1008
    assert not answers()
    for words in (("node", "ls"), ("doctor",)):
        said = node.hold(*words, check=False)
        assert "joined.json cannot be read" in said.stdout + said.stderr
        assert "remove it and invite and join again" in said.stdout + said.stderr
    _write(path, intact)
    until(answers, START_BOUND_S, what="the node")
    (view,) = (each["view"] for each in json.loads(node.hold("node", "ls", "--json").stdout)["views"])
    with attached(serving, "a", id) as viewer:
        node.hold("node", "revoke", view)
        assert closed_with(viewer)[0] == 1008
    leave(server)
    assert server.errors().count("joined.json") == 1


def _write(path: Path, text: str) -> None:
    """In one step, as the program writes it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o600)
    new.replace(path)


def test_a_node_changes_what_a_view_may_do_and_ends_what_it_had_open_with_more(fleet: Fleet) -> None:
    node = fleet.node("a", scope="observe")
    id = node.hold("start", "--tty", "--", "cat").stdout.strip()
    (view,) = (each["view"] for each in json.loads(node.hold("node", "ls", "--json").stdout)["views"])
    serving = fleet.serve_view()
    until(lambda: serving.call("GET", "/v1/nodes/a/info").status == 200, START_BOUND_S, what="the node")

    def typed() -> int:
        return serving.call("POST", f"/v1/nodes/a/sessions/{id}/input", {"submit": "hello"}).status

    assert typed() == 403
    refused = node.hold("node", "trust", "other", "--scope", "control", check=False)
    assert (refused.returncode, "there is no view 'other'" in refused.stderr) == (2, True)
    assert "trust needs --scope" in node.hold("node", "trust", view, check=False).stderr
    node.hold("node", "trust", view, "--scope", "control")
    assert typed() == 200
    with attached(serving, "a", id) as viewer:
        node.hold("node", "trust", view, "--scope", "observe")
        assert closed_with(viewer)[0] == 1008
    assert typed() == 403
    assert [each.get("scope") for each in _audit(node) if each["action"] == "view_trusted"] == ["control", "observe"]


def _actions(machine: Machine) -> list[str]:
    return [each["action"] for each in _audit(machine)]


def _audit(machine: Machine) -> list[dict[str, Any]]:
    path = machine.home / "server" / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
