"""Bytes to clean text, incrementally: the result never depends on how the bytes were cut into pieces.

UTF-8 with U+FFFD for invalid bytes. Escape sequences and control characters but TAB are removed. Every LF ends a line,
also inside a sequence, so the lines of the text are the lines of the log, with the same numbers.

`Cleaner` is for reading a log: a lone CR overwrites, backspace and cursor-forward step over text and erase-line erases,
so that a progress bar becomes its last state. `Lines` is for searching while a command prints: each line has its
offsets, and what a lone CR overwrites is a segment of its own.
"""

from __future__ import annotations

import re

from .parser import CONTROL, CSI, TEXT, Scanner, numbers, split_csi
from .parser import unfinished as unfinished_character
from .widths import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# A line without an end is given in parts of this many characters, and a given part is never overwritten.
LINE_MAX_CHARS = 1 << 20
# Bytes are read in slices, so that one progress bar slows down only its own slice.
_SLICE_BYTES = 1 << 16
# From this size on, 28 searches at memory speed are faster than one pass over every byte.
_SMALL_BYTES = 8192
# A longer sequence may never end, so its rest is not waited for.
_SEQUENCE_MAX_BYTES = 4096

_CONTROLS_BUT_CR = bytes(byte for byte in range(32) if byte not in b"\t\n\r") + b"\x7f"
_EACH_CONTROL_BUT_CR = tuple(bytes((control,)) for control in _CONTROLS_BUT_CR)
_LONE_CR = re.compile(rb"\r[^\r\n]")
_C1_BYTES = re.compile(rb"\xc2[\x80-\x9f]")
# SGR, and erasing to the end of a line, which changes nothing at its end.
_HARMLESS = re.compile(rb"\x1b\[(?:[0-9;:]*m|0?K)")
_TAB_COLUMNS = 8
# The last lines are looked for in this much of a stream.
_TAIL_BYTES = 16 << 10


def plain(data: bytes) -> bool:
    """True when cleaning would only decode: no control character but TAB and LF, in one byte or in two."""
    return b"\r" not in data and readable(data)


def readable(data: bytes) -> bool:
    """True when the bytes of a line are its text: no control character but TAB, LF, and CRs before an LF."""
    if len(data) < _SMALL_BYTES:
        if len(data.translate(None, _CONTROLS_BUT_CR)) != len(data):
            return False
    elif any(control in data for control in _EACH_CONTROL_BUT_CR):
        return False
    if b"\r" in data and _LONE_CR.search(data) is not None:
        return False
    return data.isascii() or b"\xc2" not in data or _C1_BYTES.search(data) is None


def clean(data: bytes) -> str:
    cleaner = Cleaner()
    return cleaner.feed(data) + cleaner.flush()


def unfinished(data: bytes) -> int:
    """How many bytes at the end are the beginning of a character or sequence that may still be finished."""
    scanner = Scanner()
    for _ in scanner.steps(data[max(data.rfind(b"\n") + 1, len(data) - _SEQUENCE_MAX_BYTES) :]):
        pass
    return len(scanner.pending)


def log_tail(log: Any, stream: str, *, lines: int, chars: int, since: int = 0) -> dict[str, Any]:
    """The last lines of a runner's log as `tail` has them. What was printed before `since` does not count as cut. Not a
    method of the log: hosts read logs without cleaning text."""
    end = log.end(stream)
    try:
        at, raw = log.read(stream, max(since, end - _TAIL_BYTES), _TAIL_BYTES)
    except OSError:
        return {"text": "", "offset": end, "cut": True}
    missing = at if at > since else 0
    found = tail(raw, missing, lines=lines, chars=chars)
    return {**found, "offset": found["offset"] + at - missing}


def tail(raw: bytes, at: int, *, lines: int, chars: int) -> dict[str, Any]:
    """The last lines of `raw`, which begins at offset `at`: whole lines, as many as `lines` and `chars` allow. `cut`:
    not everything that was printed is in it."""
    begin = len(raw)
    text: list[str] = []
    room = chars
    torn = False
    while begin and len(text) < lines:
        start = raw.rfind(b"\n", 0, begin - 1) + 1
        if not start and at and text:
            break  # its beginning is not here
        line = clean(raw[start:begin].rstrip(b"\n"))
        if len(line) > room:
            if text:
                break
            line, torn = line[-room:], True
        torn = torn or (not start and at > 0)
        text.append(line)
        room -= len(line) + 1
        begin = start
    return {"text": "\n".join(reversed(text)), "offset": at + begin, "cut": torn or at + begin > 0}


class Cleaner:
    """`feed` returns finished lines, `peek` the unfinished one, `flush` returns it and starts again."""

    __slots__ = ("_cells", "_column", "_length", "_parts", "_scanner")

    def __init__(self) -> None:
        self._scanner = Scanner()
        # The unfinished line: parts while it is only appended to, cells once something was overwritten.
        self._parts: list[str] = []
        self._cells: list[str] | None = None
        self._length = self._column = 0

    @property
    def idle(self) -> bool:
        """Nothing is unfinished: the next byte begins a line."""
        return self._scanner.idle and not self._length and not self._column

    def feed(self, data: bytes) -> str:
        out: list[str] = []
        at = 0
        while at < len(data):
            end = data.rfind(b"\n", at, at + _SLICE_BYTES) + 1 or at + _SLICE_BYTES
            piece = data[at:end]
            at = end
            if self._scanner.idle and self._column == self._length:
                if plain(piece):
                    self._append(piece, out)
                    continue
                if piece.endswith(b"\n"):
                    # In this order: a remaining CR, with an erasing after it, needs the slow way.
                    colorless = _HARMLESS.sub(b"", piece.replace(b"\r\n", b"\n"))
                    if plain(colorless):
                        self._append(colorless, out)
                        continue
            *lines, rest = piece.split(b"\n")
            for line in lines:
                # A sequence may continue in the next line.
                self._take(line + b"\n", out)
                out += (self.peek(), "\n")
                self._new_line()
            self._take(rest, out)
        return "".join(out)

    def peek(self) -> str:
        if self._cells is not None:
            return "".join(self._cells)
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def flush(self) -> str:
        """The unfinished line. An unfinished character becomes U+FFFD, an unfinished sequence is dropped."""
        out: list[str] = []
        self._put(decode(self._scanner.half_character), out)
        out.append(self.peek())
        self._scanner = Scanner()
        self._new_line()
        return "".join(out)

    def _append(self, data: bytes, out: list[str]) -> None:
        """Append text that only needs decoding."""
        cut = data.rfind(b"\n") + 1
        if cut:
            out += (self.peek(), decode(data[:cut]))
            self._new_line()
            data = data[cut:]
        if not data:
            return
        whole = len(data) - unfinished_character(data)
        self._put(decode(data[:whole]), out)
        self._scanner.hold(data[whole:])

    def _take(self, piece: bytes, out: list[str]) -> None:
        """Take some of the unfinished line, at most up to its LF."""
        for kind, _, raw in self._scanner.steps(piece):
            if kind == TEXT:
                self._put(decode(raw), out)
            elif kind == CSI:
                if raw.endswith(b"K"):
                    self._erase(raw)
                elif raw.endswith(b"C"):
                    self._forward(raw)
            elif kind != CONTROL:
                continue
            elif raw == b"\r":
                self._column = 0
            elif raw == b"\b":
                self._column = max(0, self._column - 1)
            elif raw == b"\t":
                self._tab(out)

    def _new_line(self) -> None:
        self._parts, self._cells = [], None
        self._length = self._column = 0

    def _tab(self, out: list[str]) -> None:
        """A TAB only moves over existing text; after the end it is text."""
        stop = (self._column // _TAB_COLUMNS + 1) * _TAB_COLUMNS
        if stop < self._length:
            self._column = stop
        else:
            self._column = max(self._column, self._length)
            self._put("\t", out)

    def _forward(self, raw: bytes) -> None:
        """Move over existing text, as line editors do to leave a prompt as it is."""
        prefix, body, intermediates, _ = split_csi(raw)
        if not prefix and not intermediates:
            steps = (*numbers(body), 0)[0] or 1
            self._column = max(self._column, min(self._column + steps, self._length))

    def _put(self, text: str, out: list[str]) -> None:
        if not text:
            return
        if self._column > self._length:
            text = " " * (self._column - self._length) + text
            self._column = self._length
        if self._column == 0 and len(text) >= self._length:
            self._parts, self._cells = [text], None
            self._column = self._length = len(text)
        elif self._column == self._length and self._cells is None:
            self._parts.append(text)
            self._column = self._length = self._length + len(text)
        else:
            cells = self._cells
            if cells is None:
                cells = self._cells = list(self.peek())
                self._parts = []
            cells[self._column : self._column + len(text)] = text
            self._column += len(text)
            self._length = len(cells)
        if self._length > LINE_MAX_CHARS:
            self._hand_out(out)

    def _hand_out(self, out: list[str]) -> None:
        line = self.peek()
        keep = (len(line) - 1) % LINE_MAX_CHARS + 1
        out.append(line[:-keep])
        self._parts, self._cells = [line[-keep:]], None
        self._column -= self._length - keep
        self._length = keep

    def _erase(self, raw: bytes) -> None:
        prefix, body, intermediates, _ = split_csi(raw)
        part = (*numbers(body), 0)[0]
        if prefix or intermediates or part > 2:
            return
        if part == 1:
            cells = list(self.peek())
            stop = min(self._column + 1, len(cells))
            cells[:stop] = " " * stop
            self._cells, self._parts = cells, []
            return
        kept = self.peek()[: 0 if part == 2 else self._column]
        self._parts, self._cells = [kept] if kept else [], None
        self._length = len(kept)


# Lines, for searching.


LINE_MAX_BYTES = 8192
OVERLAP_CHARS = 256

_C1_CHARACTERS = re.compile("[\x80-\x9f]")
# Colours and other CSI; any other sequence leaves an ESC behind.
CSI_SEQUENCE = re.compile(rb"\x1b\[[<-?]?[0-9:;]*[ -/]*[@-~]")


class Line:
    """`offset` and `end` are absolute and raw; `end` is after its line end. `part` is 0 for a whole line, and counts
    from 1 if the line was too long for one. A part repeats the end of the one before: new text begins at `fresh`."""

    __slots__ = ("cut", "end", "fresh", "offset", "part", "segment", "text")

    def __init__(
        self,
        text: str,
        offset: int,
        end: int,
        part: int = 0,
        *,
        segment: bool = False,
        fresh: int = 0,
        cut: bool = False,
    ) -> None:
        self.text = text
        self.offset = offset
        self.end = end
        self.part = part
        # Ended by a lone CR.
        self.segment = segment
        self.fresh = fresh
        # The line continues in another part.
        self.cut = cut

    def __repr__(self) -> str:
        part = f" part {self.part}" if self.part else ""
        return f"<line {self.offset}-{self.end}{part}{' segment' if self.segment else ''}: {self.text!r}>"


class Lines:
    """`feed` returns finished lines, `partial` the unfinished one as it is now, `end` finishes it."""

    def __init__(
        self,
        offset: int = 0,
        *,
        max_bytes: int = LINE_MAX_BYTES,
        overlap: int = OVERLAP_CHARS,
        keep_repeats: bool = False,
    ) -> None:
        # The offset of the next byte.
        self.offset = offset
        self._max = max_bytes
        self._overlap = overlap
        # Give a line again that was drawn again: for readers that ignore segments.
        self._keep_repeats = keep_repeats
        self._reset(offset)

    @property
    def at_start(self) -> bool:
        """Nothing is unfinished: the next byte begins a line."""
        return not self._open

    def feed(self, chunk: bytes | bytearray) -> list[Line]:
        data = bytes(chunk)
        out: list[Line] = []
        all_plain = plain(data)
        at = self.offset
        pieces = data.split(b"\n")
        rest = pieces.pop()
        for piece in pieces:
            after = at + len(piece) + 1
            body = piece if all_plain or self._open else CSI_SEQUENCE.sub(b"", piece).rstrip(b"\r")
            if not self._open and len(body) <= self._max and (all_plain or plain(body)):
                out.append(Line(body.decode("utf-8", "replace"), at, after))
            else:
                self._take(piece, at, out)
                self._finish(after, out)
            at = after
        self.offset = at + len(rest)
        if rest:
            self._take(rest, at, out)
        return out

    def partial(self) -> Line | None:
        """None if there is none, or if it only repeats what was given."""
        if self._size == self._kept:
            return None
        line = self._line(self.offset)
        line.part += 1 if line.part else 0
        return None if self._is_dropped_repeat(line) else line

    def end(self) -> list[Line]:
        """Nothing more comes. An unfinished character becomes U+FFFD, an unfinished sequence is dropped."""
        out: list[Line] = []
        if self._open:
            self._finish(self.offset, out)
            out = [line for line in out if line.text]
        return out

    def pass_over(self, size: int) -> None:
        """Skip bytes that the caller knows to be whole lines, from the start of one."""
        self.offset += size

    def skip_to(self, offset: int) -> None:
        """Continue at another offset. The unfinished line is dropped."""
        self.offset = offset
        self._reset(offset)

    def _reset(self, offset: int) -> None:
        self._open = False
        self._begin = offset
        # The text of the unfinished line: pieces and their offsets.
        self._runs: list[tuple[int, bytes]] = []
        self._size = 0
        self._scanner: Scanner | None = None
        # The offset after a CR that is lone unless an LF comes before any text.
        self._cr = -1
        self._last = ""
        self._part = 0
        # How much of the part before is at the head of the runs: bytes, and characters.
        self._kept = self._fresh = 0

    def _take(self, piece: bytes, at: int, out: list[Line]) -> None:
        """Take some of the unfinished line, without LF."""
        if self._scanner is None:
            self._open = True
            self._begin = at
            self._scanner = Scanner(at)
        for kind, offset, raw in self._scanner.steps(piece):
            if kind == TEXT:
                self._put(offset, raw, out)
            elif kind == CONTROL:
                if raw == b"\t":
                    self._put(offset, raw, out)
                elif raw == b"\r":
                    self._cr = offset + 1

    def _put(self, offset: int, raw: bytes, out: list[Line]) -> None:
        if self._cr >= 0:
            self._give(self._line(self._cr, segment=True), out)
            self._begin, self._cr = self._cr, -1
            self._runs, self._size, self._part, self._kept, self._fresh = [], 0, 0, 0, 0
        while self._size + len(raw) > self._max:
            room = _border(raw, self._max - self._size)
            if room:
                self._runs.append((offset, raw[:room]))
                offset, raw = offset + room, raw[room:]
            self._cut(offset, out)
        self._runs.append((offset, raw))
        self._size += len(raw)

    def _cut(self, end: int, out: list[Line]) -> None:
        """Give the text so far as a part. Its last characters begin the next one."""
        self._part += 1
        line = self._line(end, cut=True)
        out.append(line)
        kept = self._overlap_bytes(line.text)
        runs: list[tuple[int, bytes]] = []
        while kept:
            offset, raw = self._runs.pop()
            taken = raw[-kept:]
            runs.append((offset + len(raw) - len(taken), taken))
            kept -= len(taken)
        self._runs = runs[::-1]
        self._size = self._kept = sum(len(raw) for _, raw in runs)
        self._fresh = len(self._text())
        self._begin = self._runs[0][0] if runs else end

    def _overlap_bytes(self, text: str) -> int:
        # At most half of a part, so that every part has new text.
        size = min(len(text[-self._overlap :].encode()) if self._overlap else 0, self._max // 2)
        raw = b"".join(raw for _, raw in self._runs)
        return len(raw) - _border(raw, len(raw) - size) if size else 0

    def _finish(self, end: int, out: list[Line]) -> None:
        scanner = self._scanner
        assert scanner is not None
        if scanner.half_character:
            self._put(scanner.ground, scanner.pending, out)
        self._part += 1 if self._part else 0
        self._give(self._line(end), out)
        self._reset(end)

    def _give(self, line: Line, out: list[Line]) -> None:
        if line.segment and self._part:
            line.part = self._part + 1
        if not self._is_dropped_repeat(line) and (line.text or not line.segment):
            out.append(line)
        self._last = line.text

    def _is_dropped_repeat(self, line: Line) -> bool:
        return not line.part and bool(line.text) and line.text == self._last and not self._keep_repeats

    def _line(self, end: int, *, segment: bool = False, cut: bool = False) -> Line:
        return Line(self._text(), self._begin, end, self._part, segment=segment, fresh=self._fresh, cut=cut)

    def _text(self) -> str:
        text = b"".join(raw for _, raw in self._runs).decode("utf-8", "replace")
        # The halves of a two-byte control may have been around a sequence.
        return text if text.isascii() else _C1_CHARACTERS.sub("", text)


def _border(raw: bytes, at: int) -> int:
    """This index, or that of the character that would be cut in two there."""
    back = unfinished_character(raw[:at])
    if back:
        lead = raw[at - back]
        character = raw[at - back : at - back + (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4)]
        try:
            character.decode()
        except UnicodeDecodeError:
            return at
    return at - back
