"""The handle of a daemon that its host runs in its own way: the host tells what happens, here it is recorded.

What is told is heard by observers before the call returns, on the thread that tells it.
"""

from __future__ import annotations

from .attempt import ToldEnd
from .handle import Handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..model import Snapshot
    from .hostloop import HostLoop
    from .keeper import Keeper
    from .keptsignals import Told
    from .workers import OutsideWorker

    Record = dict[str, Any]


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

    def call(self, host: HostLoop, work: Callable[[], Any], *, tell: bool = True) -> Any:
        caught: list[tuple[Record, Callable[[], None]]] = []

        def do() -> Any:
            self._caught = caught
            try:
                return work()
            finally:
                self._caught = None

        answer = host.call(do)
        for record, wake in caught if tell else ():
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
        *,
        told: bool,
    ) -> None:
        super().__init__(host, keeper, worker, shot, phased)
        self._outside = worker
        self._aside = aside
        self._told = told

    def event(
        self,
        text: str,
        *,
        stream: str = "stdout",
        offset: int | None = None,
        suppressed: int = 0,
        cursor: str | None = None,
        closing: bool = False,
        facts: Mapping[str, object] | None = None,
    ) -> bool:
        """One line of it, told at once; before it `suppressed` others were left out, from `cursor` on. `facts` are what
        its snapshot says from now on. False when it has ended."""
        lines = [] if (closing or suppressed) and not text else [{"text": text, "stream": stream, "offset": offset}]
        fields = {"lines": lines, "count": len(lines) + suppressed, "suppressed": suppressed, "level": "live"}
        return self.notice("event", {**fields, "closing": closing, "cursor": cursor}, facts)

    def notice(self, variant: str, fields: dict[str, Any], facts: Mapping[str, object] | None = None) -> bool:
        """Something else that its owner should hear of."""
        return bool(self._ask(lambda: self._keeper.tell(variant, fields, facts=facts)))

    def runs(self, phase: str = "running", facts: Mapping[str, object] | None = None) -> bool:
        """It runs, or runs again: recorded and heard, in nobody's queue."""
        return bool(self._ask(lambda: self._keeper.tell("lifecycle", {"phase": phase}, routed=False, facts=facts)))

    def end(
        self,
        status: str,
        *,
        code: int | None = None,
        signal: str | None = None,
        cause: str | None = None,
        survivors: int = 0,
        asked_by: str | None = None,
        facts: Mapping[str, object] | None = None,
    ) -> bool:
        """It has ended; `asked_by` had asked for that before. False when it was told before."""
        told = ToldEnd(status, code, signal, cause, survivors)

        def record() -> bool:
            if asked_by is not None:
                self._keeper.ending.blame("stop", asked_by)
            ended = self._keeper.end_as(told, facts)
            self._leave()
            return ended

        return bool(self._ask(record))

    def host_leaves(self, *, blocking: bool) -> None:
        """What is the host's own goes with it; of what was never said to run, no end is told."""
        if self._told:
            super().host_leaves(blocking=blocking)
            self.end("killed")
            return

        def record() -> None:
            self._keeper.withdraw()
            self._leave()

        self._aside.call(self._host, record, tell=False)

    def _leave(self) -> None:
        self._outside.alive = False
        self._keeper.worker_left()

    def _ask(self, work: Callable[[], Any]) -> Any:
        return self._aside.call(self._host, work)
