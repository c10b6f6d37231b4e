"""OWN-01 to OWN-03: hosts and launchers die, sessions do not notice."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from holdfast import Session
from support.bystander import Bystanders
from support.faults import kill_launchers
from support.points import Points
from support.promised import Beside, promised, runners
from support.scale import scaled
from support.waiting import until
from support.world import World

# Starts what its arguments say, prints the id, and lives until it is killed.
STARTER = """
import sys, holdfast
hf = holdfast.open()
print(hf.start(sys.argv[1:], owner="agent-7").id)
sys.stdin.read()
"""

MANY_STARTER = """
import sys, holdfast
hf = holdfast.open()
for n in range(int(sys.argv[1])):
    print(hf.start(sys.argv[2:]).id)
print("done")
sys.stdin.read()
"""

KEYED_STARTER = """
import sys, holdfast
hf = holdfast.open()
print(hf.start(sys.argv[1:], key="once").id)
"""


def one_ending_waits(world: World, session: Session) -> None:
    """Its signal waits for the consumer, once, and is gone when it was taken."""
    inbox = world.open().signals("agent-7")
    assert inbox.pending() == 1
    with inbox.claim() as batch:
        (ended,) = batch.signals
    assert (ended.session, ended.variant, ended.phase) == (session.id, "lifecycle", "ended")
    assert (ended.code, ended.cause, ended.status) == (5, "exit", "failed")
    assert inbox.pending() == 0


@pytest.mark.covers("OWN-01", "found:34")
@pytest.mark.parametrize("seen", [1, 40, 150])
def test_own_01_a_host_killed_in_mid_output_is_not_missed_on_pipes(
    world: World, without: str, beside: Beside, bystander: Bystanders, seen: int
) -> None:
    gate = world.gate()
    host = world.host(STARTER, *world.probe("lines", 200, 0.001, "await", gate, "exit", 5))
    hf = world.open()
    session = hf.get(host.line())
    before = (session.pid, session.runner_pid)
    assert session.wait(match=f"^line {seen}$", timeout=30).reason == "match"
    host.kill()
    now = session.refresh()
    assert (now.state, now.pid, now.runner_pid) == ("running", *before)
    gate.release()
    assert session.wait(exit=True, timeout=30).reason == "exit"
    done = promised(world, session, bystander=bystander, beside=beside, numbers=200)
    assert (done.pid, done.runner_pid) == before
    assert done.exit is not None
    assert (done.exit.code, done.exit.cause) == (5, "exit")
    one_ending_waits(world, done)


@pytest.mark.covers("OWN-02")
def test_own_02_twenty_sessions_outlive_every_host_and_the_launcher(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    gate = world.gate()
    hosts = [world.host(MANY_STARTER, 5, *world.probe("lines", 60, 0.01, "await", gate, "exit", 4)) for _ in range(4)]
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
    for id in ids:
        session = found[id]
        assert session.metadata["evidence"] == "its runner answered"
        assert [row.pid for row in runners(world, id)] == [session.runner_pid]
        assert session.wait(match="^line 60$", timeout=30).reason == "match"
    gate.release(len(ids))
    for id in ids:
        assert found[id].wait(exit=True, timeout=30).reason == "exit"
        done = promised(world, found[id], bystander=bystander, beside=beside, numbers=60)
        assert done.exit is not None
        assert done.exit.code == 4


def runs(world: World) -> str:
    path = world.root / "runs"
    return path.read_text() if path.exists() else ""


@pytest.mark.covers("OWN-03")
@pytest.mark.parametrize("at", ["host.before_request", "host.request_sent", "spec seen", "host.reply_read"])
def test_own_03_a_host_that_dies_while_it_starts_leaves_all_or_nothing(
    world: World, points: Points, without: str, beside: Beside, bystander: Bystanders, at: str
) -> None:
    """Whatever the moment: no half session is listed, and a retry with the same key gives one session."""
    command = world.probe("append", world.root / "runs", "run", "forever")
    if at == "spec seen":
        points.set("runner.spec_written=pause")
        host = world.host(KEYED_STARTER, *command)
        hit = points.wait("runner.spec_written")
        host.kill()
        hit.release()
    else:
        points.set(f"{at}=kill")
        host = world.host(KEYED_STARTER, *command)
        assert host.wait() == -signal.SIGKILL
    points.clear()
    hf = world.open()
    kept = hf.start(command, key="once")
    others = [session for session in hf.sessions(all=True) if session.owner != "beside"]
    assert [session.id for session in others] == [kept.id]
    assert kept.wait(match="^ready$", timeout=30).reason == "match"
    until(lambda: runs(world) == "run\n", what="the command's own note")
    assert hf.start(command, key="once").id == kept.id
    promised(world, kept, bystander=bystander, beside=beside)
    assert kept.stop(grace=1).done
    promised(world, kept, bystander=bystander, beside=beside)
    assert runs(world) == "run\n"


SPINNER = "while True: pass"
LINES = 100
TIMES = scaled(6, 50)

# Opens nothing itself. Each time it is told to, it makes a host, which starts what the arguments say, waits for its
# end, and lives until it is killed. An interpreter that has to import everything first would take longer than the rest.
HOSTS = """
import os, signal, sys, holdfast, holdfast.sessions.launch, holdfast.sessions.start_request, holdfast.runner.launcher
for _ in sys.stdin:
    host = os.fork()
    if host == 0:
        session = holdfast.open().start(sys.argv[1:])
        print(os.getpid(), session.id)
        session.wait(exit=True)
        signal.pause()
    os.waitpid(host, 0)
"""


@pytest.mark.slow
@pytest.mark.covers("OWN-01", "OWN-02")
@pytest.mark.timeout(400)
def test_own_01_fifty_times_under_load_no_line_is_lost_when_everyone_else_is_killed(
    world: World, beside: Beside, bystander: Bystanders
) -> None:
    """A host of each kind and the launcher are killed while both sessions print a line every millisecond.

    Neither prints its last line before that. New hosts of both kinds read 1 to the end and the right exit code.
    """
    load = [world.program([sys.executable, "-c", SPINNER]) for _ in range(os.cpu_count() or 1)]
    hf = world.open()
    gate, last = world.gate(), world.gate()
    command = world.probe("await", gate, "held-lines", LINES, 0.001, last, "exit", 9)
    expected = ["ready", *(f"line {n}" for n in range(1, LINES + 1))]
    hosts = world.host(HOSTS, *command)
    for number in range(TIMES):
        hosts.send("another\n")
        cli = world.program(world.hold_argv("run", "--name", f"n{number}", "--", *command))
        api, id = hosts.line(20).split()
        assert cli.line(20) == "ready"
        sessions = [hf.get(id), hf.get(f"n{number}")]
        gate.release(2)
        assert cli.lines_until("line 20") == expected[1:21]
        assert sessions[0].wait(match="^line 20$", timeout=30).reason == "match"
        for pid in (cli.pid, int(api)):
            os.kill(pid, signal.SIGKILL)
        kill_launchers(world)
        assert not any(f"{expected[-1]}\n" in session.text() for session in sessions)
        last.release(2)
        cli.end()
        reader = world.program(world.hold_argv("logs", "-f", sessions[1].id))
        assert world.hold("wait", sessions[1].id, "--exit", "--propagate").returncode == 9
        assert reader.lines_until(expected[-1]) == expected
        assert reader.wait() == 0
        reader.end()
        fresh = world.open()
        for session in sessions:
            found = fresh.get(session.id)
            assert found.wait(exit=True, timeout=30).reason == "exit"
            promised(world, found, bystander=bystander, beside=beside, numbers=LINES)
            assert found.to_json()["exit"]["code"] == 9
    for program in load:
        program.end()
