"""Interleaved measuring: reference, ours, reference, ours... so that a noisy moment hits both sides."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Side = Callable[[], float]


@dataclass(frozen=True)
class Spread:
    """The middle of many figures and where the middle half of them lies."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: list[float]) -> Spread:
        if not figures:
            raise ValueError("nothing was measured")
        if len(figures) == 1:
            return cls(figures[0], figures[0], figures[0])
        low, median, high = statistics.quantiles(figures, n=4, method="inclusive")
        return cls(median, low, high)


def interleaved(sides: dict[str, Side], rounds: int, *, pause_s: float = 0.0, warm: int = 1) -> dict[str, list[float]]:
    """Each side once a round. A side returns its own figure, so that it can prepare and clean up unmeasured."""
    for _ in range(warm):
        for side in sides.values():
            side()
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            if pause_s:
                time.sleep(pause_s)
            figures[name].append(side())
    return figures


def timed(work: Callable[[], object]) -> Side:
    """A side whose figure is the seconds that `work` takes."""

    def side() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return side


def ratio(figures: list[float], reference: list[float]) -> Spread:
    """Ours over the reference: medians for the figure, the rounds one by one for the spread."""
    if len(figures) != len(reference):
        raise ValueError("both sides must have been measured as often")
    rounds = Spread.of([ours / theirs for ours, theirs in zip(figures, reference, strict=True)])
    return Spread(statistics.median(figures) / statistics.median(reference), rounds.low, rounds.high)
