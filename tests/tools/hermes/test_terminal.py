"""The tool `terminal`: what is refused, what a foreground command answers, when it continues in the background."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.tools.hermes.foreground import is_server
from holdfast.tools.hermes.process import meaning
from support import processes
from support.faults import sweep_up
from support.hermes import drained, over, printed, process, start
from support.levers import namespace_argv
from support.waiting import until, wait_gone

if TYPE_CHECKING:
    from support.agents import Agent, Agents
    from support.world import World


def shown(agent: Agent, command: str, **options: Any) -> dict[str, Any]:
    answer = agent.call("terminal", command=command, **options)
    assert json.loads(answer.text) == answer.data
    return answer.data


def nothing_ran(agent: Agent) -> bool:
    return not agent.run(agent.hf.sessions(all=True))


def ran(world: World) -> bool:
    return (world.cwd / "ran").exists() or (world.root / "user" / "ran").exists()


# Foreground.


def test_a_command_answers_with_output_in_order_and_code(agents: Agents) -> None:
    agent = agents("hermes")
    assert shown(agent, "echo one; echo two >&2; echo three; exit 3") == {
        "output": "one\ntwo\nthree\n",
        "exit_code": 3,
        "error": None,
    }
    assert shown(agent, "kill -9 $$")["exit_code"] == -9
    assert "SIGKILL" in shown(agent, "kill -9 $$")["exit_code_meaning"]
    assert shown(agent, "echo a | grep b")["exit_code_meaning"] == "no lines matched"
    assert agent.call("process", action="list").data == {"processes": []}


@pytest.mark.parametrize(
    "command, said",
    [
        ("ls; grep x f;\n", "no lines matched"),
        ("grep 'a|b;c' f", "no lines matched"),
        ('grep "a && b" f', "no lines matched"),
        ("grep it\\'s f", "no lines matched"),
        ("echo 'a; grep'", None),
        ('echo "it\'s; grep" x', None),
        ("A=1 test x = y 2>&1", "the condition is false"),
    ],
)
def test_a_code_is_explained_by_the_last_command_that_a_shell_would_see(command: str, said: str | None) -> None:
    assert meaning(command, 1) == said


@pytest.mark.covers("hermes:29")
def test_a_foreground_command_ends_at_its_limit_and_not_before_its_end(agents: Agents, world: World) -> None:
    agent = agents("hermes")
    shown(agent, "true")  # the login shell is asked once
    began = time.monotonic()
    mine = f"sleep 300.{os.getpid()}"
    late = shown(agent, f"echo $$; {mine}; sleep 301", timeout=1)
    assert time.monotonic() - began < 30
    assert late["exit_code"] == 124
    pid, last = late["output"].splitlines()
    assert last == "[Command timed out after 1s]"
    assert late["cause"] == "overall_timeout"
    wait_gone(int(pid))
    assert not [pid for pid in processes.table() if processes.command_line(pid) == mine]
    began = time.monotonic()
    assert shown(agent, "sleep 2; echo done", timeout=900)["output"] == "done\n"
    assert 2 <= time.monotonic() - began < 30
    (world.root / "srv").mkdir()
    moved = shown(agent, f"cd {world.root}/srv")
    assert moved["cwd"] == f"{world.root}/srv"
    assert shown(agent, "pwd")["output"] == f"{world.root}/srv\n"
    assert shown(agent, "pwd", workdir=str(world.root))["output"] == f"{world.root}\n"
    assert shown(agent, "pwd")["output"] == f"{world.root}/srv\n", "for that call alone"
    assert shown(agent, "pwd; cd; exit 5", workdir=str(world.root))["exit_code"] == 5
    assert shown(agent, "pwd")["output"] == f"{world.root}/user\n"


def test_the_directory_survives_the_host_and_belongs_to_the_task(agents: Agents, world: World) -> None:
    (world.root / "there").mkdir()
    shown(agents("hermes", task_id="t1"), f"cd {world.root}/there")
    assert shown(agents("hermes", task_id="t1"), "pwd")["output"] == f"{world.root}/there\n"
    assert shown(agents("hermes", task_id="t2"), "pwd")["output"] == f"{world.cwd}\n"


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/dash"])
def test_the_command_does_not_see_the_report_of_its_directory(
    agents: Agents, world: World, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("SHELL", shell)
    agent = agents("hermes")
    told = shown(agent, 'echo "$# [$1] $0"; cd /; trap "echo mine" EXIT; false')
    assert (told["output"], told["exit_code"]) == (f"0 [] {shell}\nmine\n", 1)
    assert "cwd" not in told, "the trap of the command replaced ours"
    assert shown(agent, "cd /; exec sh -c 'exit 4'")["exit_code"] == 4
    assert shown(agent, "cd /; exit 6") == {"output": "", "exit_code": 6, "error": None, "cwd": "/"}
    assert shown(agent, "if")["exit_code"] == 2
    monkeypatch.chdir(world.cwd)


def test_a_report_that_the_command_replaced_moves_nothing(direct: Agents, world: World) -> None:
    agent = direct("hermes")
    told = shown(agent, f"cd /; report=$(echo {world.home}/sessions/*/report); rm $report; mkfifo $report")
    assert told == {"output": "", "exit_code": 0, "error": None}
    assert shown(agent, "pwd")["output"] == f"{world.cwd}\n"


def test_what_lives_on_after_the_shell_is_named(agents: Agents) -> None:
    agent = agents("hermes")
    told = shown(agent, "sleep 300 & echo started")
    assert (told["output"], told["exit_code"]) == ("started\n", 0)
    assert len(told["survivors"]) == 1
    assert "background=true" in told["hint"]
    (row,) = agent.call("process", action="list").data["processes"]
    assert (row["session_id"], row["survivors"]) == (told["session_id"], told["survivors"])
    assert process(agent, "kill", told["session_id"])["descendants_stopped"] == told["survivors"]


def test_long_output_is_cut_in_its_middle_and_all_of_it_can_be_read(agents: Agents) -> None:
    agent = agents("hermes")
    told = shown(agent, "seq 100000")
    lines = told["output"].splitlines()
    assert len(told["output"]) <= 50_100
    assert (lines[0], lines[-1]) == ("1", "100000")
    (mark,) = [line for line in lines if "left out" in line]
    missing = [int(word) for word in mark.split() if word.isdigit()]
    assert missing[1] == 100_000 - (len(lines) - 1)
    assert told["output_total_chars"] == len("".join(f"{n}\n" for n in range(1, 100_001)))
    with open(told["full_output_path"]) as file:
        assert len(file.read()) == told["output_total_chars"]
    page = process(agent, "log", told["session_id"], offset=50_000, limit=2)
    assert (page["output"], page["total_lines"]) == ("50001\n50002", 100_000)


def test_long_output_whose_head_is_gone_begins_with_a_whole_line(
    library: Agents, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = world.root / "small.toml"
    config.write_text("[log]\nsession_cap = '1MiB'\nsegment = '256KiB'\n")
    monkeypatch.setenv("HOLDFAST_CONFIG", str(config))
    told = shown(library("hermes"), "seq -f 'line %012.0f' 0 99999")
    mark, first, *lines = told["output"].splitlines()
    assert re.fullmatch(r"\[\.\.\. \d+ bytes of the beginning are no longer kept \.\.\.\]", mark)
    assert re.fullmatch(r"line \d{12}", first)
    assert lines[-1] == "line 000000099999"
    assert told["output_total_chars"] == 100_000 * len("line 000000000000\n")


def test_a_terminal_works_in_the_foreground(agents: Agents) -> None:
    told = shown(agents("hermes"), "test -t 0 && test -t 1 && stty size && echo $PAGER", pty=True)
    assert (told["output"], told["exit_code"]) == ("30 120\ncat\n", 0)


# Yielding.


@pytest.mark.covers("hermes:30")
@pytest.mark.slow
def test_a_user_message_lets_the_command_continue_past_its_default_limit(
    library: Agents, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERMINAL_TIMEOUT", "3")
    agent = library("hermes")
    up, gate = world.gate(), world.gate()

    async def interrupted() -> Any:
        command = f"echo up | tee {up}; read x <{gate}; exit 5"
        call = asyncio.ensure_future(agent.tools.call("terminal", {"command": command}))
        await asyncio.to_thread(up.line)
        (session,) = await agent.hf.sessions()
        assert (await session.wait(match="up", timeout=30)).reason == "match", "it is in the log"
        agent.tools.yield_now()
        return (await call).data

    told = agent.run(interrupted())
    assert (told["status"], told["exit_code"], told["error"]) == ("yielded_to_background", None, None)
    assert "up" in told["output"]
    assert told["notify_on_complete"] is True
    waited = process(agent, "wait", told["session_id"], timeout=4)
    assert (waited["status"], waited["process_running"]) == ("timeout", True)
    assert "clamped" in waited["timeout_note"]
    process(agent, "wait", told["session_id"], timeout=1)
    polled = process(agent, "poll", told["session_id"])
    assert (polled["status"], polled["pid"]) == ("running", told["pid"])
    (row,) = agent.call("process", action="list").data["processes"]
    assert (row["session_id"], row["notify_on_complete"]) == (told["session_id"], True)
    with open(gate.path, "wb") as file:
        file.write(b"\n")
    (event,) = drained(agent)
    assert (event["type"], event["exit_code"], event["session_id"]) == ("completion", 5, told["session_id"])


def test_a_limit_that_was_given_stays_after_a_yield(library: Agents) -> None:
    agent = library("hermes", server_wait_s=0.2)
    told = shown(agent, "exec -a uvicorn sleep 300 # ; uvicorn", timeout=1)
    assert told["status"] == "yielded_to_background"
    assert "server" in told["promoted_from_foreground"]
    ended = over(agent, told["session_id"])
    assert (ended["completion_reason"], ended["termination_source"]) == ("timed_out", "terminal.timeout")


def test_an_interrupt_ends_the_command(library: Agents, world: World) -> None:
    agent = library("hermes")
    gate = world.gate()

    async def interrupted() -> Any:
        call = asyncio.ensure_future(agent.tools.call("terminal", {"command": f"echo $$ | tee {gate}; sleep 300"}))
        pid = int(await asyncio.to_thread(gate.line))
        agent.tools.interrupt()
        return pid, (await call).data

    pid, told = agent.run(interrupted())
    assert told["exit_code"] == 130
    assert told["output"].splitlines()[-1] == "[Command interrupted]"
    assert processes.is_gone(pid)
    assert process(agent, "poll", told["session_id"])["termination_source"] == "interrupt"


def test_an_interrupt_that_the_command_withstands_says_what_is_left(library: Agents, world: World) -> None:
    agent = library("hermes", daemon_term_grace_seconds=0)
    gate = world.gate()
    command = f"trap '' TERM; echo $$ >{gate}; while :; do sleep 100; done"

    async def interrupted() -> Any:
        call = asyncio.ensure_future(agent.tools.call("terminal", {"command": command}))
        pid = int(await asyncio.to_thread(gate.line))
        agent.tools.interrupt()
        return pid, (await call).data

    pid, told = agent.run(interrupted())
    assert (told["exit_code"], told["process_running"]) == (130, True)
    assert pid in told["survivors"]
    killer = library("hermes")
    session = agent.run(agent.hf.get(told["session_id"]))
    assert agent.run(session.stop(grace=0.2, by="a person")).survivors, "that is how it is stopped, by others too"
    agent.run(session.stop(grace=0, by="a person"))
    (event,) = drained(killer)
    assert event["session_id"] == told["session_id"], "its end was not told yet"


def test_a_caller_that_only_stops_waiting_leaves_the_command_running(library: Agents, world: World) -> None:
    agent = library("hermes")
    up, gate = world.gate(), world.gate()
    command = shlex.join(world.probe("tell", up, "up", "await", gate, "say", "late"))

    async def left() -> None:
        call = asyncio.ensure_future(agent.tools.call("terminal", {"command": command}))
        await asyncio.to_thread(up.line)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    agent.run(left())
    gate.release()
    (event,) = drained(agent)
    assert (event["exit_code"], event["output"]) == (0, "ready\nlate\n")


def test_past_the_cap_it_continues_in_the_background(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERMINAL_MAX_FOREGROUND_TIMEOUT", "1")
    agent = agents("hermes")
    told = shown(agent, "echo begun; exec sleep 300", timeout=900)
    assert (told["status"], told["output"]) == ("yielded_to_background", "begun\n")
    assert "limit" in told["promoted_from_foreground"]
    assert process(agent, "kill", told["session_id"])["status"] == "killed"


def test_past_a_deadline_that_is_the_cap_it_is_waited_for_until_it_ended(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERMINAL_MAX_FOREGROUND_TIMEOUT", "1")
    agent = agents("hermes", daemon_term_grace_seconds=0.5)
    told = shown(agent, "trap '' TERM; while :; do sleep 100; done", timeout=1)
    assert (told["exit_code"], told["output"]) == (124, "[Command timed out after 1s]")


def test_a_command_that_withstands_its_limit_is_reported_as_late_and_continues(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERMINAL_MAX_FOREGROUND_TIMEOUT", "30")
    agent = agents("hermes", daemon_term_grace_seconds=0)
    shown(agent, "true")  # the login shell is asked once
    began = time.monotonic()
    told = shown(agent, "trap '' TERM; echo $$; while :; do sleep 100; done", timeout=1)
    assert time.monotonic() - began < 25, "the cap is not waited for"
    pid, last = told["output"].splitlines()
    assert (last, told["exit_code"], told["error"]) == ("[Command timed out after 1s]", 124, None)
    assert (told["cause"], told["process_running"]) == ("overall_timeout", True)
    assert told["survivors"] == [int(pid)]
    (row,) = agent.call("process", action="list").data["processes"]
    assert (row["session_id"], row["status"]) == (told["session_id"], "running")
    ended = process(agents("hermes"), "kill", told["session_id"])
    assert (ended["exit_code"], ended["completion_reason"]) == (-9, "timed_out"), "the first reason stays"


def test_a_server_in_the_foreground_is_refused_where_the_host_says_so(agents: Agents) -> None:
    agent = agents("hermes", foreground_guard="refuse")
    told = shown(agent, "npm run dev")
    assert (told["exit_code"], told["status"]) == (-1, "error")
    assert "background=true" in told["error"]
    assert nothing_ran(agent)


@pytest.mark.parametrize(
    "command",
    [
        *("npm run dev", "cd app && uvicorn app:app", "docker compose up", "python3 -m http.server 80", "yarn dev"),
        *("PORT=3000 npm run dev", "A='b c' D=1 yarn dev", "env A=1 uvicorn app:app", "sudo -- true; sudo flask run"),
        *("  npm run dev", "\nnpm run dev", "cd app\nnpm run dev", "http-server -h 0.0.0.0", "uvicorn app:app -h x"),
        *("docker compose -f a.yml up", "docker-compose --profile x -f b.yml up", "docker compose --file=a.yml up"),
    ],
)
def test_what_looks_like_a_server(command: str) -> None:
    assert is_server(command)
    assert not is_server(command + " --help")


@pytest.mark.parametrize(
    "command",
    [
        *("npm run build", "grep uvicorn x", "docker compose up -d", "pip install uvicorn", "ls"),
        *("docker compose -f a.yml up --detach", "docker compose -f a.yml down", "echo PORT=3000 npm run dev"),
    ],
)
def test_what_does_not_look_like_a_server(command: str) -> None:
    assert not is_server(command)


# What is refused.


@pytest.mark.parametrize(
    "wrong, fixed",
    [
        ({"notify": True}, "background=true, notify=true"),
        ({"watch_patterns": ["x"]}, "background=true, watch_patterns=['x']"),
        ({"notify": ["x"]}, "background=true, watch_patterns=['x']"),
        ({"heartbeat": 60}, "background=true, heartbeat=60"),
        ({"deadline": 5}, "background=true, deadline=5"),
        ({"persist_on_release": True}, "background=true, persist_on_release=true"),
        ({"timeout": 0}, "at least 1; call terminal(command='touch ran')"),
        ({"background": True, "heartbeat": -1}, "at least 0; call terminal(command='touch ran', background=true)"),
        ({"background": True, "heartbeat": 1.5}, "whole number"),
        ({"background": True, "watch_patterns": ["", "x"]}, "background=true, watch_patterns=['x'])"),
        ({"background": True, "watch_patterns": [5]}, "call terminal(command='touch ran', background=true)"),
        ({"workdir": "a\nb"}, "directory"),
        ({"pty": True, "stdin": "closed"}, "call terminal(command='touch ran', pty=true)"),
        ({"tiemout": 5}, "call terminal(command='touch ran', timeout=5)"),
        ({"whatever": 5, "workdir": "/"}, "call terminal(command='touch ran', workdir='/')"),
        ({"notify": True, "workdir": "/", "pty": True}, "background=true, workdir='/', pty=true, notify=true)"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_would_be_right(
    agents: Agents, wrong: dict[str, Any], fixed: str
) -> None:
    agent = agents("hermes")
    answer = agent.call("terminal", command="touch ran", **wrong)
    assert answer.error
    assert (answer.data["error_code"], answer.data["exit_code"]) == ("bad-argument", -1)
    assert fixed in answer.data["error"]
    assert nothing_ran(agent)


def test_a_command_under_another_name_is_shown_as_it_should_be(agents: Agents) -> None:
    agent = agents("hermes")
    for name in ("code", "cmd"):
        answer = agent.call("terminal", **{name: "echo hi"})
        assert answer.data["error_code"] == "bad-argument"
        assert "terminal(command='echo hi')" in answer.data["error"]
    long = agent.call("terminal", command="echo " + "x" * 300, notify=True).data["error"]
    assert "terminal(command=<as you gave it>, background=true, notify=true)" in long, "not a part of it"
    assert agent.call("terminal", command=" ").data["error_code"] == "bad-argument"
    assert agent.call("terminal", command="a\0b").data["error_code"] == "bad-argument"


def test_a_directory_that_is_not_there_is_no_other_one(agents: Agents, world: World) -> None:
    agent = agents("hermes")
    for background in (False, True):
        answer = agent.call("terminal", command="touch ran", workdir="~/none", background=background)
        assert (answer.data["error_code"], answer.data["exit_code"]) == ("spawn-error", -1)
        assert "cwd" in answer.data["error"]
    assert "Failed to start background process" in answer.data["error"]
    (row,) = agent.call("process", action="list").data["processes"]
    assert (row["status"], row["completion_reason"], row["exit_code"]) == ("exited", "failed_start", None)
    assert not ran(world)


def test_a_task_finds_its_way_out_of_a_directory_that_was_removed(agents: Agents, world: World) -> None:
    (world.root / "gone").mkdir()
    agent = agents("hermes")
    shown(agent, f"cd {world.root}/gone")
    (world.root / "gone").rmdir()
    for background in (False, True):
        told = shown(agent, "touch ran", background=background)
        assert told["error_code"] == "spawn-error"
        assert "terminal(command='cd ~', workdir='/')" in told["error"]
    (row,) = agent.call("process", action="list").data["processes"]
    assert (row["status"], row["completion_reason"]) == ("exited", "failed_start"), "it was recorded"
    assert shown(agent, "cd ~", workdir="/")["cwd"] == f"{world.root}/user"
    assert shown(agent, "pwd")["output"] == f"{world.root}/user\n"
    assert not ran(world)


@pytest.mark.parametrize(
    "place, code, said",
    [
        ("modal", "place-unsupported", "modal"),
        ("daytona", "place-unsupported", "daytona"),
        ("nowhere", "place-unsupported", "nowhere"),
        ("ssh", "bad-argument", "TERMINAL_SSH_HOST"),
        ("docker", "bad-argument", "TERMINAL_CONTAINER"),
        ("podman:", "bad-argument", "podman:NAME"),
    ],
)
def test_a_place_that_is_not_known_is_refused_and_nothing_runs_here(
    agents: Agents, world: World, monkeypatch: pytest.MonkeyPatch, place: str, code: str, said: str
) -> None:
    monkeypatch.setenv("TERMINAL_ENV", place)
    agent = agents("hermes")
    for background in (False, True):
        answer = agent.call("terminal", command="touch ran", background=background)
        assert answer.error
        assert answer.data["error_code"] == code
        assert said in answer.data["error"]
    assert not ran(world)


WITHOUT_DEVICE = """
import asyncio, json, os, subprocess
kept = os.path.join(os.environ["TMPDIR"], "dev")
os.mkdir(kept)
subprocess.run(["mount", "--rbind", "/dev", kept], check=True)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev"], check=True)
for name in ("null", "zero", "urandom"):
    open(f"/dev/{name}", "w").close()
    subprocess.run(["mount", "--bind", f"{kept}/{name}", f"/dev/{name}"], check=True)
import holdfast
from holdfast.tools import toolset

async def main():
    async with holdfast.open_async() as hf, toolset("hermes", hf, owner="a") as tools:
        for background in (False, True):
            answer = await tools.call("terminal", {"command": "touch ran", "pty": True, "background": background})
            print(json.dumps([answer.error, answer.data]), flush=True)
        print(json.dumps(len(await hf.sessions(all=True))), flush=True)

asyncio.run(main())
"""


@pytest.mark.covers("hermes:31")
@pytest.mark.namespaces
def test_without_a_terminal_device_nothing_is_spawned(world: World) -> None:
    host = world.host(WITHOUT_DEVICE, prefix=namespace_argv("--mount"))
    for _ in range(2):
        failed, told = json.loads(host.line(30) or host.errors())
        assert failed
        assert told["error_code"] == "pty-unavailable"
    assert json.loads(host.line(30)) == 0
    assert host.wait(30) == 0, host.errors()
    assert not ran(world)
    sweep_up(world, world.open())


# Background.


def test_a_background_command_answers_at_once_with_all_that_was_asked(agents: Agents) -> None:
    agent = agents("hermes")
    told = shown(
        agent, "exec sleep 300", background=True, notify=True, deadline=600, timeout=5, persist_on_release=True
    )
    assert told["output"] == "Background process started"
    assert (told["exit_code"], told["error"]) == (0, None)
    assert (told["notify_on_complete"], told["deadline_seconds"], told["persist_on_release"]) == (True, 600, True)
    assert "deadline=5" in told["timeout_ignored"]
    row = processes.look(told["pid"])
    assert row is not None
    silent = shown(agent, "exec sleep 300", background=True)
    assert "nothing will tell you" in silent["hint"]
    assert told["session_id"] in silent["hint"]
    rows = agent.call("process", action="list").data["processes"]
    assert [row["session_id"] for row in rows] == [silent["session_id"], told["session_id"]]
    assert rows[1]["notify_on_complete"] is True
    assert rows[1]["persist_on_release"] is True
    for id in (silent["session_id"], told["session_id"]):
        assert process(agent, "kill", id)["status"] == "killed"


def test_a_deadline_ends_a_background_command(agents: Agents) -> None:
    agent = agents("hermes")
    id = start(agent, "sleep 300", deadline=1)
    ended = process(agent, "wait", id, timeout=20)
    assert (ended["completion_reason"], ended["termination_source"]) == ("timed_out", "terminal.deadline")


@pytest.mark.covers("server:15")
def test_more_than_a_host_allows_are_refused(agents: Agents, world: World) -> None:
    agent = agents("hermes", max_running=1)
    id = start(agent, "sleep 300")
    answer = agent.call("terminal", command="sleep 301", background=True)
    assert answer.data["error_code"] == "too-many-sessions"
    told = agent.call("terminal", command="touch ran").data
    assert (told["error_code"], told["exit_code"], ran(world)) == ("too-many-sessions", -1, False)
    process(agent, "kill", id)
    assert agent.call("terminal", command="touch ran").data["exit_code"] == 0
    assert ran(world)
    process(agent, "kill", start(agent, "sleep 302"))


@pytest.mark.parametrize("background", [True, False])
def test_more_than_a_host_allows_are_refused_also_at_once(library: Agents, background: bool) -> None:
    agent = library("hermes", max_running=1, server_wait_s=0.5)

    async def three() -> list[Any]:
        asked = {"command": "exec -a uvicorn sleep 300 # ; uvicorn", "background": background}
        answers = await asyncio.gather(*(agent.tools.call("terminal", asked) for _ in range(3)))
        return sorted(answer.data.get("error_code") or "started" for answer in answers)

    assert agent.run(three()) == ["started", "too-many-sessions", "too-many-sessions"]
    (row,) = agent.call("process", action="list").data["processes"]
    process(agent, "kill", row["session_id"])


RECORDING_SHELL = """#!{python} -I
import os, sys
with open({log!r}, "ab") as file:
    file.write(b"\\0".join(map(os.fsencode, sys.argv[1:])) + b"\\0\\0")
os.execv("/bin/bash", ["bash", *sys.argv[1:]])
"""

COMPOUND = (
    "true && echo a &",
    "(echo a; echo b) &",
    "cat <<'EOF' &\n$x `y` \"z\" \\\nEOF",
    "echo 'single' \"double $HOME\" `echo tick` $(echo sub) \\\\ é 🎉",
    "for i in 1 2; do echo $i; done; A=1 B=2 env | grep ^A= && echo ok || echo no",
    "  echo padded  \n\n# a comment at the end",
)


@pytest.mark.covers("hermes:32")
@pytest.mark.parametrize("background", [False, True])
def test_the_shell_receives_the_command_byte_for_byte(
    agents: Agents, world: World, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    shell, log = world.root / "bash", world.root / "received"
    shell.write_text(RECORDING_SHELL.format(python=sys.executable, log=str(log)))
    shell.chmod(0o755)
    monkeypatch.setenv("SHELL", str(shell))
    agent = agents("hermes")
    for command in COMPOUND:
        told = shown(agent, command, background=background)
        assert told["exit_code"] == 0, told
        if background:
            over(agent, told["session_id"])
    received = [words.split(b"\0") for words in log.read_bytes().split(b"\0\0")]
    commands = [words[-1] for words in received if b"-l" not in words and words != [b""]]
    assert commands == [command.encode() for command in COMPOUND]
    expected = [b"-c", COMPOUND[0].encode()]
    if background:
        assert expected in received, "no wrapper, no other flags"


def test_compound_commands_do_what_they_say(agents: Agents) -> None:
    agent = agents("hermes")
    # A command in the background prints when it gets to run.
    outputs = {command: shown(agent, f"{command}\nwait")["output"] for command in COMPOUND[2:5]}
    assert outputs[COMPOUND[2]] == '$x `y` "z" \\\n'
    assert outputs[COMPOUND[3]].split()[0] == "single"
    assert outputs[COMPOUND[4]] == "1\n2\nA=1\nok\n"


def test_the_schema_has_nothing_that_providers_refuse(library: Agents) -> None:
    tools = library("hermes").tools
    for shape in ("mcp", "openai", "anthropic"):
        for strict in (False, True):
            text = json.dumps(tools.schemas(shape, strict=strict))
            assert "anyOf" not in text
            for internal in ("task_id", "session_key", "env_vars"):
                assert internal not in text


def test_a_session_waits_for_input_unless_it_is_closed(agents: Agents) -> None:
    agent = agents("hermes")
    id = start(agent, "cat; echo end", stdin="closed")
    assert over(agent, id)["output_preview"] == "end\n"
    id = start(agent, "cat; echo end")
    assert process(agent, "submit", id, data="typed") == {"status": "ok", "bytes_written": 6}
    printed(agent, id, "typed")
    assert process(agent, "close", id) == {"status": "ok", "message": "stdin closed"}
    until(lambda: process(agent, "poll", id)["status"] == "exited", what="the end")
