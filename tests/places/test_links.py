"""Links break, hosts and deputies are killed, places hang or vanish: the command goes on, and its end is told once."""

from __future__ import annotations

import hashlib
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from support import signal_file
from support.places import deputies, kill_deputies
from support.probe import random_bytes
from support.waiting import until

if TYPE_CHECKING:
    from holdfast import Holdfast, Session
    from support.places import Away
    from support.points import Points
    from support.world import World

OWNER = "agent-7"
# Lines, each of them numbered, until it is told to end.
COUNT = """
import os, select, sys
gate, n = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK), 0
while not os.read(gate, 1) if select.select([gate], [], [], 0)[0] else True:
    n += 1
    print(n, flush=True)
    select.select([], [], [], 0.002)
sys.exit(5)
"""
HOST = """
import sys, holdfast
with holdfast.open() as hf:
    session = hf.start(["python3", "-I", "-S", "-c", sys.argv[2], sys.argv[3]], place=sys.argv[1], owner="agent-7")
    print(session.id)
    for page in session.follow():
        pass
"""

LOOK = """
import holdfast, sys
print(holdfast.open().get(sys.argv[1]).state)
"""


def is_unbroken(session: Session) -> bool:
    lines = session.text().splitlines()
    return lines == [str(n) for n in range(1, len(lines) + 1)]


def test_hosts_and_deputy_killed_lose_no_line_and_no_code(hf: Holdfast, away: Away, world: World) -> None:
    gate = away.gate()
    host = world.host(HOST, away.place, COUNT, gate)
    session = hf.get(host.line())
    session.wait(match="^100$", timeout=30)
    for _ in range(2):
        host.kill()
        kill_deputies(world)
        assert session.refresh().state == "running", "whoever looks sends another deputy"
        seen = len(session.text().splitlines())
        session.wait(match=f"^{seen + 50}$", timeout=30)
    gate.release()
    assert session.wait(timeout=30).reason == "exit"
    assert session.exit is not None
    assert session.exit.code == 5
    assert is_unbroken(session)
    assert len(until(lambda: signal_file.endings(world, session.id), what="the signal of its end")) == 1


def test_an_end_that_happened_while_no_host_was_running_is_reported_once(
    hf: Holdfast, away: Away, world: World
) -> None:
    gate = away.gate()
    session = hf.start(away.probe("quiet", "await", gate, "say", "late", "exit", 4), owner=OWNER, place=away.place)
    kill_deputies(world)
    there = away.guests / session.id
    gate.release()
    until((there / "exit.json").exists, watch=there)
    assert session.wait(timeout=30).reason == "exit"
    assert session.exit is not None
    assert (session.exit.code, session.text()) == (4, "late\n")
    for _ in range(2):
        with world.open() as another:
            assert another.get(session.id).state == "exited"
            assert [each.variant for each in another.signals(OWNER).claim()] in (["lifecycle"], [])
    assert len(until(lambda: signal_file.endings(world, session.id), what="the signal of its end")) == 1


def test_a_host_that_only_waits_for_signals_starts_another_deputy(hf: Holdfast, away: Away, world: World) -> None:
    gate = away.gate()
    session = hf.start(away.probe("quiet", "await", gate, "exit", 4), owner=OWNER, place=away.place)
    listening = iter(hf.signals(OWNER))
    got: list[str] = []
    waiting = threading.Thread(target=lambda: got.extend(each.variant for each in next(listening)))
    waiting.start()
    (first,) = deputies(world)
    for _ in range(2):
        kill_deputies(world)
        until(lambda: [row for row in deputies(world) if row.pid != first.pid], what="another deputy")
    gate.release()
    waiting.join(30)
    assert got == ["lifecycle"]
    assert session.refresh().state == "exited"


def test_a_deputy_that_is_killed_on_its_way_is_followed_by_another(
    hf: Holdfast, away: Away, world: World, points: Points
) -> None:
    gate = away.gate()
    session = hf.start(away.probe("quiet", "await", gate, "exit", 4), owner=OWNER, place=away.place)
    points.set("deputy.sent=pause")
    consumer = hf.signals(OWNER)
    with consumer.waker() as waker:
        assert not waker.wait(0.1), "and from here on it knows whose death to notice"
        woke: list[bool] = []
        waiting = threading.Thread(target=lambda: woke.append(waker.wait(30)))
        waiting.start()
        kill_deputies(world)
        on_its_way = points.wait("deputy.sent", 20)
        points.clear()
        on_its_way.kill()
        gate.release()
        waiting.join(30)
        assert woke == [True]
    assert [each.variant for each in consumer.claim()] == ["lifecycle"]
    assert session.refresh().state == "exited"


def test_a_search_with_another_engine_finds_it_too(
    in_podman: Away, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = world.open().start(in_podman.probe("forever"), place=in_podman.place)
    kill_deputies(world)
    with monkeypatch.context() as other:
        other.delenv("CONTAINERS_CONF")
        other.setenv("CONTAINERS_STORAGE_CONF", "/nowhere")
        assert session.refresh().state == "running"
    session.stop(grace=0)


def test_endpoints_that_a_reboot_took_away_are_made_elsewhere(
    remote: Away, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = world.open().start(remote.probe("quiet", "read-line"), stdin="open", place=remote.place)
    kill_deputies(world)
    world.end_launchers()
    shutil.rmtree(world.runtime_base)
    runtime = world.root / "run2"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    with world.open() as hf:
        found = hf.get(session.id)
        assert found.state == "running"
        found.send("on\n")
        assert found.wait(timeout=30).reason == "exit"
        assert found.text() == "got on\n"


def test_two_hosts_that_look_at_once_start_one_deputy(hf: Holdfast, away: Away, world: World) -> None:
    session = hf.start(away.probe("forever"), place=away.place)
    kill_deputies(world)
    looks = [
        world.host("import holdfast, sys\nprint(holdfast.open().get(sys.argv[1]).state)", session.id) for _ in "ab"
    ]
    assert [look.line(20) for look in looks] == ["running", "running"]
    until(lambda: len(deputies(world)) == 1, what="one deputy: who came too late has left")
    session.stop(grace=0)


def test_output_larger_than_the_log_comes_whole_as_far_as_it_is_kept(hf: Holdfast, away: Away) -> None:
    size, cap = 20 << 20, 12 << 20
    session = hf.start(away.probe("quiet", "bytes", size, 7), log_cap=cap, place=away.place)
    assert session.wait(timeout=30).reason == "exit"
    dropped = session.refresh().dropped_before["stdout"]
    assert 0 < dropped < size
    expected = b"".join(random_bytes(size, 7))
    kept = b"".join(session.raw("stdout", dropped))
    assert len(kept) == size - dropped
    assert hashlib.sha256(kept).digest() == hashlib.sha256(expected[dropped:]).digest()
