"""A ring at the terminals of the people who are attached somewhere in this home."""

from __future__ import annotations

from . import DELIVERED, Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..notices import Notice

    # Rings wherever a person is attached; at how many sessions.
    Ring = Callable[[str], int]


class Bell:
    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    def deliver(self, notice: Notice) -> Stroke:
        return Stroke(self._ring, notice.title)


class Stroke:
    def __init__(self, ring: Ring, text: str) -> None:
        self._ring = ring
        self._text = text

    def run(self) -> Outcome:
        """Nobody there is fine too: then there is nobody to hear it."""
        self._ring(self._text)
        return Outcome(DELIVERED)

    def abort(self) -> Outcome:
        """Whoever did not hear it by now does not answer at all."""
        return Outcome(DELIVERED)
