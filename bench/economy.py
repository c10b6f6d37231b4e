"""What a dozen everyday jobs cost an agent through each toolset: calls, bytes and tokens that come back, time lost.

A scripted policy per toolset (bench/policies) does each job as somebody would who knows the tools well. A token is
taken as four characters. Commands are run as a person would write them: what they will print is not known before, so no
policy filters it in the shell, but where its tools cannot search. `python -m bench.economy` prints the table;
`--write` puts it into docs/economy.md.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from contextlib import chdir
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast.tools import TOOLSETS, toolset

from .jobs import PROOFS, write
from .place import forget_places, place

if TYPE_CHECKING:
    from holdfast.tools import Answer, Toolset

PAGE = Path(__file__).resolve().parents[1] / "docs" / "economy.md"
_CHARACTERS_A_TOKEN = 4


@dataclass
class Cost:
    calls: int = 0
    polls: int = 0
    characters: int = 0
    lost_s: float = 0.0
    took_s: float = 0.0
    seen: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return -(-self.characters // _CHARACTERS_A_TOKEN)


class Meter:
    """The tools of one agent, with a count of what comes back."""

    def __init__(self, tools: Toolset, directory: Path) -> None:
        self.tools = tools
        self.directory = directory
        self.cost = Cost()

    async def call(self, tool: str, /, **arguments: Any) -> Answer:
        answer = await self.tools.call(tool, arguments)
        self.cost.calls += 1
        self.told(answer.text)
        return answer

    async def poll(self, tool: str, /, **arguments: Any) -> Answer:
        """A call that only asks whether something has happened yet."""
        self.cost.polls += 1
        return await self.call(tool, **arguments)

    async def pause(self, seconds: float) -> None:
        """Between two polls."""
        self.cost.lost_s += seconds
        await asyncio.sleep(seconds)

    async def notice(self) -> str:
        """Until the agent is told something, as its host would put it before the next turn."""
        consumer = self.tools.consumer()
        with consumer.waker() as waker:
            await waker
        async with await consumer.drain(self.tools.name) as message:
            self.told(message.text)
            return message.text

    def told(self, text: str) -> None:
        self.cost.characters += len(text)
        self.cost.seen.append(text)

    def program(self, name: str, *arguments: object) -> str:
        words = " ".join(map(str, arguments))
        return f"{sys.executable} {self.directory}/{name} {words}".rstrip()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def measure(family: str, job: str, directory: Path) -> Cost:
    """One job, by an agent with a home of its own; the programs are in the directory that we are in."""
    async with holdfast.open_async(os.environ["HOLDFAST_HOME"] + f"-{family}-{job}") as hf:
        tools = toolset(family, hf, owner="agent")
        await tools.open()
        meter = Meter(tools, directory)
        policy = import_module(f".policies.{family}", __package__)
        began = time.perf_counter()
        await getattr(policy, job)(meter)
        meter.cost.took_s = time.perf_counter() - began
        left = await hf.sessions()
        await hf.stop_all([session.id for session in left])
        await tools.close()
    if PROOFS[job] not in "\n".join(meter.cost.seen):
        raise AssertionError(f"{family} did not learn {PROOFS[job]!r} from {job}: {meter.cost.seen}")
    if left:
        raise AssertionError(f"{family} left {[each.command for each in left]} running after {job}")
    return meter.cost


def table(costs: dict[str, dict[str, Cost]]) -> str:
    """Tokens per job, and the sums of everything else."""
    families = list(costs)
    lines = [
        "| job | " + " | ".join(families) + " |",
        "| --- |" + " ---: |" * len(families),
    ]
    for job in PROOFS:
        tokens = [f"{costs[family][job].tokens:,}" for family in families]
        lines.append(f"| {job.replace('_', ' ')} | " + " | ".join(tokens) + " |")

    def total(name: str, how: Any) -> None:
        sums = [how(costs[family].values()) for family in families]
        lines.append(f"| **{name}** | " + " | ".join(sums) + " |")

    total("tokens", lambda each: f"**{sum(cost.tokens for cost in each):,}**")
    total("characters", lambda each: f"{sum(cost.characters for cost in each):,}")
    total("tool calls", lambda each: str(sum(cost.calls for cost in each)))
    total("of them polls", lambda each: str(sum(cost.polls for cost in each)))
    total("seconds lost to polling", lambda each: f"{sum(cost.lost_s for cost in each):.1f}")
    return "\n".join(lines)


def verdict(costs: dict[str, dict[str, Cost]]) -> str:
    sums = {family: sum(cost.tokens for cost in jobs.values()) for family, jobs in costs.items()}
    others = {family: tokens for family, tokens in sums.items() if family != "native"}
    best = min(others, key=lambda family: others[family])
    share = sums["native"] / others[best]
    return f"native needs {share:.0%} of the tokens of {best}, the best of the others (goal: less than half)"


_HEAD = """\
# Economy

What a dozen everyday jobs cost an agent in tokens that come back to it (four characters each), through each toolset.
A scripted policy does each job as somebody would who knows those tools well: [bench/economy.py](../bench/economy.py)
measures it, [bench/policies](../bench/policies) are the policies, [bench/jobs.py](../bench/jobs.py) the programs.
Commands are run as a person would write them: what they will print is not known before, so no policy filters it in the
shell (`| tail`), but where its tools cannot search. `dominds` and `evva` have neither input nor a terminal: there the
dialogues are scripted in one go, which is no dialogue.
Made by `python -m bench.economy --write`; do not edit.

"""


def _alone(family: str, job: str) -> Cost:
    with place() as here:
        directory = Path(here.file("work"))
        write(directory)
        with chdir(directory):
            return asyncio.run(measure(family, job, directory))


def main(words: list[str]) -> int:
    wanted = [word for word in words if not word.startswith("-")]
    unknown = set(wanted) - set(TOOLSETS) - set(PROOFS)
    if unknown:
        sys.exit(f"no toolset or job {', '.join(sorted(unknown))}; there are {', '.join((*TOOLSETS, *PROOFS))}")
    families = [family for family in TOOLSETS if not wanted or family in wanted]
    jobs = [job for job in PROOFS if not set(wanted) & set(PROOFS) or job in wanted]
    families = families or list(TOOLSETS)
    costs: dict[str, dict[str, Cost]] = {family: {} for family in families}
    try:
        for family, job in product(families, jobs):
            cost = costs[family][job] = _alone(family, job)
            said = f"{cost.calls} calls, {cost.polls} polls, {cost.tokens} tokens, {cost.took_s:.1f} s"
            print(f"{family:9} {job:17} {said}", flush=True)
            if "-v" in words:
                print("\n--\n".join(cost.seen))
    finally:
        forget_places()
    if len(families) == len(TOOLSETS) and len(jobs) == len(PROOFS):
        print(table(costs), verdict(costs), sep="\n\n")
        if "--write" in words:
            PAGE.write_text(f"{_HEAD}{table(costs)}\n\nMeasured: {verdict(costs)}.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
