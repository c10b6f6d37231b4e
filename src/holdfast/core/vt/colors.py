"""Colours of a terminal, and the pen: what SGR set.

A colour is red, green and blue from 0 to 65535. The first one of these is in force: set by the application, given in
the spec, reported by a client, `COLORFGBG`, light grey on black.
"""

from __future__ import annotations

import re

from .parser import CSI_PARAMETERS_MAX
from .parser import number as parser_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Optional

    Color = tuple[int, int, int]
    Pen = dict[str, str]
    # Whether all is reset first, then what is set, or unset by None.
    Strokes = tuple[bool, tuple[tuple[str, Optional[str]], ...]]


FOREGROUND, BACKGROUND, CURSOR = 10, 11, 12
NAMES = {FOREGROUND: "foreground", BACKGROUND: "background", CURSOR: "cursor"}
PALETTE = 4
# The OSCs about colours: setting or querying, and resetting.
COMMANDS = frozenset((PALETTE, *NAMES, 100 + PALETTE, *(100 + number for number in NAMES)))

_SLASHED = re.compile(rb"rgb:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})")
_HASHED = re.compile(rb"#(?:[0-9a-fA-F]{3}){1,4}")

_XTERM_16 = (
    *(0x000000, 0xCD0000, 0x00CD00, 0xCDCD00, 0x0000EE, 0xCD00CD, 0x00CDCD, 0xE5E5E5),
    *(0x7F7F7F, 0xFF0000, 0x00FF00, 0xFFFF00, 0x5C5CFF, 0xFF00FF, 0x00FFFF, 0xFFFFFF),
)
_BY_NAME = {
    b"black": 0x000000,
    b"red": 0xFF0000,
    b"green": 0x00FF00,
    b"yellow": 0xFFFF00,
    b"blue": 0x0000FF,
    b"magenta": 0xFF00FF,
    b"cyan": 0x00FFFF,
    b"white": 0xFFFFFF,
    b"gray": 0xBEBEBE,
    b"grey": 0xBEBEBE,
    b"orange": 0xFFA500,
}
_DEFAULT_FOREGROUND = _XTERM_16[7]
_DEFAULT_BACKGROUND = _XTERM_16[0]


def parse(spec: bytes) -> Color | None:
    """A colour as X11 writes it: `rgb:h/h/h` with 1 to 4 digits each, `#` with 1 to 4 each, some names."""
    match = _SLASHED.fullmatch(spec)
    if match is not None:
        red, green, blue = (int(part, 16) * 0xFFFF // (16 ** len(part) - 1) for part in match.groups())
        return red, green, blue
    if _HASHED.fullmatch(spec) is not None:
        digits = (len(spec) - 1) // 3
        parts = [spec[1 + i * digits : 1 + (i + 1) * digits] for i in range(3)]
        if digits == 2:
            return _of_bytes(*(int(part, 16) for part in parts))
        red, green, blue = (int(part.ljust(4, b"0"), 16) for part in parts)
        return red, green, blue
    known = _BY_NAME.get(spec.lower())
    return None if known is None else _of_number(known)


def text(color: Color) -> str:
    return "rgb:{:04x}/{:04x}/{:04x}".format(*color)


def table(index: int) -> Color:
    """One of the 256 colours of xterm."""
    if index < 16:
        return _of_number(_XTERM_16[index])
    if index >= 232:
        grey = 8 + (index - 232) * 10
        return _of_bytes(grey, grey, grey)
    index -= 16
    return _of_bytes(*(0 if part == 0 else 55 + 40 * part for part in (index // 36, index // 6 % 6, index % 6)))


def is_dark(color: Color) -> bool:
    red, green, blue = color
    return 299 * red + 587 * green + 114 * blue < 500 * 0xFFFF


def _of_bytes(red: int, green: int, blue: int) -> Color:
    return red * 257, green * 257, blue * 257


def _of_number(value: int) -> Color:
    return _of_bytes(value >> 16, value >> 8 & 0xFF, value & 0xFF)


class Colors:
    """`asked` is `tty.colors` of the spec: `foreground`, `background`, `cursor`, each as text or three bytes."""

    __slots__ = ("application", "palette", "changes", "_asked", "_client", "_environment")

    def __init__(self, asked: dict[str, Any] | None, colorfgbg: str | None) -> None:
        self.application: dict[int, Color] = {}
        self.palette: dict[int, Color] = {}
        # Counted, so that a change is noticed.
        self.changes = 0
        self._asked = {number: _given((asked or {}).get(name)) for number, name in NAMES.items()}
        self._client: dict[int, Color] = {}
        self._environment = _from_environment(colorfgbg)

    def client(self, foreground: object, background: object) -> None:
        """The colours that a control client reported. The last known ones are kept when it leaves."""
        for number, value in ((FOREGROUND, foreground), (BACKGROUND, background)):
            color = _given(value)
            if color is not None:
                self._client[number] = color

    def carry_out(self, command: int, text: bytes) -> Iterator[tuple[int, int | None]]:
        """Carry out one of COMMANDS. Yields each query as (number, index of the palette) before the next item is
        carried out."""
        fields = text.split(b";") if text else []
        if command in NAMES:
            # Further values are for the next numbers.
            for number, spec in zip(range(command, CURSOR + 1), fields):
                if spec == b"?":
                    yield number, None
                else:
                    self._set(self.application, number, parse(spec))
        elif command == PALETTE:
            for index, spec in zip(map(_index, fields[::2]), fields[1::2]):
                if index is not None and spec == b"?":
                    yield PALETTE, index
                elif index is not None:
                    self._set(self.palette, index, parse(spec))
        elif command == 100 + PALETTE:
            for index in list(map(_index, fields)) if fields else list(self.palette):
                self._unset(self.palette, index)
        else:
            self._unset(self.application, command - 100)

    def _set(self, colors: dict[int, Color], key: int, color: Color | None) -> None:
        if color is not None and colors.get(key) != color:
            colors[key] = color
            self.changes += 1

    def _unset(self, colors: dict[int, Color], key: int | None) -> None:
        if key in colors:
            del colors[key]
            self.changes += 1

    def in_force(self, number: int) -> Color:
        for source in (self.application, self._asked, self._client, self._environment):
            color = source.get(number)
            if color is not None:
                return color
        if number == CURSOR:
            return self.in_force(FOREGROUND)
        return _of_number(_DEFAULT_BACKGROUND if number == BACKGROUND else _DEFAULT_FOREGROUND)

    def entry(self, index: int) -> Color:
        color = self.palette.get(index)
        return table(index) if color is None else color

    @property
    def are_dark(self) -> bool:
        return is_dark(self.in_force(BACKGROUND))

    def reset(self) -> None:
        self.application.clear()
        self.palette.clear()

    def snapshot(self) -> dict[str, Any]:
        """The colours that the application set."""
        return {
            **{name: text(self.application[n]) if n in self.application else None for n, name in NAMES.items()},
            "palette": {str(index): text(color) for index, color in self.palette.items()},
        }

    def continue_from(self, snapshot: dict[str, Any]) -> None:
        set_ones = {number: _given(snapshot[name]) for number, name in NAMES.items()}
        self.application = {number: color for number, color in set_ones.items() if color is not None}
        entries = {int(index): _given(color) for index, color in snapshot["palette"].items()}
        self.palette = {index: color for index, color in entries.items() if color is not None}


def _index(digits: bytes) -> int | None:
    return int(digits) if digits.isdigit() and len(digits) <= 3 and int(digits) <= 255 else None


def _given(value: object) -> Color | None:
    if isinstance(value, str):
        return parse(value.encode("ascii", "replace"))
    if isinstance(value, (list, tuple)) and len(value) == 3 and all(type(n) is int and 0 <= n <= 255 for n in value):
        return _of_bytes(*value)
    return None


def _from_environment(colorfgbg: str | None) -> dict[int, Color | None]:
    """`15;0` or `15;default;0`: foreground and background as indexes of the table."""
    fields = (colorfgbg or "").split(";")
    if len(fields) < 2:
        return {}
    first, last = (
        table(int(field)) if field.isascii() and field.isdigit() and int(field) < 256 else None
        for field in (fields[0], fields[-1])
    )
    return {FOREGROUND: first, BACKGROUND: last}


# The pen: what SGR set, as one SGR parameter for each attribute.
#
# `{"bold": "1", "fg": "38;5;208"}`: joined they are the SGR that sets it. Each SGR only assigns constants, so in a run
# of them the last of each kind counts.


# In the order of a reply to DECRQSS.
PARTS = (
    *("bold", "faint", "italic", "underline", "blink", "inverse", "hidden", "strike", "frame", "overline", "raised"),
    *("fg", "bg", "underline_color"),
)

_SIMPLE: dict[int, tuple[tuple[str, str | None], ...]] = {
    1: (("bold", "1"),),
    2: (("faint", "2"),),
    3: (("italic", "3"),),
    5: (("blink", "5"),),
    6: (("blink", "6"),),
    7: (("inverse", "7"),),
    8: (("hidden", "8"),),
    9: (("strike", "9"),),
    21: (("underline", "21"),),
    22: (("bold", None), ("faint", None)),
    23: (("italic", None),),
    24: (("underline", None),),
    25: (("blink", None),),
    27: (("inverse", None),),
    28: (("hidden", None),),
    29: (("strike", None),),
    39: (("fg", None),),
    49: (("bg", None),),
    51: (("frame", "51"),),
    52: (("frame", "52"),),
    53: (("overline", "53"),),
    54: (("frame", None),),
    55: (("overline", None),),
    59: (("underline_color", None),),
    73: (("raised", "73"),),
    74: (("raised", "74"),),
    75: (("raised", None),),
    **{n: (("fg", str(n)),) for n in (*range(30, 38), *range(90, 98))},
    **{n: (("bg", str(n)),) for n in (*range(40, 48), *range(100, 108))},
}
_COLORED = {38: "fg", 48: "bg", 58: "underline_color"}


def parse_pen(body: bytes) -> Strokes:
    """Parse the parameters of an SGR. Unknown ones set nothing."""
    reset = False
    strokes: list[tuple[str, str | None]] = []
    parts = body.split(b";", CSI_PARAMETERS_MAX)[:CSI_PARAMETERS_MAX]
    at = 0
    while at < len(parts):
        part = parts[at]
        at += 1
        if b":" in part:
            strokes += _with_parts(part)
            continue
        code = parser_number(part)
        if code == 0:
            reset = True
            strokes.clear()
        elif code == 4:
            strokes.append(("underline", "4"))
        elif code in _COLORED:
            values = [parser_number(each.partition(b":")[0]) for each in parts[at : at + 4]]
            at += {5: 2, 2: 4}.get(values[0] if values else 0, 1)
            color = _color(values)
            if color is not None:
                strokes.append((_COLORED[code], f"{code};{color}"))
        else:
            strokes += _SIMPLE.get(code, ())
    return reset, tuple(strokes)


def _with_parts(part: bytes) -> list[tuple[str, str | None]]:
    """`4:3`, `38:5:n`, `38:2:r:g:b`, and `38:2::r:g:b` with its colour space."""
    values = [parser_number(each) for each in part.split(b":", 8)]
    if values[0] == 4:
        style = values[1]
        if style == 0:
            return [("underline", None)]
        return [("underline", "4" if style == 1 else f"4:{style}")] if style <= 5 else []
    if values[0] not in _COLORED:
        return []
    if values[1] == 2 and len(values) >= 6:
        del values[2]
    color = _color(values[1:])
    return [] if color is None else [(_COLORED[values[0]], f"{values[0]};{color}")]


def _color(values: list[int]) -> str | None:
    if len(values) >= 2 and values[0] == 5 and values[1] <= 255:
        return f"5;{values[1]}"
    if len(values) >= 4 and values[0] == 2 and max(values[1:4]) <= 255:
        return f"2;{values[1]};{values[2]};{values[3]}"
    return None


def draw_pen(pen: Pen, strokes: Strokes) -> None:
    reset, changes = strokes
    if reset:
        pen.clear()
    for part, value in changes:
        if value is None:
            pen.pop(part, None)
        else:
            pen[part] = value


def pen_sgr(pen: Pen) -> str:
    """The parameters that set exactly this pen."""
    return ";".join(["0", *(pen[part] for part in PARTS if part in pen)])


def reported_pen(pen: Pen) -> str:
    """The same as `pen_sgr`, with colons inside colours, so that a reader cannot take their parts for attributes."""
    values = [pen[part] for part in PARTS if part in pen]
    return ";".join(["0", *(_as_parts(value) if ";" in value else value for value in values)])


def _as_parts(color: str) -> str:
    code, space, values = color.split(";", 2)
    return f"{code}:{space}:{':' if space == '2' else ''}{values.replace(';', ':')}"
