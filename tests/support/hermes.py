"""The hermes toolset in the hands of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.waiting import until

if TYPE_CHECKING:
    from support.agents import Agent

Event = dict[str, Any]


def start(agent: Agent, command: str, **options: Any) -> str:
    """In the background; the id."""
    answer = agent.call("terminal", command=command, background=True, **options)
    assert not answer.error, answer.text
    id: str = answer.data["session_id"]
    return id


def process(agent: Agent, action: str, id: str, **options: Any) -> dict[str, Any]:
    return agent.call("process", action=action, session_id=id, **options).data


def over(agent: Agent, id: str, bound: float = 10.0) -> dict[str, Any]:
    """What a poll says when it has ended. A poll takes no note of the end."""

    def ended() -> dict[str, Any] | None:
        told = process(agent, "poll", id)
        return told if told["status"] == "exited" else None

    found = until(ended, bound, what=f"the end of {id}")
    assert found is not None
    return found


def printed(agent: Agent, id: str, text: str, bound: float = 10.0) -> None:
    until(lambda: text in process(agent, "poll", id)["output_preview"], bound, what=f"{text!r} in the output of {id}")


def drain(agent: Agent) -> list[Event]:
    """What is due now, settled."""
    drained = agent.run(agent.tools.drain())
    agent.run(drained.settle())
    return list(drained.events)


def drained(agent: Agent, count: int = 1, bound: float = 10.0) -> list[Event]:
    """So many events, when they are there."""
    found: list[Event] = []

    def enough() -> bool:
        found.extend(drain(agent))
        return len(found) >= count

    until(enough, bound, what=f"{count} events")
    return found
