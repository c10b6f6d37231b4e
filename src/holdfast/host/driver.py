"""The one thing that differs between blocking and asynchronous hosts: how to wait.

All host logic is written once, as coroutines that await nothing but a driver. The blocking driver never suspends, so
`drive` runs such a coroutine to its end without any event loop.
"""

from __future__ import annotations

import os
import select

from ..runner import points

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from typing import Any, Protocol, TypeVar

    from ..runner.tree import Process

    T = TypeVar("T")

    class Driver(Protocol):
        async def ready(self, readers: Iterable[int], writers: Iterable[int], timeout: float | None) -> set[int]:
            """Those of the descriptors that can be read or written; none when the time is over."""

        async def call(self, work: Callable[[], T]) -> T:
            """Run something that may take long on disk, without holding anybody else up."""


class Blocking:
    async def ready(self, readers: Iterable[int], writers: Iterable[int], timeout: float | None) -> set[int]:
        poll = select.poll()
        for fd in readers:
            poll.register(fd, select.POLLIN)
        for fd in writers:
            poll.register(fd, select.POLLOUT)
        return {fd for fd, _ in poll.poll(None if timeout is None else max(0.0, timeout) * 1000)}

    async def call(self, work: Callable[[], T]) -> T:
        return work()


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run host logic over the blocking driver."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("host logic awaited something other than its driver")


async def first_death(driver: Driver, processes: Iterable[Process], bound_s: float | None, *, look_s: float) -> None:
    """Until one of them is gone, or `bound_s` is over. Where the kernel cannot tell of a death the caller has to look,
    after `look_s` at the latest."""
    pidfds: list[int] = []
    try:
        for process in () if points.off("pidfd") else processes:
            try:
                pidfds.append(os.pidfd_open(process.pid))
            except OSError:
                return
        if not pidfds:
            bound_s = look_s if bound_s is None else min(look_s, bound_s)
        await driver.ready(pidfds, (), None if bound_s is None else max(0.0, bound_s))
    finally:
        for fd in pidfds:
            os.close(fd)
