"""OWN-07 and OWN-12: commands that eat all memory, and commands that cannot start."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import SpawnError, Unsupported
from support.bystander import Bystanders
from support.points import Points
from support.promised import Beside, home_is_usable, is_typed, promised, with_control_groups
from support.waiting import until
from support.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY_BYTES = 64 << 20


def limited_groups(id: str) -> list[Path]:
    """Control groups that were made for this session, wherever they stand."""
    return [Path(found) for found, _, _ in os.walk("/sys/fs/cgroup") if found.endswith(f"holdfast-{id}")]


@pytest.mark.covers("OWN-07")
@pytest.mark.root
@with_control_groups
def test_own_07_the_kernel_takes_the_command_that_eats_all_memory_and_the_runner_says_so(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    """The limit is a control group of the older or of the unified hierarchy, whichever the machine has."""
    hf = world.open()
    session = hf.start(world.probe("lines", 30, "alloc", 300, "say", "never"), memory=MEMORY_BYTES)
    assert session.wait(exit=True, timeout=30).reason == "exit"
    promised(world, session, bystander=bystander, beside=beside, numbers=30)
    assert session.exit is not None
    assert (session.exit.signal, session.exit.cause, session.exit.oom) == ("SIGKILL", "out_of_memory", True)
    assert "never" not in session.text()
    assert session.status == "failed"
    until(lambda: not limited_groups(session.id), what="the end of its control group")


@pytest.mark.covers("OWN-07")
@pytest.mark.root
def test_own_07_an_allocator_in_the_tree_is_taken_and_the_command_continues(
    world: World, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    eater = " ".join(world.probe("quiet", "alloc", 300))
    session = hf.start(f"{eater}; echo eater left with $?; exit 3", memory=MEMORY_BYTES)
    assert session.wait(exit=True, timeout=30).reason == "exit"
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    # The command ended by itself, so its code is its own; that memory ran out in its tree is told beside it.
    assert (session.exit.code, session.exit.cause, session.exit.oom) == (3, "exit", True)
    assert "eater left with 137\n" in session.text()


@pytest.mark.covers("OWN-07")
@pytest.mark.root
def test_own_07_the_arguments_are_no_burden_for_the_runner_at_the_smallest_limit(
    world: World, beside: Beside, bystander: Bystanders
) -> None:
    """Until its exec the new process shares the runner's memory, and the kernel would kill both."""
    command = ["sh", "-c", "echo $#; exit 3", *["a"] * 100_000]
    session = world.open().start(command, memory="8M")
    assert session.wait(exit=True, timeout=30).reason == "exit"
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    # The shell may need more for its arguments than the limit.
    assert (session.exit.cause, session.exit.code) in (("exit", 3), ("out_of_memory", None))


@pytest.mark.covers("OWN-07")
def test_own_07_a_kill_of_unknown_origin_is_signal_9_without_a_guess(
    world: World, beside: Beside, bystander: Bystanders
) -> None:
    session = world.open().start(world.probe("lines", 3, "die", "KILL"))
    assert session.wait(exit=True, timeout=30).reason == "exit"
    promised(world, session, bystander=bystander, beside=beside, numbers=3)
    assert session.exit is not None
    assert (session.exit.signal, session.exit.cause, session.exit.oom) == ("SIGKILL", "signal", False)


@pytest.mark.covers("OWN-07")
def test_own_07_a_limit_that_cannot_be_kept_is_refused_and_nothing_starts(
    world: World, points: Points, beside: Beside, bystander: Bystanders
) -> None:
    points.off("cgroup")
    hf = world.open()
    with pytest.raises(Unsupported, match="memory") as told:
        hf.start(world.probe("touch", world.root / "ran"), memory=MEMORY_BYTES)
    is_typed(told.value)
    assert not (world.root / "ran").exists()
    assert [each.owner for each in hf.sessions(all=True)] == ["beside"]
    home_is_usable(hf)


def missing_file(world: World) -> tuple[list[str], str, int, str]:
    path = str(world.root / "nothing here")
    return [path], "exec", errno.ENOENT, path


def missing_in_path(_: World) -> tuple[list[str], str, int, str]:
    return ["no-such-program-anywhere"], "exec", errno.ENOENT, "no-such-program-anywhere"


def without_x(world: World) -> tuple[list[str], str, int, str]:
    path = world.root / "plain"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o600)
    return [str(path)], "exec", errno.EACCES, str(path)


def a_directory(world: World) -> tuple[list[str], str, int, str]:
    return [str(world.root)], "exec", errno.EACCES, str(world.root)


def bad_interpreter(world: World) -> tuple[list[str], str, int, str]:
    path = world.root / "script"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o700)
    return [str(path)], "interpreter", errno.ENOENT, str(path)


def not_a_program(world: World) -> tuple[list[str], str, int, str]:
    path = world.root / "garbage"
    path.write_bytes(b"\x00\x01\x02\x03")
    path.chmod(0o700)
    return [str(path)], "exec", errno.ENOEXEC, str(path)


def too_long(_: World) -> tuple[list[str], str, int, str]:
    return ["/bin/true", "x" * (1 << 18)], "exec", errno.E2BIG, "/bin/true"


CASES = [missing_file, missing_in_path, without_x, a_directory, bad_interpreter, not_a_program, too_long]


@pytest.mark.covers("OWN-12")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_own_12_a_command_that_cannot_start_says_which_step_failed_on_what(
    world: World,
    without: str,
    beside: Beside,
    bystander: Bystanders,
    case: Callable[[World], tuple[list[str], str, int, str]],
) -> None:
    hf = world.open()
    command, step, number, path = case(world)
    with pytest.raises(SpawnError) as told:
        hf.run(command, wait=30)
    assert (told.value.step, told.value.errno, told.value.path) == (step, number, path)
    session = hf.get("last")
    promised(world, session, bystander=bystander, beside=beside, error=told.value)
    assert session.exit is not None
    assert (session.state, session.status, session.exit.cause) == ("exited", "failed", "spawn_error")
    recorded = json.loads((world.session(session.id) / "exit.json").read_text())
    assert (recorded["error"]["errno"], recorded["error"]["step"]) == (number, step)
    assert session.wait(exit=True, timeout=30).reason == "exit"
    home_is_usable(hf)


STARTER = """
import sys, holdfast, holdfast.errors
hf = holdfast.open()
try:
    hf.start(["true"], cwd=sys.argv[1])
except holdfast.errors.SpawnError as problem:
    print(problem.code, problem.step, problem.errno, problem.path)
"""


@pytest.mark.covers("OWN-12")
@pytest.mark.parametrize("fate", ["deleted", "replaced by a file", "never there"])
def test_own_12_a_directory_that_went_between_spec_and_exec_is_named(
    world: World, points: Points, without: str, beside: Beside, bystander: Bystanders, fate: str
) -> None:
    cwd = world.root / "there"
    if fate != "never there":
        cwd.mkdir()
    points.set("runner.before_spawn=pause")
    host = world.host(STARTER, cwd)
    hit = points.wait("runner.before_spawn")
    if fate != "never there":
        cwd.rmdir()
    if fate == "replaced by a file":
        cwd.touch()
    hit.release()
    number = errno.ENOTDIR if fate == "replaced by a file" else errno.ENOENT
    assert host.line() == f"spawn-error cwd {number} {cwd}"
    points.clear()
    hf = world.open()
    session = promised(world, hf.get("last"), bystander=bystander, beside=beside)
    assert session.exit is not None
    assert session.exit.cause == "spawn_error"
    home_is_usable(hf)


def test_own_12_a_waiter_that_came_before_the_failure_wakes(
    world: World, points: Points, beside: Beside, bystander: Bystanders
) -> None:
    points.set("runner.before_spawn=pause")
    cwd = world.root / "there"
    cwd.mkdir()
    world.host(STARTER, cwd)
    hit = points.wait("runner.before_spawn")
    points.clear()
    hf = world.open()
    [id] = [path.name for path in (world.home / "sessions").iterdir() if path.name != beside.session.id]
    waiter = world.host(
        "import sys, holdfast\nprint('waiting')\nprint(holdfast.open().get(sys.argv[1]).wait(exit=True).reason)", id
    )
    assert waiter.line() == "waiting"
    cwd.rmdir()
    hit.release()
    assert waiter.line() == "exit"
    session = promised(world, hf.get(id), bystander=bystander, beside=beside)
    assert session.exit is not None
    assert session.exit.cause == "spawn_error"
