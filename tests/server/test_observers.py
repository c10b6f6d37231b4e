"""Observers that share one connection to a runner."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast.model.events import Init, Size
from holdfast.server.attach import AttachParams
from holdfast.server.observers import Feeds, Observing
from holdfast.sessions.screens import restore_at

if TYPE_CHECKING:
    import pytest

    from support.world import World


def test_a_size_that_changes_while_an_observers_screen_is_built_is_not_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def observe() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        async with holdfast.open_async() as hf:
            session = await hf.start(["sleep", "600"], tty=True, size=(24, 80))
            feeds = Feeds(observers_per_session=1, skip_bytes=1 << 20)
            feed = await feeds.join(session, "tty")
            assert feed is not None

            async def resize() -> None:
                await session.resize(15, 60)
                while not feed.sized:
                    await feed.changed()

            def slow(*args: Any) -> Any:
                restored = restore_at(*args)
                if not feed.sized:
                    asyncio.run_coroutine_threadsafe(resize(), loop).result(30)
                return restored

            monkeypatch.setattr("holdfast.server.observers.restore_at", slow)
            async with Observing(feeds, feed, AttachParams("screen", "tty", 0, "skip", None, True, "observe")) as seen:
                await seen.begin("screen")
                size = (0, 0)
                while size != (15, 60):
                    for event in await seen.wait():
                        if isinstance(event, Init):
                            size = event.size
                        elif isinstance(event, Size):
                            size = event.rows, event.cols
            await session.kill()
            return size

    assert asyncio.run(asyncio.wait_for(observe(), 60)) == (15, 60)
