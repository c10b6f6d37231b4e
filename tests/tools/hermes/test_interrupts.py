"""The user wants a foreground command to stop, or to go on by itself: early, or while its supervisor is not well."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.sessions import connection
from holdfast.tools.hermes import words
from support import processes
from support.faults import kill_runner, sweep_up, wedged
from support.hermes import over, process
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from holdfast import Holdfast, Session
    from support.agents import Agent, Agents
    from support.world import World


@pytest.fixture
def impatient(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that do not wait long for a runner."""
    config = world.root / "config.toml"
    config.write_text('[hosts]\nreply_timeout = "300ms"\nsweep_timeout = "100ms"\n')
    monkeypatch.setenv("HOLDFAST_CONFIG", str(config))


@contextmanager
def orphaned(session: Session) -> Iterator[None]:
    kill_runner(session)
    yield


def only(hf: Holdfast) -> Session:
    """The one session that runs, once its runner is known."""

    def supervised() -> list[Session]:
        return [each for each in hf.sessions() if each.runner_pid is not None]

    (session,) = until(supervised, what="a session with a runner")
    return session


def meanwhile(
    agent: Agent, world: World, hf: Holdfast, wound: Callable[[Session], AbstractContextManager[Any]], way: str | None
) -> tuple[int, dict[str, Any]]:
    """The pid and the answer of a foreground command that is interrupted, or yields, or is left alone when its runner
    is wounded."""
    gate = world.gate()

    async def called() -> Any:
        command = f"echo hi; echo up >{gate}; exec sleep 100"
        call = asyncio.ensure_future(agent.tools.call("terminal", {"command": command}))
        await asyncio.to_thread(gate.line)
        session = only(hf)
        # What it printed may not have been read yet when it says that it is up.
        until(lambda: session.text() == "hi\n", what="its output in the log")
        with wound(session):
            if way is not None:
                getattr(agent.tools, way)()
            return session.pid, (await call).data

    pid, told = agent.run(called())
    return pid, told


def test_an_interrupt_ends_a_command_whose_supervisor_is_gone(library: Agents, world: World) -> None:
    agent, hf = library("hermes"), world.open()
    pid, told = meanwhile(agent, world, hf, orphaned, "interrupt")
    assert (told["exit_code"], told["output"], told["error"]) == (130, "hi\n[Command interrupted]", None)
    assert processes.is_gone(pid)
    assert "process_running" not in told
    sweep_up(world, hf)


@pytest.mark.usefixtures("impatient")
def test_an_interrupt_ends_a_command_whose_supervisor_does_not_answer(library: Agents, world: World) -> None:
    agent, hf = library("hermes"), world.open()
    pid, told = meanwhile(agent, world, hf, wedged, "interrupt")
    assert (told["exit_code"], told["output"], told["error"]) == (130, "hi\n[Command interrupted]", None)
    assert processes.is_gone(pid)
    assert "process_running" not in told
    assert told["health"] == "unreachable"
    ended = over(agent, told["session_id"], 20)
    assert (ended["completion_reason"], ended["termination_source"]) == ("killed", "interrupt")


def test_a_command_whose_supervisor_is_gone_continues_after_a_yield(library: Agents, world: World) -> None:
    agent, hf = library("hermes"), world.open()
    pid, told = meanwhile(agent, world, hf, orphaned, "yield_now")
    assert (told["status"], told["error"], told["output"]) == ("yielded_to_background", None, "hi\n")
    assert (told["health"], told["detached"], told["pid"]) == ("stale", True, pid)
    assert told["note"].startswith(words.YIELDED)
    assert "supervisor is gone" in told["note"]
    assert process(agent, "kill", told["session_id"])["status"] in ("killed", "already_exited")
    sweep_up(world, hf)


@pytest.mark.usefixtures("impatient")
def test_a_command_whose_supervisor_falls_silent_continues_in_the_background(
    library: Agents, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "RENEW_S", 0.5)
    agent, hf = library("hermes"), world.open()
    pid, told = meanwhile(agent, world, hf, wedged, None)
    assert (told["status"], told["error"], told["output"]) == ("yielded_to_background", None, "hi\n")
    assert (told["health"], told["pid"], "promoted_from_foreground" in told) == ("unreachable", pid, False)
    monkeypatch.delenv("HOLDFAST_CONFIG")  # by a host that waits until the runner has come to itself
    assert process(library("hermes"), "kill", told["session_id"])["status"] == "killed"


def before_the_start(agent: Agent, world: World, way: str, command: str) -> dict[str, Any]:
    """The answer of a foreground command, where that is said while a login shell is asked for its variables."""
    asked, gate = world.gate(), world.gate()
    (world.root / "user" / ".profile").write_text(f"echo asked >{asked}; head -c 1 <{gate}\n")

    async def called() -> Any:
        call = asyncio.ensure_future(agent.tools.call("terminal", {"command": command}))
        await asyncio.to_thread(asked.line)
        getattr(agent.tools, way)()
        gate.release()
        return (await call).data

    told: dict[str, Any] = agent.run(called())
    return told


def test_an_interrupt_before_the_start_starts_nothing(library: Agents, world: World) -> None:
    agent = library("hermes")
    told = before_the_start(agent, world, "interrupt", "touch ran; echo done")
    assert told == {"output": "[Command interrupted]", "exit_code": 130, "error": None}
    assert not (world.cwd / "ran").exists()
    assert agent.run(agent.hf.sessions(all=True)) == []


def test_a_yield_before_the_start_leaves_the_command_to_the_background(library: Agents, world: World) -> None:
    agent = library("hermes")
    told = before_the_start(agent, world, "yield_now", "exec sleep 100")
    assert (told["status"], told["error"], told["notify_on_complete"]) == ("yielded_to_background", None, True)
    assert process(agent, "kill", told["session_id"])["status"] == "killed"
