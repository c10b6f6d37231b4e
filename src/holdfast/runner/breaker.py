"""The breaker over many sessions: when all of them match at once, their owner is told of that, not of each.

Pure: times are given, in milliseconds of one monotonic clock.
"""

from __future__ import annotations

from _blake2 import blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SESSIONS_MAX = 50
FIRST_MAX_CHARS = 80
# Those that are only counted are told apart by a short hash. Beyond so many no further one is counted.
FURTHER_MAX = 512
FURTHER_CHARS = 6


class Notice:
    """That a session wants to tell of a batch of matches; `first` is the first line of it."""

    __slots__ = ("first", "offset", "session", "stream")

    def __init__(self, session: str, first: str, stream: str, offset: int) -> None:
        self.session = session
        self.first = first
        self.stream = stream
        self.offset = offset


class Breaker:
    """Closed with the times of what was admitted, or open (`until`) with a tally of what was refused."""

    __slots__ = ("admitted", "further", "sessions", "suppressed", "told", "until")

    def __init__(self) -> None:
        self.admitted: list[int] = []
        self.until: int | None = None
        # Is it on record that it tripped?
        self.told = False
        self.suppressed = 0
        self.sessions: list[dict[str, Any]] = []
        # Sessions that the tally has no room for.
        self.further: dict[str, None] = {}

    @property
    def more_sessions(self) -> int:
        return len(self.further)

    def is_due(self, now: int) -> bool:
        """Open, and its time is over: to be told of, and replaced by a new one, before anybody is admitted."""
        return self.until is not None and now >= self.until

    def admit(self, notice: Notice, now: int, *, most: int, window: int, cooldown: int) -> bool:
        if self.until is None:
            self.admitted = [at for at in self.admitted if now - window < at <= now]
            if len(self.admitted) < most:
                self.admitted.append(now)
                return True
            self.admitted = []
            self.until = now + cooldown
        self._refuse(notice)
        return False

    def tally(self) -> dict[str, Any]:
        return {"suppressed": self.suppressed, "sessions": self.sessions, "more_sessions": self.more_sessions}

    def _refuse(self, notice: Notice) -> None:
        self.suppressed += 1
        for session in self.sessions:
            if session["id"] == notice.session:
                session["matches"] += 1
                return
        if len(self.sessions) == SESSIONS_MAX:
            if len(self.further) < FURTHER_MAX:
                self.further[_short(notice.session)] = None
            return
        first = notice.first[:FIRST_MAX_CHARS]
        tallied = {"id": notice.session, "matches": 1, "first": first, "stream": notice.stream, "offset": notice.offset}
        self.sessions.append(tallied)


def _short(session: str) -> str:
    return blake2b(session.encode("utf-8", "surrogatepass"), digest_size=FURTHER_CHARS // 2).hexdigest()
