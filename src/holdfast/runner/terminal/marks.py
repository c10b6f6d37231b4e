"""Marks: ranges of a terminal's log that restore its screen, and their file.

A mark is where a screen can be built from: `start` and `clear` from nothing and exactly, `keyframe` from a dump of the
grid, `every` from the middle, with what was on the screen before missing. `skip` comes after a very long sequence
that began at its `from`: those bytes draw nothing and are left out.
"""

from __future__ import annotations

import os

from ...core import jsontext, records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Callable

    from ...core.vt.tracker import Tracker

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
        return {"ranges": _of_main(begin, main_marks, at, skips), "exact": exact}
    # The two screens share nothing but the state, which the second range brings along.
    before = [mark for mark in usable if mark["offset"] <= alt_entry and not mark["alt"]]
    inside = [mark for mark in usable if mark["offset"] >= alt_entry and _size(mark["offset"], at, skips) <= replay_max]
    clean = [mark for mark in inside if mark["why"] in _EXACT and mark["alt"]]
    if not clean or clean[-1]["offset"] == alt_entry:
        # Straight through, the entry included.
        room = replay_max - _size(alt_entry, at, skips)
        main, exact = _start(before, alt_entry, lines, history_rows, oldest, room, skips)
        if exact or not inside:
            return {"ranges": _of_main(main, before, at, skips), "exact": exact}
    begin = clean[-1] if clean else inside[0]
    room = replay_max - _size(begin["offset"], at, skips)
    main, exact = _start(before, alt_entry, lines, history_rows, oldest, room, skips)
    ranges = [*_of_main(main, before, alt_entry, skips), *_ranges(begin, at, skips)]
    return {"ranges": ranges, "exact": exact and bool(clean)}


def long_sequences(marks: Iterable[Mark]) -> list[tuple[int, int]]:
    """First byte of each long sequence and the one after its last, in order."""
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
        # No mark yields all the wanted history: take the one that yields most.
        return exact[0], True
    for mark in reversed(near):
        # Probably enough output to have rewritten every row of the screen.
        if lines - mark["lines"] >= history_rows + mark["size"][0]:
            return mark, False
    if near:
        return near[0], False
    begin = max(oldest, at - max(replay_max, 0))
    begin = next((to for since, to in skips if since < begin < to), begin)
    return {"offset": begin, "why": "start", "size": None, "state": None}, begin == 0


def _of_main(begin: Mark, marks: list[Mark], end: int, skips: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """The page always begins where the main screen was last cleared, and what comes before that is history alone. So
    the page is the same, however much history is drawn."""
    cleared = [mark for mark in marks if mark["why"] == "clear" and begin["offset"] < mark["offset"] <= end]
    if not cleared:
        return _ranges(begin, end, skips)
    of_page = _ranges(cleared[-1], end, skips)
    of_page[0]["cleared"] = True
    return [*_ranges(begin, cleared[-1]["offset"], skips), *of_page]


def _ranges(begin: Mark, end: int, skips: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """From a mark to an offset, without the long sequences in between: drawing continues after each."""
    parts = [{"from": begin["offset"], "to": end, "size": begin["size"], "state": begin["state"]}]
    for since, to in skips:
        if since >= parts[-1]["from"] and to <= end:
            parts[-1]["to"] = since
            parts.append({"from": to, "to": end, "size": None, "state": None})
    return parts


def _offset(mark: Mark) -> int:
    offset: int = mark["offset"]
    return offset


# `marks.jsonl`: where in a terminal's log a screen can be built from, with the tracker's state there.
#
# Derived data: without it a screen is rebuilt from the beginning of the log.


KEPT_MAX = 1024


class MarkFile:
    def __init__(self, directory: int, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._say = say
        self._kept: list[Mark] = []
        self._fd: int | None = None
        self._refused = False

    def keep(self, fresh: list[Mark]) -> None:
        self._kept += fresh
        if len(self._kept) > KEPT_MAX:
            # Drop every other one of the older marks: a start that is farther away only costs more to replay.
            half = len(self._kept) // 2
            self._kept = self._kept[:1] + self._kept[1:half:2] + self._kept[half:]
            self._write(self._kept, whole=True)
        else:
            self._write(fresh)

    def plan(self, tracker: Tracker, *, history_rows: int, oldest: int) -> dict[str, Any]:
        newest = tracker.last_clear
        known = self._kept if newest is None else [*self._kept, newest]
        return plan(
            known,
            at=tracker.ground,
            lines=tracker.lines,
            history_rows=history_rows,
            oldest=oldest,
            alt_entry=tracker.alt_entry,
        )

    def end(self, tracker: Tracker) -> None:
        if tracker.last_clear is not None:
            self.keep([tracker.last_clear])
        self.keep([tracker.mark("end")])

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write(self, fresh: list[Mark], *, whole: bool = False) -> None:
        if not fresh:
            return
        lines = b"".join(jsontext.write(mark).encode() + b"\n" for mark in fresh)
        try:
            if whole:
                self.close()
                records.replace(self._directory, "marks.tmp", "marks.jsonl", lines, durable=False)
                return
            if self._fd is None:
                self._fd = records.open_own(self._directory, "marks.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(self._fd, lines)
        except OSError as problem:
            if not self._refused:
                self._refused = True
                self._say(f"marks.jsonl could not be written: {problem.strerror}")
