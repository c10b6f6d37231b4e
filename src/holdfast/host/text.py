"""Bytes to clean text, incrementally: the result never depends on how the bytes were cut into pieces.

UTF-8 with U+FFFD for bad bytes; escape sequences removed; a lone CR overwrites, backspace steps left and
erase-line erases, so that a progress bar is its last state; other control characters but TAB dropped. Every
LF ends a line, also inside a sequence, so the lines of the text are the lines of the log, with their numbers.
"""

from __future__ import annotations

import codecs
import re

# A line without an end is handed out in parts of this many characters, and a part is never overwritten.
LINE_MAX_CHARS = 1 << 20
# Text is looked at in slices, so that one progress bar sends only its own slice the slow way.
_SLICE_CHARS = 1 << 16
# Only `CSI n K` needs its parameter; a longer one belongs to something that is dropped whole.
_PARAMETER_MAX_CHARS = 16
# From here on 29 searches at memory speed are faster than one pass over every byte.
_SMALL_BYTES = 8192

_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n") + b"\x7f"
_C1_BYTES = re.compile(rb"\xc2[\x80-\x9f]")
_NOT_PLAIN = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_NOT_PLAIN_NOR_LF = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# What colouring tools print: at the end of a line, erasing up to its end changes nothing.
_HARMLESS = re.compile("\x1b\\[(?:[0-9;:]*m|0?K)")
_OPENER = re.compile(rb"\x1b|\xc2[\x80-\x9f]")
# A sequence that is longer is not waited for: somebody may never end it.
_SEQUENCE_MAX_BYTES = 4096
_STRING_STOP = re.compile("[\x07\x0a\x18\x1a\x1b\x80-\x9f]")

_GROUND, _ESCAPE, _INTERMEDIATE, _CSI, _OSC, _STRING = range(6)
_AFTER_ESCAPE = {"[": _CSI, "]": _OSC, "P": _STRING, "X": _STRING, "^": _STRING, "_": _STRING}
_AFTER_C1 = {chr(ord(final) + 0x40): state for final, state in _AFTER_ESCAPE.items()}

# Bidi controls, characters without width, variation selectors and tags that can carry hidden text, blank fillers. The
# selector that makes an emoji of a symbol (U+FE0F) is not among them: it says one thing only, and is common.
_HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_JOINERS = "\u200c\u200d\u2060"
_JOINER = re.compile(f"[{_JOINERS}]")


def plain(data: bytes) -> bool:
    """True when cleaning would only decode: no control character but TAB and LF, in one byte or in two."""
    if len(data) < _SMALL_BYTES:
        if len(data.translate(None, _CONTROLS)) != len(data):
            return False
    else:
        for control in _CONTROLS:
            if data.find(control) >= 0:
                return False
    return data.isascii() or _C1_BYTES.search(data) is None


def is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def decode(data: bytes) -> str:
    """For bytes that are clean already, or a line that `plain` found to be."""
    return data.decode("utf-8", "replace")


def clean(data: bytes) -> str:
    cleaner = Cleaner()
    return cleaner.feed(data) + cleaner.flush()


def unfinished(data: bytes) -> int:
    """How many bytes at the end begin a character or a sequence that what follows may finish."""
    line = data[max(data.rfind(b"\n") + 1, len(data) - _SEQUENCE_MAX_BYTES) :]
    openers = [found.start() for found in _OPENER.finditer(line)]
    line = line[openers[-1] :] if openers else line
    cleaner = Cleaner()
    cleaner.feed(line)
    return len(line) if cleaner.in_sequence else cleaner.undecoded


def visible(text: str, *, joiners: bool = False) -> str:
    """Bidi controls, zero-width and tag characters as `\\u{...}`; `joiners` keeps those that join letters."""

    def shown(found: re.Match[str]) -> str:
        character = found.group()
        return character if joiners and character in _JOINERS else f"\\u{{{ord(character):x}}}"

    return text if text.isascii() else _HIDDEN.sub(shown, text)


def all_visible(text: str) -> str:
    """For a whole text: joiners stay only between two characters that can be joined, letters of scripts that need them
    or emoji. Anywhere else they are hidden characters like the others."""

    def shown(found: re.Match[str]) -> str:
        at = found.start()
        before, after = text[at - 1 : at] if at else "", text[at + 1 : at + 2]
        joins = not any(not each or each.isascii() or each in _JOINERS for each in (before, after))
        return found.group() if joins else f"\\u{{{ord(found.group()):x}}}"

    if text.isascii():
        return text
    text = visible(text, joiners=True)
    return _JOINER.sub(shown, text)


class Cleaner:
    """`feed` gives finished lines, `peek` the unfinished one, `flush` gives it and begins anew."""

    __slots__ = ("_cells", "_column", "_decoder", "_length", "_parameter", "_parts", "_state")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._state = _GROUND
        self._parameter = ""
        # The unfinished line: parts while it is only appended to, cells once something was overwritten.
        self._parts: list[str] = []
        self._cells: list[str] | None = None
        self._length = 0
        self._column = 0

    @property
    def idle(self) -> bool:
        """Nothing is pending: whatever comes is read as from the beginning of a line."""
        return self._state == _GROUND and not self._length and not self._column and not self.undecoded

    @property
    def in_sequence(self) -> bool:
        return self._state != _GROUND

    @property
    def undecoded(self) -> int:
        """How many bytes it has of a character that is not whole."""
        return len(self._decoder.getstate()[0])

    def feed(self, data: bytes) -> str:
        out: list[str] = []
        if self._appending() and plain(data):
            self._append_lines(self._decoder.decode(data), out)
            return "".join(out)
        text = self._decoder.decode(data)
        for begin in range(0, len(text), _SLICE_CHARS):
            self._take(text[begin : begin + _SLICE_CHARS], out)
        return "".join(out)

    def peek(self) -> str:
        if self._cells is not None:
            return "".join(self._cells)
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def flush(self) -> str:
        """The unfinished line, a character cut in half as U+FFFD, a sequence cut in half dropped."""
        out: list[str] = []
        self._take(self._decoder.decode(b"", True), out)
        out.append(self.peek())
        self._decoder.reset()
        self._state = _GROUND
        self._new_line()
        return "".join(out)

    def _appending(self) -> bool:
        return self._state == _GROUND and self._column == self._length and not self.undecoded

    def _append_lines(self, text: str, out: list[str]) -> None:
        cut = text.rfind("\n") + 1
        if cut:
            out.append(self.peek())
            out.append(text[:cut])
            self._new_line()
            text = text[cut:]
        if text:
            self._put(text, out)

    def _take(self, text: str, out: list[str]) -> None:
        if self._state == _GROUND and self._column == self._length:
            cut = text.rfind("\n") + 1
            # In this order: a CR that is left over, with its erasing behind it, sends the slice the slow way.
            lines = _HARMLESS.sub("", text[:cut].replace("\r\n", "\n"))
            if cut and not _NOT_PLAIN_NOR_LF.search(lines):
                self._append_lines(lines, out)
                text = text[cut:]
        self._step(text, out)

    def _step(self, text: str, out: list[str]) -> None:
        position, end = 0, len(text)
        while position < end:
            state = self._state
            if state == _GROUND:
                found = _NOT_PLAIN.search(text, position)
                stop = found.start() if found else end
                if stop > position:
                    self._write(text[position:stop], out)
                if stop < end:
                    self._control(text[stop], out)
                position = stop + 1
            elif state in (_OSC, _STRING):
                found = _STRING_STOP.search(text, position)
                if not found:
                    return
                position = found.end()
                if found.group() != "\x07":
                    self._control(found.group(), out)
                elif state == _OSC:
                    self._state = _GROUND
            else:
                self._sequence(text[position], out)
                position += 1

    def _sequence(self, character: str, out: list[str]) -> None:
        if character < " " or "\x7f" <= character <= "\x9f":
            self._control(character, out)
        elif character > "\x9f":
            self._state = _GROUND
            self._write(character, out)
        elif self._state == _CSI:
            if character >= "@":
                self._state = _GROUND
                if character == "K":
                    self._erase()
            elif len(self._parameter) < _PARAMETER_MAX_CHARS:
                self._parameter += character
        elif character < "0":
            self._state = _INTERMEDIATE
        elif self._state == _ESCAPE:
            self._begin(_AFTER_ESCAPE.get(character, _GROUND))
        else:
            self._state = _GROUND

    def _begin(self, state: int) -> None:
        self._state = state
        self._parameter = ""

    def _control(self, character: str, out: list[str]) -> None:
        if character == "\n":
            out.append(self.peek())
            out.append("\n")
            self._new_line()
        elif character == "\r":
            self._column = 0
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character == "\t":
            self._write(character, out)
        elif character == "\x1b":
            self._begin(_ESCAPE)
        elif character in "\x18\x1a":
            self._state = _GROUND
        elif character >= "\x80":
            self._begin(_AFTER_C1.get(character, _GROUND))

    def _new_line(self) -> None:
        self._parts = []
        self._cells = None
        self._length = self._column = 0

    def _write(self, text: str, out: list[str]) -> None:
        if self._column >= self._length or "\t" not in text:
            self._put(text, out)
            return
        for number, piece in enumerate(text.split("\t")):
            if number:
                self._tab(out)
            if piece:
                self._put(piece, out)

    def _tab(self, out: list[str]) -> None:
        """Over what is there a TAB only moves; behind the end it is text."""
        stop = (self._column // 8 + 1) * 8
        if stop < self._length:
            self._column = stop
        else:
            self._column = max(self._column, self._length)
            self._put("\t", out)

    def _put(self, text: str, out: list[str]) -> None:
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

    def _erase(self) -> None:
        if self._parameter in ("1", "01"):
            cells = list(self.peek())
            stop = min(self._column + 1, len(cells))
            cells[:stop] = " " * stop
            self._cells, self._parts = cells, []
            return
        if self._parameter not in ("", "0", "2", "00", "02"):
            return
        kept = self.peek()[: 0 if self._parameter.endswith("2") else self._column]
        self._parts, self._cells = [kept] if kept else [], None
        self._length = len(kept)
