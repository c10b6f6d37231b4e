"""One stop under way: the ladder climbed by timers and deaths, and its answer for everybody who asked."""

from __future__ import annotations

import time

from . import clock, points, tree
from .causes import AFTER_GRACE, AT_ONCE, ELSEWHERE, IN_GRACE
from .kernel_signals import NUMBERS
from .ladder import INTR, TREE, Ladder, Rung, rungs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .family import Family
    from .loop import Loop, Timer


class Stopping:
    def __init__(
        self,
        loop: Loop,
        family: Family,
        *,
        by: str | None,
        grace_s: float,
        climb: list[dict[str, Any]] | None,
        reap: Callable[[], None],
        interrupt: Callable[[list[tree.Process]], None] | None = None,
    ) -> None:
        self._loop = loop
        self._family = family
        self._reap = reap
        # Types what interrupts; only a terminal can.
        self._interrupt = interrupt
        self._ladder = Ladder(rungs(grace_s, climb, tty=interrupt is not None))
        self._timer: Timer | None = None
        self._sweep: tree.Sweep | None = None
        self._began = time.monotonic()
        self._found, self._found_more = tree.described_some(family.living())
        self._answer: dict[str, Any] | None = None
        self.rung: str | None = None
        # How the command was killed, once it was.
        self._killed: str | None = None
        self.by = by
        self.since = clock.now_text()

    @property
    def under_way(self) -> bool:
        return self._answer is None

    @property
    def answer(self) -> dict[str, Any] | None:
        """What was found and what survived; None while it is under way."""
        return self._answer

    def facts(self) -> dict[str, Any]:
        return {"by": self.by, "since": self.since, "stage": self.rung}

    def hurry(self) -> None:
        """Somebody who asked later wants no grace."""
        if self._ladder.rung is not None and self._ladder.rung.signal != "KILL":
            self._ladder = Ladder(rungs(0))
            self.climb()

    def climb(self) -> None:
        """Look whether the next rung is due; after a death, or when a rung's time is over."""
        if not self.under_way or self._sweep is not None:
            return
        living = self._family.living()
        rung = self._ladder.step(time.monotonic(), command_gone=self._family.command_gone, tree_gone=not living)
        if self._ladder.over:
            self._done(tree.described(living))
        elif rung is not None:
            if points.ACTIVE:
                points.hit("runner.rung")
            if rung.signal == "KILL" and not self._family.command_gone:
                self._killed = AT_ONCE if self.rung is None else AFTER_GRACE
            self.rung = str(rung)
            self._act(rung, living)

    def outcome(self, number: int | None) -> str:
        """How the command ended that was to be stopped; `number` is the signal it died of."""
        if number != NUMBERS["SIGKILL"]:
            return IN_GRACE
        return self._killed or ELSEWHERE

    def _act(self, rung: Rung, living: list[tree.Process]) -> None:
        if rung.signal == "KILL" and rung.target == TREE:
            self._sweep = tree.Sweep(self._family.living, rung.wait_s)
            self._step()
            return
        if rung.signal == INTR:
            assert self._interrupt is not None
            self._interrupt(living)
        else:
            self._family.send(rung.target, NUMBERS["SIG" + rung.signal], living)
        if rung.signal not in ("KILL", INTR):
            # A stopped process does not even see the signal before it is continued.
            self._family.send(rung.target, NUMBERS["SIGCONT"], living)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.after(max(0.0, self._ladder.until - time.monotonic()), self.climb)

    def _step(self) -> None:
        if self._sweep is None:
            return
        self._reap()
        survivors = self._sweep.step()
        self._reap()
        if survivors is None:
            self._loop.after(self._sweep.pause_s, self._step)
        else:
            self._sweep = None
            self._done(survivors)

    def _done(self, survivors: list[dict[str, Any]]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        took_s = round(time.monotonic() - self._began, 3)
        self._answer = {
            "found": self._found,
            "found_more": self._found_more,
            "survivors": survivors[: tree.NAMED_MAX],
            "survivors_more": max(0, len(survivors) - tree.NAMED_MAX),
            "rung": self.rung,
            "took_s": took_s,
        }
        self._family.somebody_died = True  # the sweep has reaped: what is left is looked at once more
