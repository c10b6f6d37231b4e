"""`exec`: how long it waits, how it tells the end, what keeps a command from running."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.agents import Agents


@pytest.mark.covers("openclaw:3")
def test_an_ended_command_tells_its_code_and_two_codes_of_the_shell_are_failures(agents: Agents) -> None:
    agent = agents("openclaw")
    three = agent.call("exec", command="echo out; exit 3")
    assert (three.data["status"], three.data["exitCode"]) == ("completed", 3)
    assert three.text == "out\n\n(Command exited with code 3)"
    missing = agent.call("exec", command="no-such-command-at-all")
    assert (missing.data["status"], missing.data["failureKind"]) == ("failed", "shell-command-not-found")
    assert missing.data["exitCode"] == 127
    refused = agent.call("exec", command="/etc/passwd")
    assert (refused.data["status"], refused.data["failureKind"]) == ("failed", "shell-not-executable")
    assert "(Command exited with code 126)" in refused.text
    assert agent.call("exec", command="true").text == "(no output)"


@pytest.mark.covers("openclaw:1")
@pytest.mark.slow
def test_a_command_that_takes_longer_goes_on_and_is_polled(agents: Agents) -> None:
    agent = agents("openclaw")
    running = agent.call("exec", command="sleep 2; echo done", yieldMs=1000)
    assert running.data["status"] == "running"
    polled = agent.call("process", action="poll", sessionId=running.data["sessionId"], timeout=10000)
    assert polled.text.startswith("done\n\nProcess exited with code 0.")
