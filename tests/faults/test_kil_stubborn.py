"""KIL-01 to KIL-03 and KIL-07: commands and trees that do not want to go."""

from __future__ import annotations

import os
import shlex
import signal
import time

import pytest

from support import processes
from support.bystander import Bystanders
from support.faults import halt, is_stopped
from support.own_time import QuietTime
from support.promised import Beside, marked, promised
from support.waiting import until
from support.world import World


@pytest.mark.covers("KIL-01")
def test_kil_01_a_command_that_ignores_term_and_int_dies_after_the_grace_and_not_before(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    session = hf.start(world.probe("ignore", "TERM,INT,HUP", "lines-forever", 0.02))
    assert session.wait(match="^line 5$", timeout=30).reason == "match"
    began = time.monotonic()
    stopped = session.stop(grace=0.6, by="agent-7")
    assert time.monotonic() - began >= 0.6
    assert stopped.took_s >= 0.6
    assert stopped.done
    assert stopped.rung == "KILL to the tree"
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    assert (session.exit.signal, session.exit.cause, session.exit.by) == ("SIGKILL", "stop", "agent-7")
    assert session.status == "killed"
    assert session.pid is not None
    assert processes.is_gone(session.pid)


@pytest.mark.covers("KIL-01")
def test_kil_01_the_grace_is_given_signal_by_signal(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    """TERM to the command, later once more to whatever is left, then the kill; a grace of 0 kills at once."""
    hf = world.open()
    session = hf.start(world.probe("signal-report", "lines", 3, "repeat", 1000, "{", "sleep", 30, "}"))
    assert session.wait(match="^line 3$", timeout=30).reason == "match"
    # Long enough for it to say each before the next comes: of two that wait for it, it sees one.
    assert session.stop(grace=2).rung == "KILL to the tree"
    promised(world, session, bystander=bystander, beside=beside, numbers=3)
    received = [line for line in session.text().splitlines() if line.startswith("signal")]
    assert sorted(received) == ["signal CONT"] * 2 + ["signal TERM"] * 2
    quick = hf.start(world.probe("signal-report", "forever"))
    assert quick.wait(match="^ready$", timeout=30).reason == "match"
    passed = QuietTime()
    quick.kill()
    assert passed.seconds() < 2
    promised(world, quick, bystander=bystander, beside=beside)
    assert "signal" not in quick.text()


@pytest.mark.covers("KIL-02")
def test_kil_02_a_leader_that_leaves_at_once_does_not_save_its_term_proof_grandchild(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    child = ["fork", "{", "ignore", "TERM,HUP,INT", "print-ids", "forever", "}"]
    session = hf.start(world.probe("exit-on", "TERM", 0, *child, "lines", 4, "forever"))
    assert session.wait(match="^line 4$", timeout=30).reason == "match"
    assert session.wait(match=r"^pid \d+", timeout=30).reason == "match"
    stopped = session.stop(grace=0.5, by="me")
    # Empty at the very moment of the answer.
    assert not marked(session.id)
    assert stopped.done
    assert len(stopped.found) == 2
    assert stopped.rung == "KILL to the tree"
    promised(world, session, bystander=bystander, beside=beside, numbers=4)
    assert session.exit is not None
    assert (session.exit.code, session.exit.cause, session.exit.by) == (0, "stop", "me")
    assert session.exit.complete
    assert session.exit.survivors == []


@pytest.mark.covers("KIL-03")
@pytest.mark.parametrize("escape", ["setsid", "daemon"])
def test_kil_03_an_escapee_is_listed_after_the_exit_and_ended_by_stop(
    world: World, without: str, beside: Beside, bystander: Bystanders, escape: str
) -> None:
    hf = world.open()
    rest = ["ignore", "TERM,HUP", "print-ids", "forever"]
    away = ["fork", "{", "setsid", *rest, "}"] if escape == "setsid" else ["daemon", "{", *rest, "}"]
    gate = world.gate()
    session = hf.start(world.probe("lines", 3, *away, "await", gate, "exit", 7))
    woke = session.wait(match=r"^pid (\d+) ppid \d+ pgid \d+ sid \d+$", timeout=30)
    assert woke.match is not None
    pid = int(woke.match.split()[1])
    row = processes.look(pid)
    assert row is not None
    assert row.pgid != session.pid
    gate.release()
    assert session.wait(exit=True, timeout=30).reason == "exit"
    promised(world, session, bystander=bystander, beside=beside, numbers=3)
    assert session.exit is not None
    assert (session.exit.code, session.exit.complete) == (7, False)
    assert [survivor["pid"] for survivor in session.exit.survivors] == [pid]
    assert session.id in [each.id for each in hf.sessions()]
    stopped = session.stop(grace=0.4)
    assert stopped.done
    assert [each["pid"] for each in stopped.found] == [pid]
    assert processes.is_gone(pid)
    until(lambda: not session.refresh().to_json()["exit"]["survivors"], what="the record without survivors")
    promised(world, session, bystander=bystander, beside=beside, numbers=3)
    assert session.exit is not None
    assert (session.exit.code, session.exit.cause, session.exit.complete) == (7, "exit", True)


@pytest.mark.covers("KIL-03")
def test_kil_03_a_nested_tmux_server_is_found_and_ended(world: World, beside: Beside, bystander: Bystanders) -> None:
    hf = world.open()
    server = f"tmux -f /dev/null -L inner new-session -d {shlex.quote('exec sleep 600')}"
    session = hf.start(f"{server} && echo up", env={"TMUX_TMPDIR": str(world.root), "TERM": "xterm"})
    assert session.wait(exit=True, timeout=30).reason == "exit"
    assert session.text() == "up\n"
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    # The server, and its child: still a fork of the server, or the shell in between, or already the sleep.
    names = [survivor["command"].split()[0].rstrip(":") for survivor in session.exit.survivors]
    assert len(names) == 2
    assert "tmux" in names
    stopped = session.stop(grace=1)
    assert stopped.done
    assert len(stopped.found) == 2
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    assert session.exit.survivors == []


@pytest.mark.covers("KIL-07")
@pytest.mark.parametrize("who", ["command", "grandchild"])
def test_kil_07_a_stopped_tree_is_reported_and_still_ends(
    world: World, without: str, beside: Beside, bystander: Bystanders, who: str
) -> None:
    hf = world.open()
    session = hf.start(world.probe("lines", 2, "fork", "{", "print-ids", "forever", "}", "forever"))
    woke = session.wait(match=r"^pid (\d+)", timeout=30)
    assert woke.match is not None
    assert session.pid is not None
    grandchild = int(woke.match.split()[1])
    halt(session.pid if who == "command" else grandchild)
    promised(world, session, bystander=bystander, beside=beside, numbers=2)
    assert session.state == "running"
    assert session.metadata.get("stopped_by_signal", False) is (who == "command")
    stopped = session.stop(grace=2)
    assert stopped.done
    # Continued, so that the polite signal is enough.
    assert stopped.rung == "TERM to the tree"
    assert processes.is_gone(session.pid)
    assert processes.is_gone(grandchild)
    promised(world, session, bystander=bystander, beside=beside, numbers=2)
    assert session.exit is not None
    assert (session.exit.signal, session.exit.cause) == ("SIGTERM", "stop")


@pytest.mark.covers("KIL-07")
def test_kil_07_a_continued_command_is_no_longer_reported_as_stopped(
    world: World, beside: Beside, bystander: Bystanders
) -> None:
    session = world.open().start(world.probe("lines", 1, "halt", "say", "back", "forever"))
    assert session.pid is not None
    pid = session.pid
    until(lambda: is_stopped(pid), what="the halt")
    assert session.refresh().metadata["stopped_by_signal"] is True
    os.kill(pid, signal.SIGCONT)
    assert session.wait(match="^back$", timeout=30).reason == "match"
    assert "stopped_by_signal" not in session.refresh().metadata
    assert session.send_signal("STOP") == 1
    until(lambda: session.refresh().metadata.get("stopped_by_signal"), what="the word of its halt")
    assert session.kill().done
    promised(world, session, bystander=bystander, beside=beside, numbers=1)
