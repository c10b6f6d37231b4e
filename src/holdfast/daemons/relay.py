"""The handle of a daemon that its host runs in its own way: the host tells what happens, here it is recorded.

What is told is heard by observers before the call returns, on the thread that tells it.
"""

from __future__ import annotations

from . import keeper as keeping
from .handle import Handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..model import Snapshot
    from .hostloop import HostLoop
    from .keeper import Keeper
    from .keptsignals import Told
    from .workers import OutsideWorker

    Record = dict[str, Any]

_OUTCOMES = {"completed": keeping.COMPLETED, "failed": keeping.FAILED, "killed": keeping.CANCELLED}


class Aside:
    """Records that are told by whoever caused them, once they are on disk; those of others go the usual way."""

    def __init__(self, usual: Told, tell: Told) -> None:
        self._usual = usual
        self._tell = tell
        self._caught: list[tuple[Record, Callable[[], None]]] | None = None

    def told(self, record: Record, wake: Callable[[], None]) -> None:
        if self._caught is None:
            self._usual(record, wake)
        else:
            self._caught.append((record, wake))

    def call(self, host: HostLoop, work: Callable[[], Any]) -> Any:
        caught: list[tuple[Record, Callable[[], None]]] = []

        def do() -> Any:
            self._caught = caught
            try:
                return work()
            finally:
                self._caught = None

        answer = host.call(do)
        for record, wake in caught:
            self._tell(record, wake)
        return answer


class Relay(Handle):
    def __init__(
        self,
        host: HostLoop,
        keeper: Keeper,
        worker: OutsideWorker,
        shot: Callable[[Record], Snapshot],
        phased: Callable[[str, Snapshot], None],
        aside: Aside,
    ) -> None:
        super().__init__(host, keeper, worker, shot, phased)
        self._outside = worker
        self._aside = aside

    def event(self, text: str, *, stream: str = "stdout", closing: bool = False) -> None:
        """One line of it, told at once."""
        lines = [] if closing and not text else [{"text": text, "stream": stream, "offset": None}]
        fields = {"lines": lines, "count": len(lines), "suppressed": 0, "level": "live", "closing": closing}
        self._ask(lambda: self._keeper.tell("event", fields))

    def runs(self) -> None:
        """It runs, or runs again: recorded and heard, in nobody's queue."""
        self._ask(lambda: self._keeper.tell("lifecycle", {"phase": "started"}, routed=False))

    def end(self, status: str, *, code: int | None = None, **facts: str | None) -> bool:
        """It has ended. False when that was told before."""

        def record() -> bool:
            ended = self._keeper.end(_OUTCOMES[status], code, **facts)
            self._outside.alive = False
            self._keeper.worker_left()
            return ended

        return bool(self._ask(record))

    def host_leaves(self, *, blocking: bool) -> None:
        """What is the host's own goes with it."""
        super().host_leaves(blocking=blocking)
        self.end("killed")

    def _ask(self, work: Callable[[], Any]) -> Any:
        return self._aside.call(self._host, work)
