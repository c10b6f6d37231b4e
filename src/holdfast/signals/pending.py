"""What a consumer is told about its queue, and what a claim took from it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..index.pointers import Pointer


class Pending(int):
    """How many signals are due now. `oldest` is the id of the first and `oldest_at` its time; `next_due` is when the
    next of those that are backed off or held by others may come, on the monotonic clock in seconds."""

    oldest: str | None
    oldest_at: str | None
    next_due: float | None

    @staticmethod
    def of(count: int, oldest: Pointer | None, next_due_ns: int | None) -> Pending:
        made = Pending(count)
        made.oldest = None if oldest is None else oldest.id
        made.oldest_at = None if oldest is None else oldest.at
        made.next_due = None if next_due_ns is None else next_due_ns / 1e9
        return made


class Claimed:
    """What one claim took: pointers with how often each was delivered; what is left; what was parked by the way."""

    __slots__ = ("parked", "remaining", "taken")

    def __init__(self) -> None:
        self.taken: list[tuple[Pointer, int]] = []
        self.remaining = 0
        self.parked: list[str] = []
