"""Windows of different sizes on one session: each shows its true screen, whole or a part of it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.outer import Outer
from holdfast.core.vt.tracker import Tracker
from holdfast.model.events import Init
from holdfast.terminal.attached import SessionScreen
from holdfast.terminal.cells import Row
from holdfast.terminal.grid import Grid
from support.reference_screen import Reference, differences
from support.scale import scaled
from support.waiting import TooLate, until
from support.webviewer import BINARY, JSON, WebViewer

if TYPE_CHECKING:
    from typing import Any

    from holdfast import Session
    from support.serving import Serving
    from support.world import World

ROWS, COLS = 24, 80
SMALLER, LARGER, MIXED = (15, 47), (33, 101), (30, 60)

PROGRAMS = {
    "less": (["less", "lines"], "text 1 ", [b" ", b"\x1b[B", b"/text 120\r", b"g", b"\x1b[C", b"\x1b[D", b"G"]),
    "mc": (
        ["mc", "--nosubshell", "--colors=256"],
        "10Quit",
        [b"\x1bOB", b"\t", b"\x1b[6~", b"\x1bOR", b"\x1b[21~", b"\x1b[20~", b"\x1bOC", b"\x1b\x1b", b"\x1bOH"],
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

    @property
    def child(self) -> int:
        """The process of `hold attach`."""
        return self.pid

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
        # The end of the scroll region depends on the size, which may have changed.
        assert {**self.modes(), "reported": None} == {**self.before, "reported": None}
        assert self.size != (self._rows, self._cols) or self.is_as_before()

    def _wrong(self) -> list[object]:
        screen = self.session.screen()
        self._sync()
        # Cells take long to compare: not before the texts are the same.
        seen = self._reference.seen(cells=False)
        top, left = (mine - shown for mine, shown in zip(screen.cursor[:2], seen.cursor, strict=True))
        page_rows, page_cols = screen.size
        rows, cols = (min(mine, its) for mine, its in zip(self.size, screen.size, strict=True))
        # A part has a border, which says which part it is.
        rows -= page_rows > self.size[0]
        cols -= page_cols > self.size[1]
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
        if page_rows > rows == self.size[0] - 1:
            said = f"┄ rows {top + 1}-{top + rows} of {page_rows}"
            said += f", columns {left + 1}-{left + cols} of {page_cols} " if page_cols > cols else " "
            if seen.rows[rows] != said.ljust(self.size[1], "┄"):
                return [("border below", seen.rows[rows])]
        if page_cols > cols and {text[cols:] for text in seen.rows[:rows]} != {"┆"}:
            return [("border at the right", [text[cols:] for text in seen.rows[:rows]])]
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
    until(lambda: ready in session.screen().text, what=f"{name} on its screen")
    return session


@pytest.mark.covers("found:19")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("less", marks=pytest.mark.needs("less")),
        pytest.param("mc", marks=pytest.mark.needs("mc")),
        pytest.param("vim", marks=pytest.mark.needs("vim")),
        pytest.param("htop", marks=pytest.mark.needs("htop")),
    ],
)
def test_windows_that_do_not_decide_the_size_show_the_true_screen(world: World, name: str) -> None:
    session = started(world, name)
    main = Window(world, session, (ROWS, COLS))
    main.is_true()
    others = [Window(world, session, size, "--observe") for size in scaled((SMALLER, LARGER), (SMALLER, LARGER, MIXED))]
    for window in others:
        window.is_true()
    for keys in PROGRAMS[name][2][: scaled(5, 99)]:
        before = session.refresh().ends["tty"]
        main.type(keys)
        until(lambda before=before: session.refresh().ends["tty"] > before, what=f"what {keys!r} does")  # type: ignore[misc]
        session.wait(idle=0.1, timeout=30)
        for window in (main, *others):
            window.is_true()
    # The program has another size: one of those that watch has that one now, and the others have not.
    main.resize(*LARGER)
    until(lambda: session.refresh().size == list(LARGER), what="the size of the window")
    for window in (main, *others):
        window.is_true()
    main.resize(*SMALLER)
    until(lambda: session.refresh().size == list(SMALLER), what="the size of the window")
    session.wait(idle=0.1, timeout=30)
    for window in (main, *others):
        window.is_true()
        window.leave()


@pytest.mark.covers("found:19")
@pytest.mark.needs("vim")
def test_the_window_that_is_typed_in_decides_the_size_and_the_others_follow(world: World) -> None:
    """Both may type: each in turn has the session's own size, and the other shows a part of it or a margin."""
    session = started(world, "vim")
    small, large = Window(world, session, SMALLER), Window(world, session, LARGER)
    for window in (small, large, small):
        window.type(b"x")
        until(lambda window=window: session.refresh().size == list(window.size), what="its size")  # type: ignore[misc]
        session.wait(idle=0.1, timeout=30)
        small.is_true()
        large.is_true()
    small.leave()
    large.is_true()
    large.leave()


@pytest.mark.covers("found:19")
@pytest.mark.needs("tmux")
@pytest.mark.needs("less")
def test_a_window_of_tmux_of_another_size_shows_the_true_screen(world: World) -> None:
    session = started(world, "less")
    socket = ["tmux", "-S", str(world.root / "tmp" / "tmux")]
    argv = shlex.join(world.hold_argv("attach", session.id, "--observe"))
    new = [*socket, "-f", "/dev/null", "new-session", "-d", "-y", str(SMALLER[0]), "-x", str(SMALLER[1]), argv]
    subprocess.run(new, check=True, env={**os.environ, "TERM": "xterm-256color"})
    world.closing.callback(lambda: subprocess.run([*socket, "kill-server"], check=False, capture_output=True))

    size = subprocess.run([*socket, "display", "-p", "#{pane_height} #{pane_width}"], check=True, capture_output=True)
    rows, cols = map(int, size.stdout.split())
    assert (rows, cols) < (ROWS, COLS)

    def shown() -> list[str]:
        capture = subprocess.run([*socket, "capture-pane", "-p"], check=True, capture_output=True, text=True)
        return [line.rstrip() for line in capture.stdout.split("\n")[:rows]]

    for keys in ("", " ", "G"):
        session.send(keys)
        session.wait(idle=0.1, timeout=30)
        page = session.screen()
        top = page.cursor.row - rows + 2 if page.cursor.row >= rows - 1 else 0
        expected = [row.text[: cols - 1].ljust(cols - 1) + "┆" for row in page.rows[top : top + rows - 1]]
        expected.append(
            f"┄ rows {top + 1}-{top + rows - 1} of {ROWS}, columns 1-{cols - 1} of {COLS} ".ljust(cols, "┄")
        )
        until(lambda expected=expected: shown() == expected, what="the part of the screen in tmux")  # type: ignore[misc]


COUNTER = """
import sys
for row in range(20):
    print("row", row)
for n in range(20000):
    sys.stdout.write(f"\\rcounted \\x1b[1m{n}\\x1b[m")
sys.stdout.write("\\r\\ndone\\r\\n")
sys.stdout.flush()
sys.stdin.readline()
for n in range(200):
    print("line", n)
sys.stdin.readline()
"""


@pytest.mark.covers("found:19")
def test_a_window_of_another_size_is_sent_few_frames_and_of_them_what_changed(world: World) -> None:
    session = world.open().start([sys.executable, "-c", COUNTER], tty={"echo": False}, size=(ROWS, COLS))
    world.closing.callback(session.kill)
    began = time.monotonic()
    window = Window(world, session, LARGER, "--observe")
    window.shows("done")
    window.is_true()
    assert session.refresh().ends["tty"] > 300_000
    # Thirty frames a second of one row each, and a whole one at the beginning.
    frames = 2 + 30 * (time.monotonic() - began)
    assert len(window.printed) < 10_000 + 150 * frames
    assert window.printed.count(b"counted") <= frames
    # The border comes once; then nothing is sent, and nothing wakes it.
    window.shows("┘")
    while window._take(0.2):
        pass
    before = switches(window.child)
    assert not window._take(1.0)
    assert switches(window.child) - before <= 2
    session.send("\n")
    window.shows("line 199")
    window.is_true()
    # What scrolled away is in the window's own scrollback, each line once and in order.
    scrolled = [line for line in window.everything.split("\n") if line.startswith("line ")]
    assert [line.split("│")[0].rstrip() for line in scrolled] == [f"line {n}" for n in range(200)]
    window.leave()


TURNS = """
import sys
print("begin")
n = 0
for count in sys.stdin:
    for _ in range(int(count)):
        n += 1
        print("line", n, "=" * (50 if n % 7 == 0 and sys.argv[1:] else 0))
"""


@pytest.mark.parametrize(
    "first, lines_wrap", scaled([(5, True), (50, False)], [(5, True), (50, False), (5, False), (50, True)])
)
def test_windows_that_take_turns_have_every_line_once(world: World, first: int, lines_wrap: bool) -> None:
    """What a smaller page moves off its top comes back with a larger one. Lines that wrap do so only in the smaller."""
    argv = [sys.executable, "-uc", TURNS, *(["wrap"] if lines_wrap else [])]
    session = world.open().start(argv, tty={"echo": False}, size=LARGER)
    world.closing.callback(session.kill)
    large = Window(world, session, LARGER)
    large.shows("begin")
    small = Window(world, session, SMALLER)
    small.shows("begin")
    printed = 0
    turns = [(large, first), (small, 3), (large, 1), (small, 30), (large, 2), (small, 1), (large, 40), (small, 10)]
    for window, count in [*turns, (large, 12), (small, 11), (large, 9), (small, 0), (large, 0), (small, 5)]:
        window.type(f"{count}\n".encode())
        printed += count
        until(lambda window=window: session.refresh().size == list(window.size), what="its size")  # type: ignore[misc]
        for each in (large, small):
            each.shows(f"line {printed}")
            each.is_true()
        whole = list(range(1, printed + 1))
        assert numbers(window) == whole
        # The other one has those that may come back onto its page, or are on a part of the page that it does not show,
        # not yet: each of them later.
        for other in (large, small):
            found = numbers(other)
            # A part of a wide page has lines that wrapped on the smaller one, and so room for some before them.
            assert found == sorted(set(found)) or lines_wrap
            assert found[-1] == printed
            assert not set(whole[: -LARGER[0]]) - set(found)
    large.leave()
    small.leave()


def test_a_window_that_becomes_another_size_keeps_every_line_once(world: World) -> None:
    """The terminal itself moves rows into its scrollback, and takes them back."""
    session = world.open().start([sys.executable, "-uc", TURNS], tty={"echo": False}, size=(ROWS, COLS))
    world.closing.callback(session.kill)
    window = Window(world, session, (ROWS, COLS))
    window.shows("begin")
    printed = 0
    for size, count in (((ROWS, COLS), 60), (SMALLER, 3), (LARGER, 4), (MIXED, 50), (SMALLER, 5), ((ROWS, COLS), 7)):
        window.resize(*size)
        until(lambda size=size: session.refresh().size == list(size), what="its size")  # type: ignore[misc]
        window.is_true()
        window.type(f"{count}\n".encode())
        printed += count
        window.shows(f"line {printed}")
        window.is_true()
        assert numbers(window) == list(range(1, printed + 1))
    window.leave()


def test_a_screen_that_was_cleared_is_true_in_a_taller_window_each_time(world: World) -> None:
    """Lines from before the clear stay in the scrollback, in this attach and in the next."""
    session = world.open().start(["bash", "--norc"], env={"PS1": "$ "}, tty=True, size=(ROWS, COLS))
    world.closing.callback(session.kill)
    session.submit("seq 60")
    until(lambda: "\n60\n" in session.screen().text, what="the lines")
    session.submit("printf '\\033[H\\033[2Jcleared\\n'")
    until(lambda: session.screen().rows[0].text.startswith("cleared"), what="the clear")
    for row in (5, 6):
        window = Window(world, session, (ROWS + 8, COLS))
        until(lambda window=window: session.refresh().size == list(window.size), what="its size")  # type: ignore[misc]
        window.is_true()
        window.type(f"printf '\\033[{row};1HPLACED\\033[4;1H'\r".encode())
        window.shows("\nPLACED")
        window.is_true()
        assert window.everything.count("\n38\n") == 1
        window.leave()
        session.resize(ROWS, COLS)


@pytest.mark.parametrize("size", [SMALLER, LARGER])
def test_a_window_that_leaves_takes_its_border_along(world: World, size: tuple[int, int]) -> None:
    session = world.open().start([sys.executable, "-uc", TURNS], tty={"echo": False}, size=(ROWS, COLS))
    world.closing.callback(session.kill)
    session.send("60\n")
    window = Window(world, session, size, "--observe")
    window.shows("line 60")
    window.shows("┄" if size == SMALLER else "┘")
    window.leave()
    assert "line 60" in window.everything
    assert not set("│┘─┄┆") & set(window.everything)


def numbers(window: Window) -> list[int]:
    """Those of the lines in the scrollback and on the page."""
    texts = window.everything.split("\n")
    return [int(text.replace("┆", " ").split()[1]) for text in texts if text.startswith("line ")]


FLOOD = """
import sys
for n in range(8000):
    print(f"\\x1b[3{n % 8}mline {n}\\x1b[m", "of a flood " * 4)
sys.stdout.write("half of a sequence: \\x1b[1;3")
sys.stdout.flush()
sys.stdin.readline()
sys.stdout.buffer.write("1mthe rest\\x1b[m, half of a letter: é".encode()[:-1])
sys.stdout.flush()
sys.stdin.readline()
sys.stdout.buffer.write("é".encode()[1:] + b"\\r\\n")
sys.stdout.flush()
sys.stdin.readline()
"""


@pytest.mark.covers("found:19")
def test_a_window_that_leaves_the_size_of_the_session_shows_the_true_screen_behind_a_flood(world: World) -> None:
    """While the sizes are equal the output passes and the client draws nothing: the screen comes from the log."""
    session = world.open().start([sys.executable, "-c", FLOOD], tty={"echo": False}, size=(ROWS, COLS))
    world.closing.callback(session.kill)
    window = Window(world, session, (ROWS, COLS), "--observe")
    lines = [f"line {n} {'of a flood ' * 4}".rstrip() for n in range(7977, 8000)]
    window.shows("half of a sequence:")
    ends = ("half of a sequence:", "the rest, half of a letter:", "half of a letter: é")
    for size, end in zip((SMALLER, LARGER, MIXED), ends, strict=True):
        until(lambda end=end: end in session.screen().text, what=end)  # type: ignore[misc]
        window.is_true()
        # From the session's size to another one, also in the middle of a sequence and of a letter.
        window.resize(*size)
        window.is_true()
        page = session.screen()
        shown = [row.text.rstrip() for row in page.rows if row.text.startswith("line")]
        assert shown == lines[-len(shown) :]
        assert len(shown) >= ROWS - 2
        window.resize(ROWS, COLS)
        session.send("\n")
    session.wait(exit=True, timeout=30)
    assert session.refresh().ends["tty"] > 400_000


def test_output_is_drawn_only_while_the_sizes_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(Grid, "feed", lambda _, data: drawn.append(len(data)))
    asked: list[int] = []

    def draw(at: int) -> tuple[Grid, dict[str, Any], bytes]:
        asked.append(at)
        state = {**Tracker(ROWS, COLS).snapshot(), "offset": at - 3}
        return Grid(ROWS, COLS), state, b"end"

    known_beforehand = [(0, ROWS, COLS), (2_000_000, *SMALLER)]
    followed = SessionScreen(Init(0, (ROWS, COLS), None, [], known_beforehand, True, [], None, None), None, 0, draw)
    taken, rest = followed.take(0, b"x" * 1_999_999)
    assert (len(taken), rest, followed.size) == (1_999_999, b"", (ROWS, COLS))
    taken, rest = followed.take(1_999_999, b"yz")
    assert (taken, rest, followed.size) == (b"y", b"z", SMALLER)
    assert not drawn
    assert not asked
    assert followed.grid.size == SMALLER
    assert followed.grid.size == tuple(followed.state["size"])
    assert (asked, drawn) == ([2_000_000], [3])
    followed.take(2_000_000, b"z")
    assert followed.at_ground
    assert (asked, drawn) == ([2_000_000], [3, 1])
    followed.forget()
    followed.take(2_000_001, b"z" * 1_000_000)
    assert (asked, drawn) == ([2_000_000], [3, 1])


def test_the_screen_of_a_session_whose_log_is_elsewhere_is_kept_up_all_the_time() -> None:
    state = {**Tracker(ROWS, COLS).snapshot(), "offset": 5}
    init = Init(5, (ROWS, COLS), state, [], [(0, ROWS, COLS)], True, [], None, None)
    for grid in (Grid(ROWS, COLS), None):
        followed = SessionScreen(init, grid, 0, None)
        followed.forget()
        followed.take(5, b"one\r\n")
        followed.resize(*SMALLER)
        followed.forget()
        followed.take(10, b"\x1b[1mtwo")
        assert followed.grid.size == SMALLER
        assert [row.text.rstrip() for row in followed.grid.rows()[:3]] == ["one", "two", ""]
        assert (followed.state["offset"], followed.state["row"], followed.state["col"]) == (17, 1, 3)


def switches(pid: int) -> int:
    """How often a process went to sleep."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches"):
            return int(line.split()[1])
    raise AssertionError(pid)


@pytest.mark.covers("found:19")
@pytest.mark.parametrize("dialect", [BINARY, JSON])
def test_a_websocket_client_gets_the_screen_at_the_size_it_was_sent(
    world: World, serving: Serving, dialect: str
) -> None:
    """Its own terminal is smaller. What follows is output for the session's size, so the screen is for that too."""
    session = world.open().start(["vim", "-u", "NONE", "-N", "-i", "NONE", "-n"], tty=True, size=(ROWS, COLS))
    world.closing.callback(session.kill)
    until(lambda: "~" in session.screen().text, what="the editor")
    rows, cols = SMALLER
    viewer = WebViewer(serving.address, serving.token, session.id, dialect, role="observe", rows=rows, cols=cols)
    world.closing.callback(viewer.leave)
    assert viewer.begun()["size"] == [ROWS, COLS]
    viewer.until(lambda: viewer.text == session.screen().text, "the whole screen")
    session.send("i" + "a long line " * 12)
    session.wait(idle=0.1, timeout=30)
    viewer.until(lambda: viewer.text == session.screen().text, "the whole screen")
