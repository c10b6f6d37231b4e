"""What fits: the beginning and the end of lines that are too many, and what lies between them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .lines import Line

BUDGET = 8000
BUDGET_MAX = 100_000

# Of several lines, one is cut where it would take more than a quarter of the room, but not to less than this.
_LINE_LEAST = 80


class Cut(NamedTuple):
    """Both ends as they are shown, and the lines between them that are not. `clipped`: of those shown, the whole lines
    whose middle is not, with the number of characters before it."""

    head: list[Line]
    tail: list[Line]
    left: list[Line]
    clipped: list[tuple[Line, int]]


def clip(text: str, limit: int) -> str:
    """A line that is too long: its two ends, and how much lies between them."""
    if len(text) <= limit:
        return text
    ahead, behind = _ends(text, limit)
    mark = f" ...[{len(text) - ahead - behind:,} characters left out]... "
    return text[:ahead] + mark + (text[-behind:] if behind else "")


def _ends(text: str, limit: int) -> tuple[int, int]:
    # As long as it can get; the number is that of what is really missing.
    room = max(0, limit - len(f" ...[{len(text):,} characters left out]... "))
    ahead = room * 3 // 4
    return ahead, room - ahead


def cut(lines: Sequence[Line], budget: int, *, ahead: float = 0.25, gap: int | None = None) -> Cut:
    """At most so many characters, ends of lines included: the part `ahead` from the beginning, the rest from the end.
    `gap`: before this one there are more, which nobody gave us; they will be left out in any case."""
    limit = budget - 1 if len(lines) == 1 and gap is None else max(_LINE_LEAST, budget // 4 - 1)
    shown = [line._replace(text=clip(line.text, limit)) for line in lines]
    if gap is None and cost(shown) <= budget:
        first = last = len(shown)
    else:
        first = _fitting(shown, int(budget * ahead))
        if gap is not None:
            first = min(first, gap)
        room = budget - cost(shown[:first])
        ending = shown[max(first, gap or 0) :]
        last = len(shown) - _fitting(ending[::-1], room if ahead < 1 else 0)
    seen = (*lines[:first], *lines[last:])
    clipped = [(line, _ends(line.text, limit)[0]) for line in seen if len(line.text) > limit]
    return Cut(shown[:first], shown[last:], list(lines[first:last]), clipped)


def cost(lines: Sequence[Line]) -> int:
    return sum(len(line.text) + 1 for line in lines)


def _fitting(lines: Sequence[Line], room: int) -> int:
    """How many of them, from the first on."""
    for number, line in enumerate(lines):
        room -= len(line.text) + 1
        if room < 0:
            return number
    return len(lines)
