"""Cutting: never more than asked for, at line borders, and nothing is lost uncounted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.tools.native.output import Line, clip, cost, cut

LINES = st.lists(st.integers(0, 700), max_size=60)


def made(lengths: list[int]) -> list[Line]:
    return [Line("stdout", n, n + 1, "x" * length) for n, length in enumerate(lengths)]


def test_what_fits_is_shown_whole() -> None:
    lines = made([10, 20, 30])
    assert cut(lines, 63) == (lines, [], [], [])


def test_the_beginning_gets_a_quarter_and_the_end_the_rest() -> None:
    lines = made([99] * 200)
    parts = cut(lines, 8000)
    assert (len(parts.head), len(parts.tail), len(parts.left)) == (20, 60, 120)


def test_a_line_alone_has_all_the_room_and_several_share_it() -> None:
    assert not cut(made([7999]), 8000).clipped
    alone = cut(made([9000]), 8000)
    assert (cost(alone.head), alone.clipped) == (8000, [(made([9000])[0], alone.head[0].text.index(" ...["))])
    assert cut(made([9000, 3]), 8000).clipped[0][1] < 2000


@given(LINES, st.integers(200, 5000), st.sampled_from([0.0, 0.25, 1.0]))
def test_it_fits_and_every_line_is_shown_or_left(lengths: list[int], budget: int, ahead: float) -> None:
    lines = made(lengths)
    parts = cut(lines, budget, ahead=ahead)
    assert cost(parts.head) + cost(parts.tail) <= budget
    assert [line.begin for line in (*parts.head, *parts.left, *parts.tail)] == list(range(len(lines)))
    assert not parts.left or not any(line.times != 1 for line in parts.left)


@given(LINES, LINES, st.integers(200, 5000), st.sampled_from([0.25, 1.0]))
def test_a_gap_stays_between_both_ends(before: list[int], after: list[int], budget: int, ahead: float) -> None:
    lines = made([*before, *after])
    parts = cut(lines, budget, ahead=ahead, gap=len(before))
    assert cost(parts.head) + cost(parts.tail) <= budget
    assert len(parts.head) <= len(before)
    assert len(parts.tail) <= len(after)
    assert [line.begin for line in (*parts.head, *parts.left, *parts.tail)] == list(range(len(lines)))


@given(st.text(max_size=3000), st.integers(80, 2000))
def test_a_long_line_keeps_both_ends_and_says_how_much_is_missing(text: str, limit: int) -> None:
    short = clip(text, limit)
    assert len(short) <= limit
    if short != text:
        ahead, _, rest = short.partition(" ...[")
        said, _, behind = rest.partition(" characters left out]... ")
        if " ...[" not in text and " characters left out]... " not in text:
            assert text.startswith(ahead)
            assert text.endswith(behind)
            assert int(said.replace(",", "")) == len(text) - len(ahead) - len(behind)
