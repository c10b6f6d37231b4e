"""`get_daemon_output`: the last lines of each stream, in whatever state the daemon is, and waiting for new ones."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from support.agents import block, split_blocks
from support.faults import kill_runner, wedged
from support.own_time import QuietTime
from support.waiting import until, wait_gone

if TYPE_CHECKING:
    from holdfast.daemons.handle import Handle
    from holdfast.tools import Answer
    from support.agents import Agent, Agents
    from support.waiting import Gate
    from support.world import World


def started(agent: Agent, command: str, **arguments: object) -> Answer:
    receipt = agent.call("shell_cmd", command=command, timeoutSeconds=1, **arguments)
    assert receipt.data["outcome"] == "running", receipt.text
    return receipt


def ended(world: World, answer: Answer) -> None:
    """Until its command has ended and its runner has left."""
    session = world.open().get(answer.data["session"])
    assert session.wait(timeout=30).reason == "exit"
    if session.runner_pid is not None:
        wait_gone(session.runner_pid)


@pytest.mark.covers("dominds:8")
def test_each_stream_has_its_own_block_and_an_unrequested_one_leaves_no_trace(agents: Agents) -> None:
    agent = agents("dominds")
    daemon = started(agent, "seq 5; seq 11 17 >&2; sleep 60", scrollbackLines=3)
    pid = daemon.data["pid"]
    both = agent.call("get_daemon_output", pid=pid)
    assert both.text.splitlines() == [
        f"📤 Daemon {pid} stdout output:",
        "```console",
        *("3", "4", "5"),
        "```",
        "⚠️  2 lines have scrolled out of view",
        f"📤 Daemon {pid} stderr output:",
        "```console",
        *("15", "16", "17"),
        "```",
        "⚠️  4 lines have scrolled out of view",
    ]
    assert both.data["status"] == "success"
    one = agent.call("get_daemon_output", pid=pid, stderr=False)
    assert "stderr" not in one.text
    assert "17" not in one.text.replace(str(pid), "")
    assert list(one.data["streams"]) == ["stdout"]


def test_a_silent_stream_says_so(agents: Agents) -> None:
    agent = agents("dominds")
    pid = started(agent, "echo up; sleep 60").data["pid"]
    assert agent.call("get_daemon_output", pid=pid, stdout=False).text == (
        f"📤 Daemon {pid} stderr output:\n(no output)"
    )


@pytest.mark.covers("dominds:10")
def test_output_of_another_stream_does_not_end_a_wait(agents: Agents, world: World) -> None:
    agent = agents("dominds")
    gate, printed = world.gate(), world.gate()
    daemon = started(agent, f"echo one >&2; read -n 1 < {gate}; sleep 0.1; echo two; echo yes > {printed}; sleep 60")
    pid = daemon.data["pid"]
    gate.release()
    began = time.monotonic()
    waited = agent.call("get_daemon_output", pid=pid, stdout=False, timeout_ms=600)
    assert 0.6 <= time.monotonic() - began < 20
    assert printed.line() == "yes", "stdout did print meanwhile"
    first, *rest = waited.text.splitlines()
    assert first == f"⏱️ Timed out waiting for new stderr output from daemon {pid} (timeout_ms=600)."
    assert waited.data["wait_status"] == "timeout"
    assert rest == [f"📤 Daemon {pid} stderr output:", "```console", "one", "```"]


@pytest.mark.covers("dominds:11")
def test_what_was_not_shown_is_given_at_once_and_a_silent_exit_ends_a_wait(agents: Agents, world: World) -> None:
    agent = agents("dominds")
    gate = world.gate()
    command = f"echo one; read -n 1 < {gate}; echo two; read -n 1 < {gate}; exit 3"
    daemon = started(agent, command)
    pid = daemon.data["pid"]
    seen = agent.call("get_daemon_output", pid=pid, timeout_ms=0)
    assert seen.data["wait_status"] == "timeout", "the receipt has shown what there is"
    gate.release()
    session = world.open().get(daemon.data["session"])
    assert session.wait(match="two", timeout=30).reason == "match"
    # One that waited for more would wait without limit: nothing more comes.
    unseen = agent.call("get_daemon_output", pid=pid, wait_for_new_output=True)
    assert unseen.data["wait_status"] == "output"
    assert "two" in unseen.text

    gate.release()
    last = agent.call("get_daemon_output", pid=pid, wait_for_new_output=True)
    first, *rest = last.text.splitlines()
    assert first == f"⏹️ Daemon {pid} exited while waiting for new stdout/stderr output"
    assert last.data["wait_status"] == "exited"
    assert rest[0] == "State: exited (exit code: 3)"
    assert rest[1:] == [
        *(f"📤 Daemon {pid} stdout output:", "```console", "one", "two", "```"),
        *(f"📤 Daemon {pid} stderr output:", "(no output)"),
    ]
    again = agent.call("get_daemon_output", pid=pid, wait_for_new_output=True)
    assert again.data["wait_status"] == "exited", "nothing more can come: answered at once"


async def _answered_after(gate: Gate, agent: Agent, pid: int) -> Answer:
    """The answer of a wait that is open, and ends when the gate does."""
    arguments = {"pid": pid, "wait_for_new_output": True}
    call = asyncio.ensure_future(agent.tools.call("get_daemon_output", arguments))
    done, _ = await asyncio.wait([call], timeout=0.3)
    assert not done
    gate.release()
    answer: Answer = await asyncio.wait_for(call, 30)
    return answer


def test_a_line_that_comes_while_it_is_waited_for_ends_the_wait(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    gate = world.gate()
    daemon = started(agent, f"read -n 1 < {gate}; echo now; sleep 60")
    answer = agent.run(_answered_after(gate, agent, daemon.data["pid"]))
    assert answer.data["wait_status"] == "output"
    assert "now" in answer.text


@pytest.mark.covers("dominds:11")
def test_a_silent_exit_ends_a_wait_that_is_open(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    gate = world.gate()
    daemon = started(agent, f"read -n 1 < {gate}; exit 3")
    answer = agent.run(_answered_after(gate, agent, daemon.data["pid"]))
    assert answer.data["wait_status"] == "exited"
    exited = f"⏹️ Daemon {daemon.data['pid']} exited while waiting for new stdout/stderr output"
    assert answer.text.splitlines()[:2] == [exited, "State: exited (exit code: 3)"]


def test_what_is_left_of_an_ended_command_is_waited_for_too(agents: Agents, world: World) -> None:
    agent = agents("dominds")
    gate = world.gate()
    done = agent.call("shell_cmd", command=f"(read -n 1 < {gate}; echo late; read -n 1 < {gate}) & echo up")
    pid = done.data["pid"]
    assert agent.call("get_daemon_output", pid=pid, timeout_ms=100).data["wait_status"] == "timeout"
    gate.release()
    late = agent.call("get_daemon_output", pid=pid, timeout_ms=5000)
    assert late.data["wait_status"] == "output"
    assert "late" in late.text
    gate.release()
    assert agent.call("get_daemon_output", pid=pid, wait_for_new_output=True).data["wait_status"] == "exited"


@pytest.mark.covers("dominds:12")
def test_an_ended_daemon_without_runner_reads_the_same_each_time_and_everywhere(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    gate = world.gate()
    daemon = started(agent, f"seq 40; read -n 1 < {gate}; echo last >&2; exit 9")
    gate.release()
    ended(world, daemon)
    pid = daemon.data["pid"]
    other = direct("dominds")
    reads = [each.call("get_daemon_output", pid=pid) for each in (agent, agent, other, other)]
    texts = {read.text for read in reads}
    assert len(texts) == 1
    (text,) = texts
    assert text.startswith("State: exited (exit code: 9)\n")
    assert "\n".join(map(str, range(1, 41))) in text
    assert "```console\nlast\n```" in text
    exits = [read.data["exit"] for read in reads]
    assert exits == [exits[0]] * 4
    assert exits[0]["code"] == 9
    code = """
import asyncio, json, sys, holdfast
from holdfast.tools import toolset

async def main():
    async with holdfast.open_async() as hf:
        async with toolset("dominds", hf, owner="agent-7") as tools:
            print(json.dumps((await tools.call("get_daemon_output", {"pid": int(sys.argv[1])})).text))

asyncio.run(main())
"""
    assert json.loads(world.host(code, pid).line(20)) == text


_HOST = """
import asyncio, sys, holdfast
from holdfast.tools import toolset

async def main():
    async with holdfast.open_async() as hf:
        async with toolset("dominds", hf, owner="agent-7") as tools:
            await tools.call("shell_cmd", {"command": sys.argv[1], "timeoutSeconds": int(sys.argv[2])})

asyncio.run(main())
"""


@pytest.mark.covers("dominds:13")
def test_no_byte_is_missing_after_all_hosts_were_killed_while_output_flowed(direct: Agents, world: World) -> None:
    there, go, gate = world.gate(), world.gate(), world.gate()
    words = ["quiet", "tell", there, "up", "await", go, "lines", 3000, 0.001, "await", gate]
    probe = " ".join(map(str, world.probe(*words)))
    hosts = [world.host(_HOST, probe, 1) for _ in range(2)]
    assert [there.line(20) for _ in hosts] == ["up", "up"]
    go.release(2)
    logs = world.home / "sessions"
    until(lambda: sum(path.stat().st_size > 100 for path in logs.glob("*/stdout.0*")) == 2, what="the flow")
    for host in hosts:
        host.signal(signal.SIGKILL)
        host.wait()
    whole = sum(len(f"line {number}\n") for number in range(1, 3001))
    assert all(path.stat().st_size < whole for path in logs.glob("*/stdout.0*")), "it still flows"
    agent = direct("dominds")
    flowing = agent.run(agent.tools.own_sessions())
    assert len(flowing) == 2
    for session in flowing:
        assert agent.run(session.wait(match="^line 3000$", timeout=30)).reason == "match"
        lines = agent.run(session.text("stdout")).splitlines()
        assert lines == [f"line {number}" for number in range(1, 3001)]
    until(lambda: len(agent.run(agent.tools.reminders())) == 2, what="their reminders")
    assert {each.id for each in agent.run(agent.tools.reminders())} == {each.id for each in flowing}


_LONG = """python3 - <<'END'
import os, time
def put(data):
    while data:
        data = data[os.write(1, data):]
put(b'`' * 7 + b'\\n')
line = 'one é ``` two\\n'.encode()
put(line * 3000)
for byte in 'é'.encode() * 2:
    put(bytes([byte]))
    time.sleep(0.05)
put(b'\\n' + line * 5600)
END"""


@pytest.mark.covers("dominds:25")
def test_a_long_output_keeps_head_and_tail_in_one_unbroken_block(agents: Agents) -> None:
    whole = "`" * 7 + "\n" + "one é ``` two\n" * 3000 + "éé\n" + "one é ``` two\n" * 5600
    original = len(whole) - 1
    assert original > 120_000
    agent = agents("dominds")
    done = agent.call("shell_cmd", command=_LONG, scrollbackLines=10000, timeoutSeconds=10)
    assert done.data["status"] == "success"
    omitted = done.data["streams"]["stdout"]["omitted"]
    mark = "...[tool_output_truncated_in_tool tool=shell_cmd "
    mark += f"original_chars={original} limit_chars=48000 omitted_chars={omitted['chars']}]..."
    outside, inside = split_blocks(done.text)
    assert outside == ["✅ Command completed (exit code: 0)", "", "📤 stdout:"], "nothing inside closes the block"
    shown = inside["📤 stdout:"]
    assert len(shown) <= 48000
    head, _, tail = shown.partition(f"\n{mark}\n")
    assert len(head) + len(tail) + omitted["chars"] == original
    assert abs(len(head) / (len(head) + len(tail)) - 0.67) < 0.01
    assert "\ufffd" not in done.text
    left_out = whole.encode()[omitted["from"] : omitted["to"]].decode()
    assert head + left_out + tail == whole.removesuffix("\n")


def test_a_character_cut_by_a_read_is_whole_in_a_daemons_output(direct: Agents) -> None:
    agent = direct("dominds")
    daemon = started(agent, r"printf 'caf\303'; sleep 0.2; printf '\251 au lait'; sleep 60")
    assert "café au lait\n" in agent.call("get_daemon_output", pid=daemon.data["pid"]).text


def test_progress_is_folded_and_escapes_are_gone(agents: Agents) -> None:
    agent = agents("dominds")
    done = agent.call("shell_cmd", command=r"printf '10%%\r50%%\r100%%\n\033[1mbold\033[0m\a\n'")
    assert block(done.text, "stdout") == "100%\nbold"


def test_a_runner_that_stands_still_is_unreachable_and_its_log_is_shown(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    daemon = started(agent, "echo kept; sleep 60")
    with wedged(world.open().get(daemon.data["session"])):
        read = agent.call("get_daemon_output", pid=daemon.data["pid"])
        assert read.data["status"] == "partial_failure"
        assert read.text.startswith("State: unreachable: ")
        assert "kept" in read.text
        passed = QuietTime()
        waited = agent.call("get_daemon_output", pid=daemon.data["pid"], timeout_ms=200)
        assert passed.seconds() < 9, "a silent runner does not lengthen a wait to the bound of its answers"
        assert waited.data["wait_status"] == "timeout"


@pytest.mark.parametrize("answers", [False, True])
def test_a_runner_that_stands_still_ends_no_wait(
    direct: Agents, world: World, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    # Whoever looks is done soon; what is left of the time is the wait's.
    monkeypatch.setenv("HOLDFAST_HOSTS_REPLY_TIMEOUT", "0.2")
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", "0.2")
    agent = direct("dominds")
    gate = world.gate()
    daemon = started(agent, f"echo kept; read -n 1 < {gate}; echo more; sleep 60")
    pid = daemon.data["pid"]
    limit_ms = 20_000 if answers else 2500

    async def waited() -> Answer:
        call = asyncio.ensure_future(agent.tools.call("get_daemon_output", {"pid": pid, "timeout_ms": limit_ms}))
        with wedged(world.open().get(daemon.data["session"])):
            done, _ = await asyncio.wait([call], timeout=1.5 if answers else 5)
            assert bool(done) is not answers
            gate.release()
        answer: Answer = await asyncio.wait_for(call, 30)
        return answer

    began = time.monotonic()
    answer = agent.run(waited())
    if answers:
        assert answer.data["wait_status"] == "output"
        assert "more" in answer.text
    else:
        assert time.monotonic() - began >= 2.5
        assert answer.data["wait_status"] == "timeout"
        assert answer.text.startswith(f"⏱️ Timed out waiting for new stdout/stderr output from daemon {pid} ")
        assert "kept" in answer.text


def test_a_lost_daemon_says_so_and_its_log_is_shown(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    daemon = started(agent, "echo kept; exec sleep 60")
    session = world.open().get(daemon.data["session"])
    kill_runner(session)
    read = agent.call("get_daemon_output", pid=daemon.data["pid"], wait_for_new_output=True)
    assert (read.data["status"], read.data["state"]) == ("partial_failure", "stale")
    assert read.data["wait_status"] == "unavailable"
    session.stop(grace=0)
    read = agent.call("get_daemon_output", pid=daemon.data["pid"], wait_for_new_output=True)
    assert (read.data["status"], read.data["state"]) == ("partial_failure", "lost")
    assert read.data["wait_status"] == "unavailable"
    assert "State: lost: exit unknown" in read.text
    assert "kept" in read.text


def test_a_wait_ends_when_the_runner_dies_although_the_command_lives(direct: Agents, world: World) -> None:
    agent = direct("dominds", stale_policy="report")
    daemon = started(agent, "echo kept; exec sleep 60")
    session = world.open().get(daemon.data["session"])

    async def waiting() -> Answer:
        arguments = {"pid": daemon.data["pid"], "wait_for_new_output": True}
        call = asyncio.ensure_future(agent.tools.call("get_daemon_output", arguments))
        done, _ = await asyncio.wait([call], timeout=0.3)
        assert not done
        await asyncio.to_thread(kill_runner, session)
        answer: Answer = await asyncio.wait_for(call, 30)
        return answer

    read = agent.run(waiting())
    assert (read.data["state"], read.data["wait_status"]) == ("stale", "unavailable")
    assert (read.data["status"], read.error) == ("partial_failure", False)
    assert read.text.startswith("State: stale: the runner is gone, the process lives.")
    assert "kept" in read.text


def test_an_unused_pid_and_a_pid_of_another_owner_are_not_found(agents: Agents) -> None:
    other = agents("dominds", owner="agent-8")
    pid = started(other, "sleep 60").data["pid"]
    agent = agents("dominds")
    for unknown in (1, pid):
        answer = agent.call("get_daemon_output", pid=unknown)
        assert (answer.text, answer.error) == (f"❌ No daemon process found with PID {unknown}", True)
        assert agent.call("stop_daemon", pid=unknown).text == f"❌ No daemon process found with PID {unknown}"
    assert not other.call("get_daemon_output", pid=pid).error


def test_a_session_that_the_owner_started_elsewhere_is_found_by_its_pid(agents: Agents, world: World) -> None:
    agent = agents("dominds")
    session = world.open().start("echo up; exec sleep 60", owner="agent-7")
    assert session.wait(match="up", timeout=30).reason == "match"
    read = agent.call("get_daemon_output", pid=session.pid)
    assert read.data["session"] == session.id
    assert read.text.splitlines()[:4] == [f"📤 Daemon {session.pid} stdout output:", "```console", "up", "```"]
    assert agent.run(agent.tools.reminders()) == [], "no reminder, for this family did not start it"
    stopped = agent.call("stop_daemon", pid=session.pid)
    assert stopped.data["status"] == "success"
    assert stopped.text.startswith(f"✅ Daemon process {session.pid} (echo up; exec sleep 60) stopped successfully")


@pytest.mark.parametrize("asked", [{}, {"stderr": False}, {"stdout": False}])
def test_a_terminal_has_one_stream_whichever_is_asked_for(direct: Agents, world: World, asked: dict[str, bool]) -> None:
    agent = direct("dominds")
    session = world.open().start("exec sleep 60", owner="agent-7", tty=True)
    waited = agent.call("get_daemon_output", pid=session.pid, timeout_ms=100, **asked)
    assert waited.data["wait_status"] == "timeout"
    assert waited.text.splitlines()[1:] == [f"📤 Daemon {session.pid} tty output:", "(no output)"]
    session.stop(grace=0)
    session = world.open().start("echo up; exec sleep 60", owner="agent-7", tty=True)
    read = agent.call("get_daemon_output", pid=session.pid, timeout_ms=5000, **asked)
    assert read.data["wait_status"] == "output"
    assert read.text.splitlines() == [f"📤 Daemon {session.pid} tty output:", "```console", "up", "```"]


def test_an_earlier_session_with_the_same_pid_is_named(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    gate = world.gate()
    first = started(agent, f"read -n 1 < {gate}")
    gate.release()
    ended(world, first)
    second = started(agent, "echo mine; sleep 60")
    # As if the system had given the same number again.
    for name in ("state.json",):
        path = world.session(first.data["session"]) / name
        record = json.loads(path.read_text())
        record["command"]["pid"] = record["pgid"] = second.data["pid"]
        path.write_text(json.dumps(record))
    world.open().doctor(rebuild=True)
    read = agent.call("get_daemon_output", pid=second.data["pid"])
    assert read.data["session"] == second.data["session"]
    assert "mine" in read.text
    named = f"PID {second.data['pid']} is session {second.data['session']} here; "
    assert named + f"the earlier session {first.data['session']} had the same pid." in read.text


@pytest.mark.parametrize("lives", [True, False])
def test_a_pid_means_the_session_of_which_something_lives(direct: Agents, world: World, lives: bool) -> None:
    """A reminder of what lives on gives the pid of a command that has ended: a later one may have had the same."""
    agent = direct("dominds", extended=True)
    gate, end = world.gate(), world.gate()
    left = agent.call("shell_cmd", command=f"read -n 1 < {gate} & echo mine")
    later = started(agent, f"read -n 1 < {end}; echo other")
    end.release()
    ended(world, later)
    path = world.session(later.data["session"]) / "state.json"
    record = json.loads(path.read_text())
    record["command"]["pid"] = record["pgid"] = left.data["pid"]
    path.write_text(json.dumps(record))
    world.open().doctor(rebuild=True)
    if not lives:
        gate.release()
        until(lambda: not agent.call("get_daemon_output", session=left.data["session"]).data["survivors"])
    read = agent.call("get_daemon_output", pid=left.data["pid"])
    assert read.data["session"] == (left if lives else later).data["session"]


def test_more_ways_to_read_are_there_when_asked_for(agents: Agents) -> None:
    agent = agents("dominds", extended=True)
    daemon = started(agent, "seq 10; sleep 60")
    id, pid = daemon.data["session"], daemon.data["pid"]
    by_id = agent.call("get_daemon_output", session=id, lines=2, stderr=False)
    assert block(by_id.text, "stdout") == "9\n10"
    assert by_id.data["streams"]["stdout"]["linesScrolledOut"] == 8
    since = agent.call("get_daemon_output", pid=pid, since=4, stderr=False)
    assert block(since.text, "stdout").splitlines() == [str(number) for number in range(3, 11)]
    assert agent.call("get_daemon_output", pid=pid, since=4).error
    assert agent.call("get_daemon_output").error
    assert agent.call("get_daemon_output", session="nobody").error


def test_what_retention_dropped_and_the_disk_refused_is_said(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    daemon = started(agent, "seq 10; sleep 60")
    session = agent.run(agent.hf.get(daemon.data["session"]))
    session.metadata["gaps"] = [{"stream": "stdout", "from": 5, "to": 9, "reason": "disk"}]
    session.dropped_before = {"stdout": 4, "stderr": 0}
    from holdfast.tools.dominds.sessions import gap_lines, last_lines, stream_facts

    views = [agent.run(last_lines(session, "stdout", 3))]
    views[0].dropped_before = 4
    assert gap_lines(session, views, agent.tools.texts) == [
        "⚠️  stdout before offset 4 was dropped by retention",
        "⚠️  stdout is incomplete from offset 5: the disk refused 4 bytes",
    ]
    facts = stream_facts(session, views)["streams"]["stdout"]
    assert (facts["droppedBefore"], facts["incompleteFrom"]) == (4, 5)


def test_what_has_no_pid_is_named_by_its_session(direct: Agents, world: World) -> None:
    agent = direct("dominds", extended=True)
    gate = threading.Event()

    def work(handle: Handle) -> None:
        handle.line("here")
        gate.wait()

    handle = world.open().daemons.thread(work, owner=agent.tools.owner)
    until(lambda: "here" in agent.call("get_daemon_output", session=handle.id).text, what="the line")
    read = agent.call("get_daemon_output", session=handle.id)
    assert read.text.splitlines()[0] == f"📤 Daemon {handle.id} stdout output:"
    late = agent.call("get_daemon_output", session=handle.id, wait_for_new_output=True, timeout_ms=100)
    assert f"from daemon {handle.id} (timeout_ms=100)." in late.text
    assert "None" not in read.text + late.text
    gate.set()
