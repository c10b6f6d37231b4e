"""Real programs on real terminals, recorded: what they printed, and where the size changed."""

from __future__ import annotations

import fcntl
import functools
import os
import pty
import select
import struct
import termios
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.core.vt.tracker import Tracker
from holdfast.terminal.grid import Grid

# A program that printed nothing for this long waits for a key.
QUIET_S = 0.05

Step = bytes | tuple[int, int]


@dataclass
class Recording:
    size: tuple[int, int]
    data: bytes = b""
    # (offset, rows, cols), the first at 0.
    resizes: list[tuple[int, int, int]] = field(default_factory=list)

    def read(self, begin: int, end: int) -> list[bytes]:
        return [self.data[begin:end]]

    def tracker(self, at: int | None = None) -> Tracker:
        """As it stands at an offset, resizes included."""
        tracker = Tracker(*self.size)
        self.carry_on(tracker, 0, at)
        tracker.take_replies()
        return tracker

    def grid(self, at: int | None = None, history: int = 1000) -> Grid:
        grid = Grid(*self.size, history=history)
        self.carry_on(grid, 0, at)
        return grid

    def carry_on(self, fed: Tracker | Grid, begin: int, end: int | None = None) -> None:
        """Takes what stands at one offset to another, the end if none is said; resizes at both have been seen then."""
        end = len(self.data) if end is None else end
        for offset, rows, cols in self.resizes:
            if begin < offset <= end:
                fed.feed(self.data[begin:offset])
                fed.resize(rows, cols)
                begin = offset
        fed.feed(self.data[begin:end])


def record(argv: list[str], steps: list[Step], size: tuple[int, int], *, at_least: int = 0) -> Recording:
    """Runs it, and whenever it is quiet takes the next step: keys, or a new size. Its questions are answered. Steps
    are taken again from the first until there are so many bytes; then the terminal hangs up."""
    recording = Recording(size, resizes=[(0, *size)])
    tracker = Tracker(*size)
    pid, master = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm-256color", "LANG": "C.UTF-8"})
        os.execvp(argv[0], argv)
    chunks: list[bytes] = []
    length = 0
    try:
        _set_size(master, *size)
        waiting = list(steps)
        while True:
            if select.select([master], [], [], QUIET_S)[0]:
                try:
                    chunk = os.read(master, 65536)
                except OSError:
                    break
                chunks.append(chunk)
                length += len(chunk)
                tracker.feed(chunk)
                for reply in tracker.take_replies():
                    os.write(master, reply)
                continue
            if not waiting:
                if length >= at_least:
                    break
                waiting = list(steps)
            step = waiting.pop(0)
            if isinstance(step, bytes):
                os.write(master, step)
            else:
                _set_size(master, *step)
                recording.resizes.append((length, *step))
    finally:
        os.close(master)
        os.waitpid(pid, 0)
    recording.data = b"".join(chunks)
    return recording


def _set_size(master: int, rows: int, cols: int) -> None:
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


@functools.cache
def vim() -> Recording:
    """100 KiB of a shell's session with vim in it, again and again: colours, windows, redraws, three sizes."""
    some_code = Path(__file__).resolve()
    steps: list[Step] = [
        b"\r",
        b":set nu hls ls=2|syn on\r",
        b"\x06",
        b"/def\r",
        (26, 90),
        b"nnn",
        b":vsp\r",
        b"\x06",
        "ihello wörld 日本 e\u0301\x1b".encode(),
        b"\x17w\x02",
        b"\x0c",
        (30, 100),
        b"G",
        b":q!\r:e!\r",
        b"gg\x06",
        b"\x0c\x02",
        b":qa!\r",
    ]
    edit = f"vim -u NONE -N -n -i NONE {some_code}"
    # How much one vim prints depends on what else the machine does: there is another one for as long as it takes.
    script = f"seq 1 80; ls -l --color /; while read next && {edit}; do echo back; clear; ls --color /usr; done"
    recording = record(["sh", "-c", script], steps, (28, 80), at_least=100 << 10)
    assert len(recording.data) >= 100 << 10, recording.data[-500:]
    return recording


def state_of(grid: Grid) -> tuple[object, ...]:
    """All of a grid: cells of both screens, history, cursors, modes, and what is not finished; the same for equal
    grids."""
    emulator, dialect = grid._emulator, grid._avt_input
    parts, _ = emulator.take_apart()
    fresh = dialect.fresh()
    screens = dialect.renumbered(emulator._vt.dump(), fresh)
    names = ("alt", "_look", "_insert", "_autowrap", "_sides", "_columns", "_origin", "_single_shift", "_saved")
    settings = [getattr(dialect, name) for name in (*names, "_other_saved")]
    last = dialect.stand_ins.meaning(dialect._last)
    rows = grid.history(10_000), grid.main_rows(), grid.rows()
    sizes = parts.main_size, parts.size, parts.stops_beyond
    return screens, sizes, rows, settings, last, dialect._scanner.pending
