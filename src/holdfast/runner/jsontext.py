"""JSON as we write it: compact and ASCII. As we read it: one value, and no NaN, which no other peer can read.

The two C functions behind the `json` package, without the package: its classes make a forked runner write to some
forty pages that it could have shared with its launcher, and its regular expressions are a tenth of the time that a
short command line takes.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Callable

_SPACE = " \t\n\r"


def _refuse_number(word: str) -> None:
    raise ValueError(f"{word} is no number")


def _refuse_type(value: object) -> None:
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


class _Reading:
    """What `json.JSONDecoder` tells the C scanner about itself."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    array_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_refuse_number)


def _c_functions() -> tuple[Callable[[object, int], Iterable[str]], Callable[[str, int], tuple[Any, int]]]:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    write = make_encoder(None, _refuse_type, encode_basestring_ascii, None, ":", ",", False, False, True)
    return write, make_scanner(_Reading())  # type: ignore[arg-type]


def _package_functions() -> tuple[Callable[[object, int], Iterable[str]], Callable[[str, int], tuple[Any, int]]]:
    import json

    writer = json.JSONEncoder(separators=(",", ":"))
    reader = json.JSONDecoder(parse_constant=_refuse_number)
    return lambda value, _indent: [writer.encode(value)], reader.raw_decode


try:
    _chunks, _scan = _c_functions()
except (ImportError, AttributeError, TypeError):  # an interpreter that has them otherwise, or not at all
    _chunks, _scan = _package_functions()


def encode(value: object) -> str:
    return "".join(_chunks(value, 0))


def decode(text: str) -> Any:
    """ValueError where `text` is not one JSON value; RecursionError where it is nested too deeply."""
    text = text.strip(_SPACE)
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("no JSON value") from None
    except (SystemError, ImportError):
        # The class of its error is the package's. Up to Python 3.11 the scanner fails at failing where that was not
        # imported; later ones import it then, and the installation may be gone by that time.
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError(f"more than one JSON value, at {end}")
    return value
