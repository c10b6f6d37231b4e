"""The driver of asynchronous hosts: descriptors are watched by the running event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")


class Asynchronous:
    async def ready(self, readers: Iterable[int], writers: Iterable[int], timeout: float | None) -> set[int]:
        loop = asyncio.get_running_loop()
        ready: set[int] = set()
        first = loop.create_future()

        def note(fd: int) -> None:
            ready.add(fd)
            if not first.done():
                first.set_result(None)

        readers, writers = list(readers), list(writers)
        for fd in readers:
            loop.add_reader(fd, note, fd)
        for fd in writers:
            loop.add_writer(fd, note, fd)
        try:
            async with asyncio.timeout(timeout):
                await first
        except TimeoutError:
            pass
        finally:
            for fd in readers:
                loop.remove_reader(fd)
            for fd in writers:
                loop.remove_writer(fd)
        return ready

    async def call(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)
