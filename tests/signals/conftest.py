"""A desk: a home with an index, sessions whose signals the test writes, and consumers over them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.world import World
from support.written import Desk


@pytest.fixture
def desk(world: World) -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()
