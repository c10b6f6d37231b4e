"""A session whose lines are signals: gathered into notices, paced, counted to the last line.

The command is never slowed: a monitor is a cursor into the log. Without patterns it reads only what a notice can show,
when a notice is due, and lets the log count the rest; with patterns it reads everything, in slices.
"""

from __future__ import annotations

import time
from collections import deque

from ...core import jsontext
from ...core.loop import Alarm
from . import Feature
from .line_reader import PAUSE, SLICE_S, LineFollower, Slices
from .patterns import Pattern, RegexTimeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ...core.vt.text import Line
    from . import SessionPart

    Entry = dict[str, Any]


# How many of a monitor's lines are signalled, and when: pure, by a clock that is given.
#
# `live`: what comes within a moment is one notice. `held`: a notice costs a token and there is none; the newest lines
# are kept, older ones counted. `digest`: it has been too much for long; now and then a notice says how much, how it
# began and how it ends. Nothing is left out uncounted: of all notices the lines shown and those suppressed make up
# the count.

LIVE, HELD, DIGEST = "live", "held", "digest"

LINES_MAX = 50
CHARACTERS_MAX = 3000
# With what a notice writes before it.
LINE_CHARACTERS = 500 - len("| (stderr) ")
# As it is recorded, where one character may take twelve; a record has 16 KiB with all that goes with it.
_RECORDED_MAX = 10 << 10
_DIGEST_LAST = 5
# Set for a part that is not the last of its line; not recorded.
_GOES_ON = "goes_on"
# Tolerance for comparing clock values, which are floats.
_NOW = 1e-6


def entry(stream: str, line: Line) -> Entry:
    """A line as a notice shows it: a part of a line is marked; a cut line gives its length and where the log has all of
    it."""
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
        # When the refill of the next token began.
        self._since = 0.0

    def next_at(self, now: float) -> float:
        """When there is a token: now, or when the next one comes."""
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
        # Of the last notice: each names the level before it, because its reader may not have read the last one.
        self._last_level = LIVE
        # Of all notices.
        self.count = self.suppressed = 0
        # True if there were too many lines for long and the command is to be stopped.
        self.flooded = False
        # Since when something waits for a notice; since when every notice had to leave something out; when the last one
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
        # The first lines of each stream that are not shown.
        self._left_out: dict[str, int] = {}

    @property
    def waiting(self) -> int:
        """Lines that wait for a notice."""
        return self._waiting

    def expect(self, now: float) -> None:
        """There is something for a notice, or will be when it is looked for."""
        if self._since is not None:
            return
        self._since = now
        if self.level == DIGEST and now - self._suppressed_at >= self._calm_s - _NOW:
            self._calm_down()

    def nothing_came(self) -> None:
        """Nothing was printed after all."""
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
        """This many lines, from these offsets on, were not examined."""
        self._waiting += count
        for stream, offset in since.items():
            self._left_out.setdefault(stream, offset)

    def due(self, now: float) -> float | None:
        """When the next notice is due; None when nothing waits."""
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
        before, self._last_level = self._last_level, self.level
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


# The `by` of a stop because the command printed too much for long.
FLOOD = "flood"
# After this many searches that took too long, the pattern is given up.
_OVERRUNS_MAX = 3
# At the end it catches up for at most this long.
_CATCH_UP_S = 2.0


class Monitor(Feature):
    def __init__(self, session: SessionPart, settings: dict[str, Any]) -> None:
        self._session = session
        self._persistent: bool = settings["persistent"]
        self._include = [Pattern(pattern) for pattern in settings["include"]]
        self._exclude = [Pattern(pattern) for pattern in settings["exclude"]]
        self._timeout = RegexTimeout()
        self._too_slow: list[Pattern] = []
        self._levels = Levels(settings)
        # Without patterns nothing is searched; and a host that plays the runner has no main thread for the timer.
        timeout = self._timeout if self._include or self._exclude else None
        # With patterns for what is wanted, the rest is not looked at.
        self._follower = LineFollower(session.log, self._take, timeout=timeout, patterns=self._include or None)
        searches = self._include or self._exclude
        self._slices = Slices(session.loop, self._follower, pause=PAUSE) if searches else None
        self._alarm = Alarm(session.loop, self._signal)
        self._over = False
        self._stopped = False

    def on_output(self, stream: str) -> None:
        if self._over:
            return
        if self._slices is not None:
            self._slices.on_output(stream)
            return
        self._follower.on_output(stream)
        if not self._alarm.is_set:
            self._plan_notice()

    def pause(self) -> None:
        """The command is gone and comes again: what it left unfinished is a line."""
        self._catch_up()
        if self._levels.waiting and not self._alarm.is_set:
            self._plan_notice()

    def finish(self) -> None:
        """All that was printed is signalled before the end."""
        if self._over:
            return
        self._catch_up()
        self.close()
        self._session.signals.emit("event", self._levels.close())

    def facts(self) -> dict[str, Any]:
        return {"monitor": {**self._counts(), "level": self._levels.level, "persistent": self._persistent}}

    def ended(self) -> dict[str, Any]:
        """For the ending of the session."""
        return {"events": self._counts()}

    def close(self) -> None:
        self._over = True
        if self._slices is not None:
            self._slices.close()
        self._alarm.cancel()

    def _counts(self) -> dict[str, int]:
        counts = {"count": self._levels.count, "suppressed": self._levels.suppressed}
        # Only where every line has to be looked at can some have gone unseen.
        if self._slices is not None and self._follower.unread:
            counts["unscanned"] = self._follower.unread
        return counts

    def _take(self, stream: str, line: Line) -> None:
        if self._slices is not None and not self._is_wanted(stream, line):
            return
        self._levels.take(stream, line)
        if self._slices is not None and not self._alarm.is_set and not self._over:
            self._plan_notice()

    def _is_wanted(self, stream: str, line: Line) -> bool:
        """A line that takes too long to search is shown: showing one line too many is better than missing one."""
        if any(self._matches(pattern, stream, line) is True for pattern in self._exclude):
            return False
        return not self._include or any(self._matches(pattern, stream, line) is not False for pattern in self._include)

    def _matches(self, pattern: Pattern, stream: str, line: Line) -> bool | None:
        """None where that took too long. A pattern that does so again and again is given up."""
        if not pattern.applies_to(stream):
            return False
        if pattern in self._too_slow:
            return None
        before = self._timeout.overruns
        found = self._timeout.matches(pattern, line)
        if self._timeout.overruns == before:
            return found
        if self._timeout.overruns >= _OVERRUNS_MAX:
            self._too_slow.append(pattern)
            self._session.runner_log.warn(
                f"the monitor's pattern {pattern.text} takes too long to match: it is no longer searched for"
            )
        return None

    def _plan_notice(self) -> None:
        now = time.monotonic()
        self._levels.expect(now)
        due = self._levels.due(now)
        assert due is not None
        self._alarm.set(due - now)

    def _signal(self) -> None:
        if self._slices is None:
            self._gather()
        if not self._levels.waiting:
            self._levels.nothing_came()
            return
        self._session.signals.emit("event", self._levels.notice(time.monotonic()))
        if self._levels.flooded and not self._stopped:
            self._stopped = True
            self._session.stop(by=FLOOD)

    def _gather(self) -> None:
        """The first lines that are unread and the newest, for a moment each, and how many are between them."""
        self._follower.read(SLICE_S)
        if self._follower.behind:
            self._levels.miss(0, self._follower.jump())
            self._follower.read(_CATCH_UP_S)
        self._levels.miss(sum(self._follower.missed().values()), {})

    def _catch_up(self) -> None:
        if self._slices is None:
            self._gather()
            self._levels.miss(self._follower.end(), {})
        else:
            self._follower.read(_CATCH_UP_S)
            self._follower.give_up()
            self._follower.end()
