"""Toolsets that are opened directly: for what only Python can ask."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.agents import Agent, Agents
from support.world import World

Library = Callable[..., Agent]


@pytest.fixture
def library(world: World) -> Library:
    """As `agents`, always in this process, once."""
    return Agents(world, "library").library
