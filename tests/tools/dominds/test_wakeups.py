"""Wake-ups: an end is told once, in one message with its neighbours, and by the right way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import time
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import IndexBusy
from support.faults import kill_runner
from support.waiting import until, wait_gone

if TYPE_CHECKING:
    from holdfast.signals.render import Message
    from holdfast.tools import Answer
    from support.agents import Agent, Agents
    from support.world import World


def started(agent: Agent, command: str) -> Answer:
    receipt = agent.call("shell_cmd", command=command, timeoutSeconds=1)
    assert receipt.data["outcome"] == "running", receipt.text
    return receipt


class Dialogs:
    """The dialogs of an agent: which are idle, and what each was told."""

    def __init__(self, agent: Agent, *idle: str) -> None:
        self._agent = agent
        self.idle = list(idle)
        self.told: list[tuple[str, str]] = []
        self.fails = 0

    def place(self, origin: str | None) -> str | None:
        return origin if origin in self.idle else self.idle[0] if self.idle else None

    async def inject(self, dialog: str, message: Message) -> None:
        if self.fails:
            self.fails -= 1
            raise RuntimeError("the transcript is locked")
        assert message.role_hint == "environment"
        self.told.append((dialog, message.text))

    def deliver(self) -> list[tuple[str, str]]:
        """What is told by one delivery."""
        before = len(self.told)

        async def once() -> None:
            wakeups = self._agent.tools.wakeups(self.place, self.inject)
            try:
                await wakeups.deliver()
            finally:
                wakeups.close()

        self._agent.run(once())
        return self.told[before:]

    def serve(self, until_told: int, bound: float = 10.0) -> list[tuple[str, str]]:
        """What a host's loop tells until there are so many messages."""

        async def loop() -> None:
            wakeups = self._agent.tools.wakeups(self.place, self.inject)
            serving = asyncio.ensure_future(wakeups.serve())
            try:
                async with asyncio.timeout(bound):
                    while len(self.told) < until_told:
                        await asyncio.wait([serving], timeout=0.01)
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
                wakeups.close()

        self._agent.run(loop())
        return self.told


def pending(agent: Agent) -> int:
    count: int = agent.run(agent.tools.consumer().pending())
    return count


_HOST = """
import asyncio, sys, holdfast
from holdfast.tools import toolset

async def main():
    async with holdfast.open_async() as hf:
        async with toolset("dominds", hf, owner="agent-7", dialog="first") as tools:
            await tools.call("shell_cmd", {"command": "sleep 3; echo done"})

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.covers("dominds:7")
def test_a_host_that_died_while_it_waited_loses_nothing(direct: Agents, world: World) -> None:
    host = world.host(_HOST)

    def a_second_into_it() -> bool:
        for path in world.home.glob("sessions/*/state.json"):
            started_at = json.loads(path.read_text())["started_at"]
            return time.time() - datetime.fromisoformat(started_at).timestamp() >= 1
        return False

    until(a_second_into_it, what="the first second of the command")
    host.signal(signal.SIGKILL)
    host.wait()
    fresh = direct("dominds")
    dialogs = Dialogs(fresh, "first")
    ((dialog, text),) = dialogs.serve(1)
    assert dialog == "first"
    assert text.startswith("[System notice]\n")
    assert "- Exit status: code 0, signal null" in text
    (session,) = fresh.run(fresh.tools.own_sessions())
    assert "```console\ndone\n```" in fresh.call("get_daemon_output", pid=session.pid).text
    assert dialogs.deliver() == []
    assert pending(fresh) == 0


def test_one_event_says_everything_there_is_to_know(direct: Agents, world: World) -> None:
    agent = direct("dominds", dialog="first")
    gate = world.gate()
    daemon = started(agent, f"echo fine; echo trouble >&2; read -n 1 < {gate}; exit 3")
    gate.release()
    until(lambda: pending(agent) == 1, what="the ending")
    ((_, text),) = Dialogs(agent, "first").deliver()
    lines = text.splitlines()
    assert lines[0] == "[System notice]"
    assert "no instruction of the user" in lines[1]
    pid = daemon.data["pid"]
    assert lines[2] == f"- PID: {pid}"
    assert lines[3].startswith("- Command: echo fine; echo trouble >&2; read -n 1 < ")
    assert lines[4] == "- Exit status: code 3, signal null"
    assert lines[5:-2] == [
        *("stderr:", "```console", "trouble", "```"),
        *("stdout:", "```console", "fine", "```"),
    ]
    assert lines[-2] == f'Whole output: read with get_daemon_output({{ "pid": {pid} }})'
    assert "bare acknowledgement" in lines[-1]
    (reminder,) = agent.run(agent.tools.reminders())
    fields = reminder.to_json()
    assert fields["exitWakeEventId"] == f"shellCmd:daemonExited:{pid}:{fields['startTime']}"
    assert fields["exitWakeNotifiedAt"] > fields["startTime"]


_CRASHING = """
import asyncio, json, os, signal, sys, holdfast
from holdfast.tools import toolset

async def inject(dialog, message):
    print(json.dumps(message.text), flush=True)
    if sys.argv[1] == "crash":
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with holdfast.open_async() as hf:
        async with toolset("dominds", hf, owner="agent-7") as tools:
            wakeups = tools.wakeups(lambda origin: "main", inject)
            if sys.argv[1] == "crash":
                print("waiting", flush=True)
                await wakeups.serve()
            print("told", await wakeups.deliver(), flush=True)
            wakeups.close()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.covers("dominds:23")
def test_two_ends_in_a_short_time_are_one_message_until_it_is_settled(direct: Agents, world: World) -> None:
    agent = direct("dominds")

    gate = world.gate()
    host = world.host(_CRASHING, "crash")
    assert host.line() == "waiting"
    daemons = [started(agent, f"read -n 1 < {gate}") for _ in range(2)]
    gate.release(2)
    text = json.loads(host.line())
    host.wait()
    assert text.startswith("[System notice]\n2 background processes have ended.")
    numbered = [line for line in text.splitlines() if line.startswith(("1. ", "2. ", "3. "))]
    assert [line[:2] for line in numbered] == ["1.", "2."]
    for daemon in daemons:
        assert text.count(f"- PID: {daemon.data['pid']}\n") == 1
    assert text.count("bare acknowledgement") == 1

    again = world.host(_CRASHING, "settle")
    repeated = json.loads(again.line(20))
    for daemon in daemons:
        assert repeated.count(f"- PID: {daemon.data['pid']}\n") == 1
    assert again.line() == "told 1"
    again.wait()
    never = world.host(_CRASHING, "settle")
    assert never.line(20) == "told 0"
    never.wait()


@pytest.mark.covers("dominds:24")
def test_an_own_stop_wakes_no_consumer_and_a_persons_stop_names_the_person(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    own, other = started(agent, "sleep 60; true"), started(agent, "sleep 61; true")
    dialogs = Dialogs(agent, "main")
    assert agent.call("stop_daemon", pid=own.data["pid"]).data["status"] == "success"
    assert pending(agent) == 0
    assert dialogs.deliver() == []
    world.hold("stop", other.data["session"], check=True)
    ((_, text),) = dialogs.serve(1)
    assert f"- PID: {other.data['pid']}" in text
    session = world.open().get(other.data["session"])
    assert session.exit is not None
    assert f"- Cause: stopped by {session.exit.by}" in text
    assert (session.exit.by or "").startswith("cli:")


def test_an_own_stop_wakes_no_consumer_even_where_it_could_not_be_acknowledged(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    own = started(agent, "sleep 60; true")
    # As a host does that is killed between the end and its acknowledgement.
    world.open().get(own.data["session"]).stop(grace=1, by="dominds:agent-7")
    until(lambda: pending(agent) == 1, what="the ending")
    dialogs = Dialogs(agent, "main")
    assert dialogs.deliver() == []
    assert pending(agent) == 0


def test_a_recovered_daemon_and_a_lost_one_are_reported_once(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    stale, lost = started(agent, "exec sleep 60"), started(agent, "echo last; exec sleep 61")
    for daemon in (stale, lost):
        kill_runner(world.open().get(daemon.data["session"]))
    os.kill(lost.data["pid"], signal.SIGKILL)
    wait_gone(lost.data["pid"])
    assert agent.run(agent.tools.recover())["stopped"] == [stale.data["session"]]
    until(lambda: pending(agent) == 2, what="both endings")
    ((_, text),) = Dialogs(agent, "main").serve(1)
    assert f"- PID: {lost.data['pid']}\n" in text
    assert f"- PID: {stale.data['pid']}\n" in text, "no call asked for its end, and nothing else reports it"
    assert text.count("- Exit status: unknown (runner unavailable)") == 2
    assert "- Cause: stopped by recover:agent-7" in text
    assert Dialogs(agent, "main").deliver() == []


def test_where_no_dialog_may_be_reported_nothing_is_taken(direct: Agents, world: World) -> None:
    agent = direct("dominds", dialog="first")
    gate = world.gate()
    started(agent, f"read -n 1 < {gate}")
    gate.release()
    until(lambda: pending(agent) == 1, what="the ending")
    dialogs = Dialogs(agent)
    assert dialogs.deliver() == []
    assert pending(agent) == 1, "still due, for a dialog that is free later"
    dialogs.idle = ["second"]
    assert [dialog for dialog, _ in dialogs.deliver()] == ["second"], "an idle one of the same agent"


@pytest.mark.parametrize("looks", [1, 2])
def test_a_dialog_that_is_busy_by_the_time_of_telling_costs_nothing(direct: Agents, world: World, looks: int) -> None:
    """While others are gathered, or between the claim and the message: it is told as soon as it may be."""
    agent = direct("dominds", dialog="first")
    gate = world.gate()
    started(agent, f"read -n 1 < {gate}")
    gate.release()
    until(lambda: pending(agent) == 1, what="the ending")
    dialogs = Dialogs(agent, "first")
    left = looks

    async def once() -> None:
        def place(origin: str | None) -> str | None:
            nonlocal left
            left -= 1
            return None if left < 0 else dialogs.place(origin)

        wakeups = agent.tools.wakeups(place, dialogs.inject)
        try:
            await wakeups.deliver()
        finally:
            wakeups.close()

    agent.run(once())
    assert dialogs.told == []
    assert pending(agent) == 1, "due at once, not after a while"
    ((_, text),) = dialogs.deliver()
    assert "redelivered" not in text


def test_each_end_goes_to_the_dialog_it_began_in(direct: Agents, world: World) -> None:
    first, second = direct("dominds", dialog="first"), direct("dominds", dialog="second")
    gate = world.gate()
    one, two = started(first, f"read -n 1 < {gate}; exit 1"), started(second, f"read -n 1 < {gate}; exit 2")
    gate.release(2)
    until(lambda: pending(first) == 2, what="both endings")
    told = dict(Dialogs(first, "second", "first").deliver())
    assert f"- PID: {one.data['pid']}" in told["first"]
    assert f"- PID: {two.data['pid']}" in told["second"]
    assert f"- PID: {two.data['pid']}" not in told["first"]


def test_an_injection_that_fails_is_tried_again(direct: Agents, world: World) -> None:
    agent = direct("dominds", dialog="first")
    gate = world.gate()
    daemon = started(agent, f"read -n 1 < {gate}")
    gate.release()
    dialogs = Dialogs(agent, "first")
    dialogs.fails = 1
    ((_, text),) = dialogs.serve(1)
    assert f"- PID: {daemon.data['pid']}" in text
    assert "redelivered" in text


@pytest.mark.slow
def test_a_locked_index_ends_no_loop(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    gate = world.gate()
    started(agent, f"read -n 1 < {gate}")
    gate.release()
    until(lambda: pending(agent) == 1, what="the ending")
    dialogs = Dialogs(agent, "main")

    async def loop() -> None:
        wakeups = agent.tools.wakeups(dialogs.place, dialogs.inject)
        locker = sqlite3.connect(world.home / "index.db", isolation_level=None)
        locker.execute("BEGIN EXCLUSIVE")
        serving = asyncio.ensure_future(wakeups.serve())
        try:
            async with asyncio.timeout(30):
                while not isinstance(wakeups.trouble, IndexBusy):
                    assert not serving.done()
                    await asyncio.wait([serving], timeout=0.01)
                locker.execute("ROLLBACK")
                while not dialogs.told:
                    assert not serving.done()
                    await asyncio.wait([serving], timeout=0.01)
        finally:
            locker.close()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            wakeups.close()

    agent.run(loop())
    assert len(dialogs.told) == 1


def test_a_dialog_that_becomes_idle_is_reported_without_polling(direct: Agents, world: World) -> None:
    agent = direct("dominds", dialog="first")
    gate = world.gate()
    started(agent, f"read -n 1 < {gate}")
    gate.release()
    until(lambda: pending(agent) == 1, what="the ending")
    dialogs = Dialogs(agent)

    async def loop() -> None:
        wakeups = agent.tools.wakeups(dialogs.place, dialogs.inject)
        serving = asyncio.ensure_future(wakeups.serve())
        done, _ = await asyncio.wait([serving], timeout=0.8)
        assert not done
        assert dialogs.told == []
        dialogs.idle = ["first"]
        wakeups.freed()
        async with asyncio.timeout(30):
            while not dialogs.told:
                await asyncio.wait([serving], timeout=0.01)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        wakeups.close()

    agent.run(loop())
    assert len(dialogs.told) == 1


def test_two_loops_of_one_agent_share_and_continue(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    gate = world.gate()
    dialogs = Dialogs(agent, "main")
    pids = [started(agent, f"read -n 1 < {gate}; exit {code}").data["pid"] for code in (1, 2)]

    async def loops() -> None:
        wakeups = [agent.tools.wakeups(dialogs.place, dialogs.inject) for _ in range(2)]
        serving = [asyncio.ensure_future(each.serve()) for each in wakeups]
        try:
            for count in (1, 2):
                gate.release()
                async with asyncio.timeout(30):
                    while len(dialogs.told) < count:
                        await asyncio.wait(serving, timeout=0.01)
        finally:
            for each in serving:
                each.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            for loop in wakeups:
                loop.close()

    agent.run(loops())
    told = "".join(text for _, text in dialogs.told)
    assert [told.count(f"- PID: {pid}\n") for pid in pids] == [1, 1]


def test_output_and_extinction_wake_no_consumer(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    gate = world.gate()
    done = agent.call("shell_cmd", command=f"read -n 1 < {gate} & echo up")
    assert done.data["survivors"]
    gate.release()
    until(lambda: agent.run(agent.tools.reminders())[0].completed, what="the extinction")
    started(agent, "sleep 1.1; echo more; sleep 60")
    assert pending(agent) == 0


def test_a_restart_wakes_no_consumer_and_the_end_after_it_does(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    gate = world.gate()
    dialogs = Dialogs(agent, "main")
    again = {"policy": "on-failure", "attempts": 2, "delay": 0.01, "delay_max": 0.01}

    async def loop() -> None:
        wakeups = agent.tools.wakeups(dialogs.place, dialogs.inject)
        serving = asyncio.ensure_future(wakeups.serve())
        try:
            session = world.open().start(f"read -n 1 < {gate}; exit 7", shell="bash", owner="agent-7", restart=again)
            gate.release()
            async with asyncio.timeout(30):
                while session.refresh().attempt < 2:
                    await asyncio.wait([serving], timeout=0.01)
            await asyncio.wait([serving], timeout=1)
            async with asyncio.timeout(30):
                while await agent.tools.consumer().pending():
                    await asyncio.wait([serving], timeout=0.01)
            assert dialogs.told == []
            gate.release()
            async with asyncio.timeout(30):
                while not dialogs.told:
                    await asyncio.wait([serving], timeout=0.01)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            wakeups.close()

    agent.run(loop())
    ((_, text),) = dialogs.told
    assert "- Exit status: code 7, signal null" in text


def test_a_restart_is_no_turn(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    again = {"policy": "on-failure", "delay": 60, "delay_max": 60}
    world.open().start("exit 7", owner="agent-7", restart=again)
    until(lambda: pending(agent) == 1, what="the restart")
    told: list[str] = []

    async def once() -> int:
        async def inject(dialog: str, message: Message) -> None:
            told.append(message.text)

        wakeups = agent.tools.wakeups(lambda origin: "main", inject)
        try:
            turns: int = await wakeups.deliver()
            return turns
        finally:
            wakeups.close()

    assert agent.run(once()) == 0
    assert told == []


def test_what_a_daemon_leaves_is_reported_with_its_end(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    gate = world.gate()
    daemon = started(agent, f"sleep 300 & read -n 1 < {gate}; kill -9 $$")
    gate.release()
    until(lambda: pending(agent) == 1, what="the ending")
    ((_, text),) = Dialogs(agent, "main").deliver()
    assert f"- PID: {daemon.data['pid']}\n" in text
    assert "- Exit status: code null, signal SIGKILL" in text
    assert "1 of its processes still runs" in text
