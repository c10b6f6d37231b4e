"""Cells, runs, rows and styles of a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# An index of the palette, or "#rrggbb"; None is the terminal's default.
Color = int | str | None

UNDERLINES = ("", "single", "double", "curly", "dotted", "dashed")


class Style(NamedTuple):
    fg: Color = None
    bg: Color = None
    bold: bool = False
    faint: bool = False
    italic: bool = False
    blink: bool = False
    inverse: bool = False
    conceal: bool = False
    strike: bool = False
    overline: bool = False
    # An index of UNDERLINES.
    underline: int = 0
    underline_color: Color = None
    # `parameters;uri` as in OSC 8, or empty.
    link: str = ""

    @property
    def uri(self) -> str:
        return self.link.partition(";")[2]


PLAIN_STYLE = Style()

_FLAGS = (
    ("bold", "1"),
    ("faint", "2"),
    ("italic", "3"),
    ("blink", "5"),
    ("inverse", "7"),
    ("conceal", "8"),
    ("strike", "9"),
    ("overline", "53"),
)


class Cell(NamedTuple):
    """One character with its combining characters. `width` is 1 or 2; the second half of a wide one has no cell."""

    text: str
    width: int
    style: Style

    @property
    def blank(self) -> bool:
        """Nothing is visible there."""
        style = self.style
        seen = style.bg is not None or style.inverse or style.underline or style.strike or style.overline or style.link
        return self.text == " " and not seen


class Run(NamedTuple):
    text: str
    width: int
    style: Style


class Row:
    """A row of the screen; `wrapped` when its line continues in the next one."""

    __slots__ = ("cells", "wrapped")

    def __init__(self, cells: list[Cell], wrapped: bool) -> None:
        self.cells = cells
        self.wrapped = wrapped

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and self.cells == other.cells and self.wrapped == other.wrapped

    def __hash__(self) -> int:
        return hash((tuple(self.cells), self.wrapped))

    def __repr__(self) -> str:
        return f"<row {self.text!r}{' wrapped' if self.wrapped else ''}>"

    @property
    def text(self) -> str:
        """The text of all cells, with the spaces at the end, which a wrapped line needs."""
        return "".join([cell.text for cell in self.cells])

    @property
    def runs(self) -> list[Run]:
        return list(runs(self.cells))

    def used(self) -> list[Cell]:
        """Without the blanks at the end."""
        return trimmed(self.cells)

    def columns(self, start: int, stop: int) -> list[Cell]:
        """The cells between two columns. Half of a wide character becomes a space."""
        found: list[Cell] = []
        column = 0
        for cell in self.cells:
            after = column + cell.width
            if after > start and column < stop:
                inside = min(after, stop) - max(column, start)
                found.append(cell if inside == cell.width else Cell(" ", 1, cell.style))
            column = after
            if column >= stop:
                break
        return found


def trimmed(cells: list[Cell]) -> list[Cell]:
    end = len(cells)
    while end and cells[end - 1].blank:
        end -= 1
    return cells[:end]


def runs(cells: Iterable[Cell]) -> Iterator[Run]:
    """Neighbouring cells of one style as one run."""
    texts: list[str] = []
    width = 0
    style = PLAIN_STYLE
    for cell in cells:
        if texts and cell.style != style:
            yield Run("".join(texts), width, style)
            texts, width = [], 0
        texts.append(cell.text)
        width += cell.width
        style = cell.style
    if texts:
        yield Run("".join(texts), width, style)


def sgr(style: Style) -> str:
    """The SGR from any pen to this style. Underlines have the colon form, which a terminal without them skips."""
    parts = ["0"]
    parts += [code for name, code in _FLAGS if getattr(style, name)]
    if style.underline:
        parts.append("4" if style.underline == 1 else f"4:{style.underline}")
    parts += _color(style.fg, 30)
    parts += _color(style.bg, 40)
    if style.underline_color is not None:
        parts.append("58:" + _colon(style.underline_color))
    return f"\x1b[{';'.join(parts)}m" if len(parts) > 1 else "\x1b[m"


def ansi(cells: Iterable[Cell]) -> str:
    """The cells as a terminal prints them. The pen is plain before them and after them."""
    out: list[str] = []
    pen = PLAIN_STYLE
    for style, text in [*((run.style, run.text) for run in runs(cells)), (PLAIN_STYLE, "")]:
        if style.link != pen.link:
            out.append(f"\x1b]8;{style.link or ';'}\x1b\\")
        if style._replace(link="") != pen._replace(link=""):
            out.append(sgr(style))
        pen = style
        out.append(text)
    return "".join(out)


def rgb(color: str) -> tuple[int, int, int]:
    value = int(color[1:], 16)
    return value >> 16, value >> 8 & 255, value & 255


def _color(color: Color, base: int) -> list[str]:
    if color is None:
        return []
    if isinstance(color, str):
        red, green, blue = rgb(color)
        return [f"{base + 8};2;{red};{green};{blue}"]
    if color < 8:
        return [str(base + color)]
    if color < 16:
        return [str(base + 52 + color)]
    return [f"{base + 8};5;{color}"]


def _colon(color: int | str) -> str:
    if isinstance(color, int):
        return f"5:{color}"
    red, green, blue = rgb(color)
    return f"2::{red}:{green}:{blue}"
