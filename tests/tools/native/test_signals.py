"""`signals`: one drain, for agents that get no notices; it comes again until it is acknowledged."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from support.agents import shown
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.agents import Agent, Agents
    from support.world import World


def notice(agent: Agent) -> str:
    """The first that says anything."""

    def news() -> str:
        text = agent.call("signals").text
        return text if "holdfast-notice" in text else ""

    return until(news)


def drained(agent: Agent) -> list[str]:
    found: list[str] = until(lambda: agent.call("signals").data["signals"])
    return found


@contextmanager
def locked(world: World) -> Iterator[None]:
    """The index, locked by another connection."""
    locker = sqlite3.connect(world.home / "index.db", isolation_level=None)
    try:
        locker.execute("BEGIN EXCLUSIVE")
        yield
    finally:
        locker.close()


def test_an_end_is_reported_until_it_is_acknowledged(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    id = agent.call("run", command=world.probe("await", gate, "exit", 3), wait_s=0).data["id"]
    assert agent.call("signals").text == "no new signals"
    gate.release()
    (signal,) = drained(agent)
    assert signal.startswith(id)
    soon = agent.call("signals")
    assert soon.data["signals"] or soon.text == (
        f'no new signals; 1 shown before and not acknowledged: signals(ack=["{signal}"])'
    )
    # It was not acknowledged: after a while it comes again.
    assert drained(agent) == [signal]
    answer = agent.call("signals", ack=signal)
    assert answer.data["signals"] == []
    assert answer.data["acknowledged"] == 1
    assert agents("native").call("signals").data["signals"] == []


def test_the_notice_names_its_session_and_how_to_acknowledge(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    id = agent.call("run", command=world.probe("await", gate, "say", "oops", "exit", 3), name="job", wait_s=0).data[
        "id"
    ]
    gate.release()
    text = notice(agent)
    assert f'{id} [local_bash] "job" failed, exit code 3' in text
    assert "| oops" in text
    assert f'shown again until acknowledged: signals(ack=["{id}.' in text


def test_many_are_acknowledged_by_the_last(direct: Agents, world: World) -> None:
    agent = direct("native")
    gate = world.gate()
    for _ in range(5):
        agent.call("run", command=world.probe("await", gate, "exit", 1), wait_s=0)
    gate.release(5)
    until(lambda: agent.run(agent.tools.consumer().pending()) == 5)
    upto = re.search(r'signals\(ack=\["(upto:\w+\.\d+)"\]\)', agent.call("signals").text)
    assert upto is not None
    assert agent.call("signals", ack=[upto[1]]).data == {"signals": [], "acknowledged": 5}


def test_a_match_is_reported(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    command = world.probe("quiet", "await", gate, "say", "ERROR: disk", "forever")
    agent.call("run", command=command, watch="ERROR", name="web", wait_s=0)
    gate.release()
    text = notice(agent)
    assert "| ERROR: disk" in text
    agent.call("stop", ids="web", grace_s=0)


def test_what_wait_reported_is_not_announced(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    id = agent.call("run", command=world.probe("await", gate, "exit", 3), wait_s=0).data["id"]
    gate.release()
    assert "exit 3" in agent.call("wait", ids=id).text
    assert agent.call("signals").data["signals"] == []


def test_an_end_that_a_failed_read_did_not_report_is_announced(agents: Agents, world: World) -> None:
    agent = agents("native")
    gate = world.gate()
    id = agent.call("run", command=world.probe("await", gate, "exit", 3), wait_s=0).data["id"]
    gate.release()
    until(lambda: "exit 3" in agent.call("list", all=True).text)
    for wrong in ({"since": "x:y"}, {"since": "stdout:99999"}, {"search": "(a"}):
        assert agent.call("read", id=id, **wrong).error
    assert drained(agent)
    for right in ({"since": "0"}, {"search": "a"}, {"tail": 3}):
        assert "exit 3" in agent.call("read", id=id, **right).text
        assert agent.call("signals").data["signals"] == []


def test_what_an_answer_reported_with_the_end_is_not_announced(agents: Agents, world: World) -> None:
    agent = agents("native")
    answer = agent.call("run", command=world.probe("exit", 1), ready="line:never", wait_s=20)
    assert "exit 1" in answer.text
    assert agent.call("signals").data["signals"] == []
    asked = agent.call("run", command="read -r answer; exit 2", tty=True, name="ask", wait_s=0)
    until(lambda: "waits for input" in agent.call("list").text)
    agent.call("send", id="ask", text="yes")
    assert "exit 2" in agent.call("wait", ids=asked.data["id"], timeout_s=20).text
    assert agent.call("signals").data["signals"] == []


def test_what_a_stop_ended_is_not_announced(agents: Agents, world: World) -> None:
    agent = agents("native")
    ran = agent.call("run", command=world.probe("daemon", "{", "forever", "}", "exit", 0), wait_s=20)
    assert "still run" in ran.text
    session = agent.run(agent.hf.get(ran.data["id"]))
    until(lambda: any(getattr(each, "variant", "") == "survivors" for each in agent.run(session.told())))
    agent.call("stop", ids=ran.data["id"], grace_s=0)
    assert agent.call("signals").data["signals"] == []


def test_that_one_was_unwell_is_not_announced_once_it_was_stopped(agents: Agents, world: World) -> None:
    agent = agents("native")
    owner = agent.tools.owner
    health = {"command": "false", "interval": 0.1, "misses": 1}
    session = agent.run(agent.hf.start(world.probe("forever"), owner=owner, health=health))
    until(lambda: any(getattr(each, "variant", "") == "health" for each in agent.run(session.told())))
    # It waits there; a drain here would not get it again for a while in any case.
    assert agent.run(agent.tools.consumer().pending())
    agent.call("stop", ids=session.id, grace_s=0)
    assert agent.call("signals").text == "no new signals"


def test_that_one_starts_again_is_not_announced_once_it_was_stopped(agents: Agents) -> None:
    agent = agents("native")
    restart = {"policy": "on-failure", "delay": 60, "delay_max": 60}
    session = agent.run(agent.hf.start("exit 7", owner=agent.tools.owner, restart=restart))
    until(lambda: agent.run(agent.tools.consumer().pending()))
    agent.call("stop", ids=session.id, grace_s=0)
    assert agent.call("signals").text == "no new signals"


def test_an_end_that_races_with_the_limit_of_its_run_is_reported_once(agents: Agents) -> None:
    """In the answer of the run, or in that of the wait, and then not again."""
    agent = agents("native")
    for number in range(24):
        ran = agent.call("run", command=["sh", "-c", "exit 2"], wait_s=(number % 8) / 1000)
        assert "exit 2" in agent.call("wait", ids=ran.data["id"], timeout_s=20).text
        assert agent.call("signals").data["signals"] == []


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"tty": True}, {"notify": "exit"}], ids=["terminal", "announced"])
def test_a_result_is_an_answer_also_where_the_index_is_locked(
    direct: Agents, world: World, options: dict[str, object]
) -> None:
    agent = direct("native")
    agent.call("list")
    with locked(world):
        ran = agent.call("run", command="echo pushed; exit 3", **options)
    assert not ran.error
    assert "exit 3" in ran.text
    assert shown(ran) == "pushed"
    # It was said once, and nothing of it is new.
    assert "nothing new" in agent.call("read", id=ran.data["id"]).text


@pytest.mark.slow
def test_what_a_wait_gives_is_shown_also_where_the_index_is_locked(direct: Agents, world: World) -> None:
    agent = direct("native")
    gate = world.gate()
    id = agent.call("run", command=world.probe("quiet", "await", gate, "say", "pushed", "exit", 3), wait_s=0).data["id"]
    gate.release()
    with locked(world):
        waited = agent.call("wait", ids=id, timeout_s=20)
    assert not waited.error
    assert shown(waited) == "pushed"


@pytest.mark.slow
def test_a_stop_reports_what_it_took_also_where_the_index_is_locked(direct: Agents, world: World) -> None:
    agent = direct("native")
    ids = [agent.call("run", command=world.probe("forever"), wait_s=0).data["id"] for _ in range(2)]
    with locked(world):
        stopped = agent.call("stop", ids=ids, grace_s=0)
    assert not stopped.error
    assert "2 of 2 stopped" in stopped.text


@pytest.mark.slow
def test_output_of_an_aborted_wait_does_not_count_as_seen(direct: Agents, world: World) -> None:
    """On the index that is locked the wait takes long enough to be aborted when it has all that it would say."""
    agent = direct("native")
    gate = world.gate()
    id = agent.call("run", command=world.probe("quiet", "await", gate, "say", "pushed", "exit", 3), wait_s=0).data["id"]
    gate.release()
    until(lambda: "exit 3" in agent.call("list", all=True).text)

    async def aborted() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(agent.tools.call("wait", {"ids": id}), 1)

    with locked(world):
        agent.run(aborted())
    assert shown(agent.call("read", id=id)) == "pushed"
