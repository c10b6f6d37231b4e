"""How hosts wait: the one difference between blocking hosts and those on an event loop.

All host logic is written once, as coroutines that only await a driver. The blocking driver never suspends, so `drive`
runs such a coroutine to its end without an event loop.
"""

from __future__ import annotations

import os
import select
import time
import types
from functools import wraps

from ..core import failpoints
from ..errors import HoldfastError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
    from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

    from ..core.processes import Process


if TYPE_CHECKING:
    T = TypeVar("T")
    U = TypeVar("U")
    P = ParamSpec("P")

    class Driver(Protocol):
        async def ready(self, readers: Iterable[int], writers: Iterable[int], timeout: float | None) -> set[int]:
            """The descriptors that can be read or written; empty after the timeout."""

        async def call(self, work: Callable[[], T]) -> T:
            """Run something that may take long on disk, without blocking the event loop."""


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


class Asynchronous:
    """The running event loop watches the descriptors."""

    async def ready(self, readers: Iterable[int], writers: Iterable[int], timeout: float | None) -> set[int]:
        import asyncio  # only for hosts that have it: it takes longer to load than `hold ls` takes

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
        import asyncio

        return await asyncio.to_thread(work)


class Interrupted(Exception):
    """Another thread ended this wait."""


class Interruptible(Blocking):
    """A blocking driver whose waits another thread can end."""

    def __init__(self) -> None:
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def interrupt(self) -> None:
        """From any thread: end the present wait, and every later one at once."""
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        os.close(self._bell)

    async def ready(self, readers: Iterable[int], writers: Iterable[int], timeout: float | None) -> set[int]:
        found = await super().ready([*readers, self._bell], writers, timeout)
        if self._bell in found:
            raise Interrupted
        return found


class Turns:
    """The driver of coroutines that `together` runs at the same time: it suspends them with what they wait for."""

    async def ready(self, readers: Iterable[int], writers: Iterable[int], timeout: float | None) -> set[int]:
        until = None if timeout is None else time.monotonic() + timeout
        found: set[int] = await _suspend((set(readers), set(writers), until))
        return found

    async def call(self, work: Callable[[], T]) -> T:
        return work()


@types.coroutine
def _suspend(awaited: object) -> Generator[object, Any, Any]:
    return (yield awaited)


async def together(driver: Driver, tasks: Sequence[Coroutine[Any, Any, T]], *, any: bool = False) -> dict[int, T]:
    """Run coroutines over `Turns` at the same time, in one thread. Returns the results by position. If one fails, the
    others are closed. With `any` the first result is returned, and it fails only if all have failed."""
    results: dict[int, T] = {}
    problem: HoldfastError | None = None
    waiting: dict[int, tuple[set[int], set[int], float | None]] = {}
    found: dict[int, set[int] | None] = dict.fromkeys(range(len(tasks)))
    try:
        while True:
            for n, ready in found.items():
                try:
                    waiting[n] = tasks[n].send(ready)
                except StopIteration as end:
                    results[n] = end.value
                    if any:
                        return results
                except HoldfastError as failure:
                    if not any:
                        raise
                    problem = failure
            if not waiting:
                if problem is not None:
                    raise problem
                return results
            readers = {fd for fds, _, _ in waiting.values() for fd in fds}
            writers = {fd for _, fds, _ in waiting.values() for fd in fds}
            until = min((at for _, _, at in waiting.values() if at is not None), default=None)
            ready = await driver.ready(readers, writers, None if until is None else max(0.0, until - time.monotonic()))
            now = time.monotonic()
            found = {
                n: ready & (fds | more)
                for n, (fds, more, at) in waiting.items()
                if ready & (fds | more) or (at is not None and now >= at)
            }
            for n in found:
                del waiting[n]
    finally:
        for task in tasks:
            task.close()


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run host logic over the blocking driver."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("host logic awaited something other than its driver")


def driven(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """A coroutine of an asyncio class as a method of its blocking half. `self` is the blocking object, or the asyncio
    object that it keeps as `_async`. The public methods of `self` may block: the coroutine calls another one by the
    class, as `AsyncSession.refresh(self)`."""

    @wraps(_without_async(method))
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return drive(method(getattr(self, "_async", self), *args, **kwargs))

    return call


def driven_as(
    half: Callable[[U], T], method: Callable[Concatenate[Any, P], Coroutine[Any, Any, U]]
) -> Callable[Concatenate[Any, P], T]:
    """As `driven`, for a coroutine whose result has a blocking half too: `half` makes it."""

    @wraps(_without_async(method))
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return half(drive(method(getattr(self, "_async", self), *args, **kwargs)))

    return call


def driven_each(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """As `driven`, for an asynchronous iterator."""

    @wraps(_without_async(method))
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return drive_each(method(self, *args, **kwargs))

    return call


def _without_async(method: Any) -> Callable[..., Any]:
    """What introspection shows of a driven method: the same function, but the types that it names are the blocking
    ones."""
    shown = types.FunctionType(method.__code__, method.__globals__, method.__name__, method.__defaults__)
    shown.__kwdefaults__ = method.__kwdefaults__
    shown.__qualname__ = method.__qualname__.removeprefix("Async")
    shown.__annotations__ = {name: kind.replace("Async", "") for name, kind in method.__annotations__.items()}
    return shown


def drive_each(items: AsyncIterator[T]) -> Iterator[T]:
    """Iterate over host logic with the blocking driver."""

    async def following() -> tuple[T, ...]:
        async for item in items:
            return (item,)
        return ()

    try:
        while item := drive(following()):
            yield item[0]
    finally:
        drive(items.aclose())  # type: ignore[attr-defined]


async def first_death(driver: Driver, processes: Iterable[Process], bound_s: float | None, *, look_s: float) -> None:
    """Wait until one of them has died, or for `bound_s`. Without pidfds the caller has to check itself, after `look_s`
    at the latest."""
    pidfds: list[int] = []
    try:
        for process in () if failpoints.off("pidfd") else processes:
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
