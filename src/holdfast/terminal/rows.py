"""What a screen is made of (cells, runs, rows, styles) and how a style is said to a terminal."""

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
    # `parameters;uri`, as OSC 8 has it; empty for none.
    link: str = ""

    @property
    def uri(self) -> str:
        return self.link.partition(";")[2]


PLAIN = Style()

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
    """One character with what combines with it. `width` is 1 or 2: the second half of a wide one is no cell."""

    text: str
    width: int
    style: Style

    @property
    def blank(self) -> bool:
        """Nothing to be seen there."""
        style = self.style
        seen = style.bg is not None or style.inverse or style.underline or style.strike or style.overline or style.link
        return self.text == " " and not seen


class Run(NamedTuple):
    text: str
    width: int
    style: Style


class Row:
    """A row of the screen; `wrapped` when its line goes on in the next one."""

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
        """All cells, so also the spaces at the end, as a wrapped line needs them."""
        return "".join([cell.text for cell in self.cells])

    @property
    def runs(self) -> list[Run]:
        return list(runs(self.cells))

    def used(self) -> list[Cell]:
        """Without the blanks at the end."""
        return trimmed(self.cells)

    def columns(self, start: int, stop: int) -> list[Cell]:
        """The cells between two columns; half of a wide character is a space."""
        found: list[Cell] = []
        column = 0
        for cell in self.cells:
            behind = column + cell.width
            if behind > start and column < stop:
                inside = min(behind, stop) - max(column, start)
                found.append(cell if inside == cell.width else Cell(" ", 1, cell.style))
            column = behind
            if column >= stop:
                break
        return found


def trimmed(cells: list[Cell]) -> list[Cell]:
    end = len(cells)
    while end and cells[end - 1].blank:
        end -= 1
    return cells[:end]


def runs(cells: Iterable[Cell]) -> Iterator[Run]:
    """Neighbours of one style together."""
    texts: list[str] = []
    width = 0
    style = PLAIN
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
    """From any pen to this one. Underlines are sent in colon form, so that who knows none of it skips it whole."""
    parts = ["0"]
    parts += [code for name, code in _FLAGS if getattr(style, name)]
    if style.underline:
        parts.append("4" if style.underline == 1 else f"4:{style.underline}")
    parts += _color(style.fg, 30)
    parts += _color(style.bg, 40)
    if style.underline_color is not None:
        parts.append("58:" + _colon(style.underline_color))
    return f"\x1b[{';'.join(parts)}m" if len(parts) > 1 else "\x1b[m"


def link(style: Style) -> str:
    return f"\x1b]8;{style.link or ';'}\x1b\\"


def write(cells: Iterable[Cell], pen: Style = PLAIN) -> tuple[str, Style]:
    """What prints these cells behind whatever left this pen, and the pen it leaves."""
    out: list[str] = []
    for run in runs(cells):
        if run.style != pen:
            if run.style.link != pen.link:
                out.append(link(run.style))
            if run.style._replace(link="") != pen._replace(link=""):
                out.append(sgr(run.style))
            pen = run.style
        out.append(run.text)
    return "".join(out), pen


def plainly(pen: Style) -> str:
    """Back to the plain pen."""
    if pen == PLAIN:
        return ""
    return (link(PLAIN) if pen.link else "") + ("\x1b[m" if pen._replace(link="") != PLAIN else "")


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
