"""Sessions for the tests of the command line: started with `hold start`, ended when the test is over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.world import World

Start = Callable[..., str]


@pytest.fixture
def start(world: World) -> Start:
    """`hold start OPTIONS -- PROBE WORDS`; the id it printed."""

    def start_probe(*words: object, options: tuple[str, ...] = ()) -> str:
        id = world.hold("start", *options, "--", *world.probe(*words), check=True).stdout.strip()
        world.closing.callback(lambda: world.hold("kill", id))
        return id

    return start_probe
