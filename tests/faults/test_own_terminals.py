"""OWN rows on terminals: hosts, launcher and runner die, or there is no terminal to be had."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast import Session
from holdfast.errors import RunnerGone
from support import processes
from support.bystander import Bystanders
from support.faults import kill_launchers, kill_runner, sweep_up
from support.levers import namespace_argv
from support.program import Program
from support.promised import Beside, home_is_usable, left_alone, promised, runners
from support.viewer import Viewer
from support.waiting import wait_gone
from support.world import World

TESTS = Path(__file__).resolve().parents[1]
LINES = 300

# Starts so many printers on terminals, and watches the last of them until it is killed.
STARTER = """
import sys, holdfast
hf = holdfast.open()
for n in range(int(sys.argv[1])):
    session = hf.start(sys.argv[2:], tty=True, owner="agent-7")
    print(session.id, flush=True)
print("done", flush=True)
for event in session.attach():
    print(type(event).__name__, flush=True)
"""


def numbered(session: Session) -> int:
    """How far the numbered lines go; each number once, in order, from 1 on."""
    lines = b"".join(session.raw("tty")).split(b"\r\n")[:-1]
    found = [int(line[5:]) for line in lines if line.startswith(b"line ")]
    assert found == list(range(1, len(found) + 1))
    return len(found)


def printer(world: World, *more: object) -> list[str]:
    return world.probe("lines", LINES, 0.001, *more)


@pytest.mark.covers("OWN-01", "found:34")
@pytest.mark.parametrize("seen", [1, 60, 200])
def test_own_01_a_host_killed_in_mid_output_is_not_missed_on_a_terminal(
    world: World, without: str, beside: Beside, bystander: Bystanders, seen: int
) -> None:
    host = world.host(STARTER, 1, *printer(world, "exit", 5))
    session = world.open().get(host.line())
    before = (session.pid, session.runner_pid)
    assert session.wait(match=f"^line {seen}$", timeout=30).reason == "match"
    host.kill()
    with session.attach(role="observe", lag="exact", since="start") as attachment:
        viewer = Viewer(attachment)
        assert viewer.to_the_end().code == 5
    done = promised(world, session, bystander=bystander, beside=beside)
    assert (done.pid, done.runner_pid) == before
    assert numbered(done) == LINES
    assert viewer.live == b"".join(done.raw("tty"))
    assert done.exit is not None
    assert (done.exit.code, done.exit.cause, done.exit.complete) == (5, "exit", True)
    inbox = world.open().signals("agent-7")
    with inbox.claim() as batch:
        (ended,) = batch.signals
    assert (ended.session, ended.variant, ended.phase, ended.code) == (done.id, "lifecycle", "ended", 5)
    assert inbox.pending() == 0


@pytest.mark.covers("OWN-02")
def test_own_02_twenty_terminals_outlive_every_host_and_the_launcher_and_are_attached_again(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    gate = world.gate()
    hosts = [world.host(STARTER, 5, *printer(world, "await", gate, "exit", 4)) for _ in range(4)]
    ids = [id for host in hosts for id in host.lines_until("done")[:-1]]
    for host in hosts:
        os.kill(host.pid, signal.SIGKILL)
    killed = kill_launchers(world)
    assert bool(killed) == (without != "launcher")
    for host in hosts:
        host.wait()
    hf = world.open()
    found = {session.id: hf.get(session.id) for session in hf.recover().live}
    assert set(ids) | {beside.session.id} == set(found)
    viewers = []
    for id in ids:
        session = found[id]
        assert session.metadata["evidence"] == "its runner answered"
        assert [row.pid for row in runners(world, id)] == [session.runner_pid]
        viewers.append(Viewer(world.closing.enter_context(session.attach(lag="exact"))))
    last = f"line {LINES}"
    for viewer in viewers:
        viewer.until(lambda viewer=viewer: viewer.text.endswith(last), last)  # type: ignore[misc]
    gate.release(len(ids))
    for id, viewer in zip(ids, viewers, strict=True):
        assert viewer.to_the_end().code == 4
        assert viewer.live == b"".join(found[id].raw("tty"))[viewer.live_from :]
        assert viewer.gaps == []
        done = promised(world, found[id], bystander=bystander, beside=beside)
        assert numbered(done) == LINES
        assert viewer.text == done.screen().text
        assert done.exit is not None
        assert done.exit.code == 4


@pytest.mark.covers("OWN-05")
def test_own_05_a_shell_whose_runner_was_killed_is_hung_up_and_lost_with_its_log_whole(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    """The kernel hangs up a terminal whose master is gone. Who watched is told, and the screen can still be seen."""
    hf = world.open()
    session = hf.start(["bash", "--norc", "-i"], tty=True, env={"PS1": "prompt> "})
    assert session.wait(match="prompt> ", timeout=30).reason == "match"
    session.submit("echo typed $((40 + 2))", wait_for={"match": "typed 42"})
    viewer = Viewer(world.closing.enter_context(session.attach()))
    viewer.until(lambda: "typed 42\nprompt>" in viewer.text, "the screen")
    kill_runner(session)
    assert session.pid is not None
    wait_gone(session.pid)
    told = ended(viewer)
    promised(world, session, bystander=bystander, beside=beside, error=told)
    assert session.state == "lost"
    assert "typed 42\nprompt>" in session.screen().text
    with pytest.raises(RunnerGone) as refused:
        session.keys("Enter")
    promised(world, session, bystander=bystander, beside=beside, error=refused.value)
    home_is_usable(hf)
    sweep_up(world, hf)


@pytest.mark.covers("OWN-05")
def test_own_05_a_program_that_survives_the_hang_up_is_stale_until_it_is_stopped(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    session = hf.start(world.probe("ignore", "HUP", "lines", 5, "forever"), tty=True)
    assert session.wait(match="^line 5$", timeout=30).reason == "match"
    viewer = Viewer(world.closing.enter_context(session.attach()))
    viewer.until(lambda: "line 5" in viewer.text, "the screen")
    kill_runner(session)
    told = ended(viewer)
    assert isinstance(told, RunnerGone)
    promised(world, session, bystander=bystander, beside=beside, error=told)
    assert session.state == "stale"
    assert numbered(session) == 5
    assert "line 5" in session.screen().text
    stopped = session.stop(grace=1)
    assert stopped.done
    assert [each["pid"] for each in stopped.found] == [session.pid]
    assert session.pid is not None
    assert processes.is_gone(session.pid)
    promised(world, session, bystander=bystander, beside=beside)
    assert (session.state, session.status) == ("lost", "killed")
    sweep_up(world, hf)


def ended(viewer: Viewer) -> RunnerGone | None:
    """How the end of the runner is told to who was attached: typed while the command lives, else as the exit that
    nobody knows."""
    try:
        exit = viewer.to_the_end()
    except RunnerGone as gone:
        return gone
    assert (exit.code, exit.signal, exit.cause) == (None, None, "lost")
    return None


# A host with a /dev/pts of its own, which has room for one terminal.
SCARCE = f"""
import json, os, subprocess, sys
sys.path.insert(0, {str(TESTS)!r})
from pathlib import Path
home = Path(os.environ["HOLDFAST_HOME"])
options = "newinstance,ptmxmode=0666,mode=0620,max=1"
subprocess.run(["mount", "-t", "devpts", "-o", options, "devpts", "/dev/pts"], check=True)
subprocess.run(["mount", "--bind", "/dev/pts/ptmx", "/dev/ptmx"], check=True)
import holdfast
from support import probe
from support.promised import Beside, ending_is_true, is_typed, log_is_whole, nobody_is_forgotten
from support.waiting import until

class World:
    def session(self, id): return home / "sessions" / id
    def probe(self, *words): return probe.argv(*words)
    def open(self): return holdfast.open()

def promised(session):
    session.refresh()
    log_is_whole(world, session)
    ending_is_true(world, session)
    nobody_is_forgotten(world, session)
    beside.unharmed()

def refusal():
    try:
        hf.start(["cat"], tty=True)
    except holdfast.HoldfastError as problem:
        is_typed(problem)
        return {{**problem.to_json(), "text": str(problem), "class": type(problem).__name__}}

world = World()
beside = Beside(world)
hf = holdfast.open()
first = hf.start("echo on a terminal; exec cat", tty=True)
first.wait(match="on a terminal", timeout=30)
before = sorted(os.listdir(home / "sessions"))
refused = [refusal() for _ in range(3)]
print(json.dumps({{"refused": refused, "left": sorted(os.listdir(home / "sessions")) == before}}), flush=True)
# On pipes, whoever asks for that, there is room.
piped = hf.run("test -t 1 || echo on pipes")
first.submit("still here")
first.wait(match="still here", timeout=30)
promised(first)
first.eof()
first.wait(exit=True, timeout=30)
promised(first)
again = hf.start("echo works again; tty", tty=True)
again.wait(exit=True, timeout=30)
promised(again)
print(json.dumps({{"piped": piped.text(), "again": again.text(), "code": first.exit.code}}), flush=True)
beside.end()
"""


@pytest.mark.covers("OWN-13", "terminal:27")
@pytest.mark.namespaces
def test_own_13_no_terminal_left_is_reported_as_that_with_the_counts_and_never_becomes_a_pipe(
    world: World, without: str, bystander: Bystanders
) -> None:
    """The kernel says ENOSPC for it, as for a full disk."""
    host = world.host(SCARCE, prefix=namespace_argv("--mount"))
    told = _told(host)
    for refused in told["refused"]:
        assert (refused["code"], refused["class"]) == ("pty-unavailable", "PtyUnavailable")
        assert refused["facts"] == {"errno": errno.ENOSPC, "used": 1, "allowed": 1}
        assert "1 of 1 in use" in refused["text"]
        assert "space" not in refused["text"]
        assert "disk" not in refused["text"]
    assert told["left"]
    after = _told(host)
    assert after["piped"] == "on pipes\n"
    assert after["again"].splitlines() == ["works again", "/dev/pts/0"]
    assert after["code"] == 0
    assert host.wait(30) == 0, host.errors()
    left_alone(bystander)


# A host whose /dev has everything but terminals.
WITHOUT_DEVICE = """
import json, os, subprocess, sys
kept = os.path.join(os.environ["TMPDIR"], "dev")
os.mkdir(kept)
subprocess.run(["mount", "--rbind", "/dev", kept], check=True)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev"], check=True)
for name in ("null", "zero", "urandom"):
    open(f"/dev/{name}", "w").close()
    subprocess.run(["mount", "--bind", f"{kept}/{name}", f"/dev/{name}"], check=True)
import holdfast
hf = holdfast.open()
try:
    hf.start(["cat"], tty=True)
except holdfast.HoldfastError as problem:
    print(json.dumps({**problem.to_json(), "text": str(problem)}), flush=True)
print(json.dumps({"sessions": len(hf.sessions(all=True)), "piped": hf.run("echo fine").text()}), flush=True)
"""


@pytest.mark.covers("OWN-13", "terminal:27")
@pytest.mark.namespaces
def test_own_13_no_terminal_device_is_reported_as_that_and_never_becomes_a_pipe(
    world: World, without: str, bystander: Bystanders
) -> None:
    host = world.host(WITHOUT_DEVICE, prefix=namespace_argv("--mount"))
    refused = _told(host)
    assert (refused["code"], refused["facts"]["errno"]) == ("pty-unavailable", errno.ENOENT)
    assert "No such file" in refused["text"]
    assert _told(host) == {"sessions": 0, "piped": "fine\n"}
    assert host.wait(30) == 0, host.errors()
    left_alone(bystander)


def _told(host: Program) -> Any:
    line = host.line(30)
    assert line, host.errors()
    return json.loads(line)
