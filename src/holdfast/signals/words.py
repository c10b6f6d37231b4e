"""Parts of sentences that the others share: numbers, times, cursors, names."""

from __future__ import annotations

from ..runner.log import STREAM_NUMBERS
from . import facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from .quoting import Quoter
    from .records import Signal

_NAMED_PROCESSES = 3
_PROCESS_CHARACTERS = 60


def name(signal: Signal) -> str:
    """What the session is called; empty where its record says nothing."""
    shot = signal.snapshot
    return next(filter(None, (facts.text(shot, key) for key in ("name", "description", "command"))), "")


def cursor(signal: Signal, offsets: Mapping[str, int]) -> str:
    """`cursor stdout:88412`. A stream without an offset is at the end that it had: a reader would begin at its
    beginning otherwise. Empty where there is no offset at all."""
    if not offsets:
        return ""
    ends = facts.offsets(signal.snapshot, "ends")
    all_of_them = {**{stream: end for stream, end in ends.items() if end}, **offsets}
    order = sorted(all_of_them, key=lambda stream: (stream not in offsets, STREAM_NUMBERS[stream]))
    return "cursor " + ",".join(f"{stream}:{all_of_them[stream]}" for stream in order)


def lines(count: int) -> str:
    return f"{count} line" if count == 1 else f"{count} lines"


def spell(seconds: float) -> str:
    """0.4s, 12s, 3m 12s, 5m, 2h 5m, 3d 4h."""
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = int(seconds)
    for size, unit, small, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size}{unit}" + (f" {rest}{part}" if rest else "")
    return f"{whole}s"


def spelt(seconds: float | None) -> str:
    return "a time" if seconds is None else spell(seconds)


def as_of(signal: Signal) -> str:
    at = time_of(signal.at)
    return f", as of {at}" if at else ""


def time_of(value: object) -> str:
    """A time as it was recorded, to the second; empty for what is none."""
    if not isinstance(value, str) or not 19 <= len(value) <= 35 or not value.isascii():
        return ""
    known = value[:19].replace("T", "-").replace(":", "-").split("-")
    return value[:19] + "Z" if len(known) == 6 and all(map(str.isdecimal, known)) else ""


def processes(found: Sequence[Mapping[str, Any]], quoter: Quoter) -> str:
    named: Iterable[str] = (
        f"pid {facts.count(each, 'pid')} {quoter.quoted(facts.text(each, 'command'), _PROCESS_CHARACTERS)}"
        for each in found[:_NAMED_PROCESSES]
    )
    more = len(found) - _NAMED_PROCESSES
    return ", ".join([*named, *([f"and {more} more"] if more > 0 else [])])
