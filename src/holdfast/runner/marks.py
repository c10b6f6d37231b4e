"""Which ranges of a terminal's log restore its screen: pure arithmetic over marks.

A mark is where a screen can be built from: `start` and `clear` from nothing and exactly, `keyframe` from a dump of the
grid, `every` from the middle, with what stood on the screen before missing. `skip` stands behind a very long sequence
that began at its `from`: those bytes draw nothing and are left out.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
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
    skips = long_sequences(usable)
    if alt_entry is None:
        main_marks = [mark for mark in usable if not mark["alt"]]
        begin, exact = _start(main_marks, at, lines, history_rows, oldest, replay_max, skips)
        return {"ranges": _ranges(begin, at, skips), "exact": exact}
    # The two screens share nothing but the state, which the second range brings along.
    before = [mark for mark in usable if mark["offset"] <= alt_entry and not mark["alt"]]
    inside = [mark for mark in usable if mark["offset"] >= alt_entry and _size(mark["offset"], at, skips) <= replay_max]
    clean = [mark for mark in inside if mark["why"] in _EXACT and mark["alt"]]
    if not clean or clean[-1]["offset"] == alt_entry:
        # Straight through, the entry included.
        room = replay_max - _size(alt_entry, at, skips)
        main, exact = _start(before, alt_entry, lines, history_rows, oldest, room, skips)
        if exact or not inside:
            return {"ranges": _ranges(main, at, skips), "exact": exact}
    begin = clean[-1] if clean else inside[0]
    room = replay_max - _size(begin["offset"], at, skips)
    main, exact = _start(before, alt_entry, lines, history_rows, oldest, room, skips)
    ranges = [*_ranges(main, alt_entry, skips), *_ranges(begin, at, skips)]
    return {"ranges": ranges, "exact": exact and bool(clean)}


def long_sequences(marks: Iterable[Mark]) -> list[tuple[int, int]]:
    """First byte of each long sequence and the one behind its last, in order."""
    found = ((mark.get("from"), mark["offset"]) for mark in marks if mark.get("why") == "skip")
    return sorted((begin, end) for begin, end in found if type(begin) is int and 0 <= begin < end)


def _size(begin: int, end: int, skips: list[tuple[int, int]]) -> int:
    """How many bytes there are to replay between two offsets."""
    return end - begin - sum(min(to, end) - max(since, begin) for since, to in skips if since < end and to > begin)


def _start(
    marks: list[Mark],
    at: int,
    lines: int,
    history_rows: int,
    oldest: int,
    replay_max: int,
    skips: list[tuple[int, int]],
) -> tuple[Mark, bool]:
    """Where to begin for the main screen and its history, and whether the screen comes out exactly."""
    near = [mark for mark in marks if _size(mark["offset"], at, skips) <= replay_max]
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
    begin = next((to for since, to in skips if since < begin < to), begin)
    return {"offset": begin, "why": "start", "size": None, "state": None}, begin == 0


def _ranges(begin: Mark, end: int, skips: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """From a mark to an offset, without the long sequences in between: behind each, drawing simply goes on."""
    parts = [{"from": begin["offset"], "to": end, "size": begin["size"], "state": begin["state"]}]
    for since, to in skips:
        if since >= parts[-1]["from"] and to <= end:
            parts[-1]["to"] = since
            parts.append({"from": to, "to": end, "size": None, "state": None})
    return parts


def _offset(mark: Mark) -> int:
    offset: int = mark["offset"]
    return offset
