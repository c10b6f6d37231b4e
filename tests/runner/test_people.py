"""Whoever is called to tell people: one at a time, with the lock, and no part of the session's tree."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import processes as tree
from holdfast.runner.people_notifier import LOCK_FD, PeopleNotifier, lock_path, take_lock
from support import processes
from support.points import Points
from support.waiting import until
from support.world import World

FAILED = {"id": "b7k2m9qa1.1", "lifecycle": {"phase": "ended", "status": "failed", "cause": "exit"}}
DONE = {"id": "b7k2m9qa1.1", "lifecycle": {"phase": "ended", "status": "completed", "cause": "exit"}}

Call = Callable[..., PeopleNotifier]


# Children of ours that are of other tests.
_others: set[int] = set()


@pytest.fixture(autouse=True)
def others() -> None:
    _others.clear()
    _others.update(_children())


@pytest.fixture
def home(world: World) -> Path:
    (world.home / "locks").mkdir(parents=True)
    return world.home


@pytest.fixture
def called(world: World, home: Path) -> Iterator[Call]:
    """Makes one whose deliverer is the probe, which says its words and is given the home as the last of them."""

    def made(
        *words: object, said: list[str] | None = None, environment: dict[str, str] | None = None
    ) -> PeopleNotifier:
        settings = {"events": ["failed", "needs_input"], "argv": world.probe("quiet", *words, "touch")}
        say = (said if said is not None else []).append
        return PeopleNotifier(str(home / "home"), settings, {**os.environ, **(environment or {})}, say)

    (home / "home" / "locks").mkdir(parents=True)
    yield made
    until(_reaped)


def _reaped() -> bool:
    """Is nobody left whom we called?"""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return not _children() - _others


def _children() -> set[int]:
    return {row.pid for row in processes.table().values() if row.ppid == os.getpid()}


def _is_free(path: Path) -> bool:
    lock = take_lock(str(path))
    if lock is not None:
        os.close(lock)
    return lock is not None


def test_a_signal_for_people_calls_a_deliverer_that_has_the_lock_and_the_home(
    world: World, home: Path, called: Call
) -> None:
    gate, go = world.gate(), world.gate()
    people = called("tell", gate, "here", "await", go)
    people.consider("lifecycle", FAILED, None)
    assert gate.line() == "here"
    assert not _is_free(home / "home")
    people.consider("lifecycle", FAILED, None)
    go.release()
    until(_reaped)
    assert _is_free(home / "home"), "its end frees it"
    # `touch HOME/home` made a file in a directory that is there: the home is its last word.
    assert (home / "home").is_dir()


def test_an_event_that_is_not_for_people_starts_no_deliverer(world: World, called: Call) -> None:
    people = called("touch", world.root / "came")
    people.consider("lifecycle", DONE, None)
    people.consider("lifecycle", FAILED, False)
    people.consider("heartbeat", {"heartbeat": {}}, None)
    assert _reaped()
    people.consider("lifecycle", DONE, True)
    until((world.root / "came").exists, watch=world.root)


def test_no_deliverer_is_started_while_a_host_delivers(world: World, home: Path, called: Call) -> None:
    people = called("touch", world.root / "came")
    lock = take_lock(str(home / "home"))
    assert lock is not None
    assert take_lock(str(home / "home")) is None
    people.consider("lifecycle", FAILED, None)
    assert _reaped()
    os.close(lock)
    people.consider("lifecycle", FAILED, None)
    until((world.root / "came").exists, watch=world.root)


def test_a_deliverer_is_no_part_of_the_session(world: World, called: Call) -> None:
    gate, go = world.gate(), world.gate()
    people = called(
        *("fork", "{", "tell", gate, "child", "await", go, "}", "print-env", tree.SESSION_VARIABLE),
        *("tell", gate, "parent", "await", go),
        environment={tree.SESSION_VARIABLE: "b7k2m9qa1", "KEEP": "this"},
    )
    people.consider("lifecycle", FAILED, None)
    assert {gate.line(), gate.line()} == {"child", "parent"}
    found = _below_us("KEEP", "this")
    assert len(found) == 2
    for process in found:
        environment = tree.environment(process)
        assert environment[tree.ROLE_VARIABLE] == "people"
        assert tree.SESSION_VARIABLE not in environment
        assert os.getsid(process) != os.getsid(0)
    assert not {process.pid for process in tree.descendants(os.getpid())} & set(found)
    go.release(2)


def _below_us(variable: str, value: str) -> list[int]:
    """Our descendants that have it."""
    below = {os.getpid()}
    table = tree.everyone()
    while more := {pid for pid, process in table.items() if process.parent in below} - below:
        below |= more
    return [pid for pid in sorted(below - {os.getpid()}) if tree.environment(pid).get(variable) == value]


def test_the_lock_is_where_the_deliverer_looks_for_it(world: World, home: Path) -> None:
    code = (
        f"import os, sys; print(os.fstat({LOCK_FD}).st_ino, sys.argv[1], file=open({str(world.root / 'out')!r}, 'w'))"
    )
    said: list[str] = []
    PeopleNotifier(str(home), {"events": ["failed"], "argv": [sys.executable, "-c", code]}, {}, said.append).consider(
        "lifecycle", FAILED, None
    )
    until(_reaped)
    assert said == []
    assert (world.root / "out").read_text() == f"{os.stat(lock_path(str(home))).st_ino} {home}\n"


def test_a_deliverer_that_cannot_be_started_is_reported_and_holds_up_nothing(
    home: Path, points: Points, called: Call
) -> None:
    said: list[str] = []
    settings: dict[str, Any] = {"events": ["failed"], "argv": ["/nonexistent/python"]}
    PeopleNotifier(str(home), settings, {}, said.append).consider("lifecycle", FAILED, None)
    PeopleNotifier(str(home / "nowhere"), settings, {}, said.append).consider("lifecycle", FAILED, None)
    points.set("people.start=error:EAGAIN", here=True)
    called("quiet", said=said).consider("lifecycle", FAILED, None)
    assert len(said) == 3
    assert all("notifies people" in each for each in said)
    assert _is_free(home)


def test_a_planted_link_is_not_followed(world: World, home: Path) -> None:
    (home / "locks" / "people").symlink_to(world.root / "elsewhere")
    said: list[str] = []
    PeopleNotifier(str(home), {"events": ["failed"], "argv": [sys.executable]}, {}, said.append).consider(
        "lifecycle", FAILED, None
    )
    assert len(said) == 1
    assert not (world.root / "elsewhere").exists()


def test_a_lock_of_another_host_counts_for_every_observer(home: Path) -> None:
    fd = os.open(lock_path(str(home)), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert take_lock(str(home)) is None
    os.close(fd)
    assert _is_free(home)
