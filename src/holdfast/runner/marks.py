"""Which ranges of a terminal's log restore its screen: pure arithmetic over marks.

A mark is where a screen can be built from: `start` and `clear` from nothing and exactly, `keyframe` from a dump of the
grid, `every` from the middle, with what stood on the screen before missing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Mark = dict[str, Any]

REPLAY_MAX_BYTES = 8 << 20

_EXACT = ("start", "clear", "keyframe")


def plan(
    marks: list[Mark],
    *,
    at: int,
    lines: int,
    history_rows: int,
    oldest: int,
    replay_max: int = REPLAY_MAX_BYTES,
    alt_entry: int | None = None,
) -> dict[str, Any]:
    """Ranges to be fed in order, each from the size and state of its beginning, so that the screen at `at` comes out.

    `at` is a ground offset, `lines` the linefeeds before it, `oldest` the first byte retained, `alt_entry` where the
    alternate screen was entered if that is shown. A range whose state is None begins on a blank terminal.
    """
    usable = sorted((mark for mark in marks if oldest <= mark["offset"] <= at), key=_offset)
    if alt_entry is None:
        begin, exact = _start([mark for mark in usable if not mark["alt"]], at, lines, history_rows, oldest, replay_max)
        return {"ranges": [_range(begin, at)], "exact": exact}
    # The two screens share nothing but the state, which the second range brings along.
    before = [mark for mark in usable if mark["offset"] <= alt_entry and not mark["alt"]]
    inside = [mark for mark in usable if mark["offset"] >= alt_entry and at - mark["offset"] <= replay_max]
    clean = [mark for mark in inside if mark["why"] in _EXACT and mark["alt"]]
    if not clean or clean[-1]["offset"] == alt_entry:
        # Straight through, the entry included.
        room = replay_max - (at - alt_entry)
        main, exact = _start(before, alt_entry, lines, history_rows, oldest, room)
        if exact or not inside:
            return {"ranges": [_range(main, at)], "exact": exact}
    begin = clean[-1] if clean else inside[0]
    room = replay_max - (at - begin["offset"])
    main, exact = _start(before, alt_entry, lines, history_rows, oldest, room)
    return {"ranges": [_range(main, alt_entry), _range(begin, at)], "exact": exact and bool(clean)}


def _start(
    marks: list[Mark], at: int, lines: int, history_rows: int, oldest: int, replay_max: int
) -> tuple[Mark, bool]:
    """Where to begin for the main screen and its history, and whether the screen comes out exactly."""
    near = [mark for mark in marks if at - mark["offset"] <= replay_max]
    exact = [mark for mark in near if mark["why"] in _EXACT]
    for mark in reversed(exact):
        if mark["offset"] == 0 or lines - mark["lines"] + mark.get("history", 0) >= history_rows:
            return mark, True
    if exact:
        # None yields all the history wanted: the one that yields most.
        return exact[0], True
    for mark in reversed(near):
        # Enough to have written every row of the screen anew, as far as one can tell.
        if lines - mark["lines"] >= history_rows + mark["size"][0]:
            return mark, False
    if near:
        return near[0], False
    begin = max(oldest, at - max(replay_max, 0))
    return {"offset": begin, "why": "start", "size": None, "state": None}, begin == 0


def _range(begin: Mark, end: int) -> dict[str, Any]:
    return {"from": begin["offset"], "to": end, "size": begin["size"], "state": begin["state"]}


def _offset(mark: Mark) -> int:
    offset: int = mark["offset"]
    return offset
