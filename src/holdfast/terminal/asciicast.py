"""The file format of recordings, asciicast 2 and 3: a header, then one event a line.

Version 2 tells the time since the beginning, version 3 the time since the event before. Ours are written with
microseconds, so that neither drifts.
"""

from __future__ import annotations

import json
import re

from ..errors import BadArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    # Microseconds since the beginning; `o` output, `i` input, `r` COLSxROWS, `m` marker, `x` exit status; what it says.
    Event = tuple[int, str, str]

VERSIONS = (2, 3)
ROWS_MAX, COLS_MAX = 500, 1000
# A line of a recording by somebody else: longer ones are no recording.
LINE_MAX_CHARS = 64 << 20
_EXIT_SINCE_VERSION = 3
_CENTURY_S = 36525 * 86400

# Some readers take these for the end of a line, and players show them as nothing.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")


class Header:
    """What stands before the events. `title`, `command`, `started_at` (seconds of the wall clock) may be None."""

    __slots__ = ("cols", "command", "idle_limit", "rows", "started_at", "term", "title")

    def __init__(
        self,
        rows: int,
        cols: int,
        *,
        term: str | None = None,
        started_at: int | None = None,
        command: str | None = None,
        title: str | None = None,
        idle_limit: float | None = None,
    ) -> None:
        self.rows = rows
        self.cols = cols
        self.term = term
        self.started_at = started_at
        self.command = command
        self.title = title
        self.idle_limit = idle_limit

    def to_json(self, version: int) -> dict[str, Any]:
        if version == 2:
            head: dict[str, Any] = {"version": 2, "width": self.cols, "height": self.rows}
        else:
            term = {"cols": self.cols, "rows": self.rows, "type": self.term}
            head = {"version": 3, "term": {name: value for name, value in term.items() if value is not None}}
        more = {
            "timestamp": self.started_at,
            "idle_time_limit": self.idle_limit,
            "command": self.command,
            "title": self.title,
        }
        head.update((name, value) for name, value in more.items() if value is not None)
        if version == 2 and self.term is not None:
            head["env"] = {"TERM": self.term}
        return head


def written(header: Header, events: Iterable[Event], version: int) -> Iterator[str]:
    """The lines of a file, each with its end."""
    yield _line(header.to_json(version))
    before = 0
    for at, code, data in events:
        if code == "x" and version < _EXIT_SINCE_VERSION:
            continue
        time = at if version == 2 else at - before
        yield f"[{time // 1_000_000}.{time % 1_000_000:06d}, {_line([code, data])[1:]}"
        before = at


def _line(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if not text.isascii():
        text = _UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
    return text + "\n"


def parsed(lines: Iterable[str], name: str = "FILE") -> tuple[Header, Iterator[Event]]:
    """Header and events of a recording, whoever made it. What cannot be understood is an error that names the line."""
    numbered = enumerate(lines, 1)
    first = next(numbered, (1, ""))[1]
    head = _json(first, name, 1)
    if not isinstance(head, dict) or head.get("version") not in VERSIONS:
        raise _bad(name, 1, "does not begin as an asciicast of version 2 or 3")
    return _header(head, name), _events(numbered, head["version"], name)


def _header(head: dict[str, Any], name: str) -> Header:
    term = head.get("term") if head["version"] == 3 else {"cols": head.get("width"), "rows": head.get("height")}
    env = head.get("env")
    kind = term.get("type") if isinstance(term, dict) else None
    if kind is None and isinstance(env, dict):
        kind = env.get("TERM")
    rows, cols = (term.get("rows"), term.get("cols")) if isinstance(term, dict) else (None, None)
    if not (isinstance(rows, int) and isinstance(cols, int) and _fits(rows, cols)):
        raise _bad(name, 1, f"has no size up to {ROWS_MAX} rows and {COLS_MAX} columns")
    limit, started = head.get("idle_time_limit"), head.get("timestamp")
    return Header(
        rows,
        cols,
        term=kind if isinstance(kind, str) else None,
        started_at=int(started) if isinstance(started, int | float) else None,
        command=head["command"] if isinstance(head.get("command"), str) else None,
        title=head["title"] if isinstance(head.get("title"), str) else None,
        idle_limit=limit if isinstance(limit, int | float) and limit > 0 else None,
    )


def _events(numbered: Iterable[tuple[int, str]], version: int, name: str) -> Iterator[Event]:
    now = 0
    for number, line in numbered:
        if not line.strip() or (version == 3 and line.startswith("#")):
            continue
        event = _json(line, name, number)
        if not (
            isinstance(event, list) and len(event) == 3 and isinstance(event[1], str) and isinstance(event[2], str)
        ):
            raise _bad(name, number, "is no event")
        if isinstance(event[0], bool) or not isinstance(event[0], int | float) or not 0 <= event[0] <= _CENTURY_S:
            raise _bad(name, number, "has no time")
        at = round(event[0] * 1_000_000)
        now = max(now, at) if version == 2 else now + at
        if event[1] == "r":
            size_of(event[2], name, number)
        yield now, event[1], event[2]


def size_of(data: str, name: str = "FILE", number: int = 0) -> tuple[int, int]:
    """Rows and columns of an `r` event."""
    cols, _, rows = data.partition("x")
    if cols.isdecimal() and rows.isdecimal() and len(data) < 12 and _fits(int(rows), int(cols)):
        return int(rows), int(cols)
    raise _bad(name, number, f"resizes to no size up to {ROWS_MAX} rows and {COLS_MAX} columns")


def _fits(rows: int, cols: int) -> bool:
    return 1 <= rows <= ROWS_MAX and 1 <= cols <= COLS_MAX


def _json(line: str, name: str, number: int) -> Any:
    if len(line) > LINE_MAX_CHARS:
        raise _bad(name, number, "is too long")
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise _bad(name, number, "is no JSON") from None


def _bad(name: str, number: int, why: str) -> BadArgument:
    return BadArgument(name, f"line {number} {why}", "give a recording made by `hold export` or asciinema")
