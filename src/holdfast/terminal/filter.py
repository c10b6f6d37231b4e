"""The part of a session's output that may reach the terminal of a client: everything but queries and side effects.

The runner answers queries, so a client's terminal must never be queried: two answers would arrive. Window operations,
printing, the clipboard and pictures affect the person at the terminal, who did not ask for them. A replay is also
silent: its bells and notices are long over.

Text goes out at once, character by character. Only a sequence is held until it is clear what it is: a string (a title,
a picture) until its head decides, anything else for at most 4 KiB. The output is the same however the input was cut.
"""

from __future__ import annotations

import re

from ..core.vt import parser
from ..core.vt.modes import ALLOW_COLUMNS, COLUMNS
from ..core.vt.parser import CONTROL, CSI, DCS, ESC, INVALID, OSC, OVERLONG, REST, STRING, TEXT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .undo import Undo


# The clipboard is opted into, but must not be filled without bound.
CLIPBOARD_BYTES = 64 << 10
TITLE_STACK_MAX = 16
TITLE_BYTES = 1024

# Aborts whatever sequence a terminal is in.
CANCEL = b"\x18"
_ENQ, _BEL = b"\x05", b"\x07"

# Column modes, which the runner refuses, and reports, which it gives itself. The tracker does not follow VT52 and
# Tektronix modes, and nothing could be undone in them.
REFUSED_MODES = frozenset((2, COLUMNS, 38, ALLOW_COLUMNS, 2027, 2031, 2048))

# CSI by (prefix, intermediates, final): queries, window operations, printing.
_REMOVED = frozenset(
    [(b"", b"", final) for final in (b"n", b"c", b"t", b"x", b"i")]
    + [(b"?", b"", final) for final in (b"n", b"u", b"m", b"S", b"g", b"i")]
    + [(b">", b"", b"c"), (b">", b"", b"q"), (b"=", b"", b"c"), (b"", b"$", b"p"), (b"?", b"$", b"p")]
    # DECRQCRA, DECRQTSR, DECRQUPSS, DECRQPSR, DECRQDE, DECRQLP; colours, attributes and titles on their stacks.
    + [(b"", b"*", b"y"), (b"", b"$", b"u"), (b"", b"&", b"u"), (b"", b"$", b"w"), (b"", b'"', b"v")]
    + [(b"", b"'", b"|"), (b"", b"#", b"R"), (b"", b"#", b"|"), (b"", b"#", b"S")]
    # Other sizes of the page (DECSCPP, DECSNLS), another level of conformance (DECSCL), a reset that answers (DECSR),
    # output into the status line (DECSASD, DECSSDT), the volume of bells, how titles are encoded, hiding the pointer.
    + [(b"", b"$", b"|"), (b"", b"*", b"|"), (b"", b'"', b"p"), (b"", b"+", b"p"), (b"", b"$", b"}"), (b"", b"$", b"~")]
    + [(b"", b" ", b"t"), (b"", b" ", b"u"), (b">", b"", b"t"), (b">", b"", b"T"), (b">", b"", b"p")]
    # Which cells a rectangle means (DECSACE), macros (DECINVM).
    + [(b"", b"*", b"x"), (b"", b"*", b"z")]
)
# ESC by (intermediates, final): a query; 8-bit controls; another encoding than UTF-8.
_REMOVED_ESC = frozenset([(b"", b"Z"), (b" ", b"F"), (b" ", b"G"), (b"%", b"@"), (b"%", b"8"), (b"%", b"G")])
_SAVE_TITLE, _RESTORE_TITLE = 22, 23
_ICON_ALONE = 1

# A string is passed on, removed, or decided on when it is whole.
_PASS, _REMOVE, _WHOLE = "pass", "remove", "whole"

_CLIPBOARD = 52
_COLOR_PAIRS = (4, 5)
_COLOR_CHAIN = range(10, 20)
_KITTY_COLORS = 21
_NOTICES = (9, 99, 777)
# May be a query: `OSC n ; ?`.
_ASKABLE = frozenset((*_COLOR_PAIRS, *_COLOR_CHAIN, _KITTY_COLORS, 22, 99, 701, 702))
# Properties of the window, the colour of its tab, log files, fonts, commands to the program that shows the terminal
# (Vim, Emacs), files; and what this terminal allows, always a query.
_REFUSED_OSC = frozenset((3, 6, 46, 50, 51, 60, 61, 5113, 5522))
_ITERM = 1337
_ITERM_FILES = (b"File=", b"MultipartFile=", b"FilePart=", b"FileEnd")
# `9;4;...` is progress. Any other number is a command to ConEmu, which can also run programs.
_CONEMU = re.compile(rb"(\d+);")
# DCS by (intermediates, final): DECRQSS, XTGETTCAP, XTSETTCAP, XTGETXRES; keys (DECUDK), fonts (DECDLD), tmux's
# passthrough, kitty's remote control; macros (DECDMAC), a preferred set (DECAUPSS), restored states (DECRSTS, DECRSPS).
_REMOVED_DCS = frozenset(
    [(b"$", b"q"), (b"+", b"q"), (b"+", b"p"), (b"+", b"Q")]
    + [(b"", final) for final in (b"|", b"{", b"t", b"@")]
    + [(b"!", b"z"), (b"!", b"u"), (b"$", b"p"), (b"$", b"t")]
)

_DIGITS = re.compile(rb"\d*")
_OSC_NUMBER = re.compile(rb"(\d*)(?=[^\d\x1b\xc2])")
_DCS_HEAD = re.compile(rb"([<-?]?)[0-9:;]*([ -/]*)([@-~])")
# Terminals ignore these inside the head of a string; BEL, CAN, SUB and ESC end it.
_IGNORED = bytes((*range(7), *range(8, 0x18), 0x19, *range(0x1C, 0x20), 0x7F))
_COPY = re.compile(rb"0*52;")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]*={0,2}")

# Characters of three and four bytes.
_LONGER = (
    rb"\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)
# Passed on without parsing: text, line ends, cursor movement, erasing, SGR. Only whole characters and sequences.
_HARMLESS = re.compile(
    rb"(?:[\x08-\x0d\x20-\x7e]++|\x1b\[[0-9:;]*+[@-MPSTXZ`abdefm]"
    rb"|\xc2[\xa0-\xbf]|[\xc3-\xdf][\x80-\xbf]|" + _LONGER + rb")*+"
)
# A C1 byte that is not part of a character. A terminal that reads single bytes would carry it out.
_STRAY = re.compile(rb"([\xc2-\xdf][\x80-\xbf]|" + _LONGER + rb")|[\x80-\x9f]")
_REPLACEMENT = "\ufffd".encode()
_COMMAND = re.compile(rb"\x1b\[[<-?]?[0-9:;]*+[ -/]*+[@-~]")
# How much is parsed token by token before the fast way is tried again.
_SLOW_BYTES = 512
_UNFINISHED_BYTES = 4096


class Filter:
    """One stream of output to one terminal. `undo` gets what passes."""

    def __init__(self, clipboard: bool = False, graphics: bool = False, *, undo: Undo | None = None) -> None:
        self._clipboard = clipboard
        self._graphics = graphics
        self._undo = undo
        self._scanner = parser.Scanner()
        self._sent = 0  # the offset up to which an unfinished sequence or character went out already
        self._rest_passes = False  # whether the rest of an overlong sequence is passed on
        self._inside = False  # whether controls within that sequence are carried out
        self._copied: bytearray | None = None  # a clipboard write that is too long for the scanner
        self._title = b""
        self._titles: list[bytes | None] = []  # None where only the icon's name was saved
        self.columns = False  # whether DECCOLM is allowed
        self._live = True
        self._out: list[bytes] = []
        self._half = False  # whether the last byte was a stray C2, which would make a control of a raw C1 byte
        self._begun = b""  # the beginning of an unfinished character

    def live(self, chunk: bytes) -> bytes:
        """Filter what the command printed just now."""
        self._live = True
        return self._run(chunk)

    def replay(self, chunk: bytes) -> bytes:
        """Filter what the command printed earlier."""
        self._live = False
        return self._run(chunk)

    def set_titles(self, title: bytes, saved: Sequence[bytes | None]) -> None:
        """The title and the saved titles where the output begins."""
        self._title = title
        self._titles = list(saved)[-TITLE_STACK_MAX:]

    def abandon(self) -> bytes:
        """End a sequence of which the terminal got only a part. Nothing follows."""
        begun = self._scanner.pending[:1] in (b"\x1b", b"\xc2") and self._sent > self._scanner.ground
        skipping = not self._scanner.pending and not self._scanner.idle and self._rest_passes
        return CANCEL if begun or skipping else b""

    def _run(self, chunk: bytes) -> bytes:
        at = 0
        while at < len(chunk):
            if self._scanner.idle:
                harmless = _HARMLESS.match(chunk, at)
                assert harmless is not None
                if harmless.end() > at:
                    self._emit(harmless[0])
                    self._scanner.pass_over(harmless.end() - at)
                    at = harmless.end()
                    if self._undo is not None and b"\x1b" in harmless[0]:
                        self._undo.note_pen()
                command = _COMMAND.match(chunk, at)
                if command and len(command[0]) <= parser.PENDING_MAX_BYTES:
                    self._csi(self._scanner.offset, command[0])
                    self._scanner.pass_over(len(command[0]))
                    at = command.end()
                    continue
            piece = chunk[at : at + (_SLOW_BYTES if self._scanner.idle else _UNFINISHED_BYTES)]
            at += len(piece)
            for kind, offset, raw in self._scanner.steps(piece):
                self._step(kind, offset, raw)
            self._release()
        out = b"".join(self._out)
        self._out.clear()
        return out

    def _step(self, kind: int, offset: int, raw: bytes) -> None:
        if self._copied is not None and kind != REST:
            self._end_copy(whole=kind != INVALID)
        if kind == TEXT:
            self._pass(kind, offset, raw)
        elif kind == CONTROL:
            if raw != _ENQ and (raw != _BEL or self._live):
                self._pass(kind, offset, raw)
        elif kind == CSI:
            self._csi(offset, raw)
        elif kind == ESC:
            if parser.split_esc(raw) not in _REMOVED_ESC:
                self._pass(kind, offset, raw)
        elif kind in (OSC, DCS, STRING):
            self._string(kind, offset, raw)
        elif kind == OVERLONG:
            self._overlong(offset, raw)
        elif kind == REST:
            if self._copied is not None:
                if len(self._copied) <= CLIPBOARD_BYTES:
                    self._copied += raw
            elif self._rest_passes:
                self._pass(kind, offset, self._quiet(raw))
        elif raw:
            self._invalid(offset, raw)
        elif self._rest_passes:
            self._emit(CANCEL)

    def _emit(self, data: bytes) -> None:
        if not data:
            return
        if self._half and 0x80 <= data[0] <= 0x9F:
            # The bytes between them were removed.
            data = b"\0" + data
        self._half = data[-1] == 0xC2
        if self._begun or not data.isascii():
            data = self._begun + data
            unfinished = parser.unfinished(data)
            self._begun = data[len(data) - unfinished :]
            data = _STRAY.sub(_without_stray, data[: len(data) - unfinished])
        self._out.append(data)

    def _pass(self, kind: int, offset: int, raw: bytes) -> None:
        """Pass it on, except for the part that went out before it was whole."""
        self._emit(raw[self._sent - offset :] if self._sent > offset else raw)
        if self._undo is not None and kind not in (TEXT, REST):
            self._undo.saw(kind, raw)

    def _write(self, kind: int, raw: bytes) -> None:
        """Send something else instead."""
        self._emit(raw)
        if self._undo is not None:
            self._undo.saw(kind, raw)

    def _csi(self, offset: int, raw: bytes) -> None:
        prefix, body, intermediates, final = parser.split_csi(raw)
        if (prefix, intermediates, final) == (b"", b"", b"t"):
            self._title_stack(parser.numbers(body))
        elif (prefix, intermediates, final) in _REMOVED:
            return
        elif prefix == b"?" and final in b"hlsr" and not intermediates:
            modes = body.split(b";")
            if final in b"hl":
                self._switch_columns(modes, final == b"h")
            kept = [mode for mode in modes if parser.number(mode.partition(b":")[0]) not in REFUSED_MODES]
            if kept == modes:
                self._pass(CSI, offset, raw)
            elif kept:
                self._write(CSI, b"\x1b[?" + b";".join(kept) + final)
        else:
            self._pass(CSI, offset, raw)

    def _switch_columns(self, modes: list[bytes], on: bool) -> None:
        """DECCOLM. The width does not change, but the page is cleared and the cursor goes home."""
        for mode in modes:
            number = parser.number(mode.partition(b":")[0])
            if number == ALLOW_COLUMNS:
                self.columns = on
            elif number == COLUMNS and self.columns:
                for piece in (b"\x1b[r", b"\x1b[2J", b"\x1b[H"):
                    self._write(CSI, piece)

    def _title_stack(self, numbers: tuple[int, ...]) -> None:
        """Only the client uses the terminal's own stack, to leave the title as it was."""
        what = numbers[0] if numbers else 0
        which = numbers[1] if len(numbers) > 1 else 0
        if what == _SAVE_TITLE:
            self._titles = [*self._titles, None if which == _ICON_ALONE else self._title][-TITLE_STACK_MAX:]
        elif what == _RESTORE_TITLE and self._titles:
            title = self._titles.pop()
            if title is not None and which != _ICON_ALONE:
                self._title = title
                self._write(OSC, b"\x1b]2;" + title + b"\x1b\\")

    def _string(self, kind: int, offset: int, raw: bytes) -> None:
        decision = self._decide(raw, whole=True)
        if decision == _WHOLE:
            kept = self._osc(raw)
            if kept:
                self._write(kind, kept)
        elif decision == _PASS:
            if kind == OSC:
                self._note_title(raw)
            self._pass(kind, offset, raw)

    def _decide(self, begun: bytes, *, whole: bool = False) -> str | None:
        """What to do with a string with this beginning; None while that is not known."""
        opener = parser.opener(begun)
        head = begun[2:]
        if opener == b"]":
            head = head.translate(None, _IGNORED)
            number = _OSC_NUMBER.match(head) or (_DIGITS.match(head) if whole else None)
            if number is None:
                return None
            return self._decide_osc(int(number[0] or -1), head[number.end() + 1 :], whole)
        if opener == b"P":
            found = _DCS_HEAD.match(head.translate(None, _IGNORED))
            if found is None:
                return None
            prefix, intermediates, final = found.groups()
            return _REMOVE if not prefix and (intermediates, final) in _REMOVED_DCS else _PASS
        if opener == b"_":
            if not head:
                return None
            return _REMOVE if head[:1] == b"G" and not self._graphics else _PASS
        return _PASS if opener in (b"X", b"^") else None

    def _decide_osc(self, number: int, content: bytes, whole: bool) -> str | None:
        if number == _CLIPBOARD:
            return _WHOLE if self._clipboard and self._live else _REMOVE
        if number in _REFUSED_OSC:
            return _REMOVE
        if number == _ITERM:
            if not self._graphics:
                return _REMOVE
            if content.startswith(_ITERM_FILES):
                return _PASS
            return None if not whole and any(word.startswith(content) for word in _ITERM_FILES) else _REMOVE
        if number == 9:
            command = _CONEMU.match(content)
            if command is not None and command[1] != b"4":
                return _REMOVE
            if command is None and not whole and (not content or content.isdigit()):
                return None
        if number in _NOTICES and not self._live:
            # Progress is a state, not a notice.
            if number != 9 or content[:2] not in (b"", b"4", b"4;"):
                return _REMOVE
            return _PASS if content[:2] == b"4;" else None
        return _WHOLE if number in _ASKABLE else _PASS

    def _osc(self, raw: bytes) -> bytes:
        """A whole string without its queries; empty if nothing is left."""
        payload, terminator = parser.split_string(raw)
        head, _, content = payload.translate(None, _IGNORED).partition(b";")
        if not head.isdigit():
            return b""  # an invalid number: no terminal would act on it
        number = int(head)
        items = content.split(b";")
        if number == _CLIPBOARD:
            return raw if len(raw) <= CLIPBOARD_BYTES and _BASE64.fullmatch(content.partition(b";")[2]) else b""
        if number == 99:
            asks = {b"p=?", b"p=alive"} & set(items[0].split(b":"))
            return b"" if asks else raw
        if number in _COLOR_PAIRS:
            pairs = [items[at : at + 2] for at in range(0, len(items), 2)]
            kept = [b";".join(pair) for pair in pairs if b"?" not in pair[1:]]
            return _same(raw, head, kept, terminator) if len(kept) < len(pairs) else raw
        if number in _COLOR_CHAIN:
            if b"?" not in items:
                return raw
            sets = [(number + at, item) for at, item in enumerate(items) if item != b"?"]
            return b"".join(b"\x1b]%d;%b%b" % (each, item, terminator) for each, item in sets)
        if number == _KITTY_COLORS:
            kept = [item for item in items if not item.endswith(b"=?")]
            return _same(raw, head, kept, terminator) if len(kept) < len(items) else raw
        return b"" if content.startswith(b"?") else raw

    def _note_title(self, raw: bytes) -> None:
        payload, _ = parser.split_string(raw)
        head, semicolon, title = payload.partition(b";")
        if semicolon and head.isdigit() and int(head) in (0, 2):
            self._title = title[:TITLE_BYTES]

    def _invalid(self, offset: int, raw: bytes) -> None:
        """A sequence that was cut. The terminal may have got a part of a string that passes: end that."""
        if self._decide(raw) == _PASS:
            self._pass(INVALID, offset, raw if raw[-1:] in (CANCEL, b"\x1a") else raw + CANCEL)

    def _overlong(self, offset: int, raw: bytes) -> None:
        """The beginning of an overlong sequence. CSI and ESC have no effect before their end and are passed on."""
        opener = parser.opener(raw)
        self._inside = opener in (b"[", b"")
        if not self._inside and raw[0] == 0x1B:
            raw = b"\x1b" + raw[raw.index(opener) :]
        decision = _PASS if self._inside else self._decide(raw)
        copies = decision == _WHOLE and _COPY.match(raw[2:].translate(None, _IGNORED)) is not None
        if copies:
            self._copied = bytearray(raw)
        self._rest_passes = decision in (_PASS, _WHOLE) and not copies
        if self._rest_passes:
            self._pass(OVERLONG, offset, self._quiet(raw))

    def _quiet(self, raw: bytes) -> bytes:
        """Part of an overlong sequence, without the controls that a terminal would carry out."""
        return raw.replace(_ENQ, b"").replace(_BEL, b"") if self._inside else raw

    def _end_copy(self, *, whole: bool) -> None:
        copied, self._copied = self._copied, None
        if whole and copied and len(copied) <= CLIPBOARD_BYTES and copied.endswith((b"\x07", b"\x1b\\", b"\xc2\x9c")):
            self._emit(self._osc(bytes(copied)))

    def _release(self) -> None:
        """Pass on the part of an unfinished sequence that will not be removed any more."""
        if self._copied is not None and self._scanner.idle:
            self._end_copy(whole=True)
        pending = self._scanner.pending
        ground = self._scanner.ground
        if not pending or pending == b"\xc2":
            return
        if pending[0] in (0x1B, 0xC2):
            # Controls inside the opener hide what it opens.
            if pending[0] == 0x1B and pending[1:2] not in (b"]", b"P", b"X", b"^", b"_"):
                return
            # These bytes may begin the end of the string, or cut it.
            pending = pending.rstrip(b"\x1b\xc2")
            if self._decide(pending) != _PASS:
                return
        sent = max(self._sent, ground)
        if ground + len(pending) > sent:
            self._emit(pending[sent - ground :])
            self._sent = ground + len(pending)


class Asides:
    """From output that is not passed on, the part that is not drawing: bells, notices, copies to the clipboard."""

    _WANTED = re.compile(rb"(?:\x1b\]|\xc2\x9d)0*(?:9|52|99|777);(?!4;)")

    def __init__(self, clipboard: bool = False) -> None:
        self._scanner = parser.Scanner()
        self._filter = Filter(clipboard)
        self._passes = False

    def live(self, chunk: bytes) -> bytes:
        out = []
        for kind, _, raw in self._scanner.steps(chunk):
            if kind in (OSC, OVERLONG):
                self._passes = self._WANTED.match(raw) is not None
            if (kind == CONTROL and raw == _BEL) or (kind in (OSC, OVERLONG, REST) and self._passes):
                out.append(self._filter.live(raw))
            elif kind == INVALID and not raw and self._passes:
                out.append(self._filter.live(CANCEL))
        return b"".join(out)


def _without_stray(found: re.Match[bytes]) -> bytes:
    return found[0] if found[1] else _REPLACEMENT


def _same(raw: bytes, head: bytes, items: list[bytes], terminator: bytes) -> bytes:
    """The same command with fewer items."""
    return raw[:2] + b";".join((head, *items)) + terminator if items else b""
