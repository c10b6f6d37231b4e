"""The hermes toolset in the hands of a test."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from support.waiting import BOUND_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from support.agents import Agent
    from support.world import World

Event = dict[str, Any]

# A host that calls `terminal` with each of its arguments, and stays until it is killed.
HOST = """
import asyncio, json, sys
import holdfast
from holdfast.tools import toolset

async def main():
    async with holdfast.open_async() as hf, toolset("hermes", hf, owner="a") as tools:
        for arguments in map(json.loads, sys.argv[1:]):
            print(json.dumps((await tools.call("terminal", arguments)).data), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""

# One that takes what is due, and leaves.
DRAIN = """
import asyncio, json
import holdfast
from holdfast.tools import toolset

async def main():
    async with holdfast.open_async() as hf, toolset("hermes", hf, owner="a") as tools:
        async with await tools.drain() as taken:
            print(json.dumps(taken.events), flush=True)

asyncio.run(main())
"""


def start(agent: Agent, command: str, **options: Any) -> str:
    """In the background; the id."""
    answer = agent.call("terminal", command=command, background=True, **options)
    assert not answer.error, answer.text
    id: str = answer.data["session_id"]
    return id


def process(agent: Agent, action: str, id: str, **options: Any) -> dict[str, Any]:
    return agent.call("process", action=action, session_id=id, **options).data


def over(agent: Agent, id: str, bound: float = BOUND_S) -> dict[str, Any]:
    """What a poll says when it has ended. A poll takes no note of the end."""

    def ended() -> dict[str, Any] | None:
        told = process(agent, "poll", id)
        return told if told["status"] == "exited" else None

    found = until(ended, bound, what=f"the end of {id}")
    assert found is not None
    return found


def printed(agent: Agent, id: str, text: str, bound: float = BOUND_S) -> None:
    until(lambda: text in process(agent, "poll", id)["output_preview"], bound, what=f"{text!r} in the output of {id}")


def drain(agent: Agent) -> list[Event]:
    """What is due now, settled."""
    drained = agent.run(agent.tools.drain())
    agent.run(drained.settle())
    return list(drained.events)


def drained(agent: Agent, count: int = 1, bound: float = BOUND_S) -> list[Event]:
    """So many events, when they are there."""
    found: list[Event] = []

    def enough() -> bool:
        found.extend(drain(agent))
        return len(found) >= count

    until(enough, bound, what=f"{count} events")
    return found


def beats_until_the_end(agent: Agent, end: Callable[[], object]) -> list[Event]:
    """The heartbeats of what prints `line 1`, `line 2`, ... until `end` is called, which is when two have come: each
    line was reported once and in order, and none of them follows its completion."""
    events: list[Event] = []

    def two_came() -> bool:
        events.extend(drain(agent))
        return len(events) >= 2

    def is_over() -> bool:
        events.extend(drain(agent))
        return any(event["type"] == "completion" for event in events)

    until(two_came, bound=30, what="two heartbeats")
    end()

    until(is_over, bound=30, what="the end")
    beats = [event for event in events if event["type"] == "heartbeat"]
    assert [beat["seq"] for beat in beats] == list(range(1, len(beats) + 1))
    lines = [line for beat in beats for line in beat["output"].splitlines()]
    assert lines == [f"line {number}" for number in range(1, len(lines) + 1)], "each line once, in order"
    assert events[-1]["type"] == "completion"
    assert drain(agent) == []
    return beats


class Sandbox:
    """Runs commands to their end, apart from ours: another home, another environment, no descriptor left open."""

    def __init__(self, words: Sequence[str], env: dict[str, str] | None = None) -> None:
        self._words = words
        self._env = env
        self.calls: list[str] = []
        # How long each was allowed to take.
        self.lengths: list[float] = []
        # So many of the next calls fail.
        self.failures = 0

    def execute(self, command: str, *, timeout: float = 30) -> dict[str, Any]:
        self.calls.append(command)
        self.lengths.append(timeout)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no answer")
        done = subprocess.run(
            [*self._words, command],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
        return {"output": done.stdout.decode(), "returncode": done.returncode}


def beside(world: World, *, path: str = "/usr/local/bin:/usr/bin:/bin") -> tuple[Sandbox, Path]:
    home = world.root / "sandbox"
    (home / "tmp").mkdir(parents=True)
    env = {"HOME": str(home), "TMPDIR": str(home / "tmp"), "PATH": path, "INSIDE": "yes"}
    shell = shutil.which("sh")
    assert shell is not None
    return Sandbox([shell, "-c"], env), home
