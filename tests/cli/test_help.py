"""Help, the overview, the reference page, completion."""

from __future__ import annotations

import json
import os
import shutil
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


def complete(world: World, *line: str) -> list[str]:
    """What is offered for the last of the words."""
    done = world.hold("__complete", len(line) - 1, *line)
    assert done.stderr == ""
    return [offer.partition("\t")[0] for offer in done.stdout.splitlines()]


def test_commands_and_options_are_completed(world: World) -> None:
    assert complete(world, "hold", "st") == ["start", "status", "stop"]
    assert complete(world, "hold", "help", "w") == ["wait"]
    assert complete(world, "hold", "ls", "--s") == ["--status", "--state", "--search"]
    assert complete(world, "hold", "ls", "--status", "") == ["pending", "running", "completed", "failed", "killed"]
    assert complete(world, "hold", "completion", "") == ["bash", "zsh", "fish"]
    assert "--tty" not in complete(world, "hold", "run", "--")
    assert complete(world, "hold", "run", "--lifetime", "d") == ["detached"]
    assert complete(world, "hold", "run", "--", "ma") == []
    assert complete(world, "hold", "run", "make", "--na") == []
    assert complete(world, "hold", "nonsense", "") == []
    assert world.hold("__complete", "x").returncode == 1


def test_sessions_are_completed_where_they_fit(world: World, start: Start) -> None:
    live = start("forever", options=("--name", "web"))
    over = start("exit", 0, options=("--name", "old"))
    world.hold("wait", over, "--timeout", "5s", check=True)
    world.hold("ls", "-a", check=True)
    assert complete(world, "hold", "stop", "") == ["web", live]
    assert complete(world, "hold", "stop", "w") == ["web"]
    assert complete(world, "hold", "stop", "web", live[:4]) == [live]
    assert live not in complete(world, "hold", "rm", "")
    assert over in complete(world, "hold", "rm", "")
    assert {"web", live, over} <= set(complete(world, "hold", "logs", "-n", "5", ""))
    assert complete(world, "hold", "logs", "web", "") == []
    offers = world.hold("__complete", 2, "hold", "stop", "web").stdout
    assert offers.startswith("web\t")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_understood_by_it(world: World, shell: str) -> None:
    script = world.hold("completion", shell, check=True).stdout
    assert "__complete" in script
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=20)


def test_bash_completes_with_it(world: World, start: Start) -> None:
    start("forever", options=("--name", "two words"))
    binaries = world.root / "bin"
    binaries.mkdir()
    hold = binaries / "hold"
    hold.write_text(f'#!/bin/sh\nexec {" ".join(world.hold_argv())} "$@"\n')
    hold.chmod(0o755)
    line = """eval "$(hold completion bash)"
        COMP_WORDS=(hold stop t); COMP_CWORD=2; _hold; printf '%s\\n' "${COMPREPLY[@]}"
        COMP_WORDS=(hold rec); COMP_CWORD=1; _hold; printf '%s\\n' "${COMPREPLY[@]}" """
    env = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=env, timeout=20, check=True)
    assert done.stdout == "two\\ words\nrecover\n"


def test_every_reporting_command_prints_json_alone(world: World, start: Start) -> None:
    id = start("exit", 0)
    world.hold("wait", id, "--timeout", "5s", check=True)
    for words in (("ls", "-a"), ("status", id), ("logs", id), ("recover",), ("gc",), ("config",), ("wait", id)):
        done = world.hold(*words, "--json")
        assert json.loads(done.stdout) is not None
        assert (done.stderr, done.returncode) == ("", 0)
