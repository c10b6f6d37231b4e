"""Compact ASCII JSON: writing, and reading a single value.

The C functions behind the `json` package, without the package: its classes make a forked runner write to some
forty pages that it could have shared with its launcher, and its regular expressions are a tenth of the time that a
short command line takes.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Callable

    Write = Callable[[object, int], Iterable[str]]
    Scan = Callable[[str, int], tuple[Any, int]]


_SPACE = " \t\n\r"
# Deeper than any frame and any line of ours.
DEPTH_MAX = 32


def _refuse_number(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def _refuse_type(value: object) -> None:
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


class _Reading:
    """The attributes of a `json.JSONDecoder` that the C scanner reads."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    array_hook = None
    parse_float = float
    parse_int = int

    def __init__(self, parse_constant: Callable[[str], object]) -> None:
        self.parse_constant = parse_constant


def _c_functions() -> tuple[Write, Scan, Scan]:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    write = make_encoder(None, _refuse_type, encode_basestring_ascii, None, ":", ",", False, False, True)
    all_floats, finite = _Reading(float), _Reading(_refuse_number)
    return write, make_scanner(all_floats), make_scanner(finite)  # type: ignore[arg-type]


def _package_functions() -> tuple[Write, Scan, Scan]:
    import json

    write = json.JSONEncoder(separators=(",", ":")).encode
    finite = json.JSONDecoder(parse_constant=_refuse_number)
    return lambda value, _indent: [write(value)], json.JSONDecoder().raw_decode, finite.raw_decode


try:
    _chunks, _scan, _scan_finite = _c_functions()
except (ImportError, AttributeError, TypeError):  # an interpreter that has them otherwise, or not at all
    _chunks, _scan, _scan_finite = _package_functions()


def write(value: object) -> str:
    return "".join(_chunks(value, 0))


def read(text: str | bytes) -> Any:
    """ValueError where `text` is not one JSON value; RecursionError where it is nested too deeply."""
    return _read(text, _scan)


def read_finite(text: str | bytes) -> Any:
    """The same without NaN and Infinity, which Python would read, no other peer can, and no deadline survives."""
    return _read(text, _scan_finite)


def _read(given: str | bytes, scan: Scan) -> Any:
    text = (given if isinstance(given, str) else given.decode("utf-8")).strip(_SPACE)
    try:
        value, end = scan(text, 0)
    except StopIteration:
        raise ValueError("no JSON value") from None
    except (SystemError, ImportError):
        # The class of its error is the package's. Up to Python 3.11 the C scanner cannot raise it unless that
        # package is imported already; later versions import it at that moment, when the installation may be gone.
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError(f"more than one JSON value, at {end}")
    return value


def is_deeper(value: object, limit: int) -> bool:
    """Whether objects and lists are nested in each other more than `limit` times."""
    level: list[Any] = [value] if isinstance(value, (dict, list)) else []
    for _ in range(limit):
        inner = (node.values() if isinstance(node, dict) else node for node in level)
        level = [child for children in inner for child in children if isinstance(child, (dict, list))]
        if not level:
            return False
    return bool(level)
