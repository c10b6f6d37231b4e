"""Schemas, and arguments that are refused before anything is done."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import errors
from holdfast.tools import toolset
from support.faults import wedged
from support.own_time import OwnTime

if TYPE_CHECKING:
    from support.agents import Agents
    from support.world import World


def test_the_schemas_have_the_parameters_of_dominds_and_no_others(direct: Agents) -> None:
    agent = direct("dominds")
    found = {each["name"]: each["inputSchema"] for each in agent.tools.schemas()}
    assert {name: list(schema["properties"]) for name, schema in found.items()} == {
        "shell_cmd": ["command", "shell", "scrollbackLines", "timeoutSeconds"],
        "get_daemon_output": ["pid", "stdout", "stderr", "wait_for_new_output", "timeout_ms"],
        "stop_daemon": ["pid", "entire_pg"],
    }
    assert {name: schema["required"] for name, schema in found.items()} == {
        "shell_cmd": ["command"],
        "get_daemon_output": ["pid"],
        "stop_daemon": ["pid"],
    }
    assert all(schema["additionalProperties"] is False for schema in found.values())


def test_extended_schemas_add_and_take_nothing_away(direct: Agents) -> None:
    plain, extended = direct("dominds"), direct("dominds", extended=True)
    for before, after in zip(plain.tools.schemas(), extended.tools.schemas(), strict=True):
        assert set(before["inputSchema"]["properties"]) <= set(after["inputSchema"]["properties"])
    names = {each["name"]: set(each["inputSchema"]["properties"]) for each in extended.tools.schemas()}
    assert {"cwd", "env"} <= names["shell_cmd"]
    assert {"session", "since", "lines"} <= names["get_daemon_output"]


@pytest.mark.parametrize(
    "tool, arguments, text",
    [
        ("shell_cmd", {"command": " \n"}, "shell_cmd.command must be a non-empty string"),
        ("shell_cmd", {}, "shell_cmd.command must be a non-empty string"),
        ("shell_cmd", {"command": 5}, "shell_cmd.command must be a non-empty string"),
        ("get_daemon_output", {"pid": 0}, "get_daemon_output.pid must be a positive integer"),
        ("get_daemon_output", {"pid": True}, "get_daemon_output.pid must be a positive integer"),
        ("get_daemon_output", {"pid": "7"}, "get_daemon_output.pid must be a positive integer"),
        ("get_daemon_output", {"pid": 7, "stdout": "yes"}, "get_daemon_output.stdout must be a boolean"),
        (
            "get_daemon_output",
            {"pid": 7, "timeout_ms": -1},
            "get_daemon_output.timeout_ms must be a non-negative integer <= 86400000",
        ),
        ("stop_daemon", {"pid": -5}, "stop_daemon.pid must be a positive integer"),
        ("stop_daemon", {"pid": 7, "entire_pg": 1}, "stop_daemon.entire_pg must be a boolean"),
    ],
)
def test_a_wrong_argument_is_refused_in_the_words_of_dominds(
    agents: Agents, tool: str, arguments: dict[str, Any], text: str
) -> None:
    refused = agents("dominds").call(tool, **arguments)
    assert (refused.text, refused.error, refused.data["status"]) == (text, True, "failure")


@pytest.mark.parametrize(
    "tool, text",
    [
        ("shell_cmd", "shell_cmd.command must be a non-empty string"),
        ("get_daemon_output", "get_daemon_output.pid must be a positive integer"),
        ("stop_daemon", "stop_daemon.pid must be a positive integer"),
    ],
)
def test_a_call_without_arguments_is_refused_in_the_same_words(direct: Agents, tool: str, text: str) -> None:
    agent = direct("dominds")
    assert agent.run(agent.tools.call(tool)).text == text


def test_the_former_stream_parameter_is_refused_with_what_to_use(agents: Agents) -> None:
    refused = agents("dominds").call("get_daemon_output", pid=7, stream="stdout")
    assert refused.error
    assert "stdout and stderr" in refused.text


def test_an_unknown_parameter_is_refused_by_name(agents: Agents) -> None:
    refused = agents("dominds").call("stop_daemon", pid=7, force=True)
    assert refused.error
    assert "force" in refused.text


@pytest.mark.covers("dominds:9")
def test_a_wrong_read_is_refused_without_contact_with_the_runner(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    receipt = agent.call("shell_cmd", command="sleep 60", timeoutSeconds=1)
    pid = receipt.data["pid"]
    with wedged(world.open().get(receipt.data["session"])):
        passed = OwnTime(os.getpid())
        both = agent.call("get_daemon_output", pid=pid, stdout=False, stderr=False)
        assert both.text == "get_daemon_output requires at least one of stdout/stderr to be true"
        contradictory = agent.call("get_daemon_output", pid=pid, wait_for_new_output=False, timeout_ms=5)
        assert contradictory.text == (
            "get_daemon_output.timeout_ms cannot be provided when wait_for_new_output is false"
        )
        long = agent.call("get_daemon_output", pid=pid, timeout_ms=86400001)
        assert long.text == "get_daemon_output.timeout_ms must be a non-negative integer <= 86400000"
        # A runner that stands still would have been waited for.
        assert passed.stop().seconds() < 0.5
        assert both.error
        assert contradictory.error
        assert long.error


@pytest.mark.parametrize(
    "options", [{"stale_policy": "kill"}, {"stop_grace_s": -1}, {"result_chars": -1}, {"texts": {"nonsense": ""}}]
)
def test_a_wrong_option_is_refused(direct: Agents, options: dict[str, Any]) -> None:
    agent = direct("dominds")
    with pytest.raises(errors.BadArgument):
        toolset("dominds", agent.hf, owner="agent-7", **options)


def test_another_language_leaves_what_is_matched_as_it_is(direct: Agents) -> None:
    agent = direct("dominds", texts={"nothing_so_far": "(noch nichts)"})
    receipt = agent.call("shell_cmd", command="sleep 60", timeoutSeconds=1)
    assert receipt.text.endswith("(noch nichts)")
    assert receipt.text.startswith("🟢 sleep 60 is now running in the background (PID: ")
