"""A subagent: a task of this host that tells what it does, and ends exactly once whatever it does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ...daemons.handle import in_words
from . import texts

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Unpack

    from ...daemons.handle import Handle
    from ...daemons.view import DaemonOptions, View
    from ...model import Snapshot

    Work = Coroutine[Any, Any, Any] | Callable[["Agent"], Coroutine[Any, Any, Any]]

READY, CRUSHED = "ready_report", "crushed"


class Agent:
    """The first of `report`, `crush` and `kill` decides; what comes later is ignored."""

    def __init__(self, handle: Handle, owner: str) -> None:
        self._handle = handle
        self._owner = owner
        self.id = handle.id
        self.kind = handle.kind

    def __repr__(self) -> str:
        return f"<Agent {self.id}>"

    @property
    def task(self) -> asyncio.Task[Any] | None:
        return self._handle.task

    def snapshot(self) -> Snapshot:
        return self._handle.snapshot()

    def phase(self, text: str) -> None:
        self._handle.phase(text)

    def report(self, summary: str) -> bool:
        """Completed, with this as the result. False when its end was told before."""
        return self._handle.report(summary, phase=READY)

    def crush(self, summary: str, err: str | BaseException | None = None, status: str = "failed") -> bool:
        """Failed (or killed); one that was killed before stays so."""
        error = None if err is None else f"{summary}: {in_words(err)}"
        if status == "killed":
            return self._handle.give_up(summary, error=error, phase=CRUSHED)
        return self._handle.fail(error, summary, phase=CRUSHED)

    def kill(self) -> None:
        """Ask for its end: on record first, then the task is cancelled."""
        self._handle.stop(by=self._owner)

    def interrupted(self) -> None:
        self._handle.give_up(texts.AGENT_INTERRUPTED)

    async def live(self, work: Work) -> Any:
        """Its whole life. One that ends without a word has its end told here."""
        try:
            result = await (work if asyncio.iscoroutine(work) else work(self))
        except asyncio.CancelledError:
            self.interrupted()
            raise
        except Exception as problem:
            self.crush(texts.AGENT_CRUSHED, problem)
            raise
        self.report(result if isinstance(result, str) and result else texts.NO_SUMMARY)
        return result


class _Life(Coroutine[Any, Any, Any]):
    """What an agent lives. One that is cancelled before its first step never runs, and yet has its end told."""

    def __init__(self, agent: Agent, work: Work) -> None:
        self._agent = agent
        self._life = agent.live(work)
        self._began = False

    def send(self, value: Any) -> Any:
        self._began = True
        return self._life.send(value)

    def throw(self, *problem: Any) -> Any:
        if not self._began and isinstance(problem[0], asyncio.CancelledError):
            self._agent.interrupted()
        self._began = True
        return self._life.throw(*problem)

    def close(self) -> None:
        self._life.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._life.__await__()


def spawn(view: View, work: Work, **options: Unpack[DaemonOptions]) -> Agent:
    """As a task of the running loop, for itself: who spawned it may be cancelled, it is not."""
    agents: list[Agent] = []

    def begin(handle: Handle) -> Coroutine[Any, Any, Any]:
        agents.append(Agent(handle, options.get("owner") or ""))
        return _Life(agents[0], work)

    options["kind"] = "local_agent"
    try:
        handle = view.task(begin, **options)
    except BaseException:
        if asyncio.iscoroutine(work):
            work.close()  # nobody else will, and Python complains about those
        raise
    if handle.task is not None and asyncio.iscoroutine(work):
        # One that was cancelled before its first step would be left as it is.
        handle.task.add_done_callback(lambda _: work.close())
    return agents[0]
