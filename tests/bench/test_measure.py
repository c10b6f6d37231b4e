from __future__ import annotations

import json

import pytest
from bench.measure import Spread

from bench import measure, report


def test_many_figures_give_their_middle_and_the_middle_half() -> None:
    assert Spread.of([5.0, 1.0, 2.0, 3.0, 4.0]) == Spread(3.0, 2.0, 4.0)


def test_a_single_figure_has_no_spread() -> None:
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0)


def test_no_figures_are_refused() -> None:
    with pytest.raises(ValueError):
        Spread.of([])


def test_sides_take_turns() -> None:
    turns: list[str] = []

    def side(name: str, figure: float) -> measure.Side:
        def act() -> float:
            turns.append(name)
            return figure

        return act

    figures = measure.interleaved({"reference": side("r", 1.0), "ours": side("o", 2.0)}, 3, warm=1)
    assert "".join(turns) == "rororoRO".lower()
    assert figures == {"reference": [1.0] * 3, "ours": [2.0] * 3}


def test_a_ratio_is_of_medians_and_its_spread_of_rounds() -> None:
    assert measure.ratio([2.0, 4.0, 6.0], [1.0, 2.0, 2.0]) == Spread(2.0, 2.0, 2.5)


def test_sides_measured_unequally_are_refused() -> None:
    with pytest.raises(ValueError):
        measure.ratio([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    "at_most, at_least, verdict", [(3, None, "met"), (2, None, "missed"), (None, 3, "missed"), (None, None, "-")]
)
def test_a_goal_is_met_or_missed(at_most: float | None, at_least: float | None, verdict: str) -> None:
    assert report.Against("x", Spread(2.5, 2, 3), at_most=at_most, at_least=at_least).verdict == verdict


def test_a_curve_becomes_a_plot_with_a_line_for_each_side() -> None:
    curve = report.Curve("MB", "ms", {"ours": [(1, 0.5), (1000, 0.6)], "a<b": [(1, 1), (1000, 90)]})
    drawn = report.plot(curve, "B12: tail")
    assert drawn.count("<polyline") == 2
    assert "a&lt;b" in drawn


def test_a_page_names_goal_and_verdict() -> None:
    row = report.Row("B1", "run", "2 ms", [report.Against("subprocess", Spread(2.5, 2, 3), at_most=3)])
    fresh = json.loads(json.dumps(report.renewed([row], [])))
    assert "| B1 | run | 2 ms | subprocess | 2.50 (2.00-3.00) | <= 3 | met |" in report.page(fresh, {})
