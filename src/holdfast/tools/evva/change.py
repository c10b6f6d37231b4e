"""What observers of a state are told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...daemons.observers import DOMAIN, Observers
from .snapshot import moment

if TYPE_CHECKING:
    from collections.abc import Callable

    from .snapshot import DaemonSnapshot


class Change:
    """`op` is added, removed, a status, `event`, `phase:<text>` or another of the view's; ignore those you do not
    know."""

    __slots__ = ("at", "domain", "id", "op", "snapshot")

    def __init__(self, op: str, id: str, snapshot: DaemonSnapshot | None, at: str | None = None) -> None:
        self.domain = DOMAIN
        self.op = op
        self.id = id
        self.snapshot = snapshot
        self.at = moment(at) or datetime.now(UTC)

    def __repr__(self) -> str:
        return f"<Change {self.op} {self.id}>"


class Listeners:
    """The view's own list of observers, for changes of this family."""

    def __init__(self) -> None:
        self._observers = Observers()

    def add(self, callback: Callable[[Change], object]) -> Callable[[], None]:
        return self._observers.add(callback)  # type: ignore[arg-type]

    def tell(self, change: Change) -> None:
        self._observers.tell(change)  # type: ignore[arg-type]
