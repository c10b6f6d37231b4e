from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core.vt import text
from holdfast.core.vt.text import Cleaner, clean, plain, unfinished
from holdfast.terminal.text import visible
from support.scale import scaled

PIECES = st.sampled_from(
    [
        b"a", b"bc", b"\n", b"\r", b"\r\n", b"\b", b"\t", b" ", b"\x1b", b"[", b"]0;t", b"K", b"1", b"2", b";31", b"m",
        b"\x1b[K", b"\x1b[1K", b"\x1b[2K", b"\x1b[31m", b"\x1b]0;title\x07", b"\x1bPq\x1b\\", b"\x1b(B", b"\x07",
        b"\x18", b"\x1a", b"\x00", b"\x7f", b"\x9b", b"\xc2\x9b1m", b"\xc2\x9d", b"\xc2\x9c", b"\xc2", b"\xff",
        "é€😀".encode(), b"\xe2\x82", b"\xf0\x9f", b"abcdefghijklmnop",
    ]
)  # fmt: skip
OUTPUT = st.one_of(st.binary(max_size=40), st.lists(PIECES, max_size=12).map(b"".join))


def fed(*chunks: bytes) -> str:
    cleaner = Cleaner()
    return "".join([cleaner.feed(chunk) for chunk in chunks]) + cleaner.flush()


@pytest.mark.covers("STR-03")
@given(OUTPUT)
@example(b"x\xc2\x9b1mz\xe2\x82\xac\r\n\x1b]0;a\nb\x1b\\c")
@example(b"gone\r\x1b[K\n")
@settings(max_examples=scaled(80, 400), deadline=None)
def test_any_cut_gives_the_same_text(data: bytes) -> None:
    whole = clean(data)
    assert fed(*(data[n : n + 1] for n in range(len(data)))) == whole
    for cut in range(len(data) + 1):
        assert fed(data[:cut], data[cut:]) == whole


@given(OUTPUT)
@settings(max_examples=scaled(60, 300), deadline=None)
def test_text_has_no_control_characters_and_as_many_lines_as_the_bytes(data: bytes) -> None:
    result = clean(data)
    assert result.count("\n") == data.count(b"\n")
    assert not [c for c in result if (c < " " and c not in "\n\t") or "\x7f" <= c <= "\x9f"]


@given(OUTPUT)
@settings(deadline=None)
def test_plain_output_is_only_decoded(data: bytes) -> None:
    if plain(data):
        assert clean(data) == data.decode("utf-8", "replace")


@pytest.mark.parametrize("size", [100, 10_000])
@pytest.mark.parametrize("control", [*range(0x09), *range(0x0B, 0x20), 0x7F])
def test_a_control_byte_makes_it_not_plain(control: int, size: int) -> None:
    filler = b"x" * size
    assert plain(filler + b"\t\n")
    assert not plain(filler + bytes([control]) + filler)


def test_c1_in_utf8_is_not_plain_and_other_characters_are() -> None:
    assert not plain("a\x9bb".encode())
    assert plain("a\xa0é€".encode())


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"one\r\ntwo\n", "one\ntwo\n"),
        (b"one\r\r\ntwo\n", "one\ntwo\n"),
        (b"10%\r 20%\r100%\n", "100%\n"),
        (b"abcdef\rXY\n", "XYcdef\n"),
        (b"abc\b\bX\n", "aXc\n"),
        (b"\b\bab", "ab"),
        (b"working...\r\x1b[Kdone\n", "done\n"),
        (b"gone\r\x1b[K\n", "\n"),
        (b"abcdef\b\b\b\x1b[K!\n", "abc!\n"),
        (b"abc\x1b[2KX\n", "   X\n"),
        (b"abcdef\b\b\b\x1b[1KX\n", "   Xef\n"),
        # Line editors step over the prompt.
        (b"$ make all\r\x1b[2Cls\x1b[K\n", "$ ls\n"),
        (b"$ make\r\x1b[C\x1b[C\x1b[CX\n", "$ mXke\n"),
        (b"ab\r\x1b[9CX\x1b[9CY\x1b[?2CZ\n", "abXYZ\n"),
        (b"a\tb\n", "a\tb\n"),
        (b"abcdefghijkl\r\tX\n", "abcdefghXjkl\n"),
        (b"abc\r\tX\n", "abc\tX\n"),
        (b"a\x00b\x07c\x0e\n", "abc\n"),
        (b"bad \xff\x80 bytes\n", "bad \ufffd\ufffd bytes\n"),
        (b"raw \x9b31m is no sequence\n", "raw \ufffd31m is no sequence\n"),
        (b"cut \xe2\x82", "cut \ufffd"),
    ],
)
def test_overprinting_and_bytes(data: bytes, expected: str) -> None:
    assert clean(data) == expected


@pytest.mark.parametrize(
    "sequence",
    [
        b"\x1b[0m",
        b"\x1b[38;5;196m",
        b"\x1b[38:2::1:2:3m",
        b"\x1b[?25l",
        b"\x1b[>4;2m",
        b"\x1b[2 q",
        b"\x1b[?K",
        b"\x1b(B",
        b"\x1b%G",
        b"\x1b7",
        b"\x1bM",
        b"\x1b]0;title\x07",
        b"\x1b]8;;http://x\x1b\\",
        "\x1b]0;t\u00eftle\x9c".encode(),
        b"\x1bPq#0;1;2\x1b\\",
        b"\x1bP has a bell \x07 inside\x1b\\",
        b"\x1bXsos\x1b\\",
        b"\x1b^pm\x1b\\",
        b"\x1b_Gf=24;AAAA\x1b\\",
        b"\xc2\x9b31m",
        b"\xc2\x9d0;title\x07",
        b"\xc2\x90q\xc2\x9c",
        b"\x1b[31\x18",
        b"\x1b]0;cut short\x1a",
        b"\x1b]0;restarted\x1b[0m",
        b"\x1b[3\x1b[31m",
        b"\x1b[" + b"9;" * 10_000 + b"m",
        b"\x1b[3\x071m",
    ],
)
def test_a_sequence_leaves_nothing(sequence: bytes) -> None:
    assert clean(b"before " + sequence + b"after\n") == "before after\n"


def test_text_after_a_broken_sequence_is_kept() -> None:
    assert clean("\x1b[3é!".encode()) == "!"
    assert clean(b"\x1b[3") == ""


def test_a_line_end_inside_a_string_still_ends_a_line() -> None:
    assert clean(b"a\x1b]0;one\ntwo\x07b\n") == "a\nb\n"


def test_finished_lines_come_at_once_and_the_last_one_is_peeked() -> None:
    cleaner = Cleaner()
    assert cleaner.feed(b"one\ntw") == "one\n"
    assert cleaner.peek() == "tw"
    assert cleaner.feed(b"o\rT") == ""
    assert cleaner.peek() == "Two"
    assert not cleaner.idle
    assert cleaner.flush() == "Two"
    assert cleaner.idle


@pytest.mark.covers("STR-03")
def test_a_line_of_64_mb_passes_in_bounded_memory() -> None:
    cleaner = Cleaner()
    chunk = b"x" * (1 << 20)
    given_out = 0
    tracemalloc.start()
    try:
        for _ in range(64):
            given_out += len(cleaner.feed(chunk))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert given_out + len(cleaner.flush()) == 64 << 20


@pytest.mark.covers("STR-03")
def test_an_unterminated_string_of_100_mb_keeps_memory_flat() -> None:
    cleaner = Cleaner()
    chunk = b"x" * (1 << 20)
    cleaner.feed(b"\x1b]0;")
    tracemalloc.start()
    try:
        for _ in range(100):
            assert cleaner.feed(chunk) == ""
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert cleaner.feed(b"\x07seen\n") == "seen\n"


@pytest.mark.covers("STR-03")
def test_long_lines_do_not_depend_on_the_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "LINE_MAX_CHARS", 7)
    monkeypatch.setattr(text, "_SLICE_BYTES", 5)
    rng = random.Random(5)
    for _ in range(300):
        data = b"".join(rng.choice([b"abcdefgh", b"x", b"\r", b"\b", b"\x1b[K", b"\n", b"\t"]) for _ in range(12))
        whole = clean(data)
        assert fed(*(data[n : n + 1] for n in range(len(data)))) == whole
        cut = rng.randrange(len(data) + 1)
        assert fed(data[:cut], data[cut:]) == whole


def test_a_storm_of_rewrites_of_a_long_line_costs_what_it_writes() -> None:
    data = b"a" * 500_000 + b"\rb" * 100_000 + b"\n"
    assert clean(data) == "b" + "a" * 499_999 + "\n"


def test_hidden_characters_are_shown_and_joiners_kept_on_request() -> None:
    hidden = "a\u202eb\u200bc\u200dd\u2066e\U000e0041f\ufeff"
    assert visible(hidden) == "a\\u{202e}b\\u{200b}c\\u{200d}d\\u{2066}e\\u{e0041}f\\u{feff}"
    assert visible(hidden, joiners=True) == "a\\u{202e}b\\u{200b}c\u200dd\\u{2066}e\\u{e0041}f\\u{feff}"
    assert visible("plain é") == "plain é"


@pytest.mark.parametrize(
    "data, count",
    [
        (b"", 0),
        (b"plain", 0),
        (b"a\xc3", 1),
        (b"a\xf0\x9f\x8e", 3),
        (b"a\xc3\xa9", 0),
        (b"a\xff", 0),
        (b"a\x1b", 1),
        (b"a\x1b[3", 3),
        (b"a\x1b[31m", 0),
        (b"a\x1b]0;titl\xc3", 9),
        (b"a\x1b]0;title\x07", 0),
        (b"a\xc2\x9b3", 3),
        (b"a\x1b[3\nb", 0),
        (b"a\x1b]" + b"x" * 5000, 0),
    ],
)
def test_an_unfinished_sequence_at_the_end_is_counted(data: bytes, count: int) -> None:
    assert unfinished(data) == count
