"""The rows about the cursor, drawn from the end of the log, against a whole emulator that read all of it."""

# ruff: noqa: RUF001 - the signs that programs point with are the subject here

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.core.vt.tracker import Tracker
from holdfast.runner.features.needs_input.question import ROWS_ABOVE, Sketch, sketch
from holdfast.terminal.grid import Grid
from support import terminal_output
from support.scale import scaled

ROWS, COLS = 6, 20


def drawn(data: bytes, rows: int = ROWS, cols: int = COLS) -> Sketch:
    """All of a session's output."""
    return sketch(data, 0, rows, cols)


def of_grid(data: bytes, rows: int = ROWS, cols: int = COLS) -> tuple[list[str], int]:
    grid = Grid(rows, cols)
    grid.feed(data)
    row, column, _ = grid.cursor
    return [each.text.rstrip() for each in grid.rows()[max(0, row - ROWS_ABOVE) : row + 1]], column + grid.pending_wrap


def at_edge(pieces: list[bytes]) -> bool:
    """Does the cursor ever wait behind the last column? What erases or moves it then is no matter on which emulators
    agree."""
    tracker = Tracker(ROWS, COLS)
    for piece in pieces:
        tracker.feed(piece)
        if tracker.pending_wrap:
            return True
    return False


@pytest.mark.parametrize(
    "data, row, column",
    [
        (b"", "", 0),
        (b"Name? ", "Name?", 6),
        (b"50%\r60%\r70%", "70%", 3),
        (b"abc\b\bX", "aXc", 2),
        (b"a\tb", "a       b", 9),
        (b"old text\r\x1b[Knew", "new", 3),
        (b"old text\x1b[1K!", "        !", 9),
        (b"\x1b[3;5Hx\x1b[2Dyz", "   yz", 5),
        (b"abcdef\x1b[1G\x1b[2P\x1b[@", " cdef", 0),
        (b"abcdef\x1b[3G\x1b[2X", "ab  ef", 2),
        (b"-\x1b[4b>", "----->", 6),
        ("名前は？ ".encode(), "名前は？", 9),
        ("漢字\x1b[2Gx".encode(), " x字", 2),
        ("e\u0301? ".encode(), "e\u0301?", 3),
        (b"x" * 25, "xxxxx", 5),
        (b"x" * 20, "x" * 20, 20),
        (b"\x1b[?7l" + b"x" * 24 + b"y", "x" * 19 + "y", 19),
        (b"main\x1b[?1049h\x1b[Hpage\x1b[?1049l$ ", "main$", 6),
        (b"one\x1b7two\x1b8six", "onesix", 6),
        (b"\x1b[2;3r\x1b[3;1Ha\r\nb\r\nc", "c", 1),
        (b"text\x1bc$ ", "$", 2),
        (b"\x1b]0;title\x07\x1b[?2004h\x1b[1;32m$\x1b[0m ", "$", 2),
        (b"bad \xff\xfe \x1b[", "bad \ufffd\ufffd", 7),
    ],
)
def test_the_row_of_the_cursor_is_read_as_it_is_seen(data: bytes, row: str, column: int) -> None:
    seen = drawn(data)
    assert (seen.rows[-1], seen.column) == (row, column)


def test_the_three_rows_above_come_with_it() -> None:
    menu = "one\r\n? Pick:\r\n❯ apple\r\n  banana\r\n  cherry\r\n".encode()
    assert drawn(menu).rows == ["❯ apple", "  banana", "  cherry", ""]
    assert drawn(b"first\r\nsecond").rows == ["first", "second"]


@pytest.mark.parametrize(
    "data, inverse",
    [
        (b"\x1b[7m(END)\x1b[27m", True),
        (b"\x1b[7m--More--\x1b[0m", True),
        (b"\x1b[0;1;7m:\x1b[m", True),
        (b"\x1b[7m\xe6\xbc\xa2\x1b[27m", True),
        (b"\x1b[7m(END)\x1b[27m ", False),
        (b"\x1b[7;27m(END)", False),
        (b"\x1b[38;5;7m(END)", False),
        (b"\x1b[7m(END)\r\n\x1b[27m", False),
        (b":", False),
        (b"", False),
        (b"\x1b[7m \x1b[5C", False),
    ],
)
def test_reverse_video_up_to_the_cursor_is_seen(data: bytes, inverse: bool) -> None:
    assert drawn(data).inverse is inverse


TEXTS = [b"a", b"hello world ", b"x" * 47, "漢字".encode(), "é".encode(), "e\u0301".encode(), "─".encode()]


@given(st.lists(st.sampled_from([*TEXTS, b"\r\n", b"\r\n", b"\x1b[K", b"\r", b"\b", b"\x1b[7m", b"\x1b[2J"])))
@settings(deadline=None)
def test_a_piece_of_the_log_shows_the_same_as_all_of_it(pieces: list[bytes]) -> None:
    assume(not at_edge(pieces))
    before = b"\x1b[31mearlier\r\n" * 10
    data = before + b"".join(pieces)
    tracker = Tracker(ROWS, COLS)
    tracker.feed(data)
    # Beginning in the middle of a sequence, where nothing but text before it is lost.
    for at in (2, len(before) - 12):
        seen = sketch(data[at:], at, ROWS, COLS, clear=tracker.last_clear)
        assert (seen.rows[-1:], seen.column) == (of_grid(data)[0][-1:], of_grid(data)[1])


def test_it_begins_where_the_screen_that_is_shown_was_cleared() -> None:
    data = b"old\r\n\x1b[4;3H\x1b[2Jtitle\x1b[2;1HName? "
    tracker = Tracker(ROWS, COLS)
    tracker.feed(data)
    seen = sketch(data[2:], 2, ROWS, COLS, clear=tracker.last_clear)
    assert (seen.rows, seen.column) == (["", "Name?"], 6)
    # A pager came and went: what it cleared was the other screen.
    data = b"first line\r\n" + b"one\r\ntwo\r\n$ page\r\n\x1b[?1049hthe page\x1b[?1049l$ "
    tracker = Tracker(ROWS, COLS)
    tracker.feed(data)
    assert tracker.last_clear is not None
    seen = sketch(data[2:], 2, ROWS, COLS, clear=tracker.last_clear)
    assert seen.rows == ["one", "two", "$ page", "$"]


_MOVES = st.builds(
    "\x1b[{}{}".format,
    st.sampled_from(["", "0", "1", "2", "3", "7", "50", "2;4", ";9", "99999"]),
    st.sampled_from(list("ABCDEFGHJKLMPSTX@dfr")),
)
_DRAWN = st.one_of(
    st.sampled_from([*TEXTS, b"\r\n", b"\r", b"\n", b"\b", b"\t", b"\x1bM", b"\x1bD", b"\x1bE", b"\x1b[7m"]),
    _MOVES.map(str.encode),
)


@given(st.lists(_DRAWN, max_size=40))
@settings(max_examples=scaled(60, 300), deadline=None)
def test_what_programs_draw_with_is_drawn_as_an_emulator_does(pieces: list[bytes]) -> None:
    assume(not at_edge(pieces))
    # Above the scroll region nothing can be inserted or deleted; avt does it all the same.
    finals = {piece[-1:] for piece in pieces}
    assume(not (b"r" in finals and finals & {b"L", b"M"}))
    data = b"".join(pieces)
    seen = drawn(data)
    assert (seen.rows, seen.column) == of_grid(data)


@pytest.mark.parametrize("final", [b"L", b"M"])
def test_above_the_scroll_region_no_line_is_inserted_or_deleted(final: bytes) -> None:
    assert drawn(b"a\x1b[2r\x1b[" + final).rows == ["a"]


@given(
    st.one_of(terminal_output.long, st.binary(max_size=3000)),
    st.integers(0, 100),
    st.sampled_from([(1, 1), (1, 2), (2, 1), (3, 7), (24, 80), (500, 1000)]),
)
@settings(max_examples=scaled(60, 300), deadline=None)
def test_no_output_is_too_odd_to_look_at(data: bytes, at: int, size: tuple[int, int]) -> None:
    tracker = Tracker(*size)
    tracker.feed(bytes(at) + data)
    for alternate in (False, True):
        seen = sketch(data, at, *size, clear=tracker.last_clear, alternate=alternate)
        assert 1 <= len(seen.rows) <= ROWS_ABOVE + 1
        assert 0 <= seen.column <= size[1]
        for row in seen.rows:
            assert not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in row)
