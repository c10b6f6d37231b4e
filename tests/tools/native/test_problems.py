"""Errors that teach: one line, what is wrong, then the call that works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast import errors
from support.faults import kill_runner, sweep_up, wedged
from support.waiting import until

if TYPE_CHECKING:
    from support.agents import Agent, Agents
    from support.world import World


def problem(agent: Agent, tool: str, **arguments: object) -> str:
    answer = agent.call(tool, **arguments)
    assert answer.error
    assert "\n" not in answer.text
    assert "hold " not in answer.text
    assert answer.data["error"]["message"] == answer.text
    return answer.text


@pytest.mark.covers("native:21")
def test_unknown_ids_typos_and_numbers(agents: Agents, world: World) -> None:
    agent = agents("native")
    assert problem(agent, "read", id="nope") == 'no session "nope"; no session of yours is running; run starts one'
    agent.call("run", command="true")
    assert problem(agent, "read", id="nope").endswith("no session of yours is running; list(all=true) shows all")
    id = agent.call("run", command=world.probe("lines", 3, "forever"), name="frontend", wait_s=0).data["id"]
    until(lambda: "line 3" in agent.call("read", id="frontend", since="0").text)
    agent.call("run", command=world.probe("forever"), name="api", wait_s=0)
    typo = problem(agent, "read", id="frontnd")
    assert f'no session "frontnd"; nearest is frontend {id}; running: frontend, api' in typo
    assert problem(agent, "wait", ids=[12]).startswith('no session "12"; ')
    # A number as text, one where a list is wanted, a number where text is wanted: obvious.
    assert agent.call("read", id="frontend", tail="2").text.endswith("line 2\nline 3")
    assert agent.call("wait", ids="frontend", timeout_s="0.1").data["reason"] == "timeout"
    assert agent.call("read", id="frontend", search=3, context="0").data["matches"][0]["text"] == "line 3"
    assert agent.call("stop", ids="api", grace_s="0").data["name"] == "api"
    agent.call("stop", all=True, grace_s=0)


def test_an_ambiguous_prefix_lists_what_it_fits(direct: Agents, world: World) -> None:
    agent = direct("native")
    ids = [agent.call("run", command="true").data["id"] for _ in range(2)]
    text = errors.AmbiguousId("b123", ids)

    async def find(ref: object) -> object:
        raise text

    agent.tools.find = find
    said = problem(agent, "read", id="b123")
    assert said == f'"b123" fits {ids[0]}, {ids[1]}; give more characters of the id'


def test_arguments_that_cannot_be_understood(agents: Agents) -> None:
    agent = agents("native")
    id = agent.call("run", command="echo hi").data["id"]
    assert problem(agent, "run", command="x", wait_s=601) == (
        "wait_s: 601 is out of bounds; give a number from 0 to 600"
    )
    assert problem(agent, "run", comand="x") == "comand: there is no such parameter; did you mean command?"
    assert problem(agent, "run", cmd="x") == "cmd: there is no such parameter; did you mean command?"
    assert problem(agent, "run", cmd="x", command="x") == "cmd: there is no such parameter; did you mean cwd?"
    assert problem(agent, "run", command="x", replace=True) == (
        "replace: replaces the holder of a key or name, and neither is given; give key= or name= too"
    )
    assert problem(agent, "run") == "command: is required; give text, or a list of texts"
    assert problem(agent, "run", command="x", notify="allways").startswith("notify: 'allways' is not known")
    assert problem(agent, "run", command="x", ready="prt:1").startswith("ready: 'prt:1' is not a probe; give port:3000")
    assert problem(agent, "run", command="x", watch=["/(a/"]).startswith("watch: ")
    assert (
        problem(agent, "run", command="")
        == "the command is empty; give a command line or a list whose first item is a program"
    )
    assert problem(agent, "read", id=id, since="0", tail=3) == (
        "tail: cannot be combined with since; give one of since, tail, search"
    )
    assert problem(agent, "read", id=id, since="x:y").startswith("not a cursor: 'x:y'; use the cursor of an earlier")
    assert "is ahead of its end" in problem(agent, "read", id=id, since="stdout:99")
    assert problem(agent, "send", id=id).startswith("text: there is nothing to send; give one of text, keys")
    assert problem(agent, "send", id=id, text="a", eof=True).startswith("text: text and eof cannot be combined; ")
    assert (
        problem(agent, "wait", ids=id, until="match")
        == "pattern: is required with until=match; give a regex over unseen output"
    )
    for event in ("output", "ready"):
        assert problem(agent, "wait", ids=id, until=event, pattern="x") == (
            f"pattern: cannot be combined with until={event}; give until=match to wait for a regex"
        )
    assert problem(agent, "wait", ids=id, until="port", pattern="web").startswith("pattern: 'web' is not a number; ")
    assert problem(agent, "wait", ids=id, until="port", pattern="99999") == (
        "pattern: 99999 is not from 1 to 65535; give a port number"
    )
    for place in ({}, {"since": "0"}, {"tail": 1}, {"search": "x"}):
        assert problem(agent, "read", id=id, stream="tty", **place) == f"stream: {id} has no tty; give stdout or stderr"
    for wrong in ("-1", "nan", "inf"):
        assert problem(agent, "wait", ids=id, until="idle", pattern=wrong).startswith(f"pattern: {wrong} is not from 0")
    for name in ("timeout_s", "idle_timeout_s"):
        for limit in (-1, 0):
            assert problem(agent, "run", command="true", **{name: limit}) == (
                f"{name}: {limit} is out of bounds; give a number above 0, or leave it out"
            )
    assert problem(agent, "signals", ack=["x"]).startswith("ack: 'x' is not a signal")
    assert problem(agent, "signals", ack=["upto:x"]).startswith("ack: 'x' is not a signal")
    assert problem(agent, "stop", ids=id, all=True) == "all: cannot be combined with ids; give ids, or all=true"
    assert problem(agent, "stop") == "ids: no session is named; give ids, or all=true"


def test_a_bad_regex_names_its_place(agents: Agents, world: World) -> None:
    agent = agents("native")
    id = agent.call("run", command="echo hi").data["id"]
    text = problem(agent, "read", id=id, search="hi(?=x)")
    assert text.startswith("search: ")
    assert "at position 2" in text
    assert "look-around and back-references are not supported" in text
    assert problem(agent, "wait", ids=id, until="match", pattern="(a").startswith("pattern: '(a' is not a regular")


def test_an_unknown_key(agents: Agents) -> None:
    agent = agents("native")
    agent.call("run", command="cat", tty=True, name="cat", wait_s=0)
    assert problem(agent, "send", id="cat", keys=["Entr"]).startswith('no key "Entr"; did you mean Enter')
    agent.call("stop", ids="cat", grace_s=0)


def test_a_name_that_is_taken(agents: Agents, world: World) -> None:
    agent = agents("native")
    id = agent.call("run", command=world.probe("forever"), name="web", wait_s=0).data["id"]
    text = problem(agent, "run", command=world.probe("forever"), name="web", wait_s=0)
    assert text.startswith(f'the name "web" is used by the running session {id}; ')
    assert "replace=true" in text
    newer = agent.call("run", command=world.probe("forever"), name="web", replace=True, wait_s=0)
    assert f"replaces {id}" in newer.text
    # With a key it is the holder of that which is replaced.
    keyed = problem(agent, "run", command=world.probe("forever"), name="web", key="other", replace=True)
    assert "replace=true) without key stops it first" in keyed
    agent.call("run", command=world.probe("forever"), key="k", wait_s=0)
    assert "replace=true" in problem(agent, "run", command="true", key="k")
    agent.call("stop", all=True, grace_s=0)


def test_a_command_that_cannot_be_started_is_reported_once(agents: Agents) -> None:
    agent = agents("native")
    assert "No such file or directory" in problem(agent, "run", command=["/nope/program"])
    assert "/nope" in problem(agent, "run", command="true", cwd="/nope")
    assert agent.call("signals").data["signals"] == []


def test_a_session_that_is_gone_when_its_failure_is_reported_does_not_raise(
    direct: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = direct("native")

    async def gone(ref: object) -> None:
        raise errors.NotFound(str(ref))

    monkeypatch.setattr(agent.tools, "find", gone)
    assert "No such file or directory" in problem(agent, "run", command=["/nope/program"])


def test_no_terminal(agents: Agents, world: World) -> None:
    agent = agents("native")
    id = agent.call("run", command=world.probe("forever"), wait_s=0).data["id"]
    text = problem(agent, "screen", id=id)
    assert text == f'{id} is not a terminal; read(id="{id}"), or start it with run(..., tty=true)'
    agent.call("stop", ids=id, grace_s=0)


def test_a_supervisor_that_is_gone_is_said_and_what_still_works(direct: Agents, world: World) -> None:
    agent = direct("native")
    hf = world.open()
    session = hf.start(world.probe("forever"), name="web", stdin="open", owner="agent-7")
    assert session.wait(match="ready", timeout=30).reason == "match"
    kill_runner(session)
    text = problem(agent, "send", id="web", text="x")
    assert text.startswith(f"the supervisor of web {session.id} is gone, its command still runs: ")
    assert 'read(id="web") gives what was kept' in text
    assert 'stop(ids="web") ends it with its processes' in text
    assert "but its supervisor is gone" in agent.call("read", id="web").text
    assert "but its supervisor is gone" in agent.call("list").text
    assert not agent.call("stop", ids="web", grace_s=0).error
    over = problem(agent, "send", id=session.id, text="x")
    assert over.startswith(f"web {session.id} has ended: ")
    sweep_up(world, hf)


def test_a_supervisor_that_does_not_answer_is_said(
    direct: Agents, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = world.root / "config.toml"
    config.write_text('[hosts]\nreply_timeout = "300ms"\nsweep_timeout = "100ms"\n')
    monkeypatch.setenv("HOLDFAST_CONFIG", str(config))
    agent = direct("native")
    hf = world.open()
    session = hf.start(world.probe("forever"), name="web", stdin="open", owner="agent-7")
    with wedged(session):
        text = problem(agent, "send", id="web", text="x")
        assert text.startswith(f"the supervisor of web {session.id} is alive and does not answer; try again")
        assert "does not answer" in agent.call("list").text
    session.stop(grace=0)


def test_a_full_disk_has_its_own_words(direct: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = direct("native")

    async def full(*_: object, **__: object) -> None:
        raise errors.DiskFull("/somewhere/of/ours", 1200)

    monkeypatch.setattr("holdfast.tools.native.toolset.run", full)
    text = problem(agent, "run", command="true")
    assert text == "the disk is full, 1.2 KB are free: nothing was started; free some space and try again"


def test_what_is_not_allowed_is_said(direct: Agents) -> None:
    async def approve(call: object) -> str:
        return "not today"

    agent = direct("native", approve=approve)
    assert (
        problem(agent, "run", command="true") == "run was not allowed: not today; try another approach, or ask the user"
    )
    assert agent.call("list").data["sessions"] == []
