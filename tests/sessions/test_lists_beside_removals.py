"""Lists made while another process starts and removes sessions: no error, and no session missing that was there all
the time."""

from __future__ import annotations

import json
from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.sessions import core as cores
from holdfast.sessions import observe as sweeps
from holdfast.tools.hermes import Registry
from support.agents import Agents
from support.scale import scaled

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.sessions.observe import Files, Observed
    from support.world import World

OWNER = "agent-7"
# What each toolset knows its sessions by, so that every list has to look at every session.
OPTIONS: dict[str, Any] = {
    "owner": OWNER,
    "labels": {
        "hermes.task": "t1",
        "hermes.mode": "background",
        "openclaw.scope": OWNER,
        "openclaw.background": "1",
        "toolset": "dominds",
    },
    "metadata": {"dominds": {"lines": 5, "wait_s": 0, "shell": "sh"}},
}
COUNT = scaled(60, 2000)
# The command line is an interpreter of its own each time.
COMMAND_LINES = scaled(3, 40)

CHURN = """
import json, sys
import holdfast

options = json.loads(sys.argv[1])
with holdfast.open() as hf:
    for number in range(int(sys.argv[2])):
        options["labels"]["hermes.id"] = f"proc_{number:012x}"
        hf.run("echo printed", **options).remove()
        print("removed", flush=True)
"""


def with_id(number: int) -> dict[str, Any]:
    return {**OPTIONS, "labels": {**OPTIONS["labels"], "hermes.id": f"proc_ff{number:010x}"}}


@pytest.mark.timeout(600)
@pytest.mark.covers("found:5")
def test_no_list_fails_or_misses_a_session_while_another_process_runs_and_removes(world: World) -> None:
    hf = world.open()
    live = [hf.start("exec sleep 600", notify="exit", **with_id(number)) for number in range(2)]
    ended = [hf.run("echo printed", notify="exit", **with_id(number)) for number in range(2, 4)]
    running, everything = {each.id for each in live}, {each.id for each in (*live, *ended)}
    called = {each.labels["hermes.id"] for each in (*live, *ended)}
    agents = Agents(world, "library")
    native, openclaw, dominds, evva, hermes = (
        agents(family, OWNER, **({"task_id": "t1"} if family == "hermes" else {}))
        for family in ("native", "openclaw", "dominds", "evva", "hermes")
    )
    registry = Registry(hf, task_id="t1", session_key=OWNER)
    lines = iter(range(COMMAND_LINES))

    def command_line() -> set[str]:
        if next(lines, None) is None:
            return everything
        done = world.hold("ls", "-a", "--json", check=True)
        assert done.stderr == ""
        return {each["id"] for each in json.loads(done.stdout)}

    def answered(found: Any, tool: str, key: str, id: str, **arguments: Any) -> set[str]:
        answer = found.call(tool, **arguments)
        assert not answer.error, answer.text
        return {each[id] for each in answer.data[key]}

    lists: list[tuple[Callable[[], set[str]], set[str]]] = [
        (lambda: {each.id for each in hf.sessions()}, running),
        (lambda: {each.id for each in hf.sessions(all=True)}, everything),
        (lambda: {each.id for each in hf.sessions(all=True, owner=OWNER)}, everything),
        (lambda: {each.id for each in hf.recover().live}, running),
        (lambda: {each.id for each in hf.daemons.list(include_terminal=True)}, everything),
        (command_line, everything),
        (lambda: {each["session_id"] for each in registry.list_sessions()}, called),
        (lambda: answered(hermes, "process", "processes", "session_id", action="list"), called),
        (lambda: answered(native, "list", "sessions", "id", all=True), everything),
        (lambda: answered(openclaw, "process", "sessions", "sessionId", action="list"), everything),
        (lambda: answered(evva, "daemon_list", "daemons", "daemon_id", include_terminal=True), everything),
        (lambda: {each.id for each in dominds.run(dominds.tools.reminders())}, running),
        (lambda: {hf.get("last").id} & everything, set()),
    ]
    other = world.host(CHURN, json.dumps(OPTIONS), COUNT)
    other.line()
    for number, (make, expected) in cycle(enumerate(lists)):
        assert expected <= make(), f"list {number}"
        if other.returncode is not None:
            break
    assert other.wait() == 0, other.errors()
    for make, _ in lists:
        assert make() <= everything | called, "and nothing that was removed"
    for each in live:
        each.stop(grace=1)


def test_a_session_that_is_removed_during_a_look_is_left_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each moment of a look: before the runners are asked, and right after."""
    hf, other = world.open(), world.open()
    stays = hf.start("exec sleep 600", **with_id(0))
    looked = sweeps.sweep

    def looking(before: bool, ids: list[str]) -> Callable[..., Any]:
        async def sweep(driver: Any, files: list[Files], **options: Any) -> list[Observed]:
            taken, ids[:] = list(ids), []  # the removal looks too
            if before:
                for id in taken:
                    other.get(id).remove()
            seen = await looked(driver, files, **options)
            if not before:
                for id in taken:
                    other.get(id).remove()
            return seen

        return sweep

    registry = Registry(hf, task_id="t1", session_key=OWNER)
    names = {stays.labels["hermes.id"]: stays.id}
    looks: list[Callable[[], list[str]]] = [
        lambda: [each.id for each in hf.sessions()],
        lambda: [each.id for each in hf.sessions(all=True)],
        lambda: [each.id for each in hf.recover().live],
        lambda: [each.id for each in hf.daemons.list(include_terminal=True)],
        lambda: [names[row["session_id"]] for row in registry.list_sessions()],
        lambda: [hf.get("last").id],
    ]
    for before in (True, False):
        for look in looks:
            gone = other.run("echo printed", notify="never", **with_id(1)).id
            monkeypatch.setattr(cores, "sweep", looking(before, [gone]))
            assert look() == [stays.id]
            monkeypatch.setattr(cores, "sweep", looked)
    stays.stop(grace=1)


def test_a_stop_of_many_passes_over_one_that_was_removed_since_it_was_listed(world: World) -> None:
    hf = world.open()
    gone, stays = hf.run("true"), hf.start("exec sleep 600")
    listed = [gone.id, stays.id]
    gone.remove()
    missing, stopped = hf.stop_all(listed, grace=1)
    assert (missing.id, getattr(missing.error, "code", None)) == (gone.id, "removed")
    assert (stopped.id, stopped.done) == (stays.id, True)
