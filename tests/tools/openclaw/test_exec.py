"""`exec`: how long it waits, how it tells the end, what keeps a command from running."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.tools.openclaw import execute, settings
from holdfast.tools.openclaw.runs import Withdrawn
from holdfast.tools.openclaw.settings import Allow, Deny, Pending, Request, Unavailable
from support import processes
from support.own_time import OwnTime
from support.waiting import until, wait_for_file, wait_gone

if TYPE_CHECKING:
    from pathlib import Path

    from support.agents import Agent, Agents
    from support.points import Points
    from support.world import World


def poll(agent: Agent, running: Any, timeout: int = 10_000, **more: Any) -> Any:
    return agent.call("process", action="poll", sessionId=running.data["sessionId"], timeout=timeout, **more)


@pytest.mark.slow
@pytest.mark.covers("openclaw:1", "found:33")
def test_a_command_that_takes_longer_keeps_running_and_is_polled(agents: Agents) -> None:
    agent = agents("openclaw")
    agent.call("exec", command="true")  # the first start waits for a launcher
    began, passed = time.monotonic(), OwnTime()
    running = agent.call("exec", command="sleep 5; echo done", yieldMs=1000)
    assert passed.stop().seconds(*agent.runners()) < 1.5
    assert time.monotonic() - began >= 1.0
    assert running.data["status"] == "running"
    assert running.text.startswith(
        f"Command still running (session {running.data['sessionId']}, pid {running.data['pid']}). "
        "Use process (list/poll/log/write/send-keys/submit/paste/kill/clear/remove) for follow-up."
    )
    polled = poll(agent, running)
    assert polled.text == "done\n\nProcess exited with code 0."
    assert (polled.data["status"], polled.data["exitCode"]) == ("completed", 0)


@pytest.mark.covers("openclaw:2")
def test_waits_are_clamped_and_numbers_may_be_text(agents: Agents) -> None:
    assert (settings.yield_ms(1), settings.yield_ms(999_999)) == (10, 120_000)
    assert (settings.poll_ms(99_999), settings.poll_ms(500)) == (30_000, 500)
    agent = agents("openclaw")
    running = agent.call("exec", command="sleep 60", yieldMs="1")
    assert running.data["status"] == "running"
    began = time.monotonic()
    assert "Process still running." in poll(agent, running, timeout="500").text  # type: ignore[arg-type]
    assert 0.5 <= time.monotonic() - began < 20
    assert agent.call("exec", command="true", yieldMs=999_999).data["status"] == "completed"
    refused = agent.call("exec", command="true", yieldMs=-1)
    assert (refused.data["status"], refused.data["error"]) == ("failed", "bad-argument")
    agent.call("process", action="kill", all=True)


@pytest.mark.covers("openclaw:3")
def test_a_finished_command_reports_its_code_and_two_codes_of_the_shell_are_failures(agents: Agents) -> None:
    agent = agents("openclaw")
    three = agent.call("exec", command="echo out; exit 3")
    assert (three.data["status"], three.data["exitCode"]) == ("completed", 3)
    assert three.text == "out\n\n(Command exited with code 3)"
    assert three.data["totalChars"] == 4
    assert three.data.get("aggregated") == ("out\n" if agents.via == "library" else None)
    missing = agent.call("exec", command="no-such-command-at-all")
    assert (missing.data["status"], missing.data["failureKind"]) == ("failed", "shell-command-not-found")
    assert missing.data["exitCode"] == 127
    refused = agent.call("exec", command="/etc/passwd")
    assert (refused.data["status"], refused.data["failureKind"]) == ("failed", "shell-not-executable")
    assert "(Command exited with code 126)" in refused.text
    assert agent.call("exec", command="true").text == "(no output)"


HOST = """
import asyncio, json, sys, holdfast
from holdfast.tools import toolset

async def main():
    hf = holdfast.open_async()
    tools = toolset("openclaw", hf, owner="agent-7", **json.loads(sys.argv[1]))
    await tools.open()
    calling = asyncio.ensure_future(tools.call("exec", json.loads(sys.argv[2])))
    if sys.argv[3] == "wait":
        print(json.dumps((await calling).data), flush=True)
    else:
        print("calling", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.covers("openclaw:4")
def test_the_time_limit_is_enforced_without_any_host_and_zero_means_no_limit(agents: Agents, world: World) -> None:
    limited = world.host(HOST, '{"exec": {"timeoutSec": 1}}', '{"command": "sleep 60", "background": true}', "wait")
    started = json.loads(limited.line(20) or limited.errors())
    limited.kill()
    wait_gone(started["pid"])
    agent = agents("openclaw")  # the first host since
    polled = agent.call("process", action="poll", sessionId=started["sessionId"], timeout=5000)
    assert (polled.data["exitReason"], polled.data["timedOut"]) == ("overall-timeout", True)
    assert "side effects may already have happened" in polled.text
    assert "timeout: 0, not with a trailing &" in polled.text
    usual = agent.call("exec", command="sleep 60", background=True)
    asked = usual.data["timeoutAtMs"] - usual.data["startedAt"]
    assert abs(asked - 1_800_000) < 10_000, "it runs from the request"
    assert "timeout 1800 s" in usual.text
    without = agent.call("exec", command="sleep 60", background=True, timeout=0)
    assert without.data["timeoutAtMs"] is None
    assert "no time limit" in without.text
    agent.call("process", action="kill", all=True)


@pytest.mark.covers("openclaw:5")
def test_aborting_the_call_ends_a_foreground_run_alone(direct: Agents, world: World) -> None:
    agent = direct("openclaw")
    mark = world.cwd / "pid"
    line = f"echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 60"
    backgrounded = agent.call("exec", command="sleep 60", background=True)
    on_pty = agent.call("exec", command="sleep 60", background=True, pty=True)
    yielded = agent.call("exec", command="sleep 60", yieldMs=10)

    async def abort() -> None:
        calling = asyncio.ensure_future(agent.tools.call("exec", {"command": line}))
        await asyncio.to_thread(wait_for_file, mark)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

    agent.run(abort())
    wait_gone(int(mark.read_text()))
    for run in (backgrounded, on_pty, yielded):
        assert processes.look(run.data["pid"]) is not None
        assert "Process still running." in poll(agent, run, timeout=0).text
    agent.call("process", action="kill", all=True)


@pytest.mark.covers("openclaw:6")
def test_a_foreground_run_whose_host_was_killed_is_found_with_all_its_output(agents: Agents, world: World) -> None:
    gate = world.gate()
    mark = world.cwd / "began"
    line = f"echo one; touch {mark}; read -n 1 x < {gate}; echo two; exit 7"
    host = world.host(HOST, "{}", json.dumps({"command": line, "yieldMs": 60000}), "go on")
    assert host.line() == "calling", host.errors()
    wait_for_file(mark)
    host.kill()
    agent = agents("openclaw")  # the next host
    (row,) = until(lambda: agent.call("process", action="list").data["sessions"])
    assert row["status"] == "running"
    said = [agent.call("process", action="poll", sessionId=row["sessionId"], timeout=10_000)]
    gate.release()
    while said[-1].data["status"] == "running":
        said.append(agent.call("process", action="poll", sessionId=row["sessionId"], timeout=10_000))
    assert said[0].text == "one\n\nProcess still running."
    shown = [line for each in said for line in each.text.splitlines() if line in ("one", "two")]
    assert shown == ["one", "two"]
    assert (said[-1].data["exitCode"], said[-1].text.endswith("Process exited with code 7.")) == (7, True)


def test_a_run_in_the_foreground_cannot_be_polled(direct: Agents, world: World) -> None:
    mark = world.cwd / "began"
    line = f"touch {mark}; sleep 60"
    host = world.host(HOST, "{}", json.dumps({"command": line, "yieldMs": 60000}), "go on")
    wait_for_file(mark)
    agent = direct("openclaw")
    (session,) = agent.run(agent.hf.sessions())
    assert agent.call("process", action="list").data["sessions"] == [], "its host still waits for it"
    refused = agent.call("process", action="poll", sessionId=session.name)
    assert refused.text == f"Session {session.name} is not backgrounded."
    host.kill()
    agent.call("process", action="kill", all=True)


@pytest.mark.covers("openclaw:34")
def test_a_key_starts_nothing_while_its_run_lives(agents: Agents) -> None:
    agent = agents("openclaw")
    first = agent.call("exec", command="sleep 60", background=True, key="web")
    second = agent.call("exec", command="sleep 60", background=True, key="web")
    assert (second.data["sessionId"], second.data["reused"]) == (first.data["sessionId"], True)
    assert second.data["pid"] == first.data["pid"]
    assert len(agent.call("process", action="list").data["sessions"]) == 1
    other = agents("openclaw", owner="b").call("exec", command="sleep 60", background=True, key="web")
    assert other.data["pid"] != first.data["pid"]
    agent.call("process", action="kill", sessionId=first.data["sessionId"])
    third = agent.call("exec", command="sleep 60", background=True, key="web")
    assert third.data["sessionId"] != first.data["sessionId"]
    assert "reused" not in third.data
    for owner in ("agent-7", "b"):
        agents("openclaw", owner=owner).call("process", action="kill", all=True)


def test_a_key_that_a_foreground_run_holds_is_reported_as_such(direct: Agents, world: World) -> None:
    agent = direct("openclaw")
    gate = world.gate()

    async def beside() -> tuple[Any, Any]:
        asked = {"command": f"echo up >{gate}; exec sleep 60", "key": "web", "yieldMs": 60_000}
        first = asyncio.ensure_future(agent.tools.call("exec", asked))
        await asyncio.to_thread(gate.line)
        answer = await agent.tools.call("exec", asked)
        name = answer.data["sessionId"]
        polled = await agent.tools.call("process", {"action": "poll", "sessionId": name})
        await agent.tools.supervisor.cancel(name)
        await first
        return answer, polled

    answer, polled = agent.run(beside())
    assert (answer.data["status"], answer.data["reused"]) == ("running", True)
    assert polled.text == f"Session {answer.data['sessionId']} is not backgrounded."
    assert "Another call waits for it in the foreground" in answer.text
    assert "Use process" not in answer.text


def test_a_key_is_free_when_its_run_was_removed(direct: Agents, world: World) -> None:
    agent = direct("openclaw", exec={"killGraceMs": 1000})
    stubborn = shlex.join(world.probe("ignore", "TERM,HUP", "say", "up", "forever"))
    first = agent.call("exec", command=stubborn, background=True, key="web")
    name = first.data["sessionId"]
    until(lambda: "up" in agent.call("process", action="log", sessionId=name).text, what="its first line")
    agent.call("process", action="remove", sessionId=name)
    again = agent.call("exec", command=stubborn, background=True, key="web")
    assert "reused" not in again.data
    assert again.data["sessionId"] != name
    assert processes.is_gone(first.data["pid"]), "two at once under one key"
    assert agent.call("process", action="poll", sessionId=again.data["sessionId"]).data["status"] == "running"
    third = agent.call("exec", command=stubborn, background=True, key="web")
    assert (third.data["sessionId"], third.data["reused"]) == (again.data["sessionId"], True)
    agent.call("process", action="kill", all=True)


def test_a_call_that_cannot_run_says_why_and_runs_nothing(agents: Agents, world: World) -> None:
    agent = agents("openclaw")
    assert agent.call("exec", command="  ").text == "Provide a command to start."
    assert agent.call("exec").text == "Provide a command to start."
    nowhere = agent.call("exec", command="touch x", workdir=str(world.cwd / "none"))
    assert (nowhere.data["status"], "is not a directory" in nowhere.text) == ("failed", True)
    sandbox = agent.call("exec", command="touch x", host="sandbox")
    assert (sandbox.data["status"], sandbox.data["error"]) == ("failed", "place-unsupported")
    assert agent.call("exec", command="touch x", host="node", node="n1").data["error"] == "place-unsupported"
    approving = agent.call("exec", command="/approve 12345678 allow")
    assert (approving.data["error"], approving.error) == ("not-allowed", True)
    denied = agent.call("exec", command="touch x", security="deny")
    assert (denied.data["error"], "security is deny" in denied.text) == ("not-allowed", True)
    nothing = agents("openclaw", sandbox="podman:no-such-container").call("exec", command="touch x")
    assert (nothing.data["status"], nothing.data["failureKind"]) == ("failed", "runtime-error")
    typo = agent.call("exec", command="touch x", yeildMs=5)
    assert "yeildMs" in typo.text
    assert list(world.cwd.iterdir()) == []
    assert agent.call("process", action="list").text == "No running or recent sessions."


def test_each_limit_of_the_foreground_is_reported_by_its_name(agents: Agents) -> None:
    agent = agents("openclaw")
    late = agent.call("exec", command="echo begun; sleep 60", timeout=1)
    assert (late.data["failureKind"], late.data["timedOut"], late.error) == ("overall-timeout", True, True)
    assert late.text.startswith("begun\n\nCommand timed out after 1 seconds.")
    silent = agent.call("exec", command="sleep 60", noOutputTimeout=1)
    assert (silent.data["failureKind"], silent.data["noOutputTimedOut"]) == ("no-output-timeout", True)
    assert silent.text.startswith("Command timed out waiting for output")
    killed = agent.call("exec", command="kill -9 $$")
    assert (killed.data["failureKind"], killed.data["exitSignal"]) == ("signal", "SIGKILL")
    assert killed.text == "Command aborted by signal SIGKILL"


def test_without_the_process_tool_a_call_waits_for_the_end_and_says_so(direct: Agents) -> None:
    agent = direct("openclaw", offered=["exec"])
    assert [each["name"] for each in agent.tools.schemas()] == ["exec"]
    done = agent.call("exec", command="sleep 0.3; echo done", yieldMs=10)
    assert done.data["status"] == "completed"
    assert done.text.startswith("[warning: yieldMs and background are ignored")
    assert done.text.endswith("done")


def test_a_policy_decides_and_an_approval_is_for_what_was_asked(direct: Agents, world: World) -> None:
    approved: dict[str, str] = {}
    asked: list[Request] = []

    async def decide(request: Request) -> Any:
        asked.append(request)
        if "rm" in request.command:
            return Deny("no rm here")
        if "far" in request.command:
            return Unavailable("no person is connected")
        return Allow(approved["id"]) if approved else Pending(123)

    agent = direct("openclaw", policy=decide, exec={"security": "allowlist", "ask": "on-miss"})
    denied = agent.call("exec", command="rm x")
    assert (denied.text, denied.data["status"]) == ("no rm here", "failed")
    far = agent.call("exec", command="far")
    assert (far.data["status"], far.data["host"]) == ("approval-unavailable", "gateway")
    pending = agent.call("exec", command="touch here", security="full", ask="always")
    assert (pending.data["status"], pending.data["expiresAtMs"]) == ("approval-pending", 123)
    assert pending.data["host"] == "gateway"
    elsewhere = direct("openclaw", policy=lambda _: Pending(123), sandbox="podman:box")
    assert elsewhere.call("exec", command="touch here").data["host"] == "sandbox"
    assert len(pending.data["approvalSlug"]) == 8
    assert (asked[-1].security, asked[-1].ask) == ("allowlist", "always")
    assert list(world.cwd.iterdir()) == []
    approved["id"] = pending.data["approvalId"]
    drifted = agent.call("exec", command="touch there", security="full", ask="always")
    assert drifted.data["error"] == "not-allowed"
    run = agent.call("exec", command="touch here", security="full", ask="always")
    assert run.data["status"] == "completed"
    assert [path.name for path in world.cwd.iterdir()] == ["here"]


def test_a_run_that_its_call_reported_is_not_listed_by_this_or_the_next_host(agents: Agents, world: World) -> None:
    for notify in ("true", "failure", "false"):
        asked = json.dumps({"command": "echo told", "notifyOnExit": notify})
        host = world.host(HOST, "{}", asked, "wait")
        assert json.loads(host.line() or host.errors())["status"] == "completed"
        host.kill()
    agent = agents("openclaw")
    agent.call("exec", command="echo told here too")
    assert agent.call("process", action="list").text == "No running or recent sessions."


def test_a_withdrawn_start_is_reported_as_aborted(direct: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = direct("openclaw")

    async def withdrawn(*_: object, **__: object) -> Withdrawn:
        return Withdrawn("amber-atlas")

    monkeypatch.setattr(agent.tools.supervisor, "spawn", withdrawn)
    aborted = agent.call("exec", command="true")
    assert (aborted.data["status"], aborted.data["failureKind"]) == ("failed", "aborted")
    assert aborted.text.startswith("Command aborted before exit code was captured")


@pytest.mark.parametrize("streams", [1, 2])
def test_output_that_an_answer_omits_is_mentioned_counted_and_kept(agents: Agents, streams: int) -> None:
    agent = agents("openclaw")
    line = "seq 100000 150000" if streams == 1 else "seq 100000 119999; seq 200000 219999 >&2"
    done = agent.call("exec", command=line)
    name = done.data["sessionId"]
    note, _, shown = done.text.partition("\n")
    assert note == (
        f"[earlier output is omitted; use process action=log on session {name} with offset and limit "
        "to inspect retained output]"
    )
    assert len(shown) in (199_999, 200_000)
    assert shown.endswith("150000" if streams == 1 else "219999")
    assert done.data["totalChars"] == (350_007 if streams == 1 else 280_000)
    log = agent.call("process", action="log", sessionId=name, offset=0, limit=1)
    assert (log.text, log.data["totalChars"]) == ("100000", done.data["totalChars"])
    assert "sessionId" not in agent.call("exec", command="seq 10").data


def test_a_relative_workdir_is_below_the_agents_own(direct: Agents, world: World, tmp_path: Path) -> None:
    (world.cwd / "sub").mkdir()
    (tmp_path / "sub").mkdir()
    agent = direct("openclaw", cwd=str(tmp_path))
    assert agent.call("exec", command="pwd", workdir="sub").text == str(tmp_path / "sub")
    assert agent.call("exec", command="pwd").text == str(tmp_path)
    assert agent.call("exec", command="pwd", workdir=str(world.cwd)).text == str(world.cwd)


def test_a_key_of_one_owner_is_never_that_of_another(agents: Agents) -> None:
    first = agents("openclaw", owner="a:b").call("exec", command="sleep 60", background=True, key="c")
    other = agents("openclaw", owner="a").call("exec", command="sleep 61", background=True, key="b:c")
    assert (first.data["status"], other.data["status"]) == ("running", "running"), other.text
    assert other.data["pid"] != first.data["pid"]
    for owner in ("a:b", "a"):
        agents("openclaw", owner=owner).call("process", action="kill", all=True)


def test_a_long_key_is_a_key_too(agents: Agents) -> None:
    agent = agents("openclaw", owner="o" * 200)
    runs = [agent.call("exec", command="sleep 60", background=True, key="long \n" * 400) for _ in range(2)]
    assert [each.data.get("reused") for each in runs] == [None, True], runs[0].text
    agent.call("process", action="kill", all=True)


def test_a_call_that_gets_the_run_of_another_call_returns_at_once_and_its_abort_stops_nothing(
    direct: Agents, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All looked for the key before any of them had a run."""
    agent = direct("openclaw")
    points.set("runner.before_spawn=pause")
    asked = {"command": "sleep 60", "key": "web", "yieldMs": 60_000}

    async def not_yet(*_: object) -> None: ...

    monkeypatch.setattr(execute, "_with_key", not_yet)

    async def together() -> Any:
        first = asyncio.ensure_future(agent.tools.call("exec", asked))
        hit = await asyncio.to_thread(points.wait, "runner.before_spawn")
        points.clear()
        second, third = (asyncio.ensure_future(agent.tools.call("exec", asked)) for _ in range(2))
        await asyncio.to_thread(until, lambda: processes.waiting_for_locks() == 2, 10)
        third.cancel()
        hit.release()
        answer = await asyncio.wait_for(second, 30)
        await asyncio.gather(third, return_exceptions=True)
        assert not first.done()
        (session,) = await agent.hf.sessions()
        assert session.stopping is None
        await agent.tools.supervisor.cancel(session.name)
        await first
        return answer, session

    answer, session = agent.run(together())
    assert (answer.data["status"], answer.data["reused"]) == ("running", True)
    assert answer.data["pid"] == session.pid


def test_unusual_arguments_are_accepted_or_refused_as_documented(agents: Agents, world: World) -> None:
    agent = agents("openclaw")
    other = agent.call("exec", command="/approved-by-nobody")
    assert other.data["failureKind"] == "shell-command-not-found"
    late = agent.call("exec", command="sleep 60", timeout=0.0004)
    assert late.data["failureKind"] == "overall-timeout"
    on_pty = agent.call("exec", command="tty", pty=True, stdin="closed")
    assert (on_pty.data["status"], on_pty.text.startswith("/dev/")) == ("completed", True)
    assert agent.call("exec", command="tty", pty=True, stdin="open").data["error"] == "bad-argument"
    assert agent.call("process", action=None).text.startswith("Invalid process action.")


def test_the_wait_that_is_asked_for_is_the_clamped_one(direct: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = direct("openclaw")
    asked: list[float] = []
    run = agent.hf.run

    async def spied(*args: Any, wait: float, **options: Any) -> Any:
        asked.append(wait)
        return await run(*args, wait=wait, **options)

    monkeypatch.setattr(agent.hf, "run", spied)
    for yield_ms in (1, 999_999, None):
        agent.call("exec", command="true", yieldMs=yield_ms)
    assert asked == [0.01, 120.0, 10.0]
