"""Watch patterns: signal the lines that match, with or without a living host.

The search is a cursor into the log. It runs in short slices between reads and takes at most a quarter of the time, so
that it never slows the command: what the log drops before it was searched is counted and reported.
"""

from __future__ import annotations

import re
import time

from ...core.loop import Alarm
from ...core.signalfile import CUT_MARK
from ...core.vt.text import Line, clean
from . import Feature
from .line_reader import SLICE_S, LineFollower, Slices
from .patterns import PATTERNS_MAX, BadPattern, Pattern, RegexTimeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from . import SessionPart


# While output comes in, a slice is followed by this many times its length without one.
_REST = 3.0
_CATCH_UP_S = 2.0
_OVERRUNS_MAX = 3
LINES_MAX = 20
CHARS_MAX = 2000


class MatchGroup:
    """Matches of one moment, signalled together: lines as they are shown, and how many there were."""

    def __init__(self, at: float, stream: str, pattern: Pattern, line: Line) -> None:
        self.at = at
        self.stream = stream
        self.pattern = pattern
        self.line = line
        self.count = 0
        self.more = 0
        self.shown: list[str] = []
        # Which of them matched, where others are shown for context.
        self.matched: list[int] = []
        self.with_context = False
        self.patterns: list[Pattern] = []
        self._room = CHARS_MAX

    def add(self, pattern: Pattern, line: Line, before: list[str]) -> None:
        self.count += 1
        if pattern not in self.patterns:
            self.patterns.append(pattern)
        if self.more or len(self.shown) >= LINES_MAX or self._room <= 0:
            self.more += 1
            return
        text = line.text
        if len(text) > self._room:
            if self.shown:
                self.more += 1
                return
            text = text[: self._room - len(CUT_MARK)] + CUT_MARK
        # Context never takes the room of a match.
        for context in before[-(LINES_MAX - len(self.shown) - 1) :] if len(self.shown) < LINES_MAX - 1 else []:
            if len(context) + len(text) < self._room:
                self.with_context = True
                self.shown.append(context)
                self._room -= len(context)
        self.matched.append(len(self.shown))
        self.shown.append(text)
        self._room -= len(text)


class _SearchState:
    """What the search of one stream remembers."""

    def __init__(self) -> None:
        self.patterns: list[Pattern] = []
        # Where the line begins that matched before it was finished, and whether the part before this one matched.
        self.unfinished_match_at = -1
        self.matched_part = False
        # The line that took too long, and its pattern.
        self.slow: tuple[Line, Pattern] | None = None
        # The last lines, as many as a pattern shows before a match.
        self.before: list[str] = []
        self.context = 0

    def forget(self) -> None:
        self.matched_part = False
        self.before = []

    def remember(self, texts: list[str]) -> None:
        if self.context:
            self.before = (self.before + texts)[-self.context :]

    def patterns_for(self, line: Line) -> list[Pattern]:
        """All of them, or those that are left of a line that one took too long for."""
        slow, self.slow = self.slow, None
        if slow is None or slow[0] is not line or slow[1] not in self.patterns:
            return self.patterns
        return self.patterns[self.patterns.index(slow[1]) + 1 :]


class Watch(Feature):
    def __init__(self, session: SessionPart, settings: dict[str, Any]) -> None:
        self._session = session
        self._gather_s: float = settings["gather_ms"] / 1000
        self._limiter = Limiter(
            interval_s=settings["interval"], strikes=settings["strikes"], lifetime=settings["lifetime"]
        )
        self._timeout = RegexTimeout()
        self._echo = Echo() if "tty" in session.log.ends() else None
        self._follower = LineFollower(
            session.log, self._take, timeout=self._timeout, finished_lines_only=False, skipped=self._skipped
        )
        self._slices = Slices(
            session.loop,
            self._follower,
            pause=_REST,
            quiet_s=settings["partial_ms"] / 1000,
            partial=self._take_partial,
            after=self._check_overruns,
        )
        self._searched = {stream: _SearchState() for stream in session.log.ends()}
        self._patterns = self._usable(settings["patterns"])
        # Patterns that are signalled only once, and were.
        self._spent: list[Pattern] = []
        self._group: MatchGroup | None = None
        self._gathered = Alarm(session.loop, self._signal_group)
        # Between two attempts and after the last one nothing is searched.
        self._over = False
        # A pattern took too long too often: nothing is searched any more.
        self._gave_up = False
        self._arm()

    # What the session says.

    def begin(self, attempt: int) -> None:
        """What descendants of the attempt before printed meanwhile is not watched."""
        self._over = False
        self._spent = []
        self._follower.go_to_end()
        for searched in self._searched.values():
            searched.forget()
        self._slices.open()
        self._arm()

    def on_output(self, stream: str) -> None:
        if not self._gave_up:
            self._slices.on_output(stream)

    def typed(self, data: bytes) -> None:
        """Written to the terminal through us: its echo is not a match."""
        if self._echo is not None:
            self._echo.typed(data, time.monotonic())

    def pause(self) -> None:
        self.finish()

    def finish(self) -> None:
        """The command is gone and its output drained: search what is left, and signal what is due."""
        if self._over:
            return
        deadline = time.monotonic() + _CATCH_UP_S
        while not self._gave_up and time.monotonic() < deadline and not self._follower.read(SLICE_S):
            self._check_overruns()
        self._follower.give_up()
        if not self._gave_up:
            self._follower.end()
        self._check_overruns()
        self._signal_group()
        self._over = True
        self._slices.close()
        unscanned = self._follower.unread
        if unscanned:
            self._session.runner_log.warn(f"{unscanned} bytes were not searched for watch patterns")

    def add(self, settings: dict[str, Any]) -> None:
        """Search for this too, from now on. Raises BadPattern."""
        pattern = Pattern(settings)
        if len(self._patterns) >= PATTERNS_MAX:
            raise BadPattern(f"a session has at most {PATTERNS_MAX} patterns")
        self._patterns.append(pattern)
        self._arm()

    def remove(self, id: str) -> bool:
        found = [pattern for pattern in self._patterns if pattern.id == id]
        self._patterns = [pattern for pattern in self._patterns if pattern.id != id]
        self._arm()
        return bool(found)

    def facts(self) -> dict[str, Any]:
        return {
            "watch": {
                **self._limiter.facts(),
                "unscanned": self._follower.unread,
                "patterns": [{"id": pattern.id, "text": pattern.text} for pattern in self._armed()],
            }
        }

    def ended(self) -> dict[str, Any]:
        """For the ending of the session."""
        limiter = self._limiter
        unscanned = self._follower.unread
        return {"watch": {"hits": limiter.hits, "suppressed": limiter.suppressed, "unscanned": unscanned}}

    def close(self) -> None:
        self._over = True
        self._slices.close()
        self._gathered.cancel()

    # Searching.

    def _usable(self, patterns: list[dict[str, Any]]) -> list[Pattern]:
        """All patterns, as hosts check them before; but the host may accept expressions that an older Python here does
        not."""
        usable = []
        for settings in patterns:
            try:
                usable.append(Pattern(settings))
            except BadPattern as problem:
                self._session.runner_log.warn(f"watch pattern {settings.get('id')} is not searched for: {problem}")
        return usable

    def _armed(self) -> list[Pattern]:
        return [pattern for pattern in self._patterns if pattern not in self._spent]

    def _arm(self) -> None:
        self._follower.set_patterns(self._armed())
        for stream, searched in self._searched.items():
            searched.patterns = [pattern for pattern in self._armed() if pattern.applies_to(stream)]
            searched.context = max((pattern.before for pattern in searched.patterns), default=0)

    def _skipped(self, stream: str, block: bytes | None) -> None:
        """Lines that cannot match but may be shown before others; None: bytes are missing."""
        if block is None:
            self._searched[stream].forget()
        else:
            self._searched[stream].remember(clean(block[:-1]).split("\n"))

    def _take(self, stream: str, line: Line) -> bool:
        """Search a line, or a part of one. False: a pattern took too long, and the patterns after it have the next
        slice."""
        searched, overruns = self._searched[stream], self._timeout.overruns
        if line.offset == searched.unfinished_match_at or self._search(stream, line, line_is_final=not line.segment):
            searched.matched_part = line.cut
            return True
        if self._timeout.overruns > overruns:
            return False
        searched.matched_part = False
        if not line.segment:
            searched.remember([line.text])
        return True

    def _take_partial(self, stream: str, line: Line) -> None:
        searched = self._searched[stream]
        if line.offset != searched.unfinished_match_at and self._search(stream, line, line_is_final=False):
            searched.unfinished_match_at = line.offset

    def _search(self, stream: str, line: Line, *, line_is_final: bool) -> bool:
        """The first pattern that matches wins the line."""
        searched, overruns = self._searched[stream], self._timeout.overruns
        for pattern in searched.patterns_for(line):
            if self._matches(pattern, stream, line) and not self._is_echo(pattern, stream, line, line_is_final):
                before: list[str] = []
                if pattern.before:
                    # What was shown before one match is not shown again before the next.
                    before, searched.before = searched.before[-pattern.before :], []
                self._found(stream, pattern, line, before)
                return True
            if self._timeout.overruns > overruns:
                searched.slow = line, pattern
                return False
        return False

    def _matches(self, pattern: Pattern, stream: str, line: Line) -> bool:
        matched_before = self._searched[stream].matched_part
        if pattern.regex is None:
            return pattern.matches(line, matched_before=matched_before)
        return self._timeout.matches(pattern, line, matched_before=matched_before)

    def _is_echo(self, pattern: Pattern, stream: str, line: Line, line_is_final: bool) -> bool:
        if self._echo is None:
            return False

        def matches(text: str) -> bool:
            return self._matches(pattern, stream, Line(text, line.offset, line.end))

        return self._echo.explains(line.text, time.monotonic(), matches, line_is_final=line_is_final)

    def _check_overruns(self) -> None:
        if self._timeout.overruns < _OVERRUNS_MAX or self._gave_up:
            return
        self._gave_up = True
        self._slices.close()
        self._signal_group()
        if self._limiter.reason is None:
            self._limiter.disable(TOO_SLOW)
            self._disable_and_promote_end()

    # Signalling.

    def _found(self, stream: str, pattern: Pattern, line: Line, before: list[str]) -> None:
        now = time.monotonic()
        if self._group is None:
            if not self._limiter.delivers(now):
                strikes = self._limiter.strikes
                if self._limiter.arrive(1, now).disabled is not None:
                    self._disable_and_promote_end()
                elif self._limiter.strikes != strikes:
                    self._session.write_state()
                return
            self._group = MatchGroup(now, stream, pattern, line)
            self._gathered.set(self._gather_s)
        self._group.add(pattern, line, before)

    def _signal_group(self) -> None:
        self._gathered.cancel()
        group, self._group = self._group, None
        if group is None:
            return
        # By the time of the match: waiting for neighbours does not move a window.
        outcome = self._limiter.arrive(group.count, group.at)
        if outcome.emit:
            self._emit(group, outcome.suppressed)
        if outcome.disabled is not None:
            self._disable_and_promote_end()

    def _emit(self, group: MatchGroup, suppressed: int) -> None:
        self._session.signals.emit(
            "watch",
            {
                "pattern": group.pattern.id,
                "text": group.pattern.text,
                "lines": group.shown,
                **({"matched": group.matched} if group.with_context else {}),
                "stream": group.stream,
                "offset": group.line.offset,
                "more": group.more,
                "suppressed": suppressed,
                "hits": self._limiter.hits,
                "strikes": self._limiter.strikes,
                "until": self._limiter.until_ns,
            },
        )
        once = [pattern for pattern in group.patterns if pattern.once]
        if once:
            self._spent += once
            self._arm()
        self._session.write_state()

    def _disable_and_promote_end(self) -> None:
        """From here on only the ending is signalled, so it must be: `notify` becomes `exit`."""
        session, limiter = self._session, self._limiter
        promoted = session.current("notify") != "exit"
        if promoted:
            session.changed["notify"] = "exit"
        suppressed = limiter.take_suppressed()
        session.write_state()
        session.signals.emit(
            "watch_disabled",
            {"reason": limiter.reason, "hits": limiter.hits, "suppressed": suppressed, "promoted": promoted},
        )


# How often one session may signal matches. Pure: the time is passed in, and decisions are made only at matches, so no
# timer runs.


ARMED, COOLING, STRUCK, DISABLED = "armed", "cooling", "struck", "disabled"
STRIKES, LIFETIME, TOO_SLOW = "strikes", "lifetime", "too_slow"


class Verdict:
    """The decision on a group. `emit`: it is signalled, with the number of lines that were suppressed before it."""

    __slots__ = ("disabled", "emit", "suppressed")

    def __init__(self, *, emit: bool = False, suppressed: int = 0, disabled: str | None = None) -> None:
        self.emit = emit
        self.suppressed = suppressed
        # Why watching ended with this group.
        self.disabled = disabled


class Limiter:
    def __init__(self, *, interval_s: float, strikes: int, lifetime: int) -> None:
        self._interval_s = interval_s
        self._strikes_max = strikes
        self._lifetime = lifetime
        self.state = ARMED
        self.hits = 0
        # Windows in a row in which something was dropped.
        self.strikes = 0
        # Matching lines that were not signalled, and not counted in a signal.
        self.suppressed = 0
        # The end of the window that the last delivery opened.
        self.until = 0.0
        self.reason: str | None = None

    def delivers(self, now: float) -> bool:
        """True if a match at this moment would be signalled: then it is worth waiting for its neighbours."""
        return self.state == ARMED or (self.state != DISABLED and now >= self.until)

    def arrive(self, lines: int, now: float) -> Verdict:
        """A group of this many matching lines."""
        if not self.delivers(now):
            return self._drop(lines)
        if self.state == COOLING:
            self.strikes = 0  # the window was clean
        before, self.suppressed = self.suppressed, 0
        self.hits += 1
        self.state = COOLING
        self.until = now + self._interval_s
        if self.hits >= self._lifetime:
            self.disable(LIFETIME)
        return Verdict(emit=True, suppressed=before, disabled=self.reason)

    def disable(self, reason: str) -> None:
        self.state = DISABLED
        self.reason = reason

    def take_suppressed(self) -> int:
        """Take the number of suppressed lines for a signal that is being made."""
        suppressed, self.suppressed = self.suppressed, 0
        return suppressed

    @property
    def until_ns(self) -> int | None:
        """The end of the window as signals record it, in nanoseconds of the monotonic clock; None before the first
        window."""
        return round(self.until * 1e9) if self.hits else None

    def facts(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "hits": self.hits,
            "strikes": self.strikes,
            "suppressed": self.suppressed,
            "until": self.until_ns,
            "disabled": self.reason,
        }

    def _drop(self, lines: int) -> Verdict:
        self.suppressed += lines
        if self.state == COOLING:
            self.state = STRUCK
            self.strikes += 1
            if self.strikes >= self._strikes_max:
                self.disable(STRIKES)
                return Verdict(disabled=STRIKES)
        return Verdict()


# Distinguishes the echo of typed input from what the command prints. Pure: the time is passed in. An echoed line shows
# what was typed, mostly after a prompt. So what was typed is removed from a line that matches, and the rest is searched
# again.


# A shell may take this long to show its input.
MEMORY_S = 2.0
# A paste is echoed too, but a match needs only some of its lines.
_LINES_MAX = 64
_LINE_MAX_CHARS = 4096
# Keys that are no text, and the marks around a paste.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?")
_ERASE, _KILL = "\x7f\x08", "\x15"
_AT_PROMPT = re.compile("[$#%>\u276f\u00bb\u279c\u203a\u03bb]\\s?$")


class _Typed:
    """One typed line, and when its last character came. `shown`: its echo was seen."""

    __slots__ = ("at", "shown", "text")

    def __init__(self, at: float) -> None:
        self.text = ""
        self.at = at
        self.shown = False


class Echo:
    def __init__(self) -> None:
        # The last item is the unfinished line.
        self._typed: list[_Typed] = [_Typed(0.0)]

    def typed(self, data: bytes, now: float) -> None:
        for character in _SEQUENCE.sub("", data.decode("utf-8", "replace")):
            line = self._typed[-1]
            line.at = now
            if character in "\r\n":
                if line.text:
                    self._typed.append(_Typed(now))
            elif character in _ERASE:
                line.text = line.text[:-1]
            elif character == _KILL:
                line.text = ""
            elif character.isprintable() or character == "\t":
                line.text = (line.text + character)[-_LINE_MAX_CHARS:]
        del self._typed[:-_LINES_MAX]

    def explains(self, text: str, now: float, matches: Callable[[str], bool], *, line_is_final: bool) -> bool:
        """True if this line matches only because of what was typed. What was typed is shown by one line: the next
        line that contains it is the command's answer. But a shell that got the text too early shows it again, at its
        prompt."""
        for line in self._typed:
            if not line.text or now - line.at > MEMORY_S:
                continue
            before, found, after = text.partition(line.text)
            if not found or matches(before + after):
                continue
            if line.shown and not _AT_PROMPT.search(before):
                continue
            line.shown = line.shown or line_is_final
            return True
        return False
