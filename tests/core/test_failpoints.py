"""Failpoints: the grammar, each action for real, and that the source and the tests agree on the names."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import failpoints
from support import points as support_points
from support import processes
from support.points import Points
from support.waiting import until
from support.world import World

PASS_TWICE = """
from holdfast.core import failpoints as points
for _ in range(2):
    points.hit("test.place")
    print("passed", flush=True)
"""


@pytest.fixture(autouse=True)
def no_plan_afterwards() -> Iterator[None]:
    yield
    failpoints.reload({})


def plan(text: str) -> None:
    failpoints.reload({"HOLDFAST_POINTS": text, "HOLDFAST_POINTS_SOCKET": "/nobody"})


def passes_that_fail(count: int) -> list[int]:
    failed = []
    for n in range(1, count + 1):
        try:
            failpoints.hit("a.b")
        except OSError as error:
            failed += [n] if error.errno == errno.ENOSPC else []
    return failed


def test_no_plan_leaves_the_constant_false() -> None:
    failpoints.reload({})
    assert failpoints.ACTIVE is False
    failpoints.hit("any.name")


@pytest.mark.parametrize(
    "action, failed",
    [
        ("error:ENOSPC", [1, 2, 3, 4]),
        ("2*error:ENOSPC", [2]),
        ("2+*error:ENOSPC", [2, 3, 4]),
        ("9*error:ENOSPC", []),
    ],
)
def test_a_count_selects_the_passes_that_fail(action: str, failed: list[int]) -> None:
    plan(f"a.b={action}; c.d=kill")
    assert failpoints.ACTIVE
    assert passes_that_fail(4) == failed


def test_two_actions_on_one_point_both_count() -> None:
    plan("a.b=1*error:ENOSPC;a.b=3*error:ENOSPC")
    assert passes_that_fail(4) == [1, 3]


def test_reload_starts_counting_again() -> None:
    plan("a.b=2*error:ENOSPC")
    assert passes_that_fail(2) == [2]
    plan("a.b=2*error:ENOSPC")
    assert passes_that_fail(2) == [2]


@pytest.mark.parametrize(
    "text",
    [
        "a.b",
        "=kill",
        "a b=kill",
        "a.b=",
        "a.b=explode",
        "a.b=0*kill",
        "a.b=-1*kill",
        "a.b=x*kill",
        "a.b=*kill",
        "a.b=+*kill",
        "a.b=error",
        "a.b=error:",
        "a.b=error:ENOSUCH",
        "a.b=error:errorcode",
        "a.b=kill:9",
    ],
)
def test_a_plan_that_cannot_be_read_is_refused_and_the_old_one_stays(text: str) -> None:
    plan("a.b=error:ENOSPC")
    with pytest.raises(ValueError, match="HOLDFAST_POINTS"):
        plan(text)
    assert passes_that_fail(1) == [1]


def test_pause_without_a_socket_is_refused() -> None:
    with pytest.raises(ValueError, match="HOLDFAST_POINTS_SOCKET"):
        failpoints.reload({"HOLDFAST_POINTS": "a.b=pause"})


@given(st.text())
def test_any_text_is_a_plan_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        plan(text)


names = st.from_regex(r"[a-z]+(\.[a-z_]+)?", fullmatch=True)
counts = st.none() | st.integers(1, 10**6).flatmap(lambda n: st.sampled_from([f"{n}*", f"{n}+*"]))
verbs = st.sampled_from(["kill", "stop", "pause", "notify", "error:EIO", "error:ENOSPC"])


@given(st.lists(st.tuples(names, counts, verbs)))
def test_every_plan_of_the_grammar_is_taken(entries: list[tuple[str, str | None, str]]) -> None:
    plan(";".join(f"{name}={count or ''}{verb}" for name, count, verb in entries))
    assert bool(entries) is failpoints.ACTIVE


def test_kill_ends_the_process_at_that_pass(world: World, points: Points) -> None:
    points.set("test.place=2*kill")
    host = world.host(PASS_TWICE)
    assert host.wait() == -signal.SIGKILL
    assert [host.line(), host.line()] == ["passed", ""]


def test_stop_stops_the_process_until_it_is_continued(world: World, points: Points) -> None:
    points.set("test.place=2*stop")
    host = world.host(PASS_TWICE)
    assert host.line() == "passed"

    def stopped() -> bool:
        row = processes.look(host.pid)
        return row is not None and row.state == "T"

    until(stopped)
    host.signal(signal.SIGCONT)
    assert host.line() == "passed"
    assert host.wait() == 0


def test_pause_holds_the_process_until_it_is_released(world: World, points: Points) -> None:
    points.set("test.place=1*pause;test.place=2*notify")
    host = world.host(PASS_TWICE)
    first = points.wait("test.place")
    assert (first.pid, first.paused) == (host.pid, True)
    first.release()
    second = points.wait("test.place")
    assert (second.pid, second.paused) == (host.pid, False)
    assert host.wait() == 0


def test_a_process_held_by_a_test_that_is_over_continues(world: World, points: Points) -> None:
    points.set("test.place=pause")
    host = world.host(PASS_TWICE)
    points.wait("test.place")
    points.close()
    assert host.wait() == 0


def test_a_broken_plan_stops_a_process_at_its_start(world: World) -> None:
    argv = [sys.executable, "-c", "import holdfast.core.failpoints"]
    program = world.program(argv, env={"HOLDFAST_POINTS": "nonsense"})
    assert program.wait() == 1
    assert "nonsense" in program.errors()


def test_abilities_are_switched_off_by_name() -> None:
    failpoints.reload({"HOLDFAST_OFF": "pidfd, launcher"})
    assert [name for name in failpoints.ABILITIES if failpoints.off(name)] == ["pidfd", "launcher"]
    failpoints.reload({})
    assert not failpoints.off("pidfd")


def test_an_unknown_ability_is_refused() -> None:
    with pytest.raises(ValueError, match="teleport"):
        failpoints.reload({"HOLDFAST_OFF": "teleport"})
    with pytest.raises(ValueError, match="teleport"):
        failpoints.off("teleport")


def test_points_of_this_process_follow_the_fixture(points: Points) -> None:
    points.set("a.b=error:ENOSPC")
    assert not failpoints.ACTIVE
    points.off("pidfd")
    assert failpoints.off("pidfd")
    points.set("a.b=error:ENOSPC", here=True)
    assert passes_that_fail(1) == [1]
    assert failpoints.off("pidfd")
    points.clear()
    assert not failpoints.ACTIVE
    assert "HOLDFAST_POINTS" not in os.environ
    with pytest.raises(ValueError, match="the test itself"):
        points.set("a.b=2*kill", here=True)


def test_every_point_is_named_by_a_test() -> None:
    assert sorted(set(support_points.all_points()) - support_points.points_in_tests()) == []
