"""Tables, colours, ages: how facts look in a terminal. What a terminal would obey is shown, never sent."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..config import Config
    from ..model import Exit, Snapshot

RED, GREEN, YELLOW, DIM, BOLD = "31", "32", "33", "2", "1"
_NARROWEST = 20
# A column of a table other than the last.
_CELL_CHARACTERS = 32


class Style:
    """Whether to colour, and how wide a line may be (None: as wide as it is)."""

    def __init__(self, colour: bool, width: int | None) -> None:
        self.colour = colour
        self.width = width

    def paint(self, text: str, *codes: str) -> str:
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self.colour and codes and text else text


def style(config: Config, fd: int = 1) -> Style:
    terminal = _is_terminal(fd)
    wanted = config.cli_color
    auto = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Style(wanted == "always" or (wanted == "auto" and auto), columns(fd) if terminal else None)


def columns(fd: int = 1) -> int | None:
    """How many characters fit in a line; None where nobody knows. Some terminals say 0."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdecimal() and 0 < int(given) < 100_000:
        return int(given)
    try:
        return os.get_terminal_size(fd).columns or None
    except (OSError, ValueError):
        return None


def table(head: Sequence[str], rows: Sequence[Sequence[tuple[str, str]]], style: Style) -> str:
    """Lines of aligned columns; a cell is its text and its colour. A column without any text is left out."""
    kept = [n for n in range(len(head)) if any(row[n][0] for row in rows)]
    body = [[cut(printable(row[n][0]), _CELL_CHARACTERS if n != kept[-1] else None) for n in kept] for row in rows]
    widths = [max(width(line[n]) for line in [[head[k] for k in kept], *body]) for n in range(len(kept))]
    lines = [_line([(head[k], BOLD) for k in kept], widths, style)]
    for cells, row in zip(body, rows, strict=True):
        colours = [row[n][1] for n in kept]
        lines.append(_line(list(zip(cells, colours, strict=True)), widths, style))
    return "\n".join(lines)


def facts(pairs: Sequence[tuple[str, str]], style: Style) -> str:
    """`key  value`, one a line."""
    room = max(len(key) for key, _ in pairs)
    return "\n".join(f"{style.paint(key.ljust(room), DIM)}  {printable(value)}" for key, value in pairs)


def printable(text: str) -> str:
    """Text that moves no cursor and hides nothing: control characters and invisible ones as escapes."""
    if text.isascii() and text.isprintable():
        return text
    from ..host.text import visible

    shown = visible(text)
    return "".join(
        each if each.isprintable() or each == " " else ascii(each)[1:-1] for each in shown.replace("\t", " ")
    )


def age(then: str | None, now: float | None = None) -> str:
    """How long ago a time was: 3s, 5m, 2h, 4d."""
    at = epoch(then)
    return "" if at is None else span((time.time() if now is None else now) - at)


def span(seconds: float) -> str:
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))}ms" if seconds < 0.9995 else "1s"
    for unit, size, upto in (("s", 1, 100), ("m", 60, 5400), ("h", 3600, 48 * 3600)):
        if seconds < upto:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds // 86400)}d"


def epoch(text: str | None) -> float | None:
    """Seconds since 1970 of `2026-08-01T09:14:07.412Z`; None for what is no such time. Without the calendar
    modules, which take longer to load than a listing takes to make."""
    if text is None or len(text) < 20 or text[-1] != "Z":
        return None
    try:
        year, month, day = int(text[:4]), int(text[5:7]), int(text[8:10])
        within = int(text[11:13]) * 3600 + int(text[14:16]) * 60 + float(text[17:-1])
    except ValueError:
        return None
    # Years that begin in March end with the day that comes and goes.
    year -= month <= 2
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = year * 365 + year // 4 - year // 100 + year // 400 + of_year - 719468
    return days * 86400 + within


def megabytes(count: int) -> str:
    """A number of bytes as people say it."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def outcome(exit: Exit) -> str:
    return f"code {exit.code}" if exit.signal is None else f"signal {exit.signal.removeprefix('SIG')}"


# How a stop went, in a listing and in full.
_STOPPED = {"kill": "stopped, killed", "at_once": "killed", "elsewhere": "killed elsewhere"}
_STOPPED_IN_FULL = {
    "grace": "within the grace",
    "kill": "killed after the grace",
    "at_once": "killed at once",
    "elsewhere": "killed from elsewhere within the grace",
}


def stop_words(exit: Exit) -> str:
    """How a command that was asked to end did so."""
    return _STOPPED_IN_FULL.get(exit.stopped or "", "")


def state_words(shot: Snapshot) -> tuple[str, str]:
    """What a session does or how it ended, in a few words, and their colour; and how much output a disk refused."""
    words, colour = _state_words(shot)
    lost = lost_bytes(shot)
    return (f"{words}, {megabytes(lost)} lost", RED if colour == RED else YELLOW) if lost else (words, colour)


def lost_bytes(shot: Snapshot) -> int:
    lost: int = shot.metadata.get("lost_bytes") or 0
    return lost


def _state_words(shot: Snapshot) -> tuple[str, str]:
    exit = shot.exit
    if shot.state == "lost":
        # No runner saw it end, but the host that stopped it recorded how.
        return _STOPPED.get(exit.stopped, "stopped") if exit is not None and exit.stopped else "lost", RED
    if exit is None:
        if shot.stopping:
            return "stopping", YELLOW
        if shot.metadata.get("stopped_by_signal"):
            return "suspended", YELLOW
        return shot.state, GREEN if shot.state == "running" else YELLOW
    if exit.cause == "spawn_error":
        return "not started", RED
    how = f"exit {exit.code}" if exit.signal is None else outcome(exit)
    if exit.survivors:
        return f"{how}, {len(exit.survivors) + exit.survivors_more} left", YELLOW
    if exit.cause == "signal" and exit.by:
        return f"{how} by {exit.by}", RED
    if exit.cause in ("exit", "signal"):
        return how, DIM if exit.code == 0 else RED
    if exit.cause == "stop":
        return _STOPPED.get(exit.stopped or "", "stopped"), DIM
    short = {"overall_timeout": "timeout", "idle_timeout": "idle", "owner_gone": "owner gone"}
    killed = ", killed" if exit.stopped == "kill" else ""
    return short.get(exit.cause, exit.cause.replace("_", " ")) + killed, RED


def _line(cells: list[tuple[str, str]], widths: list[int], style: Style) -> str:
    parts, used = [], 0
    for n, (text, colour) in enumerate(cells):
        if n == len(cells) - 1:
            room = None if style.width is None else max(_NARROWEST, style.width - used)
            parts.append(style.paint(cut(text, room), *filter(None, [colour])))
        else:
            padding = " " * (widths[n] - width(text) + 2)
            parts.append(style.paint(text, *filter(None, [colour])) + padding)
            used += widths[n] + 2
    return "".join(parts).rstrip()


def width(text: str) -> int:
    """Columns of a terminal: East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )


def cut(text: str, room: int | None) -> str:
    """At most so many columns, the last of them told to be missing."""
    if room is None or width(text) <= room:
        return text
    while text and width(text) > room - 1:
        text = text[: -max(1, (width(text) - room) // 2)]
    return text + "…"


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False
