"""Marks of a terminal's log, as hosts read and check them: where a screen can be built from, and the state at any
offset."""

from __future__ import annotations

import os
import re

from ..core import jsontext, records
from ..core.records import TTY
from ..core.vt.colors import PARTS
from ..core.vt.cursor import COLS_MAX, ROWS_MAX
from ..core.vt.modes import KEPT_MAX as MODES_KEPT_MAX
from ..core.vt.sequences import STACK_MAX, TITLE_MAX_BYTES, URI_MAX_BYTES
from ..core.vt.tracker import Tracker
from ..core.vt.widths import label
from ..runner.terminal import marks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .log import Log


if TYPE_CHECKING:
    Mark = dict[str, Any]
    State = dict[str, Any]

# A state with everything that a program can set is far smaller; a runner keeps at most this many bytes.
LINE_MAX_BYTES = 256 << 10
MARKS_MAX = 2048


def read_marks(directory: str, having: bytes = b"") -> list[Mark]:
    """The readable marks, of lines that contain `having`: marks are derived from the log, and without them only more of
    it is replayed."""
    found: list[Mark] = []
    for line in records.lines(os.path.join(directory, "marks.jsonl"), LINE_MAX_BYTES):
        mark = read_mark(line) if having in line else None
        if mark is not None:
            found.append(mark)
    return found[-MARKS_MAX:]


def read_mark(line: bytes) -> Mark | None:
    """None for a line that is not a mark."""
    try:
        mark = jsontext.read(line)
        return mark if isinstance(mark, dict) and is_mark(mark) else None
    except (ValueError, RecursionError, LookupError, TypeError):
        return None


def is_mark(mark: Mark) -> bool:
    """True if it has the shape of a mark; its state is checked when it is used."""
    rows, cols = mark["size"]
    numbers = (mark["offset"], mark["lines"], rows, cols, mark.get("history", 0))
    flags = (isinstance(mark["alt"], bool), isinstance(mark["why"], str), isinstance(mark["state"], dict))
    in_bounds = all(type(each) is int and each >= 0 for each in numbers) and rows <= ROWS_MAX and cols <= COLS_MAX
    return in_bounds and all(flags)


def tracker_at(
    log: Log,
    size: tuple[int, int],
    at: int,
    known: list[Mark],
    resizes: list[tuple[int, int, int]],
) -> Tracker:
    """The tracker as it was at `at`, from the nearest mark on. Marks that are found on the way are added to `known`."""
    before = sorted(
        (mark for mark in known if mark["offset"] <= at), key=lambda mark: int(mark["offset"]), reverse=True
    )
    # That file may have been edited.
    states = (state for mark in before if (state := checked_state(mark["state"])) and state["offset"] == mark["offset"])
    nearest = next(states, None)
    tracker = Tracker.from_snapshot(nearest) if nearest is not None else Tracker(*size)
    stops = [(offset, rows, cols) for offset, rows, cols in resizes if tracker.offset <= offset <= at]
    for stop, rows, cols in [*stops, (at, 0, 0)]:
        for offset, block in log.blocks(TTY, tracker.offset, stop):
            if offset > tracker.offset:
                # Missing bytes are assumed to have changed nothing.
                tracker = Tracker.from_snapshot({**tracker.snapshot(), "offset": offset})
            tracker.feed(block)
        if rows:
            tracker.resize(rows, cols)
    tracker.take_replies()
    known += tracker.take_marks()
    return tracker


def plan_at(log: Log, tracker: Tracker, known: list[Mark], history_rows: int) -> dict[str, Any]:
    newest = tracker.last_clear
    plan = marks.plan(
        [*known, newest] if newest is not None else known,
        at=tracker.ground,
        lines=tracker.lines,
        history_rows=history_rows,
        oldest=log.dropped_before().get(TTY, 0),
        alt_entry=tracker.alt_entry,
    )
    for part in plan["ranges"]:
        if part["state"] is not None:
            part["state"] = checked_state(part["state"])
            plan["exact"] = plan["exact"] and part["state"] is not None
    return plan


# The check of a tracker's snapshot that another process wrote (the remote end of a place, the command itself). Texts
# become what the labels of a program are: bounded, on one line, without a control character. So no part of it can
# become a sequence when it is written to a terminal.


_COUNT_MAX = 1 << 62
_MODE_MAX = 99999
_MODES_MAX = 256
_KITTY_MAX = 31
_SGR = re.compile(r"[0-9]{1,3}(?:[:;][0-9]{0,3}){0,6}")
_CHARSET = re.compile(r"-?[ -/]?[0-~]")
_COLOR = re.compile(r"rgb:[0-9a-fA-F]{1,4}/[0-9a-fA-F]{1,4}/[0-9a-fA-F]{1,4}")
_UNKNOWN_MODE = re.compile(r"\??[0-9]{1,5}")
_ZONES = (None, "prompt", "input", "output")


def checked_state(snapshot: object) -> State | None:
    """The same snapshot, safe to use and show; None if it is not one."""
    try:
        return _state(_dict(snapshot))
    except (KeyError, TypeError, ValueError):
        return None


def _state(state: State) -> State:
    rows, cols = size = [
        _number(each, 1, most) for each, most in zip(_list(state["size"], 2), (ROWS_MAX, COLS_MAX), strict=True)
    ]
    edges = (rows - 1, rows - 1, cols - 1, cols - 1)
    alt_entry = state["alt_entry"]
    saved = [None if each is None else _saved(_dict(each)) for each in _list(state["saved"], 2)]
    return {
        **{name: _number(state[name], 0, _COUNT_MAX) for name in ("offset", "lines", "history_start")},
        "size": size,
        "row": _number(state["row"], 0, rows - 1),
        "col": _number(state["col"], 0, cols - 1),
        "pending_wrap": _flag(state["pending_wrap"]),
        "pen": _pen(state["pen"]),
        "protected": _number(state["protected"], 0, 2),
        "margins": [_number(each, 0, most) for each, most in zip(_list(state["margins"], 4), edges, strict=True)],
        "tabs": None
        if state["tabs"] is None
        else [_number(each, 0, COLS_MAX) for each in _upto(state["tabs"], COLS_MAX)],
        "charsets": [_matching(_CHARSET, each) for each in _list(state["charsets"], 4)],
        "shift": _number(state["shift"], 0, 3),
        "single_shift": _number(state["single_shift"], 0, 3),
        "last": _text(state["last"], 4)[:1],
        "saved": saved,
        "shape": _number(state["shape"], 0, 6),
        "alt": _flag(state["alt"]),
        "alt_entry": None if alt_entry is None else _number(alt_entry, 0, _COUNT_MAX),
        "alt_clean": _flag(state["alt_clean"]),
        "modes": _modes(_dict(state["modes"])),
        "keys": _keys(_dict(state["keys"])),
        "colors": _colors(_dict(state["colors"])),
        "labels": _labels(_dict(state["labels"])),
    }


def _saved(saved: State) -> State:
    return {
        "row": _number(saved["row"], 0, ROWS_MAX),
        "col": _number(saved["col"], 0, COLS_MAX),
        "pending_wrap": _flag(saved["pending_wrap"]),
        "origin": _flag(saved["origin"]),
        "pen": _pen(saved["pen"]),
        "protected": _number(saved["protected"], 0, 2),
        "charsets": [_matching(_CHARSET, each) for each in _list(saved.get("charsets", ["B"] * 4), 4)],
        "shift": _number(saved["shift"], 0, 3),
    }


def _pen(pen: object) -> dict[str, str]:
    return {part: _matching(_SGR, value) for part, value in _dict(pen).items() if part in PARTS}


def _modes(modes: State) -> State:
    unknown = list(_dict(modes["unknown"]).items())[:MODES_KEPT_MAX]
    return {
        "dec": [_number(each, 0, _MODE_MAX) for each in _upto(modes["dec"], _MODES_MAX)],
        "ansi": [_number(each, 0, _MODE_MAX) for each in _upto(modes["ansi"], _MODES_MAX)],
        "unknown": {_matching(_UNKNOWN_MODE, name): _flag(on) for name, on in unknown},
        "saved": [[_number(number, 0, _MODE_MAX), _flag(on)] for number, on in _upto(modes["saved"], _MODES_MAX)],
    }


def _keys(keys: State) -> State:
    stacks = [
        [_number(flags, 0, _KITTY_MAX) for flags in _upto(stack, STACK_MAX + 1)] for stack in _list(keys["kitty"], 2)
    ]
    if not all(stacks):
        raise ValueError("an empty stack")
    return {"modify_other": _number(keys["modify_other"], 0, 3), "kitty": stacks}


def _colors(colors: State) -> State:
    named = {name: colors[name] for name in ("foreground", "background", "cursor")}
    palette = list(_dict(colors["palette"]).items())[:256]
    return {
        **{name: None if color is None else _matching(_COLOR, color) for name, color in named.items()},
        "palette": {str(_number(int(index), 0, 255)): _matching(_COLOR, color) for index, color in palette},
    }


def _labels(labels: State) -> State:
    code, progress, link = labels["last_exit_code"], labels["progress"], labels["link"]
    if labels["prompt_zone"] not in _ZONES:
        raise ValueError("an unknown zone")
    stack = [_list(pushed, 2) for pushed in _upto(labels["title_stack"], STACK_MAX)]
    return {
        "title": _text(labels["title"], TITLE_MAX_BYTES),
        "icon": _text(labels["icon"], TITLE_MAX_BYTES),
        "title_stack": [
            [None if each is None else _text(each, TITLE_MAX_BYTES) for each in pushed] for pushed in stack
        ],
        "cwd": None if labels["cwd"] is None else _text(labels["cwd"], URI_MAX_BYTES),
        "link": None if link is None else [_parameters(_list(link, 2)[0]), _text(link[1], URI_MAX_BYTES)],
        "progress": None
        if progress is None
        else [_number(n, 0, most) for n, most in zip(_list(progress, 2), (4, 100), strict=True)],
        "pointer": None if labels["pointer"] is None else _text(labels["pointer"], TITLE_MAX_BYTES),
        "prompt_zone": labels["prompt_zone"],
        "last_exit_code": None if code is None else _number(code, -_COUNT_MAX, _COUNT_MAX),
        "bells": _number(labels["bells"], 0, _COUNT_MAX),
    }


def _parameters(value: object) -> str:
    """The parameters of a link: a semicolon would end them."""
    return _text(value, TITLE_MAX_BYTES).replace(";", " ")


def _text(value: object, max_bytes: int) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return label(value[:max_bytes].encode("utf-8", "ignore"), max_bytes)


def _number(value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError("not a number in range")
    return value


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise TypeError("not a flag")
    return value


def _matching(pattern: re.Pattern[str], value: object) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ValueError("not in the expected form")
    return value


def _dict(value: object) -> State:
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return value


def _list(value: object, length: int) -> list[Any]:
    if not isinstance(value, (list, tuple)) or len(value) != length:
        raise ValueError("not a list of the right length")
    return list(value)


def _upto(value: object, most: int) -> list[Any]:
    if not isinstance(value, (list, tuple)) or len(value) > most:
        raise ValueError("too long a list")
    return list(value)
