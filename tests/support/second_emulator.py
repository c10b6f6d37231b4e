"""A second emulator beside the tracker, in a process of its own: native code that a stream may bring down."""

from __future__ import annotations

import subprocess
import sys
from typing import Self

_CHILD = """
import re, sys
import pyghostty

MODES = (1, 5, 6, 7, 9, 25, 66, 69, 1004, 1005, 1006, 1015, 1016, 2004, 2026, 2031)
for line in sys.stdin:
    rows, cols, *pieces = line.split()
    screen = pyghostty.Terminal(int(cols), int(rows))
    replies = []
    screen.on_reply(replies.append)
    out = []
    for piece in pieces:
        screen.feed(bytes.fromhex(piece[1:]))
        replies.clear()
        screen.feed(b"\\x1b[6n")
        row, col = re.fullmatch(rb"\\x1b\\[(\\d+);(\\d+)R", replies[-1]).groups()
        modes = ",".join(str(number) for number in MODES if screen.mode(number))
        out.append(f"{int(row)}:{int(col)}:{modes}")
    screen.close()
    print(*out, flush=True)
"""

# After each piece: the reply to CPR, and which modes are set. The modes of the mouse and of the alternate screen are
# not among them: that one takes each for a flag of its own.
Look = tuple[tuple[int, int], frozenset[int]]
MODES = frozenset((1, 5, 6, 7, 9, 25, 66, 69, 1004, 1005, 1006, 1015, 1016, 2004, 2026, 2031))


class SecondEmulator:
    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            assert self._child.stdin is not None
            self._child.stdin.close()
            self._child.wait()
            assert self._child.stdout is not None
            self._child.stdout.close()

    def looks(self, size: tuple[int, int], pieces: list[bytes]) -> list[Look]:
        if self._child is None:
            argv = [sys.executable, "-c", _CHILD]
            self._child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        words = [str(size[0]), str(size[1]), *("x" + piece.hex() for piece in pieces)]
        self._child.stdin.write(" ".join(words) + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        assert answer, f"the second emulator died of {b''.join(pieces)!r}"
        return [_look(word) for word in answer.split()]


def _look(word: str) -> Look:
    row, col, modes = word.split(":")
    return (int(row), int(col)), frozenset(int(number) for number in modes.split(",") if number)
