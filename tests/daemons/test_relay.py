"""Objects that a host runs itself: recorded, observed, queued and stopped like all daemons."""

from __future__ import annotations

import threading

import pytest

from holdfast.daemons.observers import Change
from holdfast.errors import BadArgument, HoldfastError
from holdfast.signals.consumers import default_name
from support.signal_file import records
from support.waiting import BOUND_S, until
from support.world import World


def test_what_a_relay_reports_is_on_disk_and_observed_when_the_call_returns(world: World) -> None:
    hf = world.open()
    heard: list[tuple[str, int, str]] = []

    def note(change: Change) -> None:
        heard.append((change.op, len(records(world, change.id)), threading.current_thread().name))

    hf.daemons.observe(note)
    relay = hf.daemons.relay("x00000001", lambda: None, kind="webcam", owner="conv-1")
    relay.event("a picture")
    assert relay.end("failed", code=7)
    assert not relay.end("completed")
    here = threading.current_thread().name
    assert heard == [("added", 1, here), ("running", 1, here), ("event", 2, here), ("failed", 3, here)]
    with hf.signals("conv-1").claim() as batch:
        event, ended = batch
    assert event.fields["lines"][0]["text"] == "a picture"
    assert (ended.fields["status"], ended.fields["code"]) == ("failed", 7)


def test_a_relay_is_asked_to_end_by_the_caller_that_stops_it(world: World) -> None:
    hf = world.open()
    asked = threading.Event()
    relay = hf.daemons.relay("d00000001", asked.set, kind="dream", owner="conv-1")
    assert [shot.id for shot in hf.daemons.list(owner="conv-1")] == ["d00000001"]
    hf.daemons.stop("d00000001", by="conv-1")
    assert asked.wait(BOUND_S)
    relay.end("completed")
    shot = hf.daemons.get("d00000001")
    assert shot.exit is not None
    assert (shot.status, shot.exit.by) == ("killed", "conv-1"), "the first reason wins"


def test_an_id_that_is_invalid_or_taken_is_refused(world: World) -> None:
    hf = world.open()
    with pytest.raises(BadArgument):
        hf.daemons.relay("../up", lambda: None)
    relay = hf.daemons.relay("x00000001", lambda: None)
    with pytest.raises(HoldfastError):
        hf.daemons.relay("x00000001", lambda: None)
    relay.end("completed")


def test_a_host_is_called_once_for_what_is_due_and_again_when_it_comes_again(world: World) -> None:
    hf = world.open()
    consumer = hf.consumer(default_name("conv-1", "evva"), ["conv-1"])
    calls: list[int] = []
    due_callback = hf.daemons.call_when_due(consumer, lambda: calls.append(int(consumer.pending())))
    relay = hf.daemons.relay("x00000001", lambda: None, owner="conv-1")
    relay.event("one")
    until(lambda: calls == [1], what="the first call")
    due_callback.look()
    assert calls == [1], "nothing new is due"
    batch = consumer.claim()
    due_callback.claimed()
    batch.release("not now")
    due_callback.look()
    until(lambda: calls == [1, 1], what="a call when it is due again")
    with consumer.claim():
        pass
    due_callback.claimed()
    relay.end("completed")
    until(lambda: calls == [1, 1, 1], what="a call for the end")
    assert consumer.unsettled() == {"x00000001"}
    due_callback.close()
