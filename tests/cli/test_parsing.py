"""Words to options, facts to text: examples and properties."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli import options, output, parser_of, parsing
from holdfast.core import clock
from holdfast.errors import BadArgument, HoldfastError

PLAIN = output.Style(False, None)


@pytest.mark.parametrize("word", ["true", "./run.sh", "/usr/bin/python3.11", "a-b_c", "x=1", "größe", "C:x@y%+,~"])
def test_a_word_that_names_a_program_is_one(word: str) -> None:
    assert options.command(["--", word], None, "hold run") == [word]


@pytest.mark.parametrize("word", ["a b", "a|b", "a;b", "$HOME/x", "*", "(x)", "a&", "'x y'", 'say "hi"', "a\nb"])
def test_a_word_that_a_shell_would_take_apart_is_a_line(word: str) -> None:
    assert options.command([word], None, "hold run") == word
    assert options.command([word, "x"], None, "hold run") == [word, "x"]


def test_only_the_first_dashes_are_ours() -> None:
    assert options.command(["--", "--", "x"], None, "hold run") == ["--", "x"]


@pytest.mark.parametrize(
    "command, words, expected",
    [
        ("ls", ["-aq"], {"all": True, "quiet": True}),
        ("ls", ["--label", "a=b", "--label=c=d"], {"label": [("a", "b"), ("c", "d")], "all": False}),
        ("logs", ["-fn3", "web"], {"follow": True, "lines": 3, "sessions": ["web"]}),
        ("logs", ["web", "-n", "3"], {"lines": 3, "sessions": ["web"], "stream": None}),
        ("logs", ["--stderr", "web"], {"stream": "stderr"}),
        ("send", ["web", "-5"], {"session": "web", "text": "-5"}),
        ("send", ["web", "-- x"], {"text": "-- x"}),
        ("send", ["web", "--", "-n"], {"text": "-n", "newline": False}),
        ("send", ["web"], {"text": None}),
        ("stop", [], {"sessions": []}),
        ("keys", ["web", "Up", "--delay", "5", "Down"], {"keys": ["Up", "Down"], "delay": 5}),
        ("run", ["--name", "web", "make", "--name", "x"], {"name": "web", "command": ["make", "--name", "x"]}),
        ("run", ["--", "--help"], {"command": ["--", "--help"]}),
    ],
)
def test_words_become_arguments(command: str, words: list[str], expected: dict[str, object]) -> None:
    args = parser_of(command)[0].parse(words)
    assert {name: getattr(args, name) for name in expected} == expected


@pytest.mark.parametrize(
    "command, words, message",
    [
        ("ls", ["--bogus", "-z"], "ls: unrecognized arguments: --bogus -z"),
        ("gc", ["x"], "gc: unrecognized arguments: x"),
        ("ls", ["--json=1"], "ls: argument --json: ignored explicit argument '1'"),
        ("ls", ["--owner"], "ls: argument --owner: expected one argument"),
        ("ls", ["--owner", "--json"], "ls: argument --owner: expected one argument"),
        ("ls", ["--state", "x"], "ls: argument --state: invalid choice: 'x' (choose from starting, "),
        ("keys", [], "keys: the following arguments are required: ID, KEY"),
        ("rm", [], "rm: the following arguments are required: ID"),
        ("logs", ["x", "-n1", "--since=0"], "logs: argument --since: not allowed with argument -n/--lines"),
    ],
)
def test_a_wrong_command_line_is_refused(command: str, words: list[str], message: str) -> None:
    with pytest.raises(HoldfastError) as refused:
        parser_of(command)[0].parse(words)
    assert refused.value.message.startswith(message)


@pytest.mark.parametrize("words", [["-h"], ["x", "--help"], ["-ah", "--bogus"]])
def test_help_is_not_refused(words: list[str]) -> None:
    assert parser_of("ls")[0].parse(words) is None


@given(st.text())
def test_a_pair_is_split_once_or_refused(text: str) -> None:
    try:
        key, value = parsing.pair("--env")(text)
    except BadArgument:
        assert "=" not in text or text.startswith("=")
    else:
        assert key
        assert f"{key}={value}" == text


@given(st.text())
def test_a_count_is_a_number_or_refused(text: str) -> None:
    try:
        found = parsing.count("-n", 2)(text)
    except BadArgument:
        assert not (text.isascii() and text.isdecimal() and 2 <= int(text) < 10**18)
    else:
        assert found == int(text) >= 2


def test_a_ladder_is_read_rung_by_rung() -> None:
    assert options.ladder("INT:2s, TERM/group:500ms,KILL/tree") == [
        {"signal": "INT", "target": "command", "wait_s": 2.0},
        {"signal": "TERM", "target": "group", "wait_s": 0.5},
        {"signal": "KILL", "target": "tree", "wait_s": 0.0},
    ]


@given(st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from("INT:,/2sgroup")))
def test_a_ladder_is_rungs_or_refused(text: str) -> None:
    try:
        rungs = options.ladder(text)
    except BadArgument:
        return
    assert len(rungs) == text.count(",") + 1
    assert all(rung["target"] in ("command", "group", "tree") and rung["wait_s"] >= 0 for rung in rungs)


@given(st.text())
def test_what_is_shown_can_be_printed(text: str) -> None:
    shown = output.printable(text)
    assert shown.isprintable()
    if text.isascii() and text.isprintable():
        assert shown == text


@pytest.mark.parametrize(
    "seconds, text",
    [(0, "0ms"), (0.25, "250ms"), (1, "1s"), (99.9, "99s"), (100, "1m"), (5399, "89m"), (5400, "1h"), (2e5, "2d")],
)
def test_an_age_has_one_unit(seconds: float, text: str) -> None:
    assert output.span(seconds) == text
    assert output.age(clock.rfc3339(int((time.time() - 7.5) * 1e9))) == "7s"


@pytest.mark.parametrize("count, text", [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB")])
def test_bytes_are_said_as_people_say_them(count: int, text: str) -> None:
    assert output.megabytes(count) == text


def test_a_table_is_aligned_without_empty_columns() -> None:
    rows = [[("a", ""), ("", ""), ("漢字", ""), ("end", "")], [("bbb", ""), ("", ""), ("x", ""), ("e\x1b", "")]]
    assert output.table(["ONE", "TWO", "THREE", "LAST"], rows, PLAIN).splitlines() == [
        "ONE  THREE  LAST",
        "a    漢字   end",
        "bbb  x      e\\x1b",
    ]


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=5), st.integers(1, 200))
def test_a_table_has_a_line_a_row_within_its_width(cells: list[tuple[str, str]], width: int) -> None:
    rows = [[("id" + a, "31"), (b, "")] for a, b in cells]
    lines = output.table(["A", "B"], rows, output.Style(False, width)).split("\n")
    assert len(lines) == len(cells) + 1
    assert all(line.isprintable() for line in lines)
    assert all(output.width(line) <= max(width, 34 + 20) for line in lines)
