"""The package as users get it: built from a clean clone, installed beside nothing else, used, removed and installed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from mcp.client.stdio import StdioServerParameters

import holdfast
from support import interpreters, processes
from support.mcp_clients import connected
from support.serving import Serving
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.world import World

ROOT = Path(__file__).parents[2]
_BOUND_S = 300
# Without Node: what follows the build of the sdist has to find the page in it.
_NO_NODE = {**os.environ, "PATH": "/nowhere"}


class Packages(NamedTuple):
    sdist: Path
    wheel: Path

    def named(self, what: str, extras: str = "") -> str:
        """A requirement that every installer understands."""
        path = self.wheel if what == "wheel" else self.sdist
        return f"holdfast{extras} @ {path.as_uri()}"


def run(*argv: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=_BOUND_S, check=False
    )
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """The sdist of a clean clone, and the wheel that is built from that sdist."""
    place = tmp_path_factory.mktemp("packages")
    clone = place / "clone"
    # What a commit of everything here would have: a clone of the last commit would not have what is being changed.
    names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    for name in names:
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    # A copy: `npm ci`, where it is needed, empties the folder first.
    shutil.copytree(ROOT / "web/node_modules", clone / "web/node_modules", symlinks=True)
    os.utime(clone / "web/package-lock.json", (0, 0))
    hatch = [sys.executable, "-m", "hatchling", "build", "-d", place]
    run(*hatch, "-t", "sdist", cwd=clone)
    (sdist,) = place.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        assert not [name for name in packed.getnames() if "node_modules" in name]
        # All that its tests and its documentation need.
        within = {name.partition("/")[2] for name in packed.getnames()}
        missing = {name for name in names if (clone / name).is_file()} - within
        assert missing <= {".ci/run", "AGENTS.md"}
        packed.extractall(place / "unpacked", filter="data")
    (source,) = (place / "unpacked").iterdir()
    run(*hatch, "-t", "wheel", cwd=source, env=_NO_NODE)
    (wheel,) = place.glob("*.whl")
    return Packages(sdist, wheel)


class Installation(NamedTuple):
    """How the package comes into an environment and goes out of it, and the `hold` that is there meanwhile."""

    hold: Path
    install: Callable[[], object]
    uninstall: Callable[[], object]


def offline(world: World, packages: Packages) -> Installation:
    """With pip into a virtual environment, without a registry: the dependencies are those of the tests."""
    env = world.root / "env"
    run(sys.executable, "-m", "venv", "--without-pip", env)
    python = env / "bin/python"
    (library,) = env.glob("lib/python*/site-packages")
    (library / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "-q", "--python", python]
    return Installation(
        env / "bin/hold",
        lambda: run(*pip, "install", "--no-deps", "--no-index", packages.wheel),
        lambda: run(*pip, "uninstall", "-y", "holdfast"),
    )


def with_pip(world: World, python: str, requirement: str) -> Installation:
    env = world.root / "env"
    run(python, "-m", "venv", env)
    pip = [env / "bin/python", "-m", "pip", "-q"]
    return Installation(
        env / "bin/hold", lambda: run(*pip, "install", requirement), lambda: run(*pip, "uninstall", "-y", "holdfast")
    )


def with_pipx(world: World, python: str, requirement: str) -> Installation:
    bin = world.root / "bin"
    env = {**os.environ, "PIPX_HOME": str(world.root / "pipx"), "PIPX_BIN_DIR": str(bin)}
    pipx = [sys.executable, "-m", "pipx"]
    return Installation(
        bin / "hold",
        lambda: run(*pipx, "install", "--python", python, requirement, env=env),
        lambda: run(*pipx, "uninstall", "holdfast", env=env),
    )


def with_uv(world: World, python: str, requirement: str) -> Installation:
    bin = world.root / "bin"
    env = {**os.environ, "UV_TOOL_DIR": str(world.root / "uv"), "UV_TOOL_BIN_DIR": str(bin), "UV_SYSTEM_CERTS": "1"}
    uv = [sys.executable, "-m", "uv", "-q", "tool"]
    return Installation(
        bin / "hold",
        lambda: run(*uv, "install", "--python", python, requirement, env=env),
        lambda: run(*uv, "uninstall", "holdfast", env=env),
    )


def everyday(world: World, installed: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hold`, `hold mcp` and `hold serve` of an installation work; sessions outlive it and are found by the next."""
    # From here on the world uses the installed command, and nothing of the repository.
    monkeypatch.setattr(world, "hold_argv", lambda *words: [str(installed.hold), *map(str, words)])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    installed.install()
    assert world.hold("--version", check=True).stdout.split()[-1] == holdfast.__version__
    ran = world.hold("run", "--", "echo out; echo err >&2; exit 3")
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "out\n", "err\n")
    asyncio.run(_agent_runs_a_command(installed.hold))
    _page_is_served(world)

    gate = world.gate()
    lives = world.hold("start", "--stdin", "open", "--name", "lives", "--", *world.probe("cat"), check=True)
    ends = world.hold(
        "start", "--name", "ends", "--", *world.probe("quiet", "await", gate.path, "say", "over", "exit", 5)
    )
    assert (lives.returncode, ends.returncode) == (0, 0)
    pid = processes.look(int(_field(world, "lives", "pid")))
    assert pid is not None
    doctor = world.hold("doctor").stdout
    assert "2 running; they continue when this package is removed or replaced" in doctor
    installed.uninstall()
    assert not installed.hold.exists()
    gate.release()
    record = world.session(ends.stdout.strip()) / "exit.json"
    until(record.exists, watch=record.parent, what="the exit record of a session without an installation")
    assert processes.look(pid.pid) == pid
    installed.install()
    assert world.hold("ls", "-q", check=True).stdout == lives.stdout
    assert world.hold("wait", "ends").returncode == 5
    assert world.hold("logs", "ends").stdout == "over\n"
    world.hold("send", "--newline", "lives", "hello", check=True)
    assert world.hold("wait", "lives", "--match", "^hello$", "--timeout", "30s").returncode == 0
    world.hold("stop", "lives", check=True)
    assert processes.look(pid.pid) is None


def _field(world: World, ref: str, name: str) -> str:
    found = re.search(rf'"{name}": (\d+)', world.hold("status", ref, "--json", check=True).stdout)
    assert found
    return found[1]


async def _agent_runs_a_command(hold: Path) -> None:
    words = ["mcp", "--owner", "agent-7"]
    async with connected(StdioServerParameters(command=str(hold), args=words, env=dict(os.environ))) as client:
        done = await client.call_tool("run", {"command": "echo over mcp"})
    assert "over mcp" in str(done.content)


def _page_is_served(world: World) -> None:
    serving = Serving(world)
    info = serving.call("GET", "/v1/info").json
    assert info["version"] == holdfast.__version__
    assert "page" in info["features"]
    index = serving.ask("/", {"Host": serving.address})
    parts = re.findall(r"/assets/[\w.-]+", index.body.decode())
    assert index.headers["content-type"].startswith("text/html")
    assert len(parts) >= 3
    for part in parts:
        found = serving.ask(part, {"Host": serving.address, "Accept-Encoding": "gzip"})
        assert (found.status, found.headers["content-encoding"]) == (200, "gzip")
        assert found.body
    serving.leave()


@pytest.mark.covers("page:2")
@pytest.mark.own_launcher
@pytest.mark.timeout(300)
def test_the_wheel_works_where_there_is_no_node_and_its_sessions_outlive_it(
    world: World, packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    everyday(world, offline(world, packages), monkeypatch)


@pytest.mark.long
@pytest.mark.own_launcher
@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", ["wheel", "sdist"])
@pytest.mark.parametrize("version", [interpreters.NAMED[0], interpreters.NAMED[-1]])
@pytest.mark.parametrize("installer", [with_pip, with_pipx, with_uv], ids=["pip", "pipx", "uv"])
def test_each_installer_on_the_oldest_and_the_newest_python(
    world: World,
    packages: Packages,
    monkeypatch: pytest.MonkeyPatch,
    installer: Callable[[World, str, str], Installation],
    version: str,
    what: str,
) -> None:
    requirement = packages.named(what, "[mcp,server]")
    everyday(world, installer(world, interpreters.named(version), requirement), monkeypatch)
