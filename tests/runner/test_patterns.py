"""Patterns: which are refused and why, what they match, and that the sieve in front of them loses nothing."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.vt.text import Line, Lines, readable
from holdfast.runner.features.line_reader import Sieve
from holdfast.runner.features.patterns import BadPattern, Pattern, RegexTimeout, check
from support.scale import scaled


def regex(source: str, **parts: Any) -> Pattern:
    return Pattern({"id": "w1", "regex": source, **parts})


def literal(text: str, **parts: Any) -> Pattern:
    return Pattern({"id": "w1", "literal": text, **parts})


def line(text: str) -> Line:
    return Line(text, 0, len(text))


@pytest.mark.covers("signals:31")
@pytest.mark.parametrize(
    "source, construct",
    [
        ("(a+)+$", "a repetition inside a repetition"),
        (r"(?:\w+\s?)*end", "a repetition inside a repetition"),
        ("(?:(?:a|b*)c){2,}", "a repetition inside a repetition"),
        (r"(\w)\1", "a back-reference"),
        ("(?P<x>a)(?P=x)", "a back-reference"),
        ("(a)?(?(1)b|c)", "a back-reference"),
        ("foo(?=bar)", "a look-ahead"),
        ("foo(?!bar)", "a look-ahead"),
        ("(?<=foo)bar", "a look-behind"),
        ("(?<!foo)bar", "a look-behind"),
        ("(open", "not a regular expression"),
        ("x" * 513, "1 to 512 characters"),
        ("", "1 to 512 characters"),
    ],
)
def test_a_regex_that_could_take_long_is_refused_by_name(source: str, construct: str) -> None:
    with pytest.raises(BadPattern, match=re.escape(construct)):
        check({"regex": source})


@pytest.mark.parametrize("text", ["", "x" * 513, "two\nlines", "two\rsegments"])
def test_a_literal_that_is_in_no_line_is_refused(text: str) -> None:
    with pytest.raises(BadPattern):
        check({"literal": text})


@pytest.mark.parametrize(
    "source",
    [r"(\d{1,3}\.){3}\d{1,3}", "(foo.*)?bar", "(?:a|b)+c", "([0-9a-f]{2}:)*", r"^\s*ERROR\b.*$", r"a{3,5}(b+c)?"],
)
def test_a_regex_of_every_day_is_taken(source: str) -> None:
    check({"regex": source})


@pytest.mark.parametrize(
    "pattern, text, expected",
    [
        (literal("ERROR"), "an ERROR here", True),
        (literal("ERROR"), "an error here", False),
        (literal("\u00c4rger (x)", ignore_case=True), "\u00e4RGER (X)", True),
        (literal("\u039f\u0394\u039f\u03a3", ignore_case=True), "\u03bf\u03b4\u03bf\u03c3\u03c7", True),
        (literal("kiss", ignore_case=True), "\u212a\u0131\u017fS", True),
        (literal("a.b"), "axb", False),
        (regex("^ERROR$"), "ERROR", True),
        (regex("^ERROR$"), "an ERROR", False),
        (regex("error", ignore_case=True), "ERROR", True),
        (regex("(?i:err)OR"), "errOR", True),
        (regex("(?i:err)OR"), "error", False),
    ],
)
def test_a_pattern_matches_as_written(pattern: Pattern, text: str, expected: bool) -> None:
    assert pattern.matches(line(text)) is expected


def test_a_pattern_shows_itself_as_its_user_wrote_it() -> None:
    assert (literal("x").text, regex("x").text, regex("x", ignore_case=True).text) == ("x", "/x/", "/x/i")


def test_a_pattern_of_one_stream_hears_no_other() -> None:
    assert [literal("x", stream="stderr").applies_to(stream) for stream in ("stdout", "stderr")] == [False, True]
    assert literal("x").applies_to("tty")


def parts_of(text: str) -> list[Line]:
    lines = Lines(max_bytes=64, overlap=16)
    return [*lines.feed(text.encode()), *lines.end()]


def found_in(pattern: Pattern, text: str) -> int:
    """How often a line in parts is found to match."""
    count, again = 0, False
    for part in parts_of(text):
        again = pattern.matches(part, matched_before=again)
        count += again
    return count


@pytest.mark.parametrize("place", range(50, 80))
@pytest.mark.parametrize(
    "pattern", [literal("ERROR"), regex("ER+OR"), regex("error", ignore_case=True), regex("ROR.*")]
)
def test_a_match_on_the_cut_of_a_long_line_is_found_once(pattern: Pattern, place: int) -> None:
    assert found_in(pattern, "." * place + "ERROR" + "." * 100) == 1


def test_two_matches_in_one_long_line_are_two() -> None:
    assert found_in(regex("ERROR.*"), "ERROR" + "." * 200 + "ERROR" + "." * 10) == 2


def test_a_part_is_no_line_of_its_own_to_an_anchor() -> None:
    assert found_in(regex("^x"), "." + "x" * 200) == 0
    assert found_in(regex("x$"), "x" * 200 + ".") == 0
    assert found_in(regex("^x"), "x" * 200) == 1
    assert found_in(regex("x$"), "x" * 200) == 1


@pytest.mark.covers("signals:31")
def test_a_search_that_takes_too_long_is_ended() -> None:
    fence = RegexTimeout(0.005)
    endless = regex("(?:a|aa)*$")

    with fence:
        found = fence.matches(endless, line("a" * 60 + "!"))
        still_there = fence.matches(regex("b$"), line("ab"))

    assert (found, still_there, fence.overruns) == (False, True, 1)


# Small, so that what is looked for is there quite often.
_words = st.sampled_from(
    [
        "ERROR",
        "error",
        "Err",
        "or",
        "K",
        "\u212a",
        "k",
        "i\u0131",
        "\u017f",
        "\u00e9",
        "\u00c9",
        " ",
        "x",
        "12",
        "\t",
        "\ufffd",
    ]
)
_texts = st.lists(_words, max_size=6).map("".join)
_output = st.lists(st.tuples(_texts, st.sampled_from([b"\n", b"\r\n"])), max_size=12).map(
    lambda lines: b"".join(text.encode() + end for text, end in lines)
)
_sources = [
    *(
        "ERROR",
        r"Err(?:or)?\d",
        "^k",
        "(?i)k",
        r"\d+",
        "(?:ERROR|\u00e9)x",
        "(?i:error) ?K",
        "x$",
        r"(or){1,3} ",
        "[ER]r",
    ),
    *("(?i)\u00e9x", "(?i)(?:err|or)x|K", "\ufffd", "e?rror", "(?:x|12)+k", "a|", "ERRO[RS]|Err", "(?i)\u0131"),
]


@given(
    st.lists(
        st.one_of(
            st.builds(lambda text, ignore: literal(text or "K", ignore_case=ignore), _texts, st.booleans()),
            st.sampled_from(_sources).map(regex),
            st.sampled_from(_sources).map(lambda source: regex(source, ignore_case=True)),
        ),
        min_size=1,
        max_size=4,
    ),
    _output,
)
@settings(max_examples=scaled(120, 600), deadline=None)
def test_the_sieve_lets_every_line_through_that_matches(patterns: list[Pattern], output: bytes) -> None:
    expected = [each.offset for each in Lines().feed(output) if any(pattern.matches(each) for pattern in patterns)]
    sieve = Sieve(patterns)
    assert readable(output)

    if expected:
        assert not sieve.misses(output)
        assert not sieve.misses(output.replace(b"r", b"\x1b[31mr\x1b[0m"))
    if not sieve.wants_all:
        candidates = sieve.candidates(output)
        spans = list(candidates.spans(output)) if candidates is not None else []
        assert set(expected) <= {begin for begin, _ in spans}
        assert all(output[:begin].endswith(b"\n") or not begin for begin, _ in spans)
        assert all(output[end - 1 : end] == b"\n" for _, end in spans)
        assert spans == sorted(set(spans))


@pytest.mark.parametrize("pattern", [literal("needle"), regex("(?i)needle"), regex("nee+dle|thread")])
def test_the_sieve_holds_back_what_cannot_match(pattern: Pattern) -> None:
    hay = b"a line of hay\n" * 100

    assert Sieve([pattern]).misses(hay)
    assert Sieve([pattern]).misses(hay.replace(b"hay", b"\x1b[32mhay\x1b[0m"))
    hidden = hay + b"a needle\n" + hay
    candidates = Sieve([pattern]).candidates(hidden)
    assert candidates is not None
    assert list(candidates.spans(hidden)) == [(1400, 1409)]


def test_no_other_letter_is_another_case_of_an_ascii_one() -> None:
    beyond = "".join(chr(code) for code in range(128, sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)

    assert re.findall("[\0-\x7f]", beyond, re.IGNORECASE) == ["\u0130", "\u0131", "\u017f", "\u212a"]


@pytest.mark.parametrize("odd", [b"\x1b[31m", b"a\rb", b"\x00", b"\xc2\x9b", b"\x08"])
def test_what_is_not_readable_as_it_stands_is_said_to_be_so(odd: bytes) -> None:
    assert not readable(b"line\n" + odd + b"\n")
