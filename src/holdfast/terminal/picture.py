"""A screen as a picture: SVG without any dependency, PNG through Pillow where that is installed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from ..errors import Unsupported
from ..runner.colors import parse, table
from .rows import Row, rgb

if TYPE_CHECKING:
    from typing import Any

    from .rows import Cell, Color, Run, Style
    from .screen import Screen

    Rgb = tuple[int, int, int]

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
# Not allowed in XML, whatever the escape.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# What a link in a picture may lead to; a script it may not.
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
        """Of the text and behind it; None for the background of all."""
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
    for run in Row(row.used(), row.wrapped).runs:
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
    # Every run has the length of its cells, whatever font there is.
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
        missing.fix = "`pip install holdfast[png]`, or ask for svg"
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
    """From a snapshot, as OSC writes it."""
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
