"""The five tools, as a model calls them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.daemons.handle import Handle
from holdfast.errors import HoldfastError, SpawnError
from holdfast.tools.evva import Change, DaemonState, Lifecycle, Signal
from support import processes
from support.agents import Agent, Agents
from support.own_daemon import Own
from support.points import Points
from support.waiting import BOUND_S, until
from support.world import World

Library = Callable[..., Agent]


def background(agent: Agent, command: str, **more: Any) -> str:
    answer = agent.call("bash", command=command, run_in_background=True, **more)
    assert not answer.error
    id: str = answer.data["daemon_id"]
    assert answer.text.startswith(f"Daemon {id} started in background.")
    assert f"daemon_output {id}" in answer.text
    assert f"daemon_stop {id}" in answer.text
    return id


def listed(agent: Agent, **arguments: Any) -> str:
    return agent.call("daemon_list", **arguments).text


def gone(agent: Agent, id: str) -> None:
    until(lambda: id not in listed(agent), what=f"the end of {id}")


def living(world: World, words: str) -> list[int]:
    """Processes of this world with these words in their command line."""
    root = str(world.root).encode()
    found = [pid for pid in processes.table() if words in processes.command_line(pid)]
    return [pid for pid in found if root in processes.environment(pid)]


def test_output_of_both_streams_comes_in_the_order_of_its_arrival(agents: Agents, world: World) -> None:
    agent = agents("evva")
    command = f"echo one; {world.until_logged('one')}; echo two >&2; {world.until_logged('two')}; echo three"
    answer = agent.call("bash", command=command, description="three lines")
    assert (answer.text, answer.error) == ("one\ntwo\nthree\n", False)
    assert agent.call("bash", command="true").text == "(no output)"
    assert listed(agent) == "no daemons"


def test_a_failed_command_shows_its_output_and_how_it_ended(agents: Agents) -> None:
    agent = agents("evva")
    answer = agent.call("bash", command="printf half; exit 7")
    assert (answer.text, answer.error) == ("half\n--- exit code 7 ---", True)
    answer = agent.call("bash", command="echo x; kill -KILL $$")
    assert answer.text == "x\n--- signal SIGKILL ---"
    assert (answer.data["exit_code"], answer.data["exit_signal"]) == (None, "SIGKILL")


def test_a_command_whose_runner_dies_has_no_exit_code(agents: Agents, world: World) -> None:
    agent = agents("evva")
    answer = agent.call("bash", command=f"echo before; {world.until_logged('before')}; kill -KILL $PPID")
    assert answer.error
    assert answer.text == "before\n--- no exit code, cause lost ---"
    (world.runtime / f"{answer.data['daemon_id']}.sock").unlink()


def test_long_output_is_cut_at_a_line_and_names_the_command_for_all(agents: Agents) -> None:
    agent = agents("evva")
    answer = agent.call("bash", command="seq 1 100000")
    first, *lines = answer.text.splitlines()
    found = re.fullmatch(rf"\((\d+) bytes cut here: `hold logs {answer.data['daemon_id']}` has all\)", first)
    assert found is not None
    assert lines[-1] == "100000"
    assert lines == [str(number) for number in range(int(lines[0]), 100001)]
    shown = sum(len(line) + 1 for line in lines)
    assert shown <= 64 << 10
    assert int(found[1]) + shown == sum(len(str(number)) + 1 for number in range(1, 100001))


def test_a_cut_falls_on_a_whole_character(agents: Agents) -> None:
    agent = agents("evva")
    answer = agent.call("bash", command="""awk 'BEGIN { for (i = 0; i < 40000; i++) printf "ü€" }'""")
    assert "\ufffd" not in answer.text
    assert answer.text.endswith("ü€")


@pytest.mark.covers("evva:14")
def test_a_command_that_takes_too_long_is_ended_with_all_it_started(agents: Agents, world: World) -> None:
    agent = agents("evva")
    began = time.monotonic()
    answer = agent.call("bash", command="echo before; sleep 61.25 & wait", timeout=1000)
    assert time.monotonic() - began < 30
    assert answer.error
    assert answer.text == "bash: command timed out after 1s\n--- partial output ---\nbefore\n"
    assert living(world, "sleep 61.25") == []
    assert listed(agent) == "no daemons"


def test_with_the_option_a_slow_command_continues_in_the_background(agents: Agents) -> None:
    agent = agents("evva", on_timeout="background")
    answer = agent.call("bash", command="echo before; sleep 60", timeout=200)
    id = answer.data["daemon_id"]
    assert not answer.error
    assert answer.text.startswith(f"Daemon {id} started in background.")
    assert f"- {id} [local_bash/running]" in listed(agent)
    agent.call("daemon_stop", daemon_id=id)
    gone(agent, id)


def test_a_command_that_leaves_a_process_is_added_before_its_end(agents: Agents, world: World) -> None:
    agent = agents("evva", on_timeout="background")
    changes: list[Change] = []
    state = world.closing.enter_context(DaemonState(world.open(), "agent-7"))
    state.subscribe(changes.append)
    ids = [
        agent.call("bash", command=command, timeout=timeout).data["daemon_id"]
        for command, timeout in (("true", 0), ("sleep 60 & echo done", 0), ("sleep 60", 200))
    ]
    agent.call("daemon_stop", daemon_id=ids[2])
    until(lambda: {change.id for change in changes if change.op == "killed"} == {ids[2]}, what="the end of the last")
    ops = [[change.op for change in changes if change.id == id] for id in ids]
    assert ops[0] == [], "a call that is over was no daemon"
    assert ops[1][:2] == ["added", "completed"]
    assert ops[2] == ["added", "killed"]
    agent.call("daemon_stop", daemon_id=ids[1])
    gone(agent, ids[1])


@pytest.mark.covers("evva:15")
def test_what_a_command_leaves_behind_is_named_and_can_be_ended(agents: Agents, world: World) -> None:
    agent = agents("evva")
    server = " ".join(world.probe("quiet", "serve", "0"))
    began = time.monotonic()
    answer = agent.call("bash", command=f"{server} & echo started")
    assert time.monotonic() - began < 30
    id = answer.data["daemon_id"]
    assert not answer.error
    assert answer.text.splitlines()[-1] == f"(1 process it left behind still runs: daemon_stop {id} ends it)"
    assert re.search(rf"^- {id} \[local_bash/completed\] .* exit=0 survivors=1$", listed(agent), re.MULTILINE)
    stopped = agent.call("daemon_stop", daemon_id=id)
    assert stopped.text == f"daemon_stop: {id} terminating; processes it left behind that are ended: 1"
    gone(agent, id)
    assert agent.call("daemon_stop", daemon_id=id).text == f"daemon_stop: {id} already completed (no-op)"


def test_an_object_of_the_host_is_still_known_after_its_end(library: Library) -> None:
    agent = library("evva")
    state, own = agent.tools.state, Own("x00000001")
    state.register(own)
    own.status = "completed"
    state.emit(Signal("x00000001", "webcam", lifecycle=Lifecycle("completed")))
    with state.fold() as fold:
        assert "daemon x00000001 [webcam] completed" in fold.text
    assert len(state) == 0
    assert agent.call("daemon_output", daemon_id="x00000001").text.endswith("---\na picture\n")
    assert agent.call("daemon_stop", daemon_id="x00000001").text == "daemon_stop: x00000001 already completed (no-op)"
    listed = agent.call("daemon_list", include_terminal=True).text
    assert listed.startswith("1 daemon(s):\n- x00000001 [webcam/completed] the webcam started=2026-01-31T08:00:00Z")


def test_a_list_may_be_of_any_kind_that_a_host_registers(library: Library) -> None:
    agent = library("evva")
    for id, kind in (("x00000001", "webcam"), ("x00000002", "printer"), ("d00000001", "dream")):
        agent.tools.state.register(Own(id, kind=kind))

    def ids(kind: str) -> list[str]:
        answer = agent.call("daemon_list", kind=kind)
        assert not answer.error, answer.text
        return [each["daemon_id"] for each in answer.data["daemons"]]

    assert ids("webcam") == ["x00000001"]
    assert ids("dream") == ["d00000001"]
    assert ids("unknown") == ["x00000001", "x00000002"]
    assert listed(agent, kind="local_agent") == "no daemons"
    (kind,) = (
        each["inputSchema"]["properties"]["kind"] for each in agent.tools.schemas() if each["name"] == "daemon_list"
    )
    assert "enum" not in kind
    assert "local_bash" in kind["description"]


def test_a_kind_that_nothing_has_is_refused_with_those_that_there_are(library: Library) -> None:
    agent = library("evva")
    agent.tools.state.register(Own("x00000001", kind="webcam"))
    refused = agent.call("daemon_list", kind="bash")
    assert refused.error
    assert refused.text.startswith("daemon_list: decode: kind: 'bash' is not known; give local_bash or ")
    assert refused.text.endswith(" or webcam or unknown")


def test_a_failed_start_that_the_answer_reports_is_not_notified(library: Library) -> None:
    agent = library("evva", cwd="/no/such/directory")
    answer = agent.call("bash", command="true", run_in_background=True)
    assert answer.error
    assert answer.text.startswith("bash: ")
    assert "/no/such/directory" in answer.text
    assert not agent.tools.state.has_pending()


@pytest.mark.slow
@pytest.mark.long
def test_a_failed_start_is_an_answer_also_where_the_index_is_locked(library: Library, world: World) -> None:
    agent = library("evva", cwd="/no/such/directory")
    locker = sqlite3.connect(world.home / "index.db", isolation_level=None)
    try:
        locker.execute("BEGIN EXCLUSIVE")
        answer = agent.call("bash", command="true")
    finally:
        locker.close()
    assert answer.error
    assert "/no/such/directory" in answer.text


def test_what_is_of_another_kind_has_the_text_of_its_kind(agents: Agents, world: World) -> None:
    agent = agents("evva")

    def work(handle: Handle) -> None:
        handle.line("a line with\u2028a separator")
        handle.report("all is counted")

    task = world.open().daemons.thread(work, owner="agent-7")
    task.settled.result(BOUND_S)
    answer = agent.call("daemon_output", daemon_id=task.id)
    assert answer.text.endswith("---\na line with\\u{2028}a separator\nall is counted")


def test_a_session_that_could_not_be_started_says_so_when_it_is_read(agents: Agents, world: World) -> None:
    agent = agents("evva")
    with pytest.raises(SpawnError):
        world.open().start(["/no/such/program"], owner="agent-7")
    (daemon,) = agent.call("daemon_list", include_terminal=True).data["daemons"]
    assert (daemon["status"], daemon["cause"]) == ("failed", "spawn_error")
    lines = agent.call("daemon_output", daemon_id=daemon["daemon_id"]).text.splitlines()
    assert lines[0] == f"daemon {daemon['daemon_id']} [local_bash/failed] cause=spawn_error"
    assert lines[2].startswith("bg: spawn error: ")
    assert "/no/such/program" in lines[2]


def test_a_settled_command_is_listed_while_its_survivors_live(library: Library) -> None:
    agent = library("evva")
    id = background(agent, "sleep 60 & echo done")
    until(lambda: f"- {id} [local_bash/completed]" in listed(agent), what="the end of the shell")
    until(agent.tools.state.has_pending, what="the news")
    with agent.tools.state.fold() as fold:
        assert f"daemon {id} [local_bash] completed, exit code 0, survivors=1" in fold.text
    assert f"- {id} [local_bash/completed]" in listed(agent)
    agent.call("daemon_stop", daemon_id=id)
    gone(agent, id)


def test_an_unreachable_daemon_is_listed_as_such(
    library: Library, world: World, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", "0.2")
    points.set("runner.answered=pause")
    agent = library("evva")
    id = background(agent, "sleep 60")
    paused = points.wait("runner.answered")
    assert re.search(rf"^- {id} \[local_bash/running\] sleep 60 .* state=unreachable$", listed(agent), re.MULTILINE)
    paused.release()
    until(lambda: "unreachable" not in listed(agent), what="an answer")
    runner = world.open().get(id).runner_pid
    assert runner is not None
    os.kill(runner, signal.SIGKILL)
    until(lambda: listed(agent).endswith(" state=stale"), what="the death of the runner")
    stopped = agent.call("daemon_stop", daemon_id=id)
    assert not stopped.error
    gone(agent, id)
    assert f"- {id} [local_bash/killed]" in listed(agent, include_terminal=True)
    (world.runtime / f"{id}.sock").unlink()


@pytest.mark.covers("evva:16")
def test_limits_of_a_command_and_a_blank_one(agents: Agents, world: World) -> None:
    agent = agents("evva")
    for given, taken in ((0, 120.0), (-5, 120.0), (9999999, 600.0), (None, 120.0), (2500, 2.5)):
        answer = agent.call("bash", command="true", **({} if given is None else {"timeout": given}))
        assert spec(world, answer.data["daemon_id"])["timeout"] == taken
    for blank in ("", "   \n"):
        answer = agent.call("bash", command=blank)
        assert (answer.text, answer.error) == ("bash: command is required", True)
    assert agent.call("bash").text == "bash: command is required"


def spec(world: World, id: str) -> dict[str, Any]:
    from holdfast.core import records

    return records.read(str(world.session(id) / "spec.json"))


def test_a_command_runs_where_and_how_the_agent_was_opened(agents: Agents, world: World) -> None:
    (world.cwd / "below").mkdir()
    agent = agents("evva", cwd=str(world.cwd / "below"), env={"GREETING": "hello"}, shell="/bin/bash")
    answer = agent.call("bash", command='echo "$PWD $GREETING ${BASH_VERSION:+bash}"; cat')
    assert answer.text == f"{world.cwd}/below hello bash\n"


def test_a_command_that_cannot_be_started_says_why(agents: Agents) -> None:
    agent = agents("evva", shell="/no/such/shell")
    answer = agent.call("bash", command="true")
    assert answer.error
    assert answer.text.startswith("bash: the command could not be started: ")
    assert agent.call("bash", command="true", run_in_background=True).text.startswith("bash: the command could not")


def test_an_aborted_call_ends_its_command(library: Library, world: World) -> None:
    agent = library("evva")

    async def abort() -> None:
        call = asyncio.create_task(agent.tools.call("bash", {"command": "sleep 62.25"}))
        while not living(world, "sleep 62.25"):
            await asyncio.wait([call], timeout=0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError, match="bash: cancelled"):
            await call

    agent.run(abort())
    until(lambda: living(world, "sleep 62.25") == [], what="the end of the tree")


def test_progress_reports_the_last_line(library: Library, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["holdfast.tools.base"], "PROGRESS_S", 0.05)
    agent = library("evva")
    gate = world.gate()
    lines: list[str] = []

    async def note(line: str) -> None:
        lines.append(line)
        if line == "halfway":
            gate.release()

    command = " ".join(world.probe("quiet", "say", "halfway", "await", gate))
    answer = agent.run(agent.tools.call("bash", {"command": command}, progress=note))
    assert answer.text == "halfway\n"
    assert "halfway" in lines


def test_calls_that_leave_nothing_behind_are_no_daemons(library: Library, world: World) -> None:
    agent = library("evva")
    changes: list[tuple[str, str]] = []

    async def watch() -> None:
        agent.tools.state.subscribe(lambda change: changes.append((change.op, change.id)))

    agent.run(watch())
    agent.call("bash", command="true")
    left = agent.call("bash", command="sleep 60 & true").data["daemon_id"]
    id = background(agent, "true")
    gone(agent, id)
    agent.call("daemon_stop", daemon_id=left)
    gone(agent, left)

    async def has_ended() -> bool:
        await asyncio.to_thread(lambda: None)
        return ("completed", id) in changes

    until(lambda: agent.run(has_ended()), what="the end of the last")
    assert {changed for _, changed in changes} == {left, id}
    assert [op for op, changed in changes if changed == id] == ["added", "running", "completed"]
    assert listed(agent, include_terminal=True).splitlines()[0] == "2 daemon(s):"


def test_without_a_host_for_daemons_nothing_runs_in_the_background(library: Library) -> None:
    agent = library("evva", daemon_host=False)
    assert agent.call("bash", command="echo hi").text == "hi\n"
    refused = agent.call("bash", command="true", run_in_background=True)
    assert refused.text == "bash: run_in_background is not available in this context (no DaemonHost)"
    arguments = {"command": "true", "description": "x", "persistent": False, "timeout_ms": 0}
    assert agent.call("monitor", **arguments).text == "monitor: host is not configured"
    for tool in ("daemon_list", "daemon_output", "daemon_stop"):
        arguments = {} if tool == "daemon_list" else {"daemon_id": "b00000000"}
        answer = agent.call(tool, **arguments)
        assert (answer.text, answer.error) == (f"{tool}: state unavailable", True)


@pytest.mark.covers("evva:13")
def test_what_was_settled_can_still_be_listed_read_and_stopped(library: Library) -> None:
    agent = library("evva")
    id = background(agent, "echo hi", description="a greeting")
    gone(agent, id)
    # The list has it from the exit record, which its runner writes before the signal of the end.
    until(agent.tools.state.has_pending, what="the news")
    with agent.tools.state.fold() as fold:
        assert id in fold.text
    assert agent.tools.state.get(id) is None
    assert agent.call("daemon_output", daemon_id=id).text == f"daemon {id} [local_bash/completed] exit=0\n---\nhi\n"
    answer = agent.call("daemon_stop", daemon_id=id)
    assert (answer.text, answer.error) == (f"daemon_stop: {id} already completed (no-op)", False)
    assert re.fullmatch(
        rf"1 daemon\(s\):\n- {id} \[local_bash/completed\] a greeting started=\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ exit=0",
        listed(agent, include_terminal=True),
    )
    assert not agent.tools.state.has_pending(), "looking acknowledges nothing, and announces nothing again"


def test_the_list_of_ended_ones_is_bounded_and_counts_the_rest(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.tools.evva import toolset

    monkeypatch.setattr(toolset, "TERMINAL_LISTED", 2)
    agent = agents("evva")
    ids = [background(agent, "true") for _ in range(4)]
    for id in ids:
        gone(agent, id)
    running = background(agent, "sleep 60")
    lines = listed(agent, include_terminal=True).splitlines()
    assert lines[0] == "3 daemon(s):"
    assert [line.split()[1] for line in lines[1:4]] == [*ids[2:], running]
    assert lines[4] == "and 2 older ones that have ended"
    agent.call("daemon_stop", daemon_id=running)
    gone(agent, running)


def test_a_tail_counts_lines_of_the_body(agents: Agents) -> None:
    agent = agents("evva")
    id = background(agent, "seq 1 5")
    gone(agent, id)
    answer = agent.call("daemon_output", daemon_id=id, tail=2)
    assert answer.text == f"daemon {id} [local_bash/completed] exit=0\n---\n4\n5\n"
    silent = background(agent, "sleep 60")
    assert agent.call("daemon_output", daemon_id=silent).text.endswith("\n---\n(no output yet)")
    agent.call("daemon_stop", daemon_id=silent)
    gone(agent, silent)


@pytest.mark.parametrize("tool", ["daemon_output", "daemon_stop"])
def test_errors_name_the_tool_and_what_is_wrong(agents: Agents, world: World, tool: str) -> None:
    agent = agents("evva")
    theirs = world.open().run("echo theirs", owner="another owner")
    for id in ("b00000000", theirs.id):
        answer = agent.call(tool, daemon_id=id)
        assert (answer.text, answer.error) == (f'{tool}: "{id}" not found', True)
    assert agent.call(tool).text == f"{tool}: daemon_id is required"
    assert agent.call(tool, daemon_id=" ").text == f"{tool}: daemon_id is required"
    assert agent.call(tool, daemon_id=["x"]).text.startswith(f"{tool}: decode: daemon_id: ")
    wrong = agent.call(tool, daemon_id="x", deamon_id="y")
    assert wrong.text == f"{tool}: decode: deamon_id: there is no such parameter; did you mean daemon_id?"


def test_a_host_s_own_object_is_listed_read_and_stopped(library: Library) -> None:
    agent = library("evva")
    agent.tools.state.register(Own("x00000001"))
    agent.tools.state.register(Own("x00000002", after=1, problem=HoldfastError("not today")))
    assert listed(agent).splitlines()[1:] == [
        "- x00000001 [webcam/running] the webcam started=2026-01-31T08:00:00Z",
        "- x00000002 [webcam/running] the webcam started=2026-01-31T08:00:01Z",
    ]
    assert agent.call("daemon_output", daemon_id="x00000001").text == (
        "daemon x00000001 [webcam/running]\n---\na picture\n"
    )
    assert agent.call("daemon_stop", daemon_id="x00000001").text.startswith("daemon_stop: x00000001 terminating; ")
    assert agent.call("daemon_stop", daemon_id="x00000001").text == "daemon_stop: x00000001 already killed (no-op)"
    failed = agent.call("daemon_stop", daemon_id="x00000002")
    assert failed.error
    assert failed.text.startswith("daemon_stop: kill failed: not today")


@pytest.mark.covers("evva:30")
def test_a_list_needs_no_arguments_and_idle_daemons_cost_nothing(library: Library, world: World) -> None:
    agent = library("evva")
    state = agent.tools.state
    woken: list[bool] = []

    async def watch() -> None:
        state.subscribe(lambda change: None)
        state.set_wake(lambda: woken.append(True))

    agent.run(watch())
    ids = [background(agent, "sleep 600") for _ in range(10)]
    calls = [
        agent.tools.call("daemon_list", {}),
        agent.tools.call("daemon_list", None),
        agent.tools.call("daemon_list"),
    ]
    texts = [agent.run(call).text for call in calls]
    assert len(set(texts)) == 1
    lines = texts[0].splitlines()
    assert lines[0] == "10 daemon(s):"
    assert all(line.endswith("Z") for line in lines[1:])
    hf = world.open()
    pids = [pid for pid in (hf.get(id).runner_pid for id in ids) if pid is not None]
    assert len(pids) == 10

    def price() -> list[tuple[int, int, int]]:
        return [processes.price(pid) for pid in pids]

    def rest(seconds: float) -> list[tuple[int, int, int]]:
        """What they cost, after the loop has waited for nothing for so long."""
        agent.run(asyncio.wait_for(_forever(), seconds))
        return price()

    until(lambda: price() == rest(0.2), what="the end of the last connection")
    before, own = price(), time.process_time()
    assert rest(2) == before, "idle runners sleep in the kernel"
    assert time.process_time() - own < 0.05
    assert woken == []
    for id in ids:
        agent.call("daemon_stop", daemon_id=id)
    until(lambda: listed(agent) == "no daemons", what="the end of all")


async def _forever() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return


def test_read_only_tools_are_marked_so(library: Library) -> None:
    agent = library("evva")
    hints = {each["name"]: each["annotations"]["readOnlyHint"] for each in agent.tools.schemas()}
    assert hints == {
        "bash": False,
        "monitor": False,
        "daemon_list": True,
        "daemon_output": True,
        "daemon_stop": False,
    }


@pytest.mark.parametrize(
    "seconds, text",
    [(0.5, "500ms"), (1, "1s"), (1.5, "1.5s"), (60, "1m0s"), (120, "2m0s"), (599.5, "9m59.5s"), (3600, "1h0m0s")],
)
def test_durations_are_written_as_go_does(seconds: float, text: str) -> None:
    from holdfast.tools.evva.words import duration

    assert duration(seconds) == text
