"""Where marks are made, and which ranges a plan makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.vt.tracker import CLEARS_APART_BYTES, EVERY_BYTES, LONG_SEQUENCE_BYTES, Tracker
from holdfast.runner.terminal.marks import plan

Mark = dict[str, Any]
MIB = 1 << 20


def tracker(*chunks: bytes) -> Tracker:
    one = Tracker(24, 80)
    for chunk in chunks:
        one.feed(chunk)
    return one


def marks(*chunks: bytes) -> list[tuple[str, int]]:
    return [(mark["why"], mark["offset"]) for mark in tracker(*chunks).take_marks()]


# Making them.


@pytest.mark.parametrize(
    "clear",
    [b"\x1b[2J", b"\x1bc", b"\x1b#8", b"\x1b[H\x1b[J", b"\x1b[?1049h", b"\x1b[?1047h", b"\x1b[?47h", b"\xc2\x9b2J"],
)
def test_a_cleared_screen_is_marked_at_its_first_byte(clear: bytes) -> None:
    at = 3 + clear.rfind(b"\x1b[J") if clear.endswith(b"\x1b[J") else 3
    assert marks(b"a\r\n" + clear) == [("start", 0), ("clear", at)]


@pytest.mark.parametrize(
    "other", [b"\x1b[J", b"\x1b[1J", b"\x1b[3J", b"\x1b[?2J", b"\x1b[2K", b"\x1b[?1049l", b"\x1b[!p"]
)
def test_what_clears_less_is_not_marked(other: bytes) -> None:
    assert marks(b"abc" + other) == [("start", 0)]


def test_the_state_of_a_mark_is_that_before_its_sequence() -> None:
    _, mark = tracker(b"abc\x1b[44m\x1b[2J\x1b[m").take_marks()
    assert mark["size"] == [24, 80]
    assert mark["state"]["offset"] == mark["offset"] == 8
    assert mark["state"]["pen"] == {"bg": "44"}
    _, mark = tracker(b"ab\x1b[?1;1049h").take_marks()
    assert (mark["alt"], mark["state"]["alt"], mark["state"]["modes"]["dec"]) == (True, False, [7, 25])


def test_an_alternate_screen_that_may_not_be_blank_is_no_clean_start() -> None:
    dirty = b"\x1b[?47hx\x1b[?47l" + b"y" * CLEARS_APART_BYTES
    assert [why for why, _ in marks(dirty, b"\x1b[?47h")] == ["start", "clear"]
    blank = b"\x1b[?47hx\x1b[?1047l" + b"y" * CLEARS_APART_BYTES
    assert [why for why, _ in marks(blank, b"\x1b[?47h")] == ["start", "clear", "clear"]


def test_clean_starts_are_distinguished_by_some_distance_and_the_newest_is_always_known() -> None:
    one = tracker(*[b"\x1b[2J" + b"x" * 1020] * 200)
    told = [mark["offset"] for mark in one.take_marks() if mark["why"] == "clear"]
    assert told == [0, 64 << 10, 128 << 10, 192 << 10]
    newest = one.last_clear
    assert newest is not None
    assert newest["offset"] == 199 << 10


def test_the_distance_is_kept_for_each_screen_by_itself() -> None:
    assert marks(b"\x1b[2J\x1b[?1049h\x1b[2J\x1b[?1049l\x1b[2J") == [("start", 0), ("clear", 0), ("clear", 4)]


def test_a_mark_is_made_every_mebibyte_at_a_ground_offset() -> None:
    line = b"x" * 78 + b"\r\n"
    data = line * (2 * EVERY_BYTES // len(line) + 1)
    made = [("start", 0), ("every", EVERY_BYTES), ("every", 2 * EVERY_BYTES)]
    assert marks(data) == made
    assert marks(*(data[i : i + 4095] for i in range(0, len(data), 4095))) == made
    cut = b"x" * (EVERY_BYTES - 2) + b"\x1b[31m"
    assert marks(cut) == [("start", 0), ("every", EVERY_BYTES - 2)]


def test_an_endless_sequence_makes_one_mark() -> None:
    assert marks(b"ab\x1b]", *[b"x" * EVERY_BYTES] * 5) == [("start", 0), ("every", 2)]


def test_the_end_is_marked_on_request() -> None:
    one = tracker(b"a\nb\n")
    mark = one.mark("end")
    assert (mark["why"], mark["offset"], mark["lines"]) == ("end", 4, 2)


# Planning.


def mark(why: str, offset: int, lines: int = 0, *, alt: bool = False) -> Mark:
    return {"why": why, "offset": offset, "lines": lines, "size": [24, 80], "alt": alt, "state": {"of": offset}}


START = mark("start", 0)


def ranges(known: list[Mark], **options: Any) -> tuple[list[tuple[int, int]], bool]:
    settings = {"at": 1000, "lines": 100, "history_rows": 50, "oldest": 0, **options}
    made = plan(known, **settings)
    for each in made["ranges"]:
        chosen = [one for one in known if one["offset"] == each["from"]]
        assert each["state"] is None or {"of": each["from"]} == each["state"]
        assert not chosen or each["size"] == [24, 80]
    return [(each["from"], each["to"]) for each in made["ranges"]], made["exact"]


def test_the_newest_clean_start_with_enough_history_is_taken() -> None:
    known = [START, mark("clear", 300, 20), mark("clear", 500, 50), mark("every", 700, 60), mark("clear", 900, 90)]
    assert ranges(known) == ([(500, 900), (900, 1000)], True)
    assert ranges(known, history_rows=0) == ([(900, 1000)], True)
    assert ranges(known, history_rows=75) == ([(300, 900), (900, 1000)], True)


def test_the_page_begins_where_it_was_last_cleared_with_any_history() -> None:
    known = [START, mark("clear", 300, 20), mark("clear", 500, 50), mark("clear", 600, 60, alt=True)]
    made = [plan(known, at=1000, lines=100, history_rows=rows, oldest=0) for rows in (0, 60, 1000)]
    assert [each["ranges"][-1]["from"] for each in made] == [500] * 3
    assert [[part.get("cleared", False) for part in each["ranges"]] for each in made] == [[False], *[[False, True]] * 2]


def test_the_order_of_marks_does_not_matter() -> None:
    known = [mark("clear", 900, 90), mark("clear", 500, 50), START]
    assert ranges(known) == ([(500, 900), (900, 1000)], True)


def test_the_beginning_has_all_the_history_there_is() -> None:
    assert ranges([START, mark("clear", 900, 90)], history_rows=1000) == ([(0, 900), (900, 1000)], True)


def test_a_clean_start_with_too_little_history_is_better_than_none() -> None:
    known = [START, mark("clear", 90 * MIB, 10), mark("every", 91 * MIB, 11), mark("clear", 92 * MIB, 12)]
    assert ranges(known, at=93 * MIB, lines=40) == ([(90 * MIB, 92 * MIB), (92 * MIB, 93 * MIB)], True)


def test_without_a_clean_start_near_it_is_not_exact() -> None:
    known = [START, *(mark("every", i * MIB, i * 1000) for i in range(1, 100))]
    assert ranges(known, at=99 * MIB + 5, lines=99_003) == ([(98 * MIB, 99 * MIB + 5)], False)
    assert ranges(known, at=99 * MIB + 5, lines=99_003, history_rows=1000) == ([(97 * MIB, 99 * MIB + 5)], False)


def test_where_lines_are_rare_as_much_as_may_be_is_replayed() -> None:
    known = [START, *(mark("every", i * MIB, 0) for i in range(1, 100))]
    assert ranges(known, at=99 * MIB, lines=0) == ([(91 * MIB, 99 * MIB)], False)


def test_what_retention_took_is_not_used() -> None:
    known = [START, mark("clear", 500, 10), mark("clear", 900, 90)]
    assert ranges(known, oldest=600) == ([(900, 1000)], True)
    assert ranges([START, mark("clear", 500, 10)], oldest=600) == ([(600, 1000)], False)


def test_without_marks_the_whole_log_or_its_end_is_replayed() -> None:
    assert ranges([]) == ([(0, 1000)], True)
    assert ranges([], at=20 * MIB) == ([(12 * MIB, 20 * MIB)], False)
    assert ranges([], at=20 * MIB, oldest=15 * MIB) == ([(15 * MIB, 20 * MIB)], False)


def test_marks_behind_the_place_asked_for_are_not_used() -> None:
    assert ranges([START, mark("clear", 2000, 0)]) == ([(0, 1000)], True)


def test_a_start_of_the_other_screen_says_nothing_about_this_one() -> None:
    known = [START, mark("clear", 500, 50), mark("clear", 800, 50, alt=True)]
    assert ranges(known) == ([(500, 1000)], True)


def test_a_keyframe_brings_its_history_along() -> None:
    assert ranges([START, {**mark("keyframe", 990, 99), "history": 60}]) == ([(990, 1000)], True)


def test_on_the_alternate_screen_each_screen_has_its_range() -> None:
    known = [START, mark("clear", 300, 20), mark("clear", 600, 100, alt=True), mark("clear", 900, 100, alt=True)]
    assert ranges(known, alt_entry=600) == ([(300, 600), (900, 1000)], True)


def test_straight_through_the_entry_there_is_one_range() -> None:
    known = [START, mark("clear", 300, 20), mark("clear", 600, 100, alt=True)]
    assert ranges(known, alt_entry=600) == ([(300, 1000)], True)
    assert ranges(known[:2], alt_entry=600) == ([(300, 1000)], True)


def test_a_clean_start_from_an_earlier_visit_is_not_used() -> None:
    known = [START, mark("clear", 300, 60, alt=True)]
    assert ranges(known, alt_entry=600) == ([(0, 1000)], True)


def test_a_long_stay_on_the_alternate_screen_leaves_the_main_one_what_room_there_is() -> None:
    known = [
        START,
        mark("clear", 2 * MIB, 20),
        mark("clear", 3 * MIB, 100, alt=True),
        mark("clear", 40 * MIB, 100, alt=True),
    ]
    options = {"at": 41 * MIB, "alt_entry": 3 * MIB, "history_rows": 10}
    assert ranges(known, **options) == ([(2 * MIB, 3 * MIB), (40 * MIB, 41 * MIB)], True)
    without = [START, known[1], *(mark("every", i * MIB, 100) for i in range(4, 41))]
    assert ranges(without, **options) == ([(3 * MIB, 3 * MIB), (33 * MIB, 41 * MIB)], False)


def test_the_plan_of_a_real_stream_finds_its_marks() -> None:
    one = tracker(b"shell\r\n" * 100, b"\x1b[?1049h", b"\x1b[H\x1b[2J" + b"x" * 100, b"\x1b[31")
    newest = one.last_clear
    assert newest is not None
    made = plan(
        [*one.take_marks(), newest],
        at=one.ground,
        lines=one.lines,
        history_rows=10,
        oldest=0,
        alt_entry=one.alt_entry,
    )
    assert made["exact"]
    assert [(each["from"], each["to"]) for each in made["ranges"]] == [(0, 700), (711, one.ground)]
    assert made["ranges"][1]["state"]["alt"]


@pytest.mark.parametrize("end", [b"\x07", b"\x1b\\", b"\xc2\x9c", b"\x18", b"\x1b[m"])
def test_a_long_sequence_has_a_mark_behind_it_however_it_is_cut(end: bytes) -> None:
    begin = b"ab\x1b]0;"
    data = begin + b"x" * LONG_SEQUENCE_BYTES + end + b"cd\x1b[2J"
    whole = tracker(data).take_marks()
    behind = len(data) - 6 - (0 if end != b"\x1b[m" else 3)
    assert [(mark["why"], mark["offset"], mark.get("from")) for mark in whole] == [
        ("start", 0, None),
        ("skip", behind, 2),
        ("clear", len(data) - 4, None),
    ]
    for size in (1000, 2047, 4096, 4097, 65536, len(data) - 5, len(data) - 7, len(data) - 8):
        assert tracker(*(data[at : at + size] for at in range(0, len(data), size))).take_marks() == whole, size
    assert tracker(begin + b"x" * 5000 + end).take_marks() == tracker(b"").take_marks()


def test_the_bytes_of_a_long_sequence_are_left_out_of_a_plan() -> None:
    skipped = {**mark("skip", 20 << 20, 5), "from": 100}
    found = plan([mark("start", 0), skipped], at=(20 << 20) + 50, lines=5, history_rows=0, oldest=0)
    assert found["exact"]
    assert [(part["from"], part["to"]) for part in found["ranges"]] == [(0, 100), (20 << 20, (20 << 20) + 50)]
    dropped = plan([mark("start", 0), skipped], at=(20 << 20) + 50, lines=5, history_rows=0, oldest=1 << 20)
    assert not dropped["exact"]
    assert [(part["from"], part["to"]) for part in dropped["ranges"]] == [(20 << 20, (20 << 20) + 50)]
