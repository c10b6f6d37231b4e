"""The screen of `hold top` without the terminal: what it shows as lines, and what a key means on it. Pure."""

from __future__ import annotations

from .tables import BOLD, DIM, YELLOW, age, cut, megabytes, printable, width

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..model import Snapshot
    from .tables import Style
    from .toplist import Row

    Cell = tuple[str, str]

HEADS = ("ID", "NAME", "KIND", "STATUS", "AGE", "CPU", "MEMORY", "SIGNALS", "LAST OUTPUT")
_RIGHT = ("AGE", "CPU", "MEMORY", "SIGNALS")
# Where there is no room for all, these go, in this order, until the last output has so many columns.
_DISPENSABLE = ("KIND", "MEMORY", "CPU", "AGE", "SIGNALS", "NAME", "STATUS")
_LAST_COLUMNS = 16
# A name takes at most a fifth of the line, within these.
_NAME_LEAST, _NAME_MOST = 10, 28
_KEYS = "enter attach  l logs  s stop  r restart  / filter  q quit"
_REVERSE = "7"


def cells(row: Row, now: float | None = None, cols: int | None = None) -> list[Cell]:
    """One for each of HEADS: a text and its colour."""
    name_columns = _NAME_MOST if cols is None else min(max(_NAME_LEAST, cols // 5), _NAME_MOST)
    shot, usage = row.shot, row.usage
    return [
        (shot.id, ""),
        (cut(printable(row.name), name_columns), ""),
        (shot.kind, DIM),
        row.status,
        (age(shot.started_at or shot.created_at, now), DIM),
        ("" if usage is None or usage.cpu is None else f"{usage.cpu:.0f}%", ""),
        ("" if usage is None else megabytes(usage.memory), ""),
        (str(row.signals) if row.signals else "", YELLOW),
        (printable(row.last), DIM),
    ]


class View:
    """What the screen is about: the rows, which of them is selected, what is asked and told."""

    def __init__(self, fits: Callable[[str], Callable[[Snapshot], bool]]) -> None:
        """`fits` makes of the text of a filter what a session has to pass."""
        self._fits = fits
        self._rows: list[Row] = []
        self._looked = False
        self._first = 0
        self._at = 0
        self._page = 1
        self.selected: str | None = None
        self.filter = ""
        self._typing = False
        self.question: tuple[str, str] | None = None
        self.message = ""

    @property
    def rows(self) -> list[Row]:
        if not self.filter:
            return self._rows
        fits = self._fits(self.filter)
        return [row for row in self._rows if fits(row.shot)]

    def show(self, rows: list[Row]) -> list[Row]:
        """These from now on. Which of those before are not among them."""
        listed = {row.id for row in rows}
        gone = [row for row in self._rows if row.id not in listed]
        self._rows = rows
        self._looked = True
        self._settle()
        return gone

    def near(self) -> list[Row]:
        """Those that are seen, and as many on both sides: about the others nobody asks."""
        first = min(self._first, self._at)
        return self.rows[max(0, first - self._page) : max(first, self._at) + 2 * self._page]

    # Keys.

    def press(self, key: str) -> tuple[str, str] | None:
        """What is asked for, and of which session: attach, logs, stop, restart; or quit."""
        if key == "ctrl-c":
            return "quit", ""
        if self._typing:
            self._type(key)
            return None
        asked, self.question = self.question, None
        if asked is not None:
            self.message = ""
            return asked if key in ("y", "Y") else None
        self.message = ""
        if key == "q":
            return "quit", ""
        if key == "/":
            self._typing = True
        elif key == "escape":
            self.filter = ""
            self._settle()
        elif not self._move(key):
            return self._act(key)
        return None

    def _act(self, key: str) -> tuple[str, str] | None:
        row = next((row for row in self.rows if row.id == self.selected), None)
        if row is None:
            return None
        if key == "enter":
            return "attach" if row.shot.tty else "logs", row.id
        if key == "l":
            return "logs", row.id
        if key in ("s", "r"):
            self.question = "stop" if key == "s" else "restart", row.id
        return None

    def _type(self, key: str) -> None:
        if key in ("enter", "escape"):
            self._typing = False
            if key == "escape":
                self.filter = ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif key == "ctrl-u":
            self.filter = ""
        elif len(key) == 1:
            self.filter += key
        self._settle()

    def _move(self, key: str) -> bool:
        count = len(self.rows)
        steps = {
            "up": -1,
            "k": -1,
            "down": 1,
            "j": 1,
            "page-up": -self._page,
            "page-down": self._page,
            "home": -count,
            "g": -count,
            "end": count,
            "G": count,
        }
        if key not in steps:
            return False
        rows = self.rows
        if rows:
            self._at = min(max(self._at + steps[key], 0), count - 1)
            self.selected = rows[self._at].id
        return True

    def _settle(self) -> None:
        """The selection stays with its session; of one that is gone, its place has the next."""
        rows = self.rows
        for at, row in enumerate(rows):
            if row.id == self.selected:
                self._at = at
                return
        self._at = min(self._at, max(0, len(rows) - 1))
        self.selected = rows[self._at].id if rows else None

    # Lines.

    def lines(self, size: tuple[int, int], style: Style, now: float | None = None) -> list[str]:
        """All rows of a terminal of this size: a title, the heads, the sessions, and what is told or asked below."""
        height, cols = size
        rows = self.rows
        self._page = room = max(1, height - 3)
        self._first = min(max(self._first, self._at - room + 1, 0), max(0, len(rows) - room), self._at)
        shown = rows[self._first : self._first + room]
        body = _listed(shown, self.selected, cols, style, now)
        if not rows:
            body.append(cut(self._emptiness(), cols))
        body += [""] * (room + 1 - len(body))
        lines = [style.paint(cut(self._title(len(rows)), cols), BOLD), *body, self._below(cols, style)]
        if height < len(lines):
            # Three rows at most: what is selected is seen in any case.
            lines = lines[-height:] if height > 1 else lines[2:3]
        return lines

    def _title(self, shown: int) -> str:
        needy = sum(1 for row in self._rows if row.shot.needs_input)
        parts = [f"{len(self._rows)} running"]
        if needy:
            parts.append(f"{needy} need input" if needy > 1 else "1 needs input")
        if self.filter:
            parts.append(f"{shown} with {printable(self.filter)!r}")
        return "hold top: " + ", ".join(parts)

    def _emptiness(self) -> str:
        if not self._looked:
            return ""
        if self.filter:
            return "nothing that runs fits the filter; escape takes it away"
        return "nothing runs; `hold start -- CMD...` starts something"

    def _below(self, cols: int, style: Style) -> str:
        if self._typing:
            return cut(f"/{printable(self.filter)}_", cols)
        if self.question is not None:
            what, id = self.question
            name = next((row.shot.name for row in self._rows if row.id == id), None)
            return style.paint(cut(f"{what} {id}{f' ({printable(name)})' if name else ''}? y/n", cols), BOLD)
        if self.message:
            return style.paint(cut(printable(self.message), cols), YELLOW)
        return style.paint(cut(_KEYS, cols), DIM)


def _listed(rows: Sequence[Row], selected: str | None, cols: int, style: Style, now: float | None) -> list[str]:
    """The heads and a line for each row, in columns that fit; the selected one marked."""
    table = [cells(row, now, cols) for row in rows]
    widths = {head: max([width(head), *(width(line[n][0]) for line in table)]) for n, head in enumerate(HEADS)}
    kept = [head for n, head in enumerate(HEADS) if head == "LAST OUTPUT" or any(line[n][0] for line in table)]
    for head in _DISPENSABLE:
        if 2 + sum(widths[each] + 2 for each in kept[:-1]) + _LAST_COLUMNS <= cols:
            break
        if head in kept:
            kept.remove(head)
    lines = []
    heads = [(head, BOLD) for head in HEADS]
    for marked, line in [(False, heads), *((row.id == selected, line) for row, line in zip(rows, table, strict=True))]:
        parts = []
        room = cols - 2
        for head in kept:
            text, colour = line[HEADS.index(head)]
            if head == "LAST OUTPUT":
                text = cut(text, room) if room > 0 else ""
                pad = " " * max(0, room - width(text)) if marked else ""
                parts.append(_painted(text, colour, marked, style) + pad)
                continue
            pad = " " * (widths[head] - width(text))
            text = pad + text if head in _RIGHT else text + pad
            parts.append(_painted(text, colour, marked, style) + "  ")
            room -= widths[head] + 2
        whole = ("> " if marked else "  ") + "".join(parts)
        if room < 0:
            # Not even the id fits.
            whole = cut(("> " if marked else "  ") + line[0][0], cols)
        lines.append(style.paint(whole, _REVERSE) if marked else whole.rstrip())
    return lines


def _painted(text: str, colour: str, marked: bool, style: Style) -> str:
    """The selected row has one look over its whole width."""
    return text if marked or not colour else style.paint(text, colour)
