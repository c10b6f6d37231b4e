"""The grid: the same however its bytes were cut, what other terminals show, and nothing lost at other sizes."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest

from holdfast.core.vt.widths import column_count
from holdfast.errors import BadSize
from holdfast.terminal.cells import Row, Style
from holdfast.terminal.grid import Grid, GridFailed
from support.recordings import state_of, vim
from support.reference_screen import Reference, differences

TOKENS = [
    *(b"abc", b" ", b"  x ", b"hello world", b"A" * 25, b"qxlk", "é日本".encode(), "日日日日日日日".encode()),
    *(
        "e\u0301".encode(),
        "\u0301".encode(),
        "⚠\ufe0f".encode(),
        "👨\u200d👩".encode(),
        "\U00100005\U00032401".encode(),
    ),
    *(b"\r\n", b"\n", b"\r", b"\b", b"\t", b"\x7f", b"\x0e", b"\x0f", b"\x18", b"\xff", b"\xc2", b"\x80"),
    *(
        b"\x1b(0",
        b"\x1b(B",
        b"\x1b)0",
        b"\x1b*0",
        b"\x1bn",
        b"\x1bN",
        b"\x1bO",
        b"\x1b7",
        b"\x1b8",
        b"\x1b[s",
        b"\x1b[u",
    ),
    *(b"\x1b[m", b"\x1b[7m", b"\x1b[27m", b"\x1b[4m", b"\x1b[4:3m", b"\x1b[24m", b"\x1b[31m", b"\x1b[38;5;4m"),
    *(b"\x1b[48;2;1;2;3m", b"\x1b[58;2;9;8;7m", b"\x1b[58:5:3m", b"\x1b[59m", b"\x1b[8m", b"\x1b[28m", b"\x1b[53m"),
    *(b"\x1b[9m", b"\x1b[1;3;21m", b"\x1b[0;7m", b"\x1b[7?m", b"\x1b[>4;2m", "\x9b1m".encode(), b"\x1b[1\n;7m"),
    *(b"\x1b]8;;http://x/\x1b\\", b"\x1b]8;id=1;http://y\x07", b"\x1b]8;;\x07", b"\x1b]0;a \xc3\xa9\x07"),
    *(b"\x1bPq~~\x1b\\", b"\x1b_Gx\x1b\\", b"\x1b]8;;http://z\x1b[7m", b"\x1b[7\x1b[m", b"\x1b\x1b[7m", b"\x1b[3\x18"),
    *(
        b"\x1b[K",
        b"\x1b[J",
        b"\x1b[2J",
        b"\x1b[1K",
        b"\x1b[3X",
        b"\x1b[2P",
        b"\x1b[2@",
        b"\x1b[L",
        b"\x1b[M",
        b"\x1b[?J",
    ),
    *(b"\x1b[S", b"\x1b[T", b"\x1b[3;2H", b"\x1b[H", b"\x1b[5;18H", b"\x1b[A", b"\x1b[4C", b"\x1b[2D", b"\x1b[5b"),
    *(
        b"\x1b[2;4r",
        b"\x1b[r",
        b"\x1b[1;99r",
        b"\x1b[5;2r",
        b"\x1b[1;5s",
        b"\x1b[?7l",
        b"\x1b[?7h",
        b"\x1b[4h",
        b"\x1b[4l",
    ),
    *(b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?47h", b"\x1b[?1047l", b"\x1b[?1048h", b"\x1b[?1048l", b"\x1b[20h"),
    *(
        b"\x1b[?25l",
        b"\x1b[?2026h",
        b"\x1b[!p",
        b"\x1bc",
        b"\x1b#8",
        b"\x1bM",
        b"\x1bD",
        b"\x1bE",
        b"\x1bH",
        b"\x1b[3g",
    ),
]


def stream(seed: int, tokens: int) -> bytes:
    chosen = random.Random(seed)
    return b"".join(chosen.choice(TOKENS) for _ in range(tokens))


def fed(*pieces: bytes, size: tuple[int, int] = (6, 20)) -> Grid:
    grid = Grid(*size, history=20)
    for piece in pieces:
        grid.feed(piece)
    return grid


def lines(grid: Grid) -> list[str]:
    """History and page of the main screen as lines, wrapped rows joined."""
    joined: list[str] = []
    goes_on = False
    for row in [*grid.history(1000), *grid.main_rows()]:
        if goes_on:
            joined[-1] += row.text
        else:
            joined.append(row.text)
        goes_on = row.wrapped
    texts = [line.rstrip() for line in joined]
    while texts and not texts[-1]:
        texts.pop()
    return texts


def style_of(data: bytes) -> Style:
    """Of the first cell of the first row."""
    return fed(data).rows()[0].cells[0].style


@pytest.mark.covers("terminal:1")
@pytest.mark.parametrize("seed", range(8))
def test_fuzzed_stream_split_in_two_anywhere_then_the_same_grid(seed: int) -> None:
    data = stream(seed, 40)
    whole = state_of(fed(data))

    for cut in range(1, len(data)):
        assert state_of(fed(data[:cut], data[cut:])) == whole, cut


@pytest.mark.covers("terminal:1")
@pytest.mark.parametrize("seed", range(100, 104))
def test_fuzzed_streams_byte_by_byte_then_the_same_grids(seed: int) -> None:
    for offset in range(40):
        data = stream(seed * 1000 + offset, 80)

        assert state_of(fed(*(data[i : i + 1] for i in range(len(data))))) == state_of(fed(data)), data


@pytest.mark.covers("terminal:1")
@pytest.mark.slow
def test_recorded_vim_byte_by_byte_then_the_same_grid_as_in_one_chunk() -> None:
    recording = vim()
    whole, single = recording.grid(), Grid(*recording.size, history=1000)

    begin = 0
    for offset, rows, cols in recording.resizes:
        for i in range(begin, offset):
            single.feed(recording.data[i : i + 1])
        begin = offset
        single.resize(rows, cols)
    for i in range(begin, len(recording.data)):
        single.feed(recording.data[i : i + 1])

    assert state_of(single) == state_of(whole)


@pytest.mark.slow
def test_recorded_vim_at_many_offsets_then_every_cell_as_another_emulator_has_it() -> None:
    recording = vim()
    sizes = {offset: (rows, cols) for offset, rows, cols in recording.resizes}
    # Right behind a resize each terminal has its own idea of the alternate screen, until the program has redrawn it.
    redrawn = [(begin + 4096, end) for begin, end in pairwise([*sizes, len(recording.data)])]
    looks = {offset for begin, end in redrawn for offset in range(begin, end, 5003)}
    assert len(looks) > 10

    grid = Grid(*recording.size)
    with Reference(*recording.size) as other:
        for begin, end in pairwise(sorted({*sizes, *looks})):
            if begin in sizes:
                grid.resize(*sizes[begin])
                other.resize(*sizes[begin])
            grid.feed(recording.data[begin:end])
            other.feed(recording.data[begin:end])
            if end in looks:
                seen = other.seen()
                assert differences(grid.rows(), seen) == [], end
                assert (*seen.cursor, seen.visible) == grid.cursor
                assert (seen.pending_wrap, seen.alt) == (grid.pending_wrap, grid.alt)


@pytest.mark.parametrize("data, text, col", [
    ("e\u0301x", "e\u0301x", 2),
    ("⚠\ufe0f ok", "⚠\ufe0f ok", 4),
    ("日本x", "日本x", 5),
    ("👨\u200d👩x", "👨\u200d👩x", 5),
    ("a\u0301\u0302\x1b[31m\u0303b", "a\u0301\u0302\u0303b", 2),
    ("\u0301x", "x", 1),
    ("\x1b(0lqk\x1b(B", "┌─┐", 3),
    ("\x1b*0\x1bNqx", "─x", 2),
    ("a\x7fb", "ab", 2),
    ("\U00100007\U00032405!", "\U00100007\U00032405!", 4),
])  # fmt: skip
def test_characters_of_any_width_then_text_and_cursor_are_right(data: str, text: str, col: int) -> None:
    grid = fed(data.encode())

    assert grid.rows()[0].text.rstrip() == text
    assert grid.cursor[:2] == (0, col)


def test_combining_character_at_the_right_edge_then_it_joins_and_the_next_one_wraps() -> None:
    for data in ("x" * 19 + "e\u0301", "x" * 18 + "日\u0301"):
        grid = fed(data.encode())
        assert (grid.cursor[:2], grid.pending_wrap) == ((0, 19), True)
        assert grid.rows()[0].text == data

        grid.feed(b"y")
        assert grid.rows()[1].text.rstrip() == "y"
        assert grid.rows()[0].wrapped


@pytest.mark.slow
def test_every_character_then_as_many_columns_as_the_tracker_counts() -> None:
    grid = fed(size=(2, 20))
    wrong = []
    for code in [*range(0x20, 0x7F), *range(0xA0, 0xD800), *range(0xE000, 0x20100), *range(0xE0000, 0xE0200)]:
        grid.feed(b"\x1b[H." + chr(code).encode())
        if grid.cursor[1] != 1 + column_count(chr(code)):
            wrong.append(hex(code))

    assert wrong == []


@pytest.mark.parametrize("data, style", [
    (b"\x1b[31;44mx", Style(fg=1, bg=4)),
    (b"\x1b[91;104mx", Style(fg=9, bg=12)),
    (b"\x1b[38;5;208;48;2;1;2;3mx", Style(fg=208, bg="#010203")),
    (b"\x1b[38:2::10:20:30mx", Style(fg="#0a141e")),
    (b"\x1b[1;3;5;7;9mx", Style(bold=True, italic=True, blink=True, inverse=True, strike=True)),
    (b"\x1b[2;53;8mx", Style(faint=True, overline=True, conceal=True)),
    (b"\x1b[4mx", Style(underline=1)),
    (b"\x1b[21mx", Style(underline=2)),
    (b"\x1b[4:3mx", Style(underline=3)),
    (b"\x1b[4:4;24mx", Style()),
    (b"\x1b[4:5;58;2;255;0;128mx", Style(underline=5, underline_color="#ff0080")),
    (b"\x1b[4;58:5:9mx", Style(underline=1, underline_color=9)),
    (b"\x1b[58;5;3mx", Style(underline_color=3)),
    (b"\x1b]8;id=7;https://example.org/\x07x", Style(link="id=7;https://example.org/")),
    (b"\x1b]8;;http://x\x07\x1b[1mb\x1b[m\x1b[Hx", Style(link=";http://x")),
])  # fmt: skip
def test_pen_then_the_style_has_all_of_it(data: bytes, style: Style) -> None:
    assert style_of(data) == style


def test_erased_under_a_pen_then_only_its_background_is_filled_in() -> None:
    grid = fed(b"\x1b[7;4;42m\x1b[2J\x1b[H a \x1b[K")

    cells = grid.rows()[0].cells
    assert [(cell.text, cell.style.inverse, cell.style.underline) for cell in cells[:4]] == [
        (" ", True, 1),
        ("a", True, 1),
        (" ", True, 1),
        (" ", False, 0),
    ]
    assert {cell.style.bg for row in grid.rows() for cell in row.cells} == {2}


@pytest.mark.covers("terminal:43")
@pytest.mark.parametrize("seed", range(12))
def test_shrunk_and_widened_then_no_line_is_lost(seed: int) -> None:
    chosen = random.Random(seed)
    written = ["x" + "".join(chosen.choices("ab é.", k=chosen.randrange(90))).rstrip() for _ in range(60)]
    grid = Grid(12, 40, history=2000)
    grid.feed("\r\n".join(written).encode())
    assert lines(grid) == written

    for _ in range(8):
        grid.resize(chosen.randrange(2, 30), chosen.randrange(4, 120))
        assert lines(grid) == written


@pytest.mark.covers("terminal:43")
@pytest.mark.parametrize("seed", range(12))
def test_wide_characters_shrunk_and_widened_then_no_character_is_lost(seed: int) -> None:
    chosen = random.Random(seed)
    written = ["".join(chosen.choices("a日é語", k=chosen.randrange(1, 60))) for _ in range(40)]
    grid = Grid(12, 40, history=2000)
    grid.feed("\r\n".join(written).encode())

    for _ in range(8):
        grid.resize(chosen.randrange(2, 30), chosen.randrange(4, 120))
        # Where a wide one did not fit, the column that was left free counts as a space of the line.
        assert [line.replace(" ", "") for line in lines(grid)] == written


def test_widened_then_tab_stops_are_where_they_were() -> None:
    grid = fed(b"x\t", size=(2, 16))
    grid.resize(2, 40)
    grid.feed(b"\r\t1\t2\t3\t4")

    assert grid.rows()[0].text.rstrip() == "x       1       2       3       4"


def test_cleared_tab_stops_then_a_wider_page_has_none() -> None:
    grid = fed(b"\x1b[3g", size=(2, 16))
    grid.resize(2, 40)
    grid.feed(b"a\tb")

    assert grid.rows()[0].text == "a" + " " * 38 + "b"


def test_alternate_screen_then_main_page_and_history_can_still_be_read() -> None:
    grid = fed(b"\r\n".join(b"\x1b[3%dmline %d" % (i % 8, i) for i in range(12)), b"\x1b[?1049h\x1b[Hvim")
    before = state_of(grid)

    assert grid.alt
    assert grid.rows()[0].text.rstrip() == "vim"
    assert [row.text.rstrip() for row in grid.main_rows()] == [f"line {i}" for i in range(6, 12)]
    assert [row.text.rstrip() for row in grid.history(3)] == ["line 3", "line 4", "line 5"]
    assert grid.main_rows()[0].cells[0].style == Style(fg=6)
    assert state_of(grid) == before
    grid.feed(b"\x1b[?1049l")
    assert not grid.alt
    assert [row.text.rstrip() for row in grid.rows()] == [f"line {i}" for i in range(6, 12)]


@pytest.mark.parametrize("size", [(0, 80), (24, 0), (501, 80), (24, 1001)])
def test_size_out_of_bounds_then_refused(size: tuple[int, int]) -> None:
    with pytest.raises(BadSize):
        Grid(*size)
    grid = fed()
    with pytest.raises(BadSize):
        grid.resize(*size)


def test_emulator_panics_then_grid_failed_and_no_other_exception(capfd: pytest.CaptureFixture[str]) -> None:
    grid = fed("日本".encode())

    with pytest.raises(GridFailed, match="panicked"):
        grid.resize(6, 1)
    # The library says so itself, on stderr.
    assert "panicked" in capfd.readouterr().err


@pytest.mark.covers("STR-08")
@pytest.mark.parametrize("hostile", [
    b"\x1b]0;" + b"x" * (10 << 20) + b"\x07",
    b"\x1bP" + b"x" * (10 << 20) + b"\x1b\\",
    b"\x1b[" + b"1;" * 10_000 + b"m",
    b"\x1b]8;;http://example.org/%d\x07x" % 0 * 50_000,
    b"\x1b[?1049h\x1b[?1049l" * 20_000,
    b"x\x1b[65535b" * 2_000,
    b"e" + "\u0301".encode() * 200_000,
], ids=["osc", "dcs", "parameters", "links", "alternate screens", "repetitions", "marks"])  # fmt: skip
def test_hostile_output_then_what_follows_is_shown(hostile: bytes) -> None:
    began = time.process_time()
    grid = fed(hostile, b"\x1b[m\x1b[H\x1b[2Jshown")

    assert grid.rows()[0].text.rstrip() == "shown"
    assert time.process_time() - began < 20


@pytest.mark.slow
def test_more_links_than_code_points_then_those_on_the_screen_are_still_known() -> None:
    grid = fed(b"".join(b"\x1b]8;;http://x/%d\x07%c" % (i, 97 + i % 26) for i in range(140_000)), b"\x1b]8;;\x07")
    grid.feed(b"." * (1 << 20))

    grid.feed(b"\x1b[H\x1b]8;;http://last\x07link")

    assert grid.rows()[0].cells[0].style.uri == "http://last"


def test_row_cut_through_a_wide_character_then_half_of_it_is_a_space() -> None:
    row: Row = fed("ab日cd".encode()).rows()[0]

    assert "".join(cell.text for cell in row.columns(1, 3)) == "b "
    assert "".join(cell.text for cell in row.columns(3, 6)) == " cd"
    assert "".join(cell.text for cell in row.columns(0, 4)) == "ab日"
