"""A disk that refuses records around the end of a session: ids that were named stay true, losses are counted."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from support.points import Points
from support.signal_file import endings
from support.waiting import BOUND_S, wait_gone
from support.world import World

OWNER = "conv-1"


def refused(*passes: int) -> str:
    return ";".join(f"signals.data={number}*error:ENOSPC" for number in passes)


def notes(world: World, id: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (world.session(id) / "signals.jsonl").read_text().splitlines())
    return [line for line in lines if "seq" not in line]


def test_the_runner_stays_until_the_disk_takes_the_ending(world: World, points: Points) -> None:
    """On faulty code it left with the record in its memory."""
    points.set(refused(2, 3, 4))
    hf = world.open()
    session = hf.start(world.probe("exit", 3), owner=OWNER)
    assert session.runner_pid is not None
    woke = session.wait(timeout=BOUND_S)
    assert (woke.reason, woke.signal_id) == ("exit", f"{session.id}.2")
    wait_gone(session.runner_pid)
    (ended,) = endings(world, session.id)
    assert ended["id"] == woke.signal_id
    assert "evidence" not in ended["lifecycle"], "it is the runner's own"
    assert hf.signals(OWNER).ack(ended["id"]) == 1


@pytest.mark.parametrize("first", [1, 2])
def test_a_host_that_succeeds_a_runner_keeps_the_ids_and_counts_lost_records(
    world: World, points: Points, first: int
) -> None:
    """On faulty code the ending had the number of a lost record, and the exit record named no signal."""
    points.set(f"signals.data={first}+*error:ENOSPC")
    hf = world.open()
    world.closing.callback(hf.collect)
    session = hf.start(world.probe("say", "an ERROR", "exit", 3), owner=OWNER, watch=["ERROR"])
    woke = session.wait(timeout=BOUND_S)
    assert (woke.reason, woke.signal_id) == ("exit", f"{session.id}.3")
    points.clear()
    assert session.runner_pid is not None
    os.kill(session.runner_pid, signal.SIGKILL)
    wait_gone(session.runner_pid)
    with hf.signals(OWNER).claim() as batch:
        assert [(each.id, each.code) for each in batch] == [(woke.signal_id, 3)]
    assert notes(world, session.id) == [{"lost": 3 - first, "before": 3}]


@pytest.mark.slow
def test_a_disk_that_refuses_for_good_does_not_keep_the_runner(world: World, points: Points) -> None:
    points.set("signals.data=2+*error:ENOSPC")
    hf = world.open()
    session = hf.start(world.probe("exit", 3), owner=OWNER)
    assert session.wait(timeout=BOUND_S).reason == "exit"
    assert session.runner_pid is not None
    wait_gone(session.runner_pid)
    points.clear()
    assert hf.signals(OWNER).ack(f"{session.id}.2") == 1
