"""From what a terminal's log and frames tell to the events of a recording: incrementally, in constant memory.

A character that was cut between two reads moves whole into the later event. Bytes that are no UTF-8 become U+FFFD and
are counted. What is missing from the log is said by a marker at its place.
"""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .asciicast import Event

# Aborts a sequence that a hole in the log left unfinished, so that it swallows nothing of what follows.
_CANCEL = "\x18"
_LABEL_MAX_CHARS = 80
# Prompt, command line accepted, command over: OSC 133. The longest that is looked for over two reads.
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


class Input(NamedTuple):
    at_ns: int
    data: bytes


class Exit(NamedTuple):
    at_ns: int
    status: int


Moment = Output | Resize | Missing | Mark | Input | Exit


class Tally:
    """What a recording could not tell as it was; complete when its last event was taken."""

    __slots__ = ("invalid", "missing")

    def __init__(self) -> None:
        self.invalid = 0
        self.missing: list[Missing] = []


def events(
    moments: Iterable[Moment], tally: Tally, *, start_ns: int | None = None, idle_limit: float | None = None
) -> Iterator[Event]:
    """Times count from `start_ns`, or else from the first moment, and never run back. `idle_limit` in seconds: no
    pause is longer."""
    clock = _Clock(start_ns, None if idle_limit is None else round(idle_limit * 1e9))
    output, typed = _Decoder(tally), _Decoder(tally)
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
            case Input(_, data):
                if text := typed.feed(data):
                    yield at, "i", text
            case Exit(_, status):
                if text := output.finish():
                    yield at, "o", text
                yield at, "x", str(status)
    if text := output.finish():
        yield clock.now, "o", text


class _Clock:
    """Times of a monotonic clock as those of the recording."""

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
            # Those that the program printed itself are not among the invalid.
            rest = self._decoder.getstate()[0]
            taken = held + data
            whole = taken[: len(taken) - len(rest)].count(b"\xef\xbf\xbd")
            self._tally.invalid += text.count("\ufffd") - whole
        return text

    def finish(self) -> str:
        return self.feed(b"", final=True)


class _Prompts:
    """Marks that shells set around prompts and commands, found also where a read cut them in two."""

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        self._begun = b""

    def feed(self, data: bytes) -> list[tuple[int, str]]:
        """Where in the data each ends, and what it says."""
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
