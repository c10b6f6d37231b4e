"""Marks of a terminal's log, as hosts read them: where a screen can be built from, and the state at any offset."""

from __future__ import annotations

import os

from ..runner import jsontext, marks, records
from ..runner.attach import STREAM
from ..runner.snapshots import sound
from ..runner.tracker import Tracker
from ..runner.tty import COLS_MAX, ROWS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .log import Log

    Mark = dict[str, Any]

# A state with all that a program can set is far smaller; a runner keeps at most so many.
LINE_MAX_BYTES = 256 << 10
MARKS_MAX = 2048


def read_marks(directory: str, having: bytes = b"") -> list[Mark]:
    """Those that can be read, of lines with `having` in them: they are derived from the log, and without them only more
    of it is replayed."""
    found: list[Mark] = []
    for line in records.lines(os.path.join(directory, "marks.jsonl"), LINE_MAX_BYTES):
        mark = read_mark(line) if having in line else None
        if mark is not None:
            found.append(mark)
    return found[-MARKS_MAX:]


def read_mark(line: bytes) -> Mark | None:
    """None where it is no mark."""
    try:
        mark = jsontext.read(line)
        return mark if isinstance(mark, dict) and is_mark(mark) else None
    except (ValueError, RecursionError, LookupError, TypeError):
        return None


def is_mark(mark: Mark) -> bool:
    """Whether it has the shape of one; its state is looked at when it is used."""
    rows, cols = mark["size"]
    numbers = (mark["offset"], mark["lines"], rows, cols, mark.get("history", 0))
    flags = (isinstance(mark["alt"], bool), isinstance(mark["why"], str), isinstance(mark["state"], dict))
    in_bounds = all(type(each) is int and each >= 0 for each in numbers) and rows <= ROWS_MAX and cols <= COLS_MAX
    return in_bounds and all(flags)


def tracker_at(
    log: Log,
    size: tuple[int, int],
    at: int,
    known: list[Mark],
    resizes: list[tuple[int, int, int]],
) -> Tracker:
    """The tracker as it was at `at`, from the nearest mark on. Marks that are met on the way join `known`."""
    before = sorted(
        (mark for mark in known if mark["offset"] <= at), key=lambda mark: int(mark["offset"]), reverse=True
    )
    # Anybody could have edited that file.
    states = (state for mark in before if (state := sound(mark["state"])) and state["offset"] == mark["offset"])
    nearest = next(states, None)
    tracker = Tracker.from_snapshot(nearest) if nearest is not None else Tracker(*size)
    stops = [(offset, rows, cols) for offset, rows, cols in resizes if tracker.offset < offset <= at]
    for stop, rows, cols in [*stops, (at, 0, 0)]:
        for offset, block in log.blocks(STREAM, tracker.offset, stop):
            if offset > tracker.offset:
                # What is missing between is taken to have changed nothing.
                tracker = Tracker.from_snapshot({**tracker.snapshot(), "offset": offset})
            tracker.feed(block)
        if rows:
            tracker.resize(rows, cols)
    tracker.take_replies()
    known += tracker.take_marks()
    return tracker


def plan_at(log: Log, tracker: Tracker, known: list[Mark], history_rows: int) -> dict[str, Any]:
    newest = tracker.last_clear
    plan = marks.plan(
        [*known, newest] if newest is not None else known,
        at=tracker.ground,
        lines=tracker.lines,
        history_rows=history_rows,
        oldest=log.dropped_before().get(STREAM, 0),
        alt_entry=tracker.alt_entry,
    )
    for part in plan["ranges"]:
        if part["state"] is not None:
            part["state"] = sound(part["state"])
            plan["exact"] = plan["exact"] and part["state"] is not None
    return plan
