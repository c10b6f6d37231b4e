"""Which sessions may go: by age of exit, then the oldest until the rest fits, and never a live one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.sessions.gc import AGE_S, Facts, Limits, Moment, jump, plan

NOW = 1_785_575_647.0
DAY = 86_400.0


def ended(id: str, days_ago: float, bytes: int = 10) -> Facts:
    return Facts(id, "exited", final=True, bytes=bytes, ended_at=NOW - days_ago * DAY)


def live(id: str, bytes: int = 10, state: str = "running") -> Facts:
    return Facts(id, state, final=False, bytes=bytes, created_at=NOW - 100 * DAY)


def ids(facts: list[Facts]) -> list[str]:
    return [each.id for each in facts]


def test_what_ended_more_than_seven_days_ago_goes_oldest_first() -> None:
    planned = plan([ended("young", 6.9), ended("old", 7.1), ended("oldest", 30), live("running")], Limits(), NOW)
    assert ids(planned.remove) == ["oldest", "old"]
    assert planned.notes == []


def test_above_the_cap_the_oldest_finished_go_until_the_rest_fits() -> None:
    sessions = [ended("c", 1), ended("a", 3), ended("empty", 4, bytes=0), ended("b", 2), live("running", 25)]
    assert ids(plan(sessions, Limits(home_bytes=55), NOW).remove) == []
    assert ids(plan(sessions, Limits(home_bytes=54), NOW).remove) == ["a"]
    assert ids(plan(sessions, Limits(home_bytes=35), NOW).remove) == ["a", "b"]


def test_what_goes_for_its_age_counts_for_the_cap() -> None:
    sessions = [ended("old", 8, bytes=50), ended("a", 3), ended("b", 2)]
    assert ids(plan(sessions, Limits(home_bytes=20), NOW).remove) == ["old"]


def test_live_sessions_above_the_cap_stay_and_it_is_said() -> None:
    planned = plan([ended("a", 1), live("running", 100)], Limits(home_bytes=60), NOW)
    assert ids(planned.remove) == ["a"]
    assert planned.notes == ["running sessions hold 40 bytes more than log.home_cap allows"]


def test_free_space_that_no_session_can_give_back_is_said_as_such() -> None:
    planned = plan([ended("a", 1)], Limits(home_bytes=60, free_bytes=5000), NOW, free_bytes=100)
    assert ids(planned.remove) == ["a"]
    assert planned.notes == ["free space is 4,890 bytes below log.free_floor, and no finished session holds them"]


@pytest.mark.parametrize("state", ["starting", "running", "unreachable", "stale", "exited"])
def test_session_of_which_something_lives_never_goes(state: str) -> None:
    sessions = [live("x", state=state)]
    sessions[0].ended_at = NOW - 100 * DAY
    assert plan(sessions, Limits(home_bytes=0), NOW).remove == []


def test_lost_session_is_finished_too() -> None:
    lost = Facts("x", "lost", final=False, bytes=1, ended_at=NOW - 8 * DAY)
    assert ids(plan([lost], Limits(), NOW).remove) == ["x"]


def test_little_free_space_takes_the_oldest_finished() -> None:
    sessions = [ended("a", 3), ended("b", 2), ended("c", 1)]
    limits = Limits(free_bytes=100)
    assert ids(plan(sessions, limits, NOW, free_bytes=100).remove) == []
    assert ids(plan(sessions, limits, NOW, free_bytes=85).remove) == ["a", "b"]
    assert ids(plan(sessions, limits, NOW).remove) == []


def test_limits_can_be_switched_off() -> None:
    assert plan([ended("a", 999, bytes=1 << 50)], Limits(age_s=None, home_bytes=None), NOW).remove == []


@pytest.mark.covers("CLK-02")
def test_end_in_the_future_switches_the_age_rule_off_for_that_run() -> None:
    sessions = [ended("old", 30), ended("ahead", -1 / 24)]
    planned = plan(sessions, Limits(), NOW)
    assert planned.remove == []
    assert planned.notes == [
        "no session is removed because of its age in this run: session ahead ended in the future by the wall clock"
    ]
    assert ids(plan(sessions, Limits(home_bytes=10), NOW).remove) == ["old"], "the cap needs no clock"


@pytest.mark.covers("CLK-02")
def test_jump_of_the_wall_clock_is_seen_from_the_last_collection() -> None:
    before = Moment(NOW, 1000.0, "boot")
    hour = 3600.0
    assert jump(before, Moment(NOW + hour, 1000.0 + hour, "boot")) is None
    assert jump(before, Moment(NOW + hour + 30, 1000.0 + hour, "boot")) is None, "slewed or corrected a little"
    assert "3600 s behind" in str(jump(before, Moment(NOW - hour, 1010.0, "boot")))
    assert "3600 s behind" in str(jump(before, Moment(NOW - hour, 10.0, "another boot")))
    assert "moved by +315360000 s" in str(jump(before, Moment(NOW + 3650 * DAY + hour, 1000.0 + hour, "boot")))
    assert "moved by -1800 s" in str(jump(before, Moment(NOW + hour, 1000.0 + 1.5 * hour, "boot")))
    assert jump(before, Moment(NOW + 30 * DAY, 10.0, "another boot")) is None


@pytest.mark.covers("CLK-02")
def test_jump_keeps_what_looks_old() -> None:
    assert plan([ended("old", 3650)], Limits(), NOW, jumped="it was set").remove == []


_FACTS = st.builds(
    Facts,
    st.uuids().map(str),
    st.sampled_from(["starting", "running", "exited", "unreachable", "stale", "lost"]),
    final=st.booleans(),
    bytes=st.integers(0, 100),
    created_at=st.none() | st.floats(0, NOW),
    ended_at=st.none() | st.floats(NOW - 20 * DAY, NOW + 60),
)


@given(st.lists(_FACTS, max_size=20), st.integers(0, 1000), st.booleans())
def test_any_plan_keeps_the_living_and_removes_no_more_than_it_must(
    sessions: list[Facts], cap: int, jumped: bool
) -> None:
    planned = plan(sessions, Limits(home_bytes=cap), NOW, jumped="jumped" if jumped else None)
    assert all(each.finished for each in planned.remove)
    assert len({each.id for each in planned.remove}) == len(planned.remove)
    trusted = not planned.notes or "age" not in planned.notes[0]
    assert trusted or planned.notes
    kept = [each for each in sessions if each not in planned.remove]

    def is_old(each: Facts) -> bool:
        return trusted and each.ended_at is not None and NOW - each.ended_at > AGE_S

    assert not any(each.finished and is_old(each) for each in kept)
    left = sum(each.bytes for each in kept)
    assert left <= cap or not any(each.finished and each.bytes for each in kept)
    for_room = [each for each in planned.remove if not is_old(each)]
    if for_room:
        assert left + for_room[-1].bytes > cap
        ends = [each.ended_at if each.ended_at is not None else each.created_at or 0.0 for each in for_room]
        assert ends == sorted(ends)
        others = [each for each in kept if each.finished and each.bytes]
        assert all(
            (each.ended_at if each.ended_at is not None else each.created_at or 0.0) >= ends[-1] for each in others
        )
