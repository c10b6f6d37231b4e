"""Daemons whose record is damaged, and lost ones whose pid is another process by now."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from support import processes
from support.faults import sweep_up, wedged
from support.levers import PID_NAMESPACE, STRANGER
from support.waiting import until

if TYPE_CHECKING:
    from holdfast.tools import Answer
    from support.agents import Agent, Agents
    from support.world import World

REUSED = (
    STRANGER
    + """
import asyncio, json
import holdfast
from holdfast.tools import toolset

async def main():
    async with holdfast.open_async() as hf, toolset("dominds", hf, owner="a", stale_policy="report") as tools:
        receipt = (await tools.call("shell_cmd", {"command": "exec sleep 600", "timeoutSeconds": 1})).data
        session = await hf.get(receipt["session"])
        launcher = int(open(f"/proc/{session.runner_pid}/stat").read().rpartition(")")[2].split()[1])
        end(session.runner_pid)
        end(session.pid)
        if launcher != os.getpid():
            # A spare that is forked while a pid is asked for would get it, and keep it.
            os.kill(launcher, signal.SIGSTOP)
            while open(f"/proc/{launcher}/stat").read().rpartition(")")[2].split()[0] != "T":
                pass
        other = stranger(session.pid)
        before = [each.id for each in await tools.reminders()]
        stopped = await tools.call("stop_daemon", {"pid": session.pid})
        after = [each.id for each in await tools.reminders()]
        again = await tools.call("stop_daemon", {"pid": session.pid})
        waiting = int(await tools.consumer().pending())
        facts = {"before": before, "after": after, "stopped": [stopped.text, stopped.data], "again": again.data}
        print(json.dumps({**facts, "stranger": other.poll(), "id": session.id, "waiting": waiting}), flush=True)
        other.kill()
        other.wait()

asyncio.run(main())
"""
)


@pytest.mark.covers("found:17")
@pytest.mark.needs("namespaces")
def test_a_lost_daemon_whose_pid_was_reused_is_retired_and_no_process_is_signalled(world: World) -> None:
    host = world.host(REUSED, prefix=PID_NAMESPACE)
    told = json.loads(host.line(30) or host.errors())
    assert host.wait(30) == 0, host.errors()
    sweep_up(world, world.open())
    assert told["stranger"] is None, "the stranger was signalled"
    text, data = told["stopped"]
    assert (data["status"], data["state"], data["already"]) == ("success", "lost", True)
    assert text.startswith(
        f"\N{WHITE HEAVY CHECK MARK} Daemon process {data['pid']} (exec sleep 600) had already exited"
    )
    assert "Nothing was signalled" in text
    assert (told["before"], told["after"]) == ([told["id"]], [])
    assert told["waiting"] == 0, "this answer told the end"
    assert told["again"]["status"] == "success"


def answered(agent: Agent, tool: str, pid: int) -> Answer:
    def call() -> Answer | None:
        answer = agent.call(tool, pid=pid)
        return None if answer.error else answer

    answer = until(call, what=f"an answer of {tool}")
    assert answer is not None
    return answer


DAMAGES = {
    "empty": b"",
    "torn": b'{"v":1,"boot":"',
    "other": b"[1, 2]\n",
    "types": b'{"v":1,"boot":7,"pidns":"x","runner":"nobody","command":[]}\n',
    "check": None,
}


@pytest.mark.covers("found:17")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_beside_a_living_runner_is_repaired(direct: Agents, world: World, damage: str) -> None:
    agent = direct("dominds")
    receipt = agent.call("shell_cmd", command="echo up; exec sleep 600", timeoutSeconds=1).data
    state = world.session(receipt["session"]) / "state.json"
    whole = state.read_bytes()
    broken = DAMAGES[damage]
    state.write_bytes(whole.replace(b'"attempt":1', b'"attempt":2', 1) if broken is None else broken)
    # The first look repairs it; a loaded machine may take longer than that look waits.
    shown = answered(agent, "get_daemon_output", receipt["pid"])
    assert "up" in shown.text
    recorded, now = json.loads(whole), json.loads(state.read_bytes())
    for part in ("boot", "nonce", "runner", "command", "pgid", "endpoint", "started_at", "attempt"):
        assert now[part] == recorded[part], part
    assert [each.id for each in agent.run(agent.tools.reminders())] == [receipt["session"]]
    assert world.hold("status", receipt["session"]).returncode == 0
    stopped = agent.call("stop_daemon", pid=receipt["pid"])
    assert stopped.data["status"] == "success", stopped.text
    assert processes.look(receipt["pid"]) is None


@pytest.mark.covers("found:17")
def test_a_stop_is_the_first_to_meet_the_damage(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    receipt = agent.call("shell_cmd", command="exec sleep 600", timeoutSeconds=1).data
    (world.session(receipt["session"]) / "state.json").write_bytes(b"{")
    session = world.open().get(receipt["session"])
    assert session.pid == receipt["pid"]
    (world.session(receipt["session"]) / "state.json").write_bytes(b"{")
    stopped = answered(agent, "stop_daemon", receipt["pid"])
    assert stopped.data["status"] == "success", stopped.text


def test_a_damaged_record_beside_a_halted_runner_delays_no_other_for_long(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    receipt = agent.call("shell_cmd", command="exec sleep 600", timeoutSeconds=1).data
    session = world.open().get(receipt["session"])
    with wedged(session):
        (world.session(session.id) / "state.json").write_bytes(b"{")
        assert agent.call("get_daemon_output", pid=receipt["pid"]).error
    until(lambda: not agent.call("stop_daemon", pid=receipt["pid"]).error)
