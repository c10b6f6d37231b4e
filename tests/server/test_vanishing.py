"""A client that is gone without a word, while nobody listens to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.processes import descriptors
from support.waiting import until
from support.webviewer import WebViewer

if TYPE_CHECKING:
    from support.serving import Serving
    from support.world import World

# It is noticed when a ping cannot be sent: the next one, or on a slow machine the one after that.
PING_S = 20.0


@pytest.mark.timeout(5 * PING_S)
def test_a_client_that_vanishes_while_the_session_takes_nothing_is_let_go(world: World, serving: Serving) -> None:
    """What it typed is still in the hands of the runner, which reads it when the command does."""
    # Answered when it has opened all that it has open without clients.
    assert serving.call("GET", "/v1/info").status == 200
    before = len(descriptors(serving.pid))
    session = world.open().start("stty raw -echo; echo on; exec sleep 600", tty=True)
    viewer = WebViewer(serving.address, serving.token, session.id)
    world.closing.callback(viewer.leave)
    viewer.until(lambda: "on" in viewer.text, "the command")
    for _ in range(6):
        viewer.type(b"x" * 300_000)
    assert len(descriptors(serving.pid)) > before
    viewer.vanish()
    until(lambda: len(descriptors(serving.pid)) <= before, 3 * PING_S, what="that nothing is held for it")
    session.kill()
