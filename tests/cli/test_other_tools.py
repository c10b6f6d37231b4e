"""Commands and options of tmux, screen, docker, process-compose and pueue: an error says what to type with `hold`."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

from holdfast import cli
from holdfast.cli import other_tools

if TYPE_CHECKING:
    from support.world import World

OPTIONS = [(name, word) for name, known in other_tools._OPTIONS.items() for words in known for word in words.split()]
COMMANDS = [word for words in other_tools._COMMANDS.values() for word in words.split()] + [*other_tools._NOTES]


def check(fix: str) -> None:
    """Every command line in it is one of ours."""
    for line in re.findall(r"`hold ([^`]*)`", fix):
        for part in line.split("&& hold"):
            name, *words = shlex.split(part)
            known = cli.parser_of(name)[0].options
            own = words[: words.index("--")] if "--" in words else words
            assert [word for word in own if word.startswith("-") and word not in known] == [], fix


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_of_another_tool_is_answered_with_ours(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert COMMANDS.count(name) == 1
    assert name not in cli.names()
    assert cli.carry_out([name, "-t", "work"]) == 2
    fix = capsys.readouterr().err.partition("\nfix: ")[2].strip()
    assert fix == other_tools.command(name)
    check(fix)


@pytest.mark.parametrize("name, word", OPTIONS)
def test_an_option_of_another_tool_is_answered_with_ours(
    name: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert OPTIONS.count((name, word)) == 1
    known = cli.parser_of(name)[0].options
    assert word not in known
    assert cli.carry_out([name, word, "x"]) == 2
    fix = capsys.readouterr().err.partition("\nfix: ")[2].strip()
    assert fix == other_tools.option(name, word)
    check(fix)
    for option in re.findall(r"`(-[\w-]+)", fix):
        assert option in known


@pytest.mark.parametrize(
    "line, fix",
    [
        ("new -s work", "`hold run -t --name NAME -- bash`"),
        ("attach -t work", "leave it out and give only the name, as in `hold attach work`"),
        ("attach", "name one: `hold ls` lists them, `last` is the newest"),
        ("kill-session -t work", "`hold stop NAME`"),
        ("screen -r work", "`hold attach NAME`"),
        ("run -it -- bash", "`hold run -t -- CMD`"),
        ("run -d -- make", "`hold start -- CMD`"),
        ("start -d -s foo make", "-d: leave it out: it starts in the background; -s: `--name NAME`"),
        ("submit work make Enter", "leave it out: `hold submit` presses Enter"),
        ("send work make Enter", "`hold submit NAME TEXT` presses Enter"),
        ("submit work make test", "see `hold submit --help`"),
        ("logs --tail=10 web", "`-n N`"),
        ("stop -t10 web", "`--grace 10s`"),
        ("up -d", "leave it out"),
        ("add -- make", "`hold start -- CMD`"),
        ("/bin/true --version", "`hold run -- /bin/true`"),
        ("sha256sum file", "`hold run -- sha256sum`"),
    ],
)
def test_whole_lines_as_people_type_them(world: World, line: str, fix: str) -> None:
    done = world.hold(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert fix in done.stderr.partition("\nfix: ")[2]
    assert done.stderr.count("\n") == 2
    assert world.open().sessions(all=True) == []


def test_starting_a_session_by_its_name_gives_a_hint(world: World) -> None:
    world.hold("run", "--name", "web", "--", "true", check=True)
    for verb, code in (("start", 1), ("run", 127)):
        done = world.hold(verb, "web")
        assert done.returncode == code
        assert "fix: to start that session again: `hold restart web`; otherwise check that" in done.stderr
    assert "hold restart" not in world.hold("start", "no-such-program").stderr
