"""The words of errors: options and no keywords of Python, and the nearest known word for an unknown one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from cli.conftest import Start
from holdfast import cli, errors
from holdfast.cli.output import typed
from holdfast.config import SETTINGS
from support.world import World

SOURCE = Path(errors.__file__).parent
# What other surfaces say in their own words.
OTHERS = ("tools", "server", "nodes", "daemons")
PYTHON = re.compile(
    r"""\b[a-z_]+=(?:True|False|None|["'\[{(\d])|\b(?:run|start|restart|stop|wait)\(\)|\bNone\b|\bTrue\b"""
)
# About types that a command line cannot give.
ONLY_PYTHON = {
    "X is neither True nor False",
    "give True or False",
    "X is neither True nor a mapping of options",
    'give {"NAME": "value"}, None to leave one out',
    "None is given for X and for X",
}


def _texts() -> list[tuple[str, str]]:
    """Every text that is given to an error, with its place. A value in it is shown as X."""
    classes = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)}
    found = [(name, text) for name in classes for text in (getattr(errors, name).__dict__.get("fix"),) if text]
    for file in SOURCE.rglob("*.py"):
        if file.relative_to(SOURCE).parts[0] in OTHERS:
            continue
        for call in ast.walk(ast.parse(file.read_text())):
            called = getattr(call, "func", None)
            if getattr(called, "id", getattr(called, "attr", None)) in classes:
                for given in [*call.args, *(each.value for each in call.keywords)]:  # type: ignore[attr-defined]
                    parts = given.values if isinstance(given, ast.JoinedStr) else [given]
                    text = "".join(str(each.value) if isinstance(each, ast.Constant) else "X" for each in parts)
                    found.append((f"{file.name}:{given.lineno}", text))
    return [(where, text) for where, text in found if isinstance(text, str)]


@pytest.mark.covers("habits:5")
def test_no_error_that_the_command_line_can_show_has_a_keyword_of_python() -> None:
    texts = [(where, text) for where, text in _texts() if text not in {*ONLY_PYTHON, "None", "True", "False"}]
    assert len(texts) > 300
    wrong = []
    for where, text in texts:
        # As the fix of one error, and as its message where no value is to be given.
        shown = typed(errors.BadArgument("x", "why", text), ())[1]
        if PYTHON.search(shown):
            wrong.append((where, shown))
    assert wrong == []


def _misspelt(word: str) -> str:
    """With a letter too few."""
    return word[:-2] + word[-1]


@pytest.mark.covers("habits:5")
@pytest.mark.parametrize("name", cli.names())
def test_a_misspelt_command_option_or_choice_names_the_nearest(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        assert cli.carry_out(list(words)) == 2, words
        return capsys.readouterr().err

    if len(name) > 3:
        assert f"did you mean `hold {name}`?" in said(_misspelt(name))
    parser, _ = cli.parser_of(name)
    for option in parser.options:
        if len(option) > 5 and _misspelt(option) not in parser.options:
            fix = re.search("did you mean `(.*)`", said(name, _misspelt(option)))
            assert fix is not None, option
            assert fix[1] in parser.options
            assert fix[1][:4] == option[:4]
    for argument in parser.arguments:
        for choice in argument.choices:
            wrong = _misspelt(choice)
            if len(choice) > 3 and wrong not in argument.choices:
                words = [argument.option_strings[-1], wrong] if argument.option_strings else [wrong]
                assert "did you mean `" in said(name, *words), choice


@pytest.mark.covers("habits:5")
def test_every_other_unknown_word_names_the_nearest(world: World, start: Start) -> None:
    start("forever", options=("--name", "website", "--label", "app=shop", "--owner", "agent-7"))
    terminal = start("forever", options=("--tty", "--name", "editor"))
    world.hold("ack", "--all", check=True)
    project = world.cwd / "holdfast.toml"
    project.write_text('[session.worker]\ncommand = "sleep 600"\n')
    for words, near in {
        ("status", "webiste"): "website",
        ("logs", "websit"): "website",
        ("stop", "webste"): "website",
        ("kill", "-HPU", "website"): "HUP",
        ("kill", "-s", "TREM", "website"): "TERM",
        ("keys", terminal, "Entr"): "Enter",
        ("logs", "--label", "app=shp"): "app=shop",
        ("stop", "--label", "app=shp"): "app=shop",
        ("stop", "--owner", "agent7"): "agent-7",
        ("ls", "--status", "faild"): "failed",
        ("ls", "--state", "exitd"): "exited",
        ("notify", "--command", "true", "--on", "endd"): "ended",
        ("run", "--place", "dokcer:web", "--", "true"): "docker",
        ("start", "--restart", "alway", "--", "true"): "always",
        ("node", "invit", "x"): "invite",
        ("completion", "zhs"): "zsh",
        ("help", "notice"): "notices",
        ("mcp", "--toolset", "nativ"): "native",
        ("up", "-f", str(project), "workr"): "worker",
        ("signals", "--consumer", "clii"): "cli",
    }.items():
        done = world.hold(*words)
        expected = f"did you mean {near}"
        assert expected in (done.stdout + done.stderr).replace("`", ""), (words, done.stderr)
    for setting in SETTINGS:
        wrong = setting.variable[:-2] + setting.variable[-1]
        if wrong not in {each.variable for each in SETTINGS}:
            break
    assert "did you mean HOLDFAST_" in world.hold("run", "--", "true", env={wrong: "1"}).stderr
    file = world.root / "user" / ".config" / "holdfast" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    for text, near in {"[strat]\ngrace = '1s'\n": "start", "[start]\ngrac = '1s'\n": "grace"}.items():
        file.write_text(text)
        assert f"did you mean {near}?" in world.hold("run", "--", "true").stderr


def test_all_signals_are_acknowledged_at_once(world: World) -> None:
    for _ in range(2):
        world.hold("run", "--owner", "agent-7", "--notify", "exit", "--", "true", check=True)
    assert world.hold("ack", "--all", check=True).stdout == "2 settled\n"
    assert world.hold("signals", check=True).stdout == ""
    assert world.hold("ack").returncode == 2
