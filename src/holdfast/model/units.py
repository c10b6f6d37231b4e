"""Durations and sizes as people write them."""

from __future__ import annotations

from ..errors import BadArgument

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "": 1}
_BYTES = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "m": 1 << 20,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gib": 1 << 30,
    "t": 1 << 40,
    "tib": 1 << 40,
}
# A century: what is meant to be for ever is said with None, and a clock never overflows.
LONGEST_S = 36525 * 86400
# Offsets stay below this everywhere, so that JavaScript can hold them.
LARGEST_BYTES = 1 << 53

_SECONDS_FIX = "give a number of seconds, or text such as 500ms, 10s, 5m, 2h or 7d"
_BYTES_FIX = "give a number of bytes, or text such as 512K, 64M or 4GiB (powers of 1024)"


def seconds(value: object, argument: str = "duration") -> float:
    """5, 0.5, "500ms", "10s", "5m", "2h" or "7d" in seconds."""
    amount, unit = _parts(value, argument, _SECONDS_FIX)
    if unit not in _SECONDS:
        raise BadArgument(argument, f"{shown(value)} has no known unit", _SECONDS_FIX)
    found = amount * _SECONDS[unit]
    if not 0 <= found <= LONGEST_S:
        raise BadArgument(argument, f"{shown(value)} is not between 0 and a century", _SECONDS_FIX)
    return float(found)


def size_bytes(value: object, argument: str = "size") -> int:
    """4096, "512K", "64M", "64MiB" or "4G" in bytes. "64MB" is refused: it means two things."""
    amount, unit = _parts(value, argument, _BYTES_FIX)
    factor = _BYTES.get(unit.lower())
    if factor is None:
        raise BadArgument(argument, f"{shown(value)} has no known unit", _BYTES_FIX)
    found = amount * factor
    if not 0 <= found <= LARGEST_BYTES or found != int(found):
        raise BadArgument(argument, f"{shown(value)} is no whole number of bytes up to 2^53", _BYTES_FIX)
    return int(found)


def _parts(value: object, argument: str, fix: str) -> tuple[float, str]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value, ""
    if isinstance(value, str) and len(value) <= 40 and value.isascii():
        text = value.strip()
        digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        number = digits.strip()
        if number.replace(".", "", 1).isdecimal():
            return float(number) if "." in number else int(number), text[len(digits) :]
    raise BadArgument(argument, f"{shown(value)} cannot be understood", fix)


def shown(value: object) -> str:
    """A refused value for a message: short, without control characters, and never an error of its own."""
    if isinstance(value, (str, float, bool)) or (isinstance(value, int) and value.bit_length() <= 64):
        return ascii(value[:80] if isinstance(value, str) else value)
    return f"a value of type {type(value).__name__}"
