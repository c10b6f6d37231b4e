"""Other places for sessions, each of them real: a container of podman, and a machine behind sshd."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support import containers
from support.census import FAILED
from support.containers import Container
from support.places import Away, CodeThere, deputies
from support.ssh_hosts import SshHost
from support.waiting import until
from support.world import World

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
    away = Away(container.place, world, home=container.root / "root", work=container.root / "tmp", work_there="/tmp")
    code_there.bring(away.home)
    yield away
    code_there.keep(away.home)
    world.closing.close()
    if not request.node.stash.get(FAILED, False):
        # The engine may lose the end of a link that was killed while it came about; the far end notices after a while.
        until(lambda: not container.processes(), what="an empty container")
        until(lambda: not container.zombies(), what="that everybody who ended there was waited for")
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
    code_there.bring(away.home)
    yield away
    code_there.keep(away.home)
    world.closing.close()
    if not request.node.stash.get(FAILED, False):
        # Before the machine is taken from them: they have what is over removed there.
        until(lambda: not deputies(world) and away.sessions() == [], what="the end of all deputies and sessions")


@pytest.fixture(params=["ssh", "podman"])
def away(request: pytest.FixtureRequest) -> Away:
    """Either place."""
    found: Away = request.getfixturevalue("over_ssh" if request.param == "ssh" else "in_podman")
    return found


@pytest.fixture
def hf(away: Away, world: World) -> Holdfast:
    return world.open()
