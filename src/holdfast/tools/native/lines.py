"""What an agent is shown of output: clean lines, runs of lines that say the same told once. Pure.

A line knows which bytes of the log it stands for, so that whatever is left out can be counted and read.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from ...host.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# From so many on, a run is told as one line. Equal lines tell nothing twice; a few numbers in a column are data.
EQUAL_RUN = 3
PROGRESS_RUN = 3
DIGITS_RUN = 12

_DIFFER = ", digits differ"
_DIGITS = re.compile(r"\d+")
# Something that is no column of numbers.
_WORD = re.compile(r"[^\W\d_]{2}|%")
_PERCENT = re.compile(r"\d ?%")
# What bars are drawn with, and what they are filled up with.
_BAR = re.compile("[#=>*.\\-_ \u2500-\u259f\u25a0-\u25ff\u2800-\u28ff]+")


class Line(NamedTuple):
    """`begin` and `end` are offsets in its stream; `times` is how many lines of the log it stands for."""

    stream: str
    begin: int
    end: int
    text: str
    times: int = 1


def fold(lines: Iterable[Line]) -> list[Line]:
    """As they are shown. The counts add up to those of the lines given, but for blank ones at both ends."""
    cleaned = [line._replace(text=shown(line.text)) for line in lines]
    return _trimmed(_alike(_alike(_blanks(cleaned), _same, EQUAL_RUN, ""), _shape, DIGITS_RUN, _DIFFER))


def tighten(lines: Sequence[Line]) -> list[Line]:
    """Folded lines, for less room: columns of numbers too, which are told whole where they fit."""
    return _alike(lines, _numbers, DIGITS_RUN, _DIFFER)


def shown(text: str) -> str:
    """Without blanks at its end, and nothing hidden."""
    return visible(text.rstrip(), joiners=True)


def _blanks(lines: Sequence[Line]) -> list[Line]:
    """A run of blank lines is one."""
    found: list[Line] = []
    for (_, blank), group in groupby(lines, lambda line: (line.stream, not line.text)):
        run = list(group)
        found += [_joined(run, "")] if blank else run
    return found


def _trimmed(lines: list[Line]) -> list[Line]:
    begin, end = 0, len(lines)
    while begin < end and not lines[begin].text:
        begin += 1
    while end > begin and not lines[end - 1].text:
        end -= 1
    return lines[begin:end]


def _alike(lines: Sequence[Line], key: Callable[[Line], object], most: int, how: str) -> list[Line]:
    found: list[Line] = []
    for _, group in groupby(lines, key):
        run = list(group)
        if len(run) < most and (len(run) < PROGRESS_RUN or not _PERCENT.search(run[0].text)):
            found += run
            continue
        last = run[-1]
        count = sum(line.times for line in run)
        folded = _joined(run, f"{last.text} (x{count:,}{how})")
        shorter = len(folded.text) < sum(len(line.text) + 1 for line in run)
        found += [folded] if shorter else run
    return found


def _joined(run: Sequence[Line], text: str) -> Line:
    return Line(run[0].stream, run[0].begin, run[-1].end, text, sum(line.times for line in run))


def _same(line: Line) -> tuple[str, str]:
    return line.stream, line.text


def _numbers(line: Line) -> tuple[object, ...]:
    """Alike but for digits, whatever it says."""
    return (line.stream, line.begin) if line.times > 1 else (line.stream, _DIGITS.sub("0", line.text))


def _shape(line: Line) -> tuple[object, ...]:
    """The same of lines that have words."""
    if line.times > 1 or not _WORD.search(line.text):
        return line.stream, line.begin
    shape = _DIGITS.sub("0", line.text)
    return line.stream, _BAR.sub("~", shape) if _PERCENT.search(shape) else shape
