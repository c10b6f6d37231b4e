"""Marks of a terminal's log, as hosts read them: where a screen can be built from, and the state at any offset."""

from __future__ import annotations

import json
import os

from ..runner import marks
from ..runner.attach import STREAM
from ..runner.tracker import Tracker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .log import Log

    Mark = dict[str, Any]


def read_marks(directory: str) -> list[Mark]:
    """Those that can be read: they are derived from the log, and without them only more of it is replayed."""
    found: list[Mark] = []
    try:
        with open(os.path.join(directory, "marks.jsonl"), "rb") as file:
            for line in file:
                try:
                    mark = json.loads(line)
                    if isinstance(mark["offset"], int) and isinstance(mark["state"], dict):
                        found.append(mark)
                except (ValueError, KeyError, TypeError):
                    continue
    except FileNotFoundError:
        pass
    return found


def tracker_at(
    log: Log,
    size: tuple[int, int],
    at: int,
    known: list[Mark],
    resizes: list[tuple[int, int, int]],
) -> Tracker:
    """The tracker as it was at `at`, from the nearest mark on. Marks that are met on the way join `known`."""
    states = [mark["state"] for mark in known if mark["offset"] <= at]
    tracker = Tracker.from_snapshot(max(states, key=lambda state: int(state["offset"]))) if states else Tracker(*size)
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
    return marks.plan(
        [*known, newest] if newest is not None else known,
        at=tracker.ground,
        lines=tracker.lines,
        history_rows=history_rows,
        oldest=log.dropped_before().get(STREAM, 0),
        alt_entry=tracker.alt_entry,
    )
