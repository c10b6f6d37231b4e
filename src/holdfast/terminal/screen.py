"""What a person would see on a terminal, as text, JSON, coloured text or a picture."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from ..core.vt.colors import parse, table
from ..core.vt.modes import SYNCHRONIZED
from ..errors import Unsupported
from .cells import PLAIN_STYLE, UNDERLINES, Row, ansi, rgb, runs

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .cells import Cell, Color, Run, Style
    from .grid import Grid

    Rgb = tuple[int, int, int]


# DECSCUSR: 0 is the terminal's own choice, which is a block here.
_SHAPES = ("block", "block", "block", "underline", "underline", "bar", "bar")
_FLAGS = ("bold", "faint", "italic", "blink", "inverse", "conceal", "strike", "overline")


class Cursor(NamedTuple):
    """Row and column count from 0."""

    row: int
    col: int
    visible: bool
    shape: str


class Screen:
    """The page at an offset of the log, with some rows of history. `exact` is false if the screen may lack older
    output, because the log was not read from a cleared screen on. `mid_update`: a synchronized update is open."""

    __slots__ = ("alt", "colors", "cursor", "exact", "history", "mid_update", "offset", "rows", "size", "title")

    def __init__(
        self,
        rows: list[Row],
        history: list[Row],
        cursor: Cursor,
        size: tuple[int, int],
        *,
        alt: bool = False,
        title: str = "",
        offset: int = 0,
        exact: bool = True,
        mid_update: bool = False,
        colors: dict[str, Any] | None = None,
    ) -> None:
        self.rows = rows
        self.history = history
        self.cursor = cursor
        self.size = size
        self.alt = alt
        self.title = title
        self.offset = offset
        self.exact = exact
        self.mid_update = mid_update
        # The colours that the program changed, as in the tracker's snapshot.
        self.colors = colors or {}

    @classmethod
    def of(
        cls, grid: Grid, state: dict[str, Any], *, offset: int | None = None, exact: bool = True, history_rows: int = 0
    ) -> Screen:
        """A grid, and the tracker's snapshot at the same offset."""
        row, col, visible = grid.cursor
        return cls(
            grid.rows(),
            grid.history(history_rows),
            Cursor(row, col, visible, _SHAPES[state["shape"]]),
            grid.size,
            alt=grid.alt,
            title=state["labels"]["title"],
            offset=state["offset"] if offset is None else offset,
            exact=exact,
            mid_update=SYNCHRONIZED in state["modes"]["dec"],
            colors=state["colors"],
        )

    def __repr__(self) -> str:
        rows, cols = self.size
        return f"<screen of {rows} rows and {cols} columns at {self.offset}>"

    def __str__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """History and page, a line for each row, without blanks at the ends. Concealed text is blank."""
        lines = [_text(row.cells).rstrip() for row in (*self.history, *self.rows)]
        while lines and not lines[-1]:
            lines.pop()
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Rows as runs of one style. A missing attribute is off; colours are an index of the palette or `#rrggbb`.
        Blanks at the end of a row are left out."""
        return {
            "size": list(self.size),
            "cursor": self.cursor._asdict(),
            "alt": self.alt,
            "title": self.title,
            "offset": self.offset,
            "exact": self.exact,
            "mid_update": self.mid_update,
            "history": [_row(row) for row in self.history],
            "rows": [_row(row) for row in self.rows],
        }

    def to_ansi(self) -> str:
        """Text with colours and links for a terminal, without cursor movement. Every row ends with a newline."""
        return "".join([f"{ansi(row.used())}\n" for row in (*self.history, *self.rows)])

    def to_svg(self) -> str:
        return svg(self)

    def to_png(self) -> bytes:
        """Raises Unsupported if Pillow is not installed."""
        return png(self)


def _text(cells: Iterable[Cell]) -> str:
    return "".join([" " * cell.width if cell.style.conceal else cell.text for cell in cells])


def _row(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {"runs": [_run(run) for run in runs(row.used())]}
    if row.wrapped:
        found["wrapped"] = True
    return found


def _run(run: Run) -> dict[str, Any]:
    style = run.style
    found: dict[str, Any] = {"text": run.text}
    if style == PLAIN_STYLE:
        return found
    for name in ("fg", "bg", "underline_color"):
        if getattr(style, name) is not None:
            found[name] = getattr(style, name)
    for name in _FLAGS:
        if getattr(style, name):
            found[name] = True
    if style.underline:
        found["underline"] = UNDERLINES[style.underline]
    if style.link:
        found["link"] = style.uri
    return found


# A screen as a picture: SVG without any dependency, PNG through Pillow if that is installed.


_CELL_WIDTH, _CELL_HEIGHT, _FONT_SIZE, _BASELINE = 8.4, 17, 14, 13
_MARGIN = 8
_FONTS = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace"
_FONT_FILES = (
    "DejaVuSansMono.ttf",
    "LiberationMono-Regular.ttf",
    "NotoSansMono-Regular.ttf",
    "Menlo.ttc",
    "FreeMono.ttf",
)
_DECORATIONS = {2: "double", 3: "wavy", 4: "dotted", 5: "dashed"}
# Not allowed in XML, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# A link in a picture may lead to a page, but not run a script.
_SAFE_LINK = re.compile(r"https?://", re.IGNORECASE)


class _Colors:
    """The palette as the program left it."""

    def __init__(self, changed: dict[str, Any]) -> None:
        self._palette = {int(index): _rgb(color) for index, color in changed.get("palette", {}).items()}
        self.foreground = _rgb(changed.get("foreground")) or self.of(7)
        self.background = _rgb(changed.get("background")) or (0, 0, 0)
        self.cursor = _rgb(changed.get("cursor")) or self.foreground

    def of(self, index: int) -> Rgb:
        chosen = self._palette.get(index)
        if chosen is not None:
            return chosen
        red, green, blue = table(index)
        return red >> 8, green >> 8, blue >> 8

    def ink(self, style: Style) -> tuple[Rgb, Rgb | None]:
        """The colours of the text and behind it; None for the background of the whole screen."""
        fg = self._resolved(style.fg, self.foreground)
        bg = None if style.bg is None else self._resolved(style.bg, self.background)
        if style.inverse:
            fg, bg = bg or self.background, fg
        if style.faint:
            behind = bg or self.background
            fg = _between(fg, behind)
        return fg, bg

    def _resolved(self, color: Color, default: Rgb) -> Rgb:
        if color is None:
            return default
        return self.of(color) if isinstance(color, int) else rgb(color)


def svg(screen: Screen) -> str:
    colors = _Colors(screen.colors)
    shown = [*screen.history, *screen.rows]
    width, height = screen.size[1] * _CELL_WIDTH + 2 * _MARGIN, len(shown) * _CELL_HEIGHT + 2 * _MARGIN
    size = f'width="{width:g}" height="{height}" viewBox="0 0 {width:g} {height}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" {size}>',
        f"<title>{_xml(screen.title or 'terminal')}</title>",
        f'<rect width="100%" height="100%" fill="{_hex(colors.background)}"/>',
        f'<g font-family="{_FONTS}" font-size="{_FONT_SIZE}" transform="translate({_MARGIN} {_MARGIN})">',
    ]
    for y, row in enumerate(shown):
        out += _svg_row(row, y, colors)
    if screen.cursor.visible:
        out.append(_svg_cursor(screen, len(screen.history), colors))
    out.append("</g></svg>\n")
    return "\n".join(out)


def _svg_row(row: Row, y: int, colors: _Colors) -> list[str]:
    out: list[str] = []
    column = 0
    for run in runs(row.used()):
        left, width = column * _CELL_WIDTH, run.width * _CELL_WIDTH
        column += run.width
        ink, behind = colors.ink(run.style)
        if behind is not None:
            place = f'x="{left:g}" y="{y * _CELL_HEIGHT}" width="{width:g}" height="{_CELL_HEIGHT}"'
            out.append(f'<rect {place} fill="{_hex(behind)}"/>')
        if not run.style.conceal and (run.text.strip() or run.style.underline or run.style.strike):
            out.append(_svg_text(run, left, y * _CELL_HEIGHT + _BASELINE, width, _hex(ink), colors))
    return out


def _svg_text(run: Run, left: float, top: int, width: float, ink: str, colors: _Colors) -> str:
    style = run.style
    decoration = ["line-through"] * style.strike + ["overline"] * style.overline + ["underline"] * bool(style.underline)
    css = "white-space:pre"
    if decoration:
        css += f";text-decoration:{' '.join(decoration)} {_DECORATIONS.get(style.underline, '')}".rstrip()
        if style.underline and style.underline_color is not None:
            css += f";text-decoration-color:{_hex(colors._resolved(style.underline_color, (0, 0, 0)))}"
    bold = ' font-weight="bold"' if style.bold else ""
    italic = ' font-style="italic"' if style.italic else ""
    # Every run has the length of its cells, whatever the font.
    text = (
        f'<text x="{left:g}" y="{top}" fill="{ink}" textLength="{width:g}" lengthAdjust="spacingAndGlyphs"'
        f'{bold}{italic} style="{css}">{_xml(run.text)}</text>'
    )
    if _SAFE_LINK.match(style.uri):
        return f"<a href={quoteattr(_NOT_XML.sub('', style.uri))}>{text}</a>"
    return text


def _svg_cursor(screen: Screen, history: int, colors: _Colors) -> str:
    row, col, _, shape = screen.cursor
    left, top = col * _CELL_WIDTH, (row + history) * _CELL_HEIGHT
    width, height = _CELL_WIDTH, float(_CELL_HEIGHT)
    if shape == "underline":
        top, height = top + _CELL_HEIGHT - 2, 2
    elif shape == "bar":
        width = 2
    return (
        f'<rect class="cursor" x="{left:g}" y="{top}" width="{width:g}" height="{height:g}"'
        f' fill="{_hex(colors.cursor)}" fill-opacity="0.6"/>'
    )


def png(screen: Screen) -> bytes:
    import io
    from importlib import import_module

    try:
        images, drawing, fonts = (import_module(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont"))
    except ImportError:
        missing = Unsupported("screens as PNG without Pillow")
        missing.fix = "`pip install 'holdfast[png]'`, or ask for svg"
        raise missing from None
    colors = _Colors(screen.colors)
    font = _font(fonts)
    cell = max(1, round(font.getlength("M"))), _CELL_HEIGHT
    shown = [*screen.history, *screen.rows]
    size = screen.size[1] * cell[0] + 2 * _MARGIN, len(shown) * cell[1] + 2 * _MARGIN
    image = images.new("RGB", size, colors.background)
    draw = drawing.Draw(image)
    for y, row in enumerate(shown):
        column = 0
        for each in row.used():
            _draw_cell(draw, font, each, (_MARGIN + column * cell[0], _MARGIN + y * cell[1]), cell, colors)
            column += each.width
    if screen.cursor.visible:
        left = _MARGIN + screen.cursor.col * cell[0]
        top = _MARGIN + (screen.cursor.row + len(screen.history)) * cell[1]
        right, bottom = left + cell[0] - 1, top + cell[1] - 1
        if screen.cursor.shape == "underline":
            top = bottom - 1
        elif screen.cursor.shape == "bar":
            right = left + 1
        draw.rectangle((left, top, right, bottom), outline=colors.cursor)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _draw_cell(
    draw: Any,
    font: Any,
    cell: Cell,
    at: tuple[int, int],
    size: tuple[int, int],
    colors: _Colors,
) -> None:
    left, top = at
    right, bottom = left + size[0] * cell.width - 1, top + size[1] - 1
    ink, behind = colors.ink(cell.style)
    if behind is not None:
        draw.rectangle((left, top, right, bottom), fill=behind)
    if cell.style.conceal:
        return
    if cell.text != " ":
        draw.text((left, top), cell.text, font=font, fill=ink)
        if cell.style.bold:
            draw.text((left + 1, top), cell.text, font=font, fill=ink)
    for wanted, y in (
        (cell.style.underline, bottom - 1),
        (cell.style.strike, top + size[1] // 2),
        (cell.style.overline, top),
    ):
        if wanted:
            draw.line((left, y, right, y), fill=ink)


def _font(fonts: Any) -> Any:
    for name in _FONT_FILES:
        try:
            return fonts.truetype(name, _FONT_SIZE)
        except OSError:
            continue
    return fonts.load_default(_FONT_SIZE)


def _rgb(color: object) -> Rgb | None:
    """A colour of a snapshot, in the form of OSC."""
    parsed = parse(color.encode()) if isinstance(color, str) else None
    if parsed is None:
        return None
    red, green, blue = parsed
    return red >> 8, green >> 8, blue >> 8


def _between(one: Rgb, other: Rgb) -> Rgb:
    red, green, blue = ((a + b) // 2 for a, b in zip(one, other, strict=True))
    return red, green, blue


def _hex(color: Rgb) -> str:
    return "#{:02x}{:02x}{:02x}".format(*color)


def _xml(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))
