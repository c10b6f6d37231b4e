"""`hold up`, `down` and `ps`: a project of services from `holdfast.toml` or a `Procfile`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast import Holdfast, Session
    from support.world import World

FILE = """
[project]
name = "shop"

[session.web]
command = "test -e api-ready && test -e migrated || exit 9; echo web-is-up; exec sleep 600"
after = ["api:ready", "migrate:exit"]
ready = "line:web-is-up"

[session.api]
command = ["sh", "-c", "test -e go || exec sleep 600; touch api-ready; echo api-is-up; exec sleep 600"]
after = ["db"]
ready = "line:api-is-up"

[session.db]
command = "echo db-is-up; exec sleep 600"
ready = "line:db-is-up"

[session.migrate]
command = "touch migrated; echo migrated"
after = ["db"]

[session.mail]
command = "exec sleep 600"
env = { MODE = "test" }
"""
ORDER = ["db", "api", "migrate", "web", "mail"]


@pytest.fixture
def folder(world: World) -> Iterator[Path]:
    made = world.cwd / "one"
    made.mkdir()
    yield made
    for session in opened(world).sessions():
        session.kill()


def hold(world: World, folder: Path, *words: str) -> tuple[int, str, str]:
    argv = ["env", "-C", str(folder), *world.hold_argv(*words)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def opened(world: World, _known: dict[Path, Holdfast] = {}) -> Holdfast:  # noqa: B006
    """One host for each test."""
    if world.root not in _known:
        _known.clear()
        _known[world.root] = world.open()
    return _known[world.root]


def services(world: World, folder: Path) -> dict[str, Session]:
    live = [each for each in opened(world).sessions() if each.cwd == str(folder)]
    return {each.labels["service"]: each for each in live}


def every(world: World, folder: Path) -> list[str]:
    """Each session of the project, in the order of their starts."""
    found = [each for each in opened(world).sessions(all=True) if each.cwd == str(folder)]
    return [each.labels["service"] for each in sorted(found, key=lambda each: each.created_at or "")]


@pytest.mark.covers("habits:12")
def test_five_services_come_up_in_order_and_go_down_in_reverse(world: World, folder: Path) -> None:
    (folder / "holdfast.toml").write_text(
        FILE.replace("test -e go || exec sleep 600", "until test -e go; do sleep 0.1; done")
    )
    up = world.program(world.hold_argv("up"), prefix=("env", "-C", str(folder)))
    # The slow one is awaited: what needs it has not been started.
    until(lambda: set(services(world, folder)) >= {"db", "api"}, what="db and api")
    until(lambda: every(world, folder) == ["db", "api", "migrate"], what="the start of all that does not need api")
    (folder / "go").touch()
    assert up.wait(30) == 0
    assert every(world, folder) == ORDER
    first = services(world, folder)
    assert set(first) == {"db", "api", "web", "mail"}
    assert first["web"].labels == {"project": "shop", "service": "web"}
    assert all(first[name].refresh().metadata["ready"]["ok"] for name in ("db", "api", "web"))
    # One is edited: that one is started again, the others are left alone.
    text = (folder / "holdfast.toml").read_text()
    (folder / "holdfast.toml").write_text(text.replace('MODE = "test"', 'MODE = "live"'))
    code, _, said = hold(world, folder, "up")
    assert code == 0, said
    second = services(world, folder)
    assert {name for name in second if second[name].id != first[name].id} == {"mail"}
    assert "migrate: already done" in said
    assert "migrate: waiting" not in said
    assert every(world, folder) == [*ORDER, "mail"]
    code, listed, _ = hold(world, folder, "ps", "--json")
    assert set(json.loads(listed)) == set(ORDER)
    code, gone, _ = hold(world, folder, "down")
    assert code == 0
    assert [line.partition(":")[0] for line in gone.splitlines()] == ["mail", "web", "api", "db"]
    ends = {name: second[name].refresh().ended_at or "" for name in second}
    assert sorted(ends, key=lambda name: ends[name]) == ["mail", "web", "api", "db"]
    assert services(world, folder) == {}


@pytest.mark.covers("habits:12")
def test_a_service_that_fails_is_named_with_its_last_lines(world: World, folder: Path) -> None:
    (folder / "holdfast.toml").write_text(FILE.replace("echo migrated", "echo no table; exit 3"))
    (folder / "go").touch()
    code, _, said = hold(world, folder, "up")
    assert code == 1
    assert "migrate (" in said
    assert "failed:\n  no table\n" in said
    assert "web" not in every(world, folder)


@pytest.mark.covers("habits:12")
def test_an_up_that_was_killed_is_finished_by_the_next_and_starts_nothing_twice(world: World, folder: Path) -> None:
    (folder / "holdfast.toml").write_text(
        FILE.replace("test -e go || exec sleep 600", "until test -e go; do sleep 0.1; done")
    )
    up = world.program(world.hold_argv("up"), prefix=("env", "-C", str(folder)))
    until(lambda: "migrate" in every(world, folder), what="the middle of the start")
    os.kill(up.pid, signal.SIGKILL)
    up.wait(30)
    (folder / "go").touch()
    code, _, said = hold(world, folder, "up")
    assert code == 0, said
    assert every(world, folder) == ORDER


def test_two_ups_at_the_same_time_start_each_service_once(world: World, folder: Path) -> None:
    (folder / "Procfile").write_text("".join(f"job{n}: exec sleep 600\n" for n in range(4)))
    both = [world.program(world.hold_argv("up"), prefix=("env", "-C", str(folder))) for _ in range(2)]
    assert [each.wait(60) for each in both] == [0, 0]
    assert sorted(every(world, folder)) == ["job0", "job1", "job2", "job3"]


@pytest.mark.parametrize("file", ["holdfast.toml", "Procfile"])
def test_the_same_project_in_two_directories_does_not_collide(world: World, folder: Path, file: str) -> None:
    other = world.cwd / "two"
    other.mkdir()
    text = FILE if file.endswith("toml") else "# all\nweb: echo $PORT; exec sleep 600\nmail: exec sleep 600\n"
    for each in (folder, other):
        (each / file).write_text(text)
        (each / "go").touch()
        code, _, said = hold(world, each, "up")
        assert code == 0, said
    one, two = services(world, folder), services(world, other)
    assert set(one) == set(two) >= {"web", "mail"}
    assert not {each.id for each in one.values()} & {each.id for each in two.values()}
    if file == "Procfile":
        assert one["web"].wait(match="5000", timeout=30).reason == "match"
    below = other / "below"
    below.mkdir()
    assert hold(world, below, "down")[0] == 0
    assert services(world, other) == {}
    assert {each.refresh().state for each in one.values()} == {"running"}


@pytest.mark.covers("habits:14")
@pytest.mark.parametrize(
    "text, line, key, word",
    [
        ("[session.a]\ncommand = 'true'\n[session.b\ncommand = 'x'\n", 3, "", "not TOML"),
        ("[session.a]\ncommand = 'true'\nredy = 'port:1'\n", 3, "session.a.redy", "did you mean ready?"),
        ("[sesion.a]\ncommand = 'true'\n", 1, "sesion", "did you mean session?"),
        ("[session.a]\ncommand = 'true'\n[session.b]\ncwd = '.'\n", 3, "session.b.command", "must be a line"),
        ("[session.a]\ncommand = 'true'\nrestart = 'sometimes'\n", 3, "session.a.restart", "sometimes"),
        ("[session.a]\ncommand = 'true'\ncwd = 'no/such'\n", 3, "session.a.cwd", "not a directory"),
        (
            "[session.a]\ncommand = 'true'\nafter = ['b']\n[session.b]\ncommand = 'true'\nafter = ['a']\n",
            *(4, "session.b.after", "a -> b -> a"),
        ),
        (
            "[session.a]\ncommand = 'true'\n[session.b]\ncommand = 'x'\nafter = ['aa']\n",
            3,
            "session.b.after",
            "mean a?",
        ),
    ],
    ids=["syntax", "key", "section", "no command", "value", "directory", "cycle", "dependency"],
)
def test_a_mistake_in_the_file_names_file_line_and_key_and_starts_nothing(
    world: World, folder: Path, text: str, line: int, key: str, word: str
) -> None:
    (folder / "holdfast.toml").write_text(text)
    code, _, said = hold(world, folder, "up")
    assert code == 2, said
    assert f"{folder / 'holdfast.toml'}:{line}: {key}" in said
    assert word in said
    assert world.open().sessions(all=True) == []


def test_without_a_project_up_says_what_to_create_and_ps_lists_as_ls_does(world: World, folder: Path) -> None:
    code, _, said = hold(world, folder, "up")
    assert code == 1
    assert "create holdfast.toml" in said
    session = world.open().start(["sleep", "600"])
    assert session.id in hold(world, folder, "ps")[1]
