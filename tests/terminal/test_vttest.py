"""vttest in a session: every screen of its first two menus is the one that another emulator shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.outer import Outer
from holdfast.core.vt.tracker import Tracker
from holdfast.terminal.grid import Grid
from support.reference_screen import Reference, differences
from support.waiting import until

if TYPE_CHECKING:
    from holdfast import Session
    from holdfast.terminal.screen import Screen
    from support.world import World

ROWS, COLS = 24, 80
# 132 columns are asked of a terminal that keeps its width. The reference takes them, so it is given its own back.
SWITCH = re.compile(rb"\x1b\[\?3[hl]")
READY = ("Push <RETURN>", "Enter choice number")


class Pinned:
    """The reference, fed with all that the session printed, at the width of the session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reference = Reference(ROWS, COLS)
        self.close = self._reference.close
        self._at = 0

    def differences(self, screen: Screen) -> list[object]:
        data = b"".join(self._session.raw("tty"))[self._at : screen.offset]
        begin = 0
        for switch in SWITCH.finditer(data):
            self._reference.feed(data[begin : switch.end()])
            self._reference.resize(ROWS, COLS)
            begin = switch.end()
        self._reference.feed(data[begin:])
        self._at = screen.offset
        seen = self._reference.seen()
        return [*differences(screen.rows, seen), *([] if seen.cursor == screen.cursor[:2] else [seen.cursor])]


@pytest.mark.needs("vttest")
@pytest.mark.covers("found:24")
@pytest.mark.parametrize("menu, screens", [("1", 7), ("2", 16)])
def test_every_screen_of_vttest_is_the_one_of_another_emulator(world: World, menu: str, screens: int) -> None:
    session = world.open().start(["vttest", f"{ROWS}x{COLS}.132"], tty=True, size=(ROWS, COLS))
    world.closing.callback(session.kill)
    pinned = Pinned(session)
    world.closing.callback(pinned.close)
    window = Outer(world.hold_argv("attach", session.id), rows=ROWS, cols=COLS)
    world.closing.callback(window.close)
    shown = ready(session, 0)
    count = 0
    answer = menu + "\r"
    while True:
        assert pinned.differences(shown) == [], f"screen {count}:\n{shown.text}"
        window.until(lambda screen=shown: same(window, screen), f"screen {count} in a window")  # type: ignore[misc]
        if "Choose test type" in shown.text and count:
            break
        session.send(answer)
        answer = "\r"
        shown = ready(session, shown.offset)
        count += 1
    assert count == screens


def ready(session: Session, offset: int) -> Screen:
    """The next screen, when it asks for a key."""
    found: list[Screen] = []

    def asks() -> bool:
        screen = session.screen()
        found[:] = [screen]
        return screen.offset > offset + 20 and any(word in screen.text for word in READY)

    until(asks, 30, what="the next screen of vttest")
    until(lambda: is_reading(session), 30, what="vttest to wait for a key")
    session.wait(idle=0.1, timeout=30)
    return session.screen()


def is_reading(session: Session) -> bool:
    """Whether it has drawn all there is and waits: it pauses while it draws, too."""
    assert session.pid is not None
    call = Path(f"/proc/{session.pid}/syscall").read_text().split()[0]
    return call in ("0", "63")  # read, on x86-64 and on 64-bit ARM


def same(window: Outer, screen: Screen) -> bool:
    rows = [row.text.rstrip() for row in screen.rows]
    shown = [line.rstrip() for line in window.text.split("\n")]
    return shown + [""] * (ROWS - len(shown)) == rows and window.cursor == screen.cursor[:2]


@pytest.mark.covers("found:24")
def test_attach_restores_the_keypad_with_the_sequence_that_every_terminal_knows(world: World) -> None:
    """DECNKM (`?66`) is unknown to many of them."""
    for sequence in ("\x1b=", "\x1b[?66h"):
        session = world.open().start(
            world.probe("write", sequence, "say", "ready", "forever"), tty=True, size=(ROWS, COLS)
        )
        world.closing.callback(session.kill)
        session.wait(match="ready", timeout=30)
        window = Outer(world.hold_argv("attach", session.id), rows=ROWS, cols=COLS)
        world.closing.callback(window.close)
        window.shows("ready")
        assert b"\x1b=" in window.printed
        assert b"?66" not in window.printed
        assert window.modes()["?66"]
        window.type(b"\x1dd")
        assert window.end() == 0
        assert window.is_as_before()


@pytest.mark.covers("found:24")
def test_reverse_index_within_margins_draws_as_on_another_emulator_in_origin_mode_too() -> None:
    page = b"".join(b"\x1b[%d;1Hrow %d" % (row, row) for row in range(1, 11))
    layouts = [b"\x1b[3;7r", b"\x1b[3;7r\x1b[?6h", b"\x1b[3;7r\x1b[?6h\x1b[2;2H\x1b7\x1b[?6l\x1b8", b"\x1b[?6h"]
    with Reference(10, 20) as reference:
        for layout in layouts:
            for place in (b"\x1b[1;4H", b"\x1b[2;4H", b"\x1b[5;20Hz", b"\x1b[10;4H", b""):
                stream = page + layout + place + b"x\x1bMy\x1bMz\x1bMa\x1b[2B\x1bMb"
                reference.reset(10, 20)
                reference.feed(stream)
                seen = reference.seen()
                for cut in (0, len(stream) // 2, len(stream) - 3):
                    grid = Grid(10, 20)
                    grid.feed(stream[:cut])
                    grid.feed(stream[cut:])
                    assert differences(grid.rows(), seen) == [], stream
                    assert grid.cursor[:2] == seen.cursor, stream
                tracker = Tracker(10, 20)
                tracker.feed(stream)
                assert (tracker.row, tracker.col) == seen.cursor, stream
