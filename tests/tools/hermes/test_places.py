"""Commands of a task that run in another place: a container, a machine behind ssh."""

from __future__ import annotations

import asyncio
import json
import secrets
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import BadArgument, PlaceGone
from holdfast.tools.hermes import Registry
from holdfast.tools.hermes.start import named
from support import processes
from support.evidence import contents
from support.hermes import DRAIN, HOST, beats_until_the_end, drain, drained, over, printed, process, start
from support.places import deputies, kill_deputies
from support.waiting import turn, until

if TYPE_CHECKING:
    from pathlib import Path

    from support.agents import Agent, Agents
    from support.containers import Container
    from support.places import NewContainer
    from support.program import Program
    from support.ssh_hosts import SshHost
    from support.world import World

# A link is a program that starts, and the far end an interpreter.
BOUND_S = 30.0


@dataclass
class Away:
    """A place that TERMINAL_ENV names from now on."""

    place: str
    run: Callable[[str], str]
    # Of its user, as seen from here.
    home: Path


@pytest.fixture
def in_podman(container: Container, monkeypatch: pytest.MonkeyPatch) -> Away:
    monkeypatch.setenv("TERMINAL_ENV", "podman")
    monkeypatch.setenv("TERMINAL_CONTAINER", container.name)
    return Away(container.place, lambda line: container.run("sh", "-c", line), container.root / "root")


@pytest.fixture
def over_ssh(ssh_host: SshHost, world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Away]:
    monkeypatch.setenv("HOLDFAST_PLACES_SSH", shlex.join(ssh_host.argv))
    monkeypatch.setenv("TERMINAL_ENV", "ssh")
    monkeypatch.setenv("TERMINAL_SSH_HOST", ssh_host.host)
    yield Away(ssh_host.place, ssh_host.run, ssh_host.home)
    # What has ended there has yet to be cleared away there.
    until(lambda: not deputies(world), what="the end of all deputies")


@pytest.fixture(params=["in_podman", "over_ssh"])
def away(request: pytest.FixtureRequest, shared_container: Container) -> Away:
    """Each of them. What all tests share has to be there before the census counts, and so it is asked for here."""
    found: Away = request.getfixturevalue(request.param)
    return found


def shown(agent: Agent, command: str, **options: Any) -> dict[str, Any]:
    return agent.call("terminal", command=command, **options).data


def killed_host(world: World, **arguments: object) -> dict[str, Any]:
    """What a host was told that started this in the background, and was killed."""
    host: Program = world.host(HOST, json.dumps({"background": True, **arguments}))
    told: dict[str, Any] = json.loads(host.line(BOUND_S) or host.errors())
    host.kill()
    host.wait()
    return told


def leave_alone(world: World) -> None:
    """No deputy here is linked to the place any more."""
    assert deputies(world)
    kill_deputies(world)


def drains(world: World) -> list[dict[str, Any]]:
    host = world.host(DRAIN)
    events: list[dict[str, Any]] = json.loads(host.line(BOUND_S) or host.errors())
    assert host.wait(30) == 0, host.errors()
    return events


@pytest.mark.covers("hermes:10")
def test_a_new_host_has_everything_of_a_session_there(agents: Agents, world: World, away: Away) -> None:
    told = killed_host(world, command="echo one; read x; echo got $x; cat; exit 9", notify=True)
    assert (told["place"], told["pid_scope"]) == (away.place, "sandbox")
    id = told["session_id"]
    leave_alone(world)
    assert Registry(world.open(), session_key="a").recover_from_checkpoint() == 1
    agent = agents("hermes", owner="a")
    polled = process(agent, "poll", id)
    assert (polled["status"], polled["session_id"], polled["place"]) == ("running", id, away.place)
    assert polled["pid"] == told["pid"]
    printed(agent, id, "one", BOUND_S)
    assert process(agent, "log", id, offset=0)["output"] == "one"
    assert process(agent, "submit", id, data="hello")["bytes_written"] == 6
    printed(agent, id, "got hello", BOUND_S)
    assert process(agent, "close", id)["message"] == "stdin closed"
    ended = process(agent, "wait", id, timeout=20)
    assert (ended["status"], ended["exit_code"], ended["output"]) == ("exited", 9, "one\ngot hello\n")


@pytest.mark.covers("hermes:10")
def test_an_end_there_while_no_host_lived_is_reported_once(agents: Agents, world: World, away: Away) -> None:
    away.run("mkfifo ~/gate")
    id = killed_host(world, command="echo begun; read x <~/gate; echo over; exit 4", notify=True)["session_id"]
    leave_alone(world)
    away.run("echo >~/gate")
    away.run("until find ~/.local/state/holdfast -name exit.json | grep -q .; do sleep 0.05; done")
    (event,) = until(lambda: drains(world), BOUND_S, what="its end")
    assert (event["type"], event["session_id"], event["exit_code"]) == ("completion", id, 4)
    assert (event["output"], event["completion_reason"]) == ("begun\nover\n", "exited")
    assert drains(world) == [], "nor after another restart"
    agent = agents.library("hermes", owner="a")
    assert drain(agent) == []
    assert over(agent, id)["exit_code"] == 4


# A tree that does not listen: the command, a child and one in a session of its own.
STUBBORN = "trap '' TERM; setsid sh -c \"trap '' TERM; sleep 4711; sleep 4711\" & sleep 4711 & echo up; sleep 4711"


def empty(container: Container) -> None:
    """No process of ours is left in it, and no zombie."""
    until(lambda: not container.processes(), BOUND_S, what="an empty container")
    until(lambda: not container.zombies(), what="that everybody was waited for")


@pytest.mark.covers("hermes:11")
def test_a_kill_leaves_no_process_in_the_container(agents: Agents, in_podman: Away, container: Container) -> None:
    agent = agents("hermes")
    id = start(agent, STUBBORN)
    printed(agent, id, "up", BOUND_S)
    assert [each for each in container.processes() if "4711" in each.command]
    killed = process(agent, "kill", id)
    assert (killed["status"], killed["completion_reason"]) == ("killed", "killed")
    assert [each for each in container.processes() if "4711" in each.command] == [], "gone when it is said"
    empty(container)


@pytest.mark.covers("hermes:11")
def test_a_deadline_leaves_no_process_in_the_container(agents: Agents, in_podman: Away, container: Container) -> None:
    agent = agents("hermes")
    id = start(agent, STUBBORN, deadline=1)
    ended = process(agent, "wait", id, timeout=20)
    assert (ended["completion_reason"], ended["termination_source"]) == ("timed_out", "terminal.deadline")
    assert "survivors" not in ended
    empty(container)


@pytest.mark.covers("hermes:12")
def test_a_directory_with_a_space_in_it_is_where_the_command_runs(agents: Agents, own_container: Container) -> None:
    own_container.run("mkdir", "-p", "/srv/a b")
    agent = agents("hermes", place=own_container.place)
    assert shown(agent, "pwd", workdir="/srv/a b")["output"] == "/srv/a b\n"
    id = start(agent, "pwd", workdir="/srv/a b")
    assert over(agent, id, BOUND_S)["output_preview"] == "/srv/a b\n"
    (row,) = agent.call("process", action="list").data["processes"]
    assert (row["cwd"], row["place"]) == ("/srv/a b", own_container.place)


@pytest.mark.covers("hermes:13")
def test_what_ran_in_a_container_that_was_removed_is_lost(agents: Agents, own_container: Container) -> None:
    agent = agents("hermes", place=own_container.place)
    id = start(agent, "echo up; exec sleep 300", notify=True)
    printed(agent, id, "up", BOUND_S)
    own_container.remove()
    found = over(agent, id, BOUND_S)
    assert (found["status"], found["completion_reason"], found["exit_code"]) == ("exited", "lost", None)
    assert (found["termination_source"], found["output_preview"]) == ("backend_lost", "up\n")
    (event,) = drained(agent, bound=BOUND_S)
    assert (event["type"], event["completion_reason"], event["exit_code"]) == ("completion", "lost", None)
    assert drain(agent) == []


@pytest.mark.covers("hermes:13")
def test_what_runs_behind_a_cut_cable_is_unreachable_and_running(
    agents: Agents, over_ssh: Away, ssh_host: SshHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOSTS_REPLY_TIMEOUT", "1")
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", "1")
    agent = agents("hermes")
    id = start(agent, "echo up; read x; exit 5")
    printed(agent, id, "up", BOUND_S)
    ssh_host.cable.cut()
    polled = process(agent, "poll", id)
    assert (polled["status"], polled["health"]) == ("running", "unreachable")
    assert "cannot be reached" in polled["note"]
    assert polled["output_preview"] == "up\n", "what came before can be read"
    (row,) = agent.call("process", action="list").data["processes"]
    assert (row["status"], row["health"], row["place"]) == ("running", "unreachable", over_ssh.place)
    ssh_host.cable.mend()
    until(lambda: "health" not in process(agent, "poll", id), BOUND_S, what="a healthy session")
    process(agent, "submit", id)
    assert process(agent, "wait", id, timeout=20)["exit_code"] == 5


def test_a_foreground_command_whose_place_cannot_be_reached_any_more_continues_and_is_reported(
    library: Agents, world: World, over_ssh: Away, ssh_host: SshHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than another login may take: it must not go on before the place is down.
    monkeypatch.setenv("TERMINAL_MAX_FOREGROUND_TIMEOUT", "6")
    over_ssh.run("mkfifo ~/gate ~/up")
    agent = library("hermes")

    def stdout() -> list[Path]:
        return list(world.home.glob("sessions/*/stdout.*"))

    async def broken() -> dict[str, Any]:
        asked = {"command": "echo one; echo >~/up; read x <~/gate; echo two; exit 3", "timeout": 60}
        call = asyncio.ensure_future(agent.tools.call("terminal", asked))
        await asyncio.to_thread(over_ssh.run, "cat ~/up")
        await asyncio.to_thread(until, lambda: [each for each in stdout() if each.stat().st_size], what="its output")
        ssh_host.cable.down()
        answer: dict[str, Any] = (await call).data
        return answer

    told = agent.run(broken())
    assert (told["status"], told["exit_code"], told["error"]) == ("yielded_to_background", None, None)
    assert (told["output"], told["place"], told["health"]) == ("one\n", over_ssh.place, "unreachable")
    ssh_host.cable.mend()
    over_ssh.run("echo >~/gate")
    assert over(agent, told["session_id"], BOUND_S)["exit_code"] == 3
    (event,) = drained(agent, bound=BOUND_S)
    assert (event["session_id"], event["exit_code"], event["output"]) == (told["session_id"], 3, "one\ntwo\n")


def test_a_foreground_command_outlives_its_link(library: Agents, over_ssh: Away, ssh_host: SshHost) -> None:
    over_ssh.run("mkfifo ~/gate ~/up")
    agent = library("hermes")

    async def broken() -> dict[str, Any]:
        asked = {"command": "echo one; echo >~/up; read x <~/gate; echo two; cd /usr; exit 3", "timeout": 60}
        call = asyncio.ensure_future(agent.tools.call("terminal", asked))
        await asyncio.to_thread(over_ssh.run, "cat ~/up")
        # The link answers in order: the call has its own answer to the start before this one.
        (session,) = await agent.hf.sessions()
        assert (await session.refresh()).state == "running"
        ssh_host.cable.drop()
        await asyncio.to_thread(over_ssh.run, "echo >~/gate")
        answer: dict[str, Any] = (await call).data
        return answer

    told = agent.run(broken())
    assert (told["exit_code"], told["output"], told.get("cwd")) == (3, "one\ntwo\n", "/usr"), told


@pytest.mark.covers("hermes:14")
def test_nothing_runs_here_when_the_host_cannot_be_reached(
    agents: Agents, world: World, over_ssh: Away, ssh_host: SshHost
) -> None:
    ssh_host.cable.down()
    agent = agents("hermes")
    for background in (False, True):
        answer = agent.call("terminal", command="touch ran", background=background)
        assert answer.error
        assert answer.data["error_code"] == "place-unreachable"
        assert answer.data["exit_code"] == -1
    assert agent.call("process", action="list").data["processes"] == []
    assert list(world.cwd.iterdir()) == []
    assert not (ssh_host.home / "ran").exists()
    ssh_host.cable.mend()


@pytest.mark.covers("hermes:23")
def test_heartbeats_come_from_a_sandbox_too(library: Agents, in_podman: Away, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = library("hermes")
    answer = agent.call("terminal", command="exec sleep 300", background=True, heartbeat=5)
    assert (answer.data["heartbeat_seconds"], answer.data["notify_on_complete"]) == (60, True)
    process(agent, "kill", answer.data["session_id"])
    monkeypatch.setenv("HOLDFAST_SESSION_HEARTBEAT_FLOOR", "1")
    agent = library("hermes", owner="b")
    command = "i=0; until test -e ~/over; do i=$((i+1)); echo line $i; sleep 0.4; done; exit 3"
    assert agent.call("terminal", command=command, background=True, heartbeat=1).data["heartbeat_seconds"] == 1
    assert len(beats_until_the_end(agent, (in_podman.home / "over").touch)) >= 2


# What is the same as here.


def test_the_directory_persists_there_and_workdir_does_not(agents: Agents, away: Away) -> None:
    away.run("mkdir -p ~/one/two; ln -s one ~/link")
    home = away.run("cd; pwd -P").strip()
    agent = agents("hermes")
    first = shown(agent, "pwd", workdir="~")
    assert (first["output"], first["exit_code"]) == (f"{home}\n", 0)
    assert "cwd" not in first, "it did not change"
    moved = shown(agent, "cd ~/one && false")
    assert (moved["cwd"], moved["exit_code"]) == (f"{home}/one", 1)
    assert shown(agent, "pwd")["output"] == f"{home}/one\n"
    assert shown(agent, "pwd", workdir="two")["output"] == f"{home}/one/two\n"
    linked = shown(agent, "pwd -P", workdir=f"{home}/link")
    assert (linked["output"], "cwd" in linked) == (f"{home}/one\n", False), "another name is no other directory"
    assert shown(agent, "pwd")["output"] == f"{home}/one\n"
    id = start(agent, "pwd")
    assert over(agent, id, BOUND_S)["output_preview"] == f"{home}/one\n"
    away.run("mv ~/one ~/gone")
    for background in (False, True):
        told = shown(agent, "touch ran", background=background)
        assert told["error_code"] == "spawn-error"
        assert "terminal(command='cd ~', workdir='/')" in told["error"]
    assert shown(agent, "cd ~", workdir="/")["cwd"] == home
    missing = shown(agent, "touch ran", workdir="/no/such")
    assert (missing["error_code"], "/no/such" in missing["error"]) == ("spawn-error", True)


def test_the_directory_of_one_place_is_not_that_of_another(library: Agents, in_podman: Away, world: World) -> None:
    agent, here = library("hermes"), library("hermes", place="local")
    assert shown(agent, "cd /usr")["cwd"] == "/usr"
    assert shown(here, "pwd")["output"] == f"{world.cwd}\n"
    assert shown(agent, "pwd")["output"] == "/usr\n"


def test_a_command_has_the_variables_of_its_place(
    agents: Agents, in_podman: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "AWS_REGION", "TELEGRAM_BOT_TOKEN", "WANTED"):
        monkeypatch.setenv(name, "of the host")
    given = {"OWN": "given", "_HERMES_FORCE_OTHER": "forced", "SUDO_PASSWORD": "no", "_HERMES_FORCE_GH_TOKEN": "no"}
    agent = agents("hermes", env_vars=given, env_pass=["WANTED", "SLACK_BOT_TOKEN"])
    lines = dict(line.split("=", 1) for line in shown(agent, "env")["output"].splitlines())
    assert lines["HOME"] == "/root", "its own, not the host's"
    assert (lines["OWN"], lines["OTHER"], lines["WANTED"]) == ("given", "forced", "of the host")
    assert lines["PYTHONUNBUFFERED"] == "1"
    forbidden = ("OPENAI_API_KEY", "AWS_REGION", "TELEGRAM_BOT_TOKEN", "SUDO_PASSWORD", "GH_TOKEN")
    assert [name for name in forbidden if name in lines] == []


def test_the_path_is_that_of_a_login_there(agents: Agents, in_podman: Away) -> None:
    in_podman.run("printf 'echo noise\\nPATH=/opt/login:$PATH\\n' >~/.profile; cp ~/.profile ~/.bash_profile")
    agent = agents("hermes", env_vars={"SHELL": "/bin/sh"})
    told = shown(agent, "echo $0; echo $PATH")
    program, path = told["output"].splitlines()
    assert program == "/bin/sh"
    assert path.split(":")[0] == "/opt/login"
    assert "/usr/bin" in path.split(":")
    other = agents("hermes", env_vars={"PATH": "/usr/bin:/given"})
    assert shown(other, "echo $0 $PATH")["output"].endswith("bash /usr/bin:/given\n"), "bash where nothing is said"


def test_without_bash_there_is_sh(library: Agents, in_podman: Away) -> None:
    agent = library("hermes", env_vars={"PATH": "/opt"})
    told = shown(agent, "echo $0; cd /usr")
    assert (told["output"], told["cwd"]) == ("/bin/sh\n", "/usr")


def test_the_value_of_a_variable_is_with_the_command_alone(library: Agents, world: World, away: Away) -> None:
    secret = f"value-{secrets.token_hex(8)}"
    agent = library("hermes", env_vars={"MINE": secret})
    id = start(agent, "echo up; exec sleep 4711")
    printed(agent, id, "up", BOUND_S)

    def commands() -> list[str]:
        return [
            processes.command_line(row.pid)
            for row in processes.table().values()
            if secret.encode() in processes.environment(row.pid) or secret in processes.command_line(row.pid)
        ]

    until(lambda: "sleep 4711" in commands(), what="the command in the place of its shell")
    assert commands() == ["sleep 4711"]
    held = {path: data for top in (world.root, away.home) for path, data in contents(top)}
    assert any(path.name == "spec.json" and away.home in path.parents for path in held)
    assert [path for path, data in held.items() if secret.encode() in data] == []
    process(agent, "kill", id)


def test_a_terminal_there_is_a_terminal(agents: Agents, away: Away) -> None:
    agent = agents("hermes")
    told = shown(agent, "test -t 0 && stty size; echo $TERM $PAGER; cd /usr", pty=True)
    assert told["output"].replace("\r", "") == "30 120\nxterm-256color cat\n"
    assert told["cwd"] == "/usr"
    id = start(agent, "python3 -c 'import sys;print(len(sys.stdin.read()))'", pty=True)
    process(agent, "submit", id, data="hello")
    process(agent, "close", id)
    assert process(agent, "wait", id, timeout=20)["exit_code"] == 0


def test_a_foreground_command_there_ends_at_its_limit(agents: Agents, in_podman: Away, container: Container) -> None:
    told = shown(agents("hermes"), "sleep 4711", timeout=1)
    assert (told["exit_code"], told["cause"]) == (124, "overall_timeout")
    assert told["output"].endswith("[Command timed out after 1s]")
    empty(container)


def test_a_long_output_from_there_has_no_path_here(agents: Agents, in_podman: Away) -> None:
    told = shown(agents("hermes"), "seq 20000")
    assert told["output_total_chars"] == sum(len(f"{n}\n") for n in range(1, 20001))
    assert "full_output_path" not in told
    assert told["truncation_note"]


def test_a_watch_there_is_reported_here(library: Agents, in_podman: Away) -> None:
    agent = library("hermes")
    start(agent, "echo an ERROR here; sleep 0.3", watch_patterns=["ERROR"])
    (event,) = drained(agent, bound=BOUND_S)
    assert (event["type"], event["pattern"], event["output"]) == ("watch_match", "ERROR", "an ERROR here")
    until(lambda: agent.call("process", action="list").data["processes"][0]["status"] != "running", BOUND_S)


# Places that cannot be used, and which one is meant.


def test_a_container_without_python_is_refused(agents: Agents, new_container: NewContainer, world: World) -> None:
    agent = agents("hermes", place=new_container(python=False).place)
    for background in (False, True):
        told = shown(agent, "touch ran", background=background)
        assert told["error_code"] == "place-no-python", told
    assert list(world.cwd.iterdir()) == []


def test_a_container_that_is_gone_stays_an_error_without_a_way_to_make_it(
    agents: Agents, podman: object, container: Container, world: World
) -> None:
    agent = agents("hermes", place="podman:hf-never-was")
    for background in (False, True):
        assert shown(agent, "touch ran", background=background)["error_code"] == "place-gone"
    assert list(world.cwd.iterdir()) == []


@pytest.mark.parametrize("background", [False, True])
def test_a_container_that_is_gone_is_made_again_by_the_next_command(
    agents: Agents, world: World, new_container: NewContainer, background: bool
) -> None:
    first, made = new_container(), []

    def recreate(task: str) -> str:
        made.append(task)
        return new_container().place

    agent = agents("hermes", task_id="t1", place=first.place, recreate=recreate)
    assert shown(agent, "cd /usr")["cwd"] == "/usr"
    first.remove()
    told = shown(agent, "pwd", background=background)
    assert (told["exit_code"], told["environment_recreated"]) == (0, True)
    assert made == ["t1"]
    again = shown(agent, "pwd")
    assert (again["output"], "environment_recreated" in again) == ("/\n", False), "the old directory is gone with it"
    other = agents.library("hermes", task_id="t1", place=first.place)
    assert shown(other, "pwd")["output"] == "/\n", "a later host finds the new one"
    assert made == ["t1"]
    # A deputy that still has something removed there when the container goes tries again after a second.
    until(lambda: not deputies(world), what="the end of all deputies")


def test_this_machine_is_not_taken_for_a_container_that_is_gone(
    library: Agents, container: Container, world: World
) -> None:
    agent = library("hermes", place="podman:hf-never-was", recreate=lambda _task: "local")
    assert shown(agent, "touch ran")["error_code"] == "bad-argument"
    assert list(world.cwd.iterdir()) == []


def test_a_coroutine_may_make_the_container(library: Agents, container: Container) -> None:
    async def recreate(_task: str) -> str:
        return container.place

    agent = library("hermes", place="podman:hf-never-was", recreate=recreate)
    told = shown(agent, "exit 3")
    assert (told["exit_code"], told["environment_recreated"]) == (3, True)


def test_a_place_that_is_gone_is_recreated_once_for_all_callers(library: Agents, container: Container) -> None:
    made: list[str] = []

    async def recreate(task: str) -> str:
        made.append(task)
        await turn()
        return container.place

    agent = library("hermes", task_id="t1", place="podman:hf-never-was", recreate=recreate)

    async def three() -> list[Any]:
        asked = {"command": "exit 3"}
        return [each.data for each in await asyncio.gather(*(agent.tools.call("terminal", asked) for _ in range(3)))]

    told = agent.run(three())
    assert [(each["exit_code"], each["environment_recreated"]) for each in told] == [(3, True)] * 3
    assert made == ["t1"]


def test_a_place_that_cannot_be_made_again_is_reported_as_that(library: Agents, container: Container) -> None:
    def recreate(_task: str) -> str:
        raise OSError(28, "no space")

    agent = library("hermes", place="podman:hf-never-was", recreate=recreate)
    for background in (False, True):
        answer = agent.call("terminal", command="true", background=background)
        assert (answer.error, answer.data["error_code"]) == (True, "place-gone")
        assert "making it again failed (OSError: [Errno 28] no space)" in answer.data["error"]


def test_a_task_has_a_place_of_its_own(world: World, own_container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    task = own_container.name.removeprefix("hf-")
    registry = Registry(world.open(), place="podman:hf-{task_id}", session_key="a")
    told = registry.spawn_via_env(None, "pwd; exit 3", task_id=task, session_key="a")
    assert (told["place"], told["pid_scope"]) == (own_container.place, "sandbox")
    assert registry.wait(told["session_id"], 20)["exit_code"] == 3
    here = registry.spawn_local("exit 4", task_id=task, session_key="a")
    assert "place" not in here
    assert registry.wait(here["session_id"], 20)["exit_code"] == 4
    with pytest.raises(PlaceGone):
        registry.spawn_via_env("podman:hf-never-was", "touch ran")
    monkeypatch.setenv("TERMINAL_CONTAINER", own_container.name)
    told = registry.spawn_via_env("podman", "exit 5")
    assert told["place"] == own_container.place
    assert registry.wait(told["session_id"], 20)["exit_code"] == 5


@pytest.mark.parametrize(
    "variables, place",
    [
        ({"HOST": "h"}, "ssh:h"),
        ({"HOST": "h", "USER": "me", "PORT": "22"}, "ssh:me@h"),
        ({"HOST": "h", "USER": "me", "PORT": "2222"}, "ssh:ssh://me@h:2222"),
    ],
)
def test_variables_name_a_machine(variables: dict[str, str], place: str) -> None:
    environ = {f"TERMINAL_SSH_{name}": value for name, value in variables.items()}
    assert named(None, "t1", {"TERMINAL_ENV": "ssh", **environ}) == place


def test_a_key_that_would_not_be_used_is_refused() -> None:
    environ = {"TERMINAL_ENV": "ssh", "TERMINAL_SSH_HOST": "h", "TERMINAL_SSH_KEY": "/k"}
    with pytest.raises(BadArgument, match=r"places\.ssh"):
        named(None, "t1", environ)


def test_a_command_can_be_given_a_file_of_its_runner(world: World) -> None:
    asked: dict[str, Any] = {"pass_fds": {7: None}}
    done = world.open().run("echo said >/proc/self/fd/7", **asked)
    assert (world.session(done.id) / "report").read_text() == "said\n"
    asked["pass_fds"][8] = None
    with pytest.raises(BadArgument, match="give it once"):
        world.open().run("true", **asked)
