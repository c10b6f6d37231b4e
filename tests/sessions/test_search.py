from __future__ import annotations

import os
import random
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import errors
from holdfast.core.vt.text import clean
from holdfast.runner.log import LogWriter
from holdfast.sessions import search as searching
from holdfast.sessions.log import Log
from holdfast.sessions.search import Hit, Matcher, search
from support.scale import scaled


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "b00000001"
    path.mkdir()
    return path


def write(directory: Path, *chunks: tuple[str, bytes], segment: int = 1 << 23, cap: int = 1 << 30) -> Log:
    fd = os.open(directory, os.O_RDONLY)
    log = LogWriter(
        fd,
        ["stdout", "stderr"],
        cap_bytes=cap,
        segment_bytes=segment,
        free_floor_bytes=0,
        say=lambda text: None,
    )
    for stream, data in chunks:
        log.append(stream, data)
    log.close()
    os.close(fd)
    return Log(str(directory))


def lines(hits: list[Hit]) -> list[tuple[int | None, str]]:
    return [(hit.line, hit.text) for hit in hits]


def test_a_hit_reports_where_it_is_and_what_is_around_it(directory: Path) -> None:
    log = write(directory, ("stdout", "one\ntwo é two\nthree\nfour\n".encode()))
    (hit,) = search(log, "tw.", context=1)
    assert (hit.stream, hit.offset, hit.line, hit.text) == ("stdout", 4, 2, "two é two")
    assert (hit.spans, hit.before, hit.after) == ([(0, 3), (6, 9)], ["one"], ["three"])


def test_lines_are_matched_as_they_read_not_as_they_were_coloured(directory: Path) -> None:
    raw = b"x\n\x1b[31mER\x1b[1mROR\x1b[0m: bad\r\n 10%\r 90% ERROR\ny\nE\x00RR\x07OR last"
    log = write(directory, ("stdout", raw))
    hits = search(log, "^ERROR", context=1)
    assert lines(hits) == [(2, "ERROR: bad"), (5, "ERROR last")]
    assert [hit.offset for hit in hits] == [2, raw.index(b"E\x00")]
    assert hits[0].before == ["x"]
    assert hits[0].after == [" 90% ERROR"]
    assert search(log, "10%") == []


@pytest.mark.parametrize(
    "pattern, expected",
    [
        ("^b", [2]),
        ("a$", [1, 3]),
        (r"\Ab", [2]),
        (r"a\z", [1, 3]),
        ("(?-m)^b", [2]),
        ("^$", [4]),
        (r"a\s*b", []),
        (r"[^x]*c", []),
        ("B", []),
        ("(?i)B", [2]),
        (".", [1, 2, 3, 5]),
    ],
)
def test_a_match_lies_within_one_line(directory: Path, pattern: str, expected: list[int]) -> None:
    log = write(directory, ("stdout", b"a\nb\na\n\nd\n"))
    assert [hit.line for hit in search(log, pattern)] == expected
    assert [hit.line for hit in search(log, pattern, newest=True)] == expected[::-1]


def test_case_is_ignored_on_request(directory: Path) -> None:
    log = write(directory, ("stdout", "Fehler\nFEHLER Ä\n".encode()))
    assert [hit.line for hit in search(log, "fehler ä", ignore_case=True)] == [2]


def test_newest_first_stops_at_the_limit(directory: Path) -> None:
    log = write(directory, ("stdout", b"".join(b"hit %d\n" % number for number in range(100))), segment=100)
    assert lines(search(log, "hit", newest=True, limit=2)) == [(100, "hit 99"), (99, "hit 98")]
    assert lines(search(log, "hit", limit=2)) == [(1, "hit 0"), (2, "hit 1")]
    assert search(log, "hit", limit=0) == []


def test_hits_of_two_streams_come_in_order_of_arrival(directory: Path) -> None:
    log = write(
        directory, ("stdout", b"hit 1\n"), ("stderr", b"hit 2\n"), ("stdout", b"hit 3\n"), ("stderr", b"hit 4\n")
    )
    assert [hit.text for hit in search(log, "hit")] == ["hit 1", "hit 2", "hit 3", "hit 4"]
    assert [hit.text for hit in search(log, "hit", newest=True, limit=3)] == ["hit 4", "hit 3", "hit 2"]
    assert [hit.text for hit in search(log, "hit", stream="stderr")] == ["hit 2", "hit 4"]


def test_line_numbers_count_what_was_dropped(directory: Path) -> None:
    chunks = [("stdout", b"line %04d\n" % number) for number in range(500)]
    log = write(directory, *chunks, segment=400, cap=1600)
    assert log.dropped_before()["stdout"] > 0
    assert lines(search(log, "0499|0498")) == [(499, "line 0498"), (500, "line 0499")]
    assert lines(search(log, "0499", newest=True)) == [(500, "line 0499")]
    assert search(log, "line 0000") == []


def test_the_number_of_a_dropped_line_is_none(directory: Path) -> None:
    log = write(directory, ("stdout", b"hit\n"), ("stdout", b"miss\n"), segment=4)
    (hit,) = search(log, "hit")
    (directory / "stdout.dropped").write_text("4 1\n")
    (directory / "stdout.00000000000000000000").unlink()
    assert hit.line is None


def test_a_hole_ends_a_line(directory: Path) -> None:
    (directory / "stdout.00000000000000000000").write_bytes(b"one\nhit be")
    (directory / "stdout.00000000000000000050").write_bytes(b"hind\nhit\n")
    log = Log(str(directory))
    for newest in (False, True):
        hits = search(log, "hi", newest=newest, context=1)
        found = [(hit.offset, hit.text) for hit in hits]
        assert sorted(found) == [(4, "hit be"), (50, "hind"), (55, "hit")]
        assert found == sorted(found, reverse=newest)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+b", "(.*a){20}"])
def test_a_pattern_that_explodes_elsewhere_is_linear(directory: Path, pattern: str) -> None:
    log = write(directory, ("stdout", b"a" * 500_000 + b"!\n" + b"hit aaab\n"))
    assert isinstance(search(log, pattern), list)


@pytest.mark.parametrize(
    "pattern, place, part",
    [("a(?=b)", 1, "(?="), (r"(a)\1", 3, r"\1"), ("x[z-a]", 2, "z-a"), ("a(", 0, "missing"), ("a**", 1, "**")],
)
def test_a_bad_pattern_is_refused_with_its_place(directory: Path, pattern: str, place: int, part: str) -> None:
    log = write(directory, ("stdout", b"x\n"))
    with pytest.raises(errors.BadArgument) as caught:
        search(log, pattern)
    message = str(caught.value)
    assert f"position {place}" in message
    assert part.replace("\\", "\\\\") in message
    assert "look-around and back-references are not supported" in message
    with pytest.raises(errors.BadArgument):
        Matcher(pattern)


@pytest.mark.parametrize("options", [{"stream": "stdin"}, {"context": -1}, {"limit": -1}])
def test_bad_options_are_refused(directory: Path, options: dict[str, object]) -> None:
    log = write(directory, ("stdout", b"x\n"))
    with pytest.raises(errors.BadArgument):
        search(log, "x", **options)  # type: ignore[arg-type]


@given(st.text(max_size=12))
@settings(max_examples=scaled(40, 200), deadline=None)
def test_any_pattern_is_compiled_or_refused(pattern: str) -> None:
    try:
        Matcher(pattern).feed("stdout", 0, b"abc\n(def) [x]\n")
    except errors.BadArgument:
        return


LINES = st.lists(
    st.sampled_from(
        [b"hit", b"a hit b", b"", b"miss", b"\x1b[1mhi\x1b[0mt", b"zzz\rhit", b"h\xffit", "é hit".encode()]
    ),
    max_size=30,
)


@given(LINES, st.integers(0, 3), st.integers(4, 30), st.integers(1, 40), st.booleans())
@settings(max_examples=scaled(30, 150), deadline=None)
def test_search_finds_what_a_reader_of_the_text_finds(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], context: int, block: int, segment: int, last: bool
) -> None:
    raw = b"\n".join(parts) + (b"\n" if last and parts else b"")
    pieces = [("stdout", raw[at : at + 5]) for at in range(0, len(raw), 5)]
    log = write(tmp_path_factory.mktemp("b"), *pieces, segment=segment)
    text = clean(raw).split("\n")
    starts = [0, *(found.end() for found in re.finditer(b"\n", raw))]
    if not text[-1]:
        text.pop()
    expected = [
        (number + 1, starts[number], line, text[max(0, number - context) : number], text[number + 1 :][:context])
        for number, line in enumerate(text)
        if "hit" in line
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "_BLOCK_BYTES", block)
        patch.setattr(searching, "_CONTEXT_BYTES", 2)
        for newest in (False, True):
            hits = search(log, "hit", context=context, newest=newest)
            found = [(hit.line, hit.offset, hit.text, hit.before, hit.after) for hit in hits]
            assert found == (expected[::-1] if newest else expected)


@pytest.mark.covers("STR-03")
def test_a_line_of_32_mb_is_searched_in_bounded_memory(directory: Path) -> None:
    block = b"x" * (1 << 20)
    log = write(directory, *[("stdout", block)] * 32, ("stdout", b" needle\nneedle 2\n"))
    tracemalloc.start()
    try:
        for newest in (False, True):
            hits = search(log, "needle", context=1, newest=newest)
            assert [hit.spans for hit in hits if hit.text.startswith("needle 2")] == [[(0, 6)]]
            assert len(hits) == 2
            assert all(len(hit.text) < 100_000 for hit in hits)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_nothing_stays_open_after_a_search_that_stopped_early(directory: Path) -> None:
    log = write(directory, ("stdout", b"hit\n" * 1000), segment=100)
    before = len(os.listdir("/proc/self/fd"))
    assert len(search(log, "hit", limit=1, context=1)) == 1
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_matcher_finds_a_finished_line_and_where_reading_continues() -> None:
    match = Matcher("read[y]").feed("stdout", 100, b"starting\nnow ready!\nmore\n")
    assert match is not None
    assert (match.stream, match.offset, match.end, match.text) == ("stdout", 109, 120, "now ready!")
    assert match.span == (4, 9)


def test_a_matcher_finds_a_prompt_that_has_no_line_end() -> None:
    matcher = Matcher(r"password: $")
    assert matcher.feed("stdout", 0, b"login\npass") is None
    match = matcher.feed("stdout", 10, b"word: ")
    assert match is not None
    assert (match.offset, match.end, match.text, match.span) == (6, 16, "password: ", (0, 10))


def test_a_matcher_finds_a_match_wherever_it_is_cut() -> None:
    data = "one\n\x1b[32mré\x1b[0mady\x1b[K now\nlast\n".encode()
    for cut in range(len(data) + 1):
        matcher = Matcher("réady now")
        match = matcher.feed("stderr", 7, data[:cut]) or matcher.feed("stderr", 7 + cut, data[cut:])
        assert match is not None
        assert (match.offset, match.text) == (11, "réady now")
    matcher = Matcher("réady now")
    singles = [matcher.feed("stderr", 7 + at, data[at : at + 1]) for at in range(len(data))]
    assert any(singles)


def test_a_matcher_keeps_streams_apart_and_starts_again_behind_a_gap() -> None:
    matcher = Matcher("^abc")
    assert matcher.feed("stdout", 0, b"ab") is None
    assert matcher.feed("stderr", 0, b"c") is None
    assert matcher.feed("stdout", 9, b"c") is None
    assert matcher.feed("stdout", 10, b"\nabc") is not None


@pytest.mark.parametrize("pattern", ["", ".*", "^$", "x*"])
def test_a_matcher_is_not_woken_by_the_line_that_has_not_begun(pattern: str) -> None:
    matcher = Matcher(pattern)
    assert matcher.feed("stdout", 0, b"") is None
    assert matcher.feed("stdout", 0, b"\x1b[0m") is None


def test_a_matcher_finds_a_word_at_the_end_of_a_line_of_a_megabyte() -> None:
    matcher = Matcher("ready")
    rng = random.Random(3)
    at = 0
    while at < 1_000_000:
        chunk = b"." * rng.randrange(1, 60_000)
        assert matcher.feed("stdout", at, chunk) is None
        at += len(chunk)
    assert matcher.feed("stdout", at, b"rea") is None
    assert matcher.feed("stdout", at + 3, b"dy") is not None
