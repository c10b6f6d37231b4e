"""The pen: what SGR set, as one SGR parameter for each thing that can be set.

`{"bold": "1", "fg": "38;5;208"}`: joined they are the SGR that sets it. Each SGR only assigns constants, so of a run
of them the last of each kind counts.
"""

from __future__ import annotations

from .escapes import CSI_PARAMETERS_MAX, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    Pen = dict[str, str]
    # Whether all is reset first, then what is set, or unset by None.
    Strokes = tuple[bool, tuple[tuple[str, Optional[str]], ...]]

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


def parse(body: bytes) -> Strokes:
    """The parameters of an SGR as they stood. What is unknown sets nothing."""
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
        code = number(part)
        if code == 0:
            reset = True
            strokes.clear()
        elif code == 4:
            strokes.append(("underline", "4"))
        elif code in _COLORED:
            values = [number(each.partition(b":")[0]) for each in parts[at : at + 4]]
            at += {5: 2, 2: 4}.get(values[0] if values else 0, 1)
            color = _color(values)
            if color is not None:
                strokes.append((_COLORED[code], f"{code};{color}"))
        else:
            strokes += _SIMPLE.get(code, ())
    return reset, tuple(strokes)


def _with_parts(part: bytes) -> list[tuple[str, str | None]]:
    """`4:3`, `38:5:n`, `38:2:r:g:b`, and `38:2::r:g:b` with its colour space."""
    values = [number(each) for each in part.split(b":", 8)]
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


def draw(pen: Pen, strokes: Strokes) -> None:
    reset, changes = strokes
    if reset:
        pen.clear()
    for part, value in changes:
        if value is None:
            pen.pop(part, None)
        else:
            pen[part] = value


def sgr(pen: Pen) -> str:
    """The parameters that set exactly this pen."""
    return ";".join(["0", *(pen[part] for part in PARTS if part in pen)])


def reported(pen: Pen) -> str:
    """As `sgr`, with colours as one parameter with parts: so a reader cannot take them for attributes."""
    values = [pen[part] for part in PARTS if part in pen]
    return ";".join(["0", *(_as_parts(value) if ";" in value else value for value in values)])


def _as_parts(color: str) -> str:
    code, space, values = color.split(";", 2)
    return f"{code}:{space}:{':' if space == '2' else ''}{values.replace(';', ':')}"
