"""The log of a terminal as plain text: from any offset on, with the sizes and times of its frames.

Text that begins in mid-stream needs to know what came before: a sequence or character that was cut there, and
whether a program had the full screen then. Nothing else is looked at twice.
"""

from __future__ import annotations

import os
import re
from collections import deque

from ..core import jsontext, records
from ..core.records import TTY
from ..core.vt.parser import PENDING_MAX_BYTES
from ..runner.terminal.marks import long_sequences
from ..terminal.log_text import COLS, ROWS, TerminalText, joined
from .marks import LINE_MAX_BYTES, MARKS_MAX, read_marks
from .segments import PIECE_BYTES, LogSnapshot, load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from ..core.vt.page import Line
    from .segments import Frames


# The first part of the end that is read for the last lines; then four times as much, and so on.
_TAIL_BYTES = 64 << 10
# Read in one piece after a block, to see whether its rows are rewritten.
_FOLLOWED_BYTES = 8 << 10
# How far back a full-screen stretch is looked for and drawn from its beginning.
_STRETCH_MAX_BYTES = 8 << 20
# Long enough for any sequence that switches screens.
_TOGGLE_MAX_BYTES = 64
_TOGGLE = re.compile(rb"\x1b(?:\[\?(?:[0-9;]*;)?(?:47|1047|1049)(?:;[0-9;]*)?([hl])|c)")
_SHELL_SYNTAX = re.compile(r"[][\n;&|<>$`(){}!#\"'\\*?~=]")
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "fish", "ksh", "csh", "tcsh", "busybox"))


class Reading:
    """The bytes of a terminal from `offset` on, to be fed in order. A jump between two pieces ends the text before
    it. `live`: the session may be resized while it is read."""

    def __init__(self, snapshot: LogSnapshot, offset: int, *, live: bool = False) -> None:
        self._directory = snapshot.directory
        self._live = live
        self._frames = snapshot.whole_frames()
        self._resizes = self._frames.resizes(TTY)
        self._spec = _spec(snapshot.directory)
        self._program = _program(self._spec.get("command"))
        self._skips = _long_sequences(snapshot.directory)
        self._text = self._begin(snapshot, offset)

    @property
    def offset(self) -> int:
        return self._text.offset

    def feed(self, offset: int, data: bytes) -> list[Line]:
        if self._live:
            self._note_resizes(load(self._directory))
        lines: list[Line] = []
        end = offset + len(data)
        at = offset
        for begin, after in self._skips:
            if begin < end and after > at:
                if begin > at:
                    lines += self._feed(at, data[at - offset : begin - offset])
                at = min(after, end)
                self._skip_to(at)
        return lines + self._feed(at, data[at - offset :]) if at < end else lines

    def _skip_to(self, offset: int) -> None:
        """What is between draws nothing. Where the text has seen it begin, it continues from there."""
        text = self._text
        if any(begin <= text.offset < offset <= after for begin, after in self._skips):
            for at, rows, cols in self._resizes:
                if text.offset <= at < offset:
                    text.resize(rows, cols)
            text.leave_out(offset - text.offset)

    def _feed(self, offset: int, data: bytes) -> list[Line]:
        lines: list[Line] = []
        self._skip_to(offset)
        if offset != self._text.offset:
            full_screen = self._text.full_screen
            lines = _ended(self._text.flush_lines())
            self._text = self._fresh(offset, full_screen=full_screen)
        end = offset + len(data)
        for at, rows, cols in self._resizes:
            if self._text.offset < at < end:
                lines += self._text.feed_lines(data[self._text.offset - offset : at - offset])
            if offset <= at < end:
                self._text.resize(rows, cols)
        return lines + self._text.feed_lines(data[self._text.offset - offset :])

    @property
    def is_full_screen(self) -> bool:
        return self._text.full_screen

    def settled(self) -> str:
        return self._text.settled()

    def unfinished(self) -> str:
        return self._text.unfinished()

    def on_screen(self) -> list[Line]:
        return self._text.peek_lines()

    def finish(self, *, cut: bool = True) -> list[Line]:
        """What is left. `cut`: nothing more will come, a character that was begun is lost."""
        return self._text.flush_lines(cut=cut)

    def _begin(self, snapshot: LogSnapshot, offset: int) -> TerminalText:
        entry = _full_screen_since(snapshot, offset)
        if entry is not None and entry >= max(snapshot.begin(TTY), offset - _STRETCH_MAX_BYTES):
            self._text = self._fresh(entry)
            for at, data in snapshot.pieces(TTY, entry, offset):
                self.feed(at, data)
            return self._text
        begin, before = snapshot.piece_before(TTY, offset, PENDING_MAX_BYTES)
        if begin + len(before) != offset:
            begin, before = offset, b""
        if any(since < offset <= to for since, to in self._skips):
            return self._fresh(offset, full_screen=entry is not None)
        skip = before.rfind(b"\n") + 1
        text = self._fresh(begin + skip, full_screen=entry is not None)
        text.pass_over(before[skip:])
        return text

    def _fresh(self, offset: int, *, full_screen: bool = False) -> TerminalText:
        before = [(rows, cols) for at, rows, cols in self._resizes if at <= offset]
        rows, cols = before[-1] if before else size_before(self._directory, self._spec, offset)
        return TerminalText(rows, cols, offset=offset, program=self._program, when=self._when, full_screen=full_screen)

    def _note_resizes(self, newest: Frames) -> None:
        found = newest.resizes(TTY)
        if self._resizes:
            last = self._resizes[-1]
            known = len(found) - found[::-1].index(last) if last in found else 0
            found = [each for each in found[known:] if each[0] >= last[0]]
        self._resizes += found
        self._frames = newest

    def _when(self, offset: int) -> float | None:
        came = self._frames.came_at(TTY, offset)
        return None if came is None else came / 1e9


def page_text(directory: str, chunks: Sequence[tuple[str, int, bytes]]) -> str:
    """The text of these bytes. What they leave unfinished comes with the bytes that finish it."""
    with LogSnapshot(directory, (TTY,)) as snapshot:
        reading = Reading(snapshot, chunks[0][1])
        text = [joined(reading.feed(offset, data)) for _, offset, data in chunks]
        over = reading.offset >= snapshot.ends.get(TTY, 0) and _is_over(snapshot)
        return "".join([*text, joined(reading.finish(cut=over))])


def last_lines(snapshot: LogSnapshot, count: int, limit: int) -> tuple[int, str, bool]:
    """The last lines of a terminal: where the first begins, their text, and whether `limit` bytes were too few."""
    end = snapshot.ends.get(TTY, 0)
    size = min(_TAIL_BYTES, limit)
    skips = _long_sequences(snapshot.directory)
    while True:
        begin = max(snapshot.begin(TTY), _before(end, size, skips))
        # As far as it may go, it begins where it has to: what is cut then is better than nothing.
        at = _line_start(snapshot, begin, end) if begin > snapshot.begin(TTY) and size < limit else begin
        lines: list[Line] = []
        reading = Reading(snapshot, at)
        for offset, data in _pieces_between(snapshot, at, end, skips, PIECE_BYTES):
            lines += reading.feed(offset, data)
        lines += reading.finish(cut=_is_over(snapshot))
        if lines and not lines[-1][1]:
            lines.pop()
        if len(lines) >= count or begin <= snapshot.begin(TTY) or size >= limit:
            break
        size = min(size * 4, limit)
    more = len(lines) < count and begin > snapshot.begin(TTY)
    lines = lines[-count:] if count else []
    return (lines[0][0] if lines else end), joined(lines), more


def _before(end: int, size: int, skips: list[tuple[int, int]]) -> int:
    """So many bytes before an offset, long sequences not counted; never inside one of them."""
    begin = end
    for since, to in reversed(skips):
        if to <= begin and begin - to < size:
            size -= begin - to
            begin = since
    return begin - size


def _parts(begin: int, end: int, skips: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The ranges between two offsets that are outside long sequences."""
    for since, to in skips:
        if since < end and to > begin:
            if since > begin:
                yield begin, since
            begin = to
    if begin < end:
        yield begin, end


def _long_sequences(directory: str) -> list[tuple[int, int]]:
    return long_sequences(read_marks(directory, b'"skip"'))


def _is_over(snapshot: LogSnapshot) -> bool:
    """Whether the session has ended, so that what is unfinished stays unfinished."""
    return os.path.exists(f"{snapshot.directory}/exit.json")


def all_lines(snapshot: LogSnapshot) -> Iterator[list[Line]]:
    """Every line that is kept, a block at a time."""
    begin, end = snapshot.begin(TTY), snapshot.ends.get(TTY, 0)
    reading = Reading(snapshot, begin)
    for offset, data in snapshot.pieces(TTY, begin, end):
        yield reading.feed(offset, data)
    yield reading.finish(cut=False)


def lines_back(snapshot: LogSnapshot, before: int | None) -> Iterator[tuple[int, int, list[Line]]]:
    """Every retained line that begins before an offset, in blocks from the newest to the oldest: where the block begins
    and ends, and its lines with some lines around them. The rows above a block are drawn first, and the rows that it
    leaves on the screen are followed until they can no longer be rewritten."""
    first, last = snapshot.begin(TTY), snapshot.ends.get(TTY, 0)
    end = last if before is None else min(before, last)
    skips = _long_sequences(snapshot.directory)
    size = _TAIL_BYTES
    while end > first:
        begin = _block_start(snapshot, max(first, _before(end, size, skips)), end)
        lead = max(first, _before(begin, _TAIL_BYTES, skips))
        reading = Reading(snapshot, _line_start(snapshot, lead, begin) if first < lead < begin else lead)
        lines: list[Line] = []
        for offset, data in _pieces_between(snapshot, reading.offset, end, skips, PIECE_BYTES):
            lines += reading.feed(offset, data)
        is_inside = reading.is_full_screen and end < last
        for offset, data in _pieces_between(snapshot, end, min(last, end + _TAIL_BYTES), skips, _FOLLOWED_BYTES):
            lines += reading.feed(offset, data)
            if lines and lines[-1][0] >= end:
                break
        rest = reading.finish(cut=False)
        # Frames of a full-screen stretch that continues belong to the block with its end.
        yield begin, end, lines if is_inside else lines + rest
        end, size = begin, min(size * 4, PIECE_BYTES)


def _block_start(snapshot: LogSnapshot, begin: int, end: int) -> int:
    """Where to begin a block that ends at `end`: with a line, and not in a full-screen stretch if that is short."""
    if begin <= snapshot.begin(TTY):
        return begin
    entry = _full_screen_since(snapshot, begin)
    if entry is not None and entry >= max(snapshot.begin(TTY), begin - _STRETCH_MAX_BYTES):
        return entry
    start = _line_start(snapshot, begin, end)
    return start if start < end else begin


def _pieces_between(
    snapshot: LogSnapshot, begin: int, end: int, skips: list[tuple[int, int]], size: int
) -> Iterator[tuple[int, bytes]]:
    for since, to in _parts(begin, end, skips):
        yield from snapshot.pieces(TTY, since, to, size)


def _line_start(snapshot: LogSnapshot, begin: int, end: int) -> int:
    """The first line that begins at or after an offset; the offset itself if the line is very long."""
    at, data = snapshot.piece(TTY, begin, end, _TAIL_BYTES)
    return at + data.find(b"\n") + 1


def _ended(lines: list[Line]) -> list[Line]:
    if lines and lines[-1][1]:
        offset, text = lines[-1]
        lines[-1] = (offset, text.removesuffix("\n") + "\n")
    return lines


def _full_screen_since(snapshot: LogSnapshot, offset: int) -> int | None:
    """Where the full-screen stretch began in which this offset lies; -1 if that is not known; None outside of one."""
    entry = None
    floor = max(snapshot.begin(TTY), offset - _STRETCH_MAX_BYTES)
    mark = _mark_before(snapshot.directory, offset)
    if mark is not None:
        floor = max(floor, mark["offset"])
        if mark["state"].get("alt"):
            entry = mark["state"].get("alt_entry")
            entry = entry if isinstance(entry, int) else -1
    end = offset
    while end > floor:
        begin, data = snapshot.piece_before(TTY, end, min(PIECE_BYTES, end - floor))
        if not data:
            break
        toggles = list(_TOGGLE.finditer(data))
        if toggles:
            return begin + toggles[-1].start() if toggles[-1].group(1) == b"h" else None
        # One more look at what may have been cut.
        end = begin + _TOGGLE_MAX_BYTES if begin > floor and len(data) > 2 * _TOGGLE_MAX_BYTES else begin
    return entry


def size_before(directory: str, spec: Mapping[str, object], offset: int) -> tuple[int, int]:
    """The size of a terminal where no frame has it any more: as a mark says, or as it was started with."""
    mark = _mark_before(directory, offset)
    for size in (None if mark is None else mark.get("size"), spec.get("size")):
        if isinstance(size, list) and len(size) == 2 and all(isinstance(each, int) and each > 0 for each in size):
            return size[0], size[1]
    return ROWS, COLS


def _mark_before(directory: str, offset: int) -> dict[str, Any] | None:
    """The newest mark up to an offset."""
    newest = deque(records.lines(f"{directory}/marks.jsonl", LINE_MAX_BYTES), MARKS_MAX)
    for line in reversed(newest):
        try:
            mark = jsontext.read(line)
            if isinstance(mark["state"], dict) and mark["offset"] <= offset:
                found: dict[str, Any] = mark
                return found
        except (ValueError, LookupError, TypeError, RecursionError):
            continue
    return None


def _spec(directory: str) -> dict[str, object]:
    try:
        return records.read(f"{directory}/spec.json")
    except (OSError, ValueError):
        return {}


def _program(command: object) -> str:
    """What a marker calls a program that gave itself no title: what the session runs, unless that is a shell."""
    words = command.split() if isinstance(command, str) and not _SHELL_SYNTAX.search(command) else command
    if not isinstance(words, list) or not words or not isinstance(words[0], str):
        return ""
    name = os.path.basename(words[0])
    return "" if name in _SHELLS or not name.isprintable() else name
