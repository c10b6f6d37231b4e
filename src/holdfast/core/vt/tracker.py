"""The tracker: the state of a terminal, from what a program prints. No cells.

Its state is that at the last ground offset. Long stretches of text and colours are skimmed, all else is carried out
token by token. Plain chunks may wait a little before they are carried out; every property carries them out first.
"""

from __future__ import annotations

import re

from .colors import draw_pen, parse_pen
from .cursor import Cursor
from .parser import (
    CONTROL,
    CSI,
    DCS,
    ESC,
    OSC,
    OVERLONG,
    PENDING_MAX_BYTES,
    REST,
    TEXT,
    Scanner,
    split_esc,
    split_string,
)
from .sequences import State
from .widths import decode, last_shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .parser import Chunk, Step

    Mark = dict[str, Any]


# Long stretches of text and colours at C speed.
#
# Only the last lines matter to a state without cells: after enough linefeeds the cursor is at the bottom margin, after
# the last carriage return it is in the first column, and the last SGR of each kind counts.


_SGR = re.compile(rb"\x1b\[([0-9:;]*)m")
# SGR and EL: the first is skimmed, the second has no effect on the state after a carriage return.
_SGR_OR_EL = re.compile(rb"\x1b\[[0-9:;]*[mK]")
_ODD_ESC = re.compile(rb"\x1b(?!\[[0-9:;]*[mK])")
_C1 = re.compile(rb"\xc2(?![\xa0-\xbf])")
_CUT = re.compile(rb"\x1b(?:\[[0-9:;]*)?|\xc2")
_CUT_MAX_BYTES = 32
_INVISIBLE = bytes(range(0x20)) + b"\x7f"


def first_odd(data: bytes, at: int = 0) -> int:
    """The index of the first byte that is not part of text, of a colour or of a control of plain text.

    Nothing before it is a query or changes what a client acts on. An unfinished sequence at the end is odd, an
    unfinished character is not.
    """
    end = len(data)
    for shift in (b"\x0e", b"\x0f"):
        found = data.find(shift, at, end)
        if found >= 0:
            end = found
    # Searching for the byte first is much cheaper than searching for the pattern.
    if data.find(b"\x1b", at, end) >= 0:
        match = _ODD_ESC.search(data, at, end)
        if match is not None:
            end = match.start()
    if data.find(b"\xc2", at, end) >= 0:
        match = _C1.search(data, at, end)
        if match is not None:
            end = match.start()
    return end


def is_cut(data: bytes, odd: int) -> bool:
    """Whether what is odd may be the beginning of a sequence that is not."""
    return len(data) - odd <= _CUT_MAX_BYTES and _CUT.fullmatch(data, odd) is not None


def count(byte: bytes, data: bytes) -> int:
    """The same as `data.count(byte)`, several times faster."""
    return len(data) - len(data.replace(byte, b"")) if byte in data else 0


def skim(cursor: Cursor, data: bytes) -> int:
    """Carry out as much as possible of a stretch without anything odd, and return how many bytes that were. The cursor
    is in column 0 after them. 0 where the columns have to be counted."""
    if cursor.reverse_wrap or cursor.left or cursor.single_shift:
        return 0
    end = data.rfind(b"\r") + 1
    limit = cursor.bottom if cursor.row <= cursor.bottom else cursor.rows - 1
    if not end or (cursor.row < limit and data.count(b"\n", 0, end) < limit - cursor.row):
        return 0
    if data.find(b"\x1b", 0, end) >= 0:
        _skim_colors(cursor, data, end)
    _find_last(cursor, data, end)
    cursor.row = limit
    cursor.col = 0
    cursor.pending_wrap = False
    return end


def _skim_colors(cursor: Cursor, data: bytes, end: int) -> None:
    at = max(data.rfind(b"\x1b[0m", 0, end), data.rfind(b"\x1b[m", 0, end), 0)
    # The last of each, the very last first.
    bodies = dict.fromkeys(reversed(_SGR.findall(data, at, end)))
    strokes = []
    colored: set[bytes] = set()
    for body in bodies:
        # A gradient has a colour for every character: only the last one is parsed.
        kind = body[:3]
        single = kind in (b"38;", b"48;") and body.count(b";") == {b"2;": 4, b"5;": 2}.get(body[3:5])
        if single and kind in colored:
            continue
        stroke = parse_pen(body)
        if single and stroke[1]:
            colored.add(kind)
        strokes.append(stroke)
    for stroke in reversed(strokes):
        draw_pen(cursor.pen, stroke)


def _find_last(cursor: Cursor, data: bytes, end: int) -> None:
    """Set the last character shown, from the last line that has one."""
    end = len(data[:end].rstrip(_INVISIBLE))
    while end:
        start = data.rfind(b"\n", 0, end - 1) + 1
        line = data[start:end]
        if b"\x1b" in line:
            line = _SGR_OR_EL.sub(b"", line)
        line = line.strip(_INVISIBLE)
        character = last_shown(decode(line))
        if character:
            cursor.last = character.encode()
            return
        end = start


# A mark is made at every multiple of this, whether or not a screen begins there; recorded clears are at least so far
# apart.
EVERY_BYTES = 1 << 20
CLEARS_APART_BYTES = 64 << 10
# A longer sequence gets a mark after it, so that a reader of the log can skip it.
LONG_SEQUENCE_BYTES = 64 << 10

# Plain output waits until there is this much of it.
_WAITING_MAX_BYTES = 64 << 10
# The shortest stretch that is skimmed, and how much is carried out token by token before the next search for one.
_STRETCH_MIN_BYTES = 1024
_TOKENWISE_BYTES = 2048
_SEQUENCE_BYTES = 16


class Tracker(State):
    def __init__(
        self,
        rows: int,
        cols: int,
        version: str = "0",
        colors: dict[str, Any] | None = None,
        clipboard: bool = False,
        colorfgbg: str | None = None,
        term: str = "xterm-256color",
    ) -> None:
        super().__init__(Cursor(rows, cols), version, colors, clipboard, colorfgbg, term)
        self._scanner = Scanner()
        # Plain chunks; the last one may be the beginning of a sequence.
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._cut_bytes = 0
        self._next_every = EVERY_BYTES
        self._marked_every = 0
        # The newest mark that a screen can be built from with nothing before it, recorded or not.
        self.last_clear: Mark | None = None
        # The last recorded one of each screen.
        self._marked_clear = [-CLEARS_APART_BYTES, -CLEARS_APART_BYTES]
        # Where a sequence that is too long to be kept begins, and where it ends so far.
        self._long: tuple[int, int] | None = None
        self._marks = [self.mark("start")]

    # Output.

    def feed(self, chunk: Chunk) -> None:
        data = chunk if type(chunk) is bytes else bytes(chunk)
        if self._scanner.idle and self.offset + len(data) < self._next_every:
            if self._cut_bytes:
                data = self._waiting.pop() + data
                self._waiting_bytes -= self._cut_bytes
                self._cut_bytes = 0
            odd = first_odd(data)
            if odd == len(data):
                self._wait(data)
            elif is_cut(data, odd):
                # Many chunks end within an SGR: its rest comes with the next one.
                self._wait(data[:odd])
                self._cut_bytes = len(data) - odd
                self._wait(data[odd:])
            else:
                self._settle()
                self._take(data, odd)
            if self._waiting_bytes >= _WAITING_MAX_BYTES:
                self._settle()
            return
        self._settle()
        while self._scanner.offset + len(data) >= self._next_every:
            # Cut at the same offset however the bytes arrived, so that the mark is the same.
            before = self._next_every - self._scanner.offset
            self._take(data[:before])
            data = data[before:]
            self._next_every += EVERY_BYTES
            self._mark_every()
        self._take(data)

    def _wait(self, data: bytes) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)

    def _settle(self) -> None:
        if self._waiting:
            cut = self._waiting.pop() if self._cut_bytes else b""
            data = b"".join(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = self._cut_bytes = 0
            self._take_stretch(data)
            self._take_tokens(cut)

    def _take(self, data: bytes, odd: int = -1) -> None:
        """`odd` is what `first_odd` returned, if it was called."""
        at, size = 0, len(data)
        step = _TOKENWISE_BYTES
        while at < size:
            if self._scanner.idle:
                step = _TOKENWISE_BYTES
                if size - at >= _STRETCH_MIN_BYTES:
                    odd = first_odd(data, at) if odd < at else odd
                    if odd - at >= _STRETCH_MIN_BYTES:
                        self._take_stretch(data[at:odd])
                        at = odd
            else:
                # Most sequences are short, and a stretch may follow.
                step = _SEQUENCE_BYTES if step == _TOKENWISE_BYTES else step * 2
            end = min(at + step, size)
            self._take_tokens(data[at:end])
            at = end

    def _take_stretch(self, data: bytes) -> None:
        """Carry out data without anything odd."""
        taken = skim(self.cursor, data)
        if taken:
            skimmed = data[:taken]
            if not self.modes.alternate:
                self.line_count += count(b"\n", skimmed)
            self.labels.bells += count(b"\x07", skimmed)
            self._scanner.pass_over(taken)
            data = data[taken:]
        self._take_tokens(data)

    def _take_tokens(self, data: bytes) -> None:
        write = self.cursor.write
        known = self.known
        controls = self.controls
        # A short slice that begins outside any sequence contains no overlong one.
        steps = self._scanner.steps(data) if self._scanner.idle and len(data) < PENDING_MAX_BYTES else self._steps(data)
        for kind, at, raw in steps:
            if kind == TEXT:
                write(raw)
            elif kind == CSI:
                self.at = at
                action, argument = known.get(raw) or self.csi(raw)
                action(argument)
            elif kind == CONTROL:
                control = controls.get(raw)
                if control is not None:
                    control()
            elif kind == ESC:
                self.at = at
                self.escape(*split_esc(raw))
            elif kind == OSC:
                self.operating_system_command(*split_string(raw))
            elif kind == DCS:
                self.device_control(raw)

    def _steps(self, data: bytes) -> Iterator[Step]:
        """The steps of the scanner, with a mark after every long sequence."""
        for step in self._scanner.steps(data):
            kind, at, raw = step
            if kind == OVERLONG:
                self._end_long()
                self._long = at, at + len(raw)
            elif kind == REST:
                if self._long is not None:
                    self._long = self._long[0], at + len(raw)
            else:
                self._end_long()
            yield step
        if self._scanner.idle:
            self._end_long()

    def _end_long(self) -> None:
        long, self._long = self._long, None
        if long is not None and long[1] - long[0] >= LONG_SEQUENCE_BYTES:
            self._marks.append({**self._mark_at(long[1], "skip", False), "from": long[0]})

    def resize(self, rows: int, cols: int) -> None:
        self._settle()
        cursor = self.cursor
        back = 0
        if cursor.row == cursor.rows - 1 and not self.modes.alternate:
            # A page that grows takes rows back from the history, if it has any.
            back = min(max(rows - cursor.rows, 0), max(self.line_count - self.history_start - cursor.row, 0))
        cursor.resize(rows, cols)
        cursor.row += back

    def client_colors(self, foreground: object, background: object) -> None:
        """The colours that the latest control client reported, each three bytes or None."""
        was_dark = self.colors.are_dark
        self.colors.client(foreground, background)
        self.scheme_changed(was_dark)

    # Results.

    def take_replies(self) -> list[bytes]:
        """The answers to queries, in the order of the stream."""
        replies, self.replies = self.replies, []
        return replies

    def take_marks(self) -> list[Mark]:
        marks, self._marks = self._marks, []
        return marks

    def take_news(self) -> bool:
        """Whether something changed that a client acts on."""
        news, self.news = self.news, False
        return news

    # Marks.

    def mark(self, why: str) -> Mark:
        """A mark at the last ground offset. Its `alt` says which screen is blank there, if one is."""
        self._settle()
        return self._mark_at(self._scanner.ground, why, False)

    def _mark_at(self, offset: int, why: str, alternate: bool) -> Mark:
        state = self._describe(offset)
        return {
            "offset": offset,
            "why": why,
            "lines": self.line_count,
            "size": state["size"],
            "alt": alternate,
            "state": state,
        }

    def _mark_every(self) -> None:
        # A sequence without end has only one ground offset.
        if self._scanner.ground > self._marked_every:
            self._marked_every = self._scanner.ground
            self._marks.append(self._mark_at(self._marked_every, "every", False))

    def cleared(self, alternate: bool) -> None:
        if not alternate:
            # A page that grows takes back only what scrolls off from now on.
            self.history_start = max(0, self.line_count - self.cursor.row)
        self.last_clear = self._mark_at(self.at, "clear", alternate)
        if self.at - self._marked_clear[alternate] >= CLEARS_APART_BYTES:
            self._marked_clear[alternate] = self.at
            self._marks.append(self.last_clear)

    # State.

    @property
    def offset(self) -> int:
        return self._scanner.offset + self._waiting_bytes

    @property
    def ground(self) -> int:
        self._settle()
        return self._scanner.ground

    @property
    def lines(self) -> int:
        self._settle()
        return self.line_count

    @property
    def row(self) -> int:
        self._settle()
        return self.cursor.row

    @property
    def col(self) -> int:
        self._settle()
        return self.cursor.col

    @property
    def pending_wrap(self) -> bool:
        self._settle()
        return self.cursor.pending_wrap

    @property
    def bells(self) -> int:
        self._settle()
        return self.labels.bells

    # What the encoder of keys needs.

    @property
    def app_cursor(self) -> bool:
        return 1 in self.modes.dec

    @property
    def app_keypad(self) -> bool:
        return 66 in self.modes.dec

    @property
    def backarrow(self) -> bool:
        return 67 in self.modes.dec

    @property
    def modify_other_keys(self) -> int:
        return self.keys.modify_other

    @property
    def kitty_flags(self) -> int:
        return self.keys.kitty[self.modes.alternate][-1]

    @property
    def bracketed_paste(self) -> bool:
        return 2004 in self.modes.dec

    @property
    def focus_events(self) -> bool:
        return 1004 in self.modes.dec

    @property
    def mouse(self) -> int:
        return self.modes.mouse

    @property
    def mouse_encoding(self) -> str:
        return self.modes.mouse_encoding

    @property
    def alt_screen(self) -> bool:
        return self.modes.alternate

    @property
    def sync_open(self) -> bool:
        return self.modes.is_updating

    @property
    def title(self) -> str:
        return self.labels.title

    @property
    def prompt_zone(self) -> str | None:
        return self.labels.prompt_zone

    # Snapshots.

    def snapshot(self) -> dict[str, Any]:
        """The whole state as one JSON object, with its offset."""
        self._settle()
        return self._describe(self._scanner.ground)

    def _describe(self, offset: int) -> dict[str, Any]:
        cursor = self.cursor
        return {
            "offset": offset,
            "lines": self.line_count,
            "history_start": self.history_start,
            "size": [cursor.rows, cursor.cols],
            **cursor.snapshot(),
            "shape": self.cursor_shape,
            "alt": self.modes.alternate,
            "alt_entry": self.alt_entry,
            "alt_clean": self.alt_clean,
            "modes": self.modes.snapshot(),
            "keys": self.keys.snapshot(),
            "colors": self.colors.snapshot(),
            "labels": self.labels.snapshot(),
        }

    @classmethod
    def from_snapshot(cls, snapshot: dict[str, Any], **options: Any) -> Tracker:
        """A tracker that continues from there; `options` are those of `__init__`."""
        tracker = cls(*snapshot["size"], **options)
        tracker._scanner = Scanner(snapshot["offset"])
        tracker._next_every = (snapshot["offset"] // EVERY_BYTES + 1) * EVERY_BYTES
        tracker._marks = []
        tracker.line_count = snapshot["lines"]
        tracker.history_start = snapshot["history_start"]
        tracker.cursor_shape = snapshot["shape"]
        tracker.modes.continue_from(snapshot["modes"], snapshot["alt"])
        tracker.alt_entry = snapshot["alt_entry"]
        tracker.alt_clean = snapshot["alt_clean"]
        tracker.cursor.continue_from(snapshot, tracker.modes)
        tracker.keys.continue_from(snapshot["keys"])
        tracker.colors.continue_from(snapshot["colors"])
        tracker.labels.continue_from(snapshot["labels"])
        return tracker
