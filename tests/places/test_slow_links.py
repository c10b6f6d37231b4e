"""Links that are slow, or slow to come about: what is asked gets through, and who gives up leaves nothing behind."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

import pytest

from support import processes
from support.places import deputies
from support.waiting import until

if TYPE_CHECKING:
    from holdfast import Holdfast
    from support.places import Away
    from support.ssh_hosts import SshHost
    from support.world import World

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


@pytest.fixture
def hf(over_ssh: Away, world: World) -> Holdfast:
    return world.open()


def test_a_flood_over_a_slow_link_can_be_looked_at_and_stopped(
    hf: Holdfast, over_ssh: Away, ssh_host: SshHost, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = world.root / "slow.py"
    slow.write_text(SLOW)
    argv = [sys.executable, "-I", "-S", str(slow), str(BYTES_A_SECOND), *ssh_host.argv]
    monkeypatch.setenv("HOLDFAST_PLACES_SSH", shlex.join(argv))
    session = world.open().start(["yes", "a line of a flood that goes on and on"], place=over_ssh.place, log_cap="8M")
    until(lambda: session.refresh().ends["stdout"] > 64 << 20, 30, what="a flood that is far ahead of the link")
    assert session.refresh().state == "running"
    assert session.stop(grace=5).survivors == []
    assert session.wait(timeout=30).reason == "exit"
    dropped, end = session.refresh().dropped_before["stdout"], session.ends["stdout"]
    kept = b"".join(session.raw("stdout", since=dropped))
    assert len(kept) == end - dropped


def test_a_host_that_dies_while_the_link_is_made_leaves_nothing_behind(
    hf: Holdfast, over_ssh: Away, ssh_host: SshHost, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = world.gate()
    late = world.root / "late.sh"
    late.write_text(f'#!/bin/sh\nhead -c1 {gate} > /dev/null\nexec "$@"\n')
    late.chmod(0o700)
    monkeypatch.setenv("HOLDFAST_PLACES_SSH", shlex.join([str(late), *ssh_host.argv]))
    host = world.host(HOST, over_ssh.place)
    assert host.line() == "begins"
    until(lambda: started_with(str(late)), what="a link that is coming about")
    host.kill()
    gate.release()
    until(lambda: not started_with(str(late)) and not started_with(ssh_host.host), what="the end of the link")
    until(lambda: not deputies(world), what="the end of the deputy")
    assert os.listdir(world.home / "sessions") == []
    assert over_ssh.sessions() == []
    assert hf.sessions(all=True) == []


def started_with(word: str) -> list[int]:
    return [pid for pid in processes.table() if word in processes.command_line(pid)]


def test_a_command_gets_no_variable_that_its_place_does_not_have(world: World, remote: Away) -> None:
    done = world.open().run("env", place=remote.place)
    names = {line.partition("=")[0] for line in done.text().splitlines()}
    assert not names & {"LC_CTYPE", "HOLDFAST_ROLE"}
