"""A stream whose every byte is known by its offset alone, printed at full speed."""

from __future__ import annotations

import os
import sys

BLOCK = 1 << 20
# All values, of a length that shares no factor with any block or segment, so that no shift goes unnoticed.
_PATTERN = bytes(range(256)) + b"\n" * 3
_BODY = (_PATTERN * (BLOCK // len(_PATTERN) + 2))[: BLOCK - 8]
_LINE = (bytes(range(32, 127)) * 11)[:1007] + b"\r\n"
_LINES = (_LINE * (BLOCK // len(_LINE) + 2))[: BLOCK - 8]


def block(number: int) -> bytes:
    return number.to_bytes(8, "big") + _BODY


def terminal_block(number: int) -> bytes:
    """For a terminal, whose runner follows each byte that cannot be printed: of all values is every tenth, and with it
    the last of a hundred; the others are lines."""
    return block(number) if number % 10 == 9 else b"%08d" % number + _LINES


def at(offset: int, size: int) -> bytes:
    """What is printed at these offsets."""
    first, last = offset // BLOCK, (offset + size) // BLOCK
    whole = b"".join(map(block, range(first, last + 1)))
    return whole[offset - first * BLOCK :][:size]


def lines_before(offset: int) -> int:
    """Line ends before an offset."""
    blocks, rest = divmod(offset, BLOCK)
    count = blocks * _BODY.count(b"\n") + at(blocks * BLOCK, rest).count(b"\n")
    return count + sum(number.to_bytes(8, "big").count(b"\n") for number in range(blocks))


def argv(size: int, *, fd: int = 1, chunk: int = BLOCK) -> list[str]:
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(size), str(fd), str(chunk)]


def main(size: int, fd: int, chunk: int) -> None:
    number = 0
    while size > 0:
        view = memoryview(block(number))[:size]
        size -= len(view)
        number += 1
        while view:
            view = view[os.write(fd, view[:chunk]) :]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
