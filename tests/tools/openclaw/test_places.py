"""Where a command runs: in the sandbox that is configured, or beside the gateway where it is asked to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import PlaceUnsupported, Unsupported
from holdfast.tools.openclaw.settings import Allow
from holdfast.tools.openclaw.spawn import SecretInput, SpawnInput
from support.waiting import until

if TYPE_CHECKING:
    from holdfast.tools.openclaw.settings import Request, Verdict
    from support.agents import Agents
    from support.containers import Container
    from support.world import World

BOUND_S = 30.0


@pytest.mark.parametrize("host", [None, "auto", "sandbox"])
def test_a_command_runs_in_the_sandbox_that_is_configured(
    agents: Agents, container: Container, host: str | None
) -> None:
    agent = agents("openclaw", sandbox=container.place)
    asked: dict[str, Any] = {} if host is None else {"host": host}
    done = agent.call(
        "exec", command="echo $OPENCLAW_SHELL; test -e /run/.containerenv || echo outside; pwd; exit 3", **asked
    )
    assert (done.data["status"], done.data["exitCode"], done.data["cwd"]) == ("completed", 3, "/")
    assert done.text.startswith("exec\n/\n")
    where = agent.call("exec", command="pwd", workdir="/usr", **asked)
    assert (where.text, where.data["cwd"]) == ("/usr", "/usr")
    nowhere = agent.call("exec", command="touch /tmp/ran", workdir="/no/such", **asked)
    assert (nowhere.data["status"], nowhere.data["failureKind"]) == ("failed", "runtime-error")
    assert not (container.root / "tmp" / "ran").exists()


def test_a_variable_of_the_command_reaches_it_in_the_sandbox(agents: Agents, container: Container) -> None:
    agent = agents("openclaw", sandbox=container.place)
    assert agent.call("exec", command="echo $s", env={"s": "mine"}).text == "mine"


def test_a_command_that_asks_for_the_gateway_runs_there(agents: Agents, container: Container, world: World) -> None:
    asked: list[Request] = []

    def decide(request: Request) -> Verdict:
        asked.append(request)
        return Allow()

    agent = agents("openclaw", sandbox=container.place, policy=decide)
    assert agent.call("exec", command="pwd", host="gateway").text == str(world.cwd)
    agent.call("exec", command="true", elevated=True)
    assert [(each.place, each.elevated) for each in asked] == [("local", False), (container.place, True)]


def test_without_a_sandbox_the_gateway_is_where_commands_run(agents: Agents, world: World) -> None:
    agent = agents("openclaw")
    assert agent.call("exec", command="pwd", host="auto").text == str(world.cwd)
    for asked in ({"host": "sandbox"}, {"host": "node", "node": "n1"}):
        assert agent.call("exec", command="touch ran", **asked).data["error"] == "place-unsupported"
    assert list(world.cwd.iterdir()) == []


def test_an_override_applies_inside_of_the_sandbox(
    agents: Agents, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of the host")
    monkeypatch.setenv("OPENCLAW_SANDBOX", container.place)
    agent = agents("openclaw", exec={"pathPrepend": ["/opt/one", "/opt/two"]})
    overrides = {"MINE": "given", "HOME": "/tmp", "LD_PRELOAD": "", "PATH": "/usr/bin"}
    shown = agent.call("exec", command="env", env=overrides).text
    lines = dict(line.split("=", 1) for line in shown.splitlines())
    assert (lines["MINE"], lines["HOME"], lines["PATH"]) == ("given", "/tmp", "/opt/one:/opt/two:/usr/bin")
    assert (lines["OPENCLAW_SHELL"], "OPENAI_API_KEY" in lines) == ("exec", False)
    refused = agent.call("exec", command="touch /tmp/ran", env={"GH_TOKEN": "x"})
    assert refused.text.startswith("Security Violation")
    gateway = agent.call("exec", command="touch ran", env={"PATH": "/tmp"}, host="gateway")
    assert gateway.text.startswith("Security Violation")
    assert not (container.root / "tmp" / "ran").exists()


@pytest.mark.parametrize("given, used", [("/bin/sh", "/bin/sh"), ("/bin/false", "bash"), ("/no/such", "bash")])
def test_the_shell_is_chosen_there(agents: Agents, container: Container, given: str, used: str) -> None:
    agent = agents("openclaw", sandbox=container.place)
    shown = agent.call("exec", command="echo $0 $#; tr '\\0' '|' </proc/$$/cmdline", env={"SHELL": given}).text
    name, words = shown.splitlines()
    assert name.endswith(f"{used} 0")
    assert words.endswith("-c|echo $0 $#; tr '\\0' '|' </proc/$$/cmdline|"), "byte for byte, as one argument"


@pytest.mark.parametrize("pty", [False, True])
def test_a_command_in_the_background_of_the_sandbox_is_looked_after(
    agents: Agents, container: Container, pty: bool
) -> None:
    agent = agents("openclaw", sandbox=container.place)
    asked: dict[str, Any] = {"pty": True} if pty else {"stdin": "open"}
    begun = agent.call("exec", command="echo up; read x; echo got $x; exec sleep 4711", background=True, **asked)
    id = begun.data["sessionId"]
    assert begun.data["status"] == "running"

    def polled(text: str) -> None:
        seen: list[str] = []

        def has_come() -> bool:
            seen.append(agent.call("process", action="poll", sessionId=id, timeout=1000).text)
            return text in "".join(seen)

        until(has_come, BOUND_S, what=text)

    polled("up")
    agent.call("process", action="write", sessionId=id, data="yes\n")
    polled("got yes")
    killed = agent.call("process", action="kill", sessionId=id)
    assert (killed.data["status"], "process tree is empty" in killed.text) == ("completed", True)
    until(lambda: not container.processes(), BOUND_S, what="an empty container")
    until(lambda: not container.zombies(), what="that everybody was waited for")


def test_the_supervisor_runs_what_it_is_asked_to_in_a_place(direct: Agents, container: Container) -> None:
    agent = direct("openclaw")
    one = agent.tools.supervisor
    heard: list[str] = []

    async def spawned() -> Any:
        asked = SpawnInput(argv=["cat"], input="said", place=container.place, cwd="/usr", on_stdout=heard.append)
        return await (await one.spawn(asked)).wait()

    ended = agent.run(spawned())
    assert (ended.reason, ended.exit_code, ended.stdout, "".join(heard)) == ("exit", 0, "said", "said")
    with pytest.raises(PlaceUnsupported):
        agent.run(one.spawn(SpawnInput(argv=["true"], place="orbit:n1")))
    secret = SecretInput(5, lambda: bytearray(b"x"))
    with pytest.raises(Unsupported):
        agent.run(one.spawn(SpawnInput(argv=["true"], place=container.place, secret_input=secret)))
