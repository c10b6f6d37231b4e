"""A runner that was stopped by a signal (SIGSTOP) answers no request: every wait ends when its time is over."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import pytest

from holdfast.errors import ServerGone, Unreachable
from holdfast.sessions.wait import CONDITIONS
from support import lsp_server, processes
from support.faults import halt, wedged
from support.own_time import OwnTime, QuietTime
from support.waiting import until

if TYPE_CHECKING:
    from support.agents import Agent, Agents
    from support.world import World

# How long each wait is asked to take, and how much later it may return.
TIME_S = 1.0
LATER_S = 1.0


@contextlib.contextmanager
def in_time(limit_s: float = TIME_S, *, by_command: bool = False) -> Iterator[None]:
    passed = QuietTime() if by_command else OwnTime(os.getpid())
    yield
    took_s = passed.seconds()
    assert took_s < limit_s + LATER_S, f"a wait of {limit_s:g} s took {took_s:.2f} s"


WAITS: dict[str, dict[str, Any]] = {
    "exit": {},
    "match": {"match": "never"},
    "output": {"output": True},
    "idle": {"idle": 30},
    "port": {"port": 1},
    "extinct": {"extinct": True},
}


def test_every_condition_is_waited_for_here() -> None:
    assert set(WAITS) == {*CONDITIONS, "extinct"} - {"ready"}, "ready needs a session that was started with it"


@pytest.mark.covers("found:11")
@pytest.mark.parametrize("condition", WAITS)
def test_a_wait_of_the_library_ends_at_its_timeout(world: World, condition: str) -> None:
    session = world.open().start("echo up; exec sleep 600")
    with wedged(session), in_time():
        woke = session.wait(timeout=TIME_S, **WAITS[condition])
    assert (woke.reason, session.state) == ("timeout", "unreachable")
    session.wait(timeout=0)
    assert session.state == "running"
    session.stop(grace=0)


@pytest.mark.covers("found:11")
def test_a_wait_in_progress_ends_at_its_timeout(world: World) -> None:
    session = world.open().start("exec sleep 600")
    row = processes.look(session.runner_pid or 0)
    assert row is not None
    halted = threading.Timer(0.2, lambda: halt(row.pid))
    halted.start()
    try:
        with in_time(2 * TIME_S):
            assert session.wait(timeout=2 * TIME_S).reason == "timeout"
    finally:
        halted.join()
        processes.send(row, signal.SIGCONT)
    session.stop(grace=0)


@pytest.mark.covers("found:11")
def test_the_command_line_waits_no_longer(world: World) -> None:
    session = world.open().start("echo up; exec sleep 600")
    world.hold("ls")  # its files are read from the disk once
    with wedged(session):
        with in_time(by_command=True):
            done = world.hold("wait", session.id, "--timeout", f"{TIME_S}s")
        assert (done.returncode, done.stdout) == (124, "timeout\n")
        with in_time(by_command=True):
            assert world.hold("wait", session.id, "--idle", "60s", "--timeout", f"{TIME_S}s").returncode == 124
    session.stop(grace=0)


class Halting:
    """Stops the runner of the session that another process is about to start, as soon as its command runs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known = set(self._there())
        self.row: processes.Process | None = None
        self._thread = threading.Thread(target=self._halt)

    def __enter__(self) -> Halting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        assert self.row is not None
        processes.send(self.row, signal.SIGCONT)

    def _there(self) -> list[str]:
        sessions = self._world.home / "sessions"
        return [path.name for path in sessions.iterdir()] if sessions.exists() else []

    def _started(self) -> int | None:
        for id in self._there():
            if id not in self._known and (self._world.cwd / "began").exists():
                pid: int = json.loads((self._world.session(id) / "state.json").read_text())["runner"]["pid"]
                return pid
        return None

    def _halt(self) -> None:
        pid = until(self._started, what="a command that runs")
        assert pid is not None
        halt(pid)
        self.row = processes.look(pid)


# By then its start is answered.
BEGIN = "sleep 0.3; touch began; exec sleep 600"


@pytest.mark.covers("found:11")
@pytest.mark.parametrize("lifetime", ["detached", "call"])
def test_a_run_of_the_library_and_of_the_command_line_wait_no_longer(
    world: World, lifetime: Literal["detached", "call"]
) -> None:
    hf = world.open()
    hf.run("true")
    with Halting(world), in_time(2 * TIME_S):
        session = hf.run(BEGIN, wait=2 * TIME_S, lifetime=lifetime)
    assert session.exit is None
    assert session.wait(timeout=0.5).reason == "timeout", "the call returned, and what it ran lives on"
    session.stop(grace=0)
    os.unlink(world.cwd / "began")
    with Halting(world), in_time(2 * TIME_S, by_command=True):
        done = world.hold("run", "--wait", f"{2 * TIME_S:g}s", "--lifetime", lifetime, "--", "sh", "-c", BEGIN)
    assert done.returncode == 0, done.stderr
    session = hf.get(done.stdout.strip())
    assert session.wait(timeout=0.5).reason == "timeout"
    session.stop(grace=0)


@pytest.mark.covers("found:11")
def test_input_that_waits_for_what_comes_of_it_waits_no_longer(world: World) -> None:
    session = world.open().start("exec cat", stdin="open")
    with wedged(session), in_time(), pytest.raises(Unreachable):
        session.send("hello\n", wait_for={"match": "hello", "timeout": TIME_S})
    session.stop(grace=0)


@pytest.mark.covers("found:11")
def test_a_request_to_a_language_server_waits_no_longer(world: World) -> None:
    hf = world.open()
    server = hf.daemons.lsp(lsp_server.argv(), server="toy")
    assert server.request("echo", 1) == 1
    with wedged(hf.get(server.id)), in_time(), pytest.raises(ServerGone):
        server.request("echo", 2, timeout=TIME_S)
    assert server.request("echo", 3) == 3
    server.stop()


def ended(agent: Agent, id: str) -> None:
    async def end() -> None:
        await (await agent.hf.get(id)).stop(grace=0)

    agent.run(end())


# Starting in the background, and the calls that wait for what was started there.
Ask = Callable[["Agent", Any], Any]
BACKGROUND: dict[str, tuple[Ask, list[Ask]]] = {
    "native": (
        lambda agent, _: agent.call("run", command="exec sleep 600", wait_s=0),
        [
            lambda agent, ref: agent.call("wait", ids=ref, timeout_s=TIME_S),
            lambda agent, ref: agent.call("wait", ids=ref, until="match", pattern="never", timeout_s=TIME_S),
        ],
    ),
    "hermes": (
        lambda agent, _: agent.call("terminal", command="exec sleep 600", background=True),
        [lambda agent, ref: agent.call("process", action="wait", session_id=ref, timeout=1)],
    ),
    "openclaw": (
        lambda agent, _: agent.call("exec", command="exec sleep 600", background=True),
        [lambda agent, ref: agent.call("process", action="poll", sessionId=ref, timeout=1000)],
    ),
    "dominds": (
        lambda agent, _: agent.call("shell_cmd", command="exec sleep 600", timeoutSeconds=1),
        [lambda agent, pid: agent.call("get_daemon_output", pid=pid, timeout_ms=1000)],
    ),
}
IDS = {"native": "id", "hermes": "session_id", "openclaw": "sessionId", "dominds": "pid"}


@pytest.mark.covers("found:11")
@pytest.mark.parametrize("family", BACKGROUND)
def test_a_toolset_waits_no_longer_for_what_runs_in_the_background(direct: Agents, world: World, family: str) -> None:
    agent = direct(family)
    start, waits = BACKGROUND[family]
    data = start(agent, None).data
    (session,) = world.open().sessions()
    with wedged(session):
        for wait in waits:
            with in_time():
                answer = wait(agent, data[IDS[family]])
            assert "unreachable" in json.dumps([answer.text, answer.data]) or "answer" in answer.text, answer.text
    ended(agent, session.id)


# Calls that start a command and wait for its end, for 2 seconds; and the answer that says that the end is unknown.
FOREGROUND: dict[str, Callable[[Agent], Any]] = {
    "native": lambda agent: agent.call("run", command=BEGIN, wait_s=2),
    "hermes": lambda agent: agent.call("terminal", command=BEGIN, timeout=2),
    "openclaw": lambda agent: agent.call("exec", command=BEGIN, yieldMs=2000),
    "dominds": lambda agent: agent.call("shell_cmd", command=BEGIN, timeoutSeconds=2),
    "evva": lambda agent: agent.call("bash", command=BEGIN, timeout=2000),
}


@pytest.mark.covers("found:11")
@pytest.mark.parametrize("family", FOREGROUND)
def test_a_toolset_waits_no_longer_for_what_it_starts(direct: Agents, world: World, family: str) -> None:
    agent = direct(family)
    with Halting(world), in_time(2 * TIME_S):
        FOREGROUND[family](agent)
    for session in agent.run(agent.hf.sessions()):
        ended(agent, session.id)


def test_a_change_of_a_session_whose_runner_is_stopped_fails_at_once(world: World) -> None:
    session = world.open().start("exec sleep 600")
    with wedged(session), in_time(0.0), pytest.raises(Unreachable):
        session.update(labels={"a": "b"})
    session.stop(grace=0)
