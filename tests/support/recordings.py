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

from holdfast.runner.tracker import Tracker
from holdfast.terminal.grid import Grid

# A program that printed nothing for this long waits for a key.
QUIET_S = 0.1

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
        self._drive(tracker, len(self.data) if at is None else at)
        tracker.take_replies()
        return tracker

    def grid(self, at: int | None = None, history: int = 1000) -> Grid:
        grid = Grid(*self.size, history=history)
        self._drive(grid, len(self.data) if at is None else at)
        return grid

    def _drive(self, fed: Tracker | Grid, end: int) -> None:
        begin = 0
        for offset, rows, cols in self.resizes:
            if offset <= end:
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
    """100 KiB of a shell's session with vim in it twice: colours, windows, inserted text, redraws, three sizes."""
    some_code = Path(__file__).resolve()
    steps: list[Step] = [
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
    ]
    edit = f"vim -u NONE -N -n -i NONE {some_code}"
    script = f"seq 1 80; ls -l --color /; {edit}; echo back; clear; ls --color /usr; {edit}"
    recording = record(["sh", "-c", script], [*steps, b":qa!\r", *steps], (28, 80), at_least=100 << 10)
    assert len(recording.data) >= 100 << 10, recording.data[-500:]
    return recording
