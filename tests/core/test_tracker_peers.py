"""The tracker beside an independent emulator: the same reports and modes after every token, of fuzz and of programs.

Left out is where the two differ on purpose: encoded C1 (that one takes them for text), DEL, a cell-bound reverse wrap,
sequences with more parameters than they have, 0 where it stands for 1, and a pending wrap under RI, CBT and ?1049.
"""

from __future__ import annotations

import fcntl
import os
import pty
import random
import select
import shutil
import struct
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.vt.parser import Scanner
from holdfast.core.vt.tracker import Tracker
from support.second_emulator import MODES, Look, SecondEmulator
from support.waiting import BOUND_S

TEXTS = [
    text.encode() for text in ("a", "hello world ", "x" * 23, "漢字", "é", "─", "0123456789" * 2, "漢" * 11, "e\u0301")
]
CONTROLS = [b"\r", b"\n", b"\b", b"\t", b"\r\n", b"\x0b", b"\x0c", b"\x0e", b"\x0f", b"\x07", b"\x00"]
ESCAPES = [
    b"\x1b7",
    b"\x1b8",
    b"\x1bD",
    b"\x1bE",
    b"\x1bH",
    b"\x1b#8",
    b"\x1b(0",
    b"\x1b(B",
    b"\x1b[3g",
    b"\x1b[?5W",
    b"\x1bc",
]
NUMBERS = (1, 2, 3, 5, 7, 19, 20, 21, 40, 1000)
MODE_NUMBERS = (1, 5, 7, 25, 47, 69, 1000, 1002, 1006, 1047, 1048, 2004)


@pytest.fixture
def second() -> Iterator[SecondEmulator]:
    with SecondEmulator() as one:
        yield one


def looks(size: tuple[int, int], pieces: list[bytes]) -> list[Look]:
    tracker = Tracker(*size)
    seen = []
    for piece in pieces:
        tracker.feed(piece)
        tracker.take_replies()
        tracker.feed(b"\x1b[6n")
        (reply,) = tracker.take_replies()
        row, col = reply.removeprefix(b"\x1b[").removesuffix(b"R").split(b";")
        seen.append(((int(row), int(col)), frozenset(n for n in MODES if tracker.modes.report(n) == 1)))
    return seen


def stream(chance: random.Random) -> list[bytes]:
    def piece() -> bytes:
        kind = chance.random()
        if kind < 0.3:
            return chance.choice(TEXTS)
        if kind < 0.45:
            return chance.choice(CONTROLS)
        if kind < 0.6:
            return chance.choice(ESCAPES)
        if kind < 0.7:
            return b"\x1b[?%d%c" % (chance.choice(MODE_NUMBERS), chance.choice(b"hl"))
        if kind < 0.75:
            return b"\x1b[%d%c" % (chance.choice((4, 20)), chance.choice(b"hl"))
        final = chance.choice(b"ABCDEFGHIJKLMPSTX@`abdefrsu")
        count = chance.randint(0, {b"H": 2, b"f": 2, b"r": 2, b"s": 0, b"u": 0}.get(bytes((final,)), 1))
        return b"\x1b[%b%c" % (b";".join(b"%d" % chance.choice(NUMBERS) for _ in range(count)), final)

    return [piece() for _ in range(40)]


@pytest.mark.parametrize("seed", range(4))
def test_fuzz_leads_both_to_the_same_reports(second: SecondEmulator, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(150):
        size = chance.choice([(5, 20), (5, 21), (3, 10), (24, 80), (6, 2)])
        pieces = stream(chance)
        for at, (ours, theirs) in enumerate(zip(looks(size, pieces), second.looks(size, pieces), strict=True)):
            assert ours == theirs, f"{size} after {pieces[: at + 1]}"


SOURCE = os.__file__
PROGRAMS = {
    "vim": (
        ["vim", "-u", "NONE", "-c", "set nocp nu hls ruler | syntax on", SOURCE],
        [
            *(
                b"\x06",
                b"/def \r",
                b"n",
                b"n",
                b"G",
                b"gg",
                "iwörld 漢字 \x1b".encode(),
                b":vsplit\r",
                b"\x17w",
                b"\x04",
            ),
            *(b"dd", b"u", b":qa!\r"),
        ],
    ),
    "less": (["less", SOURCE], [b" ", b" ", b"b", b"/def\r", b"n", b"G", b"g", b"jjj", b"q"]),
    "bash": (
        ["bash", "--norc", "-i"],
        [b"ls --color=always -la /etc\r", b"echo " + b"y" * 150, b"\x01\x05\x15", b"clear\r", b"exit\r"],
    ),
    "python": (
        [sys.executable, "-q"],
        [b"print('x' * 250)\r", b"for i in range(40): print(i)\r\r", b"\x1b[A", b"\x1b[A\r", b"exit()\r"],
    ),
}


def record(argv: list[str], keys: list[bytes], size: tuple[int, int], home: Path) -> bytes:
    """What it prints to its end when it is given these keys, each as soon as it has been quiet for a while. The first
    has to wait until it prints; after the last it ends."""
    pid, master = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "HOME": str(home)})
        os.execvp(argv[0], argv)
    tracker = Tracker(*size)
    printed = b""
    waiting = list(keys)
    try:
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        while True:
            if not select.select([master], [], [], 0.2 if printed and waiting else BOUND_S)[0]:
                if not printed or not waiting:
                    break
                os.write(master, waiting.pop(0))
                continue
            try:
                chunk = os.read(master, 65536)
            except OSError:
                break
            printed += chunk
            tracker.feed(chunk)
            for reply in tracker.take_replies():
                os.write(master, reply)
    finally:
        os.close(master)
        os.waitpid(pid, 0)
    return printed


@pytest.mark.slow
@pytest.mark.covers("terminal:1")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_leads_both_to_the_same_reports(second: SecondEmulator, program: str, tmp_path: Path) -> None:
    argv, keys = PROGRAMS[program]
    if shutil.which(argv[0]) is None:
        pytest.skip(f"no {argv[0]}")
    size = (24, 80)
    printed = record(argv, keys, size, tmp_path)
    assert len(printed) > 500
    pieces = [raw for _, _, raw in Scanner().steps(printed)]
    ours, theirs = looks(size, pieces), second.looks(size, pieces)
    for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one == other, f"after {pieces[max(0, at - 5) : at + 1]}"
    # And all of it, however it is cut.
    whole = fed(size, printed, len(printed))
    for length in (1, 7, 1000):
        assert fed(size, printed, length) == whole


def fed(size: tuple[int, int], printed: bytes, length: int) -> tuple[object, ...]:
    tracker = Tracker(*size)
    for i in range(0, len(printed), length):
        tracker.feed(printed[i : i + length])
    return tracker.snapshot(), tracker.take_replies(), tracker.take_marks(), tracker.last_clear
