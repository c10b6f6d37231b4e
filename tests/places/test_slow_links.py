"""Links that are slow, or slow to come about: what is asked gets through, and who gives up leaves nothing behind."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.nodes.offering import far_end
from support import processes
from support.places import deputies
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.node_hosts import NodeHost
    from support.places import Away
    from support.world import World

    LinkThrough = Callable[..., tuple[str, Callable[[], list[str]]]]

# Runs a program and passes its output on, so many bytes a second.
SLOW = """
import os, select, subprocess, sys
program = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE)
while chunk := os.read(program.stdout.fileno(), 16384):
    os.write(1, chunk)
    select.select([], [], [], len(chunk) / float(sys.argv[1]))
sys.exit(program.wait())
"""
BYTES_A_SECOND = 2 << 20

HOST = """
import sys, holdfast
with holdfast.open() as hf:
    print("begins", flush=True)
    hf.start(["sleep", "600"], place=sys.argv[1], name="given up")
"""


@pytest.fixture(params=["ssh", pytest.param("node", marks=[pytest.mark.covers("nodes:23"), pytest.mark.long])])
def link_through(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LinkThrough:
    """Makes a place whose link passes through this program, and what lists the sessions there."""

    def made(*program: str) -> tuple[str, Callable[[], list[str]]]:
        if request.param == "ssh":
            away: Away = request.getfixturevalue("over_ssh")
            ssh = request.getfixturevalue("ssh_host").argv
            monkeypatch.setenv("HOLDFAST_PLACES_SSH", shlex.join([*program, *ssh]))
            return away.place, away.sessions
        host: NodeHost = request.getfixturevalue("node_with")([*program, *far_end()])
        guests = host.home / ".local/state/holdfast/guests/sessions"
        return host.place, lambda: os.listdir(guests) if guests.exists() else []

    # Before the test's own world is closed.
    request.getfixturevalue("over_ssh" if request.param == "ssh" else "node_with")
    return made


def test_a_flood_over_a_slow_link_can_be_looked_at_and_stopped(world: World, link_through: LinkThrough) -> None:
    slow = world.root / "slow.py"
    slow.write_text(SLOW)
    place, _ = link_through(sys.executable, "-I", "-S", str(slow), str(BYTES_A_SECOND))
    session = world.open().start(["yes", "a line of a flood that goes on and on"], place=place, log_cap="8M")
    until(lambda: session.refresh().ends["stdout"] > 64 << 20, 30, what="a flood that is far ahead of the link")
    assert session.refresh().state == "running"
    assert session.stop(grace=5).survivors == []
    assert session.wait(timeout=30).reason == "exit"
    dropped, end = session.refresh().dropped_before["stdout"], session.ends["stdout"]
    kept = b"".join(session.raw("stdout", since=dropped))
    assert len(kept) == end - dropped


def test_a_host_that_dies_while_the_link_is_made_leaves_nothing_behind(world: World, link_through: LinkThrough) -> None:
    gate = world.gate()
    late = world.root / "late.sh"
    late.write_text(f'#!/bin/sh\nhead -c1 {gate} > /dev/null\nexec "$@"\n')
    late.chmod(0o700)
    place, sessions = link_through(str(late))
    host = world.host(HOST, place)
    assert host.line() == "begins"
    coming = f"/bin/sh {late}"
    until(lambda: started_with(coming), what="a link that is coming about")
    host.kill()
    gate.release()
    begun = (coming, "holdfast.nodes.link" if place.startswith("node:") else place.removeprefix("ssh:"))
    until(lambda: not any(map(started_with, begun)), what="the end of the link")
    until(lambda: not deputies(world), what="the end of the deputy")
    assert os.listdir(world.home / "sessions") == []
    assert sessions() == []
    assert world.open().sessions(all=True) == []


def started_with(word: str) -> list[int]:
    return [pid for pid in processes.table() if word in processes.command_line(pid)]


def test_a_command_gets_no_variable_that_its_place_does_not_have(world: World, remote: Away) -> None:
    done = world.open().run("env", place=remote.place)
    names = {line.partition("=")[0] for line in done.text().splitlines()}
    assert not names & {"LC_CTYPE", "HOLDFAST_ROLE"}
