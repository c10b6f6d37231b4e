"""Regular expressions under a timer: the CPU that one slice of searching may take.

The engine looks for signals while it works, so a handler that raises ends it. It is let raise there alone.
"""

from __future__ import annotations

from .kernel_signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from .lines import Line
    from .patterns import Pattern

SLICE_CPU_S = 0.020

_searching = False
_listening = False


class _TookTooLong(BaseException):
    pass


class Fence:
    """`with` it is one slice. Only in the main thread, as all handlers of signals."""

    def __init__(self, cpu_s: float = SLICE_CPU_S) -> None:
        self._cpu_s = cpu_s
        self.overruns = 0

    def __enter__(self) -> None:
        global _listening
        if not _listening:
            signal.signal(signal.SIGVTALRM, _stop)
            _listening = True
        # Again and again: it may run out between two searches.
        signal.setitimer(signal.ITIMER_VIRTUAL, self._cpu_s, self._cpu_s)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)

    def matches(self, pattern: Pattern, line: Line, *, again: bool = False) -> bool:
        """False too where the time ran out; that is counted."""
        global _searching
        try:
            _searching = True
            found = pattern.matches(line, again=again)
            _searching = False
        except _TookTooLong:
            _searching = False
            self.overruns += 1
            return False
        return found


def _stop(_number: int, _frame: FrameType | None) -> None:
    if _searching:
        raise _TookTooLong
