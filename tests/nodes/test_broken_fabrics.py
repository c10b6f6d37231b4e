"""Every way in which the connection between machines fails is named where people look, and retried."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from holdfast.errors import NodeTwice
from holdfast.nodes.own_server import program
from support.fabric_proxy import FabricProxy, move
from support.fleets import leave
from support.serving import START_BOUND_S
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.fleets import Fleet, Machine
    from support.program import Program
    from support.world import World


class Broken(NamedTuple):
    """One change of the server's configuration; what machines say, and what is to be done."""

    change: Callable[[str], str]
    why: str
    fix: str
    view_has_it: bool = True
    node_has_it: bool = True


def _without(user: str, action: str) -> Callable[[str], str]:
    """The server's configuration with one of the four permissions taken from one user."""

    def change(text: str) -> str:
        found = re.search(rf'user: "{user}.*?{action}: {{ allow: \["(.*?)"', text)
        assert found
        return text[: found.start(1)] + "nothing" + text[found.end(1) :]

    return change


def _with_the_wrong_certificate(text: str) -> str:
    return text.replace("right.pem", "wrong.pem").replace("right.key", "wrong.key")


BROKEN = {
    "max_payload": Broken(
        lambda text: re.sub(r"max_payload: \d+", "max_payload: 65536", text),
        "its max_payload is 65536 bytes: set it to 262144 or more",
        "set max_payload to 262144",
    ),
    "certificate": Broken(
        _with_the_wrong_certificate, "its certificate is not the expected one", "use the certificate"
    ),
    "node subscribes": Broken(
        _without("n-a", "subscribe"), "a permission is missing", "permissions", view_has_it=False
    ),
    "view publishes": Broken(_without("view", "publish"), "a permission is missing", "permissions", node_has_it=False),
    "node publishes": Broken(_without("n-a", "publish"), "a permission is missing", "permissions", view_has_it=False),
    "view subscribes": Broken(
        _without("view", "subscribe"), "a permission is missing", "permissions", node_has_it=False
    ),
}
OLD = Broken(lambda text: text, "nats-server 2.1.9 is too old", "install a newer nats-server")


class ServerOfOthers:
    """A NATS server that somebody set up, in place of `hold fabric`; its port stays."""

    def __init__(self, world: World, fleet: Fleet) -> None:
        self._world = world
        self._text = fleet.view.file("nats.conf").read_text()
        self._file = world.root / "others.conf"
        self._program: Program | None = None
        self._port = fleet.port
        leave(fleet.fabric)

    def use_tls(self, certificate: Path, *files: Path) -> None:
        """From now on it has this certificate, which the machines with these records expect."""
        tls = f'tls {{ cert_file: "{certificate}", key_file: "{certificate.with_suffix(".key")}" }}\nauthorization'
        self._text = self._text.replace("authorization", tls, 1)
        for path in files:
            move(path, url=f"tls://127.0.0.1:{self._port}", certificate=certificate.read_text())

    def start(self, change: Callable[[str], str] = lambda text: text) -> None:
        if self._program is not None:
            leave(self._program)
        self._file.write_text(change(self._text))
        self._program = self._world.program([program(), "-c", str(self._file)])
        self._world.closing.callback(leave, self._program)
        until(lambda: "Server is ready" in self._errors(), START_BOUND_S, what="the NATS server")

    def _errors(self) -> str:
        assert self._program is not None
        return self._program.errors()


@pytest.mark.covers("nodes:20", "nodes:31")
@pytest.mark.parametrize("way", BROKEN)
def test_a_fabric_that_cannot_carry_it_all_is_named_on_ls_in_the_log_and_by_doctor_and_is_retried(
    world: World, fleet: Fleet, way: str
) -> None:
    node, view = fleet.join("a"), fleet.view
    others = ServerOfOthers(world, fleet)
    right, _ = (_certificate(world.root / name) for name in ("right.pem", "wrong.pem"))
    others.use_tls(right, view.file("viewing.json"), node.file("joined.json"))
    others.start(BROKEN[way].change)
    serving, server = fleet.serve_view(), node.serve()
    _is_named(BROKEN[way], view, node, {view.name: serving.program, node.name: server})
    others.start()
    until(lambda: serving.call("GET", "/v1/nodes/a/info").status == 200, 2 * START_BOUND_S, what="a fabric that is fit")
    for each in (serving.program, server):
        assert each.errors().splitlines()[-1].endswith(": connected")
    assert _problems(view) == _problems(node) == []
    assert [machine.hold("node", "ls").stderr for machine in (view, node)] == ["", ""]


@pytest.mark.covers("nodes:20", "nodes:31")
def test_an_old_server_is_named_on_ls_in_the_log_and_by_doctor_and_is_retried(world: World, fleet: Fleet) -> None:
    node, view = fleet.join("a"), fleet.view
    proxy = FabricProxy(world, fleet.port)
    proxy.carry(view.file("viewing.json"), node.file("joined.json"))
    proxy.line = lambda line: re.sub(rb'"version":"[^"]*"', b'"version":"2.1.9"', line)
    serving, server = fleet.serve_view(), node.serve()
    _is_named(OLD, view, node, {view.name: serving.program, node.name: server})
    proxy.line = lambda line: line
    until(lambda: serving.call("GET", "/v1/nodes/a/info").status == 200, START_BOUND_S, what="the node")


@pytest.mark.covers("nodes:31")
def test_doctor_says_what_is_wrong_with_a_node_a_copy_of_it_and_no_fabric(fleet: Fleet) -> None:
    node, view = fleet.join("a", scope="observe"), fleet.view
    server = node.serve()
    fleet.until_connected("a")
    # A view that may not do everything.
    (said,) = [each["text"] for each in _findings(view) if each["check"] == "node"]
    assert "typing, stopping and starting commands there is refused" in said
    assert "until `hold node trust VIEW --scope ...` there allows more" in said
    (said,) = [each["text"] for each in _findings(node) if each["check"] == "view"]
    assert "may observe this home" in said
    assert "`hold node revoke" in said

    # A copied home. Both machines that have the key learn of it, and of its end.
    copy = fleet.machine("copy")
    copy.home.mkdir(mode=0o700)
    shutil.copytree(node.file(""), copy.file(""), ignore=shutil.ignore_patterns("*.lock"))
    second = copy.serve()
    until(lambda: "two machines answer" in str(_problems(view)), START_BOUND_S, what="the copy")
    for machine in (view, node, copy):
        ((text, fix),) = _problems(machine)
        assert "was copied" in text
        assert fix == NodeTwice.fix
    assert "another machine has the key" in _listed(node)["views"][0]["why"]
    leave(second)
    until(lambda: not _problems(view) and not _problems(node), START_BOUND_S, what="one machine with the key")

    # A node that sleeps, one without a server, and no fabric.
    server.signal(signal.SIGSTOP)
    ((text, fix),) = _problems(view)
    server.signal(signal.SIGCONT)
    assert text == "a: no answer"
    assert "asleep" in fix
    leave(server)
    ((text, fix),) = _problems(view)
    assert text == "a: not connected"
    assert "hold serve --no-listen" in fix
    ((text, fix),) = _problems(node)
    assert "no server of this home is running" in text
    assert fix == "run `hold serve --no-listen`"
    leave(fleet.fabric)
    for machine, problems in ((view, 1), (node, 2)):
        found = _problems(machine)
        assert len(found) == problems
        assert "cannot be used" in found[0][0]
        assert "start it with `hold fabric`" in found[0][1]


@pytest.mark.covers("nodes:31")
def test_a_refused_join_names_what_is_wrong_with_the_fix_and_leaves_nothing_for_doctor_to_say(fleet: Fleet) -> None:
    node, view = fleet.node("a"), fleet.view
    inviting, code = fleet.invite("a")
    second = fleet.machine("second")
    refused = second.hold("node", "join", code, check=False)
    assert inviting.wait(START_BOUND_S) == refused.returncode != 0
    for said in (refused.stderr, inviting.errors()):
        assert "the name a belongs to another machine" in said
        assert "choose another name, or `hold node forget` the first machine" in said
    # Nothing is kept of it on either side, and the first machine is not disturbed.
    for machine in (second, view, node):
        assert _problems(machine) == []
    assert _findings(second) == []
    assert "a answers" in [each["text"] for each in _findings(view)]


def _is_named(broken: Broken, view: Machine, node: Machine, programs: dict[str, Program]) -> None:
    having = [machine for machine, has_it in ((view, broken.view_has_it), (node, broken.node_has_it)) if has_it]
    for machine in having:

        def is_logged(name: str = machine.name) -> bool:
            return broken.why in programs[name].errors()

        until(is_logged, START_BOUND_S, what=f"{broken.why} in the log of {machine.name}")
        listed = _listed(machine)
        (row,) = listed["nodes"] if machine is view else listed["views"]
        assert broken.why in row["why"], row
        (text, fix), *_ = _problems(machine)
        assert broken.why in text
        assert broken.fix in fix


def _listed(machine: Machine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(machine.hold("node", "ls", "--json").stdout)
    return found


def _findings(machine: Machine) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(machine.hold("doctor", "--json", check=False).stdout)
    return [each for each in found if each["check"] in ("fabric", "node", "view")]


def _problems(machine: Machine) -> list[tuple[str, str]]:
    return [(each["text"], each["fix"]) for each in _findings(machine) if each["level"] != "ok"]


def _certificate(path: Path) -> Path:
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=fabric.example", "-keyout", str(path.with_suffix(".key")), "-out", str(path)]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    return path
