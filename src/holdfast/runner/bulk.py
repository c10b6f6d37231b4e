"""Long stretches of text and colours at C speed.

Of many lines only the last ones matter to a state without cells: with enough linefeeds the cursor is at the bottom
margin, behind the last carriage return it is in the first column, and of all SGR the last of each kind counts.
"""

from __future__ import annotations

import re

from .characters import decode, last_shown
from .pen import draw, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .cursor import Cursor

_SGR = re.compile(rb"\x1b\[([0-9:;]*)m")
# SGR and EL: the first is skimmed, the second touches nothing that is left behind a carriage return.
_SGR_OR_EL = re.compile(rb"\x1b\[[0-9:;]*[mK]")
_ODD_ESC = re.compile(rb"\x1b(?!\[[0-9:;]*[mK])")
_C1 = re.compile(rb"\xc2(?![\xa0-\xbf])")
_CUT = re.compile(rb"\x1b(?:\[[0-9:;]*)?|\xc2")
_CUT_MAX_BYTES = 32
_INVISIBLE = bytes(range(0x20)) + b"\x7f"


def first_odd(data: bytes, at: int = 0) -> int:
    """Where the first thing stands that is no text, no colour and no control of plain text.

    Before it nothing is a question or changes what a client acts on. What the data breaks off in is odd, but for a
    character.
    """
    end = len(data)
    for shift in (b"\x0e", b"\x0f"):
        found = data.find(shift, at, end)
        if found >= 0:
            end = found
    # A look for the byte costs nothing against a look for the pattern.
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
    """Whether the odd thing is but the beginning of what need not be odd."""
    return len(data) - odd <= _CUT_MAX_BYTES and _CUT.fullmatch(data, odd) is not None


def count(byte: bytes, data: bytes) -> int:
    """As `data.count(byte)`, several times faster."""
    return len(data) - len(data.replace(byte, b"")) if byte in data else 0


def skim(cursor: Cursor, data: bytes) -> int:
    """How much of this stretch without an odd thing was taken; behind that the cursor stands in column 0.

    Nothing is taken where one had to count how far the cursor gets.
    """
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
        # A gradient has a colour for every character: only the last one is looked at.
        kind = body[:3]
        single = kind in (b"38;", b"48;") and body.count(b";") == {b"2;": 4, b"5;": 2}.get(body[3:5])
        if single and kind in colored:
            continue
        stroke = parse(body)
        if single and stroke[1]:
            colored.add(kind)
        strokes.append(stroke)
    for stroke in reversed(strokes):
        draw(cursor.pen, stroke)


def _find_last(cursor: Cursor, data: bytes, end: int) -> None:
    """The last character shown, from the last line that has one."""
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
