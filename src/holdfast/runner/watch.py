"""Watch patterns: tell of lines that match, in the runner, so that no host need be alive.

The matcher is a cursor into the log. It runs in short slices between reads and takes at most a quarter of the time, so
that it never slows the command: what it does not get to see before the log drops it is counted, and said.
"""

from __future__ import annotations

import os
import time

from .breaker import Notice
from .breakers import Breakers
from .echo import Echo
from .fence import Fence
from .patterns import PATTERNS_MAX, BadPattern, Pattern
from .scan import Scan
from .watchlimit import TOO_SLOW, Limiter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .life import Life
    from .lines import Line
    from .loop import Timer

_SLICE_S = 0.005
# While output comes in, the others get so many times what a slice took after it.
_REST = 3.0
_CATCH_UP_S = 2.0
_OVERRUNS_MAX = 3
LINES_MAX = 20
CHARS_MAX = 2000
CUT_MARK = " ...[cut]"


class Batch:
    """Matches of one moment, told together: lines as they are shown, and how many there were."""

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


class Watch:
    def __init__(self, life: Life, settings: dict[str, Any], *, now: Callable[[], float] = time.monotonic) -> None:
        self._life = life
        self._now = now
        self._gather_s: float = settings["gather_ms"] / 1000
        self._partial_s: float = settings["partial_ms"] / 1000
        self._breaker: dict[str, Any] = settings["breaker"]
        self._limiter = Limiter(
            interval_s=settings["interval"], strikes=settings["strikes"], lifetime=settings["lifetime"]
        )
        runtime = os.path.dirname(life.spec["endpoint"])
        self._breakers = Breakers(
            life.home,
            runtime,
            life.here["boot"],
            say=life.diary.warn,
            told=life.people_called,
            now_ms=lambda: int(self._now() * 1000),
        )
        self._fence = Fence()
        self._echo = Echo() if "tty" in life.log.ends() else None
        self._scans = {
            stream: Scan(life.log, stream, self._fence, self._found, now, self._echo) for stream in life.log.ends()
        }
        self._patterns = self._usable(settings["patterns"])
        # Patterns that asked to be told of once, and were.
        self._left: list[Pattern] = []
        self._batch: Batch | None = None
        # Was anything printed since the last slice?
        self._fresh = False
        self._slice_timer: Timer | None = None
        self._quiet_timer: Timer | None = None
        self._gather_timer: Timer | None = None
        self._release_timer: Timer | None = None
        # Between two attempts and after the last one nothing is looked at.
        self._over = False
        # A pattern took too long too often: nothing is looked at any more.
        self._gave_up = False
        self._arm()

    # What the session says.

    def begin(self, _attempt: int) -> None:
        """What descendants of the attempt before printed meanwhile is nobody's."""
        self._over = False
        self._left = []
        for stream, scan in self._scans.items():
            scan.go_to(self._life.log.end(stream))
        self._arm()

    def heard(self, stream: str, _size: int) -> None:
        if self._over or self._gave_up:
            return
        self._scans[stream].heard_at = self._now()
        self._fresh = True
        if self._slice_timer is None:
            self._slice_timer = self._life.loop.after(0, self._slice)

    def typed(self, data: bytes) -> None:
        """Written to the terminal through us: its echo is no match."""
        if self._echo is not None:
            self._echo.typed(data, self._now())

    def pause(self) -> None:
        self.finish()

    def finish(self) -> None:
        """The command is gone and its output drained: look at what is left, and tell what is due."""
        if self._over:
            return
        deadline = self._now() + _CATCH_UP_S
        while self._now() < deadline:
            done = [self._catch_up(scan, deadline) for scan in self._scans.values()]
            if all(done):
                break
        for stream, scan in self._scans.items():
            if self._gave_up:
                scan.skip(self._life.log.end(stream))
            else:
                scan.finish()
        self._judge_overruns()
        self._tell()
        self._over = True
        self._cancel(self._slice_timer, self._quiet_timer)
        self._slice_timer = self._quiet_timer = None
        self._say_unscanned()

    def add(self, settings: dict[str, Any]) -> None:
        """Look for this too, from now on. Raises BadPattern."""
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
                "unscanned": self._unscanned(),
                "unasked": self._breakers.unasked,
                "patterns": [{"id": pattern.id, "text": pattern.text} for pattern in self._armed()],
            }
        }

    def ended(self) -> dict[str, Any]:
        """For the ending of the session."""
        limiter = self._limiter
        return {"watch": {"hits": limiter.hits, "suppressed": limiter.suppressed, "unscanned": self._unscanned()}}

    def close(self) -> None:
        self._over = True
        self._cancel(self._slice_timer, self._quiet_timer, self._gather_timer, self._release_timer)

    # Looking.

    def _usable(self, patterns: list[dict[str, Any]]) -> list[Pattern]:
        """All of them, as hosts check them before; but the host may know expressions that an older Python here does
        not."""
        usable = []
        for settings in patterns:
            try:
                usable.append(Pattern(settings))
            except BadPattern as problem:
                self._life.diary.warn(f"watch pattern {settings.get('id')} is not looked for: {problem}")
        return usable

    def _armed(self) -> list[Pattern]:
        return [pattern for pattern in self._patterns if pattern not in self._left]

    def _arm(self) -> None:
        for scan in self._scans.values():
            scan.set_patterns(self._armed())

    def _catch_up(self, scan: Scan, deadline: float) -> bool:
        """One slice of it. True when that stream is done with."""
        done = self._gave_up or scan.step(min(deadline, self._now() + _SLICE_S))
        self._judge_overruns()
        return done

    def _slice(self) -> None:
        self._slice_timer = None
        busy, self._fresh = self._fresh, False
        begun = self._now()
        done = [scan.step(begun + _SLICE_S) for scan in self._scans.values()]
        self._judge_overruns()
        if self._gave_up:
            return
        if not all(done):
            rest_s = (self._now() - begun) * _REST if busy else 0.0
            self._slice_timer = self._life.loop.after(rest_s, self._slice)
        else:
            self._wait_for_quiet()

    def _wait_for_quiet(self) -> None:
        """An unfinished line may be a question: it is judged when nothing came behind it for a while."""
        waiting = [scan for scan in self._scans.values() if scan.has_partial()]
        if waiting and self._quiet_timer is None:
            quiet_at = min(scan.heard_at for scan in waiting) + self._partial_s
            self._quiet_timer = self._life.loop.after(max(0.0, quiet_at - self._now()), self._quiet)

    def _quiet(self) -> None:
        self._quiet_timer = None
        now = self._now()
        later = False
        for scan in self._scans.values():
            if scan.heard_at + self._partial_s <= now:
                scan.judge_partial()
            else:
                later = True
        self._judge_overruns()
        if later and not self._gave_up:
            self._wait_for_quiet()

    def _judge_overruns(self) -> None:
        if self._fence.overruns < _OVERRUNS_MAX or self._gave_up:
            return
        self._gave_up = True
        self._tell()
        if self._limiter.reason is None:
            self._limiter.disable(TOO_SLOW)
            self._say_disabled()

    # Telling.

    def _found(self, stream: str, pattern: Pattern, line: Line, before: list[str]) -> None:
        now = self._now()
        if self._batch is None:
            if not self._limiter.delivers(now):
                strikes = self._limiter.strikes
                if self._limiter.arrive(1, now, lambda: False).disabled is not None:
                    self._say_disabled()
                elif self._limiter.strikes != strikes:
                    self._life.write_state()
                return
            self._batch = Batch(now, stream, pattern, line)
            self._gather_timer = self._life.loop.after(self._gather_s, self._tell)
        self._batch.add(pattern, line, before)

    def _tell(self) -> None:
        self._cancel(self._gather_timer)
        batch, self._batch = self._batch, None
        if batch is None:
            return
        # By the time of the match: waiting for neighbours moves no window.
        outcome = self._limiter.arrive(batch.count, batch.at, lambda: self._admitted(batch))
        if outcome.emit:
            self._emit(batch, outcome.suppressed)
        if outcome.disabled is not None:
            self._say_disabled()

    def _emit(self, batch: Batch, suppressed: int) -> None:
        self._life.signals.emit(
            "watch",
            {
                "pattern": batch.pattern.id,
                "text": batch.pattern.text,
                "lines": batch.shown,
                **({"matched": batch.matched} if batch.with_context else {}),
                "stream": batch.stream,
                "offset": batch.line.offset,
                "more": batch.more,
                "suppressed": suppressed,
                "hits": self._limiter.hits,
                "strikes": self._limiter.strikes,
                "until": self._limiter.until_ns,
            },
        )
        once = [pattern for pattern in batch.patterns if pattern.once]
        if once:
            self._left += once
            self._arm()
        self._life.write_state()

    def _say_disabled(self) -> None:
        """From here on only the ending tells of this session; so it has to."""
        life, limiter = self._life, self._limiter
        promoted = life.now("notify") != "exit"
        if promoted:
            life.changed["notify"] = "exit"
        suppressed = limiter.take_suppressed()
        life.write_state()
        life.signals.emit(
            "watch_disabled",
            {"reason": limiter.reason, "hits": limiter.hits, "suppressed": suppressed, "promoted": promoted},
        )

    def _admitted(self, batch: Batch) -> bool:
        owner = self._life.now("owner")
        notice = Notice(self._life.spec["id"], batch.line.text, batch.stream, batch.line.offset)
        wait_s = self._breakers.admit(owner, notice, self._breaker)
        if wait_s is not None:
            self._release_after(wait_s, owner)
        return wait_s is None

    def _release_after(self, wait_s: float, owner: str | None) -> None:
        """Whoever was refused sees that the end of the refusing is told; the first one does it."""
        self._cancel(self._release_timer)
        self._release_timer = self._life.loop.after(wait_s, lambda: self._release(owner))

    def _release(self, owner: str | None) -> None:
        wait_s = self._breakers.release(owner, self._breaker)
        if wait_s is not None:
            self._release_after(wait_s, owner)

    def _unscanned(self) -> int:
        return sum(scan.unscanned for scan in self._scans.values())

    def _say_unscanned(self) -> None:
        unscanned = self._unscanned()
        if unscanned:
            self._life.diary.warn(f"{unscanned} bytes were not searched for watch patterns")

    def _cancel(self, *timers: Timer | None) -> None:
        for timer in timers:
            if timer is not None:
                timer.cancel()
