"""The environment of commands."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.tools.hermes import shell
from support import processes
from support.contents import contents
from support.hermes import process, start

if TYPE_CHECKING:
    from support.agents import Agents
    from support.world import World

SECRETS = ("TELEGRAM_BOT_TOKEN", "OPENAI_API_KEY", "VIRTUAL_ENV", "SUDO_PASSWORD", "SOME_PASSED_NAME")


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, f"secret-of-{name}")


@pytest.mark.covers("hermes:28")
@pytest.mark.usefixtures("secrets")
def test_no_secret_of_the_host_reaches_a_command_or_its_runner(library: Agents, world: World) -> None:
    agent = library("hermes")
    for background in (False, True):
        if background:
            shown = process(agent, "wait", start(agent, "env"))["output"]
        else:
            shown = agent.call("terminal", command="env").data["output"]
        names = {line.partition("=")[0] for line in shown.splitlines()}
        assert {"PATH", "HOME", "PYTHONUNBUFFERED"} <= names
        assert not names & set(SECRETS)
    forced = {f"_HERMES_FORCE_{name}": "given" for name in ("OPENAI_API_KEY", "SUDO_PASSWORD")}
    given = library("hermes", env_vars=forced, env_pass=["SOME_PASSED_NAME", "TELEGRAM_BOT_TOKEN"], redact=str)
    shown = given.call("terminal", command="env").data["output"]
    assert "OPENAI_API_KEY=given" in shown.splitlines()
    assert "SOME_PASSED_NAME=secret-of-SOME_PASSED_NAME" in shown.splitlines()
    assert "SUDO_PASSWORD" not in shown
    assert "TELEGRAM" not in shown
    id = start(given, "exec sleep 300")
    session = given.run(given.hf.get(id))
    assert session.runner_pid is not None
    environ = processes.environment(session.runner_pid)
    assert environ
    assert not any(value in environ for value in (b"secret-of", b"given", b"OPENAI"))
    for path, data in contents(world.session(session.id)):
        assert b"secret-of" not in data, path
        assert b"=given" not in data, path
    process(given, "kill", id)


def test_the_path_is_that_of_a_login_shell_with_what_the_host_has_behind_it(
    library: Agents, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.root / "user" / ".profile").write_text("echo noise\nPATH=/from/profile:$PATH\n")
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.setenv("PATH", "/usr/bin:/bin:/of/host")
    agent = library("hermes")
    path = agent.call("terminal", command="echo $PATH").data["output"].strip().split(":")
    assert path[0] == "/from/profile"
    assert "/of/host" in path
    assert len(agent.run(agent.hf.sessions(all=True))) == 1, "what asked the shell is gone"


def test_a_login_shell_that_fails_is_told_and_not_fatal(
    library: Agents, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.root / "user" / ".profile").write_text("exit 1\n")
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.setenv("PATH", "/usr/bin:/bin:/another/host")
    told = library("hermes").call("terminal", command="echo $PATH").data
    assert told["output"] == "/usr/bin:/bin:/another/host\n"
    assert "PATH" in told["hint"]


@pytest.mark.parametrize(
    "wanted, expected",
    [("/bin/dash", "/bin/dash"), ("/usr/bin/fish", "bash"), ("/nowhere/zsh", "bash"), ("bash", "bash"), ("", "bash")],
)
def test_a_shell_that_speaks_as_expected_is_taken(wanted: str, expected: str) -> None:
    found = shell.chosen({"SHELL": wanted, "PATH": os.environ["PATH"]})
    assert found == expected or (expected == "bash" and os.path.basename(found) == "bash")
    assert shell.chosen({"SHELL": "/usr/bin/fish", "PATH": "/nowhere"}) == "/bin/sh"


@pytest.mark.usefixtures("secrets")
def test_the_configuration_names_more_variables(library: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ENV_PASS", "SOME_PASSED_NAME SUDO_PASSWORD")
    shown = library("hermes", redact=str).call("terminal", command="env").data["output"].splitlines()
    assert "SOME_PASSED_NAME=secret-of-SOME_PASSED_NAME" in shown
    assert not any(line.startswith("SUDO_PASSWORD") for line in shown)
