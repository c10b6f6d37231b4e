"""Signals as something to wait for: their numbers, from a descriptor."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType
    from typing import Any


class Wakeups:
    """From here on these signals do nothing but make `fd` readable. What our caller ignores stays ignored."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before: dict[int, Any] = {}
        for number in numbers:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, _noted)

    def taken(self) -> list[int]:
        """The numbers of those that came, in order."""
        try:
            return list(os.read(self.fd, 4096))
        except BlockingIOError:
            return []

    def stop_here(self) -> None:
        """Do what SIGTSTP does on its own: be stopped, until somebody continues us."""
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, _noted)

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before_fd)
        os.close(self.fd)
        os.close(self._write)


def _noted(_number: int, _frame: FrameType | None) -> None:
    """The number is in the pipe already."""
