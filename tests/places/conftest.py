"""Other places for sessions, each of them real: a container, a machine behind sshd, a node, configured commands."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from support import containers, evidence
from support.census import FAILED
from support.containers import Container
from support.node_hosts import NodeHost
from support.places import Away, CodeThere, deputies
from support.ssh_hosts import SshHost
from support.waiting import until
from support.world import World, new_root

if TYPE_CHECKING:
    from holdfast import Holdfast


@pytest.fixture(scope="session", autouse=True)
def container_first(request: pytest.FixtureRequest) -> None:
    """The container that tests share is there before a census counts for the first time."""
    if containers.missing() is None:
        with contextlib.suppress(pytest.skip.Exception):
            request.getfixturevalue("shared_container")


@pytest.fixture
def in_podman(
    request: pytest.FixtureRequest, world: World, container: Container, code_there: CodeThere
) -> Iterator[Away]:
    away = Away(
        container.place,
        world,
        home=container.root / "root",
        work=container.root / "tmp",
        work_there="/tmp",
        home_there="/root",
    )
    code_there.bring(away.home)
    yield away
    code_there.keep(away.home)
    world.closing.close()
    if not request.node.stash.get(FAILED, False):
        # The engine may lose the end of a link that was killed while it came about; the far end notices after a while.
        until(lambda: not container.processes(), what="an empty container")
        if away.place == container.place:
            # A configured command cannot start a runner from outside: it is left to the first process there.
            until(lambda: not container.zombies(), what="that every process that ended there was waited for")
        assert away.sessions() == []


@pytest.fixture
def over_ssh(
    request: pytest.FixtureRequest,
    world: World,
    ssh_host: SshHost,
    code_there: CodeThere,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Away]:
    monkeypatch.setenv("HOLDFAST_PLACES_SSH", shlex.join(ssh_host.argv))
    work = ssh_host.root / "work"
    work.mkdir()
    away = Away(ssh_host.place, world, home=ssh_host.home, work=work, work_there=str(work))
    away.cable, away.refusal = ssh_host.cable, "[Rr]efused"
    code_there.bring(away.home)
    yield away
    code_there.keep(away.home)
    world.closing.close()
    if not request.node.stash.get(FAILED, False):
        # Before the machine is taken from them: they have what is over removed there.
        until(lambda: not deputies(world) and away.sessions() == [], what="the end of all deputies and sessions")


@pytest.fixture
def over_fabric(
    request: pytest.FixtureRequest, world: World, places: ExitStack, code_there: CodeThere
) -> Iterator[Away]:
    made = NodeHost(new_root("hf-node-"), world)
    places.callback(made.close)
    evidence.roots.append(made.root)
    work = made.root / "work"
    work.mkdir()
    away = Away(made.place, world, home=made.home, work=work, work_there=str(work))
    away.cable, away.refusal = made.cable, "not connected"
    code_there.bring(away.home)
    yield away
    code_there.keep(away.home)
    world.closing.close()
    if not request.node.stash.get(FAILED, False):
        until(lambda: not deputies(world) and away.sessions() == [], what="the end of all deputies and sessions")


# Runs a command below another root, in a mount namespace of its own.
_CHROOT = """
for folder in usr dev proc etc; do mount --rbind "/$folder" "$0/$folder" || exit; done
exec chroot "$0" env -i -C /root HOME=/root PATH=/usr/local/bin:/usr/bin:/bin "$@"
"""


def configure_place(world: World, name: str, argv: list[str]) -> None:
    """`[places.NAME]` of the configuration."""
    file = world.root / "user" / ".config" / "holdfast" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"[places.{name}]\nargv = {json.dumps(argv)}\n")


@pytest.fixture
def in_bwrap(world: World, places: ExitStack, code_there: CodeThere) -> Iterator[Away]:
    """A place of one's own: the same machine, with another home and another environment."""
    root = new_root("hf-bwrap-")
    places.callback(shutil.rmtree, root, ignore_errors=True)
    home, work = root / "home", root / "work"
    home.mkdir()
    work.mkdir()
    argv = ["bwrap", "--dev-bind", "/", "/", "--clearenv", "--setenv", "HOME", str(home), "--chdir", str(home)]
    configure_place(world, "box", [*argv, "--setenv", "PATH", os.environ["PATH"], "--"])
    yield from _own(Away("box", world, home=home, work=work, work_there=str(work)), world, code_there)


@pytest.fixture
def in_chroot(world: World, places: ExitStack, code_there: CodeThere) -> Iterator[Away]:
    root = new_root("hf-chroot-")
    places.callback(shutil.rmtree, root, ignore_errors=True)
    for folder in ("usr", "dev", "proc", "etc", "root", "tmp"):
        (root / folder).mkdir()
    for link in ("bin", "lib", "lib64", "sbin"):
        (root / link).symlink_to(f"usr/{link}")
    configure_place(world, "jail", ["unshare", "--mount", "sh", "-c", _CHROOT, str(root)])
    away = Away("jail", world, home=root / "root", work=root / "tmp", work_there="/tmp", home_there="/root")
    yield from _own(away, world, code_there)


@pytest.fixture
def node_with(world: World, places: ExitStack) -> Callable[[list[str]], NodeHost]:
    """Makes a node that runs this program in the place of our far end."""

    def made(far_end: list[str]) -> NodeHost:
        host = NodeHost(new_root("hf-node-"), world, far_end)
        places.callback(host.close)
        evidence.roots.append(host.root)
        return host

    return made


def _own(away: Away, world: World, code_there: CodeThere) -> Iterator[Away]:
    code_there.bring(away.home)
    yield away
    code_there.keep(away.home)
    world.closing.close()
    until(lambda: not deputies(world) and away.sessions() == [], what="the end of all deputies and sessions")


@pytest.fixture
def in_podman_by_command(in_podman: Away, container: Container, world: World) -> Away:
    """The container as a place of one's own."""
    configure_place(world, "web", ["podman", "exec", "-i", container.name])
    in_podman.place = "web"
    return in_podman


_WAYS = {
    "ssh": "over_ssh",
    "podman": "in_podman",
    "node": "over_fabric",
    "bwrap": "in_bwrap",
    "chroot": "in_chroot",
    "podman exec": "in_podman_by_command",
}
_NODE = pytest.param("node", marks=pytest.mark.covers("nodes:23"))
_OWN = (
    pytest.param("bwrap", marks=pytest.mark.covers("habits:21")),
    pytest.param("chroot", marks=[pytest.mark.covers("habits:21"), pytest.mark.long]),
    pytest.param("podman exec", marks=[pytest.mark.covers("habits:21"), pytest.mark.long]),
)


@pytest.fixture(params=["ssh", "podman", _NODE, *_OWN])
def away(request: pytest.FixtureRequest) -> Away:
    """Each kind of place."""
    found: Away = request.getfixturevalue(_WAYS[request.param])
    return found


@pytest.fixture(params=["ssh", _NODE])
def remote(request: pytest.FixtureRequest) -> Away:
    """Each kind of another machine, whose cable a test may cut."""
    found: Away = request.getfixturevalue(_WAYS[request.param])
    return found


@pytest.fixture
def hf(away: Away, world: World) -> Holdfast:
    return world.open()
