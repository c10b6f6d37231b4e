"""Help, the overview, the reference page."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import reference
from cli.conftest import Start
from holdfast import __version__, cli
from support.world import World


def test_the_reference_page_is_current() -> None:
    assert reference.PAGE.read_text() == reference.page(), "run `make docs`"


def test_hold_alone_is_a_friendly_overview(world: World) -> None:
    alone, asked = world.hold(), world.hold("--help")
    assert (alone.returncode, alone.stdout, alone.stderr) == (0, asked.stdout, "")
    assert "examples:\n  hold run -- make test" in alone.stdout
    for name, sentence in cli.names().items():
        assert f"  {name:<11} {sentence}\n" in alone.stdout
    assert world.hold("--version").stdout == f"holdfast {__version__}\n"


@pytest.mark.parametrize("name", cli.names())
def test_every_command_has_help_with_an_example(world: World, name: str) -> None:
    done = world.hold(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: hold {name} ")
    examples = done.stdout.split("examples:\n")[1]
    assert f"hold {name}" in examples
    assert max(map(len, done.stdout.splitlines())) <= 120
    assert world.hold("help", name).stdout == done.stdout


def test_help_does_not_depend_on_the_terminal(world: World) -> None:
    narrow = world.hold("run", "--help", env={"COLUMNS": "20"})
    assert narrow.stdout == world.hold("run", "--help", env={"COLUMNS": "200"}).stdout


def test_the_overview_loads_no_command(world: World) -> None:
    code = "import sys; from holdfast import cli; cli.carry_out(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    loaded = done.stderr.split()
    assert not [name for name in loaded if name == "argparse" or name.startswith("holdfast.host")]


@pytest.mark.parametrize("words", [("ls",), ("start", "--", "true")])
def test_frequent_commands_load_nothing_heavy(world: World, words: tuple[str, ...]) -> None:
    code = (
        "import sys; from holdfast import cli; code = cli.carry_out(sys.argv[1:]); "
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    # The first start of a home also starts a launcher and collects.
    world.hold("start", "--", "true", check=True)
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=20, check=True)
    heavy = {
        "asyncio", "ctypes", "dataclasses", "datetime", "hashlib", "inspect", "locale", "logging", "pathlib",
        "re2", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading", "tomllib",
        "traceback", "typing", "holdfast.runner.life", "holdfast.host.text", "holdfast.host.search",
    }  # fmt: skip
    assert not heavy & set(done.stderr.split())
    world.hold("stop", "--all")


def test_every_reporting_command_prints_json_alone(world: World, start: Start) -> None:
    id = start("exit", 0)
    world.hold("wait", id, "--timeout", "5s", check=True)
    for words in (("ls", "-a"), ("status", id), ("logs", id), ("recover",), ("gc",), ("config",), ("wait", id)):
        done = world.hold(*words, "--json")
        assert json.loads(done.stdout) is not None
        assert (done.stderr, done.returncode) == ("", 0)
