"""A blocking driver that another thread can end: for work of this host that waits in the background."""

from __future__ import annotations

import os
import select

from ..host.driver import Blocking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Interrupted(Exception):
    """Somebody asked this wait to end."""


class Interruptible(Blocking):
    def __init__(self) -> None:
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def interrupt(self) -> None:
        """From any thread: the wait under way ends, and every later one at once."""
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        os.close(self._bell)

    async def ready(self, readers: Iterable[int], writers: Iterable[int], timeout: float | None) -> set[int]:
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        for fd in readers:
            poll.register(fd, select.POLLIN)
        for fd in writers:
            poll.register(fd, select.POLLOUT)
        found = {fd for fd, _ in poll.poll(None if timeout is None else max(0.0, timeout) * 1000)}
        if self._bell in found:
            raise Interrupted
        return found
