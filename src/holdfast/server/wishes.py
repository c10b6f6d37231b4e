"""What a client asks for when it attaches, and with each message: the fields by their names and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .. import wire
from ..errors import BadArgument, BadRequest
from ..host import inputs
from ..runner.tty import COLS_MAX, ROWS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal

    from .dialects import Message

# A screen with more is not sent in one message.
_HISTORY_ROWS_MAX = 10_000
_OFFSET_MAX = 1 << 53
_WHAT = ("data", "b64", "keys", "paste", "submit")
# Beside these an input has an `id`.
_BESIDE = {"keys": ("delay_ms",), "paste": ("bracketed", "raw"), "submit": ("enter_delay_ms",)}
_FIELDS: dict[str, tuple[str, ...]] = {
    "resize": ("rows", "cols", "cell", "visible"),
    "focus": ("focused",),
    "observe": (),
    "detach": (),
    "ack": ("offset",),
    "ping": ("t",),
}


_QUERY = ("from", "history_rows", "lag", "rows", "cols", "visible", "role", "ticket")


class Wishes(NamedTuple):
    """The query of an attach."""

    since: Literal["screen", "start", "now"] | int
    history_rows: int | None
    lag: Literal["skip", "exact"]
    size: tuple[int, int] | None
    visible: bool


def wishes_of(query: Mapping[str, str]) -> Wishes:
    unknown = sorted(query.keys() - _QUERY)
    if unknown:
        raise BadArgument(unknown[0][:40], "is nothing that an attach is asked with", f"one of {', '.join(_QUERY)}")
    since = query.get("from", "screen")
    lag = query.get("lag", "skip")
    if lag not in ("skip", "exact"):
        raise BadArgument("lag", f"{lag[:40]!r} is not one of skip, exact")
    rows, cols = _number(query, "rows", 1, ROWS_MAX), _number(query, "cols", 1, COLS_MAX)
    if (rows is None) != (cols is None):
        raise BadArgument("rows" if rows is None else "cols", "is missing", "a size has both")
    return Wishes(
        since if since in ("screen", "start", "now") else _offset(since),  # type: ignore[arg-type]
        _number(query, "history_rows", 0, _HISTORY_ROWS_MAX),
        lag,  # type: ignore[arg-type]
        None if rows is None or cols is None else (rows, cols),
        _visible(query.get("visible", "true")),
    )


def _visible(text: str) -> bool:
    if text not in ("true", "false"):
        raise BadArgument("visible", f"{text[:40]!r} is neither true nor false")
    return text == "true"


def _offset(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 16 and int(text) < _OFFSET_MAX:
        return int(text)
    raise BadArgument("from", f"{text[:40]!r} is neither screen, start, now nor an offset")


def _number(query: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 16 and low <= int(text) <= high:
        return int(text)
    raise BadArgument(name, f"{text[:40]!r} is no whole number from {low} to {high}")


def check(message: Message) -> None:
    """A type that there is, with fields that it has. A misspelt one would be missed in silence."""
    kind = message["type"]
    if kind == "input":
        given = [name for name in _WHAT if name in message]
        if len(given) != 1:
            raise BadRequest(f"an input has exactly one of {', '.join(_WHAT)}", "send one message for each")
        known: tuple[str, ...] = ("id", given[0], *_BESIDE.get(given[0], ()))
    elif kind in _FIELDS:
        known = _FIELDS[kind]
    else:
        raise BadRequest(f"no message is called {kind[:40]!r}", f"one of input, {', '.join(_FIELDS)}")
    unknown = sorted(message.keys() - {"type", *known})
    if unknown:
        fix = f"it has {', '.join(known)}" if known else "it has none"
        raise BadRequest(f"`{kind}` has no field {unknown[0][:40]!r}", fix)


def input_of(message: Message, enter_delay_ms: int) -> bytes | list[dict[str, Any]]:
    """The bytes, or the parts that the runner encodes by the modes in force when they are written."""
    if "data" in message:
        data = message["data"]
        return data if isinstance(data, bytes) else _text(message, "data").encode("utf-8", "surrogatepass")
    if "b64" in message:
        raw = wire.from_text(message["b64"])
        if raw is None:
            raise BadArgument("b64", "is not base64 with its padding")
        return raw
    if "keys" in message:
        keys = message["keys"]
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise BadArgument("keys", "is no list of names of keys", 'such as ["C-c", "Enter"]')
        return inputs.of_keys(keys, message.get("delay_ms", 0))
    if "paste" in message:
        return inputs.of_paste(
            _text(message, "paste"), message.get("bracketed", "auto"), flag(message, "raw", default=False)
        )
    return inputs.of_submit(_text(message, "submit"), message.get("enter_delay_ms", enter_delay_ms))


def cell_of(message: Message) -> tuple[int, int] | None:
    """How many pixels a cell has, across and down."""
    cell = message.get("cell")
    if cell is None:
        return None
    if not isinstance(cell, list) or len(cell) != 2 or not all(type(each) is int for each in cell):
        raise BadArgument("cell", "is no width and height in pixels", "such as [9, 18]")
    return cell[0], cell[1]


def flag(message: Message, name: str, *, default: bool) -> bool:
    value = message.get(name, default)
    if not isinstance(value, bool):
        raise BadArgument(name, "is neither true nor false")
    return value


def whole(message: Message, name: str) -> int:
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _OFFSET_MAX:
        raise BadArgument(name, f"{str(value)[:40]!r} is no whole number")
    return value


def _text(message: Message, name: str) -> str:
    value = message[name]
    if not isinstance(value, str):
        raise BadArgument(name, "is no text")
    return value
