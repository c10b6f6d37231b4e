"""Windows of different sizes on one session: each shows its true screen, whole or a part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cli.outer import Outer
from holdfast.terminal.rows import Row
from support.reference_screen import Reference, differences
from support.waiting import TooLate, until

if TYPE_CHECKING:
    from holdfast import Session
    from support.world import World

ROWS, COLS = 24, 80
SMALLER, LARGER, MIXED = (15, 47), (33, 101), (30, 60)

PROGRAMS = {
    "less": (["less", "lines"], "text 1 ", [b" ", b"\x1b[B", b"/text 120\r", b"g", b"\x1b[C", b"\x1b[D", b"G"]),
    "mc": (
        ["mc", "--nosubshell", "--colors=256"],
        "10Quit",
        [b"\x1b[B", b"\t", b"\x1b[6~", b"\x1bOR", b"\x1b[21~", b"\x1b[20~", b"\x1b[C", b"\x1b\x1b", b"\x1b[H"],
    ),
    "vim": (
        ["vim", "-u", "NONE", "-N", "-i", "NONE", "-n", "-c", "set number hlsearch", "lines"],
        "text 1 ",
        [b"\x06", b"50G", b"$", b"otyped here\x1b", b"/text 7\r", b":vsplit\r", b"\x17lG", b"zt", b"dd", b"u"],
    ),
    "htop": (
        ["htop", "-d", "600"],
        "F10",
        [b"\x1b[B", b"\x1b[B\x1b[B", b"\x1bOQ", b"\x1b[B", b"\x1b", b"t", b"\x1b[C", b"/h", b"\x1b"],
    ),
}


class Window(Outer):
    """`hold attach` in a terminal of its own size."""

    def __init__(self, world: World, session: Session, size: tuple[int, int], *options: str) -> None:
        super().__init__(world.hold_argv("attach", session.id, *options), rows=size[0], cols=size[1])
        world.closing.callback(self.close)
        self.session = session
        self.size = self._rows, self._cols = size
        self._reference = Reference(*size)
        world.closing.callback(self._reference.close)
        self._fed = 0

    def resize(self, rows: int, cols: int) -> None:
        self._sync()
        super().resize(rows, cols)
        self._reference.resize(rows, cols)
        self.size = rows, cols

    def _sync(self) -> None:
        self._reference.feed(self.printed[self._fed :])
        self._fed = len(self.printed)

    def is_true(self) -> None:
        """Until every cell is the one of the session's screen that belongs there, and so is the cursor."""
        found: list[object] = []

        def same() -> bool:
            found[:] = self._wrong()
            return not found

        try:
            self.until(same, "the true screen")
        except TooLate as late:
            raise AssertionError(f"{late}\nwrong: {found[:6]}\n{self.session.screen().text}") from None

    def leave(self) -> None:
        self.type(b"\x1dd")
        assert self.end() == 0
        # Where the scroll region ends is told by its size, which may be another by now.
        assert {**self.modes(), "told": None} == {**self.before, "told": None}
        assert self.size != (self._rows, self._cols) or self.is_as_before()

    def _wrong(self) -> list[object]:
        screen = self.session.screen()
        self._sync()
        # Cells take long to compare: not before the texts are the same.
        seen = self._reference.seen(cells=False)
        top, left = (mine - shown for mine, shown in zip(screen.cursor[:2], seen.cursor, strict=True))
        page_rows, page_cols = screen.size
        rows, cols = (min(mine, its) for mine, its in zip(self.size, screen.size, strict=True))
        if (
            not (0 <= top <= page_rows - rows and 0 <= left <= page_cols - cols)
            or seen.visible != screen.cursor.visible
        ):
            return [("cursor", seen.cursor, screen.cursor, seen.visible)]
        part = [Row(row.columns(left, left + cols), False) for row in screen.rows[top : top + rows]]
        texts = [row.text.rstrip() for row in part]
        shown = [_columns(text, cols).rstrip() for text in seen.rows[:rows]]
        if texts != shown:
            return [(i, one, other) for i, (one, other) in enumerate(zip(texts, shown, strict=True)) if one != other]
        beside = {text[cols:].strip() for text in seen.rows[:rows]} | {row.strip("─┘ ") for row in seen.rows[rows:]}
        if not beside <= {"", "│"} and screen.size[1] == cols:
            return [("beside", beside)]
        seen = self._reference.seen()
        cut = type(seen)(**{**vars(seen), "cells": [row[:cols] for row in seen.cells[:rows]]})
        return list(differences(part, cut))


def _columns(text: str, cols: int) -> str:
    return text[:cols]


def started(world: World, name: str) -> Session:
    (world.cwd / "lines").write_text("".join(f"text {n} {'=' * (n % 90)}|\n" for n in range(1, 301)))
    for n in range(30):
        (world.cwd / f"file{n:02}").write_text("x" * n)
    command, ready, _ = PROGRAMS[name]
    env = {"HOME": str(world.root / "tmp"), "LESS": ""}
    session = world.open().start(command, tty={"size_policy": "latest"}, size=(ROWS, COLS), env=env)
    world.closing.callback(session.kill)
    until(lambda: ready in session.screen().text, 20, what=f"{name} on its screen")
    return session


@pytest.mark.covers("found:19")
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.needs(name)) for name in PROGRAMS])
def test_windows_that_do_not_decide_the_size_show_the_true_screen(world: World, name: str) -> None:
    session = started(world, name)
    main = Window(world, session, (ROWS, COLS))
    main.is_true()
    others = [Window(world, session, size, "--observe") for size in (SMALLER, LARGER, MIXED)]
    for window in others:
        window.is_true()
    for keys in PROGRAMS[name][2]:
        before = session.refresh().ends["tty"]
        main.type(keys)
        until(lambda before=before: session.refresh().ends["tty"] > before, 10, what=f"what {keys!r} does")  # type: ignore[misc]
        session.wait(idle=0.1, timeout=10)
        for window in (main, *others):
            window.is_true()
    # The program has another size: one of those that watch has that one now, and the others have not.
    main.resize(*LARGER)
    until(lambda: session.refresh().size == list(LARGER), 10, what="the size of the window")
    for window in (main, *others):
        window.is_true()
    main.resize(*SMALLER)
    until(lambda: session.refresh().size == list(SMALLER), 10, what="the size of the window")
    session.wait(idle=0.1, timeout=10)
    for window in (main, *others):
        window.is_true()
        window.leave()
