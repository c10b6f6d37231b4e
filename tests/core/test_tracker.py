"""The state that output puts a terminal into, group by group."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from holdfast.core.vt import widths
from holdfast.core.vt.tracker import Tracker


def tracker(*chunks: str | bytes, size: tuple[int, int] = (10, 40)) -> Tracker:
    one = Tracker(*size)
    for chunk in chunks:
        one.feed(chunk if isinstance(chunk, bytes) else chunk.encode())
    return one


def place(*chunks: str | bytes, size: tuple[int, int] = (10, 40)) -> tuple[int, int]:
    one = tracker(*chunks, size=size)
    return one.row, one.col


def state(*chunks: str | bytes) -> dict[str, Any]:
    return tracker(*chunks).snapshot()


# Where the cursor is. The second emulator in test_tracker_peers.py is asked the same, and more, at random.

PLACES: list[tuple[str, tuple[int, int]]] = [
    ("abc", (0, 3)),
    ("x" * 40, (0, 39)),
    ("x" * 41, (1, 1)),
    ("x" * 400, (9, 39)),
    ("x" * 401, (9, 1)),
    ("漢字", (0, 4)),
    ("x" * 39 + "漢", (1, 2)),
    ("e\u0301\u200b\u00adx", (0, 3)),
    ("a\u1100\u1161b", (0, 4)),
    ("a\r\nb\n", (2, 1)),
    ("a\vb\f", (2, 2)),
    ("\t\t", (0, 16)),
    ("abc\b\b", (0, 1)),
    ("\x1b[5;6H", (4, 5)),
    ("\x1b[5;6f\x1b[2A\x1b[3C", (2, 8)),
    ("\x1b[5;6H\x1b[2B\x1b[3D", (6, 2)),
    ("\x1b[5;6H\x1b[E", (5, 0)),
    ("\x1b[5;6H\x1b[2F", (2, 0)),
    ("\x1b[5;6H\x1b[9G", (4, 8)),
    ("\x1b[5;6H\x1b[9d", (8, 5)),
    ("\x1b[5;6H\x1b[2a\x1b[2e", (6, 7)),
    ("\x1b[999;999H", (9, 39)),
    ("ab\x1bE\x1bD", (2, 0)),
    ("\x1b[3;3H\x1bM", (1, 2)),
    ("ab\x1b[3b", (0, 5)),
    ("漢\x1b[2b", (0, 6)),
    ("x\x1b[99999b", (9, 39)),
    ("\x1b[4;7r\x1b[7;1H\n\n", (6, 0)),
    ("\x1b[4;7r\x1b[4;1H\x1b[9A", (3, 0)),
    ("\x1b[4;7r\x1b[?6h\x1b[2;3H", (4, 2)),
    ("\x1b[4;7r\x1b[?6h\x1b[99;1H", (6, 0)),
    ("\x1b[7;4rabc", (0, 3)),
    ("\x1b[?69h\x1b[5;10s\x1b[1;5Habcdefgh", (1, 6)),
    ("\x1b[?69h\x1b[5;10s\x1b[1;8H\r", (0, 4)),
    ("\x1b[?7l" + "x" * 99, (0, 39)),
    ("\x1b[20ha\n", (1, 0)),
    ("\x1b[?45h\r\n\b", (0, 39)),
    ("\x1b[3g\t", (0, 39)),
    ("abc\x1bH\r\t", (0, 3)),
    ("\t\x1b[g\r\t", (0, 16)),
    ("\x1b[20G\x1b[2Z", (0, 8)),
    ("\x1b[3;3H\x1b7\x1b[H\x1b8", (2, 2)),
    ("\x1b[3;3H\x1b[s\x1b[H\x1b[u", (2, 2)),
    ("\x1b[3;3H\x1b8", (0, 0)),
    ("\x1b[3;3H\x1b#8", (0, 0)),
    ("\x1b[3;3H\x1bc", (0, 0)),
    ("\x1b[3;9H\x1b[L", (2, 0)),
]


@pytest.mark.parametrize("output, where", PLACES)
def test_the_cursor_is_where_xterm_has_it(output: str, where: tuple[int, int]) -> None:
    assert place(output) == where


@pytest.mark.parametrize("between", ["\x1b[m", "\x0e", "\x1b[S", "\x1b7\x1b[H\x1b8", "\u0301", "\t"])
def test_a_pending_wrap_survives_what_does_not_move(between: str) -> None:
    one = tracker("x" * 40 + between)
    assert (one.row, one.col, one.pending_wrap) == (0, 39, True)
    one.feed(b"y")
    assert (one.row, one.col, one.pending_wrap) == (1, 1, False)


@pytest.mark.parametrize("between", ["\x1b[K", "\x1b[J", "\x1b[X", "\x1b[P", "\x1b[@", "\x1b[C", "\x1b[40G", "\x1b[1A"])
def test_a_pending_wrap_is_taken_back_by_what_moves_or_erases(between: str) -> None:
    assert place("x" * 40 + between + "y") == (0, 39)


@pytest.mark.covers("terminal:16")
@pytest.mark.parametrize("stray", [b"\xff", b"\x80", b"\x9b", b"\xe2\x82", b"\xc3"])
def test_bytes_that_are_no_characters_take_a_column(stray: bytes) -> None:
    assert place(stray + b"x") == (0, 2)


def test_a_control_inside_a_sequence_is_carried_out() -> None:
    assert place("ab\x1b[3\n;3H") == (2, 2)
    assert place("ab\x1b[3\n\x18") == (1, 2)


@pytest.mark.covers("terminal:14")
def test_what_follows_an_endless_sequence_is_seen() -> None:
    one = tracker("ab\x1b]0;")
    for _ in range(200):
        one.feed(b"x" * 65536)
    assert (one.ground, one.col, one.title) == (2, 2, "")
    one.feed(b"\x07c\x1b]0;t\x07")
    assert (one.ground, one.col, one.title) == (one.offset, 3, "t")


def test_a_flood_takes_the_short_way() -> None:
    """Without it this would take half a minute."""
    one = tracker(size=(30, 120))
    for _ in range(2000):
        one.feed(b"some \x1b[32mgreen\x1b[0m text\r\n" * 2000)
    assert (one.row, one.col, one.lines) == (29, 0, 4_000_000)


# Widths.


def test_runs_of_one_width_are_what_the_tables_say() -> None:
    for known, columns in ((widths._NARROW, 1), (widths._WIDE, 2)):
        inside = re.compile(f"[{known}]")
        wrong = [
            hex(code)
            for code in range(0x20, 0x110000)
            if not 0xD800 <= code < 0xE000 and inside.match(chr(code)) and widths.column_count(chr(code)) != columns
        ]
        assert wrong == []


@pytest.mark.parametrize(
    "text, columns",
    [
        ("é", 1),
        ("漢", 2),
        ("\uff71", 1),
        ("\uff21", 2),
        ("\u03b1", 1),
        ("\u0301", 0),
        ("\u200d", 0),
        ("👩", 2),
        ("\ue0b0", 1),
        ("\U0001faff", 2),
    ],
)
def test_widths_are_those_of_the_tables(text: str, columns: int) -> None:
    assert place(text) == (0, columns)


# The pen.


@pytest.mark.parametrize(
    "sgr, pen",
    [
        ("1;3;4;31", {"bold": "1", "italic": "3", "underline": "4", "fg": "31"}),
        ("1;2;22", {}),
        ("4:3;58;2;1;2;3", {"underline": "4:3", "underline_color": "58;2;1;2;3"}),
        ("4:3;4:0", {}),
        ("21", {"underline": "21"}),
        ("38;5;208;48;2;1;2;3", {"fg": "38;5;208", "bg": "48;2;1;2;3"}),
        ("38:5:208", {"fg": "38;5;208"}),
        ("38:2::1:2:3", {"fg": "38;2;1;2;3"}),
        ("38:2:1:2:3", {"fg": "38;2;1;2;3"}),
        ("38;5;208;1", {"fg": "38;5;208", "bold": "1"}),
        ("38;5;999;1", {"bold": "1"}),
        ("38;2;1;2", {}),
        ("31;0;1", {"bold": "1"}),
        ("31;1;", {}),
        ("97;107", {"fg": "97", "bg": "107"}),
        ("5;7;8;9;53;25;27;28;29;55", {}),
        ("777", {}),
    ],
)
def test_sgr_sets_the_pen(sgr: str, pen: dict[str, str]) -> None:
    assert state(f"\x1b[{sgr}m")["pen"] == pen


def test_the_pen_is_saved_with_the_cursor() -> None:
    assert state("\x1b[1;31m\x1b7\x1b[0;4m\x1b8")["pen"] == {"bold": "1", "fg": "31"}


# Screens.


def test_each_screen_has_a_saved_cursor_of_its_own() -> None:
    one = tracker("\x1b[2;2H\x1b7\x1b[?1047h\x1b[3;3H\x1b7\x1b[?1047l\x1b8")
    assert (one.row, one.col) == (1, 1)
    one.feed(b"\x1b[?1047h\x1b8")
    assert (one.row, one.col) == (2, 2)


def test_mode_1049_comes_back_to_where_it_left() -> None:
    one = tracker("\x1b[4;4H\x1b[?1049h")
    assert (one.alt_screen, one.row, one.col) == (True, 3, 3)
    one.feed(b"\x1b[9;9H\x1b[?1049l")
    assert (one.alt_screen, one.row, one.col) == (False, 3, 3)


def test_linefeeds_of_the_alternate_screen_are_no_history() -> None:
    assert tracker("a\nb\n\x1b[?1049h\n\n\n\x1b[?1049lc\n").lines == 3


# Labels.


def test_titles_are_kept_pushed_and_popped() -> None:
    one = tracker("\x1b]0;both\x07\x1b]1;icon\x1b\\\x1b]2;Ünïcode\x9c")
    assert (one.title, one.labels.icon) == ("Ünïcode", "icon")
    one.feed(b"\x1b[22;0t\x1b]0;other\x07\x1b[22;2t\x1b]2;third\x07\x1b[23;2t")
    assert (one.title, one.labels.icon) == ("other", "other")
    one.feed(b"\x1b[23t\x1b[23t")
    assert (one.title, one.labels.icon) == ("Ünïcode", "icon")


def test_labels_are_bounded_and_hold_no_control() -> None:
    assert tracker("\x1b]2;a\nb\tc\x07").title == "a b c"
    assert tracker("\x1b]2;" + "é" * 2000 + "\x07").title == "é" * 512
    assert tracker(b"\x1b]2;a\xffb\x07").title == "ab"
    one = tracker("\x1b[22;0t" * 100)
    assert len(one.snapshot()["labels"]["title_stack"]) == 16


def test_directory_link_pointer_and_progress_are_kept() -> None:
    one = tracker("\x1b]7;file://host/tmp\x07\x1b]8;id=1;http://x/\x07\x1b]22;hand\x07\x1b]9;4;1;50\x07")
    said = one.snapshot()["labels"]
    assert (said["cwd"], said["link"], said["pointer"]) == ("file://host/tmp", ["id=1", "http://x/"], "hand")
    assert one.labels.progress == [1, 50]
    one.feed(b"\x1b]8;;\x07\x1b]9;4;0\x07")
    said = one.snapshot()["labels"]
    assert (said["link"], said["progress"]) == (None, None)


def test_prompt_zones_and_exit_codes_are_kept() -> None:
    one = tracker("\x1b]133;A\x07$ ")
    assert one.prompt_zone == "prompt"
    one.feed(b"\x1b]133;B\x07ls\r\n\x1b]133;C\x07")
    assert one.prompt_zone == "output"
    one.feed(b"\x1b]133;D;130\x07")
    said = one.snapshot()["labels"]
    assert (said["prompt_zone"], said["last_exit_code"]) == (None, 130)
    for nonsense in (b"nonsense", b"--5", b"", b"1" * 99, b"\xff"):
        one.feed(b"\x1b]133;D;%b\x07" % nonsense)
        assert one.labels.last_exit_code is None


@pytest.mark.parametrize("output, bells", [("\x07\x07", 2), ("\x1b]9;hello\x07", 1), ("\x1b]777;notify;a;b\x1b\\", 1)])
def test_bells_and_notices_are_counted(output: str, bells: int) -> None:
    assert tracker(output).bells == bells


@pytest.mark.parametrize("output", ["\x1b]9;4;1;50\x07", "\x1b]0;t\x07", "\x1b]9;9;/tmp\x07", "\x1bP$qm\x07\x1b\\"])
def test_what_is_no_notice_rings_no_bell(output: str) -> None:
    assert tracker(output).bells == 0


# What a client acts on.


@pytest.mark.parametrize(
    "output",
    [
        *(
            "\x1b[?1h",
            "\x1b=",
            "\x1b[?67h",
            "\x1b[>4;2m",
            "\x1b[>1u",
            "\x1b[?2004h",
            "\x1b[?1004h",
            "\x1b[?1000h",
            "\x1b[?1006h",
        ),
        *(
            "\x1b[?1049h",
            "\x1b[?5h",
            "\x1b[2 q",
            "\x1b]0;t\x07",
            "\x1b]7;file://h/\x07",
            "\x1b]4;1;#fff\x07",
            "\x1b]12;#fff\x07",
        ),
        *("\x1b]9;4;1;5\x07", "\x1b]133;A\x07", "\x1bc", "\x1b[!p"),
    ],
)
def test_a_change_that_a_client_acts_on_is_news_once(output: str) -> None:
    one = tracker()
    assert not one.take_news()
    one.feed(output.encode())
    assert one.take_news()
    assert not one.take_news()
    if output not in ("\x1bc", "\x1b[!p", "\x1b[>1u"):
        one.feed(output.encode())
        assert not one.take_news()


@pytest.mark.parametrize(
    "output", ["text\r\n", "\x1b[31m", "\x1b[5;5H", "\x1b[?25l", "\x1b[?2026h", "\x1b[2J", "\x1b[?1l", "\x07"]
)
def test_position_pen_and_flicker_are_no_news(output: str) -> None:
    one = tracker(output)
    one.snapshot()
    assert not one.take_news()


# The snapshot.


def test_a_snapshot_is_json_and_says_its_offset() -> None:
    one = tracker("héllo\x1b[1m\x1b7\x1b[?1049h\x1b]4;1;#fff\x07\x1b[?1234h\x1b[3g\x1b[3")
    snapshot = one.snapshot()
    assert json.loads(json.dumps(snapshot)) == snapshot
    assert snapshot["offset"] == one.ground == one.offset - 3
    assert snapshot["modes"]["unknown"] == {"?1234": True}


def test_a_snapshot_does_not_change_afterwards() -> None:
    one = tracker("\x1b[1m\x1b7\x1b[>1u\x1b[22t\x1b[3g")
    snapshot = one.snapshot()
    before = json.dumps(snapshot)
    one.feed(b"\x1b[31m\x1b[H\x1b7\x1b[>2u\x1b]0;x\x07\x1b[22t\x1b[9G\x1bH\x1b]4;1;#fff\x07\x1b[?1h")
    assert json.dumps(snapshot) == before


def test_hostile_numbers_leave_it_bounded() -> None:
    one = tracker("".join(f"\x1b[?{number}h\x1b[{number}h\x1b[?{number}s" for number in range(3000, 9000)))
    assert len(json.dumps(one.snapshot())) < 10_000


def test_a_full_reset_leaves_nothing_but_labels() -> None:
    one = tracker("\x1b[1;31m\x1b[2;5r\x1b[?1049;2004;1000;6h\x1b[4;20h\x1b[3 q\x1b]11;#fff\x07")
    one.feed(b"\x1b[>1u\x1b(0\x0e\x1b[3g\x1b[?9999h")
    one.feed(b"\x1b]0;kept\x07\x1bc")
    fresh = state()
    after = one.snapshot()
    after["labels"]["title"] = after["labels"]["icon"] = ""
    after["offset"] = after["history_start"] = 0
    assert after == fresh


# Size.


def test_a_smaller_size_takes_the_cursor_along() -> None:
    one = tracker("\x1b[9;39H\x1b[2;8r\x1b[9;39H")
    one.resize(5, 20)
    assert (one.row, one.col) == (4, 19)
    assert one.snapshot()["margins"] == [0, 4, 0, 19]


def test_a_larger_page_takes_rows_back_from_the_history() -> None:
    one = tracker(b"line\r\n" * 100)
    one.resize(24, 40)
    assert one.row == 23
    one = tracker(b"line\r\n" * 12)
    one.resize(24, 40)
    assert one.row == 12
    one = tracker(b"line\r\n" * 100 + b"\x1b[3J")
    one.resize(24, 40)
    assert one.row == 9
