"""The bytes of a terminal as plain text: what a person would have read, without a control character."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence

import pytest
from avt._avt import Vt
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core.vt import text
from holdfast.terminal import log_text
from holdfast.terminal.log_text import TerminalText, joined
from support.scale import scaled

ROWS, COLS = 6, 12

WORDS = ["a", "bc", "hello world ", "0123456789ab", "漢字", "é", "50%", "x" * 40, " ", "e\u0301"]
MOVES = [
    "\r", "\n", "\r\n", "\r\n", "\r\n", "\b", "\t", "\x1b[A", "\x1b[2A", "\x1b[B", "\x1b[C", "\x1b[3C", "\x1b[D",
    "\x1b[2D", "\x1b[5G", "\x1b[3;4H", "\x1b[H", "\x1b[4d", "\x1b[E", "\x1b[F", "\x1b7", "\x1b8", "\x1bM", "\x1bD",
]  # fmt: skip
ERASING = ["\x1b[K", "\x1b[1K", "\x1b[2K", "\x1b[J", "\x1b[1J", "\x1b[3X", "\x1b[2P", "\x1b[2@", "\x1b[L", "\x1b[2M"]
SETTINGS = [
    "\x1b[31m",
    "\x1b[?7l",
    "\x1b[?7h",
    "\x1b[4h",
    "\x1b[4l",
    "\x1b[2;4r",
    "\x1b[r",
    "\x1b(0lqk\x1b(B",
    "\x1b[?6h",
]
CLEARING = ["\x1b[2J", "\x1b[H\x1b[J", "\x1bc", "\x1b[S", "\x1b[T", "\x1b[3b"]
SCREENS = [
    "\x1b[?1049h",
    "\x1b[?1049l",
    "\x1b[?47h",
    "\x1b[?47l",
    "\x1b[?1049hfull\x1b[H\x1b[J\x1b[?1049l",
    "\x1b]2;t\x07",
]
BULK = [
    "line\r\n" * 9,
    "\x1b[32mgreen\x1b[m\x1b[K\r\n" * 8,
    "é\r\n" * 8,
    "a\tb\r\n" * 8,
    "a\u2028b\r\n" * 9,
    "10%\r20%\r30%\r40%\r",
]
ODD = [b"\xff", b"\xe2\x82", b"\xf0\x9f", b"\xc2\x9b2J", b"\x1bP", b"\x1b[3\x18", b"\x1b[", b"?", b"\x1b]0;", b"\x07"]
PIECES: list[bytes] = [
    *(piece.encode() for piece in WORDS + MOVES + ERASING + SETTINGS + CLEARING + SCREENS + BULK),
    *ODD,
]  # fmt: skip
OUTPUT = st.one_of(st.binary(max_size=30), st.lists(st.sampled_from(PIECES), max_size=16).map(b"".join))


class Reader(TerminalText):
    def feed(self, data: bytes) -> str:
        return joined(self.feed_lines(data))

    def peek(self) -> str:
        return joined(self.peek_lines())

    def flush(self) -> str:
        return joined(self.flush_lines())


def text_of(*chunks: bytes, size: tuple[int, int] = (24, 80)) -> str:
    reader = Reader(*size)
    return "".join([reader.feed(chunk) for chunk in chunks]) + reader.flush()


@pytest.mark.covers("terminal:16", "terminal:43")
@given(OUTPUT, st.randoms(use_true_random=False))
@example(b"\xe2\x82\xacx\r\n\xf0\x9f\x98\x80\xff\x80 \x1b[3\x1b[Amid\x1b]0;t\xc3\xa9\x1b\\dle\r\n", random.Random(0))
@settings(max_examples=scaled(30, 150), deadline=None)
def test_any_cut_gives_the_same_lines_at_the_same_offsets(data: bytes, rng: random.Random) -> None:
    def lines(*cuts: int) -> list[object]:
        reader = Reader(ROWS, COLS)
        found: list[object] = []
        for begin, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
            found += reader.feed_lines(data[begin:end])
        return [*found, reader.peek_lines(), reader.unfinished(), reader.flush_lines()]

    whole = lines()
    assert lines(*range(1, len(data))) == whole
    assert lines(*sorted(rng.randrange(len(data) + 1) for _ in range(3))) == whole


@pytest.mark.covers("terminal:43")
@given(OUTPUT)
@settings(max_examples=scaled(30, 150), deadline=None)
def test_text_has_no_control_character(data: bytes) -> None:
    reader = Reader(ROWS, COLS)
    said = reader.feed(data) + reader.peek() + reader.flush()
    assert not [each for each in said if (each < " " and each not in "\n\t") or "\x7f" <= each <= "\x9f"]


def spaced(shown: str) -> str:
    return shown.expandtabs(8).rstrip()


@given(st.lists(st.sampled_from([word for word in WORDS if len(word) < 13 and "\u0301" not in word] + MOVES + ERASING)))
@settings(max_examples=scaled(60, 300), deadline=None)
def test_the_rows_still_on_the_screen_are_those_of_an_emulator(pieces: list[str]) -> None:
    # Where emulators differ: the column behind an inserted line, and erasing while the next character wraps.
    fed = [
        f"{piece}\r" if piece[-1:] in "LM" else f"\x1b[D\x1b[C{piece}" if piece[-1:] in "XP@" else piece
        for piece in pieces
    ]
    fed = [piece for piece in fed if piece not in ("\t", "\x1b[J", "\x1b[1J")]
    screen = Vt(COLS, ROWS, 1000)
    reader = Reader(ROWS, COLS)
    for piece in fed:
        screen.feed_str(piece)
        reader.feed(piece.encode())
    shown = [row.text() for row in reader.page.screen]
    shown += [""] * (ROWS - len(shown))
    assert [spaced(row) for row in shown] == [spaced(line.text) for line in screen.view()]


@given(st.lists(st.sampled_from([*WORDS, "\r\n", "\r\n", "\r\n", "\r", "\x1b[K", "\x1b[31m", "line\r\n" * 9])))
@settings(max_examples=scaled(60, 300), deadline=None)
def test_what_scrolled_away_is_what_an_emulator_keeps(pieces: list[str]) -> None:
    words = [piece for piece in pieces if "\u0301" not in piece and "漢" not in piece]
    screen = Vt(COLS, ROWS, 100_000)
    screen.feed_str("".join(words))
    lines = [spaced(line) for line in text_of("".join(words).encode(), size=(ROWS, COLS)).split("\n")]
    expected = [spaced(line) for line in screen.text()]
    while expected and not expected[-1]:
        expected.pop()
    lines = [line for line in lines if not line.startswith("[")]
    while lines and not lines[-1]:
        lines.pop()
    assert lines == expected


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"one\r\ntwo\r\n", "one\ntwo\n"),
        (b"one\r\n\r\nthree", "one\n\nthree"),
        (b"10%\r 20%\r100%\r\n", "100%\n"),
        (b"abcdef\rXY\r\n", "XYcdef\n"),
        (b"abc\b\bX\r\n", "aXc\n"),
        (b"working...\r\x1b[Kdone\r\n", "done\n"),
        (b"working...\r          \rdone\r\n", "done\n"),
        (b"gone\r\x1b[K\r\n", "\n"),
        (b"abcdef\b\b\b\x1b[K!\r\n", "abc!\n"),
        (b"abcdef\x1b[3D\x1b[1KX\r\n", "   Xef\n"),
        (b"abcdef\x1b[2GX\r\n", "aXcdef\n"),
        (b"kept   \r\n", "kept   \n"),
        (b"a\tb\r\n", "a\tb\n"),
        (b"abcdefghijkl\r\tX\r\n", "abcdefghXjkl\n"),
        (b"ab\r\ncd\x1b[A!\r\n", "ab!\ncd"),
        (b"one\r\ntwo\r\n\x1b[2A\x1b[2K1\r\n\x1b[2K2\r\n", "1\n2\n"),
        (b"top\r\nlow\x1b[HTOP\x1b[3;1Hend", "TOP\nlow\nend"),
        (b"\x1b[31mred\x1b[0m \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\r\n", "red link\n"),
        (b"title\x1b]0;not\nshown\x07!\r\n", "title!\n"),
        (b"\x1b(0lqk\x1b(B\r\n", "\u250c\u2500\u2510\n"),
        (b"x\x1b[4b\r\n", "xxxxx\n"),
        (b"bad \xff\x80 bytes\r\n", "bad \ufffd\ufffd bytes\n"),
        (b"raw \x9b31m is text\r\n", "raw \ufffd31m is text\n"),
        (b"cut \xe2\x82", "cut \ufffd"),
        (b"staircase\nstep", "staircase\n         step"),
        (b"\x07\x00\x05bell\r\n", "bell\n"),
    ],
)  # fmt: skip
def test_overprinting_and_bytes(data: bytes, expected: str) -> None:
    assert text_of(data) == expected
    assert text_of(*(data[n : n + 1] for n in range(len(data)))) == expected


def test_a_line_that_wrapped_is_one_line_and_a_return_goes_to_the_last_of_its_rows() -> None:
    assert text_of(b"x" * 200 + b"\r\n" + b"y\r\n") == "x" * 200 + "\ny\n"
    # As a shell does while a long command is typed: a space makes the terminal wrap, and is written over.
    assert text_of(b"$ " + b"a" * 78 + b" \rbcd\r\n") == "$ " + "a" * 78 + "bcd\n"
    assert text_of(b"z" * 100 + b"\rZ\r\n") == "z" * 80 + "Z" + "z" * 19 + "\n"
    # The column that a wide character had no room in is no part of the line.
    assert text_of(("漢" * 60 + "\r\n").encode(), size=(24, 81)) == "漢" * 60 + "\n"


def test_runs_of_rewrites_collapse_to_their_last_state_with_a_count() -> None:
    bar = b"".join(b"\r%3d%%" % percent for percent in range(101))
    assert text_of(bar + b"\r\ndone\r\n") == "100%\n[rewritten 100 times]\ndone\n"
    layers = b"a: 0\r\nb: 0\r\nc: 0\r\n"
    for step in range(1, 8):
        layers += b"\x1b[3A\x1b[2Ka: %d\r\n\x1b[2Kb: %d\r\n\x1b[2Kc: %d\r\n" % (step, step, step)
    assert text_of(layers + b"done") == "a: 7\nb: 7\nc: 7\n[3 lines rewritten 7 times]\ndone"
    spinner = b"working |" + b"".join(b"\b" + each for each in [b"/", b"-", b"\\", b"|"] * 5)
    assert text_of(spinner + b"\r\n") == "working |\n[rewritten 20 times]\n"


def test_typing_with_corrections_is_no_run_of_rewrites() -> None:
    typed = b"$ mkae" + b"\b \b" * 3 + b"ake test" + b"\b\x1b[K" * 4 + b"all\r\n"
    assert text_of(typed) == "$ make all\n"


def test_what_a_cleared_screen_showed_is_kept_and_the_same_screen_drawn_again_is_reported_once() -> None:
    assert text_of(b"$ ls\r\na b\r\n$ clear\r\n\x1b[H\x1b[2J\x1b[3J$ ") == "$ ls\na b\n$ clear\n$ "
    frames = b"".join(b"\x1b[2J\x1b[HNAME  CPU\r\nweb   %2d%%\r\n" % n for n in range(40))
    assert text_of(b"start\r\n" + frames + b"bye\r\n") == (
        "start\nNAME  CPU\nweb   39%\nbye\n[screen redrawn 39 times]\n"
    )
    redrawn = b"".join(b"\x1b[Hload %d\x1b[K\r\ntasks %d\x1b[K\r\n\x1b[J" % (n, n) for n in range(9))
    assert text_of(b"\x1b[H\x1b[2J" + redrawn) == "load 8\ntasks 8\n[2 lines rewritten 8 times]\n"


def test_a_margin_at_the_bottom_keeps_a_bar_below_what_scrolls() -> None:
    """As apt draws it."""
    bar = b"\x1b7\x1b[24;0f\x1b[42m\x1b[30mProgress: [%3d%%]\x1b[49m\x1b[39m [####..] \x1b8"
    data = b"\r\n\x1b7\x1b[0;23r\x1b8\x1b[1A"
    for number in range(60):
        data += b"Unpacking package %d ...\r\n" % number + bar % number
    data += b"\r\n\x1b7\x1b[0;24r\x1b8\x1b[1A\x1b[J"
    assert text_of(data + b"all done\r\n") == "".join(f"Unpacking package {n} ...\n" for n in range(60)) + "all done\n"


def full(*parts: bytes, title: bytes = b"", leave: bytes = b"\x1b[?1049l") -> bytes:
    return b"\x1b[?1049h" + title + b"\x1b[H\x1b[2J" + b"".join(parts) + leave


@pytest.mark.covers("terminal:43")
@pytest.mark.parametrize("clearing", [b"", b"\x1b[H\x1b[2J", b"\x1b[H\x1b[J", b"\x1b[2J\x1b[24;1H\x1b[K"])
def test_a_full_screen_stretch_is_a_marker_and_its_last_frame_even_if_it_was_cleared(clearing: bytes) -> None:
    drawing = full(b"old\x1b[H\x1b[2Jfirst\x1b[3;5Hthird", clearing)
    assert text_of(b"$ top\r\n" + drawing + b"$ ") == "$ top\n[full screen]\nfirst\n\n    third\n$ "


def test_the_marker_names_program_and_duration() -> None:
    seconds = {7: 100.0, 100: 175.0}
    data = b"$ edit\r"
    drawing = full(b"text", title=b"\x1b]2;notes.txt - EDIT\x07")
    reader = Reader(24, 80, program="bash", when=lambda at: seconds[7] if at <= 7 else seconds[100])
    assert reader.feed(data + drawing + b"\nafter") + reader.flush() == (
        "$ edit\n[full screen: notes.txt - EDIT, 75 s]\ntext\nafter"
    )
    reader = Reader(24, 80, program="htop", when=lambda at: None)
    assert reader.feed(full(b"bars")) + reader.flush() == "[full screen: htop]\nbars\n"


@pytest.mark.parametrize(
    "seconds, said",
    [(0.04, "0.0 s"), (3.26, "3.3 s"), (9.97, "10 s"), (119.4, "119 s"), (200, "3 min 20 s"), (9000, "2 h 30 min")],
)
def test_durations_have_the_units_that_people_use(seconds: float, said: str) -> None:
    reader = Reader(24, 80, when=lambda at: 0.0 if at == 0 else seconds)
    assert reader.feed(full(b"x")) + reader.flush() == f"[full screen: {said}]\nx\n"


def test_a_stretch_that_has_not_ended_is_reported_as_it_is_now() -> None:
    reader = Reader(24, 80)
    assert reader.feed(b"before\r\n\x1b[?1049h\x1b[Hnow") == ""
    assert reader.full_screen
    assert reader.peek() == "before\n[full screen]\nnow\n"
    assert reader.feed(b"\x1b[?1049lafter") == ""
    assert reader.peek() == "before\n[full screen]\nnow\nafter"
    assert reader.flush() == "before\n[full screen]\nnow\nafter"
    assert (reader.peek(), reader.full_screen) == ("", False)


def test_a_program_that_comes_and_goes_without_printing_is_reported_once() -> None:
    reader = Reader(24, 80)
    for number in range(2000):
        reader.feed(full(b"frame %d" % number))
    assert reader.flush() == "[full screen]\nframe 1999\n"


def test_a_stretch_leaves_the_main_screen_and_what_scrolls_on_the_other_one_is_no_text() -> None:
    scrolled = b"".join(b"old %d\r\n" % number for number in range(40)) + b"\tlast"
    shown = "\n".join([*(f"old {number}" for number in range(17, 40)), "        last"])
    assert text_of(b"before\r\n$ " + full(scrolled) + b"after") == f"before\n$ after\n[full screen]\n{shown}\n"


@pytest.mark.parametrize("leave", [b"\x1b[?1049l", b"\x1bc"])
def test_a_stretch_that_is_resized_loses_no_line_of_the_main_screen(leave: bytes) -> None:
    lines = "".join(f"line {number} " + "x" * 30 + "\n" for number in range(20))
    reader = Reader(24, 80)
    said = reader.feed(lines.replace("\n", "\r\n").encode() + b"\x1b[?1049h\x1b[Hwide frame")
    reader.resize(10, 20)
    said += reader.feed(b"\x1b[H\x1b[2Jnarrow frame, cut" + leave + b"end") + reader.flush()
    assert said.replace("[full screen]\nnarrow frame, cut\n", "") == lines + "end"


@pytest.mark.covers("terminal:43")
def test_shrinking_and_widening_loses_no_line() -> None:
    lines = [b"%d " % number + b"word " * (number % 40) for number in range(60)]
    reader = Reader(24, 80)
    said = ""
    for number, line in enumerate(lines):
        said += reader.feed(line + b"\r\n")
        reader.resize(3 + number * 7 % 40, 20 + number * 13 % 100)
    assert (said + reader.flush()).splitlines() == [line.decode() for line in lines]


def test_the_cursor_stays_in_its_line_when_the_width_changes() -> None:
    reader = Reader(10, 20)
    reader.feed(b"a" * 30 + b"\r\n$ " + b"b" * 25)
    for cols in (7, 50, 11, 20):
        reader.resize(10, cols)
    assert reader.feed(b"c\r\nend") + reader.flush() == "a" * 30 + "\n$ " + "b" * 25 + "c\nend"


def test_lines_are_handed_out_once_they_have_left_the_screen() -> None:
    reader = Reader(3, 20)
    assert reader.feed(b"1\r\n2\r\n") == ""
    assert reader.peek() == "1\n2\n"
    assert reader.feed(b"3\r\n4") == "1\n"
    assert (reader.peek(), reader.unfinished()) == ("2\n3\n4", "4")
    assert reader.flush() == "2\n3\n4"


def test_a_follower_gets_lines_at_once_and_rewritten_ones_again() -> None:
    reader = Reader(5, 40)
    reader.feed(b"one\r\ntwo\r\nunfini")
    assert (reader.settled(), reader.settled(), reader.unfinished()) == ("one\ntwo\n", "", "unfini")
    reader.feed(b"shed\r\n\x1b[2ATWO\x1b[2B\r")
    assert reader.settled() == "unfinished\n"
    assert reader.feed(b"3\r\n4\r\n5\r\n6\r\n7\r\n") + reader.settled() == "TWO\n3\n4\n5\n6\n7\n"
    assert reader.flush() == ""


@pytest.mark.parametrize("size", [64, 1000, 1 << 16])
def test_bulk_lines_are_the_same_as_lines_one_by_one(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(size)
    pieces: Sequence[bytes] = [
        b"\x1b[32mplain\x1b[0m line of output\x1b[K\r\n", b"short\r\n", b"\r\n", b"w" * 30 + b"\r\n", b"tab\there\r\n",
        "é漢 mixed\r\n".encode(), "e\u0301 joined\r\n".encode(), b"bar 10%\rbar 20%\r", b"\x1b[2Aup\r\n", b"\r\r\n",
        b"cut \xff\r\n", b"\x1b]0;t\x07titled\r\n", b"bare\n",
    ]  # fmt: skip
    data = b"".join(rng.choice(pieces[: rng.choice([5, 8, 13])]) * rng.randrange(1, 30) for _ in range(120))
    monkeypatch.setattr(log_text, "_SLICE_BYTES", size)
    reader = Reader(ROWS, COLS)
    bulk = reader.feed_lines(data) + reader.flush_lines()
    reader = Reader(ROWS, COLS)
    slow = [line for n in range(len(data)) for line in reader.feed_lines(data[n : n + 1])] + reader.flush_lines()
    assert bulk == slow


def test_offsets_are_where_the_bytes_of_a_line_begin() -> None:
    data = b"one\r\n\x1b[1mtwo\x1b[m\r\n" + b"x" * 100 + b"\r\nend"
    reader = Reader(24, 80)
    assert reader.feed_lines(data) + reader.flush_lines() == [
        (0, "one\n"), (5, "two\n"), (17, "x" * 100 + "\n"), (119, "end"),
    ]  # fmt: skip
    reader = Reader(24, 80, offset=1000)
    assert reader.feed_lines(b"a\r\nb") + reader.flush_lines() == [(1000, "a\n"), (1003, "b")]


def test_a_line_without_end_passes_in_bounded_memory() -> None:
    reader = Reader()
    chunk = b"x" * (1 << 20)
    given_out = 0
    tracemalloc.start()
    try:
        for _ in range(8):
            given_out += len(reader.feed(chunk))
        assert given_out >= 6 << 20
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()
    assert given_out + len(reader.flush()) == 8 << 20
    assert text.LINE_MAX_CHARS < 8 << 20


def test_an_unterminated_string_keeps_memory_flat() -> None:
    reader = Reader()
    chunk = b"x" * (1 << 20)
    reader.feed(b"\x1b]0;")
    tracemalloc.start()
    try:
        for _ in range(100):
            assert reader.feed(chunk) == ""
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert reader.feed(b"\x07seen\r\n") + reader.flush() == "seen\n"


def test_a_storm_of_rewrites_of_a_long_line_costs_what_it_writes() -> None:
    data = b"a" * 100_000 + b"\rb" * 100_000 + b"\r\n"
    assert text_of(data).startswith("a" * 99_000)
