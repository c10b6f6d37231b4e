"""Rows, their verdicts, and how they are written down: results.json, RESULTS.md, one small plot per curve."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from dataclasses import asdict, dataclass, field

from .measure import Spread

_HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass(frozen=True)
class Against:
    """Our figure over one reference's. A goal is met from below (`at_most`) or from above (`at_least`)."""

    reference: str
    ratio: Spread
    at_most: float | None = None
    at_least: float | None = None

    @property
    def goal(self) -> str:
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return f">= {self.at_least:g}" if self.at_least is not None else "-"

    @property
    def verdict(self) -> str:
        if self.at_most is not None:
            return "met" if self.ratio.median <= self.at_most else "missed"
        if self.at_least is not None:
            return "met" if self.ratio.median >= self.at_least else "missed"
        return "-"


@dataclass(frozen=True)
class Curve:
    """A figure that may grow with size, for a plot. Both axes are logarithmic."""

    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class Row:
    id: str
    what: str
    ours: str
    against: list[Against]
    note: str = ""
    curve: Curve | None = field(default=None)


def write(rows: list[Row], failed: dict[str, str]) -> None:
    """What was not measured this time keeps the result it had: `python -m bench B7` renews one row."""
    kept = renewed(rows, _written())
    with open(os.path.join(_HERE, "results.json"), "w") as file:
        json.dump({"machine": machine(), "rows": kept, "failed": failed}, file, indent=1)
        file.write("\n")
    for row in rows:
        if row.curve is not None:
            with open(os.path.join(_HERE, f"{row.id}.svg"), "w") as file:
                file.write(plot(row.curve, f"{row.id}: {row.what}"))
    with open(os.path.join(_HERE, "RESULTS.md"), "w") as file:
        file.write(page(kept, failed))


def line(row: Row) -> str:
    parts = [
        f"{one.ratio.median:.2f}x {one.reference} ({one.ratio.low:.2f}-{one.ratio.high:.2f}; {one.goal} {one.verdict})"
        for one in row.against
    ]
    return f"{row.id:4} {row.what}: {row.ours}; " + "; ".join(parts) + (f" [{row.note}]" if row.note else "")


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"


def page(rows: list[dict[str, object]], failed: dict[str, str]) -> str:
    lines = [
        "# Results",
        "",
        "Written by `make bench`. Each figure is ours over the reference, measured in turns in the same run: median",
        "(quartiles of the rounds). " + machine() + ".",
        "",
        "| id | what | ours | reference | ratio | goal | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    notes = []
    for row in rows:
        against = row["against"]
        assert isinstance(against, list)
        for place, one in enumerate(against):
            head = f"{row['id']} | {row['what']} | {row['ours']}" if place == 0 else " | | "
            spread = one["ratio"]
            figures = f"{spread['median']:.2f} ({spread['low']:.2f}-{spread['high']:.2f})"
            reference = str(one["reference"]).replace("|", "\\|")
            lines.append(f"| {head} | {reference} | {figures} | {one['goal']} | {one['verdict']} |")
        if row["note"]:
            notes.append(f"- {row['id']}: {row['note']}.")
    lines += ["", *notes]
    lines += [f"- {id} could not be measured: {why}" for id, why in failed.items()]
    curves = dict.fromkeys(str(row["id"]) for row in rows if row["curve"])
    lines += ["", *(f"![{id}]({id}.svg)" for id in curves), ""]
    return "\n".join(lines)


def plot(curve: Curve, title: str, width: int = 420, height: int = 240) -> str:
    left, right, top, bottom = 60, 130, 30, 40
    xs = [x for points in curve.lines.values() for x, _ in points]
    ys = [y for points in curve.lines.values() for _, y in points]
    x_range, y_range = _decades(xs), _decades(ys)

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x_range[0]) / (x_range[1] - x_range[0])
        up = (math.log10(y) - y_range[0]) / (y_range[1] - y_range[0])
        return left + across * (width - left - right), height - bottom - up * (height - top - bottom)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-size="10">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="16" font-size="11">{_escaped(title)}</text>',
        f'<text x="{left}" y="{height - 8}">{_escaped(curve.x)}</text><text x="4" y="28">{_escaped(curve.y)}</text>',
    ]
    for decade in range(x_range[0], x_range[1] + 1):
        x, y = at(10.0**decade, 10.0 ** y_range[0])
        parts.append(f'<text x="{x:.0f}" y="{y + 14:.0f}" text-anchor="middle">{10.0**decade:g}</text>')
    for decade in range(y_range[0], y_range[1] + 1):
        x, y = at(10.0 ** x_range[0], 10.0**decade)
        parts.append(f'<path d="M{x:.0f} {y:.0f}H{width - right}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 4:.0f}" y="{y + 3:.0f}" text-anchor="end">{10.0**decade:g}</text>')
    for colour, (name, points) in zip(("#c33", "#36c", "#393", "#939"), curve.lines.items(), strict=False):
        places = [at(x, y) for x, y in sorted(points)]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = places[-1]
        parts.append(f'<text x="{x + 4:.0f}" y="{y + 3:.0f}" fill="{colour}">{_escaped(name)}</text>')
    return "\n".join(parts) + "\n</svg>\n"


def _decades(figures: list[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(figures))), math.ceil(math.log10(max(figures)))
    return low, max(high, low + 1)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def renewed(rows: list[Row], old: list[dict[str, object]]) -> list[dict[str, object]]:
    fresh: list[dict[str, object]] = [
        {**asdict(row), "against": [{**asdict(one), "goal": one.goal, "verdict": one.verdict} for one in row.against]}
        for row in rows
    ]
    measured = {row.id for row in rows}
    kept = [row for row in old if row["id"] not in measured]
    return sorted(kept + fresh, key=lambda row: int(str(row["id"])[1:]))


def _written() -> list[dict[str, object]]:
    try:
        with open(os.path.join(_HERE, "results.json")) as file:
            rows: list[dict[str, object]] = json.load(file)["rows"]
    except (FileNotFoundError, ValueError, KeyError):
        return []
    return rows


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
