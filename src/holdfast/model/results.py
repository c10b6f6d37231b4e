"""The results of calls."""

from __future__ import annotations

from .session import EMPTY, Declared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class SessionLike(Protocol):
        @property
        def id(self) -> str: ...

        def to_json(self) -> dict[str, Any]: ...


class _Result(Declared):
    """The result of a call: attributes by name, JSON in the order of their declaration."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.to_json()}>"


class Woke(_Result):
    """Why a wait ended: `reason` is the name of the condition that held, or not_ready (its start allows no more time),
    stale (the runner died during a wait for output), lost or timeout. `cursor` is where to read on: right behind a
    match, before new output, otherwise behind all that the wait has looked at. `signal_id` is the record of the ending,
    for a caller that reports it without the queue."""

    reason: str
    cursor: str
    match: str | None = None
    signal_id: str | None = None
    session: SessionLike | None = None


class Typed(_Result):
    """The result of input: how many bytes were accepted, warnings, and, if the call waited, how the wait ended.
    `cursor` is the position before any output that the input may have caused. `written` is how many bytes the kernel
    had when the input was accepted; None while a part of it waited, for the command or for its Enter."""

    accepted: int
    parts: int = 1
    warnings: list[str] = EMPTY
    state: str | None = None
    cursor: str = "0"
    woke: Woke | None = None
    written: int | None = None


class Exported(_Result):
    """The content of a recording: its range of the log, how many bytes were not UTF-8, and the gaps."""

    format: str
    begin: int
    end: int
    invalid: int
    gaps: list[Any] = EMPTY


class Stopped(_Result):
    """The processes that a stop found, and those it left; `found_more` and `survivors_more` count those that are not
    listed. `already`: nothing of the session was alive any more."""

    id: str
    found: list[Any] = EMPTY
    found_more: int = 0
    survivors: list[Any] = EMPTY
    survivors_more: int = 0
    rung: str | None = None
    took_s: float = 0.0
    already: bool = False
    signal_id: str | None = None
    error: Exception | None = None
    session: SessionLike | None = None

    @property
    def done(self) -> bool:
        return self.error is None and not self.survivors


class Recovered(_Result):
    """Every live session by its observed state, and those that ended meanwhile."""

    live: list[SessionLike] = EMPTY
    exited: list[SessionLike] = EMPTY
    unreachable: list[SessionLike] = EMPTY
    stale: list[SessionLike] = EMPTY
    lost: list[SessionLike] = EMPTY
    quarantined: list[str] = EMPTY
    took_s: float = 0.0


class Collected(_Result):
    """What a collection removed. `swept` are leftovers (sockets, incomplete directories), `skipped` was kept."""

    removed: list[str] = EMPTY
    swept: list[str] = EMPTY
    freed_bytes: int = 0
    skipped: list[str] = EMPTY
    dry_run: bool = False
    took_s: float = 0.0


class Finding(_Result):
    """The result of one check of the doctor: `level` is ok, warning or problem."""

    check: str
    level: str
    text: str
    fix: str | None = None
    repaired: bool = False
    path: str | None = None
