"""What a terminal was given for its scrollback is found again at another size of the session."""

from __future__ import annotations

from holdfast.terminal.grid import Grid
from holdfast.terminal.scrollback import Scrollback

SMALL, LARGE = (12, 60), (24, 100)


def lines(first: int, last: int) -> bytes:
    return b"".join(b"line %d\r\n" % n for n in range(first, last + 1))


def resize(scrollback: Scrollback, grid: Grid, size: tuple[int, int]) -> None:
    left = scrollback.lines(grid)
    grid.resize(*size)
    scrollback.resized(grid, left)


def taken(scrollback: Scrollback, grid: Grid) -> list[str]:
    return [row.text.rstrip() for row in scrollback.take(grid)]


def named(first: int, last: int) -> list[str]:
    return [f"line {n}" for n in range(first, last + 1)]


def begun() -> tuple[Grid, Scrollback]:
    """A terminal of the small size, which has lines 1 to 29; 30 to 40 are on its page."""
    grid, scrollback = Grid(*SMALL), Scrollback()
    grid.feed(lines(1, 40))
    scrollback.begin(grid)
    return grid, scrollback


def test_rows_that_are_back_on_the_page_are_not_given_again() -> None:
    grid, scrollback = begun()
    resize(scrollback, grid, LARGE)
    grid.feed(lines(41, 60))
    assert taken(scrollback, grid) == named(30, 37)
    resize(scrollback, grid, SMALL)
    assert taken(scrollback, grid) == named(38, 49)


def test_what_is_printed_in_the_place_of_such_rows_is_given() -> None:
    grid, scrollback = begun()
    resize(scrollback, grid, LARGE)
    assert taken(scrollback, grid) == []
    grid.feed(b"\x1b[H\x1b[2J" + lines(101, 150))
    assert taken(scrollback, grid) == named(101, 127)


def test_a_size_that_changes_under_the_alternate_screen_loses_no_row() -> None:
    grid, scrollback = begun()
    grid.feed(b"\x1b[?1049h\x1b[Hediting")
    resize(scrollback, grid, LARGE)
    grid.feed(b"\x1b[Hstill editing")
    resize(scrollback, grid, (18, 80))
    grid.feed(b"\x1b[?1049l" + lines(41, 60))
    assert taken(scrollback, grid) == named(30, 43)


def test_lines_that_wrap_again_are_counted_once() -> None:
    grid, scrollback = Grid(*LARGE), Scrollback()
    grid.feed(b"".join(b"line %d %s\r\n" % (n, b"=" * 70) for n in range(1, 41)))
    scrollback.begin(grid)
    resize(scrollback, grid, SMALL)
    resize(scrollback, grid, LARGE)
    assert scrollback.take(grid) == []
    resize(scrollback, grid, SMALL)
    found = [row.text.split()[1] for row in scrollback.take(grid) if row.text.startswith("line")]
    assert found == [str(n) for n in range(18, 36)]
