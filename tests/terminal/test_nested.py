"""Real programs seen through `hold attach` in a window of its own, whose screen is an emulator that is not ours: the
window shows what the program's own terminal would, and continues as that would, whichever other process is killed."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.outer import COLS, ROWS, Outer
from holdfast.model.events import Written
from support.faults import halt, kill_launchers, kill_runner, sweep_up
from support.reference_screen import Reference, differences
from support.viewer import Viewer
from support.waiting import TooLate, until

if TYPE_CHECKING:
    from holdfast import Session
    from holdfast.terminal.screen import Screen
    from support.world import World

EARLIER = "early line 5\n"
EARLY = "i=1; while [ $i -le 60 ]; do echo early line $i; i=$((i+1)); done"

CURSES = """
import curses

def main(screen):
    curses.start_color()
    curses.init_pair(1, curses.COLOR_YELLOW, curses.COLOR_BLUE)
    screen.scrollok(False)
    chosen, typed = 0, ""
    while True:
        screen.erase()
        screen.border()
        for row in range(5):
            screen.addstr(2 + row, 4, f"choice {row}", curses.color_pair(1) if row == chosen else curses.A_BOLD)
        screen.addstr(10, 4, "typed: " + typed)
        key = screen.get_wch()
        if key == curses.KEY_UP:
            chosen = max(0, chosen - 1)
        elif key == curses.KEY_DOWN:
            chosen = min(4, chosen + 1)
        elif isinstance(key, str) and key.isprintable():
            typed += key

curses.wrapper(main)
"""


STEPS = 60


class Nested:
    """One program, and what is done to it: by keys without a client, then by hand."""

    def __init__(
        self,
        name: str,
        command: str,
        ready: str,
        *,
        keys: list[str],
        driven: str,
        up: Callable[[Screen], object],
        before_paste: bytes,
        pasted: str,
        after: bytes = b"x",
    ) -> None:
        self.name = name
        self.command = f"{EARLY}; {command}"
        self.ready = ready
        # What is pressed, and then on the screen.
        self.keys, self.driven = keys, driven
        # What an arrow up changes.
        self.up = up
        # What is typed before a paste, and how the paste then stands there.
        self.before_paste, self.pasted = before_paste, pasted
        # What is typed at the end.
        self.after = after


def cursor_row(screen: Screen) -> int:
    return screen.cursor.row


def text(screen: Screen) -> str:
    return screen.text


def row_of_cursor(screen: Screen) -> str:
    return screen.rows[screen.cursor.row].text


def bars(screen: Screen) -> list[object]:
    """Where a coloured bar stands."""
    return [row.cells[6].style for row in screen.rows]


PASTE = "two  words and 'quotes'"
PROGRAMS = [
    pytest.param(
        Nested(
            "vim",
            "exec vim -u NONE -N -i NONE -n lines",
            "text 1\n",
            keys=["5", "0", "G", "o", "text:typed unseen", "Escape"],
            driven="typed unseen",
            up=cursor_row,
            before_paste=b"O",
            pasted=PASTE,
        ),
        marks=pytest.mark.needs("vim"),
    ),
    pytest.param(
        Nested(
            "less",
            "exec less lines",
            "text 1\n",
            keys=["1", "0", "0", "g"],
            driven="text 100\n",
            up=text,
            before_paste=b"/",
            pasted="/" + PASTE,
        ),
        marks=pytest.mark.needs("less"),
    ),
    pytest.param(
        Nested(
            "htop",
            "exec htop -d 100",
            "F10",
            keys=["Down", "Down", "Down"],
            driven="F10",
            up=bars,
            before_paste=b"/",
            pasted="Search: ",
        ),
        marks=pytest.mark.needs("htop"),
    ),
    pytest.param(
        Nested(
            "fish",
            "exec fish",
            "Welcome to fish",
            keys=["text:set word unseen; echo typed $word", "Enter"],
            driven="typed unseen",
            up=row_of_cursor,
            before_paste=b"\x15echo \\\r",
            pasted=PASTE,
        ),
        marks=pytest.mark.needs("fish"),
    ),
    pytest.param(
        Nested(
            "tmux",
            "exec tmux -L nested -f /dev/null new-session 'bash --norc'",
            "[0]",
            keys=["text:echo typed $((40+2))", "Enter"],
            driven="typed 42",
            up=row_of_cursor,
            before_paste=b"\x15: ",
            pasted=PASTE,
        ),
        marks=pytest.mark.needs("tmux"),
    ),
    Nested(
        "python",
        f"exec {sys.executable} -q",
        ">>>",
        keys=["text:print('typed', 40 + 2)", "Enter"],
        driven="typed 42",
        up=row_of_cursor,
        before_paste=b"\x15# ",
        pasted=PASTE,
    ),
    Nested(
        "curses",
        f"exec {sys.executable} program.py",
        "choice 4",
        keys=["Down", "Down", "text:unseen"],
        driven="typed: unseen",
        up=bars,
        before_paste=b" ",
        pasted=PASTE,
    ),
]


def started(world: World, program: Nested) -> Session:
    """Detached: the `hold` that started it is gone."""
    (world.cwd / "lines").write_text("".join(f"text {n}\n" for n in range(1, 301)))
    (world.cwd / "program.py").write_text(CURSES)
    size = ("--size", f"{COLS}x{ROWS}", "--env", f"TMUX_TMPDIR={world.root / 'tmp'}")
    id = world.hold("start", "--tty", *size, "--", program.command, check=True).stdout.strip()
    session = world.open().get(id)
    world.closing.callback(session.kill)
    until(lambda: program.ready in session.screen().text + "\n", what=f"{program.name} on its screen")
    return session


class Window:
    """`hold attach` in a window, beside a reference emulator that saw all of the program's output."""

    def __init__(self, world: World, session: Session, *options: str) -> None:
        self.outer = Outer(world.hold_argv("attach", session.id, *options))
        world.closing.callback(self.outer.close)
        self.session = session
        self._shown, self._own = Reference(ROWS, COLS), Reference(ROWS, COLS)
        self._shown_to = self._own_to = 0
        world.closing.callback(self._shown.close)
        world.closing.callback(self._own.close)

    def is_the_programs_own(self) -> None:
        """Until the window, the session's own screen and the reference agree in every cell."""
        found: list[object] = []

        def same() -> bool:
            found[:] = self._differences()
            return not found

        try:
            self.outer.until(same, "the session's screen in the window")
        except TooLate as late:
            raise AssertionError(f"{late}\ndifferent: {found[:5]}") from None

    def _differences(self) -> list[object]:
        screen = self.session.screen()
        outer = self.outer
        shown = [line.rstrip() for line in outer.text.split("\n")]
        rows = [row.text.rstrip() for row in screen.rows]
        if shown + [""] * (ROWS - len(shown)) != rows or outer.cursor != screen.cursor[:2]:
            return ["text or cursor", outer.cursor, screen.cursor]
        self._own.feed(b"".join(self.session.raw("tty"))[self._own_to : screen.offset])
        self._shown.feed(outer.printed[self._shown_to :])
        self._own_to, self._shown_to = screen.offset, len(outer.printed)
        own, seen = self._own.seen(), self._shown.seen()
        assert screen.exact
        assert differences(screen.rows, own) == []
        mine, its = ((one.cursor, one.visible, one.alt, one.kitty_flags) for one in (seen, own))
        return [*differences(screen.rows, seen), *([] if mine == its else [(mine, its)])]

    def arrow_up(self) -> None:
        """As its terminal would send it, in the mode it was put into."""
        self.outer.type(b"\x1bOA" if self.outer.modes()["?1"] else b"\x1b[A")

    def paste(self, text: str) -> None:
        brackets = (b"\x1b[200~", b"\x1b[201~") if self.outer.modes()["?2004"] else (b"", b"")
        self.outer.type(text.encode().join(brackets))

    def leave(self) -> None:
        self.outer.type(b"\x1dd")
        assert self.outer.end() == 0
        assert self.outer.is_as_before()


def arrows_work(window: Window, program: Nested) -> None:
    before = program.up(window.session.screen())
    window.arrow_up()
    until(lambda: program.up(window.session.screen()) != before, what=f"an arrow at {program.name}")
    window.is_the_programs_own()


@pytest.mark.own_launcher
@pytest.mark.covers("terminal:4", "OWN-01", "OWN-02")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_in_a_window_is_as_on_its_own_terminal_whichever_process_is_killed(
    world: World, program: Nested
) -> None:
    session = started(world, program)
    before = (session.pid, session.runner_pid)
    world.hold("keys", session.id, *program.keys, check=True)
    until(lambda: program.driven in session.screen().text + "\n", what=f"what the keys did to {program.name}")

    window = Window(world, session)
    window.is_the_programs_own()
    arrows_work(window, program)
    window.outer.type(program.before_paste)
    session.wait(idle=0.1, timeout=30)
    window.paste(PASTE)
    until(lambda: program.pasted in session.screen().text, what=f"the paste in {program.name}")
    window.is_the_programs_own()
    window.leave()
    assert EARLIER in window.outer.everything

    # Somebody attached, everybody who started anything, and the launcher.
    second = Window(world, session)
    second.is_the_programs_own()
    second.outer.signal(signal.SIGKILL)
    second.outer.wait()
    kill_launchers(world)

    found = world.open().get(session.id)
    assert (found.state, found.pid, found.runner_pid) == ("running", *before)
    third = Window(world, found)
    third.is_the_programs_own()
    third.outer.type(program.after)
    third.is_the_programs_own()
    third.leave()
    assert EARLIER in third.outer.everything


class Filmed(Outer):
    """Keeps every frame that a person would see; none during an update."""

    frames: list[str]

    def _take(self, timeout: float) -> bool:
        taken = super()._take(timeout)
        if taken and not self._mode(2026):
            self.frames = [*getattr(self, "frames", []), self.text]
        return taken


@pytest.mark.covers("terminal:31")
@pytest.mark.parametrize("size", [(ROWS, COLS), (12, 40), (40, 110)], ids=["equal", "smaller", "larger"])
@pytest.mark.parametrize("typed", ["", "echo half a line"], ids=["at the prompt", "in a line"])
def test_the_redraw_of_a_shell_comes_after_its_restore_and_shows_one_prompt(
    world: World, size: tuple[int, int], typed: str
) -> None:
    """On a terminal of another size than the window: the shell gets the window's size, and redraws."""
    session = world.open().start(["bash", "--norc"], tty=True, size=size, env={"PS1": "prompt> ", "HISTFILE": ""})
    world.closing.callback(session.kill)
    session.wait(match="prompt> ", timeout=30)
    session.send(typed)
    until(lambda: session.screen().text == f"prompt> {typed}".rstrip(), what="the prompt")
    outer = Filmed(world.hold_argv("attach", session.id))
    world.closing.callback(outer.close)
    outer.shows(f"prompt> {typed}".rstrip())
    until(lambda: session.refresh().size == [ROWS, COLS], what="the size of the window")
    # What it redraws has come when it has run a command.
    outer.type(b"\x15echo $((40 + 2))\r")
    outer.shows("\n42\n")
    shown = [frame for frame in outer.frames if frame.strip()]
    first = outer.frames.index(shown[0])
    assert all(frame.strip() for frame in outer.frames[first:]), "a blank frame"
    before = [frame for frame in shown if "42" not in frame]
    assert before
    assert all(frame.count("prompt>") == 1 for frame in before), before
    assert before[0].rstrip() == f"prompt> {typed}".rstrip()
    leave(outer)


@pytest.mark.covers("terminal:31")
@pytest.mark.needs("vim")
@pytest.mark.parametrize("size", [(ROWS, COLS), (12, 40), (40, 110)], ids=["equal", "smaller", "larger"])
def test_the_redraw_of_an_editor_comes_after_its_restore(world: World, size: tuple[int, int]) -> None:
    (world.cwd / "lines").write_text("".join(f"text {n}\n" for n in range(1, 301)))
    session = world.open().start(["vim", "-u", "NONE", "-N", "-i", "NONE", "-n", "lines"], tty=True, size=size)
    world.closing.callback(session.kill)
    until(lambda: "text 10" in session.screen().text, what="the editor")
    before = session.screen().text.split("\n")
    outer = Filmed(world.hold_argv("attach", session.id))
    world.closing.callback(outer.close)
    outer.shows("text 1\n")
    # The first frame is the restore, whole: as much of what was there as goes into the window.
    restored = next(frame for frame in outer.frames if frame.strip()).split("\n")
    common = min(ROWS, size[0]) - 1
    assert restored[:common] == before[:common]
    until(lambda: session.refresh().size == [ROWS, COLS], what="the size of the window")
    last = f"text {ROWS - 1}"
    outer.until(lambda: last in outer.text and same_rows(outer, session), "the editor in the window")
    first = next(number for number, frame in enumerate(outer.frames) if frame.strip())
    assert all(frame.strip() for frame in outer.frames[first:]), "a blank frame"
    sizes = [(rows, cols) for _, rows, cols in recorded_sizes(session)]
    assert sizes == ([size] if size == (ROWS, COLS) else [size, (ROWS, COLS)])
    leave(outer)


def same_rows(outer: Outer, session: Session) -> bool:
    return outer.text.rstrip() == session.screen().text.rstrip()


def recorded_sizes(session: Session) -> list[tuple[int, int, int]]:
    return session._core.log(session.id).resizes()


def leave(outer: Outer) -> None:
    outer.type(b"\x1dd")
    assert outer.end() == 0
    assert outer.is_as_before()


# Redraws itself for each key and each size. It shows every key that it got, in order.
TUI = """
import fcntl, hashlib, os, select, signal, struct, sys, termios, tty
woken, waker = os.pipe()
os.set_blocking(waker, False)
signal.signal(signal.SIGWINCH, lambda *_: None)
signal.set_wakeup_fd(waker)
tty.setraw(0)
keys = b""
while True:
    rows, cols = struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))[:2]
    digest = hashlib.sha256(keys).hexdigest()
    lines = [f"{len(keys)} keys at {rows}x{cols}", f"last {keys[-20:].decode()}", *(digest[row:] for row in range(60))]
    drawn = "".join(f"\\x1b[{row + 1};1H\\x1b[3{row % 8}m{line[:cols]}" for row, line in enumerate(lines[:rows]))
    sys.stdout.write("\\x1b[m\\x1b[2J" + drawn)
    sys.stdout.flush()
    ready = select.select([0, woken], [], [])[0]
    if woken in ready:
        os.read(woken, 4096)
    if 0 in ready:
        keys += os.read(0, 65536)
"""

# A client in a process of its own, which says at the end what it shows.
VIEWER = """
import sys
sys.path.insert(0, sys.argv[2])
import holdfast
from support.viewer import Viewer
with holdfast.open() as hf, hf.get(sys.argv[1]).attach(role="observe") as attachment:
    viewer = Viewer(attachment)
    print("attached", flush=True)
    while sys.argv[3] not in viewer.text:
        viewer.take(None)
    print(viewer.text.encode().hex(), flush=True)
"""


def test_ten_mixed_clients_that_type_resize_stall_and_flap_end_with_equal_screens(world: World) -> None:
    """Windows, programs, watchers, one that is stopped, one that comes and goes; a fixed number of steps."""
    home = world.open()
    session = home.start([sys.executable, "-c", TUI], tty=True, size=(ROWS, COLS))
    world.closing.callback(session.kill)
    session.wait(match="0 keys", timeout=30)
    windows = [Outer(world.hold_argv("attach", session.id)) for _ in range(2)]
    windows.append(Outer(world.hold_argv("attach", session.id, "--observe")))
    for window in windows:
        world.closing.callback(window.close)
        window.shows("0 keys")
    tests = str(Path(__file__).resolve().parents[1])
    stopped = world.host(VIEWER, session.id, tests, f"{STEPS} keys at {ROWS}x{COLS}\n")
    assert stopped.line() == "attached"
    attachments = [session.attach(size=(ROWS, COLS)) for _ in range(3)]
    attachments += [session.attach(role="observe") for _ in range(2)]
    viewers = [Viewer(world.closing.enter_context(attachment)) for attachment in attachments]
    typists, watchers = viewers[:3], viewers[3:]
    flapping = Viewer(session.attach())
    chance = random.Random(22)
    typed = 0
    halt(stopped.pid)
    for step in range(STEPS):
        key = b"%c" % (97 + step % 26)
        who = chance.choice(["window", "typist", "flapping"])
        if who == "window":
            windows[chance.randrange(2)].type(key)
        else:
            (flapping if who == "flapping" else chance.choice(typists)).attachment.send(key)
        typed += 1
        if step % 3 == 0:
            chance.choice(typists).attachment.resize(chance.randrange(5, 50), chance.randrange(20, 140))
        elif step % 3 == 1:
            windows[step % 2].resize(chance.randrange(10, 40), chance.randrange(40, 120))
        if who == "flapping":
            # Not before its key is written: what is on the way when a connection is closed may be lost.
            flapping.until(partial(flapping.of, Written), "the key written")
            flapping.attachment.close()
            flapping = Viewer(session.attach())
        if step % 5 == 0:
            # Whoever typed, all that is shown is somewhat behind.
            watchers[step % 2].take(0)
            windows[step % 3]._take(0)
    os.kill(stopped.pid, signal.SIGCONT)
    for window in windows:
        window.resize(ROWS, COLS)
    for viewer in (*typists, flapping):
        viewer.attachment.resize(ROWS, COLS)
    final = f"{typed} keys at {ROWS}x{COLS}\n"
    until(lambda: session.screen().text.startswith(final), what=f"{final!r} (now {session.screen().text[:40]!r})")
    shown = session.screen().text
    for viewer in (*viewers, flapping):
        viewer.until(lambda viewer=viewer: viewer.text == shown, "the last screen")  # type: ignore[misc]
        assert viewer.gaps == []
    for window in windows:
        window.until(partial(same_rows, window, session), "the last screen")
    assert bytes.fromhex(stopped.line()).decode() == shown
    flapping.attachment.close()


@pytest.mark.covers("OWN-05")
def test_a_window_whose_runner_is_killed_says_so_in_either_order(world: World) -> None:
    """The hang-up may have ended the command before we look: that is no end whose code anybody knows."""
    for words in (["quiet"], ["quiet", "ignore", "HUP"]):
        session = world.open().start(world.probe(*words, "say", "shown", "forever"), tty=True, size=(ROWS, COLS))
        session.wait(match="shown", timeout=30)
        outer = Outer(world.hold_argv("attach", session.id))
        world.closing.callback(outer.close)
        outer.shows("shown")
        kill_runner(session)
        assert outer.end() == 5
        assert "is gone" in outer.everything
        assert "code None" not in outer.everything
        assert outer.is_as_before()
        again = Outer(world.hold_argv("attach", session.id))
        world.closing.callback(again.close)
        assert again.end() == 5
        assert "shown" in again.everything
        session.stop(grace=0)
    sweep_up(world, world.open())
