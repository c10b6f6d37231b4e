"""An end that a waiting caller may report itself: the caller reports it or the queue does, never neither."""

from __future__ import annotations

import pytest

from support.peer import Peer
from support.points import Points
from support.waiting import BOUND_S, wait_gone
from support.world import World

OWNER = "conv-1"


def test_an_end_that_was_answered_as_output_is_queued(world: World, points: Points) -> None:
    """The last words and the exit fall into one turn. On faulty code the waiting caller got the output, no caller
    was asked to confirm the end, and it never entered the queue."""
    points.set("log.append=2*pause")
    hf = world.open()
    gate = world.gate()
    session = hf.start(world.probe("await", gate, "say", "bye", "exit", 3), owner=OWNER, notify="auto")
    assert session.wait(match="ready", timeout=BOUND_S).reason == "match"
    assert session.pid is not None
    assert session.endpoint is not None
    with Peer(session.endpoint) as waiting:
        waiting.hello()
        asked = waiting.ask_later("wait", exit=True, confirm=True, output_after={"stdout": len("ready\n")})
        assert waiting.ask("ping")["type"] == "reply"
        gate.release()
        runner = points.wait("log.append")
        wait_gone(session.pid)
        runner.release()
        assert waiting.answer(asked)["reason"] == "output"
        consumer = hf.signals(OWNER)
        with consumer.waker() as waker:
            assert consumer.pending() or waker.wait(BOUND_S)
        with consumer.claim() as batch:
            assert [each.code for each in batch] == [3]


@pytest.mark.parametrize("waits", [True, False])
def test_only_the_caller_that_got_the_end_can_confirm_it(world: World, waits: bool) -> None:
    hf = world.open()
    gate = world.gate()
    session = hf.start(world.probe("await", gate, "exit", 3), owner=OWNER, notify="auto")
    assert session.wait(match="ready", timeout=BOUND_S).reason == "match"
    assert session.endpoint is not None
    with Peer(session.endpoint) as given, Peer(session.endpoint) as stranger:
        for peer in (given, stranger):
            peer.hello()
        asked = given.ask_later("wait", exit=True, confirm=True)
        assert given.ask("ping")["type"] == "reply"
        gate.release()
        assert given.answer(asked)["reason"] == "exit"
        confirming = given if waits else stranger
        assert confirming.ask("update", answered=2)["answered"] is waits
    consumer = hf.signals(OWNER)
    with consumer.waker() as waker:
        assert waits or consumer.pending() or waker.wait(BOUND_S)
    assert consumer.pending() == (0 if waits else 1)
