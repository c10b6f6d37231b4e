"""What decides how the next character looks, as far as avt has no place for it, and what sequences do to that.

Of pens avt knows colours, bold, faint, italic, blink, inverse, struck and one kind of underline. It takes the
arguments of `58;...` for attributes of their own, `21` for the end of bold, and knows nothing of `4:3`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..runner.escapes import CSI_PARAMETERS_MAX, numbers
from .rows import Color, rgb


class Extras(NamedTuple):
    """What a cell of avt cannot hold. An underline of style 1 is not here: that one it has."""

    link: str = ""
    underline: int = 0
    underline_color: Color = None
    conceal: bool = False
    overline: bool = False


NO_EXTRAS = Extras()


class Marks(NamedTuple):
    """Extras, and what of avt's own pen is seen on a space."""

    extras: Extras = NO_EXTRAS
    shows: int = 0


UNMARKED = Marks()


class Look(NamedTuple):
    """Marks, and the character sets G0 to G3 with the active one of them."""

    marks: Marks = UNMARKED
    charsets: str = "BBBB"
    active: int = 0

    @property
    def charset(self) -> str:
        return self.charsets[self.active]

    def with_link(self, link: str) -> Look:
        return self._replace(marks=self.marks._replace(extras=self.marks.extras._replace(link=link)))

    @property
    def link(self) -> str:
        return self.marks.extras.link


ORDINARY = Look()

# Special graphics and British; all others count as ASCII.
CHARSETS = {
    "0": dict(zip(range(0x5F, 0x7F), " ◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·", strict=True)),
    "A": {0x23: "£"},
}
DESIGNATES = "()*+"

# What `turned` takes: SGR, character sets, margins, inserted and deleted lines.
TURN = re.compile("(\x1b(?:\\[[0-9;:]*[mrLM]|[(-+][0-~]))")

_UNDERLINED, _INVERSE, _STRUCK = 1, 2, 4
# By SGR code: what it turns on, what it turns off.
_SHOWING = {
    7: (_INVERSE, 0),
    9: (_STRUCK, 0),
    24: (0, _UNDERLINED),
    27: (0, _INVERSE),
    29: (0, _STRUCK),
}


def turned(look: Look, token: str, rows: int) -> tuple[Look, str]:
    """The look behind a sequence, and what of that is for avt on a page of so many rows."""
    final = token[-1]
    if token[1] != "[":
        slot = DESIGNATES.index(token[1])
        name = final if final in CHARSETS else "B"
        charsets = look.charsets[:slot] + name + look.charsets[slot + 1 :]
        # avt's own sets stay as they are, so ASCII it may be told.
        return look._replace(charsets=charsets), token if name == "B" else ""
    if final == "m":
        marks, kept = _marked(look.marks, token)
        return look._replace(marks=marks), kept
    if final == "r":
        # xterm clamps them and refuses what is none; avt moves the cursor all the same.
        top, bottom = (*numbers(token[2:-1].encode()), 0, 0)[:2]
        if bottom > rows:
            token = f"\x1b[{top}r"
        return look, token if (top or 1) < (min(bottom, rows) or rows) else ""
    # IL and DL, which in xterm take the cursor to the first column.
    return look, token + "\r"


def _marked(marks: Marks, raw: str) -> tuple[Marks, str]:
    """What an SGR leaves marked, and what of it is for avt."""
    extras, shows = marks
    kept: list[str] = []
    parts = raw[2:-1].split(";")[:CSI_PARAMETERS_MAX]
    while parts:
        part = parts.pop(0)
        name, _, rest = part.partition(":")
        code = int(name) if name.isdigit() and len(name) <= 3 else 0 if not part else -1
        if code in (38, 48, 58):
            taken = [part]
            color = _take_color(rest, parts, taken)
            if color is None:
                continue
            if code == 58:
                extras = extras._replace(underline_color=color)
            else:
                kept.append(";".join(taken) if not rest else _plainly(code, color))
        elif code == 4 or (code == 21 and not rest):
            style = 2 if code == 21 else int(rest) if rest.isdigit() and len(rest) < 4 else 0 if rest else 1
            extras = extras._replace(underline=style if 2 <= style <= 5 else 0)
            shows = shows | _UNDERLINED if style else shows & ~_UNDERLINED
            kept.append("4" if style else "24")
        elif rest or code < 0:
            continue
        elif code == 0:
            # A link is opened and closed by OSC 8 alone.
            extras, shows = Extras(link=extras.link), 0
            kept.append(part)
        elif code in (8, 28):
            extras = extras._replace(conceal=code == 8)
        elif code in (53, 55):
            extras = extras._replace(overline=code == 53)
        elif code == 59:
            extras = extras._replace(underline_color=None)
        elif code == 6:
            kept.append("5")
        else:
            if code == 24:
                extras = extras._replace(underline=0)
            on, off = _SHOWING.get(code, (0, 0))
            shows = shows & ~off | on
            kept.append(part)
    return Marks(extras, shows), f"\x1b[{';'.join(kept)}m" if kept else ""


def _take_color(rest: str, following: list[str], taken: list[str]) -> int | str | None:
    """The colour behind 38, 48 or 58: in colon form in `rest`, else in the parameters that follow, which are moved
    to those taken. None if it is none."""
    if rest:
        kind, *values = rest.split(":")
        if kind == "2" and len(values) >= 4:
            # `2::r:g:b` has room for a colour space.
            del values[0]
    else:
        kind = following[0] if following else ""
        count = 1 + {"5": 1, "2": 3}.get(kind, 0)
        taken += following[:count]
        values = following[1:count]
        del following[:count]
    if any(value and not (value.isdigit() and len(value) <= 3 and int(value) <= 255) for value in values):
        return None
    channels = [int(value or 0) for value in values]
    if kind == "5" and channels:
        return channels[0]
    if kind == "2" and len(channels) >= 3:
        return "#{:02x}{:02x}{:02x}".format(*channels[:3])
    return None


def _plainly(code: int, color: int | str) -> str:
    if isinstance(color, int):
        return f"{code};5;{color}"
    return ";".join(map(str, (code, 2, *rgb(color))))
