"""`hold logs` of several sessions: prefixes, times, files."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from holdfast.sessions.lines import read_lines, since_moment
from support.scale import scaled

if TYPE_CHECKING:
    from support.points import Points
    from support.world import World

SESSIONS = 5
LINE = re.compile(r"^(job\d) +\| (\S+) (job\d) line (\d+)$")


@pytest.mark.covers("habits:15")
def test_following_five_busy_sessions_shows_every_line_once_with_its_name_in_time_order(world: World) -> None:
    lines = scaled(2000, 50_000)
    hf = world.open()
    loop = "until test -e go; do sleep 0.05; done; n=0; while [ $n -lt {} ]; do echo $0 line $n; n=$((n+1)); done"
    for n in range(SESSIONS):
        hf.start(["sh", "-c", loop.format(lines), f"job{n}"], name=f"job{n}", cwd=str(world.cwd))
    names = [f"job{n}" for n in range(SESSIONS)]
    follow = world.program(world.hold_argv("logs", "-f", "--timestamps", *names))
    (world.cwd / "go").touch()
    shown = []
    while line := follow.line(60):
        shown.append(line)
    assert follow.wait(60) == 0
    found = [LINE.match(line) for line in shown]
    assert all(found), shown[:3]
    parts = [match.groups() for match in found if match]
    assert all(prefix == session for prefix, _, session, _ in parts)
    assert Counter((session, int(number)) for _, _, session, number in parts) == Counter(
        (name, number) for name in names for number in range(lines)
    )
    for name in names:
        own = [(int(number), at) for _, at, session, number in parts if session == name]
        assert [number for number, _ in own] == list(range(lines))
        assert [at for _, at in own] == sorted(at for _, at in own)
    # What arrives together is in the order of its times, whatever session it is from.
    mixed = 0
    for batch in read_lines(hf, [hf.get(name).id for name in names], follow=True):
        assert [at for at, _, _ in batch] == sorted(at for at, _, _ in batch)
        mixed += len({id for _, id, _ in batch}) > 1
        # The rest arrives together: one batch of several sessions.
        for thread in sorted(threading.enumerate(), key=lambda each: each.name):
            if thread.name.startswith("lines"):
                thread.join(60)
    assert mixed
    # All has arrived now: one order of times.
    once = world.hold("logs", "--timestamps", *names, check=True).stdout.splitlines()
    assert len(once) == SESSIONS * lines
    times = [line.split(" | ")[1].split()[0] for line in once]
    assert times == sorted(times)


@pytest.mark.covers("habits:15")
def test_what_was_there_before_is_followed_in_one_order_of_times(world: World) -> None:
    hf = world.open()
    names = ["one", "two", "three"]
    sessions = [hf.start(["cat"], name=name, stdin="open", cwd=str(world.cwd)) for name in names]
    wanted = []
    for number in range(9):
        session = sessions[number % 3]
        session.send(f"line {number}\n")
        assert session.wait(match=f"line {number}$", timeout=30).reason == "match"
        wanted.append(f"{names[number % 3]:<5} | line {number}")
    for options, shown in (((), wanted), (("-n", "1"), wanted[-3:]), (("--since", "5m"), wanted)):
        follow = world.program(world.hold_argv("logs", "-f", *options, *names))
        assert [follow.line() for _ in shown] == shown
        follow.signal(signal.SIGINT)
        assert follow.wait() == 130
    for session in sessions:
        session.close_stdin()


@pytest.mark.covers("habits:15")
def test_since_five_minutes_starts_there_and_until_ends_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the runners is ten minutes behind at first."""
    behind = world.cwd / "shift"
    behind.write_text("-600")
    monkeypatch.setenv("HOLDFAST_WALL_SHIFT_FILE", str(behind))
    hf = world.open()
    line = "echo old; until test -e go; do sleep 0.05; done; echo new"
    for name in ("one", "two"):
        world.hold("start", "--name", name, "--cwd", world.cwd, "--", line, check=True)
        assert hf.get(name).wait(match="old", timeout=30).reason == "match"
    behind.write_text("0")
    (world.cwd / "go").touch()
    sessions = [hf.get(name) for name in ("one", "two")]
    for session in sessions:
        session.wait(exit=True, timeout=30)
    monkeypatch.delenv("HOLDFAST_WALL_SHIFT_FILE")

    def shown(*words: str) -> list[str]:
        return sorted(world.hold("logs", *words, check=True).stdout.splitlines())

    assert shown("one", "two") == ["one | new", "one | old", "two | new", "two | old"]
    assert shown("one", "two", "--since", "5m") == ["one | new", "two | new"]
    assert shown("one", "two", "-f", "--since", "5m") == ["one | new", "two | new"]
    assert shown("one", "--since", "5m") == ["new"]
    assert shown("one", "--since", "20m") == ["new", "old"]
    assert shown("one", "two", "--until", "5m") == ["one | old", "two | old"]
    assert shown("one", "--since", "2001-01-01T00:00:00Z", "--until", "2001-01-02T00:00:00Z") == []
    wrong = world.hold("logs", "one", "two", "--since", "yesterday")
    assert (wrong.returncode, "such as 5m" in wrong.stderr) == (2, True)


@pytest.mark.covers("habits:15")
def test_path_names_files_that_tail_reads(world: World) -> None:
    world.open().run("echo to stdout; echo to stderr >&2", name="both", wait=30)
    files = world.hold("logs", "last", "--path", check=True).stdout.split()
    read = subprocess.run(["tail", "-q", "-n", "5", *files], capture_output=True, text=True, check=True).stdout
    assert sorted(read.splitlines()) == ["to stderr", "to stdout"]
    assert world.hold("logs", "--path", "--stderr", "last", check=True).stdout.split() == files[1:]


def test_sessions_are_named_by_a_label_too(world: World) -> None:
    hf = world.open()
    for name in ("one", "two"):
        hf.start(f"echo {name}; exec sleep 600", name=name, labels={"app": "web"}).wait(match=name, timeout=30)
    shown = world.hold("logs", "--label", "app=web", check=True).stdout.splitlines()
    assert sorted(shown) == ["one | one", "two | two"]
    for session in hf.sessions():
        session.kill()


@pytest.mark.covers("habits:15")
def test_output_whose_time_is_not_recorded_yet_is_after_every_moment(world: World, points: Points) -> None:
    """It was left out: the reader saw the bytes before the runner had written when they came."""
    points.set("log.frame=pause")
    hf = world.open()
    began = time.time()
    session = hf.start("echo here; sleep 600")
    hit = points.wait("log.frame")
    try:
        assert since_moment(hf._core.log(session.id), began) == "stdout:0,stderr:0"
    finally:
        hit.release()
    session.kill()
