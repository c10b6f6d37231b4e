"""Help, the overview, the reference page."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest

import reference
from cli.conftest import Start
from cli.outer import Outer
from holdfast import __version__, cli
from support.world import World


def test_the_reference_page_is_current() -> None:
    assert reference.PAGE.read_text() == reference.page(), "run `make docs`"


def test_hold_alone_is_a_friendly_overview(world: World) -> None:
    alone, asked = world.hold(env={"COLUMNS": "100"}), world.hold("--help", env={"COLUMNS": "100"})
    assert (alone.returncode, alone.stdout, alone.stderr) == (0, asked.stdout, "")
    assert "examples:\n  hold run -- make test" in alone.stdout
    for name, sentence in cli.names().items():
        assert f"  {name:<11} {sentence}\n" in alone.stdout
    assert world.hold("--version").stdout == f"holdfast {__version__}\n"


@pytest.mark.parametrize("name", cli.names())
def test_every_command_has_help_with_an_example(world: World, name: str) -> None:
    done = world.hold(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: hold {name}")
    examples = done.stdout.split("examples:\n")[1]
    assert f"hold {name}" in examples
    assert max(map(len, done.stdout.splitlines())) <= 120
    assert world.hold("help", name).stdout == done.stdout


@pytest.mark.covers("found:28")
@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_help_is_wider_than_the_terminal_or_breaks_a_word(world: World, width: int) -> None:
    code = (
        "import sys\nfrom holdfast import cli\n"
        "for words in [['--help'], *([name, '--help'] for name in cli.names())]: cli.carry_out(words)"
    )
    # A real terminal of that width, which nothing but the kernel tells of.
    window = Outer([sys.executable, "-c", code], env={"COLUMNS": ""}, rows=60, cols=width)
    world.closing.callback(window.close)
    assert window.end(20) == 0
    lines = window.printed.decode().split("\r\n")
    assert len([line for line in lines if line.startswith("usage: ")]) == 1 + len(cli.names())
    assert max(map(len, lines)) <= width
    # The same words as in a window in which nothing needs to be broken.
    known = {word for name in cli.names() for word in _words(world, name)}
    known |= set(cli.overview(1000).split())
    assert not [word for word in " ".join(lines).split() if word not in known]


@functools.cache
def _words(world: World, name: str) -> frozenset[str]:
    parser, _ = cli.parser_of(name)
    parts = [parser.usage, parser.description, parser.examples]
    for argument in parser.arguments:
        parts += [argument.help, *argument.option_strings, str(argument.metavar), " ".join(argument.choices)]
    return frozenset(" ".join(parts).split()) | frozenset(parser.help().split())


def test_the_overview_loads_no_command(world: World) -> None:
    code = "import sys; from holdfast import cli; cli.carry_out(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    loaded = done.stderr.split()
    assert not [name for name in loaded if name == "holdfast.cli.parsing" or name.startswith("holdfast.sessions")]


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
        "argparse", "asyncio", "ctypes", "dataclasses", "datetime", "hashlib", "inspect", "locale", "logging",
        "pathlib", "re", "re2", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading",
        "tomllib", "traceback", "typing", "holdfast.runner.session", "holdfast.terminal.text",
        "holdfast.sessions.search",
    }  # fmt: skip
    assert not heavy & set(done.stderr.split())
    world.hold("stop", "--all")


def test_every_reporting_command_prints_json_alone(world: World, start: Start) -> None:
    id = start("exit", 0)
    world.hold("wait", id, "--exit", "--timeout", "30s", check=True)
    for words in (("ls", "-a"), ("status", id), ("logs", id), ("recover",), ("gc",), ("config",), ("wait", id)):
        done = world.hold(*words, "--json")
        assert json.loads(done.stdout) is not None
        assert (done.stderr, done.returncode) == ("", 0)
