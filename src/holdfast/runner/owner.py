"""A session bound to its owner's life: watched by pidfd, else looked at."""

from __future__ import annotations

import os

from . import points, tree
from .loop import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .loop import Loop, Timer

# Without pidfds the owner's life can only be asked for.
_LOOK_S = 1.0


class Owner:
    """Calls `gone` once, when the recorded owner is no more. A process that has its pid by now is not the owner."""

    def __init__(self, loop: Loop, owner: dict[str, Any], gone: Callable[[], None]) -> None:
        self._loop = loop
        self._owner = owner
        self._gone = gone
        self._pidfd: int | None = None
        self._timer: Timer | None = None
        if points.ACTIVE:
            points.hit("runner.owner_look")
        try:
            if points.off("pidfd"):
                raise AttributeError
            self._pidfd = os.pidfd_open(owner["pid"])
        except ProcessLookupError:
            gone()
            return
        except (AttributeError, OSError):
            self._look()
            return
        if tree.same(owner["pid"], owner["start"]):
            loop.watch(self._pidfd, READ, lambda _events: self._left())
        else:
            self._left()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._pidfd is not None:
            self._loop.watch(self._pidfd, 0, lambda _events: None)
            os.close(self._pidfd)
            self._pidfd = None

    def _left(self) -> None:
        self.close()
        self._gone()

    def _look(self) -> None:
        if tree.same(self._owner["pid"], self._owner["start"]):
            self._timer = self._loop.after(_LOOK_S, self._look)
        else:
            self._gone()
