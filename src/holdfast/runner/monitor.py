"""A session whose lines are signals: gathered into notices, paced, counted to the last line.

The command is never slowed: a monitor is a cursor into the log. Without patterns it reads only what a notice can show,
when a notice is due, and lets the log count the rest; with patterns it reads everything, in slices.
"""

from __future__ import annotations

import time

from .fence import Fence
from .following import SLICE_S, Following, Slices
from .monitorlevels import Levels
from .patterns import Pattern
from .sieve import Sieve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .life import Life
    from .lines import Line
    from .loop import Timer

# Who is named as the one who stopped a command that printed too much for long.
FLOOD = "flood"
# So many searches may take too long before the last pattern that did is given up.
_OVERRUNS_MAX = 3
# At the end it catches up for so long.
_CATCH_UP_S = 2.0


class Monitor:
    def __init__(self, life: Life, settings: dict[str, Any]) -> None:
        self._life = life
        self._persistent: bool = settings["persistent"]
        self._include = [Pattern(pattern) for pattern in settings["include"]]
        self._exclude = [Pattern(pattern) for pattern in settings["exclude"]]
        self._fence = Fence()
        self._too_slow: list[Pattern] = []
        self._levels = Levels(settings)
        # Whoever names what is wanted need not look at the rest.
        sieve = Sieve(self._include) if self._include else None
        # Without patterns nothing is searched; and a host that plays the runner has no main thread for the timer.
        fence = self._fence if self._include or self._exclude else None
        self._following = Following(life.log, self._take, fence=fence, sieve=sieve)
        self._slices = Slices(life.loop, self._following) if self._include or self._exclude else None
        self._timer: Timer | None = None
        self._over = False
        self._stopped = False

    def heard(self, stream: str, size: int) -> None:
        if self._over:
            return
        if self._slices is not None:
            self._slices.heard(stream, size)
            return
        self._following.heard(stream, size)
        if self._timer is None:
            self._stir()

    def begin(self, _attempt: int) -> None:
        pass

    def pause(self) -> None:
        """The command is gone and comes again: what it left unfinished is a line."""
        self._catch_up()
        if self._levels.waiting and self._timer is None:
            self._stir()

    def finish(self) -> None:
        """All that was printed is told before the end is."""
        if self._over:
            return
        self._catch_up()
        self.close()
        self._life.signals.emit("event", self._levels.close())

    def facts(self) -> dict[str, Any]:
        return {"monitor": {**self._counts(), "level": self._levels.level, "persistent": self._persistent}}

    def ended(self) -> dict[str, Any]:
        """What the ending says of it."""
        return {"events": self._counts()}

    def close(self) -> None:
        self._over = True
        if self._slices is not None:
            self._slices.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _counts(self) -> dict[str, int]:
        counts = {"count": self._levels.count, "suppressed": self._levels.suppressed}
        # Only where every line has to be looked at can some have gone unseen.
        if self._slices is not None and self._following.unread:
            counts["unscanned"] = self._following.unread
        return counts

    def _take(self, stream: str, line: Line) -> None:
        if self._slices is not None and not self._is_wanted(stream, line):
            return
        self._levels.take(stream, line)
        if self._slices is not None and self._timer is None and not self._over:
            self._stir()

    def _is_wanted(self, stream: str, line: Line) -> bool:
        """What takes too long to be told is shown: better a line too many than one too few."""
        if any(self._matches(pattern, stream, line) is True for pattern in self._exclude):
            return False
        return not self._include or any(self._matches(pattern, stream, line) is not False for pattern in self._include)

    def _matches(self, pattern: Pattern, stream: str, line: Line) -> bool | None:
        """None where that took too long. A pattern that does so again and again is given up."""
        if not pattern.hears(stream):
            return False
        if pattern in self._too_slow:
            return None
        before = self._fence.overruns
        found = self._fence.matches(pattern, line)
        if self._fence.overruns == before:
            return found
        if self._fence.overruns >= _OVERRUNS_MAX:
            self._too_slow.append(pattern)
            self._life.diary.warn(f"the monitor's pattern {pattern.text} takes too long: it is not looked for any more")
        return None

    def _stir(self) -> None:
        now = time.monotonic()
        self._levels.stir(now)
        due = self._levels.due(now)
        assert due is not None
        self._timer = self._life.loop.after(due - now, self._tell)

    def _tell(self) -> None:
        self._timer = None
        if self._slices is None:
            self._gather()
        if not self._levels.waiting:
            self._levels.rest()
            return
        self._life.signals.emit("event", self._levels.notice(time.monotonic()))
        if self._levels.flooded and not self._stopped:
            self._stopped = True
            self._life.stop(by=FLOOD, grace_s=None, climb=None)

    def _gather(self) -> None:
        """The first lines that are unread and the newest, for a moment each, and how many are between them."""
        self._following.read(SLICE_S)
        if self._following.behind:
            self._levels.miss(0, self._following.jump())
            self._following.read(_CATCH_UP_S)
        self._levels.miss(sum(self._following.missed().values()), {})

    def _catch_up(self) -> None:
        if self._slices is None:
            self._gather()
            self._levels.miss(self._following.end(), {})
        else:
            self._following.read(_CATCH_UP_S)
            self._following.give_up()
            self._following.end()
