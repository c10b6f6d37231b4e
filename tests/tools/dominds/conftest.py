"""Daemons outlive the agents that started them, and must not outlive the tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from support.faults import sweep_up

if TYPE_CHECKING:
    from support.world import World


@pytest.fixture(autouse=True)
def tidy(world: World) -> Iterator[None]:
    yield
    hf = world.open()
    left = hf.sessions()
    for session in left:
        # A thread can only be asked, and may be late on a busy machine.
        assert session.stop(grace=30 if session.in_process else 0).done
    if (world.home / "sessions").exists():
        sweep_up(world, hf)
