"""The words of errors: options and no keywords of Python, and the nearest known word for an unknown one."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Start
from holdfast import cli, errors
from holdfast.cli import INTERRUPTED
from holdfast.cli.output import in_command_line_terms
from holdfast.cli.parsing import REST, Argument
from holdfast.config import SETTINGS
from support.world import World
from test_errors import ONE_OF_EACH

SOURCE = Path(errors.__file__).parent
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
        shown = in_command_line_terms(errors.BadArgument("x", "why", text), ())[1]
        if PYTHON.search(shown):
            wrong.append((where, shown))
    assert wrong == []


@pytest.mark.covers("habits:5")
@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: error.code)
def test_no_class_of_errors_has_a_keyword_of_python(error: errors.HoldfastError) -> None:
    assert not PYTHON.search(" ".join(in_command_line_terms(error, ())))


# Values that most options refuse. Those that take any text accept them.
BAD = ("", "?!", "[", "-7", "99999999999999999999", "a/b c")
# A server runs until it is ended, so each of its options gets a value that it refuses.
SERVERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "serve": (
        *(("--bind", "?!"), ("--port", "x"), ("--unix", "holdfast.toml"), ("--tls-cert", "x"), ("--tls-key", "x")),
        *(("--host-name", "?!"), ("--allow-origin", "x"), ("--public-url", "x"), ("--trusted-proxy", "x")),
        ("--tls-cert", "x", "--tls-key", "y"),
    ),
    "fabric": (("--bind", "?!"), ("--port", "0"), ("--tls-cert", "x"), ("--tls-key", "x")),
    "mcp": (("--toolset", "x"), ("--http", "--host", "?!"), ("--port", "-7"), ("--print-config", "codx")),
}
# Commands that refuse no value of their options: a place is tried, and a file is opened.
ACCEPTING = ("doctor", "ps")

# Carries out command lines in one process, each for some seconds at most.
CRAWLER = """
import contextlib, io, json, os, signal, sys
from holdfast import cli

class Stream(io.StringIO):
    errors = "backslashreplace"
    def reconfigure(self, **_): pass
    def fileno(self): return 1

def interrupt(*_): raise KeyboardInterrupt

for words in json.load(sys.stdin):
    streams = Stream(), Stream()
    signal.signal(signal.SIGALRM, interrupt)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(20)
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        code = cli.carry_out(words)
    signal.alarm(0)
    os.write(2, json.dumps([words, code, streams[1].getvalue()]).encode() + b"\\n")
"""


def _crawl(world: World, lines: list[list[str]]) -> list[tuple[list[str], int, str]]:
    done = subprocess.run(
        [sys.executable, "-c", CRAWLER],
        input=json.dumps(lines),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=100,
    )
    found = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('[["')]
    assert len(found) == len(lines), done.stderr
    return [(words, code, said) for words, code, said in found]


def _needed(arguments: list[Argument], ids: dict[str, str]) -> list[str]:
    """Words that the command needs, and that let it end at once."""
    fine = {"ID": ids["terminal"], "COLSxROWS": "80x24", "KEY": "a", "FILE": "/nowhere/x", "ID... PATTERN": "x"}
    return [
        fine.get(argument.placeholder) or next(iter(argument.choices), "x")
        for argument in arguments
        if argument.nargs in (None, "+") or argument.placeholder in ("ID", "ID... PATTERN")
    ]


@pytest.mark.covers("habits:2", "habits:5")
@pytest.mark.parametrize("name", cli.names())
def test_what_a_command_says_about_a_bad_value_is_in_its_own_words(world: World, start: Start, name: str) -> None:
    """Each argument of each command gets values that most refuse."""
    (world.cwd / "holdfast.toml").write_text('[session.web]\ncommand = "true"\n')
    ids = {"terminal": start("forever", options=("--tty",))}
    world.closing.callback(lambda: world.hold("stop", "--all", "--grace", "0"))  # what `restart` started
    arguments = cli.parser_of(name)[0].arguments
    plain = [each for each in arguments if not each.option_strings and each.nargs != REST]
    ends = (
        ["--timeout", "0"] if any(each.dest == "timeout" for each in arguments) and name not in ("run", "start") else []
    )
    lines: list[tuple[Argument, list[str]]] = []
    for argument in arguments:
        if argument.nargs in (0, REST) or name in SERVERS:
            continue
        for bad in BAD:
            if argument.option_strings:
                option = argument.option_strings[-1]
                given = [f"{option}={bad}" if option.startswith("--") else option + bad]
                words = [*(ends if argument.dest != "timeout" else ()), *given, *_needed(plain, ids)]
            else:
                before = plain[: plain.index(argument)]
                after = plain[plain.index(argument) + 1 :]
                words = [*ends, *_needed(before, ids), bad, *_needed(after, ids)]
            behind = ["--", "true"] if name in ("run", "start") else []
            lines.append((argument, [name, *words, *behind]))
    options = cli.parser_of(name)[0].options
    lines += [(options[given[-2]], [name, *given]) for given in SERVERS.get(name, ())]
    refused = set()
    for (argument, _), (words, code, said) in zip(lines, _crawl(world, [words for _, words in lines]), strict=True):
        assert code != INTERRUPTED, words
        assert not PYTHON.search(said), (words, said)
        if not (message := re.match(r"hold: (.*)\nfix: (.*)\n", said)):
            continue
        assert message[2] not in ("", "give a valid value"), (words, said)
        if head := re.match(r"([A-Za-z_-]+): ", message[1]):
            # It is the command that complains, or what is said is about this argument.
            names = (*argument.option_strings, argument.placeholder, *argument.placeholder.split())
            assert head[1] in (name, *names, *words), (words, said)
            if head[1] in names:
                assert code == 2, (words, said)
        refused.add(code)
    assert 2 in refused or not lines or name in ACCEPTING, refused


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
        ("mcp", "--print-config", "codx"): "codex",
        ("hook", "claude-cod"): "claude-code",
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
