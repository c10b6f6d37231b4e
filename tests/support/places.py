"""Places for tests: containers and a machine to log in to, each real and the test's own."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support import evidence, levers, probe, processes
from support.containers import Container, Podman, PodmanFailed
from support.processes import Process
from support.ssh_hosts import Forwarder, SshHost
from support.waiting import Gate, wait_gone
from support.world import World, new_root

NewContainer = Callable[..., Container]


@pytest.fixture(autouse=True)
def places(census: None) -> Iterator[ExitStack]:
    """What ends the test's places: after its world has closed whatever it has open there, before the census counts."""
    with ExitStack() as closing:
        yield closing


@pytest.fixture(scope="session")
def podman(request: pytest.FixtureRequest) -> Iterator[Podman]:
    """A podman that knows only our containers."""
    strict = request.config.getoption("--strict-env")
    levers.demand("root", strict)
    levers.demand("podman", strict)
    made = Podman(new_root("hf-podman-"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def shared_container(podman: Podman) -> Iterator[Container]:
    """The container behind `container`; tests ask for that one."""
    made = _made(podman)
    made.is_shared = True
    yield made
    made.is_shared = False
    made.remove()


def _made(podman: Podman, *, python: bool = True) -> Container:
    try:
        return podman.container(python=python)
    except PodmanFailed as failed:
        pytest.skip(f"podman cannot run containers here: {failed}")


@pytest.fixture
def container(shared_container: Container, places: ExitStack, monkeypatch: pytest.MonkeyPatch) -> Container:
    """A running container that is empty again after each test; it may be paused, but neither stopped nor removed."""
    for name, value in shared_container.environment.items():
        monkeypatch.setenv(name, value)
    evidence.roots.append(shared_container.root)
    shared_container.wake()
    places.callback(shared_container.rest)
    return shared_container


@pytest.fixture
def new_container(podman: Podman, places: ExitStack, monkeypatch: pytest.MonkeyPatch) -> NewContainer:
    """Makes containers that are this test's alone: `new_container()`, or `new_container(python=False)`."""
    for name, value in podman.environment.items():
        monkeypatch.setenv(name, value)

    def make(*, python: bool = True) -> Container:
        made = _made(podman, python=python)
        evidence.roots.append(made.root)
        places.callback(made.remove)
        return made

    return make


@pytest.fixture
def own_container(new_container: NewContainer) -> Container:
    """A container that the test may stop, break and remove."""
    return new_container()


@pytest.fixture
def ssh_host(places: ExitStack, request: pytest.FixtureRequest) -> SshHost:
    """A machine to log in to."""
    levers.demand("sshd", request.config.getoption("--strict-env"))
    made = SshHost(new_root("hf-ssh-"))
    evidence.roots.append(made.root)
    places.callback(made.close)
    return made


class CodeThere:
    """What places have stored of our code, compiled. One test sends it, the others find it there."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def bring(self, home: Path) -> None:
        """To the home of a user there."""
        state = home / ".local" / "state" / "holdfast"
        if any(self._root.iterdir()):
            shutil.copytree(self._root, state / "runner")
        for parent in (state, *state.parents):
            if parent.is_relative_to(home) and parent.exists():
                parent.chmod(0o700)

    def keep(self, home: Path) -> None:
        stored = home / ".local" / "state" / "holdfast" / "runner"
        if not any(self._root.iterdir()) and stored.exists():
            shutil.copytree(stored, self._root, dirs_exist_ok=True)


@pytest.fixture(scope="session")
def code_there() -> Iterator[CodeThere]:
    root = new_root("hf-code-")
    yield CodeThere(root)
    shutil.rmtree(root)


class GateThere(Gate):
    """A gate whose path is another one there."""

    def __init__(self, path: Path, there: str) -> None:
        super().__init__(path)
        self._there = there

    def __str__(self) -> str:
        return self._there


class Away:
    """A place as a test sees it: the name that a session is given, and its files as seen from here."""

    def __init__(
        self, place: str, world: World, *, home: Path, work: Path, work_there: str, home_there: str | None = None
    ) -> None:
        self.place = place
        self.home = home
        self.home_there = home_there or str(home)
        self.state = home / ".local" / "state" / "holdfast"
        self.guests = self.state / "guests" / "sessions"
        # A directory for the files of a test, and its name there.
        self.work = work
        self.work_there = work_there
        # Of another machine: what connects it, and how its refusal is worded while that is down.
        self.cable: Forwarder
        self.refusal = ""
        self._world = world
        shutil.copy(probe.__file__, work / "probe.py")

    def probe(self, *words: object) -> list[str]:
        """The command line of the suite's child program there."""
        return ["python3", "-I", "-S", f"{self.work_there}/probe.py", *map(str, words)]

    def gate(self) -> GateThere:
        name = f"gate-{len(list(self.work.iterdir()))}"
        made = GateThere(self.work / name, f"{self.work_there}/{name}")
        self._world.closing.callback(made.close)
        return made

    def sessions(self) -> list[str]:
        """The directories of sessions there; what is over has moved home."""
        return sorted(os.listdir(self.guests)) if self.guests.exists() else []


def deputies(world: World) -> list[Process]:
    """The living deputies of this world: each holds the directory of its session."""
    found = []
    for row in processes.table().values():
        if row.state not in "ZX" and processes.command_line(row.pid).endswith(("deputy", "next-deputy")):
            held = processes.descriptors(row.pid).values()
            if any(path.startswith(f"{world.home}/") for path in held):
                found.append(row)
    return found


def kill_deputies(world: World) -> None:
    for row in deputies(world):
        processes.send(row, signal.SIGKILL)
        wait_gone(row.pid)


def runners_there(away: Away, id: str) -> list[int]:
    """The pids here of processes that hold the session's directory there."""
    names = {f"{away.home_there}/.local/state/holdfast/guests/sessions/{id}", str(away.guests / id)}
    below = processes.descendants(os.getpid())
    return [row.pid for row in below if names & set(processes.descriptors(row.pid).values())]
