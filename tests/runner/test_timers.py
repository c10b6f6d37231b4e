"""Heartbeats and soft deadlines, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runner.features.timers import TIMES, Heartbeat, Rhythm, SoftDeadline, times_passed
from support.still_life import StillLife, still_life


@pytest.fixture
def life(tmp_path: Path) -> Iterator[StillLife]:
    with still_life(tmp_path) as life:
        yield life


def beating(life: StillLife, interval_s: float = 60.0) -> Heartbeat:
    heartbeat = Heartbeat(life, interval_s)  # type: ignore[arg-type]
    life.features.append(heartbeat)
    return heartbeat


@pytest.mark.covers("signals:34")
def test_a_silent_command_has_no_heartbeat_and_no_timer(life: StillLife) -> None:
    beating(life)
    life.loop.pass_by(3600.0)
    assert life.told("heartbeat") == []
    assert life.loop.armed == 0


@pytest.mark.covers("signals:34")
def test_a_command_that_prints_all_the_time_beats_once_an_interval(life: StillLife) -> None:
    beating(life)
    for number in range(200):
        life.prints(f"line {number}\n")
        life.loop.pass_by(1.0)
    assert life.times("heartbeat") == [60.0, 120.0, 180.0]
    assert [each["n"] for each in life.told("heartbeat")] == [1, 2, 3]
    assert [each["elapsed_s"] for each in life.told("heartbeat")] == [60.0, 120.0, 180.0]
    assert all(each["interval_s"] == 60.0 for each in life.told("heartbeat"))


def test_output_after_a_long_silence_is_reported_a_moment_later(life: StillLife) -> None:
    beating(life)
    life.loop.pass_by(300.0)
    life.prints("first\n")
    life.loop.pass_by(0.5)
    life.prints("second\n")
    life.loop.pass_by(0.4)
    assert life.told("heartbeat") == []
    life.loop.pass_by(0.2)
    (beat,) = life.told("heartbeat")
    assert (beat["n"], beat["new_lines"], beat["new_bytes"], beat["tail"]) == (1, 2, 13, "first\nsecond\n".rstrip("\n"))
    life.loop.pass_by(3600.0)
    assert life.loop.armed == 0
    assert len(life.told("heartbeat")) == 1


def test_a_heartbeat_reports_only_what_is_new(life: StillLife) -> None:
    beating(life)
    life.prints("old\n")
    life.prints("an old warning\n", "stderr")
    life.loop.pass_by(60.0)
    life.prints("new\n")
    life.loop.pass_by(60.0)
    first, second = life.told("heartbeat")
    assert (first["new_bytes"], first["new_lines"]) == (19, 2)
    assert (first["tail"], first["stream"], first["offset"]) == ("an old warning", "stderr", 0)
    assert (second["new_bytes"], second["new_lines"]) == (4, 1)
    assert (second["tail"], second["stream"], second["offset"]) == ("new", "stdout", 4)


def test_all_lines_since_the_last_heartbeat_are_reported(life: StillLife) -> None:
    """On faulty code the first of several was taken for the rest of a longer one."""
    beating(life)
    life.prints("old\n")
    life.loop.pass_by(60.0)
    life.prints("one\ntwo\nthr")
    life.loop.pass_by(60.0)
    life.prints("ee\nfour\n")
    life.loop.pass_by(60.0)
    _, second, third = life.told("heartbeat")
    assert (second["tail"], second["offset"]) == ("one\ntwo\nthr", 4)
    assert (third["tail"], third["offset"]) == ("ee\nfour", 15)


def test_the_tail_of_a_heartbeat_has_2000_characters_at_most(life: StillLife) -> None:
    beating(life)
    life.prints("x" * 99 + "\n" * 1)
    for number in range(500):
        life.prints(f"{number:099d}\n")
    life.loop.pass_by(60.0)
    (beat,) = life.told("heartbeat")
    assert 1900 <= len(beat["tail"]) <= 2000
    assert beat["tail"].endswith("499")
    assert beat["offset"] == life.log.end("stdout") - 20 * 100, "from the start of a line"
    assert (beat["new_bytes"], beat["new_lines"]) == (50_100, 501)


@pytest.mark.covers("signals:34")
def test_no_heartbeat_comes_after_the_end(life: StillLife) -> None:
    heartbeat = beating(life)
    life.prints("bye\n")
    heartbeat.finish()
    life.prints("a grandchild\n")
    life.loop.pass_by(3600.0)
    assert life.told("heartbeat") == []
    assert life.loop.armed == 0


def test_the_next_attempt_continues_counting(life: StillLife) -> None:
    heartbeat = beating(life)
    life.prints("one\n")
    life.loop.pass_by(60.0)
    heartbeat.pause()
    heartbeat.begin(2)
    life.prints("two\n")
    life.loop.pass_by(60.0)
    assert [each["n"] for each in life.told("heartbeat")] == [1, 2]
    assert heartbeat.facts() == {"heartbeats": 2}


@given(st.lists(st.floats(0.01, 200.0), max_size=40))
def test_beats_are_an_interval_apart_and_soon_after_output(pauses: list[float]) -> None:
    rhythm, now, due = Rhythm(0.0, 60.0), 0.0, None
    beats = [0.0]
    for pause in pauses:
        now += pause
        if due is not None and due <= now:
            rhythm.beat(due)
            beats.append(due)
            due = None
        if due is None:
            due = rhythm.due(now)
            assert due >= now + 1.0
            assert due - now <= 60.0 + 1e-6
    assert all(later - earlier >= 60.0 - 1e-6 for earlier, later in pairwise(beats))


def reminding(life: StillLife, limit_s: float) -> SoftDeadline:
    return SoftDeadline(life, limit_s)  # type: ignore[arg-type]


@pytest.mark.covers("signals:34")
def test_a_soft_deadline_reports_at_1_2_4_8_and_16_times_and_then_no_more(life: StillLife) -> None:
    life.spec["timeout"] = 1000.0
    reminding(life, 10.0)
    life.loop.pass_by(100_000.0)
    assert life.times("deadline") == [10.0, 20.0, 40.0, 80.0, 160.0]
    told = life.told("deadline")
    assert [each["n"] for each in told] == [1, 2, 4, 8, 16]
    assert [each["hard_in_s"] for each in told] == [990.0, 980.0, 960.0, 920.0, 840.0]
    assert all(each["limit_s"] == 10.0 for each in told)
    assert life.stopped_by == [], "nothing is ended by it"
    assert life.loop.armed == 0


def test_without_a_hard_limit_none_is_named(life: StillLife) -> None:
    reminding(life, 10.0)
    life.loop.pass_by(10.0)
    assert life.told("deadline") == [{"limit_s": 10.0, "elapsed_s": 10.0, "hard_in_s": None, "n": 1}]


def test_a_soft_deadline_counts_from_the_request(life: StillLife) -> None:
    SoftDeadline(life, 10.0, life.loop.now - 3.0)  # type: ignore[arg-type]
    life.loop.pass_by(7.0)
    assert life.times("deadline") == [7.0]


def test_a_soft_deadline_that_is_moved_reports_at_the_new_times(life: StillLife) -> None:
    deadline = reminding(life, 10.0)
    life.loop.pass_by(15.0)
    deadline.set(30.0)
    life.loop.pass_by(100.0)
    assert life.times("deadline") == [10.0, 30.0, 60.0]


def test_a_deadline_moved_into_the_past_is_reported_once_immediately(life: StillLife) -> None:
    deadline = reminding(life, 100.0)
    life.loop.pass_by(25.0)
    deadline.set(10.0)
    life.loop.pass_by(1.0)
    assert [each["n"] for each in life.told("deadline")] == [2]
    life.loop.pass_by(20.0)
    assert [each["n"] for each in life.told("deadline")] == [2, 4]


def test_one_that_is_taken_back_reports_nothing(life: StillLife) -> None:
    deadline = reminding(life, 10.0)
    deadline.set(None)
    life.loop.pass_by(1000.0)
    assert life.told("deadline") == []
    assert life.loop.armed == 0


@pytest.mark.covers("signals:34")
def test_a_soft_deadline_is_silent_after_the_end(life: StillLife) -> None:
    deadline = reminding(life, 10.0)
    deadline.finish()
    life.loop.pass_by(1000.0)
    assert life.told("deadline") == []


def test_each_attempt_has_its_own_soft_deadline(life: StillLife) -> None:
    deadline = reminding(life, 10.0)
    deadline.begin(1)
    life.loop.pass_by(15.0)
    deadline.pause()
    life.loop.pass_by(15.0)
    deadline.begin(2)
    life.loop.pass_by(11.0)
    assert life.times("deadline") == [10.0, 40.0]


@given(st.floats(0.001, 1e6), st.floats(0.0, 1e9))
def test_the_times_that_passed_are_those_whose_moment_came(limit_s: float, elapsed_s: float) -> None:
    passed = times_passed(limit_s, elapsed_s)
    assert passed == 0 or (passed in TIMES and passed * limit_s <= elapsed_s)
    assert all(times * limit_s > elapsed_s for times in TIMES if times > passed)
