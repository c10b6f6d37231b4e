"""A terminal's screen in an answer: its rows, the cursor in them, and which rows changed. Pure."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...terminal.cells import Row
    from ...terminal.screen import Screen


CURSOR = "\u2588"


def screen_rows(screen: Screen, *, marked: bool = True) -> list[str]:
    """The rows, with the cursor as a block before its cell; without blank rows at the end."""
    found = [_text(row).rstrip() for row in screen.rows]
    if marked and screen.cursor.visible and screen.cursor.row < len(found):
        found[screen.cursor.row] = _with_cursor(screen.rows[screen.cursor.row], screen.cursor.col)
    while found and not found[-1]:
        found.pop()
    return found


def history_rows(screen: Screen) -> list[str]:
    return [_text(row).rstrip() for row in screen.history]


def fitting_rows(rows: list[str], room: int) -> list[str]:
    """The last of them, as many as fit."""
    first = len(rows)
    while first and (room := room - len(rows[first - 1]) - 1) >= 0:
        first -= 1
    return rows[first:]


def prompt_row(screen: Screen) -> str:
    """The text left of the cursor."""
    return _with_cursor(screen.rows[screen.cursor.row], screen.cursor.col).partition(CURSOR)[0]


def changed_rows(before: Screen, after: Screen, *, live: bool = True) -> list[tuple[int, str]]:
    """The rows that were not there before, with their numbers from 1 on. Rows that only moved up are not among them;
    the one with the cursor is, where the session is `live`."""
    old, new = screen_rows(before, marked=False), screen_rows(after, marked=False)
    marked = screen_rows(after, marked=live)
    if before.alt != after.alt or before.size != after.size:
        return [(number, text) for number, text in enumerate(marked, 1) if text]
    found: list[tuple[int, str]] = []
    for tag, _, _, begin, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag in ("insert", "replace"):
            found += [(number + 1, marked[number]) for number in range(begin, end)]
    at = after.cursor.row
    if live and after.cursor.visible and at < len(marked) and all(number != at + 1 for number, _ in found):
        found.append((at + 1, marked[at]))
        found.sort()
    return found


def _text(row: Row) -> str:
    return "".join(" " * cell.width if cell.style.conceal else cell.text for cell in row.cells)


def _with_cursor(row: Row, col: int) -> str:
    at = 0
    before = after = ""
    for cell in row.cells:
        text = " " * cell.width if cell.style.conceal else cell.text
        if at < col:
            before += text
        else:
            after += text
        at += cell.width
    return (before + CURSOR + after).rstrip()
