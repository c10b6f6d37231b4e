"""Help, the overview, the reference page."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import manpage
import reference
from cli.conftest import Start
from cli.outer import Outer
from holdfast import __version__, cli
from holdfast.cli import help as texts
from support.world import World


def test_the_reference_page_is_current() -> None:
    assert reference.PAGE.read_text() == reference.page(), "run `make docs`"


def test_the_manual_page_is_current() -> None:
    assert manpage.PAGE.read_text() == manpage.page(), "run `make docs`"


@pytest.mark.covers("habits:1")
def test_the_manual_page_is_correct_and_has_every_command_and_option(tmp_path: Path) -> None:
    page = tmp_path / "hold.1"
    page.write_text(manpage.page())
    checked = subprocess.run(["mandoc", "-Tlint", page], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    plain = subprocess.run(["mandoc", "-Tutf8", "-Owidth=78", page], capture_output=True, text=True, check=True).stdout
    # Bold letters are printed twice.
    shown = re.sub(r".\x08", "", plain)
    for name in cli.names():
        _, _, section = shown.partition(f"\n   hold {name}\n")
        section = section.partition("\n   hold ")[0]
        for option in cli.parser_of(name)[0].options:
            assert re.search(rf"^ +(-\w, |--[\w-]+, )*{option}\b", section, re.MULTILINE), (name, option)


def test_the_wheel_has_the_manual_page_and_the_guides() -> None:
    root = Path(__file__).parents[2]
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["shared-data"] == {"docs/hold.1": "share/man/man1/hold.1"}
    # Where `hold help TOPIC` looks for them.
    assert wheel["force-include"] == {"docs/guides": "holdfast/guides"}
    assert (root / "docs/guides").samefile(texts.guides())


@pytest.mark.covers("habits:1")
def test_hold_alone_fits_one_small_screen(world: World) -> None:
    alone, asked = world.hold(env={"COLUMNS": "80"}), world.hold("--help", env={"COLUMNS": "80"})
    assert (alone.returncode, alone.stdout, alone.stderr) == (0, asked.stdout, "")
    lines = alone.stdout.splitlines()
    # One line is left for the prompt.
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    for group, commands in cli.COMMANDS.items():
        assert re.search(rf"(^|  ){group} +{next(iter(commands))} ", alone.stdout, re.MULTILINE)
        for name, (_, sentence) in commands.items():
            assert f"{name:<7} {sentence}" in alone.stdout
            assert len(sentence.split()) <= 5
    assert world.hold("--version").stdout == f"holdfast {__version__}\n"


@pytest.mark.covers("habits:1")
@pytest.mark.parametrize("name", cli.names())
def test_every_command_has_help_with_an_example(world: World, name: str) -> None:
    short, whole = world.hold(name, "--help"), world.hold(name, "--help-all")
    assert world.hold("help", name).stdout == short.stdout
    for done in (short, whole):
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"usage: hold {name}")
    parser, _ = cli.parser_of(name)
    shown = short.stdout.split("examples:\n")[1].strip()
    assert 1 <= len(shown.split("\n  hold ")) <= 2
    for option in parser.options:
        assert re.search(rf"^  (-\w, |--\w+, )*{option}\b", whole.stdout, re.MULTILINE), option
    assert parser.common <= {*parser.options, "--wait"}
    for option in parser.common & {*parser.options}:
        assert option in short.stdout


@pytest.mark.covers("habits:1", "found:28")
@pytest.mark.parametrize("width", [80, 100, 200])
def test_no_help_is_wider_than_the_terminal_or_breaks_a_word(world: World, width: int) -> None:
    code = f"import sys\nfrom holdfast import cli\nfor words in {_HELPS}: cli.carry_out(words)"
    # A real terminal of that width, which nothing but the kernel tells of.
    window = Outer([sys.executable, "-c", code], env={"COLUMNS": ""}, rows=60, cols=width)
    world.closing.callback(window.close)
    assert window.end(40) == 0
    lines = window.printed.decode().split("\r\n")
    for name in cli.names():
        assert len([line for line in lines if f"{line} ".startswith(f"usage: hold {name} ")]) == 2
    assert max(map(len, lines)) <= width
    # The same words as in a window in which nothing needs to be broken.
    known = {word for name in cli.names() for word in _words(world, name)}
    known |= set(texts.overview(1000).split()) | set(" ".join(_TOPICS).split())
    known |= {word for text in (texts.NAMING, texts.EXIT_CODES, *_shown_topics(world)) for word in text.split()}
    assert not [word for word in " ".join(lines).split() if word not in known]


_TOPICS = ["sessions", "exit-codes", *sorted({path.stem for path in Path(texts.guides()).iterdir()} - {*cli.names()})]
_HELPS = [
    ["--help"],
    ["help", "topics"],
    *([name, option] for name in cli.names() for option in ("--help", "--help-all")),
    *(["help", topic] for topic in _TOPICS),
]


def _shown_topics(world: World) -> list[str]:
    """Every topic in a window in which nothing needs to be broken."""
    code = f"from holdfast import cli\nfor topic in {['topics', *_TOPICS]}: cli.carry_out(['help', topic])"
    wide = subprocess.run(
        [sys.executable, "-c", f"from holdfast.cli import parsing\nparsing._WIDEST = 9999\n{code}"],
        capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "9999"},
    )  # fmt: skip
    return wide.stdout.splitlines()


def test_a_topic_is_the_beginning_of_a_guide(world: World) -> None:
    listed = world.hold("help", "topics", check=True).stdout
    for topic in _TOPICS:
        assert f"\n{topic} " in "\n" + listed
        assert world.hold("help", topic, check=True).stdout.count("\n") > 3
    assert "124 timeout" in world.hold("help", "exit-codes").stdout
    wrong = world.hold("help", "notice")
    assert (wrong.returncode, "did you mean `notices`?" in wrong.stderr) == (2, True)


@functools.cache
def _words(world: World, name: str) -> frozenset[str]:
    parser, _ = cli.parser_of(name)
    parts = [parser.usage, parser.description, *parser.examples]
    for argument in parser.arguments:
        parts += [argument.help, *argument.option_strings, str(argument.metavar), " ".join(argument.choices)]
    return frozenset(" ".join(parts).split()) | frozenset((parser.help(whole=True) + parser.help()).split())


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
