"""The bytes of a terminal to plain text, incrementally: lines as a person would have read them, no control character.

What can still be rewritten stays back: a line is handed out when it has left the screen, or when it is asked for. Runs
of rewrites collapse to their last state with a count. A full-screen stretch (the alternate screen) becomes one marker
line and its last frame that was not empty. The result never depends on how the bytes were cut into pieces.
"""

from __future__ import annotations

import re
from itertools import accumulate

from ..runner.escapes import CONTROL, CSI, ESC, OSC, TEXT, Scanner, numbers, split_csi, split_esc
from .cells import Row
from .full_screen import Stretch
from .printed import Printed, joined
from .sheet import Sheet
from .text import decode, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .cells import Line

ROWS, COLS = 30, 120
_ALTERNATE_MODES = frozenset((47, 1047, 1049))
# Rows that left are put together now and then, so that a large piece does not keep all of them.
_GONE_MAX = 1024
_SGR, _ERASE_DISPLAY, _RESET_MODE = b"mJl"
# Bytes are looked at in slices, so that one progress bar sends only its own slice the slow way.
_SLICE_BYTES = 1 << 16

# What changes nothing where a line is only appended to.
_HARMLESS = re.compile(rb"\x1b\[(?:[0-9;:]*m|0?K)")
_LINE_END = re.compile(rb"\r+\n")
# What a full-screen stretch is not simply drawn with: its end, a cleared screen, and everything with a string in it.
_STOP = re.compile(
    rb"(\x1b\[\?(?:[0-9;]*;)?(?:47|1047|1049)(?:;[0-9;]*)?l|\x1b\[[?0-9;]*J)"
    rb"|\x1b(?:[\]PX^_c]|\[(?![<-?]?[0-9:;]*[ -/]*[@-~])|(?![\[0-OQ-WYZ\\`-~]|[ -/]+[0-~]))"
    rb"|\xc2[\x80-\x9f]"
)


class TerminalText:
    """`feed` gives lines that can no longer change, `peek` those that can, `flush` gives them and begins anew.

    `when(offset)` tells seconds, for the duration of a full-screen stretch; `program` is what runs when nothing better
    is known; `full_screen`: the bytes begin inside such a stretch.
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
        self._scanner = Scanner(offset)
        self._sheet = Sheet(rows, cols, offset)
        self._printed = Printed()
        self._program = program
        self._when = when
        self._stretch: Stretch | None = None
        if full_screen:
            self._enter(offset, keep_cursor=True)

    @property
    def offset(self) -> int:
        """Of the next byte."""
        return self._scanner.offset

    @property
    def full_screen(self) -> bool:
        return self._stretch is not None

    def feed(self, data: bytes) -> str:
        return joined(self.feed_lines(data))

    def feed_lines(self, data: bytes) -> list[Line]:
        at = data.find(b"\n") + 1
        if at:
            # The rest of a line that was begun, so that what follows are whole ones.
            self._step(data[:at])
        while at < len(data):
            end = data.rfind(b"\n", at, at + _SLICE_BYTES) + 1 or at + _SLICE_BYTES
            piece = data[at:end]
            done = 0
            if self._scanner.idle:
                done = self._plain_lines(piece) if self._stretch is None else self._plain_drawing(piece)
            self._step(piece[done:] if done else piece)
            at = end
        self._drain()
        return self._printed.take()

    def _step(self, data: bytes) -> None:
        sheet = self._sheet
        for kind, at, raw in self._scanner.steps(data):
            if self._stretch is not None:
                self._take_full_screen(kind, at, raw)
            elif kind == TEXT:
                sheet.write(decode(raw), at)
            elif kind == CONTROL:
                self._control(raw[0], at)
            elif kind == CSI:
                if raw[-1] != _SGR:
                    self._sequence(*split_csi(raw), at)
            elif kind == ESC:
                self._escape(*split_esc(raw), at)

    def _plain_lines(self, piece: bytes) -> int:
        """Most of what is printed is lines below each other. When they all are printed, all but as many as there are
        rows have left: those need not be written on the sheet. How many bytes that were."""
        sheet = self._sheet
        raw = piece[: piece.rfind(b"\n") + 1]
        if not sheet.appending or self._printed.begun or raw.count(b"\n") <= sheet.rows:
            return 0
        clean = _LINE_END.sub(b"\n", _HARMLESS.sub(b"", raw))
        if clean.count(b"\n") != raw.count(b"\r\n") or not plain(clean):
            return 0
        text = decode(clean)
        if not sheet.takes_whole(text):
            return 0
        lines = raw.split(b"\n")[: -sheet.rows - 1]
        *offsets, end = accumulate([len(line) + 1 for line in lines], initial=self._scanner.offset)
        size = end - offsets[0]
        above = sheet.roll(end)
        # A line begins where the one before ended, also when colours were set in between.
        offsets[0] = above.pop().offset
        self._drain()
        self._printed.leave(above)
        self._printed.append(zip(offsets, [f"{line}\n" for line in text.split("\n")], strict=False))
        self._scanner.pass_over(size)
        return size

    def _plain_drawing(self, piece: bytes) -> int:
        """Whatever is only to be drawn goes to the grid at once."""
        assert self._stretch is not None
        at = 0
        while (stop := _STOP.search(piece, at)) is not None and stop.group(1):
            self._draw(piece[at : stop.start()])
            self._step(stop.group(1))
            at = stop.end()
            if self._stretch is None:
                return at
        # At every ESC a sequence begins, as none with a string in it is among them: so far all are whole.
        end = piece.rfind(b"\x1b", at) if stop is None else stop.start()
        if end > at:
            self._draw(piece[at:end])
            at = end
        return at

    def _draw(self, data: bytes) -> None:
        assert self._stretch is not None
        self._stretch.draw(data)
        self._scanner.pass_over(len(data))

    def settled(self) -> str:
        """For somebody who follows: the lines above the cursor too. One that is rewritten after that comes once more,
        when it leaves, in its last state."""
        self._drain()
        self._printed.early(self._sheet.page[: self._sheet.y])
        return joined(self._printed.take())

    def unfinished(self) -> str:
        """The row of the cursor."""
        sheet = self._sheet
        return "" if self._stretch is not None or sheet.y >= len(sheet.page) else sheet.page[sheet.y].text()

    def peek(self) -> str:
        return joined(self.peek_lines())

    def peek_lines(self) -> list[Line]:
        return self._with_stretch(self._printed.standing(self._sheet.used()))

    def flush(self) -> str:
        return joined(self.flush_lines())

    def flush_lines(self, *, cut: bool = True) -> list[Line]:
        """A sequence cut in half is dropped; a character too, unless it is `cut`: then it becomes U+FFFD."""
        rest = self._scanner.pending
        if cut and rest and rest[0] >= 0x80 and self._stretch is None:
            self._sheet.write(decode(rest), self._scanner.ground)
        self._drain()
        lines = self._with_stretch(self._printed.finish(self._sheet.used()))
        self._scanner = Scanner(self._scanner.offset)
        self._sheet.reset(self._scanner.offset)
        self._stretch = None
        return lines

    def pass_over(self, data: bytes) -> None:
        """These bytes are told elsewhere; what they leave unfinished goes on in the next ones."""
        for _ in self._scanner.steps(data):
            pass
        self._sheet.reset(self._scanner.ground)

    def leave_out(self, size: int) -> None:
        """So many bytes draw nothing: a sequence too long to be of use. The lines go on behind it."""
        self._scanner = Scanner(self._scanner.offset + size)

    def resize(self, rows: int, cols: int) -> None:
        """From here on the terminal has this size."""
        if (rows, cols) != (self._sheet.rows, self._sheet.cols):
            self._sheet.resize(rows, cols)
            if self._stretch is not None:
                self._stretch.resize(rows, cols)

    def _drain(self) -> None:
        if self._sheet.gone:
            self._printed.leave(self._sheet.gone)
            self._sheet.gone = []

    def _with_stretch(self, lines: list[Line]) -> list[Line]:
        if self._stretch is None:
            return lines
        if lines and lines[-1][1]:
            lines[-1] = (lines[-1][0], lines[-1][1].removesuffix("\n") + "\n")
        return lines + self._stretch.lines(self.offset, self._when)

    # The main screen.

    def _control(self, byte: int, at: int) -> None:
        sheet = self._sheet
        if 0x0A <= byte <= 0x0C:
            sheet.line_feed(at + 1)
            if len(sheet.gone) > _GONE_MAX:
                self._drain()
        elif byte == 0x0D:
            sheet.carriage_return()
        elif byte == 0x08:
            sheet.backspace()
        elif byte == 0x09:
            sheet.tab(at)
        elif byte in (0x0E, 0x0F):
            sheet.shift(0x0F - byte)

    def _sequence(self, prefix: bytes, body: bytes, intermediates: bytes, final: bytes, at: int) -> None:
        sheet = self._sheet
        given = numbers(body)
        if intermediates:
            if intermediates + final == b"!p":
                sheet.soft_reset()
            return
        if prefix == b"?" and final not in b"JK":
            if final in b"hl":
                self._private_modes(given, final == b"h", at)
            return
        if prefix not in (b"", b"?"):
            return
        first = given[0] if given else 0
        second = given[1] if len(given) > 1 else 0
        count = first or 1
        match final:
            case b"A":
                sheet.move(down=-count)
            case b"B" | b"e":
                sheet.move(down=count)
            case b"C" | b"a":
                sheet.move(right=count)
            case b"D":
                sheet.move(right=-count)
            case b"E":
                sheet.move(down=count)
                sheet.go(x=0)
            case b"F":
                sheet.move(down=-count)
                sheet.go(x=0)
            case b"G" | b"`":
                sheet.go(x=count - 1)
            case b"H" | b"f":
                sheet.go(count - 1, (second or 1) - 1)
            case b"d":
                sheet.go(count - 1)
            case b"I":
                sheet.tab(at, count)
            case b"Z":
                sheet.tab_back(count)
            case b"J":
                self._erase_display(first)
            case b"K":
                sheet.erase_line(first)
            case b"X":
                sheet.erase_cells(count, at)
            case b"@":
                sheet.insert_cells(count, at)
            case b"P":
                sheet.delete_cells(count, at)
            case b"L":
                sheet.insert_lines(count, at)
            case b"M":
                sheet.delete_lines(count, at)
            case b"S":
                sheet.scroll_up(count, at)
            case b"T" if len(given) < 2:
                sheet.scroll_down(count, at)
            case b"b":
                sheet.repeat(count, at)
            case b"r":
                sheet.margins(count - 1, (second or sheet.rows) - 1)
            case b"s" if not given:
                sheet.save()
            case b"u" if not given:
                sheet.restore()
            case b"h" | b"l":
                sheet.insert = final == b"h" if 4 in given else sheet.insert
                sheet.newline = final == b"h" if 20 in given else sheet.newline

    def _escape(self, intermediates: bytes, final: bytes, at: int) -> None:
        sheet = self._sheet
        if intermediates in (b"(", b")"):
            sheet.charset(int(intermediates == b")"), drawing=final == b"0")
        elif intermediates:
            return
        elif final == b"7":
            sheet.save()
        elif final == b"8":
            sheet.restore()
        elif final == b"D":
            sheet.line_feed(at)
        elif final == b"E":
            sheet.carriage_return()
            sheet.line_feed(at)
        elif final == b"M":
            sheet.reverse(at)
        elif final == b"c":
            self._cleared()
            sheet.reset(at)

    def _private_modes(self, modes: Sequence[int], on: bool, at: int) -> None:
        sheet = self._sheet
        for mode in modes:
            if mode == 6:
                sheet.origin = on
                sheet.go(0, 0)
            elif mode == 7:
                sheet.autowrap = on
            elif mode == 1048:
                (sheet.save if on else sheet.restore)()
            elif mode in _ALTERNATE_MODES and on:
                self._enter(at, keep_cursor=mode == 1049)

    def _erase_display(self, part: int) -> None:
        sheet = self._sheet
        if part == 2 or (part == 0 and sheet.x == 0 and sheet.y == 0):
            self._cleared()
        elif part == 0:
            sheet.erase_below()
        elif part == 1:
            sheet.erase_above()

    def _cleared(self) -> None:
        """What stood there was printed and read: it is text, unless the same screen is drawn anew."""
        self._drain()
        self._printed.clear(self._sheet.clear())

    # A full-screen stretch.

    def _enter(self, at: int, *, keep_cursor: bool) -> None:
        sheet = self._sheet
        if keep_cursor:
            sheet.save()
        self._stretch = Stretch(sheet.rows, sheet.cols, at, self._program)

    def _take_full_screen(self, kind: int, at: int, raw: bytes) -> None:
        stretch = self._stretch
        assert stretch is not None
        if kind == OSC:
            stretch.title(raw)
        elif kind == CSI:
            if raw[-1] == _ERASE_DISPLAY:
                stretch.clearing()
            elif raw[-1] == _RESET_MODE:
                prefix, body, _, _ = split_csi(raw)
                left = _ALTERNATE_MODES.intersection(numbers(body)) if prefix == b"?" else ()
                if left:
                    self._leave(at, keep_cursor=1049 in left)
                    return
        elif kind == ESC and raw == b"\x1bc":
            self._leave(at, keep_cursor=False)
            self._cleared()
            self._sheet.reset(at)
            return
        if kind in (TEXT, CONTROL, CSI, ESC):
            stretch.draw(raw)

    def _leave(self, at: int, *, keep_cursor: bool) -> None:
        stretch, sheet = self._stretch, self._sheet
        assert stretch is not None
        self._stretch = None
        if keep_cursor:
            sheet.restore()
        elif (cursor := stretch.cursor) is not None:
            sheet.go(*cursor)
        row = sheet.row(at)
        if row.cells:
            # It stands behind a row with something on it.
            if sheet.y + 1 == len(sheet.page):
                sheet.page.append(Row(at))
            row = sheet.page[sheet.y + 1]
        # One stretch a row: of a program that comes and goes without printing, the last.
        row.notes = stretch.lines(at, self._when)
