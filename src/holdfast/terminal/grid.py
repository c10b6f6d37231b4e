"""The one seam over the emulator: a screen with cells, fed with what a terminal was sent.

The emulator is asciinema's avt (`pyavt`). `dialect.py` tells it in its own words what terminals understand, and keeps
what its cells cannot hold; `emulator.py` is about the rest of its ways. What stays unknown to it is not shown: left
and right margins, double-height lines, protected cells, reverse wrap-around, pictures, the erasing of history
(`CSI 3 J`), and colours that were changed by OSC 4, 10 or 11 (an index of the palette stays an index). Erasing at the
right edge while the cursor waits there leaves the last column alone. On the alternate screen too it joins lines when
the width changes; programs redraw then. A panic inside of it (hostile input can cause one) is `GridFailed`: the
caller builds a new grid from the log, or says that it gave up.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from ..errors import BadSize
from .dialect import Dialect
from .emulator import Emulator, GridFailed, Parts, other_pen, style
from .looks import Extras
from .rows import Cell, Row, Style
from .stand_ins import RESERVED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from avt._avt import Line

__all__ = ["Grid", "GridFailed"]

ROWS_MAX = 500
COLS_MAX = 1000

# What is translated at once: one odd sequence sends so much through the parser.
_PIECE_BYTES = 16 << 10
# Stand-ins that are no longer shown are thrown away only so often, or a hostile stream would cost that each time.
_RENEW_BYTES = 1 << 20
_DUMP_VERSION = 1
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_COLOR = re.compile("#[0-9a-f]{6}")


class Grid:
    def __init__(self, rows: int, cols: int, history: int = 1000) -> None:
        _check_size(rows, cols)
        self._history = history
        self._emulator = Emulator(rows, cols, history)
        self._dialect = Dialect(rows, self._emulator.column, self._emulator.row)
        self._fed_since_renewal = 0
        # Of the main screen, while the other one is active: read once, as that takes the emulator apart.
        self._main: list[Row] | None = None

    # What goes in.

    def feed(self, data: bytes) -> None:
        self._main = None
        emulator, dialect = self._emulator, self._dialect
        entries = dialect.entries
        for start in range(0, len(data), _PIECE_BYTES):
            for text in dialect.translate(data[start : start + _PIECE_BYTES]):
                if text:
                    emulator.feed(text)
        emulator.alt = dialect.alt
        if dialect.entries != entries or not dialect.alt:
            emulator.main_size = emulator.size
        self._fed_since_renewal += len(data)
        if dialect.stand_ins.full and self._fed_since_renewal > _RENEW_BYTES:
            self._renew()

    def resize(self, rows: int, cols: int) -> None:
        """Lines that were wrapped on the main screen are wrapped anew."""
        _check_size(rows, cols)
        if (rows, cols) != self.size:
            self._main = None
            self._dialect.resized(rows)
            self._emulator.resize(rows, cols)

    # What is there.

    @property
    def size(self) -> tuple[int, int]:
        return self._emulator.size

    @property
    def alt(self) -> bool:
        return self._dialect.alt

    @property
    def cursor(self) -> tuple[int, int, bool]:
        """Row and column from 0, and whether it is visible."""
        cursor = self._emulator.cursor
        return cursor.row, min(cursor.col, self.size[1] - 1), cursor.visible

    @property
    def pending_wrap(self) -> bool:
        """The last column is filled: the next character goes to the next row."""
        column, cols = self._emulator.column()
        return column >= cols

    @property
    def scrolled(self) -> int:
        """How many rows have gone off the top of the main screen, whichever is active. Another size makes others."""
        rows = len(self._all_main() if self.alt else self._emulator.lines())
        return self._emulator.dropped + rows - self.size[0]

    def rows(self) -> list[Row]:
        """The visible page of the active screen."""
        return self._read(self._emulator.page())

    def texts(self) -> list[str]:
        """The same without styles: a hundred times faster, for those who look often."""
        meaning = self._dialect.stand_ins.meaning
        return [RESERVED.sub(lambda found: meaning(found.group())[0], line.text) for line in self._emulator.page()]

    def main_rows(self) -> list[Row]:
        """The visible page of the main screen, whichever is active."""
        return self._all_main()[-self.size[0] :]

    def history(self, count: int) -> list[Row]:
        """The last rows that went off the top of the main screen, whichever is active."""
        if count <= 0:
            return []
        if not self.alt:
            return self._read(self._emulator.lines()[: -self.size[0]][-count:])
        return self._all_main()[: -self.size[0]][-count:]

    # To be kept and rebuilt.

    def dump(self) -> str:
        """All that has to be known to build this grid again, the same for equal grids. To be taken at a ground
        offset: of a sequence that has begun only the first 4 KiB are in it."""
        parts, lines = self._emulator.take_apart()
        if self.alt:
            self._main = self._read(lines)
        dialect = self._dialect.fresh()
        main, screen = (self._dialect.renumbered(text, dialect) for text in (parts.main, parts.screen))
        return json.dumps(
            {
                "version": _DUMP_VERSION,
                "history": self._history,
                **parts._replace(main=main, screen=screen)._asdict(),
                "stand_ins": dialect.stand_ins.meanings(),
                "dialect": dialect.state(),
            },
            separators=(",", ":"),
        )

    @classmethod
    def load(cls, dump: str) -> Grid:
        """ValueError if it is no dump of this version."""
        try:
            kept = json.loads(dump)
            if kept["version"] != _DUMP_VERSION:
                raise ValueError(f"a dump of version {kept['version']}")
            rows, cols = kept["size"]
            grid = cls(rows, cols, kept["history"])
            for text, extras in kept["stand_ins"]:
                grid._dialect.stand_ins.char(_shown(text), _sound(Extras(*extras)))
            grid._dialect.resume(kept["dialect"])
            main_rows, main_cols = kept["main_size"]
            parts = (main_rows, main_cols), kept["main"], (rows, cols), kept["screen"], kept["stops_beyond"]
            grid._emulator.build(Parts(*parts))
            grid._emulator.alt = grid.alt
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no dump of a grid: {error!r}") from None
        return grid

    def _renew(self) -> None:
        """Forgets the stand-ins that are not shown any more."""
        parts = self._emulator.parts()
        dialect = self._dialect.fresh()
        main, screen = (self._dialect.renumbered(text, dialect) for text in (parts.main, parts.screen))
        self._dialect = dialect
        self._emulator.build(parts._replace(main=main, screen=screen))
        self._fed_since_renewal = 0

    # How it is read.

    def _all_main(self) -> list[Row]:
        if not self.alt:
            return self._read(self._emulator.lines())
        if self._main is None:
            self._main = self._read(self._emulator.take_apart()[1])
        return self._main

    def _read(self, lines: Sequence[Line]) -> list[Row]:
        meaning = self._dialect.stand_ins.meaning
        rows: list[Row] = []
        for line, wrapped in zip(lines, self._emulator.wrapped(lines), strict=True):
            cells: list[Cell] = []
            for chunk in line.chunks(other_pen):
                pen = style(chunk[0].pen)
                # Erased, whatever the pen: of what would show on a space only its background is filled in.
                blank = Cell(" ", 1, pen._replace(inverse=False, strike=False, underline=0))
                for cell in chunk:
                    char, width = cell.char, cell.width
                    if char == " ":
                        if width:
                            cells.append(blank)
                        continue
                    text, extras = meaning(char)
                    cells.append(Cell(text, width, _with(pen, extras) if any(extras) else pen))
            rows.append(Row(cells, wrapped))
        return rows


def _shown(text: str) -> str:
    """The text of a cell in a dump, which anybody could have edited."""
    if not text or _CONTROL.search(text):
        raise ValueError("a cell with a control character")
    return text


def _sound(extras: Extras) -> Extras:
    color = extras.underline_color
    if _CONTROL.search(extras.link) or extras.underline not in range(6):
        raise ValueError("extras that no cell has")
    if color is not None and not (type(color) is int and 0 <= color < 256) and not _COLOR.fullmatch(str(color)):
        raise ValueError("a color that there is not")
    return extras


def _check_size(rows: int, cols: int) -> None:
    if not (1 <= rows <= ROWS_MAX and 1 <= cols <= COLS_MAX):
        raise BadSize(f"{rows}x{cols}")


def _with(pen: Style, extras: Extras) -> Style:
    return pen._replace(
        link=extras.link,
        underline=extras.underline or pen.underline,
        underline_color=extras.underline_color,
        conceal=extras.conceal,
        overline=extras.overline,
    )
