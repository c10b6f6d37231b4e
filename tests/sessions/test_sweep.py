"""Many runners asked at once, and asked no more."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

import holdfast
from support.census import own_descriptors
from support.faults import halt

if TYPE_CHECKING:
    from support.world import World


def test_a_look_that_is_given_up_closes_what_it_called(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", "60s")  # it does not end by itself before we give it up
    monkeypatch.setattr("holdfast.sessions.observe.halted", lambda _: False)  # as one that is silent for another reason

    async def main() -> None:
        async with holdfast.open_async() as hf:
            session = await hf.start(world.probe("forever"))
            assert session.runner_pid is not None
            halt(session.runner_pid)
            before = own_descriptors()
            look = asyncio.create_task(hf.get(session.id))
            await asyncio.wait([look], timeout=0.2)
            look.cancel()
            await asyncio.wait([look])
            assert look.cancelled()
            assert own_descriptors() == before
            os.kill(session.runner_pid, signal.SIGCONT)
            await session.kill()

    asyncio.run(main())
