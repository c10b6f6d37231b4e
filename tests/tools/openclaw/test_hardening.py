"""What an agent may set for a command, and what the command gets of its host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import NotAllowed
from holdfast.tools.openclaw import execute, spawn

if TYPE_CHECKING:
    from support.agents import Agents
    from support.world import World


@pytest.mark.covers("openclaw:32")
def test_dangerous_variables_are_refused_and_secrets_of_the_host_stay_with_it(
    agents: Agents, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {
        "OPENAI_API_KEY": "sk-1",
        "GITHUB_TOKEN": "gh-2",
        "TELEGRAM_BOT_TOKEN": "tg-3",
        "OPENCLAW_GATEWAY_TOKEN": "oc-4",
        "SOME_PASSWORD": "pw-5",
    }
    for name, value in {**secrets, "LD_PRELOAD": "", "BASH_ENV": "/nowhere", "PYTHONPATH": "/nowhere"}.items():
        monkeypatch.setenv(name, value)
    agent = agents("openclaw")
    path = agent.call("exec", command="touch spawned", env={"PATH": "/tmp"})
    assert path.text == (
        "Security Violation: Custom 'PATH' variable is forbidden during host execution. "
        "Leave it out, and put what is needed into the command itself."
    )
    for name in ("ld_preload", "BASH_ENV", "GIT_CONFIG_COUNT"):
        refused = agent.call("exec", command="touch spawned", env={name: "1"})
        assert refused.text.startswith(
            f"Security Violation: Environment variable '{name}' is forbidden during host execution."
        )
        assert (refused.data["status"], refused.error) == ("failed", True)
    assert list(world.cwd.iterdir()) == []
    assert agent.call("process", action="list").text == "No running or recent sessions."
    shown = agent.call("exec", command="env", env={"MINE": "given"}).text
    names = {line.partition("=")[0] for line in shown.splitlines()}
    assert {"MINE", "PATH", "HOME", "OPENCLAW_SHELL"} <= names
    assert not names & {*secrets, "LD_PRELOAD", "BASH_ENV", "PYTHONPATH", "SHELL"}
    for value in secrets.values():
        assert value not in shown


@pytest.mark.parametrize(
    "name",
    [
        *("Path", "DYLD_INSERT_LIBRARIES", "BASH_FUNC_x", "node_options", "IFS", "LUA_INIT_5_4", "CDPATH", "SHELL"),
        *("HOME", "GIT_SSH_COMMAND", "SUDO_ASKPASS", "https_proxy", "CURL_CA_BUNDLE", "PIP_INDEX_URL", "UV_INDEX"),
        *("CARGO_REGISTRIES_X_INDEX", "TF_VAR_x", "CC", "RUSTC_WRAPPER", "XDG_CONFIG_HOME", "KUBECONFIG"),
    ],
)
def test_every_class_of_names_is_refused_in_any_case(name: str) -> None:
    with pytest.raises(NotAllowed, match="Security Violation"):
        spawn.check_variables({name: "x"})


def test_what_looks_similar_may_be_set() -> None:
    spawn.check_variables({"CCACHE_DIR": "x", "MY_PATH": "x", "ENVIRONMENT": "x", "HOMEPAGE": "x", "TERM": "x"})


def test_after_an_approval_only_the_looks_may_change() -> None:
    spawn.check_variables({"TERM": "x", "LC_ALL": "C", "NO_COLOR": "1"}, approved=True)
    with pytest.raises(NotAllowed):
        spawn.check_variables({"DEBUG": "1"}, approved=True)


def test_directories_may_be_put_in_front_of_the_path() -> None:
    env = spawn.environment({"PATH": "/usr/bin", "XDG_DATA_HOME": "/x"}, {"A": "b"}, ["/opt/a", "/opt/b"])
    assert env == {"PATH": "/opt/a:/opt/b:/usr/bin", "XDG_DATA_HOME": "/x", "A": "b", "OPENCLAW_SHELL": "exec"}


@pytest.mark.parametrize("unfit", ["", "/usr/sbin/nologin", "/bin/false", "/usr/bin/fish", "/no/such/shell", "bash"])
def test_a_shell_that_cannot_take_commands_is_replaced(unfit: str) -> None:
    found = execute.shell_words({"SHELL": unfit})
    assert found[0].endswith(("/bash", "/sh"))
    assert found[-1] == "-c"


def test_shells_read_none_of_their_files() -> None:
    bash = next(path for path in ("/bin/bash", "/usr/bin/bash") if os.access(path, os.X_OK))
    assert execute.shell_words({"SHELL": bash}) == [bash, "--noprofile", "--norc", "-c"]
    assert execute.shell_words({"SHELL": "/bin/sh"}) == ["/bin/sh", "-c"]
