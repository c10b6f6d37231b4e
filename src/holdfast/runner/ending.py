"""The end of a command: why, how, and the record of it, told even to a disk that refuses for a while."""

from __future__ import annotations

import errno
import os
import time

from . import clock, records, tree
from .causes import AFTER_GRACE, ASKED_CAUSES, AT_ONCE, ELSEWHERE, IN_GRACE
from .kernel_signals import NAMES, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .cgroup import MemoryGroup
    from .descriptors import Reserve
    from .diary import Diary
    from .family import Family
    from .log import Log
    from .loop import Loop, Timer

# A record that the disk refused is written again after this; without it we leave after so long.
AGAIN_S = 0.25
UNTOLD_S = 10.0
# Of the survivors the record names this many: its room was taken at the start.
_RECORDED_MAX = 20


class Ending:
    """First reason wins: `blame` keeps the first cause, and one that a host recorded while we did not answer came
    before all that we learn on waking. `judge` turns what was observed into the exit object."""

    def __init__(
        self,
        loop: Loop,
        directory: int,
        log: Log,
        diary: Diary,
        reserve: Reserve,
        *,
        facts: Callable[[], dict[str, Any]],
        settled: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._directory = directory
        self._log = log
        self._diary = diary
        self._reserve = reserve
        # What else stands in the record, as it is when it is written.
        self._facts = facts
        # Called when a record that was refused at first could be written, or is given up.
        self._settled = settled
        self._cause: tuple[str, str | None] | None = None
        # Which clients sent the command a signal, by its number: one that it dies of came from there.
        self._signalled: dict[int, str | None] = {}
        self._fenced: dict[str, Any] = {}
        self._untold_until: float | None = None
        self._timer: Timer | None = None
        self.error: dict[str, Any] | None = None
        self.exit: dict[str, Any] | None = None
        self.at: str | None = None
        # Is there an ending that could not be written yet?
        self.untold = False

    def blame(self, cause: str, by: str | None = None) -> None:
        if self._cause is None:
            self._cause = self._asked_past_us() or (cause, by)

    def note_signal(self, number: int, by: str | None) -> None:
        self._signalled[number] = by

    def _asked_past_us(self) -> tuple[str, str | None] | None:
        with self._reserve:
            intent = records.found(self._directory, records.INTENT)
        cause, by = intent.get("cause"), intent.get("by")
        return (cause, by if isinstance(by, str) else None) if cause == "stop" else None

    def _stopped_past_us(self, number: int | None) -> str | None:
        """How the command ended that a host stopped while we did not answer; `number` is the signal it died of."""
        with self._reserve:
            recorded = records.found(self._directory, records.INTENT).get("stopped")
        if recorded is None or number != signal.SIGKILL:
            return None if recorded is None else IN_GRACE
        return recorded if recorded in (AFTER_GRACE, AT_ONCE) else ELSEWHERE

    def judge(
        self,
        family: Family,
        memory: MemoryGroup | None,
        *,
        complete: bool,
        stopped: Callable[[int | None], str | None] = lambda _number: None,
    ) -> None:
        code = number = None
        if family.status is not None:
            if os.WIFSIGNALED(family.status):
                number = os.WTERMSIG(family.status)
            else:
                code = os.WEXITSTATUS(family.status)
        oom = memory is not None and memory.oom_kills() > 0
        # A shell whose child the kernel took says so in its own code.
        starved = oom and (number == signal.SIGKILL or code == 128 + signal.SIGKILL)
        if number is None or starved:
            self.blame("out_of_memory" if starved else "exit")
        else:
            self.blame("signal", self._signalled.get(number))
        assert self._cause is not None
        if self.at is None:
            self.at = clock.now_text()
        self.fence()
        survivors, more = tree.described_some(family.living())
        self.exit = {
            "code": code,
            "signal": None if number is None else NAMES.get(number, f"SIG{number}"),
            "cause": self._cause[0],
            "by": self._cause[1],
            "stopped": (stopped(number) or self._stopped_past_us(number))
            if self._cause[0] in ASKED_CAUSES and family.command_gone
            else None,
            "oom": oom,
            "complete": complete,
            "survivors": survivors,
            "survivors_more": more,
        }

    def fence(self) -> None:
        """What descendants print from now on is in the log, and behind the recorded end."""
        self._fenced = self._log.facts()

    def write(self, *, durable: bool) -> None:
        """Log first, then the record: its presence says that the log is complete up to the recorded end."""
        try:
            with self._reserve:
                if durable:
                    self._log.sync()
        except OSError as problem:
            self._diary.warn(f"the log could not be synced: {problem.strerror}")
        record = {
            "v": 1,
            "exit": self._recorded(),
            "ended_at": self.at,
            "error": self.error,
            **self._facts(),
            **self._fenced,
        }
        try:
            with self._reserve:
                records.write_exit(self._directory, record, durable=durable)
        except OSError as problem:
            self._diary.warn(f"exit.json could not be written: {problem.strerror}")
            self.untold = self._may_tell_later(problem)
        else:
            self.untold = False

    def _recorded(self) -> dict[str, Any]:
        assert self.exit is not None
        survivors: list[dict[str, Any]] = self.exit["survivors"]
        return {
            **self.exit,
            "survivors": survivors[:_RECORDED_MAX],
            "survivors_more": self.exit["survivors_more"] + max(0, len(survivors) - _RECORDED_MAX),
        }

    def _may_tell_later(self, problem: OSError) -> bool:
        """A disk that refuses for a moment must not make the ending unknown. One that does so for long, or whose
        directory somebody removed, is left to say `lost`."""
        now = time.monotonic()
        if self._untold_until is None:
            self._untold_until = now + UNTOLD_S
        if problem.errno == errno.ENOENT or now > self._untold_until:
            return False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.after(AGAIN_S, self._tell_again)
        return True

    def _tell_again(self) -> None:
        self.write(durable=True)
        self._settled()
