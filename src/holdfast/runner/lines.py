"""Raw output into clean lines, incrementally: the result never depends on how the bytes were cut into pieces.

UTF-8 with U+FFFD for bad bytes; escape sequences and control characters but TAB removed. LF ends a line whatever
stands before it, so a sequence that never ends cannot hide more than its own line. CR, however many, belong to the LF
behind them; a lone one ends a segment: what is overwritten was a line of its own, and drawn anew the same it is none.
"""

from __future__ import annotations

import re

from .escapes import CONTROL, TEXT, Scanner, unfinished

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINE_MAX_BYTES = 8192
OVERLAP_CHARS = 256

_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n") + b"\x7f"
_C1_CHARACTERS = re.compile("[\x80-\x9f]")
# Colours and their like, whole; what is left of any other sequence has an ESC.
CSI = re.compile(rb"\x1b\[[<-?]?[0-9:;]*[ -/]*[@-~]")
_C1 = tuple(b"\xc2" + bytes((byte,)) for byte in range(0x80, 0xA0))


class Line:
    """`offset` and `end` are absolute and raw; `end` is behind what ended it. `part` is 0 for a whole line, and counts
    from 1 where it was too long for one. A part begins with text of the one before: new is what stands from `fresh`."""

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
        # The line goes on in another part.
        self.cut = cut

    def __repr__(self) -> str:
        part = f" part {self.part}" if self.part else ""
        return f"<line {self.offset}-{self.end}{part}{' segment' if self.segment else ''}: {self.text!r}>"


class Lines:
    """`feed` gives what was finished, `partial` the unfinished line as it stands, `end` finishes it."""

    def __init__(
        self,
        offset: int = 0,
        *,
        max_bytes: int = LINE_MAX_BYTES,
        overlap: int = OVERLAP_CHARS,
        repeats: bool = False,
    ) -> None:
        # Of the next byte to come.
        self.offset = offset
        self._max = max_bytes
        self._overlap = overlap
        # Give a line again that was drawn again: for whoever leaves out segments.
        self._given_again = repeats
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
            body = piece if all_plain or self._open else CSI.sub(b"", piece).rstrip(b"\r")
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
        """None too where it only repeats what was given."""
        if self._size == self._kept:
            return None
        line = self._line(self.offset)
        line.part += 1 if line.part else 0
        return None if self._repeats(line) else line

    def end(self) -> list[Line]:
        """Nothing more comes. A character cut in half is U+FFFD, a sequence cut in half nothing."""
        out: list[Line] = []
        if self._open:
            self._finish(self.offset, out)
            out = [line for line in out if line.text]
        return out

    def pass_over(self, size: int) -> None:
        """The caller saw for itself that these bytes, from the start of a line, are whole lines nobody wants."""
        self.offset += size

    def skip_to(self, offset: int) -> None:
        """What comes next was printed elsewhere: the unfinished line is forgotten."""
        self.offset = offset
        self._reset(offset)

    def _reset(self, offset: int) -> None:
        self._open = False
        self._begin = offset
        # What the unfinished line says up to now: pieces of text and where they stood.
        self._runs: list[tuple[int, bytes]] = []
        self._size = 0
        self._scanner: Scanner | None = None
        # Behind a CR that is lone unless an LF comes before any text.
        self._cr = -1
        self._last = ""
        self._part = 0
        # Of the part before, at the head of the runs: bytes, and characters.
        self._kept = self._fresh = 0

    def _take(self, piece: bytes, at: int, out: list[Line]) -> None:
        """Some of the unfinished line; there is no LF in it."""
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
        """Give what there is as a part; its last characters begin the next one."""
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
        # At most half of a part, so that every part brings something new.
        size = min(len(text[-self._overlap :].encode()) if self._overlap else 0, self._max // 2)
        raw = b"".join(raw for _, raw in self._runs)
        return len(raw) - _border(raw, len(raw) - size) if size else 0

    def _finish(self, end: int, out: list[Line]) -> None:
        scanner = self._scanner
        assert scanner is not None
        if scanner.pending and not scanner.pending.startswith((b"\x1b", *_C1)):
            self._put(scanner.ground, scanner.pending, out)
        self._part += 1 if self._part else 0
        self._give(self._line(end), out)
        self._reset(end)

    def _give(self, line: Line, out: list[Line]) -> None:
        if line.segment and self._part:
            line.part = self._part + 1
        if not self._repeats(line) and (line.text or not line.segment):
            out.append(line)
        self._last = line.text

    def _repeats(self, line: Line) -> bool:
        return not line.part and bool(line.text) and line.text == self._last and not self._given_again

    def _line(self, end: int, *, segment: bool = False, cut: bool = False) -> Line:
        return Line(self._text(), self._begin, end, self._part, segment=segment, fresh=self._fresh, cut=cut)

    def _text(self) -> str:
        text = b"".join(raw for _, raw in self._runs).decode("utf-8", "replace")
        # The halves of a two-byte control may have stood around a sequence.
        return text if text.isascii() else _C1_CHARACTERS.sub("", text)


def _border(raw: bytes, at: int) -> int:
    """Here, or before the character that would be cut in two here."""
    back = unfinished(raw[:at])
    if back:
        lead = raw[at - back]
        character = raw[at - back : at - back + (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4)]
        try:
            character.decode()
        except UnicodeDecodeError:
            return at
    return at - back


def plain(data: bytes) -> bool:
    """True when cleaning would only decode: no control character but TAB and LF, in one byte or in two."""
    if len(data.translate(None, _CONTROLS)) != len(data):
        return False
    return data.isascii() or b"\xc2" not in data or not any(control in data for control in _C1)


def clean(raw: bytes) -> str:
    """A piece of output as text: every line as it was last drawn."""
    lines = Lines(max_bytes=max(16, len(raw)), overlap=0, repeats=True)
    return "\n".join(_last_states(lines.feed(raw) + lines.end()))


def tail(raw: bytes, at: int, *, lines: int, chars: int) -> dict[str, Any]:
    """The last lines of `raw`, which stands at this offset: from the start of a line, and as many as `lines` and
    `chars` allow. `cut` when anything printed before is not in it."""
    begin = len(raw)
    text: list[str] = []
    room = chars
    torn = False
    while begin and len(text) < lines:
        start = raw.rfind(b"\n", 0, begin - 1) + 1
        if not start and at and text:
            break  # its beginning is not here
        line = clean(raw[start:begin])
        if len(line) > room:
            if text:
                break
            line, torn = line[-room:], True
        torn = torn or (not start and at > 0)
        text.append(line)
        room -= len(line) + 1
        begin = start
    return {"text": "\n".join(reversed(text)), "offset": at + begin, "cut": torn or at + begin > 0}


def _last_states(lines: list[Line]) -> list[str]:
    """Without what was overwritten."""
    kept: list[str] = []
    overwritten = False
    for line in lines:
        if overwritten:
            kept.pop()
        kept.append(line.text)
        overwritten = line.segment
    return kept
