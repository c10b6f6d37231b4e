"""A second emulator, of other people's making, to hold ours against: libghostty-vt in a process of its own, as it can
crash. `Reference(rows, cols).feed(data)`, then look at its members.

Run as a program it is the child: a JSON request on each line of stdin, an answer on stdout. One child serves all tests
of this process: it parses the declarations of its library for longer than most tests take.
"""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.terminal.cells import Color, Row, Style


@dataclass(frozen=True)
class Seen:
    """What the other emulator shows. `cells` has (text, style) per column, of a wide character at its first."""

    rows: list[str]
    cells: list[list[tuple[str, dict[str, Any]]]]
    cursor: tuple[int, int]
    pending_wrap: bool
    visible: bool
    alt: bool
    modes: dict[str, bool]
    kitty_flags: int
    title: str
    # Scrollback and screen, wrapped lines joined.
    contents: list[str]
    replies: bytes


class _Child:
    """A process with any number of terminals."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
        except BaseException:
            # It has crashed, or its answer is still to come: no later question can be asked.
            self._process.kill()
            self._process.wait(10)
            raise
        assert isinstance(answer, dict)
        return answer

    def lives(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)


_shared: list[_Child] = []
_ids = itertools.count()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the census counts."""
    if getattr(getattr(item, "module", None), "Reference", None) is not Reference:
        return
    if _shared and not _shared[0].lives():
        _shared.pop().end()
    if not _shared:
        _shared.append(_Child())
        _shared[0].ask(new=[1, 1], of=-1)


def pytest_sessionfinish() -> None:
    while _shared:
        _shared.pop().end()


class Reference:
    def __init__(self, rows: int, cols: int) -> None:
        (self._child,) = _shared
        self._id = next(_ids)
        self._ask(new=[rows, cols])

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._child.lives():
            self._ask(forget=True)

    def reset(self, rows: int, cols: int) -> None:
        """A new terminal in its place."""
        self._ask(new=[rows, cols])

    def feed(self, data: bytes) -> None:
        self._ask(feed=base64.b64encode(data).decode())

    def resize(self, rows: int, cols: int) -> None:
        self._ask(resize=[rows, cols])

    def seen(self, modes: list[int] | None = None, *, cells: bool = True) -> Seen:
        """Without `cells` much faster."""
        answer = self._ask(look=modes or [], cells=cells)
        shown = [[(text, style) for text, style in row] for row in answer.pop("cells")]
        cursor = answer.pop("cursor")
        replies = base64.b64decode(answer.pop("replies"))
        return Seen(cells=shown, cursor=(cursor[0], cursor[1]), replies=replies, **answer)

    def _ask(self, **request: object) -> dict[str, Any]:
        return self._child.ask(of=self._id, **request)


def differences(rows: list[Row], seen: Seen) -> list[tuple[Any, ...]]:
    """Where our rows and the other's cells are not the same to a person's eye: (row, column, ours, theirs)."""
    found: list[tuple[Any, ...]] = []
    for y, (row, theirs) in enumerate(zip(rows, seen.cells, strict=True)):
        column = 0
        for cell in row.cells:
            text, style = theirs[column]
            ours = "" if cell.text == " " else cell.text
            if ours != text.strip(" ") or _look(cell.style, blank=not ours) != _their_look(style, blank=not ours):
                found.append((y, column, cell, text, style))
            column += cell.width
    return found


def _look(style: Style, *, blank: bool) -> dict[str, Any]:
    """As theirs is said; of a blank only what shows."""
    looked = {
        "bg": _color(style.bg),
        "inverse": style.inverse,
        "underline": style.underline,
        "strikethrough": style.strike,
        "overline": style.overline,
    }
    if blank:
        return looked
    for name in ("bold", "faint", "italic", "blink"):
        looked[name] = getattr(style, name)
    return {
        **looked,
        "fg": _color(style.fg),
        "underline_color": _color(style.underline_color),
        "invisible": style.conceal,
        "link": style.uri,
    }


def _their_look(style: dict[str, Any], *, blank: bool) -> dict[str, Any]:
    from holdfast.terminal.cells import PLAIN_STYLE

    return {name: style[name] for name in _look(PLAIN_STYLE, blank=blank)}


def _color(color: Color) -> list[Any] | None:
    if color is None:
        return None
    from holdfast.terminal.cells import rgb

    return ["palette", color] if isinstance(color, int) else ["rgb", list(rgb(color))]


def _child() -> None:
    from importlib import import_module

    pyghostty = import_module("pyghostty")
    ffi, lib = pyghostty.ffi, pyghostty.lib
    terminals: dict[int, tuple[Any, bytearray]] = {}
    terminal: Any = None
    replies = bytearray()

    points, room, count = ffi.new("uint32_t[64]"), ffi.new("uint8_t[4096]"), ffi.new("size_t*")
    cell, tag, value, linked = ffi.new("GhosttyCell*"), ffi.new("int*"), ffi.new("uint8_t[4]"), ffi.new("bool*")

    def text_at(ref: Any) -> str:
        lib.ghostty_grid_ref_graphemes(ref, points, 64, count)
        return "".join(map(chr, points[0 : count[0]]))

    def link_at(ref: Any) -> str:
        lib.ghostty_grid_ref_hyperlink_uri(ref, room, 4096, count)
        return bytes(ffi.buffer(room, count[0])).decode()

    def erased() -> dict[str, Any]:
        """A cell that was erased has a background without having a style."""
        if tag[0] == lib.GHOSTTY_CELL_CONTENT_BG_COLOR_PALETTE:
            lib.ghostty_cell_get(cell[0], lib.GHOSTTY_CELL_DATA_COLOR_PALETTE, value)
            return {"bg": ["palette", value[0]]}
        if tag[0] == lib.GHOSTTY_CELL_CONTENT_BG_COLOR_RGB:
            lib.ghostty_cell_get(cell[0], lib.GHOSTTY_CELL_DATA_COLOR_RGB, value)
            return {"bg": ["rgb", list(value[0:3])]}
        return {}

    def row_at(y: int, cols: int, known: dict[tuple[int, int], tuple[str, dict[str, Any]]]) -> list[Any]:
        """Text and style of its cells. Those of the same value on the same page are the same, but for what is kept
        beside the cells: links, and characters of several code points. So few have to be asked for all of that."""
        ref = terminal.ref(0, y)
        page = int(ffi.cast("uintptr_t", ref.node))
        row = []
        for x in range(cols):
            ref.x = x
            lib.ghostty_grid_ref_cell(ref, cell)
            found = known.get((page, cell[0]))
            if found is None:
                lib.ghostty_cell_get(cell[0], lib.GHOSTTY_CELL_DATA_CONTENT_TAG, tag)
                lib.ghostty_cell_get(cell[0], lib.GHOSTTY_CELL_DATA_HAS_HYPERLINK, linked)
                found = text_at(ref), {**terminal.style(x, y), **erased(), "link": link_at(ref)}
                if tag[0] != lib.GHOSTTY_CELL_CONTENT_CODEPOINT_GRAPHEME and not linked[0]:
                    known[page, cell[0]] = found
            row.append(found)
        return row

    def string(key: str) -> str:
        value = terminal.get(key, "GhosttyString")
        return bytes(ffi.buffer(value.ptr, value.len)).decode() if value.len else ""

    def look(modes: list[int], with_cells: bool) -> dict[str, Any]:
        cols, rows = terminal.size
        known: dict[tuple[int, int], tuple[str, dict[str, Any]]] = {}
        cells = [row_at(y, cols, known) for y in (range(rows) if with_cells else ())]
        lines = [line.rstrip() for line in terminal.text().split("\n")]
        x, y = terminal.cursor
        return {
            "rows": lines + [""] * (rows - len(lines)),
            "cells": cells,
            "cursor": [y, x],
            "pending_wrap": bool(terminal.get("cursor_pending_wrap", "bool")),
            "visible": bool(terminal.get("cursor_visible", "bool")),
            "alt": terminal.get("active_screen", "int") != 0,
            "modes": {str(mode): terminal.mode(mode) for mode in modes},
            "kitty_flags": terminal.get("kitty_keyboard_flags", "uint8_t"),
            "title": string("title"),
            "contents": terminal.contents().split("\n"),
            "replies": base64.b64encode(bytes(replies)).decode(),
        }

    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        terminal, replies = terminals.get(request["of"], (None, bytearray()))
        if "new" in request:
            rows, cols = request["new"]
            replies = bytearray()
            terminal = pyghostty.Terminal(cols, rows)
            terminal.on_reply(replies.extend)
            terminals[request["of"]] = terminal, replies
        elif "forget" in request:
            del terminals[request["of"]]
        elif "feed" in request:
            terminal.feed(base64.b64decode(request["feed"]))
        elif "resize" in request:
            rows, cols = request["resize"]
            terminal.resize(cols, rows)
        else:
            answer = look(request["look"], request["cells"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _child()
