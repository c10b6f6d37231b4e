"""Lines out of raw output: what they say, where they stand, and that no cut of the bytes changes either."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.vt.text import Line, Lines, clean, plain, tail
from support.scale import scaled


def facts(line: Line) -> tuple[Any, ...]:
    return line.text, line.offset, line.end, line.part, line.segment, line.fresh, line.cut


def fed(data: bytes, cuts: list[int] | None = None, **options: Any) -> list[Line]:
    lines = Lines(**options)
    out: list[Line] = []
    for begin, end in pairwise([0, *(cuts or []), len(data)]):
        out += lines.feed(data[begin:end])
    return out + lines.end()


def texts(data: bytes, **options: Any) -> list[str]:
    return [line.text for line in fed(data, **options)]


@pytest.mark.parametrize(
    "raw, expected",
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\ntwo\r\r\n", ["one", "two"]),
        (b"\n\nlast", ["", "", "last"]),
        (b"\x1b[1;31mE\x1b[0mR\x1b[38;5;1mROR\x1b[m\n", ["ERROR"]),
        (b"\x1b]0;a title\x07E\x1b]8;;http://x\x1b\\RROR\n", ["ERROR"]),
        (b"\x1b]0;never ended\nERROR\n", ["", "ERROR"]),
        (b"a\x00b\x07c\x08d\x7fe\n", ["abcde"]),
        (b"a\tb\n", ["a\tb"]),
        ("Gr\u00fc\u00dfe \u6f22\n".encode(), ["Gr\u00fc\u00dfe \u6f22"]),
        (b"bad \xff\xe2\x82 bytes\n", ["bad \ufffd\ufffd bytes"]),
        (b"a\xc2\x9b31mb\xc2\x85c\n", ["abc"]),
        (b"\xc2\x1b[0m\x9bx\n", ["x"]),
        (b"cut \xe2\x82", ["cut \ufffd"]),
        (b"cut \x1b[3", ["cut "]),
    ],
)
def test_a_line_says_what_a_reader_would_see(raw: bytes, expected: list[str]) -> None:
    assert texts(raw) == expected


def test_offsets_are_those_of_the_raw_bytes() -> None:
    raw = b"\x1b[31mred\x1b[0m\r\nplain\n  partial"

    lines = fed(raw)

    assert [raw[line.offset : line.end] for line in lines] == [b"\x1b[31mred\x1b[0m\r\n", b"plain\n", b"  partial"]


def test_a_lone_carriage_return_ends_a_segment() -> None:
    lines = fed(b"10%\r20%\r\x1b[K30%\n")

    assert [(line.text, line.segment) for line in lines] == [("10%", True), ("20%", True), ("30%", False)]
    assert [(line.offset, line.end) for line in lines] == [(0, 4), (4, 8), (8, 15)]


def test_a_segment_that_is_drawn_again_is_given_once() -> None:
    assert texts(b"wait\rwait\r\x1b[Kwait\rdone\rdone\nwait\n") == ["wait", "done", "wait"]


def test_without_segments_the_line_is_given_again() -> None:
    lines = fed(b"wait\rdone\rdone\n", keep_repeats=True)

    assert [line.text for line in lines if not line.segment] == ["done"]


def test_an_unfinished_line_is_given_as_it_is_now() -> None:
    lines = Lines()
    lines.feed(b"done\n\x1b[1mPassw")
    lines.feed(b"ord:\x1b[0m ")

    partial = lines.partial()

    assert partial is not None
    assert (partial.text, partial.offset, partial.end) == ("Password: ", 5, 23)
    assert [facts(line)[:3] for line in lines.feed(b"x\n")] == [("Password: x", 5, 25)]
    assert lines.partial() is None


def test_nothing_unfinished_is_no_partial() -> None:
    lines = Lines()

    for chunk in (b"", b"whole\n", b"\x1b[31m", b"\r"):
        lines.feed(chunk)
        assert lines.partial() is None


def test_a_segment_shown_again_is_no_partial() -> None:
    lines = Lines()
    lines.feed(b"same\rsame")

    assert lines.partial() is None


def test_a_long_line_comes_in_parts_that_overlap() -> None:
    text = "".join(chr(0x4E00 + n % 500) for n in range(5000))
    raw = text.encode() + b"\nnext\n"

    lines = fed(raw)

    parts, rest = lines[:-1], lines[-1]
    assert [line.part for line in parts] == [1, 2]
    assert [line.cut for line in parts] == [True, False]
    assert all(len(line.text.encode()) <= 8192 for line in parts)
    assert parts[1].text[: parts[1].fresh] == parts[0].text[-256:]
    assert parts[0].text + parts[1].text[parts[1].fresh :] == text
    assert raw[parts[1].offset : parts[1].end].decode().rstrip("\n") == parts[1].text
    assert facts(rest)[:4] == ("next", len(raw) - 5, len(raw), 0)


def test_a_line_just_as_long_as_allowed_is_whole() -> None:
    assert [line.part for line in fed(b"x" * 8192 + b"\n" + b"x" * 8193 + b"\n")] == [0, 1, 2]


def test_a_partial_of_a_long_line_is_its_next_part() -> None:
    lines = Lines(max_bytes=16, overlap=4)
    lines.feed(b"0123456789abcdefgh")

    partial = lines.partial()

    assert partial is not None
    assert (partial.text, partial.part, partial.fresh) == ("cdefgh", 2, 4)


def test_after_a_gap_the_unfinished_line_is_forgotten() -> None:
    lines = Lines()
    lines.feed(b"before\nhalf of a \x1b]0;")
    lines.skip_to(1000)

    assert [facts(line)[:3] for line in lines.feed(b"line\n")] == [("line", 1000, 1005)]


def test_unwanted_lines_are_skipped() -> None:
    lines = Lines()
    assert lines.at_start
    lines.pass_over(100)
    lines.feed(b"now")

    assert not lines.at_start
    assert [facts(line)[:3] for line in lines.end()] == [("now", 100, 103)]


# All that can be cut in two, and all that means something only with what comes next.
_ALPHABET = [
    *(b"a", b"word ", b"\n", b"\r", b"\r\n", b"\t", b"\x00", b"\x7f"),
    *("\u00e9".encode(), "\u20ac".encode(), "\U0001f600".encode(), b"\xff", b"\xe2", b"\xe2\x82", b"\xc2", b"\x9b"),
    *(b"\x1b[31m", b"\x1b[3\r1m", b"\x1b]0;t\x07", b"\x1b]0;t\x1b\\", b"\xc2\x9b1m", b"\x1b", b"\x1b(B", b"\x18"),
]
_output = st.lists(st.sampled_from(_ALPHABET), max_size=30).map(b"".join)


@pytest.mark.covers("signals:24")
@given(_output, st.sampled_from([(8192, 256), (16, 3), (16, 0)]))
@settings(max_examples=scaled(30, 150), deadline=None)
def test_no_cut_of_the_bytes_changes_a_line(data: bytes, limits: tuple[int, int]) -> None:
    options: dict[str, Any] = {"max_bytes": limits[0], "overlap": limits[1]}
    whole = [facts(line) for line in fed(data, **options)]

    assert [facts(line) for line in fed(data, list(range(1, len(data))), **options)] == whole
    for cut in range(1, len(data)):
        assert [facts(line) for line in fed(data, [cut], **options)] == whole


@given(_output)
@settings(max_examples=scaled(30, 150), deadline=None)
def test_no_control_character_is_left_in_a_line(data: bytes) -> None:
    for text in texts(data, max_bytes=16, overlap=3):
        assert not any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in text if character != "\t")


@given(_output)
@settings(max_examples=scaled(30, 150), deadline=None)
def test_every_byte_belongs_to_one_line(data: bytes) -> None:
    at = 0
    for line in fed(data, keep_repeats=True):
        # What lies between has no text in it: a segment of nothing, a sequence at the end.
        assert at <= line.offset <= line.end <= len(data)
        assert not clean(data[at : line.offset].replace(b"\n", b"")).strip()
        at = line.end


def test_plain_is_what_need_only_be_decoded() -> None:
    assert plain("tab\tand \u00fc\nlines\n".encode())
    assert not any(map(plain, (b"\x1b", b"a\r\n", b"\x07", b"\x7f", b"\xc2\x9b")))


@pytest.mark.parametrize(
    "raw, at, expected",
    [
        (b"one\ntwo\nthree\n", 0, ("two\nthree", 4, True)),
        (b"one\ntwo\n", 0, ("one\ntwo", 0, False)),
        (b"", 0, ("", 0, False)),
        (b"torn one\ntwo\n", 70, ("two", 79, True)),
        (b"ne\ntwo\n\x1b[31mthree", 70, ("two\nthree", 73, True)),
        (b"10%\r99%\r\ndone\r\n", 0, ("99%\ndone", 0, False)),
        (b"0123456789" * 5, 0, ("01234567890123456789", 0, True)),
        (b"0123456789" * 5, 70, ("01234567890123456789", 70, True)),
        (b"x" * 19 + b"\ny\n", 0, ("y", 20, True)),
    ],
)
def test_a_tail_begins_where_a_line_does(raw: bytes, at: int, expected: tuple[str, int, bool]) -> None:
    found = tail(raw, at, lines=2, chars=20)

    assert (found["text"], found["offset"], found["cut"]) == expected


def test_a_long_tail_takes_the_last_lines_that_fit() -> None:
    raw = b"".join(b"line %d\n" % n for n in range(100))

    found = tail(raw, 0, lines=30, chars=100)

    assert found["text"].split("\n")[-1] == "line 99"
    assert len(found["text"]) <= 100
    assert raw[found["offset"] :].decode() == found["text"] + "\n"
