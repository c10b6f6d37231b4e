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


def epoch(text: object) -> float | None:
    """Seconds since 1970 of an RFC 3339 time; None for anything else. Without `datetime`, which takes longer to load
    than the rest of this package."""
    if not isinstance(text, str):
        return None
    if text.endswith("Z"):
        text = text[:-1] + "+00:00"
    fraction, zone = text[19:-6], text[-6:]
    try:
        year, month, day = int(text[:4]), int(text[5:7]), int(text[8:10])
        within_s = int(text[11:13]) * 3600 + int(text[14:16]) * 60 + int(text[17:19])
        zone_s = int(f"{zone[0]}1") * (int(zone[1:3]) * 3600 + int(zone[4:]) * 60)
        fraction_s = float(f"0{fraction}")
    except (ValueError, IndexError):
        return None
    # Years that begin in March have the leap day at their end.
    year -= month <= 2
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    seconds = (year * 365 + year // 4 - year // 100 + year // 400 + of_year - 719468) * 86400 + within_s
    # A day that its month does not have comes back as another.
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return seconds - zone_s + fraction_s if text.startswith(whole) and fraction_s < 1 else None
