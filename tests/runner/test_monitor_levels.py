"""How a monitor's lines become notices: tokens, levels and counts, on a clock that the test moves."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import jsontext
from holdfast.core.vt.text import Line, Lines
from holdfast.runner.features.monitor import CHARACTERS_MAX, LINE_CHARACTERS, LINES_MAX, Levels, Tokens, entry
from support.scale import scaled

DEFAULTS: dict[str, Any] = {
    "batch_ms": 200,
    "bucket": 10,
    "refill_s": 2.0,
    "digest_after": 30.0,
    "digest_every": 60.0,
    "calm": 60.0,
    "on_flood": "digest",
}


class Tape:
    """Levels that are driven as a monitor drives them, and what they told when."""

    def __init__(self, **changed: Any) -> None:
        self.levels = Levels({**DEFAULTS, **changed})
        self.now = 0.0
        self.due: float | None = None
        self.told: list[tuple[float, dict[str, Any]]] = []
        self.taken = 0

    def line(self, text: str | None = None, stream: str = "stdout") -> None:
        offset = self.taken * 100
        self.levels.take(stream, Line(text or f"line {self.taken}", offset, offset + 100))
        self.taken += 1
        if self.due is None:
            self.levels.expect(self.now)
            self.due = self.levels.due(self.now)

    def pass_by(self, seconds: float) -> None:
        end = self.now + seconds
        if self.due is not None and self.due <= end:
            self.now = self.due
            self.due = None
            self.told.append((round(self.now, 6), self.levels.notice(self.now)))
        self.now = end

    def print_for(self, seconds: float, every_s: float, lines: int = 1) -> None:
        for _ in range(round(seconds / every_s)):
            for _ in range(lines):
                self.line()
            self.pass_by(every_s)

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.told]

    @property
    def notices(self) -> list[dict[str, Any]]:
        return [notice for _, notice in self.told]


def counted(notices: list[dict[str, Any]]) -> int:
    assert all(len(each["lines"]) + each["suppressed"] == each["count"] for each in notices)
    return sum(each["count"] for each in notices)


def test_what_comes_within_a_moment_is_one_notice() -> None:
    tape = Tape()
    for _ in range(3):
        tape.line()
        tape.pass_by(0.05)
    tape.pass_by(1.0)
    assert tape.times == [0.2]
    (notice,) = tape.notices
    assert [line["text"] for line in notice["lines"]] == ["line 0", "line 1", "line 2"]
    assert [line["offset"] for line in notice["lines"]] == [0, 100, 200]
    assert {part: notice[part] for part in ("count", "suppressed", "level", "closing", "cursor")} == {
        "count": 3,
        "suppressed": 0,
        "level": "live",
        "closing": False,
        "cursor": None,
    }
    assert tape.levels.due(tape.now) is None, "no timer without lines"


@pytest.mark.covers("signals:33", "found:33")
def test_ten_notices_come_at_once_then_one_for_each_token() -> None:
    tape = Tape()
    tape.print_for(20.0, 0.1)
    levels = [notice["level"] for notice in tape.notices]
    at_once = levels.index("held")
    assert at_once == 11, "ten from the bucket, and the one that came back in the two seconds that they took"
    assert tape.times[9] - tape.times[0] < 2.0 <= tape.times[10] - tape.times[0]
    assert levels == ["live"] * at_once + ["held"] * (len(levels) - at_once)
    held = tape.times[at_once:]
    assert [round(later - earlier, 6) for earlier, later in pairwise(held)] == [2.0] * (len(held) - 1)
    assert len(held) == 8
    assert counted(tape.notices) + tape.levels.waiting == 200


def test_while_held_the_newest_lines_are_kept_and_older_ones_counted() -> None:
    tape = Tape(bucket=1)
    tape.line()
    tape.pass_by(0.2)
    for _ in range(170):
        tape.line()
    assert tape.levels.due(tape.now) == pytest.approx(2.2)
    assert tape.levels.level == "held"
    tape.pass_by(5.0)
    notice = tape.notices[1]
    assert (notice["count"], notice["suppressed"], notice["level"]) == (170, 120, "held")
    assert [line["text"] for line in notice["lines"]] == [f"line {number}" for number in range(121, 171)]
    assert notice["cursor"] == "stdout:100", "where the first of the others stands"
    assert tape.levels.level == "live"


@pytest.mark.covers("signals:33", "found:33")
def test_a_flood_of_thirty_seconds_becomes_digests_and_a_minute_of_calm_live_again() -> None:
    tape = Tape()
    tape.print_for(200.0, 0.1, lines=100)
    levels = [(at, notice["level"]) for at, notice in tape.told]
    digests = [at for at, level in levels if level == "digest"]
    first = tape.times[0]
    assert 30.0 <= digests[0] - first <= 32.1
    assert [round(later - earlier, 6) for earlier, later in pairwise(digests)] == [60.0] * (len(digests) - 1)
    assert len(digests) == 3
    digest = next(notice for notice in tape.notices if notice["level"] == "digest")
    assert len(digest["lines"]) == 6
    assert counted(tape.notices) + tape.levels.waiting == 200_000
    # The last digest tells what is left; then it is calm.
    tape.pass_by(60.0)
    tape.pass_by(60.0)
    tape.line("all is well")
    tape.pass_by(0.2)
    assert tape.notices[-1]["level"] == "live"
    before = [notice["level_before"] for notice in tape.notices]
    assert before == ["live", *(notice["level"] for notice in tape.notices[:-1])]
    assert [line["text"] for line in tape.notices[-1]["lines"]] == ["all is well"]
    assert tape.told[-1][0] == pytest.approx(tape.now)
    assert counted(tape.notices) == tape.taken


def test_a_digest_shows_the_first_line_and_the_last_five_and_where_the_others_begin() -> None:
    tape = Tape(digest_after=0.0)
    for _ in range(200):
        tape.line()
    tape.pass_by(1.0)
    (notice,) = tape.notices
    assert notice["level"] == "digest"
    shown = [line["text"] for line in notice["lines"]]
    assert shown == ["line 0", *(f"line {number}" for number in range(195, 200))]
    assert (notice["count"], notice["suppressed"], notice["cursor"]) == (200, 194, "stdout:100")


def test_a_trickle_ends_the_digests_when_nothing_had_to_be_left_out_for_a_minute() -> None:
    tape = Tape(digest_after=0.0)
    for _ in range(200):
        tape.line()
    tape.pass_by(1.0)
    for _ in range(12):
        tape.line()
        tape.pass_by(5.0)
    tape.pass_by(10.0)
    assert [notice["level"] for notice in tape.notices] == ["digest", "live"]
    assert tape.times[1] == pytest.approx(60.2)
    assert (tape.notices[1]["count"], tape.notices[1]["suppressed"]) == (12, 0)


def test_one_notice_without_loss_ends_the_count_to_a_digest() -> None:
    tape = Tape(digest_after=10.0)
    tape.print_for(8.0, 0.1, lines=100)
    tape.pass_by(20.0)
    tape.line()
    tape.pass_by(5.0)
    tape.print_for(8.0, 0.1, lines=100)
    assert "digest" not in {notice["level"] for notice in tape.notices}


def test_where_a_flood_stops_the_command_it_is_said_once_it_has_lasted() -> None:
    tape = Tape(on_flood="stop")
    tape.print_for(29.0, 0.1, lines=100)
    assert not tape.levels.flooded
    tape.print_for(5.0, 0.1, lines=100)
    assert tape.levels.flooded
    assert "digest" not in {notice["level"] for notice in tape.notices}


def test_the_closing_notice_waits_for_no_token_and_comes_also_without_lines() -> None:
    empty = Levels(DEFAULTS).close()
    told = {"lines": [], "count": 0, "suppressed": 0, "level": "live", "level_before": "live"}
    assert empty == {**told, "closing": True, "cursor": None}
    tape = Tape(bucket=1)
    tape.line()
    tape.pass_by(0.2)
    tape.line("last words")
    closing = tape.levels.close()
    assert closing["closing"]
    assert [line["text"] for line in closing["lines"]] == ["last words"]
    assert (tape.levels.count, tape.levels.suppressed) == (2, 0)


def test_lines_that_were_jumped_over_are_counted_with_their_place() -> None:
    tape = Tape()
    tape.line()
    tape.levels.miss(0, {"stderr": 77})
    tape.line("newest", "stderr")
    tape.levels.miss(1000, {})
    tape.pass_by(0.2)
    (notice,) = tape.notices
    assert (notice["count"], notice["suppressed"], notice["cursor"]) == (1002, 1000, "stderr:77")


def test_a_notice_has_3000_characters_at_most_and_the_newest_lines_win() -> None:
    tape = Tape()
    for _ in range(40):
        tape.line(f"{tape.taken:03d} " + "x" * 396)
    tape.pass_by(0.2)
    (notice,) = tape.notices
    assert [line["text"][:3] for line in notice["lines"]] == [f"{number:03d}" for number in range(33, 40)]
    assert (notice["count"], notice["suppressed"], notice["cursor"]) == (40, 33, "stdout:0")


def test_what_takes_much_room_on_record_is_shown_less_of() -> None:
    tape = Tape()
    for _ in range(6):
        tape.line("\U0001f600" * 490)
    tape.pass_by(0.2)
    (notice,) = tape.notices
    assert len(jsontext.write(notice)) < 12 << 10
    assert len(notice["lines"]) + notice["suppressed"] == 6
    assert notice["suppressed"] > 0


def test_a_line_that_is_too_long_is_cut_and_names_its_length_and_place() -> None:
    shown = entry("stderr", Line("y" * 700, 4242, 4943))
    assert len(shown["text"]) == LINE_CHARACTERS
    assert shown["text"].endswith("yyy... [700 characters, cursor stderr:4242]")
    assert (shown["stream"], shown["offset"], shown["part"]) == ("stderr", 4242, 0)
    whole = entry("stderr", Line("y" * LINE_CHARACTERS, 0, LINE_CHARACTERS + 1))
    assert whole["text"] == "y" * LINE_CHARACTERS


@pytest.mark.covers("signals:32")
def test_parts_of_a_line_are_marked_in_order() -> None:
    lines = Lines(overlap=0, keep_repeats=True)
    parts = lines.feed(b"z" * 20_000 + b"\nnext\n")
    shown = [entry("stdout", line) for line in parts]
    assert [each["part"] for each in shown] == [1, 2, 3, 0]
    assert "part 1, goes on" in shown[0]["text"]
    assert "part 2, goes on" in shown[1]["text"]
    assert shown[2]["text"].endswith("cursor stdout:16384]")
    assert "part 3;" in shown[2]["text"]
    assert shown[3]["text"] == "next"
    assert [each["offset"] for each in shown[:3]] == [0, 8192, 16384]


def test_tokens_never_exceed_the_bucket_and_come_back_one_by_one() -> None:
    tokens = Tokens(2, 10.0)
    assert tokens.next_at(1000.0) == 1000.0
    for _ in range(2):
        tokens.spend(1000.0)
    assert tokens.next_at(1000.0) == 1010.0
    assert tokens.next_at(1010.0) == 1010.0
    tokens.spend(1010.0)
    assert tokens.next_at(1011.0) == 1020.0
    assert tokens.next_at(5000.0) == 5000.0
    tokens.spend(5000.0)
    tokens.spend(5000.0)
    assert tokens.next_at(5000.0) == 5010.0


@settings(max_examples=scaled(40, 200))
@given(
    st.lists(
        st.tuples(
            st.integers(0, 120), st.integers(0, 700), st.floats(0.0, 40.0), st.sampled_from(["stdout", "stderr"])
        ),
        max_size=40,
    ),
    st.sampled_from([1, 3, 10]),
    st.sampled_from(["digest", "stop"]),
)
def test_shown_and_suppressed_always_make_up_all_lines(
    bursts: list[tuple[int, int, float, str]], bucket: int, on_flood: str
) -> None:
    tape = Tape(bucket=bucket, on_flood=on_flood)
    for lines, length, pause, stream in bursts:
        for _ in range(lines):
            tape.line("m" * length, stream)
        tape.pass_by(pause)
    closing = tape.levels.close()
    notices = [*tape.notices, closing]
    assert counted(notices) == tape.taken == tape.levels.count
    assert sum(each["suppressed"] for each in notices) == tape.levels.suppressed
    for notice in notices:
        assert len(notice["lines"]) <= LINES_MAX
        assert sum(len(line["text"]) for line in notice["lines"]) <= CHARACTERS_MAX
        assert (notice["cursor"] is not None) == (notice["suppressed"] > 0)
        offsets = [line["offset"] for line in notice["lines"]]
        assert offsets == sorted(offsets)
    # What comes sooner than tokens do is never more than the bucket held.
    for begin, at in enumerate(tape.times):
        within = [other for other in tape.times[begin:] if other - at < 60.0]
        assert len(within) <= bucket + 60.0 / 2.0 + 1
