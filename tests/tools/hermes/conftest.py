from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.agents import Agents

if TYPE_CHECKING:
    from support.world import World


@pytest.fixture
def library(world: World) -> Agents:
    """Toolsets opened directly, for tests of what no protocol passes on: they need not be run over each."""
    return Agents(world, "library")
