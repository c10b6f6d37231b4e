"""KIL-04: trees that fork faster than one can look."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.bystander import Bystanders
from support.levers import pids_group_parent
from support.own_time import QuietTime
from support.promised import Beside, marked, promised
from support.world import World

# The settling time of the last rung, and room for a machine that is busy with the storm.
STOP_BOUND_S = 10.0

# Asks the runner for its status again and again, and says how long the longest answer took.
ASKER = """
import sys, time, holdfast
session = holdfast.open().get(sys.argv[1])
longest = 0.0
print("asking")
while True:
    began = time.monotonic()
    state = session.refresh().state
    longest = max(longest, time.monotonic() - began)
    if state != "running":
        print(state, longest)
        break
"""


def stop_in_storm(world: World, session_id: str) -> float:
    """Stop it while another host asks on; returns how long the stop took."""
    asker = world.host(ASKER, session_id)
    assert asker.line() == "asking"
    session = world.open().get(session_id)
    passed = QuietTime()
    stopped = session.stop(grace=0.3)
    took = passed.seconds()
    assert took < STOP_BOUND_S
    # Converged, or truthful about who is left; these converge.
    assert {each["pid"] for each in stopped.survivors} == {row.pid for row in marked(session_id)}
    assert stopped.done, stopped.survivors
    state, longest = asker.line().split()
    assert state == "exited"
    assert float(longest) < 2.0
    return took


@pytest.mark.covers("KIL-04")
@pytest.mark.slow
def test_kil_04_a_hopper_that_forks_every_millisecond_is_caught(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    session = hf.start(world.probe("lines", 2, "fork", "{", "ignore", "TERM", "hop", 8, 0.001, "}", "forever"))
    assert session.wait(match="^line 2$", timeout=30).reason == "match"
    stop_in_storm(world, session.id)
    promised(world, session, bystander=bystander, beside=beside, numbers=2)
    assert session.exit is not None
    assert session.exit.cause == "stop"


@pytest.mark.covers("KIL-04")
def test_kil_04_a_hopper_that_is_the_command_itself_is_a_survivor_and_is_caught(
    world: World, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    session = hf.start(world.probe("lines", 2, "ignore", "TERM", "hop", 8, 0.001))
    assert session.wait(exit=True, timeout=30).reason == "exit"
    promised_exit = session.exit
    assert promised_exit is not None
    assert promised_exit.code == 0
    stopped = session.stop(grace=0.3)
    assert stopped.done
    assert not marked(session.id)
    promised(world, session, bystander=bystander, beside=beside, numbers=2)


@pytest.fixture
def few_processes() -> Iterator[Path]:
    """A control group with room for some hundred processes, for a storm that must not take the machine."""
    parent = pids_group_parent()
    assert parent is not None
    group = parent / f"holdfast-test-{os.getpid()}"
    group.mkdir()
    (group / "pids.max").write_text("700")
    yield group
    group.rmdir()


@pytest.mark.covers("KIL-04")
@pytest.mark.slow
@pytest.mark.needs("root", "pids-group")
def test_kil_04_three_hundred_processes_that_fork_again_on_death_are_ended(
    world: World, few_processes: Path, without: str, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    inside = f'echo $$ > {few_processes}/cgroup.procs; exec "$@"'
    session = hf.start(["sh", "-c", inside, "sh", *world.probe("lines", 2, "refork", 150, 20, "forever")])
    assert session.wait(match="^reforking 150$", timeout=30).reason == "match"
    stop_in_storm(world, session.id)
    promised(world, session, bystander=bystander, beside=beside, numbers=2)
