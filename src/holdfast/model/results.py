"""What the calls give back."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from .session import Record

    class SessionLike(Protocol):
        @property
        def id(self) -> str: ...

        def to_json(self) -> dict[str, Any]: ...


class _Result:
    """What a call gives back: attributes by name, JSON in the order of the slots."""

    __slots__: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {name: _plain(getattr(self, name)) for name in self.__slots__}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.to_json()}>"


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    to_json: Callable[[], Any] | None = getattr(value, "to_json", None)
    return to_json() if to_json else value


class Woke(_Result):
    """Why a wait ended: `reason` is exit, match, output, idle, port, ready, not_ready, stale, lost or timeout; `stale`
    where output was waited for and the runner died meanwhile. `signal_id` is the record of the ending, for whoever
    tells it in another way than from the queue."""

    __slots__ = ("reason", "cursor", "match", "signal_id", "session")

    def __init__(
        self,
        reason: str,
        *,
        cursor: str,
        match: str | None = None,
        signal_id: str | None = None,
        session: SessionLike | None = None,
    ) -> None:
        self.reason = reason
        self.cursor = cursor
        self.match = match
        self.signal_id = signal_id
        self.session = session


class Typed(_Result):
    """What became of input: how many bytes were accepted, what to know about them, and, where the call waited for
    something, what came. `cursor` stands before everything that the input may have caused."""

    __slots__ = ("accepted", "parts", "warnings", "state", "cursor", "woke")

    def __init__(
        self,
        accepted: int,
        *,
        cursor: str,
        parts: int = 1,
        state: str | None = None,
        warnings: Sequence[str] = (),
        woke: Woke | None = None,
    ) -> None:
        self.accepted = accepted
        self.parts = parts
        self.state = state
        self.warnings = list(warnings)
        self.cursor = cursor
        self.woke = woke


class Exported(_Result):
    """What a recording holds: from which offset of the log to which, how often bytes were no UTF-8, what is missing."""

    __slots__ = ("format", "begin", "end", "invalid", "gaps")

    def __init__(self, format: str, begin: int, end: int, invalid: int, gaps: Sequence[Record]) -> None:
        self.format = format
        self.begin = begin
        self.end = end
        self.invalid = invalid
        self.gaps = list(gaps)


class Stopped(_Result):
    """What a stop found and what it left; `found_more` and `survivors_more` count those that are not named. `already`
    tells that nothing of the session was alive any more."""

    __slots__ = (
        "id",
        "found",
        "found_more",
        "survivors",
        "survivors_more",
        "rung",
        "took_s",
        "already",
        "signal_id",
        "error",
        "session",
    )

    def __init__(
        self,
        id: str,
        *,
        found: Sequence[Record] = (),
        found_more: int = 0,
        survivors: Sequence[Record] = (),
        survivors_more: int = 0,
        rung: str | None = None,
        took_s: float = 0.0,
        already: bool = False,
        signal_id: str | None = None,
        error: Exception | None = None,
        session: SessionLike | None = None,
    ) -> None:
        self.id = id
        self.found = list(found)
        self.found_more = found_more
        self.survivors = list(survivors)
        self.survivors_more = survivors_more
        self.rung = rung
        self.took_s = took_s
        self.already = already
        self.signal_id = signal_id
        self.error = error
        self.session = session

    @property
    def done(self) -> bool:
        return self.error is None and not self.survivors


class Recovered(_Result):
    """Every session that is not over, by what was observed, and those that ended meanwhile."""

    __slots__ = ("live", "exited", "unreachable", "stale", "lost", "quarantined", "took_s")

    def __init__(
        self,
        *,
        live: Sequence[SessionLike] = (),
        exited: Sequence[SessionLike] = (),
        unreachable: Sequence[SessionLike] = (),
        stale: Sequence[SessionLike] = (),
        lost: Sequence[SessionLike] = (),
        quarantined: Sequence[str] = (),
        took_s: float = 0.0,
    ) -> None:
        self.live = list(live)
        self.exited = list(exited)
        self.unreachable = list(unreachable)
        self.stale = list(stale)
        self.lost = list(lost)
        self.quarantined = list(quarantined)
        self.took_s = took_s


class Collected(_Result):
    """What a collection removed. `swept` are leftovers (sockets, half directories), `skipped` what stayed."""

    __slots__ = ("removed", "swept", "freed_bytes", "skipped", "dry_run", "took_s")

    def __init__(
        self,
        *,
        removed: Sequence[str] = (),
        swept: Sequence[str] = (),
        freed_bytes: int = 0,
        skipped: Sequence[str] = (),
        dry_run: bool = False,
        took_s: float = 0.0,
    ) -> None:
        self.removed = list(removed)
        self.swept = list(swept)
        self.freed_bytes = freed_bytes
        self.skipped = list(skipped)
        self.dry_run = dry_run
        self.took_s = took_s


class Finding(_Result):
    """One thing that the doctor looked at: `level` is ok, warning or problem."""

    __slots__ = ("check", "level", "text", "fix", "repaired", "path")

    def __init__(
        self,
        check: str,
        level: str,
        text: str,
        *,
        fix: str | None = None,
        repaired: bool = False,
        path: str | None = None,
    ) -> None:
        self.check = check
        self.level = level
        self.text = text
        self.fix = fix
        self.repaired = repaired
        self.path = path
