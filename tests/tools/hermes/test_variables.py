"""The environment of commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.tools.environment import chosen_shell
from holdfast.tools.hermes import start as shell
from support import processes
from support.evidence import contents
from support.hermes import process, start
from support.own_time import QuietTime

if TYPE_CHECKING:
    from pathlib import Path

    from support.agents import Agent, Agents
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


def test_a_login_shell_that_fails_is_reported_and_not_fatal(
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
    fits = shell._KNOWN.__contains__
    found = chosen_shell({"SHELL": wanted, "PATH": os.environ["PATH"]}, fits)
    assert found == expected or (expected == "bash" and os.path.basename(found) == "bash")
    assert chosen_shell({"SHELL": "/usr/bin/fish", "PATH": "/nowhere"}, fits) == "/bin/sh"


@pytest.mark.usefixtures("secrets")
def test_the_configuration_names_more_variables(library: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_ENV_PASS", "SOME_PASSED_NAME SUDO_PASSWORD")
    shown = library("hermes", redact=str).call("terminal", command="env").data["output"].splitlines()
    assert "SOME_PASSED_NAME=secret-of-SOME_PASSED_NAME" in shown
    assert not any(line.startswith("SUDO_PASSWORD") for line in shown)


BASHRC = """
case $- in
    *i*) ;;
      *) return;;
esac
export NVM_DIR="$HOME/.nvm"
export PATH="$NVM_DIR/versions/node/v20.11.0/bin:$PATH"
export MY_PROJECT=tide
alias ll='ls -l'
UNEXPORTED=1
echo "read the bashrc" >>"$HOME/asked"
"""
PROFILE = """
if [ -n "$BASH_VERSION" ] && [ -f "$HOME/.bashrc" ]; then
    . "$HOME/.bashrc"
fi
export JAVA_HOME=/opt/java-21
export PATH="$HOME/.local/bin:$PATH"
export OPENAI_API_KEY=profile-secret
export DATABASE_URL=postgres://ann:profile-secret@db/app
export TWO_LINES="one
two"
"""


def bash_at_home(world: World, monkeypatch: pytest.MonkeyPatch, bashrc: str = BASHRC) -> Path:
    user = world.root / "user"
    (user / ".bashrc").write_text(bashrc)
    (user / ".profile").write_text(PROFILE)
    bash = shutil.which("bash")
    assert bash is not None
    monkeypatch.setenv("SHELL", bash)
    monkeypatch.setattr(shell, "_profiles", {})
    return user


def variables(agent: Agent, **options: Any) -> dict[str, str]:
    """As a command sees them."""
    if options:
        text = process(agent, "wait", start(agent, "env -0 | tr '\\0\\n' '\\n~'", **options))["output"]
    else:
        text = agent.call("terminal", command="env -0 | tr '\\0\\n' '\\n~'").data["output"]
    pairs = [line.partition("=") for line in text.splitlines()]
    return {name: value.replace("~", "\n") for name, _, value in pairs}


@pytest.mark.covers("found:7")
def test_commands_see_path_and_exports_as_a_login_and_interactive_shell_has_them(
    library: Agents, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = bash_at_home(world, monkeypatch)
    ours = {"GOPATH": "/opt/go", "NODE_ENV": "production", "KUBECONFIG": "/etc/kube", "EDITOR": "vim"}
    for name, value in {**ours, "JAVA_HOME": "/opt/java-of-the-host", **dict.fromkeys(SECRETS, "host-secret")}.items():
        monkeypatch.setenv(name, value)
    words = [os.environ["SHELL"], "-lic", "env -0"]
    wanted = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    real = dict(each.split("=", 1) for each in wanted.stdout.decode().split("\0") if "=" in each)
    (user / "asked").unlink()
    agent = library("hermes")
    for options in ({}, {"notify": True}, {}):
        seen = variables(agent, **options)
        assert (seen["PATH"] + ":").startswith(real["PATH"] + ":"), "what else the host has comes behind it"
        for name in ("NVM_DIR", "MY_PROJECT", "JAVA_HOME", "TWO_LINES", *ours):
            assert seen[name] == real[name], name
        assert seen["PATH"].startswith(f"{user}/.local/bin:{user}/.nvm/versions/node/v20.11.0/bin:")
        assert (seen["JAVA_HOME"], seen["TWO_LINES"]) == ("/opt/java-21", "one\ntwo")
        assert {name: seen[name] for name in ours} == ours
        assert not {"OPENAI_API_KEY", "DATABASE_URL", "UNEXPORTED", *SECRETS} & set(seen)
        assert "secret" not in " ".join(seen.values())
    assert (user / "asked").read_text() == "read the bashrc\n", "the shell is asked once a host"
    again = library("hermes", owner="another")
    assert variables(again)["MY_PROJECT"] == "tide"
    assert (user / "asked").read_text() == "read the bashrc\n"
    mine = library("hermes", env_vars={"MY_PROJECT": "mine", "PATH": "/usr/bin:/bin"})
    seen = variables(mine)
    assert (seen["MY_PROJECT"], seen["PATH"]) == ("mine", "/usr/bin:/bin"), "what the caller gives wins"
    for path, data in contents(world.home):
        assert b"profile-secret" not in data, path


@pytest.mark.covers("found:7")
def test_a_profile_that_hangs_costs_five_seconds_once(
    library: Agents, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bash_at_home(world, monkeypatch, BASHRC + "trap '' TERM INT HUP\nsleep 300\n")
    monkeypatch.setenv("EDITOR", "vim")
    agent = library("hermes")
    begun, passed = time.monotonic(), QuietTime()
    told = agent.call("terminal", command="echo $EDITOR").data
    took_s, quiet_s = time.monotonic() - begun, passed.seconds()
    assert told["output"] == "vim\n"
    assert "took too long" in told["hint"]
    assert took_s > 3.5
    assert quiet_s < 6.5
    passed = QuietTime()
    assert "hint" not in agent.call("terminal", command="echo again").data
    assert passed.seconds() < 3
