"""A client that is gone without a word, while nobody listens to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.waiting import until
from support.webviewer import WebViewer

if TYPE_CHECKING:
    from support.serving import Serving
    from support.world import World

# It is noticed when the next ping cannot be sent.
PING_S = 20.0


def test_a_client_that_vanishes_while_the_session_takes_nothing_is_no_longer_attached(
    world: World, serving: Serving
) -> None:
    session = world.open().start("stty raw -echo; echo on; exec sleep 600", tty=True)
    viewer = WebViewer(serving.address, serving.token, session.id)
    world.closing.callback(viewer.leave)
    viewer.until(lambda: "on" in viewer.text, "the command")
    for _ in range(6):
        viewer.type(b"x" * 300_000)
    until(lambda: session.refresh().attached["control"] == 1, what="it")
    viewer.vanish()
    until(lambda: not session.refresh().attached["control"], PING_S + 20, what="that it is gone")
    session.kill()
