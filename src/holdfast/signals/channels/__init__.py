"""Ways to a person. Each takes one notice and says what became of it; it may block, and is cut off by `abort`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ..notices import Notice

    class Delivery(Protocol):
        """One notice on its way."""

        def run(self) -> Outcome:
            """Deliver it, in a thread of its own."""
            ...

        def abort(self) -> Outcome:
            """Its time is over, whether or not it has begun; called from another thread. What is to be made of it."""
            ...

    class Channel(Protocol):
        def deliver(self, notice: Notice) -> Delivery: ...


DELIVERED = "delivered"
AGAIN = "again"
FAILED = "failed"
# The channel itself is over: whoever is at the other end wants nothing more.
GONE = "gone"


class Outcome:
    """`why` is for people; `after_s` is how long the other side wants to be left alone."""

    __slots__ = ("after_s", "kind", "why")

    def __init__(self, kind: str, why: str = "", after_s: float | None = None) -> None:
        self.kind = kind
        self.why = why
        self.after_s = after_s

    def __repr__(self) -> str:
        return f"<{self.kind}{': ' + self.why if self.why else ''}>"
