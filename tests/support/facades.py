"""One suite over every facade and every way to start: blocking or asyncio, through a launcher or directly."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest

from holdfast.sessions.aio import AsyncHoldfast, AsyncSession
from holdfast.sessions.attach import AsyncAttachment

if TYPE_CHECKING:
    from holdfast import Holdfast
    from support.points import Points
    from support.world import World

WAYS = ["blocking-launcher", "blocking-direct", "asyncio-launcher", "asyncio-direct"]


class Looped:
    """An asynchronous object with blocking manners: each call runs on one event loop to its end."""

    def __init__(self, inner: object, runner: asyncio.Runner) -> None:
        self._inner = inner
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return self._call(value) if callable(value) else value

    def _call(self, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if inspect.isasyncgen(result):
                return self._iterate(result)
            if inspect.iscoroutine(result):
                result = self._runner.run(result)
            return self._dress(result)

        return call

    def __enter__(self) -> Looped:
        self._runner.run(cast("Any", self._inner).__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(cast("Any", self._inner).__aexit__(*error))

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(cast("Any", self._inner).__aiter__())

    def _iterate(self, items: Any) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(items, None)

        while (item := self._runner.run(following())) is not None:
            yield item

    def _dress(self, result: Any) -> Any:
        if isinstance(result, AsyncSession | AsyncAttachment):
            return Looped(result, self._runner)
        if isinstance(result, list):
            return [self._dress(each) for each in result]
        return result


@pytest.fixture(params=WAYS)
def hf(request: pytest.FixtureRequest, world: World, points: Points) -> Iterator[Holdfast]:
    """Either facade, typed as the blocking one: their methods are the same."""
    facade, way = request.param.split("-")
    if way == "direct":
        points.off("launcher")
    if facade == "blocking":
        yield world.open()
        return
    with asyncio.Runner() as runner:
        host = AsyncHoldfast()
        yield cast("Holdfast", Looped(host, runner))
        runner.run(host.close())
