"""Folding: runs that say the same are told once, and every line of the log is counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.tools.native.output import DIGITS_RUN, Line, fold, tighten

WORDS = st.sampled_from(["", " ", "a", "b  ", "item 1", "item 22", "50% [##  ]", "51% [### ]", "}", "\u202ex"])
PIECES = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), WORDS, st.integers(1, 30)), max_size=12)


def made(*texts: str, stream: str = "stdout") -> list[Line]:
    lines, at = [], 0
    for text in texts:
        lines.append(Line(stream, at, at + len(text) + 1, text))
        at += len(text) + 1
    return lines


def texts(lines: list[Line]) -> list[str]:
    return [line.text for line in fold(lines)]


def test_equal_lines_are_reported_once_with_their_count() -> None:
    assert texts(made("before", *["warning: x"] * 7, "after")) == ["before", "warning: x (x7)", "after"]


def test_lines_that_differ_in_digits_are_reported_once_by_the_last() -> None:
    assert texts(made(*(f"item {n}" for n in range(10_000)))) == ["item 9999 (x10,000, digits differ)"]


def test_a_few_numbers_are_data() -> None:
    few = [f"item {n}" for n in range(DIGITS_RUN - 1)]
    assert texts(made(*few)) == few


def test_columns_of_numbers_are_folded_where_there_is_no_room_for_them() -> None:
    rows = made(*(f"{n},{n * 7},{n * n}" for n in range(500)))
    assert len(fold(rows)) == 500
    assert [line.text for line in tighten(fold(rows))] == ["499,3493,249001 (x500, digits differ)"]


def test_a_progress_bar_on_lines_of_its_own_is_its_last_state() -> None:
    bar = [f"[{'#' * n}{' ' * (10 - n)}] {n * 10}%" for n in range(11)]
    assert texts(made(*bar)) == ["[##########] 100% (x11, digits differ)"]


def test_short_lines_are_not_folded_into_something_longer() -> None:
    assert texts(made("}", "}", "}")) == ["}", "}", "}"]


def test_blank_lines_and_blanks_at_the_end_are_few() -> None:
    assert texts(made("", "", "a  ", "", "", "", "b", "")) == ["a", "", "b"]


def test_what_hides_is_shown() -> None:
    assert texts(made("a\u202eb")) == ["a\\u{202e}b"]


@given(PIECES)
def test_every_line_is_counted_and_stands_where_it_stood(pieces: list[tuple[str, str, int]]) -> None:
    lines, at = [], {"stdout": 0, "stderr": 0}
    for stream, text, times in pieces:
        for _ in range(times):
            lines.append(Line(stream, at[stream], at[stream] + 5, text))
            at[stream] += 5
    folded = fold(lines)
    blank = [line for line in lines if not line.text.strip()]
    assert sum(line.times for line in folded) <= len(lines)
    # Only blank lines at the two ends are not there any more.
    assert sum(line.times for line in folded) >= len(lines) - len(blank)
    assert all(line.end - line.begin == 5 * line.times for line in folded)
    assert [line.begin for line in folded if line.stream == "stdout"] == sorted(
        line.begin for line in folded if line.stream == "stdout"
    )
    assert len(folded) <= len(lines)
    tight = tighten(folded)
    assert sum(line.times for line in tight) == sum(line.times for line in folded)
    assert all(line.end - line.begin == 5 * line.times for line in tight)
