"""The stop ladder as a plain machine: each rung in turn, never early, never past the last, over when all are gone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.processes import COMMAND, GROUP, SETTLE_S, TREE, Ladder, Rung, rungs

rung_records = st.fixed_dictionaries(
    {
        "signal": st.sampled_from(["INT", "TERM", "HUP", "KILL"]),
        "target": st.sampled_from([COMMAND, GROUP, TREE]),
        "wait_s": st.integers(0, 20),
    }
)
asked_ladders = st.none() | st.lists(rung_records, max_size=4)
# A history: how long until the next look, and whether the command, and the whole tree, are gone by then.
looks = st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.booleans()), max_size=30)


def in_words(climb: list[Rung]) -> list[str]:
    return [f"{rung}, {rung.wait_s:g} s" for rung in climb]


def test_without_a_ladder_of_its_own_a_command_is_asked_alone_then_with_its_tree_then_killed() -> None:
    assert in_words(rungs(5.0)) == [
        "TERM to the command, 3 s",
        "TERM to the tree, 2 s",
        f"KILL to the tree, {SETTLE_S:g} s",
    ]


def test_no_grace_kills_at_once_also_where_a_ladder_was_asked_for() -> None:
    ladder = [{"signal": "INT", "target": COMMAND, "wait_s": 9.0}]
    assert in_words(rungs(0)) == in_words(rungs(0, ladder)) == [f"KILL to the tree, {SETTLE_S:g} s"]


def test_a_ladder_that_does_not_kill_gets_a_last_rung_that_does() -> None:
    asked = [{"signal": "INT", "wait_s": 1}, {"signal": "HUP", "target": GROUP, "wait_s": 2}]
    assert in_words(rungs(5.0, asked)) == [
        "INT to the command, 1 s",
        "HUP to the group, 2 s",
        f"KILL to the tree, {SETTLE_S:g} s",
    ]


def test_a_ladder_that_ends_with_a_kill_is_taken_as_it_is() -> None:
    asked = [{"signal": "TERM", "wait_s": 1}, {"signal": "KILL", "target": GROUP, "wait_s": 2}]
    assert in_words(rungs(5.0, asked)) == ["TERM to the command, 1 s", "KILL to the group, 2 s"]


def test_an_empty_ladder_is_the_kill_alone() -> None:
    assert in_words(rungs(5.0, [])) == [f"KILL to the tree, {SETTLE_S:g} s"]


def test_a_command_that_stays_is_climbed_over_in_time_order() -> None:
    ladder = Ladder(rungs(5.0))
    climbed = []
    for now in (0.0, 1.0, 2.9, 3.0, 4.9, 5.0, 8.9):
        rung = ladder.step(now, command_gone=False, tree_gone=False)
        if rung is not None:
            climbed.append((now, str(rung)))
    assert climbed == [(0.0, "TERM to the command"), (3.0, "TERM to the tree"), (5.0, "KILL to the tree")]
    assert not ladder.over
    assert ladder.step(9.0, command_gone=False, tree_gone=False) is None
    assert ladder.over


def test_a_command_that_leaves_hands_its_children_to_the_next_rung_at_once() -> None:
    ladder = Ladder(rungs(5.0))
    ladder.step(0.0, command_gone=False, tree_gone=False)
    rung = ladder.step(0.1, command_gone=True, tree_gone=False)
    assert str(rung) == "TERM to the tree"
    assert ladder.until == pytest.approx(2.1)


def test_a_command_already_gone_is_not_signalled() -> None:
    assert str(Ladder(rungs(5.0)).step(0.0, command_gone=True, tree_gone=False)) == "TERM to the tree"


def test_an_empty_tree_ends_it_before_the_first_signal() -> None:
    ladder = Ladder(rungs(5.0))
    assert ladder.step(0.0, command_gone=True, tree_gone=True) is None
    assert ladder.over
    assert ladder.rung is None


def test_a_ladder_for_the_command_alone_ends_when_the_command_is_gone() -> None:
    ladder = Ladder(rungs(5.0, [{"signal": "KILL", "target": COMMAND, "wait_s": 1}]))
    ladder.step(0.0, command_gone=False, tree_gone=False)
    assert ladder.step(0.1, command_gone=True, tree_gone=False) is None
    assert ladder.over


def test_behind_a_rung_that_is_the_last_nothing_is_killed() -> None:
    asked = [{"signal": "TERM", "target": TREE, "wait_s": 1, "last": True}]
    assert in_words(rungs(5.0, asked)) == ["TERM to the tree, 1 s"]
    assert in_words(rungs(0, asked)) == [f"KILL to the tree, {SETTLE_S:g} s"], "who grants no grace wants it gone"
    ladder = Ladder(rungs(5.0, asked))
    assert str(ladder.step(0.0, command_gone=False, tree_gone=False)) == "TERM to the tree"
    assert ladder.step(1.0, command_gone=False, tree_gone=False) is None
    assert ladder.over


@given(st.floats(0, 1000), asked_ladders)
def test_every_ladder_ends_with_a_kill_and_waits_as_asked(grace: float, asked: list[dict[str, Any]] | None) -> None:
    climb = rungs(grace, asked)
    assert climb[-1].signal == "KILL"
    assert all(rung.wait_s >= 0 for rung in climb)
    if grace > 0 and asked is None:
        assert sum(rung.wait_s for rung in climb[:-1]) == pytest.approx(grace)


@given(asked_ladders, looks)
def test_any_history_climbs_upwards_in_time_and_ends(
    asked: list[dict[str, Any]] | None, history: list[tuple[int, bool, bool]]
) -> None:
    climb = rungs(10.0, asked)
    ladder = Ladder(climb)
    now, gone, empty = 0.0, False, False
    position = -1
    for pause, dies, dies_out in history:
        now += pause
        empty = empty or dies_out
        gone = gone or dies or empty
        before, was_over = ladder.until, ladder.over
        rung = ladder.step(now, command_gone=gone, tree_gone=empty)
        if rung is None:
            continue
        assert not was_over
        assert not ladder.over
        assert not empty, "nobody is left to be signalled"
        assert not (gone and rung.target == COMMAND), "the command is gone"
        found = next(place for place in range(position + 1, len(climb)) if climb[place] is rung)
        skipped = climb[position + 1 : found]
        assert all(gone and each.target == COMMAND for each in skipped), "a rung was left out"
        early = position >= 0 and now < before
        assert not early or (gone and climb[position].target == COMMAND), "the grace was cut short"
        position = found
    if empty and history:
        assert ladder.over
    # Whatever happened, time alone ends it.
    for _ in climb:
        now = max(now, ladder.until)
        ladder.step(now, command_gone=gone, tree_gone=empty)
    ladder.step(max(now, ladder.until), command_gone=gone, tree_gone=empty)
    assert ladder.over
    assert ladder.step(now + 10**6, command_gone=True, tree_gone=False) is None
