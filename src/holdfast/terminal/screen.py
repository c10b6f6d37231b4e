"""What a person would see of a terminal, as text, JSON, coloured text or a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..runner.modes import SYNCHRONIZED
from .rows import PLAIN, UNDERLINES, plainly, runs, write

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .grid import Grid
    from .rows import Cell, Row, Run

# DECSCUSR: 0 is the terminal's own choice, which for us is the first.
_SHAPES = ("block", "block", "block", "underline", "underline", "bar", "bar")
_FLAGS = ("bold", "faint", "italic", "blink", "inverse", "conceal", "strike", "overline")


class Cursor(NamedTuple):
    """Row and column count from 0."""

    row: int
    col: int
    visible: bool
    shape: str


class Screen:
    """The page at an offset of the log, with some rows of what went off its top. `exact` is false where the log was
    not read from a place that is known to be clean, `mid_update` while a program has said that it is not done."""

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
        # As the tracker's snapshot has them: what the program changed of them.
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
        """History and page, a row a line, without blanks at the ends. What is concealed is blank."""
        lines = [_text(row.cells).rstrip() for row in (*self.history, *self.rows)]
        while lines and not lines[-1]:
            lines.pop()
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Rows as runs of one style. An attribute that is not there is off; colours are an index of the palette or
        `#rrggbb`. Blanks at the end of a row are left out."""
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
        """For a terminal to print: colours and links, no cursor movement. Every row ends with a newline."""
        out: list[str] = []
        for row in (*self.history, *self.rows):
            text, pen = write(row.used())
            out.append(text + plainly(pen) + "\n")
        return "".join(out)

    def to_svg(self) -> str:
        from .picture import svg

        return svg(self)

    def to_png(self) -> bytes:
        """Unsupported where Pillow is not installed."""
        from .picture import png

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
    if style == PLAIN:
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
