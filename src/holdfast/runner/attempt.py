"""One run of the command, from its spawn to the judgement of its end. A restarting session has several."""

from __future__ import annotations

import time

from . import clock, points, telling
from .causes import LIMIT
from .ending import Ending
from .family import Family
from .stdin import ENDED
from .stopping import Stopping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .life import Life
    from .loop import Timer

# After the exit: buffered output is read, then silence this long ends the drain, and this much in all.
_DRAIN_QUIET_S = 0.25
_DRAIN_S = 2.0


class Attempt:
    """Calls `life.attempt_over` once, when the command is gone and its output drained."""

    def __init__(self, life: Life, number: int) -> None:
        self._life = life
        self.number = number
        self.family = Family(life.reserve)
        self.ending = Ending(
            life.loop,
            life.directory,
            life.log,
            life.diary,
            life.reserve,
            facts=self._exit_facts,
            settled=life.settle_rest,
        )
        # On the wall clock, for people.
        self.started_ns: int | None = None
        self.began = time.monotonic()
        # When the command was gone; how long the session goes on without one is no part of its time.
        self.left: float | None = None
        self.is_over = False
        self._stopping: Stopping | None = None
        self._drain_until = 0.0
        self._drain_timer: Timer | None = None

    @property
    def started_at(self) -> str | None:
        return None if self.started_ns is None else clock.rfc3339(self.started_ns)

    # Stopping.

    @property
    def stopping(self) -> dict[str, Any] | None:
        return None if self._stopping is None else self._stopping.facts()

    @property
    def stop_under_way(self) -> bool:
        return self._stopping is not None and self._stopping.under_way

    @property
    def stop_answer(self) -> dict[str, Any] | None:
        return None if self._stopping is None else self._stopping.answer

    def stop_outcome(self, number: int | None) -> str | None:
        """How the command ended, where somebody asked for it and we saw to it."""
        return None if self._stopping is None else self._stopping.outcome(number)

    def climb_down(self, by: str | None, grace_s: float | None, climb: list[dict[str, Any]] | None) -> None:
        """Start the ladder, or join the one under way: whoever asks later gets the same answer. Asking for no grace
        hurries it."""
        spec = self._life.spec
        grace = spec["grace"] if grace_s is None else grace_s
        if self._stopping is not None and self._stopping.under_way:
            if grace == 0:
                self._stopping.hurry()
            return
        if climb is None and grace_s != 0:
            climb = spec["stop_ladder"]  # but who asks for no grace at all wants it gone
        terminal = self._life.terminal
        interrupt = None if terminal is None else terminal.interrupt
        self._stopping = Stopping(
            self._life.loop, self.family, by=by, grace_s=grace, climb=climb, reap=self.reap, interrupt=interrupt
        )
        self._stopping.climb()

    # Ending.

    def reap(self) -> None:
        if self.family.reap():
            self._command_left()

    def turn(self) -> None:
        """Ladders are climbed and the end is noticed."""
        if self.family.somebody_died and self._stopping is not None:
            self._stopping.climb()
        if not self.is_over and self.family.command_gone and not self._draining:
            self._finish()

    def heard(self) -> None:
        if self.family.command_gone and not self.is_over:
            self._drain_quietly()

    def _command_left(self) -> None:
        if points.ACTIVE:
            points.hit("runner.reaped")
        life = self._life
        self.left = time.monotonic()
        self.ending.at = clock.now_text()
        late = life.deadlines.overdue()
        if late is not None:
            self.ending.blame(late, LIMIT)
        life.deadlines.command_left()
        if life.terminal is None:
            life.stdin.abandon(ENDED)
        else:
            life.terminal.command_left(may_come_again=life.restarts is not None)
        self._drain_until = time.monotonic() + _DRAIN_S
        life.outputs.read_buffered()
        if life.outputs.are_open or self.stop_under_way:
            self._drain_quietly()

    @property
    def _draining(self) -> bool:
        return self._drain_timer is not None and (self._life.outputs.are_open or self.stop_under_way)

    def _drain_quietly(self) -> None:
        """Somebody still holds a pipe: give its output a moment of silence before the end is recorded. Or the rest of
        the tree is being ended: give it a moment to go, so that the record need not name it."""
        self._cancel_drain()
        wait_s = min(_DRAIN_QUIET_S, max(0.0, self._drain_until - time.monotonic()))
        self._drain_timer = self._life.loop.after(wait_s, self._drained)

    def _cancel_drain(self) -> None:
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None

    def _drained(self) -> None:
        self._drain_timer = None
        if self.stop_under_way and time.monotonic() < self._drain_until:
            self._drain_quietly()  # whoever is left is being ended
        elif not self.is_over:
            self._finish()

    def fail(self, error: dict[str, Any]) -> None:
        """There is no command, and this is why."""
        self.ending.error = error
        self.ending.blame("spawn_error")
        self._finish()

    def _finish(self) -> None:
        self._cancel_drain()
        self.is_over = True
        self._life.attempt_over()

    def _exit_facts(self) -> dict[str, Any]:
        used = self.family.rusage
        return {
            "started_at": self.started_at,
            "rusage": used and {"user_s": used.ru_utime, "system_s": used.ru_stime, "max_rss_kb": used.ru_maxrss},
            "rung": self._stopping and self._stopping.rung,
            "stopping": self.stopping if self.stop_under_way else None,
            "warnings": self._life.warnings,
            "last_output_at": telling.last_output_at(self._life),
            **self._life.last_facts(),
        }
