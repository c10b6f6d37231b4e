"""Rows that left a screen, put together to lines: wrapped ones joined, rewrites counted, redrawn screens collapsed."""

from __future__ import annotations

from . import text as plain_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .cells import Line, Row

# A line that was redrawn once or twice (a prompt, an edited command) needs no remark.
REMARKED_REWRITES = 3


class Printed:
    """`lines` are finished and in order; whoever takes them empties it."""

    __slots__ = ("_block", "_block_offset", "_held", "_line", "_redrawn", "lines")

    def __init__(self) -> None:
        self.lines: list[Line] = []
        # The rows of a line of which not all have left, or that is handed out in parts.
        self._line: list[Row] = []
        # Lines behind each other that were rewritten: how often each was, and where they begin.
        self._block: list[int] = []
        self._block_offset = 0
        # The screen that was cleared last: it may turn out to be an earlier state of the next one.
        self._held: list[Row] = []
        self._redrawn = 0

    @property
    def begun(self) -> bool:
        """Some rows of a line have left, and not all."""
        return bool(self._line)

    def take(self) -> list[Line]:
        lines, self.lines = self.lines, []
        return lines

    def leave(self, rows: list[Row]) -> None:
        """These can no longer be rewritten."""
        self.release()
        for row in rows:
            self._add(row)

    def append(self, lines: Iterable[Line]) -> None:
        """Lines that were printed and left in one go."""
        self.release()
        self._close_block()
        self.lines += lines

    def clear(self, rows: list[Row]) -> None:
        """These stood on a screen that was cleared."""
        if not rows:
            return
        if self._held and _same_screen(self._held, rows):
            self._redrawn += 1
        else:
            self.release()
        self._held = rows

    def release(self) -> None:
        """No screen like the one that was cleared follows."""
        held, self._held = self._held, []
        redrawn, self._redrawn = self._redrawn, 0
        for row in held:
            self._add(row)
        if held:
            self._end_line()
        if redrawn:
            self._close_block()
            self.lines.append((held[0].offset, f"[screen redrawn {redrawn} times]\n"))

    def early(self, rows: list[Row]) -> None:
        """Whole lines, shown before they leave; when they do, they are shown again only if they changed."""
        self.release()
        line: list[Row] = []
        skip = bool(self._line)
        for row in rows:
            line.append(row)
            if row.wrapped:
                continue
            if not skip and not line[0].given:
                self._add_notes(line[0])
                line[0].notes = None
                self.lines.append((line[0].offset, "".join(each.text() for each in line) + "\n"))
                for each in line:
                    each.given, each.changed = True, False
            line, skip = [], False

    def standing(self, rows: list[Row]) -> list[Line]:
        """What would come if everything left now, without the remarks that only the end allows."""
        copy = Printed()
        copy._line = list(self._line)
        for row in [*self._held, *rows]:
            copy._add(row, remark=False)
        copy._end_line(remark=False)
        return _open_ended(copy.lines)

    def finish(self, rows: list[Row]) -> list[Line]:
        """Everything that is left; the last line has no end yet."""
        if self._held and _same_screen(self._held, rows):
            while rows[-1].blank:
                rows.pop()
            self.clear(rows)
            self.release()
            return self.take()
        self.release()
        for row in rows:
            self._add(row)
        self._end_line()
        if self._block:
            self._close_block()
            return self.take()
        return _open_ended(self.take())

    def _add(self, row: Row, *, remark: bool = True) -> None:
        if not self._line:
            self._add_notes(row)
        self._line.append(row)
        if not row.wrapped:
            self._end_line(remark=remark)
        elif len(self._line) * len(row.cells) >= plain_text.LINE_MAX_CHARS:
            self._close_block()
            self.lines.append((self._line[0].offset, "".join(each.text() for each in self._line)))
            self._line = []

    def _add_notes(self, row: Row) -> None:
        if row.notes:
            self._close_block()
            self.lines += row.notes

    def _end_line(self, *, remark: bool = True) -> None:
        line, self._line = self._line, []
        if not line:
            return
        text = "".join(row.text() for row in line)
        rewrites = max(row.rewrites for row in line)
        if remark and rewrites >= REMARKED_REWRITES and text and not text.isspace():
            if not self._block:
                self._block_offset = line[0].offset
            self._block.append(rewrites)
        else:
            self._close_block()
        if not all(row.given and not row.changed for row in line):
            self.lines.append((line[0].offset, text + "\n"))

    def _close_block(self) -> None:
        counts, self._block = self._block, []
        if counts:
            least, most = min(counts), max(counts)
            times = f"{most} times" if least == most else f"{least} to {most} times"
            what = f"{len(counts)} lines rewritten" if len(counts) > 1 else "rewritten"
            self.lines.append((self._block_offset, f"[{what} {times}]\n"))


def joined(lines: list[Line]) -> str:
    return "".join([text for _, text in lines])


def _open_ended(lines: list[Line]) -> list[Line]:
    if lines:
        offset, text = lines[-1]
        lines[-1] = (offset, text.removesuffix("\n"))
    return lines


def _same_screen(before: list[Row], now: list[Row]) -> bool:
    """Whether the second is the first drawn anew: both begin with the same line, as a table does with its head."""
    if any(row.notes for row in (*before, *now)):
        return False
    return _head(before) == _head(now) != ""


def _head(rows: list[Row]) -> str:
    return next((text for row in rows if (text := row.text().strip())), "")
