"""Terminal output rewritten for `avt`, so that its grid shows what a terminal shows.

A cell of avt is one character and a pen with few attributes. What does not fit (combining characters and others without
a width, hyperlinks, underline styles and colours, conceal, overline) is kept here: the cell gets a *stand-in*, an
unassigned code point for text and extras together. avt also fills erased cells with the whole pen, where terminals use
only its background. So a space that is printed while the pen is visible on it (inverse, underline, strike) is a
stand-in too, and a bare space is an erased cell, whatever its pen. Character sets, DECALN and selective erase are
translated, DEL is dropped. Where avt differs from xterm (margins out of bounds, inserted lines, DECRC, DECSTR, DECCOLM,
RI, a second ?1049) it is fed something else with the same result.

The parser is the runner's, so grid and tracker see the same sequences in the same bytes. Most output needs no parsing
and is passed on as it is, at memory speed.
"""

from __future__ import annotations

import re
from copy import copy
from typing import TYPE_CHECKING

from ..core.vt import parser
from ..core.vt.modes import ALLOW_COLUMNS
from ..core.vt.modes import COLUMNS as DECCOLM
from ..core.vt.page import CHARSETS
from ..core.vt.parser import CONTROL, CSI, ESC, OSC, TEXT, Scanner
from ..core.vt.sequences import TITLE_MAX_BYTES, URI_MAX_BYTES
from ..core.vt.widths import COLUMNS, decode, label
from .stand_ins import (
    DESIGNATES,
    NO_EXTRAS,
    ORDINARY,
    RESERVED,
    TURN,
    Look,
    StandIns,
    clusters,
    first_unfit,
    is_unfit,
    turned,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ..core.vt.parser import Step


# From these on a chunk goes through the parser: strings, controls inside of sequences, shifts, DECALN, RIS, DECSTR;
# insert mode, autowrap, the alternate screen; selective erase; left and right margins, which avt takes for DECSC;
# counts large enough to hang a terminal. Searching for one pattern that begins with ESC is fast.
_SPECIAL = re.compile(
    rb"\x1b(?:[^\[(-+0-MQ-WYZ\\`abd-mp-~]|[(-+][^0-~]|\[(?:\?[0-9;]*[JK]"
    rb"|(?!\?(?!(?:[367]|4[07]|69|104[789])[hl])[0-9]{1,4}[hl]|s|[0-9]{0,3}b)[ -?]*+[^ -?@-ac-gi-km-oqrt-~]))"
)
_SPECIAL_CONTROLS = (b"\x0e", b"\x0f", b"\x7f")
_C1 = re.compile(rb"\xc2[\x80-\x9f]")
# Harmless while the look is ordinary.
_CURSOR_SAVING = re.compile("\x1b(?:[78]|\\[[0-9;]*[su])")
_WHOLE = re.compile(rb"\x1b(?:\[[ -?]*[@-~]|[ -/]+[0-~]|[0-Z\\^-~])")
_SEQUENCE = re.compile("(\x1b(?:\\[[ -?]*[@-~]|[ -/]*[0-Z\\\\-~])|[\x00-\x1a\x1c-\x1f])")
# The slots G0 to G3, by the first intermediate.
_SLOTS = {"(": 0, ")": 1, "*": 2, "+": 3, "-": 1, ".": 2, "/": 3}
# Finals of CSI that are translated here.
_HEEDED = frozenset(b"mhlbpsurLM")
_ESCAPE, _PRIVATE = b"\x1b?"
# A program uses few pens. Past this many, the memory of what they do is cleared.
_PENS_MAX = 4096
_REPEATED_MAX = 9999
# How much goes through the parser before the next check whether the rest needs it.
_PARSED_BYTES = 256
# The most characters in one cell; no script needs more.
_CLUSTER_MAX_CHARS = 16


class AvtInput:
    """`cursor()` gives row and column of the cursor and the width of the grid, once all that was yielded is fed. A
    column as large as the width: the next character wraps."""

    def __init__(self, rows: int, cursor: Callable[[], tuple[int, int, int]]) -> None:
        self.alt = False
        # How often the alternate screen was entered.
        self.entries = 0
        # Whether RIS came, which drops the history.
        self.was_reset = False
        self._rows = rows
        self.stand_ins = StandIns()
        self._cursor = cursor
        self._scanner = Scanner()
        self._look = ORDINARY
        self._insert = False
        self._autowrap = True
        # Left and right margins are allowed, and `CSI s` sets them.
        self._sides = False
        # DECCOLM is allowed.
        self._columns = False
        # Origin mode was set since the last reset; DECRC may set it again.
        self._origin = False
        # A set for the next character alone.
        self._single_shift = 0
        # What DECSC saved on the active screen and on the other.
        self._saved = ORDINARY
        self._other_saved = ORDINARY
        # The character before the cursor as it was fed, while a combining one could still join it.
        self._last = ""
        self._turns: dict[Look, dict[str, tuple[Look, str]]] = {}

    def resized(self, rows: int) -> None:
        self._rows = rows
        self._last = ""
        self._turns.clear()

    def translate(self, data: bytes) -> Iterator[str]:
        """What to feed to avt for these bytes, piece by piece. Each piece has to be fed before the next is taken."""
        at = 0
        room = _PARSED_BYTES
        while at < len(data):
            if self._scanner.pending:
                data, at = self._scanner.pending + data[at:], 0
                self._scanner = Scanner()
            if self._scanner.idle and self._is_settled:
                end = _first_special(data, at)
                passed, taken = self._passed(data[at:end])
                if taken:
                    self._scanner.pass_over(taken)
                    self._note_last(passed)
                    yield passed
                    at += taken
            part = data[at : at + room]
            if part:
                at += len(part)
                # More each time: where much is special, searching for the rest would cost more than it saves.
                room *= 2
                yield from self._steps(self._scanner.steps(part))

    @property
    def _is_settled(self) -> bool:
        """No state is set that only the way through the parser handles."""
        usual = self._autowrap and not (self._insert or self._single_shift or self._sides or self._origin)
        return usual and self._saved == self._other_saved == ORDINARY

    # Without the parser.

    def _passed(self, data: bytes) -> tuple[str, int]:
        """Translate data without anything special. Returns the result and how many bytes were translated: the rest
        needs the parser."""
        end = _end_of_whole(data)
        text = decode(data[:end])
        if not text.isascii():
            odd = first_unfit(text)
            if odd < len(text):
                # The character before it may belong to it. If a byte was replaced, the position is unknown.
                before = text[: max(odd - 1, 0)].encode()
                end = _end_of_whole(before) if data.startswith(before) else 0
                text = decode(data[:end])
        if self._look == ORDINARY and self._is_harmless(text):
            return text, end
        if _CURSOR_SAVING.search(text) is not None:
            return "", 0
        look = self._look
        plain = look == ORDINARY
        turns = self._turns_of(look)
        parts = TURN.split(text)
        for i in range(0, len(parts), 2):
            if i:
                turn = turns.get(parts[i - 1]) or self._learn(turns, look, parts[i - 1])
                parts[i - 1] = turn[1]
                if turn[0] is not look:
                    look = turn[0]
                    plain = look == ORDINARY
                    turns = self._turns_of(look)
            if not plain and parts[i]:
                printed = self._between(parts[i], look)
                if printed is None:
                    return "", 0
                parts[i] = printed
        self._look = look
        return "".join(parts), end

    def _learn(self, turns: dict[str, tuple[Look, str]], look: Look, token: str) -> tuple[Look, str]:
        after, kept = turned(look, token, self._rows)
        turns[token] = look if after == look else after, kept
        return turns[token]

    def _is_harmless(self, text: str) -> bool:
        """Whether avt understands every turn in it, and all of them leave the look ordinary."""
        turns = self._turns_of(ORDINARY)
        tokens = set(TURN.findall(text))
        return all((turns.get(token) or self._learn(turns, ORDINARY, token)) == (ORDINARY, token) for token in tokens)

    def _turns_of(self, look: Look) -> dict[str, tuple[Look, str]]:
        turns = self._turns.get(look)
        if turns is None or len(turns) > _PENS_MAX:
            if len(self._turns) > _PENS_MAX:
                self._turns.clear()
            turns = self._turns[look] = {}
        return turns

    def _between(self, text: str, look: Look) -> str | None:
        """Text and other sequences between two turns. None: one of them is not well-formed."""
        if "\x1b" not in text:
            return self._printed(text, look)
        pieces = _SEQUENCE.split(text)
        for i in range(0, len(pieces), 2):
            if "\x1b" in pieces[i]:
                return None
            pieces[i] = self._printed(pieces[i], look)
        return "".join(pieces)

    def _printed(self, text: str, look: Look) -> str:
        """Text, possibly with controls in it, as it is fed with this look."""
        if look.charset != "B":
            text = text.translate(CHARSETS[look.charset])
        if look.extras != NO_EXTRAS:
            char = self.stand_ins.char
            return "".join([char(each, look.extras) if each >= " " else each for each in text])
        return text.replace(" ", self.stand_ins.space) if look.shows else text

    # Through the parser.

    def _steps(self, steps: Iterable[Step]) -> Iterator[str]:
        out: list[str] = []
        for kind, _, raw in steps:
            if kind == TEXT:
                text = decode(raw)
                if self._single_shift:
                    charset = self._look.charsets[self._single_shift]
                    self._single_shift = 0
                    if charset != "B":
                        text = text[0].translate(CHARSETS[charset]) + text[1:]
                if text.isascii() or first_unfit(text) == len(text):
                    out.append(self._printed(text, self._look) if self._look != ORDINARY else text)
                else:
                    yield from self._clusters(text, out)
            elif kind == CSI:
                out.append(
                    self._csi(raw) if raw[-1] in _HEEDED or raw[2] == _PRIVATE or raw[0] != _ESCAPE else decode(raw)
                )
            elif kind == ESC:
                intermediates, final = map(decode, parser.split_esc(raw))
                if self._origin and (intermediates, final) == ("", "M"):
                    yield self._flushed(out)
                    yield from self._reverse_index()
                else:
                    out.append(self._esc(intermediates, final))
            elif kind == CONTROL:
                out.append(self._control(decode(raw)))
            elif kind == OSC:
                self._osc(parser.split_string(raw)[0])
        yield self._flushed(out)

    def _reverse_index(self) -> Iterator[str]:
        """In origin mode avt counts the row above from the margin. At the margin itself it scrolls."""
        before = self._cursor()[0]
        yield "\x1b[A"
        if self._cursor()[0] == before:
            yield "\x1bM"

    def _flushed(self, out: list[str]) -> str:
        text = "".join(out)
        out.clear()
        self._note_last(text)
        return text

    def _clusters(self, text: str, out: list[str]) -> Iterator[str]:
        """Characters with the combining ones that belong to them."""
        base = marks = ""
        for match in clusters().finditer(text):
            ordinary, char = match.groups()
            if char and not COLUMNS[char]:
                marks += char
                continue
            yield from self._cluster(base, marks, out)
            base = marks = ""
            if ordinary:
                out.append(self._printed(ordinary, self._look))
            else:
                base = char
        yield from self._cluster(base, marks, out)

    def _cluster(self, base: str, marks: str, out: list[str]) -> Iterator[str]:
        if marks and not (base and self._autowrap and not self._insert):
            # They arrived separately, or are treated so: with these modes only the grid knows where the character
            # is, and the result must not depend on how the bytes were cut.
            if base:
                out.append(self._one(base))
            yield self._flushed(out)
            out.append(self._joined(marks))
        elif base:
            out.append(self._one(base + marks))

    def _one(self, cluster: str) -> str:
        charset = self._look.charset
        if charset != "B":
            cluster = cluster[0].translate(CHARSETS[charset]) + cluster[1:]
        if len(cluster) == 1 and not is_unfit(cluster):
            return self._printed(cluster, self._look._replace(charsets="BBBB"))
        return self.stand_ins.char(cluster[:_CLUSTER_MAX_CHARS], self._look.extras)

    def _joined(self, marks: str) -> str:
        """Print the character before the cursor again, with these marks."""
        column, columns = self._cursor()[1:]
        if not self._last or (not self._autowrap and column == columns - 1):
            return ""
        text, extras = self.stand_ins.meaning(self._last)
        cells = COLUMNS[text[0]]
        char = self.stand_ins.char((text + marks)[:_CLUSTER_MAX_CHARS], extras)
        if column >= columns:
            return ("\x1b[C" if cells == 1 else "\x1b[D") + char
        return f"\x1b[{cells}D" + (f"\x1b[{cells}P" if self._insert else "") + char

    def _note_last(self, text: str) -> None:
        """Note the last character of what is fed. Only an SGR may come between it and a combining character."""
        end = len(text)
        while end:
            start = text.rfind("\x1b", 0, end)
            sequence = _SEQUENCE.match(text, start) if start >= 0 else None
            if sequence is None or sequence.end() < end:
                self._last = text[end - 1] if text[end - 1] >= " " else ""
                return
            if text[end - 1] != "m":
                self._last = ""
                return
            end = start

    def _csi(self, sequence: bytes) -> str:
        prefix, parameters, intermediates, last = map(decode, parser.split_csi(sequence))
        final = intermediates + last
        raw = f"\x1b[{prefix}{parameters}{final}"
        if prefix == "?" and final in ("h", "l"):
            return "".join([self._private_mode(number, final) for number in parameters.split(";")])
        if prefix == "?" and final in ("J", "K"):
            return f"\x1b[{parameters}{final}"
        if prefix:
            return raw
        if final in ("m", "r", "L", "M"):
            turns = self._turns_of(self._look)
            self._look, raw = turns.get(raw) or self._learn(turns, self._look, raw)
        elif final in ("h", "l"):
            if "4" in parameters.split(";"):
                self._insert = final == "h"
        elif final == "b":
            return f"\x1b[{min(int(parameters), _REPEATED_MAX)}b" if parameters.isdigit() else raw
        elif final == "!p":
            self._saved = ORDINARY
            self._look = ORDINARY.with_link(self._look.link)
            self._insert = self._sides = False
            self._autowrap = True
            return raw + "\x1b[?7h"
        elif final == "s":
            # avt has no such margins and takes it for DECSC. The cursor goes home.
            return "\x1b[H" if self._sides else self._save("\x1b[s")
        elif final == "u":
            return self._restored(raw)
        return raw

    def _private_mode(self, number: str, final: str) -> str:
        raw = f"\x1b[?{number}{final}"
        on = final == "h"
        # avt has 16 bits for it.
        mode = int(number) & 0xFFFF if number.isdigit() else 0
        if mode == 7:
            self._autowrap = on
        elif mode == 6:
            self._origin = self._origin or on
        elif mode == 69:
            self._sides = on
        elif mode == ALLOW_COLUMNS:
            self._columns = on
        elif mode == DECCOLM:
            # The width stays; the page is cleared as in xterm.
            return "\x1b[r\x1b[2J\x1b[H" if self._columns else ""
        elif mode == 1048:
            return self._save(raw) if on else self._restored(raw)
        elif mode in (47, 1047, 1049):
            if mode == 1049 and on:
                raw = self._save(raw) + ("\x1b[2J" if self.alt else "")
            if self.alt != on:
                self.alt = on
                self.entries += on
                self._saved, self._other_saved = self._other_saved, self._saved
            if mode == 1049 and not on:
                return self._restored(raw)
        return raw

    def _esc(self, intermediates: str, final: str) -> str:
        raw = f"\x1b{intermediates}{final}"
        slot = _SLOTS.get(intermediates[:1])
        if slot is not None:
            # Sets with longer names or 96 characters are not translated.
            name = final if intermediates in DESIGNATES else "B"
            self._look, raw = turned(self._look, f"\x1b{DESIGNATES[slot]}{name}", self._rows)
            return raw
        if raw == "\x1b#8":
            return "\x1b[r\x1b#8"
        if intermediates:
            return raw
        if final in ("n", "o"):
            self._look = self._look._replace(active=2 if final == "n" else 3)
            return ""
        if final in ("N", "O"):
            self._single_shift = 2 if final == "N" else 3
            return ""
        if final == "7":
            return self._save(raw)
        if final == "8":
            return self._restored(raw)
        if final == "c":
            self.was_reset = True
            self._saved = self._other_saved = self._look = ORDINARY
            self._autowrap = True
            self.alt = self._insert = self._sides = self._columns = self._origin = False
            self._single_shift = 0
        return raw

    def _control(self, raw: str) -> str:
        if raw in ("\x0e", "\x0f"):
            self._look = self._look._replace(active=1 if raw == "\x0e" else 0)
            return ""
        return "" if raw == "\x7f" else raw

    def _osc(self, payload: bytes) -> None:
        if payload.startswith(b"8;"):
            parameters, _, uri = payload[2:].partition(b";")
            target = label(uri, URI_MAX_BYTES)
            self._look = self._look.with_link(f"{label(parameters, TITLE_MAX_BYTES)};{target}" if target else "")

    def _save(self, raw: str) -> str:
        """avt saves autowrap too, and would restore it."""
        self._saved = self._look
        return raw if self._autowrap else f"\x1b[?7h{raw}\x1b[?7l"

    def _restored(self, raw: str) -> str:
        self._look = self._saved.with_link(self._look.link)
        self._single_shift = 0
        return raw if self._autowrap else raw + "\x1b[?7l"

    def fresh(self) -> AvtInput:
        """A copy without any stand-in but those of the current state."""
        other = copy(self)
        other.stand_ins = StandIns()
        if self._last:
            other._last = self.renumbered(self._last, other)
        return other

    def renumbered(self, text: str, other: AvtInput) -> str:
        """Text of avt with its stand-ins replaced by those of another, numbered in the order of appearance. So
        equal screens have equal texts, and stand-ins that are no longer shown are dropped."""
        meaning, char = self.stand_ins.meaning, other.stand_ins.char
        return RESERVED.sub(lambda match: char(*meaning(match[0])), text)


def _first_special(data: bytes, at: int) -> int:
    """The index from which the parser is needed, or the end."""
    match = _SPECIAL.search(data, at)
    end = match.start() if match is not None else len(data)
    for control in _SPECIAL_CONTROLS:
        found = data.find(control, at, end)
        if found >= 0:
            end = found
    if data.find(b"\xc2", at, end) >= 0:
        match = _C1.search(data, at, end)
        if match is not None:
            end = match.start()
    return end


def _end_of_whole(data: bytes) -> int:
    """The index before the last sequence or character if that is unfinished, else the end."""
    start = data.rfind(b"\x1b")
    if start >= 0 and _WHOLE.match(data, start) is None:
        return start
    return len(data) - parser.unfinished(data[-4:])
