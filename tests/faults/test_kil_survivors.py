"""KIL-05 and KIL-06: exit, end of output and the end of the tree are three facts."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from holdfast.core.records import EXIT_ROOM_BYTES
from support import processes
from support.bystander import Bystanders
from support.faults import kill_runner, sweep_up
from support.own_time import QuietTime
from support.promised import Beside, marked, promised
from support.waiting import until, wait_gone
from support.world import World

# The exit of a command waits for a moment of silence of those who hold its pipes, not for their end.
AT_ONCE_S = 8.0


@pytest.mark.covers("KIL-05")
def test_kil_05_a_server_in_the_background_is_a_survivor_whose_output_is_still_logged(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    gate = world.gate()
    server = shlex.join(world.probe("quiet", "await", gate, "say", "served", "serve", 0))
    hf = world.open()
    passed = QuietTime()
    session = hf.run(["sh", "-c", f"{server} & echo started"], wait=30)
    assert passed.seconds() < AT_ONCE_S
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    assert (session.state, session.exit.code, session.exit.cause) == ("exited", 0, "exit")
    assert session.text() == "started\n"
    [survivor] = session.exit.survivors
    assert "serve 0" in survivor["command"]
    gate.release()
    until(lambda: "port " in session.text(), what="output of the survivor")
    assert session.text().startswith("started\nserved\nport ")
    promised(world, session, bystander=bystander, beside=beside)
    stopped = session.stop(grace=1)
    assert stopped.done
    assert [each["pid"] for each in stopped.found] == [survivor["pid"]]
    assert processes.is_gone(survivor["pid"])
    until(lambda: not session.refresh().to_json()["exit"]["survivors"], what="the record without survivors")
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    assert (session.exit.code, session.exit.cause, session.exit.complete) == (0, "exit", True)
    assert session.text().startswith("started\nserved\nport ")


@pytest.mark.covers("KIL-05")
def test_kil_05_the_word_started_comes_at_once_and_stop_ends_the_sleeper(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    passed = QuietTime()
    session = hf.start(["sh", "-c", "sleep 60 & echo started"])
    assert session.wait(match="^started$", timeout=30).reason == "match"
    assert session.wait(exit=True, timeout=30).reason == "exit"
    assert passed.seconds() < AT_ONCE_S
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    assert session.exit.code == 0
    # Its own line, or still that of the shell whose fork it is.
    [survivor] = session.exit.survivors
    assert "sleep 60" in survivor["command"]
    [shown] = [each for each in hf.sessions() if each.id == session.id]
    assert shown.exit is not None
    assert len(shown.exit.survivors) == 1
    passed = QuietTime()
    stopped = session.stop(grace=20)
    # The command is gone, so its part of the grace, twelve seconds, is not waited for.
    assert passed.seconds() < AT_ONCE_S
    assert stopped.done
    assert stopped.rung == "TERM to the tree"
    assert not marked(session.id)


def test_a_wait_for_the_last_process_outlives_the_runner(world: World) -> None:
    """On faulty code it ended with the runner, although a process was left."""
    hf = world.open()
    session = hf.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 & exit 7"], wait=30)
    kill_runner(session)
    assert session.wait(extinct=True, timeout=0.2).reason == "timeout"
    assert session.exit is not None
    [survivor] = session.exit.survivors
    assert session.wait(output=True, extinct=True, timeout=30).reason == "exit", "there is no more output"
    holder = processes.look(survivor["pid"])
    assert holder is not None
    processes.end(holder)
    assert session.wait(extinct=True, timeout=30).reason == "exit"
    assert processes.is_gone(survivor["pid"])
    assert session.exit.survivors == []
    sweep_up(world, hf)


@pytest.mark.covers("KIL-06")
def test_kil_06_a_grandchild_that_holds_the_pipe_does_not_delay_the_exit(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    passed = QuietTime()
    session = hf.run(["sh", "-c", "(exec sleep 600) & exit 7"], wait=30)
    assert passed.seconds() < AT_ONCE_S
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    assert (session.exit.code, session.exit.complete) == (7, False)
    [survivor] = session.exit.survivors
    holder = processes.look(survivor["pid"])
    assert holder is not None
    processes.end(holder)
    wait_gone(holder.pid)
    until(lambda: session.refresh().to_json()["exit"]["complete"], what="complete output")
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    assert (session.exit.code, session.exit.survivors) == (7, [])


@pytest.mark.covers("KIL-06")
def test_kil_06_a_grandchild_that_never_stops_printing_does_not_delay_the_exit_for_ever(
    world: World, beside: Beside, bystander: Bystanders
) -> None:
    """A flood kept the runner reading on after the exit, so that no end was ever recorded; now what was buffered
    at the exit is read, then a bounded rest."""
    hf = world.open()
    session = hf.run(["sh", "-c", "yes & exit 7"], wait=30, log_cap="2MiB")
    assert session.state == "exited"
    assert session.exit is not None
    assert (session.exit.code, session.exit.complete) == (7, False)
    [survivor] = session.exit.survivors
    assert survivor["command"] in ("yes", "sh -c yes & exit 7")
    assert session.stop(grace=1).done
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    assert session.exit.complete


@pytest.mark.covers("KIL-06")
def test_kil_06_last_words_before_the_exit_are_logged_though_the_pipe_stays_open(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    session = hf.run(world.probe("quiet", "hold-pipe", 600, "lines", 20000, "exit", 3), wait=30)
    promised(world, session, bystander=bystander, beside=beside, numbers=20000)
    assert session.exit is not None
    assert (session.exit.code, session.exit.complete) == (3, False)
    assert session.stop(grace=1).done
    promised(world, session, bystander=bystander, beside=beside, numbers=20000)


@pytest.mark.covers("KIL-02", "KIL-03")
def test_kil_03_a_term_proof_tree_with_a_double_forked_escapee_is_empty_after_stop(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    proof = ["ignore", "TERM,HUP,INT"]
    escapee = ["daemon", "{", *proof, "say", "escaped", "forever", "}"]
    child = ["fork", "{", *proof, "say", "forked", "forever", "}"]
    session = hf.start(world.probe(*proof, "lines", 2, *escapee, *child, "forever"))
    for word in ("escaped", "forked"):
        assert session.wait(match=f"^{word}$", timeout=30).reason == "match"
    stopped = session.stop(grace=0.5)
    assert not marked(session.id)
    assert stopped.done
    assert len(stopped.found) == 3
    # What it took: the last rung, and no less than the grace.
    assert stopped.rung == "KILL to the tree"
    assert stopped.took_s >= 0.5
    promised(world, session, bystander=bystander, beside=beside, numbers=2)
    assert session.exit is not None
    assert (session.exit.signal, session.exit.cause) == ("SIGKILL", "stop")


@pytest.mark.covers("KIL-05")
def test_kil_05_three_hundred_survivors_are_named_as_far_as_there_is_room_and_counted(
    world: World, beside: Beside, bystander: Bystanders
) -> None:
    """On faulty code the record outgrew the room that was taken for it, and a full disk could keep it from being
    written. Their names are long in JSON: one character takes six."""
    hf = world.open()
    names = world.root / ("\x01" * 40)
    names.mkdir(parents=True)
    (names / "sleep").symlink_to("/bin/sleep")
    line = f"for n in $(seq 300); do {shlex.quote(str(names / 'sleep'))} 600 & done; echo line 1"
    session = hf.run(line, wait=30)
    assert session.exit is not None
    assert (session.exit.code, len(session.exit.survivors), session.exit.survivors_more) == (0, 256, 44)
    path = world.session(session.id) / "exit.json"
    recorded = json.loads(path.read_text())["exit"]
    assert (len(recorded["survivors"]), recorded["survivors_more"]) == (20, 280)
    assert path.stat().st_size <= EXIT_ROOM_BYTES
    assert len(world.hold("status", session.id).stdout) < 100_000
    assert "300 still running" in world.hold("ls").stdout
    promised(world, session, bystander=bystander, beside=beside, numbers=1)
    stopped = session.stop(grace=0)
    assert (stopped.done, len(stopped.found), stopped.found_more) == (True, 256, 44)
    promised(world, session, bystander=bystander, beside=beside, numbers=1)
    assert session.exit is not None
    assert (session.exit.survivors, session.exit.survivors_more) == ([], 0)


@pytest.mark.covers("found:44")
@pytest.mark.parametrize("words", [["stop"], ["kill"]], ids=["stop", "kill"])
def test_stop_and_kill_end_a_listed_survivor_whose_runner_is_gone(world: World, words: list[str]) -> None:
    """It left the command's group and session and carries no mark: only the record of its runner knows it."""
    hf = world.open()
    sleeper = shlex.join(world.probe("quiet", "sleep", 600))
    session = hf.run(["sh", "-c", f"env -i setsid {sleeper} </dev/null >/dev/null 2>&1 & exit 0"], wait=30)
    until(lambda: session.refresh().to_json()["exit"]["survivors"], what="the survivor on record")
    assert session.exit is not None
    [survivor] = session.exit.survivors
    kill_runner(session)
    listed = json.loads(world.hold("status", session.id, "--json").stdout)["exit"]["survivors"]
    assert [each["pid"] for each in listed] == [survivor["pid"]]
    ended = world.hold(*words, session.id)
    assert ended.returncode == 0, ended.stdout
    assert "already over" not in ended.stdout
    assert "1 process gone" in ended.stdout
    wait_gone(survivor["pid"])
    assert json.loads(world.hold("status", session.id, "--json").stdout)["exit"]["survivors"] == []
    assert "already over" in world.hold(*words, session.id).stdout
    sweep_up(world, hf)


@pytest.mark.covers("found:44")
def test_a_stop_that_cannot_end_a_listed_survivor_says_so(world: World) -> None:
    """It runs as another user, and the stop comes from a root that may not signal others."""
    hf = world.open()
    sleeper = "setpriv --reuid 65534 --clear-groups sleep 600"
    session = hf.run(["sh", "-c", f"{sleeper} </dev/null >/dev/null 2>&1 & exit 0"], wait=30)
    until(lambda: session.refresh().to_json()["exit"]["survivors"], what="the survivor on record")
    assert session.exit is not None
    [survivor] = session.exit.survivors
    kill_runner(session)
    without_kill = ["setpriv", "--bounding-set", "-kill", "--inh-caps", "-kill"]
    for words in ("stop", "kill"):
        argv = [*without_kill, *world.hold_argv(words, session.id, *(["--grace", "0"] if words == "stop" else []))]
        refused = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert f"NOT ended, still there: pid {survivor['pid']}" in refused.stdout
    assert session.stop(grace=0).done
    wait_gone(survivor["pid"])
    sweep_up(world, hf)
