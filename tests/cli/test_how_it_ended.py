"""Every surface tells a command that ended within the grace from one that was killed, by us or from elsewhere."""

from __future__ import annotations

import json
import os
import signal

import pytest

from cli.conftest import Start
from holdfast.cli.host import author
from holdfast.core import wire
from support import processes
from support.faults import kill_runner, sweep_up, wedged
from support.peer import Peer
from support.waiting import until
from support.world import World

# How it ends; then `exit.stopped`, the word in `ls`, the cause in `status`, and a part of the owner's notice.
CASES = {
    "grace": ("grace", "stopped", "within the grace", "stopped by"),
    "after": ("kill", "stopped, killed", "killed after the grace", ", killed after the grace, signal SIGKILL"),
    "at_once": ("at_once", "killed", "killed at once", "signal SIGKILL"),
    "meanwhile": (
        "elsewhere",
        "killed externally",
        "killed by another process within the grace",
        ", killed by another process within the grace, signal SIGKILL",
    ),
    "signal": (
        None,
        f"signal KILL by {author()}",
        f"signal, sent by {author()}",
        f"failed, signal sent by {author()}, signal SIGKILL",
    ),
    "elsewhere": (None, "signal KILL", "signal, not by a stop or `hold kill`", "failed, signal SIGKILL"),
}


# Which command ends the session `it`, for the ways that one command is enough for.
ENDS = {
    "grace": ("stop", "it", "--grace", "10s"),
    "after": ("stop", "it", "--grace", "200ms"),
    "at_once": ("kill", "it"),
}


@pytest.mark.covers("found:26")
@pytest.mark.parametrize("how", CASES)
def test_a_stop_within_the_grace_a_kill_after_it_and_one_from_elsewhere_look_different(
    world: World, start: Start, how: str
) -> None:
    words = ("forever",) if how in ("grace", "signal", "elsewhere") else ("ignore", "TERM", "forever")
    id = start(*words, options=("--name", "it", "--owner", "me", "--notify", "exit"))
    session = world.open().get(id)
    session.wait(match="ready", timeout=30)
    pid = session.pid
    assert pid is not None
    if how in ENDS:
        world.hold(*ENDS[how], check=True)
    elif how == "meanwhile":
        stop = world.program(world.hold_argv("stop", "it", "--grace", "30s"))
        until(lambda: session.refresh().stopping, what="the stop to begin")
        os.kill(pid, signal.SIGKILL)
        assert stop.wait() == 0
    elif how == "signal":
        world.hold("kill", "-9", "it", check=True)
        session.wait(exit=True, timeout=30)
    else:
        os.kill(pid, signal.SIGKILL)
        session.wait(exit=True, timeout=30)
    assert processes.look(pid) is None
    stopped, listed, cause, reported = CASES[how]
    (row,) = json.loads(world.hold("ls", "-a", "--json", check=True).stdout)
    assert row["exit"]["stopped"] == stopped
    shown = json.loads(world.hold("status", "it", "--json", check=True).stdout)
    assert (shown["exit"]["stopped"], shown["exit"]["cause"]) == (stopped, "stop" if stopped else "signal")
    assert shown["exit"]["by"] == row["exit"]["by"] == (None if how == "elsewhere" else author())
    assert f"  {listed}  " in world.hold("ls", "-a", check=True).stdout
    assert cause in world.hold("status", "it", check=True).stdout
    (record,) = json.loads(world.hold("signals", "--owner", "me", "--json", check=True).stdout)
    assert record["lifecycle"]["stopped"] == stopped
    assert record["lifecycle"]["by"] == shown["exit"]["by"]
    listed = world.hold("signals", "--owner", "me", check=True).stdout
    assert (f"SIGKILL sent by {author()}" in listed) is (how == "signal")
    assert reported.removesuffix(", signal SIGKILL").replace("signal SIGKILL", "killed") in listed or stopped is None
    assert reported in world.open().signals("me").drain().text


@pytest.mark.parametrize("ended", ["killed", "by itself"])
def test_a_stop_after_the_end_of_the_command_is_not_its_cause(world: World, ended: str) -> None:
    """Its output is read to the end for up to two seconds while a child holds the pipe: the stop comes meanwhile."""
    last = "wait" if ended == "killed" else "read line; exit 3"
    command = f"while echo tick; do sleep 0.05; done & {last}"
    id = world.hold("start", "--name", "it", "--stdin", "open", "--", command, check=True).stdout.strip()
    session = world.open().get(id)
    session.wait(match="tick", timeout=30)
    assert session.pid is not None
    if ended == "killed":
        world.hold("kill", "-9", "it", check=True)
    else:
        session.send("\n")
    until(lambda: processes.is_gone(session.pid), what="the end of the command")  # type: ignore[arg-type]
    world.hold("stop", "it", check=True)
    exit = session.refresh().exit
    assert exit is not None
    found = (exit.code, exit.signal, exit.cause, exit.by, exit.stopped, exit.survivors)
    if ended == "killed":
        assert found == (None, "SIGKILL", "signal", author(), None, [])
    else:
        assert found == (3, None, "exit", None, None, [])


def test_a_stop_before_a_killed_command_is_reaped_is_not_its_cause(world: World, start: Start) -> None:
    """Both requests come in one turn of the runner's loop; it reaps after it."""
    session = world.open().get(start("forever"))
    assert session.pid is not None
    with Peer(str(session.endpoint)) as peer:
        peer.hello()
        requests = [
            {"type": "send_signal", "id": 1, "signal": "KILL"},
            {"type": "stop", "id": 2, "by": "other"},
        ]
        peer.send(b"".join(map(wire.control, requests)))
        session.wait(exit=True, timeout=30)
    exit = session.refresh().exit
    assert exit is not None
    assert (exit.signal, exit.cause, exit.by, exit.stopped) == ("SIGKILL", "signal", "test:peer", None)


# Without a runner no process sees the signal that ended it: the host that stops it records how far it had to go.
WITHOUT_RUNNER = {
    "grace": ("grace", "stopped", "within the grace", "stopped by {by}"),
    "after": ("kill", "stopped, killed", "killed after the grace", "stopped by {by}, killed after the grace"),
    "at_once": ("at_once", "killed", "killed at once", "stopped by {by}, killed at once"),
    "elsewhere": (None, "lost", "lost", "lost: its runner is gone"),
}


@pytest.mark.covers("found:26")
@pytest.mark.parametrize("how", WITHOUT_RUNNER)
def test_the_same_is_reported_of_a_command_whose_runner_was_killed(world: World, start: Start, how: str) -> None:
    words = ("ignore", "TERM", "forever") if how in ("after", "at_once") else ("forever",)
    id = start(*words, options=("--name", "it", "--owner", "me", "--notify", "exit"))
    session = world.open().get(id)
    session.wait(match="ready", timeout=30)
    pid = session.pid
    assert pid is not None
    kill_runner(session)
    if how in ENDS:
        world.hold(*ENDS[how], check=True)
    else:
        os.kill(pid, signal.SIGKILL)
    until(lambda: processes.is_gone(pid), what="the end of the command")
    stopped, listed, cause, reported = WITHOUT_RUNNER[how]
    (row,) = json.loads(world.hold("ls", "-a", "--json", check=True).stdout)
    assert (row["state"], row["exit"]["stopped"]) == ("lost", stopped)
    shown = json.loads(world.hold("status", "it", "--json", check=True).stdout)
    assert (shown["exit"]["stopped"], shown["exit"]["cause"]) == (stopped, "stop" if stopped else "lost")
    assert f"  {listed}  " in world.hold("ls", "-a", check=True).stdout
    assert cause in world.hold("status", "it", check=True).stdout
    (record,) = json.loads(world.hold("signals", "--owner", "me", "--json", check=True).stdout)
    assert record["lifecycle"]["stopped"] == stopped
    said = reported.format(by=shown["exit"]["by"])
    if stopped:
        assert f"{said} " in world.hold("signals", "--owner", "me", check=True).stdout.replace("\n", " ")
    assert said in world.open().signals("me").drain().text
    sweep_up(world, world.open())


@pytest.mark.covers("found:26")
@pytest.mark.parametrize("words, stopped", [(("forever",), "grace"), (("ignore", "TERM", "forever"), "kill")])
def test_a_runner_that_slept_through_the_stop_records_how_it_went(
    world: World, start: Start, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], stopped: str
) -> None:
    monkeypatch.setenv("HOLDFAST_HOSTS_REPLY_TIMEOUT", "0.5")
    session = world.open().get(start(*words))
    session.wait(match="ready", timeout=30)
    with wedged(session):
        world.hold("stop", session.id, "--grace", "200ms", check=True)
    session.wait(exit=True, timeout=30)
    exit = session.refresh().exit
    assert exit is not None
    assert (exit.cause, exit.stopped) == ("stop", stopped)


# What it leaves behind prints on, so that its output is read for a while after its end.
LEAVES_ONE_BEHIND = "(trap '' TERM; while :; do echo on; sleep 0.05; done) & exec sleep 600"


def test_a_signal_to_what_a_command_left_behind_is_not_named_as_its_end(world: World) -> None:
    session = world.open().start(LEAVES_ONE_BEHIND)
    session.wait(match="on", timeout=30)
    pid = session.pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    until(lambda: processes.is_gone(pid), what="the end of the command")
    assert session.send_signal("TERM", target="tree") > 0
    session.wait(exit=True, timeout=30)
    exit = session.refresh().exit
    assert exit is not None
    assert (exit.signal, exit.cause, exit.by) == ("SIGTERM", "signal", None)
    session.kill()


def test_a_signal_that_was_sent_to_an_earlier_attempt_is_not_named_as_the_end_of_a_later_one(world: World) -> None:
    session = world.open().start(world.probe("forever"), restart={"policy": "always", "delay": 0.01})

    def pid_of(attempt: int) -> int | None:
        session.refresh()
        return session.pid if session.attempt == attempt and session.state == "running" else None

    until(lambda: pid_of(1), what="the command")
    assert session.send_signal("KILL") == 1
    os.kill(until(lambda: pid_of(2), what="the second attempt") or 0, signal.SIGKILL)
    until(lambda: pid_of(3), what="the third attempt")
    session.kill()
    first, second, _ = session.refresh().metadata["attempts"]
    assert (first["signal"], second["signal"]) == ("SIGKILL", "SIGKILL")
    assert first["by"] is not None
    assert second["by"] is None
