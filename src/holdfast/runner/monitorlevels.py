"""How much of a monitor's lines is told, and when: pure, by a clock that is given.

`live`: what comes within a moment is one notice. `held`: a notice costs a token and there is none; the newest lines are
kept, older ones counted. `digest`: it has been too much for long; now and then a notice says how much, how it began and
how it ends. Nothing is left out uncounted: of all notices the lines shown and those suppressed make up the count.
"""

from __future__ import annotations

from collections import deque

from . import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .lines import Line

    Entry = dict[str, Any]

LIVE, HELD, DIGEST = "live", "held", "digest"

LINES_MAX = 50
CHARACTERS_MAX = 3000
# With what a notice writes before it.
LINE_CHARACTERS = 500 - len("| (stderr) ")
# As it is recorded, where one character may take twelve; a record has 16 KiB with all that goes with it.
_RECORDED_MAX = 10 << 10
_DIGEST_LAST = 5
# Of a part that is not the last of its line; no part of what is recorded.
_GOES_ON = "goes_on"
# Clocks are floats: what was planned for a moment is due at it.
_NOW = 1e-6


def entry(stream: str, line: Line) -> Entry:
    """A line as a notice shows it: a part is marked, and what is cut says how long it is and where it stands whole."""
    text, marks = line.text, []
    if line.part:
        marks.append(f"part {line.part}" + (", goes on" if line.cut else ""))
    if len(text) > LINE_CHARACTERS:
        marks.append(f"{len(text)} characters, cursor {stream}:{line.offset}")
    if marks:
        mark = f" [{'; '.join(marks)}]"
        whole = len(text) + len(mark) <= LINE_CHARACTERS
        text = text + mark if whole else text[: LINE_CHARACTERS - len(mark) - 3] + "..." + mark
    return {"text": text, "stream": stream, "offset": line.offset, "part": line.part, _GOES_ON: line.cut}


class Tokens:
    def __init__(self, room: int, refill_s: float) -> None:
        self._room = room
        self._refill_s = refill_s
        self._left = room
        # When the one that is on its way set out.
        self._since = 0.0

    def next_at(self, now: float) -> float:
        """When there is one: now, or when the next comes."""
        self._refill(now)
        return now if self._left else self._since + self._refill_s

    def spend(self, now: float) -> None:
        self._refill(now)
        if self._left == self._room:
            self._since = now
        self._left = max(0, self._left - 1)

    def _refill(self, now: float) -> None:
        came = int((now - self._since + _NOW) / self._refill_s)
        self._since += came * self._refill_s
        self._left = min(self._room, self._left + came)


class Levels:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._batch_s: float = settings["batch_ms"] / 1000
        self._digest_after_s: float = settings["digest_after"]
        self._digest_every_s: float = settings["digest_every"]
        self._calm_s: float = settings["calm"]
        self._stops = settings["on_flood"] == "stop"
        self._tokens = Tokens(settings["bucket"], settings["refill_s"])
        self.level = LIVE
        # Of the last notice: each says where it comes from, for who reads it may not have read the one before.
        self._told_level = LIVE
        # Of all that was told.
        self.count = self.suppressed = 0
        # It has been too much for long, and then the command is to be stopped.
        self.flooded = False
        # Since when something waits to be told; since when every notice had to leave something out; when the last one
        # that did so was made, and the last digest.
        self._since: float | None = None
        self._flood_since: float | None = None
        self._suppressed_at = float("-inf")
        self._digest_at = float("-inf")
        self._clear()

    def _clear(self) -> None:
        self._first: tuple[str, Line] | None = None
        self._kept: deque[tuple[str, Line]] = deque()
        self._waiting = 0
        # Parts among them that are not the last of their line: a line counts once, however long it is.
        self._unfinished = 0
        # The first lines of each stream that nobody is shown.
        self._left_out: dict[str, int] = {}

    @property
    def waiting(self) -> int:
        """Lines that are not told yet."""
        return self._waiting

    def stir(self, now: float) -> None:
        """There is something to tell, or will be when it is looked for."""
        if self._since is not None:
            return
        self._since = now
        if self.level == DIGEST and now - self._suppressed_at >= self._calm_s - _NOW:
            self._calm_down()

    def rest(self) -> None:
        """There was nothing."""
        self._since = None
        if self.level == HELD:
            self.level = LIVE

    def take(self, stream: str, line: Line) -> None:
        each = stream, line
        if self._first is None:
            self._first = each
        self._kept.append(each)
        self._waiting += 1
        self._unfinished += line.cut
        if len(self._kept) > LINES_MAX:
            oldest = self._kept.popleft()
            # The very first may yet be shown, in a digest.
            if oldest is not self._first:
                self._left_out.setdefault(oldest[0], oldest[1].offset)

    def miss(self, count: int, since: dict[str, int]) -> None:
        """So many lines were not even looked at, from these offsets on."""
        self._waiting += count
        for stream, offset in since.items():
            self._left_out.setdefault(stream, offset)

    def due(self, now: float) -> float | None:
        """When what waits is told; None when nothing does."""
        if self._since is None:
            return None
        at = max(self._since + self._batch_s, now)
        if self.level == DIGEST:
            return max(at, self._digest_at + self._digest_every_s)
        token_at = self._tokens.next_at(at)
        if token_at > at + _NOW:
            self.level = HELD
        return max(at, token_at)

    def notice(self, now: float) -> dict[str, Any]:
        """What waits, as one notice."""
        self._tokens.spend(now)
        shown, left_out = self._plain()
        suppressed = self._waiting - len(shown)
        if not suppressed:
            self._flood_since = None
            if self.level == DIGEST and now - self._suppressed_at >= self._calm_s - _NOW:
                self._calm_down()
        else:
            if self._flood_since is None:
                self._flood_since = now
            if self.level != DIGEST and now - self._flood_since >= self._digest_after_s - _NOW:
                self.flooded = self._stops
                self.level = HELD if self._stops else DIGEST
            if self.level == DIGEST:
                shown, left_out = self._digest()
            self._suppressed_at = now
        fields = self._fields(shown, left_out, closing=False)
        if self.level == DIGEST:
            self._digest_at = now
        else:
            self.level = LIVE
        return fields

    def close(self) -> dict[str, Any]:
        """The last notice, also without lines. It waits for no token."""
        shown, left_out = self._plain()
        if self.level == DIGEST and self._waiting > len(shown):
            shown, left_out = self._digest()
        return self._fields(shown, left_out, closing=True)

    def _calm_down(self) -> None:
        self.level = LIVE
        self._flood_since = None

    def _fields(self, shown: list[Entry], left_out: dict[str, int], *, closing: bool) -> dict[str, Any]:
        count = self._waiting - self._unfinished
        suppressed = count - sum(not each.pop(_GOES_ON) for each in shown)
        self.count += count
        self.suppressed += suppressed
        self._since = None
        self._clear()
        before, self._told_level = self._told_level, self.level
        return {
            "lines": shown,
            "count": count,
            "suppressed": suppressed,
            "level": self.level,
            "level_before": before,
            "closing": closing,
            "cursor": ",".join(f"{stream}:{offset}" for stream, offset in left_out.items()) or None,
        }

    def _plain(self) -> tuple[list[Entry], dict[str, int]]:
        """As many of the newest as a notice holds, and from where on others are not shown."""
        shown = _fit(self._kept)
        left_out = dict(self._left_out)
        border = len(self._kept) - len(shown)
        out, newest = list(self._kept)[:border], list(self._kept)[border:]
        first = self._first
        if first is not None and not any(each is first for each in newest):
            left_out[first[0]] = first[1].offset
        for stream, line in out:
            left_out.setdefault(stream, line.offset)
        return shown, left_out

    def _digest(self) -> tuple[list[Entry], dict[str, int]]:
        """The first line and the last few."""
        first = [] if self._first is None else [self._first]
        rest = [each for each in self._kept if each is not self._first]
        left_out = dict(self._left_out)
        for stream, line in rest[:-_DIGEST_LAST]:
            left_out.setdefault(stream, line.offset)
        return [entry(stream, line) for stream, line in [*first, *rest[-_DIGEST_LAST:]]], left_out


def _fit(lines: Iterable[tuple[str, Line]]) -> list[Entry]:
    """The newest of them that have room."""
    shown: list[Entry] = []
    characters, recorded = CHARACTERS_MAX, _RECORDED_MAX
    for stream, line in reversed(list(lines)):
        each = entry(stream, line)
        characters -= len(each["text"])
        recorded -= len(jsontext.write(each))
        if characters < 0 or recorded < 0:
            break
        shown.append(each)
    return shown[::-1]
