"""The bytes of a terminal to plain text, incrementally: lines as a person would have read them.

A line is handed out when it has left the screen and can no longer be rewritten, or when it is asked for. Runs of
rewrites collapse to their last state with a count. A full-screen stretch (the alternate screen) becomes one marker line
and its last frame that was not empty. The result never depends on how the bytes were cut into pieces.
"""

from __future__ import annotations

import re
from itertools import accumulate

from ..core.vt.page import CHARSETS, PageState, Row, used
from ..core.vt.parser import CSI, OSC, TEXT, Scanner, split_string
from ..core.vt.text import LINE_MAX_CHARS, plain
from ..core.vt.widths import COLUMNS, decode, label
from .text import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..core.vt.page import Line


# Rows that left the screen become lines: wrapped rows joined, rewrites counted, redrawn screens collapsed.


# A line that was redrawn once or twice (a prompt, an edited command) gets no remark.
REMARKED_REWRITES = 3


class Printed:
    """Builds lines from rows. `lines` has the finished ones in order, until they are taken."""

    __slots__ = ("_block", "_block_offset", "_held", "_line", "_redrawn", "lines")

    def __init__(self) -> None:
        self.lines: list[Line] = []
        # The rows of a line that has not left completely.
        self._line: list[Row] = []
        # Consecutive lines that were rewritten: how often each was, and where they begin.
        self._block: list[int] = []
        self._block_offset = 0
        # The screen that was cleared last: it may be an earlier state of the next one.
        self._held: list[Row] = []
        self._redrawn = 0

    @property
    def begun(self) -> bool:
        """Some rows of a line have left, but not all."""
        return bool(self._line)

    def take(self) -> list[Line]:
        lines, self.lines = self.lines, []
        return lines

    def leave(self, rows: list[Row]) -> None:
        """These rows left the screen and can no longer be rewritten."""
        self.release()
        for row in rows:
            self._add(row)

    def append(self, lines: Iterable[Line]) -> None:
        """Add lines that never were on the page, because they would have left it at once."""
        self.release()
        self._close_block()
        self.lines += lines

    def clear(self, rows: list[Row]) -> None:
        """These rows were on a screen that was cleared."""
        if not rows:
            return
        if self._held and _same_screen(self._held, rows):
            self._redrawn += 1
        else:
            self.release()
        self._held = rows

    def release(self) -> None:
        """What follows is not the cleared screen drawn again: give out its lines."""
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
        """Give out whole lines before they leave. When they leave they are given again only if they changed."""
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
        """What would be given if everything left now, without remarks, which need the end."""
        copy = Printed()
        copy._line = list(self._line)
        for row in [*self._held, *rows]:
            copy._add(row, remark=False)
        copy._end_line(remark=False)
        return _open_ended(copy.lines)

    def finish(self, rows: list[Row]) -> list[Line]:
        """Give everything that remains. The last line has no end yet."""
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
        elif len(self._line) * len(row.cells) >= LINE_MAX_CHARS:
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
    """Whether the second is the first drawn again: both begin with the same line, such as the head of a table."""
    if any(row.notes for row in (*before, *now)):
        return False
    return _head(before) == _head(now) != ""


def _head(rows: list[Row]) -> str:
    return next((text for row in rows if (text := row.text().strip())), "")


# A full-screen stretch: given as a marker and the last frame that was not empty.


_PROGRAM_MAX_BYTES = 80


class Stretch:
    """One stay on the alternate screen, from the offset `start`. `frame` is the last one that was not empty."""

    __slots__ = ("frame", "program", "start")

    def __init__(self, start: int, program: str) -> None:
        self.start = start
        self.program = program
        self.frame: list[str] = []

    def set_title(self, raw: bytes) -> None:
        number, _, title = split_string(raw)[0].partition(b";")
        if number in (b"0", b"2") and title:
            self.program = visible(label(title, _PROGRAM_MAX_BYTES)) or self.program

    def note(self, screen: list[Row]) -> None:
        """Keep what is on the screen now, unless it is empty."""
        frame = [row.text().rstrip() for row in screen]
        while frame and not frame[-1]:
            frame.pop()
        self.frame = frame or self.frame

    def lines(self, end: int, when: Callable[[int], float | None] | None) -> list[Line]:
        """The marker and the frame."""
        begun, ended = (when(self.start), when(end)) if when is not None else (None, None)
        facts = [self.program] if self.program else []
        if begun is not None and ended is not None:
            facts.append(duration(max(0.0, ended - begun)))
        marker = f"[full screen: {', '.join(facts)}]" if facts else "[full screen]"
        return [(self.start, f"{text}\n") for text in (marker, *self.frame)]


def duration(seconds: float) -> str:
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


ROWS, COLS = 30, 120
# When this many rows have left they become lines, so that a large piece does not keep all of them.
_GONE_MAX = 1024
_SGR = b"m"[0]
# Bytes are read in slices, so that one progress bar slows down only its own slice.
_SLICE_BYTES = 1 << 16

# Sequences without effect on a line that is only appended to.
_HARMLESS = re.compile(rb"\x1b\[(?:[0-9;:]*m|0?K)")
_LINE_END = re.compile(rb"\r+\n")


class TerminalText(PageState):
    """`feed_lines` returns lines that can no longer change, `peek_lines` those that can, `flush_lines` returns them and
    starts again.

    `when(offset)` gives seconds, for the duration of a full-screen stretch. `program` names the program in a stretch
    that sets no title. `full_screen`: the bytes begin inside a stretch.
    """

    def __init__(
        self,
        rows: int = ROWS,
        cols: int = COLS,
        *,
        offset: int = 0,
        program: str = "",
        when: Callable[[int], float | None] | None = None,
        full_screen: bool = False,
    ) -> None:
        super().__init__(rows, cols, offset)
        self._scanner = Scanner(offset)
        self._printed = Printed()
        self._program = program
        self._when = when
        self._stretch: Stretch | None = None
        if full_screen:
            self.at = offset
            self._set_modes((1049,), True)

    @property
    def offset(self) -> int:
        """The offset of the next byte."""
        return self._scanner.offset

    @property
    def full_screen(self) -> bool:
        return self._stretch is not None

    def feed_lines(self, data: bytes) -> list[Line]:
        at = data.find(b"\n") + 1
        if at:
            # The rest of an unfinished line, so that whole lines follow.
            self._step(data[:at])
        while at < len(data):
            end = data.rfind(b"\n", at, at + _SLICE_BYTES) + 1 or at + _SLICE_BYTES
            piece = data[at:end]
            done = self._plain_lines(piece) if self._scanner.idle and self._stretch is None else 0
            self._step(piece[done:] if done else piece)
            at = end
        self._drain()
        return self._printed.take()

    def _step(self, data: bytes) -> None:
        for kind, at, raw in self._scanner.steps(data):
            if kind == OSC:
                if self._stretch is not None:
                    self._stretch.set_title(raw)
            elif kind != CSI or raw[-1] != _SGR:
                self.take(kind, at, raw)
                if len(self.page.gone) > _GONE_MAX:
                    self._drain()

    def _plain_lines(self, piece: bytes) -> int:
        """Most output is lines below each other. All but the last of them, as many as the screen has rows, leave at
        once and need not be written on the page. Returns how many bytes those were."""
        page = self.page
        raw = piece[: piece.rfind(b"\n") + 1]
        if not self._is_appending() or self._printed.begun or raw.count(b"\n") <= page.rows:
            return 0
        clean = _LINE_END.sub(b"\n", _HARMLESS.sub(b"", raw))
        if clean.count(b"\n") != raw.count(b"\r\n") or not plain(clean):
            return 0
        text = decode(clean)
        if not self._keeps_whole(text):
            return 0
        lines = raw.split(b"\n")[: -page.rows - 1]
        *offsets, end = accumulate([len(line) + 1 for line in lines], initial=self._scanner.offset)
        size = end - offsets[0]
        above, page.screen, page.row = page.screen, [Row(end)], 0
        # A line begins where the one before ended, also when colours were set in between.
        offsets[0] = above.pop().offset
        self._drain()
        self._printed.leave(above)
        self._printed.append(zip(offsets, [f"{line}\n" for line in text.split("\n")], strict=False))
        self._scanner.pass_over(size)
        return size

    def _is_appending(self) -> bool:
        """The cursor is at the beginning of an empty last row, and printing only appends."""
        page = self.page
        *above, row = page.screen or [Row(0)]
        return (
            page.col == 0
            and page.row == len(above)
            and not (row.cells or row.notes or row.rewrites or row.given or (above and above[-1].wrapped))
            and (page.top, page.bottom, page.left, page.right) == (0, page.rows - 1, 0, page.cols - 1)
            and page.autowrap
            and not (page.insert or page.newline or page.single_shift or page.charsets[page.shift] in CHARSETS)
            and page.tabs.are_default
        )

    def _keeps_whole(self, text: str) -> bool:
        """Whether the page would give these lines as they were printed: none so long that it is handed out in parts,
        no TAB that the right margin stops, no combining character without one before it."""
        if not text.isascii() and any(COLUMNS[each] == 0 for each in set(text) - {"\n", "\t"}):
            return False
        lines = text.split("\n")
        if "\t" in text and any(len(line.expandtabs()) * 2 >= self.page.cols for line in lines if "\t" in line):
            return False
        return max(map(len, lines)) < LINE_MAX_CHARS // 2

    def settled(self) -> str:
        """For following: the lines above the cursor too. A line that is rewritten afterwards is given once more when
        it leaves, in its last state."""
        self._drain()
        rows, row = self.main_rows()
        self._printed.early(rows[:row])
        return joined(self._printed.take())

    def unfinished(self) -> str:
        """The row of the cursor."""
        page = self.page
        return "" if self._stretch is not None or page.row >= len(page.screen) else page.screen[page.row].text()

    def peek_lines(self) -> list[Line]:
        return self._with_stretch(self._printed.standing(used(*self.main_rows())))

    def flush_lines(self, *, cut: bool = True) -> list[Line]:
        """An unfinished sequence is dropped. An unfinished character is dropped too, or becomes U+FFFD if `cut`."""
        rest = self._scanner.half_character
        if cut and rest and self._stretch is None:
            self.take(TEXT, self._scanner.ground, rest)
        self._drain()
        lines = self._with_stretch(self._printed.finish(used(*self.main_rows())))
        self._scanner = Scanner(self._scanner.offset)
        self._blank(self._scanner.offset)
        self.modes.reset()
        self._stretch = self._main = None
        self.page.keeps_tabs = True
        return lines

    def pass_over(self, data: bytes) -> None:
        """Skip bytes whose text is given elsewhere. What they leave unfinished continues in the next ones."""
        for _ in self._scanner.steps(data):
            pass
        self._blank(self._scanner.ground)

    def leave_out(self, size: int) -> None:
        """Skip bytes that draw nothing: an overlong sequence. The lines continue after it."""
        self._scanner = Scanner(self._scanner.offset + size)

    def resize(self, rows: int, cols: int) -> None:
        """From here on the terminal has this size."""
        if (rows, cols) != (self.page.rows, self.page.cols):
            self._drain()
            if self._stretch is not None:
                self._stretch.note(self.page.screen)
            super().resize(rows, cols)
            # What left was on the main screen.
            self._leave_gone()

    def _blank(self, offset: int) -> None:
        """Begin with a blank page at this offset."""
        self.page.at = offset
        self.page.reset()

    def _drain(self) -> None:
        """Take the rows that scrolled out. They are text unless a program had the full screen."""
        if self._stretch is None:
            self._leave_gone()
        self.page.gone = []

    def _leave_gone(self) -> None:
        gone, self.page.gone = self.page.gone, []
        if gone:
            self._printed.leave(gone)

    def _with_stretch(self, lines: list[Line]) -> list[Line]:
        if self._stretch is None:
            return lines
        if lines and lines[-1][1]:
            lines[-1] = (lines[-1][0], lines[-1][1].removesuffix("\n") + "\n")
        self._stretch.note(self.page.screen)
        return lines + self._stretch.lines(self.offset, self._when)

    def cleared(self, alternate: bool) -> None:
        """What was on the main screen is text, unless the same screen is drawn again. What was on the alternate one may
        be the last frame."""
        self._drain()
        if not alternate:
            self._printed.clear(self.page.clear())
        elif self._stretch is not None:
            self._stretch.note(self.page.screen)

    # A full-screen stretch.

    def _switch_screen(self, number: int, on: bool) -> None:
        self._drain()
        super()._switch_screen(number, on)
        if on and self._stretch is None:
            self._stretch = Stretch(self.at, self._program)
            self.page.keeps_tabs = False
            # Blank rows above the frame of a program that does not move the cursor first are no text.
            self.page.home()
        elif not on:
            self._end_stretch()

    def _reset(self) -> None:
        super()._reset()
        self._end_stretch()

    def _show_main(self) -> None:
        self._drain()
        if self._stretch is not None:
            self._stretch.note(self.page.screen)
        super()._show_main()

    def _end_stretch(self) -> None:
        stretch, self._stretch = self._stretch, None
        if stretch is None:
            return
        page = self.page
        page.keeps_tabs = True
        row = page.here()
        if row.cells:
            # The lines of the stretch come after this row.
            if page.row + 1 == len(page.screen):
                page.screen.append(Row(self.at))
            row = page.screen[page.row + 1]
        # Only one stretch for each row: of a program that starts again and again without printing, the last.
        row.notes = stretch.lines(self.at, self._when)
