"""Painting: another terminal shows the screen, keeps what it had, is asked nothing, can be taken out of it again."""

from __future__ import annotations

import random
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.vt.tracker import Tracker
from holdfast.terminal.grid import Grid
from holdfast.terminal.paint import paint
from holdfast.terminal.undo import Undo, everything
from support.recordings import state_of, vim
from support.reference_screen import Reference, Seen, differences

MODES = [1, 5, 7, 9, 25, 66, 1000, 1002, 1003, 1004, 1006, 2004, 2026]
OLD_PAGE = b"".join(b"old %d\r\n" % i for i in range(40)) + b"old prompt$ "


def drawn(data: bytes, size: tuple[int, int]) -> tuple[Grid, dict[str, Any]]:
    grid, tracker = Grid(*size), Tracker(*size)
    grid.feed(data)
    tracker.feed(data)
    return grid, tracker.snapshot()


@pytest.fixture
def terminal() -> Iterator[Reference]:
    with Reference(24, 80) as other:
        yield other


def show(terminal: Reference, size: tuple[int, int], *pieces: bytes, cells: bool = True) -> Seen:
    """A fresh terminal with an old page on it, fed with these."""
    terminal.reset(*size)
    for piece in (OLD_PAGE, *pieces):
        terminal.feed(piece)
    return terminal.seen(MODES, cells=cells)


def texts(seen: Seen) -> list[str]:
    return [row.rstrip() for row in seen.rows]


@pytest.mark.slow
def test_recorded_vim_painted_at_many_offsets_then_another_terminal_is_the_same(terminal: Reference) -> None:
    recording = vim()
    for offset in range(1500, len(recording.data), 7001):
        tracker = recording.tracker(offset)
        grid, state = recording.grid(tracker.ground), tracker.snapshot()
        before = state_of(grid)

        painted = paint(grid, state, grid.size, 100)

        assert state_of(grid) == before
        seen = show(terminal, grid.size, painted)
        assert differences(grid.rows(), seen) == [], offset
        assert (seen.cursor, seen.visible, seen.alt) == (grid.cursor[:2], grid.cursor[2], grid.alt)
        assert {mode for mode in MODES if seen.modes[str(mode)]} == set(state["modes"]["dec"]) & set(MODES)
        assert seen.kitty_flags == state["keys"]["kitty"][grid.alt][-1]
        assert seen.title == state["labels"]["title"]
        assert seen.replies == b""

        left = show(terminal, grid.size, painted, b"\x1b[?1049l" if grid.alt else b"")
        assert differences(grid.main_rows(), left) == [], offset
        history = [row.text.rstrip() for row in grid.history(100)]
        old = left.contents.index("old prompt$")
        assert left.contents[old - 1] == "old 39"
        assert left.contents[old + 1 : old + 1 + len(history)] == history


STATES = [
    *(
        b"\x1b[31;1;4:3m",
        b"\x1b[7m",
        b"\x1b[3;7H",
        b"text \xe6\x97\xa5",
        b"x" * 30,
        b"\x1b[2;5r",
        b"\x1b[?6h",
        b"\x1b[?7l",
    ),
    *(b"\x1b[4h", b"\x1b[?1049h", b"\x1b[?1h\x1b=", b"\x1b[?1002;1006h", b"\x1b[?1004h", b"\x1b[?2004h", b"\x1b[?25l"),
    *(
        b"\x1b[5 q",
        b"\x1b[>4;2m",
        b"\x1b[>5u",
        b"\x1b(0",
        b"\x0e",
        b"\x1b[3g",
        b"\x1b]8;;http://x\x07",
        b"\x1b]2;a title\x07",
    ),
    *(b"\x1b]4;3;rgb:11/22/33\x07", b"\x1b]11;#102030\x07", b"\x1b]9;4;1;30\x07", b"\r\n", b"\x1b7", b"\x07"),
    *(
        b"\x1b]52;c;aGk=\x07",
        b"\x1b[c",
        b"\x1b[6n",
        b"\x1b]10;?\x07",
        b"\x1b]9;done\x07",
        b"\x1b[?2026h",
        b"\x1b[8;5;5t",
    ),
]
SILENT = [b"\x07", b"\x1b]52", b"\x1b[c", b"\x1b[6n", b"?\x07", b"?\x1b\\", b"\x1b]9;done", b"t\x1b"]


def any_state(seed: int) -> tuple[bytes, Grid, dict[str, Any]]:
    chosen = random.Random(seed)
    data = b"".join(chosen.choice(STATES) for _ in range(chosen.randrange(2, 30)))
    return data, *drawn(data, (8, 30))


def test_any_state_painted_then_what_follows_lands_the_same(terminal: Reference) -> None:
    for seed in range(80):
        data, grid, state = any_state(seed)

        painted = paint(grid, state, (8, 30), 100)

        assert not [question for question in SILENT if question in painted]
        after = b"qx\x1b[31mcolor\x1b8saved\r\nend"
        grid.feed(after)
        seen = show(terminal, (8, 30), painted, after, cells=False)
        assert texts(seen) == [row.text.rstrip() for row in grid.rows()], data
        assert (seen.cursor, seen.alt, seen.replies) == (grid.cursor[:2], grid.alt, b"")


def test_any_state_undone_then_the_terminal_is_as_before(terminal: Reference) -> None:
    fresh = show(terminal, (8, 30))
    for seed in range(1000, 1060):
        data, grid, state = any_state(seed)
        painted = paint(grid, state, (8, 30), 10)
        known = Undo()
        known.feed(painted)
        for undone in (known.undo_all(30), everything(30)):
            seen = show(terminal, (8, 30), painted, undone, cells=False)
            assert (seen.modes, seen.alt, seen.visible, seen.kitty_flags) == (fresh.modes, False, True, 0), data

            # Pen, link, character sets, margins and tab stops: text is plain, anywhere, and scrolls the whole page.
            probe = b"\x1b[H\x1b[2Jqx\ty" + b"\r\n" * 7 + b"bottom\n"
            end = show(terminal, (8, 30), painted, undone, probe)
            assert texts(end) == ["", "", "", "", "", "", "bottom", ""], data
            assert end.cells[6][0][1] == fresh.cells[0][0][1]
            assert "qx      y" in [line.rstrip() for line in end.contents]


def frames(terminal: Reference, painted: bytes, size: tuple[int, int], step: int) -> Iterator[Seen]:
    show(terminal, size, cells=False)
    for begin in range(0, len(painted), step):
        terminal.feed(painted[begin : begin + step])
        yield terminal.seen([2026], cells=False)


@pytest.mark.covers("terminal:31")
def test_painted_piece_by_piece_then_no_frame_is_blank(terminal: Reference) -> None:
    lines = b"".join(b"line %d of the history\r\n" % i for i in range(60)) + b"$ "
    on_main, main_state = drawn(lines, (10, 40))
    on_other, other_state = drawn(lines + b"\x1b[?1049h\x1b[Hvim shows this\r\nand that", (10, 40))

    for seen in frames(terminal, paint(on_main, main_state, (10, 40), 50), (10, 40), 7):
        assert any(texts(seen))
    for seen in frames(terminal, paint(on_other, other_state, (10, 40), 50), (10, 40), 7):
        # The other screen is blank when it is entered: a terminal shows it only when the update is over.
        assert any(texts(seen)) or seen.modes["2026"]
    assert texts(seen)[:2] == ["vim shows this", "and that"]
    assert not seen.modes["2026"]


def test_wrapped_lines_then_a_terminal_that_gets_wider_joins_them(terminal: Reference) -> None:
    long = b"0123456789" * 7
    grid, state = drawn(long + b"\r\n" + long + b"\r\nend", (4, 30))

    show(terminal, (4, 30), paint(grid, state, (4, 30), 100))
    terminal.resize(4, 100)
    seen = terminal.seen()

    assert seen.contents.count(long.decode()) == 2


def test_cursor_at_the_right_edge_then_the_next_character_wraps_there_too(terminal: Reference) -> None:
    for last in (b"z", "日".encode()):
        grid, state = drawn(b"\x1b[31m" + b"x" * (30 - (2 if len(last) > 1 else 1)) + last, (3, 30))
        seen = show(terminal, (3, 30), paint(grid, state, (3, 30), 0))
        assert seen.pending_wrap
        assert differences(grid.rows(), seen) == []

        seen = show(terminal, (3, 30), paint(grid, state, (3, 30), 0), b"next")
        assert texts(seen)[1] == "next"


def test_printed_control_characters_in_a_link_then_none_reaches_the_terminal() -> None:
    grid, state = drawn(b"\x1b]8;;http://x/\x01\x05\x0b\xc2\x85y\x07link", (3, 30))

    painted = paint(grid, state, (3, 30), 0)

    assert b"link" in painted
    assert not set(painted) & {1, 5, 11, 7}
    assert b"\xc2\x85" not in painted


def test_painted_inside_of_tmux_then_it_shows_the_same(tmp_path: Path) -> None:
    data = (
        "\r\n".join(f"\x1b[3{i % 8}mline {i}\x1b[m 日本 e\u0301" for i in range(40)).encode()
        + b"\r\n$ \x1b[7minverse\x1b[m "
    )
    grid, state = drawn(data, (12, 50))
    (tmp_path / "painted").write_bytes(paint(grid, state, (12, 50), 20))
    (tmp_path / "conf").write_text("set -g status off\n")
    tmux = ["tmux", "-f", str(tmp_path / "conf"), "-S", str(tmp_path / "tmux")]
    done = f"tmux -S {shlex.quote(str(tmp_path / 'tmux'))} wait-for -S painted; read wait"
    script = f"seq 1 30; cat {shlex.quote(str(tmp_path / 'painted'))}; {done}"

    subprocess.run([*tmux, "-u", "new-session", "-d", "-x", "50", "-y", "12", "sh", "-c", script], check=True)
    try:
        subprocess.run([*tmux, "wait-for", "painted"], check=True, timeout=20)
        page = subprocess.run([*tmux, "capture-pane", "-p"], check=True, capture_output=True, text=True).stdout
        lines = subprocess.run(
            [*tmux, "capture-pane", "-p", "-S", "-"], check=True, capture_output=True, text=True
        ).stdout
        colors = subprocess.run([*tmux, "capture-pane", "-p", "-e"], check=True, capture_output=True, text=True).stdout
        where = ["display-message", "-p", "#{cursor_y},#{cursor_x}"]
        cursor = subprocess.run([*tmux, *where], check=True, capture_output=True, text=True).stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)

    assert page.splitlines() == [row.text.rstrip() for row in grid.rows()]
    assert cursor.strip() == "{},{}".format(*grid.cursor[:2])
    kept = [line.rstrip() for line in lines.splitlines()]
    # Behind `30` the row in which the cursor stood.
    assert kept[kept.index("30") + 2 :] == [row.text.rstrip() for row in (*grid.history(20), *grid.rows())]
    again = Grid(12, 50)
    again.feed(colors.replace("\n", "\r\n").removesuffix("\r\n").encode())
    assert [row.runs for row in again.rows()] == [row.runs for row in grid.rows()]
