"""Recordings: the events of a terminal's log, and the asciicast format.

A character that was cut between two reads is in the later event. Invalid UTF-8 becomes U+FFFD and is counted. Missing
bytes of the log become a marker.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    # Microseconds since the beginning; `o` output, `i` input, `r` COLSxROWS, `m` marker, `x` exit status; the text.
    Event = tuple[int, str, str]


# From the log and frames of a terminal to the events of a recording: incrementally, in constant memory.


# Aborts a sequence that a hole in the log left unfinished, so that it swallows nothing of what follows.
_CANCEL = "\x18"
_LABEL_MAX_CHARS = 80
# OSC 133: prompt, command line accepted, command ended. Longer ones are not found across two reads.
_PROMPT_MAX_BYTES = 4096
_PROMPT = re.compile(rb"(?:\x1b\]|\xc2\x9d)133;([ACD])((?:;[^\x07\x18\x1a\x1b\xc2]*)?)(?:\x07|\x1b\\|\xc2\x9c)")
_PROMPT_BEGUN = re.compile(
    rb"(?:\x1b|\xc2|(?:\x1b\]|\xc2\x9d)(?:1(?:3(?:3(?:;(?:[ACD](?:;[^\x07\x18\x1a\x1b\xc2]*)?[\x1b\xc2]?)?)?)?)?)?)\Z"
)


class Output(NamedTuple):
    at_ns: int
    data: bytes


class Resize(NamedTuple):
    at_ns: int
    rows: int
    cols: int


class Missing(NamedTuple):
    """Bytes that are not in the log."""

    at_ns: int
    start: int
    stop: int
    reason: str


class Mark(NamedTuple):
    at_ns: int
    label: str


class Exit(NamedTuple):
    at_ns: int
    status: int


Moment = Output | Resize | Missing | Mark | Exit


class Tally:
    """What a recording could not reproduce. Complete when its last event was taken."""

    __slots__ = ("invalid", "missing")

    def __init__(self) -> None:
        self.invalid = 0
        self.missing: list[Missing] = []


def events(
    moments: Iterable[Moment], tally: Tally, *, start_ns: int | None = None, idle_limit: float | None = None
) -> Iterator[Event]:
    """Times count from `start_ns`, or else from the first moment, and never decrease. No pause is longer than
    `idle_limit` seconds."""
    clock = _Clock(start_ns, None if idle_limit is None else round(idle_limit * 1e9))
    output = _Decoder(tally)
    prompts = _Prompts()
    printed = False
    for moment in moments:
        at = clock.microseconds(moment.at_ns)
        match moment:
            case Output(_, data):
                printed = True
                begin = 0
                for end, label in prompts.feed(data):
                    if text := output.feed(data[begin:end]):
                        yield at, "o", text
                    yield at, "m", label
                    begin = end
                if text := output.feed(data[begin:]):
                    yield at, "o", text
            case Resize(_, rows, cols):
                yield at, "r", f"{cols}x{rows}"
            case Missing(_, start, stop, reason):
                tally.missing.append(moment)
                prompts = _Prompts()
                rest = output.finish() + _CANCEL if printed else ""
                if rest:
                    yield at, "o", rest
                yield at, "m", f"{stop - start} bytes from {start} on are not there: {reason}"
            case Mark(_, label):
                yield at, "m", " ".join(label.split())[:_LABEL_MAX_CHARS]
            case Exit(_, status):
                if text := output.finish():
                    yield at, "o", text
                yield at, "x", str(status)
    if text := output.finish():
        yield clock.now, "o", text


class _Clock:
    """Times of a monotonic clock to times of the recording."""

    __slots__ = ("_before", "_limit", "_passed")

    def __init__(self, start_ns: int | None, limit_ns: int | None) -> None:
        self._limit = limit_ns
        self._before = start_ns
        self._passed = 0

    @property
    def now(self) -> int:
        return self._passed // 1000

    def microseconds(self, at_ns: int) -> int:
        if self._before is not None and at_ns > self._before:
            pause = at_ns - self._before
            self._passed += pause if self._limit is None else min(pause, self._limit)
        self._before = at_ns if self._before is None else max(at_ns, self._before)
        return self.now


class _Decoder:
    __slots__ = ("_decoder", "_tally")

    def __init__(self, tally: Tally) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tally = tally

    def feed(self, data: bytes, *, final: bool = False) -> str:
        held = self._decoder.getstate()[0]
        text = self._decoder.decode(data, final)
        if "\ufffd" in text:
            # A U+FFFD that the program printed itself is valid.
            rest = self._decoder.getstate()[0]
            taken = held + data
            whole = taken[: len(taken) - len(rest)].count(b"\xef\xbf\xbd")
            self._tally.invalid += text.count("\ufffd") - whole
        return text

    def finish(self) -> str:
        return self.feed(b"", final=True)


class _Prompts:
    """Marks that shells set around prompts and commands, also found where a read cut them in two."""

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        self._begun = b""

    def feed(self, data: bytes) -> list[tuple[int, str]]:
        """The index in the data after each mark, and its label."""
        before = len(self._begun)
        if not before and b"\x1b" not in data and b"\xc2" not in data:
            return []
        data = self._begun + data
        found = []
        end = 0
        for match in _PROMPT.finditer(data):
            end = match.end()
            found.append((end - before, _label(match.group(1), match.group(2))))
        tail = _PROMPT_BEGUN.search(data, max(end, len(data) - _PROMPT_MAX_BYTES))
        self._begun = tail.group() if tail is not None else b""
        return found


def _label(kind: bytes, rest: bytes) -> str:
    if kind == b"A":
        return "prompt"
    if kind == b"C":
        return "output"
    code = rest[1:].partition(b";")[0]
    return f"exit {int(code)}" if code.isdigit() and len(code) < 6 else "end"


# The file format of recordings, asciicast 2 and 3: a header, then one event a line.
#
# Version 2 has the time since the beginning, version 3 the time since the previous event. Both are written with
# microseconds, so that neither drifts.


_EXIT_SINCE_VERSION = 3

# Some readers take these for the end of a line, and players do not show them.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")


class Header:
    """The header of a file. `title`, `command` and `started_at` (seconds of the wall clock) may be None."""

    __slots__ = ("cols", "command", "rows", "started_at", "term", "title")

    def __init__(
        self,
        rows: int,
        cols: int,
        *,
        term: str | None = None,
        started_at: int | None = None,
        command: str | None = None,
        title: str | None = None,
    ) -> None:
        self.rows = rows
        self.cols = cols
        self.term = term
        self.started_at = started_at
        self.command = command
        self.title = title

    def to_json(self, version: int) -> dict[str, Any]:
        if version == 2:
            head: dict[str, Any] = {"version": 2, "width": self.cols, "height": self.rows}
        else:
            term = {"cols": self.cols, "rows": self.rows, "type": self.term}
            head = {"version": 3, "term": {name: value for name, value in term.items() if value is not None}}
        more = {
            "timestamp": self.started_at,
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
