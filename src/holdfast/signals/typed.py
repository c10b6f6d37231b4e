"""Fields of a record that another process wrote: each function gives its type, whatever the field holds."""

from __future__ import annotations

from ..core.records import STREAM_NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


# No offset or count of ours is larger.
_NUMBER_MAX = 1 << 63


def text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    return value if isinstance(value, str) else ""


def count(record: Mapping[str, Any], key: str) -> int:
    """A number of things, or an offset; 0 if absent."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return value if 0 <= value < _NUMBER_MAX else 0


def number(record: Mapping[str, Any], key: str) -> int | None:
    """A whole number that may be absent: an exit code, a pid."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < _NUMBER_MAX else None


def seconds(record: Mapping[str, Any], key: str) -> float | None:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # NaN fails both comparisons.
    return float(value) if 0 <= value < 1e12 else None


def table(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def tables(record: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = record.get(key)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def texts(record: Mapping[str, Any], key: str) -> list[str]:
    value = record.get(key)
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def stream(record: Mapping[str, Any], key: str = "stream") -> str:
    """The name of a stream; empty for anything else."""
    value = record.get(key)
    return value if isinstance(value, str) and value in STREAM_NUMBERS else ""


def offsets(record: Mapping[str, Any], key: str) -> dict[str, int]:
    """By stream, those that are offsets."""
    found = table(record, key)
    numbers = [(name, number(found, name)) for name in STREAM_NUMBERS if name in found]
    return {name: max(0, offset) for name, offset in numbers if offset is not None}
