"""`process` kill, clear and remove: what is ended, what is left alone, what is said."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest

from support import processes
from support.faults import sweep_up
from support.own_time import OwnTime, QuietTime
from support.waiting import until, wait_gone

if TYPE_CHECKING:
    from support.agents import Agent, Agents
    from support.bystander import Bystanders
    from support.points import Points
    from support.world import World


def start(agent: Agent, command: str | list[str], **more: Any) -> Any:
    line = command if isinstance(command, str) else shlex.join(command)
    return agent.call("exec", command=line, background=True, **more)


def act(agent: Agent, action: str, run: Any, **more: Any) -> Any:
    return agent.call("process", action=action, sessionId=run.data["sessionId"], **more)


def shown(agent: Agent, run: Any, text: str) -> str:
    """All that it printed, once that is there."""
    until(lambda: text in act(agent, "log", run).text, what=f"{text!r} in the log")
    log: str = act(agent, "log", run).text
    return log


@pytest.mark.covers("openclaw:13", "found:33")
def test_what_outlives_a_command_is_named_and_can_be_killed(agents: Agents) -> None:
    agent = agents("openclaw")
    agent.call("exec", command="true")
    passed = OwnTime()
    done = agent.call("exec", command="nohup sleep 600 | cat &")
    assert passed.stop().seconds(*agent.runners()) < 1.0
    assert (done.data["status"], done.data["exitCode"]) == ("completed", 0)
    pids = [each["pid"] for each in done.data["survivors"]]
    assert len(pids) >= 2
    assert "sleep 600" in done.text
    killed = act(agent, "kill", done)
    assert killed.data["status"] == "completed"
    for pid in pids:
        wait_gone(pid)


@pytest.mark.slow
@pytest.mark.covers("openclaw:14")
def test_a_kill_returns_when_it_is_done(agents: Agents, world: World) -> None:
    agent = agents("openclaw")
    server = start(agent, world.probe("serve", 0))
    port = int(re.findall(r"port (\d+)", shown(agent, server, "port "))[0])
    killed = act(agent, "kill", server)
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))
        again.listen()
    assert killed.data["status"] == "completed"
    name = server.data["sessionId"]
    assert killed.text.startswith(f"Termination requested for session {name}. Process exited with signal SIGTERM.")
    assert "process tree is empty" in killed.text
    stubborn = start(
        agent, world.probe("ignore", "TERM,HUP,INT", "fork", "{", "setsid", "forever", "}", "say", "up", "forever")
    )
    shown(agent, stubborn, "up")
    tree = {row.pid for row in processes.descendants(processes.look(stubborn.data["pid"]).ppid)}  # type: ignore[union-attr]
    assert len(tree) >= 2
    passed = QuietTime()
    ended = act(agent, "kill", stubborn)
    assert passed.seconds() < 5 + 4
    assert (ended.data["status"], ended.data["exitSignal"]) == ("completed", "SIGKILL")
    assert all(processes.is_gone(pid) for pid in tree)


@pytest.mark.slow
@pytest.mark.covers("openclaw:15")
def test_what_cannot_be_killed_is_named_and_kept(direct: Agents, points: Points, world: World) -> None:
    points.set("tree.kill=error:EPERM")
    agent = direct("openclaw")
    run = start(agent, world.probe("fork", "{", "forever", "}", "forever"))
    shown(agent, run, "ready")
    (child,) = until(lambda: processes.descendants(run.data["pid"]))
    living = {run.data["pid"], child.pid}

    async def settle() -> tuple[Any, float]:
        managed = await agent.tools.supervisor.adopt(run.data["sessionId"])
        passed = QuietTime()
        await managed.cancel()
        return await managed.wait(), passed.seconds()

    exit, took = agent.run(settle())
    assert took < 9.5
    assert (exit.reason, exit.exit_signal) == ("manual-cancel", "SIGKILL")
    assert {each["pid"] for each in exit.survivors} == living
    killed = act(agent, "kill", run)
    assert (killed.data["status"], killed.error) == ("failed", True)
    assert {each["pid"] for each in killed.data["survivors"]} == living
    assert f"pid {child.pid}" in killed.text
    (row,) = agent.call("process", action="list").data["sessions"]
    assert row["sessionId"] == run.data["sessionId"]
    for pid in living:
        left = processes.look(pid)
        assert left is not None
        processes.end(left)
    until(lambda: act(agent, "poll", run).data["status"] == "killed")


@pytest.mark.slow
@pytest.mark.covers("openclaw:15")
def test_a_descendant_that_cannot_be_killed_is_named_though_its_command_is_dead(
    direct: Agents, points: Points, world: World
) -> None:
    points.set("tree.kill=error:EPERM")
    agent = direct("openclaw", exec={"killGraceMs": 300})
    run = start(agent, world.probe("fork", "{", "ignore", "TERM,HUP", "say", "up", "forever", "}", "forever"))
    shown(agent, run, "up")
    (child,) = until(lambda: processes.descendants(run.data["pid"]))

    async def settle() -> tuple[Any, float]:
        managed = await agent.tools.supervisor.adopt(run.data["sessionId"])
        passed = QuietTime()
        cancelling = asyncio.ensure_future(managed.cancel())
        seen = await agent.hf.get(run.data["sessionId"])
        while not seen.stopping:
            await seen.refresh()
        os.kill(run.data["pid"], signal.SIGTERM)  # which the point keeps its runner from
        exit = await managed.wait()
        took = passed.seconds()
        await cancelling
        return exit, took

    exit, took = agent.run(settle())
    assert took < 0.3 + 4 + 5
    assert (exit.reason, exit.exit_signal) == ("manual-cancel", "SIGTERM")
    assert processes.is_gone(run.data["pid"])
    assert [each["pid"] for each in exit.survivors] == [child.pid]
    killed = act(agent, "kill", run)
    assert (killed.data["status"], killed.error) == ("failed", True)
    assert [each["pid"] for each in killed.data["survivors"]] == [child.pid]
    (row,) = agent.call("process", action="list").data["sessions"]
    assert (row["sessionId"], [each["pid"] for each in row["survivors"]]) == (run.data["sessionId"], [child.pid])
    processes.end(child)
    wait_gone(child.pid)


@pytest.mark.covers("openclaw:16")
def test_without_a_runner_only_verified_processes_are_killed(
    direct: Agents, world: World, bystander: Bystanders
) -> None:
    agent = direct("openclaw", exec={"killGraceMs": 300})
    orphan, other = start(agent, "sleep 600"), start(agent, "sleep 600")
    sessions = {each.name: each for each in agent.run(agent.hf.sessions())}
    for session in sessions.values():
        assert session.runner_pid is not None
        os.kill(session.runner_pid, signal.SIGKILL)
        wait_gone(session.runner_pid)
    assert "is stale" in act(agent, "poll", orphan).text
    killed = act(agent, "kill", orphan)
    assert (killed.data["status"], killed.data["exitReason"]) == ("completed", "manual-cancel")
    assert killed.data["exitCode"] is None
    wait_gone(orphan.data["pid"])
    os.kill(other.data["pid"], signal.SIGKILL)
    wait_gone(other.data["pid"])
    stranger = bystander.own.pid
    file = world.session(sessions[other.data["sessionId"]].id) / "state.json"
    state = json.loads(file.read_text())
    state["command"]["pid"] = state["pgid"] = stranger
    file.write_text(json.dumps(state))
    refused = act(agent, "kill", other)
    assert refused.text.startswith(f"Unable to terminate session {other.data['sessionId']}: ")
    assert (refused.data["status"], refused.data["state"]) == ("failed", "lost")
    sweep_up(world, world.open())


@pytest.mark.covers("openclaw:17")
def test_a_kill_leaves_the_group_of_its_host_alone(direct: Agents, bystander: Bystanders, world: World) -> None:
    agent = direct("openclaw", exec={"killGraceMs": 300})
    for line in ("sleep 600", "trap '' TERM; sleep 600 & wait", shlex.join(world.probe("setpgid", "forever"))):
        for pty in (False, True):
            act(agent, "kill", start(agent, line, pty=pty))
    # One of them is in our own group; what each received is asked when the test is over.
    assert bystander.ours.pgid == os.getpgrp()


@pytest.mark.covers("openclaw:18")
def test_removing_hides_at_once_and_keeps_the_name_until_nothing_lives(direct: Agents, world: World) -> None:
    agent = direct("openclaw", exec={"killGraceMs": 1500})
    run = start(agent, world.probe("ignore", "TERM,HUP", "say", "up", "forever"))
    shown(agent, run, "up")
    name = run.data["sessionId"]
    assert act(agent, "remove", run).text == f"Removed session {name} (termination requested)."
    assert agent.call("process", action="list").text == "No running or recent sessions."
    assert act(agent, "poll", run).text == f"No session found for {name}"
    assert agent.run(agent.tools.active()) == 1
    assert not agent.tools.supervisor._is_free(name)
    wait_gone(run.data["pid"])
    until(lambda: agent.run(agent.tools.active()) == 0)
    assert not agent.tools.supervisor._is_free(name), "what it printed is still kept under that name"

    async def told() -> str:
        async with await agent.tools.drain() as notice:
            text: str = notice.text
            return text

    assert agent.run(told()) == ""


@pytest.mark.covers("openclaw:19")
def test_only_what_has_ended_can_be_cleared(agents: Agents) -> None:
    agent = agents("openclaw")
    run = start(agent, "sleep 600")
    name = run.data["sessionId"]
    assert act(agent, "clear", run).text == f"No finished session found for {name}"
    act(agent, "kill", run)
    assert act(agent, "clear", run).text == f"Cleared session {name}."
    assert act(agent, "clear", run).text == f"No finished session found for {name}"
    assert agent.call("process", action="list").text == "No running or recent sessions."
    again = start(agent, "true")
    until(lambda: act(agent, "poll", again, timeout=1000).data["status"] == "completed")
    assert act(agent, "remove", again).text == f"Removed session {again.data['sessionId']}."
    assert act(agent, "kill", again).text == f"No active session found for {again.data['sessionId']}"


def test_what_still_has_processes_cannot_be_cleared(agents: Agents) -> None:
    agent = agents("openclaw")
    run = agent.call("exec", command="sleep 600 > /dev/null &")
    (left,) = run.data["survivors"]
    name = run.data["sessionId"]
    refused = act(agent, "clear", run)
    assert refused.text.startswith(f"No finished session found for {name}: ")
    assert (refused.data["error"], f"pid {left['pid']}" in refused.text) == ("still-running", True)
    assert act(agent, "kill", run).data["status"] == "completed"
    assert processes.is_gone(left["pid"])
    assert act(agent, "clear", run).text == f"Cleared session {name}."


def test_keys_paste_and_submit_reach_a_terminal(agents: Agents) -> None:
    agent = agents("openclaw")
    run = start(agent, "cat -v", pty=True)
    name = run.data["sessionId"]
    sent = act(agent, "send-keys", run, literal="ab", hex=["63", "0x64"], keys=["Enter"])
    assert sent.text == f"Sent 5 bytes to session {name}."
    shown(agent, run, "abcd\nabcd")
    assert act(agent, "paste", run, text="pasted").text == f"Pasted 6 chars to session {name}."
    assert act(agent, "submit", run).text == f"Submitted session {name} (sent CR)."
    shown(agent, run, "pasted\npasted")
    assert act(agent, "send-keys", run).text == "No key data provided."
    assert act(agent, "paste", run, text="").text == "No paste text provided."
    wrong = act(agent, "send-keys", run, keys=["Entre"])
    assert (wrong.data["error"], "Enter" in wrong.text) == ("bad-key", True)
    assert act(agent, "write", run, data="", eof=True).text == f"Wrote 0 bytes to session {name} (EOF sent)."
    until(lambda: act(agent, "poll", run, timeout=1000).data["status"] == "completed")


def test_warnings_about_typed_text_are_shown(agents: Agents) -> None:
    agent = agents("openclaw")
    run = start(agent, "cat > /dev/null", pty=True)
    name = run.data["sessionId"]
    long = act(agent, "write", run, data="x" * 5000 + "\n").text.splitlines()
    assert long[0] == f"Wrote 5001 bytes to session {name}."
    assert long[1].startswith("Warning: canonical_limit: ")
    pasted = act(agent, "paste", run, text="one\ntwo\n").text.splitlines()
    assert pasted[0] == f"Pasted 8 chars to session {name}."
    assert pasted[1].startswith("Warning: paste_newlines: ")
    act(agent, "kill", run)
    raw = start(agent, "stty raw -echo; echo set; cat > /dev/null", pty=True)
    shown(agent, raw, "set")
    ended = act(agent, "write", raw, data="", eof=True).text.splitlines()
    assert ended[0] == f"Wrote 0 bytes to session {raw.data['sessionId']} (EOF sent)."
    assert ended[1].startswith("Warning: tty_raw: ")
    assert act(agent, "poll", raw).data["stdinWritable"] is True
    act(agent, "kill", raw)
