"""The one clock of a process. Deadlines and order use `mono_ns`; `wall_ns` is for people."""

from __future__ import annotations

import os
import time

# A test shifts the wall clock of a whole process tree without touching the machine's.
_WALL_SHIFT_NS = int(float(os.environ.get("HOLDFAST_WALL_SHIFT_S", "0")) * 1e9)
# Seconds in a file, for a clock that jumps in mid-run.
_WALL_SHIFT_FILE = os.environ.get("HOLDFAST_WALL_SHIFT_FILE")


def mono_ns() -> int:
    return time.monotonic_ns()


def wall_ns() -> int:
    return time.time_ns() + (_WALL_SHIFT_NS if _WALL_SHIFT_FILE is None else _shift_in_file(_WALL_SHIFT_FILE))


def _shift_in_file(path: str) -> int:
    with open(path) as file:
        return int(float(file.read() or 0) * 1e9)


def rfc3339(ns: int) -> str:
    seconds, rest = divmod(ns, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 1_000_000:03d}Z"


def now_text() -> str:
    return rfc3339(wall_ns())
