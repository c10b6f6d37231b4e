"""The tracker: reads what a program prints and knows the state that a terminal is in then. No cells.

Everything it says is true of the last ground offset. Text and colours are taken by the stretch (`bulk`), all else
token by token. Plain chunks may wait a little before they are taken; whoever looks finds them taken.
"""

from __future__ import annotations

from .bulk import count, first_odd, is_cut, skim
from .escapes import (
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .escapes import Chunk, Step

    Mark = dict[str, Any]

# A mark that is no clean start is made at every multiple of this; those that are and are told of are so far apart.
EVERY_BYTES = 1 << 20
CLEARS_APART_BYTES = 64 << 10
# A sequence longer than this gets a mark behind it, so that a reader of the log does not read through it.
LONG_SEQUENCE_BYTES = 64 << 10

# Plain output waits until there is so much of it.
_WAITING_MAX_BYTES = 64 << 10
# A stretch that is worth the bulk way, and how much is taken token by token before the next look for one.
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
        super().__init__(rows, cols, version, colors, clipboard, colorfgbg, term)
        self._scanner = Scanner()
        # Plain chunks; the last of them may be the beginning of a sequence.
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._cut_bytes = 0
        self._next_every = EVERY_BYTES
        self._told_every = 0
        # The newest place to build a screen from with nothing before it; the last told of, for either screen.
        self._last_clear: Mark | None = None
        self._told_clear = [-CLEARS_APART_BYTES, -CLEARS_APART_BYTES]
        # First and last byte of a sequence that is too long to be kept, once it has begun.
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
                # Half of a colour is at the end of many chunks: the rest of it comes with the next one.
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
            # Cut at the same place however the bytes came, so that the mark is the same.
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
        """`odd` is where the first odd thing stands, if that is known."""
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
                # Most sequences end soon, and a stretch may follow.
                step = _SEQUENCE_BYTES if step == _TOKENWISE_BYTES else step * 2
            end = min(at + step, size)
            self._take_tokens(data[at:end])
            at = end

    def _take_stretch(self, data: bytes) -> None:
        """Nothing in it is odd."""
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
        # A slice that begins outside any sequence is too short to contain one that is not kept.
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
        """The same steps, with a mark behind every long sequence."""
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
            # A page that grows takes rows back from the history, as far as we know of any.
            back = min(max(rows - cursor.rows, 0), max(self.line_count - self.history_start - cursor.row, 0))
        cursor.resize(rows, cols)
        cursor.row += back

    def client_colors(self, foreground: object, background: object) -> None:
        """What the latest control client reported of its terminal, each three bytes or None."""
        was_dark = self.colors.are_dark
        self.colors.client(foreground, background)
        self.scheme_changed(was_dark)

    # What came of it.

    def take_replies(self) -> list[bytes]:
        """The answers to questions, in the order of the stream."""
        replies, self.replies = self.replies, []
        return replies

    def take_marks(self) -> list[Mark]:
        marks, self._marks = self._marks, []
        return marks

    def take_news(self) -> bool:
        """Whether something changed that a client acts on."""
        news = self.news
        self.news = False
        return news

    # Marks.

    def mark(self, why: str) -> Mark:
        """Here. `alt` says which screen is blank from here on, where one is."""
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
        # Within one endless sequence there is but one ground offset.
        if self._scanner.ground > self._told_every:
            self._told_every = self._scanner.ground
            self._marks.append(self._mark_at(self._told_every, "every", False))

    def cleared(self, alternate: bool) -> None:
        self._last_clear = self._mark_at(self.at, "clear", alternate)
        if self.at - self._told_clear[alternate] >= CLEARS_APART_BYTES:
            self._told_clear[alternate] = self.at
            self._marks.append(self._last_clear)

    @property
    def last_clear(self) -> Mark | None:
        """The newest clean start, told of or not."""
        return self._last_clear

    # Looking.

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

    # What the encoder of keys looks at.

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
    def cwd(self) -> str | None:
        return self.labels.cwd

    @property
    def progress(self) -> list[int] | None:
        return self.labels.progress

    @property
    def prompt_zone(self) -> str | None:
        return self.labels.prompt_zone

    @property
    def last_exit_code(self) -> int | None:
        return self.labels.last_exit_code

    # The whole of it.

    def snapshot(self) -> dict[str, Any]:
        """All of the state as one JSON object, with the offset it is true of."""
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
        """One that goes on from there; `options` are those of the beginning."""
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
