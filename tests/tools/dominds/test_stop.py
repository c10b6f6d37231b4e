"""`stop_daemon`: what is gone, what is left, and which processes are never signalled."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from support import processes
from support.faults import kill_runner, wedged
from support.own_time import QuietTime
from support.scale import scaled
from support.waiting import until, wait_gone

if TYPE_CHECKING:
    from holdfast.tools import Answer
    from support.agents import Agent, Agents
    from support.bystander import Bystanders
    from support.world import World


def started(agent: Agent, command: str) -> Answer:
    receipt = agent.call("shell_cmd", command=command, timeoutSeconds=1)
    assert receipt.data["outcome"] == "running", receipt.text
    return receipt


def child_of(pid: int, *words: str) -> processes.Process:
    """The one descendant that has become this program."""

    def found() -> processes.Process | None:
        rows = [(row, tuple(processes.command_line(row.pid).split())) for row in processes.descendants(pid)]
        return next((row for row, line in rows if line[: len(words)] == words), None)

    child = until(found, what=f"the child {' '.join(words)}")
    assert child is not None
    return child


def members(group: int) -> list[processes.Process]:
    return [row for row in processes.table().values() if row.pgid == group and row.state not in "ZX"]


@pytest.mark.covers("dominds:14")
def test_what_ignores_sigterm_is_killed_and_its_group_is_empty(agents: Agents) -> None:
    agent = agents("dominds")
    pid = started(agent, "trap '' TERM; while :; do sleep 1; done").data["pid"]
    passed = QuietTime()
    stopped = agent.call("stop_daemon", pid=pid)
    assert passed.seconds() < 2.5
    assert stopped.data["status"] == "success"
    assert stopped.text.startswith(f"✅ Daemon process {pid} (")
    assert " stopped successfully\n" in stopped.text
    assert stopped.data["exit"]["signal"] == "SIGKILL"
    assert stopped.data["rung"] == "KILL to the group"
    assert members(pid) == []


_SHELL_AND_STUBBORN_CHILD = "(trap '' TERM; exec sleep 300) & wait"


@pytest.mark.parametrize("entire", [True, False])
@pytest.mark.covers("dominds:15")
def test_a_child_that_ignores_sigterm_is_gone_or_named(direct: Agents, entire: bool) -> None:
    agent = direct("dominds", stop_grace_s=0.5)
    pid = started(agent, _SHELL_AND_STUBBORN_CHILD).data["pid"]
    child = child_of(pid, "sleep")
    stopped = agent.call("stop_daemon", pid=pid, entire_pg=entire)
    assert stopped.data["status"] == "success"
    reminders = agent.run(agent.tools.reminders())
    if entire:
        assert processes.is_gone(child.pid, child.start)
        assert reminders == []
    else:
        assert not processes.is_gone(child.pid, child.start)
        assert f"⚠️  1 process(es) of this command are still running: {child.pid} sleep" in stopped.text
        assert [each.pid for each in reminders] == [pid]
        again = agent.call("stop_daemon", pid=pid)
        assert again.data["status"] == "success"
        assert processes.is_gone(child.pid, child.start)


# What it leaves has become what it is called by when the command ends.
_LEAVES_ONE = "sleep 300 & until grep -q sleep /proc/$!/comm; do :; done; echo up"


def test_what_an_ended_command_left_is_left_when_only_the_command_is_meant(agents: Agents) -> None:
    agent = agents("dominds")
    done = agent.call("shell_cmd", command=_LEAVES_ONE)
    (left,) = done.data["survivors"]
    stopped = agent.call("stop_daemon", pid=done.data["pid"], entire_pg=False)
    assert stopped.data["status"] == "success"
    first, second = stopped.text.splitlines()
    assert first.endswith("had already exited (exit code: 0)")
    assert second == f"⚠️  1 process(es) of this command are still running: {left['pid']} sleep"
    assert not processes.is_gone(left["pid"], left["start"])


def test_a_child_that_is_left_is_not_said_to_have_exited(agents: Agents) -> None:
    agent = agents("dominds")
    done = agent.call("shell_cmd", command=_LEAVES_ONE)
    (left,) = done.data["survivors"]
    stopped = agent.call("stop_daemon", pid=left["pid"], entire_pg=False)
    first, second = stopped.text.splitlines()
    assert first == f"✅ Daemon process {done.data['pid']} ({_LEAVES_ONE}) had already exited (exit code: 0)"
    assert second == f"⚠️  1 process(es) of this command are still running: {left['pid']} sleep"


def test_of_many_descendants_those_are_listed_that_can_be_found_again(direct: Agents) -> None:
    agent = direct("dominds")
    done = agent.call("shell_cmd", command="for _ in $(seq 23); do sleep 300 & done; echo up")
    assert "⚠️  23 process(es) of this command are still running: " in done.text
    assert " and 3 more" in done.text
    assert (len(done.data["survivors"]), done.data["survivorsMore"]) == (20, 3)
    (reminder,) = agent.run(agent.tools.reminders())
    assert "exited, 23 process(es) still running" in reminder.render()
    for listed in done.data["survivors"]:
        read = agent.call("get_daemon_output", pid=listed["pid"])
        assert read.data["session"] == done.data["session"]
    stopped = agent.call("stop_daemon", pid=done.data["survivors"][-1]["pid"])
    assert stopped.data["status"] == "success"
    assert all(processes.is_gone(each["pid"], each["start"]) for each in done.data["survivors"])


@pytest.mark.covers("dominds:16")
def test_a_child_in_a_session_of_its_own_is_gone_or_listed(agents: Agents) -> None:
    agent = agents("dominds")
    pid = started(agent, "setsid sleep 301 & sleep 300; true").data["pid"]
    child = until(
        lambda: [row for row in processes.descendants(pid) if processes.command_line(row.pid) == "sleep 301"]
    )[0]
    stopped = agent.call("stop_daemon", pid=pid)
    if stopped.error:
        assert f"{child.pid} sleep" in stopped.text
    else:
        assert processes.is_gone(child.pid, child.start)


@pytest.mark.covers("dominds:17")
def test_a_group_kill_from_outside_leaves_the_runner(direct: Agents) -> None:
    agent = direct("dominds")
    # What left the group keeps the runner at its post.
    pid = started(agent, "setsid sleep 301 & sleep 300; true").data["pid"]
    child_of(pid, "sleep", "301")
    (reminder,) = agent.run(agent.tools.reminders())
    fields = reminder.to_json()
    runner = processes.look(fields["runnerPid"])
    assert runner is not None
    assert fields["processGroupId"] == pid != runner.pgid
    os.killpg(fields["processGroupId"], signal.SIGKILL)
    until(lambda: agent.call("get_daemon_output", pid=pid).data["state"] == "exited", what="the recorded end")
    read = agent.call("get_daemon_output", pid=pid)
    assert "State: exited (exit code: unknown, signal: SIGKILL)" in read.text
    assert read.data["exit"]["cause"] == "signal"
    assert not processes.is_gone(runner.pid, runner.start)
    assert agent.call("stop_daemon", pid=pid).data["status"] == "success"


@pytest.mark.parametrize("part", ["line", "pid", "start"])
@pytest.mark.covers("dominds:18")
def test_a_record_that_was_tampered_with_is_a_mismatch_and_no_process_is_signalled(
    direct: Agents, world: World, bystander: Bystanders, part: str
) -> None:
    agent = direct("dominds")
    daemon = started(agent, "echo mine; sleep 60; true")
    row = processes.look(daemon.data["pid"])
    assert row is not None
    path = world.session(daemon.data["session"]) / "state.json"
    kept = path.read_text()
    record = json.loads(kept)
    record["command"][part] = {"line": ["other"], "pid": bystander.own.pid, "start": row.start + 1}[part]
    path.write_text(json.dumps(record))
    pid = record["command"]["pid"]
    failed = agent.call("stop_daemon", pid=pid)
    assert (failed.data["status"], failed.error) == ("failure", True)
    assert failed.text.startswith(f"❌ Failed to stop daemon process {pid}: identity-mismatch: ")
    assert failed.data["error"]["facts"]["part"] == f"command {part}"
    assert not processes.is_gone(row.pid, row.start)
    read = agent.call("get_daemon_output", pid=pid)
    assert read.data["error"] == {"code": "identity-mismatch", "part": f"command {part}"}
    assert "mine" in read.text, "the log in its own directory stays readable"
    waited = agent.call("get_daemon_output", pid=pid, wait_for_new_output=True, timeout_ms=5000)
    assert waited.data["wait_status"] == "unavailable"
    assert waited.data["error"] == read.data["error"]
    assert "mine" in waited.text
    path.write_text(kept)


@pytest.mark.covers("dominds:19")
def test_a_pid_that_another_process_has_now_is_never_signalled(
    direct: Agents, world: World, bystander: Bystanders
) -> None:
    agent = direct("dominds")
    daemon = started(agent, "echo mine; exec sleep 60")
    session = world.open().get(daemon.data["session"])
    kill_runner(session)
    os.kill(daemon.data["pid"], signal.SIGKILL)
    wait_gone(daemon.data["pid"])
    # As if the system had given the number, and the number of the group, to another process.
    path = world.session(session.id) / "state.json"
    record = json.loads(path.read_text())
    record["command"]["pid"] = record["pgid"] = bystander.own.pid
    path.write_text(json.dumps(record))
    world.open().doctor(rebuild=True)
    pid = bystander.own.pid
    read = agent.call("get_daemon_output", pid=pid)
    assert read.data["state"] == "lost"
    assert f"pid {pid} is another process by now" in read.text
    assert "mine" in read.text
    (reminder,) = agent.run(agent.tools.reminders())
    assert reminder.state == "lost"
    assert "lost: no exit record" in reminder.render()
    assert agent.run(agent.tools.recover())["stopped"] == []
    for entire in (True, False):
        stopped = agent.call("stop_daemon", pid=pid, entire_pg=entire)
        assert (stopped.data["status"], stopped.data["state"]) == ("success", "lost")
        assert "Nothing was signalled" in stopped.text
    assert agent.run(agent.tools.reminders()) == []


@pytest.mark.covers("dominds:20")
def test_a_stale_daemon_is_left_alone_until_a_caller_acts(direct: Agents, world: World) -> None:
    """Reading and rendering end nothing; a stop does, and so does a recovery where that is the policy."""
    agent = direct("dominds", stale_policy="report")
    strict = direct("dominds", stale_policy="stop")  # before there is anything to recover
    first, second = started(agent, "echo one; exec sleep 300"), started(agent, "echo two; exec sleep 301")
    rows = []
    for daemon in (first, second):
        kill_runner(world.open().get(daemon.data["session"]))
        row = processes.look(daemon.data["pid"])
        assert row is not None
        rows.append(row)
    for count in range(scaled(20, 100)):
        reader = strict if count % 2 else agent
        read = reader.call("get_daemon_output", pid=first.data["pid"])
        assert (read.data["state"], read.data["status"]) == ("stale", "partial_failure")
        assert "one" in read.text
        reminder = reader.run(reader.tools.reminders())[0]
        assert reminder.state == "stale"
        assert "stale: runner gone, process alive" in reminder.render()
    stale = {first.data["session"], second.data["session"]}
    assert set(agent.run(agent.tools.recover())["stale"]) == stale
    assert not any(processes.is_gone(row.pid, row.start) for row in rows)

    stopped = agent.call("stop_daemon", pid=first.data["pid"])
    assert stopped.data["status"] == "success"
    assert processes.is_gone(rows[0].pid, rows[0].start)
    assert not processes.is_gone(rows[1].pid, rows[1].start)

    cleaner = direct("dominds", stale_policy="stop")  # it recovers as it opens
    assert processes.is_gone(rows[1].pid, rows[1].start)
    assert cleaner.run(cleaner.tools.reminders()) == []


@pytest.mark.slow
@pytest.mark.covers("dominds:21")
def test_a_runner_that_stands_still_is_stopped_past_after_ten_seconds(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    daemon = started(agent, "echo kept; sleep 300; true")
    session = world.open().get(daemon.data["session"])
    with wedged(session):
        read = agent.call("get_daemon_output", pid=daemon.data["pid"])
        assert (read.data["state"], read.data["status"]) == ("unreachable", "partial_failure")
        assert "kept" in read.text
        assert "unreachable" in read.text
        began = time.monotonic()
        stopped = agent.call("stop_daemon", pid=daemon.data["pid"])
        assert 10 <= time.monotonic() - began < 25
        assert stopped.data["status"] == "success"
        assert members(daemon.data["pid"]) == []
    assert session.wait(timeout=30).reason == "exit"
    assert session.refresh().exit is not None


def test_an_ended_daemon_had_already_exited(agents: Agents, world: World) -> None:
    agent = agents("dominds")
    gate = world.gate()
    command = f"read -n 1 < {gate}; exit 4"
    daemon = started(agent, command)
    gate.release()
    world.open().get(daemon.data["session"]).wait(timeout=30)
    stopped = agent.call("stop_daemon", pid=daemon.data["pid"])
    assert stopped.data["status"] == "success"
    name = f"{daemon.data['pid']} ({command})"
    assert stopped.text == f"✅ Daemon process {name} had already exited (exit code: 4)"


def test_survivors_are_named_with_what_they_are_doing(direct: Agents) -> None:
    from holdfast.tools.dominds.sessions import named

    agent = direct("dominds")
    daemon = started(agent, "exec sleep 60")
    row = processes.look(daemon.data["pid"])
    assert row is not None
    survivor = {"pid": row.pid, "start": row.start, "command": "/usr/bin/sleep 60", "error": "EPERM"}
    assert named([survivor], states=True) == f"{row.pid} sleep (sleeping, EPERM)"
    assert named([survivor], states=True, here=False) == f"{row.pid} sleep (EPERM)"
    assert named([{**survivor, "start": 1}], states=True) == f"{row.pid} sleep (EPERM)", "another has its pid now"
    assert named([survivor] * 25).endswith(" and 5 more")
